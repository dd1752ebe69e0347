//! Points on the earth as numbers: a position has 52 bits, alternately of the longitude and the latitude, so that nearby points
//! mostly have nearby numbers. Every step is computed exactly as in Redis, to the last bit.

/// The maximum longitude in degrees; the minimum is its negation.
pub const LONGITUDE_MAX: f64 = 180.0;
/// The maximum latitude in degrees, at which the map is a square; the minimum is its negation.
pub const LATITUDE_MAX: f64 = 85.051_128_78;
/// Maximum number of bits per coordinate.
const STEPS_MAX: u32 = 26;
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;
const MERCATOR_MAX_M: f64 = 20_037_726.37;

/// Longitude and latitude, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Positive east of Greenwich.
    pub longitude: f64,
    /// Positive north of the equator.
    pub latitude: f64,
}

impl Point {
    /// A point on the map; `None` if the coordinates are out of range.
    pub fn new(longitude: f64, latitude: f64) -> Option<Point> {
        let inside = longitude.abs() <= LONGITUDE_MAX && latitude.abs() <= LATITUDE_MAX;
        inside.then_some(Point { longitude, latitude })
    }

    /// The score of a member at this position.
    pub fn score(self) -> u64 {
        Cell::of(self, STEPS_MAX).bits
    }

    /// The position of a member with this score. Any score has one.
    pub fn of_score(score: f64) -> Point {
        let cell = Cell { bits: truncated(score), steps: STEPS_MAX };
        let ((west, east), (south, north)) = cell.extent();
        Point {
            longitude: f64::midpoint(west, east).clamp(-LONGITUDE_MAX, LONGITUDE_MAX),
            latitude: f64::midpoint(south, north).clamp(-LATITUDE_MAX, LATITUDE_MAX),
        }
    }

    /// The standard geohash of eleven characters. Unlike the score, it divides the latitudes up to the poles.
    pub fn geohash(self) -> [u8; 11] {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::within(self, STEPS_MAX, 90.0).bits;
        // The bits suffice for ten characters; the last one is always 0.
        std::array::from_fn(|i| ALPHABET[if i == 10 { 0 } else { (bits >> (52 - (i + 1) * 5)) as usize & 31 }])
    }

    /// Distance in metres, along a great circle of a sphere.
    pub fn distance_m(self, other: Point) -> f64 {
        let (from, to) = (radians(self.longitude), radians(other.longitude));
        let v = ((to - from) / 2.0).sin();
        if v == 0.0 {
            return latitude_distance_m(self.latitude, other.latitude);
        }
        let (south, north) = (radians(self.latitude), radians(other.latitude));
        let u = ((north - south) / 2.0).sin();
        let a = u * u + south.cos() * north.cos() * v * v;
        2.0 * EARTH_RADIUS_M * a.sqrt().asin()
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

fn latitude_distance_m(one: f64, other: f64) -> f64 {
    EARTH_RADIUS_M * (radians(other) - radians(one)).abs()
}

/// A score as an unsigned 64-bit integer. Out of range, the result is that of x86-64 processors, on which Redis commonly runs.
fn truncated(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    let signed = |n: f64| if (-HALF..HALF).contains(&n) { n as i64 } else { i64::MIN };
    if score < HALF { signed(score) as u64 } else { signed(score - HALF) as u64 ^ (1 << 63) }
}

/// A square of the map: the leading bits of both coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

const EVEN: u64 = 0x5555_5555_5555_5555;

/// Collects every second bit, from the lowest on.
fn gather(bits: u64) -> u32 {
    let mut x = bits & EVEN;
    for (shift, mask) in
        [(1, 0x3333_3333_3333_3333), (2, 0x0f0f_0f0f_0f0f_0f0f), (4, 0x00ff_00ff_00ff_00ff), (8, 0x0000_ffff_0000_ffff)]
    {
        x = (x | x >> shift) & mask;
    }
    (x | x >> 16) as u32
}

/// The reverse of [`gather`].
fn scatter(bits: u32) -> u64 {
    let mut x = u64::from(bits);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, EVEN),
    ] {
        x = (x | x << shift) & mask;
    }
    x
}

impl Cell {
    /// The square that contains a point.
    fn of(point: Point, steps: u32) -> Cell {
        Cell::within(point, steps, LATITUDE_MAX)
    }

    /// As [`Cell::of`] on a map with another maximum latitude.
    fn within(point: Point, steps: u32, latitude_max: f64) -> Cell {
        let whole = (1u64 << steps) as f64;
        let latitude = (point.latitude + latitude_max) / (latitude_max + latitude_max) * whole;
        let longitude = (point.longitude + LONGITUDE_MAX) / (LONGITUDE_MAX + LONGITUDE_MAX) * whole;
        Cell { bits: scatter(latitude as u32) | scatter(longitude as u32) << 1, steps }
    }

    /// The longitudes of its west and east sides, and the latitudes of its south and north sides.
    fn extent(self) -> ((f64, f64), (f64, f64)) {
        let whole = (1u64 << self.steps) as f64;
        let ends = |n: u32, max: f64| {
            let end = |n: u32| -max + f64::from(n) / whole * (max + max);
            (end(n), end(n.wrapping_add(1)))
        };
        (ends(gather(self.bits >> 1), LONGITUDE_MAX), ends(gather(self.bits), LATITUDE_MAX))
    }

    /// The neighbour `east` and `north` squares away, each −1, 0 or 1. The map wraps around.
    fn neighbour(self, east: i8, north: i8) -> Cell {
        let all = u64::MAX >> (64 - self.steps * 2);
        let moved = |own: u64, by: i8| {
            let (bits, others) = (self.bits & own, !own & all);
            match by {
                1 => bits.wrapping_add(others + 1) & all & own,
                -1 => (bits | others).wrapping_sub(others + 1) & all & own,
                // A point on the last edge of the map has one bit too many, which stays if the square does not move.
                _ => bits,
            }
        };
        Cell { bits: moved(!EVEN, east) | moved(EVEN, north), steps: self.steps }
    }

    /// The scores of the points in the square: the first one, and the end, which is excluded.
    fn scores(self) -> (f64, f64) {
        let shift = 52 - self.steps * 2;
        ((self.bits << shift) as f64, (self.bits.wrapping_add(1) << shift) as f64)
    }
}

/// The shape of a search area, in the unit of the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// All points up to a distance.
    Circle {
        /// The distance.
        radius: f64,
    },
    /// A rectangle along the coordinates.
    Rectangle {
        /// The extent from west to east.
        width: f64,
        /// The extent from south to north.
        height: f64,
    },
}

/// A search area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// Its center.
    pub center: Point,
    /// Its shape.
    pub shape: Shape,
    /// Metres per unit of the shape.
    pub unit_m: f64,
}

impl Area {
    /// The distance from the center in metres; `None` if the point is outside of the area.
    pub fn distance_m(&self, point: Point) -> Option<f64> {
        match self.shape {
            Shape::Circle { radius } => {
                let distance = self.center.distance_m(point);
                // A distance of NaN counts as inside.
                if distance > radius * self.unit_m { None } else { Some(distance) }
            }
            Shape::Rectangle { width, height } => {
                let (width_m, height_m) = (width * self.unit_m, height * self.unit_m);
                if latitude_distance_m(point.latitude, self.center.latitude) > height_m / 2.0 {
                    return None;
                }
                let beside = Point { longitude: self.center.longitude, latitude: point.latitude };
                if point.distance_m(beside) > width_m / 2.0 {
                    return None;
                }
                Some(self.center.distance_m(point))
            }
        }
    }

    /// The west, south, east and north ends in degrees.
    fn bounds(&self) -> [f64; 4] {
        let (width, height) = match self.shape {
            Shape::Circle { radius } => (radius, radius),
            Shape::Rectangle { width, height } => (width / 2.0, height / 2.0),
        };
        let (width_m, height_m) = (self.unit_m * width, self.unit_m * height);
        let Point { longitude, latitude } = self.center;
        let north = degrees(height_m / EARTH_RADIUS_M);
        // The side nearer to the pole spans more degrees.
        let nearer = if latitude < 0.0 { latitude - north } else { latitude + north };
        let east = degrees(width_m / EARTH_RADIUS_M / radians(nearer).cos());
        [longitude - east, latitude - north, longitude + east, latitude + north]
    }

    /// The number of bits per coordinate with which nine squares cover the area.
    fn steps(&self) -> u32 {
        let radius = match self.shape {
            Shape::Circle { radius } => radius,
            Shape::Rectangle { width, height } => ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt(),
        };
        let mut radius_m = radius * self.unit_m;
        if radius_m == 0.0 {
            return STEPS_MAX;
        }
        let mut steps = -1;
        while radius_m < MERCATOR_MAX_M {
            radius_m *= 2.0;
            steps += 1;
        }
        let latitude = self.center.latitude.abs();
        steps -= i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
        steps.clamp(1, STEPS_MAX as i32) as u32
    }

    /// Ranges of scores, with excluded ends, that contain all points of the area: the square with the center, and the neighbours
    /// that the area reaches into.
    pub fn ranges(&self) -> Vec<(f64, f64)> {
        const AROUND: [(i8, i8); 9] = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let [west, south, east, north] = self.bounds();
        let mut middle = Cell::of(self.center, self.steps());
        // If the area reaches beyond the neighbours, larger squares are needed.
        let beyond = middle.neighbour(0, 1).extent().1.1 < north
            || middle.neighbour(0, -1).extent().1.0 > south
            || middle.neighbour(1, 0).extent().0.1 < east
            || middle.neighbour(-1, 0).extent().0.0 > west;
        if middle.steps > 1 && beyond {
            middle = Cell::of(self.center, middle.steps - 1);
        }
        let ((middle_west, middle_east), (middle_south, middle_north)) = middle.extent();
        let useless = |(x, y): (i8, i8)| {
            middle.steps >= 2
                && ((y < 0 && middle_south < south)
                    || (y > 0 && middle_north > north)
                    || (x < 0 && middle_west < west)
                    || (x > 0 && middle_east > east))
        };
        let mut cells: Vec<Cell> = Vec::with_capacity(9);
        for (x, y) in AROUND {
            let cell = middle.neighbour(x, y);
            // On a map of few squares, a neighbour may be the same square as the one before.
            let again = cells.len() > 1 && cells.last() == Some(&cell);
            if !useless((x, y)) && !again {
                cells.push(cell);
            }
        }
        cells.into_iter().map(Cell::scores).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point() -> impl Strategy<Value = Point> {
        prop_oneof![
            6 => (-180.0..=180.0, -LATITUDE_MAX..=LATITUDE_MAX),
            1 => (prop::sample::select(&[-180.0, 180.0, 0.0][..]), prop::sample::select(&[-LATITUDE_MAX, LATITUDE_MAX, 0.0][..])),
        ]
        .prop_map(|(longitude, latitude)| Point::new(longitude, latitude).unwrap())
    }

    proptest! {
        #[test]
        fn a_point_comes_back_from_its_score(point in point()) {
            let back = Point::of_score(point.score() as f64);
            prop_assert!((back.longitude - point.longitude).abs() < 1e-5 && (back.latitude - point.latitude).abs() < 1e-5);
            prop_assert_eq!(gather(scatter(point.score() as u32)), point.score() as u32);
        }

        #[test]
        fn what_lies_in_an_area_has_a_score_in_its_ranges(
            center in point(),
            (east, north) in (-1.0..1.0, -1.0..1.0),
            size in prop_oneof![1.0..1000.0, 1000.0..100_000.0, 100_000.0..500_000.0],
            circle in any::<bool>(),
        ) {
            // Near the edge of the map, Redis's squares do not cover everything.
            prop_assume!(center.longitude.abs() < 150.0 && center.latitude.abs() < 70.0);
            let shape = if circle { Shape::Circle { radius: size } } else { Shape::Rectangle { width: size, height: size / 3.0 } };
            let area = Area { center, shape, unit_m: 1.0 };
            let scale = size / 60_000.0;
            let near = Point::new(center.longitude + east * scale, center.latitude + north * scale).unwrap();
            // The score stands for a nearby point, not the exact one.
            let near = Point::of_score(near.score() as f64);
            if area.distance_m(near).is_some() {
                let score = near.score() as f64;
                prop_assert!(area.ranges().iter().any(|(from, to)| (*from..*to).contains(&score)), "{:?}", area.ranges());
            }
        }

        #[test]
        fn any_score_is_some_place(score in any::<f64>(), unit_m in 0.3..1700.0, radius in any::<f64>()) {
            let radius = radius.abs();
            prop_assume!(!score.is_nan() && !radius.is_nan());
            let center = Point::of_score(score);
            prop_assert!(Point::new(center.longitude, center.latitude).is_some());
            center.geohash();
            let area = Area { center, shape: Shape::Circle { radius }, unit_m };
            prop_assert!(area.ranges().len() <= 9);
        }
    }

    #[test]
    fn known_places() {
        let palermo = Point::new(13.361_389, 38.115_556).unwrap();
        let catania = Point::new(15.087_269, 37.502_669).unwrap();
        assert_eq!(palermo.score(), 3_479_099_956_230_698);
        assert_eq!(&Point::of_score(palermo.score() as f64).geohash(), b"sqc8b49rny0");
        assert_eq!(&Point::of_score(catania.score() as f64).geohash(), b"sqdtr74hyu0");
        let [palermo, catania] = [palermo, catania].map(|point| Point::of_score(point.score() as f64));
        assert_eq!(format!("{:.4}", palermo.distance_m(catania)), "166274.1516");
        assert_eq!(Point::new(180.1, 0.0), None);
        assert_eq!(Point::new(0.0, f64::NAN), None);
    }

    #[test]
    fn scores_that_are_none_are_read_as_processors_do() {
        assert_eq!(truncated(-1.5), u64::MAX);
        assert_eq!(truncated(f64::INFINITY), 0);
        assert_eq!(truncated(f64::NEG_INFINITY), 1 << 63);
        assert_eq!(truncated(9_223_372_036_854_775_808.0), 1 << 63);
    }
}

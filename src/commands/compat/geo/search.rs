//! Searches for members by position.

use crate::base::error::{Error, Result};
use crate::base::number::{parse_i64, parse_score};
use crate::commands::compat::geo::geohash::{Area, Point, Shape};
use crate::commands::compat::geo::points::{GEO, parse_point, parse_unit, place, write_distance, write_point};
use crate::engine::command::keys::{Begin, Find, KeySpec, KeyUse, uses};
use crate::engine::command::{Access, Command, Flags, Keys, Positions};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::types::zsets::{ScoreRange, ZSetView};
use crate::resp::reply::Sink;
use crate::store::values::zset::{Item, ZSet, compare};

const SEARCH_COST: &str = "O(N+log(M)) for N members near the position and M members of the sorted set";

const ONE: Find = Find::Range { last: 0, step: 1, limit: 0 };

/// A destination key after a word.
const fn key_after(word: &'static str, from: usize) -> KeySpec {
    KeySpec { access: Access::Overwrite, uses: KeyUse::UPDATE, begin: Begin::Keyword { word, from }, find: ONE }
}

/// The keys of commands whose options STORE and STOREDIST name a destination.
const fn stored_by_options(from: usize) -> [KeySpec; 3] {
    let source = KeySpec { access: Access::Read, uses: KeyUse::ACCESS, begin: Begin::Index(1), find: ONE };
    [source, key_after("STORE", from), key_after("STOREDIST", from)]
}

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "geosearch",
        arity: -7,
        since: "6.2.0",
        summary: "Returns the members inside a circle or a rectangle.",
        complexity: SEARCH_COST,
        syntax: "key <FROMMEMBER member | FROMLONLAT longitude latitude> \
                 <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> \
                 [ASC | DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        handler: |cx, args| search(cx, args, Form::Search),
        ..GEO
    },
    Command {
        name: "geosearchstore",
        arity: -8,
        flags: STORING,
        keys: Keys::TWO,
        key_uses: uses::STORED,
        since: "6.2.0",
        summary: "Stores the members inside a circle or a rectangle in another key.",
        complexity: SEARCH_COST,
        syntax: "destination source <FROMMEMBER member | FROMLONLAT longitude latitude> \
                 <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> \
                 [ASC | DESC] [COUNT count [ANY]] [STOREDIST]",
        handler: |cx, args| search(cx, args, Form::SearchStore),
        ..GEO
    },
    Command {
        name: "georadius",
        slot_args: Some(slot_args),

        arity: -6,
        flags: STORING,
        keys: Keys::Specified(&stored_by_options(6)),
        summary: "Returns or stores the members within a distance of a position.",
        complexity: SEARCH_COST,
        syntax: "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
                 [ASC | DESC] [STORE storekey:key | STOREDIST storedistkey:key]",
        handler: |cx, args| search(cx, args, Form::Radius { stores: true }),
        ..GEO
    },
    Command {
        name: "georadius_ro",
        arity: -6,
        since: "3.2.10",
        summary: "Returns the members within a distance of a position.",
        complexity: SEARCH_COST,
        syntax: "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
        handler: |cx, args| search(cx, args, Form::Radius { stores: false }),
        ..GEO
    },
    Command {
        name: "georadiusbymember",
        slot_args: Some(slot_args),

        arity: -5,
        flags: STORING,
        keys: Keys::Specified(&stored_by_options(5)),
        summary: "Returns or stores the members within a distance of a member.",
        complexity: SEARCH_COST,
        syntax: "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC] \
                 [STORE storekey:key | STOREDIST storedistkey:key]",
        handler: |cx, args| search(cx, args, Form::RadiusByMember { stores: true }),
        ..GEO
    },
    Command {
        name: "georadiusbymember_ro",
        arity: -5,
        since: "3.2.10",
        summary: "Returns the members within a distance of a member.",
        complexity: SEARCH_COST,
        syntax: "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
        handler: |cx, args| search(cx, args, Form::RadiusByMember { stores: false }),
        ..GEO
    },
];

const STORING: Flags = Flags::WRITE.union(Flags::DENYOOM);

/// The source and the last destination, from which Redis determines the slots.
fn slot_args(args: &[&[u8]]) -> Positions {
    let (mut at, mut positions) = (5, Positions::from_slice(&[1]));
    while at + 1 < args.len() {
        if args[at].eq_ignore_ascii_case(b"STORE") || args[at].eq_ignore_ascii_case(b"STOREDIST") {
            at += 1;
            positions.truncate(1);
            positions.push(at);
        }
        at += 1;
    }
    positions
}

/// The command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Search,
    SearchStore,
    Radius { stores: bool },
    RadiusByMember { stores: bool },
}

impl Form {
    /// Whether the center and the shape are options.
    fn is_search(self) -> bool {
        matches!(self, Form::Search | Form::SearchStore)
    }

    fn takes_store(self) -> bool {
        matches!(self, Form::Radius { stores: true } | Form::RadiusByMember { stores: true })
    }

    fn event(self) -> Event {
        Event::new(Classes::ZSET, if self.is_search() { "geosearchstore" } else { "georadiusstore" })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// The options of a search.
#[derive(Default)]
struct Options<'a> {
    center: Option<Point>,
    /// The center is a member, even if its position is unknown.
    from_member: bool,
    shape: Option<(Shape, f64)>,
    with_distance: bool,
    with_hash: bool,
    with_point: bool,
    order: Option<Order>,
    /// Maximum number of members; 0 for all.
    count: usize,
    /// Any members will do, not only the nearest ones.
    any: bool,
    store: Option<&'a [u8]>,
    store_distance: bool,
}

/// Parses a distance, which must not be negative.
fn parse_size(text: &[u8], not_a_number: Error) -> Result<f64> {
    parse_score(text).ok_or(not_a_number)
}

fn parse_circle(radius: &[u8], unit: &[u8]) -> Result<(Shape, f64)> {
    let radius = parse_size(radius, Error::GEO_RADIUS)?;
    if radius < 0.0 {
        return Err(Error::GEO_RADIUS_NEGATIVE);
    }
    Ok((Shape::Circle { radius }, parse_unit(unit)?))
}

fn parse_rectangle(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64)> {
    let (width, height) = (parse_size(width, Error::GEO_WIDTH)?, parse_size(height, Error::GEO_HEIGHT)?);
    if width < 0.0 || height < 0.0 {
        return Err(Error::GEO_BOX_NEGATIVE);
    }
    Ok((Shape::Rectangle { width, height }, parse_unit(unit)?))
}

fn parse_member(zset: ZSetView<'_>, member: &[u8]) -> Result<Point> {
    place(zset, member).ok_or(Error::GEO_NO_MEMBER)
}

impl<'a> Options<'a> {
    /// Parses the arguments after the source key, which holds `zset`.
    fn parse(form: Form, args: &[&'a [u8]], zset: Option<ZSetView<'_>>) -> Result<Self> {
        let mut options = Options::default();
        let mut rest = match form {
            Form::Radius { .. } => {
                options.center = Some(parse_point(args[2], args[3])?);
                options.shape = Some(parse_circle(args[4], args[5])?);
                &args[6..]
            }
            Form::RadiusByMember { .. } => {
                if let Some(zset) = zset {
                    options.center = Some(parse_member(zset, args[2])?);
                    options.shape = Some(parse_circle(args[3], args[4])?);
                }
                &args[5..]
            }
            Form::Search => &args[2..],
            Form::SearchStore => {
                options.store = Some(args[1]);
                &args[3..]
            }
        };
        while let [option, more @ ..] = rest {
            let taken = options.parse_one(form, &option.to_ascii_lowercase(), more, zset)?;
            rest = more.get(taken..).ok_or(Error::SYNTAX)?;
        }
        options.check(form, args[0])?;
        Ok(options)
    }

    /// Parses one option. Returns the number of arguments that it takes.
    fn parse_one(&mut self, form: Form, option: &[u8], more: &[&'a [u8]], zset: Option<ZSetView<'_>>) -> Result<usize> {
        let circle = matches!(self.shape, Some((Shape::Circle { .. }, _)));
        let rectangle = matches!(self.shape, Some((Shape::Rectangle { .. }, _)));
        match (option, more) {
            (b"withdist", _) => self.with_distance = true,
            (b"withhash", _) => self.with_hash = true,
            (b"withcoord", _) => self.with_point = true,
            (b"any", _) => self.any = true,
            (b"asc", _) => self.order = Some(Order::Ascending),
            (b"desc", _) => self.order = Some(Order::Descending),
            (b"count", [count, ..]) => {
                let count = parse_i64(count).ok_or(Error::NOT_INTEGER)?;
                self.count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(Error::GEO_COUNT)?;
                return Ok(1);
            }
            (b"store" | b"storedist", [key, ..]) if form.takes_store() => {
                self.store = Some(key);
                self.store_distance = option == b"storedist";
                return Ok(1);
            }
            (b"storedist", _) if form == Form::SearchStore => self.store_distance = true,
            (b"frommember", [member, ..]) if form.is_search() && (self.from_member || self.center.is_none()) => {
                self.from_member = true;
                if let Some(zset) = zset {
                    self.center = Some(parse_member(zset, member)?);
                }
                return Ok(1);
            }
            (b"fromlonlat", [longitude, latitude, ..]) if form.is_search() && !self.from_member => {
                self.center = Some(parse_point(longitude, latitude)?);
                return Ok(2);
            }
            (b"byradius", [radius, unit, ..]) if form.is_search() && !rectangle => {
                self.shape = Some(parse_circle(radius, unit)?);
                return Ok(2);
            }
            (b"bybox", [width, height, unit, ..]) if form.is_search() && !circle => {
                self.shape = Some(parse_rectangle(width, height, unit)?);
                return Ok(3);
            }
            _ => return Err(Error::SYNTAX),
        }
        Ok(0)
    }

    fn check(&self, form: Form, name: &[u8]) -> Result {
        if self.store.is_some() && (self.with_distance || self.with_hash || self.with_point) {
            return Err(if form == Form::SearchStore { Error::GEOSEARCHSTORE_WITH } else { Error::GEORADIUS_STORE_WITH });
        }
        if form.is_search() && !self.from_member && self.center.is_none() {
            return Err(Error::quoting("ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ", name, ""));
        }
        if form.is_search() && self.shape.is_none() {
            return Err(Error::quoting("ERR exactly one of BYRADIUS and BYBOX can be specified for ", name, ""));
        }
        if self.any && self.count == 0 {
            return Err(Error::GEO_ANY_WITHOUT_COUNT);
        }
        Ok(())
    }
}

/// A member of the result.
struct Found<'a> {
    item: Item<'a>,
    point: Point,
    /// The distance from the center, in the unit of the request.
    distance: f64,
}

/// The members in an area, range by range, up to `limit`.
fn find<'a>(zset: ZSetView<'a>, area: &Area, limit: usize) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for (min, max) in area.ranges() {
        let ranks = zset.score_ranks(&ScoreRange { min, min_exclusive: false, max, max_exclusive: true });
        for item in zset.items(ranks, false) {
            if found.len() >= limit {
                return found;
            }
            let point = Point::of_score(item.score);
            if let Some(distance_m) = area.distance_m(point) {
                found.push(Found { item, point, distance: distance_m });
            }
        }
    }
    found
}

fn search(cx: &mut Context<'_>, args: &[&[u8]], form: Form) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let source = args[if form == Form::SearchStore { 2 } else { 1 }];
    let (hasher, limits) = db.zset_form();
    let zset = db.zset(source)?;
    let options = Options::parse(form, args, zset)?;
    let found = match (zset, options.center, options.shape) {
        (Some(zset), Some(center), Some((shape, unit_m))) => {
            let limit = if options.any { options.count } else { usize::MAX };
            let mut found = find(zset, &Area { center, shape, unit_m }, limit);
            // To return only some members, the nearest must be found first.
            let order = options.order.or((options.count > 0 && !options.any).then_some(Order::Ascending));
            match order {
                Some(Order::Ascending) => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
                Some(Order::Descending) => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
                None => {}
            }
            if options.count > 0 {
                found.truncate(options.count);
            }
            found.iter_mut().for_each(|found| found.distance /= unit_m);
            found
        }
        _ => Vec::new(),
    };
    let Some(destination) = options.store else {
        write(reply, &found, &options);
        return Ok(());
    };
    let score = |found: &Found<'_>| if options.store_distance { found.distance } else { found.item.score };
    let mut items: Vec<Item<'_>> = found.iter().map(|found| Item { member: found.item.member, score: score(found) }).collect();
    items.sort_unstable_by(|a, b| compare(*a, *b));
    let stored = ZSet::from_sorted(&hasher, limits, &items);
    let len = stored.len();
    db.store_zset(destination, stored, form.event())?;
    reply.integer(len as i64);
    Ok(())
}

fn write(reply: &mut dyn Sink, found: &[Found<'_>], options: &Options<'_>) {
    let more = [options.with_distance, options.with_hash, options.with_point].into_iter().filter(|&asked| asked).count();
    reply.array(found.len());
    for found in found {
        if more > 0 {
            reply.array(1 + more);
        }
        reply.bulk(found.item.member);
        if options.with_distance {
            write_distance(reply, found.distance);
        }
        if options.with_hash {
            reply.integer(found.item.score as i64);
        }
        if options.with_point {
            write_point(reply, found.point);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    fn sicily() -> Harness {
        let mut h = Harness::new();
        h.script(&[
            ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
            ("GEOADD g 12.758489 38.788135 edge1 17.241510 38.788135 edge2", ":2"),
        ]);
        h
    }

    #[test]
    fn members_are_found_in_circles_and_rectangles() {
        let mut h = sicily();
        h.script(&[
            ("GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC", "*2 $7 Catania $7 Palermo"),
            ("GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km DESC", "*2 $7 Palermo $7 Catania"),
            (
                "GEOSEARCH g FROMLONLAT 15 37 BYBOX 400 400 km ASC WITHCOORD WITHDIST COUNT 2",
                "*2 *3 $7 Catania $7 56.4413 *2 $18 15.087267458438873 $17 37.50266842333162 \
                 *3 $7 Palermo $8 190.4424 *2 $18 13.361389338970184 $16 38.1155563954963",
            ),
            (
                "GEOSEARCH g FROMMEMBER Palermo BYRADIUS 100 km ASC WITHHASH",
                "*2 *2 $7 Palermo :3479099956230698 *2 $5 edge1 :3479273021651468",
            ),
            ("GEOSEARCH g FROMMEMBER Palermo BYRADIUS 10 m", "*1 $7 Palermo"),
            ("GEOSEARCH g FROMLONLAT 0 0 BYRADIUS 1 m", "*0"),
            ("GEOSEARCH none FROMMEMBER x BYRADIUS 1 m", "*0"),
            ("GEORADIUS g 15 37 200 km ASC COUNT 1", "*1 $7 Catania"),
            ("GEORADIUS_RO g 15 37 200 km DESC", "*2 $7 Palermo $7 Catania"),
            ("GEORADIUSBYMEMBER g Palermo 200 km ASC", "*3 $7 Palermo $5 edge1 $7 Catania"),
            ("GEORADIUSBYMEMBER_RO g Palermo 200 km COUNT 1 ANY WITHDIST", "*1 *2 $7 Palermo $6 0.0000"),
        ]);
    }

    #[test]
    fn what_is_found_is_stored() {
        let mut h = sicily();
        h.script(&[
            ("GEOSEARCHSTORE d g FROMLONLAT 15 37 BYRADIUS 200 km", ":2"),
            ("ZRANGE d 0 -1 WITHSCORES", "*4 $7 Palermo $16 3479099956230698 $7 Catania $16 3479447370796909"),
            ("GEOSEARCHSTORE d g FROMLONLAT 15 37 BYBOX 400 400 km ASC COUNT 1 STOREDIST", ":1"),
            ("ZRANGE d 0 -1", "*1 $7 Catania"),
            ("GEORADIUS g 15 37 200 km STORE e", ":2"),
            ("GEOHASH e Palermo", "*1 $11 sqc8b49rny0"),
            ("GEORADIUSBYMEMBER g Palermo 100 km STOREDIST e", ":2"),
            ("ZSCORE e Palermo", "$1 0"),
            ("GEOSEARCHSTORE d g FROMLONLAT 0 0 BYRADIUS 1 m", ":0"),
            ("EXISTS d", ":0"),
            ("GEORADIUS none 0 0 1 m STORE e", ":0"),
            ("EXISTS e", ":0"),
        ]);
    }

    #[test]
    fn options_are_checked_in_redis_order() {
        let mut h = sicily();
        h.script(&[
            ("GEORADIUS g 15 37 x km", "-ERR need numeric radius"),
            ("GEORADIUS g 15 37 -1 km", "-ERR radius cannot be negative"),
            ("GEORADIUS g 15 37 1 miles", "-ERR unsupported unit provided. please use M, KM, FT, MI"),
            ("GEORADIUS g 15 37 1 km COUNT 0", "-ERR COUNT must be > 0"),
            ("GEORADIUS g 15 37 1 km COUNT x", "-ERR value is not an integer or out of range"),
            ("GEORADIUS g 15 37 1 km COUNT", "-ERR syntax error"),
            ("GEORADIUS g 15 37 1 km ANY", "-ERR the ANY argument requires COUNT argument"),
            (
                "GEORADIUS g 15 37 1 km STORE d WITHDIST",
                "-ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
            ),
            ("GEORADIUS_RO g 15 37 1 km STORE d", "-ERR syntax error"),
            ("GEORADIUSBYMEMBER g none 1 km", "-ERR could not decode requested zset member"),
            ("GEORADIUSBYMEMBER none m x nounit", "*0"),
            ("GEOSEARCH g FROMMEMBER Palermo FROMLONLAT 1 1 BYRADIUS 1 m", "-ERR syntax error"),
            ("GEOSEARCH g FROMLONLAT 1 1 BYRADIUS 1 m BYBOX 1 1 m", "-ERR syntax error"),
            ("GEOSEARCH g FROMLONLAT 1 1 BYBOX x 1 m", "-ERR need numeric width"),
            ("GEOSEARCH g FROMLONLAT 1 1 BYBOX 1 x m", "-ERR need numeric height"),
            ("GEOSEARCH g FROMLONLAT 1 1 BYBOX 1 -1 m", "-ERR height or width cannot be negative"),
            (
                "GEOSEARCH g BYRADIUS 1 m ASC WITHDIST",
                "-ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH",
            ),
            (
                "geosearch g FROMMEMBER Palermo ASC WITHDIST WITHHASH",
                "-ERR exactly one of BYRADIUS and BYBOX can be specified for geosearch",
            ),
            (
                "GEOSEARCHSTORE d g FROMMEMBER Palermo BYRADIUS 1 m WITHDIST",
                "-ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
            ),
            ("SET s x", "+OK"),
            ("GEOSEARCH s FROMLONLAT x", "-ERR wrong number of arguments for 'geosearch' command"),
            ("GEORADIUS s x y 1 m", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }
}

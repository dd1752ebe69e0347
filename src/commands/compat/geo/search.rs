//! Searches for members by position.

use crate::base::error::{Error, Result};
use crate::base::number::parse_score;
use crate::commands::compat::geo::geohash::{Area, Point, Shape};
use crate::commands::compat::geo::points::{GEO, parse_point, parse_unit, place, write_distance, write_point};
use crate::engine::command::keys::{Begin, Find, KeyAt, KeyPositions, KeySpec, KeyUse, uses};
use crate::engine::command::options::{self, Word, integer, words};
use crate::engine::command::{Access, Command, Flags, Keys, row, rows};
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

/// The keys of a form whose options STORE and STOREDIST name a destination.
const fn stored_by_options(form: Form) -> [KeySpec; 3] {
    let source = KeySpec { access: Access::Read, uses: KeyUse::ACCESS, begin: Begin::Index(1), find: ONE };
    [source, key_after("STORE", form.first_option()), key_after("STOREDIST", form.first_option())]
}

/// The source and the destination, of which the last one counts.
fn find_keys(form: Form, args: &[&[u8]]) -> Option<KeyPositions> {
    let store = form.words(args).filter(|word| matches!(word.name, "STORE" | "STOREDIST")).last();
    (args.len() > 1).then(|| std::iter::once(KeyAt::read(1)).chain(store.map(|word| word.destination())).collect())
}

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("geosearch", |cx, args| search(cx, args, Form::Search), "key <FROMMEMBER member | FROMLONLAT longitude latitude> \
                 <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> \
                 [ASC | DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        "Returns the members inside a circle or a rectangle.";
        since: "6.2.0", complexity: SEARCH_COST, ..GEO),
    row!("geosearchstore", |cx, args| search(cx, args, Form::SearchStore),
        "destination source <FROMMEMBER member | FROMLONLAT longitude latitude> \
                 <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> \
                 [ASC | DESC] [COUNT count [ANY]] [STOREDIST]",
        "Stores the members inside a circle or a rectangle in another key.";
        flags: STORING, keys: Keys::TWO, key_uses: uses::STORED, since: "6.2.0", complexity: SEARCH_COST, ..GEO),
    row!("georadius", |cx, args| search(cx, args, Form::Radius),
        "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
                 [ASC | DESC] [STORE storekey:key | STOREDIST storedistkey:key]",
        "Returns or stores the members within a distance of a position.";
        flags: STORING,
        keys: Keys::Parsed { shown: &stored_by_options(Form::Radius), find: |args| find_keys(Form::Radius, args) },
        complexity: SEARCH_COST, ..GEO),
    row!("georadius_ro", |cx, args| search(cx, args, Form::RadiusRo),
        "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
        "Returns the members within a distance of a position.";
        since: "3.2.10", complexity: SEARCH_COST, ..GEO),
    row!("georadiusbymember", |cx, args| search(cx, args, Form::RadiusByMember),
        "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC] \
                 [STORE storekey:key | STOREDIST storedistkey:key]",
        "Returns or stores the members within a distance of a member.";
        flags: STORING, keys: Keys::Parsed {
            shown: &stored_by_options(Form::RadiusByMember),
            find: |args| find_keys(Form::RadiusByMember, args),
        }, complexity: SEARCH_COST, ..GEO),
    row!("georadiusbymember_ro", |cx, args| search(cx, args, Form::RadiusByMemberRo),
        "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
        "Returns the members within a distance of a member.";
        since: "3.2.10", complexity: SEARCH_COST, ..GEO),
]);

const STORING: Flags = Flags::WRITE.union(Flags::DENYOOM);

/// The options of all forms, the shape and the center of a search, and where to store, in the order in which forms have them.
const OPTIONS: options::Options = &[
    ("STORE", 1),
    ("STOREDIST", 1),
    ("WITHDIST", 0),
    ("WITHHASH", 0),
    ("WITHCOORD", 0),
    ("ANY", 0),
    ("ASC", 0),
    ("DESC", 0),
    ("COUNT", 1),
    ("FROMMEMBER", 1),
    ("FROMLONLAT", 2),
    ("BYRADIUS", 2),
    ("BYBOX", 3),
    ("STOREDIST", 0),
];

/// The command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Search,
    SearchStore,
    Radius,
    RadiusRo,
    RadiusByMember,
    RadiusByMemberRo,
}

impl Form {
    /// Whether the center and the shape are options.
    fn is_search(self) -> bool {
        matches!(self, Form::Search | Form::SearchStore)
    }

    fn event(self) -> Event {
        Event::new(Classes::ZSET, if self.is_search() { "geosearchstore" } else { "georadiusstore" })
    }

    /// The position of the source.
    fn source(self) -> usize {
        if self == Form::SearchStore { 2 } else { 1 }
    }

    /// The position of the first option.
    const fn first_option(self) -> usize {
        match self {
            Form::Search => 2,
            Form::SearchStore => 3,
            Form::RadiusByMember | Form::RadiusByMemberRo => 5,
            Form::Radius | Form::RadiusRo => 6,
        }
    }

    /// The options of a request.
    fn words<'r, 'a>(self, args: &'r [&'a [u8]]) -> impl Iterator<Item = Word<'r, 'a>> {
        let options = match self {
            Form::Search => &OPTIONS[2..13],
            Form::SearchStore => &OPTIONS[2..],
            Form::Radius | Form::RadiusByMember => &OPTIONS[..9],
            Form::RadiusRo | Form::RadiusByMemberRo => &OPTIONS[2..9],
        };
        words(args, self.first_option(), options)
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
    fail_if!(radius < 0.0, Error::GEO_RADIUS_NEGATIVE);
    Ok((Shape::Circle { radius }, parse_unit(unit)?))
}

fn parse_rectangle(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64)> {
    let (width, height) = (parse_size(width, Error::GEO_WIDTH)?, parse_size(height, Error::GEO_HEIGHT)?);
    fail_if!(width < 0.0 || height < 0.0, Error::GEO_BOX_NEGATIVE);
    Ok((Shape::Rectangle { width, height }, parse_unit(unit)?))
}

fn parse_member(zset: ZSetView<'_>, member: &[u8]) -> Result<Point> {
    place(zset, member).ok_or(Error::GEO_NO_MEMBER)
}

impl<'a> Options<'a> {
    /// Parses a request whose source key holds `zset`.
    fn parse(form: Form, args: &[&'a [u8]], zset: Option<ZSetView<'_>>) -> Result<Self> {
        let mut options = Options::default();
        match form {
            Form::Radius | Form::RadiusRo => {
                options.center = Some(parse_point(args[2], args[3])?);
                options.shape = Some(parse_circle(args[4], args[5])?);
            }
            Form::RadiusByMember | Form::RadiusByMemberRo => {
                if let Some(zset) = zset {
                    options.center = Some(parse_member(zset, args[2])?);
                    options.shape = Some(parse_circle(args[3], args[4])?);
                }
            }
            Form::Search => {}
            Form::SearchStore => options.store = Some(args[1]),
        }
        for word in form.words(args) {
            options.parse_one(word, zset)?;
        }
        options.check(form, args[0])?;
        Ok(options)
    }

    fn parse_one(&mut self, word: Word<'_, 'a>, zset: Option<ZSetView<'_>>) -> Result {
        let circle = matches!(self.shape, Some((Shape::Circle { .. }, _)));
        let rectangle = matches!(self.shape, Some((Shape::Rectangle { .. }, _)));
        match (word.name, word.args) {
            ("WITHDIST", _) => self.with_distance = true,
            ("WITHHASH", _) => self.with_hash = true,
            ("WITHCOORD", _) => self.with_point = true,
            ("ANY", _) => self.any = true,
            ("ASC", _) => self.order = Some(Order::Ascending),
            ("DESC", _) => self.order = Some(Order::Descending),
            ("COUNT", [count]) => {
                self.count = usize::try_from(integer(count)?).ok().filter(|&count| count > 0).ok_or(Error::GEO_COUNT)?;
            }
            ("STORE" | "STOREDIST", [key]) => {
                self.store = Some(key);
                self.store_distance = word.name == "STOREDIST";
            }
            ("STOREDIST", _) => self.store_distance = true,
            ("FROMMEMBER", [member]) if self.from_member || self.center.is_none() => {
                self.from_member = true;
                if let Some(zset) = zset {
                    self.center = Some(parse_member(zset, member)?);
                }
            }
            ("FROMLONLAT", [longitude, latitude]) if !self.from_member => {
                self.center = Some(parse_point(longitude, latitude)?);
            }
            ("BYRADIUS", [radius, unit]) if !rectangle => self.shape = Some(parse_circle(radius, unit)?),
            ("BYBOX", [width, height, unit]) if !circle => self.shape = Some(parse_rectangle(width, height, unit)?),
            _ => return Err(Error::SYNTAX),
        }
        Ok(())
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
        fail_if!(self.any && self.count == 0, Error::GEO_ANY_WITHOUT_COUNT);
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
    let source = args[form.source()];
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

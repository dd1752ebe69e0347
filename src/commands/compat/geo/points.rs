//! Members with positions: sorted sets with geohashes as scores. Searches are in [`crate::commands::compat::geo::search`].

use crate::base::error::{Error, Result};
use crate::base::number::parse_score;
use crate::commands::compat::geo::geohash::Point;
use crate::commands::sorted_sets::members;
use crate::engine::command::options::{choice, optional};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::types::zsets::ZSetView;
use crate::resp::reply::Sink;

/// What the rows of geo commands have in common.
pub(crate) const GEO: Command =
    Command { group: Group::Geo, keys: Keys::ONE, flags: Flags::READONLY, since: "3.2.0", ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("geoadd", geoadd, "key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]",
        "Adds members with their positions to a geospatial index, or moves them. Creates the index if it does not exist.";
        replies: Replies::Integer, flags: Flags::WRITE.union(Flags::DENYOOM), access: Access::ReadWrite,
        key_uses: crate::engine::command::keys::uses::CHANGED,
        complexity: "O(M*log(N)) for M added members and N members of the index", ..GEO),
    row!("geodist", geodist, "key member1 member2 [M | KM | FT | MI]",
        "Returns the distance between two members of a geospatial index.";
        ..GEO),
    row!("geohash", |cx, args| {
            each(cx, args, |reply, point| if let Some(point) = point { reply.bulk(&point.geohash()) } else { reply.null() })
        }, "key [member [member ...]]", "Returns the positions of members as geohash strings.";
        complexity: "O(N) for N requested members", ..GEO),
    row!("geopos", |cx, args| {
            each(cx, args, |reply, point| if let Some(point) = point { write_point(reply, point) } else { reply.null_array() })
        }, "key [member [member ...]]", "Returns the longitude and latitude of members.";
        complexity: "O(N) for N requested members", ..GEO),
]);

/// The position of a member.
pub(crate) fn place(zset: ZSetView<'_>, member: &[u8]) -> Option<Point> {
    zset.score(member).map(Point::of_score)
}

/// Writes a longitude and a latitude.
pub(crate) fn write_point(reply: &mut dyn Sink, point: Point) {
    reply.array(2);
    reply.double(point.longitude);
    reply.double(point.latitude);
}

/// Writes a distance with four decimal places.
pub(crate) fn write_distance(reply: &mut dyn Sink, distance: f64) {
    let parts = (distance * 10_000.0).round_ties_even() as i64;
    reply.bulk(format!("{}.{:04}", parts / 10_000, parts % 10_000).as_bytes());
}

/// Metres per unit.
pub(crate) fn parse_unit(name: &[u8]) -> Result<f64> {
    choice(name, &[("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)]).ok_or(Error::GEO_UNIT)
}

/// Parses a longitude and a latitude.
pub(crate) fn parse_point(longitude: &[u8], latitude: &[u8]) -> Result<Point> {
    let number = |text: &[u8]| parse_score(text).ok_or(Error::NOT_FLOAT);
    let (longitude, latitude) = (number(longitude)?, number(latitude)?);
    Point::new(longitude, latitude)
        .ok_or_else(|| Error::new(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}")))
}

fn geoadd(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let is = |arg: &[u8], name: &str| arg.eq_ignore_ascii_case(name.as_bytes());
    let options = args[2..].iter().take_while(|arg| ["nx", "xx", "ch"].iter().any(|name| is(arg, name))).count();
    let (options, places) = args[2..].split_at(options);
    let both = ["nx", "xx"].iter().all(|name| options.iter().any(|option| is(option, name)));
    fail_if!(places.len() % 3 != 0 || both, Error::SYNTAX);
    let scores = places.chunks_exact(3).map(|place| Ok(parse_point(place[0], place[1])?.score().to_string()));
    let scores: Vec<String> = scores.collect::<Result<_>>()?;
    // Calls ZADD with the scores.
    let mut call: Vec<&[u8]> = vec![b"zadd", args[1]];
    call.extend_from_slice(options);
    for (score, place) in scores.iter().zip(places.chunks_exact(3)) {
        call.extend([score.as_bytes(), place[2]]);
    }
    members::zadd(cx, &call, false)
}

fn geodist(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let unit_m = optional(&args[4..])?.map_or(Ok(1.0), parse_unit)?;
    let (mut db, reply) = cx.db_and_reply();
    let zset = db.zset(args[1])?;
    match zset.and_then(|zset| place(zset, args[2]).zip(place(zset, args[3]))) {
        Some((one, other)) => write_distance(reply, one.distance_m(other) / unit_m),
        None => reply.null(),
    }
    Ok(())
}

/// Writes a reply for each requested member.
fn each(cx: &mut Context<'_>, args: &[&[u8]], write: fn(&mut dyn Sink, Option<Point>)) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let zset = db.zset(args[1])?;
    reply.array(args.len() - 2);
    for member in &args[2..] {
        write(reply, zset.and_then(|zset| place(zset, member)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn members_have_places_distances_and_geohashes() {
        let mut h = Harness::new();
        h.script(&[
            ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2"),
            ("GEOADD g NX 1 1 Palermo", ":0"),
            ("GEOADD g XX CH 13.361389 38.115556 Palermo 2 2 new", ":0"),
            ("ZSCORE g Palermo", "$16 3479099956230698"),
            ("GEODIST g Palermo Catania", "$11 166274.1516"),
            ("GEODIST g Palermo Catania KM", "$8 166.2742"),
            ("GEODIST g Palermo Catania mi", "$8 103.3182"),
            ("GEODIST g Palermo Palermo ft", "$6 0.0000"),
            ("GEODIST g Palermo none", "$-1"),
            ("GEODIST none a b", "$-1"),
            ("GEOHASH g Palermo none Catania", "*3 $11 sqc8b49rny0 $-1 $11 sqdtr74hyu0"),
            ("GEOHASH g", "*0"),
            ("GEOPOS g Palermo none", "*2 *2 $18 13.361389338970184 $16 38.1155563954963 *-1"),
            ("GEOPOS none a", "*1 *-1"),
        ]);
        h.run("HELLO 3");
        h.script(&[("GEOPOS g Palermo none", "*2 *2 ,13.361389338970184 ,38.1155563954963 _")]);
    }

    #[test]
    fn errors_change_nothing() {
        Harness::new().script(&[
            ("GEOADD g 181 0 a", "-ERR invalid longitude,latitude pair 181.000000,0.000000"),
            ("GEOADD g 0 0 a 0 -86 b", "-ERR invalid longitude,latitude pair 0.000000,-86.000000"),
            ("GEOADD g x 0 a", "-ERR value is not a valid float"),
            ("GEOADD g 0 0 a 0", "-ERR syntax error"),
            ("GEOADD g NX XX 0 0 a", "-ERR syntax error"),
            ("GEOADD g CH CH CH", "-ERR syntax error"),
            ("GEODIST g a b c", "-ERR unsupported unit provided. please use M, KM, FT, MI"),
            ("GEODIST g a b m m", "-ERR syntax error"),
            ("EXISTS g", ":0"),
            ("SET s x", "+OK"),
            ("GEOADD s 0 0 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("GEOPOS s a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }
}

//! `CLIENT TRACKING`, `CACHING`, `GETREDIR` and `TRACKINGINFO`: invalidation messages for client-side caching.

use crate::base::error::{Error, Result};
use crate::commands::clients::client::on_or_off;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Command, Flags, Group, Traits, row};
use crate::engine::context::Context;
use crate::keyspace::tracking::{Client, Options};

const SUB: Command = Command {
    traits: Traits::KEEPS_CACHING,
    flags: Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE),
    group: Group::Connection,
    since: "6.0.0",
    ..Command::DEFAULT
};

/// The row of `CLIENT CACHING`.
pub const CACHING: Command = row!("caching", caching, "<YES | NO>",
    "Includes the keys of the next command or transaction in tracking, or excludes them."; ..SUB);

/// The row of `CLIENT GETREDIR`.
pub const GETREDIR: Command = row!("getredir", getredir,
    "Returns the ID of the client to which the tracking notifications of the connection are redirected."; ..SUB);

/// The row of `CLIENT TRACKING`.
pub const TRACKING: Command = row!("tracking", tracking,
    "<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
    "Controls tracking: the client is notified when keys that it has read, or keys with a prefix, change.";
    complexity: "O(1). Some options may introduce additional complexity.", ..SUB);

/// The row of `CLIENT TRACKINGINFO`.
pub const TRACKINGINFO: Command = row!("trackinginfo", trackinginfo, "Returns the tracking state of the connection.";
    since: "6.2.0", ..SUB);

/// The arguments of `CLIENT TRACKING`.
#[derive(Default)]
struct Request<'a> {
    options: Options,
    redirect: Option<Client>,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> Request<'a> {
    fn parse(cx: &Context<'_>, args: &[&'a [u8]]) -> Result<Request<'a>> {
        let mut request = Request::default();
        let mut rest = Tail(args);
        while let Some(option) = rest.next() {
            match &*upper(option) {
                b"BCAST" => request.options |= Options::BCAST,
                b"OPTIN" => request.options |= Options::OPTIN,
                b"OPTOUT" => request.options |= Options::OPTOUT,
                b"NOLOOP" => request.options |= Options::NOLOOP,
                b"REDIRECT" if request.redirect.is_some() && rest.left() > 0 => return Err(Error::REDIRECT_TWICE),
                b"REDIRECT" => {
                    let client = cx.engine.find_client(rest.integer()? as u64);
                    request.redirect = Some(client.ok_or(Error::REDIRECT_TO_NOBODY)?);
                }
                b"PREFIX" => request.prefixes.push(rest.value()?),
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(request)
    }

    /// Fails if the options contradict each other or the current tracking mode.
    fn check(&self, cx: &Context<'_>) -> Result {
        let known = cx.engine.keyspace().changes.tracking.get(cx.engine.sessions()[cx.session].tracker);
        let before = known.map_or(Options::empty(), |tracker| tracker.options);
        let has = |option| self.options.contains(option);
        fail_if!(!has(Options::BCAST) && !self.prefixes.is_empty(), Error::PREFIX_WITHOUT_BCAST);
        fail_if!(known.is_some() && before.contains(Options::BCAST) != has(Options::BCAST), Error::BCAST_SWITCH);
        fail_if!(has(Options::BCAST) && self.options.intersects(Options::OPTIN.union(Options::OPTOUT)), Error::OPT_WITH_BCAST);
        fail_if!(has(Options::OPTIN) && has(Options::OPTOUT), Error::OPTIN_AND_OPTOUT);
        if has(Options::OPTIN) && before.contains(Options::OPTOUT) || has(Options::OPTOUT) && before.contains(Options::OPTIN) {
            return Err(Error::OPT_SWITCH);
        }
        let existing = self.prefixes.iter().enumerate().find_map(|(index, prefix)| Some((index, known?.overlapping(prefix)?)));
        match (existing, first_overlapping(&self.prefixes)) {
            (Some((at, other)), provided) if provided.is_none_or(|first| at <= first) => {
                Err(collision(self.prefixes[at], "an existing", other))
            }
            (_, Some(at)) => {
                let prefix = self.prefixes[at];
                let overlaps = |other: &&&[u8]| other.starts_with(prefix) || prefix.starts_with(other);
                let other = self.prefixes[at + 1..].iter().find(overlaps).copied().unwrap_or_default();
                Err(collision(prefix, "another provided", other))
            }
            _ => Ok(()),
        }
    }
}

/// Index of the first prefix that overlaps another. Sorts the prefixes and compares each only with the prefixes of it, because
/// there may be very many.
fn first_overlapping(prefixes: &[&[u8]]) -> Option<usize> {
    let mut order: Vec<usize> = (0..prefixes.len()).collect();
    order.sort_unstable_by_key(|&index| (prefixes[index], index));
    // Each of these begins with the one before it. The second value is the smallest index up to here.
    let mut chain: Vec<(&[u8], usize)> = Vec::new();
    let mut first = None;
    for index in order {
        let prefix = prefixes[index];
        while chain.pop_if(|(shorter, _)| !prefix.starts_with(shorter)).is_some() {}
        let least = chain.last().map_or(index, |&(_, least)| least.min(index));
        if !chain.is_empty() {
            first = Some(first.map_or(least, |known: usize| known.min(least)));
        }
        chain.push((prefix, least));
    }
    first
}

fn collision(prefix: &[u8], which: &str, other: &[u8]) -> Error {
    let rest = [b"' overlaps with ", which.as_bytes(), b" prefix '", other].concat();
    let rest = [prefix, &rest].concat();
    Error::quoting("ERR Prefix '", &rest, "'. Prefixes for a single client must not overlap.")
}

fn tracking(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = Request::parse(cx, &args[3..])?;
    if on_or_off(args[2])? {
        request.check(cx)?;
        // A follower takes it, too: it answers no reads, so it owes no invalidations, and libraries such as rueidis turn tracking on
        // whatever node they reach. When this node leads, the connection tracks. When it is deposed, the connection is closed.
        let id = cx.session;
        cx.engine.track(id, request.options, request.redirect, &request.prefixes);
        let tracker = cx.session().tracker;
        if !request.prefixes.is_empty()
            && cx.engine.keyspace().changes.tracking.bytes(tracker) as u64 > cx.engine.config().client_query_buffer_limit
        {
            let session = cx.session();
            tracing::warn!(client = session.id, addr = session.addr, "closing a client that tracks too many prefixes");
            cx.engine.untrack(id);
            cx.engine.close_over_limit(id);
        }
    } else {
        cx.engine.untrack(cx.session);
    }
    cx.reply.ok();
    Ok(())
}

fn caching(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let number = cx.session().tracker;
    let tracker = cx.engine.keyspace_mut().changes.tracking.get_mut(number).ok_or(Error::CACHING_WITHOUT_TRACKING)?;
    let (mode, refusal) = match &*upper(args[2]) {
        b"YES" => (Options::OPTIN, Error::CACHING_YES),
        b"NO" => (Options::OPTOUT, Error::CACHING_NO),
        _ => return Err(Error::SYNTAX),
    };
    fail_if!(!tracker.options.contains(mode), refusal);
    tracker.options |= Options::CACHING;
    cx.reply.ok();
    Ok(())
}

/// The id of the client to which notifications are redirected; 0 for none, −1 if the client does not track.
fn redirection(cx: &mut Context<'_>) -> i64 {
    let number = cx.session().tracker;
    let tracker = cx.engine.keyspace().changes.tracking.get(number);
    tracker.map_or(-1, |tracker| tracker.redirect.map_or(0, |client| client.number as i64))
}

fn getredir(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let number = redirection(cx);
    cx.reply.integer(number);
    Ok(())
}

fn trackinginfo(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let redirection = redirection(cx);
    let number = cx.session().tracker;
    let tracker = cx.engine.keyspace().changes.tracking.get(number);
    let options = tracker.map_or(Options::empty(), |tracker| tracker.options);
    let caching = options.contains(Options::CACHING);
    let words = [
        ("on", tracker.is_some()),
        ("off", tracker.is_none()),
        ("bcast", options.contains(Options::BCAST)),
        ("optin", options.contains(Options::OPTIN)),
        ("caching-yes", caching && options.contains(Options::OPTIN)),
        ("optout", options.contains(Options::OPTOUT)),
        ("caching-no", caching && options.contains(Options::OPTOUT)),
        ("noloop", options.contains(Options::NOLOOP)),
        ("broken_redirect", options.contains(Options::BROKEN)),
    ];
    let prefixes = tracker.map(|tracker| &tracker.prefixes);
    let reply = &mut *cx.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(words.iter().filter(|(_, is_so)| *is_so).count());
    words.iter().filter(|(_, is_so)| *is_so).for_each(|(word, _)| reply.bulk(word.as_bytes()));
    reply.entry("redirect", redirection);
    reply.bulk(b"prefixes");
    reply.array(prefixes.map_or(0, |prefixes| prefixes.len()));
    prefixes.into_iter().flatten().for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::first_overlapping;

    proptest! {
        #[test]
        fn overlaps_are_found_as_by_comparing_all_with_all(words in prop::collection::vec("[ab]{0,6}", 0..12)) {
            let prefixes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
            let naive = (0..prefixes.len()).find(|&i| prefixes[i + 1..].iter().any(|other| overlap(prefixes[i], other)));
            prop_assert_eq!(first_overlapping(&prefixes), naive);
        }
    }
}

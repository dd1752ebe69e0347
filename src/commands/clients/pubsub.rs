//! Publish/subscribe commands.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::commands::reference::help;
use crate::engine::Engine;
use crate::engine::command::keys::KeyUse;
use crate::engine::command::{Access, Channels, Command, Flags, Group, Keys, Positions, Replies, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::engine::pubsub::subscriptions::is_of_leader;
use crate::engine::pubsub::{self, Kind};
use crate::engine::session::{Session, SessionFlags};
use crate::resp::reply::{Protocol, Sink, WireReply};

const SUBSCRIBING: Flags = Flags::PUBSUB.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE);
const PUBLISHING: Flags = Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST).union(Flags::MAY_REPLICATE);
const LOOKING: Flags = Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE);

/// Shard channels are at the positions of keys, so that clients of a cluster can determine their slot.
const NOT_KEYS: &[(Access, KeyUse)] = &[(Access::Read, KeyUse::NOT_KEY)];

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("psubscribe", |cx, args| subscribe_to(cx, Kind::Pattern, "psubscribe", &args[1..]),
        "pattern [pattern ...]", "Subscribes to channels by patterns.";
        traits: Traits::WHILE_SUBSCRIBED, flags: SUBSCRIBING, channels: Channels::Patterns, group: Group::PubSub, since: "2.0.0",
        complexity: "O(N) where N is the number of patterns to subscribe to", ..Command::DEFAULT),
    row!("publish", |cx, args| send(cx, Kind::Channel, args), "channel message", "Publishes a message to a channel.";
        replies: Replies::Integer, flags: PUBLISHING, channels: Channels::First, group: Group::PubSub, since: "2.0.0",
        complexity: "O(N+M) where N is the number of subscribers of the channel and M the number of patterns",
        ..Command::DEFAULT),
    row!("pubsub", "A container for commands that inspect subscriptions.";
        group: Group::PubSub, since: "2.8.0", complexity: "Depends on subcommand.", subcommands: &subrows([
            row!("channels", |cx, args| list(cx, Kind::Channel, args), "[pattern]", "Lists the channels with subscribers.";
                flags: LOOKING, group: Group::PubSub, since: "2.8.0",
                complexity: "O(N) where N is the number of channels with subscribers", ..Command::DEFAULT),
            Command { handler: |cx, args| help::reply(cx, args, HELP), ..help::row(Group::PubSub, "6.2.0") },
            row!("numpat", numpat, "Returns the number of different patterns with subscribers.";
                flags: LOOKING, group: Group::PubSub, since: "2.8.0", ..Command::DEFAULT),
            row!("numsub", |cx, args| count(cx, Kind::Channel, &args[2..]), "[channel [channel ...]]",
                "Returns the number of subscribers of channels.";
                flags: LOOKING, group: Group::PubSub, since: "2.8.0",
                complexity: "O(N) where N is the number of channels asked for", ..Command::DEFAULT),
            row!("shardchannels", |cx, args| list(cx, Kind::Shard, args), "[pattern]",
                "Lists the shard channels with subscribers.";
                flags: LOOKING, group: Group::PubSub, since: "7.0.0",
                complexity: "O(N) where N is the number of shard channels with subscribers", ..Command::DEFAULT),
            row!("shardnumsub", |cx, args| count(cx, Kind::Shard, &args[2..]), "[shardchannel [shardchannel ...]]",
                "Returns the number of subscribers of shard channels.";
                flags: LOOKING, group: Group::PubSub, since: "7.0.0",
                complexity: "O(N) where N is the number of shard channels asked for", ..Command::DEFAULT),
        ]), ..Command::DEFAULT),
    row!("punsubscribe", |cx, args| unsubscribe_from(cx, Kind::Pattern, "punsubscribe", &args[1..]),
        "[pattern [pattern ...]]", "Unsubscribes from patterns, or from all of them.";
        traits: Traits::WHILE_SUBSCRIBED.union(Traits::ENDS_SUBSCRIPTIONS), flags: SUBSCRIBING, group: Group::PubSub,
        since: "2.0.0", complexity: "O(N) where N is the number of patterns to unsubscribe from", ..Command::DEFAULT),
    row!("spublish", |cx, args| send(cx, Kind::Shard, args), "shardchannel message", "Publishes a message to a shard channel.";
        replies: Replies::Integer, slot_args: Some(|_| Positions::from_slice(&[1])), flags: PUBLISHING,
        channels: Channels::First, keys: Keys::ONE, key_uses: NOT_KEYS, group: Group::PubSub, since: "7.0.0",
        complexity: "O(N) where N is the number of subscribers of the shard channel", ..Command::DEFAULT),
    row!("ssubscribe", ssubscribe, "shardchannel [shardchannel ...]", "Subscribes to shard channels.";
        traits: Traits::WHILE_SUBSCRIBED.union(Traits::AWAITS_LEADER), slot_args: Some(all_channels), flags: SUBSCRIBING,
        channels: Channels::All, keys: Keys::ALL, key_uses: NOT_KEYS, group: Group::PubSub, since: "7.0.0",
        complexity: "O(N) where N is the number of shard channels to subscribe to", ..Command::DEFAULT),
    row!("subscribe", |cx, args| subscribe_to(cx, Kind::Channel, "subscribe", &args[1..]),
        "channel [channel ...]", "Subscribes to channels.";
        traits: Traits::WHILE_SUBSCRIBED, flags: SUBSCRIBING, channels: Channels::All, group: Group::PubSub, since: "2.0.0",
        complexity: "O(N) where N is the number of channels to subscribe to", ..Command::DEFAULT),
    row!("sunsubscribe", |cx, args| unsubscribe_from(cx, Kind::Shard, "sunsubscribe", &args[1..]),
        "[shardchannel [shardchannel ...]]", "Unsubscribes from shard channels, or from all of them.";
        traits: Traits::WHILE_SUBSCRIBED.union(Traits::ENDS_SUBSCRIPTIONS), slot_args: Some(all_channels), flags: SUBSCRIBING,
        keys: Keys::ALL, key_uses: NOT_KEYS, group: Group::PubSub, since: "7.0.0",
        complexity: "O(N) where N is the number of shard channels to unsubscribe from", ..Command::DEFAULT),
    row!("unsubscribe", |cx, args| unsubscribe_from(cx, Kind::Channel, "unsubscribe", &args[1..]),
        "[channel [channel ...]]", "Unsubscribes from channels, or from all of them.";
        traits: Traits::WHILE_SUBSCRIBED.union(Traits::ENDS_SUBSCRIPTIONS), flags: SUBSCRIBING, group: Group::PubSub,
        since: "2.0.0", complexity: "O(N) where N is the number of channels to unsubscribe from", ..Command::DEFAULT),
]);

/// All arguments: shard channels have hash slots, like keys.
fn all_channels(args: &[&[u8]]) -> Positions {
    (1..args.len()).collect()
}

fn confirm(cx: &mut Context<'_>, kind: Kind, word: &str, name: Option<&[u8]>) {
    let session = &mut cx.engine.sessions_mut()[cx.session];
    let count = subscription_count(session, kind);
    let mut around;
    let sink: &mut dyn Sink = if session.silenced() {
        // `CLIENT REPLY OFF` suppresses replies but not push messages. This is a push message.
        around = WireReply::new(&mut session.out, session.protocol);
        &mut around
    } else {
        &mut *cx.reply
    };
    write_confirmation(sink, word, name, count);
}

/// The number of subscriptions in a confirmation: channels and patterns are counted together, shard channels separately.
fn subscription_count(session: &Session, kind: Kind) -> u32 {
    let [channels, patterns, shards] = session.subscriptions;
    if kind == Kind::Shard { shards } else { channels + patterns }
}

fn write_confirmation(sink: &mut dyn Sink, word: &str, name: Option<&[u8]>, count: u32) {
    sink.push(3);
    sink.bulk(word.as_bytes());
    match name {
        Some(name) => sink.bulk(name),
        None => sink.null(),
    }
    sink.integer(i64::from(count));
}

fn subscribe_to(cx: &mut Context<'_>, kind: Kind, word: &str, names: &[&[u8]]) -> Result {
    if kind != Kind::Shard && names.iter().any(|name| is_of_leader(name)) {
        // They are the leader's alone: a subscriber of another node would wait in vain.
        cx.engine.check_leads(cx.session)?;
    }
    for name in names {
        cx.engine.subscribe(cx.session, kind, name);
        confirm(cx, kind, word, Some(name));
    }
    if cx.engine.pubsub().bytes(cx.session) as u64 > cx.engine.config().client_query_buffer_limit {
        let session = cx.session();
        tracing::warn!(client = session.id, addr = session.addr, "closing a client with too many subscriptions");
        cx.engine.unsubscribe_all(cx.session);
        cx.engine.close_over_limit(cx.session);
    }
    Ok(())
}

fn unsubscribe_from(cx: &mut Context<'_>, kind: Kind, word: &'static str, names: &[&[u8]]) -> Result {
    let all = cx.session().subscriptions[kind.index()] as usize;
    if names.is_empty() && cx.may_start_job(all) {
        cx.start_job(UnsubscribeAll { kind, word });
        return Ok(());
    }
    for name in names {
        cx.engine.unsubscribe(cx.session, kind, name);
        confirm(cx, kind, word, Some(name));
    }
    if names.is_empty() {
        let mut any = false;
        while let Some(name) = cx.engine.unsubscribe_oldest(cx.session, kind) {
            any = true;
            confirm(cx, kind, word, Some(&name));
        }
        if !any {
            confirm(cx, kind, word, None);
        }
    }
    Ok(())
}

/// Ends very many subscriptions of one kind, oldest first, in steps. The client gets a confirmation for each, and until then
/// messages of the remaining subscriptions.
struct UnsubscribeAll {
    kind: Kind,
    word: &'static str,
}

impl Work for UnsubscribeAll {
    fn slice(&self) -> u32 {
        // The entries of a subscription are at random places in three tables.
        256
    }

    fn go_on(&mut self, engine: &mut Engine, _: Now, id: SessionId, count: u32, _: &mut Vec<u8>) -> bool {
        let mut left = count;
        // If the session is to be closed, its subscriptions end with it.
        while left > 0
            && !engine.sessions()[id].flags.contains(SessionFlags::CLOSE_NOW)
            && let Some(name) = engine.unsubscribe_oldest(id, self.kind)
        {
            left -= 1;
            let session = &mut engine.sessions_mut()[id];
            let count = subscription_count(session, self.kind);
            // Confirmations are push messages, which `CLIENT REPLY OFF` does not suppress.
            write_confirmation(&mut WireReply::new(&mut session.out, session.protocol), self.word, Some(&name), count);
        }
        let all = left > 0 || engine.sessions()[id].subscriptions[self.kind.index()] == 0;
        engine.mark_pending_write(id);
        all
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::AlreadySent
    }
}

fn ssubscribe(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    // For backward compatibility, Redis allows subscribing in a transaction, but only with the older commands.
    if cx.session().flags.contains(SessionFlags::IN_EXEC) {
        return Err(Error::new("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
    }
    subscribe_to(cx, Kind::Shard, "ssubscribe", &args[1..])
}

fn send(cx: &mut Context<'_>, kind: Kind, args: &[&[u8]]) -> Result {
    // The events of a script's changes are published before its messages.
    cx.engine.publish_events();
    let receivers = pubsub::publish_to_all(cx.engine, kind, args[1], args[2]);
    cx.reply.integer(receivers as i64);
    Ok(())
}

fn list(cx: &mut Context<'_>, kind: Kind, args: &[&[u8]]) -> Result {
    fail_if!(args.len() > 3, Error::subcommand_syntax(args));
    let pattern = args.get(2);
    if cx.may_start_job(cx.engine.pubsub().kept(kind)) {
        let cursor = cx.engine.pubsub_mut().begin_walk(kind);
        cx.start_job(ListChannels { kind, pattern: pattern.map(|&pattern| pattern.into()), cursor, found: 0 });
        return Ok(());
    }
    let wanted = |name: &&[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
    let names: Vec<&[u8]> = cx.engine.pubsub().topics(kind).filter(wanted).collect();
    cx.reply.array(names.len());
    for name in names {
        cx.reply.bulk(name);
    }
    Ok(())
}

/// Lists very many channels with subscribers, in steps.
struct ListChannels {
    kind: Kind,
    /// The pattern that channels must match; `None` for all channels.
    pattern: Option<Box<[u8]>>,
    cursor: usize,
    found: usize,
}

impl Work for ListChannels {
    fn go_on(&mut self, engine: &mut Engine, _: Now, _: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // Bulk strings are the same in both protocols.
        let mut reply = WireReply::new(reply, Protocol::Resp2);
        let cost = self.pattern.as_deref().map_or(1, glob::cost);
        let count = (count / u32::try_from(cost).unwrap_or(u32::MAX)).max(1);
        engine.pubsub_mut().walk_on(self.kind, self.cursor, count, |name| {
            if self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name, false)) {
                self.found += 1;
                reply.bulk(name);
            }
        })
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.found)
    }

    fn leave(&mut self, engine: &mut Engine) {
        engine.pubsub_mut().end_walk(self.kind, self.cursor);
    }
}

fn numpat(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.integer(cx.engine.pubsub().topic_count(Kind::Pattern) as i64);
    Ok(())
}

fn count(cx: &mut Context<'_>, kind: Kind, names: &[&[u8]]) -> Result {
    cx.reply.array(names.len() * 2);
    for name in names {
        cx.reply.bulk(name);
        cx.reply.integer(cx.engine.pubsub().subscribers(kind, name) as i64);
    }
    Ok(())
}

/// What `HELP` replies, as in Redis.
const HELP: &[&str] = &[
    "CHANNELS [<pattern>]",
    "    Return the currently active channels matching a <pattern> (default: '*').",
    "NUMPAT",
    "    Return number of subscriptions to patterns.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers for the specified channels, excluding",
    "    pattern subscriptions(default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the currently active shard level channels matching a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers for the specified shard level channel(s)",
];

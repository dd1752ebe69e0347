//! The commands that a plan may call: those whose reply is never an aggregate, whatever their arguments.

/// What a command replies with, if not with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Always a number.
    Integer,
    /// A number, a string, a status or nothing.
    Any,
}

/// Those that always reply with a number.
const INTEGER: [&str; 69] = [
    "append",
    "bitcount",
    "bitop",
    "bitpos",
    "copy",
    "decr",
    "decrby",
    "del",
    "exists",
    "expire",
    "expireat",
    "expiretime",
    "geoadd",
    "getbit",
    "hdel",
    "hexists",
    "hincrby",
    "hlen",
    "hset",
    "hsetnx",
    "hstrlen",
    "incr",
    "incrby",
    "linsert",
    "llen",
    "lpush",
    "lpushx",
    "lrem",
    "move",
    "msetnx",
    "persist",
    "pexpire",
    "pexpireat",
    "pexpiretime",
    "pfadd",
    "pfcount",
    "pttl",
    "publish",
    "renamenx",
    "rpush",
    "rpushx",
    "sadd",
    "scard",
    "sdiffstore",
    "setbit",
    "setnx",
    "setrange",
    "sinterstore",
    "sismember",
    "smove",
    "spublish",
    "srem",
    "strlen",
    "sunionstore",
    "touch",
    "ttl",
    "unlink",
    "xack",
    "xdel",
    "xlen",
    "xtrim",
    "zcard",
    "zcount",
    "zinterstore",
    "zlexcount",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zremrangebyscore",
];

/// Those that reply with something else, or with nothing.
const ANY: [&str; 27] = [
    "echo",
    "get",
    "getdel",
    "getex",
    "getrange",
    "getset",
    "hget",
    "hincrbyfloat",
    "hmset",
    "incrbyfloat",
    "lindex",
    "lmove",
    "lset",
    "ltrim",
    "mset",
    "pfmerge",
    "psetex",
    "rename",
    "rpoplpush",
    "set",
    "setex",
    "substr",
    "type",
    "xadd",
    "zadd",
    "zincrby",
    "zscore",
];

/// Those that reply so without a count, which would be one more argument.
const ONE: [&str; 4] = ["lpop", "rpop", "spop", "srandmember"];

/// What a command with so many arguments replies with; `None` where that may be an aggregate.
pub(super) fn reply(name: &str, arguments: usize) -> Option<Reply> {
    if INTEGER.contains(&name) {
        Some(Reply::Integer)
    } else if ANY.contains(&name) || ONE.contains(&name) && arguments == 2 {
        Some(Reply::Any)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;
    use crate::engine::command::Flags;

    #[test]
    fn they_exist_and_scripts_may_call_them() {
        for name in INTEGER.into_iter().chain(ANY).chain(ONE) {
            let command = commands::lookup(name.as_bytes()).unwrap_or_else(|| panic!("no {name}"));
            assert!(
                !command.flags.intersects(Flags::NOSCRIPT.union(Flags::BLOCKING)) && command.subcommands.is_empty(),
                "{name}"
            );
        }
    }
}

//! The first line of a script: `#!lua flags=no-writes,allow-oom`.

use std::borrow::Cow;

use crate::engine::command::Flags;
use crate::resp::request;

bitflags::bitflags! {
    /// Flags that a script or a function declares.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ScriptFlags: u8 {
        /// `no-writes`
        const NO_WRITES = 1 << 0;
        /// `allow-oom`
        const ALLOW_OOM = 1 << 1;
        /// `allow-stale`
        const ALLOW_STALE = 1 << 2;
        /// `no-cluster`
        const NO_CLUSTER = 1 << 3;
        /// `allow-cross-slot-keys`
        const ALLOW_CROSS_SLOT = 1 << 4;
        /// The script has no such line, as before Redis 7.0: only the flags of the commands that it calls matter.
        const COMPAT = 1 << 5;
    }
}

/// The names of the flags that can be declared, in the order in which Redis lists them.
const NAMES: [(&str, ScriptFlags); 5] = [
    ("no-writes", ScriptFlags::NO_WRITES),
    ("allow-oom", ScriptFlags::ALLOW_OOM),
    ("allow-stale", ScriptFlags::ALLOW_STALE),
    ("no-cluster", ScriptFlags::NO_CLUSTER),
    ("allow-cross-slot-keys", ScriptFlags::ALLOW_CROSS_SLOT),
];

impl ScriptFlags {
    /// The flag with this name, as functions declare it. Case does not matter.
    pub(crate) fn named(name: &[u8]) -> Option<ScriptFlags> {
        NAMES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)).map(|(_, flag)| *flag)
    }

    /// The names of these flags, in the order in which Redis lists them.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(_, flag)| self.contains(*flag)).map(|(name, _)| *name)
    }
}

/// Splits a script into its flags and its body, or returns the text of the error. The body begins with the line feed of the first
/// line, so that lines keep their numbers.
pub(crate) fn split(script: &[u8]) -> Result<(ScriptFlags, &[u8]), Cow<'static, [u8]>> {
    if !script.starts_with(b"#!") {
        return Ok((ScriptFlags::COMPAT, script));
    }
    // Redis reads the line as a C string: a NUL ends it.
    let end = memchr::memchr2(b'\n', 0, script).filter(|&end| script[end] == b'\n');
    let (line, body) = script.split_at(end.ok_or(b"ERR Invalid script shebang".as_slice())?);
    let words = request::split_words(line).map_err(|_| b"ERR Invalid engine in script shebang".as_slice())?;
    let mut words = words.iter().map(Vec::as_slice);
    let engine = words.next().unwrap_or_default();
    fail_if!(engine != b"#!lua", [b"ERR Unexpected engine in script shebang: ", engine].concat().into());
    let mut flags = ScriptFlags::empty();
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err([b"ERR Unknown lua shebang option: ", word].concat().into());
        };
        if list.is_empty() {
            continue;
        }
        for name in list.split(|&byte| byte == b',') {
            match NAMES.iter().find(|(known, _)| known.as_bytes() == name) {
                Some((_, flag)) => flags |= *flag,
                None => return Err([b"ERR Unexpected flag in script shebang: ", name].concat().into()),
            }
        }
    }
    Ok((flags, body))
}

/// The flags of a command that runs a script with these flags. Declared flags replace those of the command.
pub(crate) fn command_flags(command: Flags, script: ScriptFlags) -> Flags {
    const OF_SCRIPT: Flags = Flags::STALE.union(Flags::DENYOOM).union(Flags::WRITE).union(Flags::MAY_REPLICATE);
    if script.contains(ScriptFlags::COMPAT) {
        return command;
    }
    let mut flags = command.difference(OF_SCRIPT);
    flags.set(Flags::WRITE, !script.contains(ScriptFlags::NO_WRITES));
    // A script that cannot write needs no memory.
    flags.set(Flags::DENYOOM, !script.intersects(ScriptFlags::NO_WRITES.union(ScriptFlags::ALLOW_OOM)));
    flags.set(Flags::STALE, script.contains(ScriptFlags::ALLOW_STALE));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_without_the_line_is_unchanged() {
        assert_eq!(split(b"return 1"), Ok((ScriptFlags::COMPAT, b"return 1".as_slice())));
    }

    #[test]
    fn flags_are_read_and_the_line_feed_stays() {
        let (flags, body) = split(b"#!lua flags=no-writes,allow-stale\nreturn 1").unwrap_or((ScriptFlags::empty(), b""));
        assert_eq!((flags, body), (ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_STALE, b"\nreturn 1".as_slice()));
        for line in
            ["#!lua 'flags=no-writes'", "#!lua flags=\"no-writes\"", "#!lua\tflags=no-writes flags=", "#!lua flags=no-writes\r"]
        {
            let script = format!("{line}\nreturn 1");
            assert_eq!(split(script.as_bytes()), Ok((ScriptFlags::NO_WRITES, b"\nreturn 1".as_slice())), "{line}");
        }
        assert_eq!(split(b"#!lua\n1"), Ok((ScriptFlags::empty(), b"\n1".as_slice())));
    }

    #[test]
    fn unknown_engines_options_and_flags_are_refused() {
        for (script, text) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!not-lua\nreturn 1", "ERR Unexpected engine in script shebang: #!not-lua"),
            ("#!lua name=x\nreturn 1", "ERR Unknown lua shebang option: name=x"),
            ("#!lua flags=fly\nreturn 1", "ERR Unexpected flag in script shebang: fly"),
            ("#!lua flags=,\nreturn 1", "ERR Unexpected flag in script shebang: "),
            ("#!lua flags=No-Writes\nreturn 1", "ERR Unexpected flag in script shebang: No-Writes"),
            ("#!lua \0\nreturn 1", "ERR Invalid script shebang"),
            ("#!lua 'flags\nreturn 1", "ERR Invalid engine in script shebang"),
        ] {
            assert_eq!(split(script.as_bytes()), Err(text.as_bytes().into()), "{script}");
        }
    }
}

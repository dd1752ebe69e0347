//! Why a file cannot be read, and what `redis-check-rdb` would say about it. Faults that Redis finds, too, have its texts. Texts of
//! our own begin with "Portcullis: ".

use std::fmt;

use crate::persist::natives::Refusal;

/// The reason for which a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It does not begin as an RDB file does.
    Signature,
    /// The format version is unknown.
    Version(i64),
    /// It ends too early.
    End,
    /// This byte begins no length.
    Length(u8),
    /// This byte begins no string.
    Encoding(u8),
    /// There is no such type of a value.
    Type(u8),
    /// A string cannot be decompressed, or a value does not have the form of its type.
    Malformed,
    /// A value that only a module can read, of this type.
    ModuleValue(String),
    /// A value of the release candidates of Redis 4.0 that only a module can read.
    ModulePreGa,
    /// Data of a module beside the keys.
    ModuleAux(String),
    /// A library in the form of the release candidates of Redis 7.0.
    FunctionsPreGa,
    /// A database index out of range; the number of databases.
    Databases(usize),
    /// A key comes twice: this one, in this database.
    Duplicate(Box<[u8]>, u32),
    /// A native record of this name is refused.
    Native(String, Refusal),
    /// A second record of this session, of this owner's requests, or with this token of a session.
    Repeated(String),
    /// A record of this name comes after the first lock, which may need it.
    Late(String),
    /// The checksum of what was read, and the one at the end of the file.
    Checksum {
        /// Computed.
        expected: u64,
        /// Read.
        got: u64,
    },
}

named! {
    /// What was being read, as `redis-check-rdb` names it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Doing {
        /// The signature and the version.
        Start = "start",
        /// A type or an opcode.
        Type = "read-type",
        /// A deadline.
        Expire = "read-expire",
        /// The name of a key.
        Key = "read-key",
        /// A value.
        Value = "read-object-value",
        /// The checksum.
        Checksum = "check-sum",
        /// A number.
        Length = "read-len",
        /// A field of the kind AUX.
        Aux = "read-aux",
        /// Data of a module beside the keys.
        ModuleAux = "read-module-aux",
        /// A library of functions.
        Functions = "read-functions",
    }
}

/// Numbers of what was read so far, as `redis-check-rdb` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys whose names were read.
    pub keys: u64,
    /// Keys with deadlines whose values were read.
    pub expires: u64,
    /// Those of them whose deadlines have passed.
    pub already_expired: u64,
}

/// Why a file cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason.
    pub reason: Reason,
    /// The offset in the file at which it was found.
    pub offset: u64,
    /// What was being read.
    pub doing: Doing,
    /// The key that was being read, as far as it is known.
    pub key: Option<Box<[u8]>>,
    /// The type of its value.
    pub kind: Option<u8>,
    /// What was read before.
    pub counts: Counts,
}

/// The names of types as `redis-check-rdb` of Redis 7.4 prints them.
fn kind_name(kind: u8) -> &'static str {
    #[rustfmt::skip]
    const NAMES: [&str; 26] = [
        "string", "list-linked", "set-hashtable", "zset-v1", "hash-hashtable", "zset-v2", "module-pre-release", "module-value",
        "", "hash-zipmap", "list-ziplist", "set-intset", "zset-ziplist", "hash-ziplist", "quicklist", "stream", "hash-listpack",
        "zset-listpack", "quicklist-v2", "stream-v2", "set-listpack", "stream-v3", "hash-hashtable-md-pre-release",
        "hash-listpack-md-pre-release", "hash-hashtable-md", "hash-listpack-md",
    ];
    NAMES.get(usize::from(kind)).copied().unwrap_or("unknown")
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Signature => f.write_str("Wrong signature trying to load DB from file"),
            Reason::Version(version) => write!(f, "Can't handle RDB format version {version}"),
            Reason::End => f.write_str("Unexpected EOF reading RDB file"),
            Reason::Length(byte) if byte >> 6 == 2 => f.write_str("Unknown length encoding 2 in rdbLoadLen()"),
            Reason::Length(byte) => write!(f, "Portcullis: the byte {byte} begins no length"),
            Reason::Encoding(byte) => write!(f, "Unknown RDB string encoding type {}", byte & 0x3f),
            Reason::Type(kind) => write!(f, "Invalid object type: {kind}"),
            Reason::Malformed => f.write_str("Portcullis: the value does not have the form of its type"),
            Reason::ModuleValue(name) => {
                write!(f, "The RDB file contains module data I can't load: no matching module type '{name}'")
            }
            Reason::ModulePreGa => f.write_str("Pre-release module format not supported"),
            Reason::ModuleAux(name) => {
                write!(f, "The RDB file contains AUX module data I can't load: no matching module '{name}'")
            }
            Reason::FunctionsPreGa => f.write_str("Pre-release function format not supported."),
            Reason::Databases(count) => write!(
                f,
                "FATAL: Data file was created with a Redis server configured to handle more than {count} databases. Exiting"
            ),
            Reason::Duplicate(key, db) => write!(f, "RDB has duplicated key '{}' in DB {db}", key.escape_ascii()),
            Reason::Native(name, refusal) => write!(f, "Portcullis: {refusal} ({name})"),
            Reason::Repeated(what) => write!(f, "Portcullis: a second record of {what}"),
            Reason::Late(name) => write!(f, "Portcullis: {name} comes after the first lock"),
            Reason::Checksum { expected, got } => {
                write!(f, "Wrong RDB checksum expected: ({expected:x}) but got ({got:x}). Aborting now.")
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}, while doing: {}", self.reason, self.offset, self.doing.name())?;
        if let Some(key) = &self.key { write!(f, ", key '{}'", key.escape_ascii()) } else { Ok(()) }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// Leaves out the names of keys, owners and sessions.
    pub fn hide_user_data(&mut self) {
        self.key = None;
        if let Reason::Repeated(what) = &mut self.reason {
            "something".clone_into(what);
        }
    }

    /// What `redis-check-rdb` would print.
    pub fn explanation(&self) -> String {
        let mut lines = vec![
            "--- RDB ERROR DETECTED ---".to_owned(),
            format!("[offset {}] {}", self.offset, self.reason),
            format!("[additional info] While doing: {}", self.doing.name()),
        ];
        lines.extend(self.key.iter().map(|key| format!("[additional info] Reading key '{}'", key.escape_ascii())));
        lines.extend(self.kind.iter().map(|&kind| format!("[additional info] Reading type {kind} ({})", kind_name(kind))));
        lines.push(format!("[info] {} keys read", self.counts.keys));
        lines.push(format!("[info] {} expires", self.counts.expires));
        lines.push(format!("[info] {} already expired", self.counts.already_expired));
        lines.join("\n")
    }
}

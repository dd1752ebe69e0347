//! Error replies: the texts that several commands share, and the functions that build texts with arguments. A text that one place
//! uses is written there.

use std::borrow::Cow;
use std::fmt;

/// An error reply: its text without the leading `-`, beginning with its code (`ERR`, `WRONGTYPE`, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Cow<'static, [u8]>);

/// The result of a handler: on success its reply is written already; otherwise this error is the reply.
pub type Result<T = ()> = std::result::Result<T, Error>;

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl Error {
            $($(#[$doc])* pub const $name: Error = Error(Cow::Borrowed($text.as_bytes()));)*
        }
    };
}

texts! {
    /// The owner of a lock, or the id of a holder of permits, has more bytes than it may have.
    OWNER_TOO_LONG = "ERR owner is too long";
    /// The key holds another type.
    WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value";
    /// An unknown option, or a combination of options that is not allowed.
    SYNTAX = "ERR syntax error";
    /// A number was expected, in the range of an i64.
    NOT_INTEGER = "ERR value is not an integer or out of range";
    /// A floating point number was expected.
    NOT_FLOAT = "ERR value is not a valid float";
    /// A number outside of the range that the command accepts.
    OUT_OF_RANGE = "ERR value is out of range";
    /// A negative number where a positive one is expected.
    NOT_POSITIVE = "ERR value is out of range, must be positive";
    /// `INCR` and similar commands beyond the range of an i64.
    OVERFLOW = "ERR increment or decrement would overflow";
    /// `DECRBY` of the smallest i64, which has no negation.
    DECREMENT_OVERFLOW = "ERR decrement would overflow";
    /// `INCRBYFLOAT` and similar commands with a result that is not finite.
    NAN_OR_INFINITY = "ERR increment would produce NaN or Infinity";
    /// The key does not exist, but the command requires it.
    NO_SUCH_KEY = "ERR no such key";
    /// Source and destination are the same.
    SAME_OBJECT = "ERR source and destination objects are the same";
    /// A database index beyond `databases`.
    DB_RANGE = "ERR DB index is out of range";
    /// A database index that is not a number.
    DB_INVALID = "ERR invalid DB index";
    /// A string would outgrow `proto-max-bulk-len`.
    STRING_TOO_LONG = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    /// A negative offset.
    OFFSET_RANGE = "ERR offset is out of range";
    /// A scan cursor that is not a number.
    INVALID_CURSOR = "ERR invalid cursor";
    /// `EVALSHA` of a script that is not loaded.
    NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL.";
    /// A command that needs the keys, while they are loaded.
    LOADING = "LOADING Redis is loading the dataset in memory";
    /// Any command except `AUTH`, `HELLO`, `QUIT` and `RESET` before authentication.
    NO_AUTH = "NOAUTH Authentication required.";
    /// The user and the password do not match.
    WRONG_PASS = "WRONGPASS invalid username-password pair or user is disabled.";
    /// A login in a transaction from an address whose logins wait.
    LOGIN_MUST_WAIT = "ERR Too many logins from this address have failed: a login has to wait, and cannot do so in a transaction";
    /// A key for which the user lacks the permission.
    NO_PERMISSION_KEY = "NOPERM No permissions to access a key";
    /// A channel for which the user lacks the permission.
    NO_PERMISSION_CHANNEL = "NOPERM No permissions to access a channel";
    /// `ACL LOAD` and `ACL SAVE` without `aclfile`.
    NO_ACL_FILE = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users in the Redis configuration.";
    /// `ACL SAVE` failed; the log has the reason.
    ACL_SAVE_FAILED = "ERR There was an error trying to save the ACLs. Please check the server logs for more information";
    /// `ACL DELUSER default`.
    DEFAULT_USER_STAYS = "ERR The 'default' user cannot be removed";
    /// `ACL SETUSER` of a name that would break a line of an ACL file.
    USER_NAME = "ERR Usernames can't contain spaces or null characters";
    /// `ACL GENPASS` of no bits or too many.
    GENPASS_BITS = "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";
    /// A write when `maxmemory` is exceeded.
    OOM = "OOM command not allowed when used memory > 'maxmemory'.";
    /// A script without `allow-oom` that was queued before `maxmemory` was exceeded.
    OOM_IN_SCRIPT = "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'";
    /// A number of keys that is 0, or more than there are arguments.
    INVALID_NUMKEYS = "ERR invalid numkeys value or out of range";
    /// An invalid digest.
    INVALID_DIGEST = "ERR must be exactly 16 hexadecimal characters";
    /// An invalid condition of `DELEX`.
    INVALID_CONDITION = "ERR Invalid condition";
    /// `OBJECT FREQ` without an LFU policy.
    NO_LFU = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
    /// `OBJECT IDLETIME` under an LFU policy.
    NO_LRU = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
    /// `NX` together with another condition of the `EXPIRE` family.
    EXPIRE_NX = "ERR NX and XX, GT or LT options at the same time are not compatible";
    /// `GT` together with `LT`.
    EXPIRE_GT_LT = "ERR GT and LT options at the same time are not compatible";
    /// An unsupported version of the protocol.
    NO_PROTO = "NOPROTO unsupported protocol version";
    /// `COMMAND GETKEYS` of a command without keys.
    NO_KEY_ARGUMENTS = "ERR The command has no key arguments";
    /// `COMMAND GETKEYS` of a request that is too short or too long.
    INVALID_NUMBER_OF_ARGUMENTS = "ERR Invalid number of arguments specified for command";
    /// `COMMAND GETKEYS` of a request whose keys cannot be determined.
    INVALID_ARGUMENTS = "ERR Invalid arguments specified for command";
    /// `COMMAND GETKEYS` of an unknown command.
    INVALID_COMMAND = "ERR Invalid command specified";
    /// An integer outside of the range of an i32.
    NOT_AN_INT = "ERR value is out of range, value must between -2147483648 and 2147483647";
    /// `AUTH password` where no password is set.
    NO_PASSWORD_SET = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
    /// `HELLO` with a version that is not a number.
    NOT_A_PROTOCOL = "ERR Protocol version is not an integer or out of range";
    /// `HELLO` before authentication.
    HELLO_NO_AUTH = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
    /// A client name that would break the lines of `CLIENT LIST`.
    CLIENT_NAME = "ERR Client names cannot contain spaces, newlines or special characters.";
    /// `CLIENT KILL ID` with an invalid id.
    CLIENT_ID_POSITIVE = "ERR client-id should be greater than 0";
    /// `CLIENT LIST ID` with an invalid id.
    CLIENT_ID_INVALID = "ERR Invalid client ID";
    /// `CLIENT KILL MAXAGE` with something that is not a number.
    MAXAGE_NOT_INTEGER = "ERR maxage is not an integer or out of range";
    /// `CLIENT KILL MAXAGE` with zero or less.
    MAXAGE_POSITIVE = "ERR maxage should be greater than 0";
    /// `CLIENT KILL addr` without a matching client.
    NO_SUCH_CLIENT = "ERR No such client";
    /// The count of a random command is the smallest i64, which has no negation.
    COUNT_RANGE = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    /// An invalid bit offset, or one beyond `proto-max-bulk-len`.
    BIT_OFFSET = "ERR bit offset is not an integer or out of range";
    /// `SETBIT` with a value other than 0 and 1.
    BIT_VALUE = "ERR bit is not an integer or out of range";
    /// `BITPOS` with a bit other than 0 and 1.
    BIT_ARGUMENT = "ERR The bit argument must be 1 or 0.";
    /// `BITOP NOT` of several strings.
    BITOP_NOT = "ERR BITOP NOT must be called with a single source key.";
    /// An invalid type of `BITFIELD`.
    BITFIELD_TYPE = "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
    /// An invalid word after `BITFIELD OVERFLOW`.
    BITFIELD_OVERFLOW = "ERR Invalid OVERFLOW type specified";
    /// A write in `BITFIELD_RO`.
    BITFIELD_RO = "ERR BITFIELD_RO only supports the GET subcommand";
    /// `SORT` of values that are not numbers.
    SORT_NOT_DOUBLE = "ERR One or more scores can't be converted into double";
    /// `SORT BY` keys that a cluster may keep on other nodes.
    SORT_BY_ELSEWHERE = "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.";
    /// `SORT GET` of keys that a cluster may keep on other nodes.
    SORT_GET_ELSEWHERE = "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.";
    /// `SORT BY` by a user who may not read every key.
    SORT_BY_DENIED = "ERR BY option of SORT denied due to insufficient ACL permissions.";
    /// `SORT GET` by a user who may not read every key.
    SORT_GET_DENIED = "ERR GET option of SORT denied due to insufficient ACL permissions.";
    /// `SORT` whose patterns need more lookups than one request may do.
    SORT_TOO_MUCH = "ERR SORT needs more key lookups than one request may make";
    /// An index beyond the ends of a list.
    INDEX_RANGE = "ERR index out of range";
    /// `LPOS RANK 0`.
    RANK_ZERO = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list";
    /// `LPOS COUNT` below zero.
    COUNT_NEGATIVE = "ERR COUNT can't be negative";
    /// `LPOS MAXLEN` below zero.
    MAXLEN_NEGATIVE = "ERR MAXLEN can't be negative";
    /// An invalid number of keys of `LMPOP` and similar commands.
    NUMKEYS_POSITIVE = "ERR numkeys should be greater than 0";
    /// An invalid number of elements of `LMPOP` and similar commands.
    COUNT_POSITIVE = "ERR count should be greater than 0";
    /// `HINCRBY` of a value that is not an integer.
    HASH_NOT_INTEGER = "ERR hash value is not an integer";
    /// `HINCRBYFLOAT` of a value that is not a number.
    HASH_NOT_FLOAT = "ERR hash value is not a float";
    /// `HINCRBYFLOAT` by infinity.
    VALUE_NAN_OR_INFINITY = "ERR value is NaN or Infinity";
    /// `ZADD` with `NX` and `XX`.
    ZADD_NX_XX = "ERR XX and NX options at the same time are not compatible";
    /// `ZADD` with two of `GT`, `LT` and `NX`.
    ZADD_GT_LT_NX = "ERR GT, LT, and/or NX options at the same time are not compatible";
    /// `ZADD INCR` of several members.
    ZADD_INCR_PAIRS = "ERR INCR option supports a single increment-element pair";
    /// A score that is the sum of both infinities.
    SCORE_NAN = "ERR resulting score is not a number (NaN)";
    /// An invalid bound of a range of scores.
    MIN_MAX_NOT_FLOAT = "ERR min or max is not a float";
    /// An invalid bound of a range of members.
    MIN_MAX_NOT_STRING = "ERR min or max not valid string range item";
    /// `LIMIT` with a range of ranks.
    LIMIT_WITH_RANKS = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
    /// `WITHSCORES` with a range of members.
    WITHSCORES_BYLEX = "ERR syntax error, WITHSCORES not supported in combination with BYLEX";
    /// A weight of `ZUNION` and similar commands that is not a number.
    WEIGHT_NOT_FLOAT = "ERR weight value is not a float";
    /// `LIMIT` of `ZINTERCARD` and similar commands that is negative or not a number.
    LIMIT_NEGATIVE = "ERR LIMIT can't be negative";
    /// An invalid id of a stream entry.
    STREAM_ID = "ERR Invalid stream ID specified as stream command argument";
    /// `XADD` with the id 0-0.
    STREAM_ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0";
    /// `XADD` with an id that is not greater than all ids before.
    STREAM_ID_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
    /// `XADD` to a stream whose last id is the largest one.
    STREAM_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items";
    /// `XADD` of a gigabyte or more.
    STREAM_ENTRY_TOO_LARGE = "ERR Elements are too large to be stored";
    /// An interval that begins behind the last id.
    STREAM_INTERVAL_START = "ERR invalid start ID for the interval";
    /// An interval that ends before the first id.
    STREAM_INTERVAL_END = "ERR invalid end ID for the interval";
    /// `MAXLEN` and `MINID`.
    STREAM_TWO_TRIMS = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible";
    /// A negative `MAXLEN`.
    STREAM_MAXLEN_NEGATIVE = "ERR The MAXLEN argument must be >= 0.";
    /// A negative `LIMIT`.
    STREAM_LIMIT_NEGATIVE = "ERR The LIMIT argument must be >= 0.";
    /// `LIMIT` without a trimming strategy.
    STREAM_LIMIT_ALONE = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy";
    /// `XTRIM` without a trimming strategy.
    STREAM_TRIM_NOTHING = "ERR syntax error, XTRIM must be called with a trimming strategy";
    /// `LIMIT` of an exact trimming.
    STREAM_LIMIT_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option";
    /// `XSETID` below an id that was deleted.
    XSETID_BELOW_DELETED = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id";
    /// `XSETID` below the max-deleted id of the same request.
    XSETID_BELOW_GIVEN = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id";
    /// `XSETID` below the last entry.
    XSETID_BELOW_TOP = "ERR The ID specified in XSETID is smaller than the target stream top item";
    /// `XSETID` with a negative counter.
    XSETID_NEGATIVE = "ERR entries_added must be positive";
    /// `XSETID` with a counter below the number of entries.
    XSETID_BELOW_LENGTH = "ERR The entries_added specified in XSETID is smaller than the target stream length";
    /// `GROUP` in `XREAD`.
    XREAD_GROUP = "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.";
    /// `NOACK` in `XREAD`.
    XREAD_NOACK = "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.";
    /// `>` in `XREAD`.
    XREAD_NEW = "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.";
    /// `XREADGROUP` without `GROUP`.
    XREADGROUP_NO_GROUP = "ERR Missing GROUP option for XREADGROUP";
    /// `$` in `XREADGROUP`.
    XREADGROUP_LAST = "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.";
    /// `+` in `XREADGROUP`.
    XREADGROUP_TOP = "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would just return an empty result set.";
    /// `XGROUP` of a key that does not exist.
    XGROUP_NO_KEY = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.";
    /// `XGROUP CREATE` of a group that exists.
    BUSY_GROUP = "BUSYGROUP Consumer Group name already exists";
    /// `ENTRIESREAD` below −1.
    ENTRIES_READ_RANGE = "ERR value for ENTRIESREAD must be positive or -1";
    /// `XCLAIM` with an invalid min-idle-time.
    XCLAIM_MIN_IDLE = "ERR Invalid min-idle-time argument for XCLAIM";
    /// `XCLAIM IDLE` with an invalid number.
    XCLAIM_IDLE = "ERR Invalid IDLE option argument for XCLAIM";
    /// `XCLAIM TIME` with an invalid number.
    XCLAIM_TIME = "ERR Invalid TIME option argument for XCLAIM";
    /// `XCLAIM RETRYCOUNT` with an invalid number.
    XCLAIM_RETRYCOUNT = "ERR Invalid RETRYCOUNT option argument for XCLAIM";
    /// `XAUTOCLAIM` with an invalid min-idle-time.
    XAUTOCLAIM_MIN_IDLE = "ERR Invalid min-idle-time argument for XAUTOCLAIM";
    /// `XAUTOCLAIM` with a count of 0 or less.
    XAUTOCLAIM_COUNT = "ERR COUNT must be > 0";
    /// The word `FIELDS` is missing or at the wrong position.
    FIELDS_MISSING = "ERR Mandatory argument FIELDS is missing or not at the right position";
    /// The word `FIELDS` is missing.
    FIELDS_NOWHERE = "ERR missing FIELDS argument";
    /// The word `FIELDS` occurs twice.
    FIELDS_TWICE = "ERR FIELDS keyword specified multiple times";
    /// An invalid number of fields of `HEXPIRE` and similar commands.
    NUMFIELDS_POSITIVE = "ERR Parameter `numFields` should be greater than 0";
    /// An invalid number of fields of `HTTL` and similar commands.
    FIELDS_POSITIVE = "ERR Number of fields must be a positive integer";
    /// An invalid number of fields of `HSETEX` or `HGETEX`.
    FIELDS_INVALID = "ERR invalid number of fields";
    /// The number of fields does not match the arguments.
    NUMFIELDS_MISMATCH = "ERR The `numfields` parameter must match the number of arguments";
    /// Fewer fields than announced.
    TOO_FEW_FIELDS = "ERR wrong number of arguments";
    /// A negative time to live of a field.
    FIELD_EXPIRE_NEGATIVE = "ERR invalid expire time, must be >= 0";
    /// A unit of time without its number.
    EXPIRE_MISSING = "ERR missing expire time";
    /// `FXX` together with `FNX`.
    ONE_FIELD_CONDITION = "ERR Only one of FXX or FNX arguments can be specified";
    /// Two expiry options of `HSETEX`.
    ONE_EXPIRY_OR_KEEPTTL = "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
    /// Two expiry options of `HGETEX`.
    ONE_EXPIRY_OR_PERSIST = "ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified";
    /// An option of `HSETEX` given to `HGETEX`, or the reverse.
    UNKNOWN_ARGUMENT = "ERR unknown argument";
    /// A time-out that is not a number.
    TIMEOUT_NOT_INTEGER = "ERR timeout is not an integer or out of range";
    /// A negative time-out.
    TIMEOUT_NEGATIVE = "ERR timeout is negative";
    /// `WAITAOF` for more local logs than one.
    NOT_ZERO_OR_ONE = "ERR value is out of range, value must between 0 and 1";
    /// `BGREWRITEAOF` while a new base is being made.
    REWRITE_IN_PROGRESS = "ERR Background append only file rewriting already in progress";
    /// `WAIT` on a replica.
    WAIT_ON_REPLICA = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.";
    /// `WAITAOF` on a replica.
    WAITAOF_ON_REPLICA = "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and are not propagated.";
    /// A request for keys while no node of the cluster serves them.
    CLUSTER_DOWN = "CLUSTERDOWN The cluster is down";
    /// `WAITAOF` for a local log on a server without one.
    WAITAOF_WITHOUT_AOF = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
    /// `BGREWRITEAOF` on a server without an append-only file.
    NO_APPEND_ONLY = "ERR Portcullis has no append-only file to rewrite: appendonly is no";
    /// `SAVE` or `BGSAVE` while a snapshot is being made.
    SAVE_IN_PROGRESS = "ERR Background save already in progress";
    /// `BGSAVE` while a new base is being made. Portcullis has no children, but as much as Redis it makes one file at a time.
    SAVE_BESIDE_REWRITE = "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to schedule a BGSAVE whenever possible.";
    /// A `SAVE` that failed; the log has the reason.
    SAVE_FAILED = "ERR";
    /// A `DEBUG RELOAD` whose snapshot cannot be loaded; the log has the reason.
    RELOAD_FAILED = "ERR Error trying to load the RDB dump, check server logs.";
    /// A `DEBUG LOADAOF` whose files cannot be loaded; the log has the reason. Redis ends instead.
    LOADAOF_FAILED = "ERR Error trying to load the append only file, check server logs.";
    /// An option of `DEBUG RELOAD` that does not exist.
    RELOAD_OPTIONS = "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.";
    /// A `SHUTDOWN` whose snapshot failed, or while the append-only file is being switched on.
    SHUTDOWN_FAILED = "ERR Errors trying to SHUTDOWN. Check logs.";
    /// A write while snapshots fail.
    MISCONF_SNAPSHOTS = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.";
    /// `MODULE LOAD` and similar commands.
    NO_MODULES = "ERR MODULE command not allowed. Portcullis does not support modules.";
    /// `SHUTDOWN ABORT`.
    NO_SHUTDOWN = "ERR No shutdown in progress.";
    /// `DEBUG` where `enable-debug-command` forbids it.
    DEBUG_NOT_ALLOWED = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.";
    /// The first database of `SWAPDB` is not a number.
    FIRST_DB_INVALID = "ERR invalid first DB index";
    /// The second database of `SWAPDB` is not a number.
    SECOND_DB_INVALID = "ERR invalid second DB index";
    /// A database index beyond an `int`.
    INT_RANGE = "ERR value is out of range, value must between -2147483648 and 2147483647";
    /// `CLUSTER` and similar commands without cluster mode.
    NO_CLUSTER = "ERR This instance has cluster support disabled";
    /// Commands that would change the cluster.
    ONE_NODE = "ERR Portcullis is a cluster of one node that always owns all slots";
    /// As [`Error::ONE_NODE`], of replicated servers.
    ONE_SHARD = "ERR Portcullis is a cluster of one shard that always owns all slots, and its nodes elect their leader";
    /// A request with keys in several slots of a cluster.
    CROSS_SLOT = "CROSSSLOT Keys in request don't hash to the same slot";
    /// A write on a server that does not lead.
    READ_ONLY_REPLICA = "READONLY You can't write against a read only replica.";
    /// A blocked client, when its server leads no longer.
    ROLE_CHANGED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    /// A master's name that no Sentinel knows.
    NO_SUCH_MASTER = "ERR No such master with that name";
    /// Commands that need replication.
    NO_REPLICATION = "ERR Portcullis does not support replication";
    /// The first line of a library is not a valid metadata line.
    INVALID_LIBRARY_METADATA = "ERR Invalid library metadata";
    /// A negative number of keys of a script or function.
    NEGATIVE_KEYS = "ERR Number of keys can't be negative";
    /// An unknown unit of distance.
    GEO_UNIT = "ERR unsupported unit provided. please use M, KM, FT, MI";
    /// A radius that is not a number.
    GEO_RADIUS = "ERR need numeric radius";
    /// A negative radius.
    GEO_RADIUS_NEGATIVE = "ERR radius cannot be negative";
    /// A width that is not a number.
    GEO_WIDTH = "ERR need numeric width";
    /// A height that is not a number.
    GEO_HEIGHT = "ERR need numeric height";
    /// A negative width or height.
    GEO_BOX_NEGATIVE = "ERR height or width cannot be negative";
    /// A search around a member that does not exist.
    GEO_NO_MEMBER = "ERR could not decode requested zset member";
    /// A search for no members: a count of 0 or less.
    GEO_COUNT = "ERR COUNT must be > 0";
    /// `ANY` without `COUNT`.
    GEO_ANY_WITHOUT_COUNT = "ERR the ANY argument requires COUNT argument";
    /// `GEOSEARCHSTORE` with an option that adds to the reply.
    GEOSEARCHSTORE_WITH = "ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options";
    /// `GEORADIUS` with `STORE` and an option that adds to the reply.
    GEORADIUS_STORE_WITH = "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options";
    /// A string that is not a HyperLogLog.
    NOT_HLL = "WRONGTYPE Key is not a valid HyperLogLog string value.";
    /// A HyperLogLog with invalid registers.
    CORRUPT_HLL = "INVALIDOBJ Corrupted HLL object detected";
    /// `PFDEBUG` of a key that does not exist.
    NO_SUCH_HLL = "ERR The specified key does not exist";
    /// `PFDEBUG DECODE` of a dense HyperLogLog.
    HLL_NOT_SPARSE = "ERR HLL encoding is not sparse";
    /// More keys of a script or function than there are arguments.
    MORE_KEYS_THAN_ARGUMENTS = "ERR Number of keys can't be greater than number of args";
    /// `SCRIPT KILL` or `FUNCTION KILL` while nothing runs.
    NO_SCRIPT_RUNS = "NOTBUSY No scripts in execution right now.";
    /// `FCALL` of an unknown function.
    FUNCTION_NOT_FOUND = "ERR Function not found";
    /// A script's result with more elements or bytes than a reply may have.
    SCRIPT_RESULT_TOO_LARGE = "ERR script result is too large";
    /// Any command that is not allowed while a script runs for long.
    BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    /// As [`Error::BUSY`], while a function runs.
    BUSY_FUNCTION = "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
    /// The time-out of a blocking command is not a number.
    TIMEOUT_NOT_FLOAT = "ERR timeout is not a float or out of range";
    /// The time-out of a blocking command is too large.
    TIMEOUT_RANGE = "ERR timeout is out of range";
    /// `CLIENT UNBLOCK … ERROR`.
    UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
    /// `CLIENT UNBLOCK` with an unknown reason.
    UNBLOCK_REASON = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
    /// A command with keys in a session that monitors.
    REPLICA_AND_KEYSPACE = "ERR Replica can't interact with the keyspace";
    /// `MONITOR` in a transaction.
    MONITOR_IN_TRANSACTION = "ERR MONITOR isn't allowed for DENY BLOCKING client";
    /// `CLIENT TRACKING` with `REDIRECT` twice.
    REDIRECT_TWICE = "ERR A client can only redirect to a single other client";
    /// `CLIENT TRACKING REDIRECT` to a client that does not exist.
    REDIRECT_TO_NOBODY = "ERR The client ID you want redirect to does not exist";
    /// `CLIENT TRACKING PREFIX` without `BCAST`.
    PREFIX_WITHOUT_BCAST = "ERR PREFIX option requires BCAST mode to be enabled";
    /// `CLIENT TRACKING` with or without `BCAST`, unlike before.
    BCAST_SWITCH =
        "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.";
    /// `CLIENT TRACKING` with `BCAST` and `OPTIN` or `OPTOUT`.
    OPT_WITH_BCAST = "ERR OPTIN and OPTOUT are not compatible with BCAST";
    /// `CLIENT TRACKING` with both `OPTIN` and `OPTOUT`.
    OPTIN_AND_OPTOUT = "ERR You can't specify both OPTIN mode and OPTOUT mode";
    /// `CLIENT TRACKING` with `OPTIN` after `OPTOUT`, or the reverse.
    OPT_SWITCH = "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
                  different mode.";
    /// `CLIENT CACHING` without tracking.
    CACHING_WITHOUT_TRACKING = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
    /// `CLIENT CACHING yes` without `OPTIN`.
    CACHING_YES = "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
    /// `CLIENT CACHING no` without `OPTOUT`.
    CACHING_NO = "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";
    /// An unknown mode of `CLIENT PAUSE`.
    PAUSE_MODE = "ERR CLIENT PAUSE mode must be WRITE or ALL";
    /// `MULTI` after `MULTI`.
    MULTI_NESTED = "ERR MULTI calls can not be nested";
    /// `WATCH` after `MULTI`.
    WATCH_IN_MULTI = "ERR WATCH inside MULTI is not allowed";
    /// `EXEC` without `MULTI`.
    EXEC_WITHOUT_MULTI = "ERR EXEC without MULTI";
    /// `DISCARD` without `MULTI`.
    DISCARD_WITHOUT_MULTI = "ERR DISCARD without MULTI";
    /// `EXEC` after a request that was refused.
    EXEC_ABORT = "EXECABORT Transaction discarded because of previous errors.";
    /// A request that cannot be queued.
    NOT_IN_MULTI = "ERR Command not allowed inside a transaction";
    /// A kill of a script that has already written.
    UNKILLABLE = "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.";
}

impl Error {
    /// An error with its own text, including the code.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        match text.into() {
            Cow::Borrowed(text) => Error(Cow::Borrowed(text.as_bytes())),
            Cow::Owned(text) => Error::clean(text.into_bytes()),
        }
    }

    /// As [`Error::new`] for bytes that need not be UTF-8, because they quote a client's input.
    pub(crate) fn of_bytes(text: Vec<u8>) -> Self {
        Error::clean(text)
    }

    /// An error from a text that may quote a client's input. Line ends are removed at its end and replaced by blanks inside, so
    /// that it is a single line for clients and scripts alike.
    fn clean(mut text: Vec<u8>) -> Self {
        let line_end = |b: &u8| *b == b'\r' || *b == b'\n';
        text.truncate(text.iter().rposition(|b| !line_end(b)).map_or(0, |last| last + 1));
        text.iter_mut().filter(|b| line_end(b)).for_each(|b| *b = b' ');
        Error(Cow::Owned(text))
    }

    /// Whether it sends a client of a cluster elsewhere. Such an error also ends a transaction as it is.
    pub(crate) fn redirects(&self) -> bool {
        self.0.starts_with(b"MOVED ") || self.0.starts_with(b"CLUSTERDOWN ")
    }

    /// `ERR wrong number of arguments for '<name>' command`; a subcommand is named `container|sub`.
    pub fn arity(name: &str) -> Self {
        Error::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// As [`Error::arity`], followed by `, usage: ` and the command with its arguments.
    pub fn arity_with_usage(name: &str, usage: &str) -> Self {
        Error::new(format!("ERR wrong number of arguments for '{name}' command, usage: {usage}"))
    }

    /// `ERR invalid expire time in '<name>' command`.
    #[cold]
    pub fn invalid_expire(name: &str) -> Self {
        Error::new(format!("ERR invalid expire time in '{name}' command"))
    }

    /// `NOGROUP No such key 'k' or consumer group 'g'`, followed by the context of the request.
    pub fn no_group(key: &[u8], group: &[u8], context: &str) -> Self {
        let text: [&[u8]; 6] = [
            b"NOGROUP No such key '",
            shown(key, usize::MAX),
            b"' or consumer group '",
            shown(group, usize::MAX),
            b"'",
            context.as_bytes(),
        ];
        Error::clean(text.concat())
    }

    /// `NOGROUP No such consumer group 'g' for key name 'k'`.
    pub fn no_group_of_key(key: &[u8], group: &[u8]) -> Self {
        let text: [&[u8]; 5] =
            [b"NOGROUP No such consumer group '", shown(group, usize::MAX), b"' for key name '", shown(key, usize::MAX), b"'"];
        Error::clean(text.concat())
    }

    /// `ERR at least 1 input key is needed for '<name>' command`.
    pub fn no_input_keys(name: &str) -> Self {
        Error::new(format!("ERR at least 1 input key is needed for '{name}' command"))
    }

    /// `ERR Unsupported option x`, of the `EXPIRE` family.
    pub fn unsupported_option(option: &[u8]) -> Self {
        Error::quoting("ERR Unsupported option ", option, "")
    }

    /// `ERR unknown command 'x', with args beginning with: 'a' 'b' `. The arguments are shown up to 128 bytes in all, as in
    /// Redis.
    pub fn unknown_command(args: &[&[u8]]) -> Self {
        let mut text = [&b"ERR unknown command '"[..], shown(args[0], 128), b"', with args beginning with: "].concat();
        let start = text.len();
        for arg in &args[1..] {
            let left = 128usize.saturating_sub(text.len() - start);
            if left == 0 {
                break;
            }
            text.push(b'\'');
            text.extend_from_slice(shown(arg, left));
            text.extend_from_slice(b"' ");
        }
        Error::clean(text)
    }

    /// `ERR unknown subcommand 'x'. Try CONTAINER HELP.`
    pub fn unknown_subcommand(container: &str, sub: &[u8]) -> Self {
        Error::quoting(
            "ERR unknown subcommand '",
            &sub[..sub.len().min(128)],
            &format!("'. Try {} HELP.", container.to_uppercase()),
        )
    }

    /// A known subcommand with a wrong number of arguments:
    /// `ERR unknown subcommand or wrong number of arguments for 'x'. Try CONTAINER HELP.`
    pub fn subcommand_syntax(args: &[&[u8]]) -> Self {
        let container = args[0].to_ascii_uppercase();
        let sub = args.get(1).copied().unwrap_or_default();
        let before = "ERR unknown subcommand or wrong number of arguments for '";
        let text: [&[u8]; 5] = [before.as_bytes(), shown(sub, 128), b"'. Try ", shown(&container, 128), b" HELP."];
        Error::clean(text.concat())
    }

    /// An error that quotes an argument.
    pub fn quoting(before: &str, argument: &[u8], after: &str) -> Self {
        Error::clean([before.as_bytes(), shown(argument, usize::MAX), after.as_bytes()].concat())
    }

    /// Another error with this one as its reason; the code of the reason is shown unless it is `ERR`.
    pub fn as_reason(&self, of: &str) -> Self {
        Error::quoting(of, self.0.strip_prefix(b"ERR ").unwrap_or(&self.0), "")
    }

    /// The text that goes on the wire, without the leading `-`.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// The first word of the text, as `INFO errorstats` counts it: `ERR` if there is only one word, or a very long one.
    pub fn code(&self) -> &str {
        const CODE_MAX: usize = 30;
        let blank = memchr::memchr(b' ', &self.0[..self.0.len().min(CODE_MAX + 1)]);
        blank.and_then(|blank| std::str::from_utf8(&self.0[..blank]).ok()).unwrap_or("ERR")
    }
}

/// At most `max` bytes of a client's input, up to the first NUL, because Redis prints it with `%s`.
fn shown(bytes: &[u8], max: usize) -> &[u8] {
    let cut = &bytes[..bytes.len().min(max)];
    cut.split(|&b| b == 0).next().unwrap_or(cut)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl std::error::Error for Error {}

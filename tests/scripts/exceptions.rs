//! The cases in which our replies differ from those of redis-server 7.0, with the reason of each.

/// The kind of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Redis 7.4, whose version we report, replies like us.
    Newer,
    /// The difference is intended.
    Meant,
}

/// A case that is excused.
pub struct Exception {
    /// The case as in the recording.
    pub case: &'static str,
    /// The kind of reason.
    pub why: Why,
    /// The reason.
    pub reason: &'static str,
}

const OS: &str = "the table `os`, with `clock` in it, came after 7.0";
const NUMBERS: &str = "7.0 gives numbers to commands by %.17g, later versions in their shortest form, and -0 as 0";
const DOUBLES: &str = "7.0 writes doubles by %.17g, and NaN with its sign; later versions in their shortest form";
const WORDING: &str = "the error has been worded anew since 7.0";

const fn newer(case: &'static str, reason: &'static str) -> Exception {
    Exception { case, why: Why::Newer, reason }
}

const fn meant(case: &'static str, reason: &'static str) -> Exception {
    Exception { case, why: Why::Meant, reason }
}

/// All exceptions.
pub const EXCEPTIONS: &[Exception] = &[
    newer("return os.time()", OS),
    newer("local r={} for k in pairs(os) do r[#r+1]=k end table.sort(r) return r", OS),
    newer("return type(os.clock())", OS),
    newer("return os.exit(1)", OS),
    newer("return os", OS),
    newer("return os.execute('true')", OS),
    newer("return os.getenv('HOME')", OS),
    newer("return os.remove('x')", OS),
    newer("return os.clock() >= 0", OS),
    newer("return type(os.clock)", OS),
    newer("return redis.log(10,'b')", WORDING),
    newer("return redis.log(-1, 'x')", WORDING),
    newer("return redis.set_repl(1, 2)", WORDING),
    newer("return redis.set_repl()", WORDING),
    newer("return redis.call('echo',-0.0)", NUMBERS),
    newer("return redis.call('echo',123456789012345680000)", NUMBERS),
    newer("return redis.call('echo',1e-7)", NUMBERS),
    newer("return redis.call('echo',4611686018427387904)", NUMBERS),
    newer("return redis.call('echo',9223372036854775808)", NUMBERS),
    newer("return {double=1e300}", DOUBLES),
    newer("return {double=0/0}", DOUBLES),
    newer("return {double=0.1}", DOUBLES),
    newer("return {double=1/3}", DOUBLES),
    newer("return {double=1e17}", DOUBLES),
    newer("return {double=5e-324}", DOUBLES),
    newer("return redis.call('wait', 0, 0)", "scripts may call WAIT since 7.2, where it does not wait"),
    newer(
        "EVAL\tlocal a = redis.call('time') for i = 1, 100000 do end local b = redis.call('time') return a[1] == b[1] and a[2] == b[2]\t0",
        "on 7.0 TIME alone does not stand still in a script",
    ),
    meant("return server == nil", "there is no `server` in Redis: it is the name that newer scripts have for the table `redis`"),
    meant(
        "local r = {} for k in pairs(cmsgpack) do r[#r+1] = tostring(k) end table.sort(r) return r",
        "Redis's library names its author and its copyright in two fields; this one is not that library",
    ),
];

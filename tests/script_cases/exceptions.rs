//! Where our replies are not those of redis-server 7.0: every case, with its reason.

/// Why a case is excused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Redis 7.4, which we report to be, replies as we do.
    Newer,
}

/// A case that is excused.
pub struct Exception {
    /// The case as the recording has it.
    pub case: &'static str,
    /// The kind of reason.
    pub why: Why,
    /// The reason.
    pub reason: &'static str,
}

const OS: &str = "the table `os`, with `clock` in it, came after 7.0";
const NUMBERS: &str = "7.0 gives numbers to commands by %.17g, later versions in their shortest form, and -0 as 0";
const WORDING: &str = "the error has been worded anew since 7.0";

const fn newer(case: &'static str, reason: &'static str) -> Exception {
    Exception { case, why: Why::Newer, reason }
}

/// All exceptions.
pub const EXCEPTIONS: &[Exception] = &[
    newer("return os.time()", OS),
    newer("local r={} for k in pairs(os) do r[#r+1]=k end table.sort(r) return r", OS),
    newer("return type(os.clock())", OS),
    newer("return os.exit(1)", OS),
    newer("return redis.log(10,'b')", WORDING),
    newer("return redis.set_repl()", WORDING),
    newer("return redis.call('echo',-0.0)", NUMBERS),
    newer("return redis.call('echo',123456789012345680000)", NUMBERS),
    newer("return redis.call('echo',1e-7)", NUMBERS),
    newer("return redis.call('echo',4611686018427387904)", NUMBERS),
    newer("return redis.call('echo',9223372036854775808)", NUMBERS),
];

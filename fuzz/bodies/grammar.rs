//! Scripts from bytes: each choice that the grammar leaves is made by the next byte. When no bytes are left, the shortest way to
//! an end is taken. Most scripts compile, and they call everything that scripts can call.

/// Maximum nesting of expressions and statements.
const DEPTH_MAX: u32 = 12;
/// Approximate maximum length of a script in bytes.
const LENGTH_MAX: usize = 16 * 1024;

const NAMES: &[&str] = &["a", "b", "c", "t", "f", "s", "n", "self"];

const NUMBERS: &[&str] = &[
    "0", "1", "2", "-1", "3.5", "-0.0", "1e15", "2^31", "2^31-1", "-2^31", "2^53", "2^63", "-2^63", "1e308", "1/0", "-1/0",
    "0/0", "255", "256", "65536", "1e6", "100", "17", "0x10", "1e-300",
];

const STRINGS: &[&str] = &[
    "''",
    "'x'",
    "'k'",
    "'a\\0b'",
    "'%d'",
    "'%s%5.2f%q'",
    "'%1'",
    "'.'",
    "'.-'",
    "'(.)%1'",
    "'[a'",
    "'%f[%w]'",
    "'^a*$'",
    "'()'",
    "'%b()'",
    "'{\"a\":[1,null]}'",
    "'[[[1]]]'",
    "'\"\\\\u00e4\"'",
    "'1e5'",
    "'\\145\\1'",
    "'\\129\\161a\\192'",
    "'\\221\\255\\255\\255\\255'",
    "'>I4c0'",
    "'!8Bi16s'",
    "'<dfh'",
    "'c0'",
    "'__index'",
    "'call'",
    "'err'",
    "'ok'",
    "'map'",
    "'set'",
    "'return 1'",
    "'x = 1'",
    "'return ...'",
    "'\\27Lua'",
    "'\\r\\n'",
    "'-ERR x'",
    "'12'",
    "('x'):rep(1000)",
    "('ab'):rep(1e5)",
    "('('):rep(300)",
    "('['):rep(2000)",
    "'collect'",
    "'count'",
    "'step'",
    "'get'",
    "'set'",
    "'hset'",
    "'ping'",
    "'nosuch'",
    "'s'",
    "'h'",
];

/// All functions that a script can call.
const FUNCTIONS: &[&str] = &[
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "load",
    "loadstring",
    "next",
    "pairs",
    "pcall",
    "rawequal",
    "rawget",
    "rawset",
    "select",
    "setmetatable",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
    "collectgarbage",
    "gcinfo",
    "string.byte",
    "string.char",
    "string.dump",
    "string.find",
    "string.format",
    "string.gmatch",
    "string.gsub",
    "string.len",
    "string.lower",
    "string.match",
    "string.rep",
    "string.reverse",
    "string.sub",
    "string.upper",
    "table.concat",
    "table.foreach",
    "table.foreachi",
    "table.getn",
    "table.insert",
    "table.maxn",
    "table.remove",
    "table.sort",
    "coroutine.create",
    "coroutine.resume",
    "coroutine.running",
    "coroutine.status",
    "coroutine.wrap",
    "coroutine.yield",
    "math.random",
    "math.randomseed",
    "math.floor",
    "math.fmod",
    "math.ldexp",
    "math.frexp",
    "math.modf",
    "math.max",
    "cjson.encode",
    "cjson.decode",
    "cjson.encode_max_depth",
    "cjson.decode_max_depth",
    "cjson.encode_sparse_array",
    "cjson.encode_number_precision",
    "cjson.encode_invalid_numbers",
    "cjson.encode_keep_buffer",
    "cmsgpack.pack",
    "cmsgpack.unpack",
    "cmsgpack.unpack_one",
    "cmsgpack.unpack_limit",
    "struct.pack",
    "struct.unpack",
    "struct.size",
    "bit.tobit",
    "bit.tohex",
    "bit.band",
    "bit.bxor",
    "bit.lshift",
    "bit.arshift",
    "bit.rol",
    "bit.bswap",
    "redis.call",
    "redis.pcall",
    "redis.error_reply",
    "redis.status_reply",
    "redis.sha1hex",
    "redis.log",
    "redis.setresp",
    "redis.set_repl",
    "redis.acl_check_cmd",
    "redis.breakpoint",
    "redis.debug",
    "__redis__err__handler",
    "os.clock",
    "getmetatable(_G).__index",
    "getmetatable('').__index.rep",
];

const COMMANDS: &[&str] = &[
    "'get', 's'",
    "'set', 's', A",
    "'incr', 's'",
    "'incrby', 's', A",
    "'hset', 'h', A, A",
    "'hgetall', 'h'",
    "'hget', 'h', 'f'",
    "'del', 's', 'h'",
    "'mget', 's', 'nothing'",
    "'ping'",
    "'nosuch'",
    "'eval', 'return 1', 0",
    "'select', A",
    "'time'",
    "'type', 'h'",
    "'expire', 's', A",
    "'publish', 'c', A",
    "'multi'",
    "'script', 'flush'",
    "'config', 'get', '*'",
    "'object', 'encoding', 's'",
    "'keys', '*'",
    "'scan', 0",
    "'append', 's', A",
    "'setrange', 's', A, A",
    "'hello', 3",
    "'info'",
    "'client', 'list'",
    "'function', 'flush'",
    "'flushall'",
    "unpack(KEYS)",
    "unpack({A, A, A})",
    "A",
    "A, A, A",
];

const VALUES: &[&str] = &[
    "nil",
    "true",
    "false",
    "_G",
    "redis",
    "string",
    "cjson",
    "cjson.null",
    "KEYS",
    "ARGV",
    "KEYS[1]",
    "ARGV[1]",
    "{}",
    "...",
    "getmetatable('')",
    "getmetatable(_G)",
    "coroutine.running()",
];

const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", "and", "or"];

const METHODS: &[&str] = &[
    "__index",
    "__newindex",
    "__call",
    "__concat",
    "__eq",
    "__lt",
    "__le",
    "__unm",
    "__len",
    "__tostring",
    "__gc",
    "__mode",
    "__metatable",
    "__add",
];

/// Statements by their shape: `E` an expression, `A` a short one, `N` a name, `M` the name of a metamethod, `B` statements, `F` a
/// function that can be called, `C` a command with its arguments.
const STATEMENTS: &[&str] = &[
    "N = E",
    "local N = E",
    "local N, N = E, E",
    "N[E] = E",
    "N.x, N = E, E",
    "F(E)",
    "F(E, E)",
    "F(A, A, E)",
    "redis.call(C)",
    "N = redis.pcall(C)",
    "N = F(E, E)",
    "N, N = pcall(F, E, E)",
    "N = {xpcall(function(...) B end, function(e, ...) B return E end)}",
    "pcall(function(...) B end)",
    "if E then B else B end",
    "for i = 1, 3 do B end",
    "for i = A, A, A do B break end",
    "for k, v in pairs(E) do B end",
    "for _, v in ipairs(E) do B end",
    "for w in string.gmatch(A, A) do B end",
    "while E do B break end",
    "repeat B until true",
    "do B end",
    "local function N(N, ...) B return E end",
    "function N(...) B return E end",
    "N = function(N, ...) B return E end",
    "N(E)",
    "N = N(E, E)",
    "N = setmetatable({}, {M = E, M = E})",
    "N = setmetatable({E}, {M = function(a, b, ...) B return E end})",
    "N = coroutine.wrap(function(...) B coroutine.yield(E) B end)",
    "N = coroutine.create(function(...) B return coroutine.yield(E) end)",
    "N = coroutine.resume(N, E)",
    "N = {E, E, x = E, [A] = E}",
    "N = N .. A",
    "for i = 1, 20 do N = {N, N} end",
    "for i = 1, 500 do N = {N} end",
    "for i = 1, 100 do N[i] = E end",
    "table.sort(E, function(a, b, ...) B return E end)",
    "N = string.gsub(A, A, function(c, ...) B return E end)",
    "N = string.gsub(A, A, E)",
    "N = load(function(...) B return E end)",
    "N = loadstring(E)",
    "while true do B end",
    "local function r(...) B return r() end r()",
    "local function r(...) B return 1 + r() end r()",
    "error(E)",
    "redis.setresp(3)",
    "_G.N = E",
    "string.N = E",
    "for N in pairs(_G) do B end",
    "return E",
    "return E, E",
];

/// Expressions by their shape.
const EXPRESSIONS: &[&str] = &[
    "F(E)",
    "F(E, E)",
    "F(A, A, A)",
    "redis.call(C)",
    "redis.pcall(C)",
    "{E, E}",
    "{E, x = E}",
    "{err = E}",
    "{ok = E}",
    "{double = E}",
    "{map = {[A] = E}}",
    "{set = {[A] = true}}",
    "{big_number = E}",
    "{verbatim_string = {format = E, string = E}}",
    "(E O E)",
    "- E",
    "#E",
    "not E",
    "N[E]",
    "N.x",
    "N(E)",
    "N:rep(A)",
    "function(...) B return E end",
    "{pcall(F, E)}",
    "select(A, E, E)",
    "cjson.decode(cjson.encode(E))",
    "cmsgpack.unpack(cmsgpack.pack(E, E))",
    "struct.unpack(A, struct.pack(A, E))",
    "coroutine.wrap(function(...) B return E end)()",
];

struct Maker<'a> {
    choices: std::slice::Iter<'a, u8>,
    out: String,
}

/// The script that the choices make.
pub fn script(choices: &[u8]) -> Vec<u8> {
    let mut maker = Maker {
        choices: choices.iter(),
        out: "local a, b, c, t, f, s, n, self = 1, 'b', {}, {1, 2, 3}, tostring, 'x', 0 ".into(),
    };
    while !maker.choices.as_slice().is_empty() && maker.out.len() < LENGTH_MAX {
        maker.statement(0);
        maker.out.push('\n');
    }
    maker.out.into_bytes()
}

impl Maker<'_> {
    /// The next choice; the first alternative if no bytes are left.
    fn choose(&mut self) -> usize {
        self.choices.next().map_or(0, |&byte| byte.into())
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.choose() % from.len()]
    }

    fn statement(&mut self, depth: u32) {
        let shape = self.pick(STATEMENTS);
        // In Lua `return` must be the last statement of a block.
        let block = shape.starts_with("return") || shape.starts_with("for i = A");
        if block {
            self.out.push_str("do ");
        }
        self.fill(shape, depth);
        self.out.push_str(if block { " end " } else { " " });
    }

    fn expression(&mut self, depth: u32) {
        if depth >= DEPTH_MAX || self.out.len() > LENGTH_MAX || self.choices.as_slice().is_empty() {
            return self.short();
        }
        match self.choose() {
            choice if choice < 96 => self.short(),
            choice => self.fill(EXPRESSIONS[choice % EXPRESSIONS.len()], depth),
        }
    }

    /// A name, a number, a text or an existing value.
    fn short(&mut self) {
        let from = match self.choose() % 8 {
            0..3 => NAMES,
            3 => NUMBERS,
            4 | 5 => STRINGS,
            _ => VALUES,
        };
        let text = self.pick(from);
        self.out.push_str(text);
    }

    /// Writes a shape and replaces its capital letters.
    fn fill(&mut self, shape: &'static str, depth: u32) {
        let letters = shape.as_bytes();
        for (at, letter) in shape.char_indices() {
            let alone =
                |index: Option<&u8>| index.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_' && *byte != b'\'');
            let stands_for = alone(letters.get(at + 1)) && (at == 0 || alone(letters.get(at - 1)));
            match letter {
                'E' if stands_for => self.expression(depth + 1),
                'A' if stands_for => self.short(),
                'N' if stands_for => {
                    let name = self.pick(NAMES);
                    self.out.push_str(name);
                }
                'M' if stands_for => {
                    let name = self.pick(METHODS);
                    self.out.push_str(name);
                }
                'O' if stands_for => {
                    let operator = self.pick(OPERATORS);
                    self.out.push_str(operator);
                }
                'F' if stands_for => {
                    let name = self.pick(FUNCTIONS);
                    self.out.push_str(name);
                }
                'C' if stands_for => {
                    let command = self.pick(COMMANDS);
                    self.fill(command, depth);
                }
                'B' if stands_for => {
                    if depth < DEPTH_MAX && self.out.len() < LENGTH_MAX {
                        for _ in 0..self.choose() % 4 {
                            self.statement(depth + 1);
                        }
                    }
                }
                other => self.out.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::script;

    #[test]
    fn choices_make_scripts() {
        let text = |choices: &[u8]| String::from_utf8(script(choices)).unwrap();
        assert!(text(&[]).starts_with("local a, b, c"));
        assert!(text(&[0, 1, 0]).contains("\n") && text(&[51]).contains("do return "));
        // Every script comes to an end.
        for first in 0..=255 {
            assert!(text(&[first; 400]).len() < 100_000);
        }
    }
}

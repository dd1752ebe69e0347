//! The configuration file: reads and rewrites `redis.conf`'s format.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::engine::config::{Config, Directive, did_you_mean, nearest};
use crate::files::replace_durably;
use crate::resp::request::{Limits, RequestParser};

/// Maximum depth of nested `include` directives.
const INCLUDE_DEPTH: u32 = 16;

/// An error in a configuration file.
#[derive(Debug)]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the file could not be read.
    pub line: usize,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.reason),
            line => write!(f, "{}, line {line}: {}", self.path.display(), self.reason),
        }
    }
}

impl std::error::Error for FileError {}

/// All errors in a configuration file and its includes; at least one.
#[derive(Debug)]
pub struct FileErrors(pub Vec<FileError>);

impl fmt::Display for FileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.0[..] {
            return only.fmt(f);
        }
        write!(f, "{} lines cannot be honoured:", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for FileErrors {}

/// Contents of a configuration file besides the values of directives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// The words of each `user` line after the first: a name and rules.
    pub users: Vec<UserLine>,
}

/// The name of a user and its rules.
pub type UserLine = Vec<Vec<u8>>;

/// Sets the directives of the file. Returns its other contents.
///
/// # Errors
/// All lines that cannot be honoured.
pub fn load(path: &Path, config: &mut Config) -> Result<Extra, FileErrors> {
    load_with(path, config, &mut |path| std::fs::read(path))
}

/// Reads a file.
pub type ReadFile<'a> = &'a mut dyn FnMut(&Path) -> io::Result<Vec<u8>>;

/// As [`load`], but reads this file and its includes with `read`.
///
/// # Errors
/// Those of [`load`].
pub fn load_with(path: &Path, config: &mut Config, read: ReadFile<'_>) -> Result<Extra, FileErrors> {
    let (mut extra, mut errors) = (Extra::default(), Vec::new());
    load_nested(path, config, &mut extra, &mut errors, read, INCLUDE_DEPTH);
    if errors.is_empty() { Ok(extra) } else { Err(FileErrors(errors)) }
}

fn load_nested(path: &Path, config: &mut Config, extra: &mut Extra, errors: &mut Vec<FileError>, read: ReadFile<'_>, depth: u32) {
    let fail = |line, reason: String| FileError { path: path.to_owned(), line, reason };
    if depth == 0 {
        return errors.push(fail(0, "files include files too deeply".to_owned()));
    }
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => return errors.push(fail(0, error.to_string())),
    };
    for (index, line) in text.split(|&b| b == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let Some(words) = split(line) else {
            errors.push(fail(index + 1, "unbalanced quotes".to_owned()));
            continue;
        };
        let Some((name, values)) = words.split_first() else { continue };
        let shown = String::from_utf8_lossy(name).into_owned();
        if name.eq_ignore_ascii_case(b"include") {
            match values {
                [value] => load_nested(Path::new(&*String::from_utf8_lossy(value)), config, extra, errors, read, depth - 1),
                _ => errors.push(fail(index + 1, "include: one file name is wanted".to_owned())),
            }
            continue;
        }
        if name.eq_ignore_ascii_case(b"user") && !values.is_empty() {
            extra.users.push(values.to_vec());
            continue;
        }
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        match Directive::find(name) {
            Some((directive, _)) => {
                if let Err(reason) = directive.set(config, &values) {
                    errors.push(fail(index + 1, format!("{shown}: {reason}")));
                }
            }
            None => errors.push(fail(index + 1, format!("{shown}: no such directive{}", did_you_mean(nearest(name))))),
        }
    }
}

/// Splits a line into words, with the quotes and escapes of an inline request; `None` if quotes do not match.
fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let line = [line, b"\n"].concat();
    let limits = Limits { max_inline: usize::MAX, ..Limits::default() };
    let mut parser = RequestParser::new();
    parser.parse(&line, &limits).ok()?;
    Some(parser.arguments(&line).map(<[u8]>::to_vec).collect())
}

/// Writes the present values into the file. Existing lines, comments included, keep their places, and those of directives
/// get the new values. Directives that are missing and not at their default are added at the end. `users` are whole lines, which
/// replace the old `user` lines. The file is replaced as a whole or not at all.
pub fn rewrite(path: &Path, config: &Config, users: &[Vec<u8>]) -> io::Result<()> {
    let old = std::fs::read(path)?;
    let text = rewritten(&old, config, users);
    replace_durably(path, &text)
}

/// Returns the text of a file after [`rewrite`]; `old` is its text before.
pub fn rewritten(old: &[u8], config: &Config, users: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::with_capacity(old.len() + 256);
    let mut written = HashSet::new();
    let mut users = users.iter();
    let lines = old.strip_suffix(b"\n").unwrap_or(old).split(|&b| b == b'\n');
    for line in lines.take(if old.is_empty() { 0 } else { usize::MAX }) {
        // Parsed as it was loaded: the name may be quoted, and the words have their own rules for blanks.
        let words = split(line.trim_ascii()).unwrap_or_default();
        let name = words.first().map(|name| &name[..]).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"user") {
            if let Some(user) = users.next() {
                text.extend_from_slice(user);
                text.push(b'\n');
            }
            continue;
        }
        match Directive::find(name) {
            // A directive that occurs several times has one value now.
            Some((directive, _)) if !written.insert(directive.name) => continue,
            Some((directive, shown)) => write_lines(&mut text, shown, directive, config),
            None => {
                text.extend_from_slice(line);
                text.push(b'\n');
            }
        }
    }
    let defaults = Config::default();
    let mut missing = Directive::all()
        .iter()
        .filter(|directive| !written.contains(directive.name) && directive.get(config) != directive.get(&defaults))
        .peekable();
    if missing.peek().is_some() || users.len() > 0 {
        text.extend_from_slice(b"\n# Written by CONFIG REWRITE\n");
    }
    for directive in missing {
        write_lines(&mut text, directive.name, directive, config);
    }
    for user in users {
        text.extend_from_slice(user);
        text.push(b'\n');
    }
    text
}

fn write_lines(text: &mut Vec<u8>, name: &str, directive: &Directive, config: &Config) {
    for value in directive.lines(config) {
        text.extend_from_slice(name.as_bytes());
        text.push(b' ');
        write_value(text, directive, &value);
        text.push(b'\n');
    }
}

fn write_value(text: &mut Vec<u8>, directive: &Directive, value: &[u8]) {
    let plain = !value.is_empty() && value.iter().all(|&b| b.is_ascii_graphic() && b != b'"' && b != b'\'' && b != b'\\');
    if plain || (directive.kind.takes_words() && !value.is_empty()) {
        text.extend_from_slice(value);
        return;
    }
    text.push(b'"');
    for &b in value {
        match b {
            b'"' | b'\\' => text.extend([b'\\', b]),
            b' '..=b'~' => text.push(b),
            _ => text.extend_from_slice(format!("\\x{b:02x}").as_bytes()),
        }
    }
    text.push(b'"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("portcullis-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn comments_quotes_includes_and_foreign_directives_are_understood() {
        let dir = directory("load");
        let other = write(&dir, "other.conf", "timeout 9\nmaxclients 50");
        let path = write(
            &dir,
            "main.conf",
            &format!(
                "# a comment\n\n  PORT 7000  \r\nrequirepass \"a b\\x21\"\nbind 127.0.0.1 ::1\nrdbcompression yes\ntls-dh-params-file x\n\
                 save \"\"\ninclude {}\ntimeout 10\nclient-output-buffer-limit pubsub 1mb 0 0\n",
                other.display()
            ),
        );
        let mut config = Config::default();
        load(&path, &mut config).unwrap();
        assert_eq!(config.foreign, [("tls-dh-params-file", b"x".to_vec())].into(), "rdbcompression has its default");
        assert_eq!((config.port, config.timeout, config.maxclients), (7000, 10, 50));
        assert_eq!(config.requirepass, b"a b!");
        assert_eq!(config.bind, ["127.0.0.1", "::1"]);
        assert_eq!(config.client_output_buffer_limit[2].hard, 1 << 20);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_mistake_is_told_with_its_file_and_line() {
        let dir = directory("mistakes");
        for (text, told) in [
            ("port 1\nnosuch 2\n", "line 2: nosuch: no such directive"),
            ("cluster-secrets x\n", "line 1: cluster-secrets: no such directive; did you mean 'cluster-secret'?"),
            (
                "min-replicas-to-writ 0\n",
                "line 1: min-replicas-to-writ: no such directive; did you mean 'min-replicas-to-write'?",
            ),
            ("min-slaves-to-write 1\n", "line 1: min-slaves-to-write: A server alone has no replicas to wait for"),
            ("repl-nonsense 1\n", "line 1: repl-nonsense: no such directive"),
            ("replica-announced-ip x\n", "did you mean 'replica-announce-ip'?"),
            ("replicaof 10.0.0.1 6379\n", "line 1: replicaof: Replication is not supported in this form"),
            ("rename-command CONFIG \"\"\n", "line 1: rename-command: Commands keep their names"),
            ("loadmodule /a.so x y\n", "line 1: loadmodule: There are no modules"),
            ("log-format logfmt\n", "line 1: log-format: The flag --log-format chooses the format of the log"),
            ("hz x\n", "line 1: hz: argument couldn't be parsed into an integer"),
            ("port x\n", "line 1: port: argument couldn't be parsed into an integer"),
            ("port\n", "line 1: port: wrong number of arguments"),
            ("requirepass \"a\n", "line 1: unbalanced quotes"),
            ("bind \"a b\"\n", "line 1: bind: argument(s) must be plain words"),
            ("bind \"'\"\n", "line 1: bind: argument(s) must be plain words"),
            ("daemonize yes\n", "line 1: daemonize: Portcullis stays in the foreground"),
        ] {
            let path = write(&dir, "bad.conf", text);
            let error = load(&path, &mut Config::default()).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let path = write(&dir, "several.conf", "port x\ntimeout 3\nnosuch 2\n\ndaemonize yes\n");
        let told = load(&path, &mut Config::default()).unwrap_err().to_string();
        assert!(told.starts_with("3 lines cannot be honoured:\n  ") && told.lines().count() == 4, "{told}");
        assert!(["line 1: port", "line 3: nosuch", "line 5: daemonize"].iter().all(|line| told.contains(line)), "{told}");
        let path = dir.join("self.conf");
        std::fs::write(&path, format!("include {}\n", path.display())).unwrap();
        assert!(load(&path, &mut Config::default()).unwrap_err().to_string().contains("too deeply"));
        assert!(load(&dir.join("missing.conf"), &mut Config::default()).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn directives_of_redis_that_have_no_effect_are_kept() {
        let dir = directory("foreign");
        let text = "# mine\nhz 10\nslave-priority 5\nrdbcompression no\nmin-replicas-to-write 0\noom-score-adj-values 0 1 2\n";
        let path = write(&dir, "a.conf", text);
        let mut config = Config::default();
        load(&path, &mut config).unwrap();
        assert_eq!(String::from_utf8(rewritten(text.as_bytes(), &config, &[])).unwrap(), text);
        config.set("hz", b"20").unwrap();
        config.set("repl-timeout", b"7").unwrap();
        config.set("pidfile", b"/a b").unwrap();
        let text = rewritten(text.as_bytes(), &config, &[]);
        let path = write(&dir, "b.conf", std::str::from_utf8(&text).unwrap());
        let mut again = Config::default();
        load(&path, &mut again).unwrap();
        assert_eq!((again.get("hz").unwrap(), again.foreign), (b"20".to_vec(), config.foreign));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn rules_of_several_lines_add_up_and_each_has_a_line_again() {
        let dir = directory("rules");
        let text = "lock-expiry-publish a* ch:{name} \"x y\"\n# others\nLOCK-EXPIRY-PUBLISH redisson b c d\ntimeout 1\n";
        let path = write(&dir, "rules.conf", text);
        let mut config = Config::default();
        load(&path, &mut config).unwrap();
        assert_eq!(config.get("lock-expiry-publish").unwrap(), b"a* ch:{name} \"x y\" redisson b c d");
        let expected = "lock-expiry-publish a* ch:{name} \"x y\"\nlock-expiry-publish redisson\nlock-expiry-publish b c d\n# others\ntimeout 1\n";
        assert_eq!(String::from_utf8(rewritten(text.as_bytes(), &config, &[])).unwrap(), expected);
        let path = write(&dir, "again.conf", expected);
        let mut again = Config::default();
        load(&path, &mut again).unwrap();
        assert_eq!(again.lock_expiry_publish, config.lock_expiry_publish);
        config.set("lock-expiry-publish", b"").unwrap();
        assert_eq!(rewritten(text.as_bytes(), &config, &[]), b"lock-expiry-publish \"\"\n# others\ntimeout 1\n");
        let path = write(
            &dir,
            "clear.conf",
            "lock-expiry-publish redisson\nlock-expiry-publish \"\"\nlock-expiry-publish \"spring x y z\"\n",
        );
        load(&path, &mut again).unwrap();
        assert_eq!(again.get("lock-expiry-publish").unwrap(), b"spring x y z");
        let path = write(&dir, "wrong.conf", "timeout 1\nlock-expiry-publish a b\n");
        let told = load(&path, &mut again).unwrap_err().to_string();
        assert!(told.contains("line 2: lock-expiry-publish: 'a' is neither a rule"), "{told}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn rewriting_renews_lines_in_place_and_adds_what_differs() {
        let mut config = Config::default();
        // Blanks and quotes belong to the words.
        let old =
            b"# mine\nport 1\n\ntimeout 5\nTimeout 6\n\x0b\"timeout\" 7\n\x0buser a on\nrdbcompression yes\nrequirepass x\n";
        config.set("port", b"7000").unwrap();
        config.set("requirepass", b"a \"b\"\n").unwrap();
        config.set("maxclients", b"77").unwrap();
        let text = rewritten(old, &config, &[]);
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            "# mine\nport 7000\n\ntimeout 0\nrdbcompression yes\nrequirepass \"a \\\"b\\\"\\x0a\"\n\n# Written by CONFIG REWRITE\nmaxclients 77\n"
        );
        let dir = directory("rewrite");
        let path = dir.join("a.conf");
        std::fs::write(&path, &text).unwrap();
        let mut again = Config::default();
        load(&path, &mut again).unwrap();
        for directive in Directive::all() {
            assert_eq!(directive.get(&again), directive.get(&config), "{}", directive.name);
        }
        rewrite(&path, &again, &[]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), text);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

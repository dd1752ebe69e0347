//! Pages with one mistake each, and the error for it. A test that finds no mistakes would pass as well.

use crate::pages::Page;
use crate::play::Player;
use crate::words;

/// All errors of a page.
fn said(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let page = Page::parse("page.md", text, &mut faults);
    let mut player = Player::new(&page);
    player.play();
    faults.append(&mut player.faults);
    faults.extend(words::check(&page));
    faults
}

fn console(lines: &str) -> String {
    format!("```console\n{lines}\n```\n")
}

#[test]
fn a_page_without_mistakes_passes() {
    let page = console(
        "$ redis-cli LOCK.ACQUIRE door ann 1000\n(integer) 1234567890123456\n$ redis-cli LOCK.ACQUIRE door bob 1000 WAIT 0 &\n\
         $ redis-cli LOCK.RELEASE door ann\n(integer) 0\n(integer) 1234567890123457\n$ redis-cli LOCK.ACQUIRE a b c\n(error) ERR …\n\
         127.0.0.1:6379> MSET a 1 b 2\nOK\n127.0.0.1:6379> MGET a b\n1) \"1\"\n2) \"2\"\n$ redis-cli KEYS '[ab]' | sort\na\nb\n\
         $ portcullis nonsense\nerror: …\n…\n$ echo $?\n2",
    );
    assert_eq!(said(&page), Vec::<String>::new());
}

/// Each page, with words of its only error.
#[test]
fn each_mistake_is_found() {
    let acquire = "$ redis-cli LOCK.ACQUIRE door ann 60000\n(integer) 1234567890123456\n";
    for (page, expected) in [
        // A transcript that README.md once had: the reply is nil, because Bob holds one of the locks.
        (
            console(
                "$ redis-cli LOCK.ACQUIRE savings bob 300000\n(integer) 3676804863340549\n\
                 $ redis-cli LOCK.ACQUIREALL 2 savings checking carol 300000\n1) (integer) 3676804863340551\n2) (integer) 3676804863340552",
            ),
            "prints\n(nil)\n",
        ),
        // Another value, another type, an extra line, a missing line.
        (console("$ redis-cli SET a 1\nok"), "prints\nOK\n"),
        (console("$ redis-cli INCR a\n\"1\""), "prints\n(integer) 1\n"),
        (console("$ redis-cli PING\nPONG\nPONG"), "prints\nPONG\n"),
        (console("$ redis-cli MGET a b\n1) (nil)"), "2) (nil)"),
        // An error instead of the reply.
        (console("$ redis-cli SETT a 1\nOK"), "(error) ERR unknown command 'SETT'"),
        // A token that does not fit the grant.
        (console(&format!("{acquire}$ redis-cli LOCK.ACQUIRE gate ann 60000\n(integer) 1234567890123459")), "LOCK.ACQUIRE gate"),
        (console(&format!("{acquire}$ redis-cli LOCK.CHECK door 1")), "prints\n(integer) 0"),
        // A wait that does not end, does not begin, or whose output is not shown.
        (console(&format!("{acquire}$ redis-cli LOCK.ACQUIRE door bob 1000 WAIT 0 &")), "waits for ever"),
        (console("$ redis-cli LOCK.ACQUIRE door bob 1000 WAIT 0 &"), "does not wait"),
        (
            console(&format!(
                "{acquire}$ redis-cli LOCK.ACQUIRE door bob 1000 WAIT 0 &\n$ redis-cli LOCK.RELEASE door ann\n(integer) 0"
            )),
            "its output is not shown",
        ),
        // A shell's output and exit code.
        (console("$ echo yes\nno"), "prints\nyes\n"),
        (console("$ false\n$ echo $?\n0"), "prints\n1\n"),
        (console("$ portcullis bench --no-such-flag"), "unexpected argument '--no-such-flag'"),
        (console("$ no-such-program"), "not found"),
        // A server that the page does not start.
        (console("$ redis-cli -p 7000 PING\nPONG"), "starts no server on port 7000"),
        // Output without a command.
        (console("OK"), "a transcript begins with a command"),
        // Transcripts in blocks of another kind.
        ("```\n$ redis-cli PING\nPONG\n```\n".to_owned(), "does not know blocks of the kind ''"),
        ("```shell-session\n$ redis-cli PING\n```\n".to_owned(), "does not know blocks of the kind 'shell-session'"),
        ("<!-- not run: a drawing -->\n```text\n$ redis-cli PING\nPONG\n```\n".to_owned(), "a transcript is of the kind console"),
        ("```text\na ─▶ b\n```\n".to_owned(), "say why it is not run"),
        ("~~~console\n".to_owned(), "a fence is made of three backticks"),
        ("    $ redis-cli PING\n".to_owned(), "a transcript stands in a fenced block"),
        (" ```console\n$ redis-cli PING\nPONG\n```\n".to_owned(), "begins at the start of its line"),
        ("```console\n$ redis-cli PING\nPONG\n".to_owned(), "does not end"),
        // Comments that are not valid.
        ("<!-- not run -->\n```console\n$ redis-cli PING\nPONG\n```\n".to_owned(), "does not know the comment 'not run'"),
        ("<!-- not run: slow -->\nIt is.\n```console\n$ redis-cli PING\nPONG\n```\n".to_owned(), "on the line before its fence"),
        // Commands that are not run, and are wrong.
        ("```sh\ncargo test\n```\n".to_owned(), "say why it is not run"),
        ("<!-- not run: long -->\n```sh\ncargo bench --bench nonsense\n```\n".to_owned(), "there is no nonsense"),
        ("<!-- not run: long -->\n```sh\ncargo test --test nonsense\n```\n".to_owned(), "there is no nonsense"),
        (
            "<!-- not run: long -->\n```sh\nportcullis torture --algoritm all\n```\n".to_owned(),
            "unexpected argument '--algoritm'",
        ),
        ("<!-- not run: long -->\n```sh\nportcullis serve --prot 7000\n```\n".to_owned(), "unexpected argument '--prot'"),
        ("<!-- not run: long -->\n```sh\ncargo run --release -- serv\n```\n".to_owned(), "unrecognized subcommand 'serv'"),
        ("<!-- not run: long -->\n```sh\npython3 tests/nonsense.py\n```\n".to_owned(), "there is no tests/nonsense.py"),
        ("<!-- not run: long -->\n```sh\nnonsense --flag\n```\n".to_owned(), "does not know this program"),
        (
            "<!-- not run: long -->\n```console\n$ portcullis bench --secnds 1\n…\n```\n".to_owned(),
            "unexpected argument '--secnds'",
        ),
        ("Run `cargo bench --bench nonsense` for that.\n".to_owned(), "there is no nonsense"),
        ("Run `portcullis serve --prot 7000` for that.\n".to_owned(), "unexpected argument '--prot'"),
        ("```rust,ignore\nlet a;\n```\n".to_owned(), "a reason why it is not compiled"),
        ("```toml\n[dev-dependencies]\nportcullis = { version = \"7.3\" }\n```\n".to_owned(), "the crate has the version"),
    ] {
        let said = said(&page);
        assert!(said.len() == 1 && said[0].contains(expected), "of\n{page}\nthe test says\n{said:#?}\nrather than '{expected}'");
    }
}

/// Figures may vary, but nothing else.
#[test]
fn figures_vary_where_it_is_said() {
    let shown = "native  portcullis 0.1.0  30979  481 µs  1.30 ms/1.46 ms  –  held";
    let printed = "native  portcullis 0.1.0      7  1.2 ms      9 µs/12 s  3 ms  held".to_owned();
    let same = |shown: &str, vary: bool| {
        crate::compare::same(&[shown.to_owned()], std::slice::from_ref(&printed), vary, &mut crate::compare::Tokens::default())
    };
    assert!(same(shown, true) && !same(shown, false));
    assert!(!same(&shown.replace("held", "BROKEN"), true));
}

/// If redis-cli is installed, it shows replies as the test does.
#[test]
fn replies_look_as_redis_cli_shows_them() {
    let Some(program) = crate::common::servers::on_path("redis-cli") else {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-cli on the PATH");
        println!("SKIPPED: there is no redis-cli on the PATH");
        return;
    };
    // Before 7.0 redis-cli shows maps differently.
    let version = std::process::Command::new(&program).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let major = version.split_whitespace().nth(1).and_then(|number| number.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < 7) {
        println!("SKIPPED: {version}");
        return;
    }
    let server = portcullis::TestServer::builder().frozen(true).start();
    let mut wire = crate::common::wire::Wire::connect(server.addr()).unwrap();
    wire.call(&["HELLO", "3"]).unwrap();
    let requests = [
        "SET text 'a \"b\" \\\\'",
        "GET text",
        "GET missing",
        "INCR n",
        "RPUSH list a b c d e f g h i j k",
        "LRANGE list 0 -1",
        "LRANGE list 5 1",
        "HSET hash a 1 b 2",
        "HGETALL hash",
        "HGETALL missing",
        "SADD set 1",
        "SMEMBERS set",
        "ZADD zset 1.5 a",
        "ZRANGE zset 0 -1 WITHSCORES",
        "LOCK.ACQUIRE door ann 1000",
        "LOCK.INFO door",
        "LOCK.WHY door",
        "LOCK.LIST",
        "LOCK.STATS",
        "DEBUG PROTOCOL map",
        "DEBUG PROTOCOL true",
        "DEBUG PROTOCOL double",
        "NONSENSE",
        "EVAL 'return {1,{2,{3}},{}}' 0",
    ];
    for request in requests {
        let args = crate::cli::words(request).unwrap();
        // The request must give the same reply on two connections.
        let ours = match wire.call(&args) {
            Ok(reply) => crate::cli::shown(&reply.frame, crate::cli::is_raw(&args)),
            Err(error) => panic!("{request}: {error}"),
        };
        if ["INCR", "RPUSH", "HSET", "SADD", "ZADD", "LOCK.ACQUIRE"].iter().any(|name| request.starts_with(name)) {
            continue;
        }
        let (host, port) = (server.addr().ip().to_string(), server.addr().port().to_string());
        let output =
            std::process::Command::new(&program).args(["-h", &host, "-p", &port, "-3", "--no-raw"]).args(&args).output().unwrap();
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        let theirs = lines(&String::from_utf8_lossy(&output.stdout));
        assert_eq!(ours.iter().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>(), theirs, "{request}");
    }
}

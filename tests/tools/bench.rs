//! Short runs of `portcullis bench`: against itself, against a running server, and with a deliberately broken algorithm.

use std::path::PathBuf;
use std::process::{Command, Output};

use portcullis::TestServer;
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    bench_for("0.2", args)
}

fn bench_for(seconds: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["bench", "--clients", "6", "--seconds", seconds, "--slice-ms", "100", "--forgotten-ms", "50"]).args(args);
    command.output().expect("it runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("portcullis-bench-test-{}-{name}", std::process::id()))
}

fn read(path: &PathBuf) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    std::fs::remove_file(path).expect("it was just read");
    text
}

#[test]
fn it_measures_itself_and_writes_the_figures() {
    let (json, page) = (file("all.json"), file("all.html"));
    let works = ["set-nx-px", "native", "redlock", "permits", "latch", "--command", "SET {key} {client}"];
    let files = ["--json", json.to_str().expect("UTF-8"), "--html", page.to_str().expect("UTF-8"), "--against", "portcullis"];
    let output = bench(&[&works[..], &files].concat());
    assert!(output.status.success(), "{}", text(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    for word in ["set-nx-px", "native", "redlock", "SET {key} {client}", "held", "portcullis 0."] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let found: Value = serde_json::from_str(&read(&json)).expect("JSON");
    let outcomes = found["results"].as_array().expect("outcomes");
    assert_eq!(outcomes.len(), 6);
    for outcome in outcomes {
        let number = |name: &str| outcome[name].as_f64().unwrap_or_else(|| panic!("{name}: {outcome}"));
        assert!(number("done") > 0.0 && number("per_second") > 0.0, "{outcome}");
        assert!(number("server_cpu_us_each") > 0.0 && number("failed") == 0.0, "{outcome}");
        let shares = outcome["shares"].as_array().expect("shares");
        assert_eq!(shares.iter().filter_map(Value::as_f64).sum::<f64>(), number("done"), "{outcome}");
        assert!((1.0 / 6.0..=1.0).contains(&number("fairness_jain")), "{outcome}");
        match outcome["workload"].as_str().expect("a name") {
            "native" => {
                assert!((number("commands_each") - 2.0).abs() < 0.01, "{outcome}");
                assert!(outcome["hand_off_us"]["p50"].is_number(), "{outcome}");
            }
            "SET {key} {client}" => assert_eq!(number("commands_each"), 1.0),
            _ => {}
        }
        let is_lock = !["latch", "SET {key} {client}"].contains(&outcome["workload"].as_str().expect("a name"));
        assert_eq!(outcome["exclusion"]["held"].as_bool(), is_lock.then_some(true), "{outcome}");
        let has_lateness = outcome["expiry_late_us"]["p50"].is_number();
        // On a busy machine, the short leases of this measurement are over before Redlock has them from all servers.
        assert!(has_lateness == is_lock || outcome["workload"] == "redlock", "{outcome}");
        if has_lateness {
            assert!(outcome["expiry_late_us"]["min"].as_i64().is_some_and(|us| us >= 0), "no lease ended early: {outcome}");
        }
    }
    assert_eq!((&found["tool"], found["settings"]["clients"].as_u64()), (&Value::from("bench"), Some(6)), "{found}");
    let command = found["command"].as_str().expect("a command line");
    assert!(
        command.starts_with("portcullis bench --clients 6") && command.contains("--command 'SET {key} {client}'"),
        "{command}"
    );
    let page = read(&page);
    let mut document = crate::document(&page);
    let table = document["table"].take();
    assert_eq!(table["rows"].as_array().map(Vec::len), Some(6), "{table}");
    assert_eq!(table["rows"][5][0], "SET {key} {client}");
    document.as_object_mut().expect("fields").remove("table");
    assert_eq!(document, found, "the page and the file have the same figures");
    let outside = page.match_indices("http").count() + page.matches("src=").count() + page.matches("url(").count();
    assert_eq!(outside, page.matches("url(#").count(), "the page is self-contained");
}

#[test]
fn figures_are_printed_instead_of_the_table() {
    let output = bench(&["native", "--against", "portcullis", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(found["results"][0]["workload"], "native");
}

#[test]
fn the_older_name_of_the_page_works_and_a_chart_alone_is_refused() {
    let page = file("older.html");
    let output = bench(&["native", "--against", "portcullis", "--chart", page.to_str().expect("UTF-8")]);
    assert!(output.status.success() && read(&page).starts_with("<!doctype html>"), "{}", text(&output));
    let output = bench(&["native", "--chart", "x.svg"]);
    assert!(!output.status.success() && text(&output).contains("--html"), "{}", text(&output));
}

#[test]
fn the_page_shows_no_password() {
    let server = TestServer::start();
    server.execute(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let (page, url) = (file("password.html"), server.url().replace("redis://", "redis://:s3cret@"));
    let output = bench(&["native", "--against", &url, "--html", page.to_str().expect("UTF-8"), "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = read(&page);
    assert!(page.contains(":***@") && !page.contains("s3cret"), "{page}");
    assert!(!text(&output).contains("s3cret"), "{}", text(&output));
}

#[test]
fn a_broken_lock_is_found_and_fails() {
    // Clients meet between its two steps by chance. On a busy machine they have longer for it.
    let found = ["0.2", "1", "5", "25"].into_iter().find_map(|seconds| {
        let output = bench_for(seconds, &["broken", "--against", "portcullis"]);
        (output.status.code() == Some(1)).then_some(output)
    });
    let found = text(&found.expect("it is found"));
    assert!(found.contains("BROKEN") && found.contains("mutual exclusion was broken: broken on portcullis"), "{found}");
}

#[test]
fn a_running_server_is_left_as_it_was() {
    let server = TestServer::start();
    server.execute(&["SET", "mine", "1"]);
    let works = ["set-nx-px", "reentrant", "blpop", "nodes", "semaphore", "unique-row", "sliding-window"];
    let args = ["--against", &server.url(), "--locks", "3", "--retry", "fixed:1"];
    let output = bench(&[&works[..], &args].concat());
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(server.keys(), ["mine"]);
    server.check_invariants();
}

#[test]
fn it_compares_with_redis() {
    if crate::common::servers::on_path("redis-server").is_none() {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "no redis-server on the PATH, and it is required");
        println!("SKIPPED: no redis-server on the PATH");
        return;
    }
    let output = bench(&["delex", "native", "--against", "portcullis", "--against", "redis-server"]);
    assert!(output.status.success(), "{}", text(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    let lines = |word: &str| table.lines().filter(|line| line.contains(word)).count();
    assert_eq!((lines("delex"), lines("redis "), lines("skipped: it needs native locks")), (2, 2, 1), "{table}");
}

/// Other servers take their own flags and are recognized by their programs' names.
#[test]
fn it_compares_with_other_servers() {
    for (name, shown) in [("valkey-server", "valkey "), ("kevy", "kevy ")] {
        if portcullis::bench::servers::kind::ServerKind::by_name(name).and_then(|peer| peer.find()).is_none() {
            println!("SKIPPED: no {name} on the PATH");
            continue;
        }
        let output = bench(&["--command", "SET {key} {client}", "--against", name]);
        assert!(output.status.success(), "{}", text(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains(shown), "{}", text(&output));
    }
}

#[test]
fn a_missing_server_is_named_with_a_way_to_install_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    let output = command.args(["bench", "native", "--against", "kevy"]).env("KEVY", "/nosuch/kevy").output().expect("it runs");
    assert!(!output.status.success() && text(&output).contains("cargo install kevy"), "{}", text(&output));
}

#[test]
fn mistakes_are_refused() {
    for (args, word) in [
        (&["nosuch"][..], "no algorithm 'nosuch'"),
        (&["--command", "NOSUCH {key}", "--against", "portcullis"], "it never worked: NOSUCH {key} on portcullis"),
        (&["native", "--against", "nosuch-program"], "no program 'nosuch-program'"),
        (&["native", "--against", "redis://127.0.0.1:1"], "no connection"),
        (&["native", "--against", "portcullis", "--json", "/nosuch/file"], "/nosuch/file"),
    ] {
        let output = bench(args);
        assert!(!output.status.success() && text(&output).contains(word), "{args:?}: {}", text(&output));
    }
    let list = text(&bench(&["--list"]));
    assert!(list.contains("redlock") && list.contains("(flawed)"));
}

/// The servers that a bench started end with it, even if a signal ends the bench.
#[test]
fn started_servers_end_with_the_bench() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    bench.args(["bench", "native", "--against", "portcullis", "--seconds", "60"]).stderr(std::process::Stdio::piped());
    let bench = bench.stdout(std::process::Stdio::null()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    let server = loop {
        let children = std::fs::read_to_string(&children).unwrap();
        match children.split_whitespace().next() {
            // The name of the program has replaced the bench's, so the process has got past `exec`.
            Some(child) if std::fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains("serve")) => {
                break child.to_owned();
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    crate::common::servers::until_it_handles(bench.id(), rustix::process::Signal::TERM);
    assert!(Command::new("kill").args(["-TERM", &bench.id().to_string()]).status().unwrap().success());
    let output = bench.wait_with_output().unwrap();
    assert!(!output.status.success() && text(&output).contains("interrupted by a signal"), "{}", text(&output));
    assert!(!std::path::Path::new(&format!("/proc/{server}")).exists(), "server {server} is still there");
}

//! The simulator is deterministic, and its findings are the known verdicts.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use portcullis::torture::check::Property;
use portcullis::torture::plan::{Fault, Plan, Settings};
use portcullis::torture::report::timeline;
use portcullis::torture::run::{self, Outcome, run};
use portcullis::torture::shrink::{Budget, shrink};
use portcullis::torture::subject::Subject;
use portcullis::torture::{known, table};

const HOUR_US: u64 = 3_600_000_000;

/// Runs an algorithm under these faults for a number of simulated minutes.
fn torture(label: &str, faults: &[Fault], seed: u64, minutes: u64) -> Outcome {
    let subject = Subject::from_label(label);
    let settings = subject.settings(&Settings { seed, faults: faults.to_vec(), ..Settings::default() });
    run(&settings, &subject.sim_algorithm().unwrap(), 0, minutes * HOUR_US / 60, |_, _, _| ControlFlow::Continue(()))
}

/// The digest of all histories of a few episodes under all faults.
fn digest(label: &str, seed: u64) -> u64 {
    torture(label, &Fault::ALL, seed, 6).digest
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    for label in ["set-nx-px", "redlock", "native", "blpop"] {
        assert_eq!(digest(label, 7), digest(label, 7), "{label}");
        assert_ne!(digest(label, 7), digest(label, 8), "{label}");
    }
    // The same in another process.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["torture", "--algorithm", "redlock", "--seed", "7", "--hours", "0.1", "--json", "-", "--no-shrink"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("\"digest\": \"{:016x}\"", digest("redlock", 7))), "{said}");
}

/// Asserts that a run violates these properties and that those hold.
#[track_caller]
fn expect(label: &str, fault: Fault, seed: u64, minutes: u64, violated: &[Property], holds: &[Property]) {
    let outcome = torture(label, &[fault], seed, minutes);
    for property in violated {
        assert_ne!(outcome.of(*property).violations, 0, "{label} under {fault} is known to violate {property}");
    }
    for property in holds {
        let verdict = outcome.of(*property);
        assert_ne!(verdict.checked, 0, "{property}");
        assert_eq!(verdict.violations, 0, "{label} under {fault}: {:?}", verdict.first());
    }
}

#[test]
fn plain_setnx_is_stuck_after_a_crash() {
    expect("setnx", Fault::Crash, 1, 6, &[Property::Stuck], &[Property::Exclusion]);
    expect("set-nx-px", Fault::Crash, 1, 6, &[], &[Property::Stuck, Property::Late]);
}

#[test]
fn setnx_with_getset_breaks_under_skew() {
    expect("setnx-getset", Fault::Skew, 1, 6, &[Property::Exclusion, Property::Sections], &[]);
    expect("set-nx-px", Fault::Skew, 1, 6, &[], &[Property::Exclusion, Property::Sections]);
}

#[test]
fn del_without_a_check_releases_what_another_holds_after_a_pause() {
    expect("set-nx-px-del", Fault::Pause, 1, 6, &[Property::Release], &[]);
}

#[test]
fn compare_and_delete_keeps_the_servers_order_but_sections_overlap_after_a_pause() {
    let holds = [Property::Exclusion, Property::Release, Property::Early];
    expect("set-nx-px", Fault::Pause, 1, 6, &[Property::Sections], &holds);
}

#[test]
fn fencing_stops_the_stale_write() {
    let (fault, seed) = (Fault::Pause, 1);
    expect("native+unfenced", fault, seed, 12, &[Property::Sections, Property::Writes], &[Property::Tokens]);
    expect("native", fault, seed, 12, &[Property::Sections], &[Property::Writes, Property::Tokens]);
}

#[test]
fn losing_the_last_writes_breaks_exclusion() {
    expect("set-nx-px", Fault::Lose, 1, 12, &[Property::Exclusion, Property::Early], &[]);
}

#[test]
fn redlock_survives_a_restart_without_data_only_after_a_lease() {
    expect("redlock", Fault::Restart, 1, 6, &[Property::Exclusion], &[]);
    expect("redlock+delayed", Fault::Restart, 1, 6, &[], &[Property::Exclusion, Property::Sections]);
}

#[test]
fn native_locks_never_accept_a_stale_write() {
    let outcome = torture("native", &Fault::ALL, 1, 60);
    let of = |property| outcome.of(property);
    assert!(of(Property::Sections).violations > 0 && of(Property::Exclusion).violations > 0, "there are violations");
    assert!(of(Property::Writes).checked > 1_000);
    assert_eq!((of(Property::Writes).violations, of(Property::Tokens).violations), (0, 0));
}

/// A violation is wrong in every reading of a history. With servers that lose nothing and clients that do not stop there is none.
#[test]
fn native_locks_hold_under_faults_together_that_neither_stop_a_client_nor_lose_data() {
    let faults = [Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop];
    let outcome = torture("native", &faults, 78, 60);
    let violated: Vec<_> = outcome.violated().filter_map(|verdict| verdict.first().cloned()).collect();
    assert!(violated.is_empty(), "{violated:?}");
    assert!(outcome.operations > 2_000);
}

/// A late copy of a request takes over the place of the next request in the queue, and could be granted the lock in place of a
/// client that was told that it waits no more.
#[test]
fn a_late_copy_of_a_request_is_not_granted_the_lock_in_vain() {
    let faults = [Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop, Fault::Duplicate];
    assert_eq!(table::run_episode(&Subject::new("native"), &faults, 807).unwrap(), []);
}

#[test]
fn tokens_increase_even_if_servers_lose_data() {
    for faults in [&[Fault::Restart][..], &[Fault::Lose], &[Fault::Restart, Fault::Lose], &Fault::ALL] {
        let outcome = torture("native", faults, 77, 20);
        let tokens = outcome.of(Property::Tokens);
        assert_eq!(tokens.violations, 0, "{faults:?}: {:?}", tokens.first());
        assert!(tokens.checked > 300, "{faults:?}");
    }
}

#[test]
fn a_broken_lock_is_found_even_if_replies_are_lost() {
    for faults in [&[][..], &[Fault::Drop], &[Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop]] {
        let outcome = torture("broken", faults, 1, 12);
        assert_ne!(outcome.of(Property::Exclusion).violations, 0, "{faults:?}");
    }
}

#[test]
fn the_report_of_a_violation_is_short() {
    let (said, _) = program("--algorithm set-nx-px --faults all --seed 3 --hours 0.5 --no-shrink");
    let parts: Vec<&str> = said.split("\n\n").skip(2).collect();
    assert!(parts.len() > 2, "{said}");
    for part in parts {
        assert!(part.lines().count() <= 60, "{part}");
        assert!(part.lines().all(|line| line.len() <= 250), "{part}");
    }
}

#[test]
fn nothing_is_violated_without_faults() {
    for label in ["native", "blpop"] {
        assert_eq!(torture(label, &[], 1, 6).violated().count(), 0, "{label}");
    }
}

#[test]
fn a_violation_is_shrunk_and_drawn() {
    let subject = Subject::new("set-nx-px");
    let settings = subject.settings(&Settings { faults: vec![Fault::Pause], ..Settings::default() });
    let algorithm = subject.sim_algorithm().unwrap();
    let rules = run::rules(&settings, &algorithm);
    let (mut runs, mut reports) = (0, 0);
    let mut progress = |tried, _: &Plan| (runs, reports) = (tried, reports + 1);
    let budget = Budget { runs: 300, until: None, progress: &mut progress };
    let found = shrink(&Plan::draw(&settings, 0), &algorithm, &rules, Property::Sections, budget).unwrap();
    assert_eq!((runs, reports), (found.tried, found.tried - 1), "each run but the first is reported");
    assert_eq!((found.plan.jobs(), found.plan.faults.len()), (2, 1), "two clients and a pause");
    let mut never = |_, _: &Plan| panic!("the budget is spent");
    let spent = Budget { runs: 300, until: Some(Instant::now()), progress: &mut never };
    let again = shrink(&found.plan, &algorithm, &rules, Property::Sections, spent).unwrap();
    assert_eq!(again.history, found.history);
    let drawn = timeline::json(&found.history, &found.violation, 250);
    let bars: Vec<&str> = drawn["bars"].as_array().unwrap().iter().filter_map(|bar| bar["class"].as_str()).collect();
    assert!(["wait", "lease", "bad", "pause"].iter().all(|class| bars.contains(class)), "{bars:?}");
}

/// Runs `portcullis torture` and returns the page and the JSON that it writes.
fn written(arguments: &str) -> (String, serde_json::Value) {
    let file =
        |name: &str| std::env::temp_dir().join(format!("portcullis-torture-{}-{}-{name}", std::process::id(), arguments.len()));
    let (page, json) = (file("page.html"), file("all.json"));
    let (said, code) = program(&format!("{arguments} --html {} --json {}", page.display(), json.display()));
    assert_ne!(code, Some(2), "{said}");
    let [page, json] = [page, json].map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    });
    (page, serde_json::from_str(&json).unwrap())
}

#[test]
fn the_page_reaches_every_violation() {
    let (page, json) = written("set-nx-px-del --faults pause,restart --seed 3 --hours 0.2 --no-shrink");
    let document = crate::document(&page);
    let of = |document: &serde_json::Value| document["results"][0]["verdicts"].as_array().unwrap().clone();
    let mut violations = 0;
    for (verdict, shown) in of(&json).into_iter().zip(of(&document)) {
        let (property, found) = (verdict["property"].as_str().unwrap(), verdict["found"].as_array().unwrap());
        assert_eq!(verdict["violations"].as_u64().unwrap().min(500), found.len() as u64, "{property}");
        violations += found.len();
        for (number, found) in found.iter().enumerate() {
            let shown = &shown["found"][number];
            assert!(["episode", "at_seconds", "says", "again"].iter().all(|field| shown[field] == found[field]), "{shown}");
            assert_eq!(shown["timeline"].is_object(), number < 20, "{property} {number}");
        }
        assert_eq!(shown["shortest"]["timeline"].is_object(), !found.is_empty(), "{property}");
    }
    assert!(violations > 100, "{violations}");
    assert!(page.contains("--faults pause,restart --seed 3 --episode 0"), "{page}");
    assert!(!page.contains("http"), "the page is self-contained");
}

#[test]
fn the_page_of_all_algorithms_is_of_moderate_size() {
    let (page, json) = written("all --faults pause,restart --hours 0 --episode-s 100 --no-shrink");
    let count = |document: &serde_json::Value| document["results"].as_array().map(Vec::len);
    assert_eq!(count(&crate::document(&page)), count(&json));
    assert!(page.len() < 3 << 20, "{} bytes", page.len());
}

#[test]
fn documents_have_the_same_fields_as_those_of_bench() {
    let (page, json) = written("native --faults none --hours 0.1");
    assert_eq!((&crate::document(&page)["results"][0]["failed"], &json["results"][0]["failed"]), (&false.into(), &false.into()));
    let fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["command", "date", "machine", "portcullis", "results", "settings", "tool"]);
    assert_eq!((json["tool"].as_str(), json["settings"]["seed"].as_u64()), (Some("torture"), Some(1)));
    assert!(json["command"].as_str().unwrap().starts_with("portcullis torture native --faults none --hours 0.1"));
}

#[test]
fn what_can_be_named_is_listed() {
    let (said, code) = program("--list");
    assert_eq!(code, Some(0), "{said}");
    for word in ["native", "powerloss", "wake-up", "set-nx-px+watchdog"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn older_flags_work_or_name_the_new_ones() {
    for (arguments, expected) in [
        ("native --faults none --hours 0 --json", "'--json <FILE>'"),
        ("--faults none --hours 0 --json native", "--json FILE native"),
        ("nosuch", "portcullis torture --list"),
    ] {
        let (said, code) = program(arguments);
        assert!(code == Some(2) && said.contains(expected), "{arguments}: {code:?} {said}");
    }
    let path = std::env::temp_dir().join(format!("portcullis-torture-{}-older.html", std::process::id()));
    let (said, _) = program(&format!("native --faults none --hours 0 --timeline {}", path.display()));
    assert!(std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{said}")).starts_with("<!doctype html>"));
    std::fs::remove_file(&path).unwrap();
}

/// With UPDATE_README=1, runs all algorithms again and writes the verdicts: ten simulated hours under each fault, one under each
/// pair and all faults; and of durable servers, ten under their own faults and one under each other one and all. A release build
/// takes twenty minutes of one core. With UPDATE_README=durable, only those of durable servers run.
#[test]
fn the_guide_shows_the_verdicts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let asked = std::env::var("UPDATE_README").unwrap_or_default();
    let update = asked == "1" || asked == "durable";
    let mut known = known::all();
    if update {
        let runs = |(subject, _): &&(Subject, Vec<Fault>)| asked == "1" || subject.durable;
        let entry = |(subject, faults): &(Subject, Vec<Fault>)| {
            table::run_entry(subject, faults, table::length_us(subject, faults)).unwrap()
        };
        let entries = table::entries();
        let (others, ours): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| !runs(entry));
        known.truncate(others.len());
        // Durable servers are the last ones.
        let (first, second) = ours.split_at(ours.len() / 2);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| first.iter().map(|one| entry(one)).collect::<Vec<_>>());
            let second: Vec<_> = second.iter().map(|one| entry(one)).collect();
            known.extend(first.join().unwrap());
            known.extend(second);
        });
    }
    let page = std::fs::read_to_string(folder.join("guide/torture.md")).unwrap();
    let mut expected = page.clone();
    for (mark, table) in [("torture", table::markdown(&known)), ("durable", table::durable_markdown(&known))] {
        let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
        let start = expected.find(&begin).unwrap_or_else(|| panic!("the page has the marker {begin}")) + begin.len();
        let end = start + expected[start..].find(&end).unwrap_or_else(|| panic!("the page has the marker {end}"));
        expected.replace_range(start..end, &table);
    }
    if update {
        std::fs::write(folder.join("src/torture/verdicts.txt"), table::verdict_lines(&known)).unwrap();
        std::fs::write(folder.join("guide/torture.md"), expected).unwrap();
    } else {
        assert!(page == expected, "guide/torture.md shows other verdicts: run this test with UPDATE_README=1 and --release");
    }
}

/// The verdicts cover every algorithm under every fault, every pair and all. Runs some episodes again: for each algorithm the
/// episode of one entry with a single fault, and a part of those with several faults.
#[test]
fn the_verdicts_are_true() {
    let known = known::all();
    let entries = table::entries();
    let same = (known.iter().map(|entry| (entry.label.clone(), &entry.faults)))
        .eq(entries.iter().map(|(subject, faults)| (subject.label(), faults)));
    assert!(same, "the verdicts are of other algorithms: run the_guide_shows_the_verdicts with UPDATE_README=1 and --release");
    let check = |entry: &known::KnownVerdict| {
        let (subject, faults) = (Subject::from_label(&entry.label), &entry.faults);
        let episode = entry.violated.iter().map(|(_, episode)| *episode).min().unwrap_or(0);
        let violated = table::run_episode(&subject, faults, episode).unwrap();
        for (property, first) in &entry.violated {
            assert_eq!(violated.contains(property), *first == episode, "{} under {faults:?}: {property}", entry.label);
        }
        for property in violated {
            assert!(entry.violated.iter().any(|(known, _)| *known == property), "{} under {faults:?}: {property}", entry.label);
        }
    };
    let (single, combined): (Vec<_>, Vec<_>) = known.iter().partition(|entry| entry.faults.len() <= 1);
    let columns = Fault::ALL.len() + 1;
    // A different column in each row.
    let of_rows = (0..single.len() / columns).map(|row| single[row * columns + row * 2 % columns]);
    let picked: Vec<_> = of_rows.chain(combined.into_iter().step_by(23)).collect();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (check, picked) = (&check, &picked);
            scope.spawn(move || picked.iter().skip(half).step_by(2).for_each(|entry| check(entry)));
        }
    });
}

/// Native locks on a running server are judged by the order that the server shows.
#[test]
fn servers_given_by_url_are_judged_by_their_order() {
    let server = portcullis::TestServer::start();
    let url = server.url();
    let run = |url: &str, faults: &str| {
        program(&format!("--algorithm native --live {url} --faults {faults} --lease-ms 1000 --seconds 2"))
    };
    // On a busy machine grants may be late, but none overtakes another.
    let (said, code) = run(&url, "none");
    assert!(code != Some(2) && said.contains("that MONITOR shows"), "{said}");
    assert!(said.contains("fairness   holds"), "without the server's order fairness cannot be checked: {said}");
    let (said, _) = run(&url, "crash,drop,duplicate,delay");
    assert!(said.contains("that MONITOR shows") && said.contains("writes     holds"), "{said}");
    // A user without the permission to use MONITOR.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = portcullis::client::Client::connect(&url).await.unwrap();
        client.command(&["ACL", "SETUSER", "judge", "on", ">secret", "~*", "&*", "+@all", "-monitor"]).await.unwrap();
    });
    let (said, code) = run(&url.replace("redis://", "redis://judge:secret@"), "none");
    assert!(code != Some(2) && said.contains("refuses MONITOR: NOPERM"), "{said}");
    assert!(said.contains("exclusion  holds") && !said.contains("fairness"), "{said}");
}

/// Runs `portcullis torture`. Returns its output and its exit code.
pub fn program(arguments: &str) -> (String, Option<i32>) {
    let arguments = arguments.split(' ');
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis")).arg("torture").args(arguments).output().unwrap();
    (String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(), output.status.code())
}

#[test]
fn exit_codes_tell_the_result() {
    let (said, code) = program("--algorithm setnx --faults crash --hours 0.1");
    assert!(said.contains("stuck      VIOLATED") && said.contains("--seed 1 --episode 0"), "{said}");
    assert_eq!(code, Some(1), "{said}");
    let (said, code) = program("--algorithm setnx --faults crash --hours 0.1 --no-shrink --expect-known");
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = program("--algorithm native --faults none --hours 0.1");
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = program("--algorithm broken --faults none --hours 0.2 --no-shrink --expect-known");
    assert_eq!(code, Some(1), "there are no known verdicts: {said}");
    for wrong in [
        "--algorithm nonsense",
        "--faults rain",
        "--faults powerloss",
        "--durable --faults lose",
        "--durable --live self",
        "--hours nan",
        "--hours 1e9",
        "--history /nosuch/file",
        "--live http://nowhere",
        "--algorithm native --live redis-server",
    ] {
        assert_eq!(program(wrong).1, Some(2), "{wrong}");
    }
}

#[test]
fn extreme_settings_are_clamped() {
    // The length of an episode is a number of leases.
    let (said, code) = program("--algorithm native --faults none --hours 0.01 --lease-ms 100");
    assert!(code == Some(0) && said.contains("in 10 episodes"), "{said}");
    let (said, code) = program("--algorithm native --faults none --hours 0 --lease-ms 86400000");
    assert!(code == Some(0) && said.contains("in 1 episode,"), "{said}");
    // The delay exceeds the maximum.
    let (said, code) = program("--algorithm native --faults restart --hours 0.1 --restart-delay-ms 18446744073709551615");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn it_ends_when_its_output_is_closed() {
    let mut torture = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
    torture.args(["torture", "--faults", "none", "--hours", "0"]);
    let mut torture = torture.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(torture.stdout.take());
    let output = torture.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("standard output") && !said.contains("panicked"), "{said}");
}

#[test]
fn real_servers_are_tested_too() {
    let (said, code) = program("--algorithm setnx-getset --live self --faults skew --lease-ms 500 --seconds 2");
    assert!(code == Some(1) && said.contains("exclusion  VIOLATED"), "{said}");
    // On a busy machine grants may be late, but no stale write is accepted.
    let (said, _) = program("--algorithm native --live self --faults pause,crash,lose,drop --lease-ms 500 --seconds 2");
    assert!(said.contains("writes     holds") && said.contains("tokens     holds"), "{said}");
}

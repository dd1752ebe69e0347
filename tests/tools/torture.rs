//! The simulator is deterministic, and what it finds of lock algorithms is what is known of them.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use portcullis::torture::check::Property;
use portcullis::torture::plan::{Fault, Plan, Settings};
use portcullis::torture::run::{self, Outcome, run};
use portcullis::torture::shrink::{Effort, shrink};
use portcullis::torture::subject::Subject;
use portcullis::torture::{known, table, timeline};

const HOUR_US: u64 = 3_600_000_000;

/// A run of an algorithm with these faults, for so many simulated minutes.
fn torture(label: &str, faults: &[Fault], seed: u64, minutes: u64) -> Outcome {
    let subject = Subject::labelled(label);
    let settings = subject.settings(&Settings { seed, faults: faults.to_vec(), ..Settings::default() });
    run(&settings, &subject.simulated().unwrap(), 0, minutes * HOUR_US / 60, |_, _, _| ControlFlow::Continue(()))
}

/// The digest of all that happens in a few episodes in which everything goes wrong.
fn digest(label: &str, seed: u64) -> u64 {
    torture(label, &Fault::ALL, seed, 12).digest
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    for label in ["set-nx-px", "redlock", "native", "blpop"] {
        assert_eq!(digest(label, 7), digest(label, 7), "{label}");
        assert_ne!(digest(label, 7), digest(label, 8), "{label}");
    }
    // And in another process.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["torture", "--algorithm", "redlock", "--seed", "7", "--hours", "0.2", "--json", "--no-shrink"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("\"digest\":\"{:016x}\"", digest("redlock", 7))), "{said}");
}

/// Asserts that these are violated and those are not.
#[track_caller]
fn expect(label: &str, fault: Fault, seed: u64, minutes: u64, violated: &[Property], holds: &[Property]) {
    let outcome = torture(label, &[fault], seed, minutes);
    for property in violated {
        assert_ne!(outcome.of(*property).violations, 0, "{label} under {fault} is known to violate {property}");
    }
    for property in holds {
        let verdict = outcome.of(*property);
        assert_ne!(verdict.checked, 0, "{property}");
        assert_eq!(verdict.violations, 0, "{label} under {fault}: {:?}", verdict.first);
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
    let (of_pauses, seed) = (Fault::Pause, 1);
    expect("native+unfenced", of_pauses, seed, 12, &[Property::Sections, Property::Writes], &[Property::Tokens]);
    expect("native", of_pauses, seed, 12, &[Property::Sections], &[Property::Writes, Property::Tokens]);
}

#[test]
fn a_server_that_loses_its_last_writes_breaks_exclusion() {
    expect("set-nx-px", Fault::Lose, 1, 12, &[Property::Exclusion, Property::Early], &[]);
}

#[test]
fn redlock_survives_a_server_that_loses_all_only_when_it_comes_back_after_a_lease() {
    expect("redlock", Fault::Restart, 1, 6, &[Property::Exclusion], &[]);
    expect("redlock+delayed", Fault::Restart, 1, 6, &[], &[Property::Exclusion, Property::Sections]);
}

#[test]
fn native_locks_never_accept_a_stale_write() {
    let outcome = torture("native", &Fault::ALL, 1, 60);
    let of = |property| outcome.of(property);
    assert!(of(Property::Sections).violations > 0 && of(Property::Exclusion).violations > 0, "all goes wrong");
    assert!(of(Property::Writes).checked > 1_000);
    assert_eq!((of(Property::Writes).violations, of(Property::Tokens).violations), (0, 0));
}

/// What is reported is wrong in every reading of a history: a server that loses nothing, and clients that do not stop, give none.
#[test]
fn native_locks_hold_under_faults_together_that_neither_stop_a_client_nor_lose_data() {
    let faults = [Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop];
    let outcome = torture("native", &faults, 78, 60);
    let violated: Vec<_> = outcome.violated().filter_map(|verdict| verdict.first.clone()).collect();
    assert!(violated.is_empty(), "{violated:?}");
    assert!(outcome.operations > 2_000);
}

/// A copy of a request that arrives after the next one takes its place in the queue over, and is granted the lock in place of a client that
/// has been told that it waits no more.
#[test]
fn a_copy_that_is_late_does_not_leave_the_lock_to_nobody() {
    let faults = [Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop, Fault::Duplicate];
    assert_eq!(table::episode(&Subject::new("native"), &faults, 807).unwrap(), []);
}

#[test]
fn tokens_grow_though_servers_lose_what_they_held() {
    for faults in [&[Fault::Restart][..], &[Fault::Lose], &[Fault::Restart, Fault::Lose], &Fault::ALL] {
        let outcome = torture("native", faults, 77, 20);
        let tokens = outcome.of(Property::Tokens);
        assert_eq!(tokens.violations, 0, "{faults:?}: {:?}", tokens.first);
        assert!(tokens.checked > 300, "{faults:?}");
    }
}

#[test]
fn a_broken_lock_is_found_where_replies_are_lost_too() {
    for faults in [&[][..], &[Fault::Drop], &[Fault::Skew, Fault::Crash, Fault::Delay, Fault::Drop]] {
        let outcome = torture("broken", faults, 1, 12);
        assert_ne!(outcome.of(Property::Exclusion).violations, 0, "{faults:?}");
    }
}

#[test]
fn what_is_said_of_a_violation_is_short() {
    let (said, _) = program("--algorithm set-nx-px --faults all --seed 3 --hours 0.5 --no-shrink");
    let parts: Vec<&str> = said.split("\n\n").skip(2).collect();
    assert!(parts.len() > 2, "{said}");
    for part in parts {
        assert!(part.lines().count() <= 60, "{part}");
        assert!(part.lines().all(|line| line.len() <= 250), "{part}");
    }
}

#[test]
fn nothing_is_violated_where_nothing_goes_wrong() {
    for label in ["native", "blpop"] {
        assert_eq!(torture(label, &[], 1, 6).violated().count(), 0, "{label}");
    }
}

#[test]
fn a_violation_is_shrunk_to_what_matters_and_drawn() {
    let subject = Subject::new("set-nx-px");
    let settings = subject.settings(&Settings { faults: vec![Fault::Pause], ..Settings::default() });
    let algorithm = subject.simulated().unwrap();
    let rules = run::rules(&settings, &algorithm);
    let (mut runs, mut told) = (0, 0);
    let mut progress = |tried, _: &Plan| (runs, told) = (tried, told + 1);
    let effort = Effort { runs: 300, until: None, progress: &mut progress };
    let shown = shrink(&Plan::draw(&settings, 0), &algorithm, &rules, Property::Sections, effort).unwrap();
    assert_eq!((runs, told), (shown.tried, shown.tried - 1), "each run but the first is told of");
    assert_eq!((shown.plan.wishes(), shown.plan.faults.len()), (2, 1), "two who want it, and a pause");
    let mut never = |_, _: &Plan| panic!("there is no time");
    let spent = Effort { runs: 300, until: Some(Instant::now()), progress: &mut never };
    let again = shrink(&shown.plan, &algorithm, &rules, Property::Sections, spent).unwrap();
    assert_eq!(again.history, shown.history);
    let page = timeline::page("set-nx-px", &shown.history, Some(&shown.violation), "again");
    assert!(page.contains("class=\"bad\"") && page.contains("class=\"pause\"") && page.contains("violated</text>"));
    assert!(!page.contains("http") && !page.contains("<script"), "it needs nothing else");
}

/// With UPDATE_README=1, finds the verdicts anew and writes them: ten simulated hours of every algorithm under each fault, one under each pair
/// and all. In a release build that takes a quarter of an hour of a core.
#[test]
fn the_guide_shows_the_verdicts() {
    const START: &str = "<!-- torture -->\n";
    const END: &str = "<!-- /torture -->";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let update = std::env::var_os("UPDATE_README").is_some_and(|set| set == "1");
    let known = match update {
        true => {
            let entry =
                |(subject, faults): &(Subject, Vec<Fault>)| table::entry(subject, faults, table::length_us(faults)).unwrap();
            table::entries().iter().map(entry).collect()
        }
        false => known::all(),
    };
    let page = std::fs::read_to_string(folder.join("guide/torture.md")).unwrap();
    let start = page.find(START).expect("the page has the marker <!-- torture -->") + START.len();
    let end = start + page[start..].find(END).expect("the page has the marker <!-- /torture -->");
    let expected = format!("{}{}{}", &page[..start], table::markdown(&known), &page[end..]);
    if update {
        std::fs::write(folder.join("src/torture/verdicts.txt"), table::lines(&known)).unwrap();
        std::fs::write(folder.join("guide/torture.md"), expected).unwrap();
    } else {
        assert!(page == expected, "guide/torture.md shows other verdicts: run this test with UPDATE_README=1 and --release");
    }
}

/// Every algorithm is there under every fault, every pair and all, and the episodes are run again that show one entry of each under a single
/// fault, and some of those of several.
#[test]
fn the_verdicts_are_true() {
    let known = known::all();
    let entries = table::entries();
    let same = (known.iter().map(|entry| (entry.label.clone(), &entry.faults)))
        .eq(entries.iter().map(|(subject, faults)| (subject.label(), faults)));
    assert!(
        same,
        "the verdicts are those of other algorithms: run the_guide_shows_the_verdicts with UPDATE_README=1 and --release"
    );
    let check = |entry: &known::Known| {
        let (subject, faults) = (Subject::labelled(&entry.label), &entry.faults);
        let episode = entry.violated.iter().map(|(_, episode)| *episode).min().unwrap_or(0);
        let violated = table::episode(&subject, faults, episode).unwrap();
        for (property, first) in &entry.violated {
            assert_eq!(violated.contains(property), *first == episode, "{} under {faults:?}: {property}", entry.label);
        }
        for property in violated {
            assert!(entry.violated.iter().any(|(known, _)| *known == property), "{} under {faults:?}: {property}", entry.label);
        }
    };
    let (single, combined): (Vec<_>, Vec<_>) = known.iter().partition(|entry| entry.faults.len() <= 1);
    let columns = Fault::ALL.len() + 1;
    // Another column in each row.
    let of_rows = (0..single.len() / columns).map(|row| single[row * columns + row * 2 % columns]);
    let picked: Vec<_> = of_rows.chain(combined.into_iter().step_by(11)).collect();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (check, picked) = (&check, &picked);
            scope.spawn(move || picked.iter().skip(half).step_by(2).for_each(|entry| check(entry)));
        }
    });
}

/// Native locks on a server that runs already: judged by the order in which it shows what it does.
#[test]
fn servers_given_by_url_are_judged_by_their_order() {
    let server = portcullis::TestServer::start();
    let url = server.url();
    let run = |url: &str, faults: &str| {
        program(&format!("--algorithm native --live {url} --faults {faults} --lease-ms 1000 --seconds 2"))
    };
    // A busy machine may be late; but nobody overtakes.
    let (said, code) = run(&url, "none");
    assert!(code != Some(2) && said.contains("which MONITOR shows"), "{said}");
    assert!(said.contains("fairness   holds"), "by the clients alone nothing is known of who came first: {said}");
    let (said, _) = run(&url, "crash,drop,duplicate,delay");
    assert!(said.contains("which MONITOR shows") && said.contains("writes     holds"), "{said}");
    // Its monitor may not be seen by everybody.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = portcullis::client::Client::connect(&url).await.unwrap();
        client.command(&["ACL", "SETUSER", "judge", "on", ">secret", "~*", "&*", "+@all", "-monitor"]).await.unwrap();
    });
    let (said, code) = run(&url.replace("redis://", "redis://judge:secret@"), "none");
    assert!(code != Some(2) && said.contains("does not show it by MONITOR: NOPERM"), "{said}");
    assert!(said.contains("exclusion  holds") && !said.contains("fairness"), "{said}");
}

/// What the program says of a run, and how it ends.
fn program(arguments: &str) -> (String, Option<i32>) {
    let arguments = arguments.split(' ');
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis")).arg("torture").args(arguments).output().unwrap();
    (String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(), output.status.code())
}

#[test]
fn exit_codes_tell_what_was_found() {
    let (said, code) = program("--algorithm setnx --faults crash --hours 0.1");
    assert!(said.contains("stuck      VIOLATED") && said.contains("--seed 1 --episode 0"), "{said}");
    assert_eq!(code, Some(1), "{said}");
    let (said, code) = program("--algorithm setnx --faults crash --hours 0.1 --no-shrink --expect-known");
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = program("--algorithm native --faults none --hours 0.1");
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = program("--algorithm broken --faults none --hours 0.2 --no-shrink --expect-known");
    assert_eq!(code, Some(1), "nothing is known of it: {said}");
    for wrong in [
        "--algorithm nonsense",
        "--faults rain",
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
fn odd_measures_make_no_odd_runs() {
    // Episodes are as long as so many leases.
    let (said, code) = program("--algorithm native --faults none --hours 0.01 --lease-ms 100");
    assert!(code == Some(0) && said.contains("in 10 episodes"), "{said}");
    let (said, code) = program("--algorithm native --faults none --hours 0 --lease-ms 86400000");
    assert!(code == Some(0) && said.contains("in 1 episode,"), "{said}");
    // A server that is away for longer than anything else is away.
    let (said, code) = program("--algorithm native --faults restart --hours 0.1 --restart-delay-ms 18446744073709551615");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn it_ends_where_nobody_reads_it_any_more() {
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
fn real_servers_are_tortured_too() {
    let (said, code) = program("--algorithm setnx-getset --live self --faults skew --lease-ms 500 --seconds 2");
    assert!(code == Some(1) && said.contains("exclusion  VIOLATED"), "{said}");
    // A busy machine is late; but no stale write is accepted.
    let (said, _) = program("--algorithm native --live self --faults pause,crash,lose,drop --lease-ms 500 --seconds 2");
    assert!(said.contains("writes     holds") && said.contains("tokens     holds"), "{said}");
}

//! Nodes as processes: faults strike them live and nothing is lost, and a bench goes on when their leader is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
}

fn torture(faults: &str, more: &[&str]) -> Command {
    let mut command = program();
    command.args(["torture", "native", "--live", "--replicas", "3", "--lease-ms", "2000", "--faults", faults]).args(more);
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs native locks under these faults. Each must strike, and those of nodes the leader. On a busy machine less happens in the same
/// time, so a run in which too little happened is followed by a longer one. Nothing may be lost in any.
#[track_caller]
fn strikes_and_loses_nothing(faults: &str, of_leader: &[&str]) {
    let mut lacks = Vec::new();
    for seconds in ["6", "12", "24"] {
        let output = torture(faults, &["--seconds", seconds, "--json", "-"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        match lack(&document["results"][0], faults, of_leader) {
            None => return,
            Some(lack) => lacks.push(lack),
        }
    }
    panic!("{lacks:#?}");
}

/// What has not happened in a run.
fn lack(report: &Value, faults: &str, of_leader: &[&str]) -> Option<String> {
    const NOTHING: &Value = &Value::Null;
    let struck = report["nodes"]["struck"].as_array().unwrap();
    for fault in faults.split(',') {
        let of_kind = struck.iter().find(|struck| struck["fault"] == fault).unwrap_or(NOTHING);
        if of_kind["times"].as_u64() <= Some(0) {
            return Some(format!("{fault} has not struck: {report}"));
        }
        if of_leader.contains(&fault)
            && (of_kind["of_leader"].as_u64() <= Some(0) || of_kind["silent_ms_p50"].as_f64() <= Some(0.0))
        {
            return Some(format!("{fault} has not struck a leader: {report}"));
        }
    }
    let enough = report["nodes"]["kept_checked"].as_u64() > Some(20) && report["lock_operations"].as_u64() > Some(10);
    (!enough).then(|| format!("little was done: {report}"))
}

#[test]
fn nodes_that_are_killed_stopped_and_parted_lose_nothing() {
    strikes_and_loses_nothing("restart,stall,partition", &["restart", "stall"]);
}

#[test]
fn nodes_with_full_disks_and_wrong_clocks_lose_nothing() {
    strikes_and_loses_nothing("skew,disorder,baddisk", &["baddisk"]);
}

#[test]
fn a_node_that_loses_its_disk_loses_nothing() {
    strikes_and_loses_nothing("wipe", &["wipe"]);
}

#[test]
fn nodes_whose_disks_hang_and_nodes_of_another_cluster_lose_nothing() {
    strikes_and_loses_nothing("hungdisk,foreign", &["hungdisk", "foreign"]);
}

#[test]
fn what_a_live_run_cannot_do_is_refused() {
    for (faults, more, word) in [
        ("powerloss", &[][..], "replicated servers in a live run do not have the fault 'powerloss'"),
        ("lose", &[], "do not have the fault 'lose'"),
        ("none", &["--planted", "early-reply"], "--planted is for the simulation"),
        ("none", &["--durable"], "cannot be used with"),
    ] {
        let output = torture(faults, more).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(word), "{faults}: {}", text(&output));
    }
    let output = program().args(["torture", "native", "--live", "redis-server", "--replicas", "3"]).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("starts the nodes itself"), "{}", text(&output));
}

/// The children of a process.
fn children(of: &Child) -> Vec<String> {
    let children = format!("/proc/{0}/task/{0}/children", of.id());
    std::fs::read_to_string(children).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn nodes_end_with_a_run_that_is_interrupted() {
    let run = torture("stall", &["--seconds", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let folder = std::env::temp_dir().join(format!("portcullis-torture-{}", run.id()));
    let began = Instant::now();
    let nodes = loop {
        let nodes = children(&run);
        if nodes.len() == 3 && folder.join("3.log").exists() {
            break nodes;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{nodes:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    // The first stops by then.
    std::thread::sleep(Duration::from_secs(4));
    crate::common::servers::until_it_handles(run.id(), rustix::process::Signal::INT);
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert!(!output.status.success() && text(&output).contains("interrupted by a signal"), "{}", text(&output));
    for node in nodes {
        assert!(!Path::new(&format!("/proc/{node}")).exists(), "node {node} is still there");
    }
    assert!(!folder.exists(), "{}", folder.display());
}

/// Three nodes of `cluster try`, and the number of the one that leads.
struct Trial {
    child: Child,
    addrs: Vec<String>,
    leader: usize,
}

impl Trial {
    fn start() -> Trial {
        let mut child = program().args(["cluster", "try"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (mut addrs, mut leader) = (Vec::new(), None);
        for line in lines.take_while(|line| !line.starts_with("their state")) {
            if let Some((_, addr)) = line.split_once("redis://").filter(|_| line.starts_with("  node ")) {
                if line.ends_with("leads") {
                    leader = Some(addrs.len());
                }
                addrs.push(addr.split(' ').next().unwrap().to_owned());
            }
        }
        Trial { child, addrs, leader: leader.unwrap() }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        interrupt(&self.child);
        let _ = self.child.wait();
    }
}

#[test]
fn a_bench_goes_on_when_the_leader_is_killed() {
    // On a busy machine less is done in the same time, and then there is a longer run.
    let lacks: Vec<String> = ["4", "8", "16"].into_iter().map_while(bench_lacks).collect();
    assert!(lacks.len() < 3, "{lacks:#?}");
}

/// What a bench lacks of so many seconds, in which the leader is killed.
fn bench_lacks(seconds: &str) -> Option<String> {
    let trial = Trial::start();
    let url = format!("redis://{}", trial.addrs.join(","));
    let json = std::env::temp_dir().join(format!("portcullis-bench-nodes-{}.json", std::process::id()));
    let mut bench = program();
    bench.args(["bench", "native", "--command", "INCR {key}", "--against", &url, "--clients", "6", "--locks", "3"]);
    bench.args(["--seconds", seconds, "--slice-ms", "500", "--json"]).arg(&json);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    // The children are in the order of their numbers.
    let leader = &children(&trial.child)[trial.leader];
    assert!(Command::new("kill").args(["-KILL", leader]).status().unwrap().success());
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    let outcomes = figures["results"].as_array().unwrap();
    assert_eq!(outcomes.len(), 2, "{figures}");
    for outcome in outcomes {
        assert_eq!(outcome["server_cpu_from"], "all nodes");
        assert!(outcome["server_cpu_us_each"].as_f64() > Some(0.0), "{outcome}");
    }
    assert_eq!(outcomes[0]["exclusion"]["held"], true, "{figures}");
    let little = outcomes.iter().find(|outcome| outcome["done"].as_u64() <= Some(50));
    little.map(ToString::to_string)
}

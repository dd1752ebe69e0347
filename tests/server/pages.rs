//! The completions and man pages that packages install: they name every subcommand.

use std::collections::BTreeSet;
use std::process::Command;

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_portcullis")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The subcommands that the help of a command lists.
fn subcommands(command: &[&str]) -> Vec<String> {
    let help = run(&[command, &["--help"]].concat());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn completions_name_every_subcommand_and_flags_of_the_server() {
    let names = subcommands(&[]);
    assert!(names.iter().any(|name| name == "serve") && names.iter().any(|name| name == "completions"), "{names:?}");
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]);
        for name in names.iter().chain(&subcommands(&["cluster"])) {
            assert!(text.contains(name.as_str()), "the completions of {shell} lack {name}");
        }
        for flag in ["appendonly", "ready-file"] {
            assert!(text.contains(flag), "the completions of {shell} lack {flag}");
        }
    }
    let wrong = Command::new(env!("CARGO_BIN_EXE_portcullis")).args(["completions", "tcsh"]).output().unwrap();
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("bash, zsh, fish"), "{told}");
}

#[test]
fn each_subcommand_has_a_man_page() {
    let dir = std::env::temp_dir().join(format!("portcullis-{}-man", std::process::id()));
    run(&["man", dir.to_str().unwrap()]);
    let found: BTreeSet<String> =
        std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let first = std::fs::read_to_string(dir.join("portcullis.1")).unwrap();
    let serve = std::fs::read_to_string(dir.join("portcullis-serve.1")).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let names = subcommands(&[]);
    let mut expected: BTreeSet<String> = names.iter().map(|name| format!("portcullis-{name}.1")).collect();
    expected.extend(subcommands(&["cluster"]).iter().map(|name| format!("portcullis-cluster-{name}.1")));
    expected.insert("portcullis.1".to_owned());
    assert_eq!(found, expected);
    for name in &names {
        assert!(first.contains(&format!("portcullis\\-{name}(1)")), "portcullis.1 lacks {name}");
    }
    assert!(serve.contains("appendonly") && serve.contains(".TH portcullis-serve 1"), "{serve:.300}");
}

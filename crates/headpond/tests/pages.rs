//! Manual pages, completions and the configuration's check: made from the command's own definitions.

mod common;

use std::fs;

use common::Yard;

/// The names of the subcommands that `--help` shows.
fn commands(yard: &Yard) -> Vec<String> {
    let help = yard.run(&["--help"]).good().out;
    let list = help.split_once("Commands:\n").unwrap().1;
    list.lines().take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_command_has_a_manual_page_and_is_completed() {
    let yard = Yard::new();
    yard.run(&["man", "--out", "man"]).good();
    let bash = yard.run(&["completions", "bash"]).good().out;
    let commands = commands(&yard);
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands.iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(yard.path(&format!("man/headpond-{command}.1")))
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{page}");
        assert!(bash.contains(&format!("headpond,{command})")), "{command} is not completed");
    }
    let page = fs::read_to_string(yard.path("man/headpond.1")).unwrap();
    assert!(page.contains("SSD block cache") && page.contains("Exit codes"), "{page}");
    for shell in ["zsh", "fish"] {
        assert!(yard.run(&["completions", shell]).good().out.contains("writeback"));
    }
    yard.run(&["completions", "cmd.exe"]).said(2, &["cmd.exe"]);
}

#[test]
fn a_configuration_is_checked_without_starting_anything() {
    let yard = Yard::new();
    fs::write(yard.path("good"), "devices = ['a', 'b']\n[metrics]\nlisten = '127.0.0.1:9712'\n").unwrap();
    assert!(yard.run(&["config", "check", "good"]).good().out.contains("good: understood; 2 cache devices"));
    let value: serde_json::Value = serde_json::from_str(&yard.run(&["config", "check", "good", "--json"]).good().out).unwrap();
    assert_eq!(value["metrics"], "127.0.0.1:9712");
    for (text, said) in [
        ("devices = ['a']\nfrontend = 'ublk'\nnbd = 'x'\n", "An NBD socket is named"),
        ("state = 'x'\n", "names no cache devices"),
        ("devices = ['a']\n[metrics]\nlisten = 'localhost'\n", "line 3"),
        ("devices = ['a']\nqueue = 1\n", "queue"),
    ] {
        fs::write(yard.path("bad"), text).unwrap();
        yard.run(&["config", "check", "bad"]).said(2, &[said, "othing was done"]);
    }
    yard.run(&["config", "check", "missing"]).said(2, &["missing cannot be read", "Nothing was done"]);
}

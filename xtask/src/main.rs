//! Chores: `cargo xtask test` runs all that must hold, `cargo xtask planted` plants mistakes and wants them found.

mod boundaries;
mod capi;
mod day;
mod deb;
mod fuzz;
mod hammer;
mod headpond;
mod mistakes;
mod mutations;
mod named;
mod planted;
mod steps;
mod test;
mod tools;
mod udev;
mod vm;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test [--seed-base N]        install what the tests need (as root), then run all that must hold
cargo xtask planted [--list] [..]       plant mistakes in a copy of the engine; scenes and seeds must find each
cargo xtask hammer [--list] [..]        the daemon under fio, qemu-io, nbdcopy and file systems, killed again and again
cargo xtask day [--markdown FILE] [..]  an operator's day, from making a pool to taking it apart, under a checked load (as root)
cargo xtask fuzz [--list] [..]          libFuzzer over media, sockets and clients; --stable does without a nightly compiler
cargo xtask vm [--list] [--short] [..]  the daemon in a virtual machine: killed, its power cut, its drives failing
cargo xtask peers [--list] [--short]..  the kernel's own caches and Headpond on the same drives, in a virtual machine
cargo xtask deb [--check] [..]          the Debian package; --check installs, upgrades and removes it in a folder (as root)
cargo xtask capi                        the library for C, and its example compiled and run
cargo xtask udev                        the rules of udev, over loop devices (as root); what the guides give systemd
cargo xtask unit                        how much the systemd unit exposes
cargo xtask boundaries                  check that format and engine know nothing of the host";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("test", rest)) => test::run(rest),
        Some(("planted", rest)) => planted::run(rest),
        Some(("hammer", rest)) => hammer::run(rest),
        Some(("day", rest)) => day::run(rest),
        Some(("fuzz", rest)) => fuzz::run(rest),
        Some(("vm", rest)) => vm::run(rest),
        Some(("peers", rest)) => vm::peers::run(rest),
        // What the rig runs in its guest.
        Some(("guest", rest)) => vm::load::run(rest),
        Some(("deb", rest)) => deb::make(rest),
        Some(("capi", [])) => capi::run_all(),
        Some(("udev", [])) => udev::check(None),
        Some(("unit", [])) => deb::unit(),
        Some(("boundaries", [])) => boundaries::check(),
        Some(("help" | "--help" | "-h", _)) => {
            println!("{HELP}");
            Ok(())
        }
        _ => bail!("no such chore\n{HELP}"),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

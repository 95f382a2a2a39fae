//! The subcommands, one file each.

pub mod attach;
pub mod bench;
pub mod check;
pub mod config;
pub mod demo;
pub mod detach;
pub mod dump;
pub mod events;
mod exhaustive;
pub mod experiments;
pub mod flush;
pub mod grow;
pub mod histogram;
pub mod list_damaged;
pub mod mode;
pub mod modelled_devices;
mod offline;
pub mod pages;
pub mod pin;
mod plain;
pub mod pool;
pub mod preload;
pub mod repair;
pub mod scrub;
pub mod serve;
pub mod share;
mod shrink;
pub mod sim;
pub mod stat;
pub mod status;
pub mod targets;
pub mod top;
pub mod udev_name;
pub mod upgrade;
pub mod volume;
pub mod writeback;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use headpond_host::control::{self, Call, CallError};
use headpond_host::daemon::run_folder;
use headpond_host::names;
use headpond_host::report::Report;
use serde_json::{Value, json};

use crate::exit::{Found, Usage};
use crate::size;

/// Which daemon is meant.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// The daemon of the pool with this name
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    pool: Option<String>,
    /// The daemon with this control socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Which {
    /// Its control socket; if none was named, that of the only daemon that there is. For what changes anything it has to be the only one that there
    /// was, too: another one may be about to start again, and be the one that is meant.
    fn path(&self, call: &Call) -> anyhow::Result<PathBuf> {
        self.path_in(run_folder(), call)
    }

    fn path_in(&self, folder: PathBuf, call: &Call) -> anyhow::Result<PathBuf> {
        match (&self.socket, &self.pool) {
            (Some(socket), _) => return Ok(socket.clone()),
            (None, Some(pool)) => return Ok(folder.join(format!("{pool}.sock"))),
            (None, None) => {}
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let sockets: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect();
        Ok(only(sockets, !call.only_asks())?.ok_or(CallError::NoneRuns(folder))?)
    }

    /// The same daemon for all that is asked, whichever others come and go meanwhile.
    fn settled(&self) -> anyhow::Result<Which> {
        Ok(Which { pool: None, socket: Some(self.path(&Call::Status)?) })
    }

    /// How it stands; fails if it has not the volume that is named.
    pub fn report(&self, volume: Option<&str>) -> anyhow::Result<Report> {
        let report: Report = serde_json::from_value(self.call(&Call::Status)?)?;
        if let Some(name) = volume
            && report.volumes.iter().all(|volume| volume.name != *name)
        {
            let names: Vec<&str> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(
                Usage(format!("There is no volume {name} on pool {}. Choose one of its volumes: {names}", report.pool)).into()
            );
        }
        Ok(report)
    }

    /// Asks it how it stands, and waits so long at most.
    pub fn status_within(&self, limit: Duration) -> anyhow::Result<Value> {
        Ok(control::call_within(&self.path(&Call::Status)?, &Call::Status, Some(limit), |_| ())?)
    }

    /// Asks it, and shows how far it is where somebody looks.
    pub fn call(&self, call: &Call) -> anyhow::Result<Value> {
        let mut shown = false;
        let answer = control::call(&self.path(call)?, call, |progress| {
            if std::io::stderr().is_terminal() {
                shown = true;
                eprint!("\r\x1b[K{}", show_progress(&progress));
                let _ = std::io::stderr().flush();
            }
        });
        if shown {
            eprint!("\r\x1b[K");
        }
        Ok(answer?)
    }
}

/// The socket of the only daemon; if none is there, one of those that dead ones have left. Where `dead_ones_count`, they are daemons too.
fn only(sockets: Vec<PathBuf>, dead_ones_count: bool) -> Result<Option<PathBuf>, Usage> {
    if sockets.len() < 2 {
        return Ok(sockets.into_iter().next());
    }
    let there: Vec<&PathBuf> = sockets.iter().filter(|path| dead_ones_count || control::is_there(path)).collect();
    match &there[..] {
        [] => Ok(sockets.into_iter().next()),
        [only] => Ok(Some((*only).clone())),
        several => {
            let pools = several.iter().filter_map(|path| Some(path.file_stem()?.display().to_string()));
            let pools = pools.collect::<Vec<_>>().join(", ");
            let folder = sockets.first().and_then(|path| path.parent()).map(|it| it.display().to_string()).unwrap_or_default();
            let (run, gone) = match dead_ones_count {
                true => {
                    ("run here, or have run", format!(". Of one that is gone for good the socket, in {folder}, may be removed"))
                }
                false => ("run here", String::new()),
            };
            Err(Usage(format!("Several daemons {run}. Nothing was done. Choose one with --pool: {pools}{gone}")))
        }
    }
}

fn show_progress(progress: &Value) -> String {
    if let (Some(read), Some(all)) = (progress["segments_read"].as_u64(), progress["segments"].as_u64()) {
        let left = progress["seconds_left"].as_f64().map(|seconds| format!(", about {seconds} s left")).unwrap_or_default();
        return format!("{read} of {all} segments read, {} copies damaged{left}", progress["damaged"]);
    }
    if let (Some(done), Some(all)) = (progress["preloaded_bytes"].as_u64(), progress["bytes"].as_u64()) {
        let left = progress["seconds_left"].as_f64().map(|seconds| format!(", about {seconds} s left")).unwrap_or_default();
        return format!("{} of {} looked at{left}", size::show(done), size::show(all));
    }
    let left = size::show(progress["dirty_bytes"].as_u64().unwrap_or(0));
    match progress["seconds_left"].as_f64() {
        Some(seconds) => format!("{left} left to write, about {seconds} s"),
        None => format!("{left} left to write"),
    }
}

/// How long a command may take, in whole seconds: at least one.
pub fn deadline(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        Ok(_) => Err("less than a second is no time: give at least 1s".into()),
        Err(error) => Err(format!("{error}: give a time such as 90s, 5m or 2h")),
    }
}

/// The pool whose daemon has answered, for people.
fn pool_of(answer: &Value) -> String {
    answer["pool"].as_str().map_or("the pool".into(), |pool| format!("pool {pool}"))
}

/// Where udev has the rule that gives volumes names that last.
const RULES: [&str; 3] =
    ["/etc/udev/rules.d/61-headpond.rules", "/usr/lib/udev/rules.d/61-headpond.rules", "/lib/udev/rules.d/61-headpond.rules"];
/// How long udev may take to name a new device.
const NAMED: Duration = Duration::from_secs(2);

/// Where a new volume is, for people: by the name that lasts, which is waited for where udev is to make it, and which the answer has then, too.
fn place_of_new(answer: &mut Value, volume: &str) -> String {
    let Some(place) = answer["place"].as_str() else { return String::new() };
    let pool = answer["pool"].as_str().unwrap_or_default();
    let has_rule = || Path::new("/run/udev/control").exists() && RULES.iter().any(|rule| Path::new(rule).exists());
    let limit = if place.starts_with("/dev/") && has_rule() { NAMED } else { Duration::ZERO };
    let begun = Instant::now();
    let link = loop {
        let link = names::lasting(pool, volume, place);
        if link.is_some() || begun.elapsed() >= limit {
            break link;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let text = format!(" at {}", link.as_deref().unwrap_or(place));
    answer["link"] = json!(link);
    text
}

/// Fails where the daemon did what it was asked, but for what it says is wrong with it.
pub fn whole(problem: &Value) -> anyhow::Result<()> {
    match (problem["wrong"].as_str(), problem["next"].as_str()) {
        (Some(wrong), Some(next)) => Err(Found(format!("{wrong} {next}")).into()),
        _ => Ok(()),
    }
}

/// Prints a line, or what it is about as JSON.
pub fn print(json: bool, value: &Value, line: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match json {
        true => writeln!(out, "{value}")?,
        false => writeln!(out, "{line}")?,
    }
    Ok(out.flush()?)
}

/// The same of what did not come out well, perhaps: that is said, and ends with its code, whether or not anybody reads the output any more.
pub fn print_and_judge(
    json: bool,
    value: &Value,
    line: impl std::fmt::Display,
    verdict: anyhow::Result<()>,
) -> anyhow::Result<()> {
    let printed = print(json, value, line);
    verdict.and(printed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The socket of a pool POOL was said not to answer.
    #[test]
    fn where_no_daemon_has_a_socket_the_folder_is_named_and_what_tells_of_a_service() {
        let folder = tempfile::tempdir().unwrap();
        let which = Which { pool: None, socket: None };
        let error = which.path_in(folder.path().to_owned(), &Call::Status).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(&folder.path().display().to_string()) && !said.contains("POOL"), "{said}");
        assert!(said.contains("systemctl status headpond@NAME") && said.contains("journalctl -u headpond@NAME"), "{said}");
        let code = crate::exit::code_said(Err(error), |_| ());
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::from(4)));
        let which = Which { pool: Some("tank".into()), socket: None };
        assert_eq!(which.path_in("/run/x".into(), &Call::Checkpoint).unwrap(), Path::new("/run/x/tank.sock"));
    }

    /// A daemon that was killed counted, and each command asked for `--pool`.
    #[test]
    fn a_socket_that_a_dead_daemon_left_is_no_daemon_but_for_what_changes_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(path("dead.sock")).unwrap());
        // What another test starts at this moment has a copy of it, up to its exec.
        while control::is_there(&path("dead.sock")) {
            std::thread::yield_now();
        }
        let of = |names: &[&str], changes| only(names.iter().map(|name| path(name)).collect(), changes);
        assert_eq!(of(&["dead.sock"], false).unwrap(), Some(path("dead.sock")));
        let _one = UnixListener::bind(path("one.sock")).unwrap();
        assert_eq!(of(&["dead.sock", "one.sock"], false).unwrap(), Some(path("one.sock")));
        assert_eq!(of(&["one.sock"], true).unwrap(), Some(path("one.sock")));
        // It may be about to start again, and be the one that is meant.
        let said = of(&["dead.sock", "one.sock"], true).unwrap_err().to_string();
        assert!(said.contains("dead, one"), "{said}");
        let which = Which { pool: None, socket: None };
        let asked = |call: &Call| which.path_in(folder.path().to_owned(), call);
        assert_eq!(asked(&Call::Status).unwrap(), path("one.sock"));
        for call in [Call::Checkpoint, Call::Cancel { name: "v".into() }, Call::RemoveMember { member: "0".into() }] {
            let said = asked(&call).unwrap_err().to_string();
            assert!(said.contains("dead") && said.contains("one") && said.contains("--pool"), "{said}");
        }
        let _two = UnixListener::bind(path("two.sock")).unwrap();
        let said = of(&["dead.sock", "one.sock", "two.sock"], false).unwrap_err().to_string();
        assert!(said.contains("one, two") && !said.contains("dead"), "{said}");
        assert_eq!(of(&[], true).unwrap(), None);
    }
}

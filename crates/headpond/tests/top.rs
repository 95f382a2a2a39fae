//! `headpond top` in a terminal emulator, against a daemon under load.

mod common;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{LONG, MIB, Yard, have_with, served};

/// A terminal of a size, in a server of its own, gone at its end.
struct Tmux<'a> {
    yard: &'a Yard,
    name: String,
}

impl<'a> Tmux<'a> {
    fn start(yard: &'a Yard, name: &str, columns: u16, rows: u16) -> Tmux<'a> {
        let tmux = Tmux { yard, name: format!("tmux-{name}") };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, "env PS1='prompt$ ' sh"]);
        tmux.until("prompt$");
        tmux
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.yard.path(&self.name)).args(args).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let output = command.arg(";").output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn screen(&self) -> String {
        String::from_utf8(self.run(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// The screen as soon as it has all of these words.
    fn until(&self, text: &str) -> String {
        self.until_that(text, |screen| screen.contains(text))
    }

    fn until_that(&self, what: &str, mut good: impl FnMut(&str) -> bool) -> String {
        let until = Instant::now() + LONG;
        loop {
            let screen = self.screen();
            if good(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "no {what} in:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The program that the shell runs in the foreground.
    fn program(&self) -> String {
        let shell = String::from_utf8(self.run(&["display-message", "-p", "#{pane_pid}"]).stdout).unwrap();
        let shell = shell.trim();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        children.split_whitespace().next().unwrap().to_owned()
    }

    fn types(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.yard.path(&self.name)).arg("kill-server").output();
    }
}

/// The number at a word of the row that begins with `name`, below the heading `column`.
fn figure(screen: &str, name: &str, position: usize) -> Option<f64> {
    let row = screen.lines().find(|line| line.trim_start().starts_with(name))?;
    row.trim_start().strip_prefix(name)?.split_whitespace().nth(position)?.parse().ok()
}

fn moves_at(columns: u16, rows: u16) {
    if !have_with("tmux", "-V") {
        return;
    }
    let yard = Yard::new();
    let daemon = served(&yard);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut nbd = yard.nbd("v");
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let at = n.wrapping_mul(0x9E37_79B9) % 1024 * 4096;
                let mut asks = nbd.read(at, 4096).map(drop);
                if n.is_multiple_of(2) {
                    asks = asks.and_then(|()| nbd.write(at, &[n as u8; 512], false));
                }
                if n.is_multiple_of(64) {
                    asks = asks.and_then(|()| nbd.flush());
                }
                if asks.is_err() {
                    // The daemon was killed, below.
                    return;
                }
            }
        });
        // Whatever fails below, the load ends.
        let _ends = Ends(&stop);
        let tmux = Tmux::start(&yard, "view", columns, rows);
        let binary = env!("CARGO_BIN_EXE_headpond");
        tmux.types(&[&format!("{binary} top --socket {}", yard.path("control").display()), "Enter"]);
        let loaded = |screen: &str| figure(screen, "v ", 0).is_some_and(|reads| reads > 10.0);
        let first = tmux.until_that("load", loaded);
        let again =
            tmux.until_that("figure that moved", |screen| loaded(screen) && figure(screen, "v ", 0) != figure(&first, "v ", 0));
        println!("{first}\n{again}");
        // What must be on any screen: state, volumes, fates with reasons, both histograms, devices, destage, keys.
        for part in [
            "pool pool",
            "healthy",
            "nothing is wrong",
            "read: hit",
            "read: miss",
            "write: absorbed",
            "latency",
            "4 KiB",
            "ssd 0",
            "ssd 1",
            "disk v",
            "dirty ",
            "% of the room",
            "q quits",
        ] {
            assert!(again.contains(part), "no {part:?} in:\n{again}");
        }
        assert!(figure(&again, "write: absorbed", 0).unwrap() > 0.0 && figure(&again, "ssd 1", 2).unwrap() > 0.0, "{again}");
        assert!(again.matches('█').count() > 4, "the histograms have bars:\n{again}");
        assert!(again.lines().count() <= usize::from(rows) && again.lines().all(|l| l.chars().count() <= usize::from(columns)));
        if columns >= 200 {
            assert!(again.contains("reads/s, up to") && again.contains("writes/s, up to"), "{again}");
        }
        // An administrator sees a daemon that is gone, and the terminal is as it was afterwards.
        daemon.kill();
        stop.store(true, Ordering::Relaxed);
        tmux.until("No daemon answers");
        tmux.types(&["q"]);
        // The first is on the screen as soon as that is back, and the shell not there yet.
        let after = tmux.until_that("prompt again", |screen| screen.matches("prompt$").count() >= 2);
        assert!(!after.contains("q quits") && after.contains("top --socket"), "the screen is back:\n{after}");
        tmux.types(&["stty -a | grep -o ' [-]*icanon'", "Enter"]);
        tmux.until_that("line editing", |screen| screen.lines().any(|line| line == " icanon"));
    });
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_view_shows_what_moves_on_80x24() {
    moves_at(80, 24);
}

#[test]
fn the_view_shows_what_moves_on_200x50() {
    moves_at(200, 50);
}

#[test]
fn a_signal_gives_the_terminal_back() {
    if !have_with("tmux", "-V") {
        return;
    }
    let yard = Yard::new();
    let _daemon = served(&yard);
    for signal in ["TERM", "INT", "HUP"] {
        let tmux = Tmux::start(&yard, signal, 80, 24);
        let binary = env!("CARGO_BIN_EXE_headpond");
        tmux.types(&[&format!("{binary} top --socket {}", yard.path("control").display()), "Enter"]);
        tmux.until("q quits");
        let pid = tmux.program();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let after = tmux.until_that("prompt again", |screen| screen.matches("prompt$").count() >= 2);
        assert!(!after.contains("q quits"), "{signal}:\n{after}");
    }
}

/// Neither q nor Ctrl-C was heard, and the terminal was in raw mode.
#[test]
fn keys_are_heard_while_the_daemon_is_stopped() {
    if !have_with("tmux", "-V") {
        return;
    }
    let yard = Yard::new();
    let daemon = served(&yard);
    let tmux = Tmux::start(&yard, "stopped", 80, 24);
    let binary = env!("CARGO_BIN_EXE_headpond");
    tmux.types(&[&format!("{binary} top --socket {}", yard.path("control").display()), "Enter"]);
    tmux.until("q quits");
    daemon.signal("STOP");
    tmux.until("No answer for");
    tmux.types(&["q"]);
    let after = tmux.until_that("prompt again", |screen| screen.matches("prompt$").count() >= 2);
    assert!(!after.contains("q quits"), "{after}");
    // It is waited for no longer than was said.
    let begun = Instant::now();
    yard.run(&["status", "--wait", "2s"]).said(1, &["has not answered within", "may be stopped", "Nothing was changed"]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    daemon.signal("CONT");
    yard.run(&["status", "--wait", "20s"]).told(&["healthy"]);
    daemon.stop();
}

/// It went on and read, as fast as it could, from a terminal that was not there any more.
#[test]
fn it_ends_with_its_terminal() {
    if !have_with("tmux", "-V") {
        return;
    }
    let yard = Yard::new();
    let _daemon = served(&yard);
    let tmux = Tmux::start(&yard, "ends", 80, 24);
    tmux.types(&[&format!("{} top --socket {}", env!("CARGO_BIN_EXE_headpond"), yard.path("control").display()), "Enter"]);
    tmux.until("q quits");
    let pid = tmux.program();
    drop(tmux);
    let until = Instant::now() + LONG;
    // Of one that has ended and that nobody has asked for there is no command line any more.
    while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < until, "process {pid} is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn without_a_terminal_it_names_what_does_without_one() {
    let yard = Yard::new();
    yard.file("disk", MIB);
    yard.run(&["top", "--socket", "control"]).said(2, &["no terminal", "headpond stat 1"]);
}

#[test]
fn what_is_on_the_cache_devices_alone_is_nobodys_disk_and_waits_for_none() {
    if !have_with("tmux", "-V") {
        return;
    }
    let yard = Yard::new();
    yard.pool();
    let _daemon = yard.serve(&["a", "b"]);
    yard.run(&["volume", "create", "j", "--size", "4MiB"]).good();
    yard.nbd("j").write(0, &[7; 65536], true).unwrap();
    let tmux = Tmux::start(&yard, "alone", 80, 24);
    tmux.types(&[&format!("{} top --socket {}", env!("CARGO_BIN_EXE_headpond"), yard.path("control").display()), "Enter"]);
    let screen = tmux.until("nothing waits for the disks");
    assert!(screen.contains("dirty 0 B") && screen.contains("ssd 1"), "{screen}");
    assert!(!screen.contains("disk j") && !screen.contains("all is on the disks"), "{screen}");
    println!("{screen}");
}

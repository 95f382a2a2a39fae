//! Another program goes on in a daemon's place, in the same process; what cannot is found out before anything is changed.

mod common;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{MIB, Yard};
use headpond_host::report::Report;

fn report(yard: &Yard) -> Report {
    serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap()
}

/// A copy of the program: a newer one would be a file of its own too.
fn copy(yard: &Yard) -> String {
    let copy = yard.path("newer");
    let made = Command::new("cp").arg(env!("CARGO_BIN_EXE_headpond")).arg(&copy).status().unwrap();
    assert!(made.success(), "{made}");
    copy.display().to_string()
}

/// A script that can be run, written by another program, as the copy is: nothing runs that is open for writing, and what another test starts has
/// copies of all that is open here, up to its exec.
fn script(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let made = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap();
    assert!(made.success(), "{made}");
}

fn program_of(process: u32) -> String {
    fs::read_link(format!("/proc/{process}/exe")).unwrap().display().to_string()
}

#[test]
fn another_program_goes_on_in_the_same_process_with_all_that_was_written() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 64 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.run(&["pin", "v:0+1MiB"]).good();
    let mut nbd = yard.nbd("v");
    for n in 0..64 {
        // No flush: what was acknowledged is enough.
        nbd.write(n * 7 % 64 * 65536, &[n as u8 + 1; 4096], false).unwrap();
    }
    drop(nbd);
    let before = report(&yard);
    let newer = copy(&yard);
    yard.run(&["upgrade", "--program", &newer]).said(3, &["would be cut", "--cut"]);
    yard.run(&["upgrade", "--program", &newer, "--cut"]).told(&["pool pool is served by Headpond", "I/O waited for"]);
    let after = report(&yard);
    assert_eq!((after.process, program_of(after.process)), (before.process, newer));
    assert!(after.pause_seconds.is_some_and(|pause| pause < 10.0), "{after:?}");
    assert_eq!(after.volumes[0].pinned_bytes, MIB);
    let mut nbd = yard.nbd("v");
    for n in 0..64 {
        assert!(nbd.read(n * 7 % 64 * 65536, 4096).unwrap() == [n as u8 + 1; 4096], "block {n}");
    }
    drop(nbd);
    yard.run(&["events"]).told(&["is handed over to", "is served by Headpond"]);
    yard.run(&["detach", "v"]).good();
    // It ends as the first one would have.
    daemon.stop();
}

#[test]
fn a_program_that_would_not_serve_the_pool_changes_nothing() {
    let yard = Yard::new();
    yard.pool();
    let daemon = yard.serve(&["a", "b"]);
    let before = report(&yard);
    let refuses = yard.path("refuses");
    script(&refuses, "#!/bin/sh\necho I am too old >&2\nexit 1\n");
    let upgrade = |program: &Path| yard.run(&["upgrade", "--cut", "--program", &program.display().to_string()]);
    upgrade(&refuses).said(1, &["would not serve this pool: I am too old", "goes on", "Use another version"]);
    // It ends well whatever it is asked, as `true` does.
    let says_yes = |what: &str| script(&refuses, &format!("#!/bin/sh\necho {what}\n"));
    says_yes("");
    upgrade(&refuses).said(1, &["is no Headpond that could take over", "goes on", "Name another program"]);
    says_yes("headpond 9.9.9 takes over by protocol 99");
    upgrade(&refuses).said(1, &["is Headpond 9.9.9, which takes over by protocol 99", "goes on"]);
    upgrade(&yard.path("none")).said(1, &["cannot be run", "goes on"]);
    let after = report(&yard);
    assert_eq!((after.process, after.pause_seconds), (before.process, None));
    daemon.stop();
}

/// It understands the command line, and cannot be run when its time comes: the daemon goes on itself.
#[test]
fn a_program_that_is_gone_when_its_time_comes_leaves_the_pool_served() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    let vanishes = yard.path("vanishes");
    script(&vanishes, "#!/bin/sh\nrm \"$0\"\necho headpond 9.9.9 takes over by protocol 2\n");
    yard.nbd("v").write(0, &[7; 4096], false).unwrap();
    let before = report(&yard);
    yard.run(&["upgrade", "--cut", "--program", &vanishes.display().to_string()]).good();
    let after = report(&yard);
    assert_eq!((after.process, program_of(after.process)), (before.process, env!("CARGO_BIN_EXE_headpond").to_owned()));
    assert!(daemon.complaints().contains("could not be started"), "{}", daemon.complaints());
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

/// The log said that the pool was handed over, and of a daemon that was killed later the next start told as of one that had ended well.
#[test]
fn an_upgrade_that_is_refused_when_its_program_was_tried_is_not_told_of_as_a_hand_over() {
    let yard = Yard::new();
    yard.pool();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let daemon = yard.serve(&["a", "b"]);
    let (slow, tried, go) = (yard.path("slow"), yard.path("tried"), yard.path("go"));
    let wait = format!("touch {}; while ! test -e {}; do sleep 0.1; done", tried.display(), go.display());
    script(&slow, &format!("#!/bin/sh\n{wait}\necho headpond 9.9.9 takes over by protocol 2\n"));
    disk.fall_silent();
    thread::scope(|scope| {
        let upgrade = scope.spawn(|| yard.run(&["upgrade", "--cut", "--program", &slow.display().to_string()]));
        while !tried.exists() && !upgrade.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        // It is asked for ten seconds.
        let add = scope.spawn(|| yard.run(&["pool", "add", &disk.path().display().to_string()]));
        thread::sleep(Duration::from_secs(2));
        fs::write(&go, "").unwrap();
        upgrade.join().unwrap().said(1, &["A cache device is being added or removed", "goes on as it was"]);
        disk.speak();
        add.join().unwrap();
    });
    let kinds = || {
        let events = yard.run(&["events", "--json"]).good().out;
        let kind = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"].as_str().unwrap().to_owned();
        events.lines().map(kind).collect::<Vec<_>>()
    };
    let told = kinds();
    assert_eq!(told.iter().rfind(|kind| kind.ends_with("handed-over")).unwrap(), "not-handed-over", "{told:?}");
    daemon.kill();
    let _daemon = yard.serve(&["a", "b"]);
    let kinds = kinds();
    assert!(kinds.iter().any(|kind| kind == "restarted-after-crash"), "{kinds:?}");
}

/// Nothing was heard of it for two minutes.
#[test]
fn a_program_that_ends_instead_of_serving_is_told_of_at_once() {
    let yard = Yard::new();
    yard.pool();
    let daemon = yard.serve(&["a", "b"]);
    let ends = yard.path("ends");
    script(&ends, "#!/bin/sh\ncase \"$*\" in *--try*) echo headpond 9.9.9 takes over by protocol 2;; *) exit 1;; esac\n");
    let begun = Instant::now();
    yard.run(&["upgrade", "--cut", "--program", &ends.display().to_string()])
        .said(1, &["ended before it served pool pool", "is on the cache devices", "start the version before"]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(daemon);
    yard.serve(&["a", "b"]).stop();
}

/// Whoever started it read its first line and went away.
#[test]
fn a_successor_that_nobody_listens_to_serves_on() {
    let yard = Yard::new();
    yard.pool();
    let mut first = Command::new(env!("CARGO_BIN_EXE_headpond"))
        .args(["serve", "a", "b", "--frontend", "none", "--socket", "control", "--state", "state"])
        .current_dir(yard.path(""))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("pool pool is up"), "{line}");
    let newer = copy(&yard);
    yard.run(&["upgrade", "--program", &newer]).told(&["is served by Headpond"]);
    assert_eq!(program_of(report(&yard).process), newer);
    assert_eq!(first.id(), report(&yard).process);
    first.kill().unwrap();
    first.wait().unwrap();
}

/// What it was to be tried by came behind the dashes, where it was one more device.
#[test]
fn a_daemon_whose_devices_are_named_behind_two_dashes_is_upgraded() {
    let yard = Yard::new();
    yard.pool();
    let serve = ["--frontend", "none", "--socket", "control", "--state", "state", "--", "a", "b"];
    let daemon = yard.serve_with(&serve).unwrap();
    yard.run(&["upgrade", "--program", &copy(&yard)]).told(&["is served by Headpond"]);
    daemon.stop();
}

/// It was handed over to a program that refused to start: nobody served the pool any more.
#[test]
fn an_upgrade_is_refused_while_the_command_line_names_a_device_that_was_replaced() {
    let yard = Yard::new();
    yard.pool();
    for name in ["c", "disk"] {
        yard.file(name, 64 * MIB);
    }
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[7; 4096], false).unwrap();
    yard.run(&["pool", "replace", "0", "c"]).good();
    let before = report(&yard);
    let newer = copy(&yard);
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", &newer]);
    upgrade().said(1, &["a is no cache device of a pool", "The daemon goes on as it was", "a restart with another one"]);
    // What another pool has by now is refused as well.
    yard.run(&["pool", "create", "other", "a", "--copies", "1"]).good();
    upgrade().said(1, &["to pool other", "The daemon goes on as it was"]);
    let after = report(&yard);
    assert_eq!((after.process, after.pause_seconds, after.degraded), (before.process, None, false));
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
    // A configuration can be put right while the daemon runs.
    fs::write(yard.path("toml"), "devices = ['b', 'c']\n").unwrap();
    let daemon = yard.serve(&["--config", "toml"]);
    yard.run(&["pool", "replace", "b", "a", "--force"]).good();
    upgrade().said(1, &["b is no cache device of a pool"]);
    fs::write(yard.path("toml"), "devices = ['a', 'c']\n").unwrap();
    upgrade().told(&["is served by Headpond"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

/// The same for a volume; and a daemon that crashed after a volume of its configuration was detached served none of the others.
#[test]
fn a_volume_that_was_detached_is_refused_on_the_command_line_and_passed_over_in_the_configuration() {
    let yard = Yard::new();
    yard.pool();
    for name in ["disk", "other"] {
        yard.file(name, 64 * MIB);
    }
    let daemon = yard.serve(&["a", "b"]);
    for (name, disk) in [("v", "disk"), ("w", "other")] {
        yard.run(&["attach", name, disk]).good();
    }
    yard.nbd("w").write(0, &[7; 4096], false).unwrap();
    daemon.stop();
    let newer = copy(&yard);
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", &newer]);
    let daemon = yard.serve(&["a", "b", "--backing", "v=disk"]);
    yard.run(&["detach", "v"]).good();
    upgrade().said(1, &["no volume v", "The daemon goes on as it was", "a restart with another one"]);
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
    daemon.kill();
    yard.try_serve(&["a", "b", "--backing", "v=disk"]).err().expect("v is no volume").said(2, &["no volume v"]);
    fs::write(yard.path("toml"), "[backing]\nv = 'disk'\nw = 'other'\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    let said = daemon.complaints();
    assert!(said.contains("backing device of volume v, which is not the pool's") && said.contains("[backing]"), "{said}");
    assert!(!said.contains("volume w"), "{said}");
    upgrade().told(&["is served by Headpond"]);
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

/// Each upgrade started without whatever was missing by the command line's word: a device that had been added since was not looked for.
#[test]
fn what_is_missing_is_given_up_at_the_start_that_was_told_so_and_not_at_an_upgrade() {
    let yard = Yard::new();
    yard.pool();
    for name in ["c", "disk"] {
        yard.file(name, 64 * MIB);
    }
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[7; 4096], false).unwrap();
    daemon.stop();
    fs::remove_file(yard.path("b")).unwrap();
    let daemon = yard.serve(&["a", "--without-missing"]);
    yard.run(&["pool", "add", "c"]).good();
    let newer = copy(&yard);
    yard.run(&["upgrade", "--cut", "--program", &newer]).told(&["is served by Headpond"]);
    assert!(daemon.complaints().contains("c is taken too"), "{}", daemon.complaints());
    yard.run(&["status"]).told(&["healthy"]);
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

/// What is tried first looked at devices and names alone: the program that had been handed over to refused to start.
#[test]
fn an_upgrade_is_refused_where_a_start_by_the_edited_configuration_would_fail() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 64 * MIB);
    yard.file("file", 4096);
    let set = |keys: &str, table: &str| {
        fs::write(yard.path("toml"), format!("state = 'state'\nsocket = 'control'\n{keys}\n{table}")).unwrap();
    };
    // A port that is free, and stays so until the daemon has it.
    let on_some_port = |_| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let own = format!("[metrics]\nlisten = '127.0.0.1:{port}'\n");
        set("nbd = 'nbd'", &own);
        yard.serve_with(&["a", "b", "--config", "toml"]).ok().map(|daemon| (port, own, daemon))
    };
    let (port, own, daemon) = (0..20).find_map(on_some_port).expect("a daemon with metrics");
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    nbd.write(0, &[7; 4096], false).unwrap();
    let before = report(&yard);
    let newer = copy(&yard);
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", &newer]);
    let mut refused = |keys: &str, table: &str, parts: &[&str]| {
        set(keys, table);
        upgrade().said(1, &[parts, &["The daemon goes on as it was"]].concat());
        assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    };
    refused("nbd = 'nbd'", "[metrics]\nlisten = '192.0.2.1:99'\n", &["Metrics cannot be served at 192.0.2.1:99"]);
    let others = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("[metrics]\nlisten = '{}'\n", others.local_addr().unwrap());
    refused("nbd = 'nbd'", &taken, &["Metrics cannot be served at 127.0.0.1"]);
    refused("frontend = 'none'", &own, &["reached by nbd, and would be by none", "unmount, stop the daemon"]);
    refused("nbd = 'file'", &own, &["file exists and is not a socket"]);
    fs::write(yard.path("toml"), "state = 'file'\nsocket = 'control'\nnbd = 'nbd'\n").unwrap();
    upgrade().said(1, &["The folder file cannot be used"]);
    fs::write(yard.path("toml"), "state = 'state'\nsocket = 'file/control'\nnbd = 'nbd'\n").unwrap();
    upgrade().said(1, &["cannot be used"]);
    assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    drop(nbd);
    // What it has itself, whoever takes over has.
    set("nbd = 'nbd'", &own);
    upgrade().told(&["is served by Headpond"]);
    assert_eq!((report(&yard).process, yard.nbd("v").read(0, 4096).unwrap()), (before.process, vec![7; 4096]));
    let (status, metrics) = common::http::get(&format!("127.0.0.1:{port}"), "/metrics");
    assert!(status == 200 && metrics.contains("headpond_"), "{status}: {metrics}");
    daemon.stop();
}

/// Loop devices ended with I/O errors where the configuration said another front end by then.
#[test]
fn a_front_end_that_clients_have_open_is_not_changed_by_an_upgrade() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 64 * MIB);
    let set = |text: &str| fs::write(yard.path("toml"), format!("state = 'state'\nsocket = 'control'\n{text}")).unwrap();
    set("frontend = 'fuse'\n");
    let daemon = yard.serve_with(&["a", "b", "--config", "toml"]).unwrap();
    let newer = copy(&yard);
    yard.run(&["attach", "v", "disk"]).good();
    let place = report(&yard).volumes[0].place.clone().unwrap();
    let device = OpenOptions::new().write(true).open(&place).unwrap();
    // Down to the daemon: errors come with the flush.
    let goes_on = || {
        device.write_all_at(&[7; 4096], 0).unwrap();
        device.sync_all().unwrap();
    };
    goes_on();
    let upgrade = || yard.run(&["upgrade", "--program", &newer]);
    set("frontend = 'nbd'\n");
    upgrade().said(1, &["reached by fuse, and would be by nbd", "The daemon goes on as it was"]);
    goes_on();
    set("frontend = 'fuse'\n[metrics]\nlisten = '192.0.2.1:99'\n");
    upgrade().said(1, &["Metrics cannot be served at 192.0.2.1:99", "The daemon goes on as it was"]);
    goes_on();
    // Not what it would be today, but what is open.
    set("frontend = 'auto'\n");
    upgrade().told(&["is served by Headpond"]);
    goes_on();
    drop(device);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
}

/// It had ended, and clients with it.
#[test]
fn metrics_that_cannot_be_served_any_more_do_not_end_who_takes_over() {
    let yard = Yard::new();
    yard.pool();
    yard.file("disk", 4 * MIB);
    fs::write(yard.path("toml"), "").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    yard.nbd("v").write(0, &[7; 4096], false).unwrap();
    // The configuration changes between the question and the start.
    let changes = yard.path("changes");
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *--try*) ;; *) printf \"[metrics]\\nlisten = '192.0.2.1:99'\\n\" > toml;; esac\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_headpond")
    );
    script(&changes, &text);
    yard.run(&["upgrade", "--cut", "--program", &changes.display().to_string()]).told(&["is served by Headpond"]);
    let said = daemon.complaints();
    assert!(said.contains("served, but without its metrics") && said.contains("192.0.2.1:99"), "{said}");
    assert_eq!(yard.nbd("v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

/// The program that was handed over to served none of the volumes, or where nobody asked it.
#[test]
fn an_upgrade_is_refused_where_the_edited_configuration_names_another_state_folder_or_socket_or_disk() {
    let yard = Yard::new();
    yard.pool();
    for name in ["disk", "other"] {
        yard.file(name, 64 * MIB);
    }
    let set = |state: &str, socket: &str, disk: &str| {
        let text = format!("state = '{state}'\nsocket = '{socket}'\nnbd = 'nbd'\n[backing]\nv = '{disk}'\n");
        fs::write(yard.path("toml"), text).unwrap();
    };
    set("state", "control", "disk");
    let daemon = yard.serve_with(&["a", "b", "--config", "toml"]).unwrap();
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    nbd.write(0, &[7; 4096], false).unwrap();
    let before = report(&yard);
    let newer = copy(&yard);
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", &newer]);
    let mut refused = |state: &str, socket: &str, disk: &str, parts: &[&str]| {
        set(state, socket, disk);
        upgrade().said(1, &[parts, &["The daemon goes on as it was"]].concat());
        assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    };
    refused("elsewhere", "control", "disk", &["The state folder is", "would be elsewhere", "Name the folder that is in use"]);
    assert!(!yard.path("elsewhere").exists(), "it was made for the question");
    fs::create_dir(yard.path("elsewhere")).unwrap();
    refused("elsewhere", "control", "disk", &["would be elsewhere"]);
    refused("state", "newer", "disk", &["The control socket is", "would be newer"]);
    for disk in ["other", "nowhere", "modelled:disk"] {
        refused("state", "control", disk, &["The backing device of volume v is", "leads to another one, or to none"]);
    }
    drop(nbd);
    // What leads to the same is the same.
    for (link, to) in [("states", "state"), ("link", "disk")] {
        std::os::unix::fs::symlink(yard.path(to), yard.path(link)).unwrap();
    }
    set("states", "control", "link");
    upgrade().told(&["is served by Headpond"]);
    assert_eq!((report(&yard).process, yard.nbd("v").read(0, 4096).unwrap()), (before.process, vec![7; 4096]));
    daemon.stop();
}

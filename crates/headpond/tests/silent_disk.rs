//! A volume's disk that can be opened, and answers nothing.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use common::silent::Disk;
use common::{Daemon, LONG, Loop, MIB, Nbd, Yard};

/// A pool with a volume `v` on a disk that speaks, and `w` on a file.
fn with_two(yard: &Yard) -> Option<(Disk, Daemon)> {
    let disk = Disk::new(&yard.path("mount"), 16 * MIB)?;
    yard.pool();
    yard.file("file", 16 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    yard.run(&["attach", "v", disk.path().to_str().unwrap()]).good();
    yard.run(&["attach", "w", "file"]).good();
    for volume in ["v", "w"] {
        let mut nbd = yard.nbd(volume);
        nbd.write(0, &[7; 4096], false).unwrap();
        nbd.flush().unwrap();
    }
    Some((disk, daemon))
}

/// Waits until something has been asked of a disk that answers nothing.
fn until_it_is_asked(disk: &Disk) {
    let until = Instant::now() + LONG;
    while !disk.is_waited_for() {
        assert!(Instant::now() < until, "it is asked for nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A client of a volume that is about to be served: status may say that it is a moment before clients can have it.
fn soon(yard: &Yard, volume: &str) -> Nbd {
    let until = Instant::now() + LONG;
    loop {
        match Nbd::connect(&yard.path("nbd"), volume) {
            Ok(nbd) => return nbd,
            Err(error) => assert!(Instant::now() < until, "{error}: {:?}", yard.run(&["status"])),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The start waited for it for ever, and nobody was served; so would have whoever asked for any change, and the daemon's end.
#[test]
fn a_disk_that_never_answers_is_missing_and_holds_up_neither_a_start_nor_changes_nor_the_end() {
    let yard = Yard::new();
    let Some((disk, daemon)) = with_two(&yard) else { return };
    daemon.stop();
    disk.fall_silent();
    let begun = Instant::now();
    let daemon = yard.serve(&["a", "b"]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    yard.run(&["status"]).told(&["NOT SERVED", "does not answer", "What is cached stays as it is"]);
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
    // It is looked for meanwhile.
    std::thread::sleep(Duration::from_secs(4));
    let begun = Instant::now();
    yard.run(&["detach", "w"]).good();
    yard.run(&["attach", "w", "file"]).good();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let begun = Instant::now();
    daemon.stop();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // It speaks again, beside a daemon.
    let daemon = yard.serve(&["a", "b"]);
    disk.speak();
    let until = Instant::now() + LONG;
    while yard.run(&["status"]).good().out.contains("NOT SERVED") {
        assert!(Instant::now() < until, "it is not served");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(soon(&yard, "v").read(0, 4096).unwrap(), [7; 4096]);
    daemon.stop();
}

#[test]
fn a_disk_that_never_answers_is_not_attached_and_other_volumes_are_meanwhile() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 16 * MIB) else { return };
    yard.pool();
    yard.file("file", 16 * MIB);
    let daemon = yard.serve(&["a", "b"]);
    disk.fall_silent();
    std::thread::scope(|scope| {
        let attach = scope.spawn(|| yard.run(&["attach", "v", disk.path().to_str().unwrap()]));
        std::thread::sleep(Duration::from_secs(1));
        yard.run(&["attach", "w", "file"]).good();
        assert!(!attach.is_finished(), "it is waited for");
        attach.join().unwrap().said(1, &["does not answer", "Nothing was changed", "then try again"]);
    });
    daemon.stop();
}

/// The program that took over could not get hold of the disk, of which the kernel had something yet, and no volume was served.
#[test]
fn an_upgrade_beside_a_disk_that_has_fallen_silent_is_refused_until_it_answers() {
    let yard = Yard::new();
    let Some((disk, daemon)) = with_two(&yard) else { return };
    let mut nbd = yard.nbd("v");
    disk.fall_silent();
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", env!("CARGO_BIN_EXE_headpond")]);
    std::thread::scope(|scope| {
        // Nothing of it is cached.
        let read = scope.spawn(move || nbd.read(8 * MIB, 4096).unwrap());
        until_it_is_asked(&disk);
        // From five on it counts.
        std::thread::sleep(Duration::from_secs(6));
        let path = disk.path().display().to_string();
        upgrade().said(3, &["The disk of volume v", &path, "unanswered for", "Nothing was changed", "upgrade when it answers"]);
        assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
        disk.speak();
        assert_eq!(read.join().unwrap(), [0; 4096]);
    });
    upgrade().told(&["is served by Headpond"]);
    for volume in ["v", "w"] {
        assert_eq!(yard.nbd(volume).read(0, 4096).unwrap(), [7; 4096]);
    }
    daemon.stop();
}

/// What was owed for less than five seconds was passed over: the kernel had it yet when the other program came. Found by reading.
#[test]
fn an_upgrade_beside_a_disk_that_has_fallen_silent_a_moment_ago_is_refused_as_well() {
    let yard = Yard::new();
    let Some((disk, daemon)) = with_two(&yard) else { return };
    let mut nbd = yard.nbd("v");
    // Where it is looked what it is, it answers.
    disk.fall_silent_inside();
    let upgrade = || yard.run(&["upgrade", "--cut", "--program", env!("CARGO_BIN_EXE_headpond")]);
    std::thread::scope(|scope| {
        let read = scope.spawn(move || nbd.read(8 * MIB, 4096).unwrap());
        until_it_is_asked(&disk);
        let path = disk.path().display().to_string();
        upgrade().said(3, &["The disk of volume v", &path, "unanswered for", "Nothing was changed", "upgrade when it answers"]);
        disk.speak();
        assert_eq!(read.join().unwrap(), [0; 4096]);
    });
    upgrade().told(&["is served by Headpond"]);
    daemon.stop();
}

/// The start waited for it for ever, though the other cache device and the witness were all that it takes; so did a list of devices, and whoever
/// added it.
#[test]
fn a_pool_starts_without_a_cache_device_that_never_answers() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let silent = disk.path().display().to_string();
    yard.file("a", 64 * MIB);
    yard.run(&["pool", "create", "pool", "a", &silent]).good();
    yard.file("file", 16 * MIB);
    let devices = ["a", &silent];
    let daemon = yard.serve(&devices);
    yard.run(&["attach", "w", "file"]).good();
    yard.nbd("w").write(0, &[7; 4096], false).unwrap();
    daemon.stop();
    disk.fall_silent();
    let begun = Instant::now();
    let daemon = yard.serve(&devices);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let complaints = daemon.complaints();
    assert!(complaints.contains(&format!("the pool starts without it: {silent} does not answer")), "{complaints}");
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
    yard.run(&["status"]).told(&["DEGRADED"]);
    let begun = Instant::now();
    let listed = yard.run(&["pool", "list", "a", &silent]).said(1, &["Not looked at", &silent]);
    assert!(listed.out.contains("pool pool, cache device 0") && listed.out.contains("it does not answer"), "{listed:?}");
    yard.run(&["pool", "add", &silent]).said(1, &[&silent, "does not answer", "Nothing was changed", "try again"]);
    yard.run(&["upgrade", "--cut", "--program", env!("CARGO_BIN_EXE_headpond")]).said(1, &[&silent, "does not answer"]);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    disk.speak();
    yard.run(&["pool", "add", &silent]).told(&["cache device 1", "has its copies"]);
    yard.run(&["status"]).told(&["healthy"]);
    daemon.stop();
}

#[test]
fn a_pool_whose_only_cache_device_never_answers_is_refused_by_its_name() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let silent = disk.path().display().to_string();
    yard.run(&["pool", "create", "pool", &silent, "--copies", "1"]).good();
    disk.fall_silent();
    let begun = Instant::now();
    let refused = yard.try_serve(&[&silent]).err().expect("there is nothing to start from");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    refused.said(1, &[&silent, "does not answer", "Nothing was changed", "Look at the kernel's log"]);
}

/// How a process ends, if it comes to its end within a time; then the disk answers whatever it still waits for. The kernel may keep what has ended
/// until it has been answered itself: a flush, say, waits in a thread of the process's.
fn end_of(child: &mut Child, limit: Duration, disk: &Disk) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    let has_ended = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    while !has_ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let in_time = has_ended();
    disk.speak();
    let status = child.wait().unwrap();
    Some(status).filter(|_| in_time)
}

fn terminate(child: &Child) {
    assert!(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap().success());
}

/// The pool had long gone on without it, and ended well; the process waited on for what it owed, past all limits.
#[test]
fn a_stop_does_not_wait_for_a_cache_device_that_has_left_since_it_is_silent() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let silent = disk.path().display().to_string();
    yard.file("a", 64 * MIB);
    yard.run(&["pool", "create", "pool", "a", &silent]).good();
    yard.file("file", 16 * MIB);
    let mut daemon = yard.serve(&["a", &silent]);
    yard.run(&["attach", "w", "file"]).good();
    let mut nbd = yard.nbd("w");
    disk.fall_silent();
    nbd.patience(Duration::from_secs(60));
    nbd.write(0, &[7; 4096], false).unwrap();
    yard.run(&["status"]).told(&["DEGRADED"]);
    drop(nbd);
    terminate(daemon.child());
    let ended = end_of(daemon.child(), LONG, &disk);
    assert!(ended.is_some_and(|it| it.success()), "{ended:?}: {}", daemon.complaints());
    assert!(daemon.complaints().contains(&format!("not answered yet by cache device 1 ({silent})")), "{}", daemon.complaints());
    let _daemon = yard.serve(&["a", "--wait", "1"]);
    assert_eq!(yard.nbd("w").read(0, 4096).unwrap(), [7; 4096]);
}

/// Waits until a daemon has written what it writes when it is started for the first time, beside all else: when it was scrubbed last, which is
/// never, where its devices are, and that it was started.
fn until_first_notes_are_written(daemon: &Daemon, state: &Path) {
    let are_written = || {
        let names: Vec<String> = fs::read_dir(state).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        let text = |of: &str| {
            let name = names.iter().find(|name| name.starts_with(of));
            name.map_or(String::new(), |name| fs::read_to_string(state.join(name)).unwrap_or_default())
        };
        let mut threads = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
        let name_of = |thread: &fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        !text("scrub-").is_empty()
            && text("events-").contains("\"started\"")
            && !names.iter().any(|name| name.ends_with(".new"))
            && !threads.any(|thread| thread.is_ok_and(|it| name_of(&it).trim() == "places"))
    };
    let until = Instant::now() + LONG;
    while !are_written() {
        assert!(Instant::now() < until, "{:?}", fs::read_dir(state).unwrap().collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process had a thread that waited for the disk to have its last event, and could not end.
#[test]
fn a_stop_does_not_wait_for_the_state_folders_disk() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let state = yard.path("state");
    let did = |program: &str, args: &[&str]| Command::new(program).args(args).status().is_ok_and(|it| it.success());
    fs::create_dir(&state).unwrap();
    // Directly on the disk it would count as one that lies on a volume of Headpond.
    let Some(over) = Loop::over(&disk.path()) else { return };
    let (device, folder) = (over.0.display().to_string(), state.display().to_string());
    if !did("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device]) || !did("mount", &[&device, &folder]) {
        println!("skipped: it takes mkfs.ext4, and mounts");
        return;
    }
    let (_, mut daemon) = (yard.pool(), yard.serve(&["a", "b"]));
    yard.run(&["events"]).told(&["started"]);
    // What is being written of it already is not to be in the way: the daemon tells of events that are not in their file yet. What one sync
    // writes may leave something for the next.
    until_first_notes_are_written(&daemon, &state);
    assert!(did("sync", &["-f", &folder]) && did("sync", &["-f", &folder]));
    disk.fall_silent();
    terminate(daemon.child());
    // One thread that waits in the kernel keeps the process there, with all that it has open.
    let threads = format!("/proc/{}/task", daemon.id());
    let threads = || fs::read_dir(&threads).map_or(0, Iterator::count);
    let until = Instant::now() + LONG;
    let ended = loop {
        match daemon.child().try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() >= until => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (left, complaints) = (threads(), daemon.complaints());
    disk.speak();
    daemon.child().wait().unwrap();
    did("umount", &["-l", &folder]);
    assert!(ended.is_some_and(|it| it.success()), "{ended:?}, {left} threads are left: {complaints}");
}

#[test]
fn a_start_that_is_ended_does_not_wait_for_a_cache_device_that_is_silent() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 64 * MIB) else { return };
    let silent = disk.path().display().to_string();
    yard.run(&["pool", "create", "pool", &silent, "--copies", "1"]).good();
    // What is looked at before it is taken answers.
    disk.fall_silent_inside();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_headpond"));
    serve.args(["serve", &silent, "--frontend", "none", "--socket", "control", "--state", "state"]);
    let mut serve = serve.current_dir(yard.path("")).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(serve.try_wait().unwrap().is_none(), "it waits for the device");
    terminate(&serve);
    let ended = end_of(&mut serve, LONG, &disk);
    assert!(ended.is_some_and(|it| it.success()), "{ended:?}");
}

/// Whoever wanted to change anything waited for the disk of another volume, for ever, and was told nothing.
#[test]
fn a_change_beside_one_that_a_silent_disk_holds_up_is_refused_and_goes_through_when_that_is_cancelled() {
    let yard = Yard::new();
    let Some((disk, daemon)) = with_two(&yard) else { return };
    yard.file("other", 16 * MIB);
    yard.nbd("v").write(4 * MIB, &[8; 4096], false).unwrap();
    disk.fall_silent();
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| yard.run(&["detach", "v"]));
        let until = Instant::now() + LONG;
        while !yard.run(&["status"]).good().out.contains("pass-through") {
            assert!(Instant::now() < until && !detach.is_finished(), "it does not begin");
        }
        let begun = Instant::now();
        let parts = ["Detaching volume v is under way", "Nothing was changed", "`headpond detach NAME --cancel`"];
        yard.run(&["attach", "x", "other"]).said(1, &parts);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        // The ten seconds of its turn came before those that were given.
        let begun = Instant::now();
        yard.run(&["detach", "w", "--deadline", "1s"]).said(1, &parts[..2]);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        yard.run(&["detach", "v", "--cancel"]).good();
        let detach = detach.join().unwrap();
        assert!(detach.code == Some(1), "{detach:?}");
    });
    yard.run(&["attach", "x", "other"]).good();
    yard.run(&["detach", "w"]).good();
    disk.speak();
    assert_eq!(yard.nbd("v").read(4 * MIB, 4096).unwrap(), [8; 4096]);
    daemon.stop();
}

/// One that had answered at first, and not the engine, kept all others that came from being served, and all volumes from being changed.
#[test]
fn a_disk_that_comes_and_then_falls_silent_holds_up_neither_changes_nor_others_that_come() {
    let yard = Yard::new();
    let Some(disk) = Disk::new(&yard.path("mount"), 16 * MIB) else { return };
    yard.pool();
    yard.file("file", 16 * MIB);
    yard.file("late", 16 * MIB);
    let link = || std::os::unix::fs::symlink(disk.path(), yard.path("link")).unwrap();
    link();
    let daemon = yard.serve(&["a", "b"]);
    for (volume, path) in [("v", "link"), ("w", "file"), ("x", "late")] {
        yard.run(&["attach", volume, path]).good();
        yard.nbd(volume).write(8 * MIB, &[7; 4096], false).unwrap();
        // Clean data is what a disk is known by.
        yard.run(&["flush", volume]).good();
    }
    daemon.stop();
    fs::remove_file(yard.path("link")).unwrap();
    fs::rename(yard.path("late"), yard.path("away")).unwrap();
    let daemon = yard.serve(&["a", "b", "--wait", "1"]);
    let wait_until = |is: &dyn Fn(&str) -> bool| {
        let until = Instant::now() + LONG;
        while !is(&yard.run(&["status"]).good().out) {
            assert!(Instant::now() < until, "{:?}", yard.run(&["status"]));
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    disk.fall_silent_inside();
    link();
    wait_until(&|status| status.contains("has come, and is being looked at"));
    fs::rename(yard.path("away"), yard.path("late")).unwrap();
    wait_until(&|status| !status.contains("Volume x is not served"));
    assert_eq!(soon(&yard, "x").read(8 * MIB, 4096).unwrap(), [7; 4096]);
    let begun = Instant::now();
    yard.run(&["detach", "w"]).good();
    yard.run(&["attach", "w", "file"]).good();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    yard.run(&["detach", "v", "--throw-away"])
        .said(1, &["The disk of volume v is there", "Nothing was changed", "headpond status"]);
    disk.speak();
    wait_until(&|status| !status.contains("NOT SERVED"));
    assert_eq!(soon(&yard, "v").read(8 * MIB, 4096).unwrap(), [7; 4096]);
    yard.run(&["detach", "v"]).good();
    daemon.stop();
}

//! The real form of the experiments: a short one from its beginning to its end, and one that is interrupted. Both leave nothing behind.
//!
//! Skipped where a user is not root, or the kernel's FUSE and loop devices are not there.

mod common;

use common::LONG;
use common::for_real::{can_run, left};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// They measure: one at a time.
static TURN: Mutex<()> = Mutex::new(());

fn experiments(args: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headpond"));
    command.arg("experiments").args(args).args(["--real", "--quick", "--dir"]).arg(folder);
    command
}

#[test]
fn a_short_experiment_runs_to_its_end_and_one_without_a_real_form_says_why() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !can_run(3 << 30) {
        return;
    }
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ended = experiments(&["C6", "A1"], folder.path()).arg("--out").arg(out.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("C6 begins") && said.contains("A1 not in this form"), "{said}");
    let text = fs::read_to_string(out.path().join("experiments.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((value["form"].as_str(), value["experiments"][0]["id"].as_str()), (Some("real"), Some("A1")));
    assert!(value["experiments"][0]["not_in_this_form"].is_string());
    let tar = &value["experiments"][1]["outcome"];
    for figure in tar["figures"].as_array().unwrap() {
        for who in ["bare", "bare behind the front end", "Headpond"] {
            assert!(figure["reached"][who].as_f64().is_some_and(|it| it > 0.0), "{figure}");
        }
    }
    assert!(tar["verdicts"].as_array().is_some_and(|it| it.len() == 3), "{tar}");
    assert!(left(folder.path()).is_empty(), "{:?}", left(folder.path()));
}

#[test]
fn an_interrupted_experiment_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !can_run(3 << 30) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = experiments(&["C6"], folder.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("C6 begins"));
    // In its midst: the daemon runs and the file systems are mounted.
    let until = Instant::now() + 2 * LONG;
    while fs::read_to_string("/proc/mounts").unwrap().matches(&*folder.path().to_string_lossy()).count() < 8 {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "it has not begun");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let begun = Instant::now();
    let said: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said:?}");
    assert!(begun.elapsed() < 2 * LONG, "it took {:?}", begun.elapsed());
    assert!(said.iter().any(|line| line.contains("Interrupted")), "{said:?}");
    assert!(left(folder.path()).is_empty(), "{:?}", left(folder.path()));
}

#[test]
fn devices_are_named_with_what_is_on_them_before_anything_is_done_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut args: Vec<String> = Vec::new();
    for (flag, name, bytes) in [("--disk", "disk", 1 << 30), ("--ssd", "ssd", 512 << 20)] {
        for n in 0..4 {
            let path = folder.path().join(format!("{name}{n}"));
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    // An ext4's magic number, where its superblock has it.
    let taken = folder.path().join("disk2");
    let file = fs::File::options().write(true).open(&taken).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x53, 0xef], 1024 + 56).unwrap();
    let refused = |which: &str, args: &[String]| {
        let ended = experiments(&[which], folder.path()).args(args).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    let said = refused("A1", &args);
    assert!(said.contains("would be erased") && said.contains("--yes-erase"), "{said}");
    assert!(said.contains(&format!("{}: an ext2, ext3 or ext4 file system", taken.display())), "{said}");
    let said = refused("C1", &args);
    assert!(said.contains("C1 runs on modelled devices alone") && said.contains("A1, A2, A3, A4, A6, A7"), "{said}");
    args[1] = folder.path().join("absent").display().to_string();
    let said = refused("A1", &args);
    assert!(said.contains(&args[1]) && said.contains("Nothing was done"), "{said}");
    assert_eq!(fs::metadata(&taken).unwrap().len(), 1 << 30);
}

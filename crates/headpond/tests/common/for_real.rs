//! What tests need that set up modelled devices in real time, as root.

use std::fs;
use std::path::Path;

/// Whether it can be run here, with so many bytes of memory; says why if not. What the command itself says is not asked: a mistake there would skip the test.
pub fn can_run(memory: u64) -> bool {
    let absent = ["/dev/fuse", "/dev/loop-control", "/sbin/mkfs.ext4"].into_iter().find(|path| !Path::new(path).exists());
    let told = fs::read_to_string("/proc/meminfo").unwrap();
    let free: u64 = told.split_once("MemAvailable:").unwrap().1.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10;
    let why = match absent {
        _ if !rustix::process::geteuid().is_root() => "only root can mount".to_owned(),
        Some(path) => format!("there is no {path}"),
        None if free < memory => format!("{} MiB of memory are needed, and {} are free", memory >> 20, free >> 20),
        None => return true,
    };
    eprintln!("skipped: {why}");
    false
}

/// What of a run in this folder is still mounted, bound to a loop device, running, or there.
pub fn left(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mut left: Vec<String> = mounts.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect();
    for entry in fs::read_dir("/sys/block").unwrap().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        left.extend(file.contains(&folder).then_some(file));
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        left.extend(line.contains(&folder).then_some(line));
    }
    left.extend(fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path().display().to_string()));
    left
}

//! What the real form needs of a machine, and what is said of the one that it ran on.

use super::given::Given;
use super::tools::version;
use super::{modelled, nfs_server};
use crate::demo::{FileSystem, Frontend};
use headpond_sim::experiments::hardware::{Parameter, Source};
use headpond_sim::models::rotating::RotatingParams;
use std::borrow::Cow;
use std::thread;

/// Memory that devices and file systems take at most, in bytes: full, quick.
const MEMORY: [u64; 2] = [8 << 30, 3 << 30];

/// Why the real form cannot be run here, if so: in words that say what to do. Where devices are given, none are modelled.
pub fn missing(quick: bool, given: Option<&Given>) -> Result<FileSystem, String> {
    let system = FileSystem::any()?;
    if given.is_some() {
        return Ok(system);
    }
    let wanted = MEMORY[usize::from(quick)];
    match available() {
        Some(there) if there < wanted => Err(format!(
            "the modelled devices are in memory and need {} GiB of it, of which {:.1} are free here",
            wanted >> 30,
            there as f64 / f64::from(1 << 30)
        )),
        _ => Ok(system),
    }
}

/// The file system that is exported: XFS, as in the original, where it is there.
pub fn exported(otherwise: FileSystem) -> FileSystem {
    if FileSystem::Xfs.missing().is_none() { FileSystem::Xfs } else { otherwise }
}

/// Free memory in bytes.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn row(name: &'static str, value: String, source: Source, why: &'static str) -> Parameter {
    Parameter { machine: "here", name, value: Cow::Owned(value), source, why }
}

/// The machine and the devices that were given, as a table for readers.
pub fn parameters_of_devices(system: FileSystem, given: &Given) -> Vec<Parameter> {
    let uname = rustix::system::uname();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let here = |name, value: String, why| row(name, value, Source::ThisMachine, why);
    let mut all = vec![
        here(
            "machine",
            format!("{cores} cores, {} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            "clients, NFS server, file system and daemon share its cores; how busy they were stands beside the figures",
        ),
        here("tools", version("fio", &["--version"]), "as installed"),
        here(
            "NFS",
            format!("the kernel's server and client, NFS 4.2, {} threads", nfs_server::THREADS),
            "over loopback; one that ran already has its own number",
        ),
        here("file system", exported(system).name().into(), "XFS, as in the original, else ext4"),
        here(
            "devices",
            given.to_string(),
            "a disk each for bare, pass-through, write-back, write-through; two SSDs for the pool, two alone",
        ),
        here(
            "Headpond",
            format!("the daemon as it is served, {}, default settings", Frontend::of_kernel().name()),
            "nothing is tuned; the SSDs alone are behind the same front end",
        ),
    ];
    if given.slower > 1 {
        all.push(here(
            "time of the devices",
            format!("{} times slower than that of what they stand for, disks and SSDs alike", given.slower),
            "to them these processors, which would be what is measured, are so many times faster; windows are longer, and nothing else is another",
        ));
    }
    all
}

/// The machine and the models, as a table for readers.
pub fn parameters(system: FileSystem) -> Vec<Parameter> {
    let uname = rustix::system::uname();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (disk, ssd) = (RotatingParams::nearline_7200(), modelled::ssd());
    let gib = available().map_or_else(|| "unknown".into(), |it| format!("{:.0}", it as f64 / f64::from(1 << 30)));
    vec![
        row(
            "machine",
            format!("{cores} cores, {gib} GiB free, {} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            Source::ThisMachine,
            "fio, the file system, the daemon and the models share its cores: what they take is in every figure; they run at nice -10",
        ),
        row(
            "tools",
            [version("fio", &["--version"]), version("tar", &["--version"])].join(", "),
            Source::ThisMachine,
            "as installed",
        ),
        row("file system", system.name().into(), Source::ThisMachine, "the first of ext4 and XFS that is there"),
        row(
            "disk",
            format!(
                "the first GiB of 8 TiB at {} rpm, {} to {} MB/s, mean seek {:.1} ms, write cache of {} MiB, a queue of {}",
                disk.rpm,
                disk.outer_rate / 1_000_000,
                disk.inner_rate / 1_000_000,
                disk.seek_average_ns as f64 / 1e6,
                disk.write_cache_bytes >> 20,
                disk.queue_depth
            ),
            Source::DataSheet,
            "the project's model of a nearline disk, in real time over memory; its arm hardly moves in so small a part, which favours bare",
        ),
        row(
            "SSDs",
            format!(
                "two, each {} requests and {} MB/s, reads and writes together, a flush in {:.0} ms; C4's in {:.1} ms",
                ssd.total_iops.unwrap_or(0),
                ssd.total_bytes_per_s.unwrap_or(0) / 1_000_000,
                ssd.flush_ns as f64 / 1e6,
                modelled::protected().flush_ns as f64 / 1e6
            ),
            Source::Assumed,
            "slow enough for these cores to carry it through FUSE twice; the same as in the virtual machine of the project's tests",
        ),
        row(
            "ways to a disk",
            "bare: loop device over FUSE; behind the front end: the daemon in pass-through, over the same; Headpond: write-back"
                .into(),
            Source::ThisMachine,
            "each has a disk and a file system of its own, made and filled alike; one of them works at a time",
        ),
        row(
            "Headpond",
            "the daemon as it is served, FUSE and loop, default settings".into(),
            Source::ThisMachine,
            "nothing is tuned",
        ),
    ]
}

//! fio as a judge: loads that check what they wrote by checksums, and what became of them.
//!
//! Each job has a region of its own and waits before it writes over what is still being written (`serialize_overlap`), so that a mismatch is
//! always the volume's. Trims come as `randtrimwrite`: a block is trimmed, then written, and read back at the end. The trims that
//! `trim_percentage` mixes in end fio 3.33 by an assertion of its own; exact trims and zeroes are our own load's to check.

use super::{interrupt, tool};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a job's region.
pub const REGION: u64 = 64 << 20;
/// Regions that [`mixed`] uses.
pub const REGIONS: u64 = 3;

/// Sizes of the mixed load, with percentages: some of all from a sector to 1 MiB, in whole blocks and not.
const SIZES: &str = "512/10:1536/10:4k/20:7680/10:16k/15:65024/10:128k/10:500k/8:1m/7";

/// How fio reaches the volume.
pub enum Through<'a> {
    /// Its own NBD client.
    Nbd(String),
    /// A block device.
    Device(&'a Path),
}

impl Through<'_> {
    fn options(&self) -> String {
        match self {
            Through::Nbd(uri) => format!("ioengine=nbd\nuri={uri}\n"),
            Through::Device(path) => format!("ioengine=libaio\ndirect=1\nfilename={}\n", path.display()),
        }
    }
}

/// What fio did and checked.
#[derive(Default, Clone, Copy)]
pub struct Sums {
    /// Bytes written.
    pub written: u64,
    /// Bytes read back and right.
    pub verified: u64,
    /// Trims.
    pub trims: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Sums {
    /// Adds those of another run.
    pub fn add(&mut self, other: Sums) {
        self.written += other.written;
        self.verified += other.verified;
        self.trims += other.trims;
        self.flushes += other.flushes;
    }
}

/// The mixed load: 512 bytes to 1 MiB anywhere, again and again over the same region, checked while it runs and at the end; small
/// blocks in a second region, with many flushes; and blocks that are trimmed and then written, in a third.
pub fn mixed(through: &Through<'_>, base: u64, bytes: u64, seed: u64) -> String {
    let region = |n: u64| base + n * REGION;
    format!(
        "[global]\n{}thread=1\nverify=crc32c\nverify_fatal=1\nverify_dump=1\nserialize_overlap=1\nnorandommap=1\nrandrepeat=1\n\
         size={REGION}\niodepth=16\n\
         [mixed]\nrandseed={seed}\nrw=randwrite\noffset={}\nio_size={bytes}\nbssplit={SIZES}\nblockalign=512\nfsync=32\nverify_backlog=64\n\
         [small]\nrandseed={}\nrw=randwrite\noffset={}\nio_size={}\nbsrange=512-64k\nblockalign=512\nfsync=16\nverify_backlog=256\n\
         [trims]\nrandseed={}\nrw=randtrimwrite\noffset={}\nio_size={}\nbsrange=4k-256k\nblockalign=4k\n",
        through.options(),
        region(0),
        seed + 1,
        region(1),
        bytes / 8,
        seed + 2,
        region(2),
        bytes / 2,
    )
}

/// Writes to files in a folder for some seconds, small and large, with flushes between, checked while it runs and at the end.
pub fn in_files(folder: &Path, seed: u64) -> String {
    format!(
        "[global]\nioengine=libaio\ndirect=1\ndirectory={}\nthread=1\nverify=crc32c\nverify_fatal=1\nverify_dump=1\nserialize_overlap=1\n\
         norandommap=1\nrandrepeat=1\niodepth=8\nverify_backlog=64\n\
         [small]\nrandseed={seed}\nrw=randwrite\nfilename=small\nsize=96m\nbs=4k\nrate_iops=2000\nio_size=40m\nfsync=64\n\
         [mixed]\nrandseed={}\nrw=randwrite\nfilename=mixed\nsize=256m\nbsrange=4k-256k\nblockalign=4k\nrate=24m\nio_size=128m\nfsync=32\n",
        folder.display(),
        seed + 1,
    )
}

/// Jobs of [`cut_off`], which share a region.
const CUT_OFF_JOBS: u64 = 4;

/// Writes of 512 bytes to 1 MiB that do not overlap, slowly enough to be still at it when the daemon is killed; fio keeps a note of what was
/// acknowledged. Then, with `verify`, checks just that. One write at a time in each job: with more, fio 3.33 may check one that it was told
/// had failed.
pub fn cut_off(device: &Path, base: u64, seed: u64, verify: bool) -> String {
    let what = match verify {
        true => "verify_only=1\nverify_state_load=1\nverify_state_save=0\nverify_fatal=0",
        false => "do_verify=0\nverify_state_save=1\nrate=16m",
    };
    let mut job = format!(
        "[global]\n{}thread=1\nverify=crc32c\nverify_dump=1\nrandrepeat=1\nrw=randwrite\nbsrange=512-1m\nblockalign=512\niodepth=1\nfsync=16\n{what}\n",
        Through::Device(device).options(),
    );
    let size = REGION / CUT_OFF_JOBS;
    for n in 0..CUT_OFF_JOBS {
        let _ = write!(job, "[cutoff{n}]\nrandseed={}\noffset={}\nsize={size}\n", seed + n, base + n * size);
    }
    job
}

/// Runs a job file to its end in a folder, where what fio writes goes; it must be clean.
pub fn run(folder: &Path, name: &str, job: &str) -> Result<Sums> {
    let (ended, sums) = start(folder, name, job)?;
    if !ended.status.success() {
        bail!(
            "fio ended with {}: {}\n    the job is in {}",
            ended.status,
            complaints(&ended.said),
            job_file(folder, name).display()
        );
    }
    Ok(sums)
}

/// Runs one that is to be cut off by a kill, and must end with I/O errors and nothing else. Returns, too, where the writes were that fio was
/// told had failed.
pub fn run_cut_off(folder: &Path, name: &str, job: &str) -> Result<(Sums, Vec<u64>)> {
    let (ended, sums) = start(folder, name, job)?;
    if ended.said.contains("verify:") {
        bail!("fio found a mismatch: {}", complaints(&ended.said));
    }
    let failed =
        ended.said.lines().filter(|line| line.contains("io_u error")).filter_map(|line| number_after(line, "write offset="));
    Ok((sums, failed.collect()))
}

/// Verifies what [`run_cut_off`] was told is there. What it was told had failed is in doubt, and may be anything.
pub fn verify_cut_off(folder: &Path, name: &str, job: &str, failed: &[u64]) -> Result<Sums> {
    let (ended, sums) = start(folder, name, job)?;
    let wrong: Vec<&str> = ended.said.lines().filter(|line| line.starts_with("verify:") || line.contains("io_u error")).collect();
    let in_doubt = |line: &str| number_after(line, "requested block: offset=").is_some_and(|offset| failed.contains(&offset));
    if wrong.iter().any(|line| !in_doubt(line)) || (wrong.is_empty() && !ended.status.success()) {
        bail!(
            "fio ended with {}: {}\n    failed before the kill, and so in doubt: {failed:?}",
            ended.status,
            complaints(&ended.said)
        );
    }
    Ok(sums)
}

/// The number behind these words.
fn number_after(line: &str, words: &str) -> Option<u64> {
    let rest = &line[line.find(words)? + words.len()..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

fn job_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.fio"))
}

fn start(folder: &Path, name: &str, job: &str) -> Result<(tool::Ended, Sums)> {
    fs::write(job_file(folder, name), job)?;
    let figures = folder.join(format!("{name}.json"));
    let _ = fs::remove_file(&figures);
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--output"]).arg(&figures).arg(job_file(folder, name)).current_dir(folder);
    let ended = tool::try_run(&mut command, &folder.join(format!("{name}.log")))?;
    interrupt::check()?;
    let text = fs::read_to_string(&figures).unwrap_or_default();
    // Some complaints are printed in front of, or behind, the figures.
    let json =
        text.find("\n{").map(|at| at + 1).or_else(|| text.find('{')).and_then(|from| Some(&text[from..=text.rfind("\n}")? + 1]));
    let sums = match json.map(serde_json::from_str::<Value>) {
        Some(Ok(value)) => sums(&value),
        _ if ended.status.success() => return Err(anyhow::anyhow!("no figures")).context("fio's figures cannot be understood"),
        _ => Sums::default(),
    };
    let said = json.map_or(text.clone(), |json| text.replace(json, ""));
    Ok((tool::Ended { status: ended.status, said: ended.said + &said }, sums))
}

fn sums(figures: &Value) -> Sums {
    let mut sums = Sums::default();
    for job in figures["jobs"].as_array().into_iter().flatten() {
        let number = |of: &str, what: &str| job[of][what].as_u64().unwrap_or(0);
        sums.written += number("write", "io_bytes");
        sums.verified += number("read", "io_bytes");
        sums.trims += number("trim", "total_ios");
        sums.flushes += number("sync", "total_ios");
    }
    sums
}

/// What fio said, but for what it always says.
fn complaints(said: &str) -> String {
    let lines = said.lines().filter(|line| !line.trim().is_empty() && !line.contains("verify limited"));
    lines.take(12).collect::<Vec<_>>().join("\n    ")
}

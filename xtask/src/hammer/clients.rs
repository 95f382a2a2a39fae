//! The NBD clients that people have: nbdinfo, qemu-io, nbdcopy.

use super::model::Dice;
use super::rig::{Frontend, NAME, Rig};
use super::{Context as Hammer, Figures, tool};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Bytes of the volume.
const BYTES: u64 = 128 << 20;

/// nbdinfo sees the volume's size, its block sizes, and all that it can do.
pub fn nbdinfo(hammer: &Hammer) -> Result<Figures> {
    let rig = hammer.rig(Frontend::Nbd, BYTES)?;
    let log = rig.path("nbdinfo.log");
    let said = tool::run(Command::new("nbdinfo").arg("--json").arg(rig.uri()), &log)?;
    let info: Value = serde_json::from_str(&said).with_context(|| format!("nbdinfo did not print JSON: {said}"))?;
    let export = &info["exports"][0];
    let expected = [
        ("export-size", Value::from(BYTES)),
        ("export-name", Value::from(NAME)),
        ("is_read_only", Value::from(false)),
        ("can_flush", Value::from(true)),
        ("can_fua", Value::from(true)),
        ("can_trim", Value::from(true)),
        ("can_zero", Value::from(true)),
        ("can_multi_conn", Value::from(true)),
        ("block_size_minimum", Value::from(512)),
    ];
    for (key, value) in &expected {
        if export[key] != *value {
            bail!("nbdinfo says {key} = {}, and it should be {value}", export[key]);
        }
    }
    let listed = tool::run(Command::new("nbdinfo").arg("--list").arg(rig.uri()), &log)?;
    if !listed.contains(&format!("export=\"{NAME}\"")) {
        bail!("nbdinfo --list does not show the volume: {listed}");
    }
    rig.no_errors()?;
    rig.passed();
    Ok(vec![
        ("bytes", BYTES.into()),
        ("flags", "flush fua trim zero multi-conn".into()),
        ("properties checked", expected.len().into()),
    ])
}

/// Patterns written by qemu-io in all the ways that it knows, and read back: at once, by another client, after a SIGKILL of the daemon, after
/// a clean stop, and from the disk alone.
pub fn qemu_io(hammer: &Hammer) -> Result<Figures> {
    let mut rig = hammer.rig(Frontend::Nbd, BYTES)?;
    // Each with what its range must read as afterwards; later ones overlap earlier ones.
    let changes = [
        ("write -P 0x11 0 8M", "read -P 0x11 0 1M"),
        ("write -f -P 0x22 1M 64k", "read -P 0x22 1M 64k"),
        ("write -P 0x33 1049088 512", "read -P 0x33 1049088 512"),
        ("write -z 2M 1M", "read -P 0 2M 1M"),
        ("write -z -u 3M 64k", "read -P 0 3M 64k"),
        ("write -z -f 3211776 1536", "read -P 0 3211776 1536"),
        ("discard 4M 1M", "read -P 0 4M 1M"),
        ("aio_write -P 0x44 5M 3M", "read -P 0x44 5M 3M"),
        ("writev -P 0x55 8388096 4096 512 8192", "read -P 0x55 8388096 12800"),
        ("write -P 0x66 133169152 1M", "read -P 0x66 133169152 1M"),
    ];
    // What must be there after all of them.
    let remains = [
        "read -P 0x11 0 1M",
        "read -P 0x22 1M 512",
        "read -P 0x33 1049088 512",
        "read -P 0x22 1049600 63k",
        "read -P 0x11 1114112 983040",
        "read -P 0 2M 1M",
        "read -P 0 3M 64k",
        "read -P 0 3211776 1536",
        "read -P 0x11 3213312 958k",
        "read -P 0 4M 1M",
        "read -P 0x44 5M 3145216",
        "read -P 0x55 8388096 12800",
        "read -P 0 8400896 1M",
        "read -P 0x66 133169152 1M",
    ];
    let mut commands: Vec<&str> = Vec::new();
    for (change, read) in changes {
        commands.extend([change, "aio_flush", read]);
    }
    commands.push("flush");
    qemu(&rig, &rig.uri(), &commands)?;
    qemu(&rig, &rig.uri(), &remains)?;
    rig.kill()?;
    rig.start()?;
    qemu(&rig, &rig.uri(), &remains).context("after a SIGKILL of the daemon")?;
    rig.no_errors()?;
    rig.stop()?;
    rig.start()?;
    qemu(&rig, &rig.uri(), &remains).context("after a clean stop and a start")?;
    rig.detach()?;
    rig.stop()?;
    let disk = rig.path("disk").display().to_string();
    qemu(&rig, &disk, &remains).context("on the disk alone, after the detach")?;
    rig.passed();
    let reads = changes.len() + 4 * remains.len();
    Ok(vec![("changes", changes.len().into()), ("patterns verified", reads.into()), ("SIGKILLs", 1.into())])
}

fn qemu(rig: &Rig, volume: &str, commands: &[&str]) -> Result<()> {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-t", "none"]);
    commands.iter().for_each(|command| {
        qemu.args(["-c", command]);
    });
    let said = tool::run(qemu.arg(volume), &rig.path("qemu-io.log"))?;
    // Its exit does not tell of each command's failure in every version.
    if let Some(line) = said.lines().find(|line| ["fail", "rror", "invalid"].iter().any(|word| line.contains(word))) {
        bail!("qemu-io says: {line}");
    }
    Ok(())
}

/// An image copied in by nbdcopy, and out again after a SIGKILL, is the same to the byte; so is the disk alone.
pub fn nbdcopy(hammer: &Hammer) -> Result<Figures> {
    let mut rig = hammer.rig(Frontend::Nbd, BYTES)?;
    let (image, copy, log) = (rig.path("image"), rig.path("copy"), rig.path("nbdcopy.log"));
    make_image(&image, hammer.seed)?;
    tool::run(Command::new("nbdcopy").arg("--flush").arg(&image).arg(rig.uri()), &log)?;
    let same = |copy: &Path, when: &str| match differ(&image, copy)? {
        None => Ok(()),
        Some(at) => bail!("{when}: what nbdcopy copied in differs at byte {at}"),
    };
    tool::run(Command::new("nbdcopy").arg(rig.uri()).arg(&copy), &log)?;
    same(&copy, "copied out at once")?;
    fs::remove_file(&copy)?;
    rig.no_errors()?;
    rig.kill()?;
    rig.start()?;
    tool::run(Command::new("nbdcopy").args(["--connections=4", "--requests=32"]).arg(rig.uri()).arg(&copy), &log)?;
    same(&copy, "copied out after a SIGKILL")?;
    rig.no_errors()?;
    rig.detach()?;
    rig.stop()?;
    same(&rig.path("disk"), "on the disk alone, after the detach")?;
    rig.passed();
    Ok(vec![("bytes each way", BYTES.into()), ("comparisons", 3.into()), ("SIGKILLs", 1.into())])
}

/// Random data with holes, which nbdcopy sends as zeroes.
fn make_image(path: &Path, seed: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(BYTES)?;
    let mut dice = Dice(seed);
    let mut piece = vec![0; 1 << 16];
    for at in (0..BYTES).step_by(piece.len()) {
        if dice.below(4) > 0 {
            piece.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&dice.below(u64::MAX).to_le_bytes()));
            file.write_all_at(&piece, at)?;
        }
    }
    Ok(())
}

/// The first byte in which two files differ.
fn differ(a: &Path, b: &Path) -> Result<Option<u64>> {
    let (a, b) = (fs::read(a)?, fs::read(b)?);
    if a == b {
        return Ok(None);
    }
    let at = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    Ok(Some(at as u64))
}

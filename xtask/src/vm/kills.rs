//! The daemon killed under a file system: where its device stays, nothing fails; where it does not, nothing that was promised is lost.

use super::rig::{LIMIT, Rig};
use super::{Context as Vm, Figures, Progress};
use anyhow::{Context, Result, bail};

/// How long clients may wait when the daemon was killed, in milliseconds: shorter than this.
const PAUSE: u64 = 2000;
/// The size of the file that fio writes, makes durable, and verifies after each kill.
const VERIFIED: &str = "12m";

/// Rounds of load and SIGKILL, on this kind of file system.
pub fn survive(vm: &Vm, kind: &str) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    // With two queues, which have threads of their own: one is what a guest with two processors has otherwise.
    rig.boot()?;
    rig.run("echo queues = 2 >$CONFIG\nstate_disk new\ncreate_pool\nserve\nattach\n: >$CONFIG")?;
    rig.run(&format!("make_fs {kind} $(volume)"))?;
    let stays = rig.run("stays && echo stays || echo goes")?.iter().any(|line| line == "stays");
    if stays {
        under_a_mounted_file_system(&mut rig, vm, kind)?;
    } else {
        with_a_device_that_goes(&mut rig, vm, kind)?;
    }
    // The disk alone has the file system, and it is whole.
    rig.run(&format!("detach_volume\nstop_daemon\ncheck_fs {kind} $(drive disk)")).context("the disk alone, after the detach")?;
    let mut figures: Figures = vec![("device stays".into(), stays.into())];
    figures.extend(rig.passed());
    Ok(figures)
}

/// With ublk: one mount, one load, many kills; no request may fail.
fn under_a_mounted_file_system(rig: &mut Rig, vm: &Vm, kind: &str) -> Result<()> {
    let console = rig.console_len();
    rig.run(&format!("mount_fs {kind}"))?;
    let mut progress = Progress::begin(vm.rounds);
    let mut round = 0;
    while round < vm.rounds {
        // Now and then all is compared, so that a loss is found near its kill.
        let (first, seed) = (rig.ledger.next, vm.seed + round);
        rig.run(&format!("write_verified {POINT}/verified {VERIFIED} {seed}\nbegin_load {seed} {first}\nbegin_pauses"))?;
        for _ in 0..10.min(vm.rounds - round) {
            round += 1;
            progress.say(round);
            rig.sleep(vm.length_of(round))?;
            let late = vm.late.as_millis();
            // The engine's thread attends to both queues next, and threads of their own after that.
            let queues = if round.is_multiple_of(2) { "--queues 2" } else { "" };
            rig.run("hits_beside")?;
            rig.run_first(&format!("loads_run\nreplace_daemon {late} {queues}\nio_flows"))
                .with_context(|| format!("SIGKILL {round}"))?;
            plant(rig, vm)?;
        }
        rig.sleep(vm.length)?;
        rig.run("loads_run\nend_load\nno_errors")?;
        rig.run(&format!("verify {POINT}/verified {VERIFIED} {seed}"))?;
        compare(rig, kind, false)?;
    }
    rig.run(&format!("unmount_fs\ncheck_fs {kind} $(volume)"))?;
    if let Some(line) = rig.console_errors(console).first() {
        bail!("the guest's kernel tells of an error, and there may be none: {line}");
    }
    let beside = rig.ledger.counts.get("hits-beside-the-engine").copied().unwrap_or(0);
    if !vm.patient && beside == 0 {
        bail!("threads of queues have served no hit by themselves, though blocks were read again and again");
    }
    let pauses = rig.ledger.all.get("pause-ms").map_or(&[][..], Vec::as_slice);
    if pauses.len() as u64 != vm.rounds {
        bail!("of {} kills, the pauses of {} were measured", vm.rounds, pauses.len());
    }
    let long: Vec<String> = pauses.iter().filter(|ms| **ms >= PAUSE).map(u64::to_string).collect();
    // A fault planted elsewhere must not be found by this.
    if !vm.lying && !vm.patient && !long.is_empty() {
        bail!("{} of {} pauses were {PAUSE} ms or longer: {} ms", long.len(), vm.rounds, long.join(", "));
    }
    Ok(())
}

/// With FUSE and a loop device: the file system dies with the daemon; after a restart what was promised is there.
fn with_a_device_that_goes(rig: &mut Rig, vm: &Vm, kind: &str) -> Result<()> {
    let mut progress = Progress::begin(vm.rounds);
    for round in 1..=vm.rounds {
        progress.say(round);
        let (first, seed) = (rig.ledger.next, vm.seed + round);
        rig.run(&format!("mount_fs {kind}\nwrite_verified {POINT}/verified {VERIFIED} {seed}\nbegin_load {seed} {first}"))?;
        rig.sleep(vm.length_of(round))?;
        rig.run("loads_run\nkill_daemon\nend_load\nunmount_fs")?;
        plant(rig, vm)?;
        rig.run("serve")?;
        let after = || format!("after SIGKILL {round}");
        rig.run(&format!("mount_fs {kind}")).with_context(after)?;
        compare(rig, kind, true).with_context(after)?;
        rig.run(&format!("verify {POINT}/verified {VERIFIED} {seed}\nunmount_fs\ncheck_fs {kind} $(volume)\nno_errors"))
            .with_context(after)?;
    }
    Ok(())
}

/// The planted fault: drives that lie about flushes lose what a daemon's death never could.
fn plant(rig: &mut Rig, vm: &Vm) -> Result<()> {
    if vm.lying { rig.cut_drives() } else { Ok(()) }
}

/// Compares all files that were promised.
///
/// Where the device died under the file system, XFS may have told that a folder is durable after its device was gone (seen without
/// Headpond, too: docs/TESTING.md, the hammer). So a name that is missing counts there only if it was promised before the kill.
pub fn compare(rig: &mut Rig, kind: &str, device_died: bool) -> Result<()> {
    rig.write_list()?;
    rig.begin(&format!("load compare {POINT} /host/kept"))?;
    rig.end(LIMIT)?;
    for number in std::mem::take(&mut rig.ledger.missing) {
        let Some(kept) = rig.ledger.kept.remove(&number) else { continue };
        if kind != "ext4" && device_died && kept.at >= rig.ledger.killed {
            rig.ledger.take("::count names-in-doubt 1");
        } else {
            bail!("MISMATCH: durable-{number}, whose fsync had returned, is not there");
        }
    }
    Ok(())
}

/// Where the file system is mounted.
pub const POINT: &str = "/mnt";

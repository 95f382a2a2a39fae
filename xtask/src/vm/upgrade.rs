//! The daemon upgraded under a mounted file system, and stopped and started now and then: nothing fails, nothing is lost, and
//! I/O waits for less than a second while it is upgraded.

use super::kills::{POINT, compare};
use super::rig::Rig;
use super::{Context as Vm, Figures, Progress};
use anyhow::{Context, Result, bail};

/// How long I/O may wait, in milliseconds: shorter than this.
const PAUSE: u64 = 1000;

/// Rounds of load and upgrade, on ext4.
pub fn upgrade(vm: &Vm) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.first_boot()?;
    rig.run("make_fs ext4 $(volume)\nmount_fs ext4\ncp /tmp/headpond /tmp/headpond-newer")?;
    let console = rig.console_len();
    let (first, seed) = (rig.ledger.next, vm.seed);
    rig.run(&format!("write_verified {POINT}/verified 12m {seed}\nbegin_load {seed} {first}\nbegin_pauses"))?;
    let mut progress = Progress::begin(vm.rounds);
    for round in 1..=vm.rounds {
        progress.say(round);
        rig.sleep(vm.length_of(round))?;
        rig.run("loads_run\nno_errors")?;
        rig.run_first("upgrade_daemon").with_context(|| format!("upgrade {round}"))?;
        if round % 3 == 0 {
            // The engine's thread attends to the device's queue, on the guest's two processors, and threads of its own in turn.
            let queues = if round % 2 == 0 { "rm -f $CONFIG" } else { "echo queues = 2 >$CONFIG" };
            rig.run(&format!("no_errors\nstop_daemon\n{queues}\nserve\nno_errors"))
                .with_context(|| format!("the restart after upgrade {round}"))?;
        }
    }
    rig.sleep(vm.length)?;
    rig.run("loads_run\nend_load\nno_errors")?;
    rig.run(&format!("verify {POINT}/verified 12m {seed}"))?;
    compare(&mut rig, "ext4", false)?;
    rig.run("unmount_fs\ncheck_fs ext4 $(volume)")?;
    if let Some(line) = rig.console_errors(console).first() {
        bail!("the guest's kernel tells of an error, and there may be none: {line}");
    }
    let pauses = rig.ledger.all.get("upgrade-ms").map_or(&[][..], Vec::as_slice);
    let long: Vec<String> = pauses.iter().filter(|ms| **ms >= PAUSE).map(u64::to_string).collect();
    if pauses.len() as u64 != vm.rounds || !long.is_empty() {
        bail!("{} of {} upgrades were measured; {PAUSE} ms or longer were: {}", pauses.len(), vm.rounds, long.join(", "));
    }
    rig.run("detach_volume\nstop_daemon\ncheck_fs ext4 $(drive disk)").context("the disk alone, after the detach")?;
    Ok(rig.passed())
}

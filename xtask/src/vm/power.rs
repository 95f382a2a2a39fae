//! The machine's power cut under a file system: booted again on what the drives kept, everything that was promised is there.

use super::kills::{POINT, compare};
use super::rig::Rig;
use super::{Context as Vm, Figures, Progress};
use anyhow::{Context, Result};
use std::time::Duration;

/// The size of the file that fio writes, makes durable, and verifies after each cut.
const VERIFIED: &str = "12m";

/// Rounds of load, cut and boot, on this kind of file system.
pub fn survive(vm: &Vm, kind: &str) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.first_boot()?;
    rig.run(&format!("make_fs {kind} $(volume)\nmount_fs {kind}"))?;
    let mut progress = Progress::begin(vm.rounds);
    for round in 1..=vm.rounds {
        progress.say(round);
        let (first, seed) = (rig.ledger.next, vm.seed + round);
        rig.run(&format!("write_verified {POINT}/verified {VERIFIED} {seed}\nbegin_load {seed} {first}"))?;
        rig.sleep(vm.length_of(round))?;
        rig.run("loads_run")?;
        rig.power_cut()?;
        // Now and then the power fails again while the server recovers.
        if round.is_multiple_of(3) {
            rig.boot()?;
            rig.begin("state_disk\nserve\nmount_fs $KIND".replace("$KIND", kind).as_str())?;
            let moment = rig.dice.below(4000);
            rig.sleep(Duration::from_millis(moment))?;
            rig.power_cut()?;
            rig.ledger.take("::count of-them-in-recovery 1");
        }
        let after = || format!("after power cut {round}");
        rig.boot().with_context(after)?;
        rig.run(&format!("state_disk\nserve\nmount_fs {kind}")).with_context(after)?;
        compare(&mut rig, kind, false).with_context(after)?;
        rig.run(&format!(
            "verify {POINT}/verified {VERIFIED} {seed}\nunmount_fs\ncheck_fs {kind} $(volume)\nno_errors\nmount_fs {kind}"
        ))
        .with_context(after)?;
    }
    rig.run(&format!("unmount_fs\ndetach_volume\nstop_daemon\ncheck_fs {kind} $(drive disk)"))
        .context("the disk alone, after the detach")?;
    Ok(rig.passed())
}

//! SSDs whose reads fail now and then, as behind a bad cable: one of them under load, and both while a server starts after its power failed.

use super::drive::Faults;
use super::kills::{POINT, compare};
use super::rig::{Rig, SSD_A, SSD_B};
use super::{Context as Vm, Figures, Progress};
use anyhow::{Context, Result, bail};

/// The size of the file that fio writes, makes durable, and verifies after each start.
const VERIFIED: &str = "12m";

/// Of 256 reads so many fail.
const FLAKY: u8 = 64;

/// Rounds of load, power cut, and two starts: one whose reads fail now and then on both SSDs, and one with nothing wrong. What the first
/// could not read at once it must have read again; what it never read must not come back with the second.
pub fn survive(vm: &Vm) -> Result<Figures> {
    let flaky = Faults { flaky_reads: FLAKY, lying_flushes: vm.lying, ..Faults::default() };
    let well = Faults { lying_flushes: vm.lying, ..Faults::default() };
    let mut rig = Rig::set_up(vm)?;
    rig.first_boot()?;
    rig.run("make_fs ext4 $(volume)")?;
    let mut progress = Progress::begin(vm.rounds);
    for round in 1..=vm.rounds {
        progress.say(round);
        let (first, seed) = (rig.ledger.next, vm.seed + round);
        rig.run(&format!("mount_fs ext4\nwrite_verified {POINT}/verified {VERIFIED} {seed}\nbegin_load {seed} {first}"))?;
        // The other has all that is dirty, and the disk what is clean: no client may notice.
        let one = if round.is_multiple_of(2) { SSD_A } else { SSD_B };
        rig.drives[one].set_faults(flaky);
        rig.sleep(vm.length_of(round))?;
        rig.run("loads_run\nno_errors")
            .with_context(|| format!("in round {round}, while reads of one SSD failed now and then"))?;
        rig.power_cut()?;
        [SSD_A, SSD_B].iter().for_each(|ssd| rig.drives[*ssd].set_faults(flaky));
        let after = || format!("after power cut {round}, while reads of both SSDs failed now and then");
        rig.boot().with_context(after)?;
        let before = failed(&rig);
        rig.run("state_disk\nserve").with_context(after)?;
        let meanwhile = failed(&rig) - before;
        rig.ledger.take(&format!("::figure reads-failed-in-a-start {meanwhile}"));
        [SSD_A, SSD_B].iter().for_each(|ssd| rig.drives[*ssd].set_faults(well));
        look(&mut rig, seed).with_context(after)?;
        let again = || format!("started again after power cut {round}, with nothing wrong");
        rig.run("kill_daemon\nserve").with_context(again)?;
        look(&mut rig, seed).with_context(again)?;
        if rig.run("headpond status --socket $SOCKET")?.iter().any(|line| line.contains(" out ")) {
            bail!("an SSD was left out, though its reads failed only now and then, and it wrote all along: round {round}");
        }
    }
    rig.run("detach_volume\nstop_daemon\ncheck_fs ext4 $(drive disk)").context("the disk alone, after the detach")?;
    let mut figures: Figures = vec![("reads that the SSDs failed".into(), failed(&rig).into())];
    figures.extend(rig.passed());
    Ok(figures)
}

/// Requests that both SSDs have failed so far.
fn failed(rig: &Rig) -> u64 {
    [SSD_A, SSD_B].iter().map(|ssd| rig.drives[*ssd].counts().failed).sum()
}

/// All that was promised is there.
fn look(rig: &mut Rig, seed: u64) -> Result<()> {
    rig.run("mount_fs ext4")?;
    compare(rig, "ext4", false)?;
    rig.run(&format!("verify {POINT}/verified {VERIFIED} {seed}\nunmount_fs\ncheck_fs ext4 $(volume)\nno_errors")).map(drop)
}

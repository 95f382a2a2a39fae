//! An SSD pulled and put back under a file system with load: nothing fails, nothing is lost, and what is stale stays unused.

use super::drive::Faults;
use super::kills::{POINT, compare};
use super::rig::{Rig, SSD_A, SSD_B};
use super::{Context as Vm, Figures};
use anyhow::{Context, Result, bail};

/// How an SSD goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Out of the machine: its device is gone, and comes back as another.
    Pulled,
    /// It stays where it is, and fails whatever it is asked.
    Sick,
}

fn away(rig: &mut Rig, how: How, ssd: usize) -> Result<()> {
    match how {
        How::Pulled => return rig.pull(ssd),
        How::Sick => rig.drives[ssd].set_faults(Faults::ALL),
    }
    Ok(())
}

/// Takes the second SSD away, puts it back, starts the daemon anew with it, and without it; looks at the data each time.
pub fn pull(vm: &Vm, how: How) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.first_boot()?;
    let console = rig.console_len();
    rig.run(&format!(
        "make_fs ext4 $(volume)\nmount_fs ext4\nwrite_verified {POINT}/verified 12m {}\nbegin_load {} 0",
        vm.seed, vm.seed
    ))?;
    rig.sleep(vm.length)?;
    if vm.worse {
        // Planted: both at once. One after the other would leave time to bring what is dirty to safety.
        [SSD_A, SSD_B].iter().for_each(|ssd| rig.drives[*ssd].set_faults(Faults::ALL));
    }
    away(&mut rig, how, SSD_B)?;
    rig.sleep(vm.length)?;
    let said = rig.run("loads_run\nno_errors\nheadpond status --socket $SOCKET").context("while an SSD was pulled")?;
    if !said.iter().any(|line| line.contains(" out ")) {
        bail!("an SSD was pulled, and the daemon does not say that it is out:\n    {}", said.join("\n    "));
    }
    match how {
        How::Pulled => rig.put(SSD_B)?,
        How::Sick => rig.drives[SSD_B].set_faults(Faults::default()),
    }
    rig.sleep(vm.length)?;
    rig.run("loads_run\nend_load\nno_errors").context("when the SSD was back")?;
    compare(&mut rig, "ext4", false).context("when the SSD was back")?;
    rig.run(&format!("verify {POINT}/verified 12m {}\nunmount_fs\ncheck_fs ext4 $(volume)\nno_errors", vm.seed))?;
    // The volume's kernel told of nothing; the pulled drive's own errors are its own.
    let of_the_volume = |line: &&String| line.contains("loop") || line.contains("ublkb") || line.contains("EXT4");
    if let Some(line) = rig.console_errors(console).iter().find(of_the_volume) {
        bail!("the guest's kernel tells of a failed request, and there may be none: {line}");
    }
    // A daemon that finds the stale SSD must not believe it; and one that does not find it goes without.
    let mut words = String::new();
    for devices in ["", "$(drive ssda)"] {
        rig.run("stop_daemon")?;
        let said = rig.run(&format!("serve {devices}\nheadpond status --socket $SOCKET")).context("starting again")?;
        words = said.iter().find(|line| line.contains(" out ")).cloned().unwrap_or(words);
        rig.run("mount_fs ext4").context("after starting again")?;
        compare(&mut rig, "ext4", false).context("after starting again")?;
        rig.run(&format!("verify {POINT}/verified 12m {}\nunmount_fs\ncheck_fs ext4 $(volume)\nno_errors", vm.seed))
            .context("after starting again")?;
    }
    rig.run("detach_volume\nstop_daemon\ncheck_fs ext4 $(drive disk)").context("the disk alone, after the detach")?;
    let mut figures: Figures =
        vec![("the daemon said of it".into(), words.split_whitespace().collect::<Vec<_>>().join(" ").into())];
    figures.extend(rig.passed());
    Ok(figures)
}

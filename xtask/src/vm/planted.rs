//! Faults planted in the rig itself: a check that has never failed proves nothing, so each must find the one that is made for it.

use super::{CHECKS, Context, interrupt, one};
use crate::steps::in_words;
use anyhow::{Context as _, Result, bail};
use std::time::{Duration, Instant};

/// A fault, and the check that must find it.
struct Plant {
    check: &'static str,
    story: &'static str,
    plant: fn(&mut Context),
}

const PLANTS: [Plant; 9] = [
    Plant {
        check: "power-ext4",
        story: "the drives of pool and volume answer flushes and make nothing durable; a power cut shows it",
        plant: |vm| vm.lying = true,
    },
    Plant { check: "power-xfs", story: "the same, under XFS", plant: |vm| vm.lying = true },
    Plant {
        check: "kill-ext4",
        story: "with each SIGKILL the drives lose what was not flushed, and what they only said was",
        plant: |vm| vm.lying = true,
    },
    Plant {
        check: "kill-ext4",
        story: "the daemon is started again too late for a pause under two seconds",
        plant: |vm| vm.late = Duration::from_secs(2),
    },
    Plant { check: "kill-xfs", story: "the same, under XFS", plant: |vm| vm.lying = true },
    Plant { check: "pull-ssd", story: "as one SSD is pulled both fail, and errors must be seen", plant: |vm| vm.worse = true },
    Plant { check: "sick-ssd", story: "both SSDs fail, and errors must be seen", plant: |vm| vm.worse = true },
    Plant {
        check: "flaky-ssds",
        story: "reads fail now and then, and the drives answer flushes and make nothing durable",
        plant: |vm| vm.lying = true,
    },
    Plant { check: "disk-errors", story: "a disk that fails says that it wrote, and did not", plant: |vm| vm.worse = true },
];

/// Plants those for the checks whose name contains one of the words (all, where there are none), one at a time.
pub fn run(mut context: Context, only: &[String]) -> Result<()> {
    let (mut found, mut missed) = (0, Vec::new());
    for plant in PLANTS.iter().filter(|plant| only.is_empty() || only.iter().any(|word| plant.check.contains(word.as_str()))) {
        let begun = Instant::now();
        (context.lying, context.worse, context.late) = (false, false, Duration::ZERO);
        (plant.plant)(&mut context);
        let check = CHECKS.iter().find(|check| check.name == plant.check).context("a fault names a check that is not there")?;
        let result = one(check, &context);
        interrupt::check()?;
        let took = in_words(begun.elapsed());
        if result["outcome"] == "failed" {
            found += 1;
            println!("planted: {} ... found by {} ({took})", plant.story, plant.check);
        } else {
            println!("planted: {} ... NOT FOUND by {} ({took})", plant.story, plant.check);
            missed.push(plant.check);
        }
    }
    println!("planted faults: {found} found, {} not", missed.len());
    if !missed.is_empty() {
        bail!("not found by {}", missed.join(", "));
    }
    if found == 0 {
        bail!("no planted fault is for such a check");
    }
    Ok(())
}

//! The disk fails for a while: what is cached is served, what is not is an error and never wrong data, and once it heals all is there.

use super::drive::Faults;
use super::rig::{DISK, Rig};
use super::{Context as Vm, Figures};
use anyhow::{Context, Result, bail};

/// Blocks in each of the regions: cached and dirty; never cached; written while the disk fails.
const BLOCKS: u64 = 400;
/// What the guest says when a flush of the volume failed.
const UNFLUSHED: &str = "blocks-not-flushed";
/// Where the regions begin, in blocks.
const REGIONS: [u64; 3] = [0, 50_000, 100_000];

/// Fails the disk's reads and writes; then its flushes, too.
pub fn disk_errors(vm: &Vm) -> Result<Figures> {
    let mut rig = Rig::set_up(vm)?;
    rig.boot()?;
    let [cached, elsewhere, new] = REGIONS;
    // What is on the disk before it is ever attached is cached by nobody.
    rig.run(&format!("load write $(drive disk) {elsewhere} {} 2\nstate_disk new\ncreate_pool", 2 * BLOCKS))?;
    // Small writes are to be cached here even if an emulated SSD is slower than the disk's own cache.
    rig.run("printf '[engine]\\nroute = false\\n' >$CONFIG\nserve\nattach")?;
    rig.run(&format!("load write $(volume) {cached} {BLOCKS} 1"))?;
    let mut told = 0;
    for flushes in [false, true] {
        // What is read once may be cached from then on: each time another part.
        let elsewhere = elsewhere + if flushes { BLOCKS } else { 0 };
        let faults = match vm.worse {
            // Planted: it says that it wrote, and did not.
            true => Faults { reads: true, lost_writes: true, ..Faults::default() },
            false => Faults { reads: true, writes: true, flushes, ..Faults::default() },
        };
        rig.drives[DISK].set_faults(faults);
        let (good, failed) = counts(&rig.run(&format!("load read $(volume) {cached} {BLOCKS} 1"))?)?;
        if failed > 0 {
            bail!("the disk fails, and {failed} of {} cached blocks cannot be read", good + failed);
        }
        let (_, failed) = counts(&rig.run(&format!("load read $(volume) {elsewhere} {BLOCKS} 2"))?)?;
        told += failed;
        if failed == 0 {
            bail!("the disk fails, and what only the disk has is read without an error");
        }
        let said = rig.run(&format!("load write $(volume) {new} {BLOCKS} 3"))?;
        if said.iter().any(|line| line == UNFLUSHED) {
            bail!("the disk fails, and a flush of the volume failed, though the cache has all that was written");
        }
        let (good, failed) = counts(&said)?;
        if failed > 0 {
            bail!("the disk fails, and {failed} of {} small writes, which the cache takes, failed", good + failed);
        }
        // Destage meets the faults meanwhile.
        rig.sleep(vm.length)?;
        rig.run(&format!("load read $(volume) {new} {BLOCKS} 3")).context("while the disk failed")?;
        rig.drives[DISK].set_faults(Faults::default());
        rig.sleep(vm.length)?;
        for (first, seed) in [(cached, 1), (elsewhere, 2), (new, 3)] {
            let (_, failed) = counts(&rig.run(&format!("load read $(volume) {first} {BLOCKS} {seed}"))?)?;
            if failed > 0 {
                bail!("the disk has healed, and {failed} blocks still cannot be read");
            }
        }
    }
    // Not where was written while the disk failed: what became of that is to be seen on the disk.
    if rig.run(&format!("load write $(volume) {cached} {BLOCKS} 1"))?.iter().any(|line| line == UNFLUSHED) {
        bail!("the disk has healed, and a flush of the volume fails");
    }
    rig.run("must headpond flush $NAME --socket $SOCKET").context("the disk has healed, and is told to take what is dirty")?;
    rig.run("detach_volume\nstop_daemon")?;
    for (first, blocks, seed) in [(cached, BLOCKS, 1), (elsewhere, 2 * BLOCKS, 2), (new, BLOCKS, 3)] {
        let (_, failed) =
            counts(&rig.run(&format!("load read $(drive disk) {first} {blocks} {seed}")).context("the disk alone")?)?;
        if failed > 0 {
            bail!("{failed} blocks of the disk alone cannot be read");
        }
    }
    let refused = rig.drives[DISK].counts().failed;
    let mut figures: Figures =
        vec![("requests that the disk failed".into(), refused.into()), ("errors that the client saw".into(), told.into())];
    figures.extend(rig.passed());
    Ok(figures)
}

/// How many blocks were good, and how many failed. Wrong ones have ended the script.
fn counts(said: &[String]) -> Result<(u64, u64)> {
    let line = said.iter().find(|line| line.starts_with("blocks ")).context("the guest did not say how it went")?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [good, failed, _] => Ok((good, failed)),
        _ => bail!("the guest said something else: {line}"),
    }
}

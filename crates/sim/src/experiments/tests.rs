//! The bare models against the published figures of the bare hardware, in short windows; and that a seed repeats a run.

use super::drive::{Process, Script};
use super::hardware::{Machine, lustre_server, nfs_server};
use super::point::{GIB, MIB, mb, mib};
use super::script::{File, Random, Stream};
use super::{ALL, Options};
use crate::bench::measure::Reached;

/// What the processes of `script` reach on the bare array.
fn bare(
    machine: &Machine,
    files: Vec<File>,
    lanes: usize,
    settle: u64,
    script: impl Fn(u64, File) -> Box<dyn Script>,
) -> Reached {
    let process = |(n, file): (usize, File)| Process { group: 0, client: n, lanes, script: script(n as u64, file) };
    let mut driver = machine.drive(machine.bare(1), 1, files.into_iter().enumerate().map(process).collect());
    driver.seconds(settle).unwrap();
    driver.seconds(3).unwrap().swap_remove(0)
}

fn near(what: &str, figure: f64, published: f64) {
    println!("{what}: {figure:.0}, published {published}");
    assert!((0.85..=1.15).contains(&(figure / published)), "{what}: {figure:.0} is not within 15 % of {published}");
}

#[test]
fn the_bare_nfs_server_is_as_fast_as_was_published() {
    let machine = nfs_server();
    let files = || File::several(0, 0, 0, 64, 4 * GIB);
    let a1 = bare(&machine, files(), 8, 2, |_, f| Box::new(Stream::new(f, true, MIB)));
    near("A1, MiB/s", mib(&a1), 2000.0);
    // The controller's cache is full first, and its sweep finds all that it ever will.
    let a3 = bare(&machine, files(), 2, 600, |n, f| Box::new(Random::new(f, 4096, 0, n).durable()));
    near("A3, writes/s", a3.per_s, 1600.0);
    let a4 = bare(&machine, files(), 2, 1, |n, f| Box::new(Random::new(f, 4096, 100, n)));
    near("A4 and A6, reads/s", a4.per_s, 9300.0);
}

#[test]
fn the_bare_lustre_server_is_as_fast_as_was_published() {
    let machine = lustre_server();
    let writes = bare(&machine, File::growing(0, 0, MIB, 16, 32 * GIB), 16, 1, |_, f| Box::new(Stream::new(f, true, MIB)));
    near("C1, write, both arrays, MB/s", 2.0 * mb(&writes), 13_143.0);
    let reads = bare(&machine, File::several(0, 0, 256 * MIB, 16, 32 * GIB), 64, 1, |_, f| Box::new(Stream::new(f, false, MIB)));
    near("C1, read, both arrays, MB/s", 2.0 * mb(&reads), 11_182.0);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let c4 = ALL.iter().find(|e| e.id == "C4").unwrap();
    let [a, b] = [0, 1].map(|_| c4.report(Options { seed: 7, quick: true }).outcome.unwrap());
    assert_eq!(a, b);
    assert!(!a.figures.is_empty() && !a.verdicts.is_empty());
}

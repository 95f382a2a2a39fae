//! What is fuzzed: bytes from media, sockets and clients, each target as a plain function.
//!
//! A target panics where something happened that must never happen. libFuzzer drives them with a nightly compiler
//! (`fuzz_targets`); `stable` drives them without one, over the committed corpus and random changes of it.

pub mod checkpoint;
pub mod control;
pub mod image;
pub mod input;
pub mod intent;
pub mod mend;
pub mod nbd;
pub mod operations;
pub mod record;
pub mod superblock;

/// A target.
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Takes an input. Panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The longest input that is worth trying, in bytes.
    pub longest: usize,
    /// How many inputs the stable run tries, beside the corpus.
    pub tries: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "superblock",
        about: "superblocks and witness records, and elections over sets of them",
        run: superblock::run,
        seeds: superblock::seeds,
        longest: 512,
        tries: 6000,
    },
    Target {
        name: "record",
        about: "segment headers and streams of records",
        run: record::run,
        seeds: record::seeds,
        longest: 4096,
        tries: 12_000,
    },
    Target {
        name: "checkpoint",
        about: "pages of checkpoints",
        run: checkpoint::run,
        seeds: checkpoint::seeds,
        longest: 4096,
        tries: 12_000,
    },
    Target {
        name: "intent",
        about: "pages of the intent map",
        run: intent::run,
        seeds: intent::seeds,
        longest: 4096,
        tries: 12_000,
    },
    Target {
        name: "image",
        about: "starts from whole media that somebody has changed, checksums mended",
        run: image::run,
        seeds: image::seeds,
        longest: 256,
        tries: 3000,
    },
    Target {
        name: "control",
        about: "frames of the control socket",
        run: control::run,
        seeds: control::seeds,
        longest: 4096,
        tries: 12_000,
    },
    Target { name: "nbd", about: "NBD handshakes and requests", run: nbd::run, seeds: nbd::seeds, longest: 4096, tries: 12_000 },
    Target {
        name: "operations",
        about: "requests, commands and crashes against the engine, under the simulator's oracle",
        run: operations::run,
        seeds: operations::seeds,
        longest: 256,
        tries: 600,
    },
];

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
    // Superblocks and witness records, and elections over sets of them.
    Target { name: "superblock", run: superblock::run, seeds: superblock::seeds, longest: 512, tries: 6000 },
    // Segment headers and streams of records.
    Target { name: "record", run: record::run, seeds: record::seeds, longest: 4096, tries: 12_000 },
    // Pages of checkpoints.
    Target { name: "checkpoint", run: checkpoint::run, seeds: checkpoint::seeds, longest: 4096, tries: 12_000 },
    // Pages of the intent map.
    Target { name: "intent", run: intent::run, seeds: intent::seeds, longest: 4096, tries: 12_000 },
    // Starts from whole media that somebody has changed, checksums mended.
    Target { name: "image", run: image::run, seeds: image::seeds, longest: 256, tries: 3000 },
    // Frames of the control socket.
    Target { name: "control", run: control::run, seeds: control::seeds, longest: 4096, tries: 12_000 },
    // NBD handshakes and requests.
    Target { name: "nbd", run: nbd::run, seeds: nbd::seeds, longest: 4096, tries: 12_000 },
    // Requests, commands and crashes against the engine, under the simulator's oracle.
    Target { name: "operations", run: operations::run, seeds: operations::seeds, longest: 256, tries: 600 },
];

//! The offline tools on media that chance has written to, checksums mended now and then: they end, without a panic, soon,
//! and in little memory, whatever is there.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::Yard;
use headpond_host::offline::{Media, check, dump, list_damaged, repair};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What all of the tools may take on a pool of 2 MiB, in MiB.
const MOST_MEMORY: f32 = 192.0;
const ROUNDS: u64 = 60;
const BYTES: u64 = 2 << 20;

/// Chance, from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }
}

/// Two devices of a pool with a volume, dirty and clean data, and a checkpoint; their daemon is dead.
fn pool(yard: &Yard) -> [Vec<u8>; 2] {
    for name in ["a", "b"] {
        yard.file(name, BYTES);
    }
    yard.run(&["pool", "create", "pool", "a", "b", "--segment", "64KiB"]).good();
    yard.file("disk", 1 << 20);
    fs::write(yard.path("toml"), "[engine]\nroute = false\n").unwrap();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    yard.run(&["attach", "v", "disk"]).good();
    let mut nbd = yard.nbd("v");
    for n in 0..40u64 {
        nbd.write(n * 37 % 200 * 512, &vec![n as u8; 512 * (1 + n as usize % 9)], false).unwrap();
        nbd.read((512 << 10) + n * 4096, 4096).unwrap();
    }
    daemon.stop();
    let daemon = yard.serve(&["a", "b", "--config", "toml"]);
    let mut nbd = yard.nbd("v");
    for n in 0..30u64 {
        nbd.write(n * 53 % 200 * 512, &vec![n as u8 | 0x80; 512 * (1 + n as usize % 9)], false).unwrap();
    }
    daemon.kill();
    ["a", "b"].map(|name| fs::read(yard.path(name)).unwrap())
}

/// What begins at a sector: the seed of its checksum, and how many bytes that covers.
fn structure(bytes: &[u8], key: u64) -> Option<(u64, usize)> {
    let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (seed, len) = match bytes.get(..4)? {
        b"HEAD" => (0, length(20)),
        b"HPsg" => (key, 512),
        b"HPin" => (key, 4096),
        b"HPrc" | b"HPck" => (key, length(4)),
        _ => return None,
    };
    (32..=bytes.len()).contains(&len).then_some((seed, len))
}

/// Changes a structure, and makes its checksum right again.
fn forge(image: &mut [u8], key: u64, dice: &mut Dice) {
    let places: Vec<usize> = (0..image.len()).step_by(512).filter(|at| structure(&image[*at..], key).is_some()).collect();
    let Some(at) = places.get(dice.below(places.len().max(1) as u64) as usize).copied() else { return };
    let Some((seed, len)) = structure(&image[at..], key) else { return };
    for _ in 0..=dice.below(3) {
        let field = at + 16 + dice.below(len.min(240) as u64 - 16) as usize;
        let width = [1, 2, 4, 8][dice.below(4) as usize].min(at + len - field);
        let value = [0, 1, u64::MAX, 1 << 55, dice.below(256), 1 << 31][dice.below(6) as usize];
        image[field..field + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    image[at + 8..at + 16].fill(0);
    let sum = headpond_format::checksum(seed, &image[at..at + len]);
    image[at + 8..at + 16].copy_from_slice(&sum.to_le_bytes());
}

fn spoil(images: &mut [Vec<u8>; 2], key: u64, dice: &mut Dice) {
    for _ in 0..1 + dice.below(6) {
        let one = dice.below(2) as usize;
        let (at, to) = (dice.below(BYTES / 512) as usize * 512, dice.below(BYTES / 512) as usize * 512);
        let len = (512usize << dice.below(8)).min(BYTES as usize - at.max(to));
        match dice.below(6) {
            0 => images[one][at..at + len].fill(0),
            1 => images[one].copy_within(at..at + len, to),
            2 => (0..8).for_each(|_| images[one][dice.below(BYTES) as usize] ^= 1 << dice.below(8)),
            _ => forge(&mut images[one], key, dice),
        }
    }
}

/// All tools over the devices, as far as each comes.
fn all_tools(paths: &[PathBuf]) -> u64 {
    let mut findings = 0;
    let mut goes_on = |_| true;
    let Ok(media) = Media::open(paths, Duration::ZERO) else { return 0 };
    let Ok(vote) = media.vote(None) else { return 0 };
    let count = &mut |_| {
        findings += 1;
        Ok(())
    };
    let _ = check(&media, vote, count, &mut goes_on);
    let _ = repair(&media, vote, None, &mut |_| Ok(()), &mut goes_on);
    let _ = dump(
        &media,
        vote,
        true,
        &mut |part| {
            drop(format!("{part:?}"));
            Ok(())
        },
        &mut goes_on,
    );
    if let Ok(pool) = media.pool(vote) {
        let _ = list_damaged(&pool, &mut goes_on);
    }
    findings
}

#[test]
fn whatever_is_on_the_media_the_offline_tools_end_soon_and_in_little_memory() {
    let yard = Yard::new();
    let sound = pool(&yard);
    let key = u64::from_le_bytes(sound[0][56..64].try_into().unwrap());
    let paths = ["a", "b"].map(|name| yard.path(name));
    let mut findings = 0;
    for seed in 1..=ROUNDS {
        let (mut images, mut dice) = (sound.clone(), Dice(seed));
        spoil(&mut images, key, &mut dice);
        for (path, image) in paths.iter().zip(&images) {
            OpenOptions::new().write(true).open(path).unwrap().write_all_at(image, 0).unwrap();
        }
        MEMORY.reset_peak_usage();
        let (to, done) = mpsc::channel();
        let devices = if seed % 7 == 0 { paths[..1].to_vec() } else { paths.to_vec() };
        thread::spawn(move || to.send(all_tools(&devices)));
        match done.recv_timeout(Duration::from_secs(60)) {
            Ok(found) => findings += found,
            Err(error) => panic!("seed {seed}: {error}: a panic, or no end within a minute"),
        }
        assert!(MEMORY.peak_usage_as_mb() < MOST_MEMORY, "seed {seed}: {} MiB", MEMORY.peak_usage_as_mb());
        for (path, image) in paths.iter().zip(&images) {
            assert!(fs::read(path).unwrap() == *image, "seed {seed}: {} was changed", path.display());
        }
    }
    assert!(findings > ROUNDS, "{findings} findings: chance spoils too little");
}

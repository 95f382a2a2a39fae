//! Neighbourhoods that are brought into the cache whole.

use headpond_engine::{Device, DeviceOp, Settings};
use headpond_sim::rng::Rng;
use headpond_sim::scene::{Scene, Stage};

const MILLISECOND: u64 = 1_000_000;
/// Sectors of a neighbourhood.
const NEIGHBOURHOOD: u64 = (1 << 20) / 512;

fn stage() -> Stage {
    let stage = Stage::default();
    // On so small a disk much that is asked for at random is beside something else.
    let settings = Settings { read_around: true, stream_bytes: 1 << 30, ..stage.settings };
    Stage { segments: 120, segment_bytes: 256 << 10, settings, ..stage }
}

/// Misses, and neighbourhoods filled.
fn seen(s: &Scene) -> (u64, u64) {
    let stats = &s.status().volumes[0].stats;
    (stats.miss.requests, stats.read_around.requests)
}

/// Reads blocks of the first so many neighbourhoods in an order of chance, each once.
fn read_once(s: &mut Scene, neighbourhoods: u64, reads: usize, pause: u64) {
    let mut blocks: Vec<u64> = (0..neighbourhoods * NEIGHBOURHOOD / 8).collect();
    let mut rng = Rng::new(1);
    for n in 0..reads {
        let other = n + rng.below((blocks.len() - n) as u64) as usize;
        blocks.swap(n, other);
        s.read(blocks[n] * 8, 8);
        s.pass(pause);
    }
}

/// `tar` packs a tree of small files, in the order of its directories, which is not that of the disk. Next to all of its reads
/// would be misses: each file is read once.
#[test]
fn where_places_are_missed_here_and_there_all_around_them_is_brought() {
    let mut s = Scene::new("a tree", stage());
    read_once(&mut s, 16, 1000, MILLISECOND);
    let (misses, filled) = seen(&s);
    assert!(misses < 300 && filled >= 12, "{misses} missed, {filled} neighbourhoods brought");
    s.lose_power();
    s.read_all();
    s.end();
}

/// Reads are scattered over the disk: of what is beside them next to nothing is ever asked for. All would be brought, each at
/// the cost of several reads.
#[test]
fn where_reads_are_scattered_next_to_no_neighbourhood_is_brought() {
    let mut s = Scene::new("scattered reads", stage());
    read_once(&mut s, 128, 330, 100 * MILLISECOND);
    let (misses, filled) = seen(&s);
    assert!(misses > 300 && filled <= 6, "{misses} missed, {filled} neighbourhoods brought");
    s.end();
}

/// A neighbourhood takes long to be read, and much of it is written meanwhile: into the cache, past it, and by destage. What the disk had
/// before is not what it holds (R5).
#[test]
fn what_is_written_while_its_neighbourhood_is_brought_stays_written() {
    let mut s = Scene::new("a neighbourhood that is written to", stage());
    s.read(0, 8);
    s.hold_answers(|device, op| matches!((device, op), (Device::Backing(_), DeviceOp::Read { len, .. }) if *len > 8192));
    s.read(64 * 8, 8);
    s.until_held();
    for block in [1, 65, 66, 130, 255] {
        s.write(block * 8 + 1, 4);
    }
    s.destage();
    s.write(70 * 8, 16);
    // Past the cache: nothing that is cached is newer than what was read.
    s.write(160 * 8, 128);
    s.let_go();
    s.pass(10 * MILLISECOND);
    assert_eq!(seen(&s).1, 1);
    s.read(0, NEIGHBOURHOOD as u32);
    s.flush();
    s.lose_power();
    s.read_all();
    s.end();
}

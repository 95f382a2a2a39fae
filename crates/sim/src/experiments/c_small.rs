//! C4, C5, C6: small appends, unaligned requests, tar, on a Lustre server.

use super::drive::{Process, Script, Turn};
use super::front::Call;
use super::hardware::lustre_server;
use super::outcome::{Line, Outcome, Scale, Who};
use super::point::{GIB, MIB, Options};
use super::rig::{Store, warm_up};
use super::script::{File, Random, Stream};
use crate::models::{MICROSECOND, MILLISECOND};
use crate::rng::Rng;
use crate::target::Ask;
use crate::world::Violation;
use headpond_engine::format::Mode;

fn block(writes: bool, at: u64, bytes: u64) -> Call {
    let (sector, sectors) = (at / 512, bytes / 512);
    Call::Block(0, if writes { Ask::Write { sector, sectors } } else { Ask::Read { sector, sectors } })
}

/// Where the file that is appended to lies, where its index, where its header.
const APPENDED: u64 = GIB;
const INDEX: u64 = 16 * MIB;

/// A writer of HDF5 that is read while it writes: a piece of data at the end, the index of pieces, the header; then a flush.
struct Writer {
    step: u64,
    appended: u64,
}

impl Script for Writer {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        let step = self.step % 4;
        self.step += 1;
        let call = match step {
            0 => block(true, APPENDED + self.appended, 4096),
            1 => block(true, INDEX + self.appended / 4096 % 256 * 4096, 4096),
            2 => block(true, 0, 512),
            _ => {
                self.appended = (self.appended + 4096) % (4 * GIB);
                Call::Block(0, Ask::Flush)
            }
        };
        Some(Turn { think_ns: 0, call, ends: (step == 3).then_some(4096) })
    }
}

/// A reader: the header, then the index, every ten milliseconds.
struct Reader(u64);

impl Script for Reader {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        self.0 += 1;
        let header = self.0 % 2 == 1;
        let call = if header { block(false, 0, 512) } else { block(false, INDEX + self.0 / 2 % 256 * 4096, 4096) };
        let think_ns = if header { 10 * MILLISECOND } else { 0 };
        Some(Turn { think_ns, call, ends: (!header).then_some(4608) })
    }
}

/// C4: one writer, several readers.
///
/// # Errors
/// Something happened that must not.
pub fn c4(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let processes = || {
        let readers =
            (1..5).map(|n| Process { group: 1, client: n, lanes: 1, script: Box::new(Reader(n as u64 * 16)) as Box<dyn Script> });
        let writer = Process { group: 0, client: 0, lanes: 1, script: Box::new(Writer { step: 0, appended: 0 }) };
        std::iter::once(writer).chain(readers).collect::<Vec<_>>()
    };
    let bare = options.steady(&machine, machine.bare(1), processes())?;
    let store = machine.cached(Mode::WriteBack, 1, APPENDED + 4 * GIB, options.seed)?;
    let back = options.steady(&machine, store, processes())?;
    out.figure("appends, each flushed", "1/s", &[(Who::Bare, bare[0].per_s), (Who::Back, back[0].per_s)]);
    out.figure("looks of four readers", "1/s", &[(Who::Bare, bare[1].per_s), (Who::Back, back[1].per_s)]);
    out.must("appends, by bare", back[0].per_s / bare[0].per_s, 10.0);
    out.must("readers, by bare", back[1].per_s / bare[1].per_s, 0.97);
    out.note(format!("2,500 appends take {:.1} s bare and {:.1} s cached.", 2500.0 / bare[0].per_s, 2500.0 / back[0].per_s));
    let bars = vec![
        (Who::Bare, "bare".to_owned(), vec![(0.0, bare[0].per_s)]),
        (Who::Back, "Headpond".to_owned(), vec![(0.0, back[0].per_s)]),
    ];
    out.bars("One writer, four readers", "appends/s", Scale::Powers, &["appends".into()], bars);
    Ok(out)
}

/// C5: aligned and not, written, written again, read.
///
/// # Errors
/// Something happened that must not.
pub fn c5(options: Options) -> Result<Outcome, Violation> {
    const FILES: u64 = 8;
    let machine = lustre_server();
    let mut out = Outcome::default();
    let mut bars: Vec<Line> = ["bare, aligned", "bare, unaligned", "Headpond, aligned", "Headpond, unaligned"]
        .into_iter()
        .zip([Who::Bare, Who::Ssds, Who::Back, Who::Through])
        .map(|(name, who)| (who, name.to_owned(), Vec::new()))
        .collect();
    let mut names = Vec::new();
    let kinds: [(&str, u64, bool, bool, u64); 6] = [
        ("write 4 KiB", 4 << 10, true, false, 64 * MIB),
        ("write 64 KiB", 64 << 10, true, false, 512 * MIB),
        ("read 4 KiB", 4 << 10, false, false, 64 * MIB),
        ("read 64 KiB", 64 << 10, false, false, 64 * MIB),
        ("write stream of 1 MiB", MIB, true, true, 8 * GIB),
        ("read stream of 1 MiB", MIB, false, true, 8 * GIB),
    ];
    for (n, (what, size, writes, stream, bytes)) in kinds.into_iter().enumerate() {
        let mut reached = Vec::new();
        for cached in [false, true] {
            for skew in [0, 512 * 5] {
                let files = File::several(0, 0, if stream { 256 * MIB } else { 0 }, FILES, bytes);
                let extent = FILES * bytes + MIB;
                let mut store = match cached {
                    false => machine.bare(1),
                    true => machine.cached(Mode::WriteBack, 1, extent, options.seed)?,
                };
                if !writes && !stream {
                    warm_up(&mut store, extent, 0..extent, options.seed)?;
                }
                let process = |(n, file): (usize, File)| Process {
                    group: 0,
                    client: n,
                    lanes: if stream { 16 } else { 4 },
                    script: match stream {
                        true => Box::new(Stream::new(file, writes, size).skewed(skew)) as Box<dyn Script>,
                        false => {
                            Box::new(Random::new(file, size, if writes { 0 } else { 100 }, options.seed + n as u64).skewed(skew))
                        }
                    },
                };
                reached.push(options.steady(&machine, store, files.into_iter().enumerate().map(process).collect())?[0].per_s);
            }
        }
        let [bare, bare_skewed, back, back_skewed] = reached[..] else { continue };
        out.figure(format!("{what}, aligned"), "1/s", &[(Who::Bare, bare), (Who::Back, back)]);
        out.figure(format!("{what}, unaligned"), "1/s", &[(Who::Bare, bare_skewed), (Who::Back, back_skewed)]);
        if !stream {
            out.must(format!("{what}: unaligned by aligned"), back_skewed / back, 0.9);
        }
        out.must(format!("{what}: unaligned, by bare unaligned"), back_skewed / bare_skewed, 0.97);
        out.must(format!("{what}: aligned, by bare aligned"), back / bare, 0.97);
        names.push(what.to_owned());
        for (line, value) in bars.iter_mut().zip([bare, bare_skewed, back, back_skewed]) {
            line.2.push((n as f64, value));
        }
    }
    out.note("Small writes go over their files again and again, so that most of them are re-writes; small reads are of what is cached. Unaligned is 2,560 bytes past a multiple of the size.");
    out.bars("Aligned and unaligned", "requests/s", Scale::Powers, &names, bars);
    Ok(out)
}

/// Files of an aged directory: sizes as in a tree of sources, places without order.
#[derive(Clone)]
struct Tree {
    rng: Rng,
    region: u64,
}

/// Bytes of small files: half of them up to 8 KiB, few of more than 64.
const SIZES: [u64; 10] = [4096, 4096, 4096, 8192, 8192, 12_288, 16_384, 24_576, 49_152, 131_072];
/// Where the archive lies.
const ARCHIVE: u64 = 64 * GIB;
/// A file is opened, looked at and closed on the metadata server.
const OPENED_NS: u64 = 450 * MICROSECOND;

impl Tree {
    fn new(options: Options) -> Self {
        Self { rng: Rng::new(options.seed), region: 8 * GIB }
    }
    /// Place and size of the next file; the same in every run through the tree.
    fn file(&mut self) -> (u64, u64) {
        let bytes = *self.rng.pick(&SIZES);
        (self.rng.below(self.region / (128 << 10)) * (128 << 10), bytes)
    }
}

/// tar: `packs`: reads files and writes the archive; else the other way about, with as many files written behind as it has lanes.
struct Tar {
    tree: Tree,
    packs: bool,
    packed: u64,
    archive: u64,
    /// Requests that it leaves to the client's cache, which has several under way.
    lanes: u64,
    /// Files of the tree that are left.
    left: u64,
}

impl Script for Tar {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        // The archive moves in whole MiB.
        if self.packed >= MIB {
            self.packed -= MIB;
            let at = ARCHIVE + self.archive;
            self.archive += MIB;
            return Some(Turn { think_ns: 0, call: block(self.packs, at, MIB), ends: Some(0) });
        }
        self.left = self.left.checked_sub(1)?;
        let (at, bytes) = self.tree.file();
        self.packed += bytes;
        // One process opens one file after the other, however many of them are being written behind it.
        Some(Turn { think_ns: OPENED_NS * self.lanes, call: block(!self.packs, at, bytes), ends: Some(bytes) })
    }
}

/// C6: tar -x, then tar -c of the same tree.
///
/// # Errors
/// Something happened that must not.
pub fn c6(options: Options) -> Result<Outcome, Violation> {
    let machine = lustre_server();
    let mut out = Outcome::default();
    let files = if options.quick { 4_000 } else { 60_000 };
    let run = |store: Store| -> Result<[f64; 2], Violation> {
        let tar = |packs, lanes| {
            let tree = Tree::new(options);
            let script = Box::new(Tar { tree, packs, packed: 0, archive: 0, lanes, left: files });
            vec![Process { group: 0, client: 0, lanes: lanes as usize, script }]
        };
        // tar -x leaves its files to the client's cache, which writes several at once.
        let mut driver = machine.drive(store, options.seed, tar(false, 8));
        let begun = driver.front.now();
        while !driver.ended() {
            driver.seconds(10)?;
        }
        let unpacked = driver.front.now();
        // Time passes; what is dirty goes to the disks.
        driver.idle(60)?;
        let from = driver.front.now();
        driver.join(tar(true, 1));
        while !driver.ended() {
            driver.seconds(10)?;
        }
        Ok([unpacked - begun, driver.front.now() - from].map(|ns| ns as f64 / 1e9))
    };
    let bare = run(machine.bare(1))?;
    let back = run(machine.cached(Mode::WriteBack, 1, ARCHIVE + 4 * GIB, options.seed)?)?;
    out.figure(format!("tar -x, {files} files"), "s", &[(Who::Bare, bare[0]), (Who::Back, back[0])]);
    out.figure(format!("tar -c, {files} files"), "s", &[(Who::Bare, bare[1]), (Who::Back, back[1])]);
    out.must("tar -c: times as fast as bare", bare[1] / back[1], 2.0);
    out.must("tar -x: times as fast as bare", bare[0] / back[0], 1.0);
    out.note("The whole run is timed, not a window of it. The files lie without order, as in a directory that has been in use; the metadata server takes 0.45 ms for each and is not cached.");
    let bars = vec![
        (Who::Bare, "bare".to_owned(), vec![(0.0, bare[0]), (1.0, bare[1])]),
        (Who::Back, "Headpond".to_owned(), vec![(0.0, back[0]), (1.0, back[1])]),
    ];
    out.bars("tar", "seconds", Scale::Linear, &["tar -x".into(), "tar -c".into()], bars);
    Ok(out)
}

//! A5: mdtest through NFS: files created, looked at, removed.

use super::drive::{Process, Script, Turn};
use super::front::{Call, JournalParams};
use super::hardware::{Machine, nfs_server};
use super::outcome::{Outcome, Scale, Who};
use super::point::{GIB, MIB, Options, least_ratio, points};
use super::rig::warm_up;
use crate::rng::Rng;
use crate::target::Ask;
use crate::world::Violation;
use headpond_engine::format::Mode;
use std::ops::Range;

/// Where inodes and directories of a million files lie.
const METADATA: Range<u64> = GIB..2 * GIB;
/// Bytes of the blocks that they are read and written in.
const BLOCK: u64 = 16 << 10;
/// Inodes in such a block, of 512 bytes.
const INODES: u64 = 32;

/// A server whose file system keeps a journal, as XFS does: an operation is done when the commit that it is in is durable;
/// inodes follow later.
fn server(op_bytes: u64) -> Machine {
    let mut machine = nfs_server();
    machine.front.journal = Some(JournalParams {
        region: 0..128 * MIB,
        op_bytes,
        most_bytes: 32 << 10,
        metadata: METADATA,
        ops_per_block: INODES,
        block_bytes: BLOCK,
        most_waiting: 256,
        depth: 16,
    });
    machine
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Stat,
    Remove,
}

/// One thread of mdtest.
struct Mdtest {
    operation: Operation,
    looked_up: bool,
    files: u64,
    rng: Rng,
}

impl Script for Mdtest {
    fn next(&mut self, _lane: usize) -> Option<Turn> {
        if self.operation == Operation::Stat {
            self.files += 1;
            // The file system was unmounted in between: the first file of a block of inodes has it read.
            let call = if self.files % INODES == 1 {
                let at = METADATA.start + self.rng.below((METADATA.end - METADATA.start) / BLOCK) * BLOCK;
                Call::Block(0, Ask::Read { sector: at / 512, sectors: BLOCK / 512 })
            } else {
                Call::Cached
            };
            return Some(Turn { think_ns: 0, call, ends: Some(0) });
        }
        self.looked_up = !self.looked_up;
        let turn = |call, ends| Some(Turn { think_ns: 0, call, ends });
        if self.looked_up { turn(Call::Cached, None) } else { turn(Call::Logged, Some(0)) }
    }
}

/// 1 to 64 clients with a thread each, then 2, 4 and 8 threads.
fn threads(n: u64, operation: Operation, seed: u64) -> Vec<Process> {
    (0..n)
        .map(|number| {
            let rng = Rng::new(seed.wrapping_add(number));
            // Threads do not begin a block of inodes all at once.
            let script = Box::new(Mdtest { operation, looked_up: false, files: number % INODES, rng });
            Process { group: 0, client: (number % 64) as usize, lanes: 1, script }
        })
        .collect()
}

/// A5: mdtest.
///
/// # Errors
/// Something happened that must not.
pub fn a5(options: Options) -> Result<Outcome, Violation> {
    let counts = options.counts(&[1, 8, 64, 512]);
    let mut out = Outcome::default();
    for (operation, name, op_bytes) in
        [(Operation::Create, "create", 2048), (Operation::Stat, "stat", 2048), (Operation::Remove, "remove", 1536)]
    {
        let machine = server(op_bytes);
        let mut lines = Vec::new();
        let mut all = Vec::new();
        for who in [Who::Bare, Who::Back, Who::Through] {
            let mut values = Vec::new();
            for n in &counts {
                let mut store = match who {
                    Who::Bare => machine.bare(1),
                    Who::Back => machine.cached(Mode::WriteBack, 1, METADATA.end, options.seed)?,
                    _ => machine.cached(Mode::WriteThrough, 1, METADATA.end, options.seed)?,
                };
                if operation == Operation::Stat {
                    // They came through the cache when the files were created.
                    warm_up(&mut store, METADATA.end, METADATA, options.seed)?;
                }
                values.push(options.steady(&machine, store, threads(*n, operation, options.seed))?[0].per_s);
            }
            lines.push((who, who.name().to_owned(), points(&counts, &values)));
            all.push((who, values));
        }
        for (n, threads) in counts.iter().enumerate() {
            let reached: Vec<_> = all.iter().map(|(who, values)| (*who, values[n])).collect();
            out.figure(format!("{name}, {threads} threads"), "files/s", &reached);
        }
        out.must(format!("{name}, write-back, at the worst number of threads, by bare"), least_ratio(&all[1].1, &all[0].1), 1.0);
        out.lines(&format!("mdtest: {name}"), "threads", "files/s", Scale::Linear, lines);
    }
    out.note(
        "Where every operation is answered from the server's memory, or its cores are the limit, cached and bare are equal.",
    );
    Ok(out)
}

//! What lies between clients and a block device: links, a file server with so many threads and cores, and the journal of its file system.

use crate::models::SECOND;
use crate::rng::Rng;
use crate::target::{Ask, Target};
use crate::world::Violation;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;

/// The journal of a metadata server's file system.
#[derive(Clone, Debug)]
pub struct JournalParams {
    /// Where it lies, in bytes of the volume.
    pub region: Range<u64>,
    /// Bytes that an operation adds to the next commit.
    pub op_bytes: u64,
    /// Most bytes of one write of a commit.
    pub most_bytes: u64,
    /// Where inodes and directories lie that are written some time after the commit.
    pub metadata: Range<u64>,
    /// So many operations dirty one more block of metadata.
    pub ops_per_block: u64,
    /// Bytes of such a block.
    pub block_bytes: u64,
    /// Metadata that waits to be written: beyond it operations wait, as the journal has no room.
    pub most_waiting: usize,
    /// Metadata writes in flight.
    pub depth: usize,
}

/// Links and server. Rates in bytes per second, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct FrontParams {
    /// Time of a message from one end to the other, software included.
    pub latency_ns: u64,
    /// Of one client's link, in each direction.
    pub client_rate: u64,
    /// Of the server's link, in each direction.
    pub server_rate: u64,
    /// Requests that the server works on at once.
    pub threads: usize,
    /// Its cores.
    pub cores: usize,
    /// Time of a core for a request.
    pub op_ns: u64,
    /// Time of a core for each KiB of data.
    pub kib_ns: u64,
    /// For loads of metadata.
    pub journal: Option<JournalParams>,
}

/// What a client asks of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Data of a volume.
    Block(u16, Ask),
    /// Data of a volume, written and flushed before the answer: a stable write of NFS.
    Stable(u16, Ask),
    /// A change of metadata of volume 0: done when the journal's commit that it is in is durable.
    Logged,
    /// Answered from the server's memory.
    Cached,
}

impl Call {
    fn bytes(self) -> (u64, u64) {
        match self {
            Call::Block(_, Ask::Read { sectors, .. }) => (0, sectors * 512),
            Call::Block(_, Ask::Write { sectors, .. }) | Call::Stable(_, Ask::Write { sectors, .. }) => (sectors * 512, 0),
            _ => (0, 0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Arrives,
    Computed,
    Returns,
}

/// What an answer of the device is for.
#[derive(Clone, Copy, Debug)]
enum For {
    Call(u64),
    /// The write of a stable call; its flush comes next.
    Stable(u64, u16),
    CommitWrite,
    CommitFlush,
    Metadata,
}

/// Several clients of one server.
pub struct Front<T> {
    /// The device behind it.
    pub inner: T,
    params: FrontParams,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    calls: BTreeMap<u64, (usize, Call)>,
    next_call: u64,
    under: BTreeMap<u64, For>,
    /// When each client's link is free, towards the server and back.
    links: BTreeMap<usize, [u64; 2]>,
    server: [u64; 2],
    cores: Vec<u64>,
    busy: usize,
    waiting: VecDeque<u64>,
    returned: Vec<u64>,
    journal: Journal,
}

#[derive(Default)]
struct Journal {
    joining: Vec<u64>,
    committing: Vec<u64>,
    writes: usize,
    at: u64,
    ops: u64,
    waiting: usize,
    flying: usize,
    rng: Option<Rng>,
}

fn take(free: &mut u64, now: u64, bytes: u64, rate: u64) -> u64 {
    *free = (*free).max(now) + (u128::from(bytes) * u128::from(SECOND) / u128::from(rate)) as u64;
    *free
}

impl<T: Target> Front<T> {
    /// A server before a device.
    pub fn new(params: FrontParams, inner: T, seed: u64) -> Self {
        let journal = Journal { rng: Some(Rng::new(seed)), ..Journal::default() };
        Self {
            cores: vec![0; params.cores],
            inner,
            params,
            events: BinaryHeap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            under: BTreeMap::new(),
            links: BTreeMap::new(),
            server: [0; 2],
            busy: 0,
            waiting: VecDeque::new(),
            returned: Vec::new(),
            journal,
        }
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.inner.now()
    }

    fn at(&mut self, at: u64, call: u64, event: Event) {
        self.events.push(Reverse((at, call, event)));
    }

    /// A client sends a call; its number.
    pub fn send(&mut self, client: usize, call: Call) -> u64 {
        let (id, now) = (self.next_call, self.now());
        self.next_call += 1;
        self.calls.insert(id, (client, call));
        let bytes = call.bytes().0 + 256;
        let sent = take(&mut self.links.entry(client).or_default()[0], now, bytes, self.params.client_rate);
        let arrived = take(&mut self.server[0], now, bytes, self.params.server_rate).max(sent);
        self.at(arrived + self.params.latency_ns, id, Event::Arrives);
        id
    }

    /// Calls that have returned since this was last asked.
    pub fn returned(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.returned)
    }

    fn arrives(&mut self, id: u64) {
        if self.busy >= self.params.threads {
            return self.waiting.push_back(id);
        }
        self.busy += 1;
        let now = self.now();
        let bytes = self.calls.get(&id).map_or((0, 0), |(_, c)| c.bytes());
        let work = self.params.op_ns + (bytes.0 + bytes.1) / 1024 * self.params.kib_ns;
        let core = self.cores.iter_mut().min().expect("a server has a core");
        *core = (*core).max(now) + work;
        let at = *core;
        self.at(at, id, Event::Computed);
    }

    fn computed(&mut self, id: u64) {
        match self.calls.get(&id).map(|c| c.1) {
            Some(Call::Block(volume, ask)) => {
                let n = self.inner.send(volume, ask);
                self.under.insert(n, For::Call(id));
            }
            Some(Call::Stable(volume, ask)) => {
                let n = self.inner.send(volume, ask);
                self.under.insert(n, For::Stable(id, volume));
            }
            Some(Call::Logged) => {
                self.journal.joining.push(id);
                self.commit();
            }
            _ => self.answered(id),
        }
    }

    fn answered(&mut self, id: u64) {
        let Some((client, call)) = self.calls.get(&id).copied() else { return };
        let now = self.now();
        let bytes = call.bytes().1 + 256;
        let sent = take(&mut self.server[1], now, bytes, self.params.server_rate);
        let arrived = take(&mut self.links.entry(client).or_default()[1], now, bytes, self.params.client_rate).max(sent);
        self.at(arrived + self.params.latency_ns, id, Event::Returns);
        self.busy -= 1;
        if let Some(next) = self.waiting.pop_front() {
            self.arrives(next);
        }
    }

    /// Begins the next commit, if there is something to commit and none under way: one write, or several of a large one, then a flush.
    fn commit(&mut self) {
        let Some(p) = self.params.journal.clone() else { return };
        if !self.journal.committing.is_empty() || self.journal.joining.is_empty() || self.journal.waiting > p.most_waiting {
            return;
        }
        self.journal.committing = std::mem::take(&mut self.journal.joining);
        let mut left = (self.journal.committing.len() as u64 * p.op_bytes).next_multiple_of(4096);
        while left > 0 {
            let len = left.min(p.most_bytes);
            if self.journal.at + len > p.region.end - p.region.start {
                self.journal.at = 0;
            }
            let sector = (p.region.start + self.journal.at) / 512;
            let n = self.inner.send(0, Ask::Write { sector, sectors: len / 512 });
            self.under.insert(n, For::CommitWrite);
            self.journal.at += len;
            self.journal.writes += 1;
            left -= len;
        }
    }

    fn committed(&mut self) {
        let Some(p) = self.params.journal.clone() else { return };
        let done = std::mem::take(&mut self.journal.committing);
        let before = self.journal.ops / p.ops_per_block;
        self.journal.ops += done.len() as u64;
        self.journal.waiting += (self.journal.ops / p.ops_per_block - before) as usize;
        for id in done {
            self.answered(id);
        }
        self.write_metadata(&p);
        self.commit();
    }

    fn write_metadata(&mut self, p: &JournalParams) {
        while self.journal.waiting > 0 && self.journal.flying < p.depth {
            let blocks = (p.metadata.end - p.metadata.start) / p.block_bytes;
            let at = p.metadata.start + self.journal.rng.as_mut().map_or(0, |r| r.below(blocks)) * p.block_bytes;
            let n = self.inner.send(0, Ask::Write { sector: at / 512, sectors: p.block_bytes / 512 });
            self.under.insert(n, For::Metadata);
            self.journal.waiting -= 1;
            self.journal.flying += 1;
        }
    }

    /// Lets the next thing happen, unless that is after `limit`: then time passes to `limit`.
    ///
    /// # Errors
    /// Something happened that must not, or a request failed.
    pub fn step(&mut self, limit: u64) -> Result<(), Violation> {
        let own = self.events.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        self.inner.step(limit.min(own))?;
        for answer in self.inner.answers() {
            if answer.failed {
                return Err(Violation("a request failed".into()));
            }
            match self.under.remove(&answer.id) {
                Some(For::Call(id)) => self.answered(id),
                Some(For::Stable(id, volume)) => {
                    let n = self.inner.send(volume, Ask::Flush);
                    self.under.insert(n, For::Call(id));
                }
                Some(For::CommitWrite) => {
                    self.journal.writes -= 1;
                    if self.journal.writes == 0 {
                        let n = self.inner.send(0, Ask::Flush);
                        self.under.insert(n, For::CommitFlush);
                    }
                }
                Some(For::CommitFlush) => self.committed(),
                Some(For::Metadata) => {
                    self.journal.flying -= 1;
                    if let Some(p) = self.params.journal.clone() {
                        self.write_metadata(&p);
                        self.commit();
                    }
                }
                None => {}
            }
        }
        while let Some(Reverse((_, id, event))) = self.events.peek().copied().filter(|Reverse((at, ..))| *at <= self.now()) {
            self.events.pop();
            match event {
                Event::Arrives => self.arrives(id),
                Event::Computed => self.computed(id),
                Event::Returns => {
                    self.calls.remove(&id);
                    self.returned.push(id);
                }
            }
        }
        Ok(())
    }
}

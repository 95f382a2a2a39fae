//! An engine over devices in memory that complete at once: what is measured is the engine, with real bytes.

#![allow(dead_code)] // each bench uses a part of it

use headpond_engine::create::{PoolPlan, newest_superblock, plan};
use headpond_engine::election::{Election, WitnessVote, elect};
use headpond_engine::format::{Layout, Mode, SUPERBLOCK_BYTES, checksum};
use headpond_engine::{
    Buf, Command, CommandId, Device, DeviceOp, DeviceResult, Effect, Engine, NewVolume, Request, RequestId, SECTOR, Settings,
};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

/// Bytes in a block.
pub const BLOCK: usize = 4096;

/// Bytes, shared by reference count.
#[derive(Clone)]
pub struct Bytes {
    memory: Arc<[u8]>,
    start: usize,
    len: usize,
}

impl Bytes {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl Buf for Bytes {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self { memory: bytes.into(), start: 0, len: bytes.len() }
    }
    fn zeroes(len: usize) -> Self {
        Self::from_bytes(&vec![0; len])
    }
    fn len(&self) -> usize {
        self.len
    }
    fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len);
        Self { memory: self.memory.clone(), start: self.start + range.start, len: range.end - range.start }
    }
    fn checksum(&self, seed: u64) -> u64 {
        checksum(seed, self.bytes())
    }
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes())
    }
    fn join(parts: &[Self]) -> Self {
        Self::from_bytes(&parts.iter().flat_map(|p| p.bytes()).copied().collect::<Vec<u8>>())
    }
}

/// A cache device: for each sector, which of the buffers written holds it. Nothing is copied, as a device by direct
/// memory access would not: a buffer once written stays until the device goes.
pub struct Member {
    sectors: Vec<u32>,
    written: Vec<(u64, Bytes)>,
    /// Client data is not kept and reads as zeroes, as all that was written then is.
    forgets: bool,
    /// Its content in long pieces, once nothing is written any more: a read costs the bench no search then.
    frozen: Vec<Bytes>,
}

/// Bytes of a piece of a frozen device.
const PIECE: u64 = 16 << 20;

impl Member {
    fn new(bytes: u64) -> Self {
        Self {
            sectors: vec![0; (bytes / SECTOR) as usize],
            written: vec![(0, Bytes::zeroes(BLOCK))],
            frozen: Vec::new(),
            forgets: false,
        }
    }

    fn write(&mut self, offset: u64, bufs: Vec<Bytes>) {
        let mut at = offset / SECTOR;
        for b in bufs {
            let n = (b.len / SECTOR as usize) as u64;
            if self.forgets && b.bytes().iter().all(|b| *b == 0) {
                self.sectors[at as usize..(at + n) as usize].fill(0);
                at += n;
                continue;
            }
            let number = self.written.len() as u32;
            self.sectors[at as usize..(at + n) as usize].fill(number);
            self.written.push((at, b));
            at += n;
        }
    }

    fn freeze(&mut self) {
        // Up to the superblocks' copies at the end, which are read where they are.
        let tail = Layout::tail_of(self.sectors.len() as u64 * SECTOR);
        let last = self.written.iter().map(|w| w.0 * SECTOR).filter(|at| *at < tail).max().unwrap_or(0);
        self.frozen = (0..last / PIECE).map(|n| self.read(n * PIECE, PIECE as usize)).collect();
    }

    /// What is there.
    pub fn read(&self, offset: u64, len: usize) -> Bytes {
        let from = (offset % PIECE) as usize;
        if let Some(piece) = self.frozen.get((offset / PIECE) as usize)
            && from + len <= PIECE as usize
        {
            return piece.slice(from..from + len);
        }
        let (first, n) = (offset / SECTOR, len / SECTOR as usize);
        let sectors = &self.sectors[first as usize..first as usize + n];
        let (number, last) = (sectors[0], sectors[n - 1]);
        let (start, buf) = &self.written[number as usize];
        if number == last && number != 0 {
            let from = ((first - start) * SECTOR) as usize;
            return buf.slice(from..from + len);
        }
        let sector = |(i, number): (usize, &u32)| {
            let (start, buf) = &self.written[*number as usize];
            let from = if *number == 0 { 0 } else { ((first + i as u64 - start) * SECTOR) as usize };
            buf.slice(from..from + SECTOR as usize)
        };
        Bytes::join(&sectors.iter().enumerate().map(sector).collect::<Vec<_>>())
    }
}

/// A cache device of any size that takes little memory: it keeps what the pool is made with, and all else reads as zeroes.
struct Hollow {
    made_with: BTreeMap<u64, Bytes>,
    /// Where zeroes are read to, one after the other, as into a host's recycled buffers.
    buffers: Vec<Bytes>,
    next: Cell<usize>,
}

/// Buffers of a hollow device: 4 MB of them.
const BUFFERS: usize = 1000;

impl Hollow {
    fn read(&self, offset: u64, len: usize) -> Bytes {
        if let Some(made) = self.made_with.get(&offset) {
            return Bytes::join(&[made.clone(), Bytes::zeroes(len - made.len)]);
        }
        if len > BLOCK {
            return Bytes::zeroes(len);
        }
        let n = self.next.get();
        self.next.set((n + 1) % BUFFERS);
        self.buffers[n].slice(0..len)
    }
}

enum Store {
    Whole(Member),
    Hollow(Hollow),
}

impl Store {
    fn hollow() -> Self {
        let buffers = (0..BUFFERS).map(|_| Bytes::zeroes(BLOCK)).collect();
        Self::Hollow(Hollow { made_with: BTreeMap::new(), buffers, next: Cell::new(0) })
    }

    fn read(&self, offset: u64, len: usize) -> Bytes {
        match self {
            Self::Whole(member) => member.read(offset, len),
            Self::Hollow(hollow) => hollow.read(offset, len),
        }
    }

    fn write(&mut self, offset: u64, bufs: Vec<Bytes>) {
        if let Self::Whole(member) = self {
            member.write(offset, bufs);
        }
    }

    /// What the pool is made with.
    fn make(&mut self, offset: u64, bytes: Bytes) {
        match self {
            Self::Whole(member) => member.write(offset, vec![bytes]),
            Self::Hollow(hollow) => drop(hollow.made_with.insert(offset, bytes)),
        }
    }

    fn whole(&mut self) -> Option<&mut Member> {
        match self {
            Self::Whole(member) => Some(member),
            Self::Hollow(_) => None,
        }
    }
}

/// Two cache devices, a disk of zeroes, and the engine that is measured.
pub struct Host {
    engine: Option<Engine<Bytes>>,
    member_bytes: u64,
    members: Vec<Store>,
    disk: Bytes,
    now: u64,
    next: u64,
    /// The volume that requests go to.
    volume: u16,
    replies: Vec<Result<Vec<Bytes>, headpond_engine::RequestError>>,
    commands_ended: u64,
}

/// Sectors of the volume: 2 TiB.
const VOLUME_SECTORS: u64 = 1 << 32;

impl Host {
    /// A new pool of two members of `member_bytes` with a write-back volume.
    pub fn new(member_bytes: u64) -> Self {
        Self::over(member_bytes, [(); 2].map(|()| Store::Whole(Member::new(member_bytes))))
    }

    /// The same with members that keep nothing: all that is written must be zeroes, and it cannot be started again.
    pub fn hollow(member_bytes: u64) -> Self {
        Self::over(member_bytes, [(); 2].map(|()| Store::hollow()))
    }

    fn over(member_bytes: u64, members: [Store; 2]) -> Self {
        let mut host = Self {
            engine: None,
            member_bytes,
            members: members.into(),
            disk: Bytes::zeroes(1 << 20),
            now: 0,
            next: 0,
            volume: 0,
            replies: Vec::new(),
            commands_ended: 0,
        };
        let pool = PoolPlan {
            name: "bench".into(),
            id: [7; 16],
            key: 0x1234_5678_9abc_def0,
            copies: 2,
            unit: 512,
            segment_bytes: 0,
            intent_pages: 8,
            witness: false,
            members: vec![([1; 16], member_bytes), ([2; 16], member_bytes)],
        };
        let (_, writes) = plan(&pool).expect("the pool is large enough");
        for w in writes {
            if let Some(m) = w.member {
                host.members[usize::from(m)].make(w.offset, Bytes::from_bytes(&w.bytes));
            }
        }
        host.start();
        host.attach(0);
        host
    }

    /// One more volume: requests go to it from now on.
    pub fn attach(&mut self, number: u16) {
        self.volume = number;
        self.command(Command::Attach(NewVolume {
            number,
            id: [9 + number as u8; 16],
            name: format!("volume {number}"),
            sectors: VOLUME_SECTORS,
            phase: 0,
            mode: Mode::WriteBack,
            backing: format!("disk {number}"),
        }));
    }

    /// A cache device that keeps what it is written, for others to read.
    pub fn member(&self, member: u8) -> &Member {
        match &self.members[usize::from(member)] {
            Store::Whole(member) => member,
            Store::Hollow(_) => panic!("a hollow device keeps nothing"),
        }
    }

    fn elect(&self) -> Election {
        let found: Vec<_> = self
            .members
            .iter()
            .map(|m| {
                let tail = Layout::tail_of(self.member_bytes);
                let slots: Vec<Bytes> = [0, SUPERBLOCK_BYTES, tail, tail + SUPERBLOCK_BYTES]
                    .iter()
                    .map(|at| m.read(*at, SUPERBLOCK_BYTES as usize))
                    .collect();
                newest_superblock(&slots.iter().map(Bytes::bytes).collect::<Vec<_>>()).expect("a superblock was written")
            })
            .collect();
        elect(&found, WitnessVote::None).expect("all members are there")
    }

    /// Starts an engine over what is on the members, in place of the one that ran, until it knows all that is cached.
    pub fn start(&mut self) {
        self.start_until_up();
        self.run();
    }

    /// The same until it answers requests.
    pub fn start_until_up(&mut self) {
        let election = self.elect();
        self.engine = None;
        let before = self.commands_ended;
        self.engine = Some(Engine::start(self.now, Settings::default(), election, &[0], CommandId(0)));
        while self.commands_ended == before {
            if !self.step() {
                self.pass();
            }
        }
    }

    /// Reads a block, and waits until it is answered.
    pub fn read_one(&mut self, block: u64) {
        self.read(block, 1);
        self.until_answered(1);
    }

    /// Does what the engine wants done until so many requests that are under way are answered. Time passes where it waits for that.
    pub fn until_answered(&mut self, requests: usize) {
        while self.replies.len() < requests {
            if !self.step() {
                self.pass();
            }
        }
        self.replies().for_each(drop);
    }

    /// Lets the members keep only what is not zeroes: enough to start from, with little memory.
    pub fn forget_data(&mut self) {
        self.members.iter_mut().filter_map(Store::whole).for_each(|m| m.forgets = true);
    }

    /// Says that nothing is written from now on.
    pub fn freeze(&mut self) {
        self.members.iter_mut().filter_map(Store::whole).for_each(Member::freeze);
    }

    /// A block as the device has it, without the engine: what the bench itself costs.
    pub fn device_alone(&self, n: u64) -> Bytes {
        let Store::Whole(Member { frozen, .. }) = &self.members[(n % 2) as usize] else {
            return self.members[(n % 2) as usize].read(n / 2 * BLOCK as u64, BLOCK);
        };
        frozen[(n / 2 % frozen.len() as u64) as usize]
            .slice((n / 64 % 4096) as usize * BLOCK..(n / 64 % 4096 + 1) as usize * BLOCK)
    }

    /// So many blocks in a row as the device has them: the `n`-th of such runs.
    pub fn run_alone(&self, n: u64, blocks: u32) -> Bytes {
        let bytes = u64::from(blocks) * BLOCK as u64;
        let runs = self.member_bytes / 2 / bytes;
        self.members[0].read(n % runs * bytes, bytes as usize)
    }

    /// Ends the engine as a crash would.
    pub fn end(&mut self) {
        self.engine = None;
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<Bytes> {
        self.engine.as_ref().expect("it was started")
    }

    /// Does what the engine wants done until it wants nothing more.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Does the next thing that the engine wants done; `false` if it wants nothing more.
    fn step(&mut self) -> bool {
        let Some(effect) = self.engine.as_ref().and_then(Engine::poll) else { return false };
        match effect {
            Effect::Submit { io, device, op } => {
                let result = self.serve(device, op);
                self.engine().complete(io, result);
            }
            Effect::Reply { result, .. } => self.replies.push(result),
            Effect::Done { result, .. } => {
                result.expect("commands succeed");
                self.commands_ended += 1;
            }
        }
        true
    }

    /// Lets time pass until the engine wants something.
    fn pass(&mut self) {
        self.now = self.engine().next_timer().expect("something is waited for").max(self.now);
        self.engine().advance(self.now);
    }

    fn serve(&mut self, device: Device, op: DeviceOp<Bytes>) -> DeviceResult<Bytes> {
        match (device, op) {
            (Device::Member(m), DeviceOp::Write { offset, bufs, .. }) => {
                self.members[usize::from(m)].write(offset, bufs);
                Ok(None)
            }
            (Device::Member(m), DeviceOp::Read { offset, len, .. }) => {
                Ok(Some(self.members[usize::from(m)].read(offset, len as usize)))
            }
            (_, DeviceOp::Read { len, .. }) => Ok(Some(self.disk.slice(0..len as usize))),
            _ => Ok(None),
        }
    }

    /// Gives a command and lets time pass until it has ended.
    pub fn command(&mut self, command: Command) {
        let before = self.commands_ended;
        self.next += 1;
        self.engine().command(CommandId(self.next), command);
        self.run();
        self.until_ended(before);
    }

    fn until_ended(&mut self, before: u64) {
        while self.commands_ended == before {
            self.pass();
            self.run();
        }
    }

    /// Asks for so many blocks to be read.
    pub fn read(&mut self, block: u64, blocks: u32) {
        self.next += 1;
        self.engine().request(
            self.volume,
            RequestId(self.next),
            Request::Read { sector: block * 8, sectors: blocks * 8, into: None },
        );
    }

    /// Asks for a block to be written, or what begins so many sectors past its beginning.
    pub fn write(&mut self, block: u64, skew: u64, data: Bytes) {
        self.next += 1;
        self.engine().request(self.volume, RequestId(self.next), Request::Write { sector: block * 8 + skew, data, fua: false });
    }

    /// What has been answered, which is taken.
    pub fn replies(&mut self) -> impl Iterator<Item = Vec<Bytes>> + '_ {
        self.replies.drain(..).map(|r| r.expect("nothing fails here"))
    }
}

/// Numbers below `n`, each once, in an order without runs.
pub fn scattered(n: u64) -> impl Iterator<Item = u64> {
    // An odd factor permutes a power of two; what is beyond `n` is left out.
    let all = n.next_power_of_two();
    (0..all).map(move |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (all - 1)).filter(move |i| *i < n)
}

/// Nanoseconds that this thread has had of a processor: others that run meanwhile do not count. Where the system does
/// not say, the time of day.
pub fn cpu_ns() -> u64 {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    said.and_then(|s| s.split(' ').next().and_then(|n| n.parse().ok()))
        .unwrap_or_else(|| std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64))
}

/// The middle one.
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Chance that costs next to nothing.
pub struct Dice(pub u64);

impl Dice {
    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(n)) >> 64) as u64
    }
}

/// Random hits, one at a time, each copied into the client's buffer.
pub fn hits(host: &mut Host, dice: &mut Dice, among: u64, count: u64, client: &mut [u8]) {
    hits_of((0..count).map(|_| dice.below(among)), 1, host, client);
}

/// Hits of so many blocks each, one at a time.
pub fn hits_of(all: impl Iterator<Item = u64>, blocks: u32, host: &mut Host, client: &mut [u8]) {
    for block in all {
        host.read(block, blocks);
        host.run();
        for reply in host.replies() {
            let mut at = 0;
            for part in reply {
                client[at..at + part.len()].copy_from_slice(part.bytes());
                at += part.len();
            }
        }
        debug_assert_eq!(client[..8], block.to_le_bytes());
        black_box(&mut *client);
    }
}

/// Rounds of which a figure is the median.
pub const ROUNDS: usize = 5;

/// The median of several rounds' nanoseconds for each of `count` requests.
pub fn rounds(count: u64, mut round: impl FnMut()) -> f64 {
    let one = || {
        let begun = cpu_ns();
        round();
        (cpu_ns() - begun) as f64 / count as f64
    };
    median(std::iter::repeat_with(one).take(ROUNDS).collect())
}

/// Prints a figure.
pub fn report(name: &str, ns: f64) {
    println!("{name}_ns {ns:.0} ns");
    println!("{name}_per_second {:.0} 1/s", 1e9 / ns);
}

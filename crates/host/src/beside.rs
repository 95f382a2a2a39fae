//! Hits that threads beside the engine's serve by themselves: what they may read, from where, and what became of it.
//!
//! A thread that attends to a queue finds what a small read asks for in the volume's [`Lookaside`], has the cache device read by the ring
//! that it has anyway, proves by the checksum that this is the block, and answers. There is no message, no bell, and nothing that all
//! volumes have to share: hits grow with the processors. Whatever is not found, proves to be something else, fails or takes long is the engine's to read,
//! as if it had never been tried.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use headpond_engine::io::{BLOCK, Buf, Device, DeviceOp, IoId, Request};
use headpond_engine::lookaside::{Found, Lookaside, PATIENCE_NS};
use headpond_engine::stats::Fate;

use crate::buf::HostBuf;
use crate::device::load::{Loads, Owed};
use crate::device::{Completion, Devices, DevicesError, Shared};
use crate::requests::{Op, Table};
use crate::ring::{Ring, Waker};
use crate::runtime::Handle;

/// Lines of a volume's table: 16 MiB, for as many blocks as are in 1 GiB.
pub const LINES: usize = 1 << 18;
/// How long to wait before the engine is asked again for a table that it did not have.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Sectors in whose place the end of a read is noted.
const REGION: u64 = 2048;
/// Places of those: so many readers that go on at once, about.
const PLACES: u64 = 1024;
/// A read that begins so few sectors behind the end of another goes on from it.
const GAP: u64 = 64;

/// What one engine's thread tells those beside it, and they tell it.
pub struct Registry {
    /// Since when times of devices count.
    origin: Instant,
    /// Goes up with each change of the rest.
    changes: AtomicU64,
    /// Readers so far.
    numbers: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    members: BTreeMap<u8, Arc<Shared>>,
    tables: BTreeMap<u16, Arc<Lookaside>>,
    readers: Vec<Weak<Seen>>,
}

/// What others see of a reader.
struct Seen {
    waker: Waker,
    requests: Mutex<Table>,
    /// Reads that nobody waits for any more. While a device owes one, nothing else is read there.
    late: Mutex<HashMap<u64, Late>>,
}

/// A read that a device owes.
struct Late {
    member: u8,
    /// Of the device that had that number when it was asked: it may be another's by now.
    path: PathBuf,
    since: Instant,
}

impl Seen {
    fn late(&self) -> MutexGuard<'_, HashMap<u64, Late>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Nobody may read anything yet. Times of devices count since `origin`.
    pub fn new(origin: Instant) -> Registry {
        Registry { origin, changes: AtomicU64::new(1), numbers: AtomicUsize::new(0), known: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, how: impl FnOnce(&mut Known)) {
        let mut known = self.lock();
        how(&mut known);
        self.changes.fetch_add(1, Ordering::Release);
        // One that has nothing to do would keep a device that was taken away.
        known.readers.retain(|reader| reader.upgrade().inspect(|reader| reader.waker.wake()).is_some());
    }

    /// A device may be read by others, or no more. Only cache devices are.
    pub fn set_device(&self, device: Device, shared: Option<Arc<Shared>>) {
        let Device::Member(member) = device else { return };
        self.change(|known| match shared {
            Some(shared) => drop(known.members.insert(member, shared)),
            None => drop(known.members.remove(&member)),
        });
    }

    /// What may be read of a volume.
    pub fn set_table(&self, volume: u16, table: Arc<Lookaside>) {
        self.change(|known| drop(known.tables.insert(volume, table)));
    }

    /// A volume is gone: its number may become another's.
    pub fn forget(&self, volume: u16) {
        self.change(|known| drop(known.tables.remove(&volume)));
        self.readers().for_each(|reader| requests_of(&reader).forget(volume));
    }

    /// The engine ends: nobody reads anything any more, and the devices are let go of.
    pub fn end(&self) {
        self.change(|known| (known.members, known.tables) = Default::default());
    }

    /// Adds the requests that readers have answered.
    pub fn add_requests(&self, to: &mut Table) {
        self.readers().for_each(|reader| to.plus(&requests_of(&reader)));
    }

    /// Adds what devices owe readers: it keeps the claim on them, too.
    pub fn add_owed(&self, to: &mut Loads, removed: &mut Owed) {
        let members = self.lock().members.clone();
        for reader in self.readers() {
            for Late { member, path, since } in reader.late().values() {
                let owed_ns = nanos(since.elapsed());
                if members.get(member).is_some_and(|shared| shared.path() == path) {
                    let load = to.entry(Device::Member(*member)).or_default();
                    load.oldest_ns = load.oldest_ns.max(owed_ns);
                } else {
                    removed.push((path.clone(), owed_ns));
                }
            }
        }
    }

    fn readers(&self) -> impl Iterator<Item = Arc<Seen>> {
        let readers: Vec<Arc<Seen>> = self.lock().readers.iter().filter_map(Weak::upgrade).collect();
        readers.into_iter()
    }
}

fn requests_of(seen: &Seen) -> MutexGuard<'_, Table> {
    seen.requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a thread that attends to a volume's queue learns what it may read.
#[derive(Clone)]
pub struct Door {
    /// Of all volumes.
    pub registry: Arc<Registry>,
    /// Where to ask for more.
    pub handle: Handle,
    /// The volume.
    pub volume: u16,
}

/// What became of reads.
pub enum Ended<H> {
    /// This is what was asked for, by whom.
    Read(H, HostBuf),
    /// It is the engine's to read.
    Ask(H, Request<HostBuf>),
}

struct UnderWay<H> {
    by: H,
    found: Found,
    table: Arc<Lookaside>,
    sector: u64,
    sectors: u32,
    member: u8,
    /// Where it is read, if another device has that number by now.
    left: Option<PathBuf>,
    since: Instant,
}

/// Ends of reads, by where they are: who goes on from one may be a stream, of which the engine wants to know.
struct Ends(Vec<u64>);

impl Ends {
    fn new() -> Ends {
        Ends(vec![u64::MAX; PLACES as usize])
    }

    /// Whether a read goes on from one before.
    fn goes_on(&mut self, sector: u64, sectors: u64) -> bool {
        let place = |sector: u64| (sector / REGION % PLACES) as usize;
        let is_behind = |end: u64| end <= sector && sector - end < GAP;
        let goes_on = is_behind(self.0[place(sector)]) || is_behind(self.0[place(sector.wrapping_sub(GAP))]);
        let end = sector.wrapping_add(sectors);
        self.0[place(end)] = end;
        goes_on
    }
}

/// A thread's reads of cache devices, on its own ring; what else the thread does on that ring is its guest's. `H` is who asks.
pub struct Reader<H> {
    /// Where it counts in tables: see [`Lookaside::begin`].
    number: usize,
    devices: Devices,
    door: Option<Door>,
    /// The changes of the registry that are known here.
    known: u64,
    /// The members that `devices` has.
    members: BTreeMap<u8, Arc<Shared>>,
    table: Option<Arc<Lookaside>>,
    asked: Option<Instant>,
    ends: Ends,
    under_way: HashMap<u64, UnderWay<H>>,
    next: u64,
    seen: Arc<Seen>,
    done: Vec<Completion>,
}

impl<H> Reader<H> {
    /// A ring with room for so many commands of the thread's own. Without a door nothing is read.
    ///
    /// # Errors
    /// There is no io_uring to be had.
    pub fn new(depth: u32, door: Option<Door>) -> io::Result<Reader<H>> {
        let origin = door.as_ref().map_or_else(Instant::now, |door| door.registry.origin);
        let devices = match Devices::since(depth, origin) {
            Ok(devices) => devices,
            Err(DevicesError::Setup(error) | DevicesError::Ring(error)) => return Err(error),
        };
        let seen = Arc::new(Seen { waker: devices.waker(), requests: Mutex::default(), late: Mutex::default() });
        if let Some(door) = &door {
            door.registry.lock().readers.push(Arc::downgrade(&seen));
        }
        Ok(Reader {
            number: door.as_ref().map_or(0, |door| door.registry.numbers.fetch_add(1, Ordering::Relaxed)),
            devices,
            door,
            known: 0,
            members: BTreeMap::new(),
            table: None,
            asked: None,
            ends: Ends::new(),
            under_way: HashMap::new(),
            next: 0,
            seen,
            done: Vec::new(),
        })
    }

    /// What interrupts [`Reader::wait`].
    pub fn waker(&self) -> Waker {
        self.devices.waker()
    }

    /// The ring, for the thread's own commands: their numbers have [`crate::ring::GUEST`].
    pub fn ring(&mut self) -> &mut Ring {
        self.devices.ring()
    }

    /// Waits until something has ended, the bell rings, or for so long; appends the ends of the thread's own commands.
    ///
    /// # Errors
    /// The ring is of no use any more.
    pub fn wait(&mut self, limit: Option<Duration>, ended: &mut Vec<(u64, i32)>) -> Result<(), DevicesError> {
        let oldest = self.under_way.values().map(|read| read.since).min();
        let patience = oldest.map(|since| Duration::from_nanos(PATIENCE_NS).saturating_sub(since.elapsed()));
        self.devices.wait(limit.into_iter().chain(patience).min(), &mut self.done)?;
        self.devices.reap_guests(ended);
        self.learn();
        Ok(())
    }

    /// Takes over what has changed of devices and tables.
    fn learn(&mut self) {
        let Some(Door { registry, volume, .. }) = &self.door else { return };
        let changes = registry.changes.load(Ordering::Acquire);
        if changes == self.known {
            return;
        }
        let known = registry.lock();
        self.table = known.tables.get(volume).cloned();
        let members = known.members.clone();
        drop(known);
        let is_same = |other: Option<&Arc<Shared>>, shared: &Arc<Shared>| other.is_some_and(|other| Arc::ptr_eq(other, shared));
        for (member, shared) in self.members.iter().filter(|(member, shared)| !is_same(members.get(member), shared)) {
            self.devices.remove(Device::Member(*member));
            let reads = self.under_way.values_mut().filter(|read| read.member == *member && read.left.is_none());
            reads.for_each(|read| read.left = Some(shared.path().to_owned()));
        }
        for (member, shared) in members.iter().filter(|(member, shared)| !is_same(self.members.get(member), shared)) {
            self.devices.add_shared(Device::Member(*member), Arc::clone(shared));
        }
        (self.members, self.known) = (members, changes);
    }

    /// Begins to read what a request asks for, if it may be read without the engine; else says whose it was.
    ///
    /// # Errors
    /// The engine is to be asked.
    pub fn begin(&mut self, request: &Request<HostBuf>, by: H) -> Result<(), H> {
        let Request::Read { sector, sectors, .. } = *request else { return Err(by) };
        if self.door.is_none() || u64::from(sectors) * 512 > BLOCK {
            return Err(by);
        }
        // Who reads on is read ahead of, by the engine.
        if self.ends.goes_on(sector, sectors.into()) {
            return Err(by);
        }
        let Some(table) = self.table.clone() else {
            self.ask_for_table();
            return Err(by);
        };
        let Some(found) = table.find(sector, sectors) else { return Err(by) };
        let late = self.seen.late();
        let owes = |member: &u8, shared: &Shared| late.values().any(|it| it.member == *member && it.path == shared.path());
        let may_be_read = |member: &u8| self.members.get(member).is_some_and(|shared| !owes(member, shared));
        let places = found.places.iter().flatten().filter(|(member, _)| may_be_read(member));
        // Of two copies by turns.
        let Some((member, offset)) = places.clone().nth(self.next as usize % places.count().max(1)).copied() else {
            return Err(by);
        };
        drop(late);
        if !table.begin(self.number) {
            return Err(by);
        }
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, UnderWay { by, found, table, sector, sectors, member, left: None, since: Instant::now() });
        self.devices.submit(IoId(number), Device::Member(member), DeviceOp::Read { offset, len: BLOCK as u32, into: None });
        Ok(())
    }

    fn ask_for_table(&mut self) {
        let Some(door) = &self.door else { return };
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            self.asked = Some(Instant::now());
            door.handle.let_others_find(door.volume);
        }
    }

    /// What has ended since this was asked last, or has waited for so long that the engine is to be asked. What a device answers later
    /// than that is nobody's.
    pub fn ended(&mut self) -> Vec<Ended<H>> {
        let mut ended = Vec::new();
        for (IoId(number), result) in mem::take(&mut self.done) {
            let Some(read) = self.under_way.remove(&number) else {
                self.seen.late().remove(&number);
                continue;
            };
            let data = result.ok().flatten().filter(|data| read.found.is(data));
            ended.push(self.end(read, data));
        }
        let patience = Duration::from_nanos(PATIENCE_NS);
        let late: Vec<u64> =
            self.under_way.iter().filter(|(_, read)| read.since.elapsed() >= patience).map(|(number, _)| *number).collect();
        for number in late {
            if let Some(read) = self.under_way.remove(&number) {
                self.note_late(number, &read);
                ended.push(self.end(read, None));
            }
        }
        ended
    }

    /// Nobody waits for a read any more.
    fn note_late(&self, number: u64, read: &UnderWay<H>) {
        let path = read.left.clone().or_else(|| self.members.get(&read.member).map(|shared| shared.path().to_owned()));
        let late = Late { member: read.member, path: path.unwrap_or_default(), since: read.since };
        self.seen.late().insert(number, late);
    }

    fn end(&mut self, read: UnderWay<H>, data: Option<HostBuf>) -> Ended<H> {
        let UnderWay { by, found, table, sector, sectors, since, .. } = read;
        let Some(data) = data else {
            table.end(self.number, None);
            return Ended::Ask(by, Request::Read { sector, sectors, into: None });
        };
        let bytes = u64::from(sectors) * 512;
        table.end(self.number, Some(bytes));
        if let Some(door) = &self.door {
            let took = nanos(since.elapsed());
            requests_of(&self.seen).add(door.volume, (Op::Read, bytes), Some(Fate::Hit), took);
        }
        Ended::Read(by, data.slice(found.wanted))
    }

    /// Whether nothing is being read.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl<H> Reader<H> {
    /// One that is owed a read by a cache device.
    pub(crate) fn owed_by(claim: crate::claim::Claim) -> Reader<H> {
        let mut reader = Reader::new(8, None).unwrap();
        reader.devices.add(Device::Member(0), claim);
        reader.devices.submit(IoId(0), Device::Member(0), DeviceOp::Read { offset: 0, len: BLOCK as u32, into: None });
        reader.devices.wait(Some(Duration::ZERO), &mut reader.done).unwrap();
        reader
    }
}

impl<H> Drop for Reader<H> {
    /// What is not answered is somebody else's, and no longer in line. The device owes it all the same.
    fn drop(&mut self) {
        for (number, read) in mem::take(&mut self.under_way) {
            self.note_late(number, &read);
            read.table.end(self.number, None);
        }
    }
}

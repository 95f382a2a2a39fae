//! Starts from whole media that somebody has changed, checksums mended.
//!
//! The media are small pools', made by the engine in the simulator's devices. An input says which pool, and what is changed
//! on it: fields of structures, whose checksums are mended then, structures copied elsewhere, zeroed or damaged, devices
//! taken away or exchanged. A start must end; one that is refused has written nothing; after one that succeeds the
//! engine goes on, whatever was on the media.

use crate::input::Input;
use crate::mend::{change_some, length_at, mend};
use crate::superblock::{KEY, check};
use headpond_engine::create::{PoolPlan, newest_superblock, newest_witness, plan};
use headpond_engine::election::{Election, WitnessVote, elect};
use headpond_engine::format::{Layout, Mode, SUPERBLOCK_BYTES, Superblock, WITNESS_BYTES};
use headpond_engine::{Buf, Command, Device, NewVolume, Settings};
use headpond_sim::SimBuf;
use headpond_sim::device::SimDevice;
use headpond_sim::rng::Rng;
use headpond_sim::world::{Timing, World};
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// What a device operation takes, in nanoseconds.
const OPERATION: u64 = 50_000;
/// A start of these pools takes a few hundred steps.
const STEPS: u64 = 20_000;

type Devices = BTreeMap<Device, SimDevice>;

/// A structure on the media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    kind: Kind,
    device: Device,
    sector: u64,
    sectors: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Superblock,
    Witness,
    Segment,
    Record,
    Intent,
    Page,
}

const KINDS: [Kind; 6] = [Kind::Superblock, Kind::Page, Kind::Segment, Kind::Record, Kind::Intent, Kind::Witness];

impl Kind {
    /// What begins like this, and how many bytes of it are under its checksum.
    fn of(bytes: &[u8], unit: usize) -> Option<(Kind, usize)> {
        Some(match bytes.get(..4)? {
            b"HEAD" => (Kind::Superblock, length_at(bytes, 20)),
            b"HPwi" => (Kind::Witness, WITNESS_BYTES as usize),
            b"HPsg" => (Kind::Segment, unit),
            b"HPrc" => (Kind::Record, length_at(bytes, 4)),
            b"HPin" => (Kind::Intent, 4096),
            b"HPck" => (Kind::Page, length_at(bytes, 4)),
            _ => return None,
        })
    }
    fn key(self) -> u64 {
        if matches!(self, Kind::Superblock | Kind::Witness) { 0 } else { KEY }
    }
}

/// A pool's media at rest, and what is on them.
struct Base {
    devices: Devices,
    unit: usize,
    places: Vec<Place>,
}

/// Pools to begin with: members, unit, volumes, what comes last.
const POOLS: [(u8, u32, u16, Last); 5] = [
    (2, 512, 1, Last::Killed),
    (1, 4096, 1, Last::Killed),
    (3, 512, 2, Last::Lost),
    (2, 4096, 1, Last::Stopped),
    (2, 512, 1, Last::Power),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Killed,
    Power,
    /// A member is lost, and then the daemon dies.
    Lost,
    Stopped,
}

thread_local! {
    static BASES: OnceCell<Vec<Base>> = const { OnceCell::new() };
}

fn settings() -> Settings {
    Settings { large_bytes: 64 << 10, checkpoint_bytes: 256 << 10, member_timeout_ns: 1_000_000_000, ..Settings::default() }
}

/// Lets things happen until a command ends; whether it did.
fn until_done(world: &mut World, id: u64, steps: u64) -> bool {
    for _ in 0..steps {
        if world.command_result(id).is_some() {
            return true;
        }
        if !world.step() {
            break;
        }
    }
    world.command_result(id).is_some()
}

fn until_answered(world: &mut World, steps: u64) {
    for _ in 0..steps {
        if world.outstanding() == 0 || !world.step() {
            break;
        }
    }
}

impl Base {
    fn make(members: u8, unit: u32, volumes: u16, last: Last) -> Self {
        let mut rng = Rng::new(u64::from(members) << 8 | u64::from(unit));
        let mut world = World::new(rng.fork(), Timing::Fixed(OPERATION));
        let bytes = 1_699_840;
        for m in 0..members {
            world.devices.insert(Device::Member(m), SimDevice::new(bytes, None));
        }
        world.devices.insert(Device::Witness, SimDevice::new(64 << 10, None));
        let pool = PoolPlan {
            name: "fuzz".into(),
            id: [7; 16],
            key: KEY,
            copies: members.min(2),
            unit,
            segment_bytes: 64 << 10,
            intent_pages: 4,
            witness: true,
            members: (0..members).map(|m| ([m + 1; 16], bytes)).collect(),
        };
        let (_, writes) = plan(&pool).expect("this pool can be made");
        world.put_initial(&writes);
        let election = world.elect(true).expect("a new pool has its votes");
        let id = world.start(settings(), election);
        assert!(until_done(&mut world, id, STEPS));
        for number in 0..volumes {
            let sectors = 2 * (64 << 20) / 512 + 100;
            world.devices.insert(Device::Backing(number), SimDevice::new(sectors * 512, Some(1 << 50)));
            let new = NewVolume {
                number,
                id: [9 + number as u8; 16],
                name: format!("v{number}"),
                sectors,
                phase: if number == 0 { 7 } else { 0 },
                mode: Mode::WriteBack,
                backing: format!("disk{number}"),
            };
            let id = world.command(Command::Attach(new));
            assert!(until_done(&mut world, id, STEPS) && world.command_result(id) == Some(Ok(())));
        }
        for round in 0..6u64 {
            for n in 0..12u64 {
                let volume = rng.below(u64::from(volumes)) as u16;
                let sector = rng.below(200) + if n % 3 == 0 { 131_000 } else { 0 };
                match n % 6 {
                    0 | 1 | 2 => world.write(volume, sector, rng.within(1, 20), n == 2),
                    3 => world.read(volume, sector, 16),
                    4 => world.write_zeroes(volume, sector, 9, false),
                    _ if round == 2 => world.write(volume, 400, 160, false),
                    _ => world.flush(volume),
                };
                if n % 4 == 3 {
                    until_answered(&mut world, STEPS);
                }
            }
            until_answered(&mut world, STEPS);
            let command = match round {
                1 => Command::Destage { volume: 0 },
                3 => Command::Checkpoint,
                _ => continue,
            };
            let id = world.command(command);
            assert!(until_done(&mut world, id, STEPS));
            if last == Last::Lost && round == 3 {
                world.devices.get_mut(&Device::Member(1)).expect("a member").dead = true;
            }
        }
        match last {
            Last::Killed | Last::Lost => world.kill(),
            Last::Power => world.cut_power(),
            Last::Stopped => {
                let id = world.command(Command::Stop);
                assert!(until_done(&mut world, id, STEPS));
                world.kill();
            }
        }
        let mut devices = std::mem::take(&mut world.devices);
        devices.values_mut().for_each(|d| {
            d.dead = false;
            let mark = d.flush_mark();
            d.flushed(mark);
        });
        let unit = unit as usize;
        let places = find(&devices, unit);
        Self { devices, unit, places }
    }
}

/// All structures on cache devices and witness.
fn find(devices: &Devices, unit: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for (device, d) in devices.iter().filter(|(d, _)| !matches!(d, Device::Backing(_))) {
        for sector in 0..d.size / 512 {
            let head = d.visible.read(sector, 1).to_bytes().into_owned();
            if let Some((kind, len)) = Kind::of(&head, unit) {
                places.push(Place { kind, device: *device, sector, sectors: len.div_ceil(512).clamp(1, 128) });
            }
        }
    }
    places
}

fn read(devices: &Devices, p: &Place) -> Vec<u8> {
    devices[&p.device].visible.read(p.sector, p.sectors).to_bytes().into_owned()
}

fn write(devices: &mut Devices, device: Device, sector: u64, bytes: &[u8]) {
    let Some(d) = devices.get_mut(&device) else { return };
    let room = ((d.size / 512).saturating_sub(sector) as usize * 512).min(bytes.len());
    d.visible.write(sector, &SimBuf::from_bytes(&bytes[..room]));
    d.durable.write(sector, &SimBuf::from_bytes(&bytes[..room]));
}

/// What a structure says, without what differs from copy to copy.
fn content(bytes: &[u8], kind: Kind) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[8..16].fill(0);
    if kind == Kind::Superblock {
        bytes[80] = 0;
    }
    bytes
}

/// One change, as the input says.
fn spoil(base: &Base, devices: &mut Devices, input: &mut Input<'_>) {
    let how = input.u8();
    let kind = KINDS[usize::from(input.u8()) % KINDS.len()];
    let of_kind: Vec<&Place> = base.places.iter().filter(|p| p.kind == kind).collect();
    if of_kind.is_empty() {
        return;
    }
    let place = of_kind[input.below(of_kind.len())];
    let bytes = read(devices, place);
    match how % 16 {
        0..=10 => {
            // The same change on every copy, unless one alone is wanted: what only one copy says is often outvoted.
            let same = content(&bytes, kind);
            let alone = how & 0x80 != 0;
            let changes = input.clone();
            let copies: Vec<&Place> = of_kind
                .iter()
                .copied()
                .filter(|p| if alone { *p == place } else { content(&read(devices, p), kind) == same })
                .collect();
            for p in copies {
                let mut changes = changes.clone();
                let mut bytes = read(devices, p);
                change_some(&mut bytes, &mut changes);
                let len = Kind::of(&bytes, base.unit).map_or(bytes.len(), |(_, len)| len);
                if how & 0x40 == 0 {
                    mend(&mut bytes, kind.key(), len);
                }
                write(devices, p.device, p.sector, &bytes);
                *input = changes;
            }
        }
        11 => {
            let to = base.places[input.below(base.places.len())];
            write(devices, to.device, to.sector, &bytes);
        }
        12 => write(devices, place.device, place.sector, &vec![0; bytes.len()]),
        13 => {
            if let Some(d) = devices.get_mut(&place.device) {
                d.bad.insert(place.sector, ());
            }
        }
        14 => {
            if let Some(d) = devices.get_mut(&place.device) {
                d.dead = true;
            }
        }
        _ => {
            let other = Device::Member(input.u8() % 3);
            if let (Some(a), Some(b)) = (devices.get(&place.device).cloned(), devices.get(&other).cloned())
                && a.size == b.size
            {
                devices.insert(other, a);
                devices.insert(place.device, b);
            }
        }
    }
}

/// What the host does before it starts an engine: superblocks that fit their devices, the witness, the election.
fn hold_election(devices: &mut Devices) -> Option<Election> {
    let slots = |d: &SimDevice, at: &[u64], len: u64| -> Vec<Vec<u8>> {
        at.iter().map(|at| d.visible.read(at / 512, len as usize / 512).to_bytes().into_owned()).collect()
    };
    let mut found: Vec<(Device, Superblock)> = Vec::new();
    for (device, d) in devices.iter().filter(|(device, d)| matches!(device, Device::Member(_)) && !d.dead) {
        let tail = Layout::tail_of(d.size);
        let slots = slots(d, &[0, SUPERBLOCK_BYTES, tail, tail + SUPERBLOCK_BYTES], SUPERBLOCK_BYTES);
        let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
        match newest_superblock(&slots) {
            Ok(s) if s.members[usize::from(s.member)].layout.size <= d.size => found.push((*device, s)),
            // The host refuses the whole pool.
            _ => return None,
        }
    }
    let superblocks: Vec<Superblock> = found.iter().map(|(_, s)| s.clone()).collect();
    let first = superblocks.first()?;
    let witness = devices.get(&Device::Witness).filter(|w| !w.dead && first.witness);
    let vote = match witness {
        Some(w) => {
            let slots = slots(w, &[0, WITNESS_BYTES], WITNESS_BYTES);
            let slots: Vec<&[u8]> = slots.iter().map(Vec::as_slice).collect();
            newest_witness(&slots, first.pool).map_or(WitnessVote::Missing, WitnessVote::Found)
        }
        None if first.witness => WitnessVote::Missing,
        None => WitnessVote::None,
    };
    let election = elect(&superblocks, vote).ok()?;
    check(&election, &superblocks);
    // Each device is the member that it says it is.
    let backings = devices.extract_if(.., |d, _| matches!(d, Device::Backing(_))).collect::<Vec<_>>();
    let witness = devices.remove(&Device::Witness);
    let mut members = std::mem::take(devices);
    for (device, s) in found {
        devices.extend(members.remove(&device).map(|d| (Device::Member(s.member), d)));
    }
    devices.extend(backings);
    devices.extend(witness.map(|w| (Device::Witness, w)));
    Some(election)
}

/// Bytes written to any device so far.
fn written(world: &World) -> u64 {
    world.devices.values().map(|d| d.written).sum()
}

fn no_violation(world: &World) {
    if let Some(v) = &world.violation {
        panic!("{}", v.0);
    }
}

/// Spoils a pool, and starts it.
pub fn run(data: &[u8]) {
    BASES.with(|bases| {
        let bases =
            bases.get_or_init(|| POOLS.iter().map(|(m, unit, volumes, last)| Base::make(*m, *unit, *volumes, *last)).collect());
        let mut input = Input::new(data);
        let first = input.u8();
        let base = &bases[usize::from(first) % bases.len()];
        let mut devices = base.devices.clone();
        for _ in 0..8 {
            if input.is_empty() {
                break;
            }
            spoil(base, &mut devices, &mut input);
        }
        let Some(election) = hold_election(&mut devices) else { return };
        // The host does not give the engine a disk of another size than the volume's.
        devices.retain(|device, d| match device {
            Device::Backing(number) => {
                let mut volumes = election.superblock.volumes.iter();
                volumes.any(|v| v.number == *number && v.sectors.checked_mul(512) == Some(d.size))
            }
            _ => true,
        });
        let mut world = World::new(Rng::new(1), Timing::Fixed(OPERATION));
        world.devices = devices;
        (world.errors_allowed, world.count_copies) = (true, false);
        start(&mut world, election);
    });
}

/// A start, and what comes after it.
fn start(world: &mut World, election: Election) {
    let before = written(world);
    let id = world.start(settings(), election);
    let ended = until_done(world, id, STEPS);
    no_violation(world);
    assert!(ended, "a start does not end");
    if !matches!(world.command_result(id), Some(Ok(()))) {
        while world.busy() && world.step() {}
        assert_eq!(written(world), before, "a start that was refused has written");
        return;
    }
    let status = world.engine.as_ref().map(headpond_engine::Engine::status);
    let volumes: Vec<(u16, u64)> =
        status.into_iter().flat_map(|s| s.volumes).filter(|v| v.serving).map(|v| (v.number, v.sectors)).collect();
    for (volume, sectors) in &volumes {
        world.check_segments(*volume);
        for at in [0, 64, 131_000, 131_072, sectors.saturating_sub(40)] {
            world.read(*volume, at, 40);
        }
        world.write(*volume, 3, 20, true);
        world.write(*volume, 131_060, 30, false);
        world.write_zeroes(*volume, 100, 30, false);
        world.write(*volume, 380, 200, false);
        world.flush(*volume);
    }
    until_answered(world, 4000);
    no_violation(world);
    // Dirty data of which no copy is left is never destaged: these may not end.
    let mut commands = vec![Command::Checkpoint];
    commands.extend(volumes.iter().map(|(volume, _)| Command::Destage { volume: *volume }));
    commands.push(Command::Stop);
    for command in commands {
        let id = world.command(command);
        until_done(world, id, 600);
        no_violation(world);
    }
    for (volume, _) in &volumes {
        world.check_segments(*volume);
    }
    no_violation(world);
}

/// Each pool as it is, and with one thing or another changed.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..POOLS.len() as u8).map(|p| vec![p]).collect();
    for kind in 0..KINDS.len() as u8 {
        for how in [0, 11, 12, 13, 14, 15] {
            all.push(vec![kind % 5, how, kind, 1, 0, 0, 0, 40, 3]);
        }
    }
    all
}

//! What a seed draws: geometry, load, settings, faults.

use crate::models::MILLISECOND;
use crate::rng::Rng;
use crate::shrink::Kept;
use crate::sickness::Sickness;
use headpond_engine::format::Mode;
use headpond_engine::policy::lanes;
use headpond_engine::{Degraded, Settings};
use std::fmt;

/// How much slower a slow device is.
const SLOW: u64 = 30;

/// What a seed draws.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// In the small geometry.
    pub small: bool,
    /// Cache devices, and their size in bytes.
    pub members: usize,
    /// Bytes of each.
    pub member_bytes: u64,
    /// Copies of dirty data.
    pub copies: u8,
    /// Unit of records.
    pub unit: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Sectors of the volume.
    pub sectors: u64,
    /// Sectors that clients use: few, so that they meet.
    pub hot_sectors: u64,
    /// The grid's phase.
    pub phase: u8,
    /// The volume's mode at first.
    pub mode: Mode,
    /// Clients, each with one request under way.
    pub clients: usize,
    /// Crashes.
    pub crashes: u64,
    /// Power cuts among them, in percent; the rest are daemon deaths.
    pub power_percent: u64,
    /// Device operations between crashes, on average.
    pub operations: u64,
    /// One start in so many is cut by a crash itself; 0 none.
    pub crash_in_recovery: u64,
    /// Crashes come soon after starts, often: what a start took for durable is put to the test.
    pub hasty: bool,
    /// Cache devices have power-loss protection.
    pub protected: bool,
    /// A member is lost at some point.
    pub lose_member: bool,
    /// It is lost together with a crash: the start has to find out.
    pub lose_with_crash: bool,
    /// Of two members the lost one is back at starts, alone: it may only be taken if nothing was acknowledged that it lacks.
    pub swap_members: bool,
    /// The witness is away while the member is lost, until the crash: no majority, no acknowledgement.
    pub witness_away: bool,
    /// It answers nothing more rather than fail; perhaps it comes to itself again.
    pub hangs: bool,
    /// Another member is lost later: what only the two had is gone, and must be said to be.
    pub lose_second: bool,
    /// Volumes. The second one is detached and attached now and then.
    pub volumes: u16,
    /// Sectors of cache devices go bad or flip on one copy, one in so many operations; 0 never.
    pub rot: u64,
    /// One member is sick in other ways too.
    pub sickness: Sickness,
    /// Reads of one member, always the same, fail one in so many, at starts too, and not the next time; 0 never.
    pub flaky: u64,
    /// Some devices are steadily slower than others.
    pub slow: bool,
    /// Superblocks of one member, always the same, cannot be read at starts, some or all of one generation, or a record of the witness.
    pub bad_slots: bool,
    /// One member, always the same, fails a write or a flush in a start, or while a volume comes or goes, and goes on.
    pub fails_once: bool,
    /// At starts reads of all members fail for a while.
    pub blind_starts: bool,
    /// Mode switches happen.
    pub switch_modes: bool,
    /// For a while, up to a power cut, the disk fails reads, writes and flushes, one in so many; 0 never.
    pub disk_errors: u64,
    /// That is in the life after the one in which a cache device is lost, if there is one.
    pub disk_fails_late: bool,
    /// A disk is not there at some starts, and comes later.
    pub disk_late: bool,
    /// While the daemon is away, and nothing is dirty, a disk is exchanged for one with other data, now and then.
    pub exchanges: bool,
    /// At some point a few sectors of the disk die, until the run's end: neither read nor written.
    pub dead_sectors: bool,
    /// At some point the witness is lost for good.
    pub lose_witness: bool,
    /// Cache devices are added and removed, and lost when all has its copies again.
    pub joins: bool,
    /// All that the cache holds is read now and then, and mended; at the end nothing damaged is left.
    pub scrubs: bool,
    /// Data is preloaded, pinned and unpinned.
    pub preloads: bool,
    /// Volumes grow, as far as the intent map has room.
    pub grows: bool,
    /// There is a volume without a disk, too.
    pub diskless: bool,
    /// Its size.
    pub diskless_sectors: u64,
    /// What volumes are sure of, and may have at most, changes now and then.
    pub shares: bool,
    /// Clients read on in small pieces for a while, now and then.
    pub reads_on: bool,
    /// Every other client lends its memory for what goes past the cache.
    pub lends: bool,
    /// Clients read by themselves what the engine lets others find.
    pub beside: bool,
    /// Clients write and flush in turn for a while, now and then.
    pub flushes_each: bool,
    /// The engine's thread stands still now and then, for longer than a device may be silent.
    pub stalls: bool,
    /// The daemon is told to end, as `headpond stop` and an upgrade do, under requests, before some of the crashes.
    pub stops: bool,
    /// Longest request in sectors.
    pub longest: u64,
    /// Engine settings.
    pub settings: Settings,
    /// What is left of the run where it was made shorter.
    pub kept: Kept,
}

/// Whether a plan has drawn something.
pub type Drawn = fn(&Plan) -> bool;

/// What a plan may have drawn beside the load, by name.
pub const FEATURES: &[(&str, Drawn)] = &[
    ("one-member", |p| p.members == 1),
    ("loss", |p| p.lose_member),
    ("loss-with-crash", |p| p.lose_with_crash),
    ("second-loss", |p| p.lose_second),
    ("hang", |p| p.hangs),
    ("one-copy", |p| p.copies == 1 && p.members > 1),
    ("refuses", |p| p.settings.degraded == Degraded::ReadOnly),
    ("swap", |p| p.swap_members),
    ("witness-away", |p| p.witness_away),
    ("rot", |p| p.rot > 0),
    ("sick", |p| p.sickness.any()),
    ("flaky", |p| p.flaky > 0),
    ("slow", |p| p.slow),
    ("bad-slots", |p| p.bad_slots),
    ("fails-once", |p| p.fails_once),
    ("blind-starts", |p| p.blind_starts),
    ("disk-errors", |p| p.disk_errors > 0),
    ("disk-late", |p| p.disk_late),
    ("exchange", |p| p.exchanges),
    ("dead-sectors", |p| p.dead_sectors),
    ("witness-lost", |p| p.lose_witness),
    ("joins", |p| p.joins),
    ("scrubs", |p| p.scrubs),
    ("preloads", |p| p.preloads),
    ("grows", |p| p.grows),
    ("diskless", |p| p.diskless),
    ("shares", |p| p.shares),
    ("routed", |p| p.settings.route),
    ("around", |p| p.settings.read_around),
    ("reads-on", |p| p.reads_on),
    ("lends", |p| p.lends),
    ("beside", |p| p.beside),
    ("flushes-each", |p| p.flushes_each),
    ("stalls", |p| p.stalls),
    ("stops", |p| p.stops),
    ("loads-late", |p| p.settings.pages_at_start == 0),
    ("lanes", |p| p.lanes() > 1),
    ("endurance", |p| p.settings.drive_writes_milli > 0),
    ("two-volumes", |p| p.volumes > 1),
    ("mode-switches", |p| p.switch_modes),
    ("hasty", |p| p.hasty),
];

impl Plan {
    /// Whether the seed has drawn all of these, by their names in [`FEATURES`]; an unknown name is an error that says so.
    ///
    /// # Errors
    /// A name that is not in the list.
    pub fn has(&self, features: &[&str]) -> Result<bool, String> {
        features.iter().try_fold(true, |all, name| match FEATURES.iter().find(|(n, _)| n == name) {
            Some((_, drawn)) => Ok(all && drawn(self)),
            None => {
                let names: Vec<&str> = FEATURES.iter().map(|(n, _)| *n).collect();
                Err(format!("there is no feature {name:?}; there are {}", names.join(", ")))
            }
        })
    }

    /// Open segments of each queue that clean data of a volume is spread over, while no member is missing.
    fn lanes(&self) -> usize {
        let slots = (self.member_bytes - (2 << 20)) / self.segment_bytes * self.members as u64;
        lanes::number(self.members, slots, usize::from(self.volumes), self.settings.lane_slots)
    }

    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut r = Rng::new(seed);
        let members = *r.pick(&[1, 2, 2, 2, 2, 3, 4]);
        let copies = if members == 1 { 1 } else { 2 };
        let segment_bytes = *r.pick(&[64 << 10, 64 << 10, 128 << 10]);
        let slots = r.within(12, 60);
        let hot_sectors = *r.pick(&[256, 1024, 4096, 16384]);
        let settings = Settings {
            stream_bytes: *r.pick(&[32 << 10, 64 << 10, 512 << 10]),
            large_bytes: *r.pick(&[32 << 10, 64 << 10, 128 << 10]),
            admit_bytes: *r.pick(&[16 << 10, 64 << 10]),
            zeroes_bytes: *r.pick(&[16 << 10, 64 << 10]),
            dirty_percent: *r.pick(&[50, 80]),
            destage_percent: *r.pick(&[10, 30, 50]),
            idle_ns: *r.pick(&[MILLISECOND, 20 * MILLISECOND]),
            chunk_runs: *r.pick(&[4, 32, 256]),
            destage_depth: *r.pick(&[1, 4, 16]),
            destage_run_bytes: *r.pick(&[8 << 10, 64 << 10]),
            checkpoint_bytes: *r.pick(&[128 << 10, 512 << 10, 8 << 20]),
            // What a life has cached is known while it is asked for, as in a large pool, or before.
            pages_at_start: *Rng::new(seed ^ 0x7061_6765).pick(&[0, 0, 1, 16]),
            reserve_segments: 2,
            free_percent: *r.pick(&[5, 10]),
            appends: *r.pick(&[1, 2, 4, 8]),
            gather_ns: *Rng::new(seed ^ 0x6761_7468_6572).pick(&[0, 50_000, 4_000_000, 250_000_000]),
            let_go_blocks: *Rng::new(seed ^ 0x006c_6574_676f).pick(&[4, 64, 16 << 10]),
            unfilled_appends: *Rng::new(seed ^ 0x006e_6167_6c65).pick(&[1, 2, 8]),
            record_bytes: *r.pick(&[8 << 10, 16 << 10, 32 << 10]),
            // Pools of a few slots have lanes, too: their open segments, and what becomes of them, are what is looked at.
            lane_slots: *Rng::new(seed ^ 0x6c61_6e65).pick(&[4, 8, 64]),
            max_fragments: *r.pick(&[64, 4096]),
            route: false,
            read_around: false,
            ahead_bytes: *Rng::new(seed ^ 0x0061_6865_6164).pick(&[0, 16 << 10, 32 << 10, 128 << 10]),
            ..Settings::default()
        };
        Self {
            seed,
            small: false,
            members,
            member_bytes: (2 << 20) + slots * segment_bytes,
            copies,
            unit: *r.pick(&[512, 512, 4096]),
            segment_bytes,
            sectors: ((3 * 64) << 20) / 512 + r.below(64),
            hot_sectors,
            phase: *r.pick(&[0, 0, 7, 3]),
            mode: *r.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround]),
            clients: *r.pick(&[1, 4, 12]),
            crashes: r.within(1, 6),
            power_percent: *r.pick(&[0, 50, 100, 60]),
            operations: *r.pick(&[100, 400, 1500]),
            crash_in_recovery: *r.pick(&[0, 8, 8, 2]),
            hasty: false,
            protected: r.one_in(4),
            lose_member: members > 1 && r.one_in(4),
            rot: 0,
            sickness: Sickness::default(),
            flaky: 0,
            slow: false,
            bad_slots: false,
            fails_once: false,
            blind_starts: false,
            switch_modes: r.one_in(4),
            disk_errors: 0,
            disk_fails_late: false,
            disk_late: false,
            exchanges: false,
            dead_sectors: false,
            lose_witness: false,
            joins: false,
            // From a chance of its own: a seed stays what it was without.
            scrubs: Rng::new(seed ^ 0x5c2b_b1e5).one_in(5),
            preloads: Rng::new(seed ^ 0x9e1_0ad5).one_in(4),
            grows: Rng::new(seed ^ 0x6772_6f77).one_in(5),
            diskless: Rng::new(seed ^ 0x6469_736b).one_in(5),
            diskless_sectors: 0,
            shares: false,
            lends: Rng::new(seed ^ 0x6c65_6e64).one_in(2),
            beside: Rng::new(seed ^ 0x6265_7369).one_in(3),
            reads_on: Rng::new(seed ^ 0x7265_6164).one_in(2),
            flushes_each: Rng::new(seed ^ 0x7379_6e63).one_in(3),
            stalls: Rng::new(seed ^ 0x0073_7461_6c6c).one_in(4),
            stops: Rng::new(seed ^ 0x7374_6f70).one_in(3),
            longest: *r.pick(&[8, 32, 256]),
            lose_with_crash: false,
            swap_members: false,
            witness_away: false,
            hangs: false,
            lose_second: false,
            volumes: 1,
            settings,
            kept: Kept::default(),
        }
        .with_rot(&mut r)
        .with_loss(&mut r)
        .with_lasting(&mut Rng::new(seed ^ 0x1a57_1146))
        .with_joins(&mut Rng::new(seed ^ 0x6a6f_696e))
        .with_diskless()
        .with_endurance(&mut Rng::new(seed ^ 0x656e_6475))
        .with_shares(&mut Rng::new(seed ^ 0x7368_6172))
        .with_around(&mut Rng::new(seed ^ 0x7265_6769))
        .with_flaky(&mut Rng::new(seed ^ 0x666c_616b))
        .with_single(&mut Rng::new(seed ^ 0x7369_6e67))
        .with_refusal(&mut Rng::new(seed ^ 0x7265_6675))
        .with_leaving(&mut Rng::new(seed ^ 0x6c65_6176))
        .with_late(&mut Rng::new(seed ^ 0x6c61_7465))
        .with_both(&mut Rng::new(seed ^ 0x626f_7468))
        .with_slow(&mut Rng::new(seed ^ 0x736c_6f77))
        .with_exchange(&mut Rng::new(seed ^ 0x6578_6368))
    }

    /// The same in the small geometry: few segments, few hot sectors, and many crashes with little between them. Most of a
    /// run is crashes and starts then.
    #[must_use]
    pub fn small(self) -> Self {
        let mut r = Rng::new(self.seed ^ 0x5eed_5a11);
        let slots = r.within(12, 20);
        Self {
            small: true,
            segment_bytes: 64 << 10,
            member_bytes: (2 << 20) + slots * (64 << 10),
            hot_sectors: *r.pick(&[64, 256]),
            longest: *r.pick(&[8, 32]),
            clients: *r.pick(&[1, 4]),
            operations: *r.pick(&[4, 16, 40]),
            crashes: r.within(30, 60),
            hasty: false,
            ..self
        }
        .with_diskless()
    }

    /// Whether the disk takes what it is expected to serve sooner; and what does not heal before the run's end, beside
    /// nothing else that takes a vote or a copy. From a chance of its own: a seed stays what it was without.
    fn with_lasting(self, r: &mut Rng) -> Self {
        let dead_sectors = r.one_in(12) && !self.lose_member && self.disk_errors == 0;
        let lose_witness = r.one_in(12) && !self.lose_member && !self.sickness.any();
        let settings = Settings { route: r.one_in(4), ..self.settings };
        Self { dead_sectors, lose_witness, settings, ..self }
    }

    /// A budget of drive writes that is soon spent: a run takes seconds, and finds three hours' worth at each start. From a chance of
    /// its own: a seed stays what it was without.
    fn with_endurance(self, r: &mut Rng) -> Self {
        let drive_writes_milli = if r.one_in(6) { *r.pick(&[1, 20, 200, 2000]) } else { 0 };
        Self { settings: Settings { drive_writes_milli, ..self.settings }, ..self }
    }

    /// Whether neighbourhoods are brought whole in which reads are missed here and there. From a chance of its own: a seed stays what it was
    /// without.
    fn with_around(self, r: &mut Rng) -> Self {
        Self { settings: Settings { read_around: r.one_in(2), ..self.settings }, ..self }
    }

    /// Cache devices come and go, where nothing else takes a copy or a vote: how many may be lost is then known.
    fn with_joins(self, r: &mut Rng) -> Self {
        let quiet = !self.lose_member && !self.sickness.any() && self.rot == 0 && !self.lose_witness;
        Self { joins: r.one_in(4) && quiet && self.disk_errors == 0 && !self.dead_sectors, ..self }
    }

    /// Reads of cache devices fail, in runs that lose none: of one now and then, or of all for a moment, in which no client is served. From a
    /// chance of its own: a seed stays what it was without.
    fn with_flaky(self, r: &mut Rng) -> Self {
        let bears = self.members > 1 && !self.lose_member && !self.joins;
        let flaky = if bears && r.one_in(4) { *r.pick(&[2, 10, 100]) } else { 0 };
        let blind_starts = !self.lose_member && r.one_in(6);
        Self { flaky, blind_starts, ..self }
    }

    /// One copy of what is dirty, though there are more cache devices, where none is lost or damaged. From a chance of its own: a seed stays
    /// what it was without.
    fn with_single(self, r: &mut Rng) -> Self {
        let bears = !self.lose_member && self.rot == 0 && !self.sickness.any() && self.flaky == 0;
        Self { copies: if bears && r.one_in(6) { 1 } else { self.copies }, ..self }
    }

    /// Writes are refused while a cache device is missing. From a chance of its own: a seed stays what it was without.
    fn with_refusal(self, r: &mut Rng) -> Self {
        let degraded = if self.lose_member && r.one_in(6) { Degraded::ReadOnly } else { self.settings.degraded };
        Self { settings: Settings { degraded, ..self.settings }, ..self }
    }

    /// A member leaves though it is there: its superblocks cannot be read, or it fails one operation. Where nothing else takes a copy or a
    /// vote, but on the same device. From a chance of its own: a seed stays what it was without.
    fn with_leaving(self, r: &mut Rng) -> Self {
        let bears = self.members > 1 && self.copies == 2 && !self.lose_member && !self.joins && !self.lose_witness;
        let bad_slots = bears && r.one_in(5);
        Self { bad_slots, fails_once: bears && !bad_slots && r.one_in(5), ..self }
    }

    /// A disk comes late, where nothing else is wrong with it. From a chance of its own: a seed stays what it was without.
    fn with_late(self, r: &mut Rng) -> Self {
        let bears = self.disk_errors == 0 && !self.dead_sectors && !self.lose_second;
        Self { disk_late: bears && r.one_in(8), ..self }
    }

    /// The disk fails for a while where a cache device is lost as well, before that or after it. From a chance of its own: a seed stays what it was
    /// without.
    fn with_both(self, r: &mut Rng) -> Self {
        let bears = self.lose_member && !self.lose_second && !self.disk_late;
        let disk_errors = if bears && r.one_in(5) { *r.pick(&[3, 10, 50]) } else { self.disk_errors };
        Self { disk_errors, disk_fails_late: r.one_in(2), ..self }
    }

    /// A disk is exchanged, where all that is dirty can be written to it before, and what is cached of it can be read to tell. From a chance of its own: a
    /// seed stays what it was without.
    fn with_exchange(self, r: &mut Rng) -> Self {
        let can_rest = !self.lose_second
            && !self.witness_away
            && !self.swap_members
            && self.disk_errors == 0
            && !self.dead_sectors
            && !self.fails_once;
        let is_readable = self.rot == 0 && !self.sickness.any() && self.flaky == 0 && !self.bad_slots;
        let exchanges = can_rest && is_readable && r.one_in(4);
        // Where none is read before it is served a disk is not compared.
        let pages_at_start = self.settings.pages_at_start.max(if exchanges { 2 } else { 0 });
        Self { exchanges, settings: Settings { pages_at_start, ..self.settings }, ..self }
    }

    /// Some devices are slow, where none that hangs is told from them by half a second. From a chance of its own: a seed stays what it was
    /// without.
    fn with_slow(self, r: &mut Rng) -> Self {
        Self { slow: !self.hangs && r.one_in(2), ..self }
    }

    /// The life in which the disk fails.
    pub(super) fn troubled_life(&self) -> u64 {
        let late = self.lose_member && self.disk_fails_late;
        (self.crashes / 2 + u64::from(late)).min(self.crashes - 1)
    }

    /// How much slower than others a device is.
    pub(super) fn slowness(&self, device: u64) -> u64 {
        if self.slow { *Rng::new(self.seed.wrapping_add(device << 32) ^ 0x7061_6365).pick(&[1, 1, SLOW]) } else { 1 }
    }

    /// The most of it.
    pub(super) fn most_slowness(&self) -> u64 {
        if self.slow { SLOW } else { 1 }
    }

    /// Volumes have shares where there are several. From a chance of its own: a seed stays what it was without.
    fn with_shares(self, r: &mut Rng) -> Self {
        Self { shares: self.volumes > 1 && r.one_in(2), ..self }
    }

    /// The volume without a disk is as large as there is room for, or a little smaller: what is set aside for it is half of the
    /// pool's segments at most.
    fn with_diskless(self) -> Self {
        let slots = (self.member_bytes - (2 << 20)) / self.segment_bytes;
        let segments = (slots / 4 - 2).clamp(1, 4);
        let diskless_sectors = segments * self.segment_bytes / 512 - self.seed % 64;
        Self { diskless_sectors, ..self }
    }

    /// How the member is lost, and whether dirty data is taken on one copy then.
    fn with_loss(self, r: &mut Rng) -> Self {
        let settings = Settings { degraded: *r.pick(&[Degraded::WriteThrough, Degraded::Continue]), ..self.settings };
        let swap_members = self.lose_member && self.members == 2 && r.one_in(2);
        let lose_with_crash = self.lose_member && r.one_in(3);
        let witness_away = self.lose_member && r.one_in(4);
        let lose_second = self.lose_member && self.members > 2 && !witness_away && r.one_in(3);
        let hangs = self.lose_member && !lose_with_crash && r.one_in(3);
        let settings =
            Settings { member_timeout_ns: if hangs { 500 * MILLISECOND } else { settings.member_timeout_ns }, ..settings };
        let volumes = if r.one_in(3) { 2 } else { 1 };
        Self { lose_with_crash, swap_members, witness_away, lose_second, hangs, volumes, settings, ..self }
    }

    /// Rot on one device, in runs that lose none: two damages at once are more than the pool promises to bear.
    fn with_rot(self, r: &mut Rng) -> Self {
        let bears = self.members > 1 && !self.lose_member;
        let rots = r.one_in(3) && bears;
        let sickness = if r.one_in(3) && bears { Sickness::draw(r) } else { Sickness::default() };
        let hasty = r.one_in(3);
        let disk_errors = if r.one_in(5) && !self.lose_member { *r.pick(&[3, 10, 50]) } else { 0 };
        let crashes = if hasty { self.crashes * 2 } else { self.crashes };
        Self { rot: if rots { 200 } else { 0 }, sickness, hasty, disk_errors, crashes, ..self }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}{}: {} cache devices of {} KiB, {} copies, unit {}, segments of {} KiB, {} from phase {}, {} clients on {} sectors, {} crashes ({} % power), every ~{} operations, recovery cut 1 in {}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}",
            self.seed,
            if self.small { " in the small geometry" } else { "" },
            self.members,
            self.member_bytes >> 10,
            self.copies,
            self.unit,
            self.segment_bytes >> 10,
            self.mode.name(),
            self.phase,
            self.clients,
            self.hot_sectors,
            self.crashes,
            self.power_percent,
            self.operations,
            self.crash_in_recovery,
            if self.hasty { ", crashes soon after starts" } else { "" },
            if self.protected { ", power-loss protection" } else { "" },
            if self.volumes > 1 { ", two volumes" } else { "" },
            if self.lose_member { ", a member is lost" } else { "" },
            if self.hangs { " in that it hangs" } else { "" },
            if self.lose_second { " and another later" } else { "" },
            if self.lose_with_crash { " with a crash" } else { "" },
            if self.swap_members { " and comes back alone" } else { "" },
            if self.settings.degraded == Degraded::ReadOnly { ", and writes are refused from then on" } else { "" },
            if self.witness_away { ", the witness was away meanwhile" } else { "" },
            if self.rot > 0 { ", cache devices rot" } else { "" },
            self.sickness,
            if self.flaky > 0 { ", one member fails reads now and then" } else { "" },
            if self.slow { ", some devices are slow" } else { "" },
            if self.bad_slots { ", superblocks cannot be read" } else { "" },
            if self.fails_once { ", one member fails a write or a flush" } else { "" },
            if self.blind_starts { ", all fail reads at starts" } else { "" },
            if self.disk_errors > 0 { ", the disk fails for a while" } else { "" },
            if self.disk_late { ", a disk comes late" } else { "" },
            if self.exchanges { ", disks are exchanged" } else { "" },
            if self.dead_sectors { ", sectors of the disk die" } else { "" },
            if self.lose_witness { ", the witness is lost for good" } else { "" },
            if self.joins { ", cache devices come and go" } else { "" },
            if self.scrubs { ", the cache is scrubbed" } else { "" },
            if self.preloads { ", data is preloaded and pinned" } else { "" },
            if self.grows { ", volumes grow" } else { "" },
            if self.diskless { ", one more has no disk" } else { "" },
            if self.shares { ", volumes have shares" } else { "" },
            if self.settings.route { ", the disk takes what it serves sooner" } else { "" },
            if self.settings.read_around { ", reads around misses" } else { "" },
            if self.lends { ", clients lend their memory" } else { "" },
            if self.beside { ", clients read beside the engine" } else { "" },
            if self.reads_on { ", clients read on" } else { "" },
            if self.flushes_each { ", clients flush after each write" } else { "" },
            if self.stalls { ", the engine stands still now and then" } else { "" },
            if self.stops { ", it is told to end before some crashes" } else { "" },
            if self.settings.drive_writes_milli > 0 { ", cache devices are spared" } else { "" },
            if self.switch_modes { ", modes switch" } else { "" },
        )
    }
}

//! Swarm runs: each seed draws its own geometry, load, settings and faults, runs clients against them through crash
//! after crash, and ends by healing everything: all I/O ends, all dirty data reaches the disk, and the disk alone is
//! what the clients wrote.

mod diskless;
mod disks;
mod grows;
mod joins;
mod outcome;
mod plan;
mod stops;

pub use outcome::{Counts, Outcome, Summary, Totals};
pub use plan::{Drawn, FEATURES, Plan};

use crate::device::SimDevice;
use crate::models::MILLISECOND;
use crate::rng::Rng;
use crate::scene::DISKLESS;
use crate::world::{Lend, Timing, Violation, Whose, World};
use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::election::Election;
use headpond_engine::format::Mode;
use headpond_engine::policy::shares::Share;
use headpond_engine::{Command, CommandError, Degraded, Device, NewVolume, RequestError, StartError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The stamp that sector 0 of a disk has at first.
const BASE: u64 = 1 << 50;

/// Requests in a row that are as the clients' habits say, and then as many that are writes and flushes in turn.
const FLUSHING: u64 = 16;

/// Blocks that clients which read beside the engine all ask for.
const FAVOURITES: u64 = 48;

/// Longest that a request may wait, also where a cache device hangs, whose time limit is half a second then, in nanoseconds.
const LONGEST_WAIT: u64 = 60_000 * MILLISECOND;

/// Longest that a command may take that is not told to be slow, in nanoseconds: beside clients on slow devices a batch of a preload takes
/// minutes, and the disk is the clients' for as long after it.
const LONGEST_COMMAND: u64 = 3_600_000 * MILLISECOND;

/// Longest that something dirty lacks a copy that it could have, at rest, in nanoseconds.
const LONGEST_LACK: u64 = 60_000 * MILLISECOND;

/// Lines of each volume's table of what is read beside the engine: so few that blocks take each other's places.
const BESIDE_LINES: usize = 64;

/// Numbers of devices, where it is drawn how slow each is: cache devices have those before, and the ones that join 300 and more.
const WITNESS: u64 = 100;
const FIRST_DISK: u64 = 200;

/// Longest that no cache device can be read at a start, in nanoseconds.
const LONGEST_BLIND: u64 = 4_000 * MILLISECOND;

struct Run {
    plan: Plan,
    world: World,
    rng: Rng,
    outcome: Outcome,
    busy: Vec<Option<u64>>,
    /// Where each client's stream goes on.
    cursors: Vec<u64>,
    /// What each client that reads on has still before it, and of which volume.
    reading: Vec<(u16, Range<u64>)>,
    lost: Option<u8>,
    /// Members that may be out: they were lost, or removed, or are being added or removed.
    may_be_out: BTreeSet<u8>,
    /// A second member is gone: what was on the two alone fails.
    second_lost: bool,
    /// Cache devices that have been added so far: each has an identity of its own.
    added: u8,
    /// The pool does not start without the two: the run is over.
    refused: bool,
    /// Volumes that clients use.
    attached: Vec<u16>,
    /// The volume without a disk is there too; and how often it was made.
    diskless: bool,
    lives_of_it: u8,
    /// Commands that nobody waits for: which, when it was given, and what it is to do.
    given: Vec<(u64, u64, &'static str)>,
    /// How large volumes are that were looked at.
    sizes: BTreeMap<u16, grows::Size>,
}

/// Runs a plan. Two runs of one plan are equal to the bit.
#[must_use]
pub fn run_plan(plan_of: &Plan) -> Outcome {
    tell_plan(plan_of, None)
}

/// Runs a plan and tells `narrator` all that happens.
pub fn tell_plan(plan_of: &Plan, narrator: Option<Box<dyn FnMut(String)>>) -> Outcome {
    let mut rng = Rng::new(plan_of.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ plan_of.kept.salt);
    let world = World::new(rng.fork(), Timing::Random(10_000, 400_000));
    let clients = plan_of.clients;
    let mut run = Run {
        plan: plan_of.clone(),
        world,
        rng,
        outcome: Outcome::default(),
        busy: vec![None; clients],
        cursors: vec![0; clients],
        reading: vec![(0, 0..0); clients],
        lost: None,
        may_be_out: BTreeSet::new(),
        second_lost: false,
        added: 0,
        refused: false,
        attached: vec![0],
        diskless: false,
        lives_of_it: 0,
        given: Vec::new(),
        sizes: BTreeMap::new(),
    };
    run.world.narrator = narrator;
    run.world.lend = if plan_of.lends { Lend::Some } else { Lend::None };
    run.world.beside.whose = if plan_of.beside { Whose::Some } else { Whose::Nobodys };
    run.world.beside.lines = BESIDE_LINES;
    // A sector that rotted is a copy that is not one. Without a majority a record may be left on one copy alone, which
    // nobody was told of; it is mended after the next start.
    run.world.count_copies = plan_of.rot == 0 && !plan_of.sickness.any() && !plan_of.witness_away;
    let result = run.all();
    run.note_marks();
    let mut outcome = run.outcome;
    outcome.hash = run.world.trace_hash();
    outcome.totals.operations = run.world.operations;
    if let Err(Violation(what)) = result {
        outcome.violation = Some(what);
    }
    outcome
}

impl Run {
    fn all(&mut self) -> Result<(), Violation> {
        self.make()?;
        for n in 0..self.plan.crashes {
            if !self.plan.kept.has_life(n) {
                continue;
            }
            let loses = self.plan.lose_member && n == self.plan.crashes / 2;
            if loses && !self.plan.lose_with_crash {
                self.lose_member(self.plan.hangs);
                self.world.errors_allowed = self.plan.witness_away;
                self.world.refuses_writes = self.refuses();
            }
            let troubled = self.plan.disk_errors > 0 && n == self.plan.troubled_life();
            if troubled {
                self.disk_fails(self.plan.disk_errors);
            }
            if n == self.plan.crashes / 2 {
                self.set_dead(
                    Device::Witness,
                    self.plan.lose_witness || loses && !self.plan.lose_with_crash && self.plan.witness_away,
                );
                self.sectors_die();
            }
            let soon = self.plan.hasty && self.rng.one_in(2);
            // Where the lost member is to come back alone, the moments after the loss are what counts.
            let most = if loses && self.plan.swap_members {
                60
            } else if soon {
                100
            } else {
                self.plan.operations * 2
            };
            let budget = self.rng.within(1, most);
            self.load(n, budget)?;
            let exchanged = self.disk_to_exchange()?;
            if self.plan.stops && exchanged.is_none() && self.rng.one_in(3) {
                self.end_in_the_middle(n)?;
            }
            if troubled {
                self.crash_beside_a_failing_disk();
            } else {
                self.crash();
            }
            if loses && self.plan.lose_with_crash {
                self.lose_member(false);
            }
            self.end_hang();
            exchanged.into_iter().for_each(|volume| self.exchange_disk(volume));
            self.set_dead(Device::Witness, self.plan.lose_witness && n >= self.plan.crashes / 2);
            self.world.errors_allowed = self.second_lost;
            self.world.refuses_writes = self.refuses();
            self.swap_members();
            self.superblocks_go_bad();
            self.some_come_back();
            let late = self.disk_is_late();
            self.recover()?;
            if self.refused {
                return Ok(());
            }
            if let Some(volume) = late {
                self.disk_comes(volume, n)?;
            }
            if self.plan.volumes > 1 && !self.second_lost && self.rng.one_in(2) {
                self.attach_or_detach(n)?;
            }
            if self.refused {
                return Ok(());
            }
            if self.plan.joins && self.rng.one_in(2) {
                self.change_members(n)?;
            }
            if self.plan.diskless && !self.refused && !self.second_lost && self.rng.one_in(3) {
                self.create_or_delete(n)?;
            }
            if self.refused {
                return Ok(());
            }
        }
        let budget = self.plan.operations;
        self.load(self.plan.crashes, budget)?;
        self.heal()
    }

    fn make(&mut self) -> Result<(), Violation> {
        let p = &self.plan;
        for m in 0..p.members {
            let mut d = SimDevice::new(p.member_bytes, None);
            d.protected = p.protected;
            d.slowness = p.slowness(m as u64);
            self.world.devices.insert(Device::Member(m as u8), d);
        }
        let witness = SimDevice::new(64 << 10, None).slower(p.slowness(WITNESS));
        self.world.devices.insert(Device::Witness, witness);
        let pool = PoolPlan {
            name: "sim".into(),
            id: [7; 16],
            key: self.rng.next(),
            copies: p.copies,
            unit: p.unit,
            segment_bytes: p.segment_bytes,
            intent_pages: 4,
            witness: true,
            members: (0..p.members).map(|m| ([m as u8 + 1; 16], p.member_bytes)).collect(),
        };
        self.world.unit = u64::from(p.unit);
        let (_, writes) = plan(&pool).map_err(|e| Violation(e.to_string()))?;
        self.world.put_initial(&writes);
        self.start_whole()?;
        if let Some(d) = self.world.devices.get_mut(&Device::Member(self.sick_member())) {
            d.sickness = self.plan.sickness.clone();
            d.fail_reads = self.plan.flaky;
        }
        for number in 0..self.plan.volumes {
            let id = self.attach(number);
            self.finish(id, "attach")?;
        }
        self.attached = (0..self.plan.volumes).collect();
        if self.plan.diskless {
            let id = self.create_diskless();
            self.finish(id, "the making of a volume without a disk")?;
            self.diskless = true;
        }
        Ok(())
    }

    /// Steps until a command has ended, well.
    fn finish(&mut self, id: u64, what: &str) -> Result<(), Violation> {
        self.wait_for(id, what)?.map_err(|e| Violation(format!("{what} failed: {e}")))
    }

    /// Gives a command, and steps until it has ended.
    fn end_of(&mut self, command: Command, what: &str) -> Result<Result<(), CommandError>, Violation> {
        let id = self.world.command(command);
        self.wait_for(id, what)
    }

    fn wait_for(&mut self, id: u64, what: &str) -> Result<Result<(), CommandError>, Violation> {
        let limit = self.world.now + 600_000 * MILLISECOND;
        loop {
            if let Some(v) = self.world.violation.take() {
                return Err(v);
            }
            match self.world.command_result(id) {
                Some(end) => return Ok(end),
                None if !self.world.step() || self.world.now > limit => {
                    return Err(Violation(format!("{what} does not end: {}", self.describe())));
                }
                None => {}
            }
        }
    }

    fn describe(&self) -> String {
        match self.world.engine.as_ref().map(headpond_engine::Engine::status) {
            Some(s) => format!("{} requests outstanding, {s:?}", self.world.outstanding()),
            None => "no engine".into(),
        }
    }

    fn start_whole(&mut self) -> Result<(), Violation> {
        let Some(election) = self.elect()? else { return Ok(()) };
        let hidden = self.hide();
        let id = self.world.start(self.plan.settings.clone(), election);
        self.pass_blindly(id, u64::MAX)?;
        let end = self.wait_for(id, "start")?;
        self.show(hidden);
        match end {
            Ok(()) => {}
            // Whoever has lost them for good says so.
            Err(CommandError::Start(StartError::CopiesMissing { .. })) if self.second_lost => {
                self.plan.settings.without_missing = true;
                self.crash();
                return self.start_whole();
            }
            Err(_) if self.second_lost => {
                self.refused = true;
                return Ok(());
            }
            Err(e) => return Err(Violation(format!("start failed: {e}"))),
        }
        // A crash may have left a volume attached, or not.
        let volumes = self.world.engine.as_ref().map(|e| e.status().volumes).unwrap_or_default();
        self.attached = volumes.iter().map(|v| v.number).filter(|n| *n != DISKLESS).collect();
        self.diskless = volumes.iter().any(|v| v.number == DISKLESS);
        self.check_sizes()?;
        self.check_segments();
        self.note_members();
        self.check_members()?;
        // Clients may ask before all is known, or after.
        if Rng::new(self.plan.seed ^ self.world.operations).one_in(2) {
            return self.world.violation.take().map_or(Ok(()), Err);
        }
        self.check_start(true)
    }

    /// What a start has found, once all of it is known, is true. `at_once`: no client has asked for anything since.
    fn check_start(&mut self, at_once: bool) -> Result<(), Violation> {
        while !self.world.is_loaded() {
            if !self.world.step() {
                return Err(Violation(format!("what is cached never comes to be known: {}", self.describe())));
            }
        }
        self.check_segments();
        // Of a device that is sick or rots what is on the media need not be what was written; and of what a lost page tells of nothing is
        // settled.
        if !self.world.lacks_a_page() && self.plan.rot == 0 && !self.plan.sickness.any() {
            for v in self.volumes() {
                let phase = if v == DISKLESS { 0 } else { self.plan.phase };
                self.world.check_clean(v, phase, at_once);
                self.world.check_copies(v, phase);
            }
        }
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Holds the election; `None` if the pool may refuse, short of two members.
    fn elect(&mut self) -> Result<Option<Election>, Violation> {
        match self.world.elect(true) {
            Ok(election) => Ok(Some(election)),
            Err(_) if self.second_lost => {
                self.refused = true;
                Ok(None)
            }
            Err(e) => Err(Violation(format!("the pool does not start: {e}"))),
        }
    }

    fn check_segments(&mut self) {
        // Once it is mended it stays so, until the next crash.
        self.world.to_be_mended &= self.world.engine.as_ref().is_some_and(|e| e.status().lacking_copies > 0);
        self.volumes().into_iter().for_each(|v| self.world.check_segments(v));
    }

    /// Whoever is in sync at a start is a member, whatever was to become of it; but for one that has failed in that start, and may not be out before others
    /// are served.
    fn note_members(&mut self) {
        let members = self.world.engine.as_ref().map(|e| e.status().members).unwrap_or_default();
        members.iter().filter(|m| m.in_sync).for_each(|m| _ = self.may_be_out.remove(&m.number));
        let fails = self.world.fail_member.map(|(m, _)| m);
        self.may_be_out.extend(self.lost.into_iter().chain(fails).chain(self.world.failed_member));
    }

    /// Nobody is left out who answers, and does what it is told. One that is sick may be.
    fn check_members(&mut self) -> Result<(), Violation> {
        let members = self.world.engine.as_ref().map(|e| e.status().members).unwrap_or_default();
        let may_be = |m: u8| self.may_be_out.contains(&m) || self.plan.sickness.any() && m == self.sick_member();
        match members.iter().find(|m| !m.in_sync && !may_be(m.number)) {
            Some(m) => Err(Violation(format!("cache device {} was left out, and nothing is wrong with it", m.number))),
            None => Ok(()),
        }
    }

    /// Starts again, perhaps several times: recovery is cut too.
    fn recover(&mut self) -> Result<(), Violation> {
        for _ in 0..5 {
            self.fail_once(200);
            let cut = self.plan.crash_in_recovery > 0 && self.rng.one_in(self.plan.crash_in_recovery);
            if !cut {
                break;
            }
            let Some(election) = self.elect()? else { return Ok(()) };
            let hidden = self.hide();
            let id = self.world.start(self.plan.settings.clone(), election);
            let last = self.world.operations + self.rng.within(1, 200);
            self.pass_blindly(id, last)?;
            while self.world.operations < last && self.world.command_result(id).is_none() && self.world.step() {
                if let Some(v) = self.world.violation.take() {
                    return Err(v);
                }
            }
            self.outcome.totals.in_recovery += 1;
            self.crash();
            self.show(hidden);
        }
        self.start_whole()
    }

    /// Before a start superblocks of one cache device, or a record of the witness, turn out not to be readable; never so many that the
    /// votes would not do.
    fn superblocks_go_bad(&mut self) {
        if !self.plan.bad_slots || !self.rng.one_in(3) {
            return;
        }
        let member = self.sick_member();
        let witness_is_bad = self.world.devices.get(&Device::Witness).is_some_and(|w| !w.bad.is_empty());
        let slot = self.rng.below(4) as usize;
        match self.rng.below(6) {
            0 => self.world.mend_superblocks(member),
            1 if !self.world.is_hidden(member) && self.plan.sickness.rot_anywhere == 0 && !witness_is_bad => {
                self.world.spoil_witness(slot as u64 % 2);
            }
            2 => self.world.spoil_superblock(member, slot),
            3 => [slot, slot ^ 1].into_iter().for_each(|slot| self.world.spoil_superblock(member, slot)),
            _ => [slot, (slot + 2) % 4].into_iter().for_each(|slot| self.world.spoil_superblock(member, slot)),
        }
        if self.world.is_hidden(member) && witness_is_bad {
            self.world.mend_superblocks(member);
        }
        if self.world.is_hidden(member) {
            self.may_be_out.insert(member);
        }
    }

    /// One cache device is to fail a write or a flush of those that are submitted soon.
    fn fail_once(&mut self, operations: u64) {
        if self.plan.fails_once && self.rng.one_in(2) {
            let from = self.world.operations + self.rng.below(operations);
            self.world.fail_member = Some((self.sick_member(), from));
            self.may_be_out.insert(self.sick_member());
        }
    }

    /// Where reads of one cache device fail now and then, those of a third of it may fail all through a start, and not at the next one: its
    /// sectors that are like this now. Not of a device that lies: what the start writes there in place of a record that it could not see would
    /// not be there either at the next.
    fn hide(&mut self) -> Vec<u64> {
        if self.plan.flaky == 0 || self.plan.sickness.any() || !self.rng.one_in(3) {
            return Vec::new();
        }
        let Some(d) = self.world.devices.get_mut(&Device::Member(self.sick_member())) else { return Vec::new() };
        let some: Vec<u64> = (0..d.size / 4096).filter(|_| self.rng.one_in(3)).flat_map(|n| n * 8..n * 8 + 8).collect();
        let hidden: Vec<u64> = some.into_iter().filter(|sector| d.bad.insert(*sector, ()).is_none()).collect();
        self.world.note("PART OF A CACHE DEVICE CANNOT BE READ");
        hidden
    }

    /// What was hidden, and has not been written since, is there again.
    fn show(&mut self, hidden: Vec<u64>) {
        if let Some(d) = self.world.devices.get_mut(&Device::Member(self.sick_member())) {
            hidden.iter().for_each(|sector| _ = d.bad.remove(sector));
        }
    }

    /// For a while reads of cache devices fail, of all of them, as where a controller is reset: while a start is under way, and for less time
    /// than it bears.
    fn pass_blindly(&mut self, start: u64, last: u64) -> Result<(), Violation> {
        if !self.plan.blind_starts || !self.rng.one_in(3) {
            return Ok(());
        }
        let (rate, until) = (*self.rng.pick(&[1, 2, 10]), self.world.now + self.rng.within(1, LONGEST_BLIND));
        let members = |world: &mut World, rate: &dyn Fn(u8) -> u64| {
            for (device, d) in &mut world.devices {
                if let Device::Member(m) = device {
                    d.fail_reads = rate(*m);
                }
            }
        };
        members(&mut self.world, &|_| rate);
        self.world.note("NO CACHE DEVICE CAN BE READ FOR SURE");
        while self.world.now < until
            && self.world.operations < last
            && self.world.command_result(start).is_none()
            && self.world.step()
        {}
        let (flaky, sick) = (self.plan.flaky, self.sick_member());
        members(&mut self.world, &|m| if m == sick { flaky } else { 0 });
        self.world.note("CACHE DEVICES CAN BE READ AGAIN");
        self.world.violation.take().map_or(Ok(()), Err)
    }

    fn crash(&mut self) {
        if self.rng.below(100) < self.plan.power_percent {
            self.power_cut();
        } else {
            self.before_crash();
            self.world.kill();
            self.outcome.totals.deaths += 1;
        }
    }

    fn power_cut(&mut self) {
        self.before_crash();
        self.world.cut_power();
        self.outcome.totals.power_cuts += 1;
    }

    /// The places that the engine has reached in this life.
    fn note_marks(&mut self) {
        if let Some(e) = &self.world.engine {
            self.outcome.marks.add(e.marks());
        }
    }

    fn before_crash(&mut self) {
        self.note_marks();
        if let Some(e) = &self.world.engine {
            self.outcome.totals.counts.add(&e.status());
        }
        for b in &mut self.busy {
            *b = None;
        }
        self.given.clear();
        // That the lost one leaves may not be decided. What nobody has acknowledged was appended without it; if it is back
        // at the start, that has one copy until it is mended.
        self.world.to_be_mended = self.lost.is_some() || self.plan.bad_slots || self.plan.fails_once;
    }

    /// The member that was lost is back at this start and the other one is away. If the votes let it start, it has all
    /// that was acknowledged, and the other is the lost one from now on; else the other comes back, and must do.
    fn swap_members(&mut self) {
        let Some(back) = self.lost.filter(|_| self.plan.swap_members) else { return };
        let away = 1 - back;
        self.set_dead(Device::Member(back), false);
        self.set_dead(Device::Member(away), true);
        if self.world.elect(true).is_ok() {
            self.world.note("THE LOST MEMBER IS BACK, ALONE");
            self.lost = Some(away);
            self.may_be_out.insert(away);
            self.outcome.totals.back_taken += 1;
        } else {
            self.outcome.totals.back_refused += 1;
            self.set_dead(Device::Member(away), false);
            // Beside the other it is known to be stale; or it is away again.
            let again = self.rng.one_in(2);
            self.set_dead(Device::Member(back), again);
        }
    }

    /// Clients' writes are refused since a cache device is missing.
    fn refuses(&self) -> bool {
        self.lost.is_some() && self.plan.settings.degraded == Degraded::ReadOnly
    }

    fn set_dead(&mut self, device: Device, dead: bool) {
        if let Some(d) = self.world.devices.get_mut(&device) {
            d.dead = dead;
        }
    }

    fn lose_member(&mut self, hangs: bool) {
        let m = self.rng.below(self.plan.members as u64) as u8;
        self.lost = Some(m);
        self.may_be_out.insert(m);
        self.outcome.totals.members_lost += 1;
        if hangs {
            self.world.hang(Device::Member(m), true);
        } else {
            self.set_dead(Device::Member(m), true);
            self.world.note(&format!("CACHE DEVICE {m} IS LOST"));
        }
    }

    /// Another one than the first: what only the two had is gone.
    fn lose_another(&mut self) {
        let Some(first) = self.lost else { return };
        let m = (first + self.rng.within(1, self.plan.members as u64 - 1) as u8) % self.plan.members as u8;
        self.world.lose_a_second(Device::Member(m));
        self.world.note(&format!("CACHE DEVICE {m} IS LOST TOO"));
        self.may_be_out.insert(m);
        self.outcome.totals.members_lost += 1;
        self.second_lost = true;
        // What only a silent one has then is waited for: nothing would end.
        self.world.hang(Device::Member(first), false);
    }

    /// A crash ends a hang too: the device is dead from then on, or as it was.
    fn end_hang(&mut self) {
        let Some(m) = self.lost.filter(|_| self.plan.hangs) else { return };
        let hung = self.world.devices.get(&Device::Member(m)).is_some_and(|d| d.hangs);
        self.world.hang(Device::Member(m), false);
        if hung && self.rng.one_in(2) {
            self.set_dead(Device::Member(m), true);
        }
    }

    /// The second volume is detached, after which its disk alone must be right; or attached. A crash may come meanwhile.
    fn attach_or_detach(&mut self, life: u64) -> Result<(), Violation> {
        let detaches = self.attached.contains(&1);
        self.attached = vec![0];
        let id = if detaches { self.world.command(Command::Detach { volume: 1, give_up_lost: false }) } else { self.attach(1) };
        let limit = self.rng.within(1, 4 * self.plan.operations);
        self.fail_once(limit);
        let last = self.world.operations + limit;
        while self.world.command_result(id).is_none() {
            if self.world.operations >= last {
                self.crash();
                return self.recover();
            }
            self.load(life, 1)?;
        }
        match self.world.command_result(id) {
            Some(Ok(())) if detaches => self.world.check_disk(1),
            Some(Ok(())) => self.attached.push(1),
            // The other one has grown into its place meanwhile.
            Some(Err(CommandError::TooLarge)) if self.plan.grows && !detaches => {}
            // It goes on.
            Some(Err(CommandError::Unkept)) if detaches && self.world.is_told(1) => self.attached.push(1),
            Some(Err(e)) if !self.world.errors_allowed => {
                return Err(Violation(format!("volume 1 cannot be {}: {e}", if detaches { "detached" } else { "attached" })));
            }
            _ => {}
        }
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Asks for a volume to be attached; its disk keeps what is on it.
    fn attach(&mut self, number: u16) -> u64 {
        let base = BASE + (u64::from(number) << 40);
        let (sectors, phase, mode) = (self.sectors(number), self.plan.phase, self.plan.mode);
        let slowness = self.plan.slowness(FIRST_DISK + u64::from(number));
        let disk = || SimDevice::new(sectors * 512, Some(base)).slower(slowness);
        self.world.devices.entry(Device::Backing(number)).or_insert_with(disk);
        self.world.oracles.entry(number).or_insert_with(|| crate::oracle::Oracle::new(base));
        let name = format!("v{number}");
        let backing = format!("disk{number}");
        let new = NewVolume { number, id: [9 + number as u8; 16], name, sectors, phase, mode, backing };
        self.world.command(Command::Attach(new))
    }

    /// Clients at work for a number of device operations, in a life of the daemon.
    fn load(&mut self, life: u64, operations: u64) -> Result<(), Violation> {
        self.outcome.drawn.resize(life as usize + 1, 0);
        let last = self.world.operations + operations;
        let mut idle_steps = 0;
        let mut unserved = 0;
        while self.world.operations < last {
            // Volumes that are refused ask next to nothing of any device.
            if unserved > 200 {
                break;
            }
            for c in 0..self.busy.len() {
                if self.busy[c].is_none() && (self.rng.one_in(3) || idle_steps > 50) {
                    self.busy[c] = self.next_request(life, c);
                    idle_steps = if self.busy[c].is_some() { 0 } else { idle_steps };
                }
            }
            if self.plan.rot > 0 && self.rng.one_in(self.plan.rot) {
                self.rot();
            }
            if self.plan.sickness.any() {
                self.world.sicken(Device::Member(self.sick_member()));
            }
            if self.plan.scrubs && self.rng.one_in(300) {
                let bytes_per_second = *self.rng.pick(&[0, 1 << 20, 100 << 20]);
                self.give(Command::Scrub { bytes_per_second }, "a scrub");
            }
            if self.plan.preloads && self.rng.one_in(if self.plan.small { 20 } else { 100 }) {
                self.preload();
            }
            if self.plan.shares && self.rng.one_in(if self.plan.small { 20 } else { 100 }) {
                self.share();
            }
            if self.plan.grows {
                self.grow()?;
            }
            if self.plan.switch_modes && self.rng.one_in(300) {
                let mode =
                    *self.rng.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough]);
                let volume = *self.rng.pick(&self.attached);
                self.give(Command::SetMode { volume, mode }, "a switch of the mode");
            }
            idle_steps += 1;
            // Of a run that was made shorter nothing may be left to do.
            if idle_steps > 2000 && self.world.outstanding() == 0 {
                break;
            }
            if self.world.operations.is_multiple_of(64) {
                self.check_segments();
            }
            if self.plan.lose_second && !self.second_lost && self.lost.is_some() && self.rng.one_in(200) {
                self.lose_another();
            }
            if let Some(m) = self.lost.filter(|_| self.plan.hangs && self.rng.one_in(5000)) {
                self.world.hang(Device::Member(m), false);
            }
            // Not beside a device that hangs: how long requests wait for that is measured.
            if self.plan.stalls && !self.plan.hangs && self.rng.one_in(200) {
                let time = self.rng.below(4 * self.plan.settings.member_timeout_ns);
                self.world.stall(time);
            }
            if !self.world.step() {
                return Err(Violation(format!("nothing can happen any more: {}", self.describe())));
            }
            if !self.plan.stalls && self.world.longest_wait() > LONGEST_WAIT {
                return Err(Violation(format!("a request waits for longer than a minute: {}", self.describe())));
            }
            if !self.plan.stalls && !self.plan.hangs {
                self.check_given()?;
            }
            if let Some(v) = self.world.violation.take() {
                return Err(v);
            }
            for e in self.world.take_ended() {
                self.outcome.totals.requests += 1;
                // Both had a page that tells what there is, and no device is asked for anything any more.
                let unknown = e.error == Some(RequestError::Io) && self.second_lost && self.world.lacks_a_page();
                let few = self.second_lost || self.plan.disk_late;
                unserved += u64::from(few && e.error == Some(RequestError::NotServed) || unknown);
                for b in self.busy.iter_mut().filter(|b| **b == Some(e.id)) {
                    *b = None;
                }
            }
        }
        Ok(())
    }

    /// The next request that is kept of this life. Each is drawn from a chance of its own, so that it stays what it is
    /// where others are left out.
    fn next_request(&mut self, life: u64, client: usize) -> Option<u64> {
        let drawn = self.outcome.drawn.last_mut()?;
        let n = self.plan.kept.next_request(life, *drawn)?;
        *drawn = n + 1;
        let own = Rng::new(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ life << 40 ^ n);
        let of_run = std::mem::replace(&mut self.rng, own);
        let id = self.request(client, n);
        self.rng = of_run;
        Some(id)
    }

    /// One client's next request, the `n`th of this life.
    fn request(&mut self, client: usize, n: u64) -> u64 {
        if self.diskless && self.rng.one_in(3) {
            return self.request_to_diskless();
        }
        // Where volumes differ in size, which one comes first.
        let known = self.plan.grows.then(|| *self.rng.pick(&self.attached));
        let size = known.map_or(self.plan.sectors, |v| self.sectors(v));
        // Hot places at the start, around the borders of regions, and at the end; and around what was the end.
        let region = (64 << 20) / 512;
        let mut place = *self.rng.pick(&[0, region - self.plan.hot_sectors / 2, 2 * region, size - self.plan.hot_sectors]);
        if size - self.plan.sectors >= self.plan.hot_sectors && self.rng.one_in(4) {
            place = self.plan.sectors - self.plan.hot_sectors / 2;
        }
        let longest = self.plan.longest.min(self.plan.hot_sectors / 2);
        let sectors = if self.rng.one_in(2) { *self.rng.pick(&[1, 2, 8, 8, 8, 16]) } else { self.rng.within(1, longest) };
        let mut sector = place + self.rng.below(self.plan.hot_sectors - sectors);
        if self.rng.one_in(2) {
            sector = (sector + 8 - u64::from(self.plan.phase)) / 8 * 8 + u64::from(self.plan.phase);
            if sector + sectors > size {
                sector = size - sectors;
            }
        }
        if self.rng.one_in(4) {
            // A stream goes on.
            let at = self.cursors[client];
            sector = if at + sectors <= size { at } else { 0 };
            self.cursors[client] = sector + sectors;
        } else if self.rng.one_in(64) {
            self.cursors[client] = sector;
        }
        let mut sectors = sectors;
        if self.plan.beside && self.rng.one_in(2) {
            (sector, sectors) = self.favourite(size);
        }
        let fua = self.rng.one_in(8);
        let volume = known.unwrap_or_else(|| *self.rng.pick(&self.attached));
        if self.plan.reads_on && self.rng.one_in(2) {
            return self.read_on(client, volume, sector);
        }
        if self.plan.flushes_each && n / FLUSHING % 2 == 1 {
            let writes = n.is_multiple_of(2);
            return if writes { self.world.write(volume, sector, sectors, fua) } else { self.world.flush(volume) };
        }
        match self.rng.below(20) {
            0..=7 => self.world.write(volume, sector, sectors, fua),
            8..=15 => self.world.read(volume, sector, sectors as u32),
            16 | 17 => self.world.flush(volume),
            18 => self.world.discard(volume, sector, sectors, u64::from(self.plan.phase)),
            _ => self.world.write_zeroes(volume, sector, sectors, fua),
        }
    }

    /// One of a few blocks, whole or in part, that all clients ask for again and again.
    fn favourite(&mut self, size: u64) -> (u64, u64) {
        let block = self.rng.below(FAVOURITES.min(size / 8 - 1)) * 8 + u64::from(self.plan.phase);
        if self.rng.one_in(4) { (block + self.rng.below(4), self.rng.within(1, 4)) } else { (block, 8) }
    }

    /// A client reads on where it was in small pieces, or begins to.
    fn read_on(&mut self, client: usize, volume: u16, sector: u64) -> u64 {
        let (of, left) = self.reading[client].clone();
        let (volume, left) = if left.is_empty() || !self.attached.contains(&of) {
            let blocks = self.rng.within(4, 32);
            (volume, sector..(sector + blocks * 8).min(self.plan.sectors))
        } else {
            (of, left)
        };
        let sectors = (*self.rng.pick(&[1, 8, 8, 8, 16])).min(left.end.saturating_sub(left.start)).max(1);
        self.reading[client] = (volume, left.start + sectors..left.end);
        self.world.read(volume, left.start, sectors as u32)
    }

    /// Data where clients are, and a little beyond, is preloaded, pinned or unpinned. How that ends is not waited for.
    fn preload(&mut self) {
        let volume = *self.rng.pick(&self.attached);
        let sectors = self.rng.within(1, 2 * self.plan.hot_sectors);
        let sector = self.rng.below(self.plan.hot_sectors);
        let ranges = std::iter::once(sector..(sector + sectors).min(self.plan.sectors)).collect();
        let command = match self.rng.below(4) {
            0 | 1 => Command::Preload { volume, ranges },
            2 => Command::Pin { volume, ranges },
            _ => Command::Unpin { volume, ranges },
        };
        self.give(command, "a preload or pin");
    }

    /// A volume is to have another share, perhaps one that the others do not leave it.
    fn share(&mut self) {
        let volume = *self.rng.pick(&self.attached);
        let (min, max) = (*self.rng.pick(&[0, 0, 10, 40, 90]), *self.rng.pick(&[100, 100, 60, 30, 1]));
        self.give(Command::Share { volume, share: Share { min, max } }, "a share");
    }

    /// Gives a command that ends sometime, well or not.
    fn give(&mut self, command: Command, what: &'static str) {
        let id = self.world.command(command);
        self.given.push((id, self.world.now, what));
    }

    /// All that was given ends within bounded time.
    fn check_given(&mut self) -> Result<(), Violation> {
        self.given.retain(|(id, ..)| self.world.command_result(*id).is_none());
        match self.given.iter().find(|(_, since, _)| self.world.now - since > LONGEST_COMMAND) {
            Some((_, _, what)) => Err(Violation(format!("{what} does not end: {}", self.describe()))),
            None => Ok(()),
        }
    }

    /// Steps until all that was given has ended.
    fn end_commands(&mut self) -> Result<(), Violation> {
        self.given.iter_mut().for_each(|(_, since, _)| *since = self.world.now);
        loop {
            self.check_given()?;
            if let Some(v) = self.world.violation.take() {
                return Err(v);
            }
            if self.given.is_empty() {
                return Ok(());
            }
            if !self.world.step() {
                return Err(Violation(format!(
                    "{} does not end, as nothing can happen any more: {}",
                    self.given[0].2,
                    self.describe()
                )));
            }
        }
    }

    /// The member that rots or is sick: always the same one of a run, its twins stay good.
    fn sick_member(&self) -> u8 {
        (self.plan.seed % self.plan.members as u64) as u8
    }

    /// A sector of one cache device goes bad, or flips.
    fn rot(&mut self) {
        let member = self.sick_member();
        if self.lost.is_some() {
            return;
        }
        let volume = *self.rng.pick(&self.volumes());
        let phase = if volume == DISKLESS { 0 } else { self.plan.phase };
        let Some(engine) = &self.world.engine else { return };
        // Where something is, on a mirrored segment: of clean data there is one copy, and the disk.
        let mut places = Vec::new();
        engine.each_piece(volume, |b, _| places.push(b));
        if places.is_empty() {
            return;
        }
        let block = *self.rng.pick(&places);
        let shift = (8 - u64::from(phase)) % 8;
        let Some(sector) = (block * 8).checked_sub(shift) else { return };
        let Some(copies) = engine.locate(volume, sector) else { return };
        let Some((_, at)) = copies.iter().find(|(m, _)| *m == member) else { return };
        let bad = self.rng.one_in(2);
        let flipped = self.rng.next() >> 1;
        if let Some(d) = self.world.devices.get_mut(&Device::Member(member)) {
            if bad {
                d.bad.insert(at / 512, ());
            } else {
                let cell = crate::buf::Cell::Stamp(flipped);
                d.visible.set(at / 512, cell.clone());
                d.durable.set(at / 512, cell);
            }
        }
    }

    /// Everything ends: requests, dirty data, the volume itself; then the disk alone holds what was written.
    fn heal(&mut self) -> Result<(), Violation> {
        if let Some(d) = self.world.devices.get_mut(&Device::Backing(0)) {
            d.dead_sectors.clear();
        }
        self.requests_end()?;
        self.world.failing.clear();
        let mut readable = BTreeMap::new();
        for volume in self.volumes() {
            readable.insert(volume, self.read_all(volume)?);
        }
        self.check_segments();
        self.check_members()?;
        self.end_commands()?;
        if self.second_lost {
            return self.give_up(&readable);
        }
        self.copies_are_made()?;
        // Once more without a word from clients: what was in memory is what the media say.
        let before: Vec<_> = self.volumes().into_iter().map(|v| (v, self.world.dirty(v))).collect();
        self.before_crash();
        self.world.kill();
        self.start_whole()?;
        self.check_start(true)?;
        before.iter().for_each(|(v, dirty)| self.world.check_map(*v, dirty));
        if self.plan.scrubs {
            self.scrub()?;
        }
        for volume in self.attached.clone() {
            let detach = Command::Detach { volume, give_up_lost: false };
            let mut end = self.end_of(detach.clone(), "detach")?;
            if end == Err(CommandError::Unkept) && self.world.is_told(volume) {
                end = self.end_of(detach, "detach")?;
            }
            end.map_err(|e| Violation(format!("a detach of volume {volume} failed: {e}")))?;
        }
        self.delete_diskless()?;
        if let Some(e) = &self.world.engine {
            self.outcome.totals.counts.add(&e.status());
        }
        let all: Vec<u16> = self.world.oracles.keys().copied().filter(|v| *v != DISKLESS).collect();
        all.into_iter().for_each(|v| self.world.check_disk(v));
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Steps until no client waits for anything.
    fn requests_end(&mut self) -> Result<(), Violation> {
        let limit = self.world.now + 600_000 * MILLISECOND;
        while self.world.outstanding() > 0 {
            if let Some(v) = self.world.violation.take() {
                return Err(v);
            }
            if !self.world.step() || self.world.now > limit {
                return Err(Violation(format!("requests do not end: {}", self.describe())));
            }
        }
        Ok(())
    }

    /// What lacks a copy has it again within a minute, on the media.
    fn copies_are_made(&mut self) -> Result<(), Violation> {
        if !self.world.count_copies {
            return Ok(());
        }
        let limit = self.world.now + LONGEST_LACK;
        while self.world.engine.as_ref().is_some_and(|e| e.status().lacking_copies > 0) {
            if !self.world.step() || self.world.now > limit {
                return Err(Violation(format!("what lacks a copy is not copied: {}", self.describe())));
            }
        }
        self.volumes().into_iter().for_each(|v| self.world.check_all_copies(v));
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Nothing dirty is lost, and what one scrub mends the next one finds whole; unless a sick device damages it again.
    fn scrub(&mut self) -> Result<(), Violation> {
        let mut mended = false;
        for _ in 0..2 {
            let id = self.world.command(Command::Scrub { bytes_per_second: 0 });
            self.finish(id, "scrub")?;
            let Some(found) = self.world.engine.as_ref().map(|e| e.status().scrub) else { return Ok(()) };
            if found.lost > 0 || mended && found.damaged > 0 {
                return Err(Violation(format!("a scrub finds {found:?}")));
            }
            // There may have been no room to move something.
            mended = found.damaged == found.repaired + found.dropped && !self.plan.sickness.any() && self.plan.flaky == 0;
        }
        Ok(())
    }

    /// What the two alone had fails. That is said within bounded time, nothing is given up without being told to, and
    /// then the volume can be detached. All that could be read is on the disk then.
    fn give_up(&mut self, readable: &BTreeMap<u16, Vec<Range<u64>>>) -> Result<(), Violation> {
        for volume in self.attached.clone() {
            let begun = self.world.now;
            let first = self.end_of(Command::Detach { volume, give_up_lost: false }, "detach")?;
            if self.world.now - begun > 120_000 * MILLISECOND {
                return Err(Violation(format!("a detach with lost data took {} ms", (self.world.now - begun) / MILLISECOND)));
            }
            match first {
                Ok(()) => {}
                Err(CommandError::Lost { blocks }) if blocks > 0 => {
                    let still = self.dirty_blocks(volume);
                    if still != Some(blocks) {
                        return Err(Violation(format!("{blocks} blocks are called lost, and {still:?} are dirty")));
                    }
                    self.end_of(Command::Detach { volume, give_up_lost: true }, "detach that gives up")?
                        .map_err(|e| Violation(format!("a detach that gives up failed: {e}")))?;
                }
                // Refused at the start: who knows what is missing.
                Err(CommandError::NotServed) => continue,
                // Both had what tells what is dirty.
                Err(CommandError::Start(StartError::CheckpointLost { .. })) => continue,
                Err(e) => return Err(Violation(format!("a detach with two members lost failed: {e}"))),
            }
            for part in &readable[&volume] {
                self.world.check_disk_of(volume, part.clone());
            }
        }
        self.delete_diskless()?;
        self.world.violation.take().map_or(Ok(()), Err)
    }

    fn dirty_blocks(&self, volume: u16) -> Option<u64> {
        let status = self.world.engine.as_ref()?.status();
        status.volumes.iter().find(|v| v.number == volume).map(|v| v.dirty_blocks)
    }

    /// Reads everything that was ever written once, so that each sector has chosen; what of it could be read.
    fn read_all(&mut self, volume: u16) -> Result<Vec<Range<u64>>, Violation> {
        let touched = self.world.oracles[&volume].touched();
        let mut asked: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        self.world.take_ended();
        let mut at = 0;
        while at < touched.len() {
            let start = touched[at];
            let mut end = at + 1;
            while end < touched.len() && touched[end] == touched[end - 1] + 1 && end - at < 128 {
                end += 1;
            }
            let sectors = (end - at) as u64;
            asked.insert(self.world.read(volume, start, sectors as u32), start..start + sectors);
            at = end;
            while self.world.outstanding() > 16 || at == touched.len() && self.world.outstanding() > 0 {
                if let Some(v) = self.world.violation.take() {
                    return Err(v);
                }
                if !self.world.step() {
                    return Err(Violation("reads do not end".into()));
                }
            }
        }
        let failed: Vec<u64> = self.world.take_ended().iter().filter(|e| e.error.is_some()).map(|e| e.id).collect();
        Ok(asked.into_iter().filter(|(id, _)| !failed.contains(id)).map(|(_, range)| range).collect())
    }
}

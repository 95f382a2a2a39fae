//! How a daemon stands, and what its owner should do about it.

use headpond_engine::Status;
use headpond_engine::io::{BLOCK, Device, SECTOR};
use headpond_engine::status::{MemberStatus, VolumeStatus};

use super::{Daemon, Shared, Slot, lock};
use crate::backing::HasDisk;
use crate::names;
use crate::report::{Advice, Endurance, Load, Loading, Member, Report, Requests, Share, Times, Volume};
use crate::requests::{Histograms, Row};
use crate::runtime::Snapshot;
use crate::state::hex;

impl Daemon {
    /// How it stands; `None` if its engine has ended.
    pub fn report(&self) -> Option<Report> {
        self.shared.report()
    }
}

impl Shared {
    pub(super) fn report(&self) -> Option<Report> {
        Some(self.report_of(&self.handle.snapshot()?))
    }

    pub(super) fn histograms(&self) -> Option<Histograms> {
        let Snapshot { at_ns, status, requests, .. } = self.handle.snapshot()?;
        let rows = requests.iter().filter_map(|(number, op, fate, seen)| {
            let volume = status.volumes.iter().find(|volume| volume.number == number)?;
            let (volume, fate) = (volume.name.clone(), fate.map(|fate| fate.name().to_owned()));
            Some(Row { volume, op, fate, times: seen.times.clone(), sizes: seen.sizes.clone() })
        });
        Some(Histograms {
            uptime_seconds: at_ns as f64 / 1e9,
            process: std::process::id(),
            pause_seconds: self.pause_seconds(),
            histograms: rows.collect(),
            pool: status.pool,
        })
    }

    /// For how long nobody answered while it took over from another program, if it did.
    fn pause_seconds(&self) -> Option<f64> {
        lock(&self.pause).map(|pause| pause.as_secs_f64())
    }

    pub(super) fn report_of(&self, snapshot: &Snapshot) -> Report {
        let status = &snapshot.status;
        let load = |device: Device| snapshot.loads.get(&device).copied().map(Load::from).unwrap_or_default();
        let lacks_data = self.lacks_data(status);
        let slots = lock(&self.volumes);
        let members = lock(&self.places).members.clone();
        let path = |number: u8| members.get(&number).map(|path| path.display().to_string());
        let mut advice = of_pool(status, path, lacks_data);
        for volume in &status.volumes {
            advice.extend(of_volume(volume, slots.get(&volume.number)));
        }
        advice.extend(lock(&self.no_metrics).clone());
        let lost = lock(&self.lost);
        advice.extend(lost.values().filter_map(super::lost::OfVolume::advice));
        Report {
            uptime_seconds: snapshot.at_ns as f64 / 1e9,
            version: env!("CARGO_PKG_VERSION").into(),
            process: std::process::id(),
            pause_seconds: self.pause_seconds(),
            pool: status.pool.clone(),
            id: hex(&status.id),
            epoch: status.epoch,
            copies: status.copies,
            degraded: status.degraded,
            stalled: status.stalled,
            witness_lags: status.witness_lags,
            segment_bytes: status.segment_bytes,
            segments: status.segments,
            segments_free: status.segments_free,
            dirty_percent: status.dirty_percent,
            lacking_bytes: status.lacking_copies * BLOCK,
            loading: status.loading.map(|loading| Loading { read_bytes: loading.read, bytes: loading.of }),
            set_aside_bytes: status.set_aside * status.segment_bytes,
            endurance: Endurance {
                drive_writes_per_day: f64::from(status.endurance.drive_writes_milli) / 1000.0,
                reads_held_back: status.endurance.holds_back_reads,
                writes_held_back: status.endurance.holds_back_writes,
            },
            members: (status.members.iter().filter(|member| is_somebody(member)))
                .map(|member| Member {
                    number: member.number,
                    path: path(member.number),
                    state: match (member.in_sync, member.leaving) {
                        (true, false) => "in sync",
                        (true, true) => "being emptied",
                        (false, _) => "out",
                    }
                    .into(),
                    bytes: member.bytes,
                    segments: member.segments,
                    segments_free: member.segments_free,
                    dirty_bytes: member.dirty * BLOCK,
                    damaged: member.damaged,
                    written_day_bytes: member.written_lately,
                    budget_day_bytes: member.budget_per_day,
                    budget_left_bytes: member.budget_left,
                    load: load(Device::Member(member.number)),
                })
                .collect(),
            volumes: (status.volumes.iter())
                .map(|volume| Volume {
                    times: Times::of(volume.number, &snapshot.requests),
                    disk: load(Device::Backing(volume.number)),
                    lost_bytes: lost.get(&volume.number).map_or(0, |it| it.bytes),
                    share: share_report(volume, status.segment_bytes),
                    ..volume_report(&status.pool, volume, slots.get(&volume.number))
                })
                .collect(),
            scrub: self.scrub_report(status),
            lost_ranges: super::lost::ranges(&lost),
            member_bytes: status.stats.member_bytes,
            checkpoints: status.stats.checkpoints,
            repaired: status.stats.repaired,
            advice,
        }
    }
}

/// Whether the number is a device's, in sync or failed; that of one that was removed is nobody's.
pub(super) fn is_somebody(member: &MemberStatus) -> bool {
    member.id != [0; 16]
}

fn volume_report(pool: &str, volume: &VolumeStatus, slot: Option<&Slot>) -> Volume {
    let place = slot.and_then(|slot| slot.place.clone());
    let held = volume.dirty_blocks * BLOCK;
    let (dirty_bytes, kept_bytes) = if volume.has_disk() { (held, 0) } else { (0, held) };
    Volume {
        number: volume.number,
        name: volume.name.clone(),
        without_disk: !volume.has_disk(),
        backing: slot.and_then(|slot| slot.spec.as_ref()).map(ToString::to_string),
        identity: volume.backing.clone(),
        bytes: volume.sectors * SECTOR,
        phase: volume.phase,
        mode: volume.mode.name().into(),
        serving: volume.serving,
        link: place.as_ref().and_then(|place| names::lasting(pool, &volume.name, place)),
        place,
        cached_bytes: volume.cached_blocks * BLOCK,
        dirty_bytes,
        kept_bytes,
        lost_bytes: 0,
        pinned_bytes: volume.pinned_blocks * BLOCK,
        share: Share::default(),
        map_bytes: volume.map_bytes,
        destaging: volume.destaging,
        requests: Requests::of(volume),
        times: Times::default(),
        disk: Load::default(),
    }
}

/// What a volume has of the pool, and what it may have.
pub(super) fn share_report(volume: &VolumeStatus, segment_bytes: u64) -> Share {
    Share {
        held_bytes: volume.segments * segment_bytes,
        min_percent: volume.share.min,
        min_bytes: volume.segments_least * segment_bytes,
        max_percent: volume.share.max,
        max_bytes: volume.segments_most.map(|most| most * segment_bytes),
    }
}

/// Bytes that are cached, and those of the cache devices that serve.
fn cached_and_there(status: &Status) -> (u64, u64) {
    let cached: u64 = status.volumes.iter().map(|volume| volume.cached_blocks).sum();
    (cached * BLOCK, status.members.iter().filter(|member| member.in_sync).map(|member| member.bytes).sum())
}

/// In GiB, for people.
fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

fn of_pool(status: &Status, path: impl Fn(u8) -> Option<String>, lacks_data: bool) -> Vec<Advice> {
    let mut advice = Vec::new();
    for member in status.members.iter().filter(|member| !member.in_sync && is_somebody(member)) {
        let place = path(member.number).map(|path| format!(" (last at {path})")).unwrap_or_default();
        let holds = if lacks_data { "may be nowhere else" } else { "is out of date" };
        let wrong = format!("Cache device {}{place} has left the pool; what it holds {holds}.", member.number);
        let next = match status.degraded {
            _ if lacks_data => {
                "Keep it as it is, and do not put it back: that would overwrite what data that is missing needs. Bring that back first, or give it \
                 up, as is said of its volume; another device is put in its place with `headpond pool add DEVICE`."
            }
            true => {
                "What is dirty has one copy less. Put another device in its place with `headpond pool add DEVICE`: it gets what lacks a copy."
            }
            false => &format!(
                "The pool goes on without it. Put it, or another device, back with `headpond pool add DEVICE`; or have it forgotten with \
                 `headpond pool remove {}`.",
                member.number
            ),
        };
        advice.push(Advice { wrong, next: next.into() });
    }
    if status.witness_lags {
        advice.push(Advice {
            wrong: "The witness, a file in the state folder, cannot be written: it may not know which cache devices are in the pool now. No data \
                    is at risk while all of them are there; where one fails the pool may stop answering, and a start at which one is missing \
                    would be refused, for want of its vote."
                .into(),
            next: "Look whether the state folder's file system is full, read-only or failing, or the folder is not named as ReadWritePaths= of the \
                   service. The witness is told again once a minute; if it could \
                   not be opened, or had not answered at all, at the next start."
                .into(),
        });
    }
    if let Some(page) = status.loading.and_then(|loading| loading.lost_page) {
        advice.push(Advice {
            wrong: format!(
                "Page {page} of the checkpoint is damaged on every cache device: where the data is that it tells of cannot be known. Reading \
                 and writing there fails; all else is served. Nothing is destaged, and no checkpoint is taken, so that nothing is made worse."
            ),
            next: "Keep the cache devices as they are. If one is missing, bring it back and restart. Else stop the daemon, and have \
                   `headpond check` say what is damaged, before anything else is done to them."
                .into(),
        });
    }
    if status.lacking_copies > 0 && !status.degraded && status.loading.is_some() {
        advice.push(Advice {
            wrong: "Dirty data may be on one cache device only: not all that is cached is known yet since the start.".into(),
            next: "Wait, and do not take a cache device out until this line is gone.".into(),
        });
    } else if status.lacking_copies > 0 && !status.degraded {
        advice.push(Advice {
            wrong: format!(
                "{} KiB of dirty data are on one cache device only; they are being copied.",
                status.lacking_copies * (BLOCK >> 10)
            ),
            next: "Wait, and do not take a cache device out until this line is gone.".into(),
        });
    }
    if status.memory_is_short {
        let (cached, devices) = cached_and_there(status);
        advice.push(Advice {
            wrong: format!(
                "The map has nearly all the memory that it may take: {} GiB are cached, on cache devices of {} GiB together. Nothing is lost; \
                 less is cached than has room there.",
                gib(cached),
                gib(devices)
            ),
            next: "Name more as `map_bytes` under [engine] in the configuration, if the machine has it to spare, and restart the daemon."
                .into(),
        });
    }
    if status.stalled {
        advice.push(Advice {
            wrong: "Too few cache devices and votes answer: nothing that needs the cache is acknowledged.".into(),
            next: "Bring the missing devices back and restart the daemon. Nothing was given up: what was acknowledged is where it was. What is not \
                   on its disk yet is on cache devices alone, and is lost only if all that have it are."
                .into(),
        });
    }
    advice
}

fn of_volume(volume: &VolumeStatus, slot: Option<&Slot>) -> Vec<Advice> {
    let mut advice: Vec<Advice> = slot.and_then(|slot| slot.problem.clone()).into_iter().collect();
    let name = &volume.name;
    if volume.refused && !volume.has_disk() {
        advice.push(Advice {
            wrong: format!(
                "Volume {name} is not served: it has no backing device, and what was on it may be missing, with cache devices."
            ),
            next: format!(
                "Bring back the cache devices that are missing, and restart. If they are gone for good: stop the daemon, have \
                 `headpond writeback --without-missing --save {name}=FILE` copy what is left, start it again, and then \
                 `headpond volume delete {name} --throw-away`."
            ),
        });
    }
    if volume.refused && volume.has_disk() {
        advice.push(Advice {
            wrong: format!(
                "Volume {name} is not served: its disk was changed without the cache, or dirty data of it may be missing."
            ),
            next: format!(
                "Bring back the cache devices and the disk that belong together, and restart. Nothing was overwritten. If they are gone \
                 for good: stop the daemon, have `headpond writeback --without-missing` put onto the disk what is left, start it again, \
                 and then `headpond detach --throw-away {name}`."
            ),
        });
    }
    if volume.destage_failures > 0 {
        advice.push(Advice {
            wrong: format!(
                "The disk of volume {name} does not take what is destaged ({} times in a row).",
                volume.destage_failures
            ),
            next: "Look at the kernel's log for that disk. What is dirty stays in the cache, safe.".into(),
        });
    }
    advice
}

//! What a crash may leave: of each device's unflushed writes, and of those in flight, one part or another.

use crate::buf::SimBuf;
use crate::device::{Cut, SimDevice};
use headpond_engine::Device;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Up to so many unflushed writes of one device, every subset of them is tried.
const ALL_SUBSETS: usize = 6;

/// What became of one write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fate {
    /// Nothing of it is on the media.
    Lost,
    /// All of it.
    Kept,
    /// Its first sector alone.
    Head,
    /// All but its first sector.
    Tail,
}

/// What became of each of a device's writes, oldest first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fates(pub Vec<Fate>);

/// Which devices are there at the start after a crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Attendance {
    /// Those that were there before.
    Same,
    /// All of them: a lost one is back.
    Back,
    /// The lost cache device is back, and the other one is not there.
    BackAlone,
    /// A cache device was lost in the crash.
    Without(u8),
}

/// A crash, exactly.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Crash {
    /// The power went, with what became of each device's writes; else the daemon died, and `landed` says what became of
    /// those in flight.
    pub power: Option<BTreeMap<Device, Fates>>,
    /// What landed of a dead daemon's writes.
    pub landed: Fates,
    /// Who is there afterwards.
    pub attendance: Attendance,
}

/// The devices at one moment, with what may still be lost of them.
pub struct Moment {
    /// The devices.
    pub devices: BTreeMap<Device, SimDevice>,
    /// Changes in flight.
    pub flights: Vec<(Device, u64, SimBuf)>,
    unflushed: BTreeMap<Device, Vec<(u64, SimBuf)>>,
    /// Fingerprints of what is durable and of what is visible.
    prints: BTreeMap<Device, (u64, u64)>,
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn of(devices: &BTreeMap<Device, SimDevice>, flights: Vec<(Device, u64, SimBuf)>) -> Self {
        let mut unflushed: BTreeMap<Device, Vec<(u64, SimBuf)>> = BTreeMap::new();
        for (device, d) in devices {
            let mut list: Vec<(u64, SimBuf)> = d.unflushed().map(|(s, b)| (s, b.clone())).collect();
            if !d.dead {
                list.extend(flights.iter().filter(|f| f.0 == *device).map(|f| (f.1, f.2.clone())));
            }
            unflushed.insert(*device, list);
        }
        let prints = devices.iter().map(|(n, d)| (*n, (d.durable.fingerprint(), d.visible.fingerprint()))).collect();
        Self { devices: devices.clone(), flights, unflushed, prints }
    }

    /// What of each device is not durable, in words, in the order in which a crash names it.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (device, writes) in &self.unflushed {
            for (n, (sector, buf)) in writes.iter().enumerate() {
                let waiting = self.devices[device].unflushed().count();
                let how = if n < waiting { "unflushed" } else { "in flight" };
                lines.push(format!("  {device}, write {n}: sectors {sector} +{}, {how}", buf.sectors()));
            }
        }
        lines
    }

    /// The cache device that is dead.
    #[must_use]
    pub fn lost(&self) -> Option<u8> {
        self.devices.iter().find_map(|(n, d)| match n {
            Device::Member(m) if d.dead => Some(*m),
            _ => None,
        })
    }

    /// Every crash that is tried here, each once.
    #[must_use]
    pub fn crashes(&self) -> Vec<Crash> {
        let attendances = match self.lost() {
            Some(_) => vec![Attendance::Same, Attendance::Back, Attendance::BackAlone],
            None => vec![Attendance::Same],
        };
        let mut out = Vec::new();
        let all = |n: usize, fate: Fate| Fates(vec![fate; n]);
        let counts: Vec<(Device, usize)> = self.unflushed.iter().map(|(d, l)| (*d, l.len())).filter(|c| c.1 > 0).collect();
        for (device, _) in &counts {
            let others: Vec<(Device, usize)> = counts.iter().filter(|(d, _)| d != device).copied().collect();
            for fates in subsets(&self.unflushed[device]) {
                for extremes in 0..1_u32 << others.len() {
                    let mut power: BTreeMap<Device, Fates> = BTreeMap::new();
                    power.insert(*device, fates.clone());
                    for (n, (other, count)) in others.iter().enumerate() {
                        let fate = if extremes >> n & 1 == 1 { Fate::Kept } else { Fate::Lost };
                        power.insert(*other, all(*count, fate));
                    }
                    for a in &attendances {
                        out.push(Crash { power: Some(power.clone()), landed: Fates::default(), attendance: *a });
                    }
                    let extreme =
                        power.values().all(|f| f.0.iter().all(|x| *x == f.0[0] && matches!(x, Fate::Lost | Fate::Kept)));
                    if extreme && self.lost().is_none() {
                        for m in 0..super::MEMBERS {
                            let attendance = Attendance::Without(m);
                            out.push(Crash { power: Some(power.clone()), landed: Fates::default(), attendance });
                        }
                    }
                }
            }
        }
        if counts.is_empty() {
            for a in &attendances {
                out.push(Crash { power: Some(BTreeMap::new()), landed: Fates::default(), attendance: *a });
            }
        }
        let flights: Vec<(u64, SimBuf)> = self.flights.iter().map(|f| (f.1, f.2.clone())).collect();
        for landed in subsets(&flights) {
            for a in &attendances {
                out.push(Crash { power: None, landed: landed.clone(), attendance: *a });
            }
            if self.lost().is_none() && landed.0.windows(2).all(|w| w[0] == w[1]) {
                for m in 0..super::MEMBERS {
                    out.push(Crash { power: None, landed: landed.clone(), attendance: Attendance::Without(m) });
                }
            }
        }
        out.sort();
        out.dedup();
        out
    }

    /// Whether a crash says what became of each write that can be lost now.
    ///
    /// # Errors
    /// Of which device it says too much or too little.
    pub fn fits(&self, crash: &Crash) -> Result<(), String> {
        let wrong =
            |who: &str, has: usize, said: usize| Err(format!("{who} has {has} writes to lose, and the crash names {said}"));
        let Some(power) = &crash.power else {
            let (has, said) = (self.flights.len(), crash.landed.0.len());
            return if has == said { Ok(()) } else { wrong("the daemon", has, said) };
        };
        for (device, writes) in &self.unflushed {
            let (has, said) = (writes.len(), power.get(device).map_or(0, |f| f.0.len()));
            if has != said {
                return wrong(&device.to_string(), has, said);
            }
        }
        Ok(())
    }

    /// Whether a device is there after a crash.
    fn present(&self, crash: &Crash, device: Device) -> bool {
        let was = self.devices.get(&device).is_some_and(|d| !d.dead);
        match (crash.attendance, device) {
            (Attendance::Without(m), Device::Member(n)) => was && m != n,
            (Attendance::Back, _) => true,
            (Attendance::BackAlone, Device::Member(_)) => !was,
            _ => was,
        }
    }

    /// A number for what a crash leaves, found without making it: equal ones leave the same media.
    #[must_use]
    pub fn fingerprint(&self, crash: &Crash) -> u64 {
        let mut h = u64::from(crash.power.is_some());
        let mut add = |n: u64| h = (h.rotate_left(19) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (device, d) in &self.devices {
            let there = self.present(crash, *device);
            add(u64::from(there));
            // Whoever stays away from now on does not count.
            if !there {
                continue;
            }
            let (durable, visible) = self.prints[device];
            match &crash.power {
                Some(power) => {
                    let none = Fates::default();
                    let fates = power.get(device).unwrap_or(&none);
                    let (mut sum, mut over) = (durable, BTreeMap::new());
                    for ((sector, buf), fate) in self.unflushed[device].iter().zip(&fates.0) {
                        for n in fate.sectors(buf) {
                            over.insert(sector + n as u64, buf.cell(n));
                        }
                    }
                    for (s, cell) in over {
                        // Sums of content and place, as in `Image::fingerprint`; what was never written has none.
                        let old = d.durable.get(s);
                        sum =
                            sum.wrapping_sub(d.durable.fingerprint_of(s, &old)).wrapping_add(d.durable.fingerprint_of(s, &cell));
                    }
                    add(sum);
                }
                None => {
                    add(durable);
                    add(visible);
                    let landed = self.flights.iter().zip(&crash.landed.0).filter(|(f, _)| f.0 == *device);
                    let waiting = d.unflushed().map(|(s, b)| (s, b, Fate::Kept));
                    for (s, b, fate) in waiting.chain(landed.map(|(f, fate)| (f.1, &f.2, *fate))) {
                        for n in fate.sectors(b) {
                            add(b.cell(n).fingerprint_at(s + n as u64) ^ (s + n as u64));
                        }
                    }
                }
            }
        }
        h
    }

    /// The devices as a crash leaves them.
    #[must_use]
    pub fn after(&self, crash: &Crash) -> BTreeMap<Device, SimDevice> {
        let mut devices = self.devices.clone();
        for (device, d) in &mut devices {
            match &crash.power {
                Some(power) => {
                    let none = Fates::default();
                    let fates = power.get(device).unwrap_or(&none);
                    for ((sector, buf), fate) in self.unflushed[device].iter().zip(&fates.0) {
                        for n in fate.sectors(buf) {
                            d.durable.set(sector + n as u64, buf.cell(n));
                        }
                    }
                    lose_all(d);
                }
                None => {
                    for (f, fate) in self.flights.iter().zip(&crash.landed.0) {
                        if f.0 == *device && !d.dead {
                            for n in fate.sectors(&f.2) {
                                d.write(f.1 + n as u64, SimBuf::cells(vec![f.2.cell(n)]));
                            }
                        }
                    }
                }
            }
            d.dead = !self.present(crash, *device);
        }
        devices
    }
}

impl Crash {
    /// Whether of each device all is lost or all is kept, and the devices stay those that were there.
    #[must_use]
    pub fn is_extreme(&self) -> bool {
        let whole = |f: &Fates| f.0.iter().all(|x| *x == f.0[0] && matches!(x, Fate::Lost | Fate::Kept));
        self.attendance == Attendance::Same && whole(&self.landed) && self.power.iter().flat_map(BTreeMap::values).all(whole)
    }
}

/// The power goes, and nothing that was not flushed is left.
pub fn lose_all(d: &mut SimDevice) {
    d.cut_power(Cut::LoseAll, &mut crate::rng::Rng::new(0));
}

impl Fate {
    /// The sectors of a write that are there.
    fn sectors(self, buf: &SimBuf) -> std::ops::Range<usize> {
        match self {
            Fate::Lost => 0..0,
            Fate::Kept => 0..buf.sectors(),
            Fate::Head => 0..1,
            Fate::Tail => 1..buf.sectors(),
        }
    }
}

/// All subsets of a device's writes; where they are too many, the ends, each one alone, all but each one, all up to each
/// one, and some by a fixed pattern. And each write torn, with the others all there or all gone.
fn subsets(writes: &[(u64, SimBuf)]) -> Vec<Fates> {
    let n = writes.len();
    let of_bits = |bits: u64| Fates((0..n).map(|i| if bits >> (i % 64) & 1 == 1 { Fate::Kept } else { Fate::Lost }).collect());
    let mut out = Vec::new();
    if n <= ALL_SUBSETS {
        out.extend((0..1_u64 << n).map(of_bits));
    } else {
        for i in 0..n {
            let one = |f: &dyn Fn(usize) -> bool| Fates((0..n).map(|j| if f(j) { Fate::Kept } else { Fate::Lost }).collect());
            out.push(one(&|j| j == i));
            out.push(one(&|j| j != i));
            out.push(one(&|j| j < i));
            out.push(one(&|j| j >= i));
        }
        let mut rng = crate::rng::Rng::new(n as u64);
        out.extend((0..16).map(|_| of_bits(rng.next())));
        out.push(Fates(vec![Fate::Kept; n]));
    }
    for (i, (_, buf)) in writes.iter().enumerate().rev().take(ALL_SUBSETS) {
        if buf.sectors() > 1 {
            for (torn, rest) in
                [(Fate::Head, Fate::Kept), (Fate::Tail, Fate::Kept), (Fate::Head, Fate::Lost), (Fate::Tail, Fate::Lost)]
            {
                let mut fates = vec![rest; n];
                fates[i] = torn;
                out.push(Fates(fates));
            }
        }
    }
    out
}

impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fate in &self.0 {
            f.write_str(match fate {
                Fate::Lost => "0",
                Fate::Kept => "1",
                Fate::Head => "h",
                Fate::Tail => "t",
            })?;
        }
        Ok(())
    }
}

impl FromStr for Fates {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let fate = |c| match c {
            '0' => Ok(Fate::Lost),
            '1' => Ok(Fate::Kept),
            'h' => Ok(Fate::Head),
            't' => Ok(Fate::Tail),
            _ => Err(format!("\"{s}\" is to be of 0 (lost), 1 (kept), h (its head) and t (its tail)")),
        };
        s.chars().map(fate).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Crash {
    /// `power.m0=01.d=1`: what became of each device's writes; `kill=01`; then `.back`, `.alone`, `.without0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.power {
            Some(power) => {
                f.write_str("power")?;
                for (device, fates) in power {
                    match device {
                        Device::Member(m) => write!(f, ".m{m}={fates}")?,
                        Device::Backing(_) => write!(f, ".d={fates}")?,
                        Device::Witness => write!(f, ".w={fates}")?,
                    }
                }
            }
            None => write!(f, "kill={}", self.landed)?,
        }
        match self.attendance {
            Attendance::Same => Ok(()),
            Attendance::Back => f.write_str(".back"),
            Attendance::BackAlone => f.write_str(".alone"),
            Attendance::Without(m) => write!(f, ".without{m}"),
        }
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut crash = Crash { power: None, landed: Fates::default(), attendance: Attendance::Same };
        for word in s.split('.') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let device = match name {
                "power" => {
                    crash.power = Some(BTreeMap::new());
                    continue;
                }
                "kill" => {
                    crash.landed = value.parse()?;
                    continue;
                }
                "back" => {
                    crash.attendance = Attendance::Back;
                    continue;
                }
                "alone" => {
                    crash.attendance = Attendance::BackAlone;
                    continue;
                }
                "without0" | "without1" => {
                    crash.attendance = Attendance::Without(u8::from(name == "without1"));
                    continue;
                }
                "m0" => Device::Member(0),
                "m1" => Device::Member(1),
                "d" => Device::Backing(0),
                "w" => Device::Witness,
                _ => return Err(format!("\"{word}\" is no part of a crash")),
            };
            let fates = value.parse()?;
            crash.power.as_mut().ok_or("what a device keeps is said after \"power\"")?.insert(device, fates);
        }
        Ok(crash)
    }
}

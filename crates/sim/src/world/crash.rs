//! The daemon dies, or the power goes.

use super::{Flight, World, written};
use crate::buf::SimBuf;
use crate::device::Cut;
use crate::oracle::Oracle;
use headpond_engine::Device;

impl World {
    /// The daemon dies. Of what it had in flight each write may still land, until the next claim is granted.
    pub fn kill(&mut self) {
        self.note("THE DAEMON IS KILLED");
        self.end_daemon();
        for f in self.take_flights() {
            let cut = *self.rng.pick(&[Cut::LoseAll, Cut::KeepAll, Cut::ByWrite, Cut::BySector]);
            for (sector, buf) in written(&f.op) {
                if let Some(d) = self.devices.get_mut(&f.device) {
                    d.land(sector, &buf, cut, &mut self.rng);
                }
            }
        }
        self.oracles.values_mut().for_each(Oracle::killed);
    }

    /// The power goes, for everything at once.
    pub fn cut_power(&mut self) {
        self.note("POWER CUT");
        self.end_daemon();
        let flights = self.take_flights();
        let mut rolled_back = Vec::new();
        let mut cuts = Vec::new();
        for (device, d) in &mut self.devices {
            let cut = *self.rng.pick(&[Cut::LoseAll, Cut::KeepAll, Cut::ByWrite, Cut::BySector, Cut::BySector]);
            cuts.push((*device, cut, d.unflushed().count()));
            d.cut_power(cut, &mut self.rng);
            let cut = *self.rng.pick(&[Cut::LoseAll, Cut::KeepAll, Cut::ByWrite, Cut::BySector, Cut::BySector]);
            for f in flights.iter().filter(|f| f.device == *device) {
                for (sector, buf) in written(&f.op) {
                    d.tear(sector, &buf, cut, &mut self.rng);
                }
            }
            if self.snapshots.get_mut(device).is_some_and(|s| s.perhaps_restore(d, &mut self.rng)) {
                rolled_back.push(*device);
            }
        }
        for device in rolled_back {
            self.say(|| format!("{} WENT BACK TO AN OLDER STATE", device.to_string().to_uppercase()));
        }
        for (device, cut, writes) in cuts {
            self.say(|| format!("{device} had {writes} writes unflushed: {cut:?}"));
        }
        self.oracles.values_mut().for_each(Oracle::power_cut);
    }

    /// The daemon dies. Of what it had in flight the writes land that `lands` says yes to: device, first sector, data.
    pub fn kill_landing(&mut self, mut lands: impl FnMut(Device, u64, &SimBuf) -> bool) {
        self.note("THE DAEMON IS KILLED");
        self.end_daemon();
        for f in self.take_flights() {
            for (sector, buf) in written(&f.op) {
                if let Some(d) = self.devices.get_mut(&f.device).filter(|_| lands(f.device, sector, &buf)) {
                    d.write(sector, buf);
                }
            }
        }
        self.oracles.values_mut().for_each(Oracle::killed);
    }

    /// The power goes. Of what was not flushed, or in flight, the writes survive that `survives` says yes to: device,
    /// first sector, data.
    pub fn cut_power_keeping(&mut self, mut survives: impl FnMut(Device, u64, &SimBuf) -> bool) {
        self.note("POWER CUT");
        self.end_daemon();
        let flights = self.take_flights();
        for (device, d) in &mut self.devices {
            let unflushed: Vec<(u64, SimBuf)> = d.unflushed().map(|(s, b)| (s, b.clone())).collect();
            let flying = flights.iter().filter(|f| f.device == *device).flat_map(|f| written(&f.op));
            for (sector, buf) in unflushed.into_iter().chain(flying) {
                if survives(*device, sector, &buf) {
                    d.durable.write(sector, &buf);
                }
            }
            d.cut_power(Cut::LoseAll, &mut self.rng);
        }
        self.oracles.values_mut().for_each(Oracle::power_cut);
    }

    fn end_daemon(&mut self) {
        (self.holds, self.held) = (None, Vec::new());
        self.answers.clear();
        self.engine = None;
        self.two_lost_here = false;
        (self.fail_member, self.failed_member) = (None, None);
        self.asked.clear();
        self.reads.clear();
        self.beside.end();
        self.events.clear();
        self.commands.clear();
        self.ended.clear();
        self.model_wakes.clear();
        self.failures.ends_a_life();
    }

    /// What was in flight, in an order of chance.
    fn take_flights(&mut self) -> Vec<Flight> {
        let mut flights: Vec<(u64, Flight)> = self.flights.drain().collect();
        flights.sort_by_key(|f| f.0);
        let mut out = Vec::with_capacity(flights.len());
        while !flights.is_empty() {
            let n = self.rng.below(flights.len() as u64) as usize;
            out.push(flights.swap_remove(n).1);
        }
        out
    }
}

//! The daemon dies, or the power goes.

use super::{Flight, World, written};
use crate::device::Cut;

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
        for o in self.oracles.values_mut() {
            o.killed();
        }
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
        for o in self.oracles.values_mut() {
            o.power_cut();
        }
    }

    fn end_daemon(&mut self) {
        self.engine = None;
        self.asked.clear();
        self.events.clear();
        self.commands.clear();
        self.ended.clear();
        self.model_wakes.clear();
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

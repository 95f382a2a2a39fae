//! A world whose devices are models: two SSDs as a pool, and one volume over a rotating disk.

use crate::device::SimDevice;
use crate::models::rotating::RotatingParams;
use crate::models::ssd::SsdParams;
use crate::models::{RotatingDisk, Ssd, TimingModel};
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::target::Target;
use crate::world::{Timing, Violation, World};
use headpond_engine::create::{PoolPlan, plan};
use headpond_engine::format::Mode;
use headpond_engine::{Command, Device, NewVolume, Settings};
use std::collections::BTreeMap;

/// The stamp that sector 0 of the disk has at first.
const BASE: u64 = 1 << 50;
/// Bytes of the witness.
const WITNESS: u64 = 64 << 10;

/// What the world is to be made of.
#[derive(Clone, Debug)]
pub struct Modelled {
    /// Sectors of the volume.
    pub sectors: u64,
    /// The grid's phase, 0 to 7.
    pub phase: u8,
    /// The volume's mode.
    pub mode: Mode,
    /// Bytes of each of the two cache devices.
    pub cache_bytes: u64,
    /// What the cache devices are.
    pub ssd: SsdParams,
    /// What the disk is.
    pub disk: RotatingParams,
    /// The pool has a witness, and so bears the loss of a member.
    pub witness: bool,
    /// Every read is checked by an oracle; it costs time and memory of its own.
    pub checked: bool,
    /// Engine settings.
    pub settings: Settings,
    /// What chance there is follows from it.
    pub seed: u64,
}

impl Modelled {
    /// Makes the pool, starts it and attaches the volume, which is number 0.
    ///
    /// # Errors
    /// The pool cannot be made like that, or something happened that must not.
    pub fn build(&self) -> Result<World, Violation> {
        self.build_over(vec![Box::new(RotatingDisk::new(self.disk.clone()))])
    }

    /// As [`Modelled::build`], with these in place of the disk: a volume over each, numbered from 0, all of the same size.
    ///
    /// # Errors
    /// The pool cannot be made like that, or something happened that must not.
    pub fn build_over(&self, disks: Vec<Box<dyn TimingModel>>) -> Result<World, Violation> {
        let mut rng = Rng::new(self.seed);
        let members = [Device::Member(0), Device::Member(1)];
        let mut models: BTreeMap<Device, Box<dyn TimingModel>> = BTreeMap::new();
        let volumes = disks.len() as u16;
        for (n, disk) in (0..).zip(disks) {
            models.insert(Device::Backing(n), disk);
        }
        for m in members {
            models.insert(m, Box::new(Ssd::new(&self.ssd)));
        }
        let key = rng.next();
        let mut world = World::new(rng, Timing::Models(models));
        world.count_copies = false;
        let device = |bytes, base| {
            let mut device = SimDevice::new(bytes, base);
            device.tracked = false;
            device
        };
        for n in 0..volumes {
            world.devices.insert(Device::Backing(n), device(self.sectors * 512, Some(BASE)));
        }
        for m in members {
            world.devices.insert(m, device(self.cache_bytes, None));
        }
        if self.witness {
            world.devices.insert(Device::Witness, device(WITNESS, None));
        }
        let pool = PoolPlan {
            name: "modelled".into(),
            id: [7; 16],
            key,
            copies: 2,
            unit: 512,
            segment_bytes: 0,
            // Each volume takes a page at least.
            intent_pages: 16.max(2 * u32::from(volumes)),
            witness: self.witness,
            members: vec![([1; 16], self.cache_bytes), ([2; 16], self.cache_bytes)],
        };
        let (_, writes) = plan(&pool).map_err(|e| Violation(e.to_string()))?;
        world.put_initial(&writes);
        let election = world.elect(self.witness).map_err(|e| Violation(e.to_string()))?;
        let id = world.start(self.settings.clone(), election);
        finish(&mut world, id)?;
        if self.checked {
            world.oracles.insert(0, Oracle::new(BASE));
        }
        for number in 0..volumes {
            let mut id = [9; 16];
            id[..2].copy_from_slice(&number.to_le_bytes());
            let new = NewVolume {
                number,
                id,
                name: format!("volume {number}"),
                sectors: self.sectors,
                phase: self.phase,
                mode: self.mode,
                backing: format!("disk {number}"),
            };
            let id = world.command(Command::Attach(new));
            finish(&mut world, id)?;
        }
        Ok(world)
    }
}

/// Lets time pass until a command has ended.
///
/// # Errors
/// It failed, or something happened that must not.
pub fn finish(world: &mut World, id: u64) -> Result<(), Violation> {
    loop {
        match world.command_result(id) {
            Some(result) => return result.map_err(|e| Violation(e.to_string())),
            None => Target::step(world, u64::MAX).map(drop)?,
        }
    }
}

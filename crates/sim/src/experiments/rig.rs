//! Stages for one point of an experiment: the same clients and server before the bare array, before the engine with its default settings,
//! before the SSDs alone, and before a simple model of the system whose figures were published.

use super::array::Array;
use super::drive::{Driver, Process};
use super::front::Front;
use super::hardware::Machine;
use super::pair::Pair;
use crate::bench::run::warm;
use crate::modelled::Modelled;
use crate::models::TimingModel;
use crate::models::rotating::RotatingParams;
use crate::target::{Answer, Ask, Bare, Target};
use crate::world::{Violation, World};
use headpond_engine::Settings;
use headpond_engine::format::Mode;
use headpond_engine::policy::streams::RUNS;
use headpond_engine::status::Status;
use std::ops::Range;

/// What is behind a server.
pub enum Store {
    /// Models of devices.
    Models(Bare),
    /// The engine.
    Engine(Box<World>),
}

impl Store {
    /// Devices, one for each volume.
    #[must_use]
    pub fn models(devices: Vec<Box<dyn TimingModel>>) -> Self {
        Store::Models(Bare::over(devices))
    }

    /// How the engine stands, where there is one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Store::Models(_) => None,
            Store::Engine(world) => world.engine.as_ref().map(|e| e.status()),
        }
    }
}

impl Target for Store {
    fn now(&self) -> u64 {
        match self {
            Store::Models(it) => it.now(),
            Store::Engine(it) => it.now,
        }
    }
    fn send(&mut self, volume: u16, ask: Ask) -> u64 {
        match self {
            Store::Models(it) => it.send(volume, ask),
            Store::Engine(it) => it.send(volume, ask),
        }
    }
    fn step(&mut self, limit: u64) -> Result<bool, Violation> {
        match self {
            Store::Models(it) => it.step(limit),
            Store::Engine(it) => Target::step(it.as_mut(), limit),
        }
    }
    fn answers(&mut self) -> Vec<Answer> {
        match self {
            Store::Models(it) => it.answers(),
            Store::Engine(it) => it.answers(),
        }
    }
}

impl Machine {
    /// The bare arrays of so many volumes.
    #[must_use]
    pub fn bare(&self, volumes: u16) -> Store {
        Store::models((0..volumes).map(|_| Box::new(Array::new(&self.array)) as Box<dyn TimingModel>).collect())
    }

    /// The SSDs alone: reads from both in turn, writes to both.
    #[must_use]
    pub fn ssds(&self) -> Store {
        Store::models(vec![Box::new(Pair::new(&self.ssd))])
    }

    /// The engine, default settings, over so many arrays, of which clients use the first `extent` bytes.
    ///
    /// # Errors
    /// The pool cannot be made.
    pub fn cached(&self, mode: Mode, volumes: u16, extent: u64, seed: u64) -> Result<Store, Violation> {
        let modelled = Modelled {
            sectors: (extent.next_multiple_of(FORGETTING) + (RUNS as u64 + 2) * FORGETTING) / 512,
            phase: 0,
            mode,
            cache_bytes: self.ssd_bytes,
            ssd: self.ssd.clone(),
            disk: RotatingParams::nearline_7200(),
            witness: true,
            checked: false,
            settings: Settings::default(),
            seed,
        };
        let arrays = (0..volumes).map(|_| Box::new(Array::new(&self.array)) as Box<dyn TimingModel>).collect();
        Ok(Store::Engine(Box::new(modelled.build_over(arrays)?)))
    }

    /// Processes before a store.
    #[must_use]
    pub fn drive(&self, store: Store, seed: u64, processes: Vec<Process>) -> Driver<Store> {
        Driver::begin(Front::new(self.front.clone(), store, seed), processes)
    }
}

/// Bytes of the volume beyond what clients use: reads there make the engine forget streams.
const FORGETTING: u64 = 512 << 10;

/// Reads a range of volume 0 until it is cached and clean; nothing where there is no engine.
///
/// # Errors
/// Something happened that must not.
pub fn warm_up(store: &mut Store, extent: u64, range: Range<u64>, seed: u64) -> Result<(), Violation> {
    let Store::Engine(world) = store else { return Ok(()) };
    warm(world, extent.next_multiple_of(FORGETTING), range.start, range.end, seed)?;
    world.take_ended();
    Ok(())
}

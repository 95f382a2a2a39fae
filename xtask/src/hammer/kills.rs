//! Loads under which the daemon is killed, or not: fio, and our own load beside it, over NBD and over the loop device.

use super::fio::{self, Sums, Through};
use super::model::{Model, Target, Trouble};
use super::reconnect::{Reconnecting, SILENCE};
use super::rig::{Frontend, NAME, Rig};
use super::{Context as Hammer, Figures, Rounds, interrupt};
use anyhow::{Result, anyhow, bail};
use headpond_host::nbd::client::Client;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes of the volume. The first half is our own load's, the second fio's.
const BYTES: u64 = 512 << 20;
/// Where fio's regions begin.
const FIO: u64 = 256 << 20;
/// Regions of our own load, each with a connection and a thread.
const MODELS: u64 = 4;
/// Sectors of each: what is compared after each kill.
const SECTORS: usize = 16384;
/// Sectors between their beginnings.
const APART: u64 = 131_072;

/// fio and our own load over NBD, nobody killed.
pub fn nbd(hammer: &Hammer) -> Result<Figures> {
    clean(hammer, Frontend::Nbd)
}

/// The same over the loop device.
pub fn over_loop(hammer: &Hammer) -> Result<Figures> {
    clean(hammer, Frontend::Loop)
}

fn clean(hammer: &Hammer, frontend: Frontend) -> Result<Figures> {
    let mut rig = hammer.rig(frontend, BYTES)?;
    let mut models = models(hammer.seed);
    let bytes = hammer.clean_bytes;
    let place = Place::of(&rig, frontend)?;
    let ended = AtomicBool::new(false);
    let sums = thread::scope(|scope| {
        let loads: Vec<_> =
            models.iter_mut().map(|model| scope.spawn(|| run_model(model, &place, || ended.load(Ordering::SeqCst)))).collect();
        let sums = fio::run(&rig.path("."), "fio", &fio::mixed(&place.through(&rig), FIO, bytes, hammer.seed));
        ended.store(true, Ordering::SeqCst);
        loads.into_iter().try_for_each(joined)?;
        sums
    })?;
    rig.no_errors()?;
    settle(&mut models, &place, "after the load")?;
    leave(&mut rig, &mut models)?;
    let figures = [fio_figures(sums), model_figures(&models)].concat();
    rig.passed();
    Ok(figures)
}

/// fio over NBD by a client that reconnects, and our own load by one that does not and settles what was in doubt; the daemon is killed in
/// each round.
pub fn nbd_killed(hammer: &Hammer) -> Result<Figures> {
    let mut rig = hammer.rig(Frontend::Nbd, BYTES)?;
    let mut models = models(hammer.seed);
    let place = Place::of(&rig, Frontend::Nbd)?;
    let steady = Reconnecting::serve(&rig.socket(), &rig.path("steady"))?;
    // fio is told to end by the last round, and a pass of it that runs is waited for.
    let ending = AtomicBool::new(false);
    let folder = rig.path(".");
    let (sums, passes) = thread::scope(|scope| -> Result<(Sums, u64)> {
        let passes = scope.spawn(|| -> Result<(Sums, u64)> {
            let (mut sums, mut passes) = (Sums::default(), 0);
            while !ending.load(Ordering::SeqCst) {
                let job = fio::mixed(&Through::Nbd(steady.uri()), FIO, hammer.pass_bytes, hammer.seed.wrapping_add(passes * 8));
                sums.add(fio::run(&folder, "fio", &job)?);
                passes += 1;
            }
            Ok((sums, passes))
        });
        let killed = (|| -> Result<()> {
            let mut rounds = Rounds::begin(hammer);
            for round in 1..=hammer.rounds {
                rounds.say(round);
                round_of_models(&mut rig, &mut models, &place, hammer.length_of(round))?;
                steady.check()?;
                if passes.is_finished() {
                    break;
                }
                rig.no_errors()?;
                settle(&mut models, &place, &format!("after kill {round}"))?;
            }
            Ok(())
        })();
        ending.store(true, Ordering::SeqCst);
        if killed.is_err() {
            // Else fio would wait for a daemon that nobody starts.
            steady.give_up();
        }
        let passes = passes.join().unwrap_or_else(|_| Err(anyhow!("fio's thread panicked")));
        // An error of the daemon is what fio then complains of: the cause is told before the consequence.
        steady.check()?;
        killed?;
        passes
    })?;
    rig.no_errors()?;
    leave(&mut rig, &mut models)?;
    let (answered, replayed) = steady.figures();
    let mut figures = kill_figures(&rig);
    figures.push(("fio passes", passes.into()));
    figures.extend(fio_figures(sums));
    figures.extend([("requests of fio", answered.into()), ("sent again", replayed.into())]);
    figures.extend(model_figures(&models));
    rig.passed();
    Ok(figures)
}

/// fio and our own load over the loop device, which a kill takes away: what was acknowledged until then must be there after the restart.
pub fn loop_killed(hammer: &Hammer) -> Result<Figures> {
    let mut rig = hammer.rig(Frontend::Loop, BYTES)?;
    let mut models = models(hammer.seed);
    let mut sums = Sums::default();
    let mut rounds = Rounds::begin(hammer);
    for round in 1..=hammer.rounds {
        rounds.say(round);
        let place = Place::of(&rig, Frontend::Loop)?;
        let device = rig.device()?;
        let (folder, seed) = (rig.path("."), hammer.seed.wrapping_add(round * 8));
        let base = FIO + round % fio::REGIONS * fio::REGION;
        let (cut_off, failed) = thread::scope(|scope| -> Result<(Sums, Vec<u64>)> {
            let fio = scope.spawn(|| fio::run_cut_off(&folder, "cutoff", &fio::cut_off(&device, base, seed, false)));
            // fio takes a moment to be at work.
            let length = hammer.length_of(round) + Duration::from_millis(500);
            round_of_models(&mut rig, &mut models, &place, length)?;
            fio.join().unwrap_or_else(|_| Err(anyhow!("fio's thread panicked")))
        })?;
        sums.written += cut_off.written;
        sums.flushes += cut_off.flushes;
        let place = Place::of(&rig, Frontend::Loop)?;
        settle(&mut models, &place, &format!("after kill {round}"))?;
        // It counts as written what it only goes over again.
        let verified = fio::verify_cut_off(&folder, "verify", &fio::cut_off(&rig.device()?, base, seed, true), &failed)?.verified;
        // On a busy machine a kill may come before fio has begun; but what it wrote it must have verified.
        if verified == 0 && cut_off.written >> 22 > 0 {
            bail!("fio wrote {} bytes and verified none: nothing was checked in round {round}", cut_off.written);
        }
        sums.verified += verified;
        rig.no_errors()?;
    }
    if sums.verified == 0 {
        bail!("the kills all came before fio had written anything: give it longer with --seconds-per-round");
    }
    leave(&mut rig, &mut models)?;
    let figures = [kill_figures(&rig), fio_figures(sums), model_figures(&models)].concat();
    rig.passed();
    Ok(figures)
}

/// Loads the volume, kills the daemon while it is loaded, and starts it again.
fn round_of_models(rig: &mut Rig, models: &mut [Model], place: &Place, length: Duration) -> Result<()> {
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let killed = &killed;
        let loads: Vec<_> = models
            .iter_mut()
            .map(|model| {
                scope.spawn(move || match run_model(model, place, || false) {
                    // Until the kill nothing may end.
                    Err(Trouble::Gone(why)) if !killed.load(Ordering::SeqCst) => {
                        Err(Trouble::Failed(format!("before the kill a request failed: {why}")))
                    }
                    Err(Trouble::Gone(_)) => Ok(()),
                    result => result,
                })
            })
            .collect();
        let slept = interrupt::sleep(length);
        killed.store(true, Ordering::SeqCst);
        // Even after an interruption: without it the loads would not end.
        let kill = rig.kill();
        let ended = loads.into_iter().try_for_each(joined);
        slept.and(kill).and(ended)
    })?;
    rig.start()
}

fn run_model(model: &mut Model, place: &Place, until: impl Fn() -> bool) -> Result<(), Trouble> {
    let mut target = place.open().map_err(|error| Trouble::Failed(format!("{error:#}")))?;
    model.load(&mut target, until)
}

fn joined(thread: thread::ScopedJoinHandle<'_, Result<(), Trouble>>) -> Result<()> {
    match thread.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Trouble::Gone(why) | Trouble::Failed(why))) => bail!("our own load: {why}"),
        Err(_) => bail!("a thread of our own load panicked"),
    }
}

/// Compares all that our own load wrote, over the volume.
fn settle(models: &mut [Model], place: &Place, when: &str) -> Result<()> {
    let mut target = place.open()?;
    models.iter_mut().try_for_each(|model| {
        interrupt::check()?;
        model.settle(&mut target, when)
    })
}

/// A clean stop, a start and a look; then the detach, and a look at the disk alone.
fn leave(rig: &mut Rig, models: &mut [Model]) -> Result<()> {
    rig.stop()?;
    rig.start()?;
    let frontend = if rig.socket().exists() { Frontend::Nbd } else { Frontend::Loop };
    settle(models, &Place::of(rig, frontend)?, "after a clean stop and a start")?;
    rig.no_errors()?;
    rig.detach()?;
    models.iter_mut().try_for_each(|model| model.compare_with(&rig.path("disk"), "on the disk alone, after the detach"))?;
    rig.stop()
}

/// Where the volume is.
enum Place {
    Nbd(std::path::PathBuf),
    Device(std::path::PathBuf),
}

impl Place {
    fn of(rig: &Rig, frontend: Frontend) -> Result<Place> {
        Ok(match frontend {
            Frontend::Nbd => Place::Nbd(rig.socket()),
            Frontend::Loop => Place::Device(rig.device()?),
        })
    }

    fn open(&self) -> Result<Target> {
        match self {
            Place::Nbd(socket) => Ok(Target::Nbd(Box::new(Client::connect_within(socket, NAME, SILENCE, SILENCE)?))),
            Place::Device(path) => Target::device(path),
        }
    }

    fn through(&self, rig: &Rig) -> Through<'_> {
        match self {
            Place::Nbd(_) => Through::Nbd(rig.uri()),
            Place::Device(path) => Through::Device(Path::new(path)),
        }
    }
}

fn models(seed: u64) -> Vec<Model> {
    // The last begins at an odd sector.
    (0..MODELS).map(|n| Model::new(n * APART + n, SECTORS, seed.wrapping_add(n))).collect()
}

fn kill_figures(rig: &Rig) -> Figures {
    vec![("SIGKILLs", rig.kills.into()), ("ms of the slowest restart", (rig.slowest_start.as_millis() as u64).into())]
}

fn fio_figures(sums: Sums) -> Figures {
    vec![
        ("MiB written by fio", (sums.written >> 20).into()),
        ("MiB verified by fio", (sums.verified >> 20).into()),
        ("trims by fio", sums.trims.into()),
        ("flushes by fio", sums.flushes.into()),
        ("mismatches", 0.into()),
    ]
}

fn model_figures(models: &[Model]) -> Figures {
    let sum = |of: fn(&Model) -> u64| models.iter().map(of).sum::<u64>();
    vec![
        ("changes acknowledged to our own load", sum(|m| m.acknowledged).into()),
        ("cut off", sum(|m| m.cut_off).into()),
        ("MiB compared", (sum(|m| m.compared) >> 11).into()),
    ]
}

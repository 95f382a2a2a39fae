//! The command.

mod bench;
mod commands;
mod config;
mod demo;
mod exit;
mod experiments;
mod memory;
mod outlet;
mod seeing;
mod size;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An SSD block cache for storage servers on rotating disks.
#[derive(Parser)]
#[command(version, after_help = exit::HELP)]
struct Headpond {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make, show and destroy pools
    #[command(subcommand)]
    Pool(commands::pool::Pool),
    /// Serve a pool, in the foreground
    Serve(commands::serve::Serve),
    /// Let another version go on in the place of a daemon, while its volumes are in use
    Upgrade(commands::upgrade::Upgrade),
    /// Make a device a volume of a pool; what is on it stays
    Attach(commands::attach::Attach),
    /// Write all that is dirty to a volume's disk and let go of it
    Detach(commands::detach::Detach),
    /// Let a volume have the size that its backing device has come to have, while it is in use
    Grow(commands::grow::Grow),
    /// Make and delete volumes without a backing device: small mirrored disks for journals and write-intent bitmaps
    #[command(subcommand)]
    Volume(commands::volume::Volume),
    /// Show how a pool and its volumes stand
    Status(commands::status::Status),
    /// Print what a pool does, a line for each interval
    Stat(commands::stat::Stat),
    /// Show what happened to a pool, each event with its next step
    Events(commands::events::Events),
    /// Show how long requests took, how large they were, and what became of them
    Histogram(commands::histogram::HistogramOf),
    /// Show what a pool does, live
    Top(commands::top::Top),
    /// Write all that is dirty to a volume's disk
    Flush(commands::flush::Flush),
    /// Switch a volume's mode
    Mode(commands::mode::Mode),
    /// Read files or ranges of a volume into the cache before they are asked for
    Preload(commands::preload::Preload),
    /// Keep files, ranges, or a file system's journal in the cache
    Pin(commands::pin::Pin),
    /// Let go of what was pinned when its time comes
    Unpin(commands::pin::Unpin),
    /// Show or change what of a pool a volume is sure of, and may have at most
    Share(commands::share::Share),
    /// Read every copy of everything that a pool holds, and mend what is damaged, while it is served
    Scrub(commands::scrub::Scrub),
    /// Read all that a pool has on its devices, and tell what is wrong; writes nothing
    Check(commands::check::Check),
    /// Show what is on a pool's devices; writes nothing
    Dump(commands::dump::Dump),
    /// List what of a pool's volumes cannot be read; writes nothing
    ListDamaged(commands::list_damaged::ListDamaged),
    /// Put all dirty data of a pool onto the disks, without a daemon
    Writeback(commands::writeback::Writeback),
    /// Mend what is damaged on a pool's devices from what other copies prove
    Repair(commands::repair::Repair),
    /// Look at configuration files
    #[command(subcommand)]
    Config(commands::config::Config),
    /// Print the completions for a shell
    Completions(commands::pages::Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Man(commands::pages::Man),
    /// Print the name of a volume's block device under /dev/headpond, for udev
    #[command(hide = true)]
    UdevName(commands::udev_name::UdevName),
    /// Serve modelled devices, for `headpond experiments --real`
    #[command(hide = true)]
    ModelledDevices(commands::modelled_devices::ModelledDevices),
    /// Show what the cache does on a modelled disk, and that it loses nothing
    Demo(commands::demo::Demo),
    /// Run loads on a modelled disk, bare and cached, and compare
    Bench(commands::bench::Bench),
    /// Run the field's published experiments: on models of the original hardware, or for real
    Experiments(commands::experiments::Experiments),
    /// Run the engine in its simulated world, through power cuts and daemon deaths
    Sim(commands::sim::Args),
}

fn main() -> ExitCode {
    let result = match Headpond::parse().command {
        Command::Pool(pool) => pool.run(),
        Command::Serve(serve) => return serve.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Attach(attach) => attach.run(),
        Command::Detach(detach) => detach.run(),
        Command::Grow(grow) => grow.run(),
        Command::Volume(volume) => volume.run(),
        Command::Status(status) => status.run(),
        Command::Stat(stat) => stat.run(),
        Command::Events(events) => events.run(),
        Command::Top(top) => top.run(),
        Command::Histogram(histogram) => histogram.run(),
        Command::Flush(flush) => flush.run(),
        Command::Mode(mode) => mode.run(),
        Command::Preload(preload) => preload.run(),
        Command::Pin(pin) => pin.run(),
        Command::Unpin(unpin) => unpin.run(),
        Command::Share(share) => share.run(),
        Command::Scrub(scrub) => scrub.run(),
        Command::Check(check) => check.run(),
        Command::Dump(dump) => dump.run(),
        Command::ListDamaged(list) => list.run(),
        Command::Writeback(writeback) => writeback.run(),
        Command::Repair(repair) => repair.run(),
        Command::Config(config) => config.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::UdevName(name) => name.run(),
        Command::ModelledDevices(devices) => devices.run(),
        Command::Demo(demo) => demo.run(),
        Command::Bench(bench) => bench.run(),
        Command::Experiments(experiments) => experiments.run(),
        Command::Sim(args) => return commands::sim::run(&args),
    };
    exit::code(result)
}

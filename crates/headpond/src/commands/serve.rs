//! `headpond serve`: the daemon.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use headpond_engine::{Settings, Starting};
use headpond_host::backing::Spec;
use headpond_host::daemon::{Choice, Daemon, Options, would_start};
use headpond_host::pool::list::list;
use headpond_host::report::Report;
use headpond_host::signals::Signals;
use headpond_host::succession::{Estate, Present, VARIABLE, introduction};
use headpond_host::ublk::Queues;
use serde::Deserialize;
use serde_json::json;

use super::pool::Folder;
use super::print;
use crate::config::Config;
use crate::exit::{self, Usage};
use crate::outlet::Outlet;
use crate::size;

/// How often a wish to end is looked for.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub struct Serve {
    /// The cache devices of the pool
    #[arg(required_unless_present = "config", value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// A TOML file with what is not said here; `headpond config check FILE` tells whether it is understood
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    folder: Folder,
    /// The control socket [default: /run/headpond/POOL.sock as root]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How clients reach volumes [default: auto]
    #[arg(long, value_enum)]
    frontend: Option<Frontend>,
    /// The NBD socket, for all volumes by name [default: POOL.nbd beside the control socket]
    #[arg(long, value_name = "PATH")]
    nbd: Option<PathBuf>,
    /// Queues of each ublk device, with a thread each [default: as many as processors, at most 4; with up to 2 processors one, which
    /// the engine's thread attends to]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// Serve metrics for Prometheus at this address, such as 127.0.0.1:9712, under /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Do not take over the volume's ublk device that an earlier daemon left, but remove it: the I/O that waits there fails
    #[arg(long, value_name = "NAME")]
    give_up: Vec<String>,
    /// Where a volume's backing device is, if not where it was last
    #[arg(long, value_name = "NAME=SPEC", value_parser = named)]
    backing: Vec<(String, String)>,
    /// Start for good without cache devices that are missing, though they may hold all copies of data that is not on the disk yet
    #[arg(long)]
    without_missing: bool,
    /// Seconds to wait at the start for devices that a killed daemon may still be writing to, a day at most
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: u64,
    /// Seconds that a clean end may take, a day at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stop_within: u64,
    /// Only say whether all of this is understood, and the devices are of a pool that this version can serve
    #[arg(long = "try", hide = true)]
    only_try: bool,
    /// How the log is written to standard error [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log: Option<Log>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How the log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Log {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
}

impl Log {
    /// What is logged from here on goes the same way as all else that is said on standard error.
    fn begin(self) -> io::Result<Arc<Outlet>> {
        let outlet = Outlet::start()?;
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
        // What cannot be written would be told on standard error, by a macro that panics where that cannot be written.
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(outlet.clone()).log_internal_errors(false);
        match self {
            Log::Text => log.with_ansi(io::stderr().is_terminal()).init(),
            Log::Json => log.json().flatten_event(true).init(),
        }
        Ok(outlet)
    }
}

/// How clients reach volumes.
#[derive(Clone, Copy, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frontend {
    /// As root ublk devices, or where the kernel has none, loop devices over FUSE; else NBD; NBD if its socket is named
    Auto,
    /// ublk devices
    Ublk,
    /// Loop devices over FUSE
    Fuse,
    /// An NBD socket
    Nbd,
    /// Not at all
    None,
}

fn named(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, spec)| !name.is_empty() && !spec.is_empty());
    parts.map(|(name, spec)| (name.to_owned(), spec.to_owned())).ok_or_else(|| "give NAME=SPEC".into())
}

impl Serve {
    pub fn run(self) -> ExitCode {
        let (stop_within, json, only_try) = (Duration::from_secs(self.stop_within), self.json, self.only_try);
        match self.options() {
            Err(error) => exit::code(Err(error.into())),
            Ok((options, _)) if only_try => exit::code(tried(options)),
            Ok((options, log)) => {
                // Before anything else is opened.
                let estate = Estate::inherit();
                // Before there is another thread: one that does not hold them back would be ended by them, and the process with it.
                let signals = Signals::hold_and_outlast_hangups();
                // The log has a thread.
                let said = headpond_host::daemon::prepare_process(&options, &estate);
                let outlet = match log.begin() {
                    Ok(outlet) => outlet,
                    Err(error) => return exit::code(Err(error.into())),
                };
                said.iter().for_each(|what| tracing::warn!("{what}"));
                let result = signals
                    .map_err(Into::into)
                    .and_then(|signals| Serving { log, outlet: &outlet, signals, stop_within, json }.serve(options, estate));
                let code = match log {
                    Log::Text => exit::code_said(result, |text| outlet.say(&format!("headpond: {text}\n"))),
                    Log::Json => exit::code_said(result, |text| tracing::error!("{text}")),
                };
                outlet.settle();
                code
            }
        }
    }

    /// What is said on the command line, and what the file says otherwise.
    fn options(self) -> Result<(Options, Log), Usage> {
        let config = self.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        let devices = if self.devices.is_empty() { config.devices.clone() } else { self.devices };
        if devices.is_empty() {
            return Err(Usage("No cache device was named. Nothing was done. Name those that the pool was made of".into()));
        }
        let frontend = match self.frontend.or(config.frontend).unwrap_or(Frontend::Auto) {
            Frontend::Auto => Choice::Auto,
            Frontend::Ublk => Choice::Ublk,
            Frontend::Fuse => Choice::Fuse,
            Frontend::Nbd => Choice::Nbd,
            Frontend::None => Choice::None,
        };
        let nbd = self.nbd.or(config.nbd);
        if nbd.is_some() && matches!(frontend, Choice::Ublk | Choice::Fuse | Choice::None) {
            return Err(Usage(crate::config::TWO_FRONTENDS.into()));
        }
        let spec = |(name, spec): (String, String)| (name, Spec::new(&spec));
        let log = self.log.or(config.log).unwrap_or(Log::Text);
        let options = Options {
            devices,
            state: if self.folder.is_given() { self.folder.path() } else { config.state.unwrap_or_else(|| self.folder.path()) },
            socket: self.socket.or(config.socket),
            frontend,
            nbd,
            queues: self.queues.or(config.queues).map(Queues::Threads),
            zero_copy: config.zero_copy.unwrap_or(true),
            metrics: self.metrics.or(config.metrics.listen),
            scrub: config.scrub.scrubs(),
            give_up: self.give_up,
            backings: self.backing.into_iter().map(spec).collect(),
            configured: config.backing.into_iter().map(spec).collect(),
            settings: Settings { without_missing: self.without_missing, ..config.engine.settings() },
            patience: Duration::from_secs(self.wait),
        };
        Ok((options, log))
    }
}

/// How it is served.
struct Serving<'a> {
    log: Log,
    outlet: &'a Outlet,
    signals: Signals,
    stop_within: Duration,
    json: bool,
}

impl Serving<'_> {
    /// Serves until it is told to end, or to become another program.
    fn serve(self, options: Options, estate: Estate) -> anyhow::Result<()> {
        let Serving { log, outlet, ref signals, stop_within, json } = self;
        // What it is by now: a newer one may be put in its place while it runs.
        let own = std::env::current_exe().unwrap_or_default();
        let mut shown = Shown::new(log, outlet);
        let goes_on = &mut |starting| {
            shown.tell(starting);
            !signals.wait(Duration::ZERO)
        };
        let started = Daemon::start(options, estate, goes_on);
        shown.end();
        let daemon = started?;
        if let Some(report) = daemon.report() {
            // Each is an event as well, and so in the log.
            for advice in report.advice.iter().filter(|_| log == Log::Text) {
                outlet.say(&format!("headpond: {} {}\n", advice.wrong, advice.next));
            }
            // All that was said before stands before it.
            outlet.settle();
            // Whoever read it may have seen enough, and what took over from another program has no reader any more.
            if let Err(error) = print(json, &json!(report), ready(&report, daemon.metrics())) {
                tracing::info!("nobody was told that the pool is up: {error}");
            }
        }
        let Some(program) = daemon.wait(|| signals.wait(LOOK)) else {
            return daemon.stop(stop_within).map_err(|error| anyhow!(error));
        };
        // Its descriptors are open for as long as it is there.
        let estate = daemon.hand_over();
        let text = estate.bequeath()?;
        let error = exec(&program, &text, outlet);
        tracing::error!(
            "{} could not be started: {error}; {} goes on. Run `headpond upgrade` with a program that can be run",
            program.display(),
            own.display()
        );
        let error = exec(&own, &text, outlet);
        drop(estate);
        Err(anyhow!(
            "Nor could {}: {error}. What was acknowledged is on the cache devices. Start the daemon again",
            own.display()
        ))
    }
}

/// How far a start is, for whoever looks at the terminal, and for the log of one that takes long.
struct Shown<'a> {
    log: Log,
    outlet: &'a Outlet,
    begun: Instant,
    /// When it was shown last, in whole seconds since then.
    last: u64,
    on_terminal: bool,
}

/// Seconds between two lines in the log.
const LINE_EVERY: u64 = 10;

impl<'a> Shown<'a> {
    fn new(log: Log, outlet: &'a Outlet) -> Shown<'a> {
        Shown { log, outlet, begun: Instant::now(), last: 0, on_terminal: log == Log::Text && io::stderr().is_terminal() }
    }

    fn tell(&mut self, starting: Option<Starting>) {
        let seconds = self.begun.elapsed().as_secs();
        let every = if self.on_terminal { 1 } else { LINE_EVERY };
        let Some(starting) = starting.filter(|_| seconds >= self.last + every) else { return };
        self.last = seconds;
        let text = how_far(starting, self.begun.elapsed());
        match (self.on_terminal, self.log) {
            (true, _) => self.outlet.say(&format!("\r\x1b[K{text}")),
            (false, Log::Text) => self.outlet.say(&format!("headpond: {text}\n")),
            (false, Log::Json) => {
                let (read, of) = (starting.read, starting.of);
                let left = seconds_left(starting, self.begun.elapsed());
                tracing::warn!(
                    read_bytes = read,
                    bytes = of,
                    seconds_left = left,
                    "the pool is not up yet. Wait for it, or end the start with SIGTERM"
                );
            }
        }
    }

    fn end(&self) {
        if self.on_terminal && self.last > 0 {
            self.outlet.say("\r\x1b[K");
        }
    }
}

/// Seconds until all is read, if it goes on as it did since the beginning.
fn seconds_left(starting: Starting, since: Duration) -> Option<u64> {
    let left = starting.of.saturating_sub(starting.read) as f64 / starting.read as f64 * since.as_secs_f64();
    (starting.read > 0).then(|| left.ceil() as u64)
}

fn how_far(starting: Starting, since: Duration) -> String {
    let left = seconds_left(starting, since).map(|seconds| format!(", about {seconds} s left")).unwrap_or_default();
    format!("starting: {} of {} read{left}", size::show(starting.read), size::show(starting.of))
}

/// Becomes another program, with the same command line; returns only if that fails. No thread outlives it, that of the log included.
fn exec(program: &Path, estate: &str, outlet: &Outlet) -> io::Error {
    outlet.settle();
    process::Command::new(program).args(said_again(std::env::args_os().skip(1))).env(VARIABLE, estate).exec()
}

/// What of a daemon's command line the next program is told. What was given up is, and what was missing is out of the pool for good: said
/// again it would be of others by now, and devices that were added since would not even be looked for.
fn said_again(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut said, mut all) = (Vec::new(), args);
    while let Some(arg) = all.next() {
        if arg == "--" {
            said.push(arg);
            said.extend(all.by_ref());
        } else if arg == "--give-up" {
            all.next();
        } else if arg != "--without-missing" && !arg.as_encoded_bytes().starts_with(b"--give-up=") {
            said.push(arg);
        }
    }
    said
}

/// Whether this version could go on for the daemon that asks, which has the devices: they are looked at alone. Some may be dead.
fn tried(options: Options) -> anyhow::Result<()> {
    for listed in list(&options.devices) {
        if listed.is_silent() {
            return Err(anyhow!(
                "{} does not answer, and the pool would be served without it. Look at the kernel's log, and upgrade when it answers again; or take it \
                 out of the command line or the configuration, and restart",
                listed.path.display()
            ));
        }
    }
    // Which it would not be told.
    let options = Options { give_up: Vec::new(), ..options };
    would_start(&options, Present::of_who_asks().as_ref())?;
    print(false, &json!({}), introduction())
}

/// The line that says that the daemon is up, and where each volume is.
fn ready(report: &Report, metrics: Option<SocketAddr>) -> String {
    let volumes = report.volumes.iter().map(|volume| match (volume.link.as_ref().or(volume.place.as_ref()), volume.serving) {
        (Some(place), _) => format!("; volume {} at {place}", volume.name),
        (None, true) => format!("; volume {} served without a front end", volume.name),
        (None, false) => format!("; volume {} NOT served", volume.name),
    });
    let metrics = metrics.map(|address| format!("; metrics at http://{address}/metrics")).unwrap_or_default();
    format!("pool {} is up{}{metrics}", report.pool, volumes.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_program_is_not_told_what_holds_for_one_start_alone() {
        let args = "serve a --give-up v --give-up=w --without-missing --wait 5 --backing v=b".split(' ').map(OsString::from);
        assert_eq!(said_again(args), ["serve", "a", "--wait", "5", "--backing", "v=b"]);
        let args = ["serve", "--give-up=w", "--", "--give-up", "a"].map(OsString::from);
        assert_eq!(said_again(args.into_iter()), ["serve", "--", "--give-up", "a"]);
    }

    #[test]
    fn how_far_a_start_is_is_told_with_an_estimate_once_there_is_one() {
        let after = |read: u64, seconds| how_far(Starting { read, of: 4 << 30 }, Duration::from_secs(seconds));
        assert_eq!(after(0, 3), "starting: 0 B of 4 GiB read");
        assert_eq!(after(1 << 30, 10), "starting: 1 GiB of 4 GiB read, about 30 s left");
        assert_eq!(after(4 << 30, 40), "starting: 4 GiB of 4 GiB read, about 0 s left");
    }
}

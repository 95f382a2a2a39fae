//! An engine at work over files, without a daemon.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::Settings;
use headpond_engine::io::Device;
use headpond_host::claim::Claim;
use headpond_host::embed::{Mode, Pool};
use headpond_host::pool;
use headpond_host::runtime::{Given, Handle, Runtime, Setup};
use headpond_host::state::State;

pub const BLOCK: u64 = 4096;
pub const LONG: Duration = Duration::from_secs(60);

/// A pool of two files, or of one and another device, with a volume that is being served.
pub struct Served {
    pub folder: tempfile::TempDir,
    pub runtime: Option<Runtime>,
}

impl Served {
    pub fn new() -> Served {
        Served::with(None)
    }

    pub fn with(other: Option<PathBuf>) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["ssd0", "ssd1", "disk"] {
            File::create_new(path(name)).unwrap().set_len(64 << 20).unwrap();
        }
        let [first, second] = ssds(folder.path());
        let ssds = [first, other.unwrap_or(second)];
        Pool::create("tank", &ssds, &path("state")).unwrap();
        let made = Pool::open(&ssds, &path("state")).unwrap();
        drop(made.attach("home", &path("disk"), Mode::WriteBack).unwrap());
        made.close(LONG).unwrap();
        let open = pool::open(&ssds, &State::open(&path("state")).unwrap(), LONG).unwrap();
        let disk = Given { device: Device::Backing(0), claim: Claim::take(&path("disk"), LONG).unwrap(), pace: None };
        let devices = open.devices.into_iter().chain([disk]).collect();
        let settings = Settings { route: false, ..Settings::default() };
        let (runtime, started) = Runtime::start(Setup { settings, election: open.election, devices }).unwrap();
        started.end().unwrap();
        Served { folder, runtime: Some(runtime) }
    }

    pub fn handle(&self) -> &Handle {
        self.runtime.as_ref().unwrap().handle()
    }
}

pub fn ssds(folder: &Path) -> [PathBuf; 2] {
    ["ssd0", "ssd1"].map(|name| folder.join(name))
}

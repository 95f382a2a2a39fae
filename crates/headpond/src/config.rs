//! The configuration of `headpond serve`: a TOML file in which every key is known.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headpond_engine::create::is_a_name;
use headpond_engine::{Degraded, Settings};
use headpond_host::backing::Spec;
use headpond_host::daemon::Scrubs;
use serde::{Deserialize, Deserializer, de};

use crate::commands::serve::{Frontend, Log};
use crate::exit::Usage;
use crate::memory::memory;
use crate::size;

/// An NBD socket and a front end that has none are named together.
pub const TWO_FRONTENDS: &str = "An NBD socket is named, and another front end is chosen. Nothing was done. Leave one out";

/// What the file may say. Sizes are numbers of bytes, or text such as "1MiB".
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The cache devices of the pool.
    #[serde(deserialize_with = "devices")]
    pub devices: Vec<PathBuf>,
    /// The state folder.
    pub state: Option<PathBuf>,
    /// The control socket.
    pub socket: Option<PathBuf>,
    /// How clients reach volumes.
    pub frontend: Option<Frontend>,
    /// The NBD socket.
    pub nbd: Option<PathBuf>,
    /// Queues of each ublk device.
    #[serde(deserialize_with = "queues")]
    pub queues: Option<u16>,
    /// Whether ublk devices lend clients' memory to the disk.
    pub zero_copy: Option<bool>,
    /// How the log is written.
    pub log: Option<Log>,
    /// Backing devices by volume.
    #[serde(deserialize_with = "backing")]
    pub backing: BTreeMap<String, String>,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// When everything that the cache holds is read.
    pub scrub: Scrub,
    /// Settings of the engine.
    pub engine: Engine,
}

/// Metrics for Prometheus.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Where they are served over HTTP.
    pub listen: Option<SocketAddr>,
}

/// Scrubs that nobody asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scrub {
    every_days: Option<u16>,
    bytes_per_second: Option<Size>,
}

impl Scrub {
    /// The defaults, but for what the file says.
    pub fn scrubs(&self) -> Scrubs {
        let usual = Scrubs::default();
        Scrubs {
            every: self.every_days.map_or(usual.every, |days| Duration::from_secs(u64::from(days) * 86400)),
            bytes_per_second: self.bytes_per_second.map_or(usual.bytes_per_second, |Size(bytes)| bytes),
        }
    }
}

/// Settings of the engine, by the names that `headpond_engine::Settings` has for them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    stream_bytes: Option<Size>,
    large_bytes: Option<Size>,
    admit_bytes: Option<Size>,
    zeroes_bytes: Option<Size>,
    ahead_bytes: Option<Size>,
    checkpoint_bytes: Option<Size>,
    map_bytes: Option<Size>,
    destage_run_bytes: Option<Size>,
    dirty_percent: Option<Percent>,
    destage_percent: Option<Percent>,
    dirty_hours: Option<u32>,
    free_percent: Option<Percent>,
    degraded: Option<WhenDegraded>,
    route: Option<bool>,
    read_around: Option<bool>,
    drive_writes_per_day: Option<DriveWrites>,
}

#[derive(Debug, Clone, Copy)]
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as \"1MiB\", or a number of bytes")
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom("a size is not negative"))
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                size::parse(text).map(Size).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "u32")]
struct Percent(u32);

impl TryFrom<u32> for Percent {
    type Error = String;

    fn try_from(percent: u32) -> Result<Percent, String> {
        if percent <= 100 { Ok(Percent(percent)) } else { Err(format!("{percent} is more than 100 percent")) }
    }
}

/// Drive writes per day, in thousandths.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
struct DriveWrites(u32);

impl TryFrom<f64> for DriveWrites {
    type Error = String;

    fn try_from(per_day: f64) -> Result<DriveWrites, String> {
        match per_day {
            0.0 => Ok(DriveWrites(0)),
            0.001..=1000.0 => Ok(DriveWrites((per_day * 1000.0).round() as u32)),
            _ => Err(format!("{per_day} drive writes per day are not between 0.001 and 1000, nor 0 for no budget")),
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WhenDegraded {
    WriteThrough,
    Continue,
    ReadOnly,
}

impl Config {
    /// Reads a file. A key that is not known is named, with its line, and nothing is done.
    pub fn read(path: &Path) -> Result<Config, Usage> {
        let unread = |error| {
            Usage(format!("The configuration {} cannot be read: {error}. Nothing was done. Name another file", path.display()))
        };
        let text = fs::read_to_string(path).map_err(unread)?;
        toml::from_str(&text).map_err(|error| {
            Usage(format!(
                "The configuration {} was not understood, and nothing was done. Put right what is shown. {error}",
                path.display()
            ))
        })
    }
}

fn queues<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    match u64::deserialize(deserializer)? {
        queues @ 1..=64 => Ok(Some(queues as u16)),
        queues => Err(de::Error::custom(format!("a ublk device has 1 to 64 queues, not {queues}"))),
    }
}

fn devices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let places: Vec<Place> = Vec::deserialize(deserializer)?;
    Ok(places.into_iter().map(|Place(path)| path.into()).collect())
}

fn backing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let backing: BTreeMap<VolumeName, Place> = BTreeMap::deserialize(deserializer)?;
    Ok(backing.into_iter().map(|(VolumeName(name), Place(path))| (name, path)).collect())
}

/// Where a device is.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Place(String);

impl TryFrom<String> for Place {
    type Error = &'static str;

    fn try_from(place: String) -> Result<Place, &'static str> {
        if Spec::new(&place).path() == Spec::new("").path() {
            Err("a device has a path, and this one's is empty")
        } else {
            Ok(Place(place))
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct VolumeName(String);

impl TryFrom<String> for VolumeName {
    type Error = String;

    fn try_from(name: String) -> Result<VolumeName, String> {
        if is_a_name(&name) { Ok(VolumeName(name)) } else { Err(format!("{name:?} is not the name of a volume")) }
    }
}

impl Config {
    /// Whether its parts fit together; what each key may say by itself is known already.
    pub fn check(&self) -> Result<(), Usage> {
        if self.nbd.is_some() && matches!(self.frontend, Some(Frontend::Ublk | Frontend::Fuse | Frontend::None)) {
            return Err(Usage(TWO_FRONTENDS.into()));
        }
        if self.devices.is_empty() {
            return Err(Usage("The configuration names no cache devices. Nothing was done. Add devices = [\"/dev/...\"]".into()));
        }
        let cache = self.devices.iter().map(|path| (path.clone(), "a cache device".to_owned()));
        let backing = self
            .backing
            .iter()
            .map(|(name, spec)| (Spec::new(spec).path().to_owned(), format!("volume {name}'s backing device")));
        let mut uses: BTreeMap<PathBuf, String> = BTreeMap::new();
        for (path, is) in cache.chain(backing) {
            // One device may have many names.
            let real = path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or_else(|_| path.clone());
            if let Some(was) = uses.insert(real, is.clone()) {
                return Err(Usage(format!(
                    "The configuration names {} twice: as {was} and as {is}. Nothing was done. Name another device in one of these places",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// Memory that a cached block is reckoned with, in bytes: it takes 24 where blocks lie densely, and the allocator its part. Blocks that lie
/// far apart from each other take more, which is counted.
const PIECE_BYTES: u64 = 32;
/// The most that one takes.
const FAR_PIECE_BYTES: u64 = 96;
/// A map that is smaller is of no use, and costs nothing.
const LEAST_PIECES: u64 = 4096;

impl Engine {
    /// The defaults, but for what the file says.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let sizes = [
            (self.stream_bytes, &mut settings.stream_bytes),
            (self.large_bytes, &mut settings.large_bytes),
            (self.admit_bytes, &mut settings.admit_bytes),
            (self.zeroes_bytes, &mut settings.zeroes_bytes),
            (self.ahead_bytes, &mut settings.ahead_bytes),
            (self.checkpoint_bytes, &mut settings.checkpoint_bytes),
            (self.destage_run_bytes, &mut settings.destage_run_bytes),
        ];
        for (given, setting) in sizes {
            *setting = given.map_or(*setting, |Size(bytes)| bytes);
        }
        let percents = [
            (self.dirty_percent, &mut settings.dirty_percent),
            (self.destage_percent, &mut settings.destage_percent),
            (self.free_percent, &mut settings.free_percent),
        ];
        for (given, setting) in percents {
            *setting = given.map_or(*setting, |Percent(percent)| percent);
        }
        settings.dirty_age_ns =
            self.dirty_hours.map_or(settings.dirty_age_ns, |hours| u64::from(hours).saturating_mul(3_600_000_000_000));
        let map = self.map_bytes.map_or_else(|| memory() / 2, |Size(bytes)| bytes);
        settings.max_pieces = (map / PIECE_BYTES).max(LEAST_PIECES);
        settings.max_map_bytes = map.max(LEAST_PIECES * FAR_PIECE_BYTES);
        settings.read_around = self.read_around.unwrap_or(settings.read_around);
        settings.route = self.route.unwrap_or(settings.route);
        settings.drive_writes_milli = self.drive_writes_per_day.map_or(settings.drive_writes_milli, |DriveWrites(milli)| milli);
        settings.degraded = match self.degraded {
            None => settings.degraded,
            Some(WhenDegraded::WriteThrough) => Degraded::WriteThrough,
            Some(WhenDegraded::Continue) => Degraded::Continue,
            Some(WhenDegraded::ReadOnly) => Degraded::ReadOnly,
        };
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn a_whole_file_is_understood() {
        let config = parse(
            "devices = ['/dev/a', '/dev/b']\nfrontend = 'ublk'\nqueues = 2\nlog = 'json'\n[backing]\nv = 'modelled:/d'\n[engine]\nlarge_bytes = '2MiB'\n\
             stream_bytes = 4096\ndirty_percent = 70\ndegraded = 'read-only'\nroute = false\nread_around = false\n",
        )
        .unwrap();
        let settings = config.engine.settings();
        assert_eq!((settings.large_bytes, settings.stream_bytes, settings.dirty_percent), (2 << 20, 4096, 70));
        assert_eq!((settings.degraded, settings.route, settings.read_around), (Degraded::ReadOnly, false, false));
        assert_eq!((config.devices.len(), config.backing["v"].as_str(), config.queues), (2, "modelled:/d", Some(2)));
        assert_eq!(config.log, Some(Log::Json));
    }

    #[test]
    fn what_is_dirty_may_be_as_old_as_the_file_says_in_whole_hours() {
        let age = |text: &str| {
            parse(&format!("[engine]\n{text}\n")).map(|config| config.engine.settings().dirty_age_ns / 3_600_000_000_000)
        };
        assert_eq!(["", "dirty_hours = 0", "dirty_hours = 8"].map(age), [Ok(24), Ok(0), Ok(8)]);
        assert!(age("dirty_hours = -1").is_err() && age("dirty_hours = 0.5").is_err());
    }

    #[test]
    fn drive_writes_per_day_are_a_decimal_number_and_none_are_no_budget() {
        let milli = |text: &str| parse(&format!("[engine]\n{text}\n")).map(|config| config.engine.settings().drive_writes_milli);
        for (text, expected) in
            [("", 0), ("drive_writes_per_day = 0", 0), ("drive_writes_per_day = 0.3", 300), ("drive_writes_per_day = 3", 3000)]
        {
            assert_eq!(milli(text), Ok(expected), "{text}");
        }
        for value in ["-1", "0.0001", "1e9", "nan", "'much'"] {
            assert!(milli(&format!("drive_writes_per_day = {value}")).is_err_and(|error| error.contains("line 2")), "{value}");
        }
    }

    #[test]
    fn the_map_has_half_of_the_memory_unless_it_is_said_otherwise() {
        let pieces = |text: &str| parse(&format!("[engine]\n{text}\n")).unwrap().engine.settings().max_pieces;
        assert_eq!([pieces("map_bytes = '32GiB'"), pieces("map_bytes = 0")], [1 << 30, LEAST_PIECES]);
        assert_eq!(pieces(""), memory() / 2 / PIECE_BYTES);
    }

    /// The keys of a table, as the parser itself names them when it meets one that it does not know.
    fn keys(table: &str) -> Vec<String> {
        let error = parse(&format!("{table}\nno-such-key = 1\n")).unwrap_err();
        let list = error.split_once("expected").expect("the parser names what it expects").1;
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_key_is_in_the_documentation_and_in_the_example_which_is_understood() {
        let example = include_str!("../../../packaging/headpond.toml");
        let page = include_str!("../../../docs/CONFIG.md");
        let tables = [("", 9), ("[metrics]", 1), ("[scrub]", 2), ("[engine]", 11)];
        for (table, least) in tables {
            let keys = keys(table);
            assert!(keys.len() >= least, "{table}: {keys:?}");
            for key in keys {
                assert!(page.contains(&format!("`{key}`")), "docs/CONFIG.md does not name {table} {key}");
                let set = |line: &str| {
                    let line = line.trim_start_matches('#').trim_start();
                    line.starts_with(&format!("{key} =")) || line == format!("[{key}]")
                };
                assert!(example.lines().any(set), "packaging/headpond.toml does not have {table} {key}");
            }
        }
        parse(example).unwrap().check().map_err(|error| error.0).unwrap();
        // What is commented out is understood as well.
        let all: String = example
            .lines()
            .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
            .collect();
        parse(&all).unwrap();
    }

    #[test]
    fn what_is_not_known_is_named_with_its_line() {
        for (text, line, what) in [
            ("devices = []\nsokcet = 'x'\n", "line 2", "sokcet"),
            ("[engine]\n\nlarge = 1\n", "line 3", "large"),
            ("[engine]\ndirty_percent = 101\n", "line 2", "101"),
            ("[engine]\nlarge_bytes = 'much'\n", "line 2", "much"),
            ("frontend = 'ftp'\n", "line 1", "ftp"),
            ("log = 'xml'\n", "line 1", "xml"),
            ("\nqueues = 0\n", "line 2", "1 to 64 queues, not 0"),
            ("queues = 65000\n", "line 1", "1 to 64 queues, not 65000"),
            ("\ndevices = ['']\n", "line 2", "empty"),
            ("[backing]\nv = ''\n", "line 2", "empty"),
            ("[backing]\nv = 'modelled:'\n", "line 2", "empty"),
            ("[backing]\n'a b' = '/dev/a'\n", "line 2", "\"a b\" is not the name of a volume"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(what), "{error}");
        }
    }
    /// Both were understood, and neither can be served.
    #[test]
    fn a_device_is_named_once() {
        let folder = tempfile::tempdir().unwrap();
        let (a, link) = (folder.path().join("a"), folder.path().join("link"));
        fs::write(&a, "").unwrap();
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let (a, link) = (a.display(), link.display());
        for (text, is) in [
            (format!("devices = ['{a}', '{a}']"), "a cache device and as a cache device"),
            (format!("devices = ['{a}', '{link}']"), "a cache device and as a cache device"),
            (format!("devices = ['/dev/x', '{a}']\n[backing]\nv = '{link}'"), "a cache device and as volume v's backing device"),
            (
                format!("devices = ['/dev/x']\n[backing]\nv = '{a}'\nw = 'modelled:{link}'"),
                "volume v's backing device and as volume w's backing device",
            ),
        ] {
            let error = parse(&text).unwrap().check().unwrap_err().0;
            assert!(error.contains("twice") && error.contains(is), "{text}: {error}");
        }
        parse(&format!("devices = ['/dev/x', '/dev/y']\n[backing]\nv = '{a}'"))
            .unwrap()
            .check()
            .map_err(|error| error.0)
            .unwrap();
    }
}

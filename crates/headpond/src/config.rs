//! The configuration of `headpond serve`: a TOML file in which every key is known.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use headpond_engine::{Degraded, Settings};
use serde::{Deserialize, Deserializer, de};

use crate::commands::serve::Frontend;
use crate::exit::Usage;
use crate::size;

/// What the file may say. Sizes are numbers of bytes, or text such as "1MiB".
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The cache devices of the pool.
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
    pub queues: Option<u16>,
    /// Backing devices by volume.
    pub backing: BTreeMap<String, String>,
    /// Settings of the engine.
    pub engine: Engine,
}

/// Settings of the engine, by the names that `headpond_engine::Settings` has for them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    stream_bytes: Option<Size>,
    large_bytes: Option<Size>,
    admit_bytes: Option<Size>,
    zeroes_bytes: Option<Size>,
    checkpoint_bytes: Option<Size>,
    destage_run_bytes: Option<Size>,
    dirty_percent: Option<Percent>,
    destage_percent: Option<Percent>,
    free_percent: Option<Percent>,
    degraded: Option<WhenDegraded>,
    route: Option<bool>,
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
        let unread = |error| Usage(format!("The configuration {} cannot be read: {error}. Nothing was done", path.display()));
        let text = fs::read_to_string(path).map_err(unread)?;
        toml::from_str(&text).map_err(|error| {
            Usage(format!("The configuration {} was not understood, and nothing was done. {error}", path.display()))
        })
    }
}

impl Engine {
    /// The defaults, but for what the file says.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let sizes = [
            (self.stream_bytes, &mut settings.stream_bytes),
            (self.large_bytes, &mut settings.large_bytes),
            (self.admit_bytes, &mut settings.admit_bytes),
            (self.zeroes_bytes, &mut settings.zeroes_bytes),
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
        settings.route = self.route.unwrap_or(settings.route);
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
            "devices = ['/dev/a', '/dev/b']\nfrontend = 'ublk'\nqueues = 2\n[backing]\nv = 'modelled:/d'\n[engine]\nlarge_bytes = '2MiB'\n\
             stream_bytes = 4096\ndirty_percent = 70\ndegraded = 'read-only'\nroute = false\n",
        )
        .unwrap();
        let settings = config.engine.settings();
        assert_eq!((settings.large_bytes, settings.stream_bytes, settings.dirty_percent), (2 << 20, 4096, 70));
        assert_eq!((settings.degraded, settings.route), (Degraded::ReadOnly, false));
        assert_eq!((config.devices.len(), config.backing["v"].as_str(), config.queues), (2, "modelled:/d", Some(2)));
    }

    #[test]
    fn what_is_not_known_is_named_with_its_line() {
        for (text, line, what) in [
            ("devices = []\nsokcet = 'x'\n", "line 2", "sokcet"),
            ("[engine]\n\nlarge = 1\n", "line 3", "large"),
            ("[engine]\ndirty_percent = 101\n", "line 2", "101"),
            ("[engine]\nlarge_bytes = 'much'\n", "line 2", "much"),
            ("frontend = 'ftp'\n", "line 1", "ftp"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(what), "{error}");
        }
    }
}

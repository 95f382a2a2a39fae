//! What a check finds: what is wrong, where, what it means for the data, what to do next.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it may be on a pool in order. Nothing is to be done.
    Note,
    /// Something is damaged or missing, and no data is lost by it.
    Damage,
    /// Data cannot be read, or the pool does not start.
    Loss,
}

impl Level {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Damage => "damage",
            Level::Loss => "LOSS",
        }
    }
}

/// Bytes that would put a copy right, proved by another copy, or by the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mend {
    /// The device's place among those named.
    pub device: usize,
    /// Where, in bytes.
    pub offset: u64,
    /// What belongs there: whole sectors.
    pub bytes: Vec<u8>,
}

/// Something found on the media.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What kind of thing, for programs: it stays the same from version to version.
    pub kind: &'static str,
    /// The device that it is on, as it was named.
    pub path: Option<String>,
    /// Its number in the pool.
    pub member: Option<u8>,
    /// Where on the device, in bytes.
    pub offset: Option<u64>,
    /// How much of it, in bytes.
    pub bytes: Option<u64>,
    /// The volume that it concerns.
    pub volume: Option<String>,
    /// What was found.
    pub what: String,
    /// What it means for the data.
    pub meaning: String,
    /// What to do next.
    pub next: String,
    /// What would put it right; empty where nothing proves what belongs there.
    #[serde(serialize_with = "as_count")]
    pub mendable: Vec<Mend>,
}

/// Programs are told how many places can be mended, not with what.
fn as_count<S: serde::Serializer>(mends: &[Mend], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(mends.len() as u64)
}

impl Finding {
    /// A finding without a place.
    pub fn new(level: Level, kind: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            level,
            kind,
            path: None,
            member: None,
            offset: None,
            bytes: None,
            volume: None,
            what: what.into(),
            meaning: String::new(),
            next: "Nothing needs to be done".into(),
            mendable: Vec::new(),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn at(mut self, path: &std::path::Path, member: Option<u8>, offset: u64, bytes: u64) -> Finding {
        (self.path, self.member, self.offset, self.bytes) = (Some(path.display().to_string()), member, Some(offset), Some(bytes));
        self
    }

    /// The volume that it concerns.
    #[must_use]
    pub fn of(mut self, volume: &str) -> Finding {
        self.volume = Some(volume.to_owned());
        self
    }

    /// What it means for the data.
    #[must_use]
    pub fn means(mut self, meaning: impl Into<String>) -> Finding {
        self.meaning = meaning.into();
        self
    }

    /// What to do next.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Finding {
        self.next = next.into();
        self
    }

    /// What would put it right; says so, too.
    #[must_use]
    pub fn mended_by(mut self, mends: Vec<Mend>) -> Finding {
        if !mends.is_empty() {
            self.next = "`headpond repair` puts it right from the other copy".into();
        }
        self.mendable = mends;
        self
    }
}

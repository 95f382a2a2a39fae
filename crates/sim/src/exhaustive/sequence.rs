//! Short sequences of operations: which there are, and how they are written down.

use std::fmt;
use std::str::FromStr;

/// One operation. Sectors are of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// A write that is absorbed.
    Write(u64, u64),
    /// A write that is durable when it is acknowledged.
    Fua(u64, u64),
    /// A write that is large, and goes past the cache.
    Bypass(u64, u64),
    /// A flush.
    Flush,
    /// A discard.
    Discard(u64, u64),
    /// A range made zeroes.
    Zero(u64, u64),
    /// A read.
    Read(u64, u64),
    /// All that is dirty is written to the disk.
    Destage,
    /// A checkpoint.
    Checkpoint,
    /// A cache device is lost.
    Lose(u8),
    /// The volume goes to write-through.
    WriteThrough,
}

/// The operations that sequences are made of: on few addresses, so that they meet. Block 0, a part of it, blocks 0 and 1,
/// and what is too large to be absorbed.
pub const ALPHABET: &[Op] = &[
    Op::Write(0, 8),
    Op::Write(3, 2),
    Op::Write(0, 16),
    Op::Fua(0, 8),
    Op::Flush,
    Op::Discard(0, 8),
    Op::Zero(2, 4),
    Op::Zero(0, 64),
    Op::Read(0, 16),
    Op::Destage,
    Op::Bypass(0, 32),
    Op::Checkpoint,
    Op::Lose(0),
    Op::Lose(1),
    Op::WriteThrough,
];

/// When an operation begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Joint {
    /// When the one before has ended and everything has come to rest.
    Rest,
    /// When so many things have happened since the one before began, if there are as many: device operations that ended,
    /// moments that came.
    After(u32),
    /// The same; and what is in flight then ends long after all that follows.
    Held(u32),
}

/// Operations, each with when it begins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sequence(pub Vec<(Joint, Op)>);

impl Sequence {
    /// This sequence and one more operation.
    #[must_use]
    pub fn and(&self, joint: Joint, op: Op) -> Self {
        let mut steps = self.0.clone();
        steps.push((joint, op));
        Self(steps)
    }

    /// Whether the last operation adds anything over the sequence without it, as far as can be said without trying.
    #[must_use]
    pub fn is_worth_it(&self) -> bool {
        let Some(((joint, last), before)) = self.0.split_last() else { return true };
        let housekeeping = |op: &Op| matches!(op, Op::Flush | Op::Destage | Op::Checkpoint);
        // A pool that nothing was done to has nothing to flush, and the same thing twice does nothing the second time.
        let idle = housekeeping(last)
            && *joint == Joint::Rest
            && before.last().is_none_or(|(_, op)| op == last || matches!((op, last), (Op::Destage, Op::Flush)));
        // One device is lost at most: the pool promises to bear no more.
        let lost = before.iter().filter(|(_, op)| matches!(op, Op::Lose(_))).count();
        let switched = before.iter().any(|(_, op)| *op == Op::WriteThrough);
        !(idle || matches!(last, Op::Lose(_)) && lost > 0 || *last == Op::WriteThrough && switched)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Write(at, n) => write!(f, "write:{at}+{n}"),
            Op::Fua(at, n) => write!(f, "fua:{at}+{n}"),
            Op::Bypass(at, n) => write!(f, "bypass:{at}+{n}"),
            Op::Flush => f.write_str("flush"),
            Op::Discard(at, n) => write!(f, "discard:{at}+{n}"),
            Op::Zero(at, n) => write!(f, "zero:{at}+{n}"),
            Op::Read(at, n) => write!(f, "read:{at}+{n}"),
            Op::Destage => f.write_str("destage"),
            Op::Checkpoint => f.write_str("checkpoint"),
            Op::Lose(m) => write!(f, "lose:{m}"),
            Op::WriteThrough => f.write_str("write-through"),
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, rest) = s.split_once(':').unwrap_or((s, ""));
        let range = || {
            let (at, n) = rest.split_once('+').ok_or_else(|| format!("{name} wants SECTOR+SECTORS, not \"{rest}\""))?;
            match (at.parse::<u64>(), n.parse::<u64>()) {
                (Ok(at), Ok(n)) if n > 0 && at.checked_add(n).is_some_and(|e| e <= super::SECTORS) => Ok((at, n)),
                _ => Err(format!("{rest} is not in a volume of {} sectors", super::SECTORS)),
            }
        };
        Ok(match name {
            "write" => range().map(|(a, n)| Op::Write(a, n))?,
            "fua" => range().map(|(a, n)| Op::Fua(a, n))?,
            "bypass" => range().map(|(a, n)| Op::Bypass(a, n))?,
            "discard" => range().map(|(a, n)| Op::Discard(a, n))?,
            "zero" => range().map(|(a, n)| Op::Zero(a, n))?,
            "read" => range().map(|(a, n)| Op::Read(a, n))?,
            "flush" => Op::Flush,
            "destage" => Op::Destage,
            "checkpoint" => Op::Checkpoint,
            "write-through" => Op::WriteThrough,
            "lose" => match rest {
                "0" => Op::Lose(0),
                "1" => Op::Lose(1),
                _ => return Err(format!("there is no cache device \"{rest}\": 0 or 1")),
            },
            _ => return Err(format!("\"{s}\" is no operation")),
        })
    }
}

impl fmt::Display for Sequence {
    /// `a,b`: b begins when all is at rest after a; `a/3/b`: when 3 things have happened since a began; `a/3h/b`: and
    /// what is in flight then is held up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (joint, op)) in self.0.iter().enumerate() {
            match joint {
                _ if n == 0 => {}
                Joint::Rest => f.write_str(",")?,
                Joint::After(k) => write!(f, "/{k}/")?,
                Joint::Held(k) => write!(f, "/{k}h/")?,
            }
            write!(f, "{op}")?;
        }
        Ok(())
    }
}

impl FromStr for Sequence {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        for part in s.split(',') {
            let mut joint = Joint::Rest;
            for (n, word) in part.split('/').enumerate() {
                if n % 2 == 1 {
                    let number = |w: &str| w.parse().map_err(|_| format!("\"{w}\" is not a number of happenings"));
                    joint = match word.strip_suffix('h') {
                        Some(held) => Joint::Held(number(held)?),
                        None => Joint::After(number(word)?),
                    };
                } else {
                    steps.push((joint, word.parse()?));
                }
            }
        }
        Ok(Self(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_back() {
        for a in ALPHABET {
            for b in ALPHABET {
                let s = Sequence::default().and(Joint::Rest, *a).and(Joint::After(3), *b).and(Joint::Held(1), *a);
                assert_eq!(s.to_string().parse(), Ok(s));
            }
        }
    }

    #[test]
    fn a_sequence_that_names_no_operation_is_refused() {
        for bad in ["", "wriet:0+8", "write:0", "write:120+16", "write:0+0", "lose:2", "flush/x/flush"] {
            assert!(bad.parse::<Sequence>().is_err(), "{bad}");
        }
    }
}

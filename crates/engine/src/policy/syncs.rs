//! A writer that flushes after every write, told from one that writes for a while and flushes then: databases, NFS servers
//! with stable writes, virtual machines' disks. What the first one writes is wanted durable at once; writing it so spares
//! the flush that he would ask for next.

/// Writes in a row, each with a flush of its own, after which the next one is taken to be followed by one, too.
const ENOUGH: u8 = 3;

/// What a volume's last requests were.
#[derive(Clone, Copy, Default, Debug)]
pub struct Syncs {
    /// Writes since the last flush.
    writes: u32,
    /// Writes in a row that had a flush of their own.
    row: u8,
}

impl Syncs {
    /// A write came: whether a flush is likely to follow before another one.
    pub fn write(&mut self) -> bool {
        self.writes = self.writes.saturating_add(1);
        if self.writes > 1 {
            self.row = 0;
        }
        self.row >= ENOUGH
    }

    /// A flush came.
    pub fn flush(&mut self) {
        match self.writes {
            0 => {}
            1 => self.row = self.row.saturating_add(1),
            _ => self.row = 0,
        }
        self.writes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_flushes_each_write_is_seen_as_one_from_the_fourth_on_and_until_he_does_not() {
        let mut syncs = Syncs::default();
        let seen: [bool; 5] = core::array::from_fn(|_| {
            let seen = syncs.write();
            syncs.flush();
            seen
        });
        assert_eq!(seen, [false, false, false, true, true]);
        syncs.flush();
        assert!(syncs.write(), "a flush more is no sign of anything");
        assert!(!syncs.write());
        syncs.flush();
        assert!(!syncs.write());
    }
}

//! What a power cut may do to a drive, and what it may not.

use super::*;

impl Medium for Vec<u8> {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.copy_from_slice(&self[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self[offset as usize..][..len as usize].fill(0);
        Ok(())
    }
}

const SIZE: u64 = 64 * SECTOR;

fn cache() -> Cache<Vec<u8>> {
    Cache::new(vec![0; SIZE as usize], u64::MAX, usize::MAX)
}

fn put(cache: &mut Cache<Vec<u8>>, sector: u64, sectors: u64, with: u8, durable: bool) {
    let data = vec![with; (sectors * SECTOR) as usize];
    cache.write(sector * SECTOR, Content::Data(data), durable).unwrap();
}

#[test]
fn what_was_flushed_survives_every_cut() {
    for seed in 0..200 {
        let mut cache = cache();
        put(&mut cache, 3, 8, 1, false);
        put(&mut cache, 5, 2, 2, false);
        let until = cache.next();
        cache.flush(until).unwrap();
        let cut = cache.cut(&mut Dice(seed)).unwrap();
        assert_eq!(cut, Cut::default());
        let sectors: Vec<u8> = cache.medium.chunks(SECTOR as usize).take(12).map(|sector| sector[0]).collect();
        assert_eq!(sectors, [0, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 0]);
    }
}

#[test]
fn a_flush_covers_what_arrived_before_it_and_nothing_else() {
    let mut vanished = false;
    for seed in 0..200 {
        let mut cache = cache();
        put(&mut cache, 0, 1, 1, false);
        let until = cache.next();
        put(&mut cache, 0, 1, 2, false);
        cache.flush(until).unwrap();
        assert_eq!(cache.pending.len(), 1);
        cache.cut(&mut Dice(seed)).unwrap();
        assert!(cache.medium[0] == 1 || cache.medium[0] == 2);
        vanished |= cache.medium[0] == 1;
    }
    assert!(vanished, "what came after the flush never vanished");
}

#[test]
fn what_was_written_with_forced_unit_access_survives_every_cut_under_older_and_newer_writes() {
    let mut newer = [false; 2];
    for seed in 0..200 {
        let mut cache = cache();
        put(&mut cache, 0, 4, 1, false);
        put(&mut cache, 1, 2, 2, true);
        put(&mut cache, 2, 1, 3, false);
        cache.cut(&mut Dice(seed)).unwrap();
        assert_eq!(cache.medium[SECTOR as usize], 2, "an older write that was not flushed lies over it");
        let last = cache.medium[2 * SECTOR as usize];
        assert!(last == 2 || last == 3);
        newer[usize::from(last == 3)] = true;
    }
    assert_eq!(newer, [true, true]);
}

#[test]
fn what_was_not_flushed_is_kept_dropped_and_torn_at_sectors() {
    let mut seen = [0; 3];
    for seed in 0..200 {
        let mut cache = cache();
        put(&mut cache, 8, 8, 7, false);
        let cut = cache.cut(&mut Dice(seed)).unwrap();
        for (count, by) in seen.iter_mut().zip([cut.kept, cut.dropped, cut.torn]) {
            *count += by;
        }
        for sector in cache.medium.chunks(SECTOR as usize) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector");
        }
        assert_eq!(cache.read(8 * SECTOR, SECTOR).unwrap(), cache.medium[8 * SECTOR as usize..9 * SECTOR as usize]);
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn the_same_seed_cuts_the_same_way() {
    let after = |seed| {
        let mut cache = cache();
        (0..32).for_each(|n| put(&mut cache, n, 3, n as u8 + 1, false));
        cache.cut(&mut Dice(seed)).unwrap();
        cache.medium
    };
    assert!((0..20).all(|seed| after(seed) == after(seed)));
    assert!((0..20).any(|seed| after(seed) != after(seed + 1)));
}

#[test]
fn reads_see_the_newest_of_what_is_pending_and_the_medium_below_it() {
    // Against a plain array that knows no cache, with flushes and a limit that makes the oldest go down at any time.
    let mut dice = Dice(9);
    let mut cache = Cache::new(vec![0; SIZE as usize], 20 * SECTOR, 9);
    let mut plain = vec![0_u8; SIZE as usize];
    for step in 0..20_000_u64 {
        let at = dice.below(60);
        let len = 1 + dice.below(64 - at).min(12);
        let range = (at * SECTOR) as usize..((at + len) * SECTOR) as usize;
        match dice.below(10) {
            0 => {
                let below = cache.next().saturating_sub(dice.below(4));
                cache.flush(below).unwrap();
            }
            1 => {
                cache.write(at * SECTOR, Content::Zeroes(len * SECTOR), dice.below(2) == 0).unwrap();
                plain[range].fill(0);
            }
            2..6 => {
                put(&mut cache, at, len, step as u8, false);
                plain[range].fill(step as u8);
            }
            _ => assert_eq!(cache.read(at * SECTOR, len * SECTOR).unwrap(), plain[range]),
        }
        assert!(cache.bytes <= 20 * SECTOR && cache.pending.len() <= 9);
    }
    let until = cache.next();
    cache.flush(until).unwrap();
    assert!(cache.newest.is_empty() && cache.bytes == 0 && cache.medium == plain);
}

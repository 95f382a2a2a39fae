//! Where the journal of a file system is on its device: of ext4 (and ldiskfs, which is ext4) and of XFS.
//!
//! Read from the superblocks: for ext4 the journal's inode is found in the first group's inode table, and its extents are
//! followed; the log of XFS is one run. Field offsets are those of the kernel's documentation of both formats
//! (Documentation/filesystems/ext4, and the XFS Algorithms & Data Structures document).

use std::io;
use std::ops::Range;

/// The longest journal that is believed, the most runs that it has, and the most blocks that are read to find them: what a damaged file
/// system says is bounded. The largest journal that ext4 makes has 40,000 such blocks.
const MOST_BYTES: u64 = 64 << 30;
const MOST_EXTENTS: usize = 1 << 16;
const MOST_NODES: usize = 1 << 16;

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// The file system that it belongs to.
    pub of: &'static str,
    /// Where it is, in bytes of the device.
    pub runs: Vec<Range<u64>>,
}

/// Why no journal was found.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum JournalError {
    #[error("it cannot be read: {0}. Nothing was changed. Look at the kernel's log")]
    Read(#[from] io::Error),
    #[error(
        "there is neither ext4 nor XFS on it. Nothing was changed. Name what is to be pinned by its range, as VOLUME:OFFSET+LENGTH"
    )]
    NoFileSystem,
    #[error(
        "its {0} keeps no journal on this device. Nothing was changed. Name the device that the journal is on, if it is a volume"
    )]
    NotHere(&'static str),
    #[error(
        "what its {of} says of the journal makes no sense: {what}. Nothing was changed. Check the file system with its own tool"
    )]
    Senseless { of: &'static str, what: &'static str },
}

/// Reads bytes at an offset: all of them, or an error.
pub type Read<'a> = &'a mut dyn FnMut(u64, usize) -> io::Result<Vec<u8>>;

/// Finds the journal of the file system that begins at the device's first byte.
///
/// # Errors
/// There is none, or what the superblock says of it makes no sense.
pub fn find(read: Read<'_>) -> Result<Journal, JournalError> {
    let head = read(0, 4096)?;
    if head.starts_with(b"XFSB") {
        return xfs(&head);
    }
    if le16(&head, 1024 + 56) == 0xef53 {
        return ext4(&head[1024..2048], read);
    }
    Err(JournalError::NoFileSystem)
}

fn be32(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 4).map_or(0, |b| u64::from(u32::from_be_bytes([b[0], b[1], b[2], b[3]])))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    be32(bytes, at) << 32 | be32(bytes, at + 4)
}

fn le16(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 2).map_or(0, |b| u64::from(u16::from_le_bytes([b[0], b[1]])))
}

fn le32(bytes: &[u8], at: usize) -> u64 {
    le16(bytes, at) | le16(bytes, at + 2) << 16
}

fn xfs(sb: &[u8]) -> Result<Journal, JournalError> {
    let senseless = |what| JournalError::Senseless { of: "XFS", what };
    let (block, log_start, ag_blocks, log_blocks) = (be32(sb, 4), be64(sb, 48), be32(sb, 84), be32(sb, 96));
    let ag_log = u32::from(sb[124]);
    if log_start == 0 {
        return Err(JournalError::NotHere("XFS"));
    }
    if !(512..=65536).contains(&block) || ag_log > 32 || log_blocks == 0 || log_blocks * block > MOST_BYTES {
        return Err(senseless("the log's size"));
    }
    // A block's number holds its group in the upper bits, and its place there in the lower ones.
    let (group, within) = (log_start >> ag_log, log_start & ((1 << ag_log) - 1));
    let first = group.checked_mul(ag_blocks).and_then(|blocks| blocks.checked_add(within)).and_then(|b| b.checked_mul(block));
    let first = first.filter(|at| *at < 1 << 60).ok_or(senseless("the log's place"))?;
    let log = first..first + log_blocks * block;
    Ok(Journal { of: "XFS", runs: std::iter::once(log).collect() })
}

fn ext4(sb: &[u8], read: Read<'_>) -> Result<Journal, JournalError> {
    let senseless = |what| JournalError::Senseless { of: "ext4", what };
    const HAS_JOURNAL: u64 = 0x4;
    const WIDE: u64 = 0x80;
    let (log_block, inode_bytes, inode) = (le32(sb, 24), le16(sb, 88), le32(sb, 224));
    if le32(sb, 92) & HAS_JOURNAL == 0 || inode == 0 {
        return Err(JournalError::NotHere("ext4"));
    }
    if log_block > 6 || !(128..=65536).contains(&inode_bytes) || inode > le32(sb, 40) {
        return Err(senseless("its geometry"));
    }
    let block = 1024u64 << log_block;
    // The descriptor of the first group, behind the superblock's block, says where the inode table is.
    let at = (le32(sb, 20) + 1) * block;
    let descriptor = read(at, 64)?;
    let wide = le32(sb, 96) & WIDE != 0 && le16(sb, 254) >= 64;
    let table = le32(&descriptor, 8) | if wide { le32(&descriptor, 40) << 32 } else { 0 };
    let place = table.checked_mul(block).and_then(|at| at.checked_add((inode - 1) * inode_bytes));
    let place = place.filter(|at| *at < 1 << 60);
    let place = place.ok_or(senseless("where its inodes are"))?;
    // Read at a border that any device has.
    let (from, skip) = (place / 4096 * 4096, (place % 4096) as usize);
    let inodes = read(from, 8192)?;
    let inode = &inodes[skip..skip + 128];
    const EXTENTS: u64 = 0x80000;
    let size = le32(inode, 4) | le32(inode, 108) << 32;
    if size == 0 || size > MOST_BYTES {
        return Err(senseless("the journal's size"));
    }
    let mut runs = Vec::new();
    let mut nodes = 0;
    let mut node = |number: u64| -> Result<Vec<u8>, JournalError> {
        nodes += 1;
        let at = number.checked_mul(block).filter(|at| *at < 1 << 60 && nodes <= MOST_NODES);
        Ok(read(at.ok_or(senseless("where the journal's blocks are listed"))?, block as usize)?)
    };
    match le32(inode, 32) & EXTENTS {
        0 => mapped(&inode[40..100], block, size.div_ceil(block), &mut node, &mut runs)?,
        _ => extents(&inode[40..100], block, 6, &mut node, &mut runs)?,
    }
    let runs = crate::extents::merged(runs);
    let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
    if runs.is_empty() || bytes > size.next_multiple_of(block) || runs.iter().any(|run| run.end > 1 << 60) {
        return Err(senseless("the journal's place"));
    }
    Ok(Journal { of: "ext4", runs })
}

/// Reads a block of the file system.
type ReadNode<'a> = &'a mut dyn FnMut(u64) -> Result<Vec<u8>, JournalError>;

/// The leaves of an extent tree.
fn extents(node: &[u8], block: u64, depth: u64, read: ReadNode<'_>, runs: &mut Vec<Range<u64>>) -> Result<(), JournalError> {
    let senseless = |what| JournalError::Senseless { of: "ext4", what };
    let (magic, entries, level) = (le16(node, 0), le16(node, 2), le16(node, 6));
    if magic != 0xf30a || level >= depth || 12 + entries as usize * 12 > node.len() {
        return Err(senseless("its extents"));
    }
    for entry in node[12..].chunks_exact(12).take(entries as usize) {
        if level > 0 {
            let child = read(le32(entry, 4) | le16(entry, 8) << 32)?;
            extents(&child, block, level, read, runs)?;
        } else {
            // Longer than this it is one that was never written.
            let count = le16(entry, 4);
            let count = if count > 32768 { count - 32768 } else { count };
            let first = le32(entry, 8) | le16(entry, 6) << 32;
            runs.push(first.saturating_mul(block)..(first + count).saturating_mul(block));
        }
        if runs.len() > MOST_EXTENTS {
            return Err(senseless("its extents"));
        }
    }
    Ok(())
}

/// The blocks of an inode of the older kind: twelve, and trees of one, two and three levels.
fn mapped(map: &[u8], block: u64, blocks: u64, read: ReadNode<'_>, runs: &mut Vec<Range<u64>>) -> Result<(), JournalError> {
    let mut left = blocks;
    for n in 0..12 {
        take(le32(map, n * 4), 0, block, &mut left, read, runs)?;
    }
    for level in 1..=3 {
        take(le32(map, (11 + level as usize) * 4), level, block, &mut left, read, runs)?;
    }
    Ok(())
}

fn take(
    number: u64,
    level: u32,
    block: u64,
    left: &mut u64,
    read: ReadNode<'_>,
    runs: &mut Vec<Range<u64>>,
) -> Result<(), JournalError> {
    if *left == 0 {
        return Ok(());
    }
    if number == 0 {
        // A journal has no holes; and a tree of them would have no end.
        return Err(JournalError::Senseless { of: "ext4", what: "its block map" });
    }
    if level == 0 {
        *left -= 1;
        let is_full = runs.len() == MOST_EXTENTS;
        match runs.last_mut() {
            Some(last) if last.end == number * block => last.end += block,
            _ if is_full => return Err(JournalError::Senseless { of: "ext4", what: "its block map" }),
            _ => runs.push(number * block..(number + 1) * block),
        }
        return Ok(());
    }
    let table = read(number)?;
    for entry in table.chunks_exact(4) {
        take(le32(entry, 0), level - 1, block, left, read, runs)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    fn made(program: &str, args: &[&str], bytes: u64) -> Option<(tempfile::TempDir, std::fs::File)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(bytes).unwrap();
        let made = Command::new(program).args(args).arg(&path).output().ok()?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some((folder, file))
    }

    fn found(file: &std::fs::File) -> Result<Journal, JournalError> {
        find(&mut |at, len| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at)?;
            Ok(bytes)
        })
    }

    /// It was a panic.
    #[test]
    fn a_journal_whose_inode_would_be_beyond_all_bytes_is_refused() {
        let Some((_folder, file)) = made("mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "64bit"], 256 << 20) else {
            return println!("left out: no mkfs.ext4");
        };
        file.write_all_at(&100_u32.to_le_bytes(), 1024 + 224).unwrap();
        // The inode table in the last block that has a number in bytes.
        file.write_all_at(&u32::MAX.to_le_bytes(), 4096 + 8).unwrap();
        file.write_all_at(&(u32::MAX >> 12).to_le_bytes(), 4096 + 40).unwrap();
        assert!(matches!(found(&file), Err(JournalError::Senseless { of: "ext4", what: "where its inodes are" })));
    }

    /// The journal's superblock begins with a number of its own.
    #[test]
    fn the_journal_of_ext4_is_found_with_extents_and_with_a_block_map() {
        for args in [&["-q", "-F"][..], &["-q", "-F", "-O", "^extents,^64bit"], &["-q", "-F", "-b", "1024", "-O", "^64bit"]] {
            let Some((_folder, file)) = made("mkfs.ext4", args, 256 << 20) else { return println!("left out: no mkfs.ext4") };
            let journal = found(&file).unwrap();
            let bytes: u64 = journal.runs.iter().map(|run| run.end - run.start).sum();
            assert!((1 << 20..=64 << 20).contains(&bytes), "{journal:?}");
            let mut magic = [0; 4];
            file.read_exact_at(&mut magic, journal.runs[0].start).unwrap();
            assert_eq!(u32::from_be_bytes(magic), 0xc03b_3998, "{args:?}: {journal:?}");
        }
    }

    #[test]
    fn the_log_of_xfs_is_found() {
        let Some((_folder, file)) = made("mkfs.xfs", &["-q", "-f"], 512 << 20) else { return println!("left out: no mkfs.xfs") };
        let journal = found(&file).unwrap();
        let mut magic = [0; 4];
        file.read_exact_at(&mut magic, journal.runs[0].start).unwrap();
        assert_eq!(u32::from_be_bytes(magic), 0xfeed_babe, "{journal:?}");
    }

    /// A tree whose nodes all lead to the same ones below was followed for as long as it takes to read thousands of millions of blocks.
    #[test]
    fn a_tree_of_extents_that_has_no_end_is_an_error() {
        /// A node of this level, each of whose entries leads to block 100 and a level less.
        fn node(level: u16, bytes: usize) -> Vec<u8> {
            let entries = if level == 0 { 0 } else { (bytes - 12) / 12 };
            let mut node = [0xf30a, entries as u16, entries as u16, level, 0, 0].map(u16::to_le_bytes).concat();
            let entry = [[0; 4], (99 + u32::from(level)).to_le_bytes(), [0; 4]].concat();
            node.extend(entry.repeat(entries));
            node.resize(bytes, 0);
            node
        }
        let root = || {
            let mut inode = vec![0; 128];
            inode[4..8].copy_from_slice(&(1u32 << 20).to_le_bytes());
            inode[32..36].copy_from_slice(&0x80000u32.to_le_bytes());
            inode[40..100].copy_from_slice(&node(5, 60));
            inode
        };
        let mut reads = 0;
        let found = find(&mut |at, len| {
            reads += 1;
            if reads > 4 * MOST_NODES {
                return Err(io::Error::other("it goes on and on"));
            }
            let mut bytes = vec![0; len];
            match at {
                // Blocks of 4 KiB, inodes of 128 bytes, 100 of them, the journal's the first; all features but a journal's are off.
                0 => {
                    for (field, value) in [(24, 2), (40, 100), (88, 128), (92, 4), (224, 1)] {
                        bytes[1024 + field..1028 + field].copy_from_slice(&u32::to_le_bytes(value));
                    }
                    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
                }
                4096 => bytes[8] = 2,
                8192 => bytes[..128].copy_from_slice(&root()),
                at => bytes = node((at / 4096 - 100) as u16, len),
            }
            Ok(bytes)
        });
        assert!(matches!(found, Err(JournalError::Senseless { .. })), "{found:?}");
    }

    #[test]
    fn what_is_no_file_system_or_makes_no_sense_is_an_error_and_no_more() {
        let mut nothing = |_: u64, len: usize| Ok(vec![0; len]);
        assert!(matches!(find(&mut nothing), Err(JournalError::NoFileSystem)));
        let mut seed = 1u64;
        for magic in [&b"XFSB"[..], &[]] {
            for _ in 0..20_000 {
                let mut noise = |_: u64, len: usize| {
                    let mut bytes: Vec<u8> = (0..len)
                        .map(|_| {
                            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                            // Small numbers are what gets furthest.
                            if seed >> 62 == 0 { (seed >> 33) as u8 } else { 0 }
                        })
                        .collect();
                    bytes[..magic.len()].copy_from_slice(magic);
                    if magic.is_empty() && len >= 2048 {
                        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
                    }
                    Ok(bytes)
                };
                let _ = find(&mut noise);
            }
        }
    }
}

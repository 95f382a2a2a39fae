//! Signatures of what may be on a device that somebody wants to make a cache device.
//!
//! A small table of what storage servers are likely to hold; `wipefs` knows more.

/// Where a signature is.
enum At {
    /// Bytes from the start.
    Start(u64),
    /// Bytes from the end.
    End(u64),
    /// Bytes from the start of the last 64 KiB-aligned 64 KiB that is followed by room (md 0.90).
    LastAligned64K,
    /// Any multiple of 1 KiB in this range of KiB from the start.
    Within(u64, u64),
}
use At::{End, LastAligned64K, Start, Within};

const TABLE: &[(&str, At, &[u8])] = &[
    ("a LUKS volume", Start(0), b"LUKS\xba\xbe"),
    ("an XFS file system", Start(0), b"XFSB"),
    ("a Ceph BlueStore device", Start(0), b"bluestore block device"),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an ext2, ext3 or ext4 file system", Start(1080), b"\x53\xef"),
    ("a Btrfs file system", Start(65_600), b"_BHRfS_M"),
    ("swap space", Start(4086), b"SWAPSPACE2"),
    ("swap space", Start(4086), b"SWAP-SPACE"),
    ("swap space", Start(65_526), b"SWAPSPACE2"),
    ("an LVM physical volume", Start(0), b"LABELONE"),
    ("an LVM physical volume", Start(512), b"LABELONE"),
    ("an LVM physical volume", Start(1024), b"LABELONE"),
    ("an LVM physical volume", Start(1536), b"LABELONE"),
    ("a member of an md array", Start(0), b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", Start(4096), b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", End(8192), b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", LastAligned64K, b"\xfc\x4e\x2b\xa9"),
    ("a bcache device", Start(4120), b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("a member of a ZFS pool", Within(128, 256), b"\x0c\xb1\xba\0\0\0\0\0"),
    ("a partition table (GPT)", Start(512), b"EFI PART"),
    ("a partition table (GPT)", Start(4096), b"EFI PART"),
    ("a partition table (GPT)", End(512), b"EFI PART"),
    ("a partition table (GPT)", End(4096), b"EFI PART"),
    ("a partition table or a boot sector (MBR)", Start(510), b"\x55\xaa"),
];

/// What a device of `size` bytes holds, by its first bytes and those from `tail_at` on.
pub fn find(head: &[u8], tail: &[u8], tail_at: u64, size: u64) -> Option<&'static str> {
    let in_head = |at: u64, magic: &[u8]| head.get(at as usize..).is_some_and(|bytes| bytes.starts_with(magic));
    let in_tail = |at: Option<u64>, magic: &[u8]| {
        let bytes = at.and_then(|at| tail.get(at.checked_sub(tail_at)? as usize..));
        bytes.is_some_and(|bytes| bytes.starts_with(magic))
    };
    let there = |at: &At, magic: &[u8]| match at {
        Start(at) => in_head(*at, magic),
        End(before) => in_tail(size.checked_sub(*before), magic),
        LastAligned64K => in_tail((size / 65_536 * 65_536).checked_sub(65_536), magic),
        Within(from, to) => (*from..*to).any(|kib| in_head(kib * 1024, magic)),
    };
    TABLE.iter().find(|(_, at, magic)| there(at, magic)).map(|(what, ..)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_found_where_it_belongs_and_nothing_in_zeroes() {
        let (size, tail_at) = (8 << 20, (8 << 20) - (512 << 10));
        let blank = vec![0; 512 << 10];
        assert_eq!(find(&blank, &blank, tail_at, size), None);
        for (what, at, magic) in TABLE {
            let (mut head, mut tail) = (blank.clone(), blank.clone());
            let (bytes, at) = match at {
                Start(at) => (&mut head, *at),
                Within(_, to) => (&mut head, (to - 1) * 1024),
                End(before) => (&mut tail, size - before - tail_at),
                LastAligned64K => (&mut tail, (512 - 64) << 10),
            };
            bytes[at as usize..][..magic.len()].copy_from_slice(magic);
            assert_eq!(find(&head, &tail, tail_at, size), Some(*what));
        }
    }
}

//! Signatures of what may be on a device that somebody wants to make a cache device.
//!
//! A small table of what storage servers are likely to hold; `wipefs` knows more.

/// Where a signature is.
enum At {
    /// Bytes from the start.
    Start(u64),
    /// Bytes from the end.
    End(u64),
    /// In the last page but one (md 1.0).
    LastPageButOne,
    /// Bytes from the start of the last 64 KiB-aligned 64 KiB that is followed by room (md 0.90).
    LastAligned64K,
    /// Any multiple of 1 KiB in this range of KiB from the start.
    Within(u64, u64),
}
use At::{End, LastAligned64K, LastPageButOne, Start, Within};

const TABLE: &[(&str, At, &[u8])] = &[
    ("a LUKS volume", Start(0), b"LUKS\xba\xbe"),
    ("an XFS file system", Start(0), b"XFSB"),
    ("a Ceph BlueStore device", Start(0), b"bluestore block device"),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an ext2, ext3 or ext4 file system", Start(1080), b"\x53\xef"),
    ("a Btrfs file system", Start(65_600), b"_BHRfS_M"),
    ("a LUKS volume", Start(0x4000), b"SKUL\xba\xbe"),
    ("a LUKS volume", Start(0x8000), b"SKUL\xba\xbe"),
    ("a LUKS volume", Start(0x1_0000), b"SKUL\xba\xbe"),
    ("a LUKS volume", Start(0x2_0000), b"SKUL\xba\xbe"),
    ("a LUKS volume", Start(0x4_0000), b"SKUL\xba\xbe"),
    ("a BitLocker volume", Start(3), b"-FVE-FS-"),
    ("an F2FS file system", Start(1024), b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", Start(1024), b"\xe2\xe1\xf5\xe0"),
    ("a Minix file system", Start(1040), b"\x7f\x13"),
    ("a Minix file system", Start(1040), b"\x8f\x13"),
    ("a Minix file system", Start(1040), b"\x68\x24"),
    ("a Minix file system", Start(1040), b"\x78\x24"),
    ("a Minix file system", Start(1048), b"\x5a\x4d"),
    ("a NILFS2 file system", Start(1030), b"\x34\x34"),
    ("a GFS2 file system", Start(65_536), b"\x01\x16\x19\x70"),
    ("an OCFS2 file system", Start(1024), b"OCFSV2"),
    ("an OCFS2 file system", Start(2048), b"OCFSV2"),
    ("an OCFS2 file system", Start(4096), b"OCFSV2"),
    ("an OCFS2 file system", Start(8192), b"OCFSV2"),
    ("a JFS file system", Start(32_768), b"JFS1"),
    ("a ReiserFS file system", Start(8244), b"ReIsErFs"),
    ("a ReiserFS file system", Start(65_588), b"ReIsErFs"),
    ("a ReiserFS file system", Start(65_588), b"ReIsEr2Fs"),
    ("a ReiserFS file system", Start(65_588), b"ReIsEr3Fs"),
    ("a Reiser4 file system", Start(65_536), b"ReIsEr4"),
    ("a UFS file system", Start(9564), b"\x54\x19\x01\x00"),
    ("a UFS file system", Start(66_908), b"\x19\x01\x54\x19"),
    ("an HFS+ file system", Start(1024), b"H+\0\x04"),
    ("an HFS+ file system", Start(1024), b"HX\0\x05"),
    ("an APFS container", Start(32), b"NXSB"),
    ("a ReFS file system", Start(0), b"\0\0\0ReFS\0"),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("a FAT file system", Start(82), b"FAT32   "),
    ("a FAT file system", Start(54), b"FAT16   "),
    ("a FAT file system", Start(54), b"FAT12   "),
    ("a BFS file system", Start(0), b"\xce\xfa\xad\x1b"),
    ("a cramfs file system", Start(0), b"\x45\x3d\xcd\x28"),
    ("a squashfs file system", Start(0), b"hsqs"),
    ("an ISO 9660 file system", Start(32_769), b"CD001"),
    ("a UDF file system", Start(32_769), b"BEA01"),
    ("swap space", Start(4086), b"SWAPSPACE2"),
    ("swap space", Start(4086), b"SWAP-SPACE"),
    ("swap space", Start(65_526), b"SWAPSPACE2"),
    ("an LVM physical volume", Start(0), b"LABELONE"),
    ("an LVM physical volume", Start(512), b"LABELONE"),
    ("an LVM physical volume", Start(1024), b"LABELONE"),
    ("an LVM physical volume", Start(1536), b"LABELONE"),
    ("a member of an md array", Start(0), b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", Start(4096), b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", LastPageButOne, b"\xfc\x4e\x2b\xa9"),
    ("a member of an md array", LastAligned64K, b"\xfc\x4e\x2b\xa9"),
    ("a member of a firmware RAID (Intel)", End(1024), b"Intel Raid ISM Cfg Sig. "),
    ("a member of a firmware RAID (DDF)", End(512), b"\xde\x11\xde\x11"),
    ("a VDO volume", Start(0), b"dmvdo001"),
    ("a dm-integrity device", Start(0), b"integrt\0"),
    ("the hashes of a dm-verity device", Start(0), b"verity\0\0"),
    ("a copy-on-write store of a snapshot", Start(0), b"SnAp"),
    ("a device of an Oracle ASM disk group", Start(32), b"ORCLDISK"),
    ("a bcachefs file system", Start(4120), b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
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
        // 8 KiB before the end, and down from there to a page's beginning.
        LastPageButOne => in_tail(size.checked_sub(8192).map(|at| at / 4096 * 4096), magic),
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
                LastPageButOne => (&mut tail, size - 8192 - tail_at),
                LastAligned64K => (&mut tail, (512 - 64) << 10),
            };
            bytes[at as usize..][..magic.len()].copy_from_slice(magic);
            assert_eq!(find(&head, &tail, tail_at, size), Some(*what));
        }
    }
    /// F2FS and Minix, among others, were overwritten without a word.
    #[test]
    fn file_systems_are_known_by_the_numbers_that_their_documentation_gives() {
        let numbers: [(&str, usize, &[u8]); 12] = [
            ("an F2FS file system", 1024, &0xf2f5_2010_u32.to_le_bytes()),
            ("an EROFS file system", 1024, &0xe0f5_e1e2_u32.to_le_bytes()),
            ("a Minix file system", 1024 + 16, &0x137f_u16.to_le_bytes()),
            ("a Minix file system", 1024 + 16, &0x138f_u16.to_le_bytes()),
            ("a Minix file system", 1024 + 16, &0x2468_u16.to_le_bytes()),
            ("a Minix file system", 1024 + 16, &0x2478_u16.to_le_bytes()),
            ("a Minix file system", 1024 + 24, &0x4d5a_u16.to_le_bytes()),
            ("a NILFS2 file system", 1024 + 6, &0x3434_u16.to_le_bytes()),
            ("a GFS2 file system", 64 << 10, &0x0116_1970_u32.to_be_bytes()),
            ("a UFS file system", (8 << 10) + 1372, &0x0001_1954_u32.to_le_bytes()),
            ("a UFS file system", (64 << 10) + 1372, &0x1954_0119_u32.to_le_bytes()),
            ("a cramfs file system", 0, &0x28cd_3d45_u32.to_le_bytes()),
        ];
        let blank = vec![0; 512 << 10];
        for (what, at, magic) in numbers {
            let mut head = blank.clone();
            head[at..][..magic.len()].copy_from_slice(magic);
            assert_eq!(find(&head, &blank, 512 << 10, 1 << 20), Some(what));
        }
    }
}

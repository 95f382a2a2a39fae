//! What Linux knows about a device or file: read at open, copied to the front ends, compared at the next start.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, fstatvfs, major, makedev, minor, statx};

/// What is behind a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A block device: a disk, a partition, an array.
    Block,
    /// A regular file.
    File,
}

/// Facts about a device. For a file, those of the disk below its file system where that is one disk.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Block device or file.
    pub kind: Kind,
    /// Size in bytes, rounded down to whole logical blocks.
    pub size: u64,
    /// The unit of direct I/O, in bytes: offsets and lengths are multiples of it.
    pub logical_block: u32,
    /// The unit that the medium writes without reading first, in bytes.
    pub physical_block: u32,
    /// Alignment that direct I/O wants of memory, in bytes.
    pub memory_alignment: u32,
    /// The size of request that suits best (an array's stripe), in bytes; 0 if the device does not say.
    pub optimal_io: u32,
    /// Whether it is a rotating disk; `false` if unknown.
    pub rotational: bool,
    /// Read-ahead of the block layer, in KiB; 128, the kernel's default, if unknown.
    pub read_ahead_kb: u32,
    /// Whether writes need a flush to be durable; `true` if unknown.
    pub volatile_cache: bool,
    /// Whether it writes past its volatile cache itself where it is asked to; `false` if unknown, and the kernel would flush it instead.
    pub forced_unit_access: bool,
    /// Whether what is written must not change until it is down, since the device computes something of it (checksums, an array's parity);
    /// `true` if unknown.
    pub stable_writes: bool,
    /// Whether what it is told to discard reads as zeroes afterwards without being written: clients' discards are offered only then.
    pub discards: bool,
    /// What names this very device across restarts, if anything does.
    ///
    /// `partuuid:`, `wwid:`, `serial:`, `dm:` (an LV, multipath, LUKS) or `md:` (an array) and a value; for a file
    /// `file:<inode>:<file system>`, where the latter comes from the file system's UUID on ext4 and btrfs, but is only a device
    /// number on XFS. Loop devices, zvols and virtio disks without a serial have none.
    pub identity: Option<String>,
    /// Where it, or a partition of it, is mounted.
    pub mounted: Option<PathBuf>,
}

/// What is at a path, as far as the kernel knows: the server of a network file system may be gone, and would be waited for if it were asked for
/// what has changed. Where the kernel has forgotten the path itself it is asked all the same.
pub fn look(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

/// Which file or device is at a path, and of what kind: of one that others have open, the kernel knows this. Whatever else is asked for, its
/// file system may have to ask for, whose server may be gone.
pub fn which(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO)?)
}

/// What kind of thing that is.
pub fn kind(it: &Statx) -> FileType {
    FileType::from_raw_mode(it.stx_mode.into())
}

/// The number of the device that it is.
pub fn number(it: &Statx) -> u64 {
    makedev(it.stx_rdev_major, it.stx_rdev_minor)
}

/// The number of the device that its file system is on.
pub fn number_below(it: &Statx) -> u64 {
    makedev(it.stx_dev_major, it.stx_dev_minor)
}

impl Facts {
    /// Reads the facts of an open block device or regular file. Not one byte of its content is read.
    pub fn of(mut file: &File) -> io::Result<Facts> {
        let meta = file.metadata()?;
        let (kind, number) = match meta.file_type() {
            kind if kind.is_block_device() => (Kind::Block, meta.rdev()),
            kind if kind.is_file() => (Kind::File, meta.dev()),
            _ => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a block device nor a regular file"));
            }
        };
        let node = sysfs(number);
        let queue = |name: &str| {
            // A partition has no queue of its own: its parent's counts.
            read(&node.join("queue").join(name)).or_else(|| read(&node.join("../queue").join(name)))
        };
        let sector: u32 = number_in(queue("logical_block_size")).unwrap_or(4096);
        let (memory, offset) = match direct_io(file, kind)? {
            Some(direct) => direct,
            None => (number_in::<u32>(queue("dma_alignment")).map_or(512, |mask| mask + 1), sector),
        };
        let logical_block = if kind == Kind::Block { sector } else { offset };
        // A device's own metadata says 0; the end of its content is where it ends.
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Facts {
            kind,
            size: size - size % u64::from(logical_block),
            logical_block,
            physical_block: number_in(queue("physical_block_size")).unwrap_or(4096),
            memory_alignment: memory,
            optimal_io: number_in(queue("optimal_io_size")).unwrap_or(0),
            rotational: queue("rotational").is_some_and(|it| it == "1"),
            read_ahead_kb: number_in(queue("read_ahead_kb")).unwrap_or(128),
            volatile_cache: queue("write_cache").is_none_or(|it| it != "write through"),
            forced_unit_access: queue("fua").is_some_and(|it| it == "1"),
            stable_writes: queue("stable_writes").is_none_or(|it| it != "0"),
            discards: match kind {
                Kind::Block => discards(number_in(queue("discard_max_bytes")), number_in(queue("write_zeroes_max_bytes"))),
                Kind::File => true,
            },
            identity: match kind {
                Kind::Block => identity(&node, Path::new(UDEV)),
                Kind::File => Some(format!("file:{}:{:016x}", meta.ino(), fstatvfs(file.as_fd())?.f_fsid)),
            },
            mounted: (kind == Kind::Block).then(|| mounted(number)).flatten(),
        })
    }
}

/// Where udev keeps what it knows of devices, a file for each.
const UDEV: &str = "/run/udev/data";

/// Whether a disk with these limits in bytes, if it tells them, discards, and can be had to read as zeroes there.
///
/// The engine relies on the zeroes, which BLKDISCARD does not promise, so a disk is told to zero and may unmap. One without either limit
/// would be written with zeroes in place of what costs nothing on the disk alone, or is refused there at once: it rotates, or is an array,
/// or a thin volume. Some that do not discard have a command that writes zeroes, which takes as long as the medium does.
fn discards(discard_max: Option<u64>, write_zeroes_max: Option<u64>) -> bool {
    discard_max.is_some_and(|bytes| bytes > 0) && write_zeroes_max.is_some_and(|bytes| bytes > 0)
}

/// (memory, offset) alignment of direct I/O in bytes, where the kernel tells (Linux 6.1).
fn direct_io(file: &File, kind: Kind) -> io::Result<Option<(u32, u32)>> {
    let Ok(facts) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(None);
    };
    if facts.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    if facts.stx_dio_offset_align == 0 && kind == Kind::File {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "its file system has no direct I/O"));
    }
    Ok((facts.stx_dio_offset_align != 0).then_some((facts.stx_dio_mem_align, facts.stx_dio_offset_align)))
}

/// The folder in which the kernel describes a block device.
pub(crate) fn sysfs(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number_in<T: FromStr>(text: Option<String>) -> Option<T> {
    text?.parse().ok()
}

fn identity(node: &Path, udev: &Path) -> Option<String> {
    let uevent = read(&node.join("uevent")).unwrap_or_default();
    if let Some(uuid) = uevent.lines().find_map(|line| line.strip_prefix("PARTUUID=")) {
        return Some(format!("partuuid:{uuid}"));
    }
    // A partition without one goes by its disk's name and its own number.
    let (disk, part) = match read(&node.join("partition")) {
        Some(part) => (node.join(".."), format!(":part{part}")),
        None => (node.to_path_buf(), String::new()),
    };
    let names = [
        ("wwid", "wwid"),
        ("wwid", "device/wwid"),
        ("serial", "serial"),
        ("serial", "device/serial"),
        // What LVM, multipath or cryptsetup called it; `dmsetup create` alone gives it no name.
        ("dm", "dm/uuid"),
    ];
    let named = names.iter().find_map(|(kind, file)| Some(format!("{kind}:{}{part}", read(&disk.join(file))?)));
    named.or_else(|| Some(format!("md:{}{part}", array(&disk, udev)?)))
}

/// The UUID of an md array: 32 hexadecimal digits, the same whoever tells it, as the kernel may be older or newer the next time.
fn array(disk: &Path, udev: &Path) -> Option<String> {
    let digits = |uuid: &str| uuid.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase();
    let version = read(&disk.join("md/metadata_version"))?;
    // The kernel knows nothing of metadata that is not its own, and mdadm turns the bytes of version 0.90.
    let kernel = version.starts_with("1.").then(|| read(&disk.join("md/uuid"))).flatten();
    let mdadm = || {
        let known = read(&udev.join(format!("b{}", read(&disk.join("dev"))?)))?;
        known.lines().find_map(|line| line.strip_prefix("E:MD_UUID=")).map(str::to_owned)
    };
    let is_one = |uuid: &String| uuid.len() == 32 && uuid.bytes().any(|digit| digit != b'0');
    kernel.map(|it| digits(&it)).filter(is_one).or_else(|| mdadm().map(|it| digits(&it)).filter(is_one))
}

/// Where the block device with this number, or a partition of it, is mounted.
pub(crate) fn mounted(number: u64) -> Option<PathBuf> {
    let mut numbers = vec![format!("{}:{}", major(number), minor(number))];
    if let Ok(entries) = fs::read_dir(sysfs(number)) {
        numbers.extend(entries.flatten().filter_map(|entry| {
            let part = entry.path();
            part.join("partition").exists().then(|| read(&part.join("dev"))).flatten()
        }));
    }
    // This daemon's own namespace may lack what is mounted on its volumes.
    let mounts = ["/proc/self/mountinfo", "/proc/1/mountinfo"].map(|path| fs::read_to_string(path).unwrap_or_default());
    mounts.iter().flat_map(|mounts| mounts.lines()).find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let number = words.next()?;
        let point = words.nth(1)?;
        numbers.iter().any(|own| own == number).then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_discards_only_if_it_takes_discards_and_zeroes_by_itself() {
        let (none, some) = (Some(0), Some(1 << 31));
        assert!(discards(some, some));
        // A rotating disk, md RAID 5 and 6; a SAS disk that writes zeroes at its own speed; a thin volume; a kernel that does not tell.
        for (discard_max, write_zeroes_max) in [(none, none), (none, some), (some, none), (None, None)] {
            assert!(!discards(discard_max, write_zeroes_max), "{discard_max:?} {write_zeroes_max:?}");
        }
    }

    /// A folder of sysfs with these files, and what udev knows of the device 9:127.
    fn identity_of(files: &[(&str, &str)], part: Option<&str>, udev: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let (disk, known) = (folder.path().join("disk"), folder.path().join("udev"));
        for (name, text) in [&[("dev", "9:127\n"), ("uevent", "MAJOR=9\nMINOR=127\n")], files].concat() {
            let path = disk.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(&known).unwrap();
        fs::write(known.join("b9:127"), udev).unwrap();
        identity(&part.map_or(disk.clone(), |part| disk.join(part)), &known)
    }

    /// md127 of one boot is md126 of the next, and dm-3 is dm-4: known by the number alone, a volume on them was not served any more.
    #[test]
    fn arrays_and_what_the_device_mapper_makes_are_known_by_their_uuid_whatever_their_number() {
        let of = |files: &[(&str, &str)]| identity_of(files, None, "");
        let lv = "LVM-q1TmfSOuRZGPjIHDRvHLqZ1VhCAbfsBFxkYlGLp2vzRi2JmGd0eyZx1dJbl0gVJb";
        assert_eq!(of(&[("dm/uuid", &format!("{lv}\n"))]), Some(format!("dm:{lv}")));
        assert_eq!(of(&[("dm/uuid", "\n")]), None, "made by dmsetup without a uuid");
        assert_eq!(of(&[("serial", "\n")]), None, "a virtio disk without a serial");
        let array = [("md/metadata_version", "1.2\n"), ("md/uuid", "e2a51e5c-7d0f-4b1a-9d6e-8f6c3b0a1d2e\n")];
        assert_eq!(of(&array).as_deref(), Some("md:e2a51e5c7d0f4b1a9d6e8f6c3b0a1d2e"));
        let part = [&array[..], &[("md127p2/partition", "2\n"), ("md127p2/uevent", "PARTN=2\n")]].concat();
        let part = identity_of(&part, Some("md127p2"), "");
        assert_eq!(part.as_deref(), Some("md:e2a51e5c7d0f4b1a9d6e8f6c3b0a1d2e:part2"));
    }

    #[test]
    fn an_array_has_the_same_uuid_whether_the_kernel_tells_it_or_udev() {
        let udev = "I:4711\nE:MD_NAME=server:data\nE:MD_UUID=e2a51e5c:7d0f4b1a:9d6e8f6c:3b0a1d2e\n";
        let with = |files: &[(&str, &str)], udev| identity_of(files, None, udev);
        let (version, old) = (("md/metadata_version", "1.2\n"), ("md/metadata_version", "0.90\n"));
        let expected = Some("md:e2a51e5c7d0f4b1a9d6e8f6c3b0a1d2e".to_owned());
        assert_eq!(with(&[version, ("md/uuid", "e2a51e5c-7d0f-4b1a-9d6e-8f6c3b0a1d2e\n")], udev), expected);
        assert_eq!(with(&[version], udev), expected, "an older kernel");
        assert_eq!(
            with(&[("md/metadata_version", "external:imsm\n"), ("md/uuid", "00000000-0000-0000-0000-000000000000\n")], udev),
            expected
        );
        assert_eq!(with(&[old, ("md/uuid", "5c1ea5e2-1a4b-0f7d-6c8f-6e9d2e1d0a3b\n")], udev), expected, "turned by mdadm");
        assert_eq!(with(&[version], ""), None);
        assert_eq!(with(&[version, ("md/uuid", "00000000-0000-0000-0000-000000000000\n")], ""), None, "a zero is no name");
        assert_eq!(with(&[], udev), None, "what udev knows of a device that is no array");
    }
}

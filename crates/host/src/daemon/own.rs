//! The devices of a pool's own volumes: what would lie on one of them waits for itself once the pool needs it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, makedev};

use super::{Export, Frontend, Shared, lock};
use crate::control::Fault;
use crate::device::facts::{self, sysfs};

impl Shared {
    /// Refuses a device or file that is a volume of this pool, or lies on one. A volume that somebody made a device of by NBD is not
    /// recognised: the kernel does not tell what is behind it.
    pub(super) fn not_own(&self, path: &Path) -> Result<(), Fault> {
        let own = self.own_devices();
        let is_own = |number: u64| own.iter().find(|(device, _)| *device == number).map(|(_, name)| name);
        let Some(number) = number(path) else { return Ok(()) };
        let (how, volume) = match (is_own(number), below(number).into_iter().find_map(is_own)) {
            (Some(volume), _) => ("is", volume),
            (None, Some(volume)) => ("lies on", volume),
            (None, None) => return Ok(()),
        };
        Err(Fault::refused(format!(
            "{} {how} volume {volume} of this pool. Nothing was changed: the pool would wait for itself. Name another device.",
            path.display()
        )))
    }

    /// The numbers of all block devices and file systems that this daemon serves, each with its volume's name.
    fn own_devices(&self) -> Vec<(u64, String)> {
        let devices: Vec<_> = {
            let volumes = lock(&self.volumes);
            let exported = volumes.values().filter_map(|slot| {
                let export = slot.export.as_ref()?;
                Some((slot.name.clone(), export.path(), matches!(export, Export::Loop(_))))
            });
            exported.collect()
        };
        let mut own = Vec::new();
        for (name, device, over_fuse) in devices {
            own.extend(number(&device).map(|number| (number, name.clone())));
            if let (true, Frontend::Fuse { folder }) = (over_fuse, &self.frontend) {
                let of = |folder: &Path| fs::metadata(folder).ok().map(|it| it.dev());
                let mounted = of(&folder.join(&name)).filter(|mounted| Some(*mounted) != of(folder));
                own.extend(mounted.map(|number| (number, name)));
            }
        }
        own
    }
}

/// The number of a block device, or of that which a file's file system is on.
fn number(path: &Path) -> Option<u64> {
    let it = facts::look(path).ok()?;
    Some(if facts::kind(&it) == FileType::BlockDevice { facts::number(&it) } else { facts::number_below(&it) })
}

/// All that a block device lies on: the disk of a partition, what an array or a mapped device is made of, what carries the file of a loop
/// device.
fn below(top: u64) -> BTreeSet<u64> {
    let (mut found, mut left) = (BTreeSet::new(), vec![top]);
    while let Some(number) = left.pop() {
        let node = sysfs(number);
        let disk = node.join("partition").exists().then(|| node.join("../dev"));
        let parts = fs::read_dir(node.join("slaves")).into_iter().flatten().flatten().map(|part| part.path().join("dev"));
        let mut next: Vec<u64> = parts.chain(disk).filter_map(|dev| numbered(&fs::read_to_string(dev).ok()?)).collect();
        if let Ok(file) = fs::read_to_string(node.join("loop/backing_file")) {
            next.extend(self::number(Path::new(file.trim_end_matches('\n'))));
        }
        left.extend(next.into_iter().filter(|number| found.insert(*number)));
    }
    found
}

/// "8:1" as a number.
fn numbered(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

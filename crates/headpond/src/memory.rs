//! How much memory this process may have.

use std::fs;
use std::path::{Component, Path};

/// The machine's memory, in bytes; or what the control groups of this process may have, if that is less, as a service with `MemoryMax=`
/// or a container may.
pub fn memory() -> u64 {
    let machine = rustix::system::sysinfo();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit)).min(of_groups(&own, Path::new("/sys/fs/cgroup")))
}

/// The least that a control group may have, of those that `own` names, as `/proc/self/cgroup` does, and all around them. That is of
/// version 2 of control groups, which are mounted at `root`; without them there is no limit.
fn of_groups(own: &str, root: &Path) -> u64 {
    let Some(group) = own.lines().find_map(|line| line.strip_prefix("0::/")).map(Path::new) else { return u64::MAX };
    // A group beyond the root of what this process sees cannot be looked at.
    if group.components().any(|part| !matches!(part, Component::Normal(_))) {
        return u64::MAX;
    }
    let limits = group.ancestors().flat_map(|group| ["memory.max", "memory.high"].map(|file| root.join(group).join(file)));
    // Where there is no limit the file says "max", and the outermost group has none.
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_of_all_groups_around_the_process_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("system.slice/headpond.service")).unwrap();
        let limit = |own: &str| of_groups(&format!("4:devices:/elsewhere\n0::/{own}\n"), root);
        let inner = "system.slice/headpond.service";
        assert_eq!([limit(inner), limit(""), limit("../.."), of_groups("4:memory:/elsewhere\n", root)], [u64::MAX; 4]);
        let set = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        set("system.slice/headpond.service/memory.max", "max\n");
        set("system.slice/headpond.service/memory.high", "3000\n");
        assert_eq!(limit(inner), 3000);
        set("system.slice/headpond.service/memory.max", "2000\n");
        set("system.slice/memory.max", "5000\n");
        assert_eq!([limit(inner), limit("system.slice"), limit("user.slice")], [2000, 5000, u64::MAX]);
        set("system.slice/memory.max", "1000\n");
        assert_eq!([limit(inner), limit("../system.slice")], [1000, u64::MAX]);
    }

    #[test]
    fn no_more_than_the_machine_has() {
        let told = fs::read_to_string("/proc/meminfo").unwrap();
        let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")).unwrap();
        assert!((1..=total.parse::<u64>().unwrap() * 1024).contains(&memory()));
    }
}

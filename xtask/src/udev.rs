//! The rules of udev, tried by `udevadm test` over loop devices; and what the guides give systemd: lines for `/etc/fstab`, read by its own
//! generator, units and drop-ins.
//!
//! `udevadm test` makes links and notes as the real udev does, so it sees a `/dev` and a `/run/udev` of its own.

use crate::deb::{FOR_VOLUMES, place_of};
use crate::headpond;
use crate::root;
use crate::steps::{output, run};
use crate::tools::{is_root, is_there};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The file that hides a raw disk, as it is packaged; `NAME` is the volume's.
const RAW: &str = "63-z-headpond-raw-NAME.rules";
/// A volume whose disk the rules are told to be a device mapper device.
const MAPPED: &str = "mapped";
/// Where systemd's generator puts `x-systemd.device-timeout=`, in the folder of the device's drop-ins.
const OWNERS_LIMIT: &str = "50-device-timeout.conf";
const PATIENCE: Duration = Duration::from_secs(60);
/// Systemd's reader of `/etc/fstab`, where distributions have it.
const GENERATORS: [&str; 2] =
    ["/usr/lib/systemd/system-generators/systemd-fstab-generator", "/lib/systemd/system-generators/systemd-fstab-generator"];

/// `cargo xtask udev`.
pub fn check(headpond: Option<&Path>) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("headpond-udev-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let result = guides_name_one_file_for_each_volume()
        .and_then(|()| an_owners_limit_counts())
        .and_then(|()| boots(&scratch.join("units")))
        .and_then(|()| rules(headpond, &scratch));
    let _ = fs::remove_dir_all(&scratch);
    result
}

fn rules(headpond: Option<&Path>, scratch: &Path) -> Result<()> {
    let needed = Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists() && is_there("mkfs.ext4");
    if !is_root() || !needed || !is_there("udevadm") {
        println!("left out: the rules take root, FUSE, loop devices, udevadm and mkfs.ext4");
        return Ok(());
    }
    let headpond = match headpond {
        Some(path) => path.to_owned(),
        None => headpond::build()?,
    };
    volume_has_its_name(&headpond, scratch)?;
    raw_disks_are_hidden(&headpond, scratch)
}

/// A daemon that is ended with this value.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut end = Command::new("kill");
        let _ = end.args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// The folders in `/run` of a pool with one volume, gone with this value: a daemon leaves them for its next life.
struct Folders(PathBuf);

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("home"));
        let _ = fs::remove_dir(&self.0);
    }
}

fn volume_has_its_name(headpond: &Path, scratch: &Path) -> Result<()> {
    let pool = format!("udev-{}", std::process::id());
    for name in ["a", "b", "disk"] {
        File::create(scratch.join(name))?.set_len(64 << 20)?;
    }
    let ours = |arguments: &[&str]| {
        let mut command = Command::new(headpond);
        command.args(arguments).current_dir(scratch);
        command
    };
    run(ours(&["pool", "create", &pool, "a", "b", "--state", "state"]))?;
    // Where it is as a service: the name is in the path behind the loop device.
    let _folders = Folders(Path::new("/run/headpond").join(&pool));
    let serve = ours(&["serve", "a", "b", "--state", "state", "--frontend", "fuse"]).stderr(Stdio::null()).spawn()?;
    let _daemon = Daemon(serve);
    let since = Instant::now();
    while !Path::new(&format!("/run/headpond/{pool}.sock")).exists() {
        ensure!(since.elapsed() < PATIENCE, "the daemon does not come up");
        thread::sleep(Duration::from_millis(50));
    }
    run(ours(&["attach", "home", "disk", "--pool", &pool]))?;
    let status: serde_json::Value = serde_json::from_str(&output(ours(&["status", "--json", "--pool", &pool]))?)?;
    let device = status["volumes"][0]["place"].as_str().context("the volume has no device")?.to_owned();
    let said = udevadm(headpond, scratch, &device, &[])?;
    let link = format!("headpond/{pool}/home");
    ensure!(
        said.contains(&format!("/dev/{link}")) && said.contains(&format!("LINK {link} -> ../../{}", kernel_name(&device))),
        "{said}"
    );
    println!("{device} is /dev/{link}");
    run(ours(&["detach", "home", "--pool", &pool]))?;
    let said = udevadm(headpond, scratch, &device, &[])?;
    ensure!(!said.contains("HEADPOND_NAME=") && !said.contains("LINK "), "{said}");
    println!("{device}, let go, has no name of ours");
    Ok(())
}

/// A loop device over a file with ext4 on it, let go with this value.
struct RawDisk(String);

impl RawDisk {
    fn new(file: &Path) -> Result<RawDisk> {
        File::create(file)?.set_len(64 << 20)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F"]).arg(file);
        run(mkfs)?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(file);
        Ok(RawDisk(output(losetup)?.trim().to_owned()))
    }
}

impl Drop for RawDisk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Two disks behind volumes, each with the file that the guides have for it, of which one is taken out.
fn raw_disks_are_hidden(headpond: &Path, scratch: &Path) -> Result<()> {
    let (home, work) = (RawDisk::new(&scratch.join("raw-home"))?, RawDisk::new(&scratch.join("raw-work"))?);
    let both: [(&str, &str); 2] = [("home", &home.0), ("work", &work.0)];
    for (name, disk) in both {
        is_hidden(name, &udevadm(headpond, scratch, disk, &both)?)?;
    }
    // Step 6 of the guides, for one volume of two.
    let left = &both[1..];
    is_seen(&udevadm(headpond, scratch, &home.0, left)?)?;
    is_hidden("work", &udevadm(headpond, scratch, &work.0, left)?)?;
    let said = udevadm(headpond, scratch, &work.0, &[(MAPPED, &work.0)])?;
    let links = said.lines().find_map(|line| line.strip_prefix("DEVLINKS=")).unwrap_or_default().split_whitespace();
    let mut links: Vec<&str> = links.collect();
    links.sort_unstable();
    ensure!(links == [format!("/dev/headpond-raw/{MAPPED}"), format!("/dev/mapper/{MAPPED}")], "{said}");
    is_seen(&udevadm(headpond, scratch, &work.0, &[])?)?;
    println!(
        "of two raw disks with ext4 each is hidden by its own file, and seen by its UUID without it, whatever becomes of the other's"
    );
    Ok(())
}

fn is_hidden(name: &str, said: &str) -> Result<()> {
    let has = |line: &str| said.lines().any(|it| it == line);
    ensure!(!has("ID_FS_TYPE=ext4") && !said.contains("/dev/disk/by-uuid/"), "{said}");
    ensure!(has(&format!("DEVLINKS=/dev/headpond-raw/{name}")) && has("UDISKS_IGNORE=1"), "{said}");
    Ok(())
}

fn is_seen(said: &str) -> Result<()> {
    ensure!(said.lines().any(|it| it == "ID_FS_TYPE=ext4") && said.contains("/dev/disk/by-uuid/"), "{said}");
    ensure!(!said.contains("/dev/headpond-raw/"), "{said}");
    Ok(())
}

/// Each guide that puts a volume's file there takes that one away again: another's, or one for all, would show disks that are dirty.
fn guides_name_one_file_for_each_volume() -> Result<()> {
    let mut guides = 0;
    for guide in fs::read_dir(root().join("docs/guides"))? {
        let guide = guide?.path();
        let text = fs::read_to_string(&guide)?;
        let begins = |with: &'static str| text.lines().filter(move |line| line.starts_with(with));
        let put = begins("cp ").filter(|line| line.contains("HEADPOND_RAW"));
        let taken: Vec<&str> = begins("rm /etc/udev").collect();
        for line in put {
            let name = line.split('"').rev().nth(1).context("the line to add has no name")?;
            let file = format!("/etc/udev/rules.d/63-z-headpond-raw-{name}.rules ");
            let example = format!("examples/{RAW} ");
            ensure!(line.contains(&example) && line.contains(&file), "{}: {line}", guide.display());
            ensure!(taken.iter().all(|it| it.contains(&file)) && !taken.is_empty(), "{}: {taken:?}", guide.display());
            guides += 1;
        }
    }
    ensure!(guides > 0, "no guide hides a raw disk");
    println!(
        "{guides} guides: the file that hides a volume's raw disk is its own, when it is put there and when it is taken away"
    );
    Ok(())
}

fn kernel_name(device: &str) -> &str {
    device.trim_start_matches("/dev/")
}

/// What the rules make of a device, and the link that they leave. Each of `raw` is a disk behind a volume, by the volume's name and
/// its own device, and has the file that hides it.
fn udevadm(headpond: &Path, scratch: &Path, device: &str, raw: &[(&str, &str)]) -> Result<String> {
    let packaged = |name: &str| fs::read_to_string(root().join("packaging").join(name));
    let rules = scratch.join("rules.d");
    if rules.exists() {
        fs::remove_dir_all(&rules)?;
    }
    fs::create_dir(&rules)?;
    let names = packaged("61-headpond.rules")?.replace("/usr/bin/headpond", &headpond.display().to_string());
    fs::write(rules.join("61-headpond.rules"), names)?;
    let hide = packaged(RAW)?;
    let example =
        hide.lines().find(|line| line.starts_with("#ENV{ID_SERIAL}==")).context("the example has no line to fill in")?.to_owned();
    for (name, disk) in raw {
        // Loop devices have no serial number.
        let mut line = format!("KERNEL==\"{}\", ENV{{HEADPOND_RAW}}=\"{name}\"", kernel_name(disk));
        if *name == MAPPED {
            line += &format!(", ENV{{DM_NAME}}=\"{name}\"");
        }
        fs::write(rules.join(RAW.replace("NAME", name)), hide.replace(&example, &line))?;
    }
    let script = "set -e
        mkdir -p dev
        mount -t tmpfs udev dev
        cp -a /dev/null /dev/zero /dev/urandom /dev/fuse /dev/loop-control \"$DEVICE\" dev/
        mount --bind dev /dev
        mkdir -p /run/udev
        mount -t tmpfs udev /run/udev
        mkdir -p /run/udev/rules.d
        cp rules.d/* /run/udev/rules.d/
        udevadm test --action=change /sys/block/$NAME 2>/dev/null
        cd /dev
        find headpond -type l -printf 'LINK %p -> %l\\n' 2>/dev/null || true";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", script]).current_dir(scratch);
    unshare.env("DEVICE", device).env("NAME", kernel_name(device));
    output(unshare)
}

/// What makes a unit go down when another one does, or is started again after it died.
const REQUIRES: [&str; 5] = ["Requires=", "Requisite=", "BindsTo=", "PartOf=", "x-systemd.requires="];
/// Units of others beside which guides put theirs: what each is enabled as, its file, and the order that it has by itself (OpenZFS 2.x,
/// nfs-utils 2.6, Ceph 16, GlusterFS 10).
const OTHERS: [(&str, &str, &str); 7] = [
    ("zfs-import-cache.service", "zfs-import-cache.service", "DefaultDependencies=no\nBefore=zfs-import.target"),
    ("zfs-import.target", "zfs-import.target", ""),
    ("zfs-mount.service", "zfs-mount.service", "DefaultDependencies=no\nAfter=zfs-import.target\nBefore=local-fs.target"),
    ("zfs-share.service", "zfs-share.service", "After=zfs-mount.service\nBefore=nfs-server.service"),
    ("nfs-server.service", "nfs-server.service", "DefaultDependencies=no\nAfter=network-online.target local-fs.target"),
    (
        "ceph-osd@0.service",
        "ceph-osd@.service",
        "Wants=remote-fs-pre.target\nAfter=network-online.target local-fs.target\nBefore=remote-fs-pre.target",
    ),
    ("glusterd.service", "glusterd.service", "After=network.target\nBefore=network-online.target"),
];
/// What the drop-in for a disk that comes over the network has in its first line.
const OVER_THE_NETWORK: &str = "(a disk over the network)";
/// Guides whose storage system starts before the network is said to be up, and says so itself: they tell of it.
const BEFORE_THE_NETWORK: [&str; 1] = ["glusterfs-brick.md"];

/// What the guides give systemd: a boot with it waits for no volume and has no ordering cycle, all that uses a volume ends before its daemon does,
/// and a daemon that died takes nothing with it.
fn boots(scratch: &Path) -> Result<()> {
    nothing_requires_the_daemon()?;
    let Some(generator) = GENERATORS.iter().find(|path| Path::new(path).exists()).filter(|_| is_there("systemd-analyze")) else {
        println!("left out: what guides give systemd takes its generator for /etc/fstab, and systemd-analyze");
        return Ok(());
    };
    let general = fs::read_to_string(root().join("docs/guides/README.md"))?;
    let (mut lines, mut units) = (0, 0);
    for guide in fs::read_dir(root().join("docs/guides"))? {
        let guide = guide?;
        let (text, name) = (fs::read_to_string(guide.path())?, guide.file_name().to_string_lossy().into_owned());
        let mut given = given(&general)?;
        let own = given_of(&text, &name, &mut units)?;
        // Where a guide has another drop-in for the same end, it has that one alone.
        given.retain(|general| own.iter().all(|own| own.is_for != general.is_for));
        given.extend(own);
        if BEFORE_THE_NETWORK.contains(&&*name) {
            given.retain(|unit| !unit.is_for.contains(OVER_THE_NETWORK));
        }
        let folder = scratch.join(&name);
        has_no_cycle(&folder.join("units"), &given).with_context(|| name.clone())?;
        for (line, number) in blocks(&text, "fstab").into_iter().flatten() {
            let at = || format!("{name}, line {number}");
            let folder = folder.join(number.to_string());
            mount(&folder, generator, line).with_context(at)?;
            has_no_cycle(&folder, &given).with_context(at)?;
            lines += 1;
        }
    }
    ensure!(lines > 0 && units > 0, "no guide has a line for /etc/fstab, or none has a unit");
    cycles_are_found(scratch)?;
    println!(
        "{lines} lines for /etc/fstab, {units} units and drop-ins: all come after the daemon, none requires it, no boot waits for a mount, and \
         none for itself"
    );
    Ok(())
}

/// A daemon that died is started again by systemd, which first stops what requires it: file systems that only had to wait would be unmounted.
fn nothing_requires_the_daemon() -> Result<()> {
    let names = |value: &str| value.split([',', '#']).next().is_some_and(|it| it.contains("headpond@"));
    let requires = |line: &str| REQUIRES.iter().any(|key| line.split(key).skip(1).any(names));
    for line in ["Requires=a.service headpond@tank.service", "x-systemd.requires=/dev/a,x-systemd.requires=headpond@tank.service"]
    {
        ensure!(requires(line), "{line}: not found");
    }
    for folder in ["docs", "docs/guides", "packaging"] {
        for file in fs::read_dir(root().join(folder))?.collect::<std::io::Result<Vec<_>>>()? {
            let path = file.path();
            let is_guide = path.extension().is_some_and(|it| it == "md");
            if !path.is_file() || folder != "packaging" && !is_guide {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let lines: Vec<(&str, usize)> = match is_guide {
                true => ["ini", "fstab", "sh"].iter().flat_map(|kind| blocks(&text, kind)).flatten().collect(),
                false => text.lines().zip(1..).filter(|(line, _)| !line.starts_with('#')).collect(),
            };
            if let Some((line, number)) = lines.into_iter().find(|(line, _)| requires(line)) {
                bail!("{}, line {number}: {line}\nrequires the daemon, and would be stopped when that died", path.display());
            }
        }
    }
    Ok(())
}

/// The blocks of one kind in a guide: their lines, with their numbers.
fn blocks<'a>(text: &'a str, kind: &str) -> Vec<Vec<(&'a str, usize)>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, _)) = lines.next() {
        if let Some(it) = line.strip_prefix("```") {
            let inside: Vec<_> = lines.by_ref().take_while(|(line, _)| *line != "```").collect();
            if it == kind && !inside.is_empty() {
                blocks.push(inside);
            }
        }
    }
    blocks
}

/// A unit, or a drop-in.
struct Unit {
    /// The line above it, which says whose it is.
    is_for: String,
    /// Where it goes, below systemd's folder.
    place: PathBuf,
    text: String,
}

/// The units and drop-ins of a guide.
fn given(guide: &str) -> Result<Vec<Unit>> {
    let drop_in = |name: &str, number: usize| {
        let unit = if name.contains('.') { name.to_owned() } else { format!("{name}.service") };
        PathBuf::from(format!("{unit}.d/{number}.conf"))
    };
    let mut units = Vec::new();
    for block in blocks(guide, "ini") {
        let (is_for, number) = block[0];
        let name = |of: &str| of.split_whitespace().next().unwrap_or_default().to_owned();
        let place = match (is_for.strip_prefix("# systemctl edit "), is_for.strip_prefix("# /etc/systemd/system/")) {
            (Some(of), _) => drop_in(&name(of), number),
            (None, Some(of)) => PathBuf::from(name(of)),
            (None, None) => bail!("line {number}: the block does not say where it goes: {is_for}"),
        };
        let text: String = block[1..].iter().map(|(line, _)| format!("{line}\n")).collect();
        units.push(Unit { is_for: is_for.into(), place, text });
    }
    // Short ones, in one line of the commands.
    for (line, number) in blocks(guide, "sh").into_iter().flatten() {
        if let Some((of, settings)) = line.strip_prefix("systemctl edit ").and_then(|it| it.split_once("# [Unit]")) {
            let settings: Vec<&str> = settings.split_whitespace().collect();
            let text = format!("[Unit]\n{}\n", settings.join("\n"));
            units.push(Unit { is_for: line.into(), place: drop_in(of.trim(), number), text });
        }
    }
    Ok(units)
}

/// Those of a guide, looked at; counted in `units`.
fn given_of(guide: &str, name: &str, units: &mut usize) -> Result<Vec<Unit>> {
    let given = given(guide).with_context(|| name.to_owned())?;
    for Unit { is_for, place, text } in &given {
        let is_whole = place.extension().is_some_and(|it| it == "service");
        let names_volumes = text.contains("headpond@") || text.contains("dev-headpond-");
        ensure!(!is_whole && !names_volumes || comes_after(text), "{name}: {is_for}\ndoes not come after the daemon:\n{text}");
        // What is waited for there, is at each start: with an SSD that is dead, whenever the daemon died.
        let is_daemon = place.starts_with("headpond@tank.service.d");
        ensure!(!is_daemon || !text.contains(".device"), "{name}: the daemon waits for devices at each start:\n{text}");
    }
    *units += given.len();
    Ok(given)
}

/// Whether a unit is ordered after the daemon, and so ends before it.
fn comes_after(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("After=") && line.contains("headpond@tank.service"))
}

/// Of two drop-ins that say the same thing the one whose name sorts last counts, whatever folder it is in: a limit that the owner gives for a
/// mount, which systemd's generator writes down, is to count before ours for all volumes.
fn an_owners_limit_counts() -> Result<()> {
    let (ours, owners) = (place_of(FOR_VOLUMES)?.file_name().context("it has no name")?, OWNERS_LIMIT);
    ensure!(ours.as_encoded_bytes() < owners.as_bytes(), "{} would count before {owners}", ours.display());
    Ok(())
}

/// Makes a mount of a line for `/etc/fstab`, in a folder of its own, and looks at it.
fn mount(folder: &Path, generator: &str, line: &str) -> Result<()> {
    ensure!(!line.contains("UUID=") && !line.contains("LABEL="), "the disk has the same: {line}");
    fs::create_dir_all(folder)?;
    let table = folder.join("fstab");
    fs::write(&table, format!("{line}\n"))?;
    let mut generate = Command::new(generator);
    generate.args([folder, folder, folder]).env("SYSTEMD_FSTAB", &table);
    run(generate)?;
    let mut made = fs::read_dir(folder)?.filter_map(Result::ok).map(|it| it.path());
    let unit = made.find(|it| it.extension().is_some_and(|it| it == "mount")).context("systemd makes no mount of it")?;
    let text = fs::read_to_string(unit)?;
    ensure!(comes_after(&text), "not unmounted before the daemon stops:\n{text}");
    for target in ["Before=local-fs.target", "Before=remote-fs.target"] {
        ensure!(!text.contains(target), "a boot waits for it:\n{text}");
    }
    Ok(())
}

/// Fails where a boot with what is in a folder, our own units, and those given has an ordering cycle, or systemd does not understand one.
fn has_no_cycle(folder: &Path, given: &[Unit]) -> Result<()> {
    let said = verified(folder, given)?;
    ensure!(!said.contains("ordering cycle"), "{said}");
    let own = folder.display().to_string();
    let not_understood: Vec<&str> = said.lines().filter(|line| line.starts_with(&own) && !line.contains("Failed to ")).collect();
    ensure!(not_understood.is_empty(), "{}", not_understood.join("\n"));
    Ok(())
}

/// That a cycle would be seen, as of what a guide said once.
fn cycles_are_found(scratch: &Path) -> Result<()> {
    let place = "zfs-import-cache.service.d/mistake.conf";
    let unit = Unit { is_for: String::new(), place: place.into(), text: "[Unit]\nAfter=headpond@tank.service\n".into() };
    let said = verified(&scratch.join("mistake"), &[unit])?;
    ensure!(said.contains("ordering cycle"), "ZFS's own import after the daemon: no cycle was found:\n{said}");
    Ok(())
}

/// What `systemd-analyze verify` says of a boot.
fn verified(folder: &Path, given: &[Unit]) -> Result<String> {
    let write = |place: &Path, text: &str| -> Result<()> {
        let path = folder.join(place);
        ensure!(!path.exists(), "{} is given twice", place.display());
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        Ok(fs::write(path, text)?)
    };
    let enabled = folder.join("multi-user.target.wants");
    fs::create_dir_all(&enabled)?;
    let enable = |name: &str, file: &str| -> Result<()> { Ok(symlink(format!("../{file}"), enabled.join(name))?) };
    for name in ["headpond@.service", "headpond-devices@.service"] {
        write(Path::new(name), &fs::read_to_string(root().join("packaging").join(name))?)?;
    }
    let volumes = fs::read_to_string(root().join(FOR_VOLUMES))?;
    write(place_of(FOR_VOLUMES)?.strip_prefix("usr/lib/systemd/system")?, &volumes)?;
    enable("headpond@tank.service", "headpond@.service")?;
    for (name, file, order) in OTHERS {
        let service = if file.ends_with(".service") { "[Service]\nType=oneshot\nExecStart=/bin/true\n" } else { "" };
        write(Path::new(file), &format!("[Unit]\n{order}\n{service}"))?;
        enable(name, file)?;
    }
    for unit in given {
        write(&unit.place, &unit.text)?;
        if let Some(name) = unit.place.to_str().filter(|it| it.ends_with(".service")) {
            enable(name, name)?;
        }
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "local-fs.target", "remote-fs.target", "multi-user.target"]);
    // The system's own units come after ours. What else it says is of their programs, which may not be installed.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", folder.display()));
    let said = verify.output().context("cannot run systemd-analyze")?;
    Ok(String::from_utf8_lossy(&said.stderr).into_owned())
}

//! The rules of udev, tried by `udevadm test` over loop devices, and the lines for `/etc/fstab` of the guides, read by systemd's
//! own generator.
//!
//! `udevadm test` makes links and notes as the real udev does, so it sees a `/dev` and a `/run/udev` of its own.

use crate::headpond;
use crate::root;
use crate::steps::{output, run};
use crate::tools::{is_root, is_there};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The file that hides a raw disk, as it is packaged; `NAME` is the volume's.
const RAW: &str = "63-z-headpond-raw-NAME.rules";
const PATIENCE: Duration = Duration::from_secs(60);
/// Systemd's reader of `/etc/fstab`, where distributions have it.
const GENERATORS: [&str; 2] =
    ["/usr/lib/systemd/system-generators/systemd-fstab-generator", "/lib/systemd/system-generators/systemd-fstab-generator"];

/// `cargo xtask udev`.
pub fn check(headpond: Option<&Path>) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("headpond-udev-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let result = guides_name_one_file_for_each_volume()
        .and_then(|()| fstab(&scratch.join("units")))
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
        let line = format!("KERNEL==\"{}\", ENV{{HEADPOND_RAW}}=\"{name}\"", kernel_name(disk));
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

/// Each line for `/etc/fstab` that a guide gives becomes a mount that waits for the pool, and that no boot waits for.
fn fstab(units: &Path) -> Result<()> {
    let Some(generator) = GENERATORS.iter().find(|path| Path::new(path).exists()) else {
        println!("left out: the lines for /etc/fstab take systemd's generator");
        return Ok(());
    };
    let mut lines = 0;
    for guide in fs::read_dir(root().join("docs/guides"))? {
        let guide = guide?.path();
        for (number, line) in
            fs::read_to_string(&guide)?.lines().enumerate().filter(|(_, line)| line.starts_with("/dev/headpond/"))
        {
            let folder = units.join(lines.to_string());
            fs::create_dir_all(&folder)?;
            let table = folder.join("fstab");
            fs::write(&table, format!("{line}\n"))?;
            let mut generate = Command::new(generator);
            generate.args([&folder, &folder, &folder]).env("SYSTEMD_FSTAB", &table);
            run(generate)?;
            let unit = fs::read_dir(&folder)?
                .filter_map(Result::ok)
                .map(|it| it.path())
                .find(|it| it.extension().is_some_and(|it| it == "mount"));
            let at = || format!("{}, line {}", guide.display(), number + 1);
            let text = fs::read_to_string(unit.with_context(|| format!("{}: systemd makes no mount of it", at()))?)?;
            for wanted in ["Requires=headpond@", "After=headpond@", "What=/dev/headpond/"] {
                if !text.contains(wanted) {
                    bail!("{}: no {wanted} in\n{text}", at());
                }
            }
            if text.contains("Before=local-fs.target") || text.contains("Before=remote-fs.target") {
                bail!("{}: a boot waits for it:\n{text}", at());
            }
            no_cycle(&folder).with_context(at)?;
            lines += 1;
        }
    }
    ensure!(lines > 0, "no guide has a line for /etc/fstab");
    println!("{lines} lines for /etc/fstab: each mount waits for its pool, no boot for the mount, and none for itself");
    Ok(())
}

/// A boot with these units and our own has no ordering cycle.
fn no_cycle(units: &Path) -> Result<()> {
    if !is_there("systemd-analyze") {
        return Ok(());
    }
    fs::copy(root().join("packaging/headpond@.service"), units.join("headpond@.service"))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "local-fs.target", "remote-fs.target", "multi-user.target"]);
    // The system's own units come after ours. What else it says is of their programs, which may not be installed.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
    let said = verify.output().context("cannot run systemd-analyze")?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(!said.contains("ordering cycle"), "{said}");
    Ok(())
}

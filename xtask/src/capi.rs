//! The C interface: its static library, and the example program compiled against it and run.

use crate::root;
use crate::steps::{cargo, output, run};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the standard library and its friends need of the system.
const LIBRARIES: [&str; 5] = ["-lpthread", "-ldl", "-lm", "-lrt", "-lgcc_s"];

/// `cargo xtask capi`: builds the library, and tries it.
pub fn run_all() -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    // Made when it is asked for: every other build of the crate is for Rust alone.
    run(cargo(&["rustc", "--quiet", "--release", "--package", "headpond-host", "--lib", "--crate-type", "staticlib"]))?;
    let library = target.join("release/libheadpond_host.a");
    let header = root().join("crates/host/include/headpond.h");
    let scratch = std::env::temp_dir().join(format!("headpond-capi-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let tried = exports(&library, &header).and_then(|()| example(&library, &header, &scratch));
    fs::remove_dir_all(&scratch)?;
    tried?;
    println!("{}\n{}", library.display(), header.display());
    Ok(())
}

/// What the library offers under our name is what the header declares. (Their types are compared by a test of the crate.)
fn exports(library: &Path, header: &Path) -> Result<()> {
    let mut nm = Command::new("nm");
    // Its complaints are of members that are no objects.
    nm.args(["--extern-only", "--defined-only"]).arg(library).stderr(Stdio::null());
    let listed = nm.output().context("cannot run nm: it is in the package binutils")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let text = fs::read_to_string(header)?;
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("headpond_")).map(str::to_owned).collect()
    };
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split_once(" T ")).map(|(_, name)| name.to_owned()).collect();
    let exported: BTreeSet<String> = exported.into_iter().filter(|name| name.starts_with("headpond_")).collect();
    let functions: String = text.lines().filter(|line| line.contains('(')).collect();
    let declared: BTreeSet<String> =
        words(&functions).into_iter().filter(|name| functions.contains(&format!("{name}("))).collect();
    ensure!(exported.len() > 10, "{} has no functions of ours: {exported:?}", library.display());
    ensure!(exported == declared, "exported: {exported:?}\ndeclared: {declared:?}");
    println!("{} functions, all declared", exported.len());
    Ok(())
}

/// Compiles the example as strictly as compilers do, runs it, and looks at the disk that it leaves.
fn example(library: &Path, header: &Path, scratch: &Path) -> Result<()> {
    let source = root().join("crates/host/examples/embed.c");
    let include = header.parent().context("the header is in a folder")?;
    let program = scratch.join("embed");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(include);
    run({
        cc.arg(&source).arg(library).args(LIBRARIES).arg("-o").arg(&program);
        cc
    })?;
    let files = scratch.join("files");
    fs::create_dir(&files)?;
    let mut example = Command::new(&program);
    example.arg(&files);
    print!("{}", output(example)?);
    let disk = fs::read(files.join("disk"))?;
    let (at, bytes) = (1 << 20, 8192);
    let expected = |(place, byte): (usize, &u8)| *byte == if (at..at + bytes).contains(&place) { 0x5a } else { 0 };
    ensure!(disk.len() == 64 << 20 && disk.iter().enumerate().all(expected), "the disk does not hold what was written");
    println!("the disk holds what was written, by itself");
    Ok(())
}

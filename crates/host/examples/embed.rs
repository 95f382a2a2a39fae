//! A cache inside one's own program: two files as SSDs, one as the disk. `cargo run -p headpond-host --example embed -- FOLDER`

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use headpond_host::embed::{Mode, Pool};

const MINUTE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("Name a folder for the files")?;
    run(Path::new(&folder))
}

/// All of it, in a folder that holds none of these files yet.
pub fn run(folder: &Path) -> Result<(), Box<dyn Error>> {
    let [ssd0, ssd1, disk, state] = ["ssd0", "ssd1", "disk", "state"].map(|name| folder.join(name));
    for path in [&ssd0, &ssd1, &disk] {
        File::create_new(path)?.set_len(64 << 20)?;
    }

    // The pool is made once, and opened by whoever serves it: one process at a time.
    Pool::create("tank", &[&ssd0, &ssd1], &state)?;
    let pool = Pool::open(&[&ssd0, &ssd1], &state)?;
    let volume = pool.attach("home", &disk, Mode::WriteBack)?;

    // Flushed data is on both SSDs; the disk gets it later.
    let data = vec![0x5a; 8192];
    volume.write(1 << 20, &data)?;
    volume.flush()?;
    let mut read = vec![0; data.len()];
    volume.read(1 << 20, &mut read)?;
    assert_eq!(read, data);

    // Closed and opened again, everything is where it was.
    pool.close(MINUTE)?;
    let pool = Pool::open(&[&ssd0, &ssd1], &state)?;
    let volume = pool.volume("home")?;
    println!("volume {}: {} bytes, of which the disk lacks {}", volume.name(), volume.size(), dirty(&pool)?);

    // Detached, the disk has it all, and is used alone.
    volume.detach(MINUTE)?;
    pool.close(MINUTE)?;
    Ok(())
}

fn dirty(pool: &Pool) -> Result<u64, Box<dyn Error>> {
    Ok(pool.status()?.volumes.iter().map(|volume| volume.dirty_bytes).sum())
}

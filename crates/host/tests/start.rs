//! A start that somebody ends before the pool is up.

use std::fs::File;
use std::time::Duration;

use headpond_host::daemon::{Daemon, Options, StartError};
use headpond_host::embed::{Mode, Pool};
use headpond_host::succession::Estate;

#[test]
fn a_start_that_is_told_to_end_leaves_what_there_is_and_the_devices_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let ssds = ["ssd0", "ssd1"].map(path);
    for name in ["ssd0", "ssd1", "disk"] {
        File::create_new(path(name)).unwrap().set_len(64 << 20).unwrap();
    }
    Pool::create("tank", &ssds, &path("state")).unwrap();
    let pool = Pool::open(&ssds, &path("state")).unwrap();
    let volume = pool.attach("home", &path("disk"), Mode::WriteBack).unwrap();
    (0..100).for_each(|n| volume.write(n * 65_536, &[n as u8 + 1; 4096]).unwrap());
    // As by a power cut: the next start has a log to read.
    drop((volume, pool));
    let mut asked = 0;
    let ended = Daemon::start(
        Options { socket: Some(path("socket")), ..Options::new(ssds.to_vec(), path("state")) },
        Estate::default(),
        &mut |_| {
            asked += 1;
            false
        },
    );
    assert!(matches!(ended.err(), Some(StartError::Ended)) && asked == 1);
    assert!(!path("socket").exists());
    let pool = Pool::open(&ssds, &path("state")).unwrap();
    let volume = pool.volume("home").unwrap();
    let mut read = [0; 4096];
    for n in 0..100 {
        volume.read(n * 65_536, &mut read).unwrap();
        assert_eq!(read, [n as u8 + 1; 4096]);
    }
    pool.close(Duration::from_secs(60)).unwrap();
}

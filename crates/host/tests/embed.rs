//! A pool inside a program: the example, and what becomes of calls that come too late.

#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../examples/embed.rs"]
mod example;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use headpond_host::claim::Claim;
use headpond_host::embed::{Error, Mode, Pool};
use headpond_host::pool::PoolError;

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../headpond/tests/common/silent.rs"]
mod silent;

const MINUTE: Duration = Duration::from_secs(60);
/// How long to wait for what nobody holds any more: what another test starts at this moment has a copy of it, up to its exec.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn the_example_leaves_its_data_on_the_disk_and_has_fewer_than_sixty_lines() {
    let folder = tempfile::tempdir().unwrap();
    example::run(folder.path()).unwrap();
    let disk = File::open(folder.path().join("disk")).unwrap();
    let mut data = vec![0; 16 << 10];
    disk.read_exact_at(&mut data, (1 << 20) - 4096).unwrap();
    assert!(data[..4096].iter().all(|byte| *byte == 0));
    assert!(data[4096..12288].iter().all(|byte| *byte == 0x5a));
    assert!(data[12288..].iter().all(|byte| *byte == 0));
    assert!(include_str!("../examples/embed.rs").lines().count() < 60);
}

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { folder: tempfile::tempdir().unwrap() };
        for name in ["ssd0", "ssd1", "disk", "other"] {
            File::create_new(files.path(name)).unwrap().set_len(64 << 20).unwrap();
        }
        Pool::create("tank", &files.ssds(), &files.path("state")).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ssds(&self) -> [PathBuf; 2] {
        ["ssd0", "ssd1"].map(|name| self.path(name))
    }

    fn open(&self) -> Result<Pool, Error> {
        self.open_within(PATIENCE)
    }

    fn open_within(&self, patience: Duration) -> Result<Pool, Error> {
        let mut options = headpond_host::embed::Options::new(&self.ssds(), &self.path("state"));
        options.patience = patience;
        Pool::open_with(options)
    }
}

#[test]
fn a_volume_that_was_detached_is_not_reached_by_an_older_value_even_when_another_has_its_number() {
    let files = Files::new();
    let pool = files.open().unwrap();
    let (first, same) = (pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap(), pool.volume("home").unwrap());
    first.write(0, &[1; 4096]).unwrap();
    first.detach(MINUTE).unwrap();
    let second = pool.attach("home", &files.path("other"), Mode::WriteBack).unwrap();
    for old in [&first, &same] {
        assert!(matches!(old.write(0, &[2; 4096]), Err(Error::Detached { .. })));
        assert!(matches!(old.detach(MINUTE), Err(Error::Detached { .. })));
    }
    let mut read = [9; 4096];
    second.read(0, &mut read).unwrap();
    assert_eq!(read, [0; 4096]);
    pool.close(MINUTE).unwrap();
    assert_eq!(fs::read(files.path("disk")).unwrap()[..4096], [1; 4096]);
}

#[test]
fn calls_after_the_end_of_a_pool_are_answered_and_its_devices_are_free() {
    let files = Files::new();
    let pool = files.open().unwrap();
    let volume = pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap();
    // The same claims as a daemon's: nobody else serves the pool at the same time.
    let held = files.open_within(Duration::from_millis(100)).err();
    assert!(matches!(held, Some(Error::Start(headpond_host::daemon::StartError::Pool(PoolError::Claim(_))))), "{held:?}");
    volume.write(4096, &[3; 512]).unwrap();
    pool.close(MINUTE).unwrap();
    assert!(matches!(volume.write(0, &[4; 512]), Err(Error::Closed)));
    assert!(matches!(volume.flush(), Err(Error::Closed)));
    assert!(matches!(volume.detach(MINUTE), Err(Error::Closed)));
    assert!(matches!(pool.volume("home"), Err(Error::Closed)));
    assert!(matches!(pool.attach("b", &files.path("other"), Mode::WriteBack), Err(Error::Closed)));
    assert!(matches!(pool.status(), Err(Error::Closed)));
    assert!(matches!(pool.close(MINUTE), Err(Error::Closed)));
    let again = files.open().unwrap();
    let volume = again.volume("home").unwrap();
    let mut read = [9; 1024];
    volume.read(4096, &mut read).unwrap();
    assert_eq!((&read[..512], &read[512..]), (&[3; 512][..], &[0; 512][..]));
    // Dropped, it ends as by a power cut, and whatever is left of it says so.
    drop(again);
    assert!(matches!(volume.read(0, &mut read), Err(Error::Closed)));
    files.open().unwrap().volume("home").unwrap().detach(MINUTE).unwrap();
    assert_eq!(fs::read(files.path("disk")).unwrap()[4096..4608], [3; 512]);
}

/// Those that were out of date stayed claimed for as long as anything was left of the pool: it could not be opened again, nor they be added.
#[test]
fn a_pool_that_is_closed_lets_go_of_devices_that_are_out_of_date() {
    let files = Files::new();
    let [first, second] = files.ssds();
    fs::rename(&second, files.path("away")).unwrap();
    Pool::open(&[first], &files.path("state")).unwrap().close(MINUTE).unwrap();
    fs::rename(files.path("away"), &second).unwrap();
    let pool = files.open().unwrap();
    assert!(!pool.status().unwrap().advice.is_empty());
    assert!(Claim::take(&second, Duration::ZERO).is_err());
    pool.close(MINUTE).unwrap();
    Claim::take(&second, PATIENCE).unwrap();
    files.open().unwrap();
}

/// Of a pool whose end failed the status was still told, as if it were open.
#[test]
fn a_pool_that_a_device_keeps_from_ending_cleanly_is_closed_all_the_same() {
    let files = Files::new();
    let Some(disk) = silent::Disk::new(&files.path("mount"), 16 << 20) else { return };
    let pool = files.open().unwrap();
    let volume = pool.attach("home", &disk.path(), Mode::WriteBack).unwrap();
    disk.fall_silent();
    thread::scope(|scope| {
        let reads = scope.spawn(|| volume.read(8 << 20, &mut [0; 4096]));
        thread::sleep(Duration::from_millis(200));
        let closed = pool.close(Duration::from_secs(1));
        let (read, status) = (reads.join().unwrap(), pool.status());
        disk.speak();
        assert!(matches!(closed, Err(Error::NotClosed { .. })), "{closed:?}");
        assert!(matches!(read, Err(Error::Closed)), "{read:?}");
        assert!(matches!(status, Err(Error::Closed)), "{status:?}");
    });
}

/// Whatever was at the path that came out of it was attached, or nothing.
#[test]
fn a_backing_device_whose_path_is_no_text_is_refused_and_no_other_one_is_taken() {
    let files = Files::new();
    let path = files.folder.path().join(OsStr::from_bytes(b"disk\xff"));
    for path in [path.clone(), path.to_string_lossy().into_owned().into()] {
        File::create_new(path).unwrap().set_len(64 << 20).unwrap();
    }
    let pool = files.open().unwrap();
    let refused = pool.attach("home", &path, Mode::WriteBack).err();
    assert!(matches!(refused, Some(Error::NotText { .. })), "{refused:?}");
    pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap();
    pool.close(MINUTE).unwrap();
    let mut options = headpond_host::embed::Options::new(&files.ssds(), &files.path("state"));
    options.backings.insert("home".into(), path);
    assert!(matches!(Pool::open_with(options).err(), Some(Error::NotText { .. })));
    files.open().unwrap().volume("home").unwrap();
}

/// It was told to start the daemon again.
#[test]
fn a_volume_that_is_being_attached_when_its_pool_is_closed_is_told_that_it_is() {
    let files = Files::new();
    let Some(disk) = silent::Disk::new(&files.path("mount"), 16 << 20) else { return };
    let pool = files.open().unwrap();
    disk.fall_silent();
    thread::scope(|scope| {
        let attaches = scope.spawn(|| pool.attach("home", &disk.path(), Mode::WriteBack).err());
        thread::sleep(Duration::from_millis(500));
        let closed = pool.close(MINUTE);
        disk.speak();
        let attached = attaches.join().unwrap();
        closed.unwrap();
        assert!(matches!(attached, Some(Error::Closed)), "{attached:?}");
    });
}

#[test]
fn many_threads_use_one_volume_while_it_is_closed_under_them() {
    let files = Files::new();
    let pool = files.open().unwrap();
    let volume = pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap();
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let volume = &volume;
            scope.spawn(move || {
                let (own, mut read) = (number << 20, [0; 4096]);
                for round in 1.. {
                    let data = [round as u8; 4096];
                    match volume.write(own, &data).and_then(|()| volume.read(own, &mut read)) {
                        Ok(()) => assert_eq!(read, data),
                        Err(Error::Closed) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        pool.close(MINUTE).unwrap();
    });
}

#[test]
fn what_does_not_fit_a_volume_is_refused_with_its_bounds_and_what_is_longer_than_a_request_is_not() {
    let files = Files::new();
    let pool = files.open().unwrap();
    let volume = pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap();
    for (offset, bytes) in [(1, 512), (0, 100), (64 << 20, 512), (u64::MAX - 511, 512)] {
        assert!(matches!(volume.write(offset, &vec![0; bytes]), Err(Error::Range { .. })), "{offset} {bytes}");
    }
    volume.write(64 << 20, &[]).unwrap();
    let data: Vec<u8> = (0..9 << 20).map(|at| (at / 512) as u8).collect();
    volume.write(512, &data).unwrap();
    let mut read = vec![0; data.len()];
    volume.read(512, &mut read).unwrap();
    assert!(read == data);
    volume.discard(0, 1 << 20).unwrap();
    volume.read(512, &mut read[..512]).unwrap();
    assert_eq!(read[..512], [0; 512]);
    assert!(matches!(pool.volume("away"), Err(Error::NoVolume { .. })));
    // With no time at all it is served on, whatever it came to.
    if volume.detach(Duration::ZERO).is_err() {
        volume.flush().unwrap();
    }
}

#[test]
fn a_detach_that_is_late_ends_all_the_same_and_the_volume_is_served_on() {
    let files = Files::new();
    let pool = files.open().unwrap();
    // As slow as a disk, and large enough that it has to seek; and so much that it has not come far with it by then on a slow machine either.
    File::create_new(files.path("slow")).unwrap().set_len(64 << 30).unwrap();
    let slow = PathBuf::from(format!("modelled:{}", files.path("slow").display()));
    let volume = pool.attach("home", &slow, Mode::WriteBack).unwrap();
    let places: Vec<u64> = (0..8000_u64).map(|n| n * 20_000_003 % (16 << 20) * 4096).collect();
    thread::scope(|scope| {
        for part in places.chunks(places.len().div_ceil(16)) {
            let volume = &volume;
            scope.spawn(move || part.iter().for_each(|at| volume.write(*at, &[7; 4096]).unwrap()));
        }
    });
    let begun = Instant::now();
    assert!(matches!(volume.detach(Duration::from_secs(1)), Err(Error::NotDetached { .. })));
    let took = begun.elapsed();
    assert!((1..20).contains(&took.as_secs()), "{took:?}");
    let mut read = [0; 4096];
    for volume in [&volume, &pool.volume("home").unwrap()] {
        volume.write(places[0], &[8; 4096]).unwrap();
        volume.read(places[0], &mut read).unwrap();
        assert_eq!(read, [8; 4096]);
        volume.read(places[1], &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
    }
    pool.close(MINUTE).unwrap();
}

#[test]
fn a_volume_without_a_backing_device_is_made_kept_and_deleted() {
    let files = Files::new();
    let pool = files.open().unwrap();
    let too_large = pool.create_volume("journal", 1 << 40).err().expect("no room");
    assert!(too_large.to_string().contains("have room for"), "{too_large}");
    let volume = pool.create_volume("journal", (1 << 20) + 1).unwrap();
    assert_eq!((volume.size(), volume.block()), ((1 << 20) + 4096, 512));
    volume.write(512, &[7; 4096]).unwrap();
    volume.flush().unwrap();
    // It has no disk that it could be put on, and is served on.
    assert!(volume.detach(MINUTE).unwrap_err().to_string().contains("no backing device"));
    let mut data = [0; 4096];
    volume.read(512, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    pool.close(MINUTE).unwrap();
    let pool = files.open().unwrap();
    let volume = pool.volume("journal").unwrap();
    data = [0; 4096];
    volume.read(512, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    volume.delete(MINUTE).unwrap();
    assert!(matches!(volume.read(512, &mut data), Err(Error::Detached { .. })));
    assert!(matches!(pool.volume("journal"), Err(Error::NoVolume { .. })));
    let disk = pool.attach("home", &files.path("disk"), Mode::WriteBack).unwrap();
    assert!(disk.delete(MINUTE).unwrap_err().to_string().contains("has a backing device"));
    disk.detach(MINUTE).unwrap();
    pool.close(MINUTE).unwrap();
}

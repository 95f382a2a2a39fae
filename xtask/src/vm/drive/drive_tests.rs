//! A drive as its clients see it, through its socket.

use super::*;
use headpond_host::nbd::client::{Client, Request};
use std::os::unix::fs::FileExt;

fn ask(client: &mut Client, request: Request<'_>) -> Result<Vec<u8>, u32> {
    client.begin(request).unwrap();
    let done = client.next().unwrap().unwrap();
    done.result
}

fn set_up(speed: Speed) -> (tempfile::TempDir, Drive) {
    let folder = tempfile::tempdir().unwrap();
    let mut drive = Drive::new("ssd", 1 << 20, speed, folder.path()).unwrap();
    drive.power_on().unwrap();
    (folder, drive)
}

fn written_and_cut(speed: Speed, seed: u64, faults: Faults, fua: bool, flush: bool) -> bool {
    let (folder, mut drive) = set_up(speed);
    drive.set_faults(faults);
    let mut client = Client::connect(drive.socket(), "ssd", Duration::from_secs(20)).unwrap();
    let data = [7_u8; 4096];
    ask(&mut client, Request::Write { offset: 8192, data: &data, fua }).unwrap();
    if flush {
        ask(&mut client, Request::Flush).unwrap();
    }
    assert_eq!(ask(&mut client, Request::Read { offset: 8192, len: 4096 }).unwrap(), data);
    drop(client);
    drive.power_cut(&mut Dice(seed)).unwrap();
    let mut found = [0; 4096];
    File::open(folder.path().join("ssd.drive")).unwrap().read_exact_at(&mut found, 8192).unwrap();
    found == data
}

#[test]
fn what_a_client_was_told_is_flushed_is_there_after_a_cut_and_other_data_may_not_be() {
    for speed in [Speed::Instant, Speed::Ssd] {
        for seed in 0..10 {
            assert!(written_and_cut(speed, seed, Faults::default(), false, true));
            assert!(written_and_cut(speed, seed, Faults::default(), true, false));
        }
    }
    assert!((0..10).any(|seed| !written_and_cut(Speed::Instant, seed, Faults::default(), false, false)));
}

#[test]
fn a_drive_that_lies_about_flushes_loses_what_it_promised() {
    let lying = Faults { lying_flushes: true, ..Faults::default() };
    assert!((0..10).any(|seed| !written_and_cut(Speed::Instant, seed, lying, true, true)));
}

#[test]
fn faults_come_and_go_on_command() {
    let (_folder, drive) = set_up(Speed::Instant);
    let mut client = Client::connect(drive.socket(), "ssd", Duration::from_secs(20)).unwrap();
    let data = [7_u8; 512];
    drive.set_faults(Faults::ALL);
    assert!(ask(&mut client, Request::Write { offset: 0, data: &data, fua: false }).is_err());
    assert!(ask(&mut client, Request::Read { offset: 0, len: 512 }).is_err());
    assert!(ask(&mut client, Request::Flush).is_err());
    drive.set_faults(Faults::default());
    assert_eq!(ask(&mut client, Request::Read { offset: 0, len: 512 }).unwrap(), [0; 512]);
    assert!(ask(&mut client, Request::Write { offset: 0, data: &data, fua: false }).is_ok());
    let counts = drive.counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes, counts.failed), (2, 2, 1, 3));
}

#[test]
fn of_a_drive_with_flaky_reads_some_fail_and_succeed_when_they_are_asked_again() {
    let (_folder, drive) = set_up(Speed::Instant);
    let mut client = Client::connect(drive.socket(), "ssd", Duration::from_secs(20)).unwrap();
    drive.set_faults(Faults { flaky_reads: 64, ..Faults::default() });
    let mut fails = || ask(&mut client, Request::Read { offset: 4096, len: 512 }).is_err();
    let failed = (0..400).filter(|_| fails()).count();
    assert!((50..150).contains(&failed), "{failed} of 400");
}

#[test]
fn a_rotating_drive_takes_its_time() {
    let (_folder, drive) = set_up(Speed::Rotating { slower: 1 });
    let mut client = Client::connect(drive.socket(), "ssd", Duration::from_secs(20)).unwrap();
    let begun = Instant::now();
    for n in [900_u64, 100, 700, 300, 500] {
        ask(&mut client, Request::Read { offset: n << 10, len: 512 }).unwrap();
    }
    assert!(begun.elapsed() > Duration::from_millis(3), "{:?}", begun.elapsed());
}

#[test]
fn a_drive_whose_time_goes_slower_takes_so_many_times_longer() {
    let took = |slower| {
        let (_folder, drive) = set_up(Speed::Rotating { slower });
        let mut client = Client::connect(drive.socket(), "ssd", Duration::from_secs(20)).unwrap();
        let begun = Instant::now();
        for n in [900_u64, 100, 700, 300, 500] {
            ask(&mut client, Request::Read { offset: n << 10, len: 512 }).unwrap();
        }
        begun.elapsed()
    };
    // Where the platter is when a request comes is chance: five turns of 8.3 ms at most, and nothing at least.
    let slow = took(40);
    assert!(slow > Duration::from_millis(120), "{slow:?}");
}

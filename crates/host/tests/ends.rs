//! The end of an engine: who asks it then, and who had asked.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use headpond_engine::io::{Buf, Request};
use headpond_host::buf::HostBuf;
use served::{BLOCK, LONG, Served};

#[allow(dead_code, reason = "other tests use the rest")]
mod served;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../headpond/tests/common/silent.rs"]
mod silent;

/// Who asked a pool that was closed how it stands waited for ever, where a device owed it something.
#[test]
fn who_asks_an_engine_that_has_ended_is_told_so_whatever_a_device_owes_it() {
    let mount = tempfile::tempdir().unwrap();
    let Some(ssd) = silent::Disk::new(&mount.path().join("mount"), 64 << 20) else { return };
    let mut served = Served::with(Some(ssd.path()));
    let handle = served.handle().clone();
    ssd.fall_silent();
    let data = HostBuf::from_bytes(&[7; BLOCK as usize]);
    handle.request(0, Request::Write { sector: 0, data, fua: false }, drop);
    std::thread::sleep(Duration::from_millis(200));
    served.runtime = None;
    let (told, answer) = mpsc::channel();
    std::thread::spawn(move || told.send(handle.status().is_none()));
    let answer = answer.recv_timeout(LONG);
    ssd.speak();
    assert_eq!(answer, Ok(true));
}

/// Says that who had asked was answered.
struct Answered;

impl Drop for Answered {
    fn drop(&mut self) {
        println!("ANSWERED");
    }
}

/// Its thread let go of all that it had, and ended the process then: who had asked was answered with an error, where a kill would have left the request in
/// the kernel for the next daemon, and a device that owed something kept the process for as long as it did. Found by reading.
#[test]
fn an_engine_that_panics_ends_the_process_and_answers_nobody() {
    const CHILD: &str = "HEADPOND_TEST_ENGINE_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Core, no_core).unwrap();
        let served = Served::new();
        let ((stand, stands), (go, goes)) = (mpsc::channel(), mpsc::channel());
        served.handle().request(0, Request::Flush, move |_| {
            stand.send(()).unwrap();
            goes.recv().unwrap();
            panic!("as by a mistake");
        });
        stands.recv().unwrap();
        for n in 0..3 {
            let answered = Answered;
            served.handle().request(0, Request::Read { sector: n * 8, sectors: 8, into: None }, move |_| drop(answered));
        }
        go.send(()).unwrap();
        std::thread::sleep(LONG);
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["an_engine_that_panics_ends_the_process_and_answers_nobody", "--exact", "--nocapture"]).env(CHILD, "1");
    let Output { status, stdout, stderr } = child.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {stderr}");
    assert!(stderr.contains("as by a mistake") && stderr.contains("Start the daemon again."), "{stderr}");
    assert!(!stdout.contains("ANSWERED"), "{stdout}");
}

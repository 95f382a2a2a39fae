//! For tests: a thread for whose calls the kernel has nothing.

use std::io;

/// A step of a filter of system calls: what it does, how many steps it jumps over if that is so and if it is not, and with what.
pub(crate) fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// From now on the kernel has nothing (EAGAIN) for those calls of this thread for which `steps` come to their end; those for which they jump one step further
/// go on as ever.
pub(crate) fn is_exhausted(steps: &[libc::sock_filter]) {
    let ends = [
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut filter = [steps, &ends].concat();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is there during the call, and of this thread alone.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(set, "{}", io::Error::last_os_error());
}

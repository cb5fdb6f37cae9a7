//! Child processes of `fork`, which have this process's memory and none of its other threads.

use std::time::{Duration, Instant};

/// Whether `child`, run in a child process, gives `true` there within some seconds.
pub(crate) fn holds_in_a_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child` and ends without returning into the test harness. It allocates, which the C
    // library makes safe after `fork`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(if held { 0 } else { 1 }) }
    }
    let begun = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `pid` is a child that nobody else waits for, and `status` is ours.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if begun.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_micros(200));
            }
            0 => {
                // SAFETY: as above; the child hangs.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(pid, &mut status, 0) };
                panic!("the child hangs");
            }
            _ => return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        }
    }
}

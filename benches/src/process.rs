//! What Linux tells of this process: memory, processor time, switches; and a quota put upon it.

use procfs_core::process::{Schedstat, Status};
use procfs_core::{FromRead, ProcessCGroup, ProcessCGroups};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Bytes of a process that are in main memory.
pub struct Resident {
    /// `VmRSS`.
    pub now: u64,
    /// The most there ever were: `VmHWM`.
    pub most: u64,
}

/// The memory of this process; `None` where the system does not tell.
pub fn resident() -> Option<Resident> {
    let status = Status::from_file("/proc/self/status").ok()?;
    Some(Resident { now: status.vmrss? * 1024, most: status.vmhwm? * 1024 })
}

/// Nanoseconds that all threads of this process have run so far.
pub fn processor_time() -> Option<u64> {
    Some(of_threads::<Schedstat>("schedstat")?.map(|spent| spent.sum_exec_runtime).sum())
}

/// How often the threads of this process gave their processor away: on their own, as who waits does, and otherwise.
pub fn switches() -> Option<(u64, u64)> {
    let counts = of_threads::<Status>("status")?.filter_map(|status| {
        Some((status.voluntary_ctxt_switches?, status.nonvoluntary_ctxt_switches?))
    });
    Some(counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1)))
}

/// What a file of each thread says.
fn of_threads<T: FromRead>(file: &str) -> Option<impl Iterator<Item = T>> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    // A thread that has ended since has no file.
    Some(tasks.filter_map(move |task| T::from_file(task.ok()?.path().join(file)).ok()))
}

/// A quota of processor time on this process, until this value is dropped: a control group below its own.
pub struct Quota {
    own: PathBuf,
    group: PathBuf,
}

/// Microseconds in which a quota may be used up: the usual period.
const PERIOD: u64 = 100_000;

impl Quota {
    /// Lets this process have as much time as `processors` processors have.
    ///
    /// # Errors
    /// Where there are no control groups, or none may be made.
    pub fn start(processors: f64) -> io::Result<Quota> {
        let groups = ProcessCGroups::from_file("/proc/self/cgroup").map_err(io::Error::other)?;
        let (own, unified) = own_group(&groups).ok_or(io::ErrorKind::NotFound)?;
        let group = own.join(format!("headrow-benches-{}", std::process::id()));
        fs::create_dir(&group)?;
        let quota = Quota { own, group };
        let time = (processors * PERIOD as f64) as u64;
        if unified {
            fs::write(quota.group.join("cpu.max"), format!("{time} {PERIOD}"))?;
        } else {
            fs::write(quota.group.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(quota.group.join("cpu.cfs_quota_us"), time.to_string())?;
        }
        join(&quota.group)?;
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // What cannot be undone here ends with the process.
        let _ = join(&self.own);
        let _ = fs::remove_dir(&self.group);
    }
}

/// Moves this process, all threads, into a group.
fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// The folder of the group that grants processor time, and whether it is of the unified hierarchy.
fn own_group(groups: &ProcessCGroups) -> Option<(PathBuf, bool)> {
    let named = |group: &&ProcessCGroup| group.controllers.iter().any(|name| name == "cpu");
    let unified = |group: &&ProcessCGroup| group.controllers.is_empty();
    let group = groups.0.iter().find(named).or_else(|| groups.0.iter().find(unified))?;
    let hierarchy = Path::new("/sys/fs/cgroup").join(group.controllers.join(","));
    Some((hierarchy.join(group.pathname.trim_start_matches('/')), unified(&group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_hierarchies_are_found() {
        let own = |text: &str| own_group(&ProcessCGroups::from_read(text.as_bytes()).unwrap());
        let old = own("3:cpu,cpuacct:/a/b\n1:memory:/c\n0::/d\n");
        assert_eq!(old, Some(("/sys/fs/cgroup/cpu,cpuacct/a/b".into(), false)));
        let new = own("0::/user.slice/x:y\n");
        assert_eq!(new, Some(("/sys/fs/cgroup/user.slice/x:y".into(), true)));
        assert_eq!(own("2:cpuset:/\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_told_in_bytes() {
        // Linux counts pages by processor and adds them up late: a figure can lack some, and the most be less than was told before.
        let size = 64 << 20;
        let figures = size / 2..size << 8;
        let bytes = std::hint::black_box(vec![1_u8; size as usize]);
        let now = resident().expect("figures").now;
        drop(bytes);
        let Resident { now: after, most } = resident().expect("figures");
        assert!(figures.contains(&now) && figures.contains(&most), "{now} {most}");
        assert!(after < most, "{after} {most}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_takes_processor_time_and_sleep_a_switch() {
        use std::time::{Duration, Instant};
        // Threads of other tests that end take theirs out of the sums.
        let start = Instant::now();
        let in_time = || assert!(start.elapsed() < Duration::from_secs(20));
        let spent = processor_time().expect("a time");
        while processor_time().expect("a time") < spent + 10_000_000 {
            in_time();
        }
        let waits = switches().expect("counts").0;
        while switches().expect("counts").0 <= waits {
            in_time();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

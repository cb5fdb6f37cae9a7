//! What Linux tells of this process: memory, processor time, switches; and a quota put upon it.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A number of kibibytes out of `/proc/self/status`, in bytes; `None` where there is none of that name.
pub fn memory(name: &str) -> Option<u64> {
    number(&fs::read_to_string("/proc/self/status").ok()?, name).map(|kib| kib * 1024)
}

/// Nanoseconds that all threads of this process have run so far.
pub fn processor_time() -> Option<u64> {
    let spent = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    Some(tasks("schedstat")?.iter().filter_map(|text| spent(text)).sum())
}

/// How often the threads of this process gave their processor away: on their own, as who waits does, and otherwise.
pub fn switches() -> Option<(u64, u64)> {
    let tasks = tasks("status")?;
    let sum = |name| tasks.iter().filter_map(|text| number(text, name)).sum();
    Some((sum("voluntary_ctxt_switches"), sum("nonvoluntary_ctxt_switches")))
}

/// A file of each thread.
fn tasks(file: &str) -> Option<Vec<String>> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    Some(tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join(file)).ok()).collect())
}

fn number(status: &str, name: &str) -> Option<u64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?.strip_prefix(':')?;
        rest.split_whitespace().next()?.parse().ok()
    };
    status.lines().find_map(value)
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
        let named = own_group(&fs::read_to_string("/proc/self/cgroup")?);
        let (own, unified) = named.ok_or(io::ErrorKind::NotFound)?;
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

/// The folder of the group that `/proc/self/cgroup` names for processor time, and whether it is of the unified hierarchy.
fn own_group(named: &str) -> Option<(PathBuf, bool)> {
    let fields = named.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?.trim_start_matches('/')))
    });
    let mut unified = None;
    for (controllers, path) in fields {
        if controllers.split(',').any(|name| name == "cpu") {
            return Some((Path::new("/sys/fs/cgroup").join(controllers).join(path), false));
        }
        if controllers.is_empty() {
            unified = Some((Path::new("/sys/fs/cgroup").join(path), true));
        }
    }
    unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_hierarchies_are_found() {
        let old = own_group("3:cpu,cpuacct:/a/b\n1:memory:/c\n0::/d\n");
        assert_eq!(old, Some(("/sys/fs/cgroup/cpu,cpuacct/a/b".into(), false)));
        let new = own_group("0::/user.slice/x:y\n");
        assert_eq!(new, Some(("/sys/fs/cgroup/user.slice/x:y".into(), true)));
        assert_eq!(own_group("2:cpuset:/\n"), None);
    }

    #[test]
    fn numbers_are_found_by_whole_names() {
        let status = "VmHWM:\t  100 kB\nVmRSS:\t   64 kB\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(number(status, "VmRSS"), Some(64));
        assert_eq!(number(status, "voluntary_ctxt_switches"), None);
        assert_eq!(number(status, "nonvoluntary_ctxt_switches"), Some(7));
    }
}

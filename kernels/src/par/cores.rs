//! How many cores a call may have.

use super::MAX_THREADS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

/// How many threads a call should use when the caller has no wish: the physical cores that the affinity mask of the
/// calling thread reaches, at most as many as the quotas of its cgroups (version 1 or 2) pay for, rounded down, and
/// at least 1.
///
/// ```
/// use headrow_kernels::{Team, par::default_threads};
/// let team = Team::new(default_threads());
/// assert!(team.threads() >= 1);
/// ```
pub fn default_threads() -> usize {
    System { root: Path::new("/") }.threads()
}

/// What Linux tells in files below a folder, which tests make up; elsewhere nothing is there.
struct System<'a> {
    root: &'a Path,
}

impl System<'_> {
    fn threads(&self) -> usize {
        let cores = self.cores().unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
        self.quota().map_or(cores, |quota| cores.min(quota)).clamp(1, MAX_THREADS)
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Physical cores that the affinity mask reaches: one per distinct set of sibling threads, or one per thread
    /// where those are not told.
    fn cores(&self) -> Option<usize> {
        let status = self.read("proc/thread-self/status")?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let threads: BTreeSet<usize> = cpu_list(allowed)?.collect();
        let siblings = |cpu: &usize| {
            self.read(format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        };
        let cores: Option<BTreeSet<String>> = threads.iter().map(siblings).collect();
        Some(cores.map_or(threads.len(), |cores| cores.len())).filter(|&cores| cores > 0)
    }

    /// Cores that the strictest quota of the process's cgroup and those above it pays for, rounded down.
    fn quota(&self) -> Option<usize> {
        let named = self.read("proc/self/cgroup")?;
        let group = Group::of(&named)?;
        let (mount, folder) = group.folder(&self.read("proc/self/mountinfo")?)?;
        let groups = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
        let quotas = groups.filter_map(|folder| {
            let (time, period) = if group.unified {
                let both = self.read(folder.join("cpu.max"))?;
                let (time, period) = both.trim().split_once(' ')?;
                (time.parse().ok()?, period.parse().ok()?)
            } else {
                let number = |file: &str| self.read(folder.join(file))?.trim().parse::<u64>().ok();
                // No quota is −1, which is no such number.
                (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            };
            time.checked_div(period)
        });
        quotas.min().map(|cores| usize::try_from(cores).unwrap_or(usize::MAX))
    }
}

/// The cgroup that grants the process its time.
struct Group<'a> {
    path: &'a Path,
    /// Of version 2.
    unified: bool,
}

impl<'a> Group<'a> {
    /// From `/proc/self/cgroup`: lines `number:controllers:path`. Where a hierarchy of version 1 has the controller,
    /// that of version 2 has it not.
    fn of(named: &'a str) -> Option<Group<'a>> {
        let mut found = None;
        for line in named.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, Path::new(fields.next()?));
            if controllers.split(',').any(|name| name == "cpu") {
                return Some(Group { path, unified: false });
            }
            if controllers.is_empty() {
                found = Some(Group { path, unified: true });
            }
        }
        found
    }

    /// Where its hierarchy is mounted, and its folder there, both without the leading `/`. From
    /// `/proc/self/mountinfo`: lines `… … … root point … - type source options`.
    fn folder(&self, mounts: &str) -> Option<(PathBuf, PathBuf)> {
        let mounted = |line: &str| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            let ours = match self.unified {
                true => kind == "cgroup2",
                false => kind == "cgroup" && options.split(',').any(|name| name == "cpu"),
            };
            let mut before = before.split(' ').skip(3);
            let (root, point) = (before.next()?, before.next()?.strip_prefix('/')?);
            let mount = PathBuf::from(point);
            // In a container the mounted root is often the group itself, or told as one that is not above it.
            let below = self.path.strip_prefix(root).ok();
            let folder = mount.join(below.unwrap_or(Path::new("")));
            ours.then(|| (below.is_some(), mount, folder))
        };
        // Of several mounts one that has the group counts.
        let all: Vec<_> = mounts.lines().filter_map(mounted).collect();
        let with_group = all.iter().position(|&(has, ..)| has).unwrap_or(0);
        all.into_iter().nth(with_group).map(|(_, mount, folder)| (mount, folder))
    }
}

/// The numbers in a list as the kernel writes it, such as `0-3,8`; `None` when it is not one.
fn cpu_list(list: &str) -> Option<impl Iterator<Item = usize>> {
    let ranges: Option<Vec<_>> = list
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (last < 1 << 16).then_some(first..=last)
        })
        .collect();
    Some(ranges?.into_iter().flatten())
}

// Made-up files want a folder for temporary ones, which WebAssembly has not.
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        let read = |list: &str| cpu_list(list).map(Iterator::collect::<Vec<_>>);
        assert_eq!(read("\t0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(read("5"), Some(vec![5]));
        assert_eq!(read("0-99999999"), None);
        assert_eq!(read("none"), None);
        assert!((1..=MAX_THREADS).contains(&default_threads()));
    }

    /// A folder of made-up files, gone at the end.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Files {
            let root = std::env::temp_dir().join(format!("headrow-{name}-{}", std::process::id()));
            let files = files.iter().map(|&(path, text)| (root.join(path), text));
            for (path, text) in files {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Files(root)
        }

        fn system(&self) -> System<'_> {
            System { root: &self.0 }
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const ALLOWED: (&str, &str) =
        ("proc/thread-self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n");

    #[test]
    fn siblings_share_a_core() {
        let files = [
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,4\n"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,5\n"),
            ("sys/devices/system/cpu/cpu4/topology/thread_siblings_list", "0,4\n"),
            ("proc/thread-self/status", "Cpus_allowed_list:\t0-1,4\n"),
        ];
        assert_eq!(Files::new("siblings", &files).system().threads(), 2);
        assert_eq!(Files::new("no-siblings", &[ALLOWED]).system().threads(), 8);
        let wrong = [("proc/thread-self/status", "Cpus_allowed_list:\tmany\n")];
        assert_eq!(Files::new("no-list", &wrong).system().cores(), None);
    }

    #[test]
    fn quotas_of_version_2_are_kept_to() {
        let mounts = "29 23 0:26 / /sys rw - sysfs sysfs rw\n\
                      30 29 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let files = |own: &'static str, above: &'static str| {
            Files::new(
                "v2",
                &[
                    ALLOWED,
                    ("proc/self/cgroup", "0::/a.slice/b\n"),
                    ("proc/self/mountinfo", mounts),
                    ("sys/fs/cgroup/a.slice/b/cpu.max", own),
                    ("sys/fs/cgroup/a.slice/cpu.max", above),
                ],
            )
        };
        for (own, above, threads) in [
            ("max 100000\n", "max 100000\n", 8),
            ("350000 100000\n", "max 100000\n", 3),
            ("max 100000\n", "200000 100000\n", 2),
            ("350000 100000\n", "150000 100000\n", 1),
            ("900000 100000\n", "max 100000\n", 8),
            ("350000 0\n", "none", 8),
            // Less than one core still gets a thread.
            ("50000 100000\n", "max 100000\n", 1),
        ] {
            assert_eq!(files(own, above).system().threads(), threads, "{own}{above}");
        }
    }

    #[test]
    fn quotas_of_version_1_are_kept_to() {
        let named = "3:cpu,cpuacct:/docker/c\n1:memory:/docker/m\n0::/\n";
        // The whole hierarchy, and a container's view, whose mount is its own group.
        let whole = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let own =
            "33 32 0:29 /docker/c /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        // Another group's folder that is bound elsewhere, before the one that counts.
        let bound = "32 31 0:29 /docker/d /other rw - cgroup cgroup rw,cpu,cpuacct\n";
        let several = format!("{bound}{whole}");
        for (mounts, below) in [(whole, "docker/c/"), (own, ""), (&several, "docker/c/")] {
            for (quota, threads) in [("250000", 2), ("-1", 8), ("", 8)] {
                let group = format!("sys/fs/cgroup/cpu,cpuacct/{below}");
                let files = [
                    ALLOWED,
                    ("proc/self/cgroup", named),
                    ("proc/self/mountinfo", &format!("{unified}{mounts}")),
                    (&format!("{group}cpu.cfs_quota_us"), quota),
                    (&format!("{group}cpu.cfs_period_us"), "100000\n"),
                    // Of the hierarchy that has no such controller.
                    ("sys/fs/cgroup/unified/cpu.max", "100000 100000\n"),
                ];
                let files = Files::new("v1", &files);
                assert_eq!(files.system().threads(), threads, "{mounts}{quota}");
            }
        }
    }
}

//! How many cores a call may have.

use super::MAX_THREADS;
use std::collections::BTreeSet;

/// How many threads a call should use when the caller has no wish: what the affinity mask and the
/// cgroup quota allow (rounded down), at most the number of physical cores, at least 1.
///
/// ```
/// use headrow_kernels::{Team, par::default_threads};
/// let team = Team::new(default_threads());
/// assert!(team.threads() >= 1);
/// ```
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(allowed, |cores| allowed.min(cores)).clamp(1, MAX_THREADS)
}

/// Physical cores that the affinity mask reaches, where Linux tells: one per distinct set of sibling
/// threads.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cores: Option<BTreeSet<String>> = cpu_list(allowed)?
        .map(|cpu| {
            let siblings =
                format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(siblings).ok()
        })
        .collect();
    cores.map(|cores| cores.len()).filter(|&cores| cores > 0)
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

#[cfg(test)]
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
}

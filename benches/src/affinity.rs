//! Threads held on processors of their own, so that a scheduler that puts two on one processor does not halve what is measured.

use std::collections::BTreeMap;
use std::path::Path;

/// Processors of which each of `threads` threads can have one to itself, cores of their own first; none where the system does
/// not tell, or grants fewer.
pub fn processors(threads: usize) -> Option<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let core = |cpu: usize| {
        let folder = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}"));
        let siblings = std::fs::read_to_string(folder.join("topology/thread_siblings_list"));
        siblings.unwrap_or_else(|_| cpu.to_string())
    };
    let found = spread(listed(allowed)?.into_iter().map(|cpu| (core(cpu), cpu)));
    (found.len() >= threads).then(|| found[..threads].to_vec())
}

/// The numbers of a list as `0-2,5`.
fn listed(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

/// Of processors with the names of their cores: the first of each core, then the second of each, and so on.
fn spread(processors: impl Iterator<Item = (String, usize)>) -> Vec<usize> {
    let mut seen = BTreeMap::new();
    let mut ranked: Vec<(usize, usize)> = processors
        .map(|(core, cpu)| {
            let count = seen.entry(core).or_insert(0);
            *count += 1;
            (*count, cpu)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, cpu)| cpu).collect()
}

/// Holds the calling thread on a processor, where the system lets it.
pub fn hold(cpu: usize) {
    #[cfg(target_os = "linux")]
    if cpu < 8 * size_of::<libc::cpu_set_t>() {
        // SAFETY: a set of no processors is all zeros, the number lies within it, and the call reads it alone.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(listed("\t0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed("x"), None);
    }

    #[test]
    fn cores_come_before_their_second_halves() {
        let cores = ["0-1", "0-1", "2-3", "2-3"].map(str::to_owned);
        assert_eq!(spread(cores.into_iter().zip(0..)), [0, 2, 1, 3]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_stays_where_it_is_held() {
        let cpu = processors(1).expect("a processor")[0];
        let held = std::thread::spawn(move || {
            hold(cpu);
            std::fs::read_to_string("/proc/thread-self/status").expect("a status")
        });
        let status = held.join().expect("no panic");
        assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
    }
}

//! Threads held on processors of their own, so that a scheduler that puts two on one processor does not halve what is measured.

use procfs_core::FromRead;
use procfs_core::process::Status;
use std::collections::BTreeMap;
use std::path::Path;

/// Processors of which each of `threads` threads can have one to itself, cores of their own first; none where the system does
/// not tell, or grants fewer.
pub fn processors(threads: usize) -> Option<Vec<usize>> {
    let allowed = Status::from_file("/proc/self/status").ok()?.cpus_allowed_list?;
    let core = |cpu: u32| {
        let folder = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}"));
        let siblings = std::fs::read_to_string(folder.join("topology/thread_siblings_list"));
        siblings.unwrap_or_else(|_| cpu.to_string())
    };
    let allowed = allowed.into_iter().flat_map(|(first, last)| first..=last);
    let found = spread(allowed.map(|cpu| (core(cpu), cpu as usize)));
    (found.len() >= threads).then(|| found[..threads].to_vec())
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
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_come_before_their_second_halves() {
        let cores = ["0-1", "0-1", "2-3", "2-3"].map(str::to_owned);
        assert_eq!(spread(cores.into_iter().zip(0..)), [0, 2, 1, 3]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_thread_has_a_processor_of_its_own() {
        let threads = std::thread::available_parallelism().expect("a number").get();
        let mut found = processors(threads).expect("as many processors");
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), threads);
        assert_eq!(processors(1 << 20), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_stays_where_it_is_held() {
        let cpu = processors(1).expect("a processor")[0];
        let held = std::thread::spawn(move || {
            hold(cpu);
            Status::from_file("/proc/thread-self/status").expect("a status").cpus_allowed_list
        });
        let cpu = cpu as u32;
        assert_eq!(held.join().expect("no panic"), Some(vec![(cpu, cpu)]));
    }
}

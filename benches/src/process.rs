//! What Linux tells of this process: memory, processor time, switches.

use std::fs;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_whole_names() {
        let status = "VmHWM:\t  100 kB\nVmRSS:\t   64 kB\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(number(status, "VmRSS"), Some(64));
        assert_eq!(number(status, "voluntary_ctxt_switches"), None);
        assert_eq!(number(status, "nonvoluntary_ctxt_switches"), Some(7));
    }
}

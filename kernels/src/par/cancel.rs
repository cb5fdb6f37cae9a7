//! Calls that nobody waits for any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A request to give up: a flag that any thread may set, and perhaps a time after which it counts as set.
///
/// Clones are handles of the same flag. Making one allocates; asking it does not, and costs a load, or with a
/// deadline a look at the clock (about 25 ns).
///
/// ```
/// use headrow_kernels::{Cancel, Par};
/// let cancel = Cancel::new();
/// let handle = cancel.clone();
/// std::thread::spawn(move || handle.cancel()).join().unwrap();
/// let par = Par::SERIAL.with_cancel(&cancel);
/// par.run(1000, &|_, _| unreachable!("given up before it began"));
/// assert!(par.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<Request>,
}

#[derive(Debug, Default)]
struct Request {
    set: AtomicBool,
    deadline: Option<Instant>,
}

impl Cancel {
    /// Set by [`Cancel::cancel`] alone.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Set by [`Cancel::cancel`], or once `deadline` has come.
    pub fn with_deadline(deadline: Instant) -> Cancel {
        let request = Request { set: AtomicBool::new(false), deadline: Some(deadline) };
        Cancel { shared: Arc::new(request) }
    }

    /// Asks whoever works with a handle of this flag to give up. It cannot be taken back.
    pub fn cancel(&self) {
        self.shared.set.store(true, Ordering::Release);
    }

    /// Whether the flag is set or its time has come; once true, always true.
    pub fn is_cancelled(&self) -> bool {
        if self.shared.set.load(Ordering::Acquire) {
            return true;
        }
        let late = self.shared.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late {
            self.cancel();
        }
        late
    }
}

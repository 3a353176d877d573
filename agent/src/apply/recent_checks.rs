//! The checks of tasks that cost a process, so that they are not repeated at each reconcile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which a check that found no difference is valid. It is shorter than the default time between two checks
/// for drift, so each of these checks again.
const VALID_FOR: Duration = Duration::from_mins(29);

/// The last checks of this process that found no difference, by task. A command on the host is another process, so it
/// always checks.
#[derive(Debug, Default)]
pub struct RecentChecks(RefCell<BTreeMap<String, RecentCheck>>);

/// A check that found no difference.
#[derive(Debug)]
struct RecentCheck {
    /// Digest of the task's definition and inputs.
    content: [u8; 32],
    /// The time of the check, since the machine started.
    checked_at: Duration,
}

impl RecentChecks {
    /// Records that a task with this content has no difference to its host. `now` is the time since the machine started.
    pub fn record(&self, task: &str, content: [u8; 32], now: Duration) {
        self.0.borrow_mut().insert(task.to_owned(), RecentCheck { content, checked_at: now });
    }

    /// Returns whether a check of a task with this content is still valid. `now` is the time since the machine started.
    #[must_use]
    pub fn is_valid(&self, task: &str, content: [u8; 32], now: Duration) -> bool {
        let is_recent = |check: &RecentCheck| check.content == content && now.saturating_sub(check.checked_at) < VALID_FOR;
        self.0.borrow().get(task).is_some_and(is_recent)
    }

    /// Forgets the check of a task, because the task is about to change the host.
    pub fn invalidate(&self, task: &str) {
        self.0.borrow_mut().remove(task);
    }

    /// Forgets all checks, because a person has requested a reconcile.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

//! Tasks that one change makes together, such as several packages in one transaction.
//!
//! The tasks of a batch start at the same time, and each is checked by itself. The change begins when each of them either
//! needs it or has ended without a change. Each task then has a result of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;

use crate::apply::applier::Applier;
use crate::apply::task::{ApplyResult, HostTask, Site, TaskError};

/// The result of the change for one task.
type ChangeResult = Result<ApplyResult, TaskError>;

/// Tasks that one change makes together.
#[derive(Debug)]
pub(super) struct TaskBatch {
    state: RefCell<BatchState>,
    /// Wakes the tasks that wait for the others.
    wake: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct BatchState {
    /// Number of tasks of which it is not known yet whether they need the change.
    undecided: usize,
    /// The indexes of the tasks that need the change.
    joined: Vec<usize>,
    /// True as soon as one of the tasks makes the change for all.
    has_begun: bool,
    /// True as soon as the change has ended, or the task that made it was cancelled.
    is_over: bool,
    /// The results of the change that their tasks have not taken yet.
    results: BTreeMap<usize, ChangeResult>,
}

/// The place of one task in a batch. If it is dropped before the task joins, the others no longer wait for the task.
#[derive(Debug)]
pub struct BatchMember {
    batch: Rc<TaskBatch>,
    index: usize,
    has_joined: Cell<bool>,
}

/// Ends the change when it is dropped, so that the other tasks do not wait forever if the run is cancelled.
struct ChangeGuard<'a>(&'a TaskBatch);

impl TaskBatch {
    /// Returns the places of `size` tasks, in their order.
    #[must_use]
    pub(super) fn members(size: usize) -> Vec<BatchMember> {
        let state = BatchState { undecided: size, ..BatchState::default() };
        let batch = Rc::new(Self { state: RefCell::new(state), wake: watch::Sender::new(()) });
        let member = |index| BatchMember { batch: batch.clone(), index, has_joined: Cell::new(false) };
        (0..size).map(member).collect()
    }

    /// Returns the tasks for which the caller must make the change, or `None` if it must wait.
    fn begin(&self) -> Option<Vec<usize>> {
        let mut state = self.state.borrow_mut();
        if state.undecided > 0 || state.has_begun {
            return None;
        }
        state.has_begun = true;
        Some(state.joined.clone())
    }
}

impl BatchMember {
    /// Makes the change of the task, together with those of the other tasks in `tasks` (all tasks of the batch) that need one.
    /// A further call, for another try, makes the change of this task alone.
    pub async fn apply(&self, site: &Site, applier: &dyn Applier, tasks: &[Rc<HostTask>]) -> ChangeResult {
        let task = &tasks[self.index];
        if self.has_joined.replace(true) {
            return applier.apply(site, task).await;
        }
        let mut wake = self.batch.wake.subscribe();
        {
            let mut state = self.batch.state.borrow_mut();
            state.undecided -= 1;
            state.joined.push(self.index);
        }
        self.batch.wake.send_replace(());
        loop {
            if let Some(indexes) = self.batch.begin() {
                // It is dropped after the results are stored.
                let _guard = ChangeGuard(&self.batch);
                let joined: Vec<Rc<HostTask>> = indexes.iter().map(|index| tasks[*index].clone()).collect();
                let results = applier.apply_together(site, &joined).await;
                self.batch.state.borrow_mut().results.extend(indexes.into_iter().zip(results));
            }
            if let Some(result) = self.batch.state.borrow_mut().results.remove(&self.index) {
                return result;
            }
            if self.batch.state.borrow().is_over {
                return Err(TaskError::new("the change was cancelled"));
            }
            // The sender lives as long as the batch, so this does not fail.
            let _ = wake.changed().await;
        }
    }
}

impl Drop for BatchMember {
    fn drop(&mut self) {
        if !self.has_joined.get() {
            self.batch.state.borrow_mut().undecided -= 1;
            self.batch.wake.send_replace(());
        }
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().is_over = true;
        self.0.wake.send_replace(());
    }
}

//! Who asks for a write.

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use stemma_core::object::Timestamp;
use stemma_core::ownership::Manager;
use uuid::Uuid;

use super::who::Who;
use crate::records::audit::{AuditEvent, AuditedObject};

/// What the controller itself is called.
const CONTROLLER: &str = "stemma-controller";

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The principal, and what it may.
    pub who: Who,
    /// The name under which fields and keys are owned: the principal's unless the request says another.
    pub manager: Manager,
    /// From where, as `127.0.0.1:4711`; empty for the controller itself.
    pub address: String,
    /// What the person said of it.
    pub reason: Option<String>,
    /// What the request was called in answer and journal.
    pub request_id: String,
    /// The request's `Idempotency-Key`, when it has one.
    pub mark: Option<Mark>,
    /// The write is tried out: decided and answered as ever, and not committed.
    pub dry_run: bool,
    /// Set once nobody waits for the answer any more.
    pub abandoned: Abandoned,
}

/// Whether nobody waits for an answer any more. A decision has no moment at which it could be dropped, so it asks.
#[derive(Clone, Debug, Default)]
pub struct Abandoned(Arc<AtomicBool>, #[cfg(test)] Looks);

/// How often a decision has looked whether it is abandoned. A test has its client go away at one of these looks, and not at a time.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
struct Looks {
    so_far: Arc<AtomicUsize>,
    last: Option<usize>,
}

/// Sets it when it is dropped, as a request is whose client went away.
#[derive(Debug)]
pub struct Waiting(Abandoned);

/// A request that may be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its `Idempotency-Key`.
    pub id: Uuid,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
}

impl Abandoned {
    /// Whoever waits keeps this.
    pub fn until_dropped(&self) -> Waiting {
        Waiting(self.clone())
    }

    /// Whether nobody waits.
    pub fn is_set(&self) -> bool {
        #[cfg(test)]
        if Some(self.1.so_far.fetch_add(1, Ordering::Relaxed)) == self.1.last {
            self.0.store(true, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }

    /// Nobody waits from this look on; the first is number 0.
    #[cfg(test)]
    pub(super) fn from_look(last: usize) -> Self {
        Self(Arc::default(), Looks { so_far: Arc::default(), last: Some(last) })
    }

    /// How often it was looked so far.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.1.so_far.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

impl Caller {
    /// The controller itself, by its own name in the audit.
    pub fn controller(reason: &str) -> Self {
        Self {
            who: Who::by_way(CONTROLLER),
            manager: Manager::new(CONTROLLER).expect("a plain word is a manager's name"),
            address: String::new(),
            reason: Some(reason.to_owned()),
            request_id: String::new(),
            mark: None,
            dry_run: false,
            abandoned: Abandoned::default(),
        }
    }

    /// The audit event of a commit that this caller makes.
    pub(super) fn event(&self, at: Timestamp, principal: Option<Uuid>, objects: Vec<AuditedObject>) -> AuditEvent {
        AuditEvent {
            at,
            principal: self.who.name.clone(),
            whose: Some(principal.into()),
            manager: self.manager.to_string(),
            address: self.address.clone(),
            reason: self.reason.clone(),
            request_id: self.request_id.clone(),
            objects,
            action: None,
        }
    }
}

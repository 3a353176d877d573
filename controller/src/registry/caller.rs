//! The caller of a write.

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use stemma_core::object::Timestamp;
use stemma_core::ownership::Manager;
use uuid::Uuid;

use super::requester::Requester;
use crate::records::audit::{AuditEvent, AuditedObject};

/// The controller's own name, as requester and manager in the audit.
const CONTROLLER_NAME: &str = "stemma-controller";

/// The caller of a write, with the properties of its request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The requester and its rights.
    pub requester: Requester,
    /// The manager name that owns the written fields and keys. It is the requester's name, unless the request names
    /// another manager.
    pub manager: Manager,
    /// The client's address and port, or `unix` for a client of the local socket. Empty for the controller itself.
    pub address: String,
    /// The reason for the write, for the audit. The controller gives it for its own writes and for writes of agents.
    pub reason: Option<String>,
    /// The id of the API request, as in the response and the journal. Empty for writes of agents and the controller.
    pub request_id: String,
    /// The request's `Idempotency-Key`, if it has one. `None` for a dry run, which stores no answer.
    pub idempotency_key: Option<IdempotencyKey>,
    /// True for a dry run: the controller decides and answers the write as usual, but does not commit it.
    pub dry_run: bool,
    /// The flag that is set when no client waits for the response any more.
    pub canceled: Canceled,
}

/// A flag that is set when no client waits for the response any more. The code that decides a write never awaits, so it
/// cannot be dropped. It polls this flag instead. In tests, the second field counts the checks of the flag.
#[derive(Clone, Debug, Default)]
pub struct Canceled(Arc<AtomicBool>, #[cfg(test)] CancelChecks);

/// Counts the checks of a [`Canceled`] flag. A test cancels the request from a certain check on, not at a certain time.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
struct CancelChecks {
    count: Arc<AtomicUsize>,
    canceled_from: Option<usize>,
}

/// Sets a [`Canceled`] flag when dropped. The future of a request holds the guard. That future is dropped when the
/// client disconnects.
#[derive(Debug)]
pub struct CancelGuard(Canceled);

/// The idempotency key of a request that may be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The value of the `Idempotency-Key` header.
    pub id: Uuid,
    /// The SHA-256 digest of method, path, query and body.
    pub hash: String,
}

impl Canceled {
    /// Returns a guard that sets the flag when it is dropped.
    pub fn guard(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }

    /// Returns whether no client waits for the response any more. In tests, also sets the flag at the check that the
    /// test has chosen.
    pub fn is_set(&self) -> bool {
        #[cfg(test)]
        // Field 0 is the flag. Field 1 has the number of checks so far, and the check that sets the flag.
        if Some(self.1.count.fetch_add(1, Ordering::Relaxed)) == self.1.canceled_from {
            self.0.store(true, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }

    /// Creates a flag that is set at the check with this number and stays set. The first check has the number 0.
    #[cfg(test)]
    pub(super) fn from_check(check: usize) -> Self {
        Self(Arc::default(), CancelChecks { count: Arc::default(), canceled_from: Some(check) })
    }

    /// Returns the number of checks so far.
    #[cfg(test)]
    pub(super) fn check_count(&self) -> usize {
        self.1.count.load(Ordering::Relaxed)
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

impl Caller {
    /// Creates the caller for a write that the controller makes itself. The audit then shows the controller's own name
    /// and `reason`.
    pub fn controller(reason: &str) -> Self {
        Self {
            requester: Requester::from_listener(CONTROLLER_NAME),
            manager: Manager::new(CONTROLLER_NAME).expect("a plain word is a manager's name"),
            address: String::new(),
            reason: Some(reason.to_owned()),
            request_id: String::new(),
            idempotency_key: None,
            dry_run: false,
            canceled: Canceled::default(),
        }
    }

    /// Returns the audit event for a commit of this caller. `principal` is the uuid of the caller, or `None` if the
    /// caller is not a principal.
    pub(super) fn audit_event(&self, at: Timestamp, principal: Option<Uuid>, objects: Vec<AuditedObject>) -> AuditEvent {
        AuditEvent {
            at,
            principal: self.requester.name.clone(),
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

//! The records of tasks that asked for a reboot of this host, and of what the package manager says about a reboot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::record::RecordKind;
use super::{Ledger, RecordName};
use crate::host::HostError;

/// The requests of tasks for a reboot of this host, by task.
pub const REBOOT_REQUESTS: RecordName<BTreeMap<String, RebootRequest>> =
    RecordName::new(RecordKind::RebootRequests, "reboot-requests");
/// The last answer of the package manager to the question whether the host must be booted.
pub const PACKAGE_REBOOT: RecordName<PackageReboot> = RecordName::new(RecordKind::PackageReboot, "package-reboot");

/// The last lease for a reboot that was used or refused. A lease of the same epoch with this or an earlier revision is
/// ignored.
pub const USED_REBOOT: RecordName<UsedReboot> = RecordName::new(RecordKind::UsedReboot, "used-reboot");

/// The request of a task for a reboot of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootRequest {
    /// Digest of the task's definition and inputs. A task with another digest has not asked yet.
    pub content: [u8; 32],
    /// The boot of the host in which the task asked. With another boot id, the host has booted since.
    pub boot_id: [u8; 16],
    /// The time of the request, in seconds since 1970.
    pub requested_at: u64,
    /// The reason why the host must be booted, in a few words.
    pub reason: String,
    /// The time within which the host must go down after the reboot has begun, in seconds.
    pub timeout_s: u64,
    /// True if the host has booted since the request, and the task has ended.
    pub is_done: bool,
}

/// The answer of the package manager to the question whether the host must be booted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageReboot {
    /// Digest of the metadata of the package database at the time of the question. After a change of the database, the
    /// answer is no longer valid.
    pub database: [u8; 32],
    /// The boot of the host in which the package manager was asked.
    pub boot_id: [u8; 16],
    /// True if the host must be booted.
    pub is_required: bool,
}

/// A lease for a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedReboot {
    /// The epoch of the controller's store.
    pub epoch: [u8; 16],
    /// The revision of the store at which the controller granted the lease.
    pub revision: u64,
}

impl RebootRequest {
    /// Returns whether the host must still be booted for this request. `boot_id` is the present boot.
    #[must_use]
    pub fn is_pending(&self, boot_id: [u8; 16]) -> bool {
        !self.is_done && self.boot_id == boot_id
    }
}

impl Ledger {
    /// Returns the request of a task with this content for a reboot, or `None` if the task has made none.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn reboot_request(&self, task: &str, content: [u8; 32]) -> Result<Option<RebootRequest>, HostError> {
        let request = self.get(&REBOOT_REQUESTS)?.unwrap_or_default().remove(task);
        Ok(request.filter(|request| request.content == content))
    }

    /// Stores the request of a task for a reboot, or removes it (`None`). The record is durable when this function returns.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn set_reboot_request(&self, task: &str, request: Option<RebootRequest>) -> Result<(), HostError> {
        let mut requests = self.get(&REBOOT_REQUESTS)?.unwrap_or_default();
        match request {
            Some(request) => requests.insert(task.to_owned(), request),
            None => requests.remove(task),
        };
        self.put(&REBOOT_REQUESTS, &requests)
    }

    /// Removes the requests of tasks that this host no longer runs with the same content. `is_current` returns whether the
    /// host runs a task with this id and content.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retain_reboot_requests(&self, is_current: impl Fn(&str, [u8; 32]) -> bool) -> Result<(), HostError> {
        let Some(stored) = self.get(&REBOOT_REQUESTS)? else { return Ok(()) };
        let mut requests = stored.clone();
        requests.retain(|task, request| is_current(task, request.content));
        if requests == stored { Ok(()) } else { self.put(&REBOOT_REQUESTS, &requests) }
    }

    /// Returns the requests for which the host must still be booted, by task. `boot_id` is the present boot.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn pending_reboots(&self, boot_id: [u8; 16]) -> Result<BTreeMap<String, RebootRequest>, HostError> {
        let mut requests = self.get(&REBOOT_REQUESTS)?.unwrap_or_default();
        requests.retain(|_, request| request.is_pending(boot_id));
        Ok(requests)
    }
}

//! The check-in: heartbeat, poll and report in one request. The controller holds the request until something changes
//! for the host, or until the wait that the request allows is over.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::observed::{LocalState, Observation, Report, TaskResult};
use super::signed::{LeaseKind, SignedDesired, SignedGrant};
use super::{Epoch, PartDigest, Revision};

/// The body of `POST /agent/v1/checkin`: what the agent has, and what it reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckIn {
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
    /// The desired state that the agent holds. `None` before the first one.
    pub held_desired: Option<HeldDesired>,
    /// The results after the last acknowledged one, in order.
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub results: Vec<TaskResult>,
    /// The digest of the host's current Observation.
    pub observation_digest: PartDigest,
    /// The Observation, if the controller has not acknowledged this digest.
    pub observation: Option<Observation>,
    /// The Report, if it changed.
    pub report: Option<Report>,
    /// The leases that the agent requests.
    #[serde(deserialize_with = "bounded::list::<_, _, 8>")]
    pub requested_leases: Vec<LeaseKind>,
    /// The leases and primaries that the agent no longer needs.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub returned_items: Vec<ReturnedItem>,
    /// Pause, hold and park as set on the host.
    pub local: LocalState,
    /// How long the controller may hold this request, in milliseconds.
    pub wait_ms: u32,
}

/// The desired state that an agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDesired {
    /// The epoch of the desired state.
    pub epoch: Epoch,
    /// The revision of the desired state.
    pub revision: Revision,
    /// The digest of the known part.
    pub known: PartDigest,
    /// The digest of the task set.
    pub task_set: PartDigest,
}

/// A lease or primary that the agent no longer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReturnedItem {
    /// The lease of this kind.
    Lease(LeaseKind),
    /// The primary of this tag, because its tasks have ended on this host.
    Primary(#[serde(deserialize_with = "bounded::text::<_, 255>")] String),
}

/// The response to a check-in: the changes for the agent, unless another check-in replaced this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckInResponse {
    /// Another check-in of the same agent replaced this one. The agent closes the connection.
    Superseded,
    /// The changes since the agent's last check-in.
    Current(Box<CheckInUpdate>),
}

/// The changes that a controller sends to an agent. Each part is sent only if it is new to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInUpdate {
    /// All results up to this sequence number are stored and need not be sent again.
    pub acknowledged: u64,
    /// The digest of the Observation that the controller has.
    pub observation: Option<PartDigest>,
    /// The desired state, if a part of it differs from what the agent holds.
    pub desired: Option<SignedDesired>,
    /// The open barriers and leases for the task set that the agent holds or that is in this message.
    #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
    pub grants: Vec<SignedGrant>,
    /// How long the agent waits before the next check-in, in milliseconds.
    pub next_check_in_ms: u32,
}

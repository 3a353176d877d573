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
    /// The id of the boot of the host, which is different after each boot.
    pub boot_id: [u8; 16],
    /// The desired state that the agent holds. `None` before the first accepted desired state.
    pub held_desired: Option<HeldDesired>,
    /// The results of tasks that the controller has not acknowledged, in the order of their sequence numbers.
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub results: Vec<TaskResult>,
    /// The digest of the host's current Observation.
    pub observation_digest: PartDigest,
    /// The Observation (facts, traits and labels of the host). `None` if the controller has acknowledged its digest.
    pub observation: Option<Observation>,
    /// The Report, if it changed since the last check-in, or if this controller may not have received it.
    pub report: Option<Report>,
    /// The leases that the agent requests.
    #[serde(deserialize_with = "bounded::list::<_, _, 8>")]
    pub requested_leases: Vec<LeaseKind>,
    /// The leases and primaries that the agent no longer needs.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub returned_items: Vec<ReturnedItem>,
    /// The pause, hold and park that were set on the host itself.
    pub local: LocalState,
    /// Maximum time for which the controller may hold this request before it responds, in milliseconds.
    pub wait_ms: u32,
}

/// The desired state that an agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDesired {
    /// The epoch of the desired state.
    pub epoch: Epoch,
    /// The revision of the desired state.
    pub revision: Revision,
    /// The digest of the *known* part.
    pub known: PartDigest,
    /// The digest of the task set.
    pub task_set: PartDigest,
}

/// A lease or primary that the agent no longer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReturnedItem {
    /// The lease of this kind.
    Lease(LeaseKind),
    /// The role of primary for this tag, whose tasks have ended on the host. No agent returns one yet.
    Primary(#[serde(deserialize_with = "bounded::text::<_, 255>")] String),
}

/// The response to a check-in: either the changes for the agent, or the notice that a newer check-in replaced this
/// check-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckInResponse {
    /// The notice that another check-in of the same node replaced this check-in. The controller closes the connection.
    Superseded,
    /// The changes for the agent. There may be none, for example if the controller responds because the wait is over.
    Current(Box<CheckInUpdate>),
}

/// The changes that a controller sends to an agent. The desired state is sent only if the agent does not hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInUpdate {
    /// The controller has stored or refused all results up to this sequence number. The agent does not send them again.
    pub acknowledged: u64,
    /// The digest of the Observation that the controller has stored. `None` if it has none. If the agent's Observation
    /// has another digest, the next check-in contains that Observation.
    pub observation: Option<PartDigest>,
    /// The desired state, if its epoch or one of its two parts differs from what the agent holds.
    pub desired: Option<SignedDesired>,
    /// The open barriers and leases for the task set that the agent holds or that is in this message.
    #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
    pub grants: Vec<SignedGrant>,
    /// The time that the agent waits before its next check-in, in milliseconds. The agent waits at most a minute.
    pub next_check_in_ms: u32,
}

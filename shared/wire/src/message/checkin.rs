//! The check-in: heartbeat, pull and report in one, held by the controller until something changes.

use serde::{Deserialize, Serialize};

use super::bounded;
use super::observed::{LocalState, Observation, Report, TaskResult};
use super::signed::{LeaseKind, SignedDesired, SignedGrant};
use super::{Epoch, PartDigest, Revision};

/// `POST /agent/v1/checkin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckIn {
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
    /// What the agent holds; `None` before its first desired state.
    pub held: Option<Held>,
    /// Results after the last acknowledged one, in order.
    #[serde(deserialize_with = "bounded::list::<_, _, 256>")]
    pub results: Vec<TaskResult>,
    /// The digest of the host's present Observation.
    pub observation_digest: PartDigest,
    /// The Observation itself, when the controller has not acknowledged that digest.
    pub observation: Option<Observation>,
    /// The Report, when it changed.
    pub report: Option<Report>,
    /// Leases asked for.
    #[serde(deserialize_with = "bounded::list::<_, _, 8>")]
    pub wants: Vec<LeaseKind>,
    /// Leases and primaries given back.
    #[serde(deserialize_with = "bounded::list::<_, _, 1024>")]
    pub gives_back: Vec<GiveBack>,
    /// Said on the host.
    pub local: LocalState,
    /// How long the controller may hold this request.
    pub wait_ms: u32,
}

/// What an agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The epoch of the desired state that it holds.
    pub epoch: Epoch,
    /// The revision of the same.
    pub revision: Revision,
    /// The digest of the known part.
    pub known: PartDigest,
    /// The digest of the task set.
    pub task_set: PartDigest,
}

/// Something that the agent no longer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GiveBack {
    /// A lease of this kind.
    Lease(LeaseKind),
    /// The primary of this tag: its tasks have ended here.
    Primary(#[serde(deserialize_with = "bounded::text::<_, 255>")] String),
}

/// The answer to a check-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckInAnswer {
    /// Another check-in of the same agent has taken this one's place; close this connection.
    Superseded,
    /// What is new.
    Current(Box<News>),
}

/// What a controller tells; each part only when it is new to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Results up to this sequence number are stored and need not be sent again.
    pub acknowledged: u64,
    /// The Observation whose digest the controller has.
    pub observation: Option<PartDigest>,
    /// Desired state, when a part of it differs from what is held.
    pub desired: Option<SignedDesired>,
    /// Open barriers and leases for the task set held (or sent along).
    #[serde(deserialize_with = "bounded::list::<_, _, 64>")]
    pub grants: Vec<SignedGrant>,
    /// Wait so long before the next check-in.
    pub next_ms: u32,
}

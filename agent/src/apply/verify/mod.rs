//! Verifies the offers of a controller in the root half, which trusts no offer before its own checks (docs/trust.md,
//! rules 6 and 7).
//!
//! A compromised network half can withhold an offer. It cannot forge an offer, replay an older one, or pass on the
//! offer of another node, because signer, node, order and digests are all checked here. A refused offer changes
//! nothing.

use stemma_wire::message::desired::{Known, TaskSet};
use stemma_wire::message::signed::{EpochChange, SignedDesired, SignedGrant};
use stemma_wire::message::{PartDigest, WireVersion, digest_part};
use stemma_wire::sign::{NotSigned, Verifier};
use uuid::Uuid;

use super::ledger::{Accepted, read_part};
use crate::identity::HostIdentity;

/// Maximum size of a desired state, both parts together, with some room for the postcard encoding.
const MAX_DESIRED_BYTES: usize = 256 * 1024 + 4096;

/// This host's identity and the signers that it trusts.
pub struct NodeVerifier {
    /// The node's uuid, which every leaf contains.
    pub node: Uuid,
    /// Checks signatures up to the pinned root.
    pub verifier: Verifier,
}

/// The identity that joining stored is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the identity of this host names no fleet, or its root is not a certificate")]
pub struct NoTrust;

impl NodeVerifier {
    /// Creates the verifier from the identity that joining stored.
    ///
    /// # Errors
    /// [`NoTrust`].
    pub fn new(identity: &HostIdentity) -> Result<Self, NoTrust> {
        let fleet = identity.fleet.parse().map_err(|_| NoTrust)?;
        let root = identity.root.clone().into();
        let verifier = Verifier::new(fleet, &[root]).map_err(|_| NoTrust)?;
        Ok(Self { node: identity.node, verifier })
    }
}

/// Why an offer, a grant or a body is refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not signed for this node by the fleet (S31: another node's state; S68: changed in transit).
    #[error("the offer is refused")]
    NotSigned(#[from] NotSigned),
    /// An older revision than the held one, in the same epoch (S69).
    #[error("{}", restore_hint(*.offered, *.held))]
    Older {
        /// The offered revision.
        offered: u64,
        /// The held revision.
        held: u64,
    },
    /// Another epoch, without a signed change that leads there from the held one.
    #[error("{}", other_epoch_hint(*.offered, *.held))]
    OtherEpoch {
        /// The offered revision.
        offered: u64,
        /// The held revision.
        held: u64,
    },
    /// A revision before the first one of its epoch.
    #[error("revision {offered} is from before its epoch, which begins at {begins}")]
    BeforeEpoch {
        /// The offered revision.
        offered: u64,
        /// The first revision of the epoch.
        begins: u64,
    },
    /// A part was omitted that is not held.
    #[error("the offer omits the {0}, and this host does not hold it")]
    MissingPart(&'static str),
    /// The bytes of a part are signed but unreadable: a newer controller wrote them.
    #[error("the {0} cannot be read by this agent; upgrade it")]
    Unreadable(&'static str),
    /// Larger than the maximum size of a desired state.
    #[error("a desired state of {0} bytes: at most 256 KiB are allowed")]
    TooLarge(usize),
    /// The controller opens barriers of a task set that is not held.
    #[error(
        "Revision {offered} of the controller opens barriers of another task set than this host has with revision {held}. They stay closed."
    )]
    OtherTaskSet {
        /// The revision at which they were opened.
        offered: u64,
        /// The held revision.
        held: u64,
    },
    /// This host's identity is damaged, so nothing can be verified.
    #[error("this host cannot verify offers: its identity is damaged")]
    NoIdentity,
    /// A body that was not requested, or whose bytes do not have its hash.
    #[error("a body that was not requested, or does not match its hash")]
    Body,
}

/// Returns the message for an older revision. It asks whether the controller was restored, because revisions only go
/// back if its store was restored from an older copy.
fn restore_hint(offered: u64, held: u64) -> String {
    format!("The controller offers revision {offered}, this host has {held}. Was the controller restored?")
}

/// Returns the message for another epoch. A restored store begins a new epoch, and its revisions may have passed the
/// held one by now. The store may also be that of another fleet.
fn other_epoch_hint(offered: u64, held: u64) -> String {
    if offered < held {
        return restore_hint(offered, held);
    }
    format!(
        "The controller offers revision {offered} of another epoch than this host's revision {held}, and no signed change leads there. \
         Was the controller restored, or is it another fleet's?"
    )
}

/// Returns the desired state of an offer if it is signed for this node and may follow the held state. An omitted part
/// is taken from the held state. `version` is the wire version of the offer's parts: the digests that the controller
/// signed are those of the parts in this version.
///
/// # Errors
/// [`Refused`].
pub fn verify_desired(
    trust: &NodeVerifier,
    (version, offer): (WireVersion, &SignedDesired),
    held: Option<&Accepted>,
    now_unix_seconds: u64,
) -> Result<Accepted, Refused> {
    let size = offer.known.as_ref().map_or(0, Vec::len) + offer.task_set.as_ref().map_or(0, Vec::len);
    if size > MAX_DESIRED_BYTES {
        return Err(Refused::TooLarge(size));
    }
    trust.verifier.check_desired(trust.node, version, offer, now_unix_seconds)?;
    if let Some(held) = held {
        check_order(trust, offer, held, now_unix_seconds)?;
    }
    // The digest of a part depends on its wire version. So a part that is held in another version cannot be used.
    let held = held.filter(|held| held.version == version);
    let is_named = |bytes: &&Vec<u8>, digest: PartDigest| digest_part(version, bytes) == digest;
    let held_known = held.map(|held| &held.known).filter(|bytes| is_named(bytes, offer.known_digest));
    let held_task_set = held.map(|held| &held.task_set).filter(|bytes| is_named(bytes, offer.task_set_digest));
    let known = offer.known.as_ref().or(held_known).ok_or(Refused::MissingPart("known part"))?.clone();
    let task_set = offer.task_set.as_ref().or(held_task_set).ok_or(Refused::MissingPart("task set"))?.clone();
    if read_part::<Known>(version, &known).is_none() {
        return Err(Refused::Unreadable("known part"));
    }
    if read_part::<TaskSet>(version, &task_set).is_none() {
        return Err(Refused::Unreadable("task set"));
    }
    Ok(Accepted { version, epoch: offer.epoch, revision: offer.revision, known, task_set })
}

/// Checks that a grant is for this node and for the epoch of the held state.
///
/// # Errors
/// [`Refused`].
pub fn verify_grant(trust: &NodeVerifier, grant: &SignedGrant, held: &Accepted, now: u64) -> Result<(), Refused> {
    trust.verifier.check_grant(trust.node, grant, now)?;
    let error = || Refused::OtherEpoch { offered: grant.revision.0, held: held.revision.0 };
    if grant.epoch == held.epoch { Ok(()) } else { Err(error()) }
}

/// Checks that an offer may follow the held state: no older revision in the same epoch, and another epoch only by a
/// signed change from the held epoch to the offered one.
fn check_order(trust: &NodeVerifier, offer: &SignedDesired, held: &Accepted, now: u64) -> Result<(), Refused> {
    if offer.epoch == held.epoch {
        let is_older = offer.revision < held.revision;
        let older = || Refused::Older { offered: offer.revision.0, held: held.revision.0 };
        return if is_older { Err(older()) } else { Ok(()) };
    }
    let leads_here = |change: &&EpochChange| change.from == held.epoch && change.to == offer.epoch;
    let error = || Refused::OtherEpoch { offered: offer.revision.0, held: held.revision.0 };
    let change = offer.epoch_change.as_ref().filter(leads_here).ok_or_else(error)?;
    trust.verifier.check_epoch_change(change, now)?;
    if offer.revision < change.at {
        return Err(Refused::BeforeEpoch { offered: offer.revision.0, begins: change.at.0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

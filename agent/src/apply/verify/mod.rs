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

use super::ledger::{AcceptedState, read_part};
use crate::identity::HostIdentity;

/// Maximum size of the parts in an offered desired state, in bytes: 256 KiB, and 4 KiB for the postcard encoding.
const MAX_DESIRED_BYTES: usize = 256 * 1024 + 4096;

/// The verifier of the messages that controllers sign for this host's node.
pub struct NodeVerifier {
    /// The uuid of this host's node. Each signed message contains the uuid of the node for which it is valid.
    pub node: Uuid,
    /// The verifier of signatures. It trusts only certificates below the root that the host stored when it joined.
    pub verifier: Verifier,
}

/// The error for a stored identity that cannot be used: it has no valid fleet name or no valid root certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the identity of this host names no fleet, or its root is not a certificate")]
pub struct NoTrust;

impl NodeVerifier {
    /// Creates the verifier from the identity that the host stored when it joined the fleet.
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

/// The reason why the agent refuses an offer (a desired state), a grant, or a body (a profile or blob). A refused
/// message changes nothing on the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefusal {
    /// The fleet has not signed the message, or the epoch change in it, for this node. For example, it is for another
    /// node (S31), was changed on its way (S68), or the certificate of its signer is not accepted.
    #[error("the offer is refused")]
    NotSigned(#[from] NotSigned),
    /// The offered revision is older than the revision of the held state (the state that this host accepted last), in
    /// the same epoch (S69).
    #[error("{}", restore_hint(*.offered, *.held))]
    Older {
        /// The revision of the offer.
        offered: u64,
        /// The revision of the state that this host accepted last.
        held: u64,
    },
    /// The message is of another epoch than the held state. An offer is refused unless it contains a change from the
    /// held epoch to its own, a grant in any case.
    #[error("{}", other_epoch_hint(*.offered, *.held))]
    OtherEpoch {
        /// The revision of the offer or grant.
        offered: u64,
        /// The revision of the state that this host accepted last.
        held: u64,
    },
    /// The offered revision is lower than the first revision of its epoch.
    #[error("revision {offered} is from before its epoch, which begins at {begins}")]
    BeforeEpoch {
        /// The revision of the offer.
        offered: u64,
        /// The first revision of the epoch.
        begins: u64,
    },
    /// The offer omits the part of this name, and this host does not have it with the offered digest and wire version.
    #[error("the offer omits the {0}, and this host does not hold it")]
    MissingPart(&'static str),
    /// The part is signed, but this agent cannot decode it, probably because a newer controller encoded it. The value
    /// is the name of the part.
    #[error("the {0} cannot be read by this agent; upgrade it")]
    Unreadable(&'static str),
    /// The parts in the offer are together larger than the maximum. The value is their size, in bytes.
    #[error("a desired state of {0} bytes: at most 256 KiB are allowed")]
    TooLarge(usize),
    /// The controller opens barriers of a task set that this host does not have.
    #[error(
        "Revision {offered} of the controller opens barriers of another task set than this host has with revision {held}. They stay closed."
    )]
    OtherTaskSet {
        /// The revision at which the controller opened the barriers.
        offered: u64,
        /// The revision of the state that this host accepted last.
        held: u64,
    },
    /// The identity or the credentials of this host are damaged, so the agent does not verify any message.
    #[error("this host cannot verify offers: its identity is damaged")]
    NoIdentity,
    /// The agent did not request this body (a profile or blob), or the body does not match its hash.
    #[error("a body that was not requested, or does not match its hash")]
    Body,
}

/// Returns the message for an offer with an older revision. Revisions decrease only if the controller's store was
/// restored from an older copy, so the message asks whether it was restored.
fn restore_hint(offered: u64, held: u64) -> String {
    format!("The controller offers revision {offered}, this host has {held}. Was the controller restored?")
}

/// Returns the message for an offer of another epoch without a signed change to that epoch.
///
/// If the offered revision is lower, the controller's store was probably restored from an older copy. If it is higher,
/// the restored store may have continued past the held revision. Or the store belongs to another fleet.
fn other_epoch_hint(offered: u64, held: u64) -> String {
    if offered < held {
        return restore_hint(offered, held);
    }
    format!(
        "The controller offers revision {offered} of another epoch than this host's revision {held}, and no signed change leads there. \
         Was the controller restored, or is it another fleet's?"
    )
}

/// Returns the desired state of an offer, if it is signed for this node and may follow `state` (the state that
/// this host accepted last). If the offer omits a part, the result has the part of the held state with the offered
/// digest.
///
/// `version` is the wire version of the parts in the offer. The signed digests are those of the parts in this version.
///
/// # Errors
/// [`MessageRefusal`].
pub fn verify_desired(
    trust: &NodeVerifier,
    (version, offer): (WireVersion, &SignedDesired),
    state: Option<&AcceptedState>,
    now_unix_seconds: u64,
) -> Result<AcceptedState, MessageRefusal> {
    let size = offer.known.as_ref().map_or(0, Vec::len) + offer.task_set.as_ref().map_or(0, Vec::len);
    if size > MAX_DESIRED_BYTES {
        return Err(MessageRefusal::TooLarge(size));
    }
    trust.verifier.check_desired(trust.node, version, offer, now_unix_seconds)?;
    if let Some(state) = state {
        check_order(trust, offer, state, now_unix_seconds)?;
    }
    // The digest of a part depends on its wire version. So a held part of another version cannot replace an omitted
    // part.
    let state = state.filter(|state| state.version == version);
    let has_digest = |bytes: &&Vec<u8>, digest: PartDigest| digest_part(version, bytes) == digest;
    let held_known = state.map(|state| &state.known).filter(|bytes| has_digest(bytes, offer.known_digest));
    let held_task_set = state.map(|state| &state.task_set).filter(|bytes| has_digest(bytes, offer.task_set_digest));
    let known = offer.known.as_ref().or(held_known).ok_or(MessageRefusal::MissingPart("known part"))?.clone();
    let task_set = offer.task_set.as_ref().or(held_task_set).ok_or(MessageRefusal::MissingPart("task set"))?.clone();
    if read_part::<Known>(version, &known).is_none() {
        return Err(MessageRefusal::Unreadable("known part"));
    }
    if read_part::<TaskSet>(version, &task_set).is_none() {
        return Err(MessageRefusal::Unreadable("task set"));
    }
    Ok(AcceptedState { version, epoch: offer.epoch, revision: offer.revision, known, task_set })
}

/// Checks that a grant (open barriers, or a lease) is signed for this node and belongs to the epoch of `state`,
/// the state that this host accepted last. `now` is the time in seconds since 1970.
///
/// # Errors
/// [`MessageRefusal`].
pub fn verify_grant(trust: &NodeVerifier, grant: &SignedGrant, state: &AcceptedState, now: u64) -> Result<(), MessageRefusal> {
    trust.verifier.check_grant(trust.node, grant, now)?;
    let epoch_error = || MessageRefusal::OtherEpoch { offered: grant.revision.0, held: state.revision.0 };
    if grant.epoch == state.epoch { Ok(()) } else { Err(epoch_error()) }
}

/// Checks that an offer may follow `held_state`, the state that this host accepted last. `now` is the time in seconds
/// since 1970.
///
/// In the same epoch, the offered revision must not be older. For another epoch, the offer must contain a signed change
/// from the held epoch to it, and its revision must not be below the first one of its epoch.
fn check_order(trust: &NodeVerifier, offer: &SignedDesired, held_state: &AcceptedState, now: u64) -> Result<(), MessageRefusal> {
    if offer.epoch == held_state.epoch {
        let is_older = offer.revision < held_state.revision;
        let older_error = || MessageRefusal::Older { offered: offer.revision.0, held: held_state.revision.0 };
        return if is_older { Err(older_error()) } else { Ok(()) };
    }
    let connects_epochs = |change: &&EpochChange| change.from == held_state.epoch && change.to == offer.epoch;
    let epoch_error = || MessageRefusal::OtherEpoch { offered: offer.revision.0, held: held_state.revision.0 };
    let change = offer.epoch_change.as_ref().filter(connects_epochs).ok_or_else(epoch_error)?;
    trust.verifier.check_epoch_change(change, now)?;
    if offer.revision < change.at {
        return Err(MessageRefusal::BeforeEpoch { offered: offer.revision.0, begins: change.at.0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! What the root half believes of an offer: nothing, until it has looked itself (docs/trust.md, rules 6 and 7).
//!
//! A network half that was taken over can withhold an offer. It cannot make one, send an older one, or send that
//! of another node: signer, node, order and digests are all checked here, and what is refused changes nothing.

use stemma_wire::message::desired::{Known, TaskSet};
use stemma_wire::message::signed::{EpochChange, SignedDesired, SignedGrant};
use stemma_wire::message::{PartDigest, WireVersion, digest_part};
use stemma_wire::sign::{NotSigned, Verifier};
use uuid::Uuid;

use super::ledger::{Accepted, part};
use crate::identity::Identity;

/// The largest desired state, both parts together, with what postcard needs around it.
const LARGEST: usize = 256 * 1024 + 4096;

/// Who this host is, and whom it believes.
pub struct Trust {
    /// The node's uuid: every leaf holds it.
    pub node: Uuid,
    /// Checks signatures up to the pinned root.
    pub verifier: Verifier,
}

/// The identity that joining wrote cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the identity of this host names no fleet, or its root is no certificate")]
pub struct NoTrust;

impl Trust {
    /// Whom this host believes, by what joining wrote.
    ///
    /// # Errors
    /// [`NoTrust`].
    pub fn new(identity: &Identity) -> Result<Self, NoTrust> {
        let fleet = identity.fleet.parse().map_err(|_| NoTrust)?;
        let root = identity.root.clone().into();
        let verifier = Verifier::new(fleet, &[root]).map_err(|_| NoTrust)?;
        Ok(Self { node: identity.node, verifier })
    }
}

/// Why an offer, a grant or a body is refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not signed for this node by the fleet (S31: another node's state; S68: changed on the way).
    #[error("the offer is refused")]
    NotSigned(#[from] NotSigned),
    /// A smaller revision than what is held, of the same epoch (S69).
    #[error("{}", restored(*.offered, *.held))]
    Older {
        /// What was offered.
        offered: u64,
        /// What is held.
        held: u64,
    },
    /// Another epoch, and no change of epoch that leads there from the one held.
    #[error("{}", of_another_epoch(*.offered, *.held))]
    OtherEpoch {
        /// The revision that was offered.
        offered: u64,
        /// The one that is held.
        held: u64,
    },
    /// A revision before the one at which its epoch begins.
    #[error("revision {offered} is from before its epoch, which begins at {begins}")]
    BeforeEpoch {
        /// What was offered.
        offered: u64,
        /// The first revision of the epoch.
        begins: u64,
    },
    /// A part was left out that is not held.
    #[error("the {0} was left out of the offer, and what is held is another one")]
    MissingPart(&'static str),
    /// A part's bytes are signed and cannot be read: a newer controller's.
    #[error("the {0} cannot be read by this agent; upgrade it")]
    Unreadable(&'static str),
    /// Larger than any desired state may be.
    #[error("a desired state of {0} bytes: at most 256 KiB are allowed")]
    Large(usize),
    /// Barriers are opened of a task set that is not held.
    #[error(
        "Revision {offered} of the controller opens barriers of another task set than this host has with revision {held}. They stay shut."
    )]
    OtherTaskSet {
        /// The revision at which they were opened.
        offered: u64,
        /// The revision that is held.
        held: u64,
    },
    /// This host's identity is damaged: nothing can be verified.
    #[error("this host cannot verify what it is offered: its identity is damaged")]
    NoIdentity,
    /// A body that nothing asked for, or whose bytes are others than its name says.
    #[error("a body that was not wanted, or is not what its hash says")]
    Body,
}

/// A controller whose store came back from an older copy goes back, and none does else.
fn restored(offered: u64, held: u64) -> String {
    format!("The controller offers revision {offered}, this host has {held}. Was the controller restored?")
}

/// The same in another epoch, which a restored store begins; it may have passed what is held by then.
fn of_another_epoch(offered: u64, held: u64) -> String {
    if offered < held {
        return restored(offered, held);
    }
    format!(
        "The controller offers revision {offered} of another epoch than this host's revision {held}, and no signed change leads there. \
         Was the controller restored, or is it another fleet's?"
    )
}

/// The desired state that an offer makes, when it may follow what is held. The version is that in which its parts are; who names another
/// one than the controller did names digests that were not signed.
///
/// # Errors
/// [`Refused`].
pub fn verify_desired(
    trust: &Trust,
    (version, offer): (WireVersion, &SignedDesired),
    held: Option<&Accepted>,
    now_unix_seconds: u64,
) -> Result<Accepted, Refused> {
    let size = offer.known.as_ref().map_or(0, Vec::len) + offer.task_set.as_ref().map_or(0, Vec::len);
    if size > LARGEST {
        return Err(Refused::Large(size));
    }
    trust.verifier.check_desired(trust.node, version, offer, now_unix_seconds)?;
    if let Some(held) = held {
        check_order(trust, offer, held, now_unix_seconds)?;
    }
    // What is held in another version is another part, whatever it says.
    let held = held.filter(|held| held.version == version);
    let is_named = |bytes: &&Vec<u8>, digest: PartDigest| digest_part(version, bytes) == digest;
    let held_known = held.map(|held| &held.known).filter(|bytes| is_named(bytes, offer.known_digest));
    let held_task_set = held.map(|held| &held.task_set).filter(|bytes| is_named(bytes, offer.task_set_digest));
    let known = offer.known.as_ref().or(held_known).ok_or(Refused::MissingPart("known part"))?.clone();
    let task_set = offer.task_set.as_ref().or(held_task_set).ok_or(Refused::MissingPart("task set"))?.clone();
    if part::<Known>(version, &known).is_none() {
        return Err(Refused::Unreadable("known part"));
    }
    if part::<TaskSet>(version, &task_set).is_none() {
        return Err(Refused::Unreadable("task set"));
    }
    Ok(Accepted { version, epoch: offer.epoch, revision: offer.revision, known, task_set })
}

/// Whether a grant is this node's, and for what is held.
///
/// # Errors
/// [`Refused`].
pub fn verify_grant(trust: &Trust, grant: &SignedGrant, held: &Accepted, now: u64) -> Result<(), Refused> {
    trust.verifier.check_grant(trust.node, grant, now)?;
    let other = || Refused::OtherEpoch { offered: grant.revision.0, held: held.revision.0 };
    if grant.epoch == held.epoch { Ok(()) } else { Err(other()) }
}

fn check_order(trust: &Trust, offer: &SignedDesired, held: &Accepted, now: u64) -> Result<(), Refused> {
    if offer.epoch == held.epoch {
        let is_older = offer.revision < held.revision;
        let older = || Refused::Older { offered: offer.revision.0, held: held.revision.0 };
        return if is_older { Err(older()) } else { Ok(()) };
    }
    let leads_here = |change: &&EpochChange| change.from == held.epoch && change.to == offer.epoch;
    let other = || Refused::OtherEpoch { offered: offer.revision.0, held: held.revision.0 };
    let change = offer.epoch_change.as_ref().filter(leads_here).ok_or_else(other)?;
    trust.verifier.check_epoch_change(change, now)?;
    if offer.revision < change.at {
        return Err(Refused::BeforeEpoch { offered: offer.revision.0, begins: change.at.0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests;

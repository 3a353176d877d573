//! Checks whether this host can still connect to its fleet, by its identity and its credentials. If one of the two is
//! damaged, the result says what to do.
//!
//! The agent does not stop because these files are damaged (F13). The desired state in the ledger was verified when it
//! was accepted, and can be kept converged without a controller. A service that exited because of the damage would be
//! restarted again and again, and its host would drift.

use anyhow::Result;
use stemma_wire::log::error_chain;

use super::LocalHost;
use crate::apply::verify::NodeVerifier;
use crate::identity::{HostIdentity, IdentityError};
use crate::sync::TlsCredentials;

/// Advice for a damaged file. The node still exists, so a new token alone does not help.
const REJOIN_ADVICE: &str = "an agent that is started now applies what this host has but gets no updates, and one that was \
     started earlier gets updates until it stops; the node still exists: on a controller, run \
     `stemma delete node NAME` and `stemma token create`, then on this host `stemma-agent join URL --token-file F --ca-hash H`, and \
     restart the agent";

/// The membership of a host in a fleet.
pub(super) enum Membership {
    /// A member with intact identity and credentials.
    Member(Box<(HostIdentity, NodeVerifier)>),
    /// A member whose identity or credentials are damaged, with a sentence about what to do.
    Damaged(Option<HostIdentity>, String),
    /// The host never joined.
    NotJoined,
}

/// Reads and checks identity and credentials. A host with a desired state counts as a member even if its identity file
/// is gone.
///
/// # Errors
/// Fails if the files exist but cannot be read, or if other users can read the key (S71). A person has to correct this
/// before the agent can start.
pub(super) fn read_membership(local: &LocalHost) -> Result<Membership> {
    let host = &*local.host;
    let identity = match HostIdentity::load(host) {
        Ok(identity) => identity,
        Err(IdentityError::NotJoined) if local.site.ledger.accepted()?.is_none() => return Ok(Membership::NotJoined),
        Err(IdentityError::NotJoined) => {
            return Ok(Membership::Damaged(None, format!("identity.json is gone: {REJOIN_ADVICE}")));
        }
        Err(damaged @ IdentityError::Damaged(_)) => {
            return Ok(Membership::Damaged(None, format!("{damaged}: {REJOIN_ADVICE}")));
        }
        Err(error) => return Err(error.into()),
    };
    let trust = match NodeVerifier::new(&identity) {
        Ok(trust) => trust,
        Err(none) => return Ok(Membership::Damaged(None, format!("{none}: {REJOIN_ADVICE}"))),
    };
    let usable = TlsCredentials::load(host).and_then(|credentials| credentials.check_usable(&identity));
    Ok(match usable {
        Ok(()) => Membership::Member(Box::new((identity, trust))),
        Err(damaged) if damaged.is_damaged() => {
            Membership::Damaged(Some(identity), format!("{}: {REJOIN_ADVICE}", error_chain(&damaged)))
        }
        Err(error) => return Err(error.into()),
    })
}

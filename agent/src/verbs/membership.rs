//! Checks whether this host can still connect to its fleet, by the files of its identity and its credentials. If one of
//! these files is damaged, the result contains a remedy.
//!
//! The agent runs even if these files are damaged. The desired state in the ledger (the agent's records on disk) was
//! verified when it was accepted, and the agent can apply it without a controller. If the agent exited because of the
//! damage, the service manager would restart it again and again, and the host would drift.

use anyhow::Result;
use stemma_wire::log::error_chain;

use super::LocalHost;
use crate::apply::verify::NodeVerifier;
use crate::identity::{HostIdentity, IdentityError};
use crate::sync::TlsCredentials;

/// Advice for a host whose identity or credentials are missing or damaged. The host has to join again. Its node still
/// exists and would be in the way of a new join, so the advice includes the deletion of the node.
const REJOIN_ADVICE: &str = "an agent that is started now applies what this host has but gets no updates, and one that was \
     started earlier gets updates until it stops; the node still exists: on a controller, run \
     `stemma delete node NAME` and `stemma token create`, then on this host `stemma-agent join URL --token-file F --ca-hash H`, and \
     restart the agent";

/// The membership of a host in a fleet.
pub(super) enum Membership {
    /// A member with intact identity and credentials: the identity, and the verifier of the messages that controllers
    /// sign.
    Member(Box<(HostIdentity, NodeVerifier)>),
    /// A member with missing or damaged identity or credentials: the identity, if intact, and a message with a remedy.
    Damaged(Option<HostIdentity>, String),
    /// The host has neither an identity nor a desired state. It has not joined, or it has left its fleet.
    NotJoined,
}

/// Reads and checks identity and credentials. A host that has a desired state but no identity file is a damaged member,
/// because it must have joined.
///
/// # Errors
/// Fails if the files exist but cannot be read, if other users can read or write the file with the key, or if the
/// ledger (the agent's stored state) cannot be read. A person has to correct this before the agent can start.
pub(super) fn read_membership(local: &LocalHost) -> Result<Membership> {
    let host = &*local.host;
    let identity = match HostIdentity::load(host) {
        Ok(identity) => identity,
        Err(IdentityError::NotJoined) if local.site.ledger.accepted()?.is_none() => return Ok(Membership::NotJoined),
        Err(IdentityError::NotJoined) => {
            return Ok(Membership::Damaged(None, format!("identity.json is gone: {REJOIN_ADVICE}")));
        }
        Err(error @ IdentityError::Damaged(_)) => {
            return Ok(Membership::Damaged(None, format!("{error}: {REJOIN_ADVICE}")));
        }
        Err(error) => return Err(error.into()),
    };
    let verifier = match NodeVerifier::new(&identity) {
        Ok(verifier) => verifier,
        Err(error) => return Ok(Membership::Damaged(None, format!("{error}: {REJOIN_ADVICE}"))),
    };
    let result = TlsCredentials::load(host).and_then(|credentials| credentials.check_usable(&identity));
    Ok(match result {
        Ok(()) => Membership::Member(Box::new((identity, verifier))),
        Err(error) if error.is_damaged() => {
            Membership::Damaged(Some(identity), format!("{}: {REJOIN_ADVICE}", error_chain(&error)))
        }
        Err(error) => return Err(error.into()),
    })
}

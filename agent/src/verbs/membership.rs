//! Whether this host can still speak with its fleet: its identity, its credentials, and what to do about damaged ones.
//!
//! Damage of these files is no reason to stop (F13): what the ledger holds was verified when it was accepted, and is
//! kept converged without anyone to talk to. A service that ended over it would be started again and again, and its
//! host would drift meanwhile.

use anyhow::Result;
use stemma_wire::log::chain;

use super::Local;
use crate::apply::verify::Trust;
use crate::identity::{Identity, IdentityError};
use crate::sync::Credentials;

/// What a damaged file is followed by: the node is still known, so a token alone does not help.
const JOIN_ANEW: &str = "an agent that is started so keeps what this host holds and hears of nothing new, and one that runs \
     since before hears of it until it ends; a controller still knows its node: there \
     `stemma delete node NAME` and `stemma token create`, then here `stemma-agent join URL --token-file F --ca-hash H`, and \
     restart the agent";

/// Whether a host is a member of a fleet.
pub(super) enum Membership {
    /// It is a member, and can say so.
    Member(Box<(Identity, Trust)>),
    /// It was a member, and what said so is damaged; a sentence with what to do.
    Damaged(Option<Identity>, String),
    /// It never joined.
    NotJoined,
}

/// Looks at identity and credentials. A host that holds something was a member, also where nothing says so any more.
///
/// # Errors
/// When they are there and cannot be read, or the key is open to others (S71): a person has to mend that first.
pub(super) fn membership(local: &Local) -> Result<Membership> {
    let host = &*local.host;
    let identity = match Identity::load(host) {
        Ok(identity) => identity,
        Err(IdentityError::NotJoined) if local.site.ledger.accepted()?.is_none() => return Ok(Membership::NotJoined),
        Err(IdentityError::NotJoined) => {
            return Ok(Membership::Damaged(None, format!("identity.json is gone: {JOIN_ANEW}")));
        }
        Err(damaged @ IdentityError::Damaged(_)) => {
            return Ok(Membership::Damaged(None, format!("{damaged}: {JOIN_ANEW}")));
        }
        Err(error) => return Err(error.into()),
    };
    let trust = match Trust::new(&identity) {
        Ok(trust) => trust,
        Err(none) => return Ok(Membership::Damaged(None, format!("{none}: {JOIN_ANEW}"))),
    };
    let usable = Credentials::load(host).and_then(|credentials| credentials.check(&identity));
    Ok(match usable {
        Ok(()) => Membership::Member(Box::new((identity, trust))),
        Err(damaged) if damaged.is_damage() => {
            Membership::Damaged(Some(identity), format!("{}: {JOIN_ANEW}", chain(&damaged)))
        }
        Err(error) => return Err(error.into()),
    })
}

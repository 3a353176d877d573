//! What `sync` keeps on disk: its key, its certificate, and where the controllers are.

use std::sync::Arc;

use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;
use stemma_wire::client::Target;
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::tls::{Class, ClientIdentity, Fleet, NotAnIdentity, Pin, Refusal, client_config, given_identity};

use crate::host::atomic::{Attributes, ensure_dir, replace, sweep};
use crate::host::{Host, HostError, HostPath, Kind};
use crate::identity::Identity;

/// Where it is kept.
pub(super) const DIR: &str = "/var/lib/stemma-agent/sync";
/// The file with everything, so that key and certificate are always replaced together.
const NAME: &str = "credentials.json";
/// The key of a renewal that was begun and whose certificate has not come.
const PENDING: &str = "pending-key";
/// Why the certificate of the last renewal was refused.
const REFUSED: &str = "refused-renewal";
/// The largest file that is read.
const LARGEST: u64 = 256 * 1024;

/// A key, its certificate, and the controllers that take it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The controllers' addresses, in the order in which they are tried.
    pub controllers: Vec<String>,
    /// The private key, PKCS#8 DER.
    pub key: Vec<u8>,
    /// The certificate first, then its issuers, DER.
    pub chain: Vec<Vec<u8>>,
    /// When the certificate begins and ends, seconds since 1970.
    pub validity: (u64, u64),
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// They are not there, although the host has joined.
    #[error("{DIR}/{NAME} is gone")]
    Gone,
    /// They cannot be read or written.
    #[error("the agent's credentials")]
    Host(#[from] HostError),
    /// Others may read or write the key (S71).
    #[error("{path} holds this host's key and is open to others (mode {mode:04o}): run `chmod 600 {path}`")]
    Exposed {
        /// The file, as this system sees it.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// The file is damaged.
    #[error("{DIR}/{NAME} is damaged ({0})")]
    Damaged(String),
    /// rustls does not take them.
    #[error("the agent's key and certificate cannot be used")]
    Unusable(#[from] rustls::Error),
}

/// Why a certificate that a controller gave is not kept.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    /// It could not be shown to a listener of the fleet.
    #[error(transparent)]
    Certificate(#[from] Refusal),
    /// It names another node.
    #[error("the certificate is not this node's")]
    OtherNode,
    /// It is for another key.
    #[error("the certificate is for another key than the one that was asked with")]
    OtherKey,
    /// The key that was asked with is damaged.
    #[error("the key that was asked with cannot be read")]
    Key(#[from] rcgen::Error),
}

impl StateError {
    /// Whether the credentials are lost: only joining again brings others.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        match self {
            Self::Gone | Self::Damaged(_) | Self::Unusable(_) => true,
            Self::Host(_) | Self::Exposed { .. } => false,
        }
    }
}

impl Credentials {
    /// Reads what joining or renewing wrote.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn load(host: &dyn Host) -> Result<Self, StateError> {
        let dir = host.dir(&HostPath::own(DIR))?.ok_or(StateError::Gone)?;
        let stat = dir.stat(NAME)?.ok_or(StateError::Gone)?;
        if stat.kind == Kind::File && stat.mode & 0o077 != 0 {
            let path = host.outside(&HostPath::own(DIR)).join(NAME).display().to_string();
            return Err(StateError::Exposed { path, mode: stat.mode });
        }
        let bytes = match dir.read(NAME, LARGEST) {
            Err(error) if error.is_of_the_file() => return Err(StateError::Damaged(error.sentence())),
            read => read?.ok_or(StateError::Gone)?,
        };
        let credentials: Self =
            serde_json::from_slice(&bytes).map_err(|error| StateError::Damaged(error.to_string()))?;
        if credentials.targets().is_empty() {
            return Err(StateError::Damaged("it names no controller".to_owned()));
        }
        Ok(credentials)
    }

    /// Replaces them on disk, readable by nobody else.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::own(DIR), 0o700)?;
        let bytes = serde_json::to_vec(self).expect("credentials have no map whose keys are not text");
        replace(host, &*dir, NAME, &bytes, &Attributes::mode(0o600))
    }

    /// The addresses that parse; one that does not was refused when the host joined.
    pub fn targets(&self) -> Vec<Target> {
        self.controllers.iter().filter_map(|url| url.parse().ok()).collect()
    }

    /// Whether a connection could be made with them.
    ///
    /// # Errors
    /// As [`Self::tls`].
    pub fn check(&self, identity: &Identity) -> Result<(), StateError> {
        self.tls(identity, Arc::new(SystemClock)).map(drop)
    }

    /// Whether the certificate is what this node asked for, and can be shown now: issued under its root for its uuid, its
    /// fleet and this key. What is not is never kept, since it would take the place of one that still serves.
    ///
    /// # Errors
    /// [`GivenError`].
    pub(super) fn check_given(&self, node: &Identity, now: u64) -> Result<(), GivenError> {
        let fleet: Fleet = node.fleet.parse().map_err(Refusal::from)?;
        let given = given_identity(&self.chain, &node.root, &fleet, now)?;
        if given.class != Class::Node(node.node) {
            return Err(GivenError::OtherNode);
        }
        let key = KeyPair::try_from(self.key.as_slice())?.subject_public_key_info();
        if sha256(&key) != given.spki_sha256 {
            return Err(GivenError::OtherKey);
        }
        Ok(())
    }

    /// The TLS side of a client that is this node.
    ///
    /// # Errors
    /// [`StateError::Unusable`], [`StateError::Damaged`].
    pub fn tls(&self, identity: &Identity, clock: Arc<dyn Clock>) -> Result<Arc<rustls::ClientConfig>, StateError> {
        let own = ClientIdentity {
            chain: self.chain.iter().cloned().map(CertificateDer::from).collect(),
            key: PrivateKeyDer::try_from(self.key.clone()).map_err(|why| StateError::Damaged(why.to_owned()))?,
        };
        let fleet: Fleet = identity.fleet.parse().map_err(|why: NotAnIdentity| StateError::Damaged(why.to_string()))?;
        let pin = Pin::Roots(vec![CertificateDer::from(identity.root.clone())]);
        Ok(Arc::new(client_config(&pin, Some(fleet), Some(own), clock)?))
    }
}

/// Takes away what a process that was killed left unfinished there, a key maybe.
///
/// # Errors
/// [`HostError`].
pub(super) fn sweep_own(host: &dyn Host) -> Result<(), HostError> {
    host.dir(&HostPath::own(DIR))?.map_or(Ok(()), |dir| sweep(host, &*dir))
}

/// Why the last renewal gave no certificate that could be kept, for `status`; `None` where it did.
pub(super) fn refused_renewal(host: &dyn Host) -> Option<String> {
    let read = host.dir(&HostPath::own(DIR)).ok()??.read(REFUSED, LARGEST).ok()?;
    read.and_then(|bytes| String::from_utf8(bytes).ok())
}

/// Keeps why a renewal gave no certificate that could be kept, or takes that away.
///
/// # Errors
/// [`HostError`].
pub(super) fn keep_refused_renewal(host: &dyn Host, why: Option<&str>) -> Result<(), HostError> {
    let dir = ensure_dir(host, &HostPath::own(DIR), 0o700)?;
    match why {
        Some(why) => replace(host, &*dir, REFUSED, why.as_bytes(), &Attributes::mode(0o600)),
        None if dir.stat(REFUSED)?.is_some() => dir.remove(REFUSED),
        None => Ok(()),
    }
}

/// The key of a renewal that was begun, PKCS#8 DER.
///
/// # Errors
/// [`HostError`].
pub(super) fn pending_key(host: &dyn Host) -> Result<Option<Vec<u8>>, HostError> {
    let Some(dir) = host.dir(&HostPath::own(DIR))? else { return Ok(None) };
    dir.read(PENDING, LARGEST)
}

/// Keeps it, readable by nobody else.
///
/// # Errors
/// [`HostError`].
pub(super) fn keep_pending_key(host: &dyn Host, key: &[u8]) -> Result<(), HostError> {
    let dir = ensure_dir(host, &HostPath::own(DIR), 0o700)?;
    replace(host, &*dir, PENDING, key, &Attributes::mode(0o600))
}

/// Takes it away: its certificate has come, and holds it.
///
/// # Errors
/// [`HostError`].
pub(super) fn drop_pending_key(host: &dyn Host) -> Result<(), HostError> {
    let Some(dir) = host.dir(&HostPath::own(DIR))? else { return Ok(()) };
    if dir.stat(PENDING)?.is_some() {
        dir.remove(PENDING)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn s71_a_key_that_is_open_to_others_is_not_used() {
        let host = MemoryHost::new();
        let credentials = Credentials {
            controllers: vec!["https://c:1".to_owned()],
            key: vec![1],
            chain: vec![vec![2]],
            validity: (1, 2),
        };
        credentials.store(&host).unwrap();
        assert!(Credentials::load(&host).unwrap() == credentials);
        let dir = host.dir(&HostPath::own(DIR)).unwrap().unwrap();
        for mode in [0o640, 0o604, 0o620] {
            replace(&host, &*dir, NAME, &serde_json::to_vec(&credentials).unwrap(), &Attributes::mode(mode)).unwrap();
            let refused = Credentials::load(&host).map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("run `chmod 600 ") && refused.contains(&format!("{mode:04o}")), "{refused}");
        }
    }
}

//! The state of the network half (`sync`) on disk: its key, its certificate, and the addresses of the controllers.

use std::sync::Arc;

use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;
use stemma_wire::client::Target;
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::tls::{
    ClientIdentity, FleetName, IdentityClass, NotAnIdentity, Pin, Refusal, client_config, verify_issued_identity,
};

use crate::host::atomic::{Attributes, ensure_dir, replace, sweep};
use crate::host::{FileKind, Host, HostError, HostPath};
use crate::identity::HostIdentity;

/// Directory of the network half's state.
pub(super) const DIR: &str = "/var/lib/stemma-agent/sync";
/// Name of the file with all credentials. Key and certificate are in one file, so that they are replaced together.
const CREDENTIALS_FILE: &str = "credentials.json";
/// Name of the file with the key of a renewal whose certificate has not arrived yet.
const PENDING_KEY_FILE: &str = "pending-key";
/// Name of the file with the reason why this host refused the certificate of its last renewal.
const REFUSED_RENEWAL_FILE: &str = "refused-renewal";
/// Maximum size of the file of credentials, of the key of a renewal, and of the reason of a refusal, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// The key and the certificate with which this host connects to controllers, and the addresses of the controllers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsCredentials {
    /// The controllers' addresses, in the order in which they are tried.
    pub controllers: Vec<String>,
    /// The private key, PKCS#8 DER.
    pub key: Vec<u8>,
    /// The certificate followed by its issuers, DER.
    pub chain: Vec<Vec<u8>>,
    /// Start and end of the certificate's validity, in seconds since 1970.
    pub validity: (u64, u64),
}

/// The reason why this host has no usable credentials.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file with the credentials does not exist.
    #[error("{DIR}/{CREDENTIALS_FILE} is gone")]
    Missing,
    /// The file with the credentials, or the stored state of the connection, cannot be read.
    #[error("the agent's credentials")]
    Host(#[from] HostError),
    /// Other users can read or write the file with the key.
    #[error("{path} holds this host's key and is open to others (mode {mode:04o}): run `chmod 600 {path}`")]
    Exposed {
        /// Path of the file, including `--root`.
        path: String,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file with the credentials, or the fleet name of the identity, is not valid. The text is the reason.
    #[error("{DIR}/{CREDENTIALS_FILE} is damaged ({0})")]
    Damaged(String),
    /// rustls does not accept the key or the certificate.
    #[error("the agent's key and certificate cannot be used")]
    Unusable(#[from] rustls::Error),
}

/// The reason why this host does not accept a certificate from a controller.
#[derive(Debug, thiserror::Error)]
pub enum CertificateRefusal {
    /// The certificate is not valid in this fleet, for an agent or at the time of this host, or it cannot be read.
    #[error(transparent)]
    Certificate(#[from] Refusal),
    /// The certificate names another node.
    #[error("the certificate is not this node's")]
    OtherNode,
    /// The certificate is for another key.
    #[error("the certificate is for another key than that of the request")]
    OtherKey,
    /// The key of the request is damaged.
    #[error("the key of the request cannot be read")]
    Key(#[from] rcgen::Error),
}

impl StateError {
    /// Returns whether the credentials are lost or damaged, so that the host has to join again.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        match self {
            Self::Missing | Self::Damaged(_) | Self::Unusable(_) => true,
            Self::Host(_) | Self::Exposed { .. } => false,
        }
    }
}

impl TlsCredentials {
    /// Reads the stored credentials.
    ///
    /// # Errors
    /// [`StateError`] if the file is missing, is damaged, cannot be read, or can be read or written by other users.
    pub fn load(host: &dyn Host) -> Result<Self, StateError> {
        let dir = host.dir(&HostPath::from_static(DIR))?.ok_or(StateError::Missing)?;
        let stat = dir.stat(CREDENTIALS_FILE)?.ok_or(StateError::Missing)?;
        if stat.kind == FileKind::File && stat.mode & 0o077 != 0 {
            let path = host.system_path(&HostPath::from_static(DIR)).join(CREDENTIALS_FILE).display().to_string();
            return Err(StateError::Exposed { path, mode: stat.mode });
        }
        let bytes = match dir.read(CREDENTIALS_FILE, MAX_FILE_BYTES) {
            Err(error) if error.is_about_file() => return Err(StateError::Damaged(error.sentence())),
            result => result?.ok_or(StateError::Missing)?,
        };
        let credentials: Self = serde_json::from_slice(&bytes).map_err(|error| StateError::Damaged(error.to_string()))?;
        if credentials.targets().is_empty() {
            return Err(StateError::Damaged("it names no controller".to_owned()));
        }
        Ok(credentials)
    }

    /// Writes the credentials to disk, in place of the stored ones. No other user can read the file.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700)?;
        let bytes = serde_json::to_vec(self).expect("credentials have no map whose keys are not text");
        replace(host, &*dir, CREDENTIALS_FILE, &bytes, &Attributes::with_mode(0o600))
    }

    /// Returns the parsed addresses of the controllers. Invalid addresses are skipped: there are none in an intact
    /// file, because `join` refuses them.
    pub fn targets(&self) -> Vec<Target> {
        self.controllers.iter().filter_map(|url| url.parse().ok()).collect()
    }

    /// Checks that the credentials can be used for a connection.
    ///
    /// # Errors
    /// The same errors as [`Self::tls`].
    pub fn check_usable(&self, identity: &HostIdentity) -> Result<(), StateError> {
        self.tls(identity, Arc::new(SystemClock)).map(drop)
    }

    /// Checks a certificate that a controller has just issued: it must be valid now, be issued under the fleet's root,
    /// and be for the node's uuid, fleet and key. A certificate that fails the check must not be stored, because it
    /// would replace a certificate that still works. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`CertificateRefusal`] if the certificate fails one of these checks.
    pub(super) fn check_issued(&self, identity: &HostIdentity, now: u64) -> Result<(), CertificateRefusal> {
        let fleet: FleetName = identity.fleet.parse().map_err(Refusal::from)?;
        let issued = verify_issued_identity(&self.chain, &identity.root, &fleet, now)?;
        if issued.class != IdentityClass::Node(identity.node) {
            return Err(CertificateRefusal::OtherNode);
        }
        let key = KeyPair::try_from(self.key.as_slice())?.subject_public_key_info();
        if sha256(&key) != issued.spki_sha256 {
            return Err(CertificateRefusal::OtherKey);
        }
        Ok(())
    }

    /// Returns the TLS configuration for connections to controllers. The client presents this node's certificate, and
    /// accepts only servers of its fleet.
    ///
    /// # Errors
    /// [`StateError::Damaged`] if the key or the fleet's name cannot be parsed, [`StateError::Unusable`] if rustls does
    /// not accept the key or the certificate.
    pub fn tls(&self, identity: &HostIdentity, clock: Arc<dyn Clock>) -> Result<Arc<rustls::ClientConfig>, StateError> {
        let client_identity = ClientIdentity {
            chain: self.chain.iter().cloned().map(CertificateDer::from).collect(),
            key: PrivateKeyDer::try_from(self.key.clone()).map_err(|error| StateError::Damaged(error.to_owned()))?,
        };
        let fleet: FleetName = identity.fleet.parse().map_err(|error: NotAnIdentity| StateError::Damaged(error.to_string()))?;
        let pin = Pin::Roots(vec![CertificateDer::from(identity.root.clone())]);
        Ok(Arc::new(client_config(&pin, Some(fleet), Some(client_identity), clock)?))
    }
}

/// Deletes the unfinished files that a killed process left in the state directory. Such a file may contain a private
/// key.
///
/// # Errors
/// [`HostError`].
pub(super) fn sweep_state_dir(host: &dyn Host) -> Result<(), HostError> {
    host.dir(&HostPath::from_static(DIR))?.map_or(Ok(()), |dir| sweep(host, &*dir))
}

/// Returns the stored reason why this host refused the certificate of its last renewal, for the command `status`.
/// Returns `None` if no reason is stored or the reason cannot be read.
pub(super) fn refused_renewal(host: &dyn Host) -> Option<String> {
    let bytes = host.dir(&HostPath::from_static(DIR)).ok()??.read(REFUSED_RENEWAL_FILE, MAX_FILE_BYTES).ok()?;
    bytes.and_then(|bytes| String::from_utf8(bytes).ok())
}

/// Stores the reason why this host refused the certificate of its last renewal. With `None`, deletes the stored reason.
///
/// # Errors
/// [`HostError`].
pub(super) fn store_refused_renewal(host: &dyn Host, reason: Option<&str>) -> Result<(), HostError> {
    let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700)?;
    match reason {
        Some(reason) => replace(host, &*dir, REFUSED_RENEWAL_FILE, reason.as_bytes(), &Attributes::with_mode(0o600)),
        None if dir.stat(REFUSED_RENEWAL_FILE)?.is_some() => dir.remove(REFUSED_RENEWAL_FILE),
        None => Ok(()),
    }
}

/// Returns the stored key of a renewal, PKCS#8 DER, or `None`. The caller must check the key: it may be damaged, or
/// already be in use if a process ended before it deleted the file.
///
/// # Errors
/// [`HostError`].
pub(super) fn pending_key(host: &dyn Host) -> Result<Option<Vec<u8>>, HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(DIR))? else { return Ok(None) };
    dir.read(PENDING_KEY_FILE, MAX_FILE_BYTES)
}

/// Stores the key of a renewal that is about to start. No other user can read the file.
///
/// # Errors
/// [`HostError`].
pub(super) fn store_pending_key(host: &dyn Host, key: &[u8]) -> Result<(), HostError> {
    let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700)?;
    replace(host, &*dir, PENDING_KEY_FILE, key, &Attributes::with_mode(0o600))
}

/// Deletes the stored key of a renewal. Call this when the renewal has succeeded, or can never succeed with this key.
///
/// # Errors
/// [`HostError`].
pub(super) fn delete_pending_key(host: &dyn Host) -> Result<(), HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(DIR))? else { return Ok(()) };
    if dir.stat(PENDING_KEY_FILE)?.is_some() {
        dir.remove(PENDING_KEY_FILE)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn s71_load_rejects_key_when_readable_by_others() {
        let host = MemoryHost::new();
        let credentials =
            TlsCredentials { controllers: vec!["https://c:1".to_owned()], key: vec![1], chain: vec![vec![2]], validity: (1, 2) };
        credentials.store(&host).unwrap();
        assert!(TlsCredentials::load(&host).unwrap() == credentials);
        let dir = host.dir(&HostPath::from_static(DIR)).unwrap().unwrap();
        for mode in [0o640, 0o604, 0o620] {
            replace(&host, &*dir, CREDENTIALS_FILE, &serde_json::to_vec(&credentials).unwrap(), &Attributes::with_mode(mode))
                .unwrap();
            let message = TlsCredentials::load(&host).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains("run `chmod 600 ") && message.contains(&format!("{mode:04o}")), "{message}");
        }
    }
}

//! The identity of this host in its fleet, as stored when the host joined. The root half of the agent (`apply`) uses
//! the identity to verify each desired state.
//!
//! The identity contains no secret. The command `join`, which runs as root, writes it. A network half without root
//! rights cannot change it, even if it is compromised.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};
use crate::paths;

/// Name of the identity file in the state directory.
const FILE_NAME: &str = "identity.json";

/// Maximum size of the identity file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The identity of this host: its node, its fleet, and the root certificate that it trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostIdentity {
    /// The node's uuid, assigned when it joined.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    pub fleet: String,
    /// The certificate of the fleet root, DER. Its key hash was compared with `--ca-hash` when the host joined.
    pub root: Vec<u8>,
}

/// The reason why this host has no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The host has not joined.
    #[error("this host has not joined a fleet: run `stemma-agent join URL --token-file F --ca-hash H`")]
    NotJoined,
    /// The identity file, or its directory, cannot be read.
    #[error("the identity of this host cannot be read")]
    Read(#[from] HostError),
    /// The identity file has no identity, is too large, or is not a plain file with one hard link. The text says why.
    #[error("{STATE}/{FILE_NAME} is damaged ({0})", STATE = paths::STATE)]
    Damaged(String),
}

impl HostIdentity {
    /// Reads the stored identity.
    ///
    /// # Errors
    /// [`IdentityError`] if the host has not joined, or if the file is damaged or cannot be read.
    pub fn load(host: &dyn Host) -> Result<Self, IdentityError> {
        let dir = host.dir(&HostPath::from_static(paths::STATE))?.ok_or(IdentityError::NotJoined)?;
        let bytes = match dir.read(FILE_NAME, MAX_FILE_BYTES) {
            Err(error) if error.is_about_file() => return Err(IdentityError::Damaged(error.sentence())),
            result => result?.ok_or(IdentityError::NotJoined)?,
        };
        serde_json::from_slice(&bytes).map_err(|error| IdentityError::Damaged(error.to_string()))
    }

    /// Stores the identity. A damaged identity file is renamed first, so that a person can inspect it.
    ///
    /// # Errors
    /// [`HostError`] if a file cannot be renamed or written.
    pub fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::from_static(paths::STATE), 0o755)?;
        if matches!(Self::load(host), Err(IdentityError::Damaged(_))) {
            dir.rename(FILE_NAME, &format!("{FILE_NAME}.set-aside"))?;
        }
        let bytes = serde_json::to_vec(self).expect("an identity has no map whose keys are not text");
        replace(host, &*dir, FILE_NAME, &bytes, &Attributes::with_mode(0o644))
    }
}

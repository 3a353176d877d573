//! Who this host is in its fleet, as joining wrote it down: what `apply` verifies against.
//!
//! It holds nothing secret. `join` (root) writes it once; a network half that was taken over cannot change it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};
use crate::paths;

/// The file's name in the state directory.
const NAME: &str = "identity.json";

/// The largest file that is read.
const LARGEST: u64 = 64 * 1024;

/// The node, its fleet, and the root that it trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The node's uuid, given when it joined.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    pub fleet: String,
    /// The fleet root's certificate, DER; it was compared with `--ca-hash` when the host joined.
    pub root: Vec<u8>,
}

/// Why there is no identity to work with.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The host has not joined.
    #[error("this host has not joined a fleet: run `stemma-agent join URL --token-file F --ca-hash H`")]
    NotJoined,
    /// It cannot be read.
    #[error("the identity of this host cannot be read")]
    Read(#[from] HostError),
    /// It is no identity.
    #[error("{STATE}/{NAME} is damaged ({0})", STATE = paths::STATE)]
    Damaged(String),
}

impl Identity {
    /// Reads what joining wrote.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn load(host: &dyn Host) -> Result<Self, IdentityError> {
        let dir = host.dir(&HostPath::own(paths::STATE))?.ok_or(IdentityError::NotJoined)?;
        let bytes = match dir.read(NAME, LARGEST) {
            Err(error) if error.is_of_the_file() => return Err(IdentityError::Damaged(error.sentence())),
            read => read?.ok_or(IdentityError::NotJoined)?,
        };
        serde_json::from_slice(&bytes).map_err(|error| IdentityError::Damaged(error.to_string()))
    }

    /// Writes it down, for good. What stood there and is no identity is set aside, where a person finds it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn store(&self, host: &dyn Host) -> Result<(), HostError> {
        let dir = ensure_dir(host, &HostPath::own(paths::STATE), 0o755)?;
        if matches!(Self::load(host), Err(IdentityError::Damaged(_))) {
            dir.rename(NAME, &format!("{NAME}.set-aside"))?;
        }
        let bytes = serde_json::to_vec(self).expect("an identity has no map whose keys are not text");
        replace(host, &*dir, NAME, &bytes, &Attributes::mode(0o644))
    }
}

//! The key of a join request, stored until the host has joined or the controller has refused the key.
//!
//! The key is stored before the request is sent, because the response may be lost or the process may end. A repeated
//! request uses the same key and token. By the key, the controller recognises the host for which it already created a
//! node. So no new token is needed.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// Name of the file that stores the key of a join request.
const FILE_NAME: &str = "joining-key";
/// Maximum size of the file that stores the key of a join request, in bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024;

/// The stored key, and the hash of the token for which it was created. A join with another token does not use the key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredJoinKey {
    token_sha256: [u8; 32],
    /// The private key, PKCS#8 DER.
    key: Vec<u8>,
}

/// The reason why no key can be used for a join request. The request was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    /// No key could be created.
    #[error("no key could be created")]
    Create(#[from] rcgen::Error),
    /// The key could not be written to disk.
    #[error("the key could not be stored")]
    Store(#[source] HostError),
}

/// Returns the stored key of this token, or creates and stores a new key.
///
/// # Errors
/// [`KeyError`] if the key cannot be created or stored. The caller must then not send the request, because a token is
/// valid for one request. If the response were lost, no other request with this token could succeed.
pub(super) fn load_or_create(host: &dyn Host, token: &str) -> Result<KeyPair, KeyError> {
    let token_sha256 = sha256(token.as_bytes());
    let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700).map_err(KeyError::Store)?;
    // If the file cannot be read or is damaged, a new key is created, as if there were no file.
    let stored =
        dir.read(FILE_NAME, MAX_FILE_BYTES).ok().flatten().and_then(|bytes| serde_json::from_slice::<StoredJoinKey>(&bytes).ok());
    let stored = stored.filter(|entry| entry.token_sha256 == token_sha256);
    if let Some(key) = stored.and_then(|entry| KeyPair::try_from(entry.key.as_slice()).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let stored = StoredJoinKey { token_sha256, key: key.serialize_der() };
    let bytes = serde_json::to_vec(&stored).expect("it has no map whose keys are not text");
    replace(host, &*dir, FILE_NAME, &bytes, &Attributes::with_mode(0o600)).map_err(KeyError::Store)?;
    Ok(key)
}

/// Deletes the stored key. Call this when the certificate has arrived, or when no controller accepts the key.
///
/// # Errors
/// [`HostError`].
pub(super) fn delete(host: &dyn Host) -> Result<(), HostError> {
    let Some(dir) = host.dir(&HostPath::from_static(DIR))? else { return Ok(()) };
    if dir.stat(FILE_NAME)?.is_some() {
        dir.remove(FILE_NAME)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn load_or_create_returns_same_key_for_token_until_deleted() {
        let host = MemoryHost::new();
        let key_for = |token| load_or_create(&host, token).unwrap().serialize_der();
        let first = key_for("a.b");
        assert!(key_for("a.b") == first, "the stored key is returned");
        let other = key_for("c.d");
        assert!(other != first && key_for("c.d") == other, "another token gets another key");
        delete(&host).unwrap();
        delete(&host).unwrap();
        assert!(key_for("c.d") != other, "a key whose certificate arrived is not used again");
        let dir = host.dir(&HostPath::from_static(DIR)).unwrap().unwrap();
        replace(&host, &*dir, FILE_NAME, b"no key", &Attributes::with_mode(0o600)).unwrap();
        assert!(!key_for("c.d").is_empty(), "a damaged key is replaced");
    }

    #[test]
    fn load_or_create_fails_when_key_cannot_be_stored() {
        let host = MemoryHost::new();
        host.set_full(true);
        assert!(matches!(load_or_create(&host, "a.b"), Err(KeyError::Store(_))));
    }
}

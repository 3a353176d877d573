//! The key of a join request, stored until the response has arrived.
//!
//! The key is stored before the request is sent, because the response may be lost or the process may end. If the
//! request is repeated with the same key and token, the controller recognises the host for which it already created a
//! node, and no new token is needed.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// Name of the file that stores the key of a join request.
const FILE_NAME: &str = "joining-key";
/// Maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024;

/// The stored key, with the hash of the token that it was created for. A join with another token does not use the key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredJoinKey {
    token_sha256: [u8; 32],
    key: Vec<u8>,
}

/// Why there is no key. No request was sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error("no key could be created")]
    Create(#[from] rcgen::Error),
    #[error("the key could not be stored")]
    Store(#[source] HostError),
}

/// Returns the stored key of this token, or creates and stores a new one.
///
/// # Errors
/// [`KeyError`] if the key cannot be created or stored. The caller must then send no request: the request would use up
/// the token, and if its response were lost, no other request could succeed.
pub(super) fn load_or_create(host: &dyn Host, token: &str) -> Result<KeyPair, KeyError> {
    let token_sha256 = sha256(token.as_bytes());
    let dir = ensure_dir(host, &HostPath::from_static(DIR), 0o700).map_err(KeyError::Store)?;
    // A file that cannot be read counts as absent, and a new key is created.
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

/// Deletes the key. Call it when the certificate has arrived, or when no controller accepts the key.
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
        assert!(key_for("a.b") == first, "also by another process");
        let other = key_for("c.d");
        assert!(other != first && key_for("c.d") == other, "another token is another join");
        delete(&host).unwrap();
        delete(&host).unwrap();
        assert!(key_for("c.d") != other, "what has come is asked with no more");
        let dir = host.dir(&HostPath::from_static(DIR)).unwrap().unwrap();
        replace(&host, &*dir, FILE_NAME, b"no key", &Attributes::with_mode(0o600)).unwrap();
        assert!(!key_for("c.d").is_empty(), "a damaged one costs nothing");
    }

    #[test]
    fn load_or_create_fails_when_key_cannot_be_stored() {
        let host = MemoryHost::new();
        host.set_full(true);
        assert!(matches!(load_or_create(&host, "a.b"), Err(KeyError::Store(_))));
    }
}

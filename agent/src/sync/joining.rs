//! The key that a host asks to join with, until the answer has come.
//!
//! It is on disk before it is asked with. An answer may be lost, also with the process: asked again with the same key and the same
//! token, the controller knows the host that it has made a node for already, and nobody has to make another token.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use stemma_core::digest::sha256;

use super::state::DIR;
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Host, HostError, HostPath};

/// The file's name.
const NAME: &str = "joining-key";
/// The largest file that is read.
const LARGEST: u64 = 16 * 1024;

/// A key, and which token it is asked with: with another it is another join.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    token_sha256: [u8; 32],
    key: Vec<u8>,
}

/// Why there is no key to ask with. Nobody was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error("no key could be made")]
    Unmade(#[from] rcgen::Error),
    #[error("the key could not be kept")]
    Unkept(#[source] HostError),
}

/// The key that this token was asked with before, or a new one.
///
/// # Errors
/// [`KeyError`] when no key can be made, or it cannot be kept: a token would be used up, and its answer perhaps lost.
pub(super) fn take_up(host: &dyn Host, token: &str) -> Result<KeyPair, KeyError> {
    let token_sha256 = sha256(token.as_bytes());
    let dir = ensure_dir(host, &HostPath::own(DIR), 0o700).map_err(KeyError::Unkept)?;
    // A file that cannot be read counts as none: another key is made.
    let kept = dir.read(NAME, LARGEST).ok().flatten().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
    let kept = kept.filter(|kept| kept.token_sha256 == token_sha256);
    if let Some(key) = kept.and_then(|kept| KeyPair::try_from(kept.key.as_slice()).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let kept = Kept { token_sha256, key: key.serialize_der() };
    let bytes = serde_json::to_vec(&kept).expect("it has no map whose keys are not text");
    replace(host, &*dir, NAME, &bytes, &Attributes::mode(0o600)).map_err(KeyError::Unkept)?;
    Ok(key)
}

/// Takes it away: its certificate has come, or no controller takes it.
///
/// # Errors
/// [`HostError`].
pub(super) fn drop_key(host: &dyn Host) -> Result<(), HostError> {
    let Some(dir) = host.dir(&HostPath::own(DIR))? else { return Ok(()) };
    if dir.stat(NAME)?.is_some() {
        dir.remove(NAME)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    #[test]
    fn a_token_is_asked_with_one_key_until_its_answer_has_come() {
        let host = MemoryHost::new();
        let take_up = |token| take_up(&host, token).unwrap().serialize_der();
        let first = take_up("a.b");
        assert!(take_up("a.b") == first, "also by another process");
        let other = take_up("c.d");
        assert!(other != first && take_up("c.d") == other, "another token is another join");
        drop_key(&host).unwrap();
        drop_key(&host).unwrap();
        assert!(take_up("c.d") != other, "what has come is asked with no more");
        let dir = host.dir(&HostPath::own(DIR)).unwrap().unwrap();
        replace(&host, &*dir, NAME, b"no key", &Attributes::mode(0o600)).unwrap();
        assert!(!take_up("c.d").is_empty(), "a damaged one costs nothing");
    }

    #[test]
    fn a_key_that_cannot_be_kept_is_not_asked_with() {
        let host = MemoryHost::new();
        host.fill(true);
        assert!(matches!(take_up(&host, "a.b"), Err(KeyError::Unkept(_))));
    }
}

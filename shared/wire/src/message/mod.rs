//! The messages of the agents' protocol, as both ends (and the fleet simulator) know them.
//!
//! Every body is one version byte, then postcard. Nothing here is recursive and every collection has a
//! bound, since postcard itself has neither a recursion limit nor one on growth: what is structured without
//! a fixed shape (a task's parameters, an input's value) travels as its canonical JSON text.
//! Names of nodes stand in no message: who asks is what the certificate says.

mod bounded;
pub mod channel;
pub mod checkin;
mod codec;
pub mod desired;
pub mod enroll;
pub mod observed;
pub mod signed;

#[cfg(test)]
mod tests;

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stemma_core::digest::{Hex, from_hex};

pub use codec::{
    DecodeError, Message, WireVersion, decode, decode_part, decode_up_to, digest_part, encode, encode_as, encode_part,
    hash_content,
};

/// SHA-256 of some content: a profile's or a blob's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The blob that a task's `source` names, in the one form that controller, agent and CLI take: `sha256:` and the hash.
    ///
    /// # Errors
    /// [`NotASource`] for anything else, a bare hash too: what one side takes and the other does not is never served.
    pub fn of_source(source: &str) -> Result<Self, NotASource> {
        source.strip_prefix("sha256:").and_then(|digits| digits.parse().ok()).ok_or(NotASource)
    }
}

/// A `source` that names no blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it names no blob: write sha256: and 64 hexadecimal digits in small letters (`stemma apply` makes that of a file's name)"
)]
pub struct NotASource;

/// A text that is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 hexadecimal digits in lower case")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    /// Reads the one spelling of a hash, as paths have it: nothing else can stand there, however it was encoded (S54).
    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let is_spelling = !text.bytes().any(|digit| digit.is_ascii_uppercase());
        from_hex(text).filter(|_| is_spelling).map(Self).ok_or(NotAHash)
    }
}

/// SHA-256 over the postcard bytes of one part of a desired state, as sent. Never compared with a task digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct PartDigest(pub [u8; 32]);

/// The store's epoch: a random 128-bit id, made by `init`; `restore` makes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct Epoch(pub [u8; 16]);

/// The store's revision of the snapshot that was resolved. Grows within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision(pub u64);

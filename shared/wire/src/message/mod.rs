//! The messages of the agents' protocol, shared by both ends and the fleet simulator.
//!
//! Every body except a profile or blob is one version byte, then the message in the encoding `postcard`. No type is
//! recursive, and every collection has a maximum size, because `postcard` itself limits neither. Data without a fixed
//! form (a task's parameters, an input's value) is sent as its canonical JSON text.
//!
//! Except for a join request, no message contains the name of its sender. The certificate identifies the node.

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

/// Maximum size of a blob (the content of a file of a task), in bytes.
pub const MAX_BLOB_BYTES: usize = 64 * 1024 * 1024;

/// Default limit for all blobs together that a controller stores before a release names them, in bytes. One sender has a
/// part of it ([`Shares`](stemma_core::shares::Shares)).
pub const MAX_UNNAMED_BLOB_BYTES: u64 = 1024 * 1024 * 1024;

/// Size with which a smaller blob counts towards a limit for several blobs, in bytes: one disk block. So the limit in bytes
/// also limits their number.
pub const MIN_BLOB_BYTES: u64 = 4096;

/// SHA-256 of some content: the name of a profile or blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Returns the hash of the blob that a task's `source` names, as `sha256:` and the hash.
    ///
    /// # Errors
    /// [`NotASource`] for any other text, also for a hash without `sha256:`. Controller, agent and CLI must accept the
    /// same texts. If only the agent accepted another form, the controller would never serve the blob.
    pub fn from_source(source: &str) -> Result<Self, NotASource> {
        source.strip_prefix("sha256:").and_then(|digits| digits.parse().ok()).ok_or(NotASource)
    }
}

/// The error for a `source` that does not name a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it does not name a blob: write sha256: and 64 hexadecimal digits in lower case (`stemma apply` replaces the name of a file with this text)"
)]
pub struct NotASource;

/// The error for a text that is not a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 hexadecimal digits in lower case")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    /// Parses a hash in lower case. Fails on upper case, so that each hash has only one spelling in the path of a
    /// request (S54).
    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let is_lower_case = !text.bytes().any(|digit| digit.is_ascii_uppercase());
        from_hex(text).filter(|_| is_lower_case).map(Self).ok_or(NotAHash)
    }
}

/// The digest of one part of a desired state, or of an Observation: the SHA-256 of the bytes as sent. After the first
/// wire version, a marker and the version precede these bytes. It is never compared with a task digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct PartDigest(pub [u8; 32]);

/// The epoch of the controller's store: an id of 128 bits. `init` creates the first, each `restore` of a backup another
/// one, and `resume-fleet` may create one. All except the first contain the time at which they began (ADR 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display("{}", Hex(_0))]
pub struct Epoch(pub [u8; 16]);

/// A revision of the controller's store, which grows with each write within an epoch. The revision of a desired state
/// is that of the snapshot from which the controller computed the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision(pub u64);

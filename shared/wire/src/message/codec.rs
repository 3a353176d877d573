//! Encoding and decoding of messages: one version byte, then postcard. The size is checked before anything is read, and
//! trailing bytes are an error.
//!
//! This program reads every version from 1 to its own. A request has the version of its sender, and a response has the
//! version of the request. So either end may be upgraded first. A message is one type in all versions. If its form
//! changes, its [`Message`] implementation reads and writes the older form, and callers only pass the version's number.
//!
//! Builds with debug assertions, which are never released, support one more version for tests ([`WireVersion::NEXT`]).
//! Tests use it to run an earlier program against a later one. It is used only if a test requests it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::channel::{ApplyMessage, SyncMessage};
use super::checkin::{CheckIn, CheckInResponse};
use super::desired::{Known, Profile, TaskSet};
use super::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use super::observed::Observation;
use super::{Hash, PartDigest};

/// A version of the wire format: the first byte of every body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
pub struct WireVersion(pub(super) u8);

impl WireVersion {
    /// The first version of the wire format.
    pub const FIRST: Self = Self(1);
    /// The version that this program writes, and the newest that it reads.
    pub const CURRENT: Self = Self(1);
    /// The version after the current one, for tests: each message has another form than today and the same contents.
    #[cfg(debug_assertions)]
    pub const NEXT: Self = Self(Self::CURRENT.0 + 1);

    /// The newest version that this build supports.
    #[cfg(debug_assertions)]
    const NEWEST: Self = Self::NEXT;
    #[cfg(not(debug_assertions))]
    const NEWEST: Self = Self::CURRENT;

    /// Returns all versions that this build supports, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::FIRST.0..=Self::NEWEST.0).map(Self)
    }

    /// Returns whether this build supports the version.
    pub fn is_supported(self) -> bool {
        (Self::FIRST..=Self::NEWEST).contains(&self)
    }

    /// Returns the index of the version among all versions.
    pub fn index(self) -> usize {
        usize::from(self.0 - Self::FIRST.0)
    }

    /// Returns the previous version, or `None` for the first.
    pub fn previous(self) -> Option<Self> {
        (self > Self::FIRST).then(|| Self(self.0 - 1))
    }
}

/// A message of the protocol, or a part of a message that has its own digest.
pub trait Message: Serialize + DeserializeOwned {
    /// The message's name in errors and golden files.
    const NAME: &'static str;
    /// Maximum size of an encoding, in bytes. Also the listener's limit for the body.
    const MAX_BYTES: usize;

    /// Reads the message in the form of a version. Returns it with the bytes after it. If the form of a message
    /// changed, its implementation reads the older form here.
    ///
    /// # Errors
    /// If the bytes do not contain the message.
    fn read(version: WireVersion, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        #[cfg(debug_assertions)]
        if version == WireVersion::NEXT {
            return next_version::read(bytes);
        }
        let _ = version;
        postcard::take_from_bytes(bytes)
    }

    /// Appends the message to the buffer in the form of a version, and returns the buffer. The counterpart of
    /// [`Message::read`].
    ///
    /// # Errors
    /// If the message contains a value that the encoding does not support.
    fn write(&self, version: WireVersion, buffer: Vec<u8>) -> postcard::Result<Vec<u8>> {
        #[cfg(debug_assertions)]
        if version == WireVersion::NEXT {
            return next_version::write(self, buffer);
        }
        let _ = version;
        postcard::to_extend(self, buffer)
    }
}

/// The form of every message in [`WireVersion::NEXT`]: the form of the current version, and one more byte. The codec
/// refuses trailing and missing bytes, so it cannot decode a message of one version as one of the other.
#[cfg(debug_assertions)]
mod next_version {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    const TRAILING_BYTE: u8 = 0xa5;

    pub(super) fn read<M: DeserializeOwned>(bytes: &[u8]) -> postcard::Result<(M, &[u8])> {
        match postcard::take_from_bytes(bytes)? {
            (message, [TRAILING_BYTE, rest @ ..]) => Ok((message, rest)),
            _ => Err(postcard::Error::DeserializeUnexpectedEnd),
        }
    }

    pub(super) fn write<M: Serialize>(message: &M, buffer: Vec<u8>) -> postcard::Result<Vec<u8>> {
        let mut bytes = postcard::to_extend(message, buffer)?;
        bytes.push(TRAILING_BYTE);
        Ok(bytes)
    }
}

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are more bytes than this message may have.
    #[error("{name} has {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The message's name.
        name: &'static str,
        /// The number of bytes.
        bytes: usize,
        /// The maximum number of bytes.
        limit: usize,
    },
    /// There is no version byte.
    #[error("{name} is empty")]
    Empty {
        /// The message's name.
        name: &'static str,
    },
    /// This program does not read this version.
    #[error("{name} has protocol version {found}; this program reads versions 1 to {newest}")]
    Version {
        /// The message's name.
        name: &'static str,
        /// The version byte.
        found: u8,
        /// The newest supported version.
        newest: WireVersion,
    },
    /// The bytes are not this message, or a collection exceeds its bound.
    #[error("{name} cannot be decoded")]
    Malformed {
        /// The message's name.
        name: &'static str,
    },
    /// There are bytes after the message.
    #[error("{name} is followed by {bytes} unexpected bytes")]
    Trailing {
        /// The message's name.
        name: &'static str,
        /// The number of trailing bytes.
        bytes: usize,
    },
}

/// The initial capacity for an encoding. Nearly all messages are smaller, and the buffer grows for the others.
const INITIAL_CAPACITY_BYTES: usize = 128;

/// Encodes a message in this program's own version, with the version byte.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    encode_as(WireVersion::CURRENT, message)
}

/// Encodes a message in a version that the other end reads, with the version byte. A response uses the version of its
/// request.
pub fn encode_as<M: Message>(version: WireVersion, message: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INITIAL_CAPACITY_BYTES);
    bytes.push(version.0);
    expect_encoded(message.write(version, bytes))
}

/// Encodes a part that has its own digest. It has no version byte, because the message that contains it has one.
pub fn encode_part<M: Message>(version: WireVersion, part: &M) -> Vec<u8> {
    expect_encoded(part.write(version, Vec::new()))
}

/// Returns the encoded bytes. Panics on an error, because no message contains a value that postcard cannot encode.
fn expect_encoded(bytes: postcard::Result<Vec<u8>>) -> Vec<u8> {
    bytes.expect("the messages hold nothing that postcard cannot write")
}

/// Decodes a message of any version up to this program's own.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    decode_up_to(WireVersion::CURRENT, bytes).map(|(_, message)| message)
}

/// Decodes a message of any version up to `newest`. Returns it with its version, which is also the version of its
/// parts. The response must use the same version.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_up_to<M: Message>(newest: WireVersion, bytes: &[u8]) -> Result<(WireVersion, M), DecodeError> {
    let name = M::NAME;
    check_size::<M>(bytes)?;
    let (&found, body) = bytes.split_first().ok_or(DecodeError::Empty { name })?;
    let version = WireVersion(found);
    if !(WireVersion::FIRST..=newest).contains(&version) {
        return Err(DecodeError::Version { name, found, newest });
    }
    Ok((version, decode_part(version, body)?))
}

/// Decodes a part of a message of this version. The bytes have no version byte, and all of them must belong to the
/// part.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_part<M: Message>(version: WireVersion, bytes: &[u8]) -> Result<M, DecodeError> {
    let name = M::NAME;
    check_size::<M>(bytes)?;
    match M::read(version, bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(DecodeError::Trailing { name, bytes: rest.len() }),
        Err(_) => Err(DecodeError::Malformed { name }),
    }
}

/// Fails if there are more bytes than the message may have.
fn check_size<M: Message>(bytes: &[u8]) -> Result<(), DecodeError> {
    let (name, limit) = (M::NAME, M::MAX_BYTES);
    if bytes.len() > limit { Err(DecodeError::TooLarge { name, bytes: bytes.len(), limit }) } else { Ok(()) }
}

/// The bytes that are hashed before the version's number in the digest of a part ([`digest_part`]). In version 1, every
/// part begins with a number, and postcard never encodes a number with this many such bytes. So bytes of version 1
/// never have the digest of bytes of a later version.
const VERSION_MARKER: [u8; 16] = [0xff; 16];

/// Returns the digest of a part's bytes, as sent in this version. Version 1 hashes the bytes alone. Later versions hash
/// the version's number first, so that the same bytes have different digests in versions in which they mean different
/// things.
pub fn digest_part(version: WireVersion, bytes: &[u8]) -> PartDigest {
    let mut digest = Sha256::new();
    if version > WireVersion::FIRST {
        digest.update(VERSION_MARKER);
        digest.update([version.0]);
    }
    PartDigest(digest.chain_update(bytes).finalize().into())
}

/// Returns the hash that names a profile or blob.
pub fn hash_content(bytes: &[u8]) -> Hash {
    Hash(Sha256::digest(bytes).into())
}

macro_rules! messages {
    ($($kind:ty, $name:literal, $max:expr;)*) => {
        $(impl Message for $kind {
            const NAME: &'static str = $name;
            const MAX_BYTES: usize = $max;
        })*
    };
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

messages! {
    EnrollRequest, "enroll-request", 16 * KIB;
    EnrollResponse, "enroll-answer", 32 * KIB;
    RenewRequest, "renew-request", 16 * KIB;
    RenewResponse, "renew-answer", 32 * KIB;
    CheckIn, "check-in", 8 * MIB;
    CheckInResponse, "check-in-answer", 16 * MIB;
    Known, "known", MIB;
    TaskSet, "task-set", 8 * MIB;
    Profile, "profile", 16 * MIB;
    Observation, "observation", 8 * MIB;
    ApplyMessage, "from-apply", 8 * MIB;
    SyncMessage, "from-sync", 8 * MIB;
}

//! Encoding and decoding of messages: one version byte, then postcard. The size is checked before anything is read, and
//! trailing bytes are an error.
//!
//! This program reads every version from 1 to its own. A request has the version of its sender, and a response has the
//! version of the request. So either end may be upgraded first. A message is one type in all versions. If the encoding
//! of a message changes, its [`Message`] implementation reads and writes the older encoding too, and callers only pass
//! the version's number.
//!
//! Builds with debug assertions, which are never released, support one more version for tests ([`WireVersion::NEXT`]).
//! With it, a test can run an earlier program against a later one.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::channel::{ApplyMessage, SyncMessage};
use super::checkin::{CheckIn, CheckInResponse};
use super::desired::{Known, Profile, TaskSet};
use super::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use super::observed::Observation;
use super::{Hash, PartDigest};

/// A version of the wire format: the first byte of an encoded message, but not of a part, a profile or a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
pub struct WireVersion(pub(super) u8);

impl WireVersion {
    /// The first version of the wire format.
    pub const FIRST: Self = Self(1);
    /// The newest version that this program reads and writes. A response is written in the version of its request.
    pub const CURRENT: Self = Self(1);
    /// The version after the current one, for tests only. Its messages have the same contents in another encoding.
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

    /// Returns the index of the version among all versions. The first version has index 0.
    pub fn index(self) -> usize {
        usize::from(self.0 - Self::FIRST.0)
    }

    /// Returns the previous version, or `None` for the first.
    pub fn previous(self) -> Option<Self> {
        (self > Self::FIRST).then(|| Self(self.0 - 1))
    }
}

/// A message of the protocol or between the halves of an agent, or content with its own digest, such as a profile.
pub trait Message: Serialize + DeserializeOwned {
    /// The message's name in errors and in the names of test files with encoded messages.
    const NAME: &'static str;
    /// Maximum size of an encoded message, in bytes. The listener refuses a larger body, and decoding fails.
    const MAX_BYTES: usize;

    /// Decodes the message from its encoding in a wire version. Returns the message, and the bytes that follow it. This
    /// default decodes all released versions in the same way. A message whose encoding changed overrides it.
    ///
    /// # Errors
    /// If the bytes do not begin with a complete message.
    fn read(version: WireVersion, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        #[cfg(debug_assertions)]
        if version == WireVersion::NEXT {
            return next_version::read(bytes);
        }
        // In a release build, `version` is not used otherwise.
        let _ = version;
        postcard::take_from_bytes(bytes)
    }

    /// Appends the message to the buffer, in its encoding in a wire version, and returns the buffer. This is the
    /// counterpart of [`Message::read`]. A message whose encoding changed overrides both.
    ///
    /// # Errors
    /// If the message contains a value that the encoding does not support.
    fn write(&self, version: WireVersion, buffer: Vec<u8>) -> postcard::Result<Vec<u8>> {
        #[cfg(debug_assertions)]
        if version == WireVersion::NEXT {
            return next_version::write(self, buffer);
        }
        // In a release build, `version` is not used otherwise.
        let _ = version;
        postcard::to_extend(self, buffer)
    }
}

/// The encoding of every message in [`WireVersion::NEXT`]: the encoding of the current version, and one more byte. The
/// codec refuses trailing and missing bytes, so it never decodes a message in the wrong one of the two versions.
#[cfg(debug_assertions)]
mod next_version {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    const TRAILING_BYTE: u8 = 0xa5;

    /// Decodes a message and the byte after it. Fails if that byte is missing or wrong.
    pub(super) fn read<M: DeserializeOwned>(bytes: &[u8]) -> postcard::Result<(M, &[u8])> {
        match postcard::take_from_bytes(bytes)? {
            (message, [TRAILING_BYTE, rest @ ..]) => Ok((message, rest)),
            _ => Err(postcard::Error::DeserializeUnexpectedEnd),
        }
    }

    /// Appends a message, and one more byte.
    pub(super) fn write<M: Serialize>(message: &M, buffer: Vec<u8>) -> postcard::Result<Vec<u8>> {
        let mut bytes = postcard::to_extend(message, buffer)?;
        bytes.push(TRAILING_BYTE);
        Ok(bytes)
    }
}

/// The reason why bytes could not be decoded as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than this message may have.
    #[error("{name} has {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The message's name.
        name: &'static str,
        /// The number of bytes.
        bytes: usize,
        /// The maximum number of bytes.
        limit: usize,
    },
    /// No bytes at all, so that even the version byte is missing.
    #[error("{name} is empty")]
    Empty {
        /// The message's name.
        name: &'static str,
    },
    /// A version that this program does not support.
    #[error("{name} has protocol version {found}; this program reads versions 1 to {newest}")]
    Version {
        /// The message's name.
        name: &'static str,
        /// The version byte.
        found: u8,
        /// The newest supported version.
        newest: WireVersion,
    },
    /// Bytes that are not this message, or a list, map or text in the message that is longer than its maximum.
    #[error("{name} cannot be decoded")]
    Malformed {
        /// The message's name.
        name: &'static str,
    },
    /// Bytes that follow the message.
    #[error("{name} is followed by {bytes} unexpected bytes")]
    Trailing {
        /// The message's name.
        name: &'static str,
        /// The number of trailing bytes.
        bytes: usize,
    },
}

/// The initial capacity for an encoding. It suffices for the usual response to a check-in, and the buffer can grow.
const INITIAL_CAPACITY_BYTES: usize = 128;

/// Encodes a message in this program's own wire version. The first byte is the version.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    encode_as(WireVersion::CURRENT, message)
}

/// Encodes a message in a wire version that the other end supports. The first byte is the version. A response has the
/// version of its request.
pub fn encode_as<M: Message>(version: WireVersion, message: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INITIAL_CAPACITY_BYTES);
    bytes.push(version.0);
    expect_encoded(message.write(version, bytes))
}

/// Encodes a part of a message that has its own digest (such as a task set), or a profile. The result has no version
/// byte. Its version is that of the message that contains the part, or of the task set that names the profile.
pub fn encode_part<M: Message>(version: WireVersion, part: &M) -> Vec<u8> {
    expect_encoded(part.write(version, Vec::new()))
}

/// Returns the encoded bytes. Panics on an error, which never happens: postcard can encode every value that a message
/// contains.
fn expect_encoded(bytes: postcard::Result<Vec<u8>>) -> Vec<u8> {
    bytes.expect("postcard can encode every value of a message")
}

/// Decodes a message of any wire version up to this program's own.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    decode_up_to(WireVersion::CURRENT, bytes).map(|(_, message)| message)
}

/// Decodes a message of any wire version up to `newest`. Returns the version and the message. The parts of the message
/// have the same version, and so must the response.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_up_to<M: Message>(newest: WireVersion, bytes: &[u8]) -> Result<(WireVersion, M), DecodeError> {
    let name = M::NAME;
    check_size::<M>(bytes)?;
    let (&version_byte, body) = bytes.split_first().ok_or(DecodeError::Empty { name })?;
    let version = WireVersion(version_byte);
    if !(WireVersion::FIRST..=newest).contains(&version) {
        return Err(DecodeError::Version { name, found: version_byte, newest });
    }
    Ok((version, decode_part(version, body)?))
}

/// Decodes a part of a message of this wire version. The bytes have no version byte. Fails if bytes follow the part.
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

/// Fails if there are more bytes than a message of this type may have.
fn check_size<M: Message>(bytes: &[u8]) -> Result<(), DecodeError> {
    let (name, limit) = (M::NAME, M::MAX_BYTES);
    if bytes.len() > limit { Err(DecodeError::TooLarge { name, bytes: bytes.len(), limit }) } else { Ok(()) }
}

/// The first bytes that [`digest_part`] hashes for a version after the first. A part of version 1 is hashed alone, and
/// never begins with these bytes: it begins with an integer, and postcard encodes no integer as 16 bytes of 0xff. So a
/// part of version 1 and a part of a later version never have the same digest.
const VERSION_MARKER: [u8; 16] = [0xff; 16];

/// Returns the digest of an encoded part, as sent in this wire version. For version 1, the digest is the hash of the
/// bytes alone. For a later version, the hash begins with a marker and the version, so that the same bytes have another
/// digest in each version.
pub fn digest_part(version: WireVersion, bytes: &[u8]) -> PartDigest {
    let mut digest = Sha256::new();
    if version > WireVersion::FIRST {
        digest.update(VERSION_MARKER);
        digest.update([version.0]);
    }
    PartDigest(digest.chain_update(bytes).finalize().into())
}

/// Returns the SHA-256 of some content, which is the name of a profile or blob.
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

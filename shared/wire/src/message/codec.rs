//! Bytes to messages and back: one version byte, then postcard; a limit before anything is read, and nothing left over.
//!
//! This program reads every version from 1 to its own. A request is written in its own version, an answer in the version of
//! the request, so either end may be upgraded first. A message is one type in all versions: one whose form changes says in
//! its [`Message`] how the older form is read and written, and no caller knows more than the version's number.
//!
//! Builds with debug assertions, of which no release is made, have the forms of one version more: the throw-away version
//! ([`WireVersion::THROW_AWAY`]), by which tests run an earlier program against a later one. Nothing speaks it unless a test asks for it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::channel::{FromApply, FromSync};
use super::checkin::{CheckIn, CheckInAnswer};
use super::desired::{Known, Profile, TaskSet};
use super::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use super::observed::Observation;
use super::{Hash, PartDigest};

/// A version of the wire format: the first byte of every body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
pub struct WireVersion(pub(super) u8);

impl WireVersion {
    /// The first version.
    pub const FIRST: Self = Self(1);
    /// The version that this program writes, and the newest that it reads.
    pub const CURRENT: Self = Self(1);
    /// The version after that one, for tests: the form of each message is another one than today's, and holds the same.
    #[cfg(debug_assertions)]
    pub const THROW_AWAY: Self = Self(Self::CURRENT.0 + 1);

    /// The newest version of which this build has forms.
    #[cfg(debug_assertions)]
    const NEWEST: Self = Self::THROW_AWAY;
    #[cfg(not(debug_assertions))]
    const NEWEST: Self = Self::CURRENT;

    /// All versions of which this build has forms, the first one first.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::FIRST.0..=Self::NEWEST.0).map(Self)
    }

    /// Whether this build has forms of it.
    pub fn is_known(self) -> bool {
        (Self::FIRST..=Self::NEWEST).contains(&self)
    }

    /// The place of a version among all of them.
    pub fn index(self) -> usize {
        usize::from(self.0 - Self::FIRST.0)
    }

    /// The version before it; `None` before the first.
    pub fn before(self) -> Option<Self> {
        (self > Self::FIRST).then(|| Self(self.0 - 1))
    }
}

/// A body of the protocol, or a part of one that has a digest of its own.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is called in errors and golden files.
    const NAME: &'static str;
    /// The largest encoding that is read, in bytes. Also what a listener takes as the body's limit.
    const MAX_BYTES: usize;

    /// Reads the message from its form in a version, and returns the bytes after it. A message whose form changed reads the
    /// older one here.
    ///
    /// # Errors
    /// When the bytes do not hold it.
    fn read(version: WireVersion, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        #[cfg(debug_assertions)]
        if version == WireVersion::THROW_AWAY {
            return throw_away::read(bytes);
        }
        let _ = version;
        postcard::take_from_bytes(bytes)
    }

    /// Appends the message in its form of a version. The counterpart of [`Message::read`].
    ///
    /// # Errors
    /// When it holds what the encoding has no form for.
    fn write(&self, version: WireVersion, to: Vec<u8>) -> postcard::Result<Vec<u8>> {
        #[cfg(debug_assertions)]
        if version == WireVersion::THROW_AWAY {
            return throw_away::write(self, to);
        }
        let _ = version;
        postcard::to_extend(self, to)
    }
}

/// The form of every message in [`WireVersion::THROW_AWAY`]: today's, and one byte more. So this codec, which
/// leaves nothing over, reads neither form as the other.
#[cfg(debug_assertions)]
mod throw_away {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    const LAST: u8 = 0xa5;

    pub(super) fn read<M: DeserializeOwned>(bytes: &[u8]) -> postcard::Result<(M, &[u8])> {
        match postcard::take_from_bytes(bytes)? {
            (message, [LAST, rest @ ..]) => Ok((message, rest)),
            _ => Err(postcard::Error::DeserializeUnexpectedEnd),
        }
    }

    pub(super) fn write<M: Serialize>(message: &M, to: Vec<u8>) -> postcard::Result<Vec<u8>> {
        let mut bytes = postcard::to_extend(message, to)?;
        bytes.push(LAST);
        Ok(bytes)
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than the kind may have.
    #[error("{name} of {bytes} bytes: at most {limit} are read")]
    TooLarge {
        /// The kind.
        name: &'static str,
        /// How many came.
        bytes: usize,
        /// How many may.
        limit: usize,
    },
    /// No version byte at all.
    #[error("{name} is empty")]
    Empty {
        /// The kind.
        name: &'static str,
    },
    /// A version that this program does not read.
    #[error("{name} of protocol version {found}: versions 1 to {newest} are read here")]
    Version {
        /// The kind.
        name: &'static str,
        /// The version byte.
        found: u8,
        /// The newest that is read.
        newest: WireVersion,
    },
    /// Not this message, or a collection beyond its bound.
    #[error("{name} cannot be decoded")]
    Malformed {
        /// The kind.
        name: &'static str,
    },
    /// Bytes behind the message.
    #[error("{name} is followed by {bytes} bytes that belong to nothing")]
    Trailing {
        /// The kind.
        name: &'static str,
        /// How many.
        bytes: usize,
    },
}

/// What is reserved for an encoding: nearly all are smaller, and the others grow from there.
const ENCODED_BYTES: usize = 128;

/// A message's bytes, version first, in this program's own version.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    encode_as(WireVersion::CURRENT, message)
}

/// A message's bytes, version first, in a version that the other end reads: an answer's is that of its request.
pub fn encode_as<M: Message>(version: WireVersion, message: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENCODED_BYTES);
    bytes.push(version.0);
    written(message.write(version, bytes))
}

/// The bytes of a part that has a digest of its own: without a version byte, since the message that carries it has one.
pub fn encode_part<M: Message>(version: WireVersion, part: &M) -> Vec<u8> {
    written(part.write(version, Vec::new()))
}

fn written(bytes: postcard::Result<Vec<u8>>) -> Vec<u8> {
    bytes.expect("the messages hold nothing that postcard cannot write")
}

/// Reads a message of any version up to this program's own.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    decode_up_to(WireVersion::CURRENT, bytes).map(|(_, message)| message)
}

/// Reads a message of any version up to the newest that is spoken, with its version: in that one it is answered, and the parts are that
/// it carries.
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

/// Reads a part of a message of this version: the whole of the bytes, which have no version byte.
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

fn check_size<M: Message>(bytes: &[u8]) -> Result<(), DecodeError> {
    let (name, limit) = (M::NAME, M::MAX_BYTES);
    if bytes.len() > limit { Err(DecodeError::TooLarge { name, bytes: bytes.len(), limit }) } else { Ok(()) }
}

/// What stands before the version's number in the digest of a part. Every part of the first version begins with a number, and postcard
/// writes none of so many such bytes: no bytes of that version have the digest of others in a later one.
const NO_NUMBER: [u8; 16] = [0xff; 16];

/// The digest of a part's bytes, as sent in this version. After the first version, which hashes the bytes alone, the
/// version's number comes first: what means one thing in one version never has the digest of what means another in the next.
pub fn digest_part(version: WireVersion, bytes: &[u8]) -> PartDigest {
    let mut digest = Sha256::new();
    if version > WireVersion::FIRST {
        digest.update(NO_NUMBER);
        digest.update([version.0]);
    }
    PartDigest(digest.chain_update(bytes).finalize().into())
}

/// The hash that names a profile or blob.
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
    EnrollAnswer, "enroll-answer", 32 * KIB;
    RenewRequest, "renew-request", 16 * KIB;
    RenewAnswer, "renew-answer", 32 * KIB;
    CheckIn, "check-in", 8 * MIB;
    CheckInAnswer, "check-in-answer", 16 * MIB;
    Known, "known", MIB;
    TaskSet, "task-set", 8 * MIB;
    Profile, "profile", 16 * MIB;
    Observation, "observation", 8 * MIB;
    FromApply, "from-apply", 8 * MIB;
    FromSync, "from-sync", 8 * MIB;
}

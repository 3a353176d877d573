//! Bytes to messages and back: one version byte, then postcard; a limit before anything is read, and nothing left over.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::channel::{FromApply, FromSync};
use super::checkin::{CheckIn, CheckInAnswer};
use super::desired::{Known, Profile, TaskSet};
use super::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use super::{Hash, PartDigest, VERSION};

/// A body of the protocol.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is called in errors and golden files.
    const NAME: &'static str;
    /// The largest encoding that is read, in bytes. Also what a listener takes as the body's limit.
    const MAX_BYTES: usize;
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
    /// A version that is not spoken here.
    #[error("{name} of protocol version {found}: version {VERSION} is spoken here")]
    Version {
        /// The kind.
        name: &'static str,
        /// The version byte.
        found: u8,
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

/// A message's bytes, version first.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENCODED_BYTES);
    bytes.push(VERSION);
    postcard::to_extend(message, bytes).expect("the messages hold nothing that postcard cannot write")
}

/// Reads a message.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let name = M::NAME;
    if bytes.len() > M::MAX_BYTES {
        return Err(DecodeError::TooLarge { name, bytes: bytes.len(), limit: M::MAX_BYTES });
    }
    match bytes.split_first() {
        None => Err(DecodeError::Empty { name }),
        Some((&VERSION, body)) => match postcard::take_from_bytes::<M>(body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(DecodeError::Trailing { name, bytes: rest.len() }),
            Err(_) => Err(DecodeError::Malformed { name }),
        },
        Some((&found, _)) => Err(DecodeError::Version { name, found }),
    }
}

/// The digest of a part's bytes, as sent.
pub fn digest_part(bytes: &[u8]) -> PartDigest {
    PartDigest(Sha256::digest(bytes).into())
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
    FromApply, "from-apply", 8 * MIB;
    FromSync, "from-sync", 8 * MIB;
}

//! One record of the ledger as bytes: a head with kind, version and checksum, then postcard.
//!
//! A record is read only when all of it is as it was written. What is not (cut by a power loss, empty, written
//! by a newer agent, of another kind) is told apart by name, so that it can be set aside and said (F13).

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::digest::sha256;

/// First bytes of every record.
const MAGIC: &[u8; 8] = b"stemmaL\n";

/// The layout that this program writes, and the newest that it reads.
const VERSION: u16 = 1;

/// Magic, version, kind, checksum.
const HEAD: usize = 8 + 2 + 2 + 32;

/// What a record holds. The number is written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Accepted = 1,
    Progress = 2,
    Step = 3,
    Results = 4,
    Sequence = 5,
    HostMap = 6,
    HookSnapshot = 7,
    Local = 8,
    Open = 9,
    Undo = 10,
    Report = 11,
    SealKey = 12,
    Refreshes = 13,
    Reasons = 14,
    LookAsked = 15,
    LookDone = 16,
    SecretPath = 17,
}

/// Why a record is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is empty")]
    Empty,
    #[error("it was not written to its end, or was changed since")]
    Torn,
    #[error("a newer agent wrote it (layout {0}, this one reads up to {VERSION})")]
    Future(u16),
    #[error("it is a record of another kind")]
    OtherKind,
}

/// A record's bytes.
pub(super) fn encode<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes = postcard::to_extend(value, bytes).expect("records are plain data, which postcard always takes");
    let (head, body) = bytes.split_at_mut(HEAD);
    head[..8].copy_from_slice(MAGIC);
    head[8..10].copy_from_slice(&VERSION.to_be_bytes());
    head[10..12].copy_from_slice(&(kind as u16).to_be_bytes());
    head[12..].copy_from_slice(&checksum(kind, body));
    bytes
}

/// What the bytes hold, when they are whole.
pub(super) fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, Unreadable> {
    if bytes.is_empty() {
        return Err(Unreadable::Empty);
    }
    let (head, body) = bytes.split_at_checked(HEAD).ok_or(Unreadable::Torn)?;
    if head[..8] != *MAGIC {
        return Err(Unreadable::Torn);
    }
    let version = u16::from_be_bytes([head[8], head[9]]);
    if version > VERSION {
        return Err(Unreadable::Future(version));
    }
    if head[10..12] != (kind as u16).to_be_bytes() {
        return Err(Unreadable::OtherKind);
    }
    if head[12..] != checksum(kind, body) {
        return Err(Unreadable::Torn);
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Unreadable::Torn),
    }
}

fn checksum(kind: Kind, body: &[u8]) -> [u8; 32] {
    sha256(&[&(kind as u16).to_be_bytes(), body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f13_only_a_whole_record_of_this_kind_is_read() {
        let whole = encode(Kind::Sequence, &7_u64);
        assert_eq!(decode::<u64>(Kind::Sequence, &whole), Ok(7));
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let mut future = whole.clone();
        future[9] = 2;
        for (bytes, said) in [
            (vec![], Unreadable::Empty),
            (whole[..1].to_vec(), Unreadable::Torn),
            (whole[..whole.len() - 1].to_vec(), Unreadable::Torn),
            (vec![0; 100], Unreadable::Torn),
            (flipped, Unreadable::Torn),
            (future, Unreadable::Future(2)),
            (encode(Kind::Local, &7_u64), Unreadable::OtherKind),
            ([&whole[..], b"x"].concat(), Unreadable::Torn),
        ] {
            assert_eq!(decode::<u64>(Kind::Sequence, &bytes), Err(said));
        }
    }
}

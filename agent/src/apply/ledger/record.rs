//! One record of the ledger as bytes: a head with kind, version and checksum, then postcard.
//!
//! A record is read only when all of it is as it was written. What is not (cut by a power loss, empty, written
//! by a newer agent, of another kind) is told apart by name, so that it can be set aside and said (F13).
//!
//! Two numbers say what is in a record. The layout is this module's. The wire version is that of what a controller sent: it stands first in
//! the one record that holds such bytes, the accepted state. Layout 1 of that record, as 118d023 wrote it, ends without one: its parts
//! are of the first version.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::digest::sha256;
use stemma_wire::message::WireVersion;

/// First bytes of every record.
const MAGIC: &[u8; 8] = b"stemmaL\n";

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

impl Kind {
    /// The layout that this program writes, and the newest that it reads.
    const fn layout(self) -> u16 {
        match self {
            Self::Accepted => 2,
            Self::Progress
            | Self::Step
            | Self::Results
            | Self::Sequence
            | Self::HostMap
            | Self::HookSnapshot
            | Self::Local
            | Self::Open
            | Self::Undo
            | Self::Report
            | Self::SealKey
            | Self::Refreshes
            | Self::Reasons
            | Self::LookAsked
            | Self::LookDone
            | Self::SecretPath => 1,
        }
    }
}

/// Why a record is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is empty")]
    Empty,
    #[error("it was not written to its end, or was changed since")]
    Torn,
    #[error(
        "a newer agent wrote it (layout {found}, this one reads up to {newest}): run that stemma-agent again, or remove the record when this \
         one is to stay"
    )]
    Layout { found: u16, newest: u16 },
    #[error(
        "a newer agent wrote it (wire version {found}, this one reads up to {}): run that stemma-agent again, or remove the record when this \
         one is to stay, which gets the state from its controller again",
        WireVersion::CURRENT
    )]
    Wire { found: WireVersion },
    #[error("it is a record of another kind")]
    OtherKind,
}

/// A record's bytes.
pub(super) fn encode<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes = postcard::to_extend(value, bytes).expect("records are plain data, which postcard always takes");
    let (head, body) = bytes.split_at_mut(HEAD);
    head[..8].copy_from_slice(MAGIC);
    head[8..10].copy_from_slice(&kind.layout().to_be_bytes());
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
    let (found, newest) = (u16::from_be_bytes([head[8], head[9]]), kind.layout());
    if found > newest {
        return Err(Unreadable::Layout { found, newest });
    }
    if head[10..12] != (kind as u16).to_be_bytes() {
        return Err(Unreadable::OtherKind);
    }
    if head[12..] != checksum(kind, body) {
        return Err(Unreadable::Torn);
    }
    match postcard::take_from_bytes(&in_present_layout(kind, found, body)?) {
        Ok((value, [])) => Ok(value),
        _ => Err(Unreadable::Torn),
    }
}

/// A record's body as this program writes it, from one of this layout or an earlier one.
fn in_present_layout(kind: Kind, layout: u16, body: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    if kind != Kind::Accepted {
        return Ok(Cow::Borrowed(body));
    }
    if layout < 2 {
        let first = postcard::to_stdvec(&WireVersion::FIRST).expect("a number");
        return Ok(Cow::Owned([&first, body].concat()));
    }
    match postcard::take_from_bytes::<WireVersion>(body) {
        Ok((found, _)) if !found.is_known() => Err(Unreadable::Wire { found }),
        Ok(_) => Ok(Cow::Borrowed(body)),
        Err(_) => Err(Unreadable::Torn),
    }
}

fn checksum(kind: Kind, body: &[u8]) -> [u8; 32] {
    sha256(&[&(kind as u16).to_be_bytes(), body].concat())
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::{Epoch, Revision};

    use super::*;
    use crate::apply::ledger::Accepted;

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
            (future, Unreadable::Layout { found: 2, newest: 1 }),
            (encode(Kind::Local, &7_u64), Unreadable::OtherKind),
            ([&whole[..], b"x"].concat(), Unreadable::Torn),
        ] {
            assert_eq!(decode::<u64>(Kind::Sequence, &bytes), Err(said));
        }
    }

    /// An accepted state without what came after it was first written, as 118d023 has it.
    #[derive(Serialize)]
    struct Accepted118d023 {
        epoch: [u8; 16],
        revision: u64,
        known: Vec<u8>,
        task_set: Vec<u8>,
    }

    /// A record of the accepted state, written by hand.
    fn accepted(layout: u16, body: &[u8]) -> Vec<u8> {
        let head = [&MAGIC[..], &layout.to_be_bytes(), &1_u16.to_be_bytes(), &checksum(Kind::Accepted, body)].concat();
        [&head[..], body].concat()
    }

    #[test]
    fn an_accepted_state_says_in_which_wire_version_its_parts_are_and_one_of_118d023_is_of_the_first() {
        let (epoch, revision, known, task_set) = ([1; 16], 7, vec![2, 3], vec![4]);
        let state = |version| Accepted {
            version,
            epoch: Epoch(epoch),
            revision: Revision(revision),
            known: known.clone(),
            task_set: task_set.clone(),
        };
        let earlier = Accepted118d023 { epoch, revision, known: known.clone(), task_set: task_set.clone() };
        let body = postcard::to_stdvec(&earlier).unwrap();
        let read = |bytes: &[u8]| decode::<Accepted>(Kind::Accepted, bytes);
        assert_eq!(read(&accepted(1, &body)), Ok(state(WireVersion::FIRST)), "without a version");
        assert_eq!(encode(Kind::Accepted, &state(WireVersion::FIRST)), accepted(2, &[&[1], &body[..]].concat()));
        for version in WireVersion::all() {
            assert_eq!(read(&encode(Kind::Accepted, &state(version))), Ok(state(version)), "{version}");
        }
        // Whatever a later agent has behind the version, the version is what is wrong with it.
        let later = read(&accepted(2, &[9, 0xff, 0xff])).unwrap_err();
        assert_eq!(later, Unreadable::Wire { found: postcard::from_bytes(&[9]).unwrap() });
        let sentence = "a newer agent wrote it (wire version 9, this one reads up to 1): run that stemma-agent again, or remove the record when \
             this one is to stay, which gets the state from its controller again";
        assert_eq!(later.to_string(), sentence);
        assert_eq!(read(&accepted(3, &body)), Err(Unreadable::Layout { found: 3, newest: 2 }));
        assert_eq!(read(&accepted(2, &[])), Err(Unreadable::Torn));
    }
}

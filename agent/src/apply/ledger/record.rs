//! The bytes of a ledger record: a header with kind, layout and checksum, then postcard.
//!
//! A record is read only if it is intact. The other cases (cut by a power loss, empty, written by a newer agent, of
//! another kind) are distinct errors, so that the record can be set aside with its reason (F13).
//!
//! Two numbers describe the content of a record. The layout, defined in this module, is in the header of each record.
//! The wire version is that of bytes which the controller encoded and which are stored unchanged. Only the accepted
//! state contains such bytes, and begins with their wire version. Its layout 1, written by agents up to commit 118d023,
//! has no wire version, because only the first version existed then.
//!
//! Other records also contain types of the wire, but encoded by this program. So when the encoding of such a type
//! changes, the record gets a new layout. A test contains the bytes of each record, so that no encoding changes
//! unnoticed.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::digest::sha256;
use stemma_wire::message::WireVersion;

/// First bytes of every record.
const MAGIC: &[u8; 8] = b"stemmaL\n";

/// Size of the header, in bytes: magic, layout, kind, checksum.
const HEADER_BYTES: usize = 8 + 2 + 2 + 32;

/// The kind of content of a ledger record. The header of each record contains the number of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum RecordKind {
    Accepted = 1,
    Progress = 2,
    Step = 3,
    Results = 4,
    Sequence = 5,
    HostMap = 6,
    HookSnapshot = 7,
    LocalState = 8,
    OpenBarriers = 9,
    Undo = 10,
    Report = 11,
    SealKey = 12,
    Refreshes = 13,
    Reasons = 14,
    ReconcileRequested = 15,
    ReconcileDone = 16,
    SecretPath = 17,
    StagingDirs = 18,
    DroppedResults = 19,
    WrittenFiles = 20,
    StartedUnits = 21,
    AcceptedNode = 22,
    LeftObjects = 23,
    CleanUps = 24,
    RebootRequests = 40,
    PackageReboot = 41,
    UsedReboot = 42,
    Tree = 43,
    Sync = 44,
    LeftTrees = 45,
}

impl RecordKind {
    /// Returns the layout (the version of the encoding) in which this program writes records of this kind. This is also
    /// the newest layout that it reads.
    const fn layout(self) -> u16 {
        match self {
            Self::Accepted => 2,
            Self::Progress
            | Self::Step
            | Self::Results
            | Self::Sequence
            | Self::HostMap
            | Self::HookSnapshot
            | Self::LocalState
            | Self::OpenBarriers
            | Self::Undo
            | Self::Report
            | Self::SealKey
            | Self::Refreshes
            | Self::Reasons
            | Self::ReconcileRequested
            | Self::ReconcileDone
            | Self::SecretPath
            | Self::StagingDirs
            | Self::DroppedResults
            | Self::WrittenFiles
            | Self::StartedUnits
            | Self::AcceptedNode
            | Self::LeftObjects
            | Self::CleanUps
            | Self::RebootRequests
            | Self::PackageReboot
            | Self::UsedReboot
            | Self::Tree
            | Self::Sync
            | Self::LeftTrees => 1,
        }
    }
}

/// The reason why the bytes of a record cannot be decoded. An error of reading its file is not included.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    #[error("it is empty")]
    Empty,
    #[error("it is incomplete, or was changed after it was written")]
    Torn,
    #[error(
        "a newer agent wrote it (layout {found}, this one reads up to {newest}): run that stemma-agent again, or remove the record if this \
         one should continue to run"
    )]
    Layout { found: u16, newest: u16 },
    #[error(
        "a newer agent wrote it (wire version {found}, this one reads up to {}): run that stemma-agent again, or remove the record if this \
         one should continue to run, which gets the state from its controller again",
        WireVersion::CURRENT
    )]
    Wire { found: WireVersion },
    #[error("it is a record of another kind")]
    OtherKind,
}

/// Returns the bytes of a record: the header (magic, layout, kind, checksum), then the value as postcard bytes.
pub(super) fn encode<T: Serialize>(kind: RecordKind, value: &T) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes = postcard::to_extend(value, bytes).expect("records are plain data, which postcard can always encode");
    let (head, body) = bytes.split_at_mut(HEADER_BYTES);
    head[..8].copy_from_slice(MAGIC);
    head[8..10].copy_from_slice(&kind.layout().to_be_bytes());
    head[10..12].copy_from_slice(&(kind as u16).to_be_bytes());
    head[12..].copy_from_slice(&checksum(kind, body));
    bytes
}

/// Returns the value in a record of this kind. Fails if the record is damaged or of another kind, or if its layout or
/// wire version is newer than this program.
pub(super) fn decode<T: DeserializeOwned>(kind: RecordKind, bytes: &[u8]) -> Result<T, RecordError> {
    if bytes.is_empty() {
        return Err(RecordError::Empty);
    }
    let (head, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(RecordError::Torn)?;
    if head[..8] != *MAGIC {
        return Err(RecordError::Torn);
    }
    let (found, newest) = (u16::from_be_bytes([head[8], head[9]]), kind.layout());
    if found > newest {
        return Err(RecordError::Layout { found, newest });
    }
    if head[10..12] != (kind as u16).to_be_bytes() {
        return Err(RecordError::OtherKind);
    }
    if head[12..] != checksum(kind, body) {
        return Err(RecordError::Torn);
    }
    match postcard::take_from_bytes(&upgrade_layout(kind, found, body)?) {
        Ok((value, [])) => Ok(value),
        _ => Err(RecordError::Torn),
    }
}

/// Converts the body of a record to the current layout of its kind. `layout` is the layout in which the body was
/// written.
///
/// Only the accepted state has more than one layout. Layout 2 begins with a wire version. Layout 1 has none, so this
/// inserts the first wire version. Fails if this agent cannot read the wire version of the body.
fn upgrade_layout(kind: RecordKind, layout: u16, body: &[u8]) -> Result<Cow<'_, [u8]>, RecordError> {
    if kind != RecordKind::Accepted {
        return Ok(Cow::Borrowed(body));
    }
    if layout < 2 {
        let version_bytes = postcard::to_stdvec(&WireVersion::FIRST).expect("postcard can encode a number");
        return Ok(Cow::Owned([&version_bytes, body].concat()));
    }
    match postcard::take_from_bytes::<WireVersion>(body) {
        Ok((found, _)) if !found.is_supported() => Err(RecordError::Wire { found }),
        Ok(_) => Ok(Cow::Borrowed(body)),
        Err(_) => Err(RecordError::Torn),
    }
}

/// Returns the checksum of a record. It includes the kind, so that a damaged kind in the header is noticed too.
fn checksum(kind: RecordKind, body: &[u8]) -> [u8; 32] {
    sha256(&[&(kind as u16).to_be_bytes(), body].concat())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Debug;

    use stemma_wire::message::desired::{Barrier, InputValue};
    use stemma_wire::message::observed::{self, LocalState, Outcome, Report, TaskResult};
    use stemma_wire::message::{Epoch, PartDigest, Revision};

    use super::*;
    use crate::apply::ledger::{
        AcceptedState, CleanUp, CleanUpStep, CopiedFile, HookSnapshot, HostMapRecord, LeftObject, LeftTrees, ObjectKind,
        OpenBarriers, PackageReboot, Reason, RebootRequest, Step, StepState, SyncRecord, TaskProgress, TaskRecord, UndoNote,
        UsedReboot,
    };

    #[test]
    fn f13_decode_rejects_record_when_truncated_or_of_other_kind() {
        let intact_record = encode(RecordKind::Sequence, &7_u64);
        assert_eq!(decode::<u64>(RecordKind::Sequence, &intact_record), Ok(7));
        let mut damaged_record = intact_record.clone();
        *damaged_record.last_mut().unwrap() ^= 1;
        let mut newer_record = intact_record.clone();
        // The bytes 8 and 9 of the header are the layout.
        newer_record[9] = 2;
        for (bytes, expected) in [
            (vec![], RecordError::Empty),
            (intact_record[..1].to_vec(), RecordError::Torn),
            (intact_record[..intact_record.len() - 1].to_vec(), RecordError::Torn),
            (vec![0; 100], RecordError::Torn),
            (damaged_record, RecordError::Torn),
            (newer_record, RecordError::Layout { found: 2, newest: 1 }),
            (encode(RecordKind::LocalState, &7_u64), RecordError::OtherKind),
            ([&intact_record[..], b"x"].concat(), RecordError::Torn),
        ] {
            assert_eq!(decode::<u64>(RecordKind::Sequence, &bytes), Err(expected));
        }
    }

    /// The accepted state as agents of commit 118d023 wrote it: without the wire version, which was added later.
    #[derive(Serialize)]
    struct Accepted118d023 {
        epoch: [u8; 16],
        revision: u64,
        known: Vec<u8>,
        task_set: Vec<u8>,
    }

    /// Returns the bytes of a record with this kind number, layout and body, built without [`encode`]. The checksum is
    /// that of `kind`.
    fn record(kind: RecordKind, [number, layout]: [u16; 2], body: &[u8]) -> Vec<u8> {
        [&MAGIC[..], &layout.to_be_bytes(), &number.to_be_bytes(), &checksum(kind, body), body].concat()
    }

    /// Returns the bytes of a record of the accepted state with this layout and body, built without [`encode`].
    fn accepted(layout: u16, body: &[u8]) -> Vec<u8> {
        record(RecordKind::Accepted, [1, layout], body)
    }

    #[test]
    fn decode_reads_118d023_accepted_state_as_first_wire_version() {
        let (epoch, revision, known, task_set) = ([1; 16], 7, vec![2, 3], vec![4]);
        let state = |version| AcceptedState {
            version,
            epoch: Epoch(epoch),
            revision: Revision(revision),
            known: known.clone(),
            task_set: task_set.clone(),
        };
        let old_state = Accepted118d023 { epoch, revision, known: known.clone(), task_set: task_set.clone() };
        let body = postcard::to_stdvec(&old_state).unwrap();
        let read = |bytes: &[u8]| decode::<AcceptedState>(RecordKind::Accepted, bytes);
        assert_eq!(read(&accepted(1, &body)), Ok(state(WireVersion::FIRST)), "without a version");
        // The byte 1 is the first wire version, in front of the old body.
        assert_eq!(encode(RecordKind::Accepted, &state(WireVersion::FIRST)), accepted(2, &[&[1], &body[..]].concat()));
        for version in WireVersion::all() {
            assert_eq!(read(&encode(RecordKind::Accepted, &state(version))), Ok(state(version)), "{version}");
        }
        // The agent reports the unknown wire version, even if the bytes after the version are malformed too.
        let error = read(&accepted(2, &[9, 0xff, 0xff])).unwrap_err();
        assert_eq!(error, RecordError::Wire { found: postcard::from_bytes(&[9]).unwrap() });
        let message = "a newer agent wrote it (wire version 9, this one reads up to 1): run that stemma-agent again, or remove the record if \
             this one should continue to run, which gets the state from its controller again";
        assert_eq!(error.to_string(), message);
        assert_eq!(read(&accepted(3, &body)), Err(RecordError::Layout { found: 3, newest: 2 }));
        assert_eq!(read(&accepted(2, &[])), Err(RecordError::Torn));
    }

    /// Asserts that [`encode`] and [`decode`] convert between the value and a record with this kind number, layout and
    /// body. `hex` is the body in hexadecimal.
    fn assert_encoding<T: Serialize + DeserializeOwned + PartialEq + Debug>(
        kind: RecordKind,
        kind_and_layout: [u16; 2],
        value: &T,
        hex: &str,
    ) {
        let digits: String = hex.split_whitespace().collect();
        let byte = |index: usize| u8::from_str_radix(&digits[index..index + 2], 16).unwrap();
        let body: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        let record = record(kind, kind_and_layout, &body);
        assert_eq!(decode::<T>(kind, &record).as_ref(), Ok(value), "{kind:?}: hosts have these bytes on their disks");
        assert_eq!(encode(kind, value), record, "{kind:?}: the form has changed without a new layout");
    }

    /// Compares the bytes of each record that contains wire types, with each field set. (The test of the accepted state
    /// is `decode_reads_118d023_accepted_state_as_first_wire_version`.)
    ///
    /// Hosts have these bytes on disk. If a change of a type changes the bytes of a record, increase the layout of its
    /// kind in [`RecordKind::layout`], and let [`upgrade_layout`] convert the older bytes. Keep the bytes here as a
    /// record of the older layout that is still read, and add those of the new layout. Otherwise an upgraded agent sets
    /// the record aside or misreads it: results are lost, and a pause or hold that was set on the host is forgotten.
    #[test]
    fn records_of_wire_types_keep_encoding() {
        let (task_set, set_hex) = (PartDigest([5; 32]), "05".repeat(32));
        let result = TaskResult {
            sequence: 300,
            task_set,
            task: "motd".to_owned(),
            outcome: Outcome::Drifted,
            message: "why".to_owned(),
            output: "out".to_owned(),
            diff: "-a".to_owned(),
            duration_ms: 1000,
        };
        let hex = format!("01 ac02 {set_hex} 04 6d6f7464 07 03 776879 03 6f7574 02 2d61 e807");
        // The two numbers are the number of the kind and the layout.
        assert_encoding(RecordKind::Results, [4, 1], &vec![result], &hex);

        let local = LocalState { paused: true, hold: Some((1_800_000_000, "exam".to_owned())), parked: Some("moved".to_owned()) };
        let local_hex = "01 01 80a4a7da06 04 6578616d 01 05 6d6f766564";
        assert_encoding(RecordKind::LocalState, [8, 1], &local, local_hex);

        let report = Report {
            agent_version: "1.2.3".to_owned(),
            facts: [("load".to_owned(), "0.5".to_owned())].into(),
            findings: vec!["a finding".to_owned()],
            progress: observed::Progress::Waiting,
            local,
        };
        let hex = format!("05 312e322e33 01 04 6c6f6164 03 302e35 01 09 612066696e64696e67 04 {local_hex}");
        assert_encoding(RecordKind::Report, [11, 1], &report, &hex);

        let barrier = Barrier { task: "db".to_owned(), selector: "kind=node".to_owned() };
        let open_barriers = OpenBarriers { task_set, revision: Revision(300), open: [barrier].into() };
        let hex = format!("{set_hex} ac02 01 02 6462 09 6b696e643d6e6f6465");
        assert_encoding(RecordKind::OpenBarriers, [9, 1], &open_barriers, &hex);

        let task_record = TaskRecord { task_set, content: [6; 32], outcome: Outcome::Drifted, mends: vec![300, 1000] };
        let progress = TaskProgress { tasks: [("motd".to_owned(), task_record)].into() };
        let hex = format!("01 04 6d6f7464 {set_hex} {} 07 02 ac02 e807", "06".repeat(32));
        assert_encoding(RecordKind::Progress, [2, 1], &progress, &hex);

        for (step, number) in [(CleanUpStep::Assigned, 0), (CleanUpStep::Due, 1), (CleanUpStep::Done, 2)] {
            let secret = InputValue::Secret { name: "s".to_owned(), version: 300 };
            let clean_up = CleanUp {
                task: "undo".to_owned(),
                definition: "{}".to_owned(),
                references: vec!["a".to_owned()],
                inputs: [("a".to_owned(), InputValue::Json("1".to_owned().into())), ("b".to_owned(), secret)].into(),
                position: 300,
                step,
            };
            let clean_ups = BTreeMap::from([("motd".to_owned(), clean_up)]);
            let hex = format!("01 04 6d6f7464 04 756e646f 02 7b7d 01 01 61 02 01 61 00 01 31 01 62 02 01 73 ac02 ac02 0{number}");
            assert_encoding(RecordKind::CleanUps, [24, 1], &clean_ups, &hex);
        }
    }

    /// Compares the bytes of each record without wire types, with each field set.
    #[test]
    fn records_of_agent_types_keep_encoding() {
        let content_hex = "07".repeat(32);
        for (state, number) in [(StepState::Begun, 0), (StepState::Done, 1), (StepState::Failed, 2), (StepState::Unknown, 3)] {
            let step = Step { task: "motd".to_owned(), content: [7; 32], state };
            assert_encoding(RecordKind::Step, [3, 1], &step, &format!("04 6d6f7464 {content_hex} 0{number}"));
        }
        // The two numbers are the number of the kind and the layout.
        assert_encoding(RecordKind::Sequence, [5, 1], &300_u64, "ac02");
        let single_pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let map = HostMapRecord { path: "/l".to_owned(), owned: single_pair("a", "b"), writing: single_pair("c", "d") };
        assert_encoding(RecordKind::HostMap, [6, 1], &map, "02 2f6c 01 01 61 01 62 01 01 63 01 64");
        let name_set = |name: &str| BTreeSet::from([name.to_owned()]);
        let snapshot = HookSnapshot {
            labels: single_pair("a", "b"),
            annotations: single_pair("c", "d"),
            traits: name_set("T"),
            tags: name_set("t"),
        };
        assert_encoding(RecordKind::HookSnapshot, [7, 1], &snapshot, "01 01 61 01 62 01 01 63 01 64 01 01 54 01 01 74");
        let undo = UndoNote {
            task: "motd".to_owned(),
            path: "/m".to_owned(),
            bytes: Some(vec![1, 2]),
            attributes: Some((0, 300, 0o644)),
        };
        assert_encoding(RecordKind::Undo, [10, 1], &undo, "04 6d6f7464 02 2f6d 01 02 0102 01 00 ac02 a403");
        assert_encoding(RecordKind::SealKey, [12, 1], &[7_u8; 32], &content_hex);
        assert_encoding(RecordKind::Refreshes, [13, 1], &name_set("motd"), "01 04 6d6f7464");
        let reason = Reason { message: "why".to_owned(), output: "out".to_owned() };
        let reasons = BTreeMap::from([("motd".to_owned(), reason)]);
        assert_encoding(RecordKind::Reasons, [14, 1], &reasons, "01 04 6d6f7464 03 776879 03 6f7574");
        assert_encoding(RecordKind::ReconcileRequested, [15, 1], &300_u64, "ac02");
        assert_encoding(RecordKind::ReconcileDone, [16, 1], &(300_u64, 2_u64), "ac02 02");
        assert_encoding(RecordKind::SecretPath, [17, 1], &"/s".to_owned(), "02 2f73");
        let dirs = BTreeMap::from([("/d".to_owned(), BTreeSet::from([0_u32, 300]))]);
        assert_encoding(RecordKind::StagingDirs, [18, 1], &dirs, "01 02 2f64 02 00 ac02");
        assert_encoding(RecordKind::DroppedResults, [19, 1], &300_u64, "ac02");
        assert_encoding(RecordKind::WrittenFiles, [20, 1], &single_pair("/m", "motd"), "01 02 2f6d 04 6d6f7464");
        let kinds = [
            ObjectKind::File,
            ObjectKind::Directory,
            ObjectKind::Link,
            ObjectKind::Package,
            ObjectKind::Unit,
            ObjectKind::User,
            ObjectKind::Group,
        ];
        for (number, kind) in kinds.into_iter().enumerate() {
            let left = LeftObject { task: "motd".to_owned(), is_secret: true, is_created: false, digest: Some([7; 32]) };
            let objects = BTreeMap::from([((kind, "/m".to_owned()), left)]);
            let hex = format!("01 0{number} 02 2f6d 04 6d6f7464 01 00 01 {content_hex}");
            assert_encoding(RecordKind::LeftObjects, [23, 1], &objects, &hex);
        }
        assert_encoding(RecordKind::StartedUnits, [21, 1], &single_pair("motd", "u"), "01 04 6d6f7464 01 75");
        let copied = BTreeMap::from([("a/f".to_owned(), CopiedFile { source: [7; 32], copy: [8; 32] })]);
        assert_encoding(RecordKind::Tree, [43, 1], &copied, &format!("01 03 612f66 {content_hex} {}", "08".repeat(32)));
        let mut record = SyncRecord::default();
        record.insert("a/f", &CopiedFile { source: [7; 32], copy: [8; 32] });
        assert_encoding(RecordKind::Sync, [44, 1], &record, "01 6b13b0b971e27f6ae4198842a4a2ff9f 01 03 612f66 01");
        let trees = LeftTrees { counts: BTreeMap::from([("/m".to_owned(), 3)]), omitted_count: 2 };
        assert_encoding(RecordKind::LeftTrees, [45, 1], &trees, "01 02 2f6d 03 02");
        assert_encoding(RecordKind::AcceptedNode, [22, 1], &uuid::Uuid::from_bytes([7; 16]), &format!("10 {}", "07".repeat(16)));
    }

    /// Compares the bytes of the records about a reboot.
    #[test]
    fn records_of_reboot_keep_encoding() {
        let boot_hex = "08".repeat(16);
        let request = RebootRequest {
            content: [7; 32],
            boot_id: [8; 16],
            requested_at: 300,
            reason: "why".to_owned(),
            timeout_s: 60,
            is_done: true,
        };
        let hex = format!("01 04 6d6f7464 {} {boot_hex} ac02 03 776879 3c 01", "07".repeat(32));
        assert_encoding(RecordKind::RebootRequests, [40, 1], &BTreeMap::from([("motd".to_owned(), request)]), &hex);
        let answer = PackageReboot { database: [9; 32], boot_id: [8; 16], is_required: true };
        let used = UsedReboot { epoch: [6; 16], revision: 300 };
        assert_encoding(RecordKind::UsedReboot, [42, 1], &used, &format!("{} ac02", "06".repeat(16)));
        assert_encoding(RecordKind::PackageReboot, [41, 1], &answer, &format!("{} {boot_hex} 01", "09".repeat(32)));
    }
}

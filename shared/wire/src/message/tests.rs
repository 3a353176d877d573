//! Golden files of each message, and decoders on malformed input.
//!
//! The files under `golden/v1` contain the bytes that version 1 wrote, in hexadecimal. They are never regenerated. A
//! change of the encoding is a new version with its own files, and the old files must still decode. For a new message,
//! run `STEMMA_WRITE_GOLDEN=1 cargo test -p stemma-wire golden`, which writes only missing files.

use std::fmt::Debug;
use std::path::PathBuf;

use stemma_core::task::Mode;
use uuid::Uuid;

use super::channel::{ApplyMessage, SyncMessage};
use super::checkin::{CheckIn, CheckInResponse, CheckInUpdate, HeldDesired, ReturnedItem};
use super::desired::{Barrier, InputValue, Known, KnownLabel, Profile, ProfileTask, TaskSet};
use super::enroll::{EnrollRequest, EnrollResponse, NotAToken, RenewRequest, RenewResponse, check_token};
use super::observed::{LocalState, Observation, Outcome, Progress, Report, ReportedLabel, TaskResult};
use super::signed::{EpochChange, Grant, LeaseKind, Proof, Signature, SignedDesired, SignedGrant};
use super::*;

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/v1")).join(format!("{name}.hex"))
}

/// Returns bytes in hexadecimal, 32 bytes on a line.
fn to_hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(32).map(|chunk| chunk.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat() + "\n");
    lines.collect()
}

/// Returns the bytes of a hexadecimal text. Line breaks are ignored.
fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

/// A check that runs on every message.
trait MessageCheck {
    fn check<M: Message + PartialEq + Debug>(&self, case: &str, message: &M);
}

/// Checks that the golden file decodes to the message, and that the message encodes to that file.
struct GoldenFileCheck;

impl MessageCheck for GoldenFileCheck {
    /// Fails if the golden file does not decode to the message, or if the encoded message differs from the file. With
    /// `STEMMA_WRITE_GOLDEN` set, a missing file is written first.
    fn check<M: Message + PartialEq + Debug>(&self, case: &str, message: &M) {
        let name = if case.is_empty() { M::NAME.to_owned() } else { format!("{}-{case}", M::NAME) };
        let path = golden_path(&name);
        if std::env::var_os("STEMMA_WRITE_GOLDEN").is_some() && !path.exists() {
            std::fs::write(&path, to_hex(&encode(message))).expect("the golden directory");
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(decode::<M>(&from_hex(&text)).as_ref(), Ok(message), "{name}: an old file decodes");
        assert_eq!(to_hex(&encode(message)), text, "{name}: the encoding has changed without a new version");
    }
}

/// Checks that a program of the next wire version decodes the current version and the next one. A program of the
/// current version must reject the next version. Neither encoding may decode as the other.
#[cfg(debug_assertions)]
struct VersionCheck;

#[cfg(debug_assertions)]
impl MessageCheck for VersionCheck {
    /// Fails unless a program of the next version decodes both encodings of the message, and a program of the current
    /// version decodes only the current encoding.
    fn check<M: Message + PartialEq + Debug>(&self, case: &str, message: &M) {
        let (old, new, name) = (WireVersion::CURRENT, WireVersion::NEXT, format!("{} {case}", M::NAME));
        for version in [old, new] {
            let bytes = encode_as(version, message);
            let (found_version, decoded) = decode_up_to::<M>(new, &bytes).expect("it is read");
            assert_eq!((found_version, &decoded), (version, message), "{name}");
        }
        let (old_bytes, new_bytes) = (encode_as(old, message), encode_as(new, message));
        assert_eq!(decode_up_to::<M>(old, &old_bytes).map(|(_, decoded)| decoded).as_ref(), Ok(message), "{name}");
        let expected_error = DecodeError::Version { name: M::NAME, found: new.0, newest: old };
        assert_eq!(
            decode_up_to::<M>(old, &new_bytes),
            Err(expected_error),
            "{name}: an old program reports which versions it reads"
        );
        assert!(decode_part::<M>(old, &new_bytes[1..]).is_err(), "{name}: the new encoding is not the old one");
        assert!(decode_part::<M>(new, &old_bytes[1..]).is_err(), "{name}: the old encoding is not the new one");
    }
}

fn signature() -> Signature {
    Signature { bytes: (0..64).collect(), signer: vec![vec![0x30, 1], vec![0x30, 2]] }
}

fn proof() -> Proof {
    Proof { index: 3, size: 1000, path: vec![[1; 32], [2; 32]], signature: signature() }
}

/// Returns a sample: the revision and the digests of the desired state that a host holds. Golden files contain these
/// values.
fn held_desired() -> HeldDesired {
    HeldDesired { epoch: Epoch([9; 16]), revision: Revision(300), known: PartDigest([4; 32]), task_set: PartDigest([5; 32]) }
}

/// Returns a sample of the known part of a desired state, with a value in each field. Golden files contain these
/// values.
fn known() -> Known {
    let label = KnownLabel { value: "gold".to_owned(), to_host: true, origin: "nodegroup prod/frontends".to_owned() };
    Known {
        name: "web-1".to_owned(),
        group: "prod/frontends".to_owned(),
        labels: [("tier".to_owned(), label)].into(),
        annotations: [("example.net/note".to_owned(), "größe".to_owned())].into(),
        traits: vec!["CUSTOM_A".to_owned(), "HW_CPU_X86_AVX2".to_owned()],
        lifecycle: [("node_drain_timeout".to_owned(), 600)].into(),
        ceiling: Mode::Noop,
        splay_s: 30,
        hold: Some((1_800_000_000, "exam".to_owned())),
        parked: false,
        paused: true,
        ready: [("nginx".to_owned(), "{\"port\":80}".to_owned())].into(),
    }
}

/// Returns a sample of a task set, with an input of each kind. Golden files contain these values.
fn task_set() -> TaskSet {
    TaskSet {
        group_revision: 2,
        digest_version: 1,
        task_digest: [7; 32],
        mode: Mode::Apply,
        profile: Some(Hash([8; 32])),
        tags: vec!["common".to_owned(), "nginx".to_owned()],
        primaries: vec!["nginx".to_owned()],
        left_out: [("ceph".to_owned(), "its condition is false".into())].into(),
        inputs: [
            ("labels.ntp".to_owned(), InputValue::Json("\"ntp.example\"".into())),
            ("params.x".to_owned(), InputValue::Absent),
            ("secret('db')".to_owned(), InputValue::Secret { name: "db".to_owned(), version: 3 }),
        ]
        .into(),
    }
}

/// Returns a sample of a signed desired state that contains only the known part. Golden files contain these values.
fn desired() -> SignedDesired {
    SignedDesired {
        epoch: Epoch([9; 16]),
        revision: Revision(301),
        known_digest: digest_part(WireVersion::CURRENT, &encode(&known())),
        task_set_digest: PartDigest([5; 32]),
        known: Some(encode(&known())),
        task_set: None,
        proof: proof(),
        epoch_change: Some(EpochChange {
            from: Epoch([1; 16]),
            to: Epoch([9; 16]),
            at: Revision(250),
            reason: "restored from Monday's backup".to_owned(),
            signature: signature(),
        }),
    }
}

fn barrier() -> Barrier {
    Barrier { task: "db".to_owned(), selector: "tag=mysql".to_owned() }
}

/// Returns samples of what a controller can grant to a host: open barriers, and a lease to mend for 600 seconds. Golden
/// files contain these values.
fn grants() -> Vec<SignedGrant> {
    let barriers = Grant::Barriers { task_set: PartDigest([5; 32]), open: vec![barrier()] };
    let lease = Grant::Lease { kind: LeaseKind::Mend, duration_s: 600 };
    let signed = |grant| SignedGrant { epoch: Epoch([9; 16]), revision: Revision(302), grant, proof: proof() };
    vec![signed(barriers), signed(lease)]
}

/// Returns a sample of the result of a task. Golden files contain these values.
fn result() -> TaskResult {
    TaskResult {
        sequence: 41,
        task_set: PartDigest([5; 32]),
        task: "site-conf".to_owned(),
        outcome: Outcome::Changed,
        message: String::new(),
        output: "ok\n".to_owned(),
        diff: "-a\n+b\n".to_owned(),
        duration_ms: 12,
    }
}

/// Returns a sample of the facts, traits and labels that a host observes. Golden files contain these values.
fn observation() -> Observation {
    let label = ReportedLabel { value: "r7".to_owned(), source: "labels.d/10-local:3".to_owned() };
    Observation {
        facts: [("cpu.count".to_owned(), "4".to_owned())].into(),
        traits: vec!["HW_CPU_X86_AVX2".to_owned()],
        labels: [("rack".to_owned(), label)].into(),
    }
}

fn local_state() -> LocalState {
    LocalState { paused: true, hold: Some((1_800_000_000, "exam".to_owned())), parked: Some("broken fan".to_owned()) }
}

/// Returns a sample of what an agent reports about itself. Golden files contain these values.
fn report() -> Report {
    Report {
        agent_version: "0.1.0".to_owned(),
        facts: [("load.one".to_owned(), "0.25".to_owned())].into(),
        findings: vec!["labels.d/20-x: a symlink".to_owned()],
        progress: Progress::Waiting,
        local: local_state(),
    }
}

/// Returns a sample of a check-in, with a value in each field. Golden files contain these values.
fn check_in() -> CheckIn {
    CheckIn {
        boot_id: [6; 16],
        held_desired: Some(held_desired()),
        results: vec![result()],
        observation_digest: PartDigest([3; 32]),
        observation: Some(observation()),
        report: Some(report()),
        requested_leases: vec![LeaseKind::Reboot],
        returned_items: vec![ReturnedItem::Lease(LeaseKind::Mend), ReturnedItem::Primary("mysql".to_owned())],
        local: local_state(),
        wait_ms: 60_000,
    }
}

/// Returns a sample of a profile with two tasks. The second task runs after the first, which has index 0. Golden files
/// contain these values.
fn profile() -> Profile {
    let task = |id: &str, after| ProfileTask {
        id: id.to_owned(),
        definition: "{\"type\":\"file\"}".to_owned(),
        references: vec!["labels.ntp".to_owned()],
        after,
        barriers: vec![barrier()],
    };
    Profile { tasks: vec![task("a", vec![]), task("b", vec![0])] }
}

/// Returns a sample of a response to a check-in, with a value in each field. Golden files contain these values.
fn check_in_response() -> CheckInResponse {
    CheckInResponse::Current(Box::new(CheckInUpdate {
        acknowledged: 41,
        observation: Some(PartDigest([3; 32])),
        desired: Some(desired()),
        grants: grants(),
        next_check_in_ms: 500,
    }))
}

fn enroll_request() -> EnrollRequest {
    EnrollRequest { token: "id.secret".to_owned(), csr: vec![0x30, 0], seal_key: [1; 32], name: "web-1".to_owned() }
}

/// Runs a check on samples of every message, each with the suffix (or an empty text) in the name of its golden file.
fn check_each_message(check: &impl MessageCheck) {
    check.check("", &enroll_request());
    let node = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0123_4567_89ab);
    let chain = vec![vec![0x30, 1], vec![0x30, 2]];
    check.check("", &EnrollResponse { node, fleet: "prod".to_owned(), chain: chain.clone(), root: vec![0x30, 3] });
    check.check("", &RenewRequest { csr: vec![0x30, 0] });
    check.check("", &RenewResponse { chain });
    check.check("", &check_in());
    check.check("superseded", &CheckInResponse::Superseded);
    check.check("current", &check_in_response());
    check.check("", &known());
    check.check("", &task_set());
    check.check("", &profile());
    check.check("", &observation());
    check.check("hello", &ApplyMessage::Hello { seal_key: [1; 32], held: Some(held_desired()) });
    check.check("accepted", &ApplyMessage::Accepted(held_desired()));
    check.check("refused", &ApplyMessage::Refused { reason: "older".to_owned() });
    check.check("want", &ApplyMessage::ContentRequest(Hash([8; 32])));
    check.check("results", &ApplyMessage::Results(vec![result()]));
    check.check("observed", &ApplyMessage::Observed(observation()));
    check.check("report", &ApplyMessage::Report(report()));
    check.check("lease-wanted", &ApplyMessage::LeaseRequest(vec![LeaseKind::Mend]));
    check.check("give-back", &ApplyMessage::Returned(vec![ReturnedItem::Primary("mysql".to_owned())]));
    check.check("local", &ApplyMessage::Local(local_state()));
    check.check("offer", &SyncMessage::Offer { desired: Some(desired()), grants: grants(), acknowledged: 41 });
    check.check("body", &SyncMessage::Body { hash: Hash([8; 32]), bytes: b"file".to_vec() });
    check.check("no-body", &SyncMessage::BodyUnavailable(Hash([8; 32])));
    check.check("local", &SyncMessage::Local(local_state()));
    check.check("observed", &SyncMessage::Observed(PartDigest([3; 32])));
}

#[test]
fn decode_reads_golden_files_of_version_1() {
    check_each_message(&GoldenFileCheck);
}

#[cfg(debug_assertions)]
#[test]
fn decode_reads_only_versions_up_to_newest() {
    check_each_message(&VersionCheck);
}

#[test]
fn s42_decode_explains_error_when_bytes_are_malformed() {
    let name = CheckIn::NAME;
    let valid = encode(&check_in());
    assert_eq!(decode::<CheckIn>(&[]), Err(DecodeError::Empty { name }));
    for found in [0, 2, 255] {
        let other_version: Vec<_> = [&[found], &valid[1..]].concat();
        assert_eq!(decode::<CheckIn>(&other_version), Err(DecodeError::Version { name, found, newest: WireVersion::CURRENT }));
    }
    assert_eq!(decode::<CheckIn>(&[&valid[..], &[0]].concat()), Err(DecodeError::Trailing { name, bytes: 1 }));
    for length in 1..valid.len() {
        assert_eq!(decode::<CheckIn>(&valid[..length]), Err(DecodeError::Malformed { name }), "cut at {length}");
    }
    let limit = CheckIn::MAX_BYTES;
    let too_large = vec![WireVersion::CURRENT.0; limit + 1];
    assert_eq!(decode::<CheckIn>(&too_large), Err(DecodeError::TooLarge { name, bytes: limit + 1, limit }));
}

/// A second version of [`RenewResponse`] that exists only in this test. Its new field is the time at which the next
/// renewal is due.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RenewResponseV2 {
    chain: Vec<Vec<u8>>,
    due_unix_seconds: Option<u64>,
}

impl Message for RenewResponseV2 {
    const NAME: &'static str = RenewResponse::NAME;
    const MAX_BYTES: usize = RenewResponse::MAX_BYTES;

    /// Reads the bytes of a version. Version 1 has no due time, so the field is then `None`.
    fn read(version: WireVersion, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        if version > WireVersion::FIRST {
            return postcard::take_from_bytes(bytes);
        }
        let (RenewResponse { chain }, remaining_bytes) = RenewResponse::read(version, bytes)?;
        Ok((Self { chain, due_unix_seconds: None }, remaining_bytes))
    }

    /// Appends the message to a buffer in the encoding of a version. Version 1 omits the due time.
    fn write(&self, version: WireVersion, buffer: Vec<u8>) -> postcard::Result<Vec<u8>> {
        if version > WireVersion::FIRST {
            return postcard::to_extend(self, buffer);
        }
        RenewResponse { chain: self.chain.clone() }.write(version, buffer)
    }
}

#[test]
fn decode_up_to_reads_every_version_up_to_newest() {
    let version_2 = WireVersion(2);
    let chain = vec![vec![0x30, 1], vec![0x30, 2]];
    let old_bytes = from_hex(&std::fs::read_to_string(golden_path(RenewResponse::NAME)).expect("the golden file"));
    let (version, decoded) = decode_up_to::<RenewResponseV2>(version_2, &old_bytes).expect("version 1 is read");
    assert_eq!((version, &decoded), (WireVersion::FIRST, &RenewResponseV2 { chain: chain.clone(), due_unix_seconds: None }));
    let response = RenewResponseV2 { due_unix_seconds: Some(7), ..decoded };
    assert_eq!(
        encode_as(version, &response),
        old_bytes,
        "the response to a request of version 1 has the same bytes as in version 1"
    );

    let new_bytes = encode_as(version_2, &response);
    // The version byte is 2. The bytes 1 and 7 at the end encode the new field, `Some(7)`.
    assert_eq!(new_bytes, [&[2], &old_bytes[1..], &[1, 7]].concat());
    assert_eq!(decode_up_to(version_2, &new_bytes), Ok((version_2, response)));
    for (newest, found) in [(WireVersion::FIRST, 2), (version_2, 3), (version_2, 0)] {
        let bytes = [&[found], &new_bytes[1..]].concat();
        let expected = Err(DecodeError::Version { name: RenewResponse::NAME, found, newest });
        assert_eq!(decode_up_to::<RenewResponseV2>(newest, &bytes), expected, "{newest:?}");
    }
}

#[test]
fn digest_part_differs_between_versions() {
    let first_digest = digest_part(WireVersion::FIRST, b"part");
    assert_eq!(first_digest.0, stemma_core::digest::sha256(b"part"), "version 1 hashes the bytes alone");
    assert_ne!(digest_part(WireVersion(2), b"part"), first_digest);
    assert_ne!(digest_part(WireVersion(2), b"part"), digest_part(WireVersion(3), b"part"));
}

/// A part is a message with a digest of its own, such as the known part of a desired state. In version 1 the digest of
/// a part is a plain hash of its bytes. So the bytes that a later version hashes must not be a valid part in version 1.
/// Otherwise a compromised network half of the agent could present one part with the signature of another part.
#[test]
fn digest_part_input_of_later_version_never_decodes_as_first() {
    let hash_input = |bytes: &[u8]| [&[0xff; 16][..], &[2], bytes].concat();
    assert_eq!(digest_part(WireVersion(2), b"part").0, stemma_core::digest::sha256(&hash_input(b"part")));
    for bytes in [encode(&known()), encode(&task_set()), encode(&observation()), vec![0; 100]] {
        // The first byte is the version, which no part has.
        let hash_input = hash_input(&bytes[1..]);
        assert!(decode_part::<Known>(WireVersion::FIRST, &hash_input).is_err());
        assert!(decode_part::<TaskSet>(WireVersion::FIRST, &hash_input).is_err());
        assert!(decode_part::<Observation>(WireVersion::FIRST, &hash_input).is_err());
    }
}

#[test]
fn y09_check_token_rejects_malformed_token() {
    let (id, secret) = ("0123456789abcdef", "0123456789abcdef".repeat(4));
    let token = format!("{id}.{secret}");
    let controller_token = format!("{id}.{}", "AZaz09-_".repeat(6).split_at(43).0);
    for (text, expected) in [
        (token.clone(), Ok(())),
        (controller_token.clone(), Ok(())),
        (token[..80].to_owned(), Err(NotAToken::SecretLength(63))),
        (token[..20].to_owned(), Err(NotAToken::SecretLength(3))),
        (format!("{token}0"), Err(NotAToken::SecretLength(65))),
        (format!("{token}X"), Err(NotAToken::SecretLength(65))),
        (format!("{token}{token}"), Err(NotAToken::SecretLength(64 + 81))),
        (format!("{id}."), Err(NotAToken::SecretLength(0))),
        (format!("{id}.zz"), Err(NotAToken::SecretLength(2))),
        (format!("{id}.{}", secret.replace('f', "g")), Err(NotAToken::SecretCharacters)),
        (format!("{id}.{}", secret.to_uppercase()), Err(NotAToken::SecretCharacters)),
        (controller_token.replace('-', "+"), Err(NotAToken::SecretCharacters)),
        (token.to_uppercase(), Err(NotAToken::IdCharacters)),
        (token.replacen('f', "g", 1), Err(NotAToken::IdCharacters)),
        (format!("token={token}"), Err(NotAToken::IdLength(22))),
        (token[1..].to_owned(), Err(NotAToken::IdLength(15))),
        (".".to_owned(), Err(NotAToken::IdLength(0))),
        (id.to_owned(), Err(NotAToken::NoDot)),
        (String::new(), Err(NotAToken::NoDot)),
    ] {
        assert_eq!(check_token(&text), expected, "{text}");
    }
}

/// Encodes a length as postcard does: seven bits in each byte, least significant bits first. The top bit marks that
/// another byte follows.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).expect("seven bits"));
    bytes
}

#[test]
fn s50_decode_rejects_collection_when_over_bound() {
    // A profile is a list of tasks. A task with empty texts and lists has five bytes: the length 0 of each.
    let profile = |declared: u64, tasks: usize| [vec![WireVersion::CURRENT.0], varint(declared), vec![0; tasks * 5]].concat();
    assert_eq!(decode::<Profile>(&profile(16384, 16384)).expect("at the bound").tasks.len(), 16384);
    let malformed = Err(DecodeError::Malformed { name: Profile::NAME });
    assert_eq!(decode::<Profile>(&profile(16385, 16385)), malformed);
    for declared in [u64::from(u32::MAX), u64::MAX] {
        assert_eq!(decode::<Profile>(&profile(declared, 10)), malformed, "a length of {declared} with bytes for ten tasks");
    }
    // A chain is limited in its length and in the size of each certificate.
    let chain = |count: usize, bytes: usize| RenewResponse { chain: vec![vec![1; bytes]; count] };
    assert!(decode::<RenewResponse>(&encode(&chain(3, 4096))).is_ok());
    assert!(decode::<RenewResponse>(&encode(&chain(4, 1))).is_err());
    assert!(decode::<RenewResponse>(&encode(&chain(1, 4097))).is_err());
    // A map with a duplicate key is refused. Here the key `b` is replaced by the key `a`, which exists already.
    let annotations = [("a", "x"), ("b", "y")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let mut bytes = encode(&Known { annotations, ..Known::default() });
    assert!(decode::<Known>(&bytes).is_ok());
    let second_key = bytes.iter().position(|byte| *byte == b'b').expect("key `b`");
    bytes[second_key] = b'a';
    assert!(decode::<Known>(&bytes).is_err());
}

#[test]
fn s50_decode_rejects_text_or_path_when_over_bound() {
    assert!(decode::<EnrollRequest>(&encode(&EnrollRequest { token: "x".repeat(1024), ..enroll_request() })).is_ok());
    assert!(decode::<EnrollRequest>(&encode(&EnrollRequest { token: "x".repeat(1025), ..enroll_request() })).is_err());
    let offer_with_path = |length: usize| {
        let mut desired = desired();
        desired.proof.path = vec![[0; 32]; length];
        SyncMessage::Offer { desired: Some(desired), grants: vec![], acknowledged: 0 }
    };
    assert!(decode::<SyncMessage>(&encode(&offer_with_path(32))).is_ok());
    assert!(decode::<SyncMessage>(&encode(&offer_with_path(33))).is_err());
    let check_in_with_output =
        |bytes| CheckIn { results: vec![TaskResult { output: "x".repeat(bytes), ..result() }], ..check_in() };
    assert!(decode::<CheckIn>(&encode(&check_in_with_output(4096))).is_ok());
    assert!(decode::<CheckIn>(&encode(&check_in_with_output(4097))).is_err());
}

#[test]
fn hash_from_source_accepts_only_canonical_form() {
    let digits = "0123456789abcdef".repeat(4);
    assert_eq!(Hash::from_source(&format!("sha256:{digits}")), Ok(digits.parse().unwrap()));
    let upper = format!("sha256:{}", digits.to_uppercase());
    for invalid in ["", "sha256:", &digits, &upper, "file.bin", &format!("SHA256:{digits}"), &format!("sha256:{digits}0")] {
        assert_eq!(Hash::from_source(invalid), Err(NotASource), "{invalid:?}");
    }
}

#[test]
fn s54_hash_parse_accepts_only_canonical_spelling() {
    let valid = "0123456789abcdef".repeat(4);
    assert_eq!(valid.parse::<Hash>().map(|hash| hash.to_string()), Ok(valid.clone()));
    let upper = valid.to_uppercase();
    let (short, long) = (&valid[1..], format!("{valid}0"));
    let dots = format!("..{}", &valid[2..]);
    for invalid in ["", "..", "../../etc/passwd", "%2e%2e%2fetc%2fpasswd", "a/b", &upper, short, &long, &dots, &"é".repeat(32)] {
        assert_eq!(invalid.parse::<Hash>(), Err(NotAHash), "{invalid:?}");
    }
}

/// A xorshift random number generator with a seed, so that a failure can be reproduced.
struct TestRng(u64);

impl TestRng {
    /// Returns the next 64 random bits (xorshift).
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns between 0 and `max_length` random bytes.
    fn bytes(&mut self, max_length: usize) -> Vec<u8> {
        let length = usize::try_from(self.next()).expect("64 bits") % (max_length + 1);
        (0..length).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Decodes random bytes, and a valid encoding with some bytes changed or cut off. Each decoding must fail, or return a
/// message that is the same after another round trip.
fn check_decode_never_panics<M: Message + PartialEq + Debug>(valid: &M) {
    let mut rng = TestRng(0x9e37_79b9_7f4a_7c15);
    let valid = encode(valid);
    for _ in 0..2000 {
        let mut noise = rng.bytes(200);
        noise.insert(0, WireVersion::CURRENT.0);
        check_round_trip::<M>(&noise);
        let mut changed = valid.clone();
        for byte in rng.bytes(4) {
            let index = usize::try_from(rng.next()).expect("64 bits") % changed.len();
            changed[index] = byte;
        }
        changed.truncate(usize::try_from(rng.next()).expect("64 bits") % (changed.len() + 1));
        check_round_trip::<M>(&changed);
    }
}

/// Checks that bytes which decode give the same message again after encoding and decoding.
fn check_round_trip<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        assert_eq!(decode::<M>(&encode(&message)), Ok(message), "{bytes:02x?}");
    }
}

#[test]
fn s50_decode_never_panics_on_random_bytes() {
    check_decode_never_panics(&enroll_request());
    check_decode_never_panics(&RenewResponse { chain: vec![vec![1; 40]] });
    check_decode_never_panics(&check_in());
    check_decode_never_panics(&check_in_response());
    check_decode_never_panics(&known());
    check_decode_never_panics(&task_set());
    check_decode_never_panics(&profile());
    check_decode_never_panics(&ApplyMessage::Results(vec![result()]));
    check_decode_never_panics(&SyncMessage::Offer { desired: Some(desired()), grants: grants(), acknowledged: 41 });
}

/// The controller stores task sets as JSON. Controllers of commit 118d023 stored the modes with capitalized names, and
/// such a task set must still decode.
#[test]
fn task_set_json_keeps_mode_names() {
    for (mode, name) in [(Mode::Observe, "Observe"), (Mode::Noop, "Noop"), (Mode::Apply, "Apply")] {
        let stored = serde_json::to_value(TaskSet { mode, ..TaskSet::default() }).expect("a record");
        assert_eq!(stored["mode"], name);
        assert_eq!(serde_json::from_value::<TaskSet>(stored).expect("the same record").mode, mode);
        let stored = serde_json::to_value(Known { ceiling: mode, ..Known::default() }).expect("a record");
        assert_eq!(stored["ceiling"], name);
    }
}

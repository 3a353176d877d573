//! Golden files of each message, and decoders under what nobody meant to send.
//!
//! The files under `golden/v1` are what version 1 wrote, in hexadecimal. They are never made anew: a change of form is a new
//! version with files of its own, and the old ones still decode. A message that is new gets its file by
//! `STEMMA_WRITE_GOLDEN=1 cargo test -p stemma-wire golden`, which writes what is missing and nothing else.

use std::fmt::Debug;
use std::path::PathBuf;

use stemma_core::task::Mode;
use uuid::Uuid;

use super::channel::{FromApply, FromSync};
use super::checkin::{CheckIn, CheckInAnswer, GiveBack, Held, News};
use super::desired::{Barrier, InputValue, Known, KnownLabel, Profile, ProfileTask, TaskSet};
use super::enroll::{EnrollAnswer, EnrollRequest, NotAToken, RenewAnswer, RenewRequest, check_token};
use super::observed::{LocalState, Observation, Outcome, Progress, Report, ReportedLabel, TaskResult};
use super::signed::{EpochChange, Grant, LeaseKind, Proof, Signature, SignedDesired, SignedGrant};
use super::*;

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/v1")).join(format!("{name}.hex"))
}

fn to_hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat() + "\n");
    lines.collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

/// What a test looks at in every message.
trait Look {
    fn at<M: Message + PartialEq + Debug>(&self, case: &str, message: &M);
}

/// The file of its name decodes to a message, and the message encodes to that file.
struct Golden;

impl Look for Golden {
    fn at<M: Message + PartialEq + Debug>(&self, case: &str, message: &M) {
        let name = if case.is_empty() { M::NAME.to_owned() } else { format!("{}-{case}", M::NAME) };
        let path = golden_path(&name);
        if std::env::var_os("STEMMA_WRITE_GOLDEN").is_some() && !path.exists() {
            std::fs::write(&path, to_hex(&encode(message))).expect("the golden directory");
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(decode::<M>(&from_hex(&text)).as_ref(), Ok(message), "{name}: an old file decodes");
        assert_eq!(to_hex(&encode(message)), text, "{name}: the form has changed without a new version");
    }
}

/// A later program reads what an earlier one writes, and is read by it when it writes its version. Neither takes one form for the other.
#[cfg(debug_assertions)]
struct Versions;

#[cfg(debug_assertions)]
impl Look for Versions {
    fn at<M: Message + PartialEq + Debug>(&self, case: &str, message: &M) {
        let (old, new, name) = (WireVersion::CURRENT, WireVersion::THROW_AWAY, format!("{} {case}", M::NAME));
        for version in [old, new] {
            let bytes = encode_as(version, message);
            let (found, read) = decode_up_to::<M>(new, &bytes).expect("it is read");
            assert_eq!((found, &read), (version, message), "{name}");
        }
        let (from_old, from_new) = (encode_as(old, message), encode_as(new, message));
        assert_eq!(decode_up_to::<M>(old, &from_old).map(|(_, read)| read).as_ref(), Ok(message), "{name}");
        let refused = DecodeError::Version { name: M::NAME, found: new.0, newest: old };
        assert_eq!(
            decode_up_to::<M>(old, &from_new),
            Err(refused),
            "{name}: an old program says which versions it reads"
        );
        assert!(decode_part::<M>(old, &from_new[1..]).is_err(), "{name}: the new form is not the old one");
        assert!(decode_part::<M>(new, &from_old[1..]).is_err(), "{name}: the old form is not the new one");
    }
}

fn signature() -> Signature {
    Signature { bytes: (0..64).collect(), signer: vec![vec![0x30, 1], vec![0x30, 2]] }
}

fn proof() -> Proof {
    Proof { index: 3, size: 1000, path: vec![[1; 32], [2; 32]], signature: signature() }
}

fn held() -> Held {
    Held { epoch: Epoch([9; 16]), revision: Revision(300), known: PartDigest([4; 32]), task_set: PartDigest([5; 32]) }
}

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

fn grants() -> Vec<SignedGrant> {
    let barriers = Grant::Barriers { task_set: PartDigest([5; 32]), open: vec![barrier()] };
    let lease = Grant::Lease { kind: LeaseKind::Mend, duration_s: 600 };
    let signed = |grant| SignedGrant { epoch: Epoch([9; 16]), revision: Revision(302), grant, proof: proof() };
    vec![signed(barriers), signed(lease)]
}

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

fn observation() -> Observation {
    let label = ReportedLabel { value: "r7".to_owned(), source: "labels.d/10-local:3".to_owned() };
    Observation {
        facts: [("cpu.count".to_owned(), "4".to_owned())].into(),
        traits: vec!["HW_CPU_X86_AVX2".to_owned()],
        labels: [("rack".to_owned(), label)].into(),
    }
}

fn local() -> LocalState {
    LocalState { paused: true, hold: Some((1_800_000_000, "exam".to_owned())), parked: Some("broken fan".to_owned()) }
}

fn report() -> Report {
    Report {
        agent_version: "0.1.0".to_owned(),
        facts: [("load.one".to_owned(), "0.25".to_owned())].into(),
        findings: vec!["labels.d/20-x: a symlink".to_owned()],
        progress: Progress::Waiting,
        local: local(),
    }
}

fn check_in() -> CheckIn {
    CheckIn {
        boot_id: [6; 16],
        held: Some(held()),
        results: vec![result()],
        observation_digest: PartDigest([3; 32]),
        observation: Some(observation()),
        report: Some(report()),
        wants: vec![LeaseKind::Reboot],
        gives_back: vec![GiveBack::Lease(LeaseKind::Mend), GiveBack::Primary("mysql".to_owned())],
        local: local(),
        wait_ms: 60_000,
    }
}

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

fn news() -> CheckInAnswer {
    CheckInAnswer::Current(Box::new(News {
        acknowledged: 41,
        observation: Some(PartDigest([3; 32])),
        desired: Some(desired()),
        grants: grants(),
        next_ms: 500,
    }))
}

fn enroll() -> EnrollRequest {
    EnrollRequest { token: "id.secret".to_owned(), csr: vec![0x30, 0], seal_key: [1; 32], name: "web-1".to_owned() }
}

/// Shows every message to a test.
fn each_message(look: &impl Look) {
    look.at("", &enroll());
    let node = Uuid::from_u128(0x0190_b6c8_4c1e_7d2a_9f00_0123_4567_89ab);
    let chain = vec![vec![0x30, 1], vec![0x30, 2]];
    look.at("", &EnrollAnswer { node, fleet: "prod".to_owned(), chain: chain.clone(), root: vec![0x30, 3] });
    look.at("", &RenewRequest { csr: vec![0x30, 0] });
    look.at("", &RenewAnswer { chain });
    look.at("", &check_in());
    look.at("superseded", &CheckInAnswer::Superseded);
    look.at("current", &news());
    look.at("", &known());
    look.at("", &task_set());
    look.at("", &profile());
    look.at("", &observation());
    look.at("hello", &FromApply::Hello { seal_key: [1; 32], held: Some(held()) });
    look.at("accepted", &FromApply::Accepted(held()));
    look.at("refused", &FromApply::Refused { reason: "older".to_owned() });
    look.at("want", &FromApply::Want(Hash([8; 32])));
    look.at("results", &FromApply::Results(vec![result()]));
    look.at("observed", &FromApply::Observed(observation()));
    look.at("report", &FromApply::Report(report()));
    look.at("lease-wanted", &FromApply::LeaseWanted(vec![LeaseKind::Mend]));
    look.at("give-back", &FromApply::GiveBack(vec![GiveBack::Primary("mysql".to_owned())]));
    look.at("local", &FromApply::Local(local()));
    look.at("offer", &FromSync::Offer { desired: Some(desired()), grants: grants(), acknowledged: 41 });
    look.at("body", &FromSync::Body { hash: Hash([8; 32]), bytes: b"file".to_vec() });
    look.at("no-body", &FromSync::NoBody(Hash([8; 32])));
    look.at("local", &FromSync::Local(local()));
    look.at("observed", &FromSync::Observed(PartDigest([3; 32])));
}

#[test]
fn golden_files_of_version_1_decode() {
    each_message(&Golden);
}

#[cfg(debug_assertions)]
#[test]
fn a_message_of_each_version_is_read_by_who_speaks_it_and_is_refused_by_who_does_not() {
    each_message(&Versions);
}

#[test]
fn s42_what_is_no_message_of_this_version_says_so() {
    let name = CheckIn::NAME;
    let good = encode(&check_in());
    assert_eq!(decode::<CheckIn>(&[]), Err(DecodeError::Empty { name }));
    for found in [0, 2, 255] {
        let other: Vec<_> = [&[found], &good[1..]].concat();
        assert_eq!(decode::<CheckIn>(&other), Err(DecodeError::Version { name, found, newest: WireVersion::CURRENT }));
    }
    assert_eq!(decode::<CheckIn>(&[&good[..], &[0]].concat()), Err(DecodeError::Trailing { name, bytes: 1 }));
    for cut in 1..good.len() {
        assert_eq!(decode::<CheckIn>(&good[..cut]), Err(DecodeError::Malformed { name }), "cut at {cut}");
    }
    let limit = CheckIn::MAX_BYTES;
    let large = vec![WireVersion::CURRENT.0; limit + 1];
    assert_eq!(decode::<CheckIn>(&large), Err(DecodeError::TooLarge { name, bytes: limit + 1, limit }));
}

/// A made-up second version of [`RenewAnswer`]: it says besides when the next renewal is due.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RenewAnswer2 {
    chain: Vec<Vec<u8>>,
    due_unix_seconds: Option<u64>,
}

impl Message for RenewAnswer2 {
    const NAME: &'static str = RenewAnswer::NAME;
    const MAX_BYTES: usize = RenewAnswer::MAX_BYTES;

    fn read(version: WireVersion, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        if version > WireVersion::FIRST {
            return postcard::take_from_bytes(bytes);
        }
        let (RenewAnswer { chain }, rest) = RenewAnswer::read(version, bytes)?;
        Ok((Self { chain, due_unix_seconds: None }, rest))
    }

    fn write(&self, version: WireVersion, to: Vec<u8>) -> postcard::Result<Vec<u8>> {
        if version > WireVersion::FIRST {
            return postcard::to_extend(self, to);
        }
        RenewAnswer { chain: self.chain.clone() }.write(version, to)
    }
}

#[test]
fn versions_from_1_to_the_newest_are_read_and_a_request_is_answered_in_its_own() {
    let second = WireVersion(2);
    let chain = vec![vec![0x30, 1], vec![0x30, 2]];
    let old = from_hex(&std::fs::read_to_string(golden_path(RenewAnswer::NAME)).expect("the golden file"));
    let (version, read) = decode_up_to::<RenewAnswer2>(second, &old).expect("version 1 is read");
    assert_eq!((version, &read), (WireVersion::FIRST, &RenewAnswer2 { chain: chain.clone(), due_unix_seconds: None }));
    let due = RenewAnswer2 { due_unix_seconds: Some(7), ..read };
    assert_eq!(encode_as(version, &due), old, "the answer to a request of version 1 is in version 1, to the byte");

    let new = encode_as(second, &due);
    assert_eq!(new, [&[2], &old[1..], &[1, 7]].concat());
    assert_eq!(decode_up_to(second, &new), Ok((second, due)));
    for (newest, found) in [(WireVersion::FIRST, 2), (second, 3), (second, 0)] {
        let bytes = [&[found], &new[1..]].concat();
        let refused = Err(DecodeError::Version { name: RenewAnswer::NAME, found, newest });
        assert_eq!(decode_up_to::<RenewAnswer2>(newest, &bytes), refused, "{newest:?}");
    }
}

#[test]
fn the_digest_of_a_part_belongs_to_its_version() {
    let of_first = digest_part(WireVersion::FIRST, b"part");
    assert_eq!(of_first.0, stemma_core::digest::sha256(b"part"), "version 1 hashes the bytes alone");
    assert_ne!(digest_part(WireVersion(2), b"part"), of_first);
    assert_ne!(digest_part(WireVersion(2), b"part"), digest_part(WireVersion(3), b"part"));
}

/// Of a part of version 1 the digest is a plain hash of its bytes, so nothing that a later version hashes may be such bytes: not even
/// a host whose network half was taken over may be given one part under the signature of the other.
#[test]
fn what_a_later_version_hashes_is_no_part_of_the_first() {
    let hashed = |bytes: &[u8]| [&[0xff; 16][..], &[2], bytes].concat();
    assert_eq!(digest_part(WireVersion(2), b"part").0, stemma_core::digest::sha256(&hashed(b"part")));
    for bytes in [encode(&known()), encode(&task_set()), encode(&observation()), vec![0; 100]] {
        let hashed = hashed(&bytes[1..]);
        assert!(decode_part::<Known>(WireVersion::FIRST, &hashed).is_err());
        assert!(decode_part::<TaskSet>(WireVersion::FIRST, &hashed).is_err());
        assert!(decode_part::<Observation>(WireVersion::FIRST, &hashed).is_err());
    }
}

#[test]
fn y09_what_cannot_be_a_token_is_told_from_one_that_may_be_unknown() {
    let (id, secret) = ("0123456789abcdef", "0123456789abcdef".repeat(4));
    let token = format!("{id}.{secret}");
    let of_controller = format!("{id}.{}", "AZaz09-_".repeat(6).split_at(43).0);
    for (text, expected) in [
        (token.clone(), Ok(())),
        (of_controller.clone(), Ok(())),
        (token[..80].to_owned(), Err(NotAToken::SecretLength(63))),
        (token[..20].to_owned(), Err(NotAToken::SecretLength(3))),
        (format!("{token}0"), Err(NotAToken::SecretLength(65))),
        (format!("{token}X"), Err(NotAToken::SecretLength(65))),
        (format!("{token}{token}"), Err(NotAToken::SecretLength(64 + 81))),
        (format!("{id}."), Err(NotAToken::SecretLength(0))),
        (format!("{id}.zz"), Err(NotAToken::SecretLength(2))),
        (format!("{id}.{}", secret.replace('f', "g")), Err(NotAToken::SecretCharacters)),
        (format!("{id}.{}", secret.to_uppercase()), Err(NotAToken::SecretCharacters)),
        (of_controller.replace('-', "+"), Err(NotAToken::SecretCharacters)),
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

/// A length as postcard writes it: seven bits a byte, the low ones first.
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
fn s50_a_collection_beyond_its_bound_is_refused_however_small_its_entries() {
    // A profile is one list of tasks; a task of empty texts and lists is five bytes.
    let profile = |said: u64, tasks: usize| [vec![WireVersion::CURRENT.0], varint(said), vec![0; tasks * 5]].concat();
    assert_eq!(decode::<Profile>(&profile(16384, 16384)).expect("at the bound").tasks.len(), 16384);
    let malformed = Err(DecodeError::Malformed { name: Profile::NAME });
    assert_eq!(decode::<Profile>(&profile(16385, 16385)), malformed);
    for said in [u64::from(u32::MAX), u64::MAX] {
        assert_eq!(decode::<Profile>(&profile(said, 10)), malformed, "a length of {said} on its word alone");
    }
    // A chain is bounded in number and in the size of each certificate.
    let chain = |count: usize, bytes: usize| RenewAnswer { chain: vec![vec![1; bytes]; count] };
    assert!(decode::<RenewAnswer>(&encode(&chain(3, 4096))).is_ok());
    assert!(decode::<RenewAnswer>(&encode(&chain(4, 1))).is_err());
    assert!(decode::<RenewAnswer>(&encode(&chain(1, 4097))).is_err());
    // The same key twice is no map.
    let twice = [&[WireVersion::CURRENT.0, 0, 0, 0, 0, 2][..], b"\x01a\x01x\x01a\x01y"].concat();
    assert!(decode::<Known>(&twice).is_err());
}

#[test]
fn s50_texts_and_paths_have_their_bounds() {
    assert!(decode::<EnrollRequest>(&encode(&EnrollRequest { token: "x".repeat(1024), ..enroll() })).is_ok());
    assert!(decode::<EnrollRequest>(&encode(&EnrollRequest { token: "x".repeat(1025), ..enroll() })).is_err());
    let long = |path: usize| {
        let mut desired = desired();
        desired.proof.path = vec![[0; 32]; path];
        FromSync::Offer { desired: Some(desired), grants: vec![], acknowledged: 0 }
    };
    assert!(decode::<FromSync>(&encode(&long(32))).is_ok());
    assert!(decode::<FromSync>(&encode(&long(33))).is_err());
    let output = |bytes| CheckIn { results: vec![TaskResult { output: "x".repeat(bytes), ..result() }], ..check_in() };
    assert!(decode::<CheckIn>(&encode(&output(4096))).is_ok());
    assert!(decode::<CheckIn>(&encode(&output(4097))).is_err());
}

#[test]
fn a_source_names_a_blob_in_one_form_alone() {
    let digits = "0123456789abcdef".repeat(4);
    assert_eq!(Hash::of_source(&format!("sha256:{digits}")), Ok(digits.parse().unwrap()));
    let upper = format!("sha256:{}", digits.to_uppercase());
    for bad in ["", "sha256:", &digits, &upper, "file.bin", &format!("SHA256:{digits}"), &format!("sha256:{digits}0")] {
        assert_eq!(Hash::of_source(bad), Err(NotASource), "{bad:?}");
    }
}

#[test]
fn s54_a_hash_in_a_path_is_a_hash_or_nothing() {
    let good = "0123456789abcdef".repeat(4);
    assert_eq!(good.parse::<Hash>().map(|hash| hash.to_string()), Ok(good.clone()));
    let upper = good.to_uppercase();
    let (short, long) = (&good[1..], format!("{good}0"));
    let dots = format!("..{}", &good[2..]);
    for bad in
        ["", "..", "../../etc/passwd", "%2e%2e%2fetc%2fpasswd", "a/b", &upper, short, &long, &dots, &"é".repeat(32)]
    {
        assert_eq!(bad.parse::<Hash>(), Err(NotAHash), "{bad:?}");
    }
}

/// A small generator, so that a failure can be had again by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = usize::try_from(self.next()).expect("64 bits") % (most + 1);
        (0..length).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Decodes noise, and each good encoding with bytes changed, cut and doubled: an error or a message, and what decodes encodes again.
fn endure<M: Message + PartialEq + Debug>(good: &M) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let good = encode(good);
    for _ in 0..2000 {
        let mut noise = random.bytes(200);
        noise.insert(0, WireVersion::CURRENT.0);
        check_round_trip::<M>(&noise);
        let mut near = good.clone();
        for change in random.bytes(4) {
            let at = usize::try_from(random.next()).expect("64 bits") % near.len();
            near[at] = change;
        }
        near.truncate(usize::try_from(random.next()).expect("64 bits") % (near.len() + 1));
        check_round_trip::<M>(&near);
    }
}

fn check_round_trip<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        assert_eq!(decode::<M>(&encode(&message)), Ok(message), "{bytes:02x?}");
    }
}

#[test]
fn s50_decoders_endure_noise() {
    endure(&enroll());
    endure(&RenewAnswer { chain: vec![vec![1; 40]] });
    endure(&check_in());
    endure(&news());
    endure(&known());
    endure(&task_set());
    endure(&profile());
    endure(&FromApply::Results(vec![result()]));
    endure(&FromSync::Offer { desired: Some(desired()), grants: grants(), acknowledged: 41 });
}

/// Records of the controller hold a task set as JSON, with the names of the modes capitalised since 118d023.
#[test]
fn stored_records_keep_the_names_of_the_modes() {
    for (mode, name) in [(Mode::Observe, "Observe"), (Mode::Noop, "Noop"), (Mode::Apply, "Apply")] {
        let stored = serde_json::to_value(TaskSet { mode, ..TaskSet::default() }).expect("a record");
        assert_eq!(stored["mode"], name);
        assert_eq!(serde_json::from_value::<TaskSet>(stored).expect("the same record").mode, mode);
        let stored = serde_json::to_value(Known { ceiling: mode, ..Known::default() }).expect("a record");
        assert_eq!(stored["ceiling"], name);
    }
}

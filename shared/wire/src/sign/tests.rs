//! Compares trees with an independent recursion and with known values. Checks signatures against every change of the
//! signed bytes.

use rcgen::{SigningKey as _, date_time_ymd};

use super::merkle::{MerkleTree, root_from_path};
use super::*;
use crate::message::desired::Barrier;
use crate::message::signed::{Proof, Signature};
use crate::message::{WireVersion, digest_part, encode};
use crate::testing::{DAY_SECONDS, NODE_ID, NOW_UNIX_SECONDS, TestAuthority, TestFleet, TestLeaf, fleet};
use crate::tls::Refusal;

/// Returns the root of a Merkle tree as RFC 6962, section 2.1, defines it. The leaves are already hashes.
fn reference_root(leaves: &[Leaf]) -> [u8; 32] {
    match leaves {
        [] => Sha256::digest([]).into(),
        [leaf] => leaf.0,
        _ => {
            // The largest power of two that is smaller than the number of leaves.
            let split = (leaves.len() - 1).checked_ilog2().map_or(1, |log| 1 << log);
            let (left, right) = leaves.split_at(split);
            sha256(&[&[1], &reference_root(left), &reference_root(right)])
        }
    }
}

/// Returns the audit path of a leaf as RFC 6962, section 2.1.1, defines it: the sibling hashes from the leaf up to the
/// root.
fn reference_path(index: usize, leaves: &[Leaf]) -> Vec<[u8; 32]> {
    if leaves.len() <= 1 {
        return Vec::new();
    }
    // The largest power of two that is smaller than the number of leaves.
    let split = 1 << (leaves.len() - 1).ilog2();
    let (left, right) = leaves.split_at(split);
    let (mut path, sibling) = if index < split {
        (reference_path(index, left), reference_root(right))
    } else {
        (reference_path(index - split, right), reference_root(left))
    };
    path.push(sibling);
    path
}

/// Returns the SHA-256 hash of the concatenated parts.
fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("32 bytes")
}

/// Returns leaves with different hashes.
fn leaves(count: usize) -> Vec<Leaf> {
    (0..count).map(|n| Leaf(sha256(&[&[0], &n.to_be_bytes()]))).collect()
}

#[test]
fn merkle_tree_matches_rfc_6962_definition() {
    for count in 0..70 {
        let leaves = leaves(count);
        let tree = MerkleTree::from_leaves(&leaves);
        assert_eq!(tree.root().0, reference_root(&leaves), "{count} leaves");
        for (index, leaf) in leaves.iter().enumerate() {
            let path = tree.path(index);
            assert_eq!(path, reference_path(index, &leaves), "leaf {index} of {count}");
            assert_eq!(root_from_path(*leaf, index as u64, count as u64, &path), Some(tree.root()), "leaf {index} of {count}");
        }
    }
}

#[test]
fn merkle_tree_reproduces_certificate_transparency_root() {
    // The test data of RFC 6962's reference implementation: 8 inputs, and the roots of their first 1, 3, 7 and 8.
    let inputs: [&[u8]; 8] = [
        &[],
        &[0x00],
        &[0x10],
        &[0x20, 0x21],
        &[0x30, 0x31],
        &[0x40, 0x41, 0x42, 0x43],
        &[0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57],
        &[0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f],
    ];
    let leaves: Vec<_> = inputs.iter().map(|input| Leaf(sha256(&[&[0], input]))).collect();
    for (count, root) in [
        (1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
        (3, "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
        (7, "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
        (8, "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
    ] {
        assert_eq!(hex(&MerkleTree::from_leaves(&leaves[..count]).root().0), root, "{count} leaves");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

#[test]
fn root_from_path_rejects_wrong_index_size_or_length() {
    let leaves = leaves(11);
    let tree = MerkleTree::from_leaves(&leaves);
    let root = Some(tree.root());
    for index in 0..11_u64 {
        let path = tree.path(usize::try_from(index).expect("small"));
        let leaf = leaves[usize::try_from(index).expect("small")];
        for other_index in (0..11).filter(|other_index| *other_index != index) {
            assert_ne!(root_from_path(leaf, other_index, 11, &path), root, "leaf {index} as {other_index}");
        }
        assert_eq!(root_from_path(leaf, index + 11, 11, &path), None);
        assert_ne!(root_from_path(leaf, index, 64, &path), root, "in a tree of a wrong size");
        assert_ne!(root_from_path(leaf, index, 11, &path[1..]), root, "a shortened path");
        let mut longer_path = path.clone();
        longer_path.push([0; 32]);
        assert_ne!(root_from_path(leaf, index, 11, &longer_path), root, "a lengthened path");
    }
    assert_eq!(root_from_path(leaves[0], 0, u64::MAX, &[[0; 32]; 33]), None, "a path with more than 32 hashes");
    assert_eq!(root_from_path(leaves[0], 0, 0, &[]), None, "a path of an empty tree");
}

#[test]
fn leaf_hashes_documented_bytes() {
    let node: Uuid = NODE_ID.parse().expect("a uuid");
    let (epoch, revision) = (Epoch([0xee; 16]), Revision(0x0102_0304_0506_0708));
    let (known_digest, task_set_digest) = (PartDigest([0xaa; 32]), PartDigest([0xbb; 32]));
    let common_bytes: &[u8] = &[&node.as_bytes()[..], &[0xee; 16], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
    let desired = Leaf::for_desired(node, epoch, revision, known_digest, task_set_digest);
    assert_eq!(desired.0, sha256(&[&[0], b"stemma/desired/v1\0", common_bytes, &[0xaa; 32], &[0xbb; 32]]));
    let open = vec![Barrier { task: "db".to_owned(), selector: "tag=a".to_owned() }];
    let barriers = Leaf::for_grant(node, epoch, revision, &Grant::Barriers { task_set: task_set_digest, open });
    // One barrier, then the length and the bytes of each text.
    let barrier_bytes = b"\0\0\0\x01\0\0\0\x02db\0\0\0\x05tag=a";
    assert_eq!(barriers.0, sha256(&[&[0], b"stemma/barriers/v1\0", common_bytes, &[0xbb; 32], barrier_bytes]));
    let lease = Leaf::for_grant(node, epoch, revision, &Grant::Lease { kind: LeaseKind::Reboot, duration_s: 600 });
    // The kind 2 is a reboot, and 0x258 is 600 seconds.
    assert_eq!(lease.0, sha256(&[&[0], b"stemma/lease/v1\0", common_bytes, &[2], &[0, 0, 2, 0x58]]));
}

/// A fleet with a signer, a verifier that pins the fleet's root, and the node that the signed messages are for.
struct SigningFixture {
    fleet: TestFleet,
    signer: Signer,
    verifier: Verifier,
    node: Uuid,
}

/// Returns a signer with the certificate that the issuer creates from these parameters.
fn new_signer(test_fleet: &TestFleet, issuer: &TestAuthority, parameters: &TestLeaf) -> Signer {
    let leaf = issuer.issue(parameters);
    let chain = vec![leaf.der.to_vec(), issuer.der.to_vec()];
    let signer = Signer::new(&leaf.key.serialize_der(), chain.clone());
    // A key that is not Ed25519 cannot sign. Then a new Ed25519 key signs, with this certificate chain.
    signer.unwrap_or_else(|_| {
        Signer::new(&test_fleet.signers.issue(&TestLeaf::signer()).key.serialize_der(), chain).expect("an Ed25519 key")
    })
}

/// Creates a new fleet with a signer and a verifier.
fn signing_fixture() -> SigningFixture {
    let test_fleet = TestFleet::new();
    let signer = new_signer(&test_fleet, &test_fleet.signers, &TestLeaf::signer());
    let verifier = Verifier::new(fleet(), std::slice::from_ref(&test_fleet.root.der)).expect("a root");
    SigningFixture { fleet: test_fleet, signer, verifier, node: NODE_ID.parse().expect("a uuid") }
}

impl SigningFixture {
    /// Returns a desired state of the fixture's node. The signer signs it as leaf 5 of a batch of seven leaves.
    fn desired_state_by(&self, signer: &Signer) -> SignedDesired {
        let known = encode(&crate::message::desired::Known { name: "web-1".to_owned(), ..Default::default() });
        let task_set = encode(&crate::message::desired::TaskSet::default());
        let unsigned = Signature { bytes: vec![], signer: vec![] };
        let mut state = SignedDesired {
            epoch: Epoch([3; 16]),
            revision: Revision(7),
            known_digest: digest_part(WireVersion::CURRENT, &known),
            task_set_digest: digest_part(WireVersion::CURRENT, &task_set),
            known: Some(known),
            task_set: Some(task_set),
            proof: Proof { index: 0, size: 0, path: vec![], signature: unsigned },
            epoch_change: None,
        };
        let other_leaves = leaves(9);
        let leaf = [Leaf::from_signed_desired(self.node, &state)];
        let batch: SigningBatch = other_leaves[..5].iter().chain(&leaf).chain(&other_leaves[8..]).copied().collect();
        state.proof = signer.sign(&batch).proof(5).expect("leaf 5");
        state
    }

    /// Returns a signed change of the epoch. The signed bytes are assembled here, independently of the code under test,
    /// in the documented form.
    fn epoch_change(&self) -> EpochChange {
        let leaf = self.fleet.signers.issue(&TestLeaf::signer());
        let parts: [&[u8]; 5] = [&[1; 16], &[2; 16], &[0, 0, 0, 0, 0, 0, 0, 40], &[0, 0, 0, 8], b"restored"];
        let statement = [&b"stemma/epoch-change/v1\0"[..], &parts.concat()].concat();
        let signature = Signature {
            bytes: leaf.key.sign(&statement).expect("a key that signs"),
            signer: vec![leaf.der.to_vec(), self.fleet.signers.der.to_vec()],
        };
        let (from, to, at) = (Epoch([1; 16]), Epoch([2; 16]), Revision(40));
        EpochChange { from, to, at, reason: "restored".to_owned(), signature }
    }

    /// Returns the result of the verifier for the node and the current time of the tests.
    fn check_desired(&self, state: &SignedDesired) -> Result<(), NotSigned> {
        self.verifier.check_desired(self.node, WireVersion::CURRENT, state, NOW_UNIX_SECONDS)
    }
}

#[test]
fn verifier_accepts_signed_state_with_or_without_parts() {
    let fixture = signing_fixture();
    let state = fixture.desired_state_by(&fixture.signer);
    assert_eq!(fixture.check_desired(&state), Ok(()));
    assert_eq!(fixture.check_desired(&SignedDesired { known: None, task_set: None, ..state }), Ok(()));
}

/// A change of a signed desired state that an attacker on the network could make, and the error that the verifier must
/// return.
type TamperingCase = (fn(&mut SignedDesired), NotSigned);

#[test]
fn s76_verifier_rejects_state_when_tampered() {
    let fixture = signing_fixture();
    let state = fixture.desired_state_by(&fixture.signer);
    let changes: [TamperingCase; 11] = [
        (|state| state.epoch.0[0] ^= 1, NotSigned::Signature),
        (|state| state.revision.0 += 1, NotSigned::Signature),
        (|state| state.known_digest.0[31] ^= 1, NotSigned::Signature),
        (|state| state.task_set_digest.0[0] ^= 1, NotSigned::Signature),
        (|state| state.known.as_mut().expect("a part").push(0), NotSigned::Digest),
        (|state| state.task_set = Some(vec![]), NotSigned::Digest),
        (|state| state.proof.path[0][0] ^= 1, NotSigned::Signature),
        (|state| state.proof.index = 9, NotSigned::Path),
        (|state| state.proof.size += 1, NotSigned::Signature),
        (|state| state.proof.signature.bytes[5] ^= 1, NotSigned::Signature),
        (|state| state.proof.signature.bytes.clear(), NotSigned::Signature),
    ];
    for (number, (change, refusal)) in changes.into_iter().enumerate() {
        let mut changed_state = state.clone();
        change(&mut changed_state);
        assert_eq!(fixture.check_desired(&changed_state), Err(refusal), "change {number}");
    }
    let other_node = Uuid::from_u128(fixture.node.as_u128() + 1);
    assert_eq!(
        fixture.verifier.check_desired(other_node, WireVersion::CURRENT, &state, NOW_UNIX_SECONDS),
        Err(NotSigned::Signature),
        "a state of another node"
    );
    let second_signer = new_signer(&fixture.fleet, &fixture.fleet.signers, &TestLeaf::signer());
    let mut state_with_other_signer = state.clone();
    state_with_other_signer.proof.signature.signer = fixture.desired_state_by(&second_signer).proof.signature.signer;
    assert_eq!(fixture.check_desired(&state_with_other_signer), Err(NotSigned::Signature), "under another signer's certificate");
}

#[test]
fn verifier_rejects_signer_when_certificate_is_invalid() {
    let fixture = signing_fixture();
    let other_root = TestFleet::new();
    let expired_leaf = TestLeaf::signer().with_params(|leaf| {
        leaf.not_before = date_time_ymd(2026, 5, 1);
        leaf.not_after = date_time_ymd(2026, 6, 1);
    });
    let other_fleet_leaf =
        TestLeaf::signer().with_params(|leaf| leaf.subject_alt_names = vec![crate::testing::uri_name("spiffe://test/admin/ada")]);
    let node_leaf = TestLeaf::signer().with_params(|leaf| {
        leaf.subject_alt_names = vec![crate::testing::uri_name(&format!("spiffe://prod/node/{NODE_ID}"))];
    });
    let p256_leaf = TestLeaf { algorithm: &rcgen::PKCS_ECDSA_P256_SHA256, ..TestLeaf::signer() };
    for (issuer, parameters, refusal) in [
        (&other_root.signers, TestLeaf::signer(), Refusal::UnknownIssuer),
        (&fixture.fleet.agents, TestLeaf::signer(), Refusal::WrongUse),
        (&fixture.fleet.admin, TestLeaf::signer(), Refusal::WrongUse),
        // 1,780,272,000 is the end of the certificate: 2026-06-01T00:00:00Z.
        (&fixture.fleet.signers, expired_leaf, Refusal::Expired { not_after: 1_780_272_000, now: NOW_UNIX_SECONDS }),
        (&fixture.fleet.signers, other_fleet_leaf, Refusal::OtherFleet),
        (&fixture.fleet.signers, node_leaf, Refusal::WrongClass),
        (&fixture.fleet.signers, p256_leaf, Refusal::WrongKeyKind),
    ] {
        let state = fixture.desired_state_by(&new_signer(&fixture.fleet, issuer, &parameters));
        assert_eq!(fixture.check_desired(&state), Err(NotSigned::Signer(refusal)), "{:?}", parameters.params.subject_alt_names);
    }
    let state = fixture.desired_state_by(&fixture.signer);
    let result_one_day_later =
        fixture.verifier.check_desired(fixture.node, WireVersion::CURRENT, &state, NOW_UNIX_SECONDS + DAY_SECONDS);
    assert!(matches!(result_one_day_later, Err(NotSigned::Signer(Refusal::Expired { .. }))), "{result_one_day_later:?}");
    let mut state_without_signer = state;
    state_without_signer.proof.signature.signer.clear();
    assert_eq!(fixture.check_desired(&state_without_signer), Err(NotSigned::Signer(Refusal::BadEncoding)));
}

#[test]
fn verifier_rejects_changed_grant_or_epoch_change() {
    let fixture = signing_fixture();
    let state = fixture.desired_state_by(&fixture.signer);
    let (epoch, revision) = (state.epoch, state.revision);
    let lease = Grant::Lease { kind: LeaseKind::Reboot, duration_s: 60 };
    let batch: SigningBatch = [Leaf::for_grant(fixture.node, epoch, revision, &lease)].into_iter().collect();
    let proof = fixture.signer.sign(&batch).proof(0).expect("one leaf");
    let grant = SignedGrant { epoch, revision, grant: lease, proof };
    assert_eq!(fixture.verifier.check_grant(fixture.node, &grant, NOW_UNIX_SECONDS), Ok(()));
    let longer_lease = Grant::Lease { kind: LeaseKind::Reboot, duration_s: 61 };
    let changed_grant = SignedGrant { grant: longer_lease, ..grant.clone() };
    assert_eq!(fixture.verifier.check_grant(fixture.node, &changed_grant, NOW_UNIX_SECONDS), Err(NotSigned::Signature));
    let grant_with_state_proof = SignedGrant { proof: state.proof, ..grant };
    assert_eq!(fixture.verifier.check_grant(fixture.node, &grant_with_state_proof, NOW_UNIX_SECONDS), Err(NotSigned::Signature));

    let epoch_change = fixture.epoch_change();
    assert_eq!(fixture.verifier.check_epoch_change(&epoch_change, NOW_UNIX_SECONDS), Ok(()));
    let change_to_other_epoch = EpochChange { to: Epoch([4; 16]), ..epoch_change.clone() };
    assert_eq!(fixture.verifier.check_epoch_change(&change_to_other_epoch, NOW_UNIX_SECONDS), Err(NotSigned::Signature));
    let change_with_other_reason = EpochChange { reason: "restore".to_owned(), ..epoch_change };
    assert_eq!(fixture.verifier.check_epoch_change(&change_with_other_reason, NOW_UNIX_SECONDS), Err(NotSigned::Signature));
}

//! Refused offers, by their numbers in docs/trust.md.

use stemma_wire::message::signed::Grant;
use stemma_wire::message::{Epoch, Revision, encode_part};

use super::*;
use crate::apply::ledger::Desired;
use crate::apply::testing::{EPOCH, NODE, TestController, TestTaskSet, accepted_state};

/// 2027-01-15.
const NOW: u64 = 1_800_000_000;
const NEXT: Epoch = Epoch([2; 16]);

fn test_desired() -> Desired {
    TestTaskSet::default().label("tier", "gold").desired()
}

fn check(controller: &TestController, offer: &SignedDesired, held: Option<u64>) -> Result<Accepted, Refused> {
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let held = held.map(|revision| accepted_state(revision, &test_desired()));
    verify_desired(&trust, (WireVersion::FIRST, offer), held.as_ref(), NOW)
}

#[test]
fn verify_desired_accepts_state_when_signed_for_node() {
    let controller = TestController::new();
    let whole = controller.desired(7, &test_desired());
    assert_eq!(check(&controller, &whole, None), Ok(accepted_state(7, &test_desired())));
    assert_eq!(check(&controller, &whole, Some(7)), Ok(accepted_state(7, &test_desired())), "the same again");
    let held = SignedDesired { known: None, task_set: None, ..whole };
    assert_eq!(check(&controller, &held, Some(6)), Ok(accepted_state(7, &test_desired())), "parts that are held are left out");
}

#[test]
fn s31_verify_desired_rejects_state_of_another_node() {
    let controller = TestController::new();
    let others = controller.desired_for(Uuid::from_u128(1), EPOCH, 7, &test_desired());
    assert_eq!(check(&controller, &others, None), Err(Refused::NotSigned(NotSigned::Signature)));
}

#[test]
fn s68_verify_desired_rejects_content_when_changed_in_transit() {
    let controller = TestController::new();
    let offer = controller.desired(7, &test_desired());
    let mut changed = offer.clone();
    changed.known.as_mut().unwrap()[1] ^= 1;
    assert_eq!(check(&controller, &changed, None), Err(Refused::NotSigned(NotSigned::Digest)));
    let other = controller.desired(7, &TestTaskSet::default().desired());
    let swapped = SignedDesired { known: other.known, known_digest: other.known_digest, ..offer.clone() };
    assert_eq!(check(&controller, &swapped, None), Err(Refused::NotSigned(NotSigned::Signature)));
    let later = SignedDesired { revision: Revision(8), ..offer };
    assert_eq!(check(&controller, &later, None), Err(Refused::NotSigned(NotSigned::Signature)));
}

#[test]
fn s76_verify_desired_rejects_signer_of_another_fleet() {
    let (ours, theirs) = (TestController::new(), TestController::new());
    let refused = check(&ours, &theirs.desired(7, &test_desired()), None).unwrap_err();
    assert!(matches!(refused, Refused::NotSigned(NotSigned::Signer(_))), "{refused:?}");
}

#[test]
fn s69_verify_desired_rejects_older_revision() {
    let controller = TestController::new();
    let refused = check(&controller, &controller.desired(6, &test_desired()), Some(7)).unwrap_err();
    assert_eq!(refused, Refused::Older { offered: 6, held: 7 });
    assert_eq!(refused.to_string(), "The controller offers revision 6, this host has 7. Was the controller restored?");
}

#[test]
fn verify_desired_accepts_other_epoch_only_with_signed_change() {
    let controller = TestController::new();
    let offer = |change: Option<(Epoch, Epoch, u64)>| SignedDesired {
        epoch_change: change.map(|(from, to, at)| controller.epoch_change(from, to, at)),
        ..controller.desired_for(NODE, NEXT, 3, &test_desired())
    };
    for (name, change, result) in [
        ("none", None, Err(Refused::OtherEpoch { offered: 3, held: 7 })),
        ("from another one", Some((Epoch([5; 16]), NEXT, 1)), Err(Refused::OtherEpoch { offered: 3, held: 7 })),
        ("to another one", Some((EPOCH, Epoch([5; 16]), 1)), Err(Refused::OtherEpoch { offered: 3, held: 7 })),
        ("from later on", Some((EPOCH, NEXT, 4)), Err(Refused::BeforeEpoch { offered: 3, begins: 4 })),
        ("this one", Some((EPOCH, NEXT, 3)), Ok(NEXT)),
    ] {
        let accepted = check(&controller, &offer(change), Some(7)).map(|accepted| accepted.epoch);
        assert_eq!(accepted, result, "{name}");
    }
    let mut unsigned = offer(Some((EPOCH, NEXT, 3)));
    unsigned.epoch_change.as_mut().unwrap().reason.push('!');
    assert_eq!(check(&controller, &unsigned, Some(7)), Err(Refused::NotSigned(NotSigned::Signature)));
}

#[test]
fn verify_desired_limits_size_of_both_parts_together() {
    let controller = TestController::new();
    let offer = |known: usize, task_set: usize| {
        let (known, task_set) = (Some(vec![0; known]), Some(vec![0; task_set]));
        SignedDesired { known, task_set, ..controller.desired(7, &test_desired()) }
    };
    let refused = |offer: &SignedDesired| check(&controller, offer, None).unwrap_err();
    assert_eq!(refused(&offer(MAX_DESIRED_BYTES, 1)), Refused::TooLarge(MAX_DESIRED_BYTES + 1));
    assert_eq!(refused(&offer(3, MAX_DESIRED_BYTES)), Refused::TooLarge(MAX_DESIRED_BYTES + 3));
    assert_eq!(refused(&offer(MAX_DESIRED_BYTES - 2, 2)), Refused::NotSigned(NotSigned::Digest), "what fits is looked at");
}

#[test]
fn verify_desired_requires_part_when_not_held() {
    let controller = TestController::new();
    let offer =
        SignedDesired { task_set: None, ..controller.desired(7, &TestTaskSet::default().file("f", &[], "/f", "").desired()) };
    assert_eq!(check(&controller, &offer, None), Err(Refused::MissingPart("task set")));
    assert_eq!(check(&controller, &offer, Some(6)), Err(Refused::MissingPart("task set")));
}

#[test]
fn w15_12_verify_grant_rejects_grant_of_another_epoch() {
    let controller = TestController::new();
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let grant = controller.grant(7, Grant::Barriers { task_set: PartDigest([3; 32]), open: vec![] });
    let held = accepted_state(7, &test_desired());
    assert_eq!(verify_grant(&trust, &grant, &held, NOW), Ok(()));
    let elsewhere = Accepted { epoch: NEXT, ..held };
    let refused = verify_grant(&trust, &grant, &elsewhere, NOW);
    assert_eq!(refused, Err(Refused::OtherEpoch { offered: 7, held: 7 }));
}

/// A grant of a restored controller used to be refused as "for another task set or epoch".
#[test]
fn y09_refusal_suggests_restore_when_revision_went_back() {
    let (offered, held) = (1391, 1658);
    for (refused, says) in [
        (
            Refused::Older { offered, held },
            "The controller offers revision 1391, this host has 1658. Was the controller restored?",
        ),
        (
            Refused::OtherEpoch { offered, held },
            "The controller offers revision 1391, this host has 1658. Was the controller restored?",
        ),
        (Refused::OtherEpoch { offered: held, held: offered }, "revision 1658 of another epoch than this host's revision 1391"),
        (Refused::OtherTaskSet { offered: held, held: offered }, "of another task set than this host has with revision 1391"),
    ] {
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// Returns an offer of the controller in a wire version.
#[cfg(debug_assertions)]
fn offer_in_version(controller: &TestController, version: WireVersion, revision: u64, state: &Desired) -> SignedDesired {
    let (known, task_set) = (encode_part(version, &state.known), encode_part(version, &state.task_set));
    controller.signed(version, revision, known, task_set)
}

#[cfg(debug_assertions)]
#[test]
fn verify_desired_accepts_state_only_in_signed_version() {
    let controller = TestController::new();
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
    let check = |version, offer: &SignedDesired, held: Option<&Accepted>| verify_desired(&trust, (version, offer), held, NOW);
    for (version, other) in [(old, new), (new, old)] {
        let offer = offer_in_version(&controller, version, 7, &test_desired());
        let accepted = check(version, &offer, None).unwrap();
        assert_eq!((accepted.version, accepted.desired().known), (version, test_desired().known));
        assert_eq!((accepted.held().known, accepted.held().task_set), (offer.known_digest, offer.task_set_digest));
        assert_eq!(check(other, &offer, None), Err(Refused::NotSigned(NotSigned::Digest)), "{version} as {other}");

        let parts_held = SignedDesired { known: None, task_set: None, ..offer };
        assert_eq!(check(version, &parts_held, Some(&accepted)), Ok(accepted.clone()));
        let of_other = check(other, &offer_in_version(&controller, other, 7, &test_desired()), None).unwrap();
        let refused = check(version, &parts_held, Some(&of_other));
        assert_eq!(refused, Err(Refused::MissingPart("known part")), "what is held in {other} is no part of {version}");
    }
}

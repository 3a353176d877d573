//! Offers and grants that a host accepts or refuses. A prefix such as `s31_` of a test name numbers a property.

use stemma_wire::message::signed::Grant;
use stemma_wire::message::{Epoch, Revision, encode_part};

use super::*;
use crate::apply::ledger::Desired;
use crate::apply::testing::{EPOCH, NODE, TestController, TestTaskSet, accepted_state};

/// The current time in these tests, in seconds since 1970: 2027-01-15.
const NOW: u64 = 1_800_000_000;
const NEXT_EPOCH: Epoch = Epoch([2; 16]);

fn test_desired() -> Desired {
    TestTaskSet::default().label("tier", "gold").desired()
}

/// Verifies the offer as a host that has the desired state of revision `held_revision`, or no desired state if `None`.
fn check(
    controller: &TestController,
    offer: &SignedDesired,
    held_revision: Option<u64>,
) -> Result<AcceptedState, MessageRefusal> {
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let held_state = held_revision.map(|revision| accepted_state(revision, &test_desired()));
    verify_desired(&trust, (WireVersion::FIRST, offer), held_state.as_ref(), NOW)
}

#[test]
fn verify_desired_accepts_state_when_signed_for_node() {
    let controller = TestController::new();
    let full_offer = controller.desired(7, &test_desired());
    assert_eq!(check(&controller, &full_offer, None), Ok(accepted_state(7, &test_desired())));
    assert_eq!(check(&controller, &full_offer, Some(7)), Ok(accepted_state(7, &test_desired())), "the same offer again");
    let digests_only = SignedDesired { known: None, task_set: None, ..full_offer };
    assert_eq!(
        check(&controller, &digests_only, Some(6)),
        Ok(accepted_state(7, &test_desired())),
        "an offer may omit parts that the host has"
    );
}

#[test]
fn s31_verify_desired_rejects_state_of_another_node() {
    let controller = TestController::new();
    let foreign_offer = controller.desired_for(Uuid::from_u128(1), EPOCH, 7, &test_desired());
    assert_eq!(check(&controller, &foreign_offer, None), Err(MessageRefusal::NotSigned(NotSigned::Signature)));
}

#[test]
fn s68_verify_desired_rejects_content_when_changed_in_transit() {
    let controller = TestController::new();
    let offer = controller.desired(7, &test_desired());
    let mut changed_offer = offer.clone();
    changed_offer.known.as_mut().unwrap()[1] ^= 1;
    assert_eq!(check(&controller, &changed_offer, None), Err(MessageRefusal::NotSigned(NotSigned::Digest)));
    let other_offer = controller.desired(7, &TestTaskSet::default().desired());
    let swapped_offer = SignedDesired { known: other_offer.known, known_digest: other_offer.known_digest, ..offer.clone() };
    assert_eq!(check(&controller, &swapped_offer, None), Err(MessageRefusal::NotSigned(NotSigned::Signature)));
    let later_offer = SignedDesired { revision: Revision(8), ..offer };
    assert_eq!(check(&controller, &later_offer, None), Err(MessageRefusal::NotSigned(NotSigned::Signature)));
}

#[test]
fn s76_verify_desired_rejects_signer_of_another_fleet() {
    let (own_controller, foreign_controller) = (TestController::new(), TestController::new());
    let refusal = check(&own_controller, &foreign_controller.desired(7, &test_desired()), None).unwrap_err();
    assert!(matches!(refusal, MessageRefusal::NotSigned(NotSigned::Signer(_))), "{refusal:?}");
}

#[test]
fn s69_verify_desired_rejects_older_revision() {
    let controller = TestController::new();
    let refusal = check(&controller, &controller.desired(6, &test_desired()), Some(7)).unwrap_err();
    assert_eq!(refusal, MessageRefusal::Older { offered: 6, held: 7 });
    assert_eq!(refusal.to_string(), "The controller offers revision 6, this host has 7. Was the controller restored?");
}

#[test]
fn verify_desired_accepts_other_epoch_only_with_signed_change() {
    let controller = TestController::new();
    let offer = |change: Option<(Epoch, Epoch, u64)>| SignedDesired {
        epoch_change: change.map(|(from, to, revision)| controller.epoch_change(from, to, revision)),
        ..controller.desired_for(NODE, NEXT_EPOCH, 3, &test_desired())
    };
    for (name, change, expected) in [
        ("no change", None, Err(MessageRefusal::OtherEpoch { offered: 3, held: 7 })),
        ("from a third epoch", Some((Epoch([5; 16]), NEXT_EPOCH, 1)), Err(MessageRefusal::OtherEpoch { offered: 3, held: 7 })),
        ("to a third epoch", Some((EPOCH, Epoch([5; 16]), 1)), Err(MessageRefusal::OtherEpoch { offered: 3, held: 7 })),
        (
            "change at a later revision than the offer",
            Some((EPOCH, NEXT_EPOCH, 4)),
            Err(MessageRefusal::BeforeEpoch { offered: 3, begins: 4 }),
        ),
        ("change between the two epochs", Some((EPOCH, NEXT_EPOCH, 3)), Ok(NEXT_EPOCH)),
    ] {
        let accepted = check(&controller, &offer(change), Some(7)).map(|accepted| accepted.epoch);
        assert_eq!(accepted, expected, "{name}");
    }
    // The reason is changed after the signature.
    let mut altered_offer = offer(Some((EPOCH, NEXT_EPOCH, 3)));
    altered_offer.epoch_change.as_mut().unwrap().reason.push('!');
    assert_eq!(check(&controller, &altered_offer, Some(7)), Err(MessageRefusal::NotSigned(NotSigned::Signature)));
}

#[test]
fn verify_desired_limits_size_of_both_parts_together() {
    let controller = TestController::new();
    let offer = |known: usize, task_set: usize| {
        let (known, task_set) = (Some(vec![0; known]), Some(vec![0; task_set]));
        SignedDesired { known, task_set, ..controller.desired(7, &test_desired()) }
    };
    let refusal_of = |offer: &SignedDesired| check(&controller, offer, None).unwrap_err();
    assert_eq!(refusal_of(&offer(MAX_DESIRED_BYTES, 1)), MessageRefusal::TooLarge(MAX_DESIRED_BYTES + 1));
    assert_eq!(refusal_of(&offer(3, MAX_DESIRED_BYTES)), MessageRefusal::TooLarge(MAX_DESIRED_BYTES + 3));
    assert_eq!(
        refusal_of(&offer(MAX_DESIRED_BYTES - 2, 2)),
        MessageRefusal::NotSigned(NotSigned::Digest),
        "parts within the limit are verified"
    );
}

#[test]
fn verify_desired_requires_part_when_not_held() {
    let controller = TestController::new();
    let offer =
        SignedDesired { task_set: None, ..controller.desired(7, &TestTaskSet::default().file("f", &[], "/f", "").desired()) };
    assert_eq!(check(&controller, &offer, None), Err(MessageRefusal::MissingPart("task set")));
    // At revision 6, the host has another task set than the offered one.
    assert_eq!(check(&controller, &offer, Some(6)), Err(MessageRefusal::MissingPart("task set")));
}

#[test]
fn w15_12_verify_grant_rejects_grant_of_another_epoch() {
    let controller = TestController::new();
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let grant = controller.grant(7, Grant::Barriers { task_set: PartDigest([3; 32]), open: vec![] });
    let held_state = accepted_state(7, &test_desired());
    assert_eq!(verify_grant(&trust, &grant, &held_state, NOW), Ok(()));
    let state_of_next_epoch = AcceptedState { epoch: NEXT_EPOCH, ..held_state };
    let result = verify_grant(&trust, &grant, &state_of_next_epoch, NOW);
    assert_eq!(result, Err(MessageRefusal::OtherEpoch { offered: 7, held: 7 }));
}

/// Regression test: the refusal of a grant from a restored controller was only "for another task set or epoch".
#[test]
fn y09_refusal_suggests_restore_when_revision_went_back() {
    let (offered, held) = (1391, 1658);
    for (refusal, expected) in [
        (
            MessageRefusal::Older { offered, held },
            "The controller offers revision 1391, this host has 1658. Was the controller restored?",
        ),
        (
            MessageRefusal::OtherEpoch { offered, held },
            "The controller offers revision 1391, this host has 1658. Was the controller restored?",
        ),
        (
            MessageRefusal::OtherEpoch { offered: held, held: offered },
            "revision 1658 of another epoch than this host's revision 1391",
        ),
        (
            MessageRefusal::OtherTaskSet { offered: held, held: offered },
            "of another task set than this host has with revision 1391",
        ),
    ] {
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
}

/// Returns an offer of this desired state, encoded and signed in this wire version.
#[cfg(debug_assertions)]
fn offer_in_version(controller: &TestController, version: WireVersion, revision: u64, state: &Desired) -> SignedDesired {
    let (known, task_set) = (encode_part(version, &state.known), encode_part(version, &state.task_set));
    controller.signed(version, revision, known, task_set)
}

/// Debug builds have a second wire version for tests. The host refuses a state in another version than the one in which
/// it was signed. A part that the host has in another version does not replace an omitted part.
#[cfg(debug_assertions)]
#[test]
fn verify_desired_accepts_state_only_in_signed_version() {
    let controller = TestController::new();
    let trust = NodeVerifier::new(&controller.identity()).unwrap();
    let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
    let check = |version, offer: &SignedDesired, held_state: Option<&AcceptedState>| {
        verify_desired(&trust, (version, offer), held_state, NOW)
    };
    for (version, other_version) in [(old, new), (new, old)] {
        let offer = offer_in_version(&controller, version, 7, &test_desired());
        let accepted = check(version, &offer, None).unwrap();
        assert_eq!((accepted.version, accepted.desired().known), (version, test_desired().known));
        assert_eq!(
            (accepted.held_desired().known, accepted.held_desired().task_set),
            (offer.known_digest, offer.task_set_digest)
        );
        assert_eq!(
            check(other_version, &offer, None),
            Err(MessageRefusal::NotSigned(NotSigned::Digest)),
            "{version} as {other_version}"
        );

        let digests_only = SignedDesired { known: None, task_set: None, ..offer };
        assert_eq!(check(version, &digests_only, Some(&accepted)), Ok(accepted.clone()));
        let other_state = check(other_version, &offer_in_version(&controller, other_version, 7, &test_desired()), None).unwrap();
        let result = check(version, &digests_only, Some(&other_state));
        assert_eq!(
            result,
            Err(MessageRefusal::MissingPart("known part")),
            "a part that the host has in {other_version} is not a part in {version}"
        );
    }
}

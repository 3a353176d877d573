//! The refusals of offers by their numbers in docs/trust.md.

use stemma_wire::message::signed::Grant;
use stemma_wire::message::{Epoch, Revision, encode_part};

use super::*;
use crate::apply::ledger::Desired;
use crate::apply::testing::{Controller, EPOCH, NODE, Set, accepted};

/// 2027-01-15.
const NOW: u64 = 1_800_000_000;
const NEXT: Epoch = Epoch([2; 16]);

fn state() -> Desired {
    Set::default().label("tier", "gold").desired()
}

fn check(controller: &Controller, offer: &SignedDesired, held: Option<u64>) -> Result<Accepted, Refused> {
    let trust = Trust::new(&controller.identity()).unwrap();
    let held = held.map(|revision| accepted(revision, &state()));
    verify_desired(&trust, (WireVersion::FIRST, offer), held.as_ref(), NOW)
}

#[test]
fn what_the_fleet_signed_for_this_node_is_accepted() {
    let controller = Controller::new();
    let whole = controller.desired(7, &state());
    assert_eq!(check(&controller, &whole, None), Ok(accepted(7, &state())));
    assert_eq!(check(&controller, &whole, Some(7)), Ok(accepted(7, &state())), "the same again");
    let held = SignedDesired { known: None, task_set: None, ..whole };
    assert_eq!(check(&controller, &held, Some(6)), Ok(accepted(7, &state())), "parts that are held are left out");
}

#[test]
fn s31_another_nodes_state_is_refused() {
    let controller = Controller::new();
    let others = controller.desired_of(Uuid::from_u128(1), EPOCH, 7, &state());
    assert_eq!(check(&controller, &others, None), Err(Refused::NotSigned(NotSigned::Signature)));
}

#[test]
fn s68_content_changed_on_the_way_is_refused() {
    let controller = Controller::new();
    let offer = controller.desired(7, &state());
    let mut changed = offer.clone();
    changed.known.as_mut().unwrap()[1] ^= 1;
    assert_eq!(check(&controller, &changed, None), Err(Refused::NotSigned(NotSigned::Digest)));
    let other = controller.desired(7, &Set::default().desired());
    let swapped = SignedDesired { known: other.known, known_digest: other.known_digest, ..offer.clone() };
    assert_eq!(check(&controller, &swapped, None), Err(Refused::NotSigned(NotSigned::Signature)));
    let later = SignedDesired { revision: Revision(8), ..offer };
    assert_eq!(check(&controller, &later, None), Err(Refused::NotSigned(NotSigned::Signature)));
}

#[test]
fn s76_another_fleets_signer_is_refused() {
    let (ours, theirs) = (Controller::new(), Controller::new());
    let refused = check(&ours, &theirs.desired(7, &state()), None).unwrap_err();
    assert!(matches!(refused, Refused::NotSigned(NotSigned::Signer(_))), "{refused:?}");
}

#[test]
fn s69_an_older_revision_is_refused() {
    let controller = Controller::new();
    let refused = check(&controller, &controller.desired(6, &state()), Some(7)).unwrap_err();
    assert_eq!(refused, Refused::Older { offered: 6, held: 7 });
    assert_eq!(refused.to_string(), "The controller offers revision 6, this host has 7. Was the controller restored?");
}

#[test]
fn another_epoch_comes_only_with_a_signed_change_from_the_one_held() {
    let controller = Controller::new();
    let offer = |change: Option<(Epoch, Epoch, u64)>| SignedDesired {
        epoch_change: change.map(|(from, to, at)| controller.epoch_change(from, to, at)),
        ..controller.desired_of(NODE, NEXT, 3, &state())
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
fn what_is_offered_has_a_size_that_both_parts_share() {
    let controller = Controller::new();
    let offer = |known: usize, task_set: usize| {
        let (known, task_set) = (Some(vec![0; known]), Some(vec![0; task_set]));
        SignedDesired { known, task_set, ..controller.desired(7, &state()) }
    };
    let refused = |offer: &SignedDesired| check(&controller, offer, None).unwrap_err();
    assert_eq!(refused(&offer(LARGEST, 1)), Refused::Large(LARGEST + 1));
    assert_eq!(refused(&offer(3, LARGEST)), Refused::Large(LARGEST + 3));
    assert_eq!(refused(&offer(LARGEST - 2, 2)), Refused::NotSigned(NotSigned::Digest), "what fits is looked at");
}

#[test]
fn a_part_that_is_not_held_must_come_along() {
    let controller = Controller::new();
    let offer =
        SignedDesired { task_set: None, ..controller.desired(7, &Set::default().file("f", &[], "/f", "").desired()) };
    assert_eq!(check(&controller, &offer, None), Err(Refused::MissingPart("task set")));
    assert_eq!(check(&controller, &offer, Some(6)), Err(Refused::MissingPart("task set")));
}

#[test]
fn w15_12_a_grant_of_another_epoch_is_refused() {
    let controller = Controller::new();
    let trust = Trust::new(&controller.identity()).unwrap();
    let grant = controller.grant(7, Grant::Barriers { task_set: PartDigest([3; 32]), open: vec![] });
    let held = accepted(7, &state());
    assert_eq!(verify_grant(&trust, &grant, &held, NOW), Ok(()));
    let elsewhere = Accepted { epoch: NEXT, ..held };
    let refused = verify_grant(&trust, &grant, &elsewhere, NOW);
    assert_eq!(refused, Err(Refused::OtherEpoch { offered: 7, held: 7 }));
}

/// A grant of a restored controller was said to be "for another task set or epoch".
#[test]
fn y09_a_refusal_asks_whether_the_controller_was_restored_where_it_went_back() {
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
        (
            Refused::OtherEpoch { offered: held, held: offered },
            "revision 1658 of another epoch than this host's revision 1391",
        ),
        (
            Refused::OtherTaskSet { offered: held, held: offered },
            "of another task set than this host has with revision 1391",
        ),
    ] {
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// What a controller gives in a version.
#[cfg(debug_assertions)]
fn offer_in(controller: &Controller, version: WireVersion, revision: u64, state: &Desired) -> SignedDesired {
    let (known, task_set) = (encode_part(version, &state.known), encode_part(version, &state.task_set));
    controller.signed(version, revision, known, task_set)
}

#[cfg(debug_assertions)]
#[test]
fn an_offer_is_accepted_in_the_version_in_which_it_was_signed_and_in_no_other() {
    let controller = Controller::new();
    let trust = Trust::new(&controller.identity()).unwrap();
    let (old, new) = (WireVersion::CURRENT, WireVersion::THROW_AWAY);
    let check =
        |version, offer: &SignedDesired, held: Option<&Accepted>| verify_desired(&trust, (version, offer), held, NOW);
    for (version, other) in [(old, new), (new, old)] {
        let offer = offer_in(&controller, version, 7, &state());
        let accepted = check(version, &offer, None).unwrap();
        assert_eq!((accepted.version, accepted.desired().known), (version, state().known));
        assert_eq!((accepted.held().known, accepted.held().task_set), (offer.known_digest, offer.task_set_digest));
        assert_eq!(check(other, &offer, None), Err(Refused::NotSigned(NotSigned::Digest)), "{version} as {other}");

        let parts_held = SignedDesired { known: None, task_set: None, ..offer };
        assert_eq!(check(version, &parts_held, Some(&accepted)), Ok(accepted.clone()));
        let of_other = check(other, &offer_in(&controller, other, 7, &state()), None).unwrap();
        let refused = check(version, &parts_held, Some(&of_other));
        assert_eq!(refused, Err(Refused::MissingPart("known part")), "what is held in {other} is no part of {version}");
    }
}

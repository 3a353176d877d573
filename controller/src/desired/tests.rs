//! What is signed again, who is woken, and who has a place.

use stemma_wire::sign::Verifier;
use stemma_wire::tls::Fleet;

use super::*;
use crate::ca::Authority;

const DAY_S: u64 = 24 * 3600;
const NOW_S: u64 = 1_900_000_000;

fn signer(authority: &Authority, now_s: u64) -> Signer {
    let issued = authority.issue_signer(Uuid::from_u128(1), now_s).unwrap();
    let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
    Signer::new(issued.key.unwrap().secret_der(), chain).unwrap()
}

#[test]
fn grants_hold_after_the_old_signer_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let fleet: Fleet = "example.com".parse().unwrap();
    let authority = Authority::create(directory.path(), fleet.clone(), NOW_S - 40 * DAY_S).unwrap();
    let verifier = Verifier::new(fleet, std::slice::from_ref(authority.root())).unwrap();
    let table = DesiredTable::new(EpochLine::first(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S - 40 * DAY_S));
    let nodes = [1, 2, 3].map(Uuid::from_u128);
    for node in nodes {
        let state = released(5);
        let task_set = state.parts(PUBLISHED).task_set.name;
        table.publish(Batch { revision: Revision(5), changes: vec![(node, Change::Release(Box::new(state)))] });
        let open = vec![Barrier { task: format!("t{node}"), selector: "kind=node".to_owned() }];
        table.open_barriers(vec![(node, task_set, open)], Revision(5));
    }
    let holds = |node: Uuid, now_s: u64| {
        let grants = table.slot(node).grants();
        assert_eq!(grants.len(), 1);
        WireVersion::all().all(|version| verifier.check_grant(node, grants[0].form(version), now_s).is_ok())
    };
    assert!(nodes.iter().all(|node| holds(*node, NOW_S - 39 * DAY_S)));
    assert!(nodes.iter().all(|node| !holds(*node, NOW_S)));
    let before = nodes.map(|node| table.slot(node).grants()[0].grant().clone());
    table.change_signer(signer(&authority, NOW_S));
    assert!(nodes.iter().all(|node| holds(*node, NOW_S)));
    assert_eq!(nodes.map(|node| table.slot(node).grants()[0].grant().clone()), before);
}

pub(crate) fn table() -> Arc<DesiredTable> {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), NOW_S).unwrap();
    Arc::new(DesiredTable::new(EpochLine::first(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S)))
}

fn released(revision: u64) -> Released {
    let (known, task_set) = (Known::default(), TaskSet::default());
    Released::new(Revision(revision), (&known, &task_set), (None, [].into()), Duration::from_secs(90))
}

fn pass(revision: u64) -> Batch {
    Batch { revision: Revision(revision), changes: Vec::new() }
}

/// What the form of a grant in one wire version says: at which revision, and for which task set.
type Said = (Revision, PartDigest);

/// What a node's grants say, each in every wire version.
fn grants(table: &DesiredTable, node: Uuid) -> Vec<Vec<Said>> {
    let said = |form: &SignedGrant| match form.grant {
        Grant::Barriers { task_set, .. } => (form.revision, task_set),
        Grant::Lease { .. } => panic!("no lease was given"),
    };
    let of_each = |given: &GivenGrant| WireVersion::all().map(|version| said(given.form(version))).collect();
    table.slot(node).grants().iter().map(of_each).collect()
}

/// What a grant at this revision says in every wire version, when it is for the task set of the node's state: an agent knows that one by
/// its digest in the agent's own version alone.
fn for_its_state(table: &DesiredTable, node: Uuid, revision: u64) -> Vec<Said> {
    let signed = table.slot(node).desired().unwrap();
    let name = |version| signed.released.parts(version).task_set.name;
    WireVersion::all().map(|version| (Revision(revision), name(version))).collect()
}

#[test]
fn a_later_state_with_the_same_task_set_has_its_grants_at_its_own_revision() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let publish = |revision: u64, name: &str, task_set: &TaskSet| {
        let known = Known { name: name.to_owned(), ..Known::default() };
        let silent_after = Duration::from_secs(90);
        let state = Released::new(Revision(revision), (&known, task_set), (None, [].into()), silent_after);
        let name = state.parts(PUBLISHED).task_set.name;
        table.publish(Batch { revision: Revision(revision), changes: vec![(node, Change::Release(Box::new(state)))] });
        name
    };
    let task_set = publish(5, "a", &TaskSet::default());
    let open = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, open)], Revision(5));
    // What is known of the node changes before its host has asked: the host takes up the later state alone.
    publish(9, "b", &TaskSet::default());
    assert_eq!(grants(&table, node), [for_its_state(&table, node, 9)]);
    publish(12, "b", &TaskSet { group_revision: 1, ..TaskSet::default() });
    assert!(grants(&table, node).is_empty(), "it was for another task set");
}

#[test]
fn a_state_that_is_signed_again_has_its_grants_at_its_own_revision() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let state = released(5);
    let task_set = state.parts(PUBLISHED).task_set.name;
    table.publish(Batch { revision: Revision(5), changes: vec![(node, Change::Release(Box::new(state)))] });
    let open = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, open)], Revision(6));
    table.publish(pass(9));
    let slot = table.slot(node);
    table.restamp(&slot);
    assert_eq!(slot.desired().unwrap().released.revision, Revision(9));
    assert_eq!(grants(&table, node), [for_its_state(&table, node, 9)]);
}

#[test]
fn who_names_a_later_revision_waits_once() {
    let table = table();
    let slot = table.slot(Uuid::from_u128(1));
    table.publish(pass(5));
    assert!(!table.is_behind(&slot, Revision(5)));
    for _ in 0..3 {
        assert!(table.is_behind(&slot, Revision(u64::MAX)));
    }
    assert_eq!(lock(&table.behind).len(), 1);
    table.publish(pass(6));
    assert_eq!(lock(&table.behind).len(), 0);
}

#[tokio::test]
async fn who_waits_for_a_revision_is_woken_by_it() {
    let table = table();
    let slot = table.slot(Uuid::from_u128(1));
    for revision in 1..3000 {
        let (other, go) = (Arc::clone(&table), Arc::new(std::sync::Barrier::new(2)));
        let ready = Arc::clone(&go);
        let publishing = std::thread::spawn(move || {
            ready.wait();
            other.publish(pass(revision));
        });
        let mut waking = std::pin::pin!(slot.waiting());
        waking.as_mut().enable();
        go.wait();
        if table.is_behind(&slot, Revision(revision)) {
            tokio::time::timeout(Duration::from_mins(2), waking).await.expect("woken");
        }
        publishing.join().unwrap();
    }
}

#[test]
fn who_is_enrolled_no_longer_gets_no_place_again() {
    let table = table();
    let node = Uuid::from_u128(1);
    assert!(table.slot_of_agent(node, || true).is_some());
    assert!(table.slot_of_agent(node, || panic!("asked about a place that is there")).is_some());
    table.remove(node);
    assert!(table.slot_of_agent(node, || false).is_none());
    assert!(read(&table.slots).is_empty());
}

//! Tests which states are signed again, which check-ins are woken, and which nodes have a slot.

use stemma_wire::sign::Verifier;
use stemma_wire::tls::FleetName;

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
fn change_signer_signs_grants_again() {
    let directory = tempfile::tempdir().unwrap();
    let fleet: FleetName = "example.com".parse().unwrap();
    let authority = Authority::create(directory.path(), fleet.clone(), NOW_S - 40 * DAY_S).unwrap();
    let verifier = Verifier::new(fleet, std::slice::from_ref(authority.root())).unwrap();
    let table = DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S - 40 * DAY_S));
    let nodes = [1, 2, 3].map(Uuid::from_u128);
    for node in nodes {
        let state = released(5);
        let task_set = state.parts(PUBLISHED_VERSION).task_set.name;
        table.publish(PassResult { revision: Revision(5), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
        let open = vec![Barrier { task: format!("t{node}"), selector: "kind=node".to_owned() }];
        table.open_barriers(vec![(node, task_set, open)], Revision(5));
    }
    let holds = |node: Uuid, now_s: u64| {
        let grants = table.slot(node).grants();
        assert_eq!(grants.len(), 1);
        WireVersion::all().all(|version| verifier.check_grant(node, grants[0].for_version(version), now_s).is_ok())
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
    Arc::new(DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S)))
}

fn released(revision: u64) -> DesiredState {
    let (known, task_set) = (Known::default(), TaskSet::default());
    DesiredState::new(Revision(revision), (&known, &task_set), (None, [].into()), Duration::from_secs(90))
}

fn pass_result(revision: u64) -> PassResult {
    PassResult { revision: Revision(revision), changes: Vec::new() }
}

/// The content of a grant's form in one wire version: its revision and its task set.
type GrantContent = (Revision, PartDigest);

/// Returns the content of a node's grants, each in every wire version.
fn grants(table: &DesiredTable, node: Uuid) -> Vec<Vec<GrantContent>> {
    let said = |form: &SignedGrant| match form.grant {
        Grant::Barriers { task_set, .. } => (form.revision, task_set),
        Grant::Lease { .. } => panic!("no lease was given"),
    };
    let of_each = |given: &GrantForms| WireVersion::all().map(|version| said(given.for_version(version))).collect();
    table.slot(node).grants().iter().map(of_each).collect()
}

/// Returns the content, in every wire version, of a grant at this revision for the task set of the node's state. An
/// agent knows that task set only by the digest in the agent's own version.
fn grant_for_state(table: &DesiredTable, node: Uuid, revision: u64) -> Vec<GrantContent> {
    let signed = table.slot(node).desired().unwrap();
    let name = |version| signed.desired.parts(version).task_set.name;
    WireVersion::all().map(|version| (Revision(revision), name(version))).collect()
}

#[test]
fn publish_moves_grants_to_new_revision_when_task_set_stays() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let publish = |revision: u64, name: &str, task_set: &TaskSet| {
        let known = Known { name: name.to_owned(), ..Known::default() };
        let silent_after = Duration::from_secs(90);
        let state = DesiredState::new(Revision(revision), (&known, task_set), (None, [].into()), silent_after);
        let name = state.parts(PUBLISHED_VERSION).task_set.name;
        table
            .publish(PassResult { revision: Revision(revision), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
        name
    };
    let task_set = publish(5, "a", &TaskSet::default());
    let open = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, open)], Revision(5));
    // The known part changes before the host has checked in, so the host applies only the later state.
    publish(9, "b", &TaskSet::default());
    assert_eq!(grants(&table, node), [grant_for_state(&table, node, 9)]);
    publish(12, "b", &TaskSet { group_revision: 1, ..TaskSet::default() });
    assert!(grants(&table, node).is_empty(), "it was for another task set");
}

#[test]
fn sign_again_moves_grants_to_new_revision() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let state = released(5);
    let task_set = state.parts(PUBLISHED_VERSION).task_set.name;
    table.publish(PassResult { revision: Revision(5), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
    let open = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, open)], Revision(6));
    table.publish(pass_result(9));
    let slot = table.slot(node);
    table.sign_again(&slot);
    assert_eq!(slot.desired().unwrap().desired.revision, Revision(9));
    assert_eq!(grants(&table, node), [grant_for_state(&table, node, 9)]);
}

#[test]
fn wait_for_revision_registers_slot_once() {
    let table = table();
    let slot = table.slot(Uuid::from_u128(1));
    table.publish(pass_result(5));
    assert!(!table.wait_for_revision(&slot, Revision(5)));
    for _ in 0..3 {
        assert!(table.wait_for_revision(&slot, Revision(u64::MAX)));
    }
    assert_eq!(lock(&table.waiting_for_revision).len(), 1);
    table.publish(pass_result(6));
    assert_eq!(lock(&table.waiting_for_revision).len(), 0);
}

#[tokio::test]
async fn publish_wakes_slot_when_revision_is_reached() {
    let table = table();
    let slot = table.slot(Uuid::from_u128(1));
    for revision in 1..3000 {
        let (other, go) = (Arc::clone(&table), Arc::new(std::sync::Barrier::new(2)));
        let ready = Arc::clone(&go);
        let publishing = std::thread::spawn(move || {
            ready.wait();
            other.publish(pass_result(revision));
        });
        let mut waking = std::pin::pin!(slot.notified());
        waking.as_mut().enable();
        go.wait();
        if table.wait_for_revision(&slot, Revision(revision)) {
            tokio::time::timeout(Duration::from_mins(2), waking).await.expect("woken");
        }
        publishing.join().unwrap();
    }
}

#[test]
fn enrolled_slot_creates_no_slot_when_node_is_not_enrolled() {
    let table = table();
    let node = Uuid::from_u128(1);
    assert!(table.enrolled_slot(node, || true).is_some());
    assert!(table.enrolled_slot(node, || panic!("asked about a place that is there")).is_some());
    table.remove(node);
    assert!(table.enrolled_slot(node, || false).is_none());
    assert!(read(&table.slots).is_empty());
}

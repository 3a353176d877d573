//! Tests which states are signed again, which check-ins are woken, and which nodes have a slot.

use stemma_wire::sign::Verifier;
use stemma_wire::tls::FleetName;

use super::*;
use crate::ca::Authority;

const DAY_S: u64 = 24 * 3600;
const NOW_S: u64 = 1_900_000_000;

/// Returns a signer whose certificate the authority issues at `now_s`, in seconds since 1970.
fn signer(authority: &Authority, now_s: u64) -> Signer {
    let issued = authority.issue_signer(Uuid::from_u128(1), now_s).unwrap();
    let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
    Signer::new(issued.key.unwrap().secret_der(), chain).unwrap()
}

/// At `NOW_S`, the certificate of the first signer has expired. The new signer must sign all grants again, with the
/// same content.
#[test]
fn change_signer_signs_grants_again() {
    let directory = tempfile::tempdir().unwrap();
    let fleet: FleetName = "example.com".parse().unwrap();
    let authority = Authority::create(directory.path(), fleet.clone(), NOW_S - 40 * DAY_S).unwrap();
    let verifier = Verifier::new(fleet, std::slice::from_ref(authority.root())).unwrap();
    let table = DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S - 40 * DAY_S));
    let nodes = [1, 2, 3].map(Uuid::from_u128);
    for node in nodes {
        let state = empty_state(5);
        let task_set = state.parts(PUBLISHED_VERSION).task_set.name;
        table.publish(PassResult { revision: Revision(5), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
        let barriers = vec![Barrier { task: format!("t{node}"), selector: "kind=node".to_owned() }];
        table.open_barriers(vec![(node, task_set, barriers)], Revision(5));
    }
    let has_valid_grant = |node: Uuid, now_s: u64| {
        let grants = table.slot(node).grants();
        assert_eq!(grants.len(), 1);
        WireVersion::all().all(|version| verifier.check_grant(node, grants[0].for_version(version), now_s).is_ok())
    };
    assert!(nodes.iter().all(|node| has_valid_grant(*node, NOW_S - 39 * DAY_S)));
    assert!(nodes.iter().all(|node| !has_valid_grant(*node, NOW_S)));
    let previous_grants = nodes.map(|node| table.slot(node).grants()[0].grant().clone());
    table.change_signer(signer(&authority, NOW_S));
    assert!(nodes.iter().all(|node| has_valid_grant(*node, NOW_S)));
    assert_eq!(nodes.map(|node| table.slot(node).grants()[0].grant().clone()), previous_grants);
}

/// Returns an empty table of desired states, with a signer that is valid at `NOW_S`.
pub(crate) fn table() -> Arc<DesiredTable> {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), NOW_S).unwrap();
    Arc::new(DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer(&authority, NOW_S)))
}

/// Returns a desired state with this revision, an empty known part and an empty task set.
fn empty_state(revision: u64) -> DesiredState {
    let (known, task_set) = (Known::default(), TaskSet::default());
    DesiredState::new(Revision(revision), (&known, &task_set), (None, [].into()), Duration::from_secs(90))
}

/// Returns the result of a pass of the reconciler that changed no node.
fn pass_result(revision: u64) -> PassResult {
    PassResult { revision: Revision(revision), changes: Vec::new() }
}

/// The content of a signed grant in one wire version: its revision and the digest of its task set.
type GrantContent = (Revision, PartDigest);

/// Returns the content of each grant of a node. The inner list has one entry for each wire version.
fn grants(table: &DesiredTable, node: Uuid) -> Vec<Vec<GrantContent>> {
    let content = |form: &SignedGrant| match form.grant {
        Grant::Barriers { task_set, .. } => (form.revision, task_set),
        Grant::Lease { .. } => panic!("no lease was given"),
    };
    let content_by_version = |grant: &GrantForms| WireVersion::all().map(|version| content(grant.for_version(version))).collect();
    table.slot(node).grants().iter().map(content_by_version).collect()
}

/// Returns the content, in every wire version, of a grant at this revision for the task set of the node's state. An
/// agent knows that task set only by the digest in the agent's own version.
fn grant_for_state(table: &DesiredTable, node: Uuid, revision: u64) -> Vec<GrantContent> {
    let signed = table.slot(node).desired().unwrap();
    let digest = |version| signed.desired.parts(version).task_set.name;
    WireVersion::all().map(|version| (Revision(revision), digest(version))).collect()
}

/// A grant stays in force if only the known part changes. Another task set ends it.
#[test]
fn publish_moves_grants_to_new_revision_when_task_set_stays() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let publish = |revision: u64, name: &str, task_set: &TaskSet| {
        let known = Known { name: name.to_owned(), ..Known::default() };
        let silent_after = Duration::from_secs(90);
        let state = DesiredState::new(Revision(revision), (&known, task_set), (None, [].into()), silent_after);
        let digest = state.parts(PUBLISHED_VERSION).task_set.name;
        table
            .publish(PassResult { revision: Revision(revision), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
        digest
    };
    let task_set = publish(5, "a", &TaskSet::default());
    let barriers = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, barriers)], Revision(5));
    // The known part changes before the host has checked in, so the host applies only the later state.
    publish(9, "b", &TaskSet::default());
    assert_eq!(grants(&table, node), [grant_for_state(&table, node, 9)]);
    publish(12, "b", &TaskSet { group_revision: 1, ..TaskSet::default() });
    assert!(grants(&table, node).is_empty(), "the grant was for the previous task set");
}

/// A pass without changes advances the resolved revision to 9. A state that is then signed again gets this revision,
/// and so do its grants.
#[test]
fn sign_again_moves_grants_to_new_revision() {
    let (table, node) = (table(), Uuid::from_u128(1));
    let state = empty_state(5);
    let task_set = state.parts(PUBLISHED_VERSION).task_set.name;
    table.publish(PassResult { revision: Revision(5), changes: vec![(node, DesiredChange::Release(Box::new(state)))] });
    let barriers = vec![Barrier { task: "t".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(node, task_set, barriers)], Revision(6));
    table.publish(pass_result(9));
    let slot = table.slot(node);
    table.sign_again(&slot);
    assert_eq!(slot.desired().unwrap().desired.revision, Revision(9));
    assert_eq!(grants(&table, node), [grant_for_state(&table, node, 9)]);
}

/// `wait_for_revision` returns false if all nodes are resolved at the revision already. Otherwise it registers the slot
/// for the next pass, once for any number of calls. The pass ends this registration, and the slot stays in the table.
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

/// Another thread publishes a revision while the slot begins to wait for it. In each round, either the revision is
/// published already, or the slot must be woken.
#[tokio::test]
async fn publish_wakes_slot_when_revision_is_reached() {
    let table = table();
    let slot = table.slot(Uuid::from_u128(1));
    for revision in 1..3000 {
        let (publishing_table, start_barrier) = (Arc::clone(&table), Arc::new(std::sync::Barrier::new(2)));
        let publisher_barrier = Arc::clone(&start_barrier);
        let publisher = std::thread::spawn(move || {
            publisher_barrier.wait();
            publishing_table.publish(pass_result(revision));
        });
        let mut notification = std::pin::pin!(slot.notified());
        notification.as_mut().enable();
        start_barrier.wait();
        if table.wait_for_revision(&slot, Revision(revision)) {
            tokio::time::timeout(Duration::from_mins(2), notification).await.expect("the publication wakes the slot");
        }
        publisher.join().unwrap();
    }
}

#[test]
fn enrolled_slot_checks_enrolment_only_when_slot_is_missing() {
    let table = table();
    let node = Uuid::from_u128(1);
    assert!(table.enrolled_slot(node, || true).is_some());
    assert!(table.enrolled_slot(node, || panic!("the slot exists, so the enrolment must not be checked")).is_some());
    table.remove(node);
    assert!(table.enrolled_slot(node, || false).is_none());
    assert!(read(&table.slots).is_empty());
}

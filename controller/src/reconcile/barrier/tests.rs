//! A wave that is kept from result to result says what one says that is made anew, and tells those for whom it changes.

use serde_json::json;
use stemma_core::name::{NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{
    ClusterSpec, GroupId, Meta, NodeGroupSpec, NodeSpec, Object, ReleaseSpec, SaidOnHost, Timestamp,
};
use stemma_wire::message::desired::{Known, TaskSet};
use stemma_wire::message::observed::{Outcome, TaskResult};
use stemma_wire::message::{Epoch, PartDigest};
use stemma_wire::sign::Signer;

use super::*;
use crate::ca::Authority;
use crate::desired::{Batch, Change, Encoded, Released};
use crate::records::reported::{ResultsRecord, TaskOutcome};

const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0xc));

/// Five nodes with a, three that wait for it in four ways.
struct Site {
    table: DesiredTable,
    model: Model,
    task_set: PartDigest,
    sequence: u64,
}

fn node(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn release() -> ReleaseSpec {
    let task = |id: &str, tag: &str, more: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let spec = json!({
        "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}},
        "tasks": [
            {"id": "pre", "type": "stage"},
            {"id": "done", "type": "stage", "requires": ["pre"]},
            task("a", "x", json!({"required_for": ["pre"]})),
            task("b", "y", json!({"cross_depends": [{"name": "a", "tags": ["x"]}]})),
            task("c", "y", json!({"cross_depends": [{"name": "a", "tags": ["x"], "policy": "any"}]})),
            task("d", "y", json!({"requires": ["done"]})),
            task("e", "y", json!({"cross_depends": [{"name": "b", "tags": ["y"]}]})),
        ],
    });
    serde_json::from_value(spec).unwrap()
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), 1_900_000_000).unwrap();
        let issued = authority.issue_signer(Uuid::from_u128(1), 1_900_000_000).unwrap();
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        let signer = Signer::new(issued.key.unwrap().secret_der(), chain).unwrap();
        let name = ReleaseRef::new("site").unwrap();
        let mut model = Model::default();
        put(&mut model, Uuid::from_u128(0xe), name.clone(), release());
        let spec = ClusterSpec { release: Some(name), ..ClusterSpec::default() };
        put(&mut model, CLUSTER.0, ObjectName::new("c").unwrap(), spec);
        for (group, role, nodes) in [(0xa, "x", 1..=5), (0xb, "y", 6..=8)] {
            let roles = vec![stemma_core::name::Name::new(role).unwrap()];
            let spec = NodeGroupSpec { roles, ..NodeGroupSpec::new(CLUSTER) };
            put(&mut model, node(group), ObjectName::new(role).unwrap(), spec);
            for n in nodes {
                let spec = NodeSpec { nodegroup: Some(GroupId(node(group))), ..NodeSpec::default() };
                put(&mut model, node(n), Some(NodeName::new(&format!("n{n}")).unwrap()), spec);
            }
        }
        let table = DesiredTable::new(Epoch([7; 16]), signer);
        let task_set = Arc::new(Encoded::part(&TaskSet::default()));
        let released = Released {
            revision: Revision(1),
            known: Arc::new(Encoded::part(&Known::default())),
            task_set: Arc::clone(&task_set),
            profile: None,
            blobs: [].into(),
            silent_after: std::time::Duration::from_secs(90),
        };
        let changes = (1..=8).map(|n| (node(n), Change::Release(Box::new(released.clone())))).collect();
        table.publish(Batch { revision: Revision(1), changes });
        Self { table, model, task_set: task_set.name, sequence: 0 }
    }

    fn sight(&self) -> Sight<'_> {
        Sight { table: &self.table, model: &self.model, fleet: &self.model.fleet }
    }

    fn result(&mut self, n: u128, task: &str, outcome: Outcome) {
        self.sequence += 1;
        let result = TaskResult {
            sequence: self.sequence,
            task_set: self.task_set,
            task: task.to_owned(),
            outcome,
            message: String::new(),
            output: String::new(),
            diff: String::new(),
            duration_ms: 0,
        };
        let mut record = self.model.results.get(&node(n)).map(|known| ResultsRecord::clone(known)).unwrap_or_default();
        record.tasks.insert(task.to_owned(), TaskOutcome { at: Timestamp(0), result });
        self.model.results.insert(node(n), Arc::new(record));
    }

    /// Which barriers are open for each node, by a wave.
    fn open(&self, wave: &Wave) -> BTreeMap<NodeId, Vec<String>> {
        let mut all = BTreeMap::new();
        for (profile, nodes) in self.model.fleet.placed_in(CLUSTER) {
            for node in nodes {
                let is_open = |barrier: &&Barrier| wave.waiting(&profile.release, barrier).is_over_for(*node);
                let open = profile.barriers.iter().filter(is_open);
                let text = open.map(|barrier| format!("{:?}", encode::barrier(profile, barrier))).collect();
                all.insert(*node, text);
            }
        }
        all
    }
}

fn put<S: crate::cache::model::Resource>(model: &mut Model, uuid: Uuid, name: S::Name, spec: S) {
    let object = Arc::new(Object { meta: Meta::new(uuid, name, Timestamp(0)), spec });
    model.put(1, &object).map_err(|errors| format!("{errors:?}")).unwrap();
}

#[test]
fn a_wave_that_is_kept_says_what_a_new_one_says_and_tells_whom_it_changes_for() {
    use Outcome::{Changed, Failed, Unchanged};
    let mut site = Site::new();
    let mut kept = Wave::of(site.sight(), CLUSTER);
    // Who is told, by how many: 0 where nothing opens or shuts, 1 for who is the last that is waited for, 9 for all.
    let steps: [(u128, &str, Outcome, usize); 14] = [
        (1, "a", Changed, 9),
        (2, "a", Failed, 0),
        (3, "a", Changed, 0),
        (4, "a", Unchanged, 0),
        (5, "a", Changed, 9),
        (2, "a", Changed, 9),
        (2, "a", Failed, 9),
        (2, "a", Changed, 9),
        (6, "b", Changed, 0),
        (7, "b", Changed, 1),
        (7, "b", Failed, 1),
        (7, "b", Changed, 1),
        (8, "b", Changed, 9),
        (8, "e", Changed, 0),
    ];
    for (n, task, outcome, expected) in steps {
        let what = format!("n{n} {task} {outcome:?}");
        let before = site.open(&kept);
        site.result(n, task, outcome);
        let told = kept.take(site.sight(), CLUSTER, NodeId(node(n)), &BTreeSet::from([task.to_owned()]));
        let after = site.open(&kept);
        assert_eq!(after, site.open(&Wave::of(site.sight(), CLUSTER)), "{what}");
        let changed: BTreeSet<NodeId> = after.keys().copied().filter(|id| after[id] != before[id]).collect();
        match told {
            Told::All => assert_eq!(expected, 9, "{what}"),
            Told::These(nodes) => {
                assert_eq!(nodes.len(), expected, "{what}");
                assert!(changed.is_subset(&nodes), "{what}: {changed:?}");
            }
        }
    }
    let all = site.open(&kept);
    assert!((6..=8).all(|n| all[&NodeId(node(n))].len() == 4), "{all:?}");
}

#[test]
fn who_stands_outside_is_not_waited_for() {
    let open = |site: &Site| site.open(&Wave::of(site.sight(), CLUSTER))[&NodeId(node(6))].len();
    let mut site = Site::new();
    for n in 1..=4 {
        site.result(n, "a", Outcome::Changed);
    }
    // Only the one that any node opens is open: n5 has not done a.
    assert_eq!(open(&site), 1);
    let said = |said: SaidOnHost| stemma_core::fleet::Change::Said(NodeId(node(5)), Some(Arc::new(said)));
    let paused = SaidOnHost { paused: true, ..SaidOnHost::default() };
    let _reached = site.model.fleet.apply(said(paused));
    assert_eq!(open(&site), 1, "a paused one is waited for");
    let parked = SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() };
    let _reached = site.model.fleet.apply(said(parked));
    assert_eq!(open(&site), 3, "a parked one is not");
    let _reached = site.model.fleet.apply(stemma_core::fleet::Change::Said(NodeId(node(5)), None));
    assert_eq!(open(&site), 1);
}

#[test]
fn a_node_that_goes_leaves_no_barrier_shut() {
    let mut site = Site::new();
    for n in 1..=4 {
        site.result(n, "a", Outcome::Changed);
    }
    let mut waves = Waves::default();
    let everyone = (1..=8).map(node).collect();
    let (none, nobody) = (BTreeMap::new(), BTreeSet::new());
    waves.open(site.sight(), &Touched { resolved: &everyone, results: &none }, Revision(1));
    assert_eq!(site.open(&waves.of[&CLUSTER])[&NodeId(node(6))].len(), 1);
    site.model.remove::<NodeSpec>(node(5)).unwrap();
    waves.open(site.sight(), &Touched { resolved: &nobody, results: &none }, Revision(2));
    assert_eq!(site.open(&waves.of[&CLUSTER])[&NodeId(node(6))].len(), 1, "not said yet");
    let gone = BTreeSet::from([node(5)]);
    waves.open(site.sight(), &Touched { resolved: &gone, results: &none }, Revision(2));
    assert_eq!(site.open(&waves.of[&CLUSTER])[&NodeId(node(6))].len(), 3);
}

#[test]
fn a_node_that_moved_in_a_pass_that_could_not_store_leaves_no_barrier_shut() {
    let mut site = Site::new();
    for n in 1..=4 {
        site.result(n, "a", Outcome::Changed);
    }
    let mut waves = Waves::default();
    let everyone = (1..=8).map(node).collect();
    let none = BTreeMap::new();
    waves.open(site.sight(), &Touched { resolved: &everyone, results: &none }, Revision(1));
    // The pass in which it stood elsewhere for the first time never came to the waves; the next one has it left to do.
    put(&mut site.model, node(5), Some(NodeName::new("n5").unwrap()), NodeSpec::default());
    let left = BTreeSet::from([node(5)]);
    waves.open(site.sight(), &Touched { resolved: &left, results: &none }, Revision(3));
    assert_eq!(site.open(&waves.of[&CLUSTER])[&NodeId(node(6))].len(), 3);
}

#[test]
fn groups_that_run_different_releases_wait_for_each_other_as_the_order_says() {
    let mut site = Site::new();
    // The y nodes go on to another version, in which the stage waits for one more task.
    let mut next = release();
    let task = |of: serde_json::Value| serde_json::from_value(of).unwrap();
    next.tasks.push(task(
        json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}}),
    ));
    let name = ReleaseRef::new("site@2").unwrap();
    put(&mut site.model, Uuid::from_u128(0xf), name.clone(), next);
    let group = Arc::clone(site.model.groups.get(node(0xb)).unwrap());
    let spec = NodeGroupSpec { release: Some(name), ..group.spec.clone() };
    put(&mut site.model, node(0xb), group.meta.name.clone(), spec);

    let open = |site: &Site| site.open(&Wave::of(site.sight(), CLUSTER))[&NodeId(node(6))].len();
    let mut kept = Wave::of(site.sight(), CLUSTER);
    assert_eq!(open(&site), 0, "nobody has done a");
    for n in 1..=5 {
        site.result(n, "a", Outcome::Changed);
        kept.take(site.sight(), CLUSTER, NodeId(node(n)), &BTreeSet::from(["a".to_owned()]));
    }
    assert_eq!(open(&site), 2, "all of a and any of a; the stage waits for f too");
    for n in 6..=8 {
        site.result(n, "f", Outcome::Changed);
        kept.take(site.sight(), CLUSTER, NodeId(node(n)), &BTreeSet::from(["f".to_owned()]));
    }
    assert_eq!(open(&site), 3);
    assert_eq!(site.open(&kept), site.open(&Wave::of(site.sight(), CLUSTER)));
}

#[test]
fn who_alone_is_waited_for_does_not_wait_for_itself() {
    let site = Site::new();
    let (profile, _) = site.model.fleet.placed_in(CLUSTER).find(|(profile, _)| !profile.barriers.is_empty()).unwrap();
    for policy in [Policy::All, Policy::Any] {
        let barrier = profile.barriers.iter().find(|barrier| barrier.policy == policy).unwrap().clone();
        let release = Arc::clone(&profile.release);
        let only = Point { barrier, release, waits_for: [NodeId(node(1))].into(), any: false };
        assert_eq!(only.waiting(), Waiting::For(NodeId(node(1))), "{policy:?}");
    }
    let (a, b) = (Waiting::For(NodeId(node(1))), Waiting::For(NodeId(node(2))));
    for (one, other, both) in [
        (Waiting::Nobody, Waiting::Nobody, Waiting::Nobody),
        (Waiting::Nobody, a, a),
        (a, a, a),
        (a, b, Waiting::ForMore),
        (Waiting::ForMore, Waiting::Nobody, Waiting::ForMore),
    ] {
        assert_eq!(one.and(other), both);
        assert_eq!(other.and(one), both);
    }
}

//! A wave is the nodes of a cluster, whose barriers are computed together. A wave that is updated after each change
//! must equal a rebuilt wave, and must report every node whose barrier opens or closes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use stemma_author::SyntaxReader;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{
    ClusterId, ClusterSpec, GroupId, Meta, NodeGroupSpec, NodeId, NodeSpec, Object, ReleaseSpec, ReportedState, Timestamp,
};
use stemma_core::release::compile;
use stemma_core::rollout::{AffectedNodeSet, Completion, TaskResults, Wave};
use uuid::Uuid;

/// The id of the cluster.
const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0xc));
/// The id of the group of n1 to n5, whose nodes have tag `x`.
const GROUP_X: u128 = 0xa;
/// The id of the group of n6 to n8, whose nodes have tag `y`.
const GROUP_Y: u128 = 0xb;

/// A fleet with one cluster, and the results of its tasks. `BarrierSite::new` builds eight nodes: n1 to n5 run task a,
/// and n6 to n8 run b, c, d and e, each of which waits for tasks of other nodes. `barrier_chain` builds five nodes.
struct BarrierSite {
    fleet: Fleet,
    results: StoredResults,
}

/// The results and node states that a test sets.
#[derive(Default)]
struct StoredResults {
    /// For each node, a number that stands for the digest of its present task set. A missing node has the number 0.
    task_sets: BTreeMap<NodeId, u8>,
    /// The tasks that succeeded, each with its node.
    done: BTreeSet<(NodeId, String)>,
    /// The tasks that failed, each with its node.
    failed: BTreeSet<(NodeId, String)>,
    /// The nodes that run no task until somebody acts.
    inactive_nodes: BTreeSet<NodeId>,
    /// The nodes with a hold whose task set has no tasks.
    nodes_with_empty_set: BTreeSet<NodeId>,
}

impl TaskResults for StoredResults {
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]> {
        Some([self.task_sets.get(&node).copied().unwrap_or_default(); 32])
    }

    fn completion(&self, node: NodeId, task: &str) -> Completion {
        if self.done.contains(&(node, task.to_owned())) { Completion::Succeeded } else { Completion::Pending }
    }

    fn is_inactive(&self, node: NodeId) -> bool {
        self.inactive_nodes.contains(&node)
    }

    fn has_failed(&self, node: NodeId, task: &str) -> bool {
        self.failed.contains(&(node, task.to_owned()))
    }

    fn is_withheld(&self, node: NodeId) -> bool {
        self.nodes_with_empty_set.contains(&node)
    }

    fn is_released(&self, node: NodeId, _task: &str) -> bool {
        !self.nodes_with_empty_set.contains(&node)
    }
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn object<S, N>(uuid: Uuid, name: N, spec: S) -> Arc<Object<S>>
where
    S: stemma_core::object::Spec<Name = N>,
{
    Arc::new(Object { meta: Meta::new(uuid, name, Timestamp(0)), spec })
}

/// Returns a release in which d waits for a through two stages, b waits for a on all nodes, c waits for a on any node,
/// and e waits for b on all nodes. Nodes with tag `x` run a, and nodes with tag `y` run the other tasks.
fn release() -> ReleaseSpec {
    let task = |id: &str, tag: &str, fields: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
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

impl BarrierSite {
    /// Builds the cluster `c` with n1 to n5 in group `x`, and n6 to n8 in group `y`.
    fn new() -> Self {
        let mut site = Self { fleet: Fleet::new(), results: StoredResults::default() };
        site.put_release("site", &release());
        let spec = ClusterSpec { release: Some(ReleaseRef::new("site").unwrap()), ..ClusterSpec::default() };
        site.apply(FleetChange::Cluster(object(CLUSTER.0, ObjectName::new("c").unwrap(), spec)));
        site.put_group(GROUP_X, "x", None);
        site.put_group(GROUP_Y, "y", None);
        (1..=5).for_each(|number| site.put_node(number, Some(GROUP_X)));
        (6..=8).for_each(|number| site.put_node(number, Some(GROUP_Y)));
        site
    }

    fn apply(&mut self, change: FleetChange) {
        let _dirty = self.fleet.apply(change);
    }

    /// Compiles a release, and stores it in the fleet.
    fn put_release(&mut self, name: &str, spec: &ReleaseSpec) {
        let name = ReleaseRef::new(name).unwrap();
        self.apply(FleetChange::Release(compile(&name, spec, &|_| None, &SyntaxReader).unwrap()));
    }

    /// Stores a group of the cluster with this role. `release` overrides the release of the cluster.
    fn put_group(&mut self, uuid: u128, role: &str, release: Option<&str>) {
        let roles = vec![Name::new(role).unwrap()];
        let release = release.map(|name| ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { roles, release, ..NodeGroupSpec::new(CLUSTER) };
        self.apply(FleetChange::NodeGroup(object(Uuid::from_u128(uuid), ObjectName::new(role).unwrap(), spec)));
    }

    /// Stores the node with this number. Without a group, the node is unplaced.
    fn put_node(&mut self, number: u128, group: Option<u128>) {
        let nodegroup = group.map(|group| GroupId(Uuid::from_u128(group)));
        let spec = NodeSpec { nodegroup, ..NodeSpec::default() };
        self.apply(FleetChange::Node(object(node(number).0, Some(NodeName::new(&format!("n{number}")).unwrap()), spec)));
    }

    /// Stores the state that a host reports of itself, for example a pause.
    fn set_reported_state(&mut self, number: u128, state: Option<ReportedState>) {
        self.apply(FleetChange::ReportedState(node(number), state.map(Arc::new)));
    }

    /// Stores whether a task succeeded on a node.
    fn set_done(&mut self, number: u128, task: &str, is_done: bool) {
        let key = (node(number), task.to_owned());
        if is_done {
            self.results.done.insert(key)
        } else {
            self.results.done.remove(&key)
        };
    }

    /// Builds the wave of the cluster from the present fleet and results.
    fn wave(&self) -> Wave {
        Wave::new(&self.fleet, CLUSTER, &self.results)
    }

    /// Builds a new wave, and returns the number of barriers that are open for n6.
    fn open_barrier_count(&self) -> usize {
        open_barriers(&self.wave()).get(&node(6)).map_or(0, Vec::len)
    }
}

/// Returns the blocked nodes: one of their closed barriers will not open by itself.
fn blocked_nodes(wave: &Wave) -> BTreeSet<NodeId> {
    wave.blocked_nodes(&wave.all_affected()).into_iter().filter(|(_, is_blocked)| *is_blocked).map(|(node, _)| node).collect()
}

/// Returns the open barriers of each node that has barriers.
fn open_barriers(wave: &Wave) -> BTreeMap<NodeId, Vec<String>> {
    let nodes_with_barriers =
        wave.open_barriers(&wave.all_affected()).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    nodes_with_barriers.map(|(node, _, open)| (node, open.iter().map(|barrier| format!("{barrier:?}")).collect())).collect()
}

/// Returns the nodes of the set that have barriers. These are the nodes that a change notifies.
fn notified_nodes(wave: &Wave, affected: &AffectedNodeSet) -> BTreeSet<NodeId> {
    let nodes_with_barriers = wave.open_barriers(affected).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    nodes_with_barriers.map(|(node, ..)| node).collect()
}

/// In this site, n1 to n5 run a. n6 to n8 run b, c and d, which wait for a, and e, which waits for b on n6 to n8.
#[test]
fn new_result_reaches_nodes_with_changed_barriers() {
    let mut site = BarrierSite::new();
    let mut wave = site.wave();
    // Each step sets whether a task of a node succeeded. The last value is the number of notified nodes among n6 to n8:
    // those with a barrier that opens or closes, or that become or cease to be the only awaited node.
    let steps: [(u128, &str, bool, usize); 13] = [
        (1, "a", true, 3), // One node has done a, so c can run.
        (2, "a", false, 0),
        (3, "a", true, 0),
        (4, "a", true, 0),
        (5, "a", true, 0), // Only n2 has not done a, and n2 waits for nobody.
        (2, "a", true, 3),
        (2, "a", false, 3),
        (2, "a", true, 3),
        (6, "b", true, 0),
        (7, "b", true, 1), // Only n8 has not done b, and n8 does not wait for itself.
        (7, "b", false, 1),
        (7, "b", true, 1),
        (8, "b", true, 3),
    ];
    for (number, task, is_done, expected) in steps {
        let step = format!("n{number} {task} {is_done}");
        let old_barriers = open_barriers(&wave);
        site.set_done(number, task, is_done);
        let mut affected = AffectedNodeSet::default();
        wave.update_results(&site.results, node(number), &BTreeSet::from([task.to_owned()]), &mut affected);
        let new_barriers = open_barriers(&wave);
        assert_eq!(new_barriers, open_barriers(&site.wave()), "{step}");
        let changed: BTreeSet<NodeId> = new_barriers.keys().copied().filter(|id| new_barriers[id] != old_barriers[id]).collect();
        let notified = notified_nodes(&wave, &affected);
        assert!(changed.is_subset(&notified), "{step}: {changed:?} {notified:?}");
        assert!(!affected.is_empty() || notified.is_empty(), "{step}");
        assert_eq!(
            notified.is_empty() && !affected.is_empty(),
            number == 5,
            "{step}: only then does one awaited node remain that waits for nobody"
        );
        assert_eq!(notified.len(), expected, "{step}");
    }
    // At the end, every barrier of n6 to n8 is open: that of b, c, d and e.
    assert!((6..=8).all(|number| open_barriers(&wave)[&node(number)].len() == 4));
}

/// The second site also has task f on n6 to n8. Stage `pre` waits for f, so n6 to n8 also wait for each other.
#[test]
fn updated_wave_equals_rebuilt_wave() {
    check_updated_wave(BarrierSite::new(), &["a", "b", "e"]);
    let mut site = BarrierSite::new();
    let mut release_spec = release();
    let task_f = json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    release_spec.tasks.push(serde_json::from_value(task_f).unwrap());
    site.put_release("site", &release_spec);
    check_updated_wave(site, &["a", "b", "f"]);
}

/// Makes 2,000 random changes of nodes, of their states and of results of these tasks. After each change, compares the
/// updated wave with a rebuilt wave. Checks that every node whose barriers or blocked state changed is reported.
fn check_updated_wave(mut site: BarrierSite, tasks: &[&str; 3]) {
    let mut wave = site.wave();
    let mut update_count = 0;
    let mut random = 7_u64;
    let mut random_below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..2_000 {
        let number = u128::from(random_below(8) + 1);
        let old_barriers = open_barriers(&wave);
        let mut affected = AffectedNodeSet::default();
        let old_blocked = blocked_nodes(&wave);
        match random_below(13) {
            0 => site.put_node(number, Some(GROUP_X)),
            1 => site.put_node(number, Some(GROUP_Y)),
            2 => site.put_node(number, None),
            3 => site.apply(FleetChange::RemoveNode(node(number))),
            4 => {
                site.set_reported_state(number, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
            }
            5 => site.set_reported_state(number, None),
            6 => {
                *site.results.task_sets.entry(node(number)).or_default() += 1;
                site.results.done.retain(|(done, _)| *done != node(number));
            }
            7 => drop(site.results.inactive_nodes.insert(node(number))),
            8 => drop(site.results.inactive_nodes.remove(&node(number))),
            9 => drop(site.results.nodes_with_empty_set.insert(node(number))),
            10 => drop(site.results.nodes_with_empty_set.remove(&node(number))),
            _ => {
                let task = tasks[usize::try_from(random_below(3)).unwrap()];
                let is_done = random_below(4) > 0;
                site.set_done(number, task, is_done);
                let key = (node(number), task.to_owned());
                if !is_done && random_below(2) > 0 {
                    site.results.failed.insert(key);
                } else {
                    site.results.failed.remove(&key);
                }
                wave.update_results(&site.results, node(number), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
        }
        if wave.is_current(&site.fleet) {
            wave.update_node(&site.fleet, &site.results, node(number), &mut affected);
            update_count += 1;
        } else {
            wave = site.wave();
            affected = wave.all_affected();
        }
        let new_barriers = open_barriers(&wave);
        assert_eq!(new_barriers, open_barriers(&site.wave()), "step {step}");
        let notified = notified_nodes(&wave, &affected);
        let changed = new_barriers.keys().copied().filter(|id| old_barriers.get(id) != new_barriers.get(id));
        assert!(
            changed.into_iter().all(|id| notified.contains(&id)),
            "step {step}: {old_barriers:?} {new_barriers:?} {notified:?}"
        );
        let (new_blocked, reported) = (blocked_nodes(&wave), wave.blocked_nodes(&affected));
        assert_eq!(new_blocked, blocked_nodes(&site.wave()), "y06: step {step}");
        for id in old_blocked.symmetric_difference(&new_blocked) {
            let is_reported = reported.contains(&(*id, new_blocked.contains(id)));
            assert!(is_reported || site.fleet.cluster_of_node(*id).is_none(), "y06: step {step}: {id:?} in {reported:?}");
        }
    }
    assert!(update_count > 1_000, "only a change of profiles requires a rebuilt wave: {update_count}");
}

/// n1 to n5 run a, which stage one requires, and b, which stage two requires. n6 to n8 run d, which requires only stage
/// one.
#[test]
fn task_after_stage_waits_only_for_tasks_before_stage() {
    let mut site = BarrierSite::new();
    let mut release_spec = release();
    let task = |task: serde_json::Value| serde_json::from_value(task).unwrap();
    let shell = |id: &str, tag: &str, field: &str, stage: &str| {
        task(json!({"id": id, "type": "shell", "tags": [tag], field: [stage], "parameters": {"script": "true"}}))
    };
    release_spec.tasks = vec![
        task(json!({"id": "one", "type": "stage"})),
        task(json!({"id": "two", "type": "stage"})),
        shell("a", "x", "required_for", "one"),
        shell("b", "x", "required_for", "two"),
        shell("d", "y", "requires", "one"),
    ];
    site.put_release("site", &release_spec);
    (1..=5).for_each(|number| site.set_done(number, "b", true));
    assert_eq!(site.open_barrier_count(), 0);
    (1..=5).for_each(|number| site.set_done(number, "a", true));
    assert_eq!(site.open_barrier_count(), 1);
    (1..=5).for_each(|number| site.set_done(number, "b", false));
    assert_eq!(site.open_barrier_count(), 1);
}

/// A dependency of a stage has the same effect at either end: as a field of the stage, or as a field of the task.
#[test]
fn y06_stage_dependency_equals_task_dependency() {
    let shell = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let with_fields = |mut task: serde_json::Value, fields: serde_json::Value| {
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(task).unwrap()
    };
    for (stage_fields, fields_of_a, fields_of_d) in [
        (json!({}), json!({"required_for": ["one"]}), json!({"requires": ["one"]})),
        (json!({"requires": ["a"]}), json!({}), json!({"requires": ["one"]})),
        (json!({"requires": ["/a/"]}), json!({}), json!({"requires": ["one"]})),
        (json!({"required_for": ["d"]}), json!({"required_for": ["one"]}), json!({})),
        (json!({"requires": ["a"], "required_for": ["/d/"]}), json!({}), json!({})),
    ] {
        let mut site = BarrierSite::new();
        let mut release_spec = release();
        let stage_text = stage_fields.to_string();
        release_spec.tasks = vec![
            with_fields(json!({"id": "one", "type": "stage"}), stage_fields),
            with_fields(shell("a", "x"), fields_of_a),
            with_fields(shell("d", "y"), fields_of_d),
        ];
        site.put_release("site", &release_spec);
        (1..=4).for_each(|number| site.set_done(number, "a", true));
        assert_eq!(site.open_barrier_count(), 0, "{stage_text}: n5 has not done a");
        site.set_done(5, "a", true);
        assert_eq!(site.open_barrier_count(), 1, "{stage_text}");
    }
}

/// n1 to n5 run a. On n6, two tasks wait for a on all these nodes, and one task waits for a on any node.
#[test]
fn barriers_skip_parked_nodes() {
    let mut site = BarrierSite::new();
    (1..=4).for_each(|number| site.set_done(number, "a", true));
    assert_eq!(site.open_barrier_count(), 1, "only the barrier that any node opens: n5 has not done a");
    site.set_reported_state(5, Some(ReportedState { paused: true, ..ReportedState::default() }));
    assert_eq!(site.open_barrier_count(), 1, "n6 waits for a paused node");
    site.set_reported_state(5, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(site.open_barrier_count(), 3, "n6 does not wait for a parked node");
    site.set_reported_state(5, None);
    assert_eq!(site.open_barrier_count(), 1);
}

/// n1 to n5 run a of release `site`. n6 to n8 move to release `site@2`, in which a stage also waits for their task f.
#[test]
fn barriers_connect_groups_of_different_releases() {
    let mut site = BarrierSite::new();
    let wave = site.wave();
    // In the new version, the stage `pre` also waits for task f.
    let mut next_spec = release();
    let task_f = json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    next_spec.tasks.push(serde_json::from_value(task_f).unwrap());
    site.put_release("site@2", &next_spec);
    site.put_group(GROUP_Y, "y", Some("site@2"));
    // The wave was built before the group changed its release.
    assert!(!wave.is_current(&site.fleet));
    let mut wave = site.wave();
    assert_eq!(site.open_barrier_count(), 0, "nobody has done a");
    let mut set_all_done = |site: &mut BarrierSite, nodes: std::ops::RangeInclusive<u128>, task: &str| {
        for number in nodes {
            site.set_done(number, task, true);
            let tasks = BTreeSet::from([task.to_owned()]);
            wave.update_results(&site.results, node(number), &tasks, &mut AffectedNodeSet::default());
        }
        assert_eq!(open_barriers(&wave), open_barriers(&site.wave()));
    };
    set_all_done(&mut site, 1..=5, "a");
    assert_eq!(site.open_barrier_count(), 2, "the barriers of all a and of any a; the stage also waits for f");
    set_all_done(&mut site, 6..=8, "f");
    assert_eq!(site.open_barrier_count(), 3);
}

/// n1 to n5 run a. On n6 to n8, b and d wait for a on all nodes, c waits for a on any node, and e waits for b.
#[test]
fn y06_node_is_blocked_when_awaited_host_cannot_proceed() {
    let waiting_nodes: BTreeSet<NodeId> = (6..=8).map(node).collect();
    let task_a_of = |number| (node(number), "a".to_owned());
    let mut site = BarrierSite::new();
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "a can still succeed on all nodes");
    site.results.failed.insert(task_a_of(5));
    assert_eq!(blocked_nodes(&site.wave()), waiting_nodes, "a failed on n5");
    site.results.failed.clear();
    site.results.inactive_nodes.insert(node(5));
    assert_eq!(blocked_nodes(&site.wave()), waiting_nodes, "n5 runs no task");
    site.set_done(5, "a", true);
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "n5 has done a before");
    site.set_done(5, "a", false);
    site.set_reported_state(5, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "no node waits for a parked node");
    site.set_reported_state(5, None);
    site.set_reported_state(6, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]), "a parked node does not wait either");
    // Only n6 has not done b. n7 and n8 wait for n6, and n6 does not wait for itself.
    let mut site = BarrierSite::new();
    (1..=5).for_each(|number| site.set_done(number, "a", true));
    (7..=8).for_each(|number| site.set_done(number, "b", true));
    site.results.failed.insert((node(6), "b".to_owned()));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]));
}

/// n1 to n5 run a. On n6 to n8, the marker m comes after c on the same node and after a. Task b waits for m on all
/// three nodes. Only n6 has not done c.
#[test]
fn y06_node_is_not_blocked_while_awaited_task_can_succeed() {
    let mut site = BarrierSite::new();
    let shell = |id: &str, tag: &str, cross_depends: serde_json::Value| {
        let parameters = json!({"script": "true"});
        json!({"id": id, "type": "shell", "tags": [tag], "parameters": parameters, "cross_depends": cross_depends})
    };
    let waiting_nodes: BTreeSet<NodeId> = (6..=8).map(node).collect();
    let after_a = json!([{"name": "a", "tags": ["x"]}]);
    let spec = json!({
        "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}},
        "tasks": [
            shell("a", "x", json!([])),
            shell("c", "y", json!([])),
            {"id": "m", "type": "skipped", "tags": ["y"], "requires": ["c"], "cross_depends": after_a},
            shell("b", "y", json!([{"name": "m", "tags": ["y"]}])),
        ],
    });
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    (7..=8).for_each(|number| site.set_done(number, "c", true));
    site.results.inactive_nodes.insert(node(6));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]), "n6 itself waits for a, which can still succeed");
    site.results.failed.insert((node(5), "a".to_owned()));
    assert_eq!(blocked_nodes(&site.wave()), waiting_nodes, "a failed on n5");
}

/// Builds a cluster of five nodes. n1 runs a. n2 runs b, which waits for a, and then c. n3 and n5 run d, which waits
/// for c. n4 runs e, which waits for d on any node.
fn barrier_chain() -> BarrierSite {
    let mut site = BarrierSite { fleet: Fleet::new(), results: StoredResults::default() };
    let task = |id: &str, tag: &str, fields: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        task
    };
    let groups = [(1, "p"), (2, "q"), (3, "r"), (4, "s"), (5, "t")];
    let names = json!({"p": {}, "q": {}, "r": {}, "s": {}, "t": {}});
    let spec = json!({
        "roles": names, "tags": names,
        "tasks": [
            task("a", "p", json!({})),
            task("b", "q", json!({"cross_depends": [{"name": "a", "tags": ["p"]}]})),
            task("c", "q", json!({"requires": ["b"]})),
            task("d", "r", json!({"cross_depends": [{"name": "c", "tags": ["q"]}], "tags": ["r", "t"]})),
            task("e", "s", json!({"cross_depends": [{"name": "d", "tags": ["r", "t"], "policy": "any"}]})),
        ],
    });
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    let spec = ClusterSpec { release: Some(ReleaseRef::new("site").unwrap()), ..ClusterSpec::default() };
    site.apply(FleetChange::Cluster(object(CLUSTER.0, ObjectName::new("c").unwrap(), spec)));
    for (number, role) in groups {
        site.put_group(0x10 + number, role, None);
        site.put_node(number, Some(0x10 + number));
    }
    site
}

/// n1 runs a. n2 runs b, which waits for a, and then c. n3 and n5 run d, which waits for c. n4 runs e, which waits for
/// d on any node.
#[test]
fn y06_node_is_blocked_when_awaited_host_is_blocked() {
    let node_set = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let blocked = |site: &BarrierSite| blocked_nodes(&site.wave());
    let mut site = barrier_chain();
    assert_eq!(blocked(&site), node_set(&[]), "a can still succeed");
    site.results.failed.insert((node(1), "a".to_owned()));
    assert_eq!(blocked(&site), node_set(&[2, 3, 4, 5]), "a failed, so n2 is blocked, and so are the nodes that wait for n2");
    let mut affected = AffectedNodeSet::default();
    let mut wave = site.wave();
    site.results.failed.clear();
    wave.update_results(&site.results, node(1), &BTreeSet::from(["a".to_owned()]), &mut affected);
    // Each pair is a node and whether it is blocked. After the update, no node is blocked.
    let reported: BTreeSet<_> = wave.blocked_nodes(&affected).into_iter().collect();
    assert!(
        [2, 3, 4, 5].iter().all(|number| reported.contains(&(node(*number), false))),
        "every node of the chain is reported: {reported:?}"
    );
    // a is done on n1, b is done on n2, and c failed on n2. So n2 waits for nothing, and n3 and n5 wait for c.
    site.set_done(1, "a", true);
    site.set_done(2, "b", true);
    site.results.failed.insert((node(2), "c".to_owned()));
    assert_eq!(blocked(&site), node_set(&[3, 4, 5]));
    // e waits for d on any node, and n5 has done d. So n4 no longer waits.
    site.set_done(5, "d", true);
    assert_eq!(blocked(&site), node_set(&[3, 5]));
}

/// The nodes wait for each other as in [`barrier_chain`]. Here a hold withholds a from n1.
#[test]
fn y06_node_is_blocked_when_held_task_set_lacks_task() {
    let node_set = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let mut site = barrier_chain();
    site.results.nodes_with_empty_set.insert(node(1));
    assert_eq!(blocked_nodes(&site.wave()), node_set(&[2, 3, 4, 5]));
    site.set_done(1, "a", true);
    assert_eq!(blocked_nodes(&site.wave()), node_set(&[]), "n1 has done a before");
    site.set_done(1, "a", false);
    site.set_reported_state(1, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), node_set(&[]), "no node waits for a parked node");
}

/// n4 and n5 have not done a. On n6, two tasks wait for a on all nodes, and e waits for b.
#[test]
fn closed_barrier_names_awaited_nodes() {
    let mut site = BarrierSite::new();
    (1..=3).for_each(|number| site.set_done(number, "a", true));
    let profile = Arc::clone(site.fleet.profile(node(6)).unwrap());
    let wave = Wave::for_profiles(&site.fleet, CLUSTER, &site.results, [&profile]);
    let awaited: Vec<_> = wave
        .closed_barriers(node(6))
        .into_iter()
        .map(|position| wave.awaited_nodes(profile.hash, position).into_owned())
        .collect();
    let pending_nodes = BTreeSet::from([node(4), node(5)]);
    // b waits for a. d waits for the stage, and so for a. e waits for b on n6 to n8.
    assert_eq!(awaited.iter().filter(|nodes| **nodes == pending_nodes).count(), 2, "{awaited:?}");
    assert_eq!(awaited.iter().filter(|nodes| **nodes == (6..=8).map(node).collect()).count(), 1, "{awaited:?}");
}

/// n9 runs w, which waits for the marker m on n6 to n8. m comes after c on the same node, and after a on n1 to n5. So
/// n9 waits for a and c. Regression: m was looked up on n1, which does not have m.
#[test]
fn y06_closed_barrier_lists_tasks_of_awaited_node() {
    const GROUP_Z: u128 = 0xd;
    let shell = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let dependency = |name: &str, tag: &str| json!([{"name": name, "tags": [tag]}]);
    let marker = json!({"id": "m", "type": "skipped", "tags": ["y"], "requires": ["c"], "cross_depends": dependency("a", "x")});
    let mut task_w = shell("w", "z");
    task_w["cross_depends"] = dependency("m", "y");
    let spec = json!({
        "roles": {"x": {}, "y": {}, "z": {}}, "tags": {"x": {}, "y": {}, "z": {}},
        "tasks": [shell("a", "x"), shell("other", "x"), shell("c", "y"), marker, task_w],
    });
    let mut site = BarrierSite::new();
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    site.put_group(GROUP_Z, "z", None);
    site.put_node(9, Some(GROUP_Z));
    let profile = site.fleet.profile(node(9)).unwrap().hash;
    let awaited_tasks_of = |site: &BarrierSite, number: u128| -> Vec<String> {
        let wave = site.wave();
        let position = wave.closed_barriers(node(9))[0];
        wave.awaited_tasks(profile, position, node(number)).into_iter().map(str::to_owned).collect()
    };
    assert_eq!([1, 6, 9].map(|number| awaited_tasks_of(&site, number)), [vec!["a"], vec!["c"], vec![]]);
    site.set_done(1, "a", true);
    assert_eq!([1, 2, 6].map(|number| awaited_tasks_of(&site, number)), [vec![], vec!["a"], vec!["c"]]);
}

/// Tasks that succeed, each with the number of its node.
type DoneTaskList = Vec<(u128, &'static str)>;

/// A marker runs nothing, so a barrier that waits for a marker must wait for the tasks before the marker. Regression:
/// such a barrier opened at once.
#[test]
fn y06_marker_barrier_waits_for_everything_before_marker() {
    let shell = |id: &str, tag: &str, fields: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        task
    };
    let marker = |id: &str, tag: &str, fields: serde_json::Value| {
        let mut task = json!({"id": id, "type": "skipped", "tags": [tag]});
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        task
    };
    let task_a = || shell("a", "x", json!({}));
    let after_all_x = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["x"]}]});
    let after_all_y = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["y"]}]});
    let after_any_x = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["x"], "policy": "any"}]});
    let requires = |name: &str| json!({"requires": [name]});
    // Each case has a name, its tasks, the results after which the barrier is still closed, and the results that open
    // it (none if it is open from the start). The last task runs on n6 to n8 and waits.
    let cases: Vec<(&str, Vec<serde_json::Value>, DoneTaskList, DoneTaskList)> = vec![
        (
            "one",
            vec![task_a(), marker("m", "x", requires("a")), shell("b", "y", after_all_x("m"))],
            (1..=4).map(|number| (number, "a")).collect(),
            vec![(5, "a")],
        ),
        (
            "of two in a row",
            vec![task_a(), marker("m", "x", requires("a")), marker("n", "x", requires("m")), shell("b", "y", after_all_x("n"))],
            (1..=4).map(|number| (number, "a")).collect(),
            vec![(5, "a")],
        ),
        (
            "of required_for",
            vec![shell("a", "x", json!({"required_for": ["m"]})), marker("m", "x", json!({})), shell("b", "y", after_all_x("m"))],
            vec![(1, "a")],
            (2..=5).map(|number| (number, "a")).collect(),
        ),
        (
            "any of them",
            vec![task_a(), marker("m", "x", requires("a")), shell("b", "y", after_any_x("m"))],
            vec![(6, "a")],
            vec![(3, "a")],
        ),
        (
            "by a stage",
            vec![
                json!({"id": "s", "type": "stage"}),
                task_a(),
                marker("m", "x", json!({"requires": ["a"], "required_for": ["s"]})),
                shell("b", "y", requires("s")),
            ],
            vec![(1, "a")],
            (2..=5).map(|number| (number, "a")).collect(),
        ),
        (
            "of two nodes away",
            vec![
                task_a(),
                marker("m", "y", after_all_x("a")),
                marker("n", "x", after_all_y("m")),
                shell("b", "y", after_all_x("n")),
            ],
            vec![(1, "a")],
            (2..=5).map(|number| (number, "a")).collect(),
        ),
        (
            "that waits for who waits",
            vec![shell("a", "y", json!({})), marker("m", "x", after_all_y("a")), shell("b", "y", after_all_x("m"))],
            vec![(7, "a"), (8, "a")],
            vec![(6, "a")],
        ),
        (
            "behind a stage on one node",
            vec![
                json!({"id": "s", "type": "stage"}),
                shell("a", "y", json!({"required_for": ["s"]})),
                shell("b", "y", requires("s")),
            ],
            vec![(7, "a"), (8, "a")],
            vec![(6, "a")],
        ),
        (
            "with nothing before it",
            vec![marker("m", "x", json!({})), task_a(), shell("b", "y", after_all_x("m"))],
            vec![],
            vec![],
        ),
    ];
    for (case_name, tasks, insufficient, sufficient) in cases {
        let mut site = BarrierSite::new();
        let spec = json!({"roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}, "tasks": tasks});
        site.put_release("site", &serde_json::from_value(spec).unwrap());
        let is_open_for_n6 = |wave: &Wave| wave.closed_barriers(node(6)).is_empty();
        let mut wave = site.wave();
        for (is_open, done) in [(sufficient.is_empty(), insufficient), (true, sufficient)] {
            for (number, task) in done {
                site.set_done(number, task, true);
                let mut affected = AffectedNodeSet::default();
                wave.update_results(&site.results, node(number), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
            assert_eq!((is_open_for_n6(&site.wave()), is_open_for_n6(&wave)), (is_open, is_open), "a marker {case_name}");
        }
    }
}

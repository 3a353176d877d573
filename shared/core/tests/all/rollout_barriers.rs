//! A wave that is updated from change to change must equal one that is rebuilt, and must name every node whose barrier
//! opens or closes.

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

const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0xc));
const X: u128 = 0xa;
const Y: u128 = 0xb;

/// Five nodes with task a, and three nodes that wait for it in four ways.
struct BarrierSite {
    fleet: Fleet,
    results: StoredResults,
}

#[derive(Default)]
struct StoredResults {
    task_sets: BTreeMap<NodeId, u8>,
    done: BTreeSet<(NodeId, String)>,
    failed: BTreeSet<(NodeId, String)>,
    set_aside: BTreeSet<NodeId>,
    /// The nodes that hold an empty task set.
    holding_empty_set: BTreeSet<NodeId>,
}

impl TaskResults for StoredResults {
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]> {
        Some([self.task_sets.get(&node).copied().unwrap_or_default(); 32])
    }

    fn completion(&self, node: NodeId, task: &str) -> Completion {
        if self.done.contains(&(node, task.to_owned())) { Completion::Succeeded } else { Completion::Pending }
    }

    fn is_inactive(&self, node: NodeId) -> bool {
        self.set_aside.contains(&node)
    }

    fn has_failed(&self, node: NodeId, task: &str) -> bool {
        self.failed.contains(&(node, task.to_owned()))
    }

    fn is_withheld(&self, node: NodeId) -> bool {
        self.holding_empty_set.contains(&node)
    }

    fn is_released(&self, node: NodeId, _task: &str) -> bool {
        !self.holding_empty_set.contains(&node)
    }
}

fn node(n: u128) -> NodeId {
    NodeId(Uuid::from_u128(n))
}

fn object<S, N>(uuid: Uuid, name: N, spec: S) -> Arc<Object<S>>
where
    S: stemma_core::object::Spec<Name = N>,
{
    Arc::new(Object { meta: Meta::new(uuid, name, Timestamp(0)), spec })
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

impl BarrierSite {
    fn new() -> Self {
        let mut site = Self { fleet: Fleet::new(), results: StoredResults::default() };
        site.put_release("site", &release());
        let spec = ClusterSpec { release: Some(ReleaseRef::new("site").unwrap()), ..ClusterSpec::default() };
        site.apply(FleetChange::Cluster(object(CLUSTER.0, ObjectName::new("c").unwrap(), spec)));
        site.put_group(X, "x", None);
        site.put_group(Y, "y", None);
        (1..=5).for_each(|n| site.put_node(n, Some(X)));
        (6..=8).for_each(|n| site.put_node(n, Some(Y)));
        site
    }

    fn apply(&mut self, change: FleetChange) {
        let _reached = self.fleet.apply(change);
    }

    fn put_release(&mut self, name: &str, spec: &ReleaseSpec) {
        let name = ReleaseRef::new(name).unwrap();
        self.apply(FleetChange::Release(compile(&name, spec, &|_| None, &SyntaxReader).unwrap()));
    }

    fn put_group(&mut self, uuid: u128, role: &str, release: Option<&str>) {
        let roles = vec![Name::new(role).unwrap()];
        let release = release.map(|name| ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { roles, release, ..NodeGroupSpec::new(CLUSTER) };
        self.apply(FleetChange::NodeGroup(object(Uuid::from_u128(uuid), ObjectName::new(role).unwrap(), spec)));
    }

    fn put_node(&mut self, n: u128, group: Option<u128>) {
        let nodegroup = group.map(|group| GroupId(Uuid::from_u128(group)));
        let spec = NodeSpec { nodegroup, ..NodeSpec::default() };
        self.apply(FleetChange::Node(object(node(n).0, Some(NodeName::new(&format!("n{n}")).unwrap()), spec)));
    }

    fn set_reported_state(&mut self, n: u128, said: Option<ReportedState>) {
        self.apply(FleetChange::ReportedState(node(n), said.map(Arc::new)));
    }

    fn set_done(&mut self, n: u128, task: &str, is_done: bool) {
        let key = (node(n), task.to_owned());
        if is_done {
            self.results.done.insert(key)
        } else {
            self.results.done.remove(&key)
        };
    }

    fn wave(&self) -> Wave {
        Wave::new(&self.fleet, CLUSTER, &self.results)
    }

    /// Returns how many barriers are open for n6 in a new wave.
    fn open_barrier_count(&self) -> usize {
        open_barriers(&self.wave()).get(&node(6)).map_or(0, Vec::len)
    }
}

/// Returns the blocked nodes.
fn blocked_nodes(wave: &Wave) -> BTreeSet<NodeId> {
    wave.blocked_nodes(&wave.all_affected()).into_iter().filter(|(_, is_blocked)| *is_blocked).map(|(node, _)| node).collect()
}

/// Returns the open barriers of each node that has barriers.
fn open_barriers(wave: &Wave) -> BTreeMap<NodeId, Vec<String>> {
    let named = wave.open_barriers(&wave.all_affected()).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    named.map(|(node, _, open)| (node, open.iter().map(|one| format!("{one:?}")).collect())).collect()
}

/// Returns the affected nodes that have barriers.
fn notified_nodes(wave: &Wave, affected: &AffectedNodeSet) -> BTreeSet<NodeId> {
    let named = wave.open_barriers(affected).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    named.map(|(node, ..)| node).collect()
}

#[test]
fn result_names_nodes_with_changed_barriers() {
    let mut site = BarrierSite::new();
    let mut kept = site.wave();
    // How many of n6 to n8 are notified. A node is notified if a barrier opens or closes, or if it becomes or stops
    // being the last one that is awaited.
    let steps: [(u128, &str, bool, usize); 13] = [
        (1, "a", true, 3), // Any of a is done.
        (2, "a", false, 0),
        (3, "a", true, 0),
        (4, "a", true, 0),
        (5, "a", true, 0), // Only n2 is left, which does not wait.
        (2, "a", true, 3),
        (2, "a", false, 3),
        (2, "a", true, 3),
        (6, "b", true, 0),
        (7, "b", true, 1), // n8 alone is left, and does not wait for itself.
        (7, "b", false, 1),
        (7, "b", true, 1),
        (8, "b", true, 3),
    ];
    for (n, task, is_done, expected) in steps {
        let what = format!("n{n} {task} {is_done}");
        let before = open_barriers(&kept);
        site.set_done(n, task, is_done);
        let mut affected = AffectedNodeSet::default();
        kept.update_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
        let after = open_barriers(&kept);
        assert_eq!(after, open_barriers(&site.wave()), "{what}");
        let changed: BTreeSet<NodeId> = after.keys().copied().filter(|id| after[id] != before[id]).collect();
        let told = notified_nodes(&kept, &affected);
        assert!(changed.is_subset(&told), "{what}: {changed:?} {told:?}");
        assert!(!affected.is_empty() || told.is_empty(), "{what}");
        assert_eq!(told.is_empty() && !affected.is_empty(), n == 5, "{what}: only then is one left, who does not wait");
        assert_eq!(told.len(), expected, "{what}");
    }
    assert!((6..=8).all(|n| open_barriers(&kept)[&node(n)].len() == 4));
}

#[test]
fn updated_wave_equals_rebuilt_wave() {
    check_updated_wave(BarrierSite::new(), &["a", "b", "e"]);
    let mut site = BarrierSite::new();
    let mut both = release();
    let more = json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    both.tasks.push(serde_json::from_value(more).unwrap());
    site.put_release("site", &both);
    check_updated_wave(site, &["a", "b", "f"]);
}

/// Changes a site at random, with these tasks done or not, and compares its wave with a rebuilt one after each change.
fn check_updated_wave(mut site: BarrierSite, tasks: &[&str; 3]) {
    let mut kept = site.wave();
    let mut times_kept = 0;
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..2_000 {
        let n = u128::from(below(8) + 1);
        let before = open_barriers(&kept);
        let mut affected = AffectedNodeSet::default();
        let blocked_before = blocked_nodes(&kept);
        match below(13) {
            0 => site.put_node(n, Some(X)),
            1 => site.put_node(n, Some(Y)),
            2 => site.put_node(n, None),
            3 => site.apply(FleetChange::RemoveNode(node(n))),
            4 => {
                site.set_reported_state(n, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
            }
            5 => site.set_reported_state(n, None),
            6 => {
                *site.results.task_sets.entry(node(n)).or_default() += 1;
                site.results.done.retain(|(done, _)| *done != node(n));
            }
            7 => drop(site.results.set_aside.insert(node(n))),
            8 => drop(site.results.set_aside.remove(&node(n))),
            9 => drop(site.results.holding_empty_set.insert(node(n))),
            10 => drop(site.results.holding_empty_set.remove(&node(n))),
            _ => {
                let task = tasks[usize::try_from(below(3)).unwrap()];
                let is_done = below(4) > 0;
                site.set_done(n, task, is_done);
                let key = (node(n), task.to_owned());
                if !is_done && below(2) > 0 {
                    site.results.failed.insert(key);
                } else {
                    site.results.failed.remove(&key);
                }
                kept.update_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
        }
        if kept.is_current(&site.fleet) {
            kept.update_node(&site.fleet, &site.results, node(n), &mut affected);
            times_kept += 1;
        } else {
            kept = site.wave();
            affected = kept.all_affected();
        }
        let after = open_barriers(&kept);
        assert_eq!(after, open_barriers(&site.wave()), "step {step}");
        let told = notified_nodes(&kept, &affected);
        let changed = after.keys().copied().filter(|id| before.get(id) != after.get(id));
        assert!(changed.into_iter().all(|id| told.contains(&id)), "step {step}: {before:?} {after:?} {told:?}");
        let (blocked_after, said) = (blocked_nodes(&kept), kept.blocked_nodes(&affected));
        assert_eq!(blocked_after, blocked_nodes(&site.wave()), "y06: step {step}");
        for id in blocked_before.symmetric_difference(&blocked_after) {
            let is_said = said.contains(&(*id, blocked_after.contains(id)));
            assert!(is_said || site.fleet.cluster_of_node(*id).is_none(), "y06: step {step}: {id:?} in {said:?}");
        }
    }
    assert!(times_kept > 1_000, "a wave is made anew where its profiles change, and that is seldom: {times_kept}");
}

#[test]
fn node_waits_for_stage_dependencies_when_behind_stage() {
    let mut site = BarrierSite::new();
    let mut two = release();
    let task = |task: serde_json::Value| serde_json::from_value(task).unwrap();
    let shell = |id: &str, tag: &str, field: &str, stage: &str| {
        task(json!({"id": id, "type": "shell", "tags": [tag], field: [stage], "parameters": {"script": "true"}}))
    };
    two.tasks = vec![
        task(json!({"id": "one", "type": "stage"})),
        task(json!({"id": "two", "type": "stage"})),
        shell("a", "x", "required_for", "one"),
        shell("b", "x", "required_for", "two"),
        shell("d", "y", "requires", "one"),
    ];
    site.put_release("site", &two);
    (1..=5).for_each(|n| site.set_done(n, "b", true));
    assert_eq!(site.open_barrier_count(), 0);
    (1..=5).for_each(|n| site.set_done(n, "a", true));
    assert_eq!(site.open_barrier_count(), 1);
    (1..=5).for_each(|n| site.set_done(n, "b", false));
    assert_eq!(site.open_barrier_count(), 1);
}

/// A dependency can be declared at either end.
#[test]
fn y06_stage_dependency_equals_task_dependency() {
    let shell = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let with = |mut task: serde_json::Value, more: serde_json::Value| {
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(task).unwrap()
    };
    for (stage, before, after) in [
        (json!({}), json!({"required_for": ["one"]}), json!({"requires": ["one"]})),
        (json!({"requires": ["a"]}), json!({}), json!({"requires": ["one"]})),
        (json!({"requires": ["/a/"]}), json!({}), json!({"requires": ["one"]})),
        (json!({"required_for": ["d"]}), json!({"required_for": ["one"]}), json!({})),
        (json!({"requires": ["a"], "required_for": ["/d/"]}), json!({}), json!({})),
    ] {
        let mut site = BarrierSite::new();
        let mut two = release();
        let says = stage.to_string();
        two.tasks =
            vec![with(json!({"id": "one", "type": "stage"}), stage), with(shell("a", "x"), before), with(shell("d", "y"), after)];
        site.put_release("site", &two);
        (1..=4).for_each(|n| site.set_done(n, "a", true));
        assert_eq!(site.open_barrier_count(), 0, "{says}: n5 has not done a");
        site.set_done(5, "a", true);
        assert_eq!(site.open_barrier_count(), 1, "{says}");
    }
}

#[test]
fn barriers_skip_nodes_set_aside() {
    let mut site = BarrierSite::new();
    (1..=4).for_each(|n| site.set_done(n, "a", true));
    assert_eq!(site.open_barrier_count(), 1, "only the one that any node opens: n5 has not done a");
    site.set_reported_state(5, Some(ReportedState { paused: true, ..ReportedState::default() }));
    assert_eq!(site.open_barrier_count(), 1, "a paused one is waited for");
    site.set_reported_state(5, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(site.open_barrier_count(), 3, "a parked one is not");
    site.set_reported_state(5, None);
    assert_eq!(site.open_barrier_count(), 1);
}

#[test]
fn groups_of_different_releases_wait_as_ordered() {
    let mut site = BarrierSite::new();
    let kept = site.wave();
    // The y nodes move to another version, in which the stage waits for one more task.
    let mut next = release();
    let more = json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    next.tasks.push(serde_json::from_value(more).unwrap());
    site.put_release("site@2", &next);
    site.put_group(Y, "y", Some("site@2"));
    assert!(!kept.is_current(&site.fleet));
    let mut kept = site.wave();
    assert_eq!(site.open_barrier_count(), 0, "nobody has done a");
    let mut do_all = |site: &mut BarrierSite, nodes: std::ops::RangeInclusive<u128>, task: &str| {
        for n in nodes {
            site.set_done(n, task, true);
            let tasks = BTreeSet::from([task.to_owned()]);
            kept.update_results(&site.results, node(n), &tasks, &mut AffectedNodeSet::default());
        }
        assert_eq!(open_barriers(&kept), open_barriers(&site.wave()));
    };
    do_all(&mut site, 1..=5, "a");
    assert_eq!(site.open_barrier_count(), 2, "all of a and any of a; the stage waits for f too");
    do_all(&mut site, 6..=8, "f");
    assert_eq!(site.open_barrier_count(), 3);
}

/// b and d wait for a on all nodes, c for a on any node, e for b.
#[test]
fn y06_node_is_blocked_when_awaited_host_cannot_proceed() {
    let y: BTreeSet<NodeId> = (6..=8).map(node).collect();
    let a = |n| (node(n), "a".to_owned());
    let mut site = BarrierSite::new();
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "all of them only wait");
    site.results.failed.insert(a(5));
    assert_eq!(blocked_nodes(&site.wave()), y, "a failed there");
    site.results.failed.clear();
    site.results.set_aside.insert(node(5));
    assert_eq!(blocked_nodes(&site.wave()), y, "it is set aside");
    site.set_done(5, "a", true);
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "it had done it before");
    site.set_done(5, "a", false);
    site.set_reported_state(5, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::new(), "nobody waits for one that is parked");
    site.set_reported_state(5, None);
    site.set_reported_state(6, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]), "nor does one that is parked wait");
    // Only n6 has not finished. The others wait for it, and it does not wait for itself.
    let mut site = BarrierSite::new();
    (1..=5).for_each(|n| site.set_done(n, "a", true));
    (7..=8).for_each(|n| site.set_done(n, "b", true));
    site.results.failed.insert((node(6), "b".to_owned()));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]));
}

/// Only n6 has not finished what comes before its marker. It waits for a host that makes progress.
#[test]
fn y06_node_is_not_blocked_while_awaited_task_can_arrive() {
    let mut site = BarrierSite::new();
    let shell = |id: &str, tag: &str, crosses: serde_json::Value| {
        let parameters = json!({"script": "true"});
        json!({"id": id, "type": "shell", "tags": [tag], "parameters": parameters, "cross_depends": crosses})
    };
    let y: BTreeSet<NodeId> = (6..=8).map(node).collect();
    let on_x = json!([{"name": "a", "tags": ["x"]}]);
    let spec = json!({
        "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}},
        "tasks": [
            shell("a", "x", json!([])),
            shell("c", "y", json!([])),
            {"id": "m", "type": "skipped", "tags": ["y"], "requires": ["c"], "cross_depends": on_x},
            shell("b", "y", json!([{"name": "m", "tags": ["y"]}])),
        ],
    });
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    (7..=8).for_each(|n| site.set_done(n, "c", true));
    site.results.set_aside.insert(node(6));
    assert_eq!(blocked_nodes(&site.wave()), BTreeSet::from([node(7), node(8)]), "n6 waits for a, which is still to come");
    site.results.failed.insert((node(5), "a".to_owned()));
    assert_eq!(blocked_nodes(&site.wave()), y, "a does not come on n5");
}

/// n1 runs a. n2 runs b, which waits for a, and then c. n3 runs d, which waits for c. n4 waits for d on any node, and
/// n5 runs d too. The expected values follow from these dependencies.
fn barrier_chain() -> BarrierSite {
    let mut site = BarrierSite { fleet: Fleet::new(), results: StoredResults::default() };
    let task = |id: &str, tag: &str, more: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
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
    for (n, role) in groups {
        site.put_group(0x10 + n, role, None);
        site.put_node(n, Some(0x10 + n));
    }
    site
}

#[test]
fn y06_node_is_blocked_when_awaited_host_is_blocked() {
    let of = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let all = |site: &BarrierSite| blocked_nodes(&site.wave());
    let mut site = barrier_chain();
    assert_eq!(all(&site), of(&[]), "all of them only wait");
    site.results.failed.insert((node(1), "a".to_owned()));
    assert_eq!(all(&site), of(&[2, 3, 4, 5]), "a failed: b, what comes after b, and who waits for that");
    let mut affected = AffectedNodeSet::default();
    let mut kept = site.wave();
    site.results.failed.clear();
    kept.update_results(&site.results, node(1), &BTreeSet::from(["a".to_owned()]), &mut affected);
    let said: BTreeSet<_> = kept.blocked_nodes(&affected).into_iter().collect();
    assert!([2, 3, 4, 5].iter().all(|n| said.contains(&(node(*n), false))), "each end of the chain is told: {said:?}");
    // b is done on n2, and c failed. So no node waits for a any more.
    site.set_done(1, "a", true);
    site.set_done(2, "b", true);
    site.results.failed.insert((node(2), "c".to_owned()));
    assert_eq!(all(&site), of(&[3, 4, 5]));
    // e needs d on any node only, and one of the two has finished it.
    site.set_done(5, "d", true);
    assert_eq!(all(&site), of(&[3, 5]));
}

#[test]
fn y06_node_is_blocked_when_held_task_set_lacks_task() {
    let of = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let mut site = barrier_chain();
    site.results.holding_empty_set.insert(node(1));
    assert_eq!(blocked_nodes(&site.wave()), of(&[2, 3, 4, 5]));
    site.set_done(1, "a", true);
    assert_eq!(blocked_nodes(&site.wave()), of(&[]), "it had done it before");
    site.set_done(1, "a", false);
    site.set_reported_state(1, Some(ReportedState { parked: Some("x".into()), ..ReportedState::default() }));
    assert_eq!(blocked_nodes(&site.wave()), of(&[]), "nobody waits for one that is parked");
}

#[test]
fn closed_barrier_names_awaited_nodes() {
    let mut site = BarrierSite::new();
    (1..=3).for_each(|n| site.set_done(n, "a", true));
    let profile = Arc::clone(site.fleet.profile(node(6)).unwrap());
    let wave = Wave::for_profiles(&site.fleet, CLUSTER, &site.results, [&profile]);
    let shut: Vec<_> =
        wave.closed_barriers(node(6)).into_iter().map(|at| wave.awaited_nodes(profile.hash, at).into_owned()).collect();
    let left = BTreeSet::from([node(4), node(5)]);
    // b waits for a. d waits for the stage, and so for a. e waits for b on all three nodes.
    assert_eq!(shut.iter().filter(|nodes| **nodes == left).count(), 2, "{shut:?}");
    assert_eq!(shut.iter().filter(|nodes| **nodes == (6..=8).map(node).collect()).count(), 1, "{shut:?}");
}

/// Regression: the marker is on nodes between the two, but was looked up on the awaited node, which does not have that
/// task.
#[test]
fn y06_closed_barrier_lists_tasks_of_awaited_node() {
    const Z: u128 = 0xd;
    let shell = |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let after = |name: &str, tag: &str| json!([{"name": name, "tags": [tag]}]);
    let marker = json!({"id": "m", "type": "skipped", "tags": ["y"], "requires": ["c"], "cross_depends": after("a", "x")});
    let mut last = shell("w", "z");
    last["cross_depends"] = after("m", "y");
    let spec = json!({
        "roles": {"x": {}, "y": {}, "z": {}}, "tags": {"x": {}, "y": {}, "z": {}},
        "tasks": [shell("a", "x"), shell("other", "x"), shell("c", "y"), marker, last],
    });
    let mut site = BarrierSite::new();
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    site.put_group(Z, "z", None);
    site.put_node(9, Some(Z));
    let profile = site.fleet.profile(node(9)).unwrap().hash;
    let awaited = |site: &BarrierSite, n: u128| -> Vec<String> {
        let wave = site.wave();
        let at = wave.closed_barriers(node(9))[0];
        wave.awaited_tasks(profile, at, node(n)).into_iter().map(str::to_owned).collect()
    };
    assert_eq!([1, 6, 9].map(|n| awaited(&site, n)), [vec!["a"], vec!["c"], vec![]]);
    site.set_done(1, "a", true);
    assert_eq!([1, 2, 6].map(|n| awaited(&site, n)), [vec![], vec!["a"], vec!["c"]]);
}

/// The tasks that are done, each with its node.
type DoneTaskList = Vec<(u128, &'static str)>;

/// Regression: tasks before a marker on other nodes were not awaited, because a task that never runs counts as done at
/// once.
#[test]
fn y06_marker_barrier_waits_for_everything_before_marker() {
    let shell = |id: &str, tag: &str, more: serde_json::Value| {
        let mut task = json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let marker = |id: &str, tag: &str, more: serde_json::Value| {
        let mut task = json!({"id": id, "type": "skipped", "tags": [tag]});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let a = || shell("a", "x", json!({}));
    let on_x = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["x"]}]});
    let on_y = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["y"]}]});
    let any_of_x = |name: &str| json!({"cross_depends": [{"name": name, "tags": ["x"], "policy": "any"}]});
    let requires = |name: &str| json!({"requires": [name]});
    // The tasks, then those that are done: first too few, then enough. The last task is one of n6 to n8, and waits.
    let cases: Vec<(&str, Vec<serde_json::Value>, DoneTaskList, DoneTaskList)> = vec![
        (
            "one",
            vec![a(), marker("m", "x", requires("a")), shell("b", "y", on_x("m"))],
            (1..=4).map(|n| (n, "a")).collect(),
            vec![(5, "a")],
        ),
        (
            "of two in a row",
            vec![a(), marker("m", "x", requires("a")), marker("n", "x", requires("m")), shell("b", "y", on_x("n"))],
            (1..=4).map(|n| (n, "a")).collect(),
            vec![(5, "a")],
        ),
        (
            "of required_for",
            vec![shell("a", "x", json!({"required_for": ["m"]})), marker("m", "x", json!({})), shell("b", "y", on_x("m"))],
            vec![(1, "a")],
            (2..=5).map(|n| (n, "a")).collect(),
        ),
        (
            "any of them",
            vec![a(), marker("m", "x", requires("a")), shell("b", "y", any_of_x("m"))],
            vec![(6, "a")],
            vec![(3, "a")],
        ),
        (
            "by a stage",
            vec![
                json!({"id": "s", "type": "stage"}),
                a(),
                marker("m", "x", json!({"requires": ["a"], "required_for": ["s"]})),
                shell("b", "y", requires("s")),
            ],
            vec![(1, "a")],
            (2..=5).map(|n| (n, "a")).collect(),
        ),
        (
            "of two nodes away",
            vec![a(), marker("m", "y", on_x("a")), marker("n", "x", on_y("m")), shell("b", "y", on_x("n"))],
            vec![(1, "a")],
            (2..=5).map(|n| (n, "a")).collect(),
        ),
        (
            "that waits for who waits",
            vec![shell("a", "y", json!({})), marker("m", "x", on_y("a")), shell("b", "y", on_x("m"))],
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
        ("with nothing before it", vec![marker("m", "x", json!({})), a(), shell("b", "y", on_x("m"))], vec![], vec![]),
    ];
    for (what, tasks, in_vain, enough) in cases {
        let mut site = BarrierSite::new();
        let spec = json!({"roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}, "tasks": tasks});
        site.put_release("site", &serde_json::from_value(spec).unwrap());
        let of_6 = |wave: &Wave| wave.closed_barriers(node(6)).is_empty();
        let mut kept = site.wave();
        for (is_open, done) in [(enough.is_empty(), in_vain), (true, enough)] {
            for (n, task) in done {
                site.set_done(n, task, true);
                let mut affected = AffectedNodeSet::default();
                kept.update_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
            assert_eq!((of_6(&site.wave()), of_6(&kept)), (is_open, is_open), "a marker {what}");
        }
    }
}

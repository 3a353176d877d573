//! A wave that is kept from change to change says what one says that is built for the state it has come to, and names everyone for
//! whom a barrier opens or shuts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use stemma_author::Reader;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{
    ClusterId, ClusterSpec, GroupId, Meta, NodeGroupSpec, NodeId, NodeSpec, Object, ReleaseSpec, SaidOnHost, Timestamp,
};
use stemma_core::release::compile;
use stemma_core::rollout::{Affected, Done, TaskResults, Wave};
use uuid::Uuid;

const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0xc));
const X: u128 = 0xa;
const Y: u128 = 0xb;

/// Five nodes with a, three that wait for it in four ways.
struct Site {
    fleet: Fleet,
    results: Results,
}

#[derive(Default)]
struct Results {
    task_sets: BTreeMap<NodeId, u8>,
    done: BTreeSet<(NodeId, String)>,
    failed: BTreeSet<(NodeId, String)>,
    aside: BTreeSet<NodeId>,
    /// Those that keep a task set in which there is nothing.
    kept: BTreeSet<NodeId>,
}

impl TaskResults for Results {
    fn task_set(&self, node: NodeId) -> Option<[u8; 32]> {
        Some([self.task_sets.get(&node).copied().unwrap_or_default(); 32])
    }

    fn done(&self, node: NodeId, task: &str) -> Done {
        if self.done.contains(&(node, task.to_owned())) { Done::Succeeded } else { Done::NotYet }
    }

    fn is_set_aside(&self, node: NodeId) -> bool {
        self.aside.contains(&node)
    }

    fn has_failed(&self, node: NodeId, task: &str) -> bool {
        self.failed.contains(&(node, task.to_owned()))
    }

    fn keeps_its_set(&self, node: NodeId) -> bool {
        self.kept.contains(&node)
    }

    fn was_released(&self, node: NodeId, _task: &str) -> bool {
        !self.kept.contains(&node)
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

impl Site {
    fn new() -> Self {
        let mut site = Self { fleet: Fleet::new(), results: Results::default() };
        site.put_release("site", &release());
        let spec = ClusterSpec { release: Some(ReleaseRef::new("site").unwrap()), ..ClusterSpec::default() };
        site.apply(Change::Cluster(object(CLUSTER.0, ObjectName::new("c").unwrap(), spec)));
        site.put_group(X, "x", None);
        site.put_group(Y, "y", None);
        (1..=5).for_each(|n| site.put_node(n, Some(X)));
        (6..=8).for_each(|n| site.put_node(n, Some(Y)));
        site
    }

    fn apply(&mut self, change: Change) {
        let _reached = self.fleet.apply(change);
    }

    fn put_release(&mut self, name: &str, spec: &ReleaseSpec) {
        let name = ReleaseRef::new(name).unwrap();
        self.apply(Change::Release(compile(&name, spec, &|_| None, &Reader).unwrap()));
    }

    fn put_group(&mut self, uuid: u128, role: &str, release: Option<&str>) {
        let roles = vec![Name::new(role).unwrap()];
        let release = release.map(|name| ReleaseRef::new(name).unwrap());
        let spec = NodeGroupSpec { roles, release, ..NodeGroupSpec::new(CLUSTER) };
        self.apply(Change::NodeGroup(object(Uuid::from_u128(uuid), ObjectName::new(role).unwrap(), spec)));
    }

    fn put_node(&mut self, n: u128, group: Option<u128>) {
        let nodegroup = group.map(|group| GroupId(Uuid::from_u128(group)));
        let spec = NodeSpec { nodegroup, ..NodeSpec::default() };
        self.apply(Change::Node(object(node(n).0, Some(NodeName::new(&format!("n{n}")).unwrap()), spec)));
    }

    fn say(&mut self, n: u128, said: Option<SaidOnHost>) {
        self.apply(Change::Said(node(n), said.map(Arc::new)));
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

    /// How many barriers are open for n6 in a wave that is built now.
    fn open_for_6(&self) -> usize {
        open(&self.wave()).get(&node(6)).map_or(0, Vec::len)
    }
}

/// The nodes that are blocked.
fn blocked(wave: &Wave) -> BTreeSet<NodeId> {
    wave.blocked(&wave.everyone()).into_iter().filter(|(_, is_blocked)| *is_blocked).map(|(node, _)| node).collect()
}

/// Which barriers are open for each node that waits at some.
fn open(wave: &Wave) -> BTreeMap<NodeId, Vec<String>> {
    let named = wave.open(&wave.everyone()).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    named.map(|(node, _, open)| (node, open.iter().map(|one| format!("{one:?}")).collect())).collect()
}

/// The nodes with barriers that are to be told.
fn told(wave: &Wave, affected: &Affected) -> BTreeSet<NodeId> {
    let named = wave.open(affected).into_iter().filter(|(_, profile, _)| !profile.barriers.is_empty());
    named.map(|(node, ..)| node).collect()
}

#[test]
fn a_result_names_those_for_whom_a_barrier_opens_or_shuts_and_no_others() {
    let mut site = Site::new();
    let mut kept = site.wave();
    // Of n6 to n8, how many are told: those who wait when a barrier opens or shuts, and who is the last that is waited for.
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
        let before = open(&kept);
        site.set_done(n, task, is_done);
        let mut affected = Affected::default();
        kept.put_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
        let after = open(&kept);
        assert_eq!(after, open(&site.wave()), "{what}");
        let changed: BTreeSet<NodeId> = after.keys().copied().filter(|id| after[id] != before[id]).collect();
        let told = told(&kept, &affected);
        assert!(changed.is_subset(&told), "{what}: {changed:?} {told:?}");
        assert!(!affected.is_empty() || told.is_empty(), "{what}");
        assert_eq!(told.is_empty() && !affected.is_empty(), n == 5, "{what}: only then is one left, who does not wait");
        assert_eq!(told.len(), expected, "{what}");
    }
    assert!((6..=8).all(|n| open(&kept)[&node(n)].len() == 4));
}

#[test]
fn a_wave_that_is_kept_says_what_a_new_one_says_whatever_happens() {
    keeps_a_wave(Site::new(), &["a", "b", "e"]);
    let mut site = Site::new();
    let mut both = release();
    let more =
        json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    both.tasks.push(serde_json::from_value(more).unwrap());
    site.put_release("site", &both);
    keeps_a_wave(site, &["a", "b", "f"]);
}

/// Changes a site in ways of chance, where these tasks are done or not, and holds its wave to one that is built anew after each.
fn keeps_a_wave(mut site: Site, tasks: &[&str; 3]) {
    let mut kept = site.wave();
    let mut times_kept = 0;
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..2_000 {
        let n = u128::from(below(8) + 1);
        let before = open(&kept);
        let mut affected = Affected::default();
        let blocked_before = blocked(&kept);
        match below(13) {
            0 => site.put_node(n, Some(X)),
            1 => site.put_node(n, Some(Y)),
            2 => site.put_node(n, None),
            3 => site.apply(Change::RemoveNode(node(n))),
            4 => site.say(n, Some(SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() })),
            5 => site.say(n, None),
            6 => {
                *site.results.task_sets.entry(node(n)).or_default() += 1;
                site.results.done.retain(|(done, _)| *done != node(n));
            }
            7 => drop(site.results.aside.insert(node(n))),
            8 => drop(site.results.aside.remove(&node(n))),
            9 => drop(site.results.kept.insert(node(n))),
            10 => drop(site.results.kept.remove(&node(n))),
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
                kept.put_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
        }
        if kept.is_current(&site.fleet) {
            kept.put_node(&site.fleet, &site.results, node(n), &mut affected);
            times_kept += 1;
        } else {
            kept = site.wave();
            affected = kept.everyone();
        }
        let after = open(&kept);
        assert_eq!(after, open(&site.wave()), "step {step}");
        let told = told(&kept, &affected);
        let changed = after.keys().copied().filter(|id| before.get(id) != after.get(id));
        assert!(changed.into_iter().all(|id| told.contains(&id)), "step {step}: {before:?} {after:?} {told:?}");
        let (blocked_after, said) = (blocked(&kept), kept.blocked(&affected));
        assert_eq!(blocked_after, blocked(&site.wave()), "y06: step {step}");
        for id in blocked_before.symmetric_difference(&blocked_after) {
            let is_said = said.contains(&(*id, blocked_after.contains(id)));
            assert!(is_said || site.fleet.cluster_of_node(*id).is_none(), "y06: step {step}: {id:?} in {said:?}");
        }
    }
    assert!(times_kept > 1_000, "a wave is made anew where its profiles change, and that is seldom: {times_kept}");
}

#[test]
fn who_waits_for_a_stage_waits_for_what_that_stage_waits_for_and_no_other() {
    let mut site = Site::new();
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
    assert_eq!(site.open_for_6(), 0);
    (1..=5).for_each(|n| site.set_done(n, "a", true));
    assert_eq!(site.open_for_6(), 1);
    (1..=5).for_each(|n| site.set_done(n, "b", false));
    assert_eq!(site.open_for_6(), 1);
}

/// One dependency can be said at either of its ends.
#[test]
fn y06_what_a_stage_says_of_tasks_holds_as_what_they_say_of_it() {
    let shell =
        |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
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
        let mut site = Site::new();
        let mut two = release();
        let says = stage.to_string();
        two.tasks = vec![
            with(json!({"id": "one", "type": "stage"}), stage),
            with(shell("a", "x"), before),
            with(shell("d", "y"), after),
        ];
        site.put_release("site", &two);
        (1..=4).for_each(|n| site.set_done(n, "a", true));
        assert_eq!(site.open_for_6(), 0, "{says}: n5 has not done a");
        site.set_done(5, "a", true);
        assert_eq!(site.open_for_6(), 1, "{says}");
    }
}

#[test]
fn who_stands_outside_is_not_waited_for() {
    let mut site = Site::new();
    (1..=4).for_each(|n| site.set_done(n, "a", true));
    assert_eq!(site.open_for_6(), 1, "only the one that any node opens: n5 has not done a");
    site.say(5, Some(SaidOnHost { paused: true, ..SaidOnHost::default() }));
    assert_eq!(site.open_for_6(), 1, "a paused one is waited for");
    site.say(5, Some(SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() }));
    assert_eq!(site.open_for_6(), 3, "a parked one is not");
    site.say(5, None);
    assert_eq!(site.open_for_6(), 1);
}

#[test]
fn groups_that_run_different_releases_wait_for_each_other_as_the_order_says() {
    let mut site = Site::new();
    let kept = site.wave();
    // The y nodes go on to another version, in which the stage waits for one more task.
    let mut next = release();
    let more =
        json!({"id": "f", "type": "shell", "tags": ["y"], "required_for": ["pre"], "parameters": {"script": "true"}});
    next.tasks.push(serde_json::from_value(more).unwrap());
    site.put_release("site@2", &next);
    site.put_group(Y, "y", Some("site@2"));
    assert!(!kept.is_current(&site.fleet));
    let mut kept = site.wave();
    assert_eq!(site.open_for_6(), 0, "nobody has done a");
    let mut do_all = |site: &mut Site, nodes: std::ops::RangeInclusive<u128>, task: &str| {
        for n in nodes {
            site.set_done(n, task, true);
            let tasks = BTreeSet::from([task.to_owned()]);
            kept.put_results(&site.results, node(n), &tasks, &mut Affected::default());
        }
        assert_eq!(open(&kept), open(&site.wave()));
    };
    do_all(&mut site, 1..=5, "a");
    assert_eq!(site.open_for_6(), 2, "all of a and any of a; the stage waits for f too");
    do_all(&mut site, 6..=8, "f");
    assert_eq!(site.open_for_6(), 3);
}

/// b and d wait for a of all, c for a of any, e for b.
#[test]
fn y06_who_waits_for_a_host_that_will_not_do_it_by_itself_is_blocked() {
    let y: BTreeSet<NodeId> = (6..=8).map(node).collect();
    let a = |n| (node(n), "a".to_owned());
    let mut site = Site::new();
    assert_eq!(blocked(&site.wave()), BTreeSet::new(), "all of them only wait");
    site.results.failed.insert(a(5));
    assert_eq!(blocked(&site.wave()), y, "a failed there");
    site.results.failed.clear();
    site.results.aside.insert(node(5));
    assert_eq!(blocked(&site.wave()), y, "it is set aside");
    site.set_done(5, "a", true);
    assert_eq!(blocked(&site.wave()), BTreeSet::new(), "it had done it before");
    site.set_done(5, "a", false);
    site.say(5, Some(SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() }));
    assert_eq!(blocked(&site.wave()), BTreeSet::new(), "nobody waits for one that is parked");
    site.say(5, None);
    site.say(6, Some(SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() }));
    assert_eq!(blocked(&site.wave()), BTreeSet::from([node(7), node(8)]), "nor does one that is parked wait");
    // n6 alone is behind: the others wait for it, and it does not wait for itself.
    let mut site = Site::new();
    (1..=5).for_each(|n| site.set_done(n, "a", true));
    (7..=8).for_each(|n| site.set_done(n, "b", true));
    site.results.failed.insert((node(6), "b".to_owned()));
    assert_eq!(blocked(&site.wave()), BTreeSet::from([node(7), node(8)]));
}

/// n6 alone has not done what comes before its marker, and waits itself for a host that does its part.
#[test]
fn y06_who_alone_is_waited_for_in_vain_is_not_blocked_while_what_it_waits_for_comes() {
    let mut site = Site::new();
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
    site.results.aside.insert(node(6));
    assert_eq!(blocked(&site.wave()), BTreeSet::from([node(7), node(8)]), "n6 waits for a, which is still to come");
    site.results.failed.insert((node(5), "a".to_owned()));
    assert_eq!(blocked(&site.wave()), y, "a does not come on n5");
}

/// n1 does a; n2 waits with b for a; n3 waits with d for c, which n2 runs after b; n4 waits for d on any node, and n5 has d too. What is expected
/// follows from who waits for whom.
fn chain() -> Site {
    let mut site = Site { fleet: Fleet::new(), results: Results::default() };
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
    site.apply(Change::Cluster(object(CLUSTER.0, ObjectName::new("c").unwrap(), spec)));
    for (n, role) in groups {
        site.put_group(0x10 + n, role, None);
        site.put_node(n, Some(0x10 + n));
    }
    site
}

#[test]
fn y06_who_waits_for_a_host_that_is_blocked_itself_is_blocked() {
    let of = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let all = |site: &Site| blocked(&site.wave());
    let mut site = chain();
    assert_eq!(all(&site), of(&[]), "all of them only wait");
    site.results.failed.insert((node(1), "a".to_owned()));
    assert_eq!(all(&site), of(&[2, 3, 4, 5]), "a failed: b, what comes after b, and who waits for that");
    let mut affected = Affected::default();
    let mut kept = site.wave();
    site.results.failed.clear();
    kept.put_results(&site.results, node(1), &BTreeSet::from(["a".to_owned()]), &mut affected);
    let said: BTreeSet<_> = kept.blocked(&affected).into_iter().collect();
    assert!([2, 3, 4, 5].iter().all(|n| said.contains(&(node(*n), false))), "each end of the chain is told: {said:?}");
    // b is done there, and c failed: who waits for a waits for nobody.
    site.set_done(1, "a", true);
    site.set_done(2, "b", true);
    site.results.failed.insert((node(2), "c".to_owned()));
    assert_eq!(all(&site), of(&[3, 4, 5]));
    // Any node is enough for e: one of the two does d.
    site.set_done(5, "d", true);
    assert_eq!(all(&site), of(&[3, 5]));
}

#[test]
fn y06_who_waits_for_a_task_that_a_kept_task_set_lacks_is_blocked() {
    let of = |nodes: &[u128]| nodes.iter().copied().map(node).collect::<BTreeSet<_>>();
    let mut site = chain();
    site.results.kept.insert(node(1));
    assert_eq!(blocked(&site.wave()), of(&[2, 3, 4, 5]));
    site.set_done(1, "a", true);
    assert_eq!(blocked(&site.wave()), of(&[]), "it had done it before");
    site.set_done(1, "a", false);
    site.say(1, Some(SaidOnHost { parked: Some("x".into()), ..SaidOnHost::default() }));
    assert_eq!(blocked(&site.wave()), of(&[]), "nobody waits for one that is parked");
}

#[test]
fn a_barrier_that_is_shut_names_whom_it_waits_for() {
    let mut site = Site::new();
    (1..=3).for_each(|n| site.set_done(n, "a", true));
    let profile = Arc::clone(site.fleet.profile(node(6)).unwrap());
    let wave = Wave::of_profiles(&site.fleet, CLUSTER, &site.results, [&profile]);
    let shut: Vec<_> =
        wave.shut_places(node(6)).into_iter().map(|at| wave.awaited(profile.hash, at).into_owned()).collect();
    let left = BTreeSet::from([node(4), node(5)]);
    // b waits for a; d for the stage, and so for a; e for b on all three.
    assert_eq!(shut.iter().filter(|nodes| **nodes == left).count(), 2, "{shut:?}");
    assert_eq!(shut.iter().filter(|nodes| **nodes == (6..=8).map(node).collect()).count(), 1, "{shut:?}");
}

/// The marker stands on nodes between the two: it was looked for on the node that is waited for, which has no such task.
#[test]
fn y06_the_tasks_that_a_barrier_waits_for_are_those_of_the_node_that_is_waited_for() {
    const Z: u128 = 0xd;
    let shell =
        |id: &str, tag: &str| json!({"id": id, "type": "shell", "tags": [tag], "parameters": {"script": "true"}});
    let after = |name: &str, tag: &str| json!([{"name": name, "tags": [tag]}]);
    let marker =
        json!({"id": "m", "type": "skipped", "tags": ["y"], "requires": ["c"], "cross_depends": after("a", "x")});
    let mut last = shell("w", "z");
    last["cross_depends"] = after("m", "y");
    let spec = json!({
        "roles": {"x": {}, "y": {}, "z": {}}, "tags": {"x": {}, "y": {}, "z": {}},
        "tasks": [shell("a", "x"), shell("other", "x"), shell("c", "y"), marker, last],
    });
    let mut site = Site::new();
    site.put_release("site", &serde_json::from_value(spec).unwrap());
    site.put_group(Z, "z", None);
    site.put_node(9, Some(Z));
    let profile = site.fleet.profile(node(9)).unwrap().hash;
    let awaited = |site: &Site, n: u128| -> Vec<String> {
        let wave = site.wave();
        let at = wave.shut_places(node(9))[0];
        wave.awaited_tasks(profile, at, node(n)).into_iter().map(str::to_owned).collect()
    };
    assert_eq!([1, 6, 9].map(|n| awaited(&site, n)), [vec!["a"], vec!["c"], vec![]]);
    site.set_done(1, "a", true);
    assert_eq!([1, 2, 6].map(|n| awaited(&site, n)), [vec![], vec!["a"], vec!["c"]]);
}

/// The tasks that are done, each with its node.
type DoneTasks = Vec<(u128, &'static str)>;

/// What came before a marker on other nodes was not waited for: a task that never runs is done at once.
#[test]
fn y06_who_waits_for_a_marker_waits_for_all_that_is_before_it() {
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
    // The tasks; what is done, first in vain and then enough. The last task is one of n6 to n8, and waits.
    let cases: Vec<(&str, Vec<serde_json::Value>, DoneTasks, DoneTasks)> = vec![
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
            vec![
                shell("a", "x", json!({"required_for": ["m"]})),
                marker("m", "x", json!({})),
                shell("b", "y", on_x("m")),
            ],
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
        let mut site = Site::new();
        let spec = json!({"roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}, "tasks": tasks});
        site.put_release("site", &serde_json::from_value(spec).unwrap());
        let of_6 = |wave: &Wave| wave.shut_places(node(6)).is_empty();
        let mut kept = site.wave();
        for (is_open, done) in [(enough.is_empty(), in_vain), (true, enough)] {
            for (n, task) in done {
                site.set_done(n, task, true);
                let mut affected = Affected::default();
                kept.put_results(&site.results, node(n), &BTreeSet::from([task.to_owned()]), &mut affected);
            }
            assert_eq!((of_6(&site.wave()), of_6(&kept)), (is_open, is_open), "a marker {what}");
        }
    }
}

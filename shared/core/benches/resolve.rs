//! Measurements of resolve: `cargo bench -p stemma-core --bench resolve`.
//!
//! The bench measures CPU time of this thread, as the kernel counts it, and resident memory. It reads Fuel's library
//! from the shared material. Without the library it measures only the inspection rules, and prints the reason.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench reads what the kernel counts; core itself reads no file")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::digest::TaskDigest;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::graph::ClusterGraph;
use stemma_core::inspection::InspectedNode;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::labels::{LabelLayer, ParameterLayer, ParameterValue};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, FactMap, GroupId, Inherited, Meta, Node, NodeGroupSpec, NodeId, NodeSpec,
    Object, Observation, ReleaseSpec, TemplateId, Timestamp, TraitSet,
};
use stemma_core::ownership::{Intent, Manager, OwnedMap, ProvidedValue};
use stemma_core::release::{CompiledRelease, compile, fuel};
use stemma_core::resolve::{Resolution, ResolveCache, ResolvedNode, resolve_cluster, resolve_node};
use stemma_core::task::Task;
use stemma_core::traits::Trait;
use uuid::Uuid;

const GROUP_COUNT: u128 = 200;
const CLUSTER_COUNT: u128 = 20;

/// Runs the benchmarks and prints their results. All but the first need the file with Fuel's tasks, which lies outside
/// of this repository. Without the file, only the first one runs.
fn main() {
    println!("1,000 inspection rules asked of a report: {:.0} us", bench_rules_per_report());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/fuel/fuel_library_tasks.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("nothing measured: {path} is not there");
        return;
    };
    let file: Value = serde_json::from_str(&text).expect("the library is JSON");
    let library = parse_library(&file);
    bench_two_hundred_nodes(&library);
    let release = compile_release(&with_conditions_and_templates(library));
    let edit_small = bench_single_edit(&release, 100);
    let (edit_large, nodes) = bench_large_fleet(&release);
    println!("one node edited: {edit_small:.1} us in a fleet of 100, {edit_large:.1} us in one of {nodes}");
    println!("                 factor {:.2}", edit_large / edit_small);
    bench_cluster_growth(&compile_release(&with_lookup_task(with_conditions_and_templates(parse_library(&file)))));
}

/// Runs a thousand inspection rules with two conditions each on one report. The conditions of one rule in twenty are
/// met. Returns the CPU time in microseconds.
fn bench_rules_per_report() -> f64 {
    let mut fleet = Fleet::new();
    for number in 0..1_000_u32 {
        let regex = if number % 20 == 0 { "EPYC" } else { "Xeon" };
        let spec = json!({
            "priority": number,
            "conditions": [
                {"op": "gt", "args": {"values": ["{inventory[cpu][count]}", "1"]}},
                {"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": regex}},
            ],
            "actions": [{"op": "set-plugin-data", "args": {"path": "last", "value": "{node.name}"}}, {"op": "add-trait", "args": {"name": format!("CUSTOM_{}", number % 40)}}],
        });
        let spec = serde_json::from_value(spec).expect("a rule");
        fleet.apply(FleetChange::Rule(Arc::new(Object { meta: meta(u128::from(number), None), spec })));
    }
    let facts = json!({"cpu": {"count": 8, "model": "AMD EPYC 7702P 64-Core Processor"}, "hostname": "n1"});
    let observation = Observation { facts: FactMap::from_tree(facts.as_object().expect("facts")), ..Observation::default() };
    let node = Node { meta: meta(1, NodeName::new("n1").ok()), spec: NodeSpec::default() };
    let (outcome, us) = measure(|| fleet.rules().run(&InspectedNode::new(&node, &observation)));
    // The numbers of the rules that match are multiples of 20, so modulo 40 they give two traits only.
    assert_eq!(outcome.traits.len(), 2);
    us
}

fn parse_library(file: &Value) -> ReleaseSpec {
    fuel::import_file(file, "default").expect("the library is read").spec
}

/// Returns the CPU time of this thread, in microseconds. The kernel prints it in nanoseconds, as the first field of
/// `schedstat`.
fn cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts CPU");
    let ns: f64 = text.split(' ').next().expect("a first field").parse().expect("a number");
    ns / 1000.0
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("the kernel counts memory");
    text.split(' ').nth(1).expect("a second field").parse::<usize>().expect("a number") * 4096
}

/// Runs `work`. Returns its result, and its CPU time in microseconds.
fn measure<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start_us = cpu_us();
    let result = work();
    (result, cpu_us() - start_us)
}

fn release_name() -> ReleaseRef {
    "fuel@1".parse().expect("a release's name")
}

fn compile_release(spec: &ReleaseSpec) -> Arc<CompiledRelease> {
    compile(&release_name(), spec, &|_| None, &SyntaxReader).expect("the library compiles")
}

/// Sets a condition on 20 tasks of type `puppet`, and adds 10 tasks with a template that has 3 references. In the fleet
/// of `build_fleet`, each of the four labels that they read comes from another level.
fn with_conditions_and_templates(mut library: ReleaseSpec) -> ReleaseSpec {
    let mut puppet_tasks = library.tasks.iter_mut().filter(|task| task.kind == "puppet");
    for (index, task) in puppet_tasks.by_ref().take(20).enumerate() {
        let label = ["tier", "zone", "pool", "rack"][index % 4];
        task.condition = Some(format!("has(labels.{label}) && labels.{label} != 'none{index}'"));
    }
    for index in 0..10 {
        let mut task = Task::new(format!("conf-{index}"), "file");
        task.tags = Some(vec!["/.*/".into()]);
        let label = ["tier", "zone", "pool", "rack"][index % 4];
        let text = format!("{{{{ labels.{label} }}}} {{{{ params.p{index}.size }}}} {{{{ facts.os.id }}}}");
        task.parameters.insert("path".into(), json!(format!("/etc/conf-{index}")));
        task.parameters.insert("template".into(), json!(text));
        library.tasks.push(task);
    }
    library
}

/// Returns the metadata of an object that was created at time 0. `id` is its uuid as a number.
fn meta<N>(id: u128, name: N) -> Meta<N> {
    Meta::new(Uuid::from_u128(id), name, Timestamp(0))
}

fn object_name(text: &str) -> ObjectName {
    ObjectName::new(text).expect("a name")
}

/// Returns the labels that one level of the fleet provides. They are added to the labels that the level inherits.
fn labels(pairs: &[(&str, String)]) -> LabelLayer {
    let provided_entry = |(key, value): &(&str, String)| {
        (LabelKey::new(key).expect("a key"), ProvidedValue::Value(LabelValue::new(value).expect("a value")))
    };
    let intent: Intent<LabelKey, LabelValue> = pairs.iter().map(provided_entry).collect();
    LabelLayer { provided: Some(OwnedMap::default().update(&manager(), &intent)), merge: Some(true) }
}

fn manager() -> Manager {
    thread_local!(static MANAGER: Manager = Manager::new("bench").expect("a manager"));
    MANAGER.with(Clone::clone)
}

/// Returns ten parameters that the bench's manager provides at one level.
fn parameters() -> ParameterLayer {
    let intent: BTreeMap<LabelKey, ProvidedValue<ParameterValue>> = (0..10)
        .map(|index| {
            let value = ParameterValue::new(json!({"size": index, "list": [1, 2, 3]})).expect("a parameter");
            (LabelKey::new(&format!("p{index}")).expect("a key"), ProvidedValue::Value(value))
        })
        .collect();
    ParameterLayer { provided: Some(OwnedMap::default().update(&manager(), &intent)), merge: Some(true) }
}

/// Measures how long it takes to add 200 nodes to a cluster with Fuel's library, to resolve the cluster, and to compute
/// the order of its tasks. Prints the mean CPU time of several rounds.
fn bench_two_hundred_nodes(library: &ReleaseSpec) {
    const ROUNDS: u32 = 50;
    let release = compile_release(library);
    let roles = |index: u128| match index {
        0..3 => "controller",
        3..163 => "compute",
        _ => "ceph-osd",
    };
    let mut total_us = 0.0;
    let mut counts = (0, 0);
    for _ in 0..ROUNDS {
        let mut fleet = Fleet::new();
        let cluster = ClusterId(Uuid::from_u128(1));
        let spec = ClusterSpec { release: Some(release_name()), ..ClusterSpec::default() };
        let group = GroupId(Uuid::from_u128(2));
        fleet.apply(FleetChange::Release(Arc::clone(&release)));
        fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(1, object_name("c")), spec })));
        let spec = NodeGroupSpec::new(cluster);
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object { meta: meta(2, object_name("g")), spec })));
        fleet.set_loaded();
        let nodes: Vec<Arc<Node>> = (0..200)
            .map(|index| {
                let spec = NodeSpec {
                    nodegroup: Some(group),
                    roles: vec![Name::new(roles(index)).expect("a role")],
                    ..NodeSpec::default()
                };
                Arc::new(Object { meta: meta(100 + index, NodeName::new(&format!("n{index}")).ok()), spec })
            })
            .collect();
        let cache = ResolveCache::new();
        let (graph, round_us) = measure(|| {
            fleet.apply_all(nodes.into_iter().map(FleetChange::Node));
            resolve_cluster(&fleet, &cache, cluster);
            ClusterGraph::from_fleet(&fleet, cluster)
        });
        total_us += round_us;
        let instances: usize = graph.classes.iter().map(|class| class.nodes.len() * class.profile.tasks.len()).sum();
        counts = (instances + graph.stages.len(), graph.order_pairs().len());
    }
    println!(
        "Fuel's library on 200 nodes: {} instances, {} pairs: {:.2} ms",
        counts.0,
        counts.1,
        total_us / 1000.0 / f64::from(ROUNDS)
    );
}

/// Returns the inherited fields of a level that provides only labels.
fn inherited(labels: LabelLayer) -> Inherited {
    Inherited { labels, ..Inherited::default() }
}

/// Builds a fleet of one template, 20 clusters, 200 groups, and `nodes` nodes that are spread over the groups. The
/// uuids, as numbers, are 1 for the template, from 1000 for clusters, from 2000 for groups and from 10,000 for nodes.
fn build_fleet(release: &Arc<CompiledRelease>, nodes: u128) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.apply(FleetChange::Release(Arc::clone(release)));
    let site_labels: Vec<(String, String)> =
        (0..20).map(|index| (format!("site.example/k{index}"), format!("value-{index}"))).collect();
    let mut template_labels: Vec<(&str, String)> = site_labels.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    template_labels.push(("tier", "standard".into()));
    let mut template_fields = inherited(labels(&template_labels));
    template_fields.parameters = parameters();
    let spec =
        ClusterTemplateSpec { inherited: template_fields, release: Some(release_name()), ..ClusterTemplateSpec::default() };
    fleet.apply(FleetChange::Template(Arc::new(Object { meta: meta(1, object_name("base")), spec })));
    for index in 0..CLUSTER_COUNT {
        let spec = ClusterSpec {
            cluster_template: Some(TemplateId(Uuid::from_u128(1))),
            inherited: inherited(labels(&[("zone", format!("z{index}"))])),
            ..ClusterSpec::default()
        };
        fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(1000 + index, object_name(&format!("c{index}"))), spec })));
    }
    for index in 0..GROUP_COUNT {
        let role = match index / CLUSTER_COUNT {
            0 => "controller",
            1 | 2 => "ceph-osd",
            _ => "compute",
        };
        let spec = NodeGroupSpec {
            inherited: inherited(labels(&[("pool", format!("p{index}"))])),
            roles: vec![Name::new(role).expect("a role")],
            ..NodeGroupSpec::new(ClusterId(Uuid::from_u128(1000 + index % CLUSTER_COUNT)))
        };
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object {
            meta: meta(2000 + index, object_name(&format!("g{index}"))),
            spec,
        })));
    }
    for index in 0..nodes {
        fleet.apply(FleetChange::Node(build_node(index, "r")));
        fleet.apply(FleetChange::Observation(NodeId(Uuid::from_u128(10_000 + index)), build_observation(index)));
    }
    fleet.set_loaded();
    fleet
}

/// Builds the node with this number. The value of its label `rack` is the argument `rack`, followed by a number from 0
/// to 39 that changes after every 200 nodes. So a group has up to 40 such values.
fn build_node(index: u128, rack: &str) -> Arc<Node> {
    let spec = NodeSpec {
        nodegroup: Some(GroupId(Uuid::from_u128(2000 + index % GROUP_COUNT))),
        inherited: inherited(labels(&[("rack", format!("{rack}{}", index / GROUP_COUNT % 40))])),
        ..NodeSpec::default()
    };
    Arc::new(Object { meta: meta(10_000 + index, NodeName::new(&format!("node-{index}")).ok()), spec })
}

/// Builds the observation of the node with this number: the facts of a usual host, and 14 traits.
fn build_observation(index: u128) -> Arc<Observation> {
    let address = format!("10.{}.{}.{}", index >> 16 & 255, index >> 8 & 255, index & 255);
    let facts = FactMap::from_tree(
        json!({
            "architecture": "x86_64",
            "cpu": {"cores": 8, "count": 16, "model": "Some Processor 7", "vendor": "GenuineSome"},
            "firmware": "uefi",
            "fqdn": format!("node-{index}.example.net"),
            "hostname": format!("node-{index}"),
            "kernel": {"name": "Linux", "release": "6.12.0-1-amd64"},
            "memory": {"total_bytes": 68_719_476_736_u64},
            "network": {"address": address, "addresses": [address]},
            "os": {"codename": "trixie", "id": "debian", "name": "Debian GNU/Linux 13", "version": "13"},
            "swap": {"total_bytes": 0},
            "timezone": "Etc/UTC",
            "virtualization": "kvm",
        })
        .as_object()
        .expect("an object"),
    );
    let names = stemma_core::traits::standard_names().iter().filter(|name| name.starts_with("HW_CPU_X86")).take(14);
    let traits: TraitSet = names.map(|name| Trait::new(name).expect("a trait")).collect();
    Arc::new(Observation { facts, traits: traits.into(), ..Observation::default() })
}

/// Resolves a node. Panics if the fleet lacks an object that the node needs.
fn resolve_or_panic(fleet: &Fleet, cache: &ResolveCache, id: NodeId) -> Arc<ResolvedNode> {
    match resolve_node(fleet, cache, id) {
        Resolution::Complete(resolved) => resolved,
        Resolution::Incomplete(missing) => panic!("{missing:?}"),
    }
}

/// Edits one of `count` nodes at a time, and resolves it. Returns the mean CPU time of one edit, in microseconds. Each
/// edit changes a new clone of the fleet, as in a controller, where other parts still read the old state.
fn edit_cost(fleet: &Fleet, cache: &ResolveCache, count: u128) -> f64 {
    const ROUNDS: u32 = 5_000;
    let edits: Vec<FleetChange> =
        // A step of 7 spreads the edits over the nodes.
        (0..u128::from(ROUNDS)).map(|round| FleetChange::Node(build_node(round * 7 % count, "edited"))).collect();
    let (resolved_count, us) = measure(|| {
        let apply_edit = |change| {
            let mut edited_fleet = fleet.clone();
            edited_fleet
                .apply(change)
                .nodes(&edited_fleet)
                .map(|id| resolve_or_panic(&edited_fleet, cache, id))
                .collect::<Vec<_>>()
                .len()
        };
        edits.into_iter().map(apply_edit).sum::<usize>()
    });
    assert_eq!(resolved_count, ROUNDS as usize, "one edit reaches one node");
    us / f64::from(ROUNDS)
}

/// Returns the CPU time of one edit in a fleet of `count` resolved nodes, in microseconds.
fn bench_single_edit(release: &Arc<CompiledRelease>, count: u128) -> f64 {
    let fleet = build_fleet(release, count);
    let cache = ResolveCache::new();
    fleet.nodes().for_each(|node| drop(resolve_or_panic(&fleet, &cache, node.id())));
    edit_cost(&fleet, &cache, count)
}

/// Measures a large fleet, and prints its costs. The environment variable `STEMMA_BENCH_NODES` sets the number of
/// nodes, which is 100,000 by default. Returns the CPU time of one edit in microseconds, and the number of nodes.
fn bench_large_fleet(release: &Arc<CompiledRelease>) -> (f64, u128) {
    let count: u128 = std::env::var("STEMMA_BENCH_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let nodes = f64::from(u32::try_from(count).expect("a number of nodes"));
    let bytes_before = resident_bytes();
    let (fleet, load_us) = measure(|| build_fleet(release, count));
    println!("{count} nodes put into the model: {:.0} ms, {:.1} us a node", load_us / 1000.0, load_us / nodes);
    let cache = ResolveCache::new();
    let (resolved_nodes, us) =
        measure(|| fleet.nodes().map(|node| resolve_or_panic(&fleet, &cache, node.id())).collect::<Vec<Arc<ResolvedNode>>>());
    let digests: std::collections::BTreeSet<TaskDigest> =
        resolved_nodes.iter().filter_map(|resolved| Some(resolved.task_set()?.digest)).collect();
    println!("full resolve of them: {:.0} ms, {:.2} us a node, {} digests", us / 1000.0, us / nodes, digests.len());
    let bytes = resident_bytes().saturating_sub(bytes_before) / usize::try_from(count).expect("a number of nodes");
    println!("memory for spec, answer and observation: {bytes} bytes a node");
    let (_, us) = measure(|| resolved_nodes.iter().map(|resolved| resolved.labels().iter().count()).sum::<usize>());
    println!("their effective labels read out: {:.0} ms, {:.2} us a node", us / 1000.0, us / nodes);
    bench_template_edit(&fleet, &cache, nodes);
    let (graph, us) = measure(|| ClusterGraph::from_fleet(&fleet, ClusterId(Uuid::from_u128(1000))));
    println!(
        "order of one cluster of {}: {:.1} ms, {} edges between classes",
        count / CLUSTER_COUNT,
        us / 1000.0,
        graph.edges.len()
    );
    (edit_cost(&fleet, &cache, count), count)
}

/// Measures an edit of the template's labels, with the resolve of all nodes that the edit changes, and prints the CPU
/// time. `nodes` is the number of all nodes, for the printed time per node.
fn bench_template_edit(fleet: &Fleet, cache: &ResolveCache, nodes: f64) {
    let mut edited_fleet = fleet.clone();
    let template = edited_fleet.templates().next().expect("the template").clone();
    let mut spec = template.spec.clone();
    spec.inherited.labels = labels(&[("tier", "gold".into())]);
    let change = FleetChange::Template(Arc::new(Object { meta: template.meta.clone(), spec }));
    let (changed_count, us) = measure(|| {
        let dirty = edited_fleet.apply(change);
        dirty.nodes(&edited_fleet).map(|id| resolve_or_panic(&edited_fleet, cache, id)).collect::<Vec<_>>().len()
    });
    println!("a template's label edited: {changed_count} nodes reached, {:.0} ms, {:.2} us a node", us / 1000.0, us / nodes);
}

/// Adds a task that runs by the role `controller`. Its template looks up all nodes with this role or `compute`.
fn with_lookup_task(mut library: ReleaseSpec) -> ReleaseSpec {
    let mut task = Task::new("look-up-all", "file");
    task.roles = vec!["/(primary-)?controller/".into()];
    let text = "{% for n in nodes(role=['compute', 'controller']) %}{{ n.name }} {{ n.address }}{% endfor %}";
    task.parameters.insert("path".into(), json!("/etc/all-nodes"));
    task.parameters.insert("template".into(), json!(text));
    library.tasks.push(task);
    library
}

/// Compares the cost of a join and of an edit in a small and a large cluster. Three nodes have the role `controller`
/// and look up all nodes. The other nodes have the role `compute`.
fn bench_cluster_growth(release: &Arc<CompiledRelease>) {
    let (join_small, edit_small) = join_and_edit_cost(release, 100);
    let (join_large, edit_large) = join_and_edit_cost(release, 10_000);
    println!("one node joins a cluster with look-ups: {join_small:.1} us up to 100, {join_large:.1} us up to 10000 nodes");
    println!("                 factor {:.2}", join_large / join_small);
    println!("a label edited there: {edit_small:.1} us among 100, {edit_large:.1} us among 10000 nodes");
    println!("                 factor {:.2}", edit_large / edit_small);
}

/// Builds a cluster of `count` nodes as often as needed for 10,000 joins, and then edits labels of its nodes. Returns
/// the mean CPU time of a join and of an edit, each with the resolve of the node, in microseconds. The first three
/// nodes are controllers (group 2000). Only the other nodes (group 2001) are edited.
fn join_and_edit_cost(release: &Arc<CompiledRelease>, count: u128) -> (f64, f64) {
    const EDITS: u32 = 2_000;
    let node = |index: u128, rack: &str| {
        let group = GroupId(Uuid::from_u128(if index < 3 { 2000 } else { 2001 }));
        let mut node = Node::clone(&build_node(index, rack));
        node.spec.nodegroup = Some(group);
        Arc::new(node)
    };
    let id = |index: u128| NodeId(Uuid::from_u128(10_000 + index));
    let (mut join_us, rounds) = (0.0, 10_000 / count);
    let mut fleet = Fleet::new();
    let mut cache = ResolveCache::new();
    for _ in 0..rounds {
        (fleet, cache) = (build_empty_cluster(release), ResolveCache::new());
        let (max_changed, us) = measure(|| {
            let step = |index| {
                let mut dirty = fleet.apply(FleetChange::Node(node(index, "r")));
                dirty.extend(fleet.apply(FleetChange::Observation(id(index), build_observation(index))));
                drop(resolve_or_panic(&fleet, &cache, id(index)));
                dirty.nodes(&fleet).count()
            };
            (0..count).map(step).max()
        });
        assert_eq!(max_changed, Some(4), "a join changes the node and the three controllers that look it up");
        join_us += us;
    }
    fleet.nodes().for_each(|node| drop(resolve_or_panic(&fleet, &cache, node.id())));
    // The label alternates with each round through the cluster, so that every edit changes a value.
    let rack = |round: u128| ["one", "other"][usize::from((round / (count - 3)).is_multiple_of(2))];
    let edits: Vec<_> =
        (0..u128::from(EDITS)).map(|round| FleetChange::Node(node(3 + round * 7 % (count - 3), rack(round)))).collect();
    let (max_changed, us) = measure(|| {
        let step = |change| {
            let dirty = fleet.apply(change);
            dirty.nodes(&fleet).inspect(|id| drop(resolve_or_panic(&fleet, &cache, *id))).count()
        };
        edits.into_iter().map(step).max()
    });
    assert_eq!(max_changed, Some(1), "one edit reaches one node");
    (join_us / 10_000.0, us / f64::from(EDITS))
}

/// Builds a fleet of one cluster with a group for controllers and a group for compute nodes. It has no nodes.
fn build_empty_cluster(release: &Arc<CompiledRelease>) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.apply(FleetChange::Release(Arc::clone(release)));
    let spec = ClusterSpec {
        release: Some(release_name()),
        inherited: Inherited { parameters: parameters(), ..Inherited::default() },
        ..ClusterSpec::default()
    };
    fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(1000, object_name("c")), spec })));
    for (id, role) in [(2000, "controller"), (2001, "compute")] {
        let spec = NodeGroupSpec {
            roles: vec![Name::new(role).expect("a role")],
            ..NodeGroupSpec::new(ClusterId(Uuid::from_u128(1000)))
        };
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object { meta: meta(id, object_name(role)), spec })));
    }
    fleet.set_loaded();
    fleet
}

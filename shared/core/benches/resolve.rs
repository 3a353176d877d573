//! Measurements of resolve: `cargo bench -p stemma-core --bench resolve`.
//!
//! CPU time of this thread, counted by the kernel, and resident memory before and after. Fuel's library is read from
//! the shared material. If it is missing, nothing is measured and the reason is printed.
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

/// Runs a thousand rules of two conditions each, of which one in twenty acts. Returns the time in microseconds.
fn bench_rules_per_report() -> f64 {
    let mut fleet = Fleet::new();
    for n in 0..1_000_u32 {
        let regex = if n % 20 == 0 { "EPYC" } else { "Xeon" };
        let spec = json!({
            "priority": n,
            "conditions": [
                {"op": "gt", "args": {"values": ["{inventory[cpu][count]}", "1"]}},
                {"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": regex}},
            ],
            "actions": [{"op": "set-plugin-data", "args": {"path": "last", "value": "{node.name}"}}, {"op": "add-trait", "args": {"name": format!("CUSTOM_{}", n % 40)}}],
        });
        let spec = serde_json::from_value(spec).expect("a rule");
        fleet.apply(FleetChange::Rule(Arc::new(Object { meta: meta(u128::from(n), None), spec })));
    }
    let facts = json!({"cpu": {"count": 8, "model": "AMD EPYC 7702P 64-Core Processor"}, "hostname": "n1"});
    let seen = Observation { facts: FactMap::from_tree(facts.as_object().expect("facts")), ..Observation::default() };
    let node = Node { meta: meta(1, NodeName::new("n1").ok()), spec: NodeSpec::default() };
    let (ruled, us) = measure(|| fleet.rules().run(&InspectedNode::new(&node, &seen)));
    assert_eq!(ruled.traits.len(), 2);
    us
}

fn parse_library(file: &Value) -> ReleaseSpec {
    fuel::import_file(file, "default").expect("the library is read").spec
}

/// Returns the CPU time of this thread, in microseconds.
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

fn measure<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let before = cpu_us();
    let done = work();
    (done, cpu_us() - before)
}

fn release_name() -> ReleaseRef {
    "fuel@1".parse().expect("a release's name")
}

fn compile_release(spec: &ReleaseSpec) -> Arc<CompiledRelease> {
    compile(&release_name(), spec, &|_| None, &SyntaxReader).expect("the library compiles")
}

/// Adds 20 conditions and 10 templates of 3 references to the library. They read labels of all levels, parameters and a
/// fact.
fn with_conditions_and_templates(mut library: ReleaseSpec) -> ReleaseSpec {
    let mut plain = library.tasks.iter_mut().filter(|task| task.kind == "puppet");
    for (at, task) in plain.by_ref().take(20).enumerate() {
        let label = ["tier", "zone", "pool", "rack"][at % 4];
        task.condition = Some(format!("has(labels.{label}) && labels.{label} != 'none{at}'"));
    }
    for at in 0..10 {
        let mut task = Task::new(format!("conf-{at}"), "file");
        task.tags = Some(vec!["/.*/".into()]);
        let label = ["tier", "zone", "pool", "rack"][at % 4];
        let text = format!("{{{{ labels.{label} }}}} {{{{ params.p{at}.size }}}} {{{{ facts.os.id }}}}");
        task.parameters.insert("path".into(), json!(format!("/etc/conf-{at}")));
        task.parameters.insert("template".into(), json!(text));
        library.tasks.push(task);
    }
    library
}

fn meta<N>(id: u128, name: N) -> Meta<N> {
    Meta::new(Uuid::from_u128(id), name, Timestamp(0))
}

fn object_name(text: &str) -> ObjectName {
    ObjectName::new(text).expect("a name")
}

fn labels(pairs: &[(&str, String)]) -> LabelLayer {
    let said = |(key, value): &(&str, String)| {
        (LabelKey::new(key).expect("a key"), ProvidedValue::Value(LabelValue::new(value).expect("a value")))
    };
    let intent: Intent<LabelKey, LabelValue> = pairs.iter().map(said).collect();
    LabelLayer { provided: Some(OwnedMap::default().update(&manager(), &intent)), merge: Some(true) }
}

fn manager() -> Manager {
    thread_local!(static MANAGER: Manager = Manager::new("bench").expect("a manager"));
    MANAGER.with(Clone::clone)
}

fn parameters() -> ParameterLayer {
    let intent: BTreeMap<LabelKey, ProvidedValue<ParameterValue>> = (0..10)
        .map(|at| {
            let value = ParameterValue::new(json!({"size": at, "list": [1, 2, 3]})).expect("a parameter");
            (LabelKey::new(&format!("p{at}")).expect("a key"), ProvidedValue::Value(value))
        })
        .collect();
    ParameterLayer { provided: Some(OwnedMap::default().update(&manager(), &intent)), merge: Some(true) }
}

fn bench_two_hundred_nodes(library: &ReleaseSpec) {
    const ROUNDS: u32 = 50;
    let release = compile_release(library);
    let roles = |at: u128| match at {
        0..3 => "controller",
        3..163 => "compute",
        _ => "ceph-osd",
    };
    let mut us = 0.0;
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
            .map(|at| {
                let spec = NodeSpec {
                    nodegroup: Some(group),
                    roles: vec![Name::new(roles(at)).expect("a role")],
                    ..NodeSpec::default()
                };
                Arc::new(Object { meta: meta(100 + at, NodeName::new(&format!("n{at}")).ok()), spec })
            })
            .collect();
        let cache = ResolveCache::new();
        let (graph, used) = measure(|| {
            fleet.apply_all(nodes.into_iter().map(FleetChange::Node));
            resolve_cluster(&fleet, &cache, cluster);
            ClusterGraph::from_fleet(&fleet, cluster)
        });
        us += used;
        let placed: usize = graph.classes.iter().map(|class| class.nodes.len() * class.profile.tasks.len()).sum();
        counts = (placed + graph.stages.len(), graph.order_pairs().len());
    }
    println!(
        "Fuel's library on 200 nodes: {} instances, {} pairs: {:.2} ms",
        counts.0,
        counts.1,
        us / 1000.0 / f64::from(ROUNDS)
    );
}

fn inherited(labels: LabelLayer) -> Inherited {
    Inherited { labels, ..Inherited::default() }
}

/// Builds a fleet of one template, 20 clusters, 200 groups of equal size and `nodes` nodes.
fn build_fleet(release: &Arc<CompiledRelease>, nodes: u128) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.apply(FleetChange::Release(Arc::clone(release)));
    let many: Vec<(String, String)> = (0..20).map(|at| (format!("site.example/k{at}"), format!("value-{at}"))).collect();
    let mut base: Vec<(&str, String)> = many.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    base.push(("tier", "standard".into()));
    let mut of_template = inherited(labels(&base));
    of_template.parameters = parameters();
    let spec = ClusterTemplateSpec { inherited: of_template, release: Some(release_name()), ..ClusterTemplateSpec::default() };
    fleet.apply(FleetChange::Template(Arc::new(Object { meta: meta(1, object_name("base")), spec })));
    for at in 0..CLUSTER_COUNT {
        let spec = ClusterSpec {
            cluster_template: Some(TemplateId(Uuid::from_u128(1))),
            inherited: inherited(labels(&[("zone", format!("z{at}"))])),
            ..ClusterSpec::default()
        };
        fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(1000 + at, object_name(&format!("c{at}"))), spec })));
    }
    for at in 0..GROUP_COUNT {
        let role = match at / CLUSTER_COUNT {
            0 => "controller",
            1 | 2 => "ceph-osd",
            _ => "compute",
        };
        let spec = NodeGroupSpec {
            inherited: inherited(labels(&[("pool", format!("p{at}"))])),
            roles: vec![Name::new(role).expect("a role")],
            ..NodeGroupSpec::new(ClusterId(Uuid::from_u128(1000 + at % CLUSTER_COUNT)))
        };
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object { meta: meta(2000 + at, object_name(&format!("g{at}"))), spec })));
    }
    for at in 0..nodes {
        fleet.apply(FleetChange::Node(build_node(at, "r")));
        fleet.apply(FleetChange::Observation(NodeId(Uuid::from_u128(10_000 + at)), build_observation(at)));
    }
    fleet.set_loaded();
    fleet
}

fn build_node(at: u128, rack: &str) -> Arc<Node> {
    let spec = NodeSpec {
        nodegroup: Some(GroupId(Uuid::from_u128(2000 + at % GROUP_COUNT))),
        inherited: inherited(labels(&[("rack", format!("{rack}{}", at / GROUP_COUNT % 40))])),
        ..NodeSpec::default()
    };
    Arc::new(Object { meta: meta(10_000 + at, NodeName::new(&format!("node-{at}")).ok()), spec })
}

fn build_observation(at: u128) -> Arc<Observation> {
    let address = format!("10.{}.{}.{}", at >> 16 & 255, at >> 8 & 255, at & 255);
    let facts = FactMap::from_tree(
        json!({
            "architecture": "x86_64",
            "cpu": {"cores": 8, "count": 16, "model": "Some Processor 7", "vendor": "GenuineSome"},
            "firmware": "uefi",
            "fqdn": format!("node-{at}.example.net"),
            "hostname": format!("node-{at}"),
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
    let names = stemma_core::traits::standard().iter().filter(|name| name.starts_with("HW_CPU_X86")).take(14);
    let traits: TraitSet = names.map(|name| Trait::new(name).expect("a trait")).collect();
    Arc::new(Observation { facts, traits: traits.into(), ..Observation::default() })
}

fn resolve_one(fleet: &Fleet, cache: &ResolveCache, id: NodeId) -> Arc<ResolvedNode> {
    match resolve_node(fleet, cache, id) {
        Resolution::Complete(answer) => answer,
        Resolution::Incomplete(missing) => panic!("{missing:?}"),
    }
}

/// Returns the time of one edit of a node, in microseconds. A snapshot is held, as in a controller.
fn edit_cost(fleet: &Fleet, cache: &ResolveCache, count: u128) -> f64 {
    const ROUNDS: u32 = 5_000;
    let edits: Vec<FleetChange> =
        (0..u128::from(ROUNDS)).map(|round| FleetChange::Node(build_node(round * 7 % count, "edited"))).collect();
    let (reached, us) = measure(|| {
        let one = |change| {
            let mut next = fleet.clone();
            next.apply(change).nodes(&next).map(|id| resolve_one(&next, cache, id)).collect::<Vec<_>>().len()
        };
        edits.into_iter().map(one).sum::<usize>()
    });
    assert_eq!(reached, ROUNDS as usize, "one edit reaches one node");
    us / f64::from(ROUNDS)
}

fn bench_single_edit(release: &Arc<CompiledRelease>, count: u128) -> f64 {
    let fleet = build_fleet(release, count);
    let cache = ResolveCache::new();
    fleet.nodes().for_each(|node| drop(resolve_one(&fleet, &cache, node.id())));
    edit_cost(&fleet, &cache, count)
}

fn bench_large_fleet(release: &Arc<CompiledRelease>) -> (f64, u128) {
    let count: u128 = std::env::var("STEMMA_BENCH_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let nodes = f64::from(u32::try_from(count).expect("a number of nodes"));
    let empty = resident_bytes();
    let (fleet, load) = measure(|| build_fleet(release, count));
    println!("{count} nodes put into the model: {:.0} ms, {:.1} us a node", load / 1000.0, load / nodes);
    let cache = ResolveCache::new();
    let (answers, us) =
        measure(|| fleet.nodes().map(|node| resolve_one(&fleet, &cache, node.id())).collect::<Vec<Arc<ResolvedNode>>>());
    let digests: std::collections::BTreeSet<TaskDigest> =
        answers.iter().filter_map(|answer| Some(answer.task_set()?.digest)).collect();
    println!("full resolve of them: {:.0} ms, {:.2} us a node, {} digests", us / 1000.0, us / nodes, digests.len());
    let bytes = resident_bytes().saturating_sub(empty) / usize::try_from(count).expect("a number of nodes");
    println!("memory for spec, answer and observation: {bytes} bytes a node");
    let (_, us) = measure(|| answers.iter().map(|answer| answer.labels().iter().count()).sum::<usize>());
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

fn bench_template_edit(fleet: &Fleet, cache: &ResolveCache, nodes: f64) {
    let mut next = fleet.clone();
    let template = next.templates().next().expect("the template").clone();
    let mut spec = template.spec.clone();
    spec.inherited.labels = labels(&[("tier", "gold".into())]);
    let change = FleetChange::Template(Arc::new(Object { meta: template.meta.clone(), spec }));
    let (reached, us) = measure(|| {
        let dirty = next.apply(change);
        dirty.nodes(&next).map(|id| resolve_one(&next, cache, id)).collect::<Vec<_>>().len()
    });
    println!("a template's label edited: {reached} nodes reached, {:.0} ms, {:.2} us a node", us / 1000.0, us / nodes);
}

/// Adds a task on every controller that looks up the cluster's nodes.
fn with_lookup_task(mut library: ReleaseSpec) -> ReleaseSpec {
    let mut task = Task::new("look-up-all", "file");
    task.roles = vec!["/(primary-)?controller/".into()];
    let text = "{% for n in nodes(role=['compute', 'controller']) %}{{ n.name }} {{ n.address }}{% endfor %}";
    task.parameters.insert("path".into(), json!("/etc/all-nodes"));
    task.parameters.insert("template".into(), json!(text));
    library.tasks.push(task);
    library
}

/// Measures the time for a node as its cluster grows. Three controllers look up all nodes, and the others are compute
/// nodes.
fn bench_cluster_growth(release: &Arc<CompiledRelease>) {
    let (join_small, edit_small) = join_and_edit_cost(release, 100);
    let (join_large, edit_large) = join_and_edit_cost(release, 10_000);
    println!("one node joins a cluster with look-ups: {join_small:.1} us up to 100, {join_large:.1} us up to 10000 nodes");
    println!("                 factor {:.2}", join_large / join_small);
    println!("a label edited there: {edit_small:.1} us among 100, {edit_large:.1} us among 10000 nodes");
    println!("                 factor {:.2}", edit_large / edit_small);
}

/// Returns the CPU time of a join and of an edit, each with the resolve of that node, in microseconds.
fn join_and_edit_cost(release: &Arc<CompiledRelease>, count: u128) -> (f64, f64) {
    const EDITS: u32 = 2_000;
    let node = |at: u128, rack: &str| {
        let group = GroupId(Uuid::from_u128(if at < 3 { 2000 } else { 2001 }));
        let mut node = Node::clone(&build_node(at, rack));
        node.spec.nodegroup = Some(group);
        Arc::new(node)
    };
    let id = |at: u128| NodeId(Uuid::from_u128(10_000 + at));
    let (mut join, rounds) = (0.0, 10_000 / count);
    let mut fleet = Fleet::new();
    let mut cache = ResolveCache::new();
    for _ in 0..rounds {
        (fleet, cache) = (build_empty_cluster(release), ResolveCache::new());
        let (reached, us) = measure(|| {
            let one = |at| {
                let mut dirty = fleet.apply(FleetChange::Node(node(at, "r")));
                dirty.extend(fleet.apply(FleetChange::Observation(id(at), build_observation(at))));
                drop(resolve_one(&fleet, &cache, id(at)));
                dirty.nodes(&fleet).count()
            };
            (0..count).map(one).max()
        });
        assert_eq!(reached, Some(4), "the node, and the three that look it up");
        join += us;
    }
    fleet.nodes().for_each(|node| drop(resolve_one(&fleet, &cache, node.id())));
    // The label alternates with each round through the cluster, so that every edit changes a value.
    let rack = |round: u128| ["one", "other"][usize::from((round / (count - 3)).is_multiple_of(2))];
    let edits: Vec<_> =
        (0..u128::from(EDITS)).map(|round| FleetChange::Node(node(3 + round * 7 % (count - 3), rack(round)))).collect();
    let (reached, us) = measure(|| {
        let one = |change| {
            let dirty = fleet.apply(change);
            dirty.nodes(&fleet).inspect(|id| drop(resolve_one(&fleet, &cache, *id))).count()
        };
        edits.into_iter().map(one).max()
    });
    assert_eq!(reached, Some(1), "one edit reaches one node");
    (join / 10_000.0, us / f64::from(EDITS))
}

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

//! Limits on the cost of all conditions when all nodes of the fleet are resolved.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::condition::{AuthorError, Condition, ConditionError, TemplateParser, TemplateReads, node_step_limit};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::input::{Inputs, Reference};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::NodeId;
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{Resolution, ResolveCache, ResolvedNode, resolve_node};

/// Maximum number of steps of all conditions when all nodes are resolved, as the design decides.
const MAX_STEPS_PER_PASS: usize = 64_000_000;
/// Number of costly conditions in the release.
const CONDITION_COUNT: usize = 40;

/// A parser like the real parser, but its conditions count their steps instead of being evaluated, and are always true.
#[derive(Clone, Default)]
struct CountingParser(Arc<AtomicUsize>);

/// A condition that counts its steps in `steps`. `parsed` is the real condition, which computes the number of steps.
#[derive(Debug)]
struct CountingCondition {
    parsed: Arc<dyn Condition>,
    steps: Arc<AtomicUsize>,
}

impl TemplateParser for CountingParser {
    fn parse_template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        SyntaxReader.parse_template(text)
    }

    fn parse_script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        SyntaxReader.parse_script(text)
    }

    fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        Ok(Arc::new(CountingCondition { parsed: SyntaxReader.parse_condition(text)?, steps: Arc::clone(&self.0) }))
    }
}

impl Condition for CountingCondition {
    fn references(&self) -> &[Reference] {
        self.parsed.references()
    }

    fn cost(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError> {
        self.parsed.cost(inputs, most)
    }

    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
        self.steps.fetch_add(self.cost(inputs, usize::MAX)?, Ordering::Relaxed);
        Ok(true)
    }
}

/// A fleet whose nodes run many tasks with a given condition and one task with a cheap condition. `steps` counts the
/// steps of all conditions.
struct CostSite {
    fleet: Fleet,
    steps: Arc<AtomicUsize>,
}

impl CostSite {
    /// Builds a fleet of equal clusters, each with this number of nodes.
    fn uniform(clusters: usize, nodes: usize, condition: &str) -> Self {
        Self::with_clusters(&vec![nodes; clusters], condition)
    }

    /// Builds a fleet with one cluster for each number of nodes in `clusters`. The nodes run 40 tasks with this
    /// condition.
    fn with_clusters(clusters: &[usize], condition: &str) -> Self {
        let task = |id: String, condition: &str| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": {"script": "true"}});
        // Each condition has a different text, so that no result is shared.
        let mut tasks: Vec<_> = (0..CONDITION_COUNT)
            .map(|number| task(format!("c-{number:03}"), &format!("{condition} || '{number:03}' == ''")))
            .collect();
        tasks.push(task("z-cheap".to_owned(), "labels.zone != ''"));
        let mut documents =
            vec![json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {}}, "tasks": tasks})];
        for (cluster_index, nodes) in clusters.iter().enumerate() {
            let many: Vec<usize> = (0..50).collect();
            documents
                .push(json!({"kind": "Cluster", "name": format!("c{cluster_index}"), "release": "site@1", "parameters": {"many": many}}));
            documents.push(json!({"kind": "NodeGroup", "cluster": format!("c{cluster_index}"), "name": "g", "roles": ["web"]}));
            documents.extend((0..*nodes).map(|number| {
                json!({"kind": "Node", "name": format!("n{cluster_index}-{number}"), "nodegroup": format!("c{cluster_index}/g"), "labels": {"zone": format!("z{cluster_index}-{number}")}})
            }));
        }
        let parser = CountingParser::default();
        Self { fleet: build_fleet(&documents, &parser), steps: parser.0 }
    }

    /// Resolves a node. Panics if an object that the node needs is missing.
    fn resolved_node(&self, cache: &ResolveCache, node: NodeId) -> Arc<ResolvedNode> {
        match resolve_node(&self.fleet, cache, node) {
            Resolution::Complete(resolved) => resolved,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    /// Resolves all nodes. Returns the number of steps of the conditions that are not in the cache.
    fn resolve_all(&self, cache: &ResolveCache) -> usize {
        self.steps.store(0, Ordering::Relaxed);
        for node in self.fleet.nodes() {
            self.resolved_node(cache, node.id());
        }
        self.steps.load(Ordering::Relaxed)
    }
}

/// Builds the fleet that has the objects of these manifests. `parser` parses its conditions.
fn build_fleet(documents: &[Value], parser: &CountingParser) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|object| read_document(&object.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
    let releases = compile_set(&specs, parser).expect("a release");
    let mut fleet = Fleet::new();
    fleet.apply_all(releases.into_values().map(FleetChange::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|object| FleetChange::Cluster(Arc::new(object))));
    fleet.apply_all(objects.groups.into_iter().map(|object| FleetChange::NodeGroup(Arc::new(object))));
    fleet.apply_all(objects.nodes.into_iter().map(|object| FleetChange::Node(Arc::new(object))));
    fleet.set_loaded();
    fleet
}

/// Returns the ids of the tasks that the node runs.
fn running_tasks(resolved_node: &ResolvedNode) -> Vec<&str> {
    resolved_node.task_set().expect("a task set").task_ids().collect()
}

/// A pass resolves all nodes of the fleet. The conditions read other nodes, only values of the node, or the same values
/// for all nodes.
#[test]
fn w10_05_steps_of_one_pass_are_bounded() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    let own_values = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let shared_values = "nodes(role='web').exists(n, nodes(role='web').exists(m, n.name == m.name))";
    for (clusters, nodes, condition) in [
        (1, 200, looks_up),
        (5, 40, looks_up),
        (1, 200, own_values),
        (40, 5, own_values),
        (1, 200, shared_values),
        (5, 40, shared_values),
    ] {
        let site = CostSite::uniform(clusters, nodes, condition);
        let cache = ResolveCache::new();
        let case = format!("{clusters} clusters of {nodes}: {condition}");
        let steps = site.resolve_all(&cache);
        assert!(steps > 0 && steps <= MAX_STEPS_PER_PASS, "{case}: {steps} steps");
        assert_eq!(site.resolve_all(&cache), 0, "{case}: a second pass evaluates nothing");
        let node = site.fleet.nodes().last().expect("a node").id();
        let resolved_node = site.resolved_node(&cache, node);
        assert_eq!(running_tasks(&resolved_node).last(), Some(&"z-cheap"), "{case}: the cheap condition is decided");
        let resolved_without_cache = site.resolved_node(&ResolveCache::new(), node);
        assert_eq!(running_tasks(&resolved_without_cache), running_tasks(&resolved_node), "{case}: the cache changes no result");
        assert_eq!(resolved_without_cache.findings(), resolved_node.findings(), "{case}");
    }
}

/// The conditions of a node share a limit of steps and are evaluated in the order of tasks. From one task on, no costly
/// condition can be decided. The cheap condition of the last task can, because it takes fewer steps than remain.
#[test]
fn w10_05_finding_names_condition_without_remaining_steps() {
    let site = CostSite::uniform(1, 300, "nodes(role='web').exists(n, n.labels.zone == labels.zone)");
    let cache = ResolveCache::new();
    let resolved_node = site.resolved_node(&cache, site.fleet.nodes().next().expect("a node").id());
    let running_count = running_tasks(&resolved_node).len();
    assert!(running_count > 1 && running_count < CONDITION_COUNT, "{running_count} conditions are decided");
    // The running tasks are `z-cheap` and those whose condition is decided, from `c-000` on.
    let first_undecided = format!("c-{:03}", running_count - 1);
    let findings = resolved_node.findings();
    assert_eq!(findings.len(), CONDITION_COUNT + 1 - running_count);
    let codes: BTreeSet<&str> = findings.iter().map(|finding| &*finding.code).collect();
    assert_eq!(codes, BTreeSet::from(["condition.failed"]));
    let first_text = findings.iter().map(ToString::to_string).find(|text| text.contains(&format!("task/{first_undecided}")));
    let finding_text = first_text.expect("a finding names the first undecided condition");
    let expected_part = "more than the conditions of the tasks before it leave of the limit for all conditions of a node";
    assert!(finding_text.contains(expected_part) && finding_text.contains("keeps the task set that it has"), "{finding_text}");
}

/// The limit of steps of a node shrinks with the number of clusters and with the number of nodes in its cluster. Each
/// of the two numbers is rounded up to a power of two.
#[test]
fn w10_05_node_limit_shrinks_with_fleet_to_minimum() {
    for (clusters, nodes, steps) in [
        (0, 0, 4_000_000),
        (1, 16, 4_000_000),
        (1, 17, 2_000_000),
        (1, 1_000, 62_500),
        (1, 4_096, 16_384),
        (1, 1_000_000, 16_384),
        (2, 8, 4_000_000),
        (2, 9, 2_000_000),
        (3, 5, 2_000_000),
        (64, 1, 1_000_000),
        (1_000, 1, 62_500),
        (1_000_000, 1, 16_384),
    ] {
        assert_eq!(node_step_limit(clusters, nodes), steps, "{clusters} clusters, {nodes} nodes in this one");
    }
}

/// Returns for each of the five nodes of the second cluster its name, the tasks that it runs, and its findings.
fn second_cluster_results(site: &CostSite) -> Vec<(String, Vec<String>, Vec<String>)> {
    let cache = ResolveCache::new();
    (0..5)
        .map(|number| {
            let name = format!("n1-{number}");
            let node = site.fleet.node_by_name(&name).expect("a node of the second cluster").id();
            let resolved_node = site.resolved_node(&cache, node);
            let tasks = running_tasks(&resolved_node).into_iter().map(ToOwned::to_owned).collect();
            (name, tasks, resolved_node.findings().iter().map(ToString::to_string).collect())
        })
        .collect()
}

#[test]
fn x04_f06_large_cluster_does_not_change_limit_of_other_clusters() {
    // Forty of these conditions exceed the limit of a node in a cluster of 1,000 nodes, but not in a cluster of five.
    let condition = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let expected = second_cluster_results(&CostSite::with_clusters(&[5, 5], condition));
    assert!(
        expected.iter().all(|(_, tasks, findings)| tasks.len() == CONDITION_COUNT + 1 && findings.is_empty()),
        "{expected:?}"
    );
    let site = CostSite::with_clusters(&[1_000, 5], condition);
    assert_eq!(second_cluster_results(&site), expected, "the nodes of another cluster change nothing");
    let first_cluster_node = site.fleet.node_by_name("n0-7").expect("a node of the first cluster").id();
    let resolved_node = site.resolved_node(&ResolveCache::new(), first_cluster_node);
    assert!(
        resolved_node.findings().iter().any(|finding| finding.code == "condition.failed"),
        "the limit of the large cluster is exceeded"
    );
    let steps = site.resolve_all(&ResolveCache::new());
    assert!(steps > 0 && steps <= MAX_STEPS_PER_PASS, "{steps} steps");
}

/// A reader of one cluster must not learn from a finding how many clusters the fleet has. The limit of steps depends on
/// that number.
#[test]
fn x04_f06_condition_finding_reveals_nothing_of_fleet() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    for clusters in [&[300][..], &[300, 1], &[300, 1, 1]] {
        let site = CostSite::with_clusters(clusters, looks_up);
        let node = site.fleet.node_by_name("n0-0").expect("a node of the first cluster").id();
        let resolved_node = site.resolved_node(&ResolveCache::new(), node);
        let findings = resolved_node.findings();
        let undecided: Vec<_> = findings.iter().filter(|finding| finding.code == "condition.failed").collect();
        assert!(!undecided.is_empty(), "{clusters:?}");
        let limit = node_step_limit(clusters.len(), 300).to_string();
        let messages: BTreeSet<&str> = undecided.iter().map(|finding| &*finding.message).collect();
        assert_eq!(messages.len(), 1, "the message does not depend on the limit: {messages:?}");
        assert!(messages.iter().all(|message| !message.contains(&limit) && !message.contains("fleet")), "{limit}: {messages:?}");
    }
}

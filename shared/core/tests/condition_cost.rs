//! Limits on the cost of all conditions in a pass over the whole fleet.

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

/// Maximum number of steps of a pass, as the design decides.
const MAX_STEPS_PER_PASS: usize = 64_000_000;
/// Number of costly conditions in the release.
const CONDITION_COUNT: usize = 40;

/// Parses like the real parser. Its conditions count their steps instead of being evaluated, and are always true.
#[derive(Clone, Default)]
struct CountingParser(Arc<AtomicUsize>);

#[derive(Debug)]
struct CountingCondition {
    read: Arc<dyn Condition>,
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
        Ok(Arc::new(CountingCondition { read: SyntaxReader.parse_condition(text)?, steps: Arc::clone(&self.0) }))
    }
}

impl Condition for CountingCondition {
    fn references(&self) -> &[Reference] {
        self.read.references()
    }

    fn cost(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError> {
        self.read.cost(inputs, most)
    }

    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
        self.steps.fetch_add(self.cost(inputs, usize::MAX)?, Ordering::Relaxed);
        Ok(true)
    }
}

/// Clusters whose nodes run tasks with the given condition, and one task with a cheap condition.
struct CostSite {
    fleet: Fleet,
    steps: Arc<AtomicUsize>,
}

impl CostSite {
    fn uniform(clusters: usize, nodes: usize, condition: &str) -> Self {
        Self::with_clusters(&vec![nodes; clusters], condition)
    }

    /// Creates one cluster for each number of nodes in `clusters`.
    fn with_clusters(clusters: &[usize], condition: &str) -> Self {
        let task = |id: String, condition: &str| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": {"script": "true"}});
        // Each condition has a different text, so that no result is shared.
        let mut tasks: Vec<_> =
            (0..CONDITION_COUNT).map(|n| task(format!("c-{n:03}"), &format!("{condition} || '{n:03}' == ''"))).collect();
        tasks.push(task("z-cheap".to_owned(), "labels.zone != ''"));
        let mut documents =
            vec![json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {}}, "tasks": tasks})];
        for (c, nodes) in clusters.iter().enumerate() {
            let many: Vec<usize> = (0..50).collect();
            documents
                .push(json!({"kind": "Cluster", "name": format!("c{c}"), "release": "site@1", "parameters": {"many": many}}));
            documents.push(json!({"kind": "NodeGroup", "cluster": format!("c{c}"), "name": "g", "roles": ["web"]}));
            documents.extend((0..*nodes).map(|n| {
                json!({"kind": "Node", "name": format!("n{c}-{n}"), "nodegroup": format!("c{c}/g"), "labels": {"zone": format!("z{c}-{n}")}})
            }));
        }
        let author = CountingParser::default();
        Self { fleet: build_fleet(&documents, &author), steps: author.0 }
    }

    fn resolved_node(&self, cache: &ResolveCache, node: NodeId) -> Arc<ResolvedNode> {
        match resolve_node(&self.fleet, cache, node) {
            Resolution::Complete(answer) => answer,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    /// Resolves all nodes, and returns the number of steps.
    fn resolve_all(&self, cache: &ResolveCache) -> usize {
        self.steps.store(0, Ordering::Relaxed);
        for node in self.fleet.nodes() {
            self.resolved_node(cache, node.id());
        }
        self.steps.load(Ordering::Relaxed)
    }
}

fn build_fleet(documents: &[Value], author: &CountingParser) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|one| read_document(&one.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, author).expect("a release");
    let mut fleet = Fleet::new();
    fleet.apply_all(releases.into_values().map(FleetChange::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|one| FleetChange::Cluster(Arc::new(one))));
    fleet.apply_all(objects.groups.into_iter().map(|one| FleetChange::NodeGroup(Arc::new(one))));
    fleet.apply_all(objects.nodes.into_iter().map(|one| FleetChange::Node(Arc::new(one))));
    fleet.set_loaded();
    fleet
}

fn running_tasks(answer: &ResolvedNode) -> Vec<&str> {
    answer.task_set().expect("a task set").task_ids().collect()
}

#[test]
fn w10_05_steps_of_one_pass_are_bounded() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    let own = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let shared = "nodes(role='web').exists(n, nodes(role='web').exists(m, n.name == m.name))";
    for (clusters, nodes, condition) in
        [(1, 200, looks_up), (5, 40, looks_up), (1, 200, own), (40, 5, own), (1, 200, shared), (5, 40, shared)]
    {
        let site = CostSite::uniform(clusters, nodes, condition);
        let cache = ResolveCache::new();
        let case = format!("{clusters} clusters of {nodes}: {condition}");
        let steps = site.resolve_all(&cache);
        assert!(steps > 0 && steps <= MAX_STEPS_PER_PASS, "{case}: {steps} steps");
        assert_eq!(site.resolve_all(&cache), 0, "{case}: a second pass evaluates nothing");
        let node = site.fleet.nodes().last().expect("a node").id();
        let answer = site.resolved_node(&cache, node);
        assert_eq!(running_tasks(&answer).last(), Some(&"z-cheap"), "{case}: what is cheap is decided");
        let alone = site.resolved_node(&ResolveCache::new(), node);
        assert_eq!(running_tasks(&alone), running_tasks(&answer), "{case}: what was remembered changes nothing");
        assert_eq!(alone.findings(), answer.findings(), "{case}");
    }
}

#[test]
fn w10_05_finding_names_condition_without_remaining_steps() {
    let site = CostSite::uniform(1, 300, "nodes(role='web').exists(n, n.labels.zone == labels.zone)");
    let cache = ResolveCache::new();
    let answer = site.resolved_node(&cache, site.fleet.nodes().next().expect("a node").id());
    let ran = running_tasks(&answer).len();
    assert!(ran > 1 && ran < CONDITION_COUNT, "{ran} of them are decided");
    let first = format!("c-{:03}", ran - 1);
    let findings = answer.findings();
    assert_eq!(findings.len(), CONDITION_COUNT + 1 - ran);
    let named: BTreeSet<&str> = findings.iter().map(|finding| &*finding.code).collect();
    assert_eq!(named, BTreeSet::from(["condition.failed"]));
    let found = findings.iter().map(ToString::to_string).find(|text| text.contains(&format!("task/{first}")));
    let found = found.expect("the first that is too many is named");
    let said = "more than the conditions of the tasks before it leave of the limit for all conditions of a node";
    assert!(found.contains(said) && found.contains("keeps the task set that it has"), "{found}");
}

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

/// Returns for each node of the second cluster its name, the tasks that run, and its findings.
fn second_cluster_results(site: &CostSite) -> Vec<(String, Vec<String>, Vec<String>)> {
    let cache = ResolveCache::new();
    (0..5)
        .map(|n| {
            let name = format!("n1-{n}");
            let node = site.fleet.node_by_name(&name).expect("a node of the second cluster").id();
            let answer = site.resolved_node(&cache, node);
            let tasks = running_tasks(&answer).into_iter().map(ToOwned::to_owned).collect();
            (name, tasks, answer.findings().iter().map(ToString::to_string).collect())
        })
        .collect()
}

#[test]
fn x04_f06_large_cluster_leaves_condition_limit_of_other_clusters() {
    // Forty of these exceed the limit of a node in a cluster of a thousand, but not in a cluster of five.
    let own = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let alone = second_cluster_results(&CostSite::with_clusters(&[5, 5], own));
    assert!(alone.iter().all(|(_, tasks, findings)| tasks.len() == CONDITION_COUNT + 1 && findings.is_empty()), "{alone:?}");
    let site = CostSite::with_clusters(&[1_000, 5], own);
    assert_eq!(second_cluster_results(&site), alone, "a thousand nodes of another cluster change nothing");
    let one_of_many = site.fleet.node_by_name("n0-7").expect("a node of the first cluster").id();
    let answer = site.resolved_node(&ResolveCache::new(), one_of_many);
    assert!(answer.findings().iter().any(|finding| finding.code == "condition.failed"), "they pay for themselves");
    let steps = site.resolve_all(&ResolveCache::new());
    assert!(steps > 0 && steps <= MAX_STEPS_PER_PASS, "{steps} steps");
}

#[test]
fn x04_f06_condition_finding_reveals_nothing_of_fleet() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    for clusters in [&[300][..], &[300, 1], &[300, 1, 1]] {
        let site = CostSite::with_clusters(clusters, looks_up);
        let node = site.fleet.node_by_name("n0-0").expect("a node of the first cluster").id();
        let answer = site.resolved_node(&ResolveCache::new(), node);
        let found = answer.findings();
        let undecided: Vec<_> = found.iter().filter(|finding| finding.code == "condition.failed").collect();
        assert!(!undecided.is_empty(), "{clusters:?}");
        let limit = node_step_limit(clusters.len(), 300).to_string();
        let told: BTreeSet<&str> = undecided.iter().map(|finding| &*finding.message).collect();
        assert_eq!(told.len(), 1, "the steps of the condition are all that is counted: {told:?}");
        assert!(told.iter().all(|said| !said.contains(&limit) && !said.contains("fleet")), "{limit}: {told:?}");
    }
}

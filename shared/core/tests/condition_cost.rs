//! What all conditions together may cost a pass over the whole fleet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::condition::{Author, AuthorError, Condition, ConditionError, TemplateReads, steps_together};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::input::{Inputs, Reference};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::NodeId;
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{Answer, Resolution, ResolveCache, resolve_node};

/// What a pass may cost, as the decision says.
const MOST: usize = 64_000_000;
/// How many costly conditions a release has.
const CONDITIONS: usize = 40;

/// Reads as the author does. What it read counts its steps where it would be evaluated, and holds.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

#[derive(Debug)]
struct Counted {
    read: Arc<dyn Condition>,
    steps: Arc<AtomicUsize>,
}

impl Author for Counting {
    fn template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        Reader.template(text)
    }

    fn script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        Reader.script(text)
    }

    fn condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        Ok(Arc::new(Counted { read: Reader.condition(text)?, steps: Arc::clone(&self.0) }))
    }
}

impl Condition for Counted {
    fn references(&self) -> &[Reference] {
        self.read.references()
    }

    fn weigh(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError> {
        self.read.weigh(inputs, most)
    }

    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
        self.steps.fetch_add(self.weigh(inputs, usize::MAX)?, Ordering::Relaxed);
        Ok(true)
    }
}

/// Clusters of so many nodes each, whose tasks all have the condition, and one that has a cheap one.
struct Site {
    fleet: Fleet,
    steps: Arc<AtomicUsize>,
}

impl Site {
    fn of(clusters: usize, nodes: usize, condition: &str) -> Self {
        Self::with(&vec![nodes; clusters], condition)
    }

    /// Clusters of as many nodes each as is said.
    fn with(clusters: &[usize], condition: &str) -> Self {
        let task = |id: String, condition: &str| json!({"id": id, "type": "shell", "roles": ["web"], "condition": condition, "parameters": {"script": "true"}});
        // Each its own text, so that nothing is shared between them.
        let mut tasks: Vec<_> =
            (0..CONDITIONS).map(|n| task(format!("c-{n:03}"), &format!("{condition} || '{n:03}' == ''"))).collect();
        tasks.push(task("z-cheap".to_owned(), "labels.zone != ''"));
        let mut documents =
            vec![json!({"kind": "Release", "name": "site", "version": "1", "roles": {"web": {}}, "tasks": tasks})];
        for (c, nodes) in clusters.iter().enumerate() {
            let many: Vec<usize> = (0..50).collect();
            documents.push(
                json!({"kind": "Cluster", "name": format!("c{c}"), "release": "site@1", "parameters": {"many": many}}),
            );
            documents.push(json!({"kind": "NodeGroup", "cluster": format!("c{c}"), "name": "g", "roles": ["web"]}));
            documents.extend((0..*nodes).map(|n| {
                json!({"kind": "Node", "name": format!("n{c}-{n}"), "nodegroup": format!("c{c}/g"), "labels": {"zone": format!("z{c}-{n}")}})
            }));
        }
        let author = Counting::default();
        Self { fleet: fleet(&documents, &author), steps: author.0 }
    }

    fn answer(&self, cache: &ResolveCache, node: NodeId) -> Arc<Answer> {
        match resolve_node(&self.fleet, cache, node) {
            Resolution::Complete(answer) => answer,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    /// Resolves everything from nothing; gives what that took.
    fn pass(&self, cache: &ResolveCache) -> usize {
        self.steps.store(0, Ordering::Relaxed);
        for node in self.fleet.nodes() {
            self.answer(cache, node.id());
        }
        self.steps.load(Ordering::Relaxed)
    }
}

fn fleet(documents: &[Value], author: &Counting) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|one| read_document(&one.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, author).expect("a release");
    let mut fleet = Fleet::new();
    fleet.apply_all(releases.into_values().map(Change::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
    fleet.apply_all(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
    fleet.apply_all(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
    fleet.set_loaded();
    fleet
}

fn runs(answer: &Answer) -> Vec<&str> {
    answer.task_set().expect("a task set").task_ids().collect()
}

#[test]
fn w10_05_all_conditions_of_all_nodes_together_are_bounded() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    let own = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let shared = "nodes(role='web').exists(n, nodes(role='web').exists(m, n.name == m.name))";
    for (clusters, nodes, condition) in
        [(1, 200, looks_up), (5, 40, looks_up), (1, 200, own), (40, 5, own), (1, 200, shared), (5, 40, shared)]
    {
        let site = Site::of(clusters, nodes, condition);
        let cache = ResolveCache::new();
        let case = format!("{clusters} clusters of {nodes}: {condition}");
        let steps = site.pass(&cache);
        assert!(steps > 0 && steps <= MOST, "{case}: {steps} steps");
        assert_eq!(site.pass(&cache), 0, "{case}: a second pass evaluates nothing");
        let node = site.fleet.nodes().last().expect("a node").id();
        let answer = site.answer(&cache, node);
        assert_eq!(runs(&answer).last(), Some(&"z-cheap"), "{case}: what is cheap is decided");
        let alone = site.answer(&ResolveCache::new(), node);
        assert_eq!(runs(&alone), runs(&answer), "{case}: what was remembered changes nothing");
        assert_eq!(alone.findings(), answer.findings(), "{case}");
    }
}

#[test]
fn w10_05_a_condition_for_which_nothing_is_left_is_named() {
    let site = Site::of(1, 300, "nodes(role='web').exists(n, n.labels.zone == labels.zone)");
    let cache = ResolveCache::new();
    let answer = site.answer(&cache, site.fleet.nodes().next().expect("a node").id());
    let ran = runs(&answer).len();
    assert!(ran > 1 && ran < CONDITIONS, "{ran} of them are decided");
    let first = format!("c-{:03}", ran - 1);
    let findings = answer.findings();
    assert_eq!(findings.len(), CONDITIONS + 1 - ran);
    let named: BTreeSet<&str> = findings.iter().map(|finding| &*finding.code).collect();
    assert_eq!(named, BTreeSet::from(["condition.failed"]));
    let found = findings.iter().map(ToString::to_string).find(|text| text.contains(&format!("task/{first}")));
    let found = found.expect("the first that is too many is named");
    let said =
        "more than the conditions of the tasks before it leave of what all conditions of a node may take together";
    assert!(found.contains(said) && found.contains("keeps the task set that it has"), "{found}");
}

#[test]
fn w10_05_what_a_node_may_take_shrinks_with_the_fleet_down_to_a_floor() {
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
        assert_eq!(steps_together(clusters, nodes), steps, "{clusters} clusters, {nodes} nodes in this one");
    }
}

/// What the nodes of the second cluster of a site run, with what is found of them.
fn of_the_second(site: &Site) -> Vec<(String, Vec<String>, Vec<String>)> {
    let cache = ResolveCache::new();
    (0..5)
        .map(|n| {
            let name = format!("n1-{n}");
            let node = site.fleet.node_named(&name).expect("a node of the second cluster").id();
            let answer = site.answer(&cache, node);
            let tasks = runs(&answer).into_iter().map(ToOwned::to_owned).collect();
            (name, tasks, answer.findings().iter().map(ToString::to_string).collect())
        })
        .collect()
}

#[test]
fn x04_f06_a_cluster_of_a_thousand_nodes_takes_nothing_from_the_conditions_of_another() {
    // Forty of them are more than a node of a thousand may take, and less than one of five may.
    let own = "params.many.exists(a, params.many.exists(b, a == b && labels.zone == ''))";
    let alone = of_the_second(&Site::with(&[5, 5], own));
    assert!(alone.iter().all(|(_, tasks, findings)| tasks.len() == CONDITIONS + 1 && findings.is_empty()), "{alone:?}");
    let site = Site::with(&[1_000, 5], own);
    assert_eq!(of_the_second(&site), alone, "a thousand nodes of another cluster change nothing");
    let one_of_many = site.fleet.node_named("n0-7").expect("a node of the first cluster").id();
    let answer = site.answer(&ResolveCache::new(), one_of_many);
    assert!(answer.findings().iter().any(|finding| finding.code == "condition.failed"), "they pay for themselves");
    let steps = site.pass(&ResolveCache::new());
    assert!(steps > 0 && steps <= MOST, "{steps} steps");
}

#[test]
fn x04_f06_the_finding_tells_nothing_of_the_fleet() {
    let looks_up = "nodes(role='web').exists(n, n.labels.zone == labels.zone)";
    for clusters in [&[300][..], &[300, 1], &[300, 1, 1]] {
        let site = Site::with(clusters, looks_up);
        let node = site.fleet.node_named("n0-0").expect("a node of the first cluster").id();
        let answer = site.answer(&ResolveCache::new(), node);
        let found = answer.findings();
        let undecided: Vec<_> = found.iter().filter(|finding| finding.code == "condition.failed").collect();
        assert!(!undecided.is_empty(), "{clusters:?}");
        let limit = steps_together(clusters.len(), 300).to_string();
        let told: BTreeSet<&str> = undecided.iter().map(|finding| &*finding.message).collect();
        assert_eq!(told.len(), 1, "the steps of the condition are all that is counted: {told:?}");
        assert!(told.iter().all(|said| !said.contains(&limit) && !said.contains("fleet")), "{limit}: {told:?}");
    }
}

//! Agents that do not know a task type or a parameter: the next task set of their nodes is withheld, and findings name the
//! hosts. Expected values are handwritten.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::digest::DigestVersion;
use stemma_core::fleet::FleetChange;
use stemma_core::object::{ClusterId, FactMap, NodeId, Observation, Timestamp};
use stemma_core::resolve::{newly_outdated, resolve_cluster};
use stemma_core::rollout::{ReleaseCandidate, ReleaseState};
use stemma_core::status::{NextTaskSet, WithheldBy};
use stemma_core::task::{KnownTypes, TASK_TYPES, Task, declared_task_types};

use crate::fleet_fixture::{FleetFixture, default_matching_site, etc_file_task};

const NOW: Timestamp = Timestamp(1_000);

/// Returns the documents of a site with these tasks, in which the host of each node has an agent that declares these
/// types. Document 5 to 7 are the nodes db-2, db-10 and web-1.
fn site(tasks: &Value, declared_types: &[&str]) -> Vec<Value> {
    let mut documents = default_matching_site(tasks);
    for node in &mut documents[5..=7] {
        node["reports"] = json!({"facts": {"agent": {"version": "0.4.1", "task_types": declared_types}}});
    }
    documents
}

/// Returns a file task for the nodes with the tag `nginx` or `mysql`, and a command for those with the tag `mysql`.
fn tasks() -> Value {
    json!([
        etc_file_task("conf", "nginx", "{{ labels.ntp }}"),
        etc_file_task("db-conf", "mysql", "{{ labels.ntp }}"),
        {"id": "dump", "type": "shell", "tags": ["mysql"], "parameters": {"command": ["dump"], "creates": "/dump"}},
    ])
}

/// Returns what withholds the first task set of a node, and the messages of the node's findings about task types.
fn node_state(fixture: &FleetFixture, name: &str) -> (NextTaskSet, Vec<String>) {
    let resolved_node = fixture.resolved_node(name);
    let candidate = ReleaseCandidate::from_resolved(&resolved_node, None, DigestVersion::LATEST, None);
    let next = candidate.next_task_set_at(NOW);
    // The agent is upgraded at an unknown time.
    let is_withheld = candidate.state(NOW) == ReleaseState::Withheld(None);
    assert_eq!(is_withheld, next != NextTaskSet::Due, "{name}");
    assert_eq!(candidate.error_rules(), [], "an outdated agent is no error");
    let findings = resolved_node.findings().into_iter().filter(|finding| finding.code == "task.type");
    (next, findings.map(|finding| finding.message).collect())
}

/// Returns the findings about task types of a cluster.
fn cluster_texts(fixture: &FleetFixture) -> Vec<String> {
    let cluster = ClusterId(fixture.fleet.clusters().next().expect("a cluster").meta.uuid);
    let output = resolve_cluster(&fixture.fleet, &fixture.cache, cluster);
    let findings = output.findings.into_iter().filter(|finding| finding.code == "task.type");
    findings.map(|finding| finding.to_string()).collect()
}

const WITHHELD: NextTaskSet = NextTaskSet::Withheld(WithheldBy::Agent);

#[test]
fn release_is_withheld_when_agent_lacks_type_or_parameter() {
    let advice = "it gets no task set with such a task before its agent is upgraded";
    let lacks =
        |feature: &str, task: &str| format!("its host has agent 0.4.1 and does not know {feature}, as in {task}: {advice}");
    let file_line = "file absent path template";
    for (declared_types, web_text, db_text) in [
        (vec![file_line, "shell command creates"], None, None),
        (vec![file_line, "shell command"], None, Some(lacks(r#"parameter "creates" of type "shell""#, "dump"))),
        (vec![file_line], None, Some(lacks(r#"type "shell""#, "dump"))),
        (vec!["shell creates command"], Some(lacks(r#"type "file""#, "conf")), Some(lacks(r#"type "file""#, "db-conf"))),
        (vec![], Some(lacks(r#"type "file""#, "conf")), Some(lacks(r#"type "file", type "shell""#, "db-conf, dump"))),
    ] {
        let fixture = FleetFixture::from_manifests(&site(&tasks(), &declared_types));
        for (node, text) in [("web-1", web_text), ("db-2", db_text)] {
            let expected = (if text.is_some() { WITHHELD } else { NextTaskSet::Due }, Vec::from_iter(text));
            assert_eq!(node_state(&fixture, node), expected, "{declared_types:?} {node}");
        }
    }
}

/// The host gets the command with the file task, and runs it when the file task falls away. So its agent must know both.
#[test]
fn release_is_withheld_when_agent_lacks_type_of_on_unassign() {
    let mut conf = etc_file_task("conf", "nginx", "a");
    conf["on_unassign"] = "gone".into();
    let gone = json!({"id": "gone", "type": "shell", "tags": [], "parameters": {"command": ["true"]}});
    for (declared_types, expected) in
        [(&["file path template"][..], WITHHELD), (&["file path template", "shell command"], NextTaskSet::Due)]
    {
        let fixture = FleetFixture::from_manifests(&site(&json!([conf, gone]), declared_types));
        assert_eq!(node_state(&fixture, "web-1").0, expected, "{declared_types:?}");
    }
}

/// A task that a condition leaves out, that is only observed or that runs nothing needs no agent that knows it.
#[test]
fn release_is_due_when_unknown_task_does_not_run() {
    for field in [json!({"condition": "false"}), json!({"mode": "observe"}), json!({"type": "skipped", "parameters": {}})] {
        let mut task = etc_file_task("conf", "nginx", "a");
        task.as_object_mut().expect("a task").extend(field.as_object().expect("fields").clone());
        let fixture = FleetFixture::from_manifests(&site(&json!([task]), &[]));
        assert_eq!(node_state(&fixture, "web-1"), (NextTaskSet::Due, vec![]), "{field}");
    }
}

#[test]
fn cluster_findings_list_hosts_by_type_and_version() {
    let mut documents = site(&tasks(), &["file path template", "shell command"]);
    documents[6]["reports"]["facts"]["agent"]["version"] = json!("0.4.0\n");
    documents[7]["reports"]["facts"]["agent"]["task_types"] = json!(["shell command"]);
    let advice = "it gets no task set with such a task before its agent is upgraded";
    let unknown = r#"does not know parameter "creates" of type "shell""#;
    let fixture = FleetFixture::from_manifests(&documents);
    assert_eq!(
        cluster_texts(&fixture),
        [
            format!(
                "warning task.type release/site@1 task conf type: 1 host with agent 0.4.1 does not know type \"file\" (web-1): {advice}"
            ),
            format!(
                "warning task.type release/site@1 task dump parameters.creates: 1 host with agent 0.4.0\\n {unknown} (db-10): {advice}"
            ),
            format!(
                "warning task.type release/site@1 task dump parameters.creates: 1 host with agent 0.4.1 {unknown} (db-2): {advice}"
            ),
        ]
    );
    documents[6]["reports"]["facts"]["agent"]["version"] = json!("0.4.1");
    let fixture = FleetFixture::from_manifests(&documents);
    assert_eq!(
        cluster_texts(&fixture)[1],
        "warning task.type release/site@1 task dump parameters.creates: 2 hosts with agent 0.4.1 do not know parameter \"creates\" of type \
         \"shell\" (db-2, db-10): they get no task set with such a task before their agent is upgraded"
    );
}

/// The edit adds a parameter to a task of the databases. Their agents also lack the type `file`, which is not new.
#[test]
fn newly_outdated_lists_only_added_parameter() {
    let mut before = tasks();
    before[2]["parameters"].as_object_mut().expect("parameters").remove("creates");
    let declared_types = ["shell command"];
    let (old, new) = (
        FleetFixture::from_manifests(&site(&before, &declared_types)),
        FleetFixture::from_manifests(&site(&tasks(), &declared_types)),
    );
    let nodes: Vec<NodeId> = ["db-2", "db-10", "web-1"].iter().map(|name| new.node(name).id()).collect();
    let texts = |old: &FleetFixture, new: &FleetFixture| {
        let findings = newly_outdated(&old.fleet, &new.fleet, &new.cache, nodes.iter().copied());
        findings.into_iter().map(|finding| finding.object).collect::<Vec<_>>()
    };
    assert_eq!(texts(&old, &new), ["release/site@1 task dump parameters.creates"]);
    assert_eq!(texts(&new, &new), [""; 0]);
}

/// A node is resolved again when its agent begins to declare that it knows a task, and not when nothing depends on that.
#[test]
fn declared_types_mark_node_when_release_depends_on_types() {
    let observation = |fact: &str| {
        let facts = FactMap::from_texts([("agent.task_types", fact), ("agent.version", "\"0.5.0\"")]);
        Arc::new(Observation { facts, ..Observation::default() })
    };
    let mut fixture = FleetFixture::from_manifests(&site(&tasks(), &["shell command creates"]));
    assert_eq!(node_state(&fixture, "web-1").0, WITHHELD);
    let web = fixture.resolved_node("web-1").id();
    let mut report = |fact: &str| {
        let dirty = fixture.fleet.apply(FleetChange::Observation(web, observation(fact)));
        (dirty.nodes(&fixture.fleet).any(|node| node == web), node_state(&fixture, "web-1").0)
    };
    assert_eq!(report(declared_task_types()), (true, NextTaskSet::Due));
    assert_eq!(report(declared_task_types()), (false, NextTaskSet::Due));
    assert_eq!(report(r#"["file path"]"#), (true, WITHHELD));
}

/// An agent that declares nothing knows `file` and `shell` only. A node without an agent gets no task of a later type
/// either, because its first agent may be such an agent. It has no finding, because nothing is to be upgraded yet.
#[test]
fn later_type_is_withheld_until_agent_declares_type() {
    let undeclared = KnownTypes::undeclared();
    let is_later = |name: &str| undeclared.unknown_feature(&Task::new("t", name)).is_some();
    let later_types = TASK_TYPES.iter().map(|entry| entry.name).filter(|name| is_later(name));
    for kind in ["file"].into_iter().chain(later_types) {
        let documents = default_matching_site(&json!([{"id": "task", "type": kind, "tags": ["nginx"]}]));
        let mut fixture = FleetFixture::from_manifests(&documents);
        let expected = |next| if kind == "file" { NextTaskSet::Due } else { next };
        assert_eq!(node_state(&fixture, "web-1"), (expected(WITHHELD), vec![]), "{kind}: no agent has reported");
        let web = fixture.resolved_node("web-1").id();
        fixture.fleet.apply(FleetChange::Observation(web, Arc::default()));
        let text = format!(
            "its host has an older agent and does not know type {kind:?}, as in task: it gets no task set with such a task before its agent \
             is upgraded"
        );
        let texts = if kind == "file" { vec![] } else { vec![text] };
        assert_eq!(node_state(&fixture, "web-1"), (expected(WITHHELD), texts), "{kind}: the agent declares nothing");
        let facts = FactMap::from_texts([("agent.task_types", declared_task_types())]);
        let observation = Observation { facts, ..Observation::default() };
        let dirty = fixture.fleet.apply(FleetChange::Observation(web, Arc::new(observation)));
        let is_marked = dirty.nodes(&fixture.fleet).any(|node| node == web);
        assert_eq!((is_marked, node_state(&fixture, "web-1")), (kind != "file", (NextTaskSet::Due, vec![])), "{kind}");
    }
}

//! Findings about resolved manifests: references without a value, with the number of affected hosts, and errors in a
//! cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Rule, Severity, has_error, rule};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::ClusterId;
use stemma_core::ownership::Manager;
use stemma_core::resolve::{Resolution, ResolveCache, newly_unset, resolve_cluster, resolve_fleet, resolve_node};

use crate::fleet_fixture::FleetFixture;

/// Builds the fleet that has the objects of these manifests.
fn build_fleet(documents: &[Value]) -> Fleet {
    FleetFixture::from_manifests(documents).fleet
}

/// Returns release `r@1`. Its role `x` gives a node tag `x`, and at most one node may have the role. Each template
/// becomes a file task of tag `x`, with the id `t0`, `t1` and so on.
fn release_manifest(templates: &[&str]) -> Value {
    let task = |(index, template): (usize, &&str)| json!({"id": format!("t{index}"), "type": "file", "tags": ["x"], "parameters": {"path": format!("/t{index}"), "template": template}});
    let tasks: Vec<_> = templates.iter().enumerate().map(task).collect();
    json!({
        "kind": "Release", "name": "r", "version": "1",
        "roles": {"x": {"limits": {"max": 1}}}, "tags": {"x": {}}, "tasks": tasks,
    })
}

fn cluster_manifest(name: &str, fields: Value) -> Value {
    with_fields(json!({"kind": "Cluster", "name": name}), fields)
}

fn group_manifest(cluster: &str, name: &str, fields: Value) -> Value {
    with_fields(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), fields)
}

/// Returns a node of group `g` of cluster `c`, with these fields added or replaced. The fields may name another group.
fn node_manifest(name: &str, fields: Value) -> Value {
    with_fields(json!({"kind": "Node", "name": name, "nodegroup": "c/g"}), fields)
}

/// Returns the document with these fields added or replaced.
fn with_fields(mut document: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { unreachable!("fields are an object") };
    document.as_object_mut().unwrap().extend(fields);
    document
}

/// Builds a fleet with cluster `c`, which has one group. Every node has role `x`, and so the tasks of the templates.
/// `labels` contains the labels that each node provides: those of `n1`, of `n2` and so on.
fn one_group_site(templates: &[&str], group_fields: Value, labels: &[Value]) -> Fleet {
    let mut documents = vec![release_manifest(templates), cluster_manifest("c", json!({"release": "r@1"}))];
    documents.push(group_manifest("c", "g", with_fields(json!({"roles": ["x"]}), group_fields)));
    documents
        .extend(labels.iter().zip(1..).map(|(labels, number)| node_manifest(&format!("n{number}"), json!({"labels": labels}))));
    build_fleet(&documents)
}

/// Returns those findings of cluster `c` that have the code of the rule.
fn findings_of_rule(fleet: &Fleet, expected_rule: Rule) -> Vec<Finding> {
    let id =
        fleet.clusters().find(|cluster| cluster.meta.name.as_str() == "c").map(|cluster| ClusterId(cluster.meta.uuid)).unwrap();
    let findings = resolve_cluster(fleet, &ResolveCache::new(), id).findings;
    findings.into_iter().filter(|finding| finding.code == expected_rule.code).collect()
}

/// Each row has the templates of the tasks t0, t1 and so on, and the labels of the hosts n1, n2 and so on. The last
/// item is the expected start of the only finding, or `None` if no finding is expected.
#[test]
fn unset_reference_finding_counts_affected_hosts() {
    let (with_label, without_label) = (json!({"x": "1"}), json!({}));
    let with_other_value = json!({"x": "2"});
    for (templates, labels, expected_start) in [
        (
            &["{{ labels.x }}"][..],
            vec![&without_label],
            Some("the one host that reads it lacks `labels.x` (n1), and task t0 fails there"),
        ),
        (&["{{ labels.x }}"], vec![&with_label, &with_other_value], None),
        (&["{{ labels.x | default('') }}"], vec![&without_label], None),
        (
            &["{{ labels.x }}"],
            vec![&with_label, &without_label, &with_other_value],
            Some("1 of the 3 hosts that read it lacks `labels.x` (n2), and task t0 "),
        ),
        (
            &["{{ labels.x }}", "{{ labels.x }}."],
            vec![&without_label, &with_label, &without_label],
            Some("2 of the 3 hosts that read it lack `labels.x` (n1, n3), and tasks t0, t1 fail there"),
        ),
        (
            &["{{ labels.x }}"],
            vec![&without_label, &without_label, &without_label],
            Some("all 3 hosts that read it lack `labels.x` (n1, n2, n3), and "),
        ),
        (&["{{ labels.x }}"], vec![&without_label; 5], Some("all 5 hosts that read it lack `labels.x` (n1, n2, n3, …), and ")),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let findings = findings_of_rule(&one_group_site(templates, json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(findings.len(), usize::from(expected_start.is_some()), "{findings:?}");
        let has_expected_start =
            findings.iter().zip(expected_start).all(|(finding, expected_start)| finding.message.starts_with(expected_start));
        assert!(has_expected_start, "{findings:?} {expected_start:?}");
    }
}

/// The template reads label `x` only inside an `if`, so a host without the label may need no value.
#[test]
fn unset_reference_is_info_when_read_conditionally() {
    let template = "{% if labels.tier == 'gold' %}{{ labels.x }}{% endif %}";
    let (with_label, without_label) = (json!({"x": "1"}), json!({}));
    for (labels, expected_start) in [
        (
            vec![&without_label, &without_label],
            Some("all 2 hosts that read it lack `labels.x` (n1, n2), and task t0 fails when a template reaches it: "),
        ),
        // One host has the label, so the other host may lack it on purpose.
        (vec![&with_label, &without_label], None),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let findings = findings_of_rule(&one_group_site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(findings.len(), usize::from(expected_start.is_some()), "{findings:?}");
        let is_info = |(finding, expected_start): (&Finding, &str)| {
            finding.severity == Severity::Info && finding.message.starts_with(expected_start)
        };
        assert!(findings.iter().zip(expected_start).all(is_info), "{findings:?}");
    }
    // Task t1 reads the label unconditionally. Then only the warning about t1 is reported, and not the info about t0.
    let findings =
        findings_of_rule(&one_group_site(&[template, "{{ labels.x }}"], json!({}), &[without_label]), rule::REFERENCE_UNSET);
    assert!(matches!(findings.as_slice(), [finding] if finding.severity == Severity::Warning), "{findings:?}");
}

/// In this test, node n1 runs t0 and lacks label `x`. Node n2 runs t1 and has the label from its group.
#[test]
fn unset_reference_is_found_when_other_group_sets_label() {
    let mut release = release_manifest(&["{% if labels.tier == 'gold' %}{{ labels.x }}{% endif %}", "{{ labels.x }}"]);
    release["roles"]["y"] = json!({});
    release["tags"]["y"] = json!({});
    release["tasks"][1]["tags"] = json!(["y"]);
    let site = build_fleet(&[
        release,
        cluster_manifest("c", json!({"release": "r@1"})),
        group_manifest("c", "g", json!({"roles": ["x"]})),
        group_manifest("c", "has", json!({"roles": ["y"], "labels": {"x": "1"}})),
        node_manifest("n1", json!({})),
        node_manifest("n2", json!({"nodegroup": "c/has"})),
    ]);
    let findings = findings_of_rule(&site, rule::REFERENCE_UNSET);
    let expected_start = "the one host that reads it lacks `labels.x` (n1), and task t0 fails when a template reaches it: ";
    assert!(
        matches!(findings.as_slice(), [finding] if finding.severity == Severity::Info && finding.message.starts_with(expected_start)),
        "{findings:?}"
    );
}

/// In this test, the edit takes label `x` from the group. Nodes n1 to n7 provide the label themselves, so n8 to n12
/// lack it afterwards. Three of the five are named.
#[test]
fn newly_unset_names_hosts_in_natural_order() {
    let templates = ["{{ labels.x }}"];
    let labels: Vec<Value> = (1..=12).map(|number| if number < 8 { json!({"x": "own"}) } else { json!({}) }).collect();
    let old_fleet = one_group_site(&templates, json!({"labels": {"x": "1"}}), &labels);
    let new_fleet = one_group_site(&templates, json!({}), &labels);
    let mut nodes: Vec<_> = new_fleet.nodes().map(|node| node.id()).collect();
    nodes.reverse();
    let findings = newly_unset(&old_fleet, &new_fleet, &ResolveCache::new(), nodes.into_iter());
    assert!(
        matches!(findings.as_slice(), [finding] if finding.message.starts_with("5 hosts that read it lack `labels.x` (n8, n9, n10, …), and ")),
        "{findings:?}"
    );
}

/// Covers labels of nodes that a look-up finds, and look-ups of a tag that no node has.
#[test]
fn unset_reference_finding_covers_lookups() {
    let (with_label, without_label) = (json!({"zone": "1"}), json!({}));
    for (template, labels, expected_start) in [
        (
            "{% for n in nodes(tag='x') %}{{ n.labels.zone }}{% endfor %}",
            vec![&with_label, &without_label],
            Some(
                "all 2 hosts that read it lack `n.labels.zone` on a node of `nodes(tag='x')` (n1, n2), and task t0 fails there: set it",
            ),
        ),
        ("{% for n in nodes(tag='x') %}{{ n.labels.zone }}{{ n.address }}{% endfor %}", vec![&with_label, &with_label], None),
        ("{% for n in nodes(tag='other') %}{{ n.labels.zone }}{% endfor %}", vec![&without_label], None),
        (
            "{{ nodes(tag='other')[0].name }}",
            vec![&without_label],
            Some(
                "the one host that reads it lacks a node of `nodes(tag='other')` (n1), and task t0 fails there: pick it within an `if`",
            ),
        ),
        (
            "{{ primary('other').name }}",
            vec![&with_label],
            Some("the one host that reads it lacks `primary('other').name` (n1), and task t0 fails there: write `is defined`"),
        ),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let findings = findings_of_rule(&one_group_site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(findings.len(), usize::from(expected_start.is_some()), "{template}: {findings:?}");
        assert!(
            findings.iter().zip(expected_start).all(|(finding, expected_start)| finding.message.starts_with(expected_start)),
            "{findings:?}"
        );
    }
    // A host reports its address, and no host has reported yet. So the missing address is not a finding.
    let mut release = release_manifest(&["{{ primary('x').name }}{{ primary('x').address }}"]);
    release["tags"]["x"] = json!({"has_primary": true});
    let cluster_documents = [
        cluster_manifest("c", json!({"release": "r@1"})),
        group_manifest("c", "g", json!({"roles": ["x"]})),
        node_manifest("n1", json!({})),
    ];
    let fleet = build_fleet(&[&[release][..], &cluster_documents].concat());
    assert_eq!(findings_of_rule(&fleet, rule::REFERENCE_UNSET), []);
}

/// The task reads label `x`, which the node lacks before and after the edit. Its condition requires label `on`.
#[test]
fn newly_unset_reports_references_of_newly_running_task() {
    let fleet_with = |group_fields: Value| {
        let mut release = release_manifest(&["{{ labels.x }}"]);
        release["tasks"][0]["condition"] = "has(labels.on)".into();
        build_fleet(&[
            release,
            cluster_manifest("c", json!({"release": "r@1"})),
            group_manifest("c", "g", with_fields(json!({"roles": ["x"]}), group_fields)),
            node_manifest("n1", json!({})),
        ])
    };
    let (skipping_fleet, running_fleet) = (fleet_with(json!({})), fleet_with(json!({"labels": {"on": "1"}})));
    let new_findings = |old_fleet: &Fleet, new_fleet: &Fleet| {
        let nodes: Vec<_> = new_fleet.nodes().map(|node| node.id()).collect();
        newly_unset(old_fleet, new_fleet, &ResolveCache::new(), nodes.into_iter())
    };
    assert!(
        matches!(new_findings(&skipping_fleet, &running_fleet).as_slice(), [finding] if finding.message.contains("lacks `labels.x` (n1)"))
    );
    assert_eq!(new_findings(&running_fleet, &skipping_fleet), []);
    assert_eq!(new_findings(&running_fleet, &running_fleet), []);
}

/// In this test, the edit takes label `x` from the group. Node n1 has a tombstone for it, so only n2 loses a value.
#[test]
fn newly_unset_omits_references_unset_before_edit() {
    let templates = ["{{ labels.x }} {{ labels.y }}"];
    // Both nodes lack label y before and after the edit. Node n1 also lacks label x before the edit, by its tombstone.
    let labels = [json!({"x": null}), json!({})];
    let (old_fleet, new_fleet) =
        (one_group_site(&templates, json!({"labels": {"x": "1"}}), &labels), one_group_site(&templates, json!({}), &labels));
    let new_findings = |old_fleet: &Fleet, new_fleet: &Fleet| {
        newly_unset(
            old_fleet,
            new_fleet,
            &ResolveCache::new(),
            new_fleet.nodes().map(|node| node.id()).collect::<Vec<_>>().into_iter(),
        )
    };
    let findings = new_findings(&old_fleet, &new_fleet);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].message.starts_with("1 host that reads it lacks `labels.x` (n2), and "), "{findings:?}");
    assert_eq!(new_findings(&new_fleet, &old_fleet), []);
    assert_eq!(new_findings(&new_fleet, &new_fleet), []);
    // Here the node lacks nothing before the edit.
    let x_template = ["{{ labels.x }}"];
    let (old_fleet, new_fleet) = (
        one_group_site(&x_template, json!({"labels": {"x": "1"}}), &[json!({})]),
        one_group_site(&x_template, json!({}), &[json!({})]),
    );
    assert_eq!(new_findings(&old_fleet, &new_fleet).len(), 1);
}

/// The field `primaries` of cluster `c` names a node, by name or uuid, as the primary of a tag. Each row has the tag,
/// the name, and the reason why the entry is ignored.
#[test]
fn x07_named_primary_without_tag_is_error_with_reason() {
    let mut release = release_manifest(&[]);
    release["tags"] = json!({"x": {"has_primary": true}, "plain": {}});
    let fleet_naming = |tag: &str, name: &str| {
        build_fleet(&[
            release.clone(),
            cluster_manifest("c", json!({"release": "r@1", "primaries": {tag: name}})),
            cluster_manifest("d", json!({"release": "r@1"})),
            group_manifest("c", "g", json!({"roles": ["x"]})),
            group_manifest("c", "none", json!({})),
            group_manifest("d", "g", json!({"roles": ["x"]})),
            node_manifest("holder", json!({"uuid": "0193b9cc-1111-7222-8333-444444444444", "tags": {"assigned": ["plain"]}})),
            node_manifest("other", json!({"nodegroup": "c/none"})),
            node_manifest("elsewhere", json!({"nodegroup": "d/g"})),
        ])
    };
    for (tag, name, reason) in [
        ("x", "holder", None),
        ("x", "0193b9cc-1111-7222-8333-444444444444", None),
        ("x", "other", Some("node other does not have the tag")),
        ("x", "elsewhere", Some("there is no node elsewhere in the cluster")),
        ("x", "nobody", Some("there is no node nobody in the cluster")),
        ("plain", "holder", Some("tag plain has no primary there (its has_primary is false)")),
        ("nosuch", "holder", Some("the cluster's release has no tag nosuch")),
    ] {
        let findings = findings_of_rule(&fleet_naming(tag, name), rule::PRIMARY_UNKNOWN);
        let Some(reason) = reason else {
            assert!(findings.is_empty(), "{tag} {name}: {findings:?}");
            continue;
        };
        let expected_start = format!("primaries: {tag} names {name}, which is ignored: {reason}; ");
        // A reader of this cluster may lack the permission to read other clusters. So a node of another cluster is
        // reported like a node that does not exist, as a warning.
        let severity = if ["nobody", "elsewhere"].contains(&name) { Severity::Warning } else { Severity::Error };
        assert_eq!((findings.len(), findings[0].severity), (1, severity), "{tag} {name}");
        assert!(findings[0].message.starts_with(&expected_start), "{}", findings[0].message);
    }
    // A cluster can exist before its release does.
    let fleet_without_release = build_fleet(&[cluster_manifest("c", json!({"primaries": {"x": "nobody"}}))]);
    let findings = findings_of_rule(&fleet_without_release, rule::PRIMARY_UNKNOWN);
    assert!(findings[0].message.contains("the cluster has no release that has tag x"), "{}", findings[0].message);
}

/// A name in `primaries` that has no effect is a finding. The message also states whether another node is primary
/// instead. Regression: the finding claimed that there is such a node, although no node can have the tag without a role
/// or a release.
#[test]
fn y09_unheld_tag_finding_names_no_holder() {
    let mut release = release_manifest(&[]);
    release["tags"] = json!({"x": {"has_primary": true}});
    let holder_remains = "its present holder keeps it, or the first node by name holds it";
    for (cluster_fields, group_fields, holder) in [
        (json!({"release": "r@1"}), json!({"roles": ["x"]}), holder_remains),
        (json!({"release": "r@1"}), json!({}), "nobody holds it"),
        (json!({}), json!({"roles": ["x"]}), "nobody holds it"),
    ] {
        let site = build_fleet(&[
            release.clone(),
            cluster_manifest("c", with_fields(json!({"primaries": {"x": "nobody"}}), cluster_fields.clone())),
            group_manifest("c", "g", group_fields.clone()),
            node_manifest("n", json!({})),
        ]);
        let findings = findings_of_rule(&site, rule::PRIMARY_UNKNOWN);
        let expected_end = format!("; {holder}; name a node that has it there, or leave x out");
        assert!(
            findings.len() == 1 && findings[0].message.ends_with(&expected_end),
            "{cluster_fields} {group_fields}: {findings:?}"
        );
    }
}

/// The release declares only role `x`. A role that the cluster names in both `tags` and `roles` is one finding.
#[test]
fn undeclared_role_changed_by_cluster_is_finding() {
    for (fields, finding_count) in [
        (json!({"roles": {"x": {"add_tags": ["x"]}}}), 0),
        (json!({"roles": {"typo": {"add_tags": ["x"]}}}), 1),
        (json!({"tags": {"own": {"role": "x"}}}), 0),
        (json!({"tags": {"own": {"role": "typo"}}}), 1),
        (json!({"tags": {"own": {"role": "typo"}}, "roles": {"typo": {"add_tags": ["x"]}}}), 1),
    ] {
        let cluster_fields = with_fields(json!({"release": "r@1"}), fields.clone());
        let site = build_fleet(&[
            release_manifest(&[]),
            cluster_manifest("c", cluster_fields),
            group_manifest("c", "g", json!({})),
            node_manifest("n", json!({})),
        ]);
        assert_eq!(findings_of_rule(&site, rule::ROLE_UNKNOWN).len(), finding_count, "{fields}");
    }
}

/// The release permits one node with role `x`. Node n1 has the role. Node n2 is in group `bare`, which has no release.
#[test]
fn role_limits_count_nodes_of_groups_without_release() {
    for (group_roles, node_roles, finding_count) in
        [(json!(["x"]), json!([]), 1), (json!([]), json!(["x"]), 1), (json!([]), json!([]), 0)]
    {
        let site = build_fleet(&[
            release_manifest(&[]),
            cluster_manifest("c", json!({})),
            group_manifest("c", "g", json!({"release": "r@1", "roles": ["x"]})),
            group_manifest("c", "bare", json!({"roles": group_roles})),
            node_manifest("n1", json!({})),
            node_manifest("n2", json!({"nodegroup": "c/bare", "roles": node_roles})),
        ]);
        assert_eq!(findings_of_rule(&site, rule::ROLE_LIMIT).len(), finding_count, "{group_roles} {node_roles}");
    }
}

/// Each site has the warning that the template reads a label without a value. An unmet requirement is an error. A
/// parameter that no task reads is not.
#[test]
fn has_error_is_true_only_for_finding_of_severity_error() {
    for (group_fields, expects_error) in [
        (json!({}), false),
        (json!({"requirements": {"property:memory_mb": ">= 1024"}}), true),
        (json!({"parameters": {"replicas": 3}}), false),
    ] {
        let site = one_group_site(&["{{ labels.x }}"], group_fields.clone(), &[json!({})]);
        let id = site.node_by_name("n1").unwrap().id();
        let Resolution::Complete(resolved_node) = resolve_node(&site, &ResolveCache::new(), id) else { panic!("incomplete") };
        assert_eq!(has_error(&resolved_node.findings()), expects_error, "{group_fields}");
        // The node inherits the parameter of its group.
        let replicas = resolved_node.parameters().get("replicas").map(|value| value.as_u64());
        assert_eq!(replicas, group_fields.get("parameters").map(|_| Some(3)));
    }
}

#[test]
fn node_output_contains_roles_of_node_and_group() {
    let documents = [
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}}),
        cluster_manifest("c", json!({"release": "r@1"})),
        group_manifest("c", "g", json!({"roles": ["x"]})),
        node_manifest("n1", json!({"roles": ["y"]})),
        node_manifest("n2", json!({})),
    ];
    let fleet_output = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).unwrap();
    let output = serde_json::to_value(&fleet_output).unwrap();
    let roles_and_tags = |name: &str| (output["nodes"][name]["roles"].clone(), output["nodes"][name]["tags"].clone());
    assert_eq!(roles_and_tags("n1"), (json!(["x", "y"]), json!(["x", "y"])));
    assert_eq!(roles_and_tags("n2"), (json!(["x"]), json!(["x"])));
}

/// A node does not wait for itself, so a cluster with one node has no cycle.
#[test]
fn cross_dependency_on_same_task_is_cycle_with_two_nodes() {
    let task = json!({
        "id": "t", "type": "shell", "tags": ["x"], "parameters": {"script": "true"},
        "cross_depends": [{"name": "t", "tags": ["x"]}],
    });
    let release = with_fields(release_manifest(&[]), json!({"tasks": [task]}));
    let mut documents =
        vec![release, cluster_manifest("c", json!({"release": "r@1"})), group_manifest("c", "g", json!({"roles": ["x"]}))];
    documents.push(node_manifest("n1", json!({})));
    let output = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).unwrap();
    assert_eq!(serde_json::to_value(&output).unwrap()["order"], json!([]));
    documents.push(node_manifest("n2", json!({})));
    let errors = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).map(drop).unwrap_err();
    assert!(errors[0].to_string().contains("tasks wait for each other: n1/t -> n2/t -> n1/t"), "{errors:?}");
}

/// A namespace declares the patterns of label values. The catalogue contains the compiled patterns of all namespaces.
#[test]
fn catalog_is_rebuilt_only_when_namespace_changes() {
    let namespace = |pattern: &str| {
        let document = json!({
            "kind": "Namespace", "namespace": "Site", "resource_type_associations": [{"name": "Stemma::Label"}],
            "properties": {"tier": {"title": "T", "type": "string", "pattern": pattern}},
        });
        let document = read_document(&document.to_string()).unwrap();
        let mut objects = assemble(&[document], &Manager::new("test").unwrap()).unwrap();
        FleetChange::Namespace(Arc::new(objects.namespaces.remove(0)))
    };
    let mut fleet = one_group_site(&[], json!({}), &[json!({"tier": "gold"})]);
    fleet.apply_all([namespace("^[a-z]+$")]);
    let old_fleet = fleet.clone();
    fleet.apply_all(one_group_site(&[], json!({}), &[json!({"tier": "9"})]).nodes().cloned().map(FleetChange::Node));
    assert!(std::ptr::eq(fleet.catalog(), old_fleet.catalog()), "a change of a node compiles no pattern");
    let nine = json!("9");
    let accepts_nine = |fleet: &Fleet| fleet.catalog().check_value(stemma_core::catalog::KeyKind::Label, "tier", &nine).is_ok();
    assert!(!accepts_nine(&fleet));
    fleet.apply_all([namespace("^[0-9]+$")]);
    assert!(accepts_nine(&fleet) && !accepts_nine(&old_fleet), "the old fleet retains the old catalogue");
}

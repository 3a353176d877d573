//! Findings of resolve about manifests: references that hosts lack, with the number of hosts, and problems of a
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

fn build_fleet(documents: &[Value]) -> Fleet {
    FleetFixture::from_manifests(documents).fleet
}

fn release_manifest(templates: &[&str]) -> Value {
    let task = |(at, template): (usize, &&str)| json!({"id": format!("t{at}"), "type": "file", "tags": ["x"], "parameters": {"path": format!("/t{at}"), "template": template}});
    let tasks: Vec<_> = templates.iter().enumerate().map(task).collect();
    json!({
        "kind": "Release", "name": "r", "version": "1",
        "roles": {"x": {"limits": {"max": 1}}}, "tags": {"x": {}}, "tasks": tasks,
    })
}

fn cluster_manifest(name: &str, more: Value) -> Value {
    with_fields(json!({"kind": "Cluster", "name": name}), more)
}

fn group_manifest(cluster: &str, name: &str, more: Value) -> Value {
    with_fields(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), more)
}

fn node_manifest(name: &str, more: Value) -> Value {
    with_fields(json!({"kind": "Node", "name": name, "nodegroup": "c/g"}), more)
}

fn with_fields(mut document: Value, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("fields are an object") };
    document.as_object_mut().unwrap().extend(more);
    document
}

/// Builds a cluster of one group, in which every node has the role. `labels` has the own labels of each node.
fn one_group_site(templates: &[&str], of_group: Value, labels: &[Value]) -> Fleet {
    let mut documents = vec![release_manifest(templates), cluster_manifest("c", json!({"release": "r@1"}))];
    documents.push(group_manifest("c", "g", with_fields(json!({"roles": ["x"]}), of_group)));
    documents.extend(labels.iter().zip(1..).map(|(labels, at)| node_manifest(&format!("n{at}"), json!({"labels": labels}))));
    build_fleet(&documents)
}

fn findings_of_rule(fleet: &Fleet, wanted: Rule) -> Vec<Finding> {
    let id = fleet.clusters().find(|one| one.meta.name.as_str() == "c").map(|one| ClusterId(one.meta.uuid)).unwrap();
    let all = resolve_cluster(fleet, &ResolveCache::new(), id).findings;
    all.into_iter().filter(|one| one.code == wanted.code).collect()
}

#[test]
fn unset_reference_finding_counts_affected_hosts() {
    let (has, lacks) = (json!({"x": "1"}), json!({}));
    let other = json!({"x": "2"});
    for (templates, labels, says) in [
        (
            &["{{ labels.x }}"][..],
            vec![&lacks],
            Some("the one host that reads it lacks `labels.x` (n1), and task t0 fails there"),
        ),
        (&["{{ labels.x }}"], vec![&has, &other], None),
        (&["{{ labels.x | default('') }}"], vec![&lacks], None),
        (
            &["{{ labels.x }}"],
            vec![&has, &lacks, &other],
            Some("1 of the 3 hosts that read it lacks `labels.x` (n2), and task t0 "),
        ),
        (
            &["{{ labels.x }}", "{{ labels.x }}."],
            vec![&lacks, &has, &lacks],
            Some("2 of the 3 hosts that read it lack `labels.x` (n1, n3), and tasks t0, t1 fail there"),
        ),
        (&["{{ labels.x }}"], vec![&lacks, &lacks, &lacks], Some("all 3 hosts that read it lack `labels.x` (n1, n2, n3), and ")),
        (&["{{ labels.x }}"], vec![&lacks; 5], Some("all 5 hosts that read it lack `labels.x` (n1, n2, n3, …), and ")),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = findings_of_rule(&one_group_site(templates, json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        let starts = found.iter().zip(says).all(|(one, says)| one.message.starts_with(says));
        assert!(starts, "{found:?} {says:?}");
    }
}

#[test]
fn unset_reference_is_info_when_read_conditionally() {
    let template = "{% if labels.tier == 'gold' %}{{ labels.x }}{% endif %}";
    let (has, lacks) = (json!({"x": "1"}), json!({}));
    for (labels, says) in [
        (
            vec![&lacks, &lacks],
            Some("all 2 hosts that read it lack `labels.x` (n1, n2), and task t0 fails when a template reaches it: "),
        ),
        (vec![&has, &lacks], None),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = findings_of_rule(&one_group_site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        let is_info = |(one, says): (&Finding, &str)| one.severity == Severity::Info && one.message.starts_with(says);
        assert!(found.iter().zip(says).all(is_info), "{found:?}");
    }
    // Another task needs it unconditionally. Only that graver finding is reported.
    let found = findings_of_rule(&one_group_site(&[template, "{{ labels.x }}"], json!({}), &[lacks]), rule::REFERENCE_UNSET);
    assert!(matches!(found.as_slice(), [one] if one.severity == Severity::Warning), "{found:?}");
}

#[test]
fn unset_reference_is_found_when_set_for_another_task() {
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
    let found = findings_of_rule(&site, rule::REFERENCE_UNSET);
    let says = "the one host that reads it lacks `labels.x` (n1), and task t0 fails when a template reaches it: ";
    assert!(matches!(found.as_slice(), [one] if one.severity == Severity::Info && one.message.starts_with(says)), "{found:?}");
}

#[test]
fn edit_names_newly_lacking_hosts_in_natural_order() {
    let templates = ["{{ labels.x }}"];
    let labels: Vec<Value> = (1..=12).map(|at| if at < 8 { json!({"x": "own"}) } else { json!({}) }).collect();
    let before = one_group_site(&templates, json!({"labels": {"x": "1"}}), &labels);
    let after = one_group_site(&templates, json!({}), &labels);
    let mut nodes: Vec<_> = after.nodes().map(|node| node.id()).collect();
    nodes.reverse();
    let found = newly_unset(&before, &after, &ResolveCache::new(), nodes.into_iter());
    assert!(
        matches!(found.as_slice(), [one] if one.message.starts_with("5 hosts that read it lack `labels.x` (n8, n9, n10, …), and ")),
        "{found:?}"
    );
}

#[test]
fn unset_reference_covers_looked_up_labels_and_unheld_tag() {
    let (has, lacks) = (json!({"zone": "1"}), json!({}));
    for (template, labels, says) in [
        (
            "{% for n in nodes(tag='x') %}{{ n.labels.zone }}{% endfor %}",
            vec![&has, &lacks],
            Some(
                "all 2 hosts that read it lack `n.labels.zone` on a node of `nodes(tag='x')` (n1, n2), and task t0 fails there: set it",
            ),
        ),
        ("{% for n in nodes(tag='x') %}{{ n.labels.zone }}{{ n.address }}{% endfor %}", vec![&has, &has], None),
        ("{% for n in nodes(tag='other') %}{{ n.labels.zone }}{% endfor %}", vec![&lacks], None),
        (
            "{{ nodes(tag='other')[0].name }}",
            vec![&lacks],
            Some(
                "the one host that reads it lacks a node of `nodes(tag='other')` (n1), and task t0 fails there: pick it within an `if`",
            ),
        ),
        (
            "{{ primary('other').name }}",
            vec![&has],
            Some("the one host that reads it lacks `primary('other').name` (n1), and task t0 fails there: write `is defined`"),
        ),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = findings_of_rule(&one_group_site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{template}: {found:?}");
        assert!(found.iter().zip(says).all(|(one, says)| one.message.starts_with(says)), "{found:?}");
    }
    // The address of the primary comes with its facts, which are not known yet.
    let mut release = release_manifest(&["{{ primary('x').name }}{{ primary('x').address }}"]);
    release["tags"]["x"] = json!({"has_primary": true});
    let c = [
        cluster_manifest("c", json!({"release": "r@1"})),
        group_manifest("c", "g", json!({"roles": ["x"]})),
        node_manifest("n1", json!({})),
    ];
    let held = build_fleet(&[&[release][..], &c].concat());
    assert_eq!(findings_of_rule(&held, rule::REFERENCE_UNSET), []);
}

#[test]
fn newly_running_task_reports_references_lacked_before() {
    let fleet_with = |of_group: Value| {
        let mut release = release_manifest(&["{{ labels.x }}"]);
        release["tasks"][0]["condition"] = "has(labels.on)".into();
        build_fleet(&[
            release,
            cluster_manifest("c", json!({"release": "r@1"})),
            group_manifest("c", "g", with_fields(json!({"roles": ["x"]}), of_group)),
            node_manifest("n1", json!({})),
        ])
    };
    let (off, on) = (fleet_with(json!({})), fleet_with(json!({"labels": {"on": "1"}})));
    let newly = |before: &Fleet, after: &Fleet| {
        let nodes: Vec<_> = after.nodes().map(|node| node.id()).collect();
        newly_unset(before, after, &ResolveCache::new(), nodes.into_iter())
    };
    assert!(matches!(newly(&off, &on).as_slice(), [one] if one.message.contains("lacks `labels.x` (n1)")));
    assert_eq!(newly(&on, &off), []);
    assert_eq!(newly(&on, &on), []);
}

#[test]
fn edit_reports_only_newly_unset_references() {
    let templates = ["{{ labels.x }} {{ labels.y }}"];
    // Both lack y before and after. n1 also lacks x before.
    let labels = [json!({"x": null}), json!({})];
    let (before, after) =
        (one_group_site(&templates, json!({"labels": {"x": "1"}}), &labels), one_group_site(&templates, json!({}), &labels));
    let newly = |before: &Fleet, after: &Fleet| {
        newly_unset(before, after, &ResolveCache::new(), after.nodes().map(|node| node.id()).collect::<Vec<_>>().into_iter())
    };
    let found = newly(&before, &after);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.starts_with("1 host that reads it lacks `labels.x` (n2), and "), "{found:?}");
    assert_eq!(newly(&after, &before), []);
    assert_eq!(newly(&after, &after), []);
    // A host that lacked nothing before.
    let alone = ["{{ labels.x }}"];
    let (before, after) =
        (one_group_site(&alone, json!({"labels": {"x": "1"}}), &[json!({})]), one_group_site(&alone, json!({}), &[json!({})]));
    assert_eq!(newly(&before, &after).len(), 1);
}

#[test]
fn x07_named_primary_without_tag_is_error_with_reason() {
    let mut of_release = release_manifest(&[]);
    of_release["tags"] = json!({"x": {"has_primary": true}, "plain": {}});
    let named = |tag: &str, name: &str| {
        build_fleet(&[
            of_release.clone(),
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
    for (tag, name, why) in [
        ("x", "holder", None),
        ("x", "0193b9cc-1111-7222-8333-444444444444", None),
        ("x", "other", Some("node other does not have the tag")),
        ("x", "elsewhere", Some("there is no node elsewhere in the cluster")),
        ("x", "nobody", Some("there is no node nobody in the cluster")),
        ("plain", "holder", Some("tag plain has no primary there (its has_primary is false)")),
        ("nosuch", "holder", Some("the cluster's release has no tag nosuch")),
    ] {
        let found = findings_of_rule(&named(tag, name), rule::PRIMARY_UNKNOWN);
        let Some(why) = why else {
            assert!(found.is_empty(), "{tag} {name}: {found:?}");
            continue;
        };
        let begins = format!("primaries: {tag} names {name}, which is ignored: {why}; ");
        // The reader may see nothing outside the cluster. So a node elsewhere is reported like a node that does not
        // exist.
        let severity = if ["nobody", "elsewhere"].contains(&name) { Severity::Warning } else { Severity::Error };
        assert_eq!((found.len(), found[0].severity), (1, severity), "{tag} {name}");
        assert!(found[0].message.starts_with(&begins), "{}", found[0].message);
    }
    // A cluster can exist before its release does.
    let early = build_fleet(&[cluster_manifest("c", json!({"primaries": {"x": "nobody"}}))]);
    let found = findings_of_rule(&early, rule::PRIMARY_UNKNOWN);
    assert!(found[0].message.contains("the cluster has no release that has tag x"), "{}", found[0].message);
}

/// Regression: the finding claimed that a cluster without a release keeps its primaries.
#[test]
fn y09_unheld_tag_finding_names_no_holder() {
    let mut of_release = release_manifest(&[]);
    of_release["tags"] = json!({"x": {"has_primary": true}});
    let kept = "its present holder keeps it, or the first node by name holds it";
    for (of_cluster, of_group, held) in [
        (json!({"release": "r@1"}), json!({"roles": ["x"]}), kept),
        (json!({"release": "r@1"}), json!({}), "nobody holds it"),
        (json!({}), json!({"roles": ["x"]}), "nobody holds it"),
    ] {
        let site = build_fleet(&[
            of_release.clone(),
            cluster_manifest("c", with_fields(json!({"primaries": {"x": "nobody"}}), of_cluster.clone())),
            group_manifest("c", "g", of_group.clone()),
            node_manifest("n", json!({})),
        ]);
        let found = findings_of_rule(&site, rule::PRIMARY_UNKNOWN);
        let says = format!("; {held}; name a node that has it there, or leave x out");
        assert!(found.len() == 1 && found[0].message.ends_with(&says), "{of_cluster} {of_group}: {found:?}");
    }
}

#[test]
fn undeclared_role_changed_by_cluster_is_finding() {
    for (fields, count) in [
        (json!({"roles": {"x": {"add_tags": ["x"]}}}), 0),
        (json!({"roles": {"typo": {"add_tags": ["x"]}}}), 1),
        (json!({"tags": {"own": {"role": "x"}}}), 0),
        (json!({"tags": {"own": {"role": "typo"}}}), 1),
        (json!({"tags": {"own": {"role": "typo"}}, "roles": {"typo": {"add_tags": ["x"]}}}), 1),
    ] {
        let more = with_fields(json!({"release": "r@1"}), fields.clone());
        let site = build_fleet(&[
            release_manifest(&[]),
            cluster_manifest("c", more),
            group_manifest("c", "g", json!({})),
            node_manifest("n", json!({})),
        ]);
        assert_eq!(findings_of_rule(&site, rule::ROLE_UNKNOWN).len(), count, "{fields}");
    }
}

#[test]
fn role_limits_count_nodes_of_groups_without_release() {
    for (of_group, of_node, count) in [(json!(["x"]), json!([]), 1), (json!([]), json!(["x"]), 1), (json!([]), json!([]), 0)] {
        let site = build_fleet(&[
            release_manifest(&[]),
            cluster_manifest("c", json!({})),
            group_manifest("c", "g", json!({"release": "r@1", "roles": ["x"]})),
            group_manifest("c", "bare", json!({"roles": of_group})),
            node_manifest("n1", json!({})),
            node_manifest("n2", json!({"nodegroup": "c/bare", "roles": of_node})),
        ]);
        assert_eq!(findings_of_rule(&site, rule::ROLE_LIMIT).len(), count, "{of_group} {of_node}");
    }
}

#[test]
fn fleet_output_has_error_only_when_one_is_found() {
    for (more, has) in [
        (json!({}), false),
        (json!({"requirements": {"property:memory_mb": ">= 1024"}}), true),
        (json!({"parameters": {"replicas": 3}}), false),
    ] {
        let site = one_group_site(&["{{ labels.x }}"], more.clone(), &[json!({})]);
        let id = site.node_by_name("n1").unwrap().id();
        let Resolution::Complete(answer) = resolve_node(&site, &ResolveCache::new(), id) else { panic!("incomplete") };
        assert_eq!(has_error(&answer.findings()), has, "{more}");
        let replicas = answer.parameters().get("replicas").map(|value| value.as_u64());
        assert_eq!(replicas, more.get("parameters").map(|_| Some(3)));
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
    let answer = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).unwrap();
    let said = serde_json::to_value(&answer).unwrap();
    let roles = |name: &str| (said["nodes"][name]["roles"].clone(), said["nodes"][name]["tags"].clone());
    assert_eq!(roles("n1"), (json!(["x", "y"]), json!(["x", "y"])));
    assert_eq!(roles("n2"), (json!(["x"]), json!(["x"])));
}

#[test]
fn self_crossing_task_waits_for_no_node_when_alone() {
    let task = json!({
        "id": "t", "type": "shell", "tags": ["x"], "parameters": {"script": "true"},
        "cross_depends": [{"name": "t", "tags": ["x"]}],
    });
    let release = with_fields(release_manifest(&[]), json!({"tasks": [task]}));
    let mut documents =
        vec![release, cluster_manifest("c", json!({"release": "r@1"})), group_manifest("c", "g", json!({"roles": ["x"]}))];
    documents.push(node_manifest("n1", json!({})));
    let answer = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).unwrap();
    assert_eq!(serde_json::to_value(&answer).unwrap()["order"], json!([]));
    documents.push(node_manifest("n2", json!({})));
    let refused = resolve_fleet(&build_fleet(&documents), &ResolveCache::new()).map(drop).unwrap_err();
    assert!(refused[0].to_string().contains("tasks wait for each other: n1/t -> n2/t -> n1/t"), "{refused:?}");
}

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
    let before = fleet.clone();
    fleet.apply_all(one_group_site(&[], json!({}), &[json!({"tier": "9"})]).nodes().cloned().map(FleetChange::Node));
    assert!(std::ptr::eq(fleet.catalog(), before.catalog()), "no pattern is compiled anew for a node");
    let value = json!("9");
    let checked = |fleet: &Fleet| fleet.catalog().check_value(stemma_core::catalog::KeyKind::Label, "tier", &value).is_ok();
    assert!(!checked(&fleet));
    fleet.apply_all([namespace("^[0-9]+$")]);
    assert!(checked(&fleet) && !checked(&before), "another catalogue is another");
}

//! What resolve finds about manifests: references that hosts lack, each with the number of them, and what is odd about a cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Finding, Rule, Severity, has_error, rule};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::ClusterId;
use stemma_core::ownership::Manager;
use stemma_core::resolve::{Resolution, ResolveCache, newly_unset, resolve_cluster, resolve_fleet, resolve_node};

use crate::made::Made;

fn fleet(documents: &[Value]) -> Fleet {
    Made::of(documents).fleet
}

fn release(templates: &[&str]) -> Value {
    let task = |(at, template): (usize, &&str)| json!({"id": format!("t{at}"), "type": "file", "tags": ["x"], "parameters": {"path": format!("/t{at}"), "template": template}});
    let tasks: Vec<_> = templates.iter().enumerate().map(task).collect();
    json!({
        "kind": "Release", "name": "r", "version": "1",
        "roles": {"x": {"limits": {"max": 1}}}, "tags": {"x": {}}, "tasks": tasks,
    })
}

fn cluster(name: &str, more: Value) -> Value {
    with(json!({"kind": "Cluster", "name": name}), more)
}

fn group(cluster: &str, name: &str, more: Value) -> Value {
    with(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), more)
}

fn node(name: &str, more: Value) -> Value {
    with(json!({"kind": "Node", "name": name, "nodegroup": "c/g"}), more)
}

fn with(mut document: Value, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("fields are an object") };
    document.as_object_mut().unwrap().extend(more);
    document
}

/// One cluster of one group, in which every node has the role, and nodes with the label x have it by themselves.
fn site(templates: &[&str], of_group: Value, labels: &[Value]) -> Fleet {
    let mut documents = vec![release(templates), cluster("c", json!({"release": "r@1"}))];
    documents.push(group("c", "g", with(json!({"roles": ["x"]}), of_group)));
    documents.extend(labels.iter().zip(1..).map(|(labels, at)| node(&format!("n{at}"), json!({"labels": labels}))));
    fleet(&documents)
}

fn found(fleet: &Fleet, wanted: Rule) -> Vec<Finding> {
    let id = fleet.clusters().find(|one| one.meta.name.as_str() == "c").map(|one| ClusterId(one.meta.uuid)).unwrap();
    let all = resolve_cluster(fleet, &ResolveCache::new(), id).findings;
    all.into_iter().filter(|one| one.code == wanted.code).collect()
}

#[test]
fn a_finding_says_how_many_of_those_who_read_it_lack_it() {
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
        (
            &["{{ labels.x }}"],
            vec![&lacks, &lacks, &lacks],
            Some("all 3 hosts that read it lack `labels.x` (n1, n2, n3), and "),
        ),
        (&["{{ labels.x }}"], vec![&lacks; 5], Some("all 5 hosts that read it lack `labels.x` (n1, n2, n3, …), and ")),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = found(&site(templates, json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        let starts = found.iter().zip(says).all(|(one, says)| one.message.starts_with(says));
        assert!(starts, "{found:?} {says:?}");
    }
}

#[test]
fn what_is_read_in_an_if_or_a_loop_is_an_info_where_no_host_has_it() {
    let template = "{% if labels.tier == 'gold' %}{{ labels.x }}{% endif %}";
    let (has, lacks) = (json!({"x": "1"}), json!({}));
    for (labels, says) in [
        (
            vec![&lacks, &lacks],
            Some("all 2 hosts that read it lack `labels.x` (n1, n2), and task t0 fails where it comes to that: "),
        ),
        (vec![&has, &lacks], None),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = found(&site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        let is_info = |(one, says): (&Finding, &str)| one.severity == Severity::Info && one.message.starts_with(says);
        assert!(found.iter().zip(says).all(is_info), "{found:?}");
    }
    // Another task needs it on every way: that is the graver finding, and the only one.
    let found = found(&site(&[template, "{{ labels.x }}"], json!({}), &[lacks]), rule::REFERENCE_UNSET);
    assert!(matches!(found.as_slice(), [one] if one.severity == Severity::Warning), "{found:?}");
}

#[test]
fn what_one_task_may_lack_is_told_though_the_hosts_of_another_that_needs_it_have_it() {
    let mut release = release(&["{% if labels.tier == 'gold' %}{{ labels.x }}{% endif %}", "{{ labels.x }}"]);
    release["roles"]["y"] = json!({});
    release["tags"]["y"] = json!({});
    release["tasks"][1]["tags"] = json!(["y"]);
    let site = fleet(&[
        release,
        cluster("c", json!({"release": "r@1"})),
        group("c", "g", json!({"roles": ["x"]})),
        group("c", "has", json!({"roles": ["y"], "labels": {"x": "1"}})),
        node("n1", json!({})),
        node("n2", json!({"nodegroup": "c/has"})),
    ]);
    let found = found(&site, rule::REFERENCE_UNSET);
    let says = "the one host that reads it lacks `labels.x` (n1), and task t0 fails where it comes to that: ";
    assert!(
        matches!(found.as_slice(), [one] if one.severity == Severity::Info && one.message.starts_with(says)),
        "{found:?}"
    );
}

#[test]
fn an_edit_counts_those_that_lack_by_it_and_names_the_first_as_people_count() {
    let templates = ["{{ labels.x }}"];
    let labels: Vec<Value> = (1..=12).map(|at| if at < 8 { json!({"x": "own"}) } else { json!({}) }).collect();
    let before = site(&templates, json!({"labels": {"x": "1"}}), &labels);
    let after = site(&templates, json!({}), &labels);
    let mut nodes: Vec<_> = after.nodes().map(|node| node.id()).collect();
    nodes.reverse();
    let found = newly_unset(&before, &after, &ResolveCache::new(), nodes.into_iter());
    assert!(
        matches!(found.as_slice(), [one] if one.message.starts_with("5 hosts that read it lack `labels.x` (n8, n9, n10, …), and ")),
        "{found:?}"
    );
}

#[test]
fn labels_of_nodes_that_are_looked_up_and_a_tag_that_nobody_holds_are_missed() {
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
            Some(
                "the one host that reads it lacks `primary('other').name` (n1), and task t0 fails there: write `is defined`",
            ),
        ),
    ] {
        let labels: Vec<Value> = labels.into_iter().cloned().collect();
        let found = found(&site(&[template], json!({}), &labels), rule::REFERENCE_UNSET);
        assert_eq!(found.len(), usize::from(says.is_some()), "{template}: {found:?}");
        assert!(found.iter().zip(says).all(|(one, says)| one.message.starts_with(says)), "{found:?}");
    }
    // Its address comes with its facts, which nobody knows yet.
    let mut release = release(&["{{ primary('x').name }}{{ primary('x').address }}"]);
    release["tags"]["x"] = json!({"has_primary": true});
    let c = [cluster("c", json!({"release": "r@1"})), group("c", "g", json!({"roles": ["x"]})), node("n1", json!({}))];
    let held = fleet(&[&[release][..], &c].concat());
    assert_eq!(found(&held, rule::REFERENCE_UNSET), []);
}

#[test]
fn a_task_that_runs_only_now_is_told_of_what_hosts_lacked_all_the_time() {
    let fleet_with = |of_group: Value| {
        let mut release = release(&["{{ labels.x }}"]);
        release["tasks"][0]["condition"] = "has(labels.on)".into();
        fleet(&[
            release,
            cluster("c", json!({"release": "r@1"})),
            group("c", "g", with(json!({"roles": ["x"]}), of_group)),
            node("n1", json!({})),
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
fn a_write_is_told_what_hosts_lack_by_it_and_not_what_they_lacked_before() {
    let templates = ["{{ labels.x }} {{ labels.y }}"];
    // Both lack y all the time; n1 has no x before either.
    let labels = [json!({"x": null}), json!({})];
    let (before, after) =
        (site(&templates, json!({"labels": {"x": "1"}}), &labels), site(&templates, json!({}), &labels));
    let newly = |before: &Fleet, after: &Fleet| {
        newly_unset(
            before,
            after,
            &ResolveCache::new(),
            after.nodes().map(|node| node.id()).collect::<Vec<_>>().into_iter(),
        )
    };
    let found = newly(&before, &after);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.starts_with("1 host that reads it lacks `labels.x` (n2), and "), "{found:?}");
    assert_eq!(newly(&after, &before), []);
    assert_eq!(newly(&after, &after), []);
    // Of a host that lacked nothing before.
    let alone = ["{{ labels.x }}"];
    let (before, after) =
        (site(&alone, json!({"labels": {"x": "1"}}), &[json!({})]), site(&alone, json!({}), &[json!({})]));
    assert_eq!(newly(&before, &after).len(), 1);
}

#[test]
fn x07_a_primary_that_is_named_and_does_not_hold_the_tag_is_an_error_that_says_why() {
    let mut of_release = release(&[]);
    of_release["tags"] = json!({"x": {"has_primary": true}, "plain": {}});
    let named = |tag: &str, name: &str| {
        fleet(&[
            of_release.clone(),
            cluster("c", json!({"release": "r@1", "primaries": {tag: name}})),
            cluster("d", json!({"release": "r@1"})),
            group("c", "g", json!({"roles": ["x"]})),
            group("c", "none", json!({})),
            group("d", "g", json!({"roles": ["x"]})),
            node("holder", json!({"uuid": "0193b9cc-1111-7222-8333-444444444444", "tags": {"assigned": ["plain"]}})),
            node("other", json!({"nodegroup": "c/none"})),
            node("elsewhere", json!({"nodegroup": "d/g"})),
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
        let found = found(&named(tag, name), rule::PRIMARY_UNKNOWN);
        let Some(why) = why else {
            assert!(found.is_empty(), "{tag} {name}: {found:?}");
            continue;
        };
        let begins = format!("primaries: {tag} is to be held by {name}, which is not obeyed: {why}; ");
        // Who reads it may see nothing beyond the cluster: a node that stands elsewhere is told as one that is not there.
        let severity = if ["nobody", "elsewhere"].contains(&name) { Severity::Warning } else { Severity::Error };
        assert_eq!((found.len(), found[0].severity), (1, severity), "{tag} {name}");
        assert!(found[0].message.starts_with(&begins), "{}", found[0].message);
    }
    // A cluster can stand before its release does.
    let early = fleet(&[cluster("c", json!({"primaries": {"x": "nobody"}}))]);
    let found = found(&early, rule::PRIMARY_UNKNOWN);
    assert!(found[0].message.contains("the cluster has no release that has tag x"), "{}", found[0].message);
}

/// A cluster that lost its release was said to keep its primaries.
#[test]
fn y09_a_tag_that_nobody_holds_is_not_said_to_be_held() {
    let mut of_release = release(&[]);
    of_release["tags"] = json!({"x": {"has_primary": true}});
    let kept = "who held it keeps it, or the first by name holds it";
    for (of_cluster, of_group, held) in [
        (json!({"release": "r@1"}), json!({"roles": ["x"]}), kept),
        (json!({"release": "r@1"}), json!({}), "nobody holds it"),
        (json!({}), json!({"roles": ["x"]}), "nobody holds it"),
    ] {
        let site = fleet(&[
            of_release.clone(),
            cluster("c", with(json!({"primaries": {"x": "nobody"}}), of_cluster.clone())),
            group("c", "g", of_group.clone()),
            node("n", json!({})),
        ]);
        let found = found(&site, rule::PRIMARY_UNKNOWN);
        let says = format!("; {held}; name a node that has it there, or leave x out");
        assert!(found.len() == 1 && found[0].message.ends_with(&says), "{of_cluster} {of_group}: {found:?}");
    }
}

#[test]
fn a_role_that_a_cluster_changes_and_no_release_declares_is_a_finding() {
    for (fields, count) in [
        (json!({"roles": {"x": {"add_tags": ["x"]}}}), 0),
        (json!({"roles": {"typo": {"add_tags": ["x"]}}}), 1),
        (json!({"tags": {"own": {"role": "x"}}}), 0),
        (json!({"tags": {"own": {"role": "typo"}}}), 1),
        (json!({"tags": {"own": {"role": "typo"}}, "roles": {"typo": {"add_tags": ["x"]}}}), 1),
    ] {
        let more = with(json!({"release": "r@1"}), fields.clone());
        let site = fleet(&[release(&[]), cluster("c", more), group("c", "g", json!({})), node("n", json!({}))]);
        assert_eq!(found(&site, rule::ROLE_UNKNOWN).len(), count, "{fields}");
    }
}

#[test]
fn nodes_of_groups_without_a_release_count_for_a_roles_limits() {
    for (of_group, of_node, count) in
        [(json!(["x"]), json!([]), 1), (json!([]), json!(["x"]), 1), (json!([]), json!([]), 0)]
    {
        let site = fleet(&[
            release(&[]),
            cluster("c", json!({})),
            group("c", "g", json!({"release": "r@1", "roles": ["x"]})),
            group("c", "bare", json!({"roles": of_group})),
            node("n1", json!({})),
            node("n2", json!({"nodegroup": "c/bare", "roles": of_node})),
        ]);
        assert_eq!(found(&site, rule::ROLE_LIMIT).len(), count, "{of_group} {of_node}");
    }
}

#[test]
fn an_answer_has_an_error_where_one_is_found_and_no_other() {
    for (more, has) in [
        (json!({}), false),
        (json!({"requirements": {"property:memory_mb": ">= 1024"}}), true),
        (json!({"parameters": {"replicas": 3}}), false),
    ] {
        let site = site(&["{{ labels.x }}"], more.clone(), &[json!({})]);
        let id = site.node_named("n1").unwrap().id();
        let Resolution::Complete(answer) = resolve_node(&site, &ResolveCache::new(), id) else { panic!("incomplete") };
        assert_eq!(has_error(&answer.findings()), has, "{more}");
        let replicas = answer.parameters().get("replicas").map(|value| value.as_u64());
        assert_eq!(replicas, more.get("parameters").map(|_| Some(3)));
    }
}

#[test]
fn a_plain_answer_has_the_roles_of_its_node_and_of_its_group() {
    let documents = [
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"x": {}, "y": {}}, "tags": {"x": {}, "y": {}}}),
        cluster("c", json!({"release": "r@1"})),
        group("c", "g", json!({"roles": ["x"]})),
        node("n1", json!({"roles": ["y"]})),
        node("n2", json!({})),
    ];
    let answer = resolve_fleet(&fleet(&documents), &ResolveCache::new()).unwrap();
    let said = serde_json::to_value(&answer).unwrap();
    let roles = |name: &str| (said["nodes"][name]["roles"].clone(), said["nodes"][name]["tags"].clone());
    assert_eq!(roles("n1"), (json!(["x", "y"]), json!(["x", "y"])));
    assert_eq!(roles("n2"), (json!(["x"]), json!(["x"])));
}

#[test]
fn a_task_that_waits_for_itself_on_others_waits_for_nobody_where_there_is_one_node() {
    let task = json!({
        "id": "t", "type": "shell", "tags": ["x"], "parameters": {"script": "true"},
        "cross_depends": [{"name": "t", "tags": ["x"]}],
    });
    let release = with(release(&[]), json!({"tasks": [task]}));
    let mut documents =
        vec![release, cluster("c", json!({"release": "r@1"})), group("c", "g", json!({"roles": ["x"]}))];
    documents.push(node("n1", json!({})));
    let answer = resolve_fleet(&fleet(&documents), &ResolveCache::new()).unwrap();
    assert_eq!(serde_json::to_value(&answer).unwrap()["order"], json!([]));
    documents.push(node("n2", json!({})));
    let refused = resolve_fleet(&fleet(&documents), &ResolveCache::new()).map(drop).unwrap_err();
    assert!(refused[0].to_string().contains("tasks wait for each other: n1/t -> n2/t -> n1/t"), "{refused:?}");
}

#[test]
fn the_catalogue_is_made_once_for_all_snapshots_until_a_namespace_changes() {
    let namespace = |pattern: &str| {
        let document = json!({
            "kind": "Namespace", "namespace": "Site", "resource_type_associations": [{"name": "Stemma::Label"}],
            "properties": {"tier": {"title": "T", "type": "string", "pattern": pattern}},
        });
        let document = read_document(&document.to_string()).unwrap();
        let mut objects = assemble(&[document], &Manager::new("test").unwrap()).unwrap();
        Change::Namespace(Arc::new(objects.namespaces.remove(0)))
    };
    let mut fleet = site(&[], json!({}), &[json!({"tier": "gold"})]);
    fleet.apply_all([namespace("^[a-z]+$")]);
    let before = fleet.clone();
    fleet.apply_all(site(&[], json!({}), &[json!({"tier": "9"})]).nodes().cloned().map(Change::Node));
    assert!(std::ptr::eq(fleet.catalog(), before.catalog()), "no pattern is compiled anew for a node");
    let value = json!("9");
    let checked =
        |fleet: &Fleet| fleet.catalog().check_value(stemma_core::catalog::Bound::Label, "tier", &value).is_ok();
    assert!(!checked(&fleet));
    fleet.apply_all([namespace("^[0-9]+$")]);
    assert!(checked(&fleet) && !checked(&before), "another catalogue is another");
}

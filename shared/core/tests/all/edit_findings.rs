//! What is found of an edit: what is so after it and was not before. Sentences by hand.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::catalog::Meant;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::{Name, NamespaceName, ObjectName, TagName};
use stemma_core::object::{DecidedTags, GroupId, LevelId, Meta, NodeId, Object, TemplateId, Timestamp};
use stemma_core::resolve::{
    ResolveCache, catalog_findings_of, cluster_findings, newly_meeting_below, newly_odd, newly_orphaned, newly_ruled,
    newly_uncatalogued, newly_undeclared, newly_unmet, resolve_cluster, resolve_fleet, resolve_node, unset_in_empty,
};
use uuid::Uuid;

use crate::made::{Made, file, release, site};

/// A node below a group of its name's first letters.
fn node(name: &str, group: &str) -> Value {
    json!({"kind": "Node", "name": name, "nodegroup": format!("prod/{group}")})
}

/// Two databases and `webs` web servers, which run `conf` and `always`.
fn fleet(webs: usize) -> Vec<Value> {
    let tasks = json!([
        {"id": "always", "type": "puppet", "roles": ["*"]},
        {"id": "conf", "type": "puppet", "tags": ["nginx"]},
        {"id": "store", "type": "puppet", "tags": ["mysql"]},
    ]);
    let mut documents = site(&json!({}), &tasks);
    documents.truncate(7);
    documents.extend((1..=webs).map(|n| node(&format!("web-{n}"), "webs")));
    documents
}

fn said(found: &[stemma_core::finding::Finding]) -> Vec<String> {
    found.iter().map(|one| format!("{} {}: {}", one.code, one.object, one.message)).collect()
}

fn all(made: &Made) -> Vec<NodeId> {
    made.fleet.nodes().map(|node| node.id()).collect()
}

#[test]
fn tasks_that_no_longer_fall_to_nodes_are_told_once_for_all_that_lose_the_same() {
    for (webs, others) in [(1, ""), (2, " and on 1 other node"), (4, " and on 3 other nodes")] {
        let mut made = Made::of(&fleet(webs));
        let (before, nodes) = (made.fleet.clone(), all(&made));
        let mut edited = fleet(webs);
        edited[4]["roles"] = json!([]);
        made.edit(&edited);
        assert_eq!(
            said(&newly_orphaned(&before, &made.fleet, nodes.iter().copied())),
            [format!(
                "task.orphaned node/web-1: tasks always, conf no longer run on it{others}: what was done there stays"
            )]
        );
    }
    let mut made = Made::of(&fleet(1));
    let (before, nodes) = (made.fleet.clone(), all(&made));
    let mut edited = fleet(1);
    edited[1]["roles"]["web"] = json!({"tags": []});
    made.edit(&edited);
    assert_eq!(
        said(&newly_orphaned(&before, &made.fleet, nodes.into_iter())),
        ["task.orphaned node/web-1: task conf no longer runs on it: what was done there stays"]
    );
}

/// It said that the task falls to no node, while the nodes of a group that runs another release ran it.
#[test]
fn y09_a_task_that_falls_to_no_node_is_named_with_its_release_and_where_it_does() {
    let mut documents = fleet(1);
    let mut next = documents[1].clone();
    next["version"] = json!("2");
    next["tasks"].as_array_mut().expect("tasks").push(json!({"id": "more", "type": "puppet", "roles": ["*"]}));
    documents.insert(2, next);
    documents[5]["release"] = json!("site@2");
    let made = Made::of(&documents);
    let found = said(&cluster_findings(&made.fleet, made.cluster()));
    let unplaced: Vec<_> = found.iter().filter(|one| one.starts_with("task.unplaced")).collect();
    let says = "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx; that \
                of release site@2 does";
    assert!(unplaced.iter().any(|one| *one == says), "{unplaced:?}");
}

#[test]
fn what_is_odd_about_a_cluster_is_told_by_the_edit_that_makes_it_so() {
    let mut made = Made::of(&fleet(1));
    let before = made.fleet.clone();
    let mut edited = fleet(1);
    edited[7]["tags"] = json!({"assigned": ["unseen"]});
    edited[4]["roles"] = json!(["web", "wbe"]);
    edited[4]["requirements"] = json!({"property:memory_mb": ">=3"});
    made.edit(&edited);
    let all = cluster_findings(&made.fleet, made.cluster());
    assert!(all.iter().any(|one| one.code == "requirement.text"), "the edit also brings a finding about one field");
    let odd = said(&newly_odd(&before, &made.fleet, made.cluster()));
    let unseen =
        "tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster";
    assert_eq!(odd.iter().filter(|one| *one == unseen).count(), 1, "{odd:?}");
    for code in ["task.type", "requirement.text"] {
        assert!(!odd.iter().any(|one| one.starts_with(code)), "{code} is about one field by itself: {odd:?}");
    }
    assert_eq!(said(&newly_odd(&made.fleet, &made.fleet, made.cluster())), [""; 0], "it is so already");

    let undeclared = |fleet: &Fleet, after: &Fleet, id| said(&newly_undeclared(fleet, after, id));
    let group = LevelId::Group(
        made.fleet
            .groups()
            .find(|group| &*group.meta.name == "webs")
            .map(|group| GroupId(group.meta.uuid))
            .expect("the group"),
    );
    let wbe =
        "role.unknown nodegroup/prod/webs: has role wbe, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&before, &made.fleet, group), [wbe]);
    assert_eq!(undeclared(&made.fleet, &made.fleet, group), [""; 0]);
    let mut again = edited.clone();
    again[7]["roles"] = json!(["dbb"]);
    let with_group = made.fleet.clone();
    made.edit(&again);
    let web = LevelId::Node(made.node("web-1").id());
    let dbb = "role.unknown node/web-1: has role dbb, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&with_group, &made.fleet, web), [dbb]);
}

#[test]
fn the_first_nodes_of_a_cluster_are_no_news_of_what_it_does_not_hold() {
    let told = |before: &[Value], after: &[Value]| {
        let mut made = Made::of(before);
        let was = made.fleet.clone();
        made.edit(after);
        said(&newly_odd(&was, &made.fleet, made.cluster()))
    };
    let (whole, empty) = (fleet(1), &fleet(0)[..5]);
    let first = [empty, &[node("web-1", "webs")]].concat();
    assert_eq!(told(empty, &first), [""; 0]);
    let mut odd = node("web-1", "webs");
    odd["tags"] = json!({"assigned": ["unseen"]});
    assert_eq!(
        told(empty, &[empty, &[odd]].concat()),
        ["tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster"]
    );
    let mut typed = whole.clone();
    typed[1]["tasks"].as_array_mut().expect("tasks").push(json!({"id": "more", "type": "puppet", "roles": ["*"]}));
    assert_eq!(told(&whole, &typed), [""; 0], "what is so of a task by itself is said where it is written");
    let moved = [empty, &[node("db-2", "dbs"), node("db-10", "dbs"), node("web-1", "dbs")]].concat();
    assert_eq!(
        told(&whole, &moved),
        [
            "tag.unheld cluster/prod tag/nginx: no node holds tag nginx, which release site@1 declares",
            "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx",
        ]
    );
}

#[test]
fn a_requirement_is_newly_unmet_by_the_edit_that_asks_for_it() {
    let mut made = Made::of(&fleet(1));
    let (before, node) = (made.fleet.clone(), made.node("web-1").id());
    let mut edited = fleet(1);
    edited[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    made.edit(&edited);
    let after = &made.fleet;
    let has_error = |fleet: &Fleet| resolve_node(fleet, &made.cache, node).has_error();
    assert!(has_error(after) && !has_error(&before));
    assert!(resolve_node(after, &made.cache, NodeId(Uuid::nil())).has_error(), "an unknown node cannot be resolved");
    let says: Vec<String> = newly_unmet(&before, after, node).iter().map(ToString::to_string).collect();
    assert_eq!(says, ["requirement property:memory_mb >= 1024 is not met"]);
    let unmet = &newly_unmet(&before, after, node)[0];
    let held = "the next task set is held until it is";
    let by_web_1 = format!("requirement property:memory_mb >= 1024 is not met by web-1 (the node has none): {held}");
    assert_eq!(unmet.sentence(&["web-1".to_owned()]), by_web_1);
    let by_both = format!("requirement property:memory_mb >= 1024 is not met by web-1, web-2: {held}");
    assert_eq!(unmet.sentence(&["web-1".to_owned(), "web-2".to_owned()]), by_both);
    let found = unmet.finding(made.node("web-1")).message;
    assert_eq!(found, "requirement property:memory_mb >= 1024 is not met: the node has none");
    assert_eq!(newly_unmet(after, after, node), []);
    assert_eq!(newly_unmet(after, &before, node), []);
}

#[test]
fn what_a_rule_newly_says_of_nodes_is_found() {
    let mut documents = fleet(1);
    documents[7]["reports"] = json!({"facts": {"cpu": {"count": 4}}});
    let mut made = Made::of(&documents);
    let (before, nodes) = (made.fleet.clone(), all(&made));
    let spec =
        serde_json::from_value(json!({"actions": [{"op": "fail", "args": {"msg": "too old"}}]})).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("age").ok(), Timestamp(0));
    made.fleet.apply(Change::Rule(Arc::new(Object { meta, spec })));
    let found =
        |before: &Fleet, after: &Fleet| said(&newly_ruled(before, after, &ResolveCache::new(), nodes.iter().copied()));
    let told = found(&before, &made.fleet);
    assert!(
        told.len() == 1 && told[0].starts_with("inspection.refused node/web-1: ") && told[0].contains("too old"),
        "{told:?}"
    );
    assert_eq!(found(&made.fleet, &made.fleet), [""; 0]);
}

#[test]
fn a_condition_that_fails_on_many_hosts_is_one_finding() {
    let tasks = json!([{"id": "conf", "type": "puppet", "tags": ["nginx"], "condition": "facts.cpu.count > 4"}]);
    for (webs, hosts) in
        [(1, "1 host (web-1)"), (3, "3 hosts (web-1, web-2, web-3)"), (4, "4 hosts (web-1, web-2, web-3, …)")]
    {
        let mut documents = fleet(webs);
        documents[1] = release(&json!({}), &tasks);
        let made = Made::of(&documents);
        let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
        let failed: Vec<_> = found.iter().filter(|one| one.code == "condition.failed").collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].object, "release/site@1 task conf");
        assert!(failed[0].message.starts_with(&format!("on {hosts}: ")), "{}", failed[0].message);
    }
}

#[test]
fn a_value_that_the_catalogue_does_not_allow_is_found_at_each_level() {
    let mut documents = fleet(1);
    for (at, value) in [(0, "t"), (2, "c"), (4, "g"), (7, "n")] {
        documents[at]["labels"] = json!({"tier": value});
    }
    let mut made = Made::of(&documents);
    let spec = serde_json::from_value(json!({
        "resource_type_associations": [{"name": "Stemma::Label"}],
        "properties": {"tier": {"title": "Tier", "type": "string", "enum": ["gold"]}},
    }));
    let meta = Meta::new(Uuid::from_u128(7), NamespaceName::new("Site").expect("a name"), Timestamp(0));
    let before = made.fleet.clone();
    made.fleet.apply(Change::Namespace(Arc::new(Object { meta, spec: spec.expect("a namespace") })));
    let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
    let wrong = |found: &[stemma_core::finding::Finding]| -> Vec<String> {
        let of_values = found.iter().filter(|one| one.code == "catalog.value");
        of_values.map(|one| one.object.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let all = ["cluster/prod", "clustertemplate/base", "node/web-1", "nodegroup/prod/webs"];
    assert_eq!(wrong(&found), all);
    let mut of_cluster = wrong(&resolve_cluster(&made.fleet, &made.cache, made.cluster()).findings);
    of_cluster.sort();
    assert_eq!(of_cluster, all);
    let meant = Meant::default();
    let of = |id| wrong(&catalog_findings_of(&made.fleet, &meant, id));
    assert_eq!(of(LevelId::Cluster(made.cluster())), ["cluster/prod"]);
    assert_eq!(of(LevelId::Node(made.node("web-1").id())), ["node/web-1"]);
    assert_eq!(of(LevelId::Node(made.node("db-2").id())), [""; 0]);
    let group = made.node("web-1").spec.nodegroup.expect("a group");
    assert_eq!(of(LevelId::Group(group)), ["nodegroup/prod/webs"]);
    let newly = |before: &Fleet| wrong(&newly_uncatalogued(before, &made.fleet, LevelId::Group(group)));
    assert_eq!(newly(&before), ["nodegroup/prod/webs"]);
    assert_eq!(newly(&made.fleet), [""; 0], "it was found before");
}

#[test]
fn a_tag_that_an_extension_gave_and_nobody_declares_any_more_is_found() {
    let mut documents = fleet(1);
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut made = Made::of(&documents);
    let mut web = (**made.node("web-1")).clone();
    let (rack, cluster) = ("rack".to_owned(), made.cluster());
    let tags = ["nginx", "gone"].map(|tag| TagName::new(tag).expect("a tag")).to_vec();
    web.spec.tags.decided.insert(
        Name::new("web").expect("a role"),
        DecidedTags { extension: rack, cluster, tags, question: String::new() },
    );
    made.fleet.apply(Change::Node(Arc::new(web)));
    let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
    let unknown: Vec<_> = found.iter().filter(|one| one.code == "tag.unknown").collect();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert_eq!(unknown[0].object, "node/web-1");
    assert!(unknown[0].message.starts_with("extension rack gives it tag gone for role web, which is declared neither"));
}

#[test]
fn nodes_outside_all_clusters_are_resolved_too_and_each_once() {
    let mut documents = fleet(1);
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"kept": null}, "merge_labels": false}));
    let made = Made::of(&documents);
    let whole = resolve_fleet(&made.fleet, &made.cache).expect("it is whole");
    assert_eq!(whole.nodes.keys().collect::<Vec<_>>(), ["db-10", "db-2", "spare", "web-1"]);
    assert_eq!(whole.answers.len(), 4);
    let idle = "label.idle_null node/spare: label kept is null where nothing is merged: it has no effect";
    assert_eq!(said(&whole.findings).iter().filter(|one| *one == idle).count(), 1);
    assert_eq!(made.answer("web-1").place().as_deref(), Some("prod/webs"));
    assert_eq!(made.answer("spare").place(), None);
}

#[test]
fn what_a_host_would_lack_that_joins_an_empty_group_is_foreseen() {
    let tasks = json!([
        file("conf", "nginx", "{{ labels.rack }}"),
        file("perhaps", "nginx", "{% if labels.tier == 'gold' %}{{ labels.slot }}{% endif %}"),
        file("zone", "nginx", "{% if labels.zone is defined %}{{ labels.zone }}{% endif %}")
    ]);
    let mut documents = fleet(0);
    documents[1] = release(&json!({}), &tasks);
    let made = Made::of(&documents);
    let groups = || made.fleet.groups().map(|group| GroupId(group.meta.uuid));
    let found = said(&unset_in_empty(&made.fleet, groups()));
    assert!(found.len() == 1 && found[0].contains("labels.rack") && found[0].contains("prod/webs"), "{found:?}");
    documents.push(node("web-1", "webs"));
    let made = Made::of(&documents);
    let groups = made.fleet.groups().map(|group| GroupId(group.meta.uuid));
    assert_eq!(said(&unset_in_empty(&made.fleet, groups)), [""; 0], "a group with nodes says what they lack");
}

/// The levels of the table as manifests, each with these labels.
fn levels(template: &Value, cluster: &Value, group: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "t", "labels": template}),
        json!({"kind": "Cluster", "name": "c", "cluster_template": "t", "merge_labels": true, "labels": cluster}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "merge_labels": true, "labels": group}),
    ]
}

#[test]
fn y08_labels_of_one_variable_are_found_at_the_level_that_brings_them_together_where_no_node_is_below() {
    let none = || json!({});
    for (template, cluster, group, object) in [
        (json!({"a": "1", "A": "2"}), none(), none(), Some("clustertemplate/t")),
        (none(), json!({"a": "1", "A": "2"}), none(), Some("cluster/c")),
        (json!({"a": "1"}), json!({"A": "2"}), none(), Some("cluster/c")),
        (none(), none(), json!({"a": "1", "A": "2"}), Some("nodegroup/c/g")),
        (none(), json!({"a": "1"}), json!({"A": "2"}), Some("nodegroup/c/g")),
        (json!({"a": "1"}), none(), json!({"A": "2"}), Some("nodegroup/c/g")),
        (none(), json!({"a": "1"}), json!({"A": "2", "a": null}), None),
        (none(), json!({"a": "1"}), json!({"b": "2"}), None),
    ] {
        let mut documents = levels(&template, &cluster, &group);
        let says = "labels A, a would all be STEMMA_LABEL_A: none of them is in labels.env; rename all but one";
        let expected = |object: Option<&str>| -> Vec<String> {
            object.iter().map(|object| format!("label.variable {object}: {says}")).collect()
        };
        let found = |made: &Made| -> Vec<String> {
            let whole = resolve_fleet(&made.fleet, &ResolveCache::new()).expect("it resolves");
            said(&whole.findings).into_iter().filter(|one| one.starts_with("label.variable")).collect()
        };
        let mut made = Made::of(&levels(&none(), &none(), &none()));
        let before = made.fleet.clone();
        let _dirty = made.edit(&documents);
        assert_eq!(found(&made), expected(object), "{documents:?}");
        let template = made.fleet.templates().next().expect("a template").meta.uuid;
        let newly = said(&newly_meeting_below(&before, &made.fleet, LevelId::Template(TemplateId(template))));
        assert_eq!(newly, expected(object), "of a write of what is above all: {documents:?}");
        documents.push(json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}));
        let node = object.map(|_| "node/n");
        assert_eq!(found(&Made::of(&documents)), expected(node), "a node below says so itself: {documents:?}");
    }
}

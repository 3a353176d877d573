//! The fleet's model: what a node has of the levels above it, in which order tasks run, and what is said where something is missing.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, Ran};
use stemma_core::finding::has_error;
use stemma_core::fleet::{Change, Fleet, Missing};
use stemma_core::object::{ClusterId, GroupId, Kind, Observation, SaidOnHost, TemplateId, Timestamp};
use stemma_core::resolve::{PlainAnswer, Resolution, ResolveCache, resolve_fleet, resolve_node};
use stemma_core::traits::Trait;
use uuid::Uuid;

use crate::made::{Made, changes, objects, reading, site, tasks};

#[test]
fn what_a_node_finds_otherwise_than_its_group_is_asked_of_it_whoever_was_resolved_before() {
    let file = |id: &str, template: &str| json!({"id": id, "type": "file", "tags": ["nginx"], "parameters": {"path": format!("/etc/{id}"), "template": template}});
    let tasks = json!([file("own", "{{ labels.z | default('-') }}"), file("ntp", "{{ labels.ntp | default('-') }}")]);
    let mut documents = site(&json!({}), &tasks);
    documents[4]["host_labels"] = json!({"accept": ["z"]});
    documents
        .push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs", "reports": {"labels": {"z": "host"}}}));
    documents
        .push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs", "merge_labels": false, "labels": {}}));
    let made = Made::of(&documents);
    let digest = |cache: &ResolveCache, name: &str| match resolve_node(&made.fleet, cache, made.node(name).id()) {
        Resolution::Complete(answer) => PlainAnswer::of(&answer).task_digest,
        Resolution::Incomplete(missing) => panic!("{missing:?}"),
    };
    let shared = ResolveCache::new();
    let names = ["web-1", "web-2", "web-3"];
    let digests = names.map(|name| digest(&shared, name));
    assert_eq!(digests, names.map(|name| digest(&ResolveCache::new(), name)));
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2], "{digests:?}");
}

#[test]
fn what_sets_a_node_aside_is_said_of_its_tasks() {
    let mut documents = site(&json!({}), &tasks());
    documents[6]["mode"] = json!("noop");
    let made = Made::of(&documents);
    let ran = Ran {
        runs: Some(&|_| true),
        has_set: true,
        too_large: None,
        keeps: None,
        told: true,
        outcome: None,
        shut: &Vec::new,
    };
    let aside =
        |name| explain::task(&made.answer(name), "every", Timestamp(1), &ran).expect("a task")["set_aside"].clone();
    assert_eq!(aside("db-2"), json!([]));
    assert_eq!(aside("db-10"), json!(["its mode is noop: tasks are checked, and nothing is changed"]));
}

#[test]
fn a_level_that_replaces_what_is_above_says_so_also_of_keys_that_it_does_not_name() {
    let mut documents = site(&json!({}), &tasks());
    documents[0]["merge_labels"] = json!(false);
    documents[2]["labels"] = json!({"own": "1"});
    documents[2]["merge_labels"] = json!(false);
    let made = Made::of(&documents);
    let levels = |key: &str| -> Vec<(String, bool)> {
        let explained = explain::label(&made.answer("web-1"), key, |at| at.0.to_string());
        let rows = explained["levels"].as_array().expect("levels").iter();
        rows.map(|row| (row["result"].as_str().expect("a text").to_owned(), row["merges"] == true)).collect()
    };
    let expected = |rows: [(&str, bool); 4]| rows.map(|(result, merges)| (result.to_owned(), merges)).to_vec();
    let silent = ("says nothing", true);
    assert_eq!(
        levels("ntp"),
        expected([("not merged by the cluster", false), ("replaces what is above", false), silent, silent])
    );
    assert_eq!(levels("none"), expected([silent, ("replaces what is above", false), silent, silent]));
}

#[test]
fn what_is_missing_is_named_and_nothing_is_answered() {
    let all = changes(objects(&site(&json!({}), &tasks())));
    let resolve = |fleet: &Fleet| {
        let node = fleet.node_named("web-1").expect("the node").id();
        resolve_node(fleet, &ResolveCache::new(), node)
    };
    for left_out in 0..all.len() {
        let is_parent = matches!(all[left_out], Change::Release(_) | Change::Template(_) | Change::Cluster(_));
        let mut fleet = Fleet::new();
        let others = all.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, change)| change.clone());
        fleet.apply_all(others.rev());
        fleet.set_loaded();
        if is_parent {
            assert!(matches!(resolve(&fleet), Resolution::Incomplete(missing) if missing.len() == 1), "{left_out}");
            fleet.apply(all[left_out].clone());
            assert!(matches!(resolve(&fleet), Resolution::Complete(_)), "{left_out}");
        }
    }
    let mut loading = Fleet::new();
    loading.apply_all(all);
    assert!(matches!(resolve(&loading), Resolution::Incomplete(missing) if missing == [Missing::Store]));
}

#[test]
fn a_condition_leaves_out_and_says_why() {
    let condition = |id: &str, text: &str| json!({"id": id, "type": "puppet", "roles": ["*"], "condition": text});
    let tasks = json!([
        condition("gold", "labels.tier == 'gold'"),
        condition("absent", "labels.absent == 'x'"),
        {"id": "marker", "type": "skipped", "roles": ["*"]},
    ]);
    let made = Made::of(&reading(&tasks));
    let web = made.plain("web-1");
    assert_eq!(web.tasks, ["gold"]);
    assert_eq!(web.skipped["marker"], "type is skipped");
    assert!(
        web.skipped["absent"].starts_with("condition counts as false: it reads `labels.absent`"),
        "{:?}",
        web.skipped
    );
    let db = made.plain("db-2");
    assert_eq!(db.skipped["gold"], "condition is false: labels.tier == 'gold'");
    assert!(made.answer("db-2").findings().iter().any(|finding| finding.code == "condition.failed"));
}

#[test]
fn a_cycle_that_comes_by_placement_is_spelled_out() {
    let tasks = json!([
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"]}]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "requires": ["app"]},
    ]);
    let mut documents = reading(&tasks);
    let made = Made::of(&documents);
    assert!(resolve_fleet(&made.fleet, &made.cache).is_ok());
    documents[5]["roles"] = json!(["web"]);
    // Of `any`, the first by name is waited for, which is the very node.
    for policy in ["all", "any"] {
        documents[1]["tasks"][0]["cross_depends"][0]["policy"] = json!(policy);
        let made = Made::of(&documents);
        let errors = resolve_fleet(&made.fleet, &made.cache).expect_err("a cycle");
        assert_eq!(
            errors[0].to_string(),
            "cluster prod: tasks wait for each other: db-2/app -> db-2/db -> db-2/app; \
             take one of these dependencies away, or place a task elsewhere"
        );
    }
}

#[test]
fn an_unplaced_node_has_labels_and_no_tasks() {
    let mut documents = reading(&tasks());
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"rack": "r1"}}));
    let made = Made::of(&documents);
    let spare = made.plain("spare");
    assert_eq!((spare.labels.len(), spare.tasks.len(), spare.task_digest), (1, 0, None));
    assert!(made.answer("spare").place().is_none());
}

#[test]
fn the_plain_traits_of_a_node_are_all_but_the_suppressed_ones() {
    let mut documents = reading(&tasks());
    documents[7]["traits"] = json!(["CUSTOM_SET", "HW_CPU_X86_VMX"]);
    documents[7]["suppressed_traits"] = json!(["CUSTOM_SEEN_BY_HOST"]);
    let mut made = Made::of(&documents);
    let id = made.node("web-1").id();
    let traits = ["CUSTOM_SEEN_BY_HOST", "HW_CPU_X86_AVX2"].map(|one| Trait::new(one).expect("a trait"));
    let seen = Observation { traits: Arc::new(traits.into_iter().collect()), ..Observation::default() };
    made.fleet.apply(Change::Observation(id, Arc::new(seen)));
    let plain = made.plain("web-1").traits;
    assert_eq!(plain.iter().collect::<Vec<_>>(), ["CUSTOM_SET", "HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"]);
    assert!(made.plain("db-2").traits.is_empty());
}

#[test]
fn a_fleet_is_printed_with_stages_order_and_what_falls_to_master() {
    let tasks = json!([
        {"id": "begin", "type": "stage"},
        {"id": "keys", "type": "puppet", "roles": ["master"], "requires": ["begin"]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "cross_depends": [{"name": "keys", "role": "master"}]},
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"], "policy": "any"}]},
        {"id": "bye", "type": "puppet", "tags": ["nginx"], "phase": "cleanup", "requires": ["app"]},
    ]);
    let made = Made::of(&reading(&tasks));
    let answer = resolve_fleet(&made.fleet, &made.cache).expect("it resolves");
    let printed = serde_json::to_value(&answer).expect("JSON");
    assert_eq!(printed["stages"], json!(["begin"]));
    assert_eq!(
        printed["order"],
        json!([
            [[null, "begin"], ["master", "keys"]],
            [["db-2", "db"], ["web-1", "app"]],
            [["master", "keys"], ["db-10", "db"]],
            [["master", "keys"], ["db-2", "db"]],
        ])
    );
    assert_eq!(printed["nodes"]["master"]["tasks"], json!(["keys"]));
    assert_eq!(printed["nodes"]["web-1"]["tasks"], json!(["app"]), "cleanup stands in neither");
    assert_eq!(printed["nodes"]["db-2"]["primary_tags"], json!(["mysql"]));
    assert!(answer.findings.iter().any(|finding| finding.code == "master.absent"));
}

/// In a dependency `role: '*'` means what it means in a task's `roles`, and the text `tags: '*'` whoever has a tag. Of the nodes, db-2
/// has a role and no tag, and tagged has a tag and no role.
#[test]
fn w04_a_star_means_whoever_has_a_role_or_whoever_has_a_tag() {
    let documents = |matching: &Value, mut entry: Value| {
        entry["name"] = "/first/".into();
        let tasks = json!([
            {"id": "first-by-role", "type": "puppet", "roles": "*"},
            {"id": "first-by-tag", "type": "puppet", "tags": "*"},
            {"id": "first-by-item", "type": "puppet", "tags": ["*"]},
            {"id": "last", "type": "puppet", "tags": ["late"], "cross_depends": [entry]},
        ]);
        let mut documents = site(matching, &tasks);
        documents[1]["tags"]["late"] = json!({});
        documents[5]["tags"] = json!({"unassigned": ["mysql"]});
        documents.extend([
            json!({"kind": "NodeGroup", "cluster": "prod", "name": "bare"}),
            json!({"kind": "Node", "name": "tagged", "nodegroup": "prod/bare", "tags": {"assigned": ["mysql"]}}),
            json!({"kind": "Node", "name": "waits", "nodegroup": "prod/bare", "tags": {"assigned": ["late"]}}),
        ]);
        documents
    };
    for (matching, entry, first) in [
        (json!({}), json!({"role": "*"}), &["db-10", "db-2", "web-1"][..]),
        (json!({}), json!({"role": ["*"]}), &["db-10", "db-2", "web-1"]),
        (json!({}), json!({"tags": "*"}), &["db-10", "tagged", "web-1"]),
        (json!({}), json!({"tags": ["*"]}), &[]),
        (json!({}), json!({}), &["db-10", "db-2", "tagged", "web-1"]),
        (json!({"roles": "tags"}), json!({"role": "*"}), &["db-10", "tagged", "web-1"]),
    ] {
        let made = Made::of(&documents(&matching, entry.clone()));
        let order = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").order;
        let before = order.into_iter().filter(|[_, (_, after)]| after == "last").filter_map(|[(node, _), _]| node);
        let before: BTreeSet<String> = before.filter(|node| node != "waits").collect();
        assert_eq!(before.iter().map(String::as_str).collect::<Vec<_>>(), first, "{matching} {entry}");
    }
    let made = Made::of(&documents(&json!({}), json!({})));
    for (node, tasks) in [("db-2", &["first-by-role"][..]), ("tagged", &["first-by-tag"])] {
        assert_eq!(made.plain(node).tasks, tasks, "{node}");
    }
}

/// Also where tasks between them give the order.
#[test]
fn w04_stages_stand_in_their_order() {
    let tasks = json!([
        {"id": "a-last", "type": "stage"},
        {"id": "b-middle", "type": "stage", "requires": ["z-first"]},
        {"id": "c-beside", "type": "stage"},
        {"id": "m-task", "type": "puppet", "tags": ["nginx"], "requires": ["b-middle"],
            "required_for": ["a-last"]},
        {"id": "z-first", "type": "stage"},
    ]);
    let made = Made::of(&site(&json!({}), &tasks));
    let stages = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").stages;
    assert_eq!(stages, ["c-beside", "z-first", "b-middle", "a-last"]);
}

/// A template, a cluster made from it with two groups, and a node with words of its own in the first group.
fn levels() -> [Value; 6] {
    let said = |level: &str| {
        let map = json!({"at": level, level: "1"});
        json!({"labels": map, "annotations": map, "parameters": map, "merge_labels": true})
    };
    let object = |kind: &str, more: Value| {
        let mut object = json!({"kind": kind});
        let parts = [more, said(&kind.to_lowercase())].map(|part| part.as_object().expect("an object").clone());
        for part in parts {
            object.as_object_mut().expect("an object").extend(part);
        }
        object
    };
    [
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {}}}),
        object("ClusterTemplate", json!({"name": "base", "release": "r@1"})),
        object("Cluster", json!({"name": "c", "cluster_template": "base", "tags": {"own": {}}})),
        object("NodeGroup", json!({"cluster": "c", "name": "g", "roles": ["web"]})),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "empty"}),
        object("Node", json!({"name": "n", "nodegroup": "c/g"})),
    ]
}

#[test]
fn all_of_a_node_s_maps_are_its_own_where_something_above_it_is_missing() {
    let mut made = Made::of(&levels());
    let keys = |fleet: &Fleet, id| {
        let view = fleet.node_view(id).expect("a node of the test");
        let labels: Vec<_> = view.labels().iter().map(|(key, _)| key.to_string()).collect();
        let annotations: Vec<_> = view.annotations().iter().map(|(key, _)| key.to_string()).collect();
        let parameters: Vec<_> = view.parameters().iter().map(|(key, _)| key.to_string()).collect();
        let added =
            view.label_differences().map(|labels| labels.added.into_keys().map(|key| key.to_string()).collect());
        ([labels, annotations, parameters], added)
    };
    let id = made.node("n").id();
    let whole = ["at", "cluster", "clustertemplate", "node", "nodegroup"].map(str::to_owned).to_vec();
    assert_eq!(keys(&made.fleet, id), (std::array::from_fn(|_| whole.clone()), Some(vec!["node".to_owned()])));
    let template = made.fleet.templates().next().expect("a template").meta.uuid;
    made.fleet.apply(Change::RemoveTemplate(TemplateId(template)));
    let own = ["at", "node"].map(str::to_owned).to_vec();
    assert_eq!(keys(&made.fleet, id), (std::array::from_fn(|_| own.clone()), None));
    let resolution = resolve_node(&made.fleet, &made.cache, id);
    let found = resolution.findings(made.node("n"));
    assert!(has_error(&found));
    let said = format!("error node.incomplete node/n: its cluster template {template} is not there");
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [said]);
    assert_eq!(resolution.unusable(), Some(format!("its cluster template {template} is not there")));
}

#[test]
fn a_cluster_has_the_release_and_the_tags_of_its_groups_that_name_none() {
    let made = Made::of(&levels());
    let fold = made.fleet.fold(made.node("n").spec.nodegroup.expect("a group")).expect("nothing is missing");
    assert_eq!(made.fleet.cluster_release(&fold.cluster), fold.release.as_ref().map(|release| &release.value.name));
    assert_eq!(Some(made.fleet.cluster_table(&fold.cluster)), fold.table.as_deref().cloned());
    assert!(made.fleet.cluster_table(&fold.cluster).tags().any(|(name, _)| name.as_str() == "own"));
}

#[test]
fn whom_an_object_stands_above_and_where_it_stands() {
    let made = Made::of(&levels());
    let fleet = &made.fleet;
    let cluster = fleet.clusters().next().expect("a cluster").meta.uuid;
    let template = fleet.templates().next().expect("a template").meta.uuid;
    let node = made.node("n");
    let group = node.spec.nodegroup.expect("a group");
    let all: BTreeSet<GroupId> = fleet.groups_of(ClusterId(cluster)).collect();
    assert_eq!(all.len(), 2);
    let (one, none) = (BTreeSet::from([group]), BTreeSet::new());
    for (kind, uuid, below, stands_in) in [
        (Kind::Release, Uuid::nil(), &all, None),
        (Kind::ReleaseTags, Uuid::nil(), &all, None),
        (Kind::ClusterTemplate, template, &all, None),
        (Kind::ClusterTemplate, Uuid::nil(), &none, None),
        (Kind::Cluster, cluster, &all, Some(ClusterId(cluster))),
        (Kind::NodeGroup, group.0, &one, Some(ClusterId(cluster))),
        (Kind::Node, node.meta.uuid, &none, Some(ClusterId(cluster))),
        (Kind::Principal, Uuid::nil(), &none, None),
    ] {
        assert_eq!(fleet.groups_below(kind, uuid).into_iter().collect::<BTreeSet<_>>(), *below, "{kind}");
        assert_eq!(fleet.cluster_of(kind, uuid), stands_in, "{kind}");
    }
}

#[test]
fn a_hold_on_the_host_is_told_until_it_is_over() {
    let mut made = Made::of(&levels());
    let id = made.node("n").id();
    for (until_s, now_ms, is_told) in [(5, 4_999, true), (5, 5_000, false), (5, 9_000, false), (u64::MAX, 9_000, true)]
    {
        let said = SaidOnHost { hold: Some((until_s, "a disk".into())), ..SaidOnHost::default() };
        made.fleet.apply(Change::Said(id, Some(Arc::new(said))));
        let found: Vec<_> =
            made.answer("n").findings_of_host(Timestamp(now_ms)).iter().map(ToString::to_string).collect();
        let told = "info host.held node/n: it is held on its host (a disk): it keeps its task set";
        assert_eq!(found == [told], is_told, "{until_s} s at {now_ms} ms: {found:?}");
    }
}

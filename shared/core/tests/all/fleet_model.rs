//! The fleet's model: placement under the default matching, primaries, and what is found.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, Ran};
use stemma_core::finding::{Severity, has_error, rule};
use stemma_core::fleet::{Change, Fleet, LostName, Missing, MovedPrimary, lost_name, moved_primaries};
use stemma_core::host_labels::HostLabels;
use stemma_core::idle::Idle;
use stemma_core::lifecycle::Lifecycle;
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{
    ClusterId, ClusterSpec, GroupId, Kind, Meta, NodeGroupSpec, NotTaken, Object, Observation, PrimarySpec,
    RefusedTraits, RoleSpec, SaidOnHost, TagSpec, TemplateId, Timestamp,
};
use stemma_core::resolve::{
    PlainAnswer, Resolution, ResolveCache, cluster_findings, newly_parked_primaries, resolve_fleet, resolve_node,
};
use stemma_core::task::Task;
use stemma_core::traits::Trait;
use uuid::Uuid;

use crate::made::{Made, changes, objects, reading, site, tasks};

#[test]
fn a_primary_holds_both_names_by_default() {
    let made = Made::of(&site(&json!({}), &tasks()));
    let (first, second) = (made.plain("db-2"), made.plain("db-10"));
    assert_eq!(first.tags.iter().collect::<Vec<_>>(), ["mysql", "primary-mysql"]);
    assert_eq!(first.primary_tags.iter().collect::<Vec<_>>(), ["mysql"]);
    assert_eq!(first.tasks, ["bootstrap", "by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(second.tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(made.plain("web-1").tasks, ["every"]);
}

#[test]
fn matching_decides_what_roles_and_primaries_mean() {
    for (matching, first, second) in [
        (
            json!({"roles": "own", "primary": "replaces"}),
            &["bootstrap", "by-empty-tags", "by-role", "every"][..],
            &["by-empty-tags", "by-role", "every", "server"][..],
        ),
        (json!({"roles": "tags", "primary": "adds"}), &["bootstrap", "every", "server"], &["every", "server"]),
        (json!({"roles": "tags", "primary": "replaces"}), &["bootstrap", "every"], &["every", "server"]),
    ] {
        let made = Made::of(&site(&matching, &tasks()));
        assert_eq!(made.plain("db-2").tasks, first, "{matching}");
        assert_eq!(made.plain("db-10").tasks, second, "{matching}");
    }
}

#[test]
fn a_role_and_a_tag_of_one_name_share_an_election() {
    let mut documents = site(&json!({}), &json!([{"id": "first", "type": "puppet", "roles": ["primary-db"]}]));
    documents[1]["roles"] = json!({"db": {}, "web": {}});
    documents[1]["tags"] = json!({"db": {"has_primary": true}});
    let made = Made::of(&documents);
    assert_eq!(made.plain("db-2").tasks, ["first"]);
    assert!(made.plain("db-10").tasks.is_empty());
}

fn mysql() -> TagName {
    TagName::new("mysql").expect("a tag")
}

/// Stores that a node was chosen to hold mysql.
fn choose(made: &mut Made, node: &str) -> Vec<String> {
    let spec = PrimarySpec { cluster: made.cluster(), node: made.node(node).id(), since: Timestamp(1), epoch: 1 };
    let chosen = Object { meta: Meta::new(Uuid::from_u128(9), mysql(), Timestamp(1)), spec };
    let dirty = made.fleet.apply(Change::Primary(Arc::new(chosen)));
    made.names(&dirty)
}

/// The nodes that hold mysql as primary, as they are told.
fn holders(made: &Made) -> Vec<&'static str> {
    let holds = |name: &&str| made.plain(name).primary_tags.contains("mysql");
    ["db-2", "db-10", "web-1"].into_iter().filter(holds).collect()
}

/// The site with these fields of db-2 and db-10, and those of the cluster.
fn site_with(cluster: Value, db_2: Value, db_10: Value) -> Vec<Value> {
    let mut documents = site(&json!({}), &tasks());
    for (at, fields) in [(2, cluster), (5, db_2), (6, db_10)] {
        let Value::Object(fields) = fields else { panic!("{fields} is no object") };
        documents[at].as_object_mut().expect("an object").extend(fields);
    }
    documents
}

#[test]
fn a_stored_choice_holds_while_its_node_has_the_tag() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let cluster = made.cluster();
    assert_eq!(made.fleet.unstored_holders(cluster), [(mysql(), made.node("db-2").id())]);
    assert_eq!(choose(&mut made, "db-10"), ["db-10", "db-2"]);
    assert_eq!(holders(&made), ["db-10"]);
    assert!(made.fleet.unstored_holders(cluster).is_empty());
    made.edit(&site_with(json!({}), json!({}), json!({"tags": {"unassigned": ["mysql"]}})));
    assert_eq!(holders(&made), ["db-2"]);
    assert_eq!(made.fleet.unstored_holders(cluster), [(mysql(), made.node("db-2").id())]);
}

#[test]
fn x07_park_keeps_a_primary_and_is_a_finding_of_the_node_and_of_its_cluster() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    choose(&mut made, "db-10");
    let before = made.fleet.clone();
    let parked = |made: &Made| {
        let of_node = made.answer("db-10").findings();
        let found = of_node.into_iter().chain(cluster_findings(&made.fleet, made.cluster()));
        let found = found.filter(|one| one.code == rule::PRIMARY_PARKED.code);
        found.map(|one| (one.severity, one.object)).collect::<Vec<_>>()
    };
    assert!(parked(&made).is_empty());
    made.edit(&site_with(json!({}), json!({}), json!({"parked": true})));
    assert_eq!(holders(&made), ["db-10"]);
    let both = ["node/db-10", "cluster/prod"].map(|object| (Severity::Warning, object.to_owned()));
    assert_eq!(parked(&made), both);
    let nodes = || made.fleet.nodes().map(|node| node.id());
    let new = newly_parked_primaries(&before, &made.fleet, nodes());
    assert_eq!(new.len(), 1);
    assert!(new[0].message.contains("stemma node park db-10 --release-primary"), "{}", new[0]);
    assert!(newly_parked_primaries(&made.fleet, &made.fleet, nodes()).is_empty(), "it was so before");
    assert!(moved_primaries(&before, &made.fleet, nodes()).is_empty());
    made.edit(&site_with(json!({}), json!({}), json!({})));
    assert_eq!((holders(&made), parked(&made)), (vec!["db-10"], vec![]));
    // Said on the host it is the same.
    let said = SaidOnHost { parked: Some("repair".into()), ..SaidOnHost::default() };
    made.fleet.apply(Change::Said(made.node("db-10").id(), Some(Arc::new(said))));
    assert_eq!((holders(&made), parked(&made)), (vec!["db-10"], both.to_vec()));
}

/// What is said of db-10, which is parked and holds mysql, at the node and at its cluster.
fn said_of_parked(made: &Made) -> [String; 2] {
    let found = made.answer("db-10").findings().into_iter().chain(cluster_findings(&made.fleet, made.cluster()));
    let said: Vec<_> = found.filter(|one| one.code == rule::PRIMARY_PARKED.code).map(|one| one.message).collect();
    said.try_into().expect("one of the node and one of the cluster")
}

#[test]
fn x07_of_a_parked_primary_that_the_cluster_names_the_advice_is_to_name_another() {
    let parked = json!({"parked": true});
    let named = |name: &str| json!({"primaries": {"mysql": name}});
    let release = "stemma node park db-10 --release-primary";
    let set = "stemma primary set prod mysql NODE";
    let edit = ["stemma get cluster prod -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let mut made = Made::of(&site_with(named("db-10"), json!({}), parked.clone()));
    let before = made.fleet.clone();
    let said = said_of_parked(&made);
    for said in &said {
        assert!(edit.iter().all(|part| said.contains(part)), "{said}");
        assert!(!said.contains(release) && !said.contains(set), "the controller refuses both: {said}");
    }
    assert!(said[0].contains("stemma node unpark db-10"), "{}", said[0]);
    // What a write says is what the node says.
    made.edit(&site_with(named("db-10"), json!({}), json!({})));
    let new = newly_parked_primaries(&made.fleet, &before, before.nodes().map(|node| node.id()));
    assert_eq!(new.iter().map(|one| &one.message).collect::<Vec<_>>(), [&said[0]]);
    // Parked on its host, it is taken back in there.
    let word = SaidOnHost { parked: Some("repair".into()), ..SaidOnHost::default() };
    made.fleet.apply(Change::Said(made.node("db-10").id(), Some(Arc::new(word))));
    let [of_node, _] = said_of_parked(&made);
    assert!(of_node.contains("on its host") && !of_node.contains("stemma node unpark"), "{of_node}");
    // Nobody is named, or somebody who does not have the tag: then the node can release it. A choice is taken in the first case alone.
    for (cluster, how) in [(json!({}), set), (named("web-1"), edit[1])] {
        let mut made = Made::of(&site(&json!({}), &tasks()));
        choose(&mut made, "db-10");
        made.edit(&site_with(cluster, json!({}), parked.clone()));
        let [of_node, of_cluster] = said_of_parked(&made);
        assert!(of_node.contains(release) && of_cluster.contains(how), "{of_node}\n{of_cluster}");
        // The controller refuses a release where nobody else has the tag: what to do first is said as well.
        for first in ["where no such node has the tag", "stemma tag assign NODE mysql", "stemma node unpark db-10"] {
            assert!(of_node.contains(first), "{of_node}");
        }
    }
}

#[test]
fn x07_a_node_that_its_cluster_names_loses_that_name_unless_another_has_it_or_it_is_named_anew() {
    let named = |name: &str| site_with(json!({"primaries": {"mysql": name}}), json!({}), json!({}));
    let made = Made::of(&named("db-10"));
    let name = |name: &str| NodeName::new(name).expect("a name");
    let rename = |fleet: &mut Fleet, old: &str, new: Option<&str>| {
        let mut node = fleet.node_named(old).expect("a node of the test").as_ref().clone();
        node.meta.name = new.map(name);
        fleet.apply(Change::Node(Arc::new(node)));
    };
    let lost = |after: &Fleet| lost_name(&made.fleet, after, made.fleet.nodes().map(|node| node.id()));
    let expected = LostName { cluster: made.cluster(), tag: mysql(), name: name("db-10") };
    for new in [Some("db-11"), None] {
        let mut after = made.fleet.clone();
        rename(&mut after, "db-10", new);
        assert_eq!(lost(&after), Some(expected.clone()), "{new:?}");
    }
    let mut after = made.fleet.clone();
    rename(&mut after, "db-2", Some("db-3"));
    assert_eq!(lost(&after), None, "nobody names it");
    rename(&mut after, "db-10", Some("db-11"));
    rename(&mut after, "db-3", Some("db-10"));
    assert_eq!(lost(&after), None, "another one has the name");
    let mut after = made.fleet.clone();
    after.apply(Change::RemoveNode(made.node("db-10").id()));
    assert_eq!(lost(&after), None, "it is gone: that is a finding of its cluster");
    let mut after = made.fleet.clone();
    rename(&mut after, "db-10", Some("db-11"));
    let mut cluster = made.fleet.cluster(made.cluster()).expect("the cluster").as_ref().clone();
    cluster.spec.primaries = [(mysql(), "db-11".to_owned())].into();
    after.apply(Change::Cluster(Arc::new(cluster)));
    assert_eq!(lost(&after), None, "the cluster names it by its new name");
}

#[test]
fn x07_without_a_choice_a_parked_node_is_elected_to_nothing() {
    for (db_2, db_10, held) in [
        (json!({}), json!({}), &["db-2"][..]),
        (json!({"parked": true}), json!({}), &["db-10"]),
        (json!({"parked": true}), json!({"parked": true}), &[]),
    ] {
        let made = Made::of(&site_with(json!({}), db_2, db_10));
        assert_eq!(holders(&made), held);
    }
    let made = Made::of(&site_with(json!({}), json!({"parked": true}), json!({})));
    let (cluster, id) = (made.cluster(), |name: &str| made.node(name).id());
    assert_eq!(made.fleet.next_holder(cluster, &mysql(), id("db-10")), None, "the other one is parked");
    assert!(made.fleet.could_hold(cluster, &mysql(), id("db-2")), "it may be named all the same");
    assert!(!made.fleet.could_hold(cluster, &mysql(), id("web-1")));
}

#[test]
fn x07_primaries_of_a_cluster_are_obeyed() {
    let named = |name: &str| json!({"primaries": {"mysql": name}});
    let mut made = Made::of(&site(&json!({}), &tasks()));
    choose(&mut made, "db-2");
    let unknown = |made: &Made| {
        let found = cluster_findings(&made.fleet, made.cluster());
        found.iter().filter(|one| one.code == rule::PRIMARY_UNKNOWN.code).count()
    };
    // It stands before the stored choice, also where its node is parked.
    for db_10 in [json!({}), json!({"parked": true})] {
        made.edit(&site_with(named("db-10"), json!({}), db_10));
        assert_eq!((holders(&made), unknown(&made)), (vec!["db-10"], 0));
    }
    // What it names wrongly is said, and takes the tag from nobody.
    for name in ["web-1", "db-3"] {
        made.edit(&site_with(named(name), json!({}), json!({})));
        assert_eq!((holders(&made), unknown(&made)), (vec!["db-2"], 1), "{name}");
    }
    let alone = Made::of(&site_with(named("db-10"), json!({}), json!({"parked": true})));
    assert_eq!(holders(&alone), ["db-10"], "so it is without a controller");
}

#[test]
fn x07_a_primary_that_moves_is_named_with_its_old_and_its_new_holder() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    choose(&mut made, "db-10");
    let before = made.fleet.clone();
    let (cluster, from, to) = (made.cluster(), made.node("db-10").id(), made.node("db-2").id());
    let all = |made: &Made| made.fleet.nodes().map(|node| node.id()).collect::<Vec<_>>();
    let moved = |to| vec![MovedPrimary { cluster, tag: mysql(), from, to }];
    for (db_10, holder) in [
        (json!({"tags": {"unassigned": ["mysql"]}}), Some(to)),
        (json!({"nodegroup": "prod/webs"}), Some(to)),
        (json!({"nodegroup": null}), Some(to)),
        (json!({"parked": true}), Some(from)),
    ] {
        made.edit(&site_with(json!({}), json!({}), db_10));
        let expected = if holder == Some(from) { vec![] } else { moved(holder) };
        assert_eq!(moved_primaries(&before, &made.fleet, all(&made).into_iter()), expected);
        let of_nobody = moved_primaries(&before, &made.fleet, std::iter::empty());
        assert!(of_nobody.is_empty(), "no node of the cluster is reached");
    }
    made.edit(&site_with(json!({}), json!({}), json!({})));
    made.fleet.apply(Change::RemoveNode(from));
    assert_eq!(moved_primaries(&before, &made.fleet, [from].into_iter()), moved(Some(to)), "it stood there");
    made.fleet.apply(Change::RemoveNode(to));
    assert_eq!(moved_primaries(&before, &made.fleet, [from].into_iter()), moved(None));
}

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
    let ran = Ran { runs: Some(&|_| true), too_large: None, keeps: None, told: true, outcome: None, shut: &Vec::new };
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
fn y09_an_unmet_requirement_is_said_with_what_the_node_has() {
    let mut documents = reading(&json!([]));
    documents[4]["requirements"] = json!({"property:memory_mb": ">= 1024", "trait:HW_CPU_X86_AVX2": "forbidden"});
    let made = Made::of(&documents);
    let unmet: Vec<_> = made.answer("web-1").unmet().iter().map(ToString::to_string).collect();
    assert_eq!(unmet, ["requirement property:memory_mb >= 1024 is not met"]);
    // Who asks whether a node can be used is told the sentence of the finding, with what the node has.
    let resolution = resolve_node(&made.fleet, &made.cache, made.node("web-1").id());
    let found = resolution.findings(made.node("web-1"));
    let found = found.iter().find(|one| one.code == "requirement.unmet").expect("it is not met");
    assert_eq!(found.message, "requirement property:memory_mb >= 1024 is not met: the node has none");
    assert_eq!(resolution.unusable().as_deref(), Some(&*found.message));
    documents[7]["properties"] = json!({"memory_mb": 2048});
    assert!(Made::of(&documents).answer("web-1").unmet().is_empty());
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
fn s38_traits_that_are_not_taken_are_a_finding_of_their_node() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let id = made.node("web-1").id();
    let refused = RefusedTraits { unknown: [Box::from("'NO_SUCH'")].into(), unknown_count: 3, surplus: 1 };
    let left_out = NotTaken { traits: refused, ..NotTaken::default() };
    let seen = Observation { not_taken: left_out.boxed(), ..Observation::default() };
    made.fleet.apply(Change::Observation(id, Arc::new(seen)));
    assert_eq!(
        made.answer("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning trait.refused node/web-1: its host reports traits that are not taken: 'NO_SUCH' and 2 more (a standard name, or \
          CUSTOM_ and then capitals, digits and '_', at most 255 characters); 1 beyond the 50 that one source may give"
        ]
    );
    assert_eq!(made.answer("web-1").traits().names().len(), 0);
}

#[test]
fn s39_what_a_host_reports_beyond_the_bounds_is_a_finding_of_its_node() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let id = made.node("web-1").id();
    let left_out = NotTaken { facts: 2, labels: 1, ..NotTaken::default() };
    let seen = Observation { not_taken: left_out.boxed(), ..Observation::default() };
    made.fleet.apply(Change::Observation(id, Arc::new(seen)));
    assert_eq!(
        made.answer("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning report.left_out node/web-1: its host reports more than is taken; left out: 2 facts (a path has at most 16 names \
          and 255 bytes, a value 16384 bytes, all together 262144); 1 labels (at most 256 are taken; a value has at most 4096 \
          bytes, all together 65536)"
        ]
    );
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

/// Each field that nothing acts on yet is said where it is given, and is no error.
#[test]
fn w02_no_field_is_taken_in_silence_that_nothing_acts_on() {
    let shell = |more: Value| {
        let mut task = json!({"id": "conf", "type": "shell", "tags": ["nginx"], "parameters": {"script": "true"}});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        task
    };
    let idle = json!({"id": "conf", "on_unassign": "undo", "disruptive": true, "max_nodes": 1, "privileged": true,
        "timeout_seconds": 9, "on_interrupt": "again", "tasks": ["undo"]});
    let file = json!({"id": "file", "type": "file", "tags": ["nginx"], "timeout_seconds": 9, "on_interrupt": "again",
        "parameters": {"path": "/f", "content": "", "timeout": 5}});
    let tasks = json!([shell(idle), shell(json!({"id": "undo", "phase": "cleanup"})), file,
        {"id": "all", "type": "group", "tags": ["nginx"], "tasks": ["undo"], "requires": ["conf"]},
        {"id": "point", "type": "stage", "required_for": ["conf"], "condition": "true"},
        {"id": "void", "type": "skipped", "tags": ["nginx"], "requires": ["conf"], "retries": 1, "sensitive": true, "mode": "noop",
            "fail_on_error": false, "on_drift": "report", "subscribes": ["conf"], "parameters": {"foo": "bar"}}]);
    let mut documents = site(&json!({}), &tasks);
    let given = [
        json!({"node_deletion_timeout": 5, "host_labels": {"annotations": ["a/.*"]}}),
        json!({}),
        json!({"rollout": {"max_groups": 1}, "min_ready_seconds": 5, "host_labels": {"annotations": ["a/.*"]},
            "tags": {"extra": {"ready": [{"tcp": 80}]}}}),
        json!({"strategy": {"max_unavailable": 1}, "mend_offline": true, "host_labels": {"annotations": ["a/.*"]}}),
        json!({"node_volume_detach_timeout": 5}),
        json!({"node_drain_timeout": 5}),
    ];
    for (document, given) in documents.iter_mut().zip(given) {
        document.as_object_mut().expect("a document").extend(given.as_object().expect("fields").clone());
    }
    // One that no cluster uses.
    documents.push(json!({"kind": "ClusterTemplate", "name": "spare", "host_labels": {"annotations": ["a/.*"]}}));
    documents[1]["roles"]["web"]["fault_tolerance"] = json!(1);
    documents[1]["roles"]["web"]["limits"] = json!({"min": 1, "recommended": 2, "max": "settings:a.b"});
    documents[1]["tags"]["nginx"]["ready"] = json!([{"tcp": 80}]);
    let made = Made::of(&documents);
    let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
    let idle: Vec<_> = findings.into_iter().filter(|finding| finding.code == "field.idle").collect();
    assert!(idle.iter().all(|finding| finding.severity == Severity::Info));
    let objects: Vec<_> = idle.iter().map(|finding| finding.object.as_str()).collect();
    every_row_is_found::<ClusterSpec>(&objects);
    every_row_is_found::<NodeGroupSpec>(&objects);
    every_row_is_found::<Lifecycle>(&objects);
    every_row_is_found::<HostLabels>(&objects);
    every_row_is_found::<RoleSpec>(&objects);
    every_row_is_found::<TagSpec>(&objects);
    every_row_is_found::<Task>(&objects);
    assert_eq!(
        objects,
        [
            "cluster/prod host_labels.annotations",
            "cluster/prod min_ready_seconds",
            "cluster/prod rollout",
            "cluster/prod tags.extra.ready",
            "clustertemplate/base host_labels.annotations",
            "clustertemplate/base node_deletion_timeout",
            "clustertemplate/spare host_labels.annotations",
            "node/db-2 node_drain_timeout",
            "nodegroup/prod/dbs host_labels.annotations",
            "nodegroup/prod/dbs mend_offline",
            "nodegroup/prod/dbs strategy",
            "nodegroup/prod/webs node_volume_detach_timeout",
            "release/site@1 roles.web.fault_tolerance",
            "release/site@1 roles.web.limits.max",
            "release/site@1 roles.web.limits.recommended",
            "release/site@1 tags.nginx.ready",
            "release/site@1 task all requires",
            "release/site@1 task conf disruptive",
            "release/site@1 task conf max_nodes",
            "release/site@1 task conf on_unassign",
            "release/site@1 task conf tasks",
            "release/site@1 task file on_interrupt",
            "release/site@1 task file parameters.timeout",
            "release/site@1 task file timeout_seconds",
            "release/site@1 task point condition",
            "release/site@1 task undo phase",
            "release/site@1 task void fail_on_error",
            "release/site@1 task void mode",
            "release/site@1 task void on_drift",
            "release/site@1 task void parameters",
            "release/site@1 task void retries",
            "release/site@1 task void sensitive",
            "release/site@1 task void subscribes",
        ]
    );
    let made = Made::of(&site(&json!({}), &json!([shell(json!({"timeout_seconds": 9, "on_interrupt": "again"}))])));
    let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
    assert!(findings.iter().all(|finding| finding.code != "field.idle"), "{findings:?}");
}

/// A task that named a group waited for nobody, and nothing said so.
#[test]
fn y05_a_group_that_others_are_to_wait_for_is_said_with_the_tasks_to_name() {
    let group = json!({"id": "grp", "type": "group", "tags": ["nginx"], "tasks": ["conf", "then"]});
    let tasks = |more: Value| {
        let mut task = json!({"id": "last", "type": "shell", "tags": ["nginx"], "parameters": {"script": "true"}});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        let plain = |id: &str| json!({"id": id, "type": "shell", "parameters": {"script": "true"}});
        json!([plain("conf"), plain("then"), group, task])
    };
    let instead =
        "nothing acts on it yet: grp is a group, and nobody waits for a group; name its tasks instead: conf, then";
    for (given, field) in [
        (json!({"requires": ["grp"]}), Some("requires[0]")),
        (json!({"requires": ["conf", "grp"]}), Some("requires[1]")),
        (json!({"required_for": ["grp"]}), Some("required_for[0]")),
        (json!({"subscribes": ["grp"]}), Some("subscribes[0]")),
        (json!({"cross_depends": [{"name": "grp", "role": "self"}]}), Some("cross_depends[0].name")),
        (json!({"cross_depended_by": [{"name": "grp", "role": "self"}]}), Some("cross_depended_by[0].name")),
        (json!({"requires": ["conf", "then"]}), None),
        (json!({"requires": ["/[cg].+/"]}), None),
    ] {
        let made = Made::of(&site(&json!({}), &tasks(given)));
        let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
        let idle: Vec<_> = findings.into_iter().filter(|finding| finding.code == "field.idle").collect();
        let found: Vec<_> = idle.iter().map(|one| (one.object.as_str(), one.message.as_str())).collect();
        let place = field.map(|field| format!("release/site@1 task last {field}"));
        assert_eq!(found, place.iter().map(|place| (place.as_str(), instead)).collect::<Vec<_>>());
    }
}

/// That each field of a kind or part which is said to be idle is among those that were found.
fn every_row_is_found<S: Idle>(objects: &[&str]) {
    for (field, _) in S::FIELDS.iter().filter(|(_, what)| what.is_some()) {
        let is_found = objects.iter().any(|object| object.rsplit([' ', '.']).next() == Some(*field));
        assert!(is_found, "{field} is idle, and this test does not give it");
    }
}

/// A role that is said to conflict with one that is not there conflicts with none.
#[test]
fn w02_a_conflict_with_a_role_that_is_not_declared_is_found() {
    let mut documents = site(&json!({}), &json!([]));
    documents[1]["roles"]["web"]["conflicts"] = json!(["db", "nosuch"]);
    let made = Made::of(&documents);
    let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
    let found: Vec<_> = findings.iter().filter(|finding| finding.code == "role.unknown").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].object, "release/site@1 roles.web.conflicts");
    assert_eq!(found[0].message, "names role nosuch, which the release does not declare");
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

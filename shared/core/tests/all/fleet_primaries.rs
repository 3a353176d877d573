//! Who is primary: elected, chosen, named by its cluster, and parked; and which tasks that places under each way of matching.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Severity, rule};
use stemma_core::fleet::{Change, Fleet, LostName, MovedPrimary, lost_name, moved_primaries};
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{Meta, Object, PrimarySpec, SaidOnHost, Timestamp};
use stemma_core::resolve::{cluster_findings, newly_parked_primaries};
use uuid::Uuid;

use crate::made::{Made, site, tasks};

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

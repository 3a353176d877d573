//! Primaries: elected, chosen, named by their cluster, or parked, and which tasks they get under each matching.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Severity, rule};
use stemma_core::fleet::{Fleet, FleetChange, LostNodeName, MovedPrimary, lost_node_name, moved_primaries};
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{Meta, Object, PrimarySpec, ReportedState, Timestamp};
use stemma_core::resolve::{cluster_findings, newly_parked_primaries};
use uuid::Uuid;

use crate::fleet_fixture::{FleetFixture, site_manifests, task_manifests};

#[test]
fn primary_has_both_tag_names_by_default() {
    let made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let (first, second) = (made.node_output("db-2"), made.node_output("db-10"));
    assert_eq!(first.tags.iter().collect::<Vec<_>>(), ["mysql", "primary-mysql"]);
    assert_eq!(first.primary_tags.iter().collect::<Vec<_>>(), ["mysql"]);
    assert_eq!(first.tasks, ["bootstrap", "by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(second.tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(made.node_output("web-1").tasks, ["every"]);
}

#[test]
fn matching_decides_meaning_of_roles_and_primaries() {
    for (matching, first, second) in [
        (
            json!({"roles": "own", "primary": "replaces"}),
            &["bootstrap", "by-empty-tags", "by-role", "every"][..],
            &["by-empty-tags", "by-role", "every", "server"][..],
        ),
        (json!({"roles": "tags", "primary": "adds"}), &["bootstrap", "every", "server"], &["every", "server"]),
        (json!({"roles": "tags", "primary": "replaces"}), &["bootstrap", "every"], &["every", "server"]),
    ] {
        let made = FleetFixture::from_manifests(&site_manifests(&matching, &task_manifests()));
        assert_eq!(made.node_output("db-2").tasks, first, "{matching}");
        assert_eq!(made.node_output("db-10").tasks, second, "{matching}");
    }
}

#[test]
fn role_and_tag_of_same_name_share_election() {
    let mut documents = site_manifests(&json!({}), &json!([{"id": "first", "type": "puppet", "roles": ["primary-db"]}]));
    documents[1]["roles"] = json!({"db": {}, "web": {}});
    documents[1]["tags"] = json!({"db": {"has_primary": true}});
    let made = FleetFixture::from_manifests(&documents);
    assert_eq!(made.node_output("db-2").tasks, ["first"]);
    assert!(made.node_output("db-10").tasks.is_empty());
}

fn mysql_tag() -> TagName {
    TagName::new("mysql").expect("a tag")
}

/// Stores that a node was chosen as the primary of mysql.
fn store_primary(made: &mut FleetFixture, node: &str) -> Vec<String> {
    let spec = PrimarySpec { cluster: made.cluster_id(), node: made.node(node).id(), since: Timestamp(1), epoch: 1 };
    let chosen = Object { meta: Meta::new(Uuid::from_u128(9), mysql_tag(), Timestamp(1)), spec };
    let dirty = made.fleet.apply(FleetChange::Primary(Arc::new(chosen)));
    made.node_names(&dirty)
}

/// Returns the nodes that hold mysql as primary.
fn primary_holders(made: &FleetFixture) -> Vec<&'static str> {
    let holds = |name: &&str| made.node_output(name).primary_tags.contains("mysql");
    ["db-2", "db-10", "web-1"].into_iter().filter(holds).collect()
}

/// Returns the site with more fields in the cluster, db-2 and db-10.
fn site_with_fields(cluster: Value, db_2: Value, db_10: Value) -> Vec<Value> {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    for (at, fields) in [(2, cluster), (5, db_2), (6, db_10)] {
        let Value::Object(fields) = fields else { panic!("{fields} is no object") };
        documents[at].as_object_mut().expect("an object").extend(fields);
    }
    documents
}

#[test]
fn stored_primary_holds_while_node_has_tag() {
    let mut made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let cluster = made.cluster_id();
    assert_eq!(made.fleet.unstored_holders(cluster), [(mysql_tag(), made.node("db-2").id())]);
    assert_eq!(store_primary(&mut made, "db-10"), ["db-10", "db-2"]);
    assert_eq!(primary_holders(&made), ["db-10"]);
    assert!(made.fleet.unstored_holders(cluster).is_empty());
    made.apply(&site_with_fields(json!({}), json!({}), json!({"tags": {"unassigned": ["mysql"]}})));
    assert_eq!(primary_holders(&made), ["db-2"]);
    assert_eq!(made.fleet.unstored_holders(cluster), [(mysql_tag(), made.node("db-2").id())]);
}

#[test]
fn x07_parked_primary_is_finding_of_node_and_cluster() {
    let mut made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut made, "db-10");
    let before = made.fleet.clone();
    let parked = |made: &FleetFixture| {
        let of_node = made.resolved_node("db-10").findings();
        let found = of_node.into_iter().chain(cluster_findings(&made.fleet, made.cluster_id()));
        let found = found.filter(|one| one.code == rule::PRIMARY_PARKED.code);
        found.map(|one| (one.severity, one.object)).collect::<Vec<_>>()
    };
    assert!(parked(&made).is_empty());
    made.apply(&site_with_fields(json!({}), json!({}), json!({"parked": true})));
    assert_eq!(primary_holders(&made), ["db-10"]);
    let both = ["node/db-10", "cluster/prod"].map(|object| (Severity::Warning, object.to_owned()));
    assert_eq!(parked(&made), both);
    let nodes = || made.fleet.nodes().map(|node| node.id());
    let new = newly_parked_primaries(&before, &made.fleet, nodes());
    assert_eq!(new.len(), 1);
    assert!(new[0].message.contains("stemma node park db-10 --release-primary"), "{}", new[0]);
    assert!(newly_parked_primaries(&made.fleet, &made.fleet, nodes()).is_empty(), "it was so before");
    assert!(moved_primaries(&before, &made.fleet, nodes()).is_empty());
    made.apply(&site_with_fields(json!({}), json!({}), json!({})));
    assert_eq!((primary_holders(&made), parked(&made)), (vec!["db-10"], vec![]));
    // The result is the same if the host itself is parked.
    let said = ReportedState { parked: Some("repair".into()), ..ReportedState::default() };
    made.fleet.apply(FleetChange::ReportedState(made.node("db-10").id(), Some(Arc::new(said))));
    assert_eq!((primary_holders(&made), parked(&made)), (vec!["db-10"], both.to_vec()));
}

/// Returns the findings of the node and of the cluster about db-10, which is parked and holds mysql.
fn parked_findings(made: &FleetFixture) -> [String; 2] {
    let found = made.resolved_node("db-10").findings().into_iter().chain(cluster_findings(&made.fleet, made.cluster_id()));
    let said: Vec<_> = found.filter(|one| one.code == rule::PRIMARY_PARKED.code).map(|one| one.message).collect();
    said.try_into().expect("one of the node and one of the cluster")
}

#[test]
fn x07_parked_primary_finding_advises_renaming_when_named_by_cluster() {
    let parked = json!({"parked": true});
    let named = |name: &str| json!({"primaries": {"mysql": name}});
    let release = "stemma node park db-10 --release-primary";
    let set = "stemma primary set prod mysql NODE";
    let edit = ["stemma get cluster prod -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let mut made = FleetFixture::from_manifests(&site_with_fields(named("db-10"), json!({}), parked.clone()));
    let before = made.fleet.clone();
    let said = parked_findings(&made);
    for said in &said {
        assert!(edit.iter().all(|part| said.contains(part)), "{said}");
        assert!(!said.contains(release) && !said.contains(set), "the controller refuses both: {said}");
    }
    assert!(said[0].contains("stemma node unpark db-10"), "{}", said[0]);
    // A write reports the same message as the node.
    made.apply(&site_with_fields(named("db-10"), json!({}), json!({})));
    let new = newly_parked_primaries(&made.fleet, &before, before.nodes().map(|node| node.id()));
    assert_eq!(new.iter().map(|one| &one.message).collect::<Vec<_>>(), [&said[0]]);
    // If the node was parked on its host, it must be unparked there.
    let word = ReportedState { parked: Some("repair".into()), ..ReportedState::default() };
    made.fleet.apply(FleetChange::ReportedState(made.node("db-10").id(), Some(Arc::new(word))));
    let [of_node, _] = parked_findings(&made);
    assert!(of_node.contains("on its host") && !of_node.contains("stemma node unpark"), "{of_node}");
    // The cluster names no node, or a node without the tag. Then the node can release the tag. `primary set` is
    // accepted only in the first case.
    for (cluster, how) in [(json!({}), set), (named("web-1"), edit[1])] {
        let mut made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
        store_primary(&mut made, "db-10");
        made.apply(&site_with_fields(cluster, json!({}), parked.clone()));
        let [of_node, of_cluster] = parked_findings(&made);
        assert!(of_node.contains(release) && of_cluster.contains(how), "{of_node}\n{of_cluster}");
        // The controller refuses the release if no other node has the tag. So the message also says what to do first.
        for first in ["if no such node has the tag", "stemma tag assign NODE mysql", "stemma node unpark db-10"] {
            assert!(of_node.contains(first), "{of_node}");
        }
    }
}

#[test]
fn x07_replaced_primary_loses_name_unless_named_again() {
    let named = |name: &str| site_with_fields(json!({"primaries": {"mysql": name}}), json!({}), json!({}));
    let made = FleetFixture::from_manifests(&named("db-10"));
    let name = |name: &str| NodeName::new(name).expect("a name");
    let rename = |fleet: &mut Fleet, old: &str, new: Option<&str>| {
        let mut node = fleet.node_by_name(old).expect("a node of the test").as_ref().clone();
        node.meta.name = new.map(name);
        fleet.apply(FleetChange::Node(Arc::new(node)));
    };
    let lost = |after: &Fleet| lost_node_name(&made.fleet, after, made.fleet.nodes().map(|node| node.id()));
    let expected = LostNodeName { cluster: made.cluster_id(), tag: mysql_tag(), name: name("db-10") };
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
    after.apply(FleetChange::RemoveNode(made.node("db-10").id()));
    assert_eq!(lost(&after), None, "it is gone: that is a finding of its cluster");
    let mut after = made.fleet.clone();
    rename(&mut after, "db-10", Some("db-11"));
    let mut cluster = made.fleet.cluster(made.cluster_id()).expect("the cluster").as_ref().clone();
    cluster.spec.primaries = [(mysql_tag(), "db-11".to_owned())].into();
    after.apply(FleetChange::Cluster(Arc::new(cluster)));
    assert_eq!(lost(&after), None, "the cluster names it by its new name");
}

#[test]
fn x07_parked_node_is_not_elected_without_stored_choice() {
    for (db_2, db_10, held) in [
        (json!({}), json!({}), &["db-2"][..]),
        (json!({"parked": true}), json!({}), &["db-10"]),
        (json!({"parked": true}), json!({"parked": true}), &[]),
    ] {
        let made = FleetFixture::from_manifests(&site_with_fields(json!({}), db_2, db_10));
        assert_eq!(primary_holders(&made), held);
    }
    let made = FleetFixture::from_manifests(&site_with_fields(json!({}), json!({"parked": true}), json!({})));
    let (cluster, id) = (made.cluster_id(), |name: &str| made.node(name).id());
    assert_eq!(made.fleet.next_holder(cluster, &mysql_tag(), id("db-10")), None, "the other one is parked");
    assert!(made.fleet.can_hold(cluster, &mysql_tag(), id("db-2")), "it may be named all the same");
    assert!(!made.fleet.can_hold(cluster, &mysql_tag(), id("web-1")));
}

#[test]
fn x07_named_primaries_override_election() {
    let named = |name: &str| json!({"primaries": {"mysql": name}});
    let mut made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut made, "db-2");
    let unknown = |made: &FleetFixture| {
        let found = cluster_findings(&made.fleet, made.cluster_id());
        found.iter().filter(|one| one.code == rule::PRIMARY_UNKNOWN.code).count()
    };
    // The named primary overrides the stored choice, even if its node is parked.
    for db_10 in [json!({}), json!({"parked": true})] {
        made.apply(&site_with_fields(named("db-10"), json!({}), db_10));
        assert_eq!((primary_holders(&made), unknown(&made)), (vec!["db-10"], 0));
    }
    // A wrong name is reported, and takes the tag from no node.
    for name in ["web-1", "db-3"] {
        made.apply(&site_with_fields(named(name), json!({}), json!({})));
        assert_eq!((primary_holders(&made), unknown(&made)), (vec!["db-2"], 1), "{name}");
    }
    let alone = FleetFixture::from_manifests(&site_with_fields(named("db-10"), json!({}), json!({"parked": true})));
    assert_eq!(primary_holders(&alone), ["db-10"], "so it is without a controller");
}

#[test]
fn x07_moved_primary_finding_names_old_and_new_holder() {
    let mut made = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut made, "db-10");
    let before = made.fleet.clone();
    let (cluster, from, to) = (made.cluster_id(), made.node("db-10").id(), made.node("db-2").id());
    let all = |made: &FleetFixture| made.fleet.nodes().map(|node| node.id()).collect::<Vec<_>>();
    let moved = |to| vec![MovedPrimary { cluster, tag: mysql_tag(), from, to }];
    for (db_10, holder) in [
        (json!({"tags": {"unassigned": ["mysql"]}}), Some(to)),
        (json!({"nodegroup": "prod/webs"}), Some(to)),
        (json!({"nodegroup": null}), Some(to)),
        (json!({"parked": true}), Some(from)),
    ] {
        made.apply(&site_with_fields(json!({}), json!({}), db_10));
        let expected = if holder == Some(from) { vec![] } else { moved(holder) };
        assert_eq!(moved_primaries(&before, &made.fleet, all(&made).into_iter()), expected);
        let of_nobody = moved_primaries(&before, &made.fleet, std::iter::empty());
        assert!(of_nobody.is_empty(), "no node of the cluster is reached");
    }
    made.apply(&site_with_fields(json!({}), json!({}), json!({})));
    made.fleet.apply(FleetChange::RemoveNode(from));
    assert_eq!(moved_primaries(&before, &made.fleet, [from].into_iter()), moved(Some(to)), "it stood there");
    made.fleet.apply(FleetChange::RemoveNode(to));
    assert_eq!(moved_primaries(&before, &made.fleet, [from].into_iter()), moved(None));
}

//! Primaries that are the first node by name, chosen, named by their cluster, or parked. Also the tasks of primaries
//! for each `matching` of a release.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::{Severity, rule};
use stemma_core::fleet::{Fleet, FleetChange, LostNodeName, MovedPrimary, lost_node_name, moved_primaries};
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{Meta, Object, PrimarySpec, ReportedState, Timestamp};
use stemma_core::resolve::{cluster_findings, newly_parked_primaries};
use uuid::Uuid;

use crate::fleet_fixture::{FleetFixture, site_manifests, task_manifests};

/// Node db-2 is the primary of tag `mysql`, because it is the first node by name.
#[test]
fn primary_has_both_tag_names_by_default() {
    let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let (primary, other_node) = (fixture.node_output("db-2"), fixture.node_output("db-10"));
    assert_eq!(primary.tags.iter().collect::<Vec<_>>(), ["mysql", "primary-mysql"]);
    assert_eq!(primary.primary_tags.iter().collect::<Vec<_>>(), ["mysql"]);
    assert_eq!(primary.tasks, ["bootstrap", "by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(other_node.tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(fixture.node_output("web-1").tasks, ["every"]);
}

/// The field `matching` of a release sets two things. Selectors of roles match a node's own roles or its tags, and a
/// primary has the name `primary-mysql` in addition to `mysql` or instead.
#[test]
fn matching_decides_meaning_of_roles_and_primaries() {
    for (matching, primary_tasks, other_tasks) in [
        (
            json!({"roles": "own", "primary": "replaces"}),
            &["bootstrap", "by-empty-tags", "by-role", "every"][..],
            &["by-empty-tags", "by-role", "every", "server"][..],
        ),
        (json!({"roles": "tags", "primary": "adds"}), &["bootstrap", "every", "server"], &["every", "server"]),
        (json!({"roles": "tags", "primary": "replaces"}), &["bootstrap", "every"], &["every", "server"]),
    ] {
        let fixture = FleetFixture::from_manifests(&site_manifests(&matching, &task_manifests()));
        assert_eq!(fixture.node_output("db-2").tasks, primary_tasks, "{matching}");
        assert_eq!(fixture.node_output("db-10").tasks, other_tasks, "{matching}");
    }
}

/// Document 1 is the release. The nodes of role `db` have the tag `db`, because a role that lists no tags gives the tag
/// of its own name. The task selects role `primary-db`, which is the role of the primary of tag `db`.
#[test]
fn role_and_tag_of_same_name_have_same_primary() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([{"id": "first", "type": "shell", "parameters": {"script": "true"}, "roles": ["primary-db"]}]),
    );
    documents[1]["roles"] = json!({"db": {}, "web": {}});
    documents[1]["tags"] = json!({"db": {"has_primary": true}});
    let fixture = FleetFixture::from_manifests(&documents);
    assert_eq!(fixture.node_output("db-2").tasks, ["first"]);
    assert!(fixture.node_output("db-10").tasks.is_empty());
}

fn mysql_tag() -> TagName {
    TagName::new("mysql").expect("a tag")
}

/// Stores that a node was chosen as the primary of tag `mysql`. Returns the names of the dirty nodes (to be resolved
/// again).
fn store_primary(fixture: &mut FleetFixture, node: &str) -> Vec<String> {
    let spec = PrimarySpec { cluster: fixture.cluster_id(), node: fixture.node(node).id(), since: Timestamp(1), epoch: 1 };
    let primary = Object { meta: Meta::new(Uuid::from_u128(9), mysql_tag(), Timestamp(1)), spec };
    let dirty = fixture.fleet.apply(FleetChange::Primary(Arc::new(primary)));
    fixture.node_names(&dirty)
}

/// Returns the nodes that are primary of tag `mysql`.
fn primary_holders(fixture: &FleetFixture) -> Vec<&'static str> {
    let holds = |name: &&str| fixture.node_output(name).primary_tags.contains("mysql");
    ["db-2", "db-10", "web-1"].into_iter().filter(holds).collect()
}

/// Returns the documents of the site, with these additional fields of the cluster and of the nodes db-2 and db-10.
fn site_with_fields(cluster: Value, db_2: Value, db_10: Value) -> Vec<Value> {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    for (index, fields) in [(2, cluster), (5, db_2), (6, db_10)] {
        let Value::Object(fields) = fields else { panic!("{fields} is not an object") };
        documents[index].as_object_mut().expect("an object").extend(fields);
    }
    documents
}

/// `unstored_holders` returns the primaries whose choice is not stored yet. In the end, db-10 loses the tag, so db-2
/// becomes the primary.
#[test]
fn stored_primary_remains_while_node_has_tag() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let cluster = fixture.cluster_id();
    assert_eq!(fixture.fleet.unstored_holders(cluster), [(mysql_tag(), fixture.node("db-2").id())]);
    assert_eq!(store_primary(&mut fixture, "db-10"), ["db-10", "db-2"]);
    assert_eq!(primary_holders(&fixture), ["db-10"]);
    assert!(fixture.fleet.unstored_holders(cluster).is_empty());
    fixture.apply(&site_with_fields(json!({}), json!({}), json!({"tags": {"unassigned": ["mysql"]}})));
    assert_eq!(primary_holders(&fixture), ["db-2"]);
    assert_eq!(fixture.fleet.unstored_holders(cluster), [(mysql_tag(), fixture.node("db-2").id())]);
}

/// Node db-10 is the stored primary. It remains primary when it is parked, with a finding about the node and one about
/// the cluster.
#[test]
fn x07_parked_primary_is_finding_of_node_and_cluster() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut fixture, "db-10");
    let unparked_fleet = fixture.fleet.clone();
    let severities_and_objects = |fixture: &FleetFixture| {
        let node_findings = fixture.resolved_node("db-10").findings();
        let parked_primary_findings = node_findings.into_iter().chain(cluster_findings(&fixture.fleet, fixture.cluster_id()));
        let parked_primary_findings = parked_primary_findings.filter(|finding| finding.code == rule::PRIMARY_PARKED.code);
        parked_primary_findings.map(|finding| (finding.severity, finding.object)).collect::<Vec<_>>()
    };
    assert!(severities_and_objects(&fixture).is_empty());
    fixture.apply(&site_with_fields(json!({}), json!({}), json!({"parked": true})));
    assert_eq!(primary_holders(&fixture), ["db-10"]);
    let expected_findings = ["node/db-10", "cluster/prod"].map(|object| (Severity::Warning, object.to_owned()));
    assert_eq!(severities_and_objects(&fixture), expected_findings);
    let nodes = || fixture.fleet.nodes().map(|node| node.id());
    let new_findings = newly_parked_primaries(&unparked_fleet, &fixture.fleet, nodes());
    assert_eq!(new_findings.len(), 1);
    assert!(new_findings[0].message.contains("stemma node park db-10 --release-primary"), "{}", new_findings[0]);
    assert!(newly_parked_primaries(&fixture.fleet, &fixture.fleet, nodes()).is_empty(), "the finding existed before the write");
    assert!(moved_primaries(&unparked_fleet, &fixture.fleet, nodes()).is_empty());
    fixture.apply(&site_with_fields(json!({}), json!({}), json!({})));
    assert_eq!((primary_holders(&fixture), severities_and_objects(&fixture)), (vec!["db-10"], vec![]));
    // The result is the same if root parks the node on its host.
    let state = ReportedState { parked: Some("repair".into()), ..ReportedState::default() };
    fixture.fleet.apply(FleetChange::ReportedState(fixture.node("db-10").id(), Some(Arc::new(state))));
    assert_eq!((primary_holders(&fixture), severities_and_objects(&fixture)), (vec!["db-10"], expected_findings.to_vec()));
}

/// Returns the messages of two findings about the parked primary db-10: that of the node, and that of the cluster.
fn parked_findings(fixture: &FleetFixture) -> [String; 2] {
    let findings =
        fixture.resolved_node("db-10").findings().into_iter().chain(cluster_findings(&fixture.fleet, fixture.cluster_id()));
    let messages: Vec<_> =
        findings.filter(|finding| finding.code == rule::PRIMARY_PARKED.code).map(|finding| finding.message).collect();
    messages.try_into().expect("one of the node and one of the cluster")
}

/// The findings about a parked primary advise commands. If the cluster names the node in `primaries`, only an edit of
/// the manifest can move the primary.
#[test]
fn x07_parked_primary_finding_advises_manifest_edit_when_cluster_names_node() {
    let parked = json!({"parked": true});
    let primaries_naming = |name: &str| json!({"primaries": {"mysql": name}});
    let release_command = "stemma node park db-10 --release-primary";
    let set_command = "stemma primary set prod mysql NODE";
    let edit_commands = ["stemma get cluster prod -o manifest > cluster.yaml", "stemma apply --force -f cluster.yaml"];
    let mut fixture = FleetFixture::from_manifests(&site_with_fields(primaries_naming("db-10"), json!({}), parked.clone()));
    let parked_fleet = fixture.fleet.clone();
    let messages = parked_findings(&fixture);
    for message in &messages {
        assert!(edit_commands.iter().all(|part| message.contains(part)), "{message}");
        assert!(
            !message.contains(release_command) && !message.contains(set_command),
            "the controller refuses these commands: {message}"
        );
    }
    assert!(messages[0].contains("stemma node unpark db-10"), "{}", messages[0]);
    // The finding of a write has the same message as the finding of the node.
    fixture.apply(&site_with_fields(primaries_naming("db-10"), json!({}), json!({})));
    let new_findings = newly_parked_primaries(&fixture.fleet, &parked_fleet, parked_fleet.nodes().map(|node| node.id()));
    assert_eq!(new_findings.iter().map(|finding| &finding.message).collect::<Vec<_>>(), [&messages[0]]);
    // If the node was parked on its host, it must be unparked there.
    let state = ReportedState { parked: Some("repair".into()), ..ReportedState::default() };
    fixture.fleet.apply(FleetChange::ReportedState(fixture.node("db-10").id(), Some(Arc::new(state))));
    let [node_message, _] = parked_findings(&fixture);
    assert!(node_message.contains("on its host") && !node_message.contains("stemma node unpark"), "{node_message}");
    // Here the cluster names no node, or a node without the tag. In both cases the parked node can release the tag. The
    // command `primary set` is accepted only if the cluster names no node.
    for (cluster, command) in [(json!({}), set_command), (primaries_naming("web-1"), edit_commands[1])] {
        let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
        store_primary(&mut fixture, "db-10");
        fixture.apply(&site_with_fields(cluster, json!({}), parked.clone()));
        let [node_message, cluster_message] = parked_findings(&fixture);
        assert!(node_message.contains(release_command) && cluster_message.contains(command), "{node_message}\n{cluster_message}");
        // The controller refuses to release the tag if no other node has the tag. So the message also states the step
        // before.
        for advice in ["if no such node has the tag", "stemma tag assign NODE mysql", "stemma node unpark db-10"] {
            assert!(node_message.contains(advice), "{node_message}");
        }
    }
}

/// A cluster may refer to a primary by the name of its node. A write that renames the node would leave an entry without
/// a node.
#[test]
fn x07_lost_node_name_returns_renamed_node_of_primaries_entry() {
    let site_naming = |node_name: &str| site_with_fields(json!({"primaries": {"mysql": node_name}}), json!({}), json!({}));
    let fixture = FleetFixture::from_manifests(&site_naming("db-10"));
    let node_name = |text: &str| NodeName::new(text).expect("a name");
    let rename = |fleet: &mut Fleet, old_name: &str, new_name: Option<&str>| {
        let mut node = fleet.node_by_name(old_name).expect("a node of the test").as_ref().clone();
        node.meta.name = new_name.map(node_name);
        fleet.apply(FleetChange::Node(Arc::new(node)));
    };
    let find_lost_name =
        |edited_fleet: &Fleet| lost_node_name(&fixture.fleet, edited_fleet, fixture.fleet.nodes().map(|node| node.id()));
    let expected = LostNodeName { cluster: fixture.cluster_id(), tag: mysql_tag(), name: node_name("db-10") };
    for new_name in [Some("db-11"), None] {
        let mut edited_fleet = fixture.fleet.clone();
        rename(&mut edited_fleet, "db-10", new_name);
        assert_eq!(find_lost_name(&edited_fleet), Some(expected.clone()), "{new_name:?}");
    }
    let mut edited_fleet = fixture.fleet.clone();
    rename(&mut edited_fleet, "db-2", Some("db-3"));
    assert_eq!(find_lost_name(&edited_fleet), None, "the cluster does not name db-2");
    rename(&mut edited_fleet, "db-10", Some("db-11"));
    rename(&mut edited_fleet, "db-3", Some("db-10"));
    assert_eq!(find_lost_name(&edited_fleet), None, "another node has the name");
    let mut edited_fleet = fixture.fleet.clone();
    edited_fleet.apply(FleetChange::RemoveNode(fixture.node("db-10").id()));
    assert_eq!(find_lost_name(&edited_fleet), None, "a deleted node is a finding of the cluster instead");
    let mut edited_fleet = fixture.fleet.clone();
    rename(&mut edited_fleet, "db-10", Some("db-11"));
    let mut cluster = fixture.fleet.cluster(fixture.cluster_id()).expect("the cluster").as_ref().clone();
    cluster.spec.primaries = [(mysql_tag(), "db-11".to_owned())].into();
    edited_fleet.apply(FleetChange::Cluster(Arc::new(cluster)));
    assert_eq!(find_lost_name(&edited_fleet), None, "the cluster names the node by its new name");
}

/// `next_holder` returns the node that would be primary if the given node were absent and no node were chosen.
/// `can_hold` returns whether a node can be chosen.
#[test]
fn x07_parked_node_is_not_primary_without_stored_choice() {
    for (db_2, db_10, expected_holders) in [
        (json!({}), json!({}), &["db-2"][..]),
        (json!({"parked": true}), json!({}), &["db-10"]),
        (json!({"parked": true}), json!({"parked": true}), &[]),
    ] {
        let fixture = FleetFixture::from_manifests(&site_with_fields(json!({}), db_2, db_10));
        assert_eq!(primary_holders(&fixture), expected_holders);
    }
    let fixture = FleetFixture::from_manifests(&site_with_fields(json!({}), json!({"parked": true}), json!({})));
    let (cluster, id) = (fixture.cluster_id(), |name: &str| fixture.node(name).id());
    assert_eq!(fixture.fleet.next_holder(cluster, &mysql_tag(), id("db-10")), None, "the other node with the tag is parked");
    assert!(fixture.fleet.can_hold(cluster, &mysql_tag(), id("db-2")), "an operator can still choose a parked node");
    assert!(!fixture.fleet.can_hold(cluster, &mysql_tag(), id("web-1")));
}

/// The stored choice is db-2. The field `primaries` of the cluster names a node as the primary of tag `mysql`.
#[test]
fn x07_named_primaries_override_stored_choice() {
    let primaries_naming = |name: &str| json!({"primaries": {"mysql": name}});
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut fixture, "db-2");
    let unknown_count = |fixture: &FleetFixture| {
        let findings = cluster_findings(&fixture.fleet, fixture.cluster_id());
        findings.iter().filter(|finding| finding.code == rule::PRIMARY_UNKNOWN.code).count()
    };
    // The named primary overrides the stored choice, even if its node is parked.
    for db_10 in [json!({}), json!({"parked": true})] {
        fixture.apply(&site_with_fields(primaries_naming("db-10"), json!({}), db_10));
        assert_eq!((primary_holders(&fixture), unknown_count(&fixture)), (vec!["db-10"], 0));
    }
    // A name without effect is a finding. The node of the stored choice is then primary.
    for name in ["web-1", "db-3"] {
        fixture.apply(&site_with_fields(primaries_naming(name), json!({}), json!({})));
        assert_eq!((primary_holders(&fixture), unknown_count(&fixture)), (vec!["db-2"], 1), "{name}");
    }
    let fixture_without_choice =
        FleetFixture::from_manifests(&site_with_fields(primaries_naming("db-10"), json!({}), json!({"parked": true})));
    assert_eq!(primary_holders(&fixture_without_choice), ["db-10"], "no choice is stored, as in `stemma resolve`");
}

/// Node db-10 is the stored primary. Each row has an edit of db-10, and the primary after the edit.
#[test]
fn x07_moved_primaries_name_old_and_new_holder() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    store_primary(&mut fixture, "db-10");
    let old_fleet = fixture.fleet.clone();
    let (cluster, old_holder, new_holder) = (fixture.cluster_id(), fixture.node("db-10").id(), fixture.node("db-2").id());
    let all_nodes = |fixture: &FleetFixture| fixture.fleet.nodes().map(|node| node.id()).collect::<Vec<_>>();
    let moved = |new_holder| vec![MovedPrimary { cluster, tag: mysql_tag(), from: old_holder, to: new_holder }];
    for (db_10, holder) in [
        (json!({"tags": {"unassigned": ["mysql"]}}), Some(new_holder)),
        (json!({"nodegroup": "prod/webs"}), Some(new_holder)),
        (json!({"nodegroup": null}), Some(new_holder)),
        (json!({"parked": true}), Some(old_holder)),
    ] {
        fixture.apply(&site_with_fields(json!({}), json!({}), db_10));
        let expected = if holder == Some(old_holder) { vec![] } else { moved(holder) };
        assert_eq!(moved_primaries(&old_fleet, &fixture.fleet, all_nodes(&fixture).into_iter()), expected);
        let moves_of_no_nodes = moved_primaries(&old_fleet, &fixture.fleet, std::iter::empty());
        assert!(moves_of_no_nodes.is_empty(), "the write concerns no node of the cluster");
    }
    fixture.apply(&site_with_fields(json!({}), json!({}), json!({})));
    fixture.fleet.apply(FleetChange::RemoveNode(old_holder));
    assert_eq!(
        moved_primaries(&old_fleet, &fixture.fleet, [old_holder].into_iter()),
        moved(Some(new_holder)),
        "the deleted node was primary"
    );
    fixture.fleet.apply(FleetChange::RemoveNode(new_holder));
    assert_eq!(moved_primaries(&old_fleet, &fixture.fleet, [old_holder].into_iter()), moved(None));
}

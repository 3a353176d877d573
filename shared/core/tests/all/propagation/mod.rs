//! Changes each field that has a declared propagation (the way in which a change of the field reaches hosts), and
//! checks that the change reaches hosts in that way. Each row of a test has a field, its propagation, and an edit of
//! the field. For a field that is not sent to hosts, the test must list another user, or a finding must report that
//! nothing uses the field.

mod check;
mod site;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stemma_core::change::{ClassifyFields, FieldChange, Propagation, changes};
use stemma_core::fleet::FleetChange;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};
use stemma_core::labels::{Layer, ParameterValue};
use stemma_core::name::{Name, NamespaceName, NodeName, ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    AllocationDecision, AllocationSpec, Association, ClusterId, ClusterSpec, ClusterTemplateSpec, Dates, DecidedTags,
    DroppedInput, ExtensionUse, FactMap, FieldOwners, GroupId, Hold, InspectionRuleSpec, Meta, NamespaceSpec, Node,
    NodeGroupSpec, NodeId, NodeSpec, Object, Observation, PrimaryMatching, PrimarySpec, PrincipalRole, PrincipalSpec, Properties,
    ProvisionState, ReleaseSpec, ReleaseTagsSpec, ReportedLabel, ReportedState, RoleChange, Rollout, RuleAction, RulePhase,
    Strategy, TagSpec, TemplateId, Timestamp, Visibility,
};
use stemma_core::ownership::{Intent, Manager, OwnedMap, OwnedSet, Owner, ProvidedValue};
use stemma_core::release::has_same_content;
use stemma_core::requirement::Requirements;
use stemma_core::task::Mode;
use stemma_core::traits::Trait;
use stemma_core::unimplemented::UnimplementedFields;
use uuid::Uuid;

use self::check::{ALL_NODES, DB_NODES, EditRow, check_dirty_nodes, check_object_edits, edited_values, edited_versions};
use self::site::PropagationSite;

fn manager() -> Manager {
    Manager::new("test").expect("a manager")
}

fn owner() -> Owner {
    Owner::apply(&manager())
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn tag(text: &str) -> TagName {
    TagName::new(text).expect("a tag")
}

/// Returns the provided labels or parameters of one level, with a single key.
fn layer_with<V: Clone + PartialEq>(key: &str, value: V) -> Layer<LabelKey, V> {
    let key = LabelKey::new(key).expect("a key");
    Layer {
        provided: Some(OwnedMap::default().update(&manager(), &Intent::from([(key, ProvidedValue::Value(value))]))),
        merge: Some(true),
    }
}

fn value(text: &str) -> LabelValue {
    LabelValue::new(text).expect("a value")
}

/// Returns a set with one key, which the manager of the test owns.
fn set_with<K: Ord + Clone + std::fmt::Display>(key: K) -> OwnedSet<K> {
    OwnedMap::default().update(&manager(), &Intent::from([(key, ProvidedValue::Value(()))]))
}

/// Returns owners of the field `description`.
fn owners() -> FieldOwners {
    FieldOwners::from([("description".to_owned(), Arc::from([owner()]))])
}

/// Returns a free-form map with one key.
fn extra() -> serde_json::Map<String, Value> {
    json!({"free": 1}).as_object().expect("an object").clone()
}

/// Returns a rule that exports the label `free` to the host label map, a file on the host that other programs read.
fn host_labels() -> HostLabels {
    HostLabels { patterns: vec!["free".into()], ..HostLabels::default() }
}

/// Returns the provided annotations of one level, with a single key.
fn annotations() -> Layer<AnnotationKey, AnnotationValue> {
    let key = AnnotationKey::new("own").expect("a key");
    let value = AnnotationValue::new("2").expect("a value");
    Layer {
        provided: Some(OwnedMap::default().update(&manager(), &Intent::from([(key, ProvidedValue::Value(value))]))),
        merge: Some(true),
    }
}

/// Builds the rows of the fields that lower levels inherit, for the spec of one level.
macro_rules! level_field_rows {
    ($spec:ty) => {{
        let rows: [EditRow<$spec>; 4] = [
            ("labels", Propagation::InPlaceByKey, |spec| spec.inherited.labels = layer_with("own", value("2"))),
            ("annotations", Propagation::InPlaceByKey, |spec| spec.inherited.annotations = annotations()),
            ("parameters", Propagation::RolledOut, |spec| {
                spec.inherited.parameters = layer_with("size", ParameterValue::new(json!(2)).expect("a parameter"));
            }),
            ("lifecycle", Propagation::InPlace, |spec| spec.inherited.lifecycle.node_drain_timeout = Some(5)),
        ];
        rows
    }};
}

/// The function `has_same_content` returns true for two versions of a release that differ only in fields that no host
/// receives.
#[test]
fn release_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<ReleaseSpec>] = &[
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("labels", Propagation::ControllerOnly, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("annotations", Propagation::ControllerOnly, |spec| drop(spec.annotations.insert("x".into(), "1".into()))),
        ("imports", Propagation::RolledOut, |spec| spec.imports.push("lib@1".parse().expect("a release"))),
        ("roles", Propagation::RolledOut, |spec| {
            spec.roles.get_mut("db").expect("the role").tags = Some(vec![tag("mysql"), tag("extra")]);
        }),
        ("tags", Propagation::RolledOut, |spec| spec.tags.get_mut("mysql").expect("the tag").has_primary = false),
        ("tasks", Propagation::RolledOut, |spec| {
            let task = spec.tasks.iter_mut().find(|task| task.id == "sizes").expect("the task");
            task.parameters.insert("path".into(), json!("/other"));
        }),
        ("matching", Propagation::RolledOut, |spec| spec.matching.primary = PrimaryMatching::Replaces),
        ("extensions", Propagation::RolledOut, |spec| {
            spec.extensions.push(ExtensionUse { roles: vec![name("db")], extension: "x".into() });
        }),
        ("foreign", Propagation::ControllerOnly, |spec| spec.foreign = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    let release: ReleaseRef = "site@1".parse().expect("a release");
    for (field, propagation, spec) in edited_versions(&PropagationSite::new().releases[&release], edit_rows) {
        let mut site = PropagationSite::new();
        let is_same = has_same_content(&site.releases[&release], &spec);
        assert_eq!(is_same, propagation == Propagation::ControllerOnly, "{field} is part of the content if hosts receive it");
        let old_states = site.node_states();
        site.releases.insert(release.clone(), spec);
        let dirty = site.compile_releases();
        let below: &[&str] = match field {
            "imports" | "roles" | "tasks" => DB_NODES,
            // Only the primary db-1 loses the tag of a primary. Only a task of web-1 reads the name of the primary.
            "tags" => &["db-1", "web-1"],
            "matching" => &["db-1"],
            // Decisions of an extension are stored on the nodes.
            _ => &[],
        };
        check_dirty_nodes(&format!("Release {field}"), propagation, below, &dirty, &old_states, &site.node_states());
    }
}

/// Ready probes test whether the software of a tag is ready. Hosts receive the probes in the known part, and the task
/// digest does not cover them. Release `site@3` differs from `site@1` only in the probes of a tag.
#[test]
fn release_with_other_ready_probes_keeps_task_digest() {
    let mut site = PropagationSite::new();
    let mut release = site.releases[&"site@1".parse().expect("a release")].clone();
    release.tags.get_mut("mysql").expect("the tag").ready = vec![json!({"tcp": 3306})];
    site.releases.insert("site@3".parse().expect("a release"), release);
    site.compile_releases();
    let old_states = site.node_states();
    let dbs_group = site.fleet.groups().find(|group| group.meta.name.as_str() == "dbs").expect("a group of the test");
    let mut dbs_group = Object::clone(dbs_group);
    dbs_group.spec.release = Some("site@3".parse().expect("a release"));
    let dirty = site.apply(FleetChange::NodeGroup(Arc::new(dbs_group)));
    check_dirty_nodes("ready", Propagation::InPlace, DB_NODES, &dirty, &old_states, &site.node_states());
}

/// An object `ReleaseTags` adds tags to all versions of one release. Here it adds tag `user`, which role `db` gives
/// except in the first row. Each row has a field, its propagation, a list of nodes, and an edit of the field. The list
/// has the nodes whose state changes, and for `tags.ready` the nodes that are marked dirty.
#[test]
fn release_tags_fields_have_declared_propagation() {
    let spec_with = |edit: fn(&mut TagSpec)| {
        let mut spec = TagSpec::default();
        edit(&mut spec);
        ReleaseTagsSpec { tags: BTreeMap::from([(tag("user"), spec)]) }
    };
    let apply_spec = |site: &mut PropagationSite, spec| {
        let meta = Meta::new(Uuid::from_u128(7), name("site"), Timestamp(0));
        site.apply(FleetChange::ReleaseTags(Arc::new(Object { meta, spec })))
    };
    let base = spec_with(|spec| spec.role = Some(name("db")));
    for (field, field_propagation, nodes_below, edit) in [
        ("tags", Propagation::RolledOut, DB_NODES, (|spec: &mut TagSpec| spec.role = None) as fn(&mut TagSpec)),
        ("tags.ready", Propagation::InPlace, ALL_NODES, |spec| {
            (spec.role, spec.ready) = (Some(name("db")), vec![json!({"tcp": 1})]);
        }),
        ("tags.title", Propagation::ControllerOnly, &[], |spec| {
            (spec.role, spec.title) = (Some(name("db")), "x".into());
        }),
    ] {
        let mut site = PropagationSite::new();
        apply_spec(&mut site, base.clone());
        let (old_states, new_spec) = (site.node_states(), spec_with(edit));
        assert_eq!(new_spec.changes(&base), [FieldChange { field, propagation: field_propagation }]);
        let unused_fields: Vec<_> = new_spec.unimplemented_fields().into_iter().map(|(path, _)| path).collect();
        assert_eq!(unused_fields, if field == "tags.ready" { &["tags.user.ready"][..] } else { &[] }, "{field}");
        let dirty = apply_spec(&mut site, new_spec);
        if field_propagation == Propagation::InPlace {
            // Every host of the release is marked dirty. Only the hosts with the tag receive another known part.
            assert_eq!(dirty.len(), nodes_below.len());
            check_dirty_nodes(
                field,
                field_propagation,
                DB_NODES,
                &DB_NODES.iter().map(ToString::to_string).collect(),
                &old_states,
                &site.node_states(),
            );
        } else {
            check_dirty_nodes(field, field_propagation, nodes_below, &dirty, &old_states, &site.node_states());
        }
    }
}

#[test]
fn cluster_template_fields_have_declared_propagation() {
    let mut edit_rows: Vec<EditRow<ClusterTemplateSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("release", Propagation::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Propagation::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    edit_rows.extend(level_field_rows!(ClusterTemplateSpec));
    let site = PropagationSite::new();
    let old = site.fleet.templates().find(|template| template.meta.name.as_str() == "base").expect("the template");
    check_object_edits(old, &edit_rows, FleetChange::Template, |_| ALL_NODES);
}

#[test]
fn cluster_fields_have_declared_propagation() {
    let mut edit_rows: Vec<EditRow<ClusterSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("cluster_template", Propagation::InPlaceAndRolledOut, |spec| {
            let other_template = "other".parse::<ObjectName>().expect("a name");
            let site = PropagationSite::new();
            let other_template = site.fleet.templates().find(|template| template.meta.name == other_template).expect("the other");
            spec.cluster_template = Some(TemplateId(other_template.meta.uuid));
        }),
        ("release", Propagation::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Propagation::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("tags", Propagation::RolledOut, |spec| {
            spec.tags.insert(tag("user"), TagSpec { role: Some(name("db")), ..TagSpec::default() });
        }),
        ("roles", Propagation::RolledOut, |spec| {
            spec.roles.insert(name("db"), RoleChange { add_tags: vec![tag("extra")], ..RoleChange::default() });
        }),
        ("rollout", Propagation::ControllerOnly, |spec| {
            spec.rollout = Some(Rollout { max_groups: Some(1), ..Rollout::default() });
        }),
        ("paused", Propagation::InPlace, |spec| spec.paused = true),
        ("primaries", Propagation::RolledOut, |spec| drop(spec.primaries.insert(tag("mysql"), "db-2".into()))),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    edit_rows.extend(level_field_rows!(ClusterSpec));
    check_object_edits(PropagationSite::new().cluster("prod"), &edit_rows, FleetChange::Cluster, |field| match field {
        "tags" | "roles" => DB_NODES,
        _ => ALL_NODES,
    });
}

#[test]
fn node_group_fields_have_declared_propagation() {
    let mut edit_rows: Vec<EditRow<NodeGroupSpec>> = vec![
        ("cluster", Propagation::InPlaceAndRolledOut, |spec| {
            spec.cluster = ClusterId(PropagationSite::new().cluster("lab").meta.uuid);
        }),
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("release", Propagation::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Propagation::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("roles", Propagation::RolledOut, |spec| spec.roles.push(name("more"))),
        ("requirements", Propagation::InPlace, |spec| {
            spec.requirements = Requirements::parse(["property:memory >= 3"]).expect("a requirement");
        }),
        ("strategy", Propagation::ControllerOnly, |spec| {
            spec.strategy = Some(Strategy { max_failures: Some(1), ..Strategy::default() });
        }),
        ("paused", Propagation::InPlace, |spec| spec.paused = true),
        ("mode", Propagation::InPlace, |spec| spec.mode = Some(Mode::Noop)),
        ("mend_offline", Propagation::InPlace, |spec| spec.mend_offline = true),
        ("remove_orphans", Propagation::InPlace, |spec| spec.remove_orphans = true),
        ("splay", Propagation::InPlace, |spec| spec.splay_seconds = Some(5)),
        ("silent_after", Propagation::InPlace, |spec| spec.silent_after_seconds = Some(5)),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    edit_rows.extend(level_field_rows!(NodeGroupSpec));
    let site = PropagationSite::new();
    let old = site.fleet.groups().find(|group| group.meta.name.as_str() == "dbs").expect("the group");
    check_object_edits(old, &edit_rows, FleetChange::NodeGroup, |_| DB_NODES);
}

/// The mode of db-2 changes from `noop` to `apply`. Its tasks are the same, so the digest does not change.
#[test]
fn mode_change_to_apply_is_rolled_out_without_new_digest() {
    let mut site = PropagationSite::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.mode = Some(Mode::Noop);
    site.apply(FleetChange::Node(Arc::new(node.clone())));
    let (old_states, old_node) = (site.node_states(), node.clone());
    node.spec.mode = Some(Mode::Apply);
    let mode_propagation = Propagation::RolledOutWithoutDigest;
    assert_eq!(changes(&old_node, &node), [FieldChange { field: "mode", propagation: mode_propagation }]);
    let dirty = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes("Node mode", mode_propagation, &["db-2"], &dirty, &old_states, &site.node_states());
}

/// Node db-2 reports trait `CUSTOM_SEEN`. `tags` has two rows, for assigned tags and for tags from an extension.
#[test]
fn node_fields_have_declared_propagation() {
    let mut edit_rows: Vec<EditRow<NodeSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("nodegroup", Propagation::InPlaceAndRolledOut, |spec| {
            spec.nodegroup = PropagationSite::new().node("web-1").spec.nodegroup;
        }),
        ("roles", Propagation::RolledOut, |spec| spec.roles.push(name("more"))),
        ("tags", Propagation::RolledOut, |spec| spec.tags.assigned = set_with(tag("extra"))),
        ("tags", Propagation::RolledOut, |spec| {
            let decision = DecidedTags {
                extension: "x".into(),
                cluster: ClusterId(Uuid::nil()),
                tags: vec![tag("extra"), tag("mysql")],
                question: String::new(),
            };
            spec.tags.decided.insert(name("db"), decision);
        }),
        ("traits", Propagation::InPlace, |spec| spec.traits = set_with(Trait::new("CUSTOM_FREE").expect("a trait"))),
        ("suppressed_traits", Propagation::InPlace, |spec| {
            spec.suppressed_traits.insert(Trait::new("CUSTOM_SEEN").expect("a trait"));
        }),
        ("properties", Propagation::InPlace, |spec| drop(spec.properties.insert("memory".into(), json!(4)))),
        ("instance_info", Propagation::InPlace, |spec| {
            spec.instance_info = json!({"traits": ["CUSTOM_NONE"]}).as_object().expect("an object").clone();
        }),
        ("provision_state", Propagation::ControllerOnly, |spec| spec.provision_state = Some(ProvisionState::Active)),
        ("mode", Propagation::InPlace, |spec| spec.mode = Some(Mode::Noop)),
        ("hold", Propagation::InPlace, |spec| {
            spec.hold = Some(Box::new(Hold { reason: "x".into(), ..Hold::default() }));
        }),
        ("parked", Propagation::InPlace, |spec| spec.parked = true),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    edit_rows.extend(level_field_rows!(NodeSpec));
    for (field, propagation, spec) in edited_versions(&PropagationSite::new().node("db-2").spec, &edit_rows) {
        let mut site = PropagationSite::new();
        let id = site.node("db-2").id();
        let traits = [Trait::new("CUSTOM_SEEN").expect("a trait")].into_iter().collect();
        site.apply(FleetChange::Observation(id, Arc::new(Observation { traits: Arc::new(traits), ..Observation::default() })));
        let (old_states, meta) = (site.node_states(), site.node("db-2").meta.clone());
        let dirty = site.apply(FleetChange::Node(Arc::new(Object { meta, spec })));
        check_dirty_nodes(&format!("Node {field}"), propagation, &["db-2"], &dirty, &old_states, &site.node_states());
    }
}

/// Returns a map with the same keys and values, all of which the manager `new_owner` owns.
fn with_owner<K: Ord + Clone + std::fmt::Display, V: Clone + PartialEq>(
    new_owner: &Manager,
    map: &OwnedMap<K, V>,
) -> OwnedMap<K, V> {
    let values: Intent<K, V> = map.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect();
    OwnedMap::default().update(new_owner, &values)
}

/// The manager `other` becomes the owner of each label, trait and tag that db-2 provides. The values remain.
#[test]
fn owner_change_marks_no_node_dirty() {
    let new_owner = Manager::new("other").expect("a manager");
    let mut site = PropagationSite::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = layer_with("own", value("2"));
    node.spec.traits = set_with(Trait::new("CUSTOM_FREE").expect("a trait"));
    node.spec.tags.assigned = set_with(tag("extra"));
    site.apply(FleetChange::Node(Arc::new(node.clone())));
    let old_states = site.node_states();
    let spec = &mut node.spec;
    let labels = spec.inherited.labels.provided.take().expect("the node provides labels");
    spec.inherited.labels.provided = Some(with_owner(&new_owner, &labels));
    spec.traits = with_owner(&new_owner, &spec.traits);
    spec.tags.assigned = with_owner(&new_owner, &spec.tags.assigned);
    let dirty = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes("owners", Propagation::ControllerOnly, &[], &dirty, &old_states, &site.node_states());
}

/// A new node name can change the order of nodes, the primary and look-ups, so other nodes are dirty too. A new name of
/// a template, cluster or group concerns the nodes below it.
#[test]
fn name_change_has_declared_propagation() {
    let mut site = PropagationSite::new();
    let old_states = site.node_states();
    let mut node = Node::clone(site.node("db-1"));
    node.meta.name = Some(NodeName::new("db-9").expect("a name"));
    let expected = FieldChange { field: "name", propagation: Propagation::InPlaceAndRolledOut };
    assert_eq!(changes(site.node("db-1"), &node), std::slice::from_ref(&expected));
    let dirty = site.apply(FleetChange::Node(Arc::new(node)));
    assert_eq!(dirty.iter().map(String::as_str).collect::<Vec<_>>(), ["db-2", "db-9", "web-1"]);
    assert_ne!(old_states, site.node_states());

    for kind in ["template", "cluster", "group"] {
        let mut site = PropagationSite::new();
        let new_name = "renamed".parse::<ObjectName>().expect("a name");
        let dirty = match kind {
            "template" => {
                let mut template =
                    site.fleet.templates().find(|object| object.meta.name.as_str() == "base").cloned().expect("a template");
                Arc::make_mut(&mut template).meta.name = new_name;
                site.apply(FleetChange::Template(template))
            }
            "cluster" => {
                let mut cluster = Arc::clone(site.cluster("prod"));
                Arc::make_mut(&mut cluster).meta.name = new_name;
                site.apply(FleetChange::Cluster(cluster))
            }
            _ => {
                let mut group = site.fleet.groups().find(|object| object.meta.name.as_str() == "dbs").cloned().expect("dbs");
                Arc::make_mut(&mut group).meta.name = new_name;
                site.apply(FleetChange::NodeGroup(group))
            }
        };
        let below = if kind == "group" { DB_NODES } else { ALL_NODES };
        assert_eq!(dirty.iter().map(String::as_str).collect::<Vec<_>>(), below, "{kind}");
    }
}

/// The edited choice of a primary replaces the choice of db-1.
#[test]
fn primary_fields_have_declared_propagation() {
    let site = PropagationSite::new();
    let cluster = ClusterId(site.cluster("prod").meta.uuid);
    let spec = PrimarySpec { cluster, node: site.node("db-1").id(), since: Timestamp(1), epoch: 1 };
    let edit_rows: &[EditRow<PrimarySpec>] = &[
        ("cluster", Propagation::RolledOut, |spec| {
            spec.cluster = ClusterId(PropagationSite::new().cluster("lab").meta.uuid);
        }),
        ("node", Propagation::RolledOut, |spec| spec.node = PropagationSite::new().node("db-2").id()),
        ("since", Propagation::ControllerOnly, |spec| spec.since = Timestamp(2)),
        ("epoch", Propagation::ControllerOnly, |spec| spec.epoch = 2),
    ];
    for (field, propagation, new_spec) in edited_versions(&spec, edit_rows) {
        let mut site = PropagationSite::new();
        let meta = Meta::new(Uuid::from_u128(9), tag("mysql"), Timestamp(0));
        site.apply(FleetChange::Primary(Arc::new(Object { meta: meta.clone(), spec: spec.clone() })));
        let old_states = site.node_states();
        let dirty = site.apply(FleetChange::Primary(Arc::new(Object { meta, spec: new_spec })));
        // Without the stored choice, db-1 remains primary of its cluster, as the first node by name.
        let below = if field == "cluster" { &[][..] } else { ALL_NODES };
        check_dirty_nodes(&format!("Primary {field}"), propagation, below, &dirty, &old_states, &site.node_states());
    }
}

/// Each edited namespace replaces first an empty one, and then one that restricts the values of a label.
#[test]
fn namespace_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<NamespaceSpec>] = &[
        ("display_name", Propagation::ControllerOnly, |spec| spec.display_name = Some("x".into())),
        ("description", Propagation::ControllerOnly, |spec| spec.description = Some("x".into())),
        ("visibility", Propagation::ControllerOnly, |spec| spec.visibility = Visibility::Public),
        ("protected", Propagation::ControllerOnly, |spec| spec.protected = true),
        ("owner", Propagation::ControllerOnly, |spec| spec.owner = Some("x".into())),
        ("labels", Propagation::ControllerOnly, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("resource_type_associations", Propagation::ControllerOnly, |spec| {
            spec.resource_type_associations = binding_fields().0;
        }),
        ("properties", Propagation::ControllerOnly, |spec| spec.properties = binding_fields().1),
        ("objects", Propagation::ControllerOnly, |spec| spec.objects = parse_list(&json!([{"name": "x"}]))),
        ("tags", Propagation::ControllerOnly, |spec| spec.tags = parse_list(&json!([{"name": "x"}]))),
        ("dates", Propagation::ControllerOnly, |spec| spec.dates = [("tags/x".into(), Dates::default())].into()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    let meta = Meta::new(Uuid::from_u128(8), NamespaceName::new("Site").expect("a name"), Timestamp(0));
    // This namespace restricts the values of label `read`, which a task reads.
    let (resource_type_associations, properties) = binding_fields();
    let binding_spec = NamespaceSpec { resource_type_associations, properties, ..NamespaceSpec::default() };
    for old_spec in [NamespaceSpec::default(), binding_spec] {
        for (field, propagation, spec) in edited_versions(&NamespaceSpec::default(), edit_rows) {
            let mut site = PropagationSite::new();
            site.apply(FleetChange::Namespace(Arc::new(Object { meta: meta.clone(), spec: old_spec.clone() })));
            let old_states = site.node_states();
            let dirty = site.apply(FleetChange::Namespace(Arc::new(Object { meta: meta.clone(), spec })));
            check_dirty_nodes(&format!("Namespace {field}"), propagation, &[], &dirty, &old_states, &site.node_states());
        }
    }
}

/// If a change alters the effects of a rule, the change concerns every node. Other changes of a rule concern no node. A
/// second rule sets the same labels to other values, because priorities decide between them.
#[test]
fn inspection_rule_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<InspectionRuleSpec>] = &[
        ("description", Propagation::ControllerOnly, |spec| spec.description = Some("x".into())),
        ("priority", Propagation::InPlace, |spec| spec.priority = 3),
        ("phase", Propagation::ControllerOnly, |spec| spec.phase = Some(RulePhase::Main)),
        ("sensitive", Propagation::InPlace, |spec| spec.sensitive = true),
        ("grants", Propagation::InPlace, |spec| spec.grants = true),
        ("conditions", Propagation::InPlace, |spec| {
            spec.conditions = parse_list(&json!([{"op": "is-none", "args": {"value": 1}}]));
        }),
        ("actions", Propagation::InPlace, |spec| spec.actions = rule_actions("other")),
        ("labels", Propagation::ControllerOnly, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    let meta =
        |number: u64, name: &str| Meta::new(Uuid::from_u128(u128::from(number)), ObjectName::new(name).ok(), Timestamp(number));
    let apply_rule = |site: &mut PropagationSite, meta: Meta<Option<ObjectName>>, spec: InspectionRuleSpec| {
        site.apply(FleetChange::Rule(Arc::new(Object { meta, spec })))
    };
    let rule_spec = InspectionRuleSpec { priority: 5, actions: rule_actions("one"), ..InspectionRuleSpec::default() };
    let site = || {
        let mut site = PropagationSite::new();
        for node in ALL_NODES {
            let id = site.node(node).id();
            site.apply(FleetChange::Observation(id, Arc::default()));
        }
        apply_rule(
            &mut site,
            meta(8, "beside"),
            InspectionRuleSpec { priority: 4, actions: rule_actions("two"), ..InspectionRuleSpec::default() },
        );
        site
    };
    for (field, propagation, spec) in edited_versions(&rule_spec, edit_rows) {
        let mut site = site();
        apply_rule(&mut site, meta(9, "rule"), rule_spec.clone());
        let old_states = site.node_states();
        let dirty = apply_rule(&mut site, meta(9, "rule"), spec);
        check_dirty_nodes(&format!("InspectionRule {field}"), propagation, ALL_NODES, &dirty, &old_states, &site.node_states());
    }
    let (mut site, id) = (site(), Uuid::from_u128(9));
    let states_without_rule = site.node_states();
    let dirty = apply_rule(&mut site, meta(9, "rule"), rule_spec.clone());
    let states_with_rule = site.node_states();
    check_dirty_nodes("a new rule", Propagation::InPlace, ALL_NODES, &dirty, &states_without_rule, &states_with_rule);
    let dirty = apply_rule(&mut site, meta(9, "renamed"), rule_spec);
    check_dirty_nodes("a rule's name", Propagation::InPlace, ALL_NODES, &dirty, &states_with_rule, &site.node_states());
    let (old_states, dirty) = (site.node_states(), site.apply(FleetChange::RemoveRule(id)));
    check_dirty_nodes("a removed rule", Propagation::InPlace, ALL_NODES, &dirty, &old_states, &site.node_states());
    assert_eq!(site.node_states(), states_without_rule);
    assert!(site.apply(FleetChange::RemoveRule(id)).is_empty(), "the rule was removed before");
}

/// Returns actions whose result depends on every field of a rule that has an effect on nodes. The result is the value
/// of a label, whether a restricted label is set, and the message of a log entry.
fn rule_actions(value: &str) -> Vec<RuleAction> {
    parse_list(&json!([
        {"op": "log", "args": {"msg": value}},
        {"op": "set-attribute", "args": {"path": "labels/by-rule", "value": value}},
        {"op": "set-attribute", "args": {"path": "labels/{item}", "value": value}, "loop": ["node.stemma.io/by-rule"]},
    ]))
}

/// Returns the fields `resource_type_associations` and `properties` of a namespace that permits only one value for
/// label `read`. No node has this value.
fn binding_fields() -> (Vec<Association>, Properties) {
    let property = json!({"read": {"title": "x", "type": "string", "enum": ["no"]}});
    (parse_list(&json!([{"name": "Stemma::Label"}])), serde_json::from_value(property).expect("properties of the test"))
}

/// Parses a JSON array into values of the type `T`. Panics if an item of the array is not such a value.
fn parse_list<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    serde_json::from_value(list.clone()).expect("a list of the test")
}

/// The fleet model has no allocations. The decision of an allocation is written to a node, whose fields have their own
/// propagation. The rows cover each field.
#[test]
fn allocation_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<AllocationSpec>] = &[
        ("resource_class", Propagation::ControllerOnly, |spec| spec.resource_class = "x".into()),
        ("traits", Propagation::ControllerOnly, |spec| spec.traits.push(Trait::new("CUSTOM_FREE").expect("a trait"))),
        ("requirements", Propagation::ControllerOnly, |spec| {
            spec.requirements = Requirements::parse(["property:memory >= 3"]).expect("a requirement");
        }),
        ("candidate_nodes", Propagation::ControllerOnly, |spec| spec.candidate_nodes.push(NodeId(Uuid::from_u128(1)))),
        ("nodegroup", Propagation::ControllerOnly, |spec| spec.nodegroup = Some(GroupId(Uuid::from_u128(1)))),
        ("owner", Propagation::ControllerOnly, |spec| spec.owner = Some("x".into())),
        ("within", Propagation::ControllerOnly, |spec| spec.within = Some(ClusterId(Uuid::from_u128(1)))),
        ("decision", Propagation::ControllerOnly, |spec| {
            spec.decision = Some(AllocationDecision::Failed { reason: "x".into() });
        }),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    assert_eq!(edited_versions(&AllocationSpec::default(), edit_rows).len(), <AllocationSpec as ClassifyFields>::FIELDS.len());
}

/// The fleet model has no principals. The listener reads the object of a principal for each request of that principal.
/// The rows cover each field.
#[test]
fn principal_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<PrincipalSpec>] = &[
        ("role", Propagation::ControllerOnly, |spec| spec.role = PrincipalRole::Admin),
        ("cluster", Propagation::ControllerOnly, |spec| spec.cluster = Some(ClusterId(Uuid::from_u128(1)))),
        ("description", Propagation::ControllerOnly, |spec| spec.description = Some("x".into())),
        ("certificates", Propagation::ControllerOnly, |spec| {
            spec.certificates = parse_list(&json!([{"serial": "01", "issued_at": 1, "ends_at": 2}]));
        }),
        ("tokens", Propagation::ControllerOnly, |spec| {
            spec.tokens = parse_list(&json!([{"id": "a", "secret_sha256": "b", "issued_at": 1, "ends_at": 2}]));
        }),
        ("takes_unlisted", Propagation::ControllerOnly, |spec| spec.takes_unlisted = true),
    ];
    assert_eq!(edited_versions(&PrincipalSpec::default(), edit_rows).len(), <PrincipalSpec as ClassifyFields>::FIELDS.len());
}

/// In this test, the cluster template lets hosts report the label `host`.
#[test]
fn observation_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<Observation>] = &[
        ("facts", Propagation::RolledOut, |observation| {
            observation.facts = FactMap::from_tree(json!({"os": {"id": "debian"}}).as_object().expect("facts"));
        }),
        ("traits", Propagation::InPlace, |observation| {
            observation.traits = Arc::new([Trait::new("CUSTOM_FREE").expect("a trait")].into_iter().collect());
        }),
        ("labels", Propagation::InPlaceByKey, |observation| {
            let label = ReportedLabel { key: "host".into(), value: "1".into(), source: "f:1".into() };
            observation.labels = [label].into_iter().collect();
        }),
        ("not_taken", Propagation::ControllerOnly, |observation| {
            observation.not_taken = DroppedInput { facts: 1, ..DroppedInput::default() }.into_option_box();
        }),
    ];
    for (field, propagation, observation) in edited_values(&Observation::default(), edit_rows) {
        let mut site = PropagationSite::new();
        let mut template = site.fleet.templates().find(|object| object.meta.name.as_str() == "base").cloned().expect("base");
        let accept = [LabelKey::new("host").expect("a key")].into_iter().collect();
        Arc::make_mut(&mut template).spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        site.apply(FleetChange::Template(template));
        let (old_states, id) = (site.node_states(), site.node("db-2").id());
        let dirty = site.apply(FleetChange::Observation(id, Arc::new(observation)));
        check_dirty_nodes(field, propagation, &["db-2"], &dirty, &old_states, &site.node_states());
    }
}

/// The state is what root set on the host itself: a pause, a hold or a park.
#[test]
fn reported_state_fields_have_declared_propagation() {
    let edit_rows: &[EditRow<ReportedState>] = &[
        ("paused", Propagation::InPlace, |state| state.paused = true),
        ("hold", Propagation::InPlace, |state| state.hold = Some((1, "x".into()))),
        ("parked", Propagation::InPlace, |state| state.parked = Some("x".into())),
    ];
    for (field, propagation, state) in edited_values(&ReportedState::default(), edit_rows) {
        let mut site = PropagationSite::new();
        let (old_states, id) = (site.node_states(), site.node("db-2").id());
        let dirty = site.apply(FleetChange::ReportedState(id, Some(Arc::new(state))));
        check_dirty_nodes(field, propagation, &["db-2"], &dirty, &old_states, &site.node_states());
    }
}

/// A task of the databases reads label `read`.
#[test]
fn label_read_by_task_also_changes_digest() {
    let mut site = PropagationSite::new();
    let old_states = site.node_states();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = layer_with("read", value("1"));
    let dirty = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes(
        "a label that is read",
        Propagation::InPlaceAndRolledOut,
        &["db-2"],
        &dirty,
        &old_states,
        &site.node_states(),
    );
}

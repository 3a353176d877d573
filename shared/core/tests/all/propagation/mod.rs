//! Changes every field of every kind once, and checks that exactly what its propagation says happens. For a field that
//! is not sent to hosts, either something else must use it, or a finding must report that nothing does.

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

use self::check::{ALL_NODES, DB_NODES, EditRow, check_dirty_nodes, check_object_edits, edited_observations, edited_versions};
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

fn set_with<K: Ord + Clone + std::fmt::Display>(key: K) -> OwnedSet<K> {
    OwnedMap::default().update(&manager(), &Intent::from([(key, ProvidedValue::Value(()))]))
}

fn owners() -> FieldOwners {
    FieldOwners::from([("description".to_owned(), Arc::from([owner()]))])
}

fn extra() -> serde_json::Map<String, Value> {
    json!({"free": 1}).as_object().expect("an object").clone()
}

fn host_labels() -> HostLabels {
    HostLabels { patterns: vec!["free".into()], ..HostLabels::default() }
}

fn annotations() -> Layer<AnnotationKey, AnnotationValue> {
    let key = AnnotationKey::new("own").expect("a key");
    let value = AnnotationValue::new("2").expect("a value");
    Layer {
        provided: Some(OwnedMap::default().update(&manager(), &Intent::from([(key, ProvidedValue::Value(value))]))),
        merge: Some(true),
    }
}

/// The rows of the fields that are inherited down the levels.
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

#[test]
fn release_fields_have_declared_propagation() {
    let rows: &[EditRow<ReleaseSpec>] = &[
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("labels", Propagation::ControllerOnly, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("annotations", Propagation::ControllerOnly, |spec| drop(spec.annotations.insert("x".into(), "1".into()))),
        ("imports", Propagation::RolledOut, |spec| spec.imports.push("lib@1".parse().expect("a release"))),
        ("roles", Propagation::RolledOut, |spec| {
            spec.roles.get_mut("db").expect("it").tags = Some(vec![tag("mysql"), tag("extra")]);
        }),
        ("tags", Propagation::RolledOut, |spec| spec.tags.get_mut("mysql").expect("it").has_primary = false),
        ("tasks", Propagation::RolledOut, |spec| {
            let task = spec.tasks.iter_mut().find(|task| task.id == "sizes").expect("it");
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
    for (field, class, spec) in edited_versions(&PropagationSite::new().releases[&release], rows) {
        let mut site = PropagationSite::new();
        let is_same = has_same_content(&site.releases[&release], &spec);
        assert_eq!(is_same, class == Propagation::ControllerOnly, "{field} is in the hash where its class says so");
        let before = site.node_states();
        site.releases.insert(release.clone(), spec);
        let reached = site.compile_releases();
        let below: &[&str] = match field {
            "imports" | "roles" | "tasks" => DB_NODES,
            // Only the holder loses or changes a tag. The web server gets another primary.
            "tags" => &["db-1", "web-1"],
            "matching" => &["db-1"],
            // Decisions of an extension are stored on the nodes.
            _ => &[],
        };
        check_dirty_nodes(&format!("Release {field}"), class, below, &reached, &before, &site.node_states());
    }
}

#[test]
fn release_with_same_content_propagates_only_ready_probes() {
    let mut site = PropagationSite::new();
    let mut release = site.releases[&"site@1".parse().expect("a release")].clone();
    release.tags.get_mut("mysql").expect("it").ready = vec![json!({"tcp": 3306})];
    site.releases.insert("site@3".parse().expect("a release"), release);
    site.compile_releases();
    let before = site.node_states();
    let dbs = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").expect("a group of the test");
    let mut dbs = Object::clone(dbs);
    dbs.spec.release = Some("site@3".parse().expect("a release"));
    let reached = site.apply(FleetChange::NodeGroup(Arc::new(dbs)));
    check_dirty_nodes("ready", Propagation::InPlace, DB_NODES, &reached, &before, &site.node_states());
}

#[test]
fn release_tags_fields_have_declared_propagation() {
    let with = |edit: fn(&mut TagSpec)| {
        let mut spec = TagSpec::default();
        edit(&mut spec);
        ReleaseTagsSpec { tags: BTreeMap::from([(tag("user"), spec)]) }
    };
    let put = |site: &mut PropagationSite, spec| {
        let meta = Meta::new(Uuid::from_u128(7), name("site"), Timestamp(0));
        site.apply(FleetChange::ReleaseTags(Arc::new(Object { meta, spec })))
    };
    let base = with(|spec| spec.role = Some(name("db")));
    for (field, class, below, edit) in [
        ("tags", Propagation::RolledOut, DB_NODES, (|spec: &mut TagSpec| spec.role = None) as fn(&mut TagSpec)),
        ("tags.ready", Propagation::InPlace, ALL_NODES, |spec| {
            (spec.role, spec.ready) = (Some(name("db")), vec![json!({"tcp": 1})]);
        }),
        ("tags.title", Propagation::ControllerOnly, &[], |spec| {
            (spec.role, spec.title) = (Some(name("db")), "x".into());
        }),
    ] {
        let mut site = PropagationSite::new();
        put(&mut site, base.clone());
        let (before, new) = (site.node_states(), with(edit));
        assert_eq!(new.changes(&base), [FieldChange { field, propagation: class }]);
        let idle: Vec<_> = new.unimplemented_fields().into_iter().map(|(place, _)| place).collect();
        assert_eq!(idle, if field == "tags.ready" { &["tags.user.ready"][..] } else { &[] }, "{field}");
        let reached = put(&mut site, new);
        if class == Propagation::InPlace {
            // Every host below is marked dirty. Only those with the tag get a new output.
            assert_eq!(reached.len(), below.len());
            check_dirty_nodes(
                field,
                class,
                DB_NODES,
                &DB_NODES.iter().map(ToString::to_string).collect(),
                &before,
                &site.node_states(),
            );
        } else {
            check_dirty_nodes(field, class, below, &reached, &before, &site.node_states());
        }
    }
}

#[test]
fn cluster_template_fields_have_declared_propagation() {
    let mut rows: Vec<EditRow<ClusterTemplateSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("release", Propagation::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Propagation::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    rows.extend(level_field_rows!(ClusterTemplateSpec));
    let site = PropagationSite::new();
    let old = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").expect("the template");
    check_object_edits(old, &rows, FleetChange::Template, |_| ALL_NODES);
}

#[test]
fn cluster_fields_have_declared_propagation() {
    let mut rows: Vec<EditRow<ClusterSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("cluster_template", Propagation::InPlaceAndRolledOut, |spec| {
            let other = "other".parse::<ObjectName>().expect("a name");
            let site = PropagationSite::new();
            let other = site.fleet.templates().find(|one| one.meta.name == other).expect("the other");
            spec.cluster_template = Some(TemplateId(other.meta.uuid));
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
    rows.extend(level_field_rows!(ClusterSpec));
    check_object_edits(PropagationSite::new().cluster("prod"), &rows, FleetChange::Cluster, |field| match field {
        "tags" | "roles" => DB_NODES,
        _ => ALL_NODES,
    });
}

#[test]
fn node_group_fields_have_declared_propagation() {
    let mut rows: Vec<EditRow<NodeGroupSpec>> = vec![
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
        ("splay", Propagation::InPlace, |spec| spec.splay_seconds = Some(5)),
        ("silent_after", Propagation::InPlace, |spec| spec.silent_after_seconds = Some(5)),
        ("extra", Propagation::ControllerOnly, |spec| spec.extra = extra()),
        ("owners", Propagation::ControllerOnly, |spec| spec.owners = owners()),
    ];
    rows.extend(level_field_rows!(NodeGroupSpec));
    let site = PropagationSite::new();
    let old = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").expect("the group");
    check_object_edits(old, &rows, FleetChange::NodeGroup, |_| DB_NODES);
}

#[test]
fn mode_change_to_apply_requires_lease() {
    let mut site = PropagationSite::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.mode = Some(Mode::Noop);
    site.apply(FleetChange::Node(Arc::new(node.clone())));
    let (before, old) = (site.node_states(), node.clone());
    node.spec.mode = Some(Mode::Apply);
    let class = Propagation::RolledOutWithoutDigest;
    assert_eq!(changes(&old, &node), [FieldChange { field: "mode", propagation: class }]);
    let reached = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes("Node mode", class, &["db-2"], &reached, &before, &site.node_states());
}

#[test]
fn node_fields_have_declared_propagation() {
    let mut rows: Vec<EditRow<NodeSpec>> = vec![
        ("description", Propagation::ControllerOnly, |spec| spec.description = "x".into()),
        ("nodegroup", Propagation::InPlaceAndRolledOut, |spec| {
            spec.nodegroup = PropagationSite::new().node("web-1").spec.nodegroup;
        }),
        ("roles", Propagation::RolledOut, |spec| spec.roles.push(name("more"))),
        ("tags", Propagation::RolledOut, |spec| spec.tags.assigned = set_with(tag("extra"))),
        ("tags", Propagation::RolledOut, |spec| {
            let made = DecidedTags {
                extension: "x".into(),
                cluster: ClusterId(Uuid::nil()),
                tags: vec![tag("extra"), tag("mysql")],
                question: String::new(),
            };
            spec.tags.decided.insert(name("db"), made);
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
    rows.extend(level_field_rows!(NodeSpec));
    for (field, class, spec) in edited_versions(&PropagationSite::new().node("db-2").spec, &rows) {
        let mut site = PropagationSite::new();
        let id = site.node("db-2").id();
        let traits = [Trait::new("CUSTOM_SEEN").expect("a trait")].into_iter().collect();
        site.apply(FleetChange::Observation(id, Arc::new(Observation { traits: Arc::new(traits), ..Observation::default() })));
        let (before, meta) = (site.node_states(), site.node("db-2").meta.clone());
        let reached = site.apply(FleetChange::Node(Arc::new(Object { meta, spec })));
        check_dirty_nodes(&format!("Node {field}"), class, &["db-2"], &reached, &before, &site.node_states());
    }
}

/// Returns the same values with another owner.
fn with_owner<K: Ord + Clone + std::fmt::Display, V: Clone + PartialEq>(other: &Manager, map: &OwnedMap<K, V>) -> OwnedMap<K, V> {
    let said: Intent<K, V> = map.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect();
    OwnedMap::default().update(other, &said)
}

#[test]
fn owner_change_reaches_no_node() {
    let other = Manager::new("other").expect("a manager");
    let mut site = PropagationSite::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = layer_with("own", value("2"));
    node.spec.traits = set_with(Trait::new("CUSTOM_FREE").expect("a trait"));
    node.spec.tags.assigned = set_with(tag("extra"));
    site.apply(FleetChange::Node(Arc::new(node.clone())));
    let before = site.node_states();
    let spec = &mut node.spec;
    let labels = spec.inherited.labels.provided.take().expect("it has some");
    spec.inherited.labels.provided = Some(with_owner(&other, &labels));
    spec.traits = with_owner(&other, &spec.traits);
    spec.tags.assigned = with_owner(&other, &spec.tags.assigned);
    let reached = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes("owners", Propagation::ControllerOnly, &[], &reached, &before, &site.node_states());
}

#[test]
fn name_change_has_declared_propagation() {
    let mut site = PropagationSite::new();
    let before = site.node_states();
    let mut node = Node::clone(site.node("db-1"));
    node.meta.name = Some(NodeName::new("db-9").expect("a name"));
    let expected = FieldChange { field: "name", propagation: Propagation::InPlaceAndRolledOut };
    assert_eq!(changes(site.node("db-1"), &node), std::slice::from_ref(&expected));
    let reached = site.apply(FleetChange::Node(Arc::new(node)));
    assert_eq!(reached.iter().map(String::as_str).collect::<Vec<_>>(), ["db-2", "db-9", "web-1"]);
    assert_ne!(before, site.node_states());

    for kind in ["template", "cluster", "group"] {
        let mut site = PropagationSite::new();
        let other = "renamed".parse::<ObjectName>().expect("a name");
        let reached = match kind {
            "template" => {
                let mut one = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").cloned().expect("it");
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(FleetChange::Template(one))
            }
            "cluster" => {
                let mut one = Arc::clone(site.cluster("prod"));
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(FleetChange::Cluster(one))
            }
            _ => {
                let mut one = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").cloned().expect("it");
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(FleetChange::NodeGroup(one))
            }
        };
        let below = if kind == "group" { DB_NODES } else { ALL_NODES };
        assert_eq!(reached.iter().map(String::as_str).collect::<Vec<_>>(), below, "{kind}");
    }
}

#[test]
fn primary_fields_have_declared_propagation() {
    let site = PropagationSite::new();
    let cluster = ClusterId(site.cluster("prod").meta.uuid);
    let spec = PrimarySpec { cluster, node: site.node("db-1").id(), since: Timestamp(1), epoch: 1 };
    let rows: &[EditRow<PrimarySpec>] = &[
        ("cluster", Propagation::RolledOut, |spec| {
            spec.cluster = ClusterId(PropagationSite::new().cluster("lab").meta.uuid);
        }),
        ("node", Propagation::RolledOut, |spec| spec.node = PropagationSite::new().node("db-2").id()),
        ("since", Propagation::ControllerOnly, |spec| spec.since = Timestamp(2)),
        ("epoch", Propagation::ControllerOnly, |spec| spec.epoch = 2),
    ];
    for (field, class, new) in edited_versions(&spec, rows) {
        let mut site = PropagationSite::new();
        let meta = Meta::new(Uuid::from_u128(9), tag("mysql"), Timestamp(0));
        site.apply(FleetChange::Primary(Arc::new(Object { meta: meta.clone(), spec: spec.clone() })));
        let before = site.node_states();
        let reached = site.apply(FleetChange::Primary(Arc::new(Object { meta, spec: new })));
        // A primary of another cluster is another object.
        let below = if field == "cluster" { &[][..] } else { ALL_NODES };
        check_dirty_nodes(&format!("Primary {field}"), class, below, &reached, &before, &site.node_states());
    }
}

#[test]
fn namespace_fields_have_declared_propagation() {
    let rows: &[EditRow<NamespaceSpec>] = &[
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
    // It binds a label that hosts have and that tasks read.
    let (resource_type_associations, properties) = binding_fields();
    let whole = NamespaceSpec { resource_type_associations, properties, ..NamespaceSpec::default() };
    for old in [NamespaceSpec::default(), whole] {
        for (field, class, spec) in edited_versions(&NamespaceSpec::default(), rows) {
            let mut site = PropagationSite::new();
            site.apply(FleetChange::Namespace(Arc::new(Object { meta: meta.clone(), spec: old.clone() })));
            let before = site.node_states();
            let reached = site.apply(FleetChange::Namespace(Arc::new(Object { meta: meta.clone(), spec })));
            check_dirty_nodes(&format!("Namespace {field}"), class, &[], &reached, &before, &site.node_states());
        }
    }
}

/// A change of what a rule sets affects every node. Other changes of it affect none. There is a second rule, because
/// the order of the rules decides the value of a label. Both rules set values that the other edits change.
#[test]
fn inspection_rule_fields_have_declared_propagation() {
    let rows: &[EditRow<InspectionRuleSpec>] = &[
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
    let meta = |nth: u64, name: &str| Meta::new(Uuid::from_u128(u128::from(nth)), ObjectName::new(name).ok(), Timestamp(nth));
    let put = |site: &mut PropagationSite, meta: Meta<Option<ObjectName>>, spec: InspectionRuleSpec| {
        site.apply(FleetChange::Rule(Arc::new(Object { meta, spec })))
    };
    let whole = InspectionRuleSpec { priority: 5, actions: rule_actions("one"), ..InspectionRuleSpec::default() };
    let site = || {
        let mut site = PropagationSite::new();
        for node in ALL_NODES {
            let id = site.node(node).id();
            site.apply(FleetChange::Observation(id, Arc::default()));
        }
        put(
            &mut site,
            meta(8, "beside"),
            InspectionRuleSpec { priority: 4, actions: rule_actions("two"), ..InspectionRuleSpec::default() },
        );
        site
    };
    for (field, class, spec) in edited_versions(&whole, rows) {
        let mut site = site();
        put(&mut site, meta(9, "rule"), whole.clone());
        let before = site.node_states();
        let reached = put(&mut site, meta(9, "rule"), spec);
        check_dirty_nodes(&format!("InspectionRule {field}"), class, ALL_NODES, &reached, &before, &site.node_states());
    }
    let (mut site, id) = (site(), Uuid::from_u128(9));
    let without = site.node_states();
    let reached = put(&mut site, meta(9, "rule"), whole.clone());
    let with = site.node_states();
    check_dirty_nodes("a new rule", Propagation::InPlace, ALL_NODES, &reached, &without, &with);
    let reached = put(&mut site, meta(9, "renamed"), whole);
    check_dirty_nodes("a rule's name", Propagation::InPlace, ALL_NODES, &reached, &with, &site.node_states());
    let (before, reached) = (site.node_states(), site.apply(FleetChange::RemoveRule(id)));
    check_dirty_nodes("a rule that goes", Propagation::InPlace, ALL_NODES, &reached, &before, &site.node_states());
    assert_eq!(site.node_states(), without);
    assert!(site.apply(FleetChange::RemoveRule(id)).is_empty(), "it was gone");
}

/// Returns actions for which every field of a rule matters: the label's value, whether a restricted label is set, and
/// the log message.
fn rule_actions(value: &str) -> Vec<RuleAction> {
    parse_list(&json!([
        {"op": "log", "args": {"msg": value}},
        {"op": "set-attribute", "args": {"path": "labels/by-rule", "value": value}},
        {"op": "set-attribute", "args": {"path": "labels/{item}", "value": value}, "loop": ["node.stemma.io/by-rule"]},
    ]))
}

/// Returns the fields that bind label `read` to a value that no node has.
fn binding_fields() -> (Vec<Association>, Properties) {
    let property = json!({"read": {"title": "x", "type": "string", "enum": ["no"]}});
    (parse_list(&json!([{"name": "Stemma::Label"}])), serde_json::from_value(property).expect("properties of the test"))
}

fn parse_list<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    serde_json::from_value(list.clone()).expect("a list of the test")
}

/// The fleet model has no allocations. The decision of an allocation is written to a node, whose fields have their own
/// propagation.
#[test]
fn allocation_fields_have_declared_propagation() {
    let rows: &[EditRow<AllocationSpec>] = &[
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
    assert_eq!(edited_versions(&AllocationSpec::default(), rows).len(), <AllocationSpec as ClassifyFields>::FIELDS.len());
}

/// The fleet model has no principals. The listener reads a principal when it makes a request.
#[test]
fn principal_fields_have_declared_propagation() {
    let rows: &[EditRow<PrincipalSpec>] = &[
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
    assert_eq!(edited_versions(&PrincipalSpec::default(), rows).len(), <PrincipalSpec as ClassifyFields>::FIELDS.len());
}

#[test]
fn observation_fields_have_declared_propagation() {
    let rows: &[EditRow<Observation>] = &[
        ("facts", Propagation::RolledOut, |seen| {
            seen.facts = FactMap::from_tree(json!({"os": {"id": "debian"}}).as_object().expect("facts"));
        }),
        ("traits", Propagation::InPlace, |seen| {
            seen.traits = Arc::new([Trait::new("CUSTOM_FREE").expect("a trait")].into_iter().collect());
        }),
        ("labels", Propagation::InPlaceByKey, |seen| {
            let label = ReportedLabel { key: "host".into(), value: "1".into(), source: "f:1".into() };
            seen.labels = [label].into_iter().collect();
        }),
        ("not_taken", Propagation::ControllerOnly, |seen| {
            seen.not_taken = DroppedInput { facts: 1, ..DroppedInput::default() }.into_option_box();
        }),
    ];
    for (field, class, seen) in edited_observations(&Observation::default(), rows) {
        let mut site = PropagationSite::new();
        let mut template = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").cloned().expect("it");
        let accept = [LabelKey::new("host").expect("a key")].into_iter().collect();
        Arc::make_mut(&mut template).spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        site.apply(FleetChange::Template(template));
        let (before, id) = (site.node_states(), site.node("db-2").id());
        let reached = site.apply(FleetChange::Observation(id, Arc::new(seen)));
        check_dirty_nodes(field, class, &["db-2"], &reached, &before, &site.node_states());
    }
}

#[test]
fn reported_state_fields_have_declared_propagation() {
    let rows: &[EditRow<ReportedState>] = &[
        ("paused", Propagation::InPlace, |said| said.paused = true),
        ("hold", Propagation::InPlace, |said| said.hold = Some((1, "x".into()))),
        ("parked", Propagation::InPlace, |said| said.parked = Some("x".into())),
    ];
    for (field, class, said) in edited_observations(&ReportedState::default(), rows) {
        let mut site = PropagationSite::new();
        let (before, id) = (site.node_states(), site.node("db-2").id());
        let reached = site.apply(FleetChange::ReportedState(id, Some(Arc::new(said))));
        check_dirty_nodes(field, class, &["db-2"], &reached, &before, &site.node_states());
    }
}

#[test]
fn label_read_by_task_also_changes_digest() {
    let mut site = PropagationSite::new();
    let before = site.node_states();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = layer_with("read", value("1"));
    let reached = site.apply(FleetChange::Node(Arc::new(node)));
    check_dirty_nodes(
        "a label that is read",
        Propagation::InPlaceAndRolledOut,
        &["db-2"],
        &reached,
        &before,
        &site.node_states(),
    );
}

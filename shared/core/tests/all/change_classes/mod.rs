//! Every field of every kind is changed once, and exactly what its class says happens. A field of which no host is told is one on which
//! something else acts, or it is said where it is given that nothing does.

mod check;
mod site;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stemma_core::change::{Class, Classified, FieldChange, changes};
use stemma_core::fleet::Change;
use stemma_core::host_labels::HostLabels;
use stemma_core::idle::Idle;
use stemma_core::key::{AnnotationKey, AnnotationValue, LabelKey, LabelValue};
use stemma_core::labels::{Layer, ParameterValue};
use stemma_core::name::{Name, NamespaceName, NodeName, ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    AllocationDecision, AllocationSpec, Association, ClusterId, ClusterSpec, ClusterTemplateSpec, Dates, DecidedTags,
    ExtensionUse, FactMap, FieldOwners, GroupId, Hold, InspectionRuleSpec, Meta, NamespaceSpec, Node, NodeGroupSpec,
    NodeId, NodeSpec, NotTaken, Object, Observation, Phase, PrimaryMatching, PrimarySpec, PrincipalRole, PrincipalSpec,
    Properties, ProvisionState, ReleaseSpec, ReleaseTagsSpec, ReportedLabel, RoleChange, Rollout, RuleAction,
    SaidOnHost, Strategy, TagSpec, TemplateId, Timestamp, Visibility,
};
use stemma_core::ownership::{Intent, Manager, OwnedMap, OwnedSet, Owner, Said};
use stemma_core::release::has_same_content;
use stemma_core::requirement::Requirements;
use stemma_core::task::Mode;
use stemma_core::traits::Trait;
use uuid::Uuid;

use self::check::{ALL, DBS, Row, check, each, each_said, put_each};
use self::site::Site;

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

fn map<V: Clone + PartialEq>(key: &str, value: V) -> Layer<LabelKey, V> {
    let key = LabelKey::new(key).expect("a key");
    Layer {
        provided: Some(OwnedMap::default().update(&manager(), &Intent::from([(key, Said::Value(value))]))),
        merge: Some(true),
    }
}

fn value(text: &str) -> LabelValue {
    LabelValue::new(text).expect("a value")
}

fn members<K: Ord + Clone + std::fmt::Display>(key: K) -> OwnedSet<K> {
    OwnedMap::default().update(&manager(), &Intent::from([(key, Said::Value(()))]))
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
        provided: Some(OwnedMap::default().update(&manager(), &Intent::from([(key, Said::Value(value))]))),
        merge: Some(true),
    }
}

/// The rows of what goes down the levels.
macro_rules! inherited {
    ($spec:ty) => {{
        let rows: [Row<$spec>; 4] = [
            ("labels", Class::InPlaceByKey, |spec| spec.inherited.labels = map("own", value("2"))),
            ("annotations", Class::InPlaceByKey, |spec| spec.inherited.annotations = annotations()),
            ("parameters", Class::RolledOut, |spec| {
                spec.inherited.parameters = map("size", ParameterValue::new(json!(2)).expect("a parameter"));
            }),
            ("lifecycle", Class::InPlace, |spec| spec.inherited.lifecycle.node_drain_timeout = Some(5)),
        ];
        rows
    }};
}

#[test]
fn a_release() {
    let rows: &[Row<ReleaseSpec>] = &[
        ("description", Class::Nowhere, |spec| spec.description = "x".into()),
        ("labels", Class::Nowhere, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("annotations", Class::Nowhere, |spec| drop(spec.annotations.insert("x".into(), "1".into()))),
        ("imports", Class::RolledOut, |spec| spec.imports.push("lib@1".parse().expect("a release"))),
        ("roles", Class::RolledOut, |spec| {
            spec.roles.get_mut("db").expect("it").tags = Some(vec![tag("mysql"), tag("extra")]);
        }),
        ("tags", Class::RolledOut, |spec| spec.tags.get_mut("mysql").expect("it").has_primary = false),
        ("tasks", Class::RolledOut, |spec| {
            let task = spec.tasks.iter_mut().find(|task| task.id == "sizes").expect("it");
            task.parameters.insert("path".into(), json!("/other"));
        }),
        ("matching", Class::RolledOut, |spec| spec.matching.primary = PrimaryMatching::Replaces),
        ("extensions", Class::RolledOut, |spec| {
            spec.extensions.push(ExtensionUse { roles: vec![name("db")], extension: "x".into() });
        }),
        ("foreign", Class::Nowhere, |spec| spec.foreign = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    let release: ReleaseRef = "site@1".parse().expect("a release");
    for (field, class, spec) in each(&Site::new().releases[&release], rows) {
        let mut site = Site::new();
        let is_same = has_same_content(&site.releases[&release], &spec);
        assert_eq!(is_same, class == Class::Nowhere, "{field} is in the hash where its class says so");
        let before = site.answers();
        site.releases.insert(release.clone(), spec);
        let reached = site.compile();
        let below: &[&str] = match field {
            "imports" | "roles" | "tasks" => DBS,
            // Only the holder loses or changes a tag; the web server sees another primary.
            "tags" => &["db-1", "web-1"],
            "matching" => &["db-1"],
            // What an extension decides it writes on the nodes.
            _ => &[],
        };
        check(&format!("Release {field}"), class, below, &reached, &before, &site.answers());
    }
}

#[test]
fn another_release_with_the_same_content_and_other_ready_probes() {
    let mut site = Site::new();
    let mut release = site.releases[&"site@1".parse().expect("a release")].clone();
    release.tags.get_mut("mysql").expect("it").ready = vec![json!({"tcp": 3306})];
    site.releases.insert("site@3".parse().expect("a release"), release);
    site.compile();
    let before = site.answers();
    let dbs = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").expect("a group of the test");
    let mut dbs = Object::clone(dbs);
    dbs.spec.release = Some("site@3".parse().expect("a release"));
    let reached = site.apply(Change::NodeGroup(Arc::new(dbs)));
    check("ready", Class::InPlace, DBS, &reached, &before, &site.answers());
}

#[test]
fn tags_beside_a_release() {
    let with = |edit: fn(&mut TagSpec)| {
        let mut spec = TagSpec::default();
        edit(&mut spec);
        ReleaseTagsSpec { tags: BTreeMap::from([(tag("user"), spec)]) }
    };
    let put = |site: &mut Site, spec| {
        let meta = Meta::new(Uuid::from_u128(7), name("site"), Timestamp(0));
        site.apply(Change::ReleaseTags(Arc::new(Object { meta, spec })))
    };
    let base = with(|spec| spec.role = Some(name("db")));
    for (field, class, below, edit) in [
        ("tags", Class::RolledOut, DBS, (|spec: &mut TagSpec| spec.role = None) as fn(&mut TagSpec)),
        ("tags.ready", Class::InPlace, ALL, |spec| {
            (spec.role, spec.ready) = (Some(name("db")), vec![json!({"tcp": 1})]);
        }),
        ("tags.title", Class::Nowhere, &[], |spec| (spec.role, spec.title) = (Some(name("db")), "x".into())),
    ] {
        let mut site = Site::new();
        put(&mut site, base.clone());
        let (before, new) = (site.answers(), with(edit));
        assert_eq!(new.changes(&base), [FieldChange { field, class }]);
        let idle: Vec<_> = new.idle().into_iter().map(|(place, _)| place).collect();
        assert_eq!(idle, if field == "tags.ready" { &["tags.user.ready"][..] } else { &[] }, "{field}");
        let reached = put(&mut site, new);
        if class == Class::InPlace {
            // Every host below is reached; those that have the tag are told.
            assert_eq!(reached.len(), below.len());
            check(field, class, DBS, &DBS.iter().map(ToString::to_string).collect(), &before, &site.answers());
        } else {
            check(field, class, below, &reached, &before, &site.answers());
        }
    }
}

#[test]
fn a_template() {
    let mut rows: Vec<Row<ClusterTemplateSpec>> = vec![
        ("description", Class::Nowhere, |spec| spec.description = "x".into()),
        ("release", Class::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Class::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("extra", Class::Nowhere, |spec| spec.extra = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    rows.extend(inherited!(ClusterTemplateSpec));
    let site = Site::new();
    let old = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").expect("the template");
    put_each(old, &rows, Change::Template, |_| ALL);
}

#[test]
fn a_cluster() {
    let mut rows: Vec<Row<ClusterSpec>> = vec![
        ("description", Class::Nowhere, |spec| spec.description = "x".into()),
        ("cluster_template", Class::InPlaceAndRolledOut, |spec| {
            let other = "other".parse::<ObjectName>().expect("a name");
            let site = Site::new();
            let other = site.fleet.templates().find(|one| one.meta.name == other).expect("the other");
            spec.cluster_template = Some(TemplateId(other.meta.uuid));
        }),
        ("release", Class::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Class::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("tags", Class::RolledOut, |spec| {
            spec.tags.insert(tag("user"), TagSpec { role: Some(name("db")), ..TagSpec::default() });
        }),
        ("roles", Class::RolledOut, |spec| {
            spec.roles.insert(name("db"), RoleChange { add_tags: vec![tag("extra")], ..RoleChange::default() });
        }),
        ("rollout", Class::Nowhere, |spec| spec.rollout = Some(Rollout { max_groups: Some(1), ..Rollout::default() })),
        ("paused", Class::InPlace, |spec| spec.paused = true),
        ("primaries", Class::RolledOut, |spec| drop(spec.primaries.insert(tag("mysql"), "db-2".into()))),
        ("extra", Class::Nowhere, |spec| spec.extra = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    rows.extend(inherited!(ClusterSpec));
    put_each(Site::new().cluster("prod"), &rows, Change::Cluster, |field| match field {
        "tags" | "roles" => DBS,
        _ => ALL,
    });
}

#[test]
fn a_group() {
    let mut rows: Vec<Row<NodeGroupSpec>> = vec![
        ("cluster", Class::InPlaceAndRolledOut, |spec| {
            spec.cluster = ClusterId(Site::new().cluster("lab").meta.uuid);
        }),
        ("description", Class::Nowhere, |spec| spec.description = "x".into()),
        ("release", Class::RolledOut, |spec| spec.release = Some("site@2".parse().expect("a release"))),
        ("host_labels", Class::InPlace, |spec| spec.host_labels = Some(host_labels())),
        ("roles", Class::RolledOut, |spec| spec.roles.push(name("more"))),
        ("requirements", Class::InPlace, |spec| {
            spec.requirements = Requirements::parse(["property:memory >= 3"]).expect("a requirement");
        }),
        ("strategy", Class::Nowhere, |spec| {
            spec.strategy = Some(Strategy { max_failures: Some(1), ..Strategy::default() });
        }),
        ("paused", Class::InPlace, |spec| spec.paused = true),
        ("mode", Class::InPlace, |spec| spec.mode = Some(Mode::Noop)),
        ("mend_offline", Class::InPlace, |spec| spec.mend_offline = true),
        ("splay", Class::InPlace, |spec| spec.splay_seconds = Some(5)),
        ("silent_after", Class::InPlace, |spec| spec.silent_after_seconds = Some(5)),
        ("extra", Class::Nowhere, |spec| spec.extra = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    rows.extend(inherited!(NodeGroupSpec));
    let site = Site::new();
    let old = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").expect("the group");
    put_each(old, &rows, Change::NodeGroup, |_| DBS);
}

#[test]
fn a_mode_towards_apply_takes_a_lease() {
    let mut site = Site::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.mode = Some(Mode::Noop);
    site.apply(Change::Node(Arc::new(node.clone())));
    let (before, old) = (site.answers(), node.clone());
    node.spec.mode = Some(Mode::Apply);
    let class = Class::RolledOutWithoutDigest;
    assert_eq!(changes(&old, &node), [FieldChange { field: "mode", class }]);
    let reached = site.apply(Change::Node(Arc::new(node)));
    check("Node mode", class, &["db-2"], &reached, &before, &site.answers());
}

#[test]
fn a_node() {
    let mut rows: Vec<Row<NodeSpec>> = vec![
        ("description", Class::Nowhere, |spec| spec.description = "x".into()),
        ("nodegroup", Class::InPlaceAndRolledOut, |spec| {
            spec.nodegroup = Site::new().node("web-1").spec.nodegroup;
        }),
        ("roles", Class::RolledOut, |spec| spec.roles.push(name("more"))),
        ("tags", Class::RolledOut, |spec| spec.tags.assigned = members(tag("extra"))),
        ("tags", Class::RolledOut, |spec| {
            let made = DecidedTags {
                extension: "x".into(),
                cluster: ClusterId(Uuid::nil()),
                tags: vec![tag("extra"), tag("mysql")],
                question: String::new(),
            };
            spec.tags.decided.insert(name("db"), made);
        }),
        ("traits", Class::InPlace, |spec| spec.traits = members(Trait::new("CUSTOM_FREE").expect("a trait"))),
        ("suppressed_traits", Class::InPlace, |spec| {
            spec.suppressed_traits.insert(Trait::new("CUSTOM_SEEN").expect("a trait"));
        }),
        ("properties", Class::InPlace, |spec| drop(spec.properties.insert("memory".into(), json!(4)))),
        ("instance_info", Class::InPlace, |spec| {
            spec.instance_info = json!({"traits": ["CUSTOM_NONE"]}).as_object().expect("an object").clone();
        }),
        ("provision_state", Class::Nowhere, |spec| spec.provision_state = Some(ProvisionState::Active)),
        ("mode", Class::InPlace, |spec| spec.mode = Some(Mode::Noop)),
        ("hold", Class::InPlace, |spec| spec.hold = Some(Box::new(Hold { reason: "x".into(), ..Hold::default() }))),
        ("parked", Class::InPlace, |spec| spec.parked = true),
        ("extra", Class::Nowhere, |spec| spec.extra = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    rows.extend(inherited!(NodeSpec));
    for (field, class, spec) in each(&Site::new().node("db-2").spec, &rows) {
        let mut site = Site::new();
        let id = site.node("db-2").id();
        let traits = [Trait::new("CUSTOM_SEEN").expect("a trait")].into_iter().collect();
        site.apply(Change::Observation(
            id,
            Arc::new(Observation { traits: Arc::new(traits), ..Observation::default() }),
        ));
        let (before, meta) = (site.answers(), site.node("db-2").meta.clone());
        let reached = site.apply(Change::Node(Arc::new(Object { meta, spec })));
        check(&format!("Node {field}"), class, &["db-2"], &reached, &before, &site.answers());
    }
}

/// The same said by another author.
fn owned_by<K: Ord + Clone + std::fmt::Display, V: Clone + PartialEq>(
    other: &Manager,
    map: &OwnedMap<K, V>,
) -> OwnedMap<K, V> {
    let said: Intent<K, V> = map.iter().map(|(key, entry)| (key.clone(), entry.said.clone())).collect();
    OwnedMap::default().update(other, &said)
}

#[test]
fn who_owns_what_is_said_changes_nobody() {
    let other = Manager::new("other").expect("a manager");
    let mut site = Site::new();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = map("own", value("2"));
    node.spec.traits = members(Trait::new("CUSTOM_FREE").expect("a trait"));
    node.spec.tags.assigned = members(tag("extra"));
    site.apply(Change::Node(Arc::new(node.clone())));
    let before = site.answers();
    let spec = &mut node.spec;
    let labels = spec.inherited.labels.provided.take().expect("it has some");
    spec.inherited.labels.provided = Some(owned_by(&other, &labels));
    spec.traits = owned_by(&other, &spec.traits);
    spec.tags.assigned = owned_by(&other, &spec.tags.assigned);
    let reached = site.apply(Change::Node(Arc::new(node)));
    check("owners", Class::Nowhere, &[], &reached, &before, &site.answers());
}

#[test]
fn a_name() {
    let mut site = Site::new();
    let before = site.answers();
    let mut node = Node::clone(site.node("db-1"));
    node.meta.name = Some(NodeName::new("db-9").expect("a name"));
    let expected = FieldChange { field: "name", class: Class::InPlaceAndRolledOut };
    assert_eq!(changes(site.node("db-1"), &node), std::slice::from_ref(&expected));
    let reached = site.apply(Change::Node(Arc::new(node)));
    assert_eq!(reached.iter().map(String::as_str).collect::<Vec<_>>(), ["db-2", "db-9", "web-1"]);
    assert_ne!(before, site.answers());

    for kind in ["template", "cluster", "group"] {
        let mut site = Site::new();
        let other = "renamed".parse::<ObjectName>().expect("a name");
        let reached = match kind {
            "template" => {
                let mut one = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").cloned().expect("it");
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(Change::Template(one))
            }
            "cluster" => {
                let mut one = Arc::clone(site.cluster("prod"));
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(Change::Cluster(one))
            }
            _ => {
                let mut one = site.fleet.groups().find(|one| one.meta.name.as_str() == "dbs").cloned().expect("it");
                Arc::make_mut(&mut one).meta.name = other;
                site.apply(Change::NodeGroup(one))
            }
        };
        let below = if kind == "group" { DBS } else { ALL };
        assert_eq!(reached.iter().map(String::as_str).collect::<Vec<_>>(), below, "{kind}");
    }
}

#[test]
fn a_choice_of_a_primary() {
    let site = Site::new();
    let cluster = ClusterId(site.cluster("prod").meta.uuid);
    let spec = PrimarySpec { cluster, node: site.node("db-1").id(), since: Timestamp(1), epoch: 1 };
    let rows: &[Row<PrimarySpec>] = &[
        ("cluster", Class::RolledOut, |spec| spec.cluster = ClusterId(Site::new().cluster("lab").meta.uuid)),
        ("node", Class::RolledOut, |spec| spec.node = Site::new().node("db-2").id()),
        ("since", Class::Nowhere, |spec| spec.since = Timestamp(2)),
        ("epoch", Class::Nowhere, |spec| spec.epoch = 2),
    ];
    for (field, class, new) in each(&spec, rows) {
        let mut site = Site::new();
        let meta = Meta::new(Uuid::from_u128(9), tag("mysql"), Timestamp(0));
        site.apply(Change::Primary(Arc::new(Object { meta: meta.clone(), spec: spec.clone() })));
        let before = site.answers();
        let reached = site.apply(Change::Primary(Arc::new(Object { meta, spec: new })));
        // A choice in another cluster is another object.
        let below = if field == "cluster" { &[][..] } else { ALL };
        check(&format!("Primary {field}"), class, below, &reached, &before, &site.answers());
    }
}

#[test]
fn a_namespace() {
    let rows: &[Row<NamespaceSpec>] = &[
        ("display_name", Class::Nowhere, |spec| spec.display_name = Some("x".into())),
        ("description", Class::Nowhere, |spec| spec.description = Some("x".into())),
        ("visibility", Class::Nowhere, |spec| spec.visibility = Visibility::Public),
        ("protected", Class::Nowhere, |spec| spec.protected = true),
        ("owner", Class::Nowhere, |spec| spec.owner = Some("x".into())),
        ("labels", Class::Nowhere, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("resource_type_associations", Class::Nowhere, |spec| spec.resource_type_associations = bound().0),
        ("properties", Class::Nowhere, |spec| spec.properties = bound().1),
        ("objects", Class::Nowhere, |spec| spec.objects = listed(&json!([{"name": "x"}]))),
        ("tags", Class::Nowhere, |spec| spec.tags = listed(&json!([{"name": "x"}]))),
        ("dates", Class::Nowhere, |spec| spec.dates = [("tags/x".into(), Dates::default())].into()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    let meta = Meta::new(Uuid::from_u128(8), NamespaceName::new("Site").expect("a name"), Timestamp(0));
    // It binds a label that hosts have and that tasks read.
    let (resource_type_associations, properties) = bound();
    let whole = NamespaceSpec { resource_type_associations, properties, ..NamespaceSpec::default() };
    for old in [NamespaceSpec::default(), whole] {
        for (field, class, spec) in each(&NamespaceSpec::default(), rows) {
            let mut site = Site::new();
            site.apply(Change::Namespace(Arc::new(Object { meta: meta.clone(), spec: old.clone() })));
            let before = site.answers();
            let reached = site.apply(Change::Namespace(Arc::new(Object { meta: meta.clone(), spec })));
            check(&format!("Namespace {field}"), class, &[], &reached, &before, &site.answers());
        }
    }
}

/// A change of what a rule gives reaches every node, and of anything else none. A second rule stands beside it: which of them is asked
/// first decides what a label is, and each gives something that the other edits make to differ.
#[test]
fn an_inspection_rule() {
    let rows: &[Row<InspectionRuleSpec>] = &[
        ("description", Class::Nowhere, |spec| spec.description = Some("x".into())),
        ("priority", Class::InPlace, |spec| spec.priority = 3),
        ("phase", Class::Nowhere, |spec| spec.phase = Some(Phase::Main)),
        ("sensitive", Class::InPlace, |spec| spec.sensitive = true),
        ("grants", Class::InPlace, |spec| spec.grants = true),
        ("conditions", Class::InPlace, |spec| {
            spec.conditions = listed(&json!([{"op": "is-none", "args": {"value": 1}}]));
        }),
        ("actions", Class::InPlace, |spec| spec.actions = gives("other")),
        ("labels", Class::Nowhere, |spec| drop(spec.labels.insert("x".into(), "1".into()))),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    let meta =
        |nth: u64, name: &str| Meta::new(Uuid::from_u128(u128::from(nth)), ObjectName::new(name).ok(), Timestamp(nth));
    let put = |site: &mut Site, meta: Meta<Option<ObjectName>>, spec: InspectionRuleSpec| {
        site.apply(Change::Rule(Arc::new(Object { meta, spec })))
    };
    let whole = InspectionRuleSpec { priority: 5, actions: gives("one"), ..InspectionRuleSpec::default() };
    let site = || {
        let mut site = Site::new();
        for node in ALL {
            let id = site.node(node).id();
            site.apply(Change::Observation(id, Arc::default()));
        }
        put(
            &mut site,
            meta(8, "beside"),
            InspectionRuleSpec { priority: 4, actions: gives("two"), ..InspectionRuleSpec::default() },
        );
        site
    };
    for (field, class, spec) in each(&whole, rows) {
        let mut site = site();
        put(&mut site, meta(9, "rule"), whole.clone());
        let before = site.answers();
        let reached = put(&mut site, meta(9, "rule"), spec);
        check(&format!("InspectionRule {field}"), class, ALL, &reached, &before, &site.answers());
    }
    let (mut site, id) = (site(), Uuid::from_u128(9));
    let without = site.answers();
    let reached = put(&mut site, meta(9, "rule"), whole.clone());
    let with = site.answers();
    check("a new rule", Class::InPlace, ALL, &reached, &without, &with);
    let reached = put(&mut site, meta(9, "renamed"), whole);
    check("a rule's name", Class::InPlace, ALL, &reached, &with, &site.answers());
    let (before, reached) = (site.answers(), site.apply(Change::RemoveRule(id)));
    check("a rule that goes", Class::InPlace, ALL, &reached, &before, &site.answers());
    assert_eq!(site.answers(), without);
    assert!(site.apply(Change::RemoveRule(id)).is_empty(), "it was gone");
}

/// Actions by which every field of a rule makes a difference: what the label is, whether it is given where it is restricted, and what is
/// said of it.
fn gives(value: &str) -> Vec<RuleAction> {
    listed(&json!([
        {"op": "log", "args": {"msg": value}},
        {"op": "set-attribute", "args": {"path": "labels/by-rule", "value": value}},
        {"op": "set-attribute", "args": {"path": "labels/{item}", "value": value}, "loop": ["node.stemma.io/by-rule"]},
    ]))
}

/// What binds label `read` to a value that nobody has.
fn bound() -> (Vec<Association>, Properties) {
    let property = json!({"read": {"title": "x", "type": "string", "enum": ["no"]}});
    (listed(&json!([{"name": "Stemma::Label"}])), serde_json::from_value(property).expect("properties of the test"))
}

fn listed<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    serde_json::from_value(list.clone()).expect("a list of the test")
}

/// The fleet knows no allocation: what one decides it writes on a node, whose fields have classes of their own.
#[test]
fn an_allocation() {
    let rows: &[Row<AllocationSpec>] = &[
        ("resource_class", Class::Nowhere, |spec| spec.resource_class = "x".into()),
        ("traits", Class::Nowhere, |spec| spec.traits.push(Trait::new("CUSTOM_FREE").expect("a trait"))),
        ("requirements", Class::Nowhere, |spec| {
            spec.requirements = Requirements::parse(["property:memory >= 3"]).expect("a requirement");
        }),
        ("candidate_nodes", Class::Nowhere, |spec| spec.candidate_nodes.push(NodeId(Uuid::from_u128(1)))),
        ("nodegroup", Class::Nowhere, |spec| spec.nodegroup = Some(GroupId(Uuid::from_u128(1)))),
        ("owner", Class::Nowhere, |spec| spec.owner = Some("x".into())),
        ("within", Class::Nowhere, |spec| spec.within = Some(ClusterId(Uuid::from_u128(1)))),
        ("decision", Class::Nowhere, |spec| spec.decision = Some(AllocationDecision::Failed { reason: "x".into() })),
        ("extra", Class::Nowhere, |spec| spec.extra = extra()),
        ("owners", Class::Nowhere, |spec| spec.owners = owners()),
    ];
    assert_eq!(each(&AllocationSpec::default(), rows).len(), <AllocationSpec as Classified>::FIELDS.len());
}

/// The fleet knows no principal: the listener asks for it where somebody asks for something.
#[test]
fn a_principal() {
    let rows: &[Row<PrincipalSpec>] = &[
        ("role", Class::Nowhere, |spec| spec.role = PrincipalRole::Admin),
        ("cluster", Class::Nowhere, |spec| spec.cluster = Some(ClusterId(Uuid::from_u128(1)))),
        ("description", Class::Nowhere, |spec| spec.description = Some("x".into())),
        ("certificates", Class::Nowhere, |spec| {
            spec.certificates = listed(&json!([{"serial": "01", "issued_at": 1, "ends_at": 2}]));
        }),
        ("tokens", Class::Nowhere, |spec| {
            spec.tokens = listed(&json!([{"id": "a", "secret_sha256": "b", "issued_at": 1, "ends_at": 2}]));
        }),
        ("takes_unlisted", Class::Nowhere, |spec| spec.takes_unlisted = true),
    ];
    assert_eq!(each(&PrincipalSpec::default(), rows).len(), <PrincipalSpec as Classified>::FIELDS.len());
}

#[test]
fn what_a_host_reports() {
    let rows: &[Row<Observation>] = &[
        ("facts", Class::RolledOut, |seen| {
            seen.facts = FactMap::from_tree(json!({"os": {"id": "debian"}}).as_object().expect("facts"));
        }),
        ("traits", Class::InPlace, |seen| {
            seen.traits = Arc::new([Trait::new("CUSTOM_FREE").expect("a trait")].into_iter().collect());
        }),
        ("labels", Class::InPlaceByKey, |seen| {
            let label = ReportedLabel { key: "host".into(), value: "1".into(), source: "f:1".into() };
            seen.labels = [label].into_iter().collect();
        }),
        ("not_taken", Class::Nowhere, |seen| seen.not_taken = NotTaken { facts: 1, ..NotTaken::default() }.boxed()),
    ];
    for (field, class, seen) in each_said(&Observation::default(), rows) {
        let mut site = Site::new();
        let mut template = site.fleet.templates().find(|one| one.meta.name.as_str() == "base").cloned().expect("it");
        let accept = [LabelKey::new("host").expect("a key")].into_iter().collect();
        Arc::make_mut(&mut template).spec.host_labels = Some(HostLabels { accept, ..HostLabels::default() });
        site.apply(Change::Template(template));
        let (before, id) = (site.answers(), site.node("db-2").id());
        let reached = site.apply(Change::Observation(id, Arc::new(seen)));
        check(field, class, &["db-2"], &reached, &before, &site.answers());
    }
}

#[test]
fn what_is_said_on_a_host() {
    let rows: &[Row<SaidOnHost>] = &[
        ("paused", Class::InPlace, |said| said.paused = true),
        ("hold", Class::InPlace, |said| said.hold = Some((1, "x".into()))),
        ("parked", Class::InPlace, |said| said.parked = Some("x".into())),
    ];
    for (field, class, said) in each_said(&SaidOnHost::default(), rows) {
        let mut site = Site::new();
        let (before, id) = (site.answers(), site.node("db-2").id());
        let reached = site.apply(Change::Said(id, Some(Arc::new(said))));
        check(field, class, &["db-2"], &reached, &before, &site.answers());
    }
}

#[test]
fn a_label_that_tasks_read_goes_by_digest_as_well() {
    let mut site = Site::new();
    let before = site.answers();
    let mut node = Node::clone(site.node("db-2"));
    node.spec.inherited.labels = map("read", value("1"));
    let reached = site.apply(Change::Node(Arc::new(node)));
    check("a label that is read", Class::InPlaceAndRolledOut, &["db-2"], &reached, &before, &site.answers());
}

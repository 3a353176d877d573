//! The two versions of the task digest. Version 1 never changes, because older stores contain such digests. Version 2
//! also covers whether a task is untranslated: an import from Fuel could not translate one of its expressions, so the
//! task never runs.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::digest::DigestVersion;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::Object;
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{ResolveCache, ResolvedNode, resolve_node};
use stemma_core::rollout::ReleaseKey;

/// Builds the fleet that has the objects of these manifests.
fn build_fleet(documents: &[Value]) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|object| read_document(&object.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
    let mut fleet = Fleet::new();
    fleet.apply_all(compile_set(&specs, &SyntaxReader).expect("releases").into_values().map(FleetChange::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|object| FleetChange::Cluster(Arc::new(object))));
    fleet.apply_all(objects.groups.into_iter().map(|object| FleetChange::NodeGroup(Arc::new(object))));
    fleet.apply_all(objects.nodes.into_iter().map(|object| FleetChange::Node(Arc::new(object))));
    fleet.set_loaded();
    fleet
}

/// Resolves node web-1 of a new fleet with these documents.
fn resolve_web_node(documents: &[Value]) -> Arc<ResolvedNode> {
    let fleet = build_fleet(documents);
    let node = fleet.node_by_name("web-1").expect("the node").id();
    Arc::clone(resolve_node(&fleet, &ResolveCache::new(), node).resolved_node().expect("an answer"))
}

/// Returns the documents of a release, a cluster, a group and node web-1. Tasks read labels, parameters and a secret.
/// An import from Fuel could not translate task `old`, so `old` does not run.
fn site_manifests() -> Vec<Value> {
    vec![
        json!({
            "kind": "Release", "name": "site",
            "roles": {"web": {"tags": ["nginx", "proxy"]}}, "tags": {"nginx": {"has_primary": true}, "proxy": {}},
            "tasks": [
                {"id": "conf", "type": "file", "tags": ["nginx"], "parameters":
                    {"path": "/etc/é", "template": "{{ labels.tier }} {{ params.size }} {{ labels.gone | default('') }}"}},
                {"id": "key", "type": "shell", "tags": ["nginx"],
                    "parameters": {"command": ["put", "{{ secret('db') }}", "{{ params.map }}"]}},
                {"id": "left", "type": "shell", "tags": ["nginx"], "condition": "labels.tier == 'lead'",
                    "parameters": {"command": ["never"]}},
                {"id": "marker", "type": "skipped", "tags": ["nginx"]},
                {"id": "old", "type": "shell", "tags": ["proxy"], "requires": ["conf"], "timeout_seconds": 30,
                    "parameters": {"command": ["true"]}, "foreign": {"untranslated": ["condition"], "x": 1}},
                {"id": "out", "type": "shell", "tags": ["proxy"], "phase": "drain", "parameters": {"command": ["drain"]}},
            ],
        }),
        json!({"kind": "Cluster", "name": "prod", "release": "site", "labels": {"tier": "gold"}}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "webs", "roles": ["web"],
            "parameters": {"size": 1.5e300, "map": {"b": [1, 2.0, null], "a": "\u{1f600}"}}}),
        json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/webs"}),
    ]
}

/// Returns the documents of [`site_manifests`] with a translated task `old`, which therefore runs.
fn translated_site() -> Vec<Value> {
    let mut site = site_manifests();
    site[0]["tasks"][4]["foreign"] = json!({"x": 1});
    site
}

/// Another program computed the expected digests from the definitions in the module `digest`. A digest of version 1
/// does not cover the mark of a task that an import could not translate. A digest of version 2 covers the mark.
#[test]
fn w01_digest_versions_match_definitions() {
    let digest_of = |documents: &[Value], version| resolve_web_node(documents).task_set().expect("tasks").task_digest(version);
    for (documents, version, digest) in [
        (site_manifests(), DigestVersion::V1, "11b2df7d90c92becf21e8d36245a3068cf23391d594dfc74c8a1ff2267b9dd7c"),
        (translated_site(), DigestVersion::V1, "11b2df7d90c92becf21e8d36245a3068cf23391d594dfc74c8a1ff2267b9dd7c"),
        (site_manifests(), DigestVersion::V2, "944229c054c3faab3757614d895414a1622da4d24c2737ad2df9c6d876e749de"),
        (translated_site(), DigestVersion::V2, "cdf1737123d0fa9367dca562149520cb8a9b473b3f458f64b9f6097366244f31"),
    ] {
        assert_eq!(digest_of(&documents, version).to_string(), digest, "{version:?}");
    }
    assert_eq!(
        resolve_web_node(&site_manifests()).task_set().map(|set| set.digest),
        Some(digest_of(&site_manifests(), DigestVersion::LATEST))
    );
}

/// An import from Fuel marks a task that it could not translate. A digest of version 1 does not cover the mark, so the
/// key by which the controller decides to release a task set has to cover the mark.
#[test]
fn w01_untranslated_mark_changes_release_key_in_each_version() {
    for version in [DigestVersion::V1, DigestVersion::V2] {
        let release_key = |documents: &[Value]| ReleaseKey::from_resolved(&resolve_web_node(documents), version);
        assert_ne!(release_key(&site_manifests()), release_key(&translated_site()), "{version:?}");
        assert_eq!(release_key(&site_manifests()), release_key(&site_manifests()), "{version:?}");
    }
}

/// The fleet gets a release in which task `old` is translated. The node is resolved again with the same cache, and has
/// the task digest of a fleet that is built from the new documents.
#[test]
fn w01_translated_task_runs_at_once() {
    let (mut fleet, translated_fleet) = (build_fleet(&site_manifests()), build_fleet(&translated_site()));
    let node = fleet.node_by_name("web-1").expect("the node").id();
    let name = "site".parse().expect("a release's name");
    let dirty = fleet.apply(FleetChange::Release(Arc::clone(translated_fleet.release(&name).expect("the release"))));
    assert!(dirty.nodes(&fleet).any(|dirty_node| dirty_node == node));
    let cache = ResolveCache::new();
    let state = |fleet: &Fleet| {
        let resolved_node = Arc::clone(resolve_node(fleet, &cache, node).resolved_node().expect("an answer"));
        let task_set = resolved_node.task_set().expect("tasks");
        let is_run =
            task_set.profile.release.task_index("old").map(|index| !task_set.profile.release.task(index).task.is_untranslated());
        (is_run, task_set.digest)
    };
    let (is_run, digest) = state(&fleet);
    assert_eq!(is_run, Some(true));
    assert_eq!(digest, resolve_web_node(&translated_site()).task_set().expect("tasks").digest);
}

/// Document 0 is the release. Release `twin` has the same content, and node web-2 runs `twin`.
#[test]
fn w01_node_keeps_name_of_release_when_content_is_equal() {
    let mut documents = site_manifests();
    let mut twin = documents[0].clone();
    twin["name"] = "twin".into();
    documents.insert(1, twin);
    documents.extend([
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "twins", "roles": ["web"], "release": "twin"}),
        json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/twins"}),
    ]);
    let fleet = build_fleet(&documents);
    let cache = ResolveCache::new();
    let release_name = |node: &str| {
        let node = fleet.node_by_name(node).expect("the node").id();
        let resolution = resolve_node(&fleet, &cache, node);
        resolution.resolved_node().and_then(|resolved_node| resolved_node.release()).map(|release| release.name.to_string())
    };
    assert_eq!((release_name("web-1"), release_name("web-2")), (Some("site".into()), Some("twin".into())));
}

/// A write resolves an edited node several times, each time from another copy of the object. The cache returns the same
/// task set for each copy, as long as the result is recent. Document 3 is the node.
#[test]
fn edited_task_set_is_shared_when_resolved_repeatedly() {
    let (fleet, cache) = (build_fleet(&site_manifests()), ResolveCache::new());
    let node = fleet.node_by_name("web-1").expect("the node");
    let resolve_edited = |tier: &str| {
        let mut documents = site_manifests();
        documents[3]["labels"] = json!({"tier": tier});
        let mut edited_fleet = fleet.clone();
        let mut object = Object::clone(node);
        let source = build_fleet(&documents);
        object.spec = source.node_by_name("web-1").expect("the node").spec.clone();
        edited_fleet.apply(FleetChange::Node(Arc::new(object)));
        let resolution = resolve_node(&edited_fleet, &cache, node.id());
        Arc::downgrade(resolution.resolved_node().and_then(|resolved_node| resolved_node.task_set()).expect("tasks"))
    };
    let task_sets = ["silver", "silver", "silver"].map(resolve_edited);
    assert!(task_sets[0].upgrade().is_some() && task_sets.iter().all(|task_set| task_set.ptr_eq(&task_sets[0])));
    for number in 0..100 {
        resolve_edited(&format!("tier-{number}"));
    }
    assert!(task_sets[0].upgrade().is_none(), "the cache stores only the latest results");
}

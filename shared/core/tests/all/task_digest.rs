//! The task digest. Version 1 stays the same byte for byte, because older stores have it. Version 2 also distinguishes
//! an untranslated task from one that runs.

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

fn build_fleet(documents: &[Value]) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|one| read_document(&one.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let mut fleet = Fleet::new();
    fleet.apply_all(compile_set(&specs, &SyntaxReader).expect("releases").into_values().map(FleetChange::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|one| FleetChange::Cluster(Arc::new(one))));
    fleet.apply_all(objects.groups.into_iter().map(|one| FleetChange::NodeGroup(Arc::new(one))));
    fleet.apply_all(objects.nodes.into_iter().map(|one| FleetChange::Node(Arc::new(one))));
    fleet.set_loaded();
    fleet
}

fn resolve_web_node(documents: &[Value]) -> Arc<ResolvedNode> {
    let fleet = build_fleet(documents);
    let node = fleet.node_by_name("web-1").expect("the node").id();
    Arc::clone(resolve_node(&fleet, &ResolveCache::new(), node).resolved_node().expect("an answer"))
}

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

fn translated_site() -> Vec<Value> {
    let mut site = site_manifests();
    site[0]["tasks"][4]["foreign"] = json!({"x": 1});
    site
}

/// Another program computed these values from the definitions in `digest`.
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

/// For a host whose task set was released under version 1, the digest alone does not show the edit.
#[test]
fn w01_untranslated_mark_changes_content_in_each_version() {
    for version in [DigestVersion::V1, DigestVersion::V2] {
        let content = |documents: &[Value]| ReleaseKey::from_resolved(&resolve_web_node(documents), version);
        assert_ne!(content(&site_manifests()), content(&translated_site()), "{version:?}");
        assert_eq!(content(&site_manifests()), content(&site_manifests()), "{version:?}");
    }
}

/// The edited fleet equals a fleet that is read again, as after a restart.
#[test]
fn w01_translated_task_runs_at_once() {
    let (mut fleet, edited) = (build_fleet(&site_manifests()), build_fleet(&translated_site()));
    let node = fleet.node_by_name("web-1").expect("the node").id();
    let name = "site".parse().expect("a release's name");
    let dirty = fleet.apply(FleetChange::Release(Arc::clone(edited.release(&name).expect("the release"))));
    assert!(dirty.nodes(&fleet).any(|reached| reached == node));
    let cache = ResolveCache::new();
    let state = |fleet: &Fleet| {
        let resolved_node = Arc::clone(resolve_node(fleet, &cache, node).resolved_node().expect("an answer"));
        let set = resolved_node.task_set().expect("tasks");
        let runs = set.profile.release.task_index("old").map(|ix| !set.profile.release.task(ix).task.is_untranslated());
        (runs, set.digest)
    };
    assert_eq!(state(&fleet).0, Some(true));
    assert_eq!(state(&fleet).1, resolve_web_node(&translated_site()).task_set().expect("tasks").digest);
}

#[test]
fn w01_release_name_differs_when_content_is_equal() {
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
    let name = |node: &str| {
        let node = fleet.node_by_name(node).expect("the node").id();
        let resolution = resolve_node(&fleet, &cache, node);
        resolution.resolved_node().and_then(|answer| answer.release()).map(|release| release.name.to_string())
    };
    assert_eq!((name("web-1"), name("web-2")), (Some("site".into()), Some("twin".into())));
}

/// Admission, response and publication of a write each resolve the edited node, each time from another copy.
#[test]
fn edited_task_set_is_shared_when_resolved_repeatedly() {
    let (fleet, cache) = (build_fleet(&site_manifests()), ResolveCache::new());
    let node = fleet.node_by_name("web-1").expect("the node");
    let resolve = |tier: &str| {
        let mut documents = site_manifests();
        documents[3]["labels"] = json!({"tier": tier});
        let mut edited = fleet.clone();
        let mut object = Object::clone(node);
        let source = build_fleet(&documents);
        object.spec = source.node_by_name("web-1").expect("the node").spec.clone();
        edited.apply(FleetChange::Node(Arc::new(object)));
        let resolution = resolve_node(&edited, &cache, node.id());
        Arc::downgrade(resolution.resolved_node().and_then(|answer| answer.task_set()).expect("tasks"))
    };
    let sets = ["silver", "silver", "silver"].map(resolve);
    assert!(sets[0].upgrade().is_some() && sets.iter().all(|set| set.ptr_eq(&sets[0])));
    for n in 0..100 {
        resolve(&format!("tier-{n}"));
    }
    assert!(sets[0].upgrade().is_none(), "only the last ones are kept");
}

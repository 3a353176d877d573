//! The task digest: version 1 to the byte, as stores of before have it, and what version 2 adds.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::digest::DigestVersion;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::Object;
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{Answer, ResolveCache, resolve_node};
use stemma_core::rollout::Content;

fn fleet(documents: &[Value]) -> Fleet {
    let documents: Vec<_> = documents.iter().map(|one| read_document(&one.to_string()).expect("a document")).collect();
    let objects = assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests");
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let mut fleet = Fleet::new();
    fleet.apply_all(compile_set(&specs, &Reader).expect("releases").into_values().map(Change::Release));
    fleet.apply_all(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
    fleet.apply_all(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
    fleet.apply_all(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
    fleet.set_loaded();
    fleet
}

fn answer(documents: &[Value]) -> Arc<Answer> {
    let fleet = fleet(documents);
    let node = fleet.node_named("web-1").expect("the node").id();
    Arc::clone(resolve_node(&fleet, &ResolveCache::new(), node).answer().expect("an answer"))
}

fn site() -> Vec<Value> {
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

fn translated() -> Vec<Value> {
    let mut site = site();
    site[0]["tasks"][4]["foreign"] = json!({"x": 1});
    site
}

/// The values were computed from the definitions in `digest`, by another program.
#[test]
fn w01_each_version_is_what_its_definition_says() {
    let set = |documents: &[Value], version| answer(documents).task_set().expect("tasks").task_digest(version);
    for (documents, version, digest) in [
        (site(), DigestVersion::V1, "11b2df7d90c92becf21e8d36245a3068cf23391d594dfc74c8a1ff2267b9dd7c"),
        (translated(), DigestVersion::V1, "11b2df7d90c92becf21e8d36245a3068cf23391d594dfc74c8a1ff2267b9dd7c"),
        (site(), DigestVersion::V2, "944229c054c3faab3757614d895414a1622da4d24c2737ad2df9c6d876e749de"),
        (translated(), DigestVersion::V2, "cdf1737123d0fa9367dca562149520cb8a9b473b3f458f64b9f6097366244f31"),
    ] {
        assert_eq!(set(&documents, version).to_string(), digest, "{version:?}");
    }
    assert_eq!(answer(&site()).task_set().map(|set| set.digest), Some(set(&site(), DigestVersion::NEWEST)));
}

/// For a host that was released to under version 1, the digest alone would not tell.
#[test]
fn w01_an_edit_of_the_mark_alone_is_another_content_under_each_version() {
    for version in [DigestVersion::V1, DigestVersion::V2] {
        let content = |documents: &[Value]| Content::of(&answer(documents), version);
        assert_ne!(content(&site()), content(&translated()), "{version:?}");
        assert_eq!(content(&site()), content(&site()), "{version:?}");
    }
}

/// As after a restart: a fleet that was edited is the fleet that is read anew.
#[test]
fn w01_a_task_that_is_translated_by_an_edit_runs_at_once() {
    let (mut fleet, edited) = (fleet(&site()), fleet(&translated()));
    let node = fleet.node_named("web-1").expect("the node").id();
    let name = "site".parse().expect("a release's name");
    let dirty = fleet.apply(Change::Release(Arc::clone(edited.release(&name).expect("the release"))));
    assert!(dirty.nodes(&fleet).any(|reached| reached == node));
    let cache = ResolveCache::new();
    let told = |fleet: &Fleet| {
        let answer = Arc::clone(resolve_node(fleet, &cache, node).answer().expect("an answer"));
        let set = answer.task_set().expect("tasks");
        let runs = set.profile.release.find("old").map(|ix| !set.profile.release.task(ix).task.is_untranslated());
        (runs, set.digest)
    };
    assert_eq!(told(&fleet).0, Some(true));
    assert_eq!(told(&fleet).1, answer(&translated()).task_set().expect("tasks").digest);
}

#[test]
fn w01_a_release_is_named_by_what_refers_to_it_and_not_by_its_content() {
    let mut documents = site();
    let mut twin = documents[0].clone();
    twin["name"] = "twin".into();
    documents.insert(1, twin);
    documents.extend([
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "twins", "roles": ["web"], "release": "twin"}),
        json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/twins"}),
    ]);
    let fleet = fleet(&documents);
    let cache = ResolveCache::new();
    let name = |node: &str| {
        let node = fleet.node_named(node).expect("the node").id();
        let answer = resolve_node(&fleet, &cache, node);
        answer.answer().and_then(|answer| answer.release()).map(|release| release.name.to_string())
    };
    assert_eq!((name("web-1"), name("web-2")), (Some("site".into()), Some("twin".into())));
}

/// A write is resolved by its admission, for its answer and when it is published, each time from an object of its own.
#[test]
fn a_small_edit_is_worked_out_once_for_all_who_resolve_it() {
    let (fleet, cache) = (fleet(&site()), ResolveCache::new());
    let node = fleet.node_named("web-1").expect("the node");
    let resolve = |tier: &str| {
        let mut documents = site();
        documents[3]["labels"] = json!({"tier": tier});
        let mut edited = fleet.clone();
        let mut object = Object::clone(node);
        let source = self::fleet(&documents);
        object.spec = source.node_named("web-1").expect("the node").spec.clone();
        edited.apply(Change::Node(Arc::new(object)));
        let answer = resolve_node(&edited, &cache, node.id());
        Arc::downgrade(answer.answer().and_then(|answer| answer.task_set()).expect("tasks"))
    };
    let sets = ["silver", "silver", "silver"].map(resolve);
    assert!(sets[0].upgrade().is_some() && sets.iter().all(|set| set.ptr_eq(&sets[0])));
    for n in 0..100 {
        resolve(&format!("tier-{n}"));
    }
    assert!(sets[0].upgrade().is_none(), "only the last ones are kept");
}

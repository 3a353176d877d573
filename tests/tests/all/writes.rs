//! Tests that the commit of each write of the endpoint table stores an object, its after-image (a copy of the object's
//! new value for the history), an audit event and a request record. A real listener receives the writes.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_wire::endpoint::{Endpoint, Method, RouteMatch, SocketKind, find_route};
use uuid::Uuid;

use crate::store_copy::StoreCopy;

/// Returns writes (method, path and body) that together call each endpoint of [`write_endpoint_names`], except
/// deletions of the objects of [`UNLISTED_CREATIONS`]. Each write needs only objects that earlier writes have created.
fn all_writes() -> Vec<(&'static str, String, Value)> {
    let mut writes = vec![
        ("POST", "/v1/releases".into(), release_body()),
        ("PATCH", "/v1/releases/site@1".into(), json!({"labels": {"stage": "one"}})),
        ("POST", "/v1/releases/site@1/tags".into(), json!({"name": "second"})),
        ("PUT", "/v1/releases/site@1/tags/second".into(), json!({"has_primary": true})),
        ("DELETE", "/v1/releases/site@1/tags/second".into(), Value::Null),
        ("POST", "/v1/clustertemplates".into(), json!({"name": "base", "release": "site@1"})),
        ("PATCH", "/v1/clustertemplates/base".into(), json!({"labels": {"stage": "one"}})),
        ("POST", "/v1/clusters".into(), json!({"name": "prod", "cluster_template": "base"})),
        ("PATCH", "/v1/clusters/prod".into(), json!({"labels": {"stage": "one"}})),
        ("POST", "/v1/clustertemplates".into(), json!({"name": "next", "release": "site@1"})),
        ("POST", "/v1/clusters/prod/actions/upgrade".into(), json!({"cluster_template": "next"})),
        ("POST", "/v1/clusters/prod/tags".into(), json!({"name": "own"})),
        ("PUT", "/v1/clusters/prod/tags/own".into(), json!({"has_primary": true})),
        ("DELETE", "/v1/clusters/prod/tags/own".into(), Value::Null),
        ("PUT", "/v1/clusters/prod/roles".into(), json!({"roles": {"web": {"add_tags": ["other"]}}})),
        ("POST", "/v1/clusters/prod/nodegroups".into(), json!({"name": "web"})),
        ("PATCH", "/v1/clusters/prod/nodegroups/web".into(), json!({"labels": {"stage": "one"}})),
        ("POST", "/v1/nodes".into(), json!({"name": "web-1", "resource_class": "small"})),
        ("PATCH", "/v1/nodes/web-1".into(), json!({"nodegroup": "prod/web"})),
        ("PUT", "/v1/nodes/web-1/traits".into(), json!({"traits": ["CUSTOM_A"]})),
        ("PUT", "/v1/nodes/web-1/traits/CUSTOM_B".into(), Value::Null),
        ("DELETE", "/v1/nodes/web-1/traits/CUSTOM_B".into(), Value::Null),
        ("DELETE", "/v1/nodes/web-1/traits".into(), Value::Null),
        ("POST", "/v1/nodes/web-1/roles".into(), json!({"roles": ["web"]})),
        ("DELETE", "/v1/nodes/web-1/roles".into(), json!({"roles": ["web"]})),
        ("PUT", "/v1/nodes/web-1/roles".into(), json!({"roles": ["web"]})),
        ("POST", "/v1/nodes/web-1/tags".into(), json!({"assign": ["other"]})),
        ("DELETE", "/v1/nodes/web-1/tags".into(), json!({"tags": ["other"]})),
        ("PUT", "/v1/nodes/web-1/tags/other".into(), Value::Null),
        ("DELETE", "/v1/nodes/web-1/tags/other".into(), Value::Null),
    ];
    writes.extend(allocation_writes());
    writes.extend(primary_writes());
    writes.extend(catalogue_writes());
    writes.extend(inspection_writes());
    writes.extend(principal_writes());
    let levels = [
        ("/v1/releases/site@1", false),
        ("/v1/clustertemplates/base", true),
        ("/v1/clusters/prod", true),
        ("/v1/clusters/prod/nodegroups/web", true),
        ("/v1/nodes/web-1", true),
    ];
    writes.extend(levels.into_iter().flat_map(|(object, has_owners)| label_writes(object, has_owners)));
    writes.extend([
        ("POST", "/v1/apply".into(), json!({"objects": [{"kind": "Node", "name": "web-2"}, {"kind": "Node", "name": "web-1"}]})),
        ("POST", "/v1/join-tokens".into(), json!({})),
        ("DELETE", "/v1/nodes/web-2".into(), Value::Null),
        ("DELETE", "/v1/nodes/web-1".into(), Value::Null),
        ("DELETE", "/v1/clusters/prod/nodegroups/web".into(), Value::Null),
        ("DELETE", "/v1/clusters/prod".into(), Value::Null),
        ("DELETE", "/v1/clustertemplates/base".into(), Value::Null),
        ("DELETE", "/v1/clustertemplates/next".into(), Value::Null),
        ("DELETE", "/v1/releases/site@1".into(), Value::Null),
    ]);
    writes
}

/// The names in `all_writes` that get a suffix in [`writes_with_suffix`].
const OBJECT_NAMES: [&str; 19] = [
    "site", "base", "next", "prod", "web", "web-1", "web-2", "ada", "bob", "a1", "a2", "a3", "r1", "r2", "N", "small", "pair",
    "p1", "p2",
];

/// The API path of inspection rules.
pub(crate) const RULES_PATH: &str = "/v1/inspection_rules";

/// Returns the writes of [`all_writes`] for other objects: a hyphen and `suffix` are appended to each name. If tests
/// run several writers at once, only one of them may write inspection rules, because one of the writes deletes all
/// rules.
pub(crate) fn writes_with_suffix(suffix: &str, may_write_rules: bool) -> Vec<(&'static str, String, Value)> {
    let writes = all_writes().into_iter().filter(|(_, path, _)| may_write_rules || !path.starts_with(RULES_PATH));
    writes.map(|(method, path, body)| (method, add_suffix(&path, suffix), add_suffix_to_body(body, suffix))).collect()
}

/// Appends a hyphen and `suffix` to each part of a path that is one of [`OBJECT_NAMES`]. The parts are separated by `/`
/// or `@`.
fn add_suffix(text: &str, suffix: &str) -> String {
    let parts = text.split_inclusive(['/', '@']).map(|part| {
        let name = part.trim_end_matches(['/', '@']);
        if OBJECT_NAMES.contains(&name) { format!("{name}-{suffix}{}", &part[name.len()..]) } else { part.to_owned() }
    });
    parts.collect()
}

/// Appends a hyphen and `suffix` to the object names in a JSON value, also to those in keys.
fn add_suffix_to_body(body: Value, suffix: &str) -> Value {
    match body {
        Value::String(text) => add_suffix(&text, suffix).into(),
        Value::Array(values) => values.into_iter().map(|value| add_suffix_to_body(value, suffix)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (add_suffix(&key, suffix), add_suffix_to_body(value, suffix))).collect()
        }
        other => other,
    }
}

/// Returns writes of allocations, maintenance and provision state, as Ironic's clients make them.
fn allocation_writes() -> Vec<(&'static str, String, Value)> {
    let allocation = |name| json!({"name": name, "resource_class": "small"});
    vec![
        ("POST", "/v1/allocations".into(), allocation("a1")),
        ("PATCH", "/v1/allocations/a1".into(), json!({"name": "a2"})),
        ("DELETE", "/v1/allocations/a2".into(), Value::Null),
        ("POST", "/v1/allocations".into(), allocation("a3")),
        ("DELETE", "/v1/nodes/web-1/allocation".into(), Value::Null),
        ("PUT", "/v1/nodes/web-1/maintenance".into(), json!({"reason": "a disk is changed"})),
        ("DELETE", "/v1/nodes/web-1/maintenance".into(), Value::Null),
        ("PUT", "/v1/nodes/web-1/states/provision".into(), json!({"target": "active"})),
    ]
}

/// Returns writes that create two nodes with a tag that has a primary, and choose the second node as the primary. The
/// last writes delete these objects.
fn primary_writes() -> Vec<(&'static str, String, Value)> {
    let node = |name| json!({"kind": "Node", "name": name, "nodegroup": "pair/web", "tags": {"assigned": ["lead"]}});
    let tags = json!({"lead": {"has_primary": true}});
    let objects = json!([
        {"kind": "Cluster", "name": "pair", "cluster_template": "base", "tags": tags},
        {"kind": "NodeGroup", "cluster": "pair", "name": "web"},
        node("p1"),
        node("p2"),
    ]);
    vec![
        ("POST", "/v1/apply".into(), json!({"objects": objects})),
        ("PUT", "/v1/clusters/pair/primaries/lead".into(), json!({"node": "p2"})),
        ("DELETE", "/v1/nodes/p1".into(), Value::Null),
        ("DELETE", "/v1/nodes/p2".into(), Value::Null),
        ("DELETE", "/v1/clusters/pair".into(), Value::Null),
    ]
}

/// Returns the writes of inspection rules (Ironic's rules that change a node when its host reports).
fn inspection_writes() -> Vec<(&'static str, String, Value)> {
    let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
    vec![
        ("POST", "/v1/inspection_rules".into(), json!({"name": "r1", "actions": actions.clone()})),
        ("PATCH", "/v1/inspection_rules/r1".into(), json!({"priority": 7})),
        ("DELETE", "/v1/inspection_rules/r1".into(), Value::Null),
        ("POST", "/v1/inspection_rules".into(), json!({"name": "r2", "sensitive": true, "actions": actions})),
        ("DELETE", "/v1/inspection_rules".into(), Value::Null),
    ]
}

/// Returns the writes of principals: two are created, and one of them gets a certificate and a token. The last write
/// records a backup.
fn principal_writes() -> Vec<(&'static str, String, Value)> {
    vec![
        ("POST", "/v1/principals".into(), json!({"name": "ada", "role": "viewer"})),
        ("PATCH", "/v1/principals/ada".into(), json!({"role": "operator", "cluster": "prod"})),
        ("POST", "/v1/certificates".into(), json!({"principal": "ada", "csr": CSR})),
        ("POST", "/v1/principals/ada/tokens".into(), json!({})),
        ("POST", "/v1/principals".into(), json!({"name": "bob", "role": "viewer"})),
        ("DELETE", "/v1/principals/bob".into(), Value::Null),
        ("PATCH", "/v1/principals/ada".into(), json!({"cluster": null})),
        ("POST", "/v1/backups".into(), json!({"revision": 1, "bytes": 1, "encrypted": false})),
    ]
}

/// A certificate request with a key that nobody has.
const CSR: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIG5MGICAQAwADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJcRfpksiRc38wZp
mak8CX3v5olPic+W6ttv1PmBhBK23ptuLgodka4rlMuSSX8v2BXDGSfmJHhkDirp
9TJZxsOgADAKBggqhkjOPQQDAgNHADBEAiEAg2duJzsv/i1V8+EcpOn0iKKBPUn/
B6QGCxCS7Vk/z0QCH1b6m4tRot1J48RC+IDycO4H2FIgm8C4MySAWiBOUys=
-----END CERTIFICATE REQUEST-----
";

/// Returns the writes of a namespace of the catalogue (Glance's metadata definitions), with everything that a namespace
/// can contain.
fn catalogue_writes() -> Vec<(&'static str, String, Value)> {
    let path = |suffix: &str| format!("/v2/metadefs/namespaces/N{suffix}");
    let property = |title: &str| json!({"name": "p", "title": title, "type": "string"});
    vec![
        ("POST", "/v2/metadefs/namespaces".into(), json!({"namespace": "N"})),
        ("PUT", path(""), json!({"namespace": "N", "display_name": "Site"})),
        ("POST", path("/properties"), property("P")),
        ("PUT", path("/properties/p"), property("Q")),
        ("DELETE", path("/properties/p"), Value::Null),
        ("POST", path("/properties"), property("P")),
        ("DELETE", path("/properties"), Value::Null),
        ("POST", path("/objects"), json!({"name": "o"})),
        ("PUT", path("/objects/o"), json!({"name": "o", "description": "x"})),
        ("DELETE", path("/objects/o"), Value::Null),
        ("POST", path("/objects"), json!({"name": "o"})),
        ("DELETE", path("/objects"), Value::Null),
        ("POST", path("/tags"), json!({"tags": [{"name": "t"}]})),
        ("POST", path("/tags/u"), Value::Null),
        ("PUT", path("/tags/u"), json!({"name": "v"})),
        ("DELETE", path("/tags/v"), Value::Null),
        ("DELETE", path("/tags"), Value::Null),
        ("POST", path("/resource_types"), json!({"name": "OS::Nova::Server"})),
        ("DELETE", path("/resource_types/OS::Nova::Server"), Value::Null),
        ("DELETE", path(""), Value::Null),
    ]
}

fn release_body() -> Value {
    json!({"name": "site", "version": "1", "roles": {"web": {"tags": ["first"]}}, "tags": {"first": {}, "other": {}}, "tasks": []})
}

/// Returns the writes of an object's labels. If `has_owners` is true, each label has owners, and the writes of owners
/// and tombstones are included.
fn label_writes(object: &str, has_owners: bool) -> Vec<(&'static str, String, Value)> {
    let mut writes = vec![
        ("PUT", format!("{object}/labels"), json!({"labels": {"a": "b"}})),
        ("PATCH", format!("{object}/labels"), json!({"c": "d"})),
    ];
    if has_owners {
        let owners = json!({"from": "admin", "to": "other", "keys": ["c"]});
        writes.push(("POST", format!("{object}/labels/owners"), owners));
        writes.push(("POST", format!("{object}/labels/tombstones"), json!({"keys": ["z"]})));
    }
    writes
}

/// Endpoints that create an object whose path only the answer contains. [`all_writes`] cannot contain the deletion of
/// such an object, because it lists paths that are known in advance.
pub(crate) const UNLISTED_CREATIONS: [Endpoint; 3] =
    [Endpoint::CreateToken, Endpoint::IssueCertificate, Endpoint::CreateBearerToken];

/// Writing endpoints that these tests omit, each with the reason.
const EXCLUDED_ENDPOINTS: [(Endpoint, &str); 6] = [
    (Endpoint::PutBlob, "a blob is a file next to the store, under its own name"),
    (Endpoint::OwnersRelease, "the maps of a release have one owner together, so this is always refused"),
    (
        Endpoint::ResumeFleet,
        "if no host is ahead of the store, this write stores only its request record, and otherwise the first one would resume all: \
         `restored.rs` and `backup.rs` check what this write stores, without kills",
    ),
    (Endpoint::ResizeCluster, "a cluster is never resized, so this is always refused"),
    (
        Endpoint::RebootNode,
        "no host of these tests is connected, so this is always refused: tests of the controller check what it stores",
    ),
    (
        Endpoint::RefreshNodeRoles,
        "these tests have no extension that adds tags to a role: `extensions.rs` checks what this write stores, without kills",
    ),
];

/// Returns the names of all operators' endpoints that write into the store, except [`EXCLUDED_ENDPOINTS`].
pub(crate) fn write_endpoint_names() -> BTreeSet<&'static str> {
    let is_write =
        |endpoint: &&Endpoint| endpoint.route().listener == SocketKind::Admin && endpoint.route().method != Method::Get;
    let writes = Endpoint::ALL
        .iter()
        .filter(is_write)
        .filter(|endpoint| !EXCLUDED_ENDPOINTS.iter().any(|(excluded, _)| excluded == *endpoint));
    writes.map(|endpoint| endpoint.name()).collect()
}

/// Returns the operators' endpoint with this method and path.
pub(crate) fn find_endpoint(method: &str, path: &str) -> Result<Endpoint> {
    match find_route(SocketKind::Admin, method, path) {
        RouteMatch::Route(endpoint, _) => Ok(endpoint),
        RouteMatch::MethodNotAllowed(_) | RouteMatch::NotFound => anyhow::bail!("{method} {path} is not an endpoint"),
    }
}

/// Checks the commit of a write: the request record has this status and this revision, and an audit event names the
/// principal and the loopback address. The event must name objects, except for a write of join tokens or backups.
pub(crate) fn check_commit(stored: &StoreCopy, write: &OperatorWrite, status: u16, revision: u64) -> Result<()> {
    let (record, actual_revision) = stored.request_record("admin", write.key).context("no record of the request")?;
    ensure!(
        (record.answer.status, *actual_revision) == (status, revision),
        "{} at {actual_revision}, not {status} at {revision}",
        record.answer.status
    );
    let event = stored.audit_event(revision).context("no audit event")?;
    ensure!((event.principal.as_str(), event.address.starts_with("127.0.0.1:")) == ("admin", true), "{event:?}");
    // A token is not an object, and neither is a backup.
    let has_no_object = ["/v1/join-tokens", "/v1/backups"].iter().any(|path| write.path.starts_with(path));
    ensure!(event.objects.is_empty() == has_no_object, "{event:?}");
    Ok(())
}

/// Makes each write of the endpoint table, and sends each twice. Checks that each write has one commit: the object, its
/// after-image (the value after the commit), an audit event and a request record.
#[test]
fn w15_01_w15_02_write_leaves_object_image_event_and_request_record() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let (mut writes, mut tried_endpoints) = (Vec::new(), BTreeSet::new());
    for (number, (method, path, body)) in (1..).zip(all_writes()) {
        tried_endpoints.insert(find_endpoint(method, &path)?.name());
        let write = OperatorWrite { method, path, body, key: Uuid::from_u128(number) };
        writes.push(write_twice(&mut operator, write)?);
    }
    // Deletes the objects whose path only the answer contains. Numbers from 1000 on are idempotency keys that no write
    // has yet.
    for (number, endpoint) in (1000..).zip(UNLISTED_CREATIONS) {
        let is_match = |write: &OperatorWrite| {
            find_endpoint(write.method, &write.path).is_ok_and(|found_endpoint| found_endpoint == endpoint)
        };
        let key = writes.iter().find_map(|(write, ..)| is_match(write).then_some(write.key));
        let path = created_location(&mut operator, key.with_context(|| endpoint.name())?)?;
        tried_endpoints.insert(find_endpoint("DELETE", &path)?.name());
        let write = OperatorWrite { method: "DELETE", path, body: Value::Null, key: Uuid::from_u128(number) };
        writes.push(write_twice(&mut operator, write)?);
    }
    let expected_endpoints = write_endpoint_names();
    ensure!(
        tried_endpoints == expected_endpoints,
        "not tried here: {:?}",
        expected_endpoints.difference(&tried_endpoints).collect::<Vec<_>>()
    );
    fleet.stop_controller()?;
    let stored = StoreCopy::copy_from(&fleet.data())?;
    for (write, status, revision) in &writes {
        check_commit(&stored, write, *status, *revision).with_context(|| format!("{} {}", write.method, write.path))?;
    }
    ensure!(stored.commit_count("admin") == writes.len(), "{} commits of {} writes", stored.commit_count("admin"), writes.len());
    stored.check()
}

/// Returns the path of the object that a write created, from the request record with this key.
pub(crate) fn created_location(operator: &mut OperatorClient, key: Uuid) -> Result<String> {
    let (_, record) = operator.get(&format!("/v1/requests/{key}"))?;
    Ok(record["location"].as_str().with_context(|| record.to_string())?.to_owned())
}

/// Sends a write, reads its request record, and sends the write again. The write must take effect only once. Returns
/// the write, its status and its store revision.
pub(crate) fn write_twice(operator: &mut OperatorClient, write: OperatorWrite) -> Result<(OperatorWrite, u16, u64)> {
    let request = format!("{} {}", write.method, write.path);
    let (status, body) = operator.write(&write)?;
    ensure!((200..300).contains(&status), "{request}: {status} {body}");
    let path = format!("/v1/requests/{}", write.key);
    let (_, record) = operator.get(&path)?;
    let revision = record["revision"].as_u64().with_context(|| format!("{request}: {record}"))?;
    let (second_status, _) = operator.write(&write)?;
    let (_, second_record) = operator.get(&path)?;
    ensure!(
        second_status == status && second_record == record,
        "{request}: the second time, {second_status} and {second_record}"
    );
    Ok((write, status, revision))
}

/// The changes that the answer to a write must list. [`expected_changes`] adds those of labels and of the principal
/// `ada`. Creations are not included, because their answer is the new object.
const EXPECTED_CHANGES: &[(&str, &str)] = &[
    ("PATCH /v1/releases/site@1", r#"[{"field": "labels.stage", "new": "one"}]"#),
    ("POST /v1/releases/site@1/tags", r#"[{"field": "tags.second", "new": {}}]"#),
    ("PUT /v1/releases/site@1/tags/second", r#"[{"field": "tags.second.has_primary", "new": true}]"#),
    ("DELETE /v1/releases/site@1/tags/second", r#"[{"field": "tags.second.has_primary", "old": true}]"#),
    ("PATCH /v1/clustertemplates/base", r#"[{"field": "labels.stage", "new": "one"}, {"field": "merge_labels", "new": true}]"#),
    ("PATCH /v1/clusters/prod", r#"[{"field": "labels.stage", "new": "one"}, {"field": "merge_labels", "new": true}]"#),
    ("POST /v1/clusters/prod/actions/upgrade", r#"[{"field": "cluster_template", "old": "base", "new": "next"}]"#),
    ("POST /v1/clusters/prod/tags", r#"[{"field": "tags.own", "new": {}}]"#),
    ("PUT /v1/clusters/prod/tags/own", r#"[{"field": "tags.own.has_primary", "new": true}]"#),
    ("DELETE /v1/clusters/prod/tags/own", r#"[{"field": "tags.own.has_primary", "old": true}]"#),
    ("PUT /v1/clusters/prod/roles", r#"[{"field": "roles.web.add_tags", "new": ["other"]}]"#),
    (
        "PATCH /v1/clusters/prod/nodegroups/web",
        r#"[{"field": "labels.stage", "new": "one"}, {"field": "merge_labels", "new": true}]"#,
    ),
    ("PATCH /v1/nodes/web-1", r#"[{"field": "nodegroup", "new": "prod/web"}]"#),
    ("PUT /v1/nodes/web-1/traits", r#"[{"field": "traits", "old": [], "new": ["CUSTOM_A"]}]"#),
    ("PUT /v1/nodes/web-1/traits/CUSTOM_B", r#"[{"field": "traits", "old": ["CUSTOM_A"], "new": ["CUSTOM_A", "CUSTOM_B"]}]"#),
    ("DELETE /v1/nodes/web-1/traits/CUSTOM_B", r#"[{"field": "traits", "old": ["CUSTOM_A", "CUSTOM_B"], "new": ["CUSTOM_A"]}]"#),
    ("DELETE /v1/nodes/web-1/traits", r#"[{"field": "traits", "old": ["CUSTOM_A"], "new": []}]"#),
    (
        "POST /v1/nodes/web-1/roles",
        r#"[{"field": "roles", "new": ["web"]}, {"field": "tags.effective", "old": [], "new": ["first", "other"]}]"#,
    ),
    (
        "DELETE /v1/nodes/web-1/roles",
        r#"[{"field": "roles", "old": ["web"]}, {"field": "tags.effective", "old": ["first", "other"], "new": []}]"#,
    ),
    (
        "PUT /v1/nodes/web-1/roles",
        r#"[{"field": "roles", "new": ["web"]}, {"field": "tags.effective", "old": [], "new": ["first", "other"]}]"#,
    ),
    ("POST /v1/nodes/web-1/tags", r#"[{"field": "tags.assigned", "old": [], "new": ["other"]}]"#),
    (
        "DELETE /v1/nodes/web-1/tags",
        r#"[{"field": "tags.assigned", "old": ["other"], "new": []}, {"field": "tags.effective", "old": ["first", "other"], "new": ["first"]}, {"field": "tags.unassigned", "old": [], "new": ["other"]}]"#,
    ),
    (
        "PUT /v1/nodes/web-1/tags/other",
        r#"[{"field": "tags.effective", "old": ["first"], "new": ["first", "other"]}, {"field": "tags.unassigned", "old": ["other"], "new": []}]"#,
    ),
    (
        "DELETE /v1/nodes/web-1/tags/other",
        r#"[{"field": "tags.effective", "old": ["first", "other"], "new": ["first"]}, {"field": "tags.unassigned", "old": [], "new": ["other"]}]"#,
    ),
    ("PATCH /v1/allocations/a1", r#"[{"field": "name", "old": "a1", "new": "a2"}]"#),
    ("DELETE /v1/allocations/a2", r#"[{"field": "name", "old": "a2"}, {"field": "resource_class", "old": "small"}]"#),
    ("DELETE /v1/nodes/web-1/allocation", r#"[{"field": "name", "old": "a3"}, {"field": "resource_class", "old": "small"}]"#),
    (
        "PUT /v1/nodes/web-1/maintenance",
        r#"[{"field": "maintenance_reason", "new": "a disk is changed"}, {"field": "parked", "new": true}]"#,
    ),
    (
        "DELETE /v1/nodes/web-1/maintenance",
        r#"[{"field": "maintenance_reason", "old": "a disk is changed"}, {"field": "parked", "old": true}]"#,
    ),
    ("PUT /v1/clusters/pair/primaries/lead", r#"[{"field": "primaries.lead", "old": "p1", "new": "p2"}]"#),
    (
        "DELETE /v1/nodes/p1",
        r#"[{"field": "name", "old": "p1"}, {"field": "nodegroup", "old": "pair/web"}, {"field": "tags.assigned", "old": ["lead"]}, {"field": "tags.effective", "old": ["lead"]}]"#,
    ),
    (
        "DELETE /v1/nodes/p2",
        r#"[{"field": "name", "old": "p2"}, {"field": "nodegroup", "old": "pair/web"}, {"field": "tags.assigned", "old": ["lead"]}, {"field": "tags.effective", "old": ["lead"]}]"#,
    ),
    (
        "DELETE /v1/clusters/pair",
        r#"[{"field": "cluster_template", "old": "base"}, {"field": "name", "old": "pair"}, {"field": "tags.lead.has_primary", "old": true}]"#,
    ),
    ("PATCH /v1/inspection_rules/r1", r#"[{"field": "priority", "old": 0, "new": 7}]"#),
    (
        "DELETE /v1/inspection_rules/r1",
        r#"[{"field": "actions", "old": [{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]}, {"field": "name", "old": "r1"}, {"field": "priority", "old": 7}]"#,
    ),
    (
        "DELETE /v1/inspection_rules",
        r#"[{"field": "inspection_rules.r2.name", "old": "r2"}, {"field": "inspection_rules.r2.priority", "old": 0}, {"field": "inspection_rules.r2.sensitive", "old": true}]"#,
    ),
    ("DELETE /v1/principals/bob", r#"[{"field": "role", "old": "viewer"}]"#),
    ("PUT /v1/nodes/web-1/states/provision", r#"[{"field": "provision_state", "new": "active"}]"#),
    ("DELETE /v1/nodes/web-2", r#"[{"field": "name", "old": "web-2"}]"#),
    (
        "DELETE /v1/nodes/web-1",
        r#"[{"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "labels.z", "old": null}, {"field": "merge_labels", "old": true}, {"field": "name", "old": "web-1"}, {"field": "nodegroup", "old": "prod/web"}, {"field": "provision_state", "old": "active"}, {"field": "resource_class", "old": "small"}, {"field": "roles", "old": ["web"]}, {"field": "tags.effective", "old": ["first"]}, {"field": "tags.unassigned", "old": ["other"]}]"#,
    ),
    (
        "DELETE /v1/clusters/prod/nodegroups/web",
        r#"[{"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "labels.z", "old": null}, {"field": "merge_labels", "old": true}, {"field": "name", "old": "web"}]"#,
    ),
    (
        "DELETE /v1/clusters/prod",
        r#"[{"field": "cluster_template", "old": "next"}, {"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "labels.z", "old": null}, {"field": "merge_labels", "old": true}, {"field": "name", "old": "prod"}, {"field": "roles.web.add_tags", "old": ["other"]}]"#,
    ),
    (
        "DELETE /v1/clustertemplates/base",
        r#"[{"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "labels.z", "old": null}, {"field": "merge_labels", "old": true}, {"field": "name", "old": "base"}, {"field": "release", "old": "site@1"}]"#,
    ),
    ("DELETE /v1/clustertemplates/next", r#"[{"field": "name", "old": "next"}, {"field": "release", "old": "site@1"}]"#),
    (
        "DELETE /v1/releases/site@1",
        r#"[{"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "name", "old": "site@1"}, {"field": "roles.web.tags", "old": ["first"]}]"#,
    ),
];

/// Returns the changes that the answer to a write must list. Returns `None` if the answer must have no list of changes:
/// for a creation of an object other than a tag, for an apply, and for each write of the catalogue.
fn expected_changes(method: &str, path: &str, body: &Value) -> Result<Option<Value>> {
    let creations = [
        "/v1/apply",
        "/v1/join-tokens",
        "/v1/backups",
        "/releases",
        "/clustertemplates",
        "/clusters",
        "/nodegroups",
        "/nodes",
        "/allocations",
        "/inspection_rules",
        "/principals",
        "/certificates",
        "/tokens",
    ];
    // The catalogue answers with Glance's bodies, which do not list changes.
    if path.starts_with("/v2/") || method == "POST" && creations.iter().any(|end| path.ends_with(end)) {
        return Ok(None);
    }
    if (method, path) == ("PATCH", "/v1/principals/ada") {
        return Ok(Some(match body.get("role") {
            Some(_) => {
                json!([{"field": "cluster", "new": "prod"}, {"field": "role", "old": "viewer", "new": "operator"}])
            }
            None => json!([{"field": "cluster", "old": "prod"}]),
        }));
    }
    // For a node, the `PUT` of labels is the first write of labels. For the other objects, the `PUT` removes the label
    // `stage`.
    let second_change = if path.starts_with("/v1/nodes") {
        json!({"field": "merge_labels", "new": true})
    } else {
        json!({"field": "labels.stage", "old": "one"})
    };
    Ok(Some(match (method, path.split_once("/labels").map(|(_, rest)| rest)) {
        ("PUT", Some("")) => json!([{"field": "labels.a", "new": "b"}, second_change]),
        ("PATCH", Some("")) => json!([{"field": "labels.c", "new": "d"}]),
        ("POST", Some("/owners")) => json!([{"field": "owners", "old": ["admin:update"], "new": ["other:update"]}]),
        ("POST", Some("/tombstones")) => json!([{"field": "labels.z", "new": null}]),
        _ => {
            let name = format!("{method} {path}");
            let row = EXPECTED_CHANGES.iter().find(|(write, _)| *write == name);
            serde_json::from_str(row.with_context(|| format!("{name} has no expected changes"))?.1)?
        }
    }))
}

/// Makes each write first as a dry run, and then as a real write. Both answers must list the expected changes.
#[test]
fn w06_write_shows_old_and_new_values_also_in_dry_run() -> Result<()> {
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let prefer = [("prefer", "return=representation")];
    for (number, (method, path, body)) in (1..).zip(all_writes()) {
        let request = format!("{method} {path}");
        // The dry run has another idempotency key than the write after it.
        let dry_run = OperatorWrite {
            method,
            path: format!("{path}?dry_run=true"),
            body: body.clone(),
            key: Uuid::from_u128(1000 + number),
        };
        let (status, dry_run) = operator.write_with(&dry_run, &prefer)?;
        ensure!((200..300).contains(&status), "{request}, dry run: {status} {dry_run}");
        let write = OperatorWrite { method, path, body, key: Uuid::from_u128(number) };
        let (status, answer) = operator.write_with(&write, &prefer)?;
        ensure!((200..300).contains(&status), "{request}: {status} {answer}");
        let expected = expected_changes(method, &write.path, &write.body)?;
        ensure!(answer.get("changes") == expected.as_ref(), "{request}: {} is not {expected:?}", answer["changes"]);
        ensure!(dry_run.get("changes") == expected.as_ref(), "{request}, dry run: {} is not {expected:?}", dry_run["changes"]);
    }
    Ok(())
}

//! What a commit leaves in the store, for every write that the endpoint table has, over the real listener: object, after-image, audit
//! event and request record, together.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::{Operator, Write};
use stemma_wire::endpoint::{Endpoint, Found, Listener, Method, find};
use uuid::Uuid;

use crate::stored::Stored;

/// Every write once, in an order in which each finds what it needs. One that is added to the endpoint table belongs here too.
fn writes() -> Vec<(&'static str, String, Value)> {
    let mut all = vec![
        ("POST", "/v1/releases".into(), release()),
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
    all.extend(uses());
    all.extend(primaries());
    all.extend(catalogued());
    all.extend(inspected());
    all.extend(let_in());
    let levels = [
        ("/v1/releases/site@1", false),
        ("/v1/clustertemplates/base", true),
        ("/v1/clusters/prod", true),
        ("/v1/clusters/prod/nodegroups/web", true),
        ("/v1/nodes/web-1", true),
    ];
    all.extend(levels.into_iter().flat_map(|(object, has_owners)| map_writes(object, has_owners)));
    all.extend([
        (
            "POST",
            "/v1/apply".into(),
            json!({"objects": [{"kind": "Node", "name": "web-2"}, {"kind": "Node", "name": "web-1"}]}),
        ),
        ("POST", "/v1/join-tokens".into(), json!({})),
        ("DELETE", "/v1/nodes/web-2".into(), Value::Null),
        ("DELETE", "/v1/nodes/web-1".into(), Value::Null),
        ("DELETE", "/v1/clusters/prod/nodegroups/web".into(), Value::Null),
        ("DELETE", "/v1/clusters/prod".into(), Value::Null),
        ("DELETE", "/v1/clustertemplates/base".into(), Value::Null),
        ("DELETE", "/v1/clustertemplates/next".into(), Value::Null),
        ("DELETE", "/v1/releases/site@1".into(), Value::Null),
    ]);
    all
}

/// What `writes` names: objects, their roles and resource class.
const NAMES: [&str; 19] = [
    "site", "base", "next", "prod", "web", "web-1", "web-2", "ada", "bob", "a1", "a2", "a3", "r1", "r2", "N", "small",
    "pair", "p1", "p2",
];

/// Where inspection rules stand.
pub(crate) const RULES: &str = "/v1/inspection_rules";

/// The same writes on objects of somebody's own: each name goes on with `-own`. All rules are deleted at once, whoever made them, so that
/// of several who write one alone may write rules.
pub(crate) fn writes_on(own: &str, writes_rules: bool) -> Vec<(&'static str, String, Value)> {
    let all = writes().into_iter().filter(|(_, path, _)| writes_rules || !path.starts_with(RULES));
    all.map(|(method, path, body)| (method, named(&path, own), named_in(body, own))).collect()
}

fn named(text: &str, own: &str) -> String {
    let parts = text.split_inclusive(['/', '@']).map(|part| {
        let name = part.trim_end_matches(['/', '@']);
        if NAMES.contains(&name) { format!("{name}-{own}{}", &part[name.len()..]) } else { part.to_owned() }
    });
    parts.collect()
}

fn named_in(body: Value, own: &str) -> Value {
    match body {
        Value::String(text) => named(&text, own).into(),
        Value::Array(values) => values.into_iter().map(|value| named_in(value, own)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (named(&key, own), named_in(value, own))).collect()
        }
        other => other,
    }
}

/// A node is allocated, used and set aside, as Ironic's clients do it.
fn uses() -> Vec<(&'static str, String, Value)> {
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

/// Two nodes that could hold a tag as primary, of which the second one is chosen.
fn primaries() -> Vec<(&'static str, String, Value)> {
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

/// An inspection rule.
fn inspected() -> Vec<(&'static str, String, Value)> {
    let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]);
    vec![
        ("POST", "/v1/inspection_rules".into(), json!({"name": "r1", "actions": actions.clone()})),
        ("PATCH", "/v1/inspection_rules/r1".into(), json!({"priority": 7})),
        ("DELETE", "/v1/inspection_rules/r1".into(), Value::Null),
        ("POST", "/v1/inspection_rules".into(), json!({"name": "r2", "sensitive": true, "actions": actions})),
        ("DELETE", "/v1/inspection_rules".into(), Value::Null),
    ]
}

/// A principal with a certificate and a token.
fn let_in() -> Vec<(&'static str, String, Value)> {
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

/// A request for a certificate, of a key that nobody has.
const CSR: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIG5MGICAQAwADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJcRfpksiRc38wZp
mak8CX3v5olPic+W6ttv1PmBhBK23ptuLgodka4rlMuSSX8v2BXDGSfmJHhkDirp
9TJZxsOgADAKBggqhkjOPQQDAgNHADBEAiEAg2duJzsv/i1V8+EcpOn0iKKBPUn/
B6QGCxCS7Vk/z0QCH1b6m4tRot1J48RC+IDycO4H2FIgm8C4MySAWiBOUys=
-----END CERTIFICATE REQUEST-----
";

/// A namespace of the catalogue with all that can stand in one.
fn catalogued() -> Vec<(&'static str, String, Value)> {
    let at = |below: &str| format!("/v2/metadefs/namespaces/N{below}");
    let property = |title: &str| json!({"name": "p", "title": title, "type": "string"});
    vec![
        ("POST", "/v2/metadefs/namespaces".into(), json!({"namespace": "N"})),
        ("PUT", at(""), json!({"namespace": "N", "display_name": "Site"})),
        ("POST", at("/properties"), property("P")),
        ("PUT", at("/properties/p"), property("Q")),
        ("DELETE", at("/properties/p"), Value::Null),
        ("POST", at("/properties"), property("P")),
        ("DELETE", at("/properties"), Value::Null),
        ("POST", at("/objects"), json!({"name": "o"})),
        ("PUT", at("/objects/o"), json!({"name": "o", "description": "x"})),
        ("DELETE", at("/objects/o"), Value::Null),
        ("POST", at("/objects"), json!({"name": "o"})),
        ("DELETE", at("/objects"), Value::Null),
        ("POST", at("/tags"), json!({"tags": [{"name": "t"}]})),
        ("POST", at("/tags/u"), Value::Null),
        ("PUT", at("/tags/u"), json!({"name": "v"})),
        ("DELETE", at("/tags/v"), Value::Null),
        ("DELETE", at("/tags"), Value::Null),
        ("POST", at("/resource_types"), json!({"name": "OS::Nova::Server"})),
        ("DELETE", at("/resource_types/OS::Nova::Server"), Value::Null),
        ("DELETE", at(""), Value::Null),
    ]
}

fn release() -> Value {
    json!({"name": "site", "version": "1", "roles": {"web": {"tags": ["first"]}}, "tags": {"first": {}, "other": {}}, "tasks": []})
}

fn map_writes(object: &str, has_owners: bool) -> Vec<(&'static str, String, Value)> {
    let mut all = vec![
        ("PUT", format!("{object}/labels"), json!({"labels": {"a": "b"}})),
        ("PATCH", format!("{object}/labels"), json!({"c": "d"})),
    ];
    if has_owners {
        let owners = json!({"from": "admin", "to": "other", "keys": ["c"]});
        all.push(("POST", format!("{object}/labels/owners"), owners));
        all.push(("POST", format!("{object}/labels/tombstones"), json!({"keys": ["z"]})));
    }
    all
}

/// Writes that make what their answer alone names: what takes it back can stand in no list.
pub(crate) const NAMED_BY_ANSWER: [Endpoint; 3] =
    [Endpoint::CreateToken, Endpoint::IssueCertificate, Endpoint::CreateBearerToken];

/// Rows that are not written here, each with the reason.
const MADE_NOWHERE: [(Endpoint, &str); 5] = [
    (Endpoint::PutBlob, "a file body lies beside the store, under its own name"),
    (Endpoint::OwnersRelease, "a release's maps are owned as one: it is refused always"),
    (
        Endpoint::ResumeFleet,
        "without a host that is ahead it leaves its request's record alone, and one that is would be led on by the first of them: \
         `restored.rs` and `backup.rs` look for what it leaves, without kills",
    ),
    (Endpoint::ResizeCluster, "a cluster is never resized: it is refused always"),
    (
        Endpoint::RefreshNodeRoles,
        "no extension decides here what a role gives: `extensions.rs` looks for what it leaves, without kills",
    ),
];

/// The names of all rows of the endpoint table that write into the store.
pub(crate) fn rows() -> BTreeSet<&'static str> {
    let is_write = |one: &&Endpoint| one.route().listener == Listener::Admin && one.route().method != Method::Get;
    let all = Endpoint::ALL.iter().filter(is_write).filter(|one| !MADE_NOWHERE.iter().any(|(row, _)| row == *one));
    all.map(|one| one.name()).collect()
}

pub(crate) fn endpoint(method: &str, path: &str) -> Result<Endpoint> {
    match find(Listener::Admin, method, path) {
        Found::Route(endpoint, _) => Ok(endpoint),
        Found::OtherMethods(_) | Found::Nothing => anyhow::bail!("{method} {path} is no endpoint"),
    }
}

/// The commit that a request made is whole: its event says who, and names what it made with an after-image.
pub(crate) fn whole(stored: &Stored, write: &Write, status: u16, revision: u64) -> Result<()> {
    let (record, at) = stored.request("admin", write.key).context("no record of the request")?;
    ensure!(
        (record.answer.status, *at) == (status, revision),
        "{} at {at}, not {status} at {revision}",
        record.answer.status
    );
    let event = stored.event(revision).context("no audit event")?;
    ensure!((event.principal.as_str(), event.address.starts_with("127.0.0.1:")) == ("admin", true), "{event:?}");
    // A token is no object, and a backup is none.
    let makes_none = ["/v1/join-tokens", "/v1/backups"].iter().any(|path| write.path.starts_with(path));
    ensure!(event.objects.is_empty() == makes_none, "{event:?}");
    Ok(())
}

#[test]
fn w15_01_w15_02_each_write_verb_leaves_object_image_audit_event_and_request_record() -> Result<()> {
    let mut fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    let (mut made, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, (method, path, body)) in (1..).zip(writes()) {
        seen.insert(endpoint(method, &path)?.name());
        let write = Write { method, path, body, key: Uuid::from_u128(number) };
        made.push(one(&mut operator, write)?);
    }
    for (number, named) in (1000..).zip(NAMED_BY_ANSWER) {
        let makes = |write: &Write| endpoint(write.method, &write.path).is_ok_and(|one| one == named);
        let key = made.iter().find_map(|(write, ..)| makes(write).then_some(write.key));
        let path = located(&mut operator, key.with_context(|| named.name())?)?;
        seen.insert(endpoint("DELETE", &path)?.name());
        let write = Write { method: "DELETE", path, body: Value::Null, key: Uuid::from_u128(number) };
        made.push(one(&mut operator, write)?);
    }
    let all = rows();
    ensure!(seen == all, "not tried here: {:?}", all.difference(&seen).collect::<Vec<_>>());
    fleet.stop_controller()?;
    let stored = Stored::copied(&fleet.data())?;
    for (write, status, revision) in &made {
        whole(&stored, write, *status, *revision).with_context(|| format!("{} {}", write.method, write.path))?;
    }
    ensure!(stored.commits("admin") == made.len(), "{} commits of {} writes", stored.commits("admin"), made.len());
    stored.check()
}

/// Where what a write made stands, as the record of its request has it.
pub(crate) fn located(operator: &mut Operator, key: Uuid) -> Result<String> {
    let (_, record) = operator.get(&format!("/v1/requests/{key}"))?;
    Ok(record["location"].as_str().with_context(|| record.to_string())?.to_owned())
}

/// Makes a write, finds its record, and sends it once more: it is made once.
pub(crate) fn one(operator: &mut Operator, write: Write) -> Result<(Write, u16, u64)> {
    let what = format!("{} {}", write.method, write.path);
    let (status, body) = operator.write(&write)?;
    ensure!((200..300).contains(&status), "{what}: {status} {body}");
    let at = format!("/v1/requests/{}", write.key);
    let (_, record) = operator.get(&at)?;
    let revision = record["revision"].as_u64().with_context(|| format!("{what}: {record}"))?;
    let (again, _) = operator.write(&write)?;
    let (_, same) = operator.get(&at)?;
    ensure!(again == status && same == record, "{what}: sent again it is {again}, {same}");
    Ok((write, status, revision))
}

/// What each write changes, beside those of maps and those that make something, whose answer is what was made.
const CHANGES: &[(&str, &str)] = &[
    ("PATCH /v1/releases/site@1", r#"[{"field": "labels.stage", "new": "one"}]"#),
    ("POST /v1/releases/site@1/tags", r#"[{"field": "tags.second", "new": {}}]"#),
    ("PUT /v1/releases/site@1/tags/second", r#"[{"field": "tags.second.has_primary", "new": true}]"#),
    ("DELETE /v1/releases/site@1/tags/second", r#"[{"field": "tags.second.has_primary", "old": true}]"#),
    (
        "PATCH /v1/clustertemplates/base",
        r#"[{"field": "labels.stage", "new": "one"}, {"field": "merge_labels", "new": true}]"#,
    ),
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
    (
        "PUT /v1/nodes/web-1/traits/CUSTOM_B",
        r#"[{"field": "traits", "old": ["CUSTOM_A"], "new": ["CUSTOM_A", "CUSTOM_B"]}]"#,
    ),
    (
        "DELETE /v1/nodes/web-1/traits/CUSTOM_B",
        r#"[{"field": "traits", "old": ["CUSTOM_A", "CUSTOM_B"], "new": ["CUSTOM_A"]}]"#,
    ),
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
    (
        "DELETE /v1/nodes/web-1/allocation",
        r#"[{"field": "name", "old": "a3"}, {"field": "resource_class", "old": "small"}]"#,
    ),
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
    (
        "DELETE /v1/clustertemplates/next",
        r#"[{"field": "name", "old": "next"}, {"field": "release", "old": "site@1"}]"#,
    ),
    (
        "DELETE /v1/releases/site@1",
        r#"[{"field": "labels.a", "old": "b"}, {"field": "labels.c", "old": "d"}, {"field": "name", "old": "site@1"}, {"field": "roles.web.tags", "old": ["first"]}]"#,
    ),
];

/// What a write changes, as its answer is to list it; none for one that makes something.
fn changes(method: &str, path: &str, body: &Value) -> Result<Option<Value>> {
    let made = [
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
    // The catalogue answers with Glance's bodies, which have no such member.
    if path.starts_with("/v2/") || method == "POST" && made.iter().any(|end| path.ends_with(end)) {
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
    // A node has had no label before, and a release hands none on.
    let replaced = if path.starts_with("/v1/nodes") {
        json!({"field": "merge_labels", "new": true})
    } else {
        json!({"field": "labels.stage", "old": "one"})
    };
    Ok(Some(match (method, path.split_once("/labels").map(|(_, what)| what)) {
        ("PUT", Some("")) => json!([{"field": "labels.a", "new": "b"}, replaced]),
        ("PATCH", Some("")) => json!([{"field": "labels.c", "new": "d"}]),
        ("POST", Some("/owners")) => json!([{"field": "owners", "old": ["admin:update"], "new": ["other:update"]}]),
        ("POST", Some("/tombstones")) => json!([{"field": "labels.z", "new": null}]),
        _ => {
            let name = format!("{method} {path}");
            let row = CHANGES.iter().find(|(of, _)| *of == name);
            serde_json::from_str(row.with_context(|| format!("what does {name} change?"))?.1)?
        }
    }))
}

#[test]
fn w06_every_write_says_what_it_changes_with_old_and_new_value_also_where_it_is_tried() -> Result<()> {
    let fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let prefer = [("prefer", "return=representation")];
    for (number, (method, path, body)) in (1..).zip(writes()) {
        let what = format!("{method} {path}");
        let tried = Write {
            method,
            path: format!("{path}?dry_run=true"),
            body: body.clone(),
            key: Uuid::from_u128(1000 + number),
        };
        let (status, tried) = operator.write_with(&tried, &prefer)?;
        ensure!((200..300).contains(&status), "{what}, tried: {status} {tried}");
        let write = Write { method, path, body, key: Uuid::from_u128(number) };
        let (status, made) = operator.write_with(&write, &prefer)?;
        ensure!((200..300).contains(&status), "{what}: {status} {made}");
        let expected = changes(method, &write.path, &write.body)?;
        ensure!(made.get("changes") == expected.as_ref(), "{what}: {} is not {expected:?}", made["changes"]);
        ensure!(tried.get("changes") == expected.as_ref(), "{what}, tried: {} is not {expected:?}", tried["changes"]);
    }
    Ok(())
}

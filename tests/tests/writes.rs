//! What a commit leaves in the store, for every write that the endpoint table has, over the real listener: object, after-image, audit
//! event and request record, together.

mod stored;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::{Operator, Write};
use stemma_wire::endpoint::{Endpoint, Found, Listener, Method, find};
use uuid::Uuid;

use stored::Stored;

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
        ("POST", "/v1/clusters/prod/tags".into(), json!({"name": "own"})),
        ("PUT", "/v1/clusters/prod/tags/own".into(), json!({"has_primary": true})),
        ("DELETE", "/v1/clusters/prod/tags/own".into(), Value::Null),
        ("PUT", "/v1/clusters/prod/roles".into(), json!({"roles": {"web": {"add_tags": ["other"]}}})),
        ("POST", "/v1/clusters/prod/nodegroups".into(), json!({"name": "web"})),
        ("PATCH", "/v1/clusters/prod/nodegroups/web".into(), json!({"labels": {"stage": "one"}})),
        ("POST", "/v1/nodes".into(), json!({"name": "web-1"})),
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
        ("DELETE", "/v1/releases/site@1".into(), Value::Null),
    ]);
    all
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

fn endpoint(method: &str, path: &str) -> Result<Endpoint> {
    match find(Listener::Admin, method, path) {
        Found::Route(endpoint, _) => Ok(endpoint),
        Found::OtherMethods(_) | Found::Nothing => anyhow::bail!("{method} {path} is no endpoint"),
    }
}

/// The commit that a request made is whole: its event says who, and names what it made with an after-image.
fn whole(stored: &Stored, write: &Write, status: u16, revision: u64) -> Result<()> {
    let (record, at) = stored.request("admin", write.key).context("no record of the request")?;
    ensure!(
        (record.answer.status, *at) == (status, revision),
        "{} at {at}, not {status} at {revision}",
        record.answer.status
    );
    let event = stored.event(revision).context("no audit event")?;
    ensure!((event.principal.as_str(), event.address.starts_with("127.0.0.1:")) == ("admin", true), "{event:?}");
    // A token is no object.
    ensure!(event.objects.is_empty() == write.path.starts_with("/v1/join-tokens"), "{event:?}");
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
    let token = made.iter().find_map(|(write, ..)| (write.path == "/v1/join-tokens").then_some(write.key));
    let (_, record) = operator.get(&format!("/v1/requests/{}", token.context("a token was made")?))?;
    let location = record["location"].as_str().with_context(|| record.to_string())?.to_owned();
    seen.insert(endpoint("DELETE", &location)?.name());
    made.push(one(
        &mut operator,
        Write { method: "DELETE", path: location, body: Value::Null, key: Uuid::from_u128(1000) },
    )?);
    // A file body lies beside the store, under its own name; and who owns a release's labels is never handed over.
    seen.extend([Endpoint::PutBlob.name(), Endpoint::OwnersRelease.name()]);

    let is_write = |one: &&Endpoint| one.route().listener == Listener::Admin && one.route().method != Method::Get;
    let all: BTreeSet<_> = Endpoint::ALL.iter().filter(is_write).map(|one| one.name()).collect();
    ensure!(seen == all, "not tried here: {:?}", all.difference(&seen).collect::<Vec<_>>());
    fleet.stop_controller()?;
    let stored = Stored::copied(&fleet.data())?;
    for (write, status, revision) in &made {
        whole(&stored, write, *status, *revision).with_context(|| format!("{} {}", write.method, write.path))?;
    }
    stored.check()
}

/// Makes a write, finds its record, and sends it once more: it is made once.
fn one(operator: &mut Operator, write: Write) -> Result<(Write, u16, u64)> {
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

//! Fuel's recorded lifecycle of tags over HTTP: the answers of its API and the tags of nodes, step by step, against a
//! real listener. A case that Stemma decides otherwise is listed with the reason. A listed case with the recorded
//! result fails the test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::shared;
use uuid::Uuid;

/// A case, its result here, and the reason.
type ListedDifference = (&'static str, &'static str, &'static str);

const LIFECYCLE: &[ListedDifference] = &[
    ("life-02-unassign-predefined/1", "200", "the answer holds the node's tags"),
    ("life-03-custom-tag-kept/5", r#"["cinder","controller","database","keystone","my","neutron","rabbitmq"]"#, KEPT_REASON),
    ("life-03-custom-tag-kept/6", r#"["cinder","my"]"#, KEPT_REASON),
    ("life-03-custom-tag-kept/7", r#"["cinder","my"]"#, KEPT_REASON),
    ("life-04-reset/2", "no counterpart", "no state of a node removes tags"),
    (
        "life-05-primary/3",
        r#"{"1":["cinder","primary-controller","primary-database","primary-keystone","primary-neutron"],"2":["controller","database","keystone","neutron","primary-rabbitmq"]}"#,
        PRIMARY_REASON,
    ),
    (
        "life-05-primary/5",
        r#"{"1":["cinder","primary-controller","primary-database","primary-keystone","primary-neutron"],"2":["controller","database","keystone","neutron","primary-rabbitmq"]}"#,
        PRIMARY_REASON,
    ),
    (
        "life-05-primary/7",
        r#"{"1":["cinder","primary-controller","primary-database","primary-keystone","primary-neutron"],"2":["controller","database","keystone","neutron","primary-rabbitmq"]}"#,
        "no two nodes hold a tag as primary",
    ),
];

const KEPT_REASON: &str = "a tag that was assigned by hand survives any change of roles";
const PRIMARY_REASON: &str = "a primary stays as long as its node exists and has the tag";

const NODE_TAG_CALLS: &[ListedDifference] = &[
    ("create_dup_same_owner", "409", DUPLICATE_REASON),
    ("create_dup_release", "201", "a tag of a cluster and a tag next to a release are two tags"),
    ("create_predefined_name_in_cluster", "409", DUPLICATE_REASON),
    ("create_weird_name", "400", NAME_REASON),
    ("create_empty_name", "400", NAME_REASON),
    ("create_readonly_by_user", "400", "there is no field read_only, and unknown ones are refused"),
    ("update", "400", "a tag keeps its name"),
    ("update_predefined", "403", PREDEFINED_REASON),
    ("delete_predefined", "403", PREDEFINED_REASON),
    ("assign_mixed_already_and_new", "409", "409 is a conflict with an existing object; 405 is about the method"),
    ("assign_by_name", "200", "tags are assigned by name"),
    ("unassign_not_assigned", "404", "404 is for an object that does not exist; 405 is about the method"),
    ("delete_assigned", "409", "409 is a conflict with an existing object"),
    ("assign_node_without_cluster", "400", "the caller has the right, but the tag is not visible there"),
    ("unassign_ok", "200", "the answer holds the node's tags"),
];

const ROLE_TAG_CALLS: &[ListedDifference] = &[
    ("create_predefined_name_in_cluster", "409", DUPLICATE_REASON),
    ("create_missing_meta", "201", "has_primary is false by default"),
    ("create_missing_has_primary", "201", "has_primary is false by default"),
    ("create_colon", "201", "a tag may have a value after a colon"),
    ("create_65", "400", NAME_REASON),
    ("create_primary_prefix", "400", "primary- is reserved for the holders of primaries"),
    ("get_inherited_via_cluster", "200", "all tags that are visible in a cluster can be read there"),
    ("put_name_mismatch", "400", "a tag keeps its name"),
    ("put_predefined_release", "403", PREDEFINED_REASON),
    ("delete_inherited_via_cluster", "403", PREDEFINED_REASON),
    ("delete_predefined_release", "403", PREDEFINED_REASON),
    ("role_unknown_tag", "200", "a role may produce a tag that nothing else declares; a finding says so"),
    ("role_ok", "200", "a cluster's changes of roles are one map, put as a whole"),
    ("role_empty_tags", "200", "a cluster's changes of roles are one map, put as a whole"),
    ("role_without_tags", "200", "a cluster changes only what it sets of a role"),
    ("delete_assigned_role", "200", "a cluster's change of a role can be taken back at any time; roles are the release's"),
    ("cluster_role_overrides_release_role", "200", "a cluster's changes of roles are one map, put as a whole"),
];

const DUPLICATE_REASON: &str = "409 is a conflict with an existing object";
const PREDEFINED_REASON: &str = "403: a predefined tag is the release's content";
const NAME_REASON: &str = "a name has up to 63 letters, digits, and - _ .";

/// The objects of one case: a cluster with a release and three nodes, and another cluster with a tag.
struct TagCase<'a> {
    operator: &'a mut OperatorClient,
    number: usize,
}

impl<'a> TagCase<'a> {
    fn new(operator: &'a mut OperatorClient, number: usize, roles: &Value, primary: &[&str]) -> Result<Self> {
        let tags = roles.as_object().into_iter().flatten().filter_map(|(_, role)| role["tags"].as_array().cloned());
        let names = tags.flatten().filter_map(|tag| tag.as_str().map(str::to_owned));
        let tag = |name: String| {
            let has_primary = primary.contains(&name.as_str());
            (name, json!({"has_primary": has_primary}))
        };
        let tags: BTreeMap<String, Value> = names.map(tag).collect();
        let mut objects = vec![
            json!({"kind": "Release", "name": format!("r{number}"), "roles": roles, "tags": tags, "tasks": [],
                   "matching": {"roles": "tags", "primary": "replaces"}}),
            json!({"kind": "Cluster", "name": format!("c{number}"), "release": format!("r{number}")}),
            json!({"kind": "Cluster", "name": format!("other{number}"), "tags": {"foreign": {}}}),
            json!({"kind": "NodeGroup", "cluster": format!("c{number}"), "name": "g"}),
        ];
        objects.extend(
            (1..=3).map(|node| json!({"kind": "Node", "name": format!("n{number}-{node}"), "nodegroup": format!("c{number}/g")})),
        );
        let mut case = Self { operator, number };
        case.expect("POST", "/v1/apply", json!({"objects": objects}))?;
        Ok(case)
    }

    fn send(&mut self, method: &'static str, path: &str, body: Value) -> Result<(u16, Value)> {
        if method == "GET" {
            return self.operator.get(path);
        }
        self.operator.write(&OperatorWrite { method, path: path.to_owned(), body, key: Uuid::now_v7() })
    }

    fn expect(&mut self, method: &'static str, path: &str, body: Value) -> Result<Value> {
        let (status, answer) = self.send(method, path, body)?;
        ensure!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    fn node_path(&self, node: &Value, below: &str) -> String {
        format!("/v1/nodes/n{}-{node}{below}", self.number)
    }

    fn cluster_path(&self, below: &str) -> String {
        format!("/v1/clusters/c{}{below}", self.number)
    }

    /// Returns the names by which selectors match a node's tags.
    fn tag_names(&mut self, node: &Value) -> Result<Vec<String>> {
        let path = self.node_path(node, "/tags");
        let shown = self.expect("GET", &path, Value::Null)?;
        let texts = |field: &str| {
            let texts = shown[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let primary = texts("primary_tags");
        let plain = texts("effective").into_iter().filter(|tag| !primary.contains(tag));
        let mut names: Vec<String> = plain.chain(primary.iter().map(|tag| format!("primary-{tag}"))).collect();
        names.sort();
        Ok(names)
    }
}

/// Compares a result with the recorded one. Returns `None` if it is as recorded or as listed.
fn compare_with_record(list: &[ListedDifference], case: &str, recorded: &str, is_as_recorded: bool, out: &str) -> Option<String> {
    match (list.iter().find(|(listed, ..)| *listed == case), is_as_recorded) {
        (None, true) => None,
        (None, false) => Some(format!("{case}: recorded {recorded}, here {out}")),
        (Some(_), true) => Some(format!("{case}: is listed, and comes out as recorded")),
        (Some((_, listed, _)), false) if *listed == out => None,
        (Some((_, listed, _)), false) => Some(format!("{case}: listed as {listed}, here {out}")),
    }
}

fn read_vectors() -> Result<Option<Value>> {
    let Some(path) = shared::path("vectors/tasks/tag_lifecycle.json") else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

fn check_all_listed_seen(list: &[ListedDifference], seen: &BTreeSet<String>) {
    let unseen: Vec<&str> = list.iter().map(|row| row.0).filter(|case| !seen.contains(*case)).collect();
    assert!(unseen.is_empty(), "listed, and in no vector: {unseen:?}");
}

#[test]
fn node_tags_follow_recorded_lifecycle() -> Result<()> {
    let Some(vectors) = read_vectors()? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, sequence) in vectors["state_sequences"].as_array().context("sequences")?.iter().enumerate() {
        let id = sequence["id"].as_str().context("id")?;
        let elects = id == "life-05-primary";
        let primary: &[&str] = if elects { &["controller", "database", "keystone", "neutron", "rabbitmq"] } else { &[] };
        let mut case = TagCase::new(&mut operator, number, &sequence["roles_metadata"], primary)?;
        if id == "life-04-reset" {
            let path = case.cluster_path("/tags");
            case.expect("POST", &path, json!({"name": "my"}))?;
        }
        // Only the title of this sequence says with which roles it begins.
        let controllers = if elects { 2 } else { 0 };
        for node in 1..=controllers {
            let path = case.node_path(&json!(node), "/roles");
            case.expect("PUT", &path, json!({"roles": ["controller"]}))?;
        }
        for (at, step) in sequence["steps"].as_array().context("steps")?.iter().enumerate() {
            let name = format!("{id}/{at}");
            wrong.extend(run_step(&mut case, &name, step).with_context(|| name.clone())?);
            seen.insert(name);
        }
    }
    check_all_listed_seen(LIFECYCLE, &seen);
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Runs one step, and compares its status and the tags that nodes have after it.
fn run_step(case: &mut TagCase<'_>, name: &str, step: &Value) -> Result<Option<String>> {
    let node = &step["node"];
    let (method, path, body) = match step["op"].as_str().context("op")? {
        "set_roles" => ("PUT", case.node_path(node, "/roles"), json!({"roles": step["roles"]})),
        "assign_tags" => ("POST", case.node_path(node, "/tags"), json!({"assign": step["tags"]})),
        "unassign_tags" => ("DELETE", case.node_path(node, "/tags"), json!({"tags": step["tags"]})),
        "create_tag" => ("POST", case.cluster_path("/tags"), json!({"name": step["tag"]})),
        "remove_from_cluster" => ("PATCH", case.node_path(node, ""), json!({"nodegroup": null})),
        "set_pending_deletion" => ("PATCH", case.node_path(node, ""), json!({"description": "on its way out"})),
        // The controller chooses a primary by itself, and a state comes from the host.
        "elect" | "set_status" => ("GET", case.node_path(&json!(1), ""), Value::Null),
        "reset_to_discover" => return Ok(compare_with_record(LIFECYCLE, name, "no tags", false, "no counterpart")),
        other => anyhow::bail!("the step {other} is not known"),
    };
    let (status, answer) = case.send(method, &path, body)?;
    let recorded = step["expect_status"].as_u64();
    ensure!(status < 400 || recorded.is_some(), "{method} {path}: {status} {answer}");
    if let Some(recorded) = recorded.filter(|recorded| *recorded != u64::from(status)) {
        let wrong = compare_with_record(LIFECYCLE, name, &recorded.to_string(), false, &status.to_string());
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    let has_tags = |case: &mut TagCase<'_>| -> Result<(Value, bool)> {
        match &step["expect_tags"] {
            Value::Object(nodes) => {
                let mut found = serde_json::Map::new();
                for node in nodes.keys() {
                    found.insert(node.clone(), json!(case.tag_names(&node.parse::<u64>()?.into())?));
                }
                Ok((json!(found), found == *nodes))
            }
            Value::Null => Ok((Value::Null, true)),
            tags => {
                let found = json!(case.tag_names(node)?);
                Ok((found.clone(), found == *tags))
            }
        }
    };
    let is_listed_status = recorded.is_some_and(|recorded| recorded != u64::from(status));
    let (found, is) = has_tags(case)?;
    if is_listed_status {
        return Ok((!is).then(|| format!("{name}: {found}")));
    }
    Ok(compare_with_record(LIFECYCLE, name, &step["expect_tags"].to_string(), is, &found.to_string()))
}

#[test]
fn tag_calls_match_recorded_answers() -> Result<()> {
    let Some(vectors) = read_vectors()? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let roles = &vectors["state_sequences"][0]["roles_metadata"];
    let mut number = 0;
    for (set, list) in [("api_node_tags_2016_10", NODE_TAG_CALLS), ("api_role_tags_final", ROLE_TAG_CALLS)] {
        let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
        for recorded in vectors[set]["cases"].as_array().context("cases")? {
            number += 1;
            let mut case = TagCase::new(&mut operator, number, roles, &[])?;
            let name = recorded["case"].as_str().context("case")?;
            let (method, path, body) = convert_call(&mut case, name, recorded).with_context(|| name.to_owned())?;
            let (status, answer) = case.send(method, &path, body)?;
            // A recorded 500 is a defect. The status should have been one of these.
            let wanted: Vec<u64> = match recorded["status"].as_u64().context("status")? {
                500 => vec![400, 409],
                status => vec![status],
            };
            let is = wanted.contains(&status.into());
            let said = compare_with_record(list, name, &format!("{wanted:?}"), is, &status.to_string());
            wrong.extend(said.map(|said| format!("{said}: {method} {path} {answer}")));
            seen.insert(name.to_owned());
        }
        check_all_listed_seen(list, &seen);
        assert!(wrong.is_empty(), "{set}: {wrong:#?}");
    }
    Ok(())
}

/// Returns a recorded call in the form in which it is sent here, after creating the objects that it needs.
fn convert_call(case: &mut TagCase<'_>, name: &str, recorded: &Value) -> Result<(&'static str, String, Value)> {
    let (own, node) = (case.cluster_path("/tags"), case.node_path(&json!(1), ""));
    let of_node = format!("{node}/tags");
    let has_own = !name.starts_with("create") || name.contains("dup_") || name.starts_with("create_same");
    let own_name = if recorded["path"].as_str().is_some_and(|path| path.contains("my_tag")) { "my_tag" } else { "my" };
    if has_own && !name.ends_with("404") {
        for tag in ["my", "my_tag", "ro", "new"] {
            case.expect("POST", &own, json!({"name": tag}))?;
        }
    }
    if name.starts_with("assign_mixed") || name == "delete_assigned" || name == "unassign_ok" {
        case.expect("POST", &of_node, json!({"assign": ["my"]}))?;
    }
    if name == "assign_node_without_cluster" {
        case.expect("PATCH", &node, json!({"nodegroup": null}))?;
    }
    let method = match recorded["method"].as_str() {
        Some("POST") => "POST",
        Some("PUT") => "PUT",
        Some("DELETE") => "DELETE",
        _ => "GET",
    };
    let path = recorded["path"].as_str().context("path")?;
    if path.contains("/roles/") {
        return convert_role_call(case, name, recorded);
    }
    if path.starts_with("/nodes/") {
        let path = if path.contains("99999") { "/v1/nodes/absent/tags".to_owned() } else { of_node };
        let named = |text: &str| match text {
            "<new>" => "new",
            "<not assigned>" => "ro",
            "<tag of another cluster>" => "foreign",
            _ => "my",
        };
        let tags = recorded["body"].as_array().context("a list")?.iter();
        let tags: Vec<&str> = tags.map(|tag| tag.as_str().map_or("nobody-has-it", named)).collect();
        let field = if method == "POST" { "assign" } else { "tags" };
        return Ok((method, path, json!({field: tags})));
    }
    let all = match path {
        _ if path.contains("9999/tags") => "/v1/clusters/absent/tags".to_owned(),
        _ if path.starts_with("/releases") => format!("/v1/releases/r{}/tags", case.number),
        _ => own,
    };
    let one = path.split('/').rfind(|part| !part.is_empty()).unwrap_or_default();
    let one = match one {
        "tags" => return Ok((method, all, tag_body(&recorded["body"]))),
        "{predefined}" => "rabbitmq",
        "{tag_id}" | "my_tag" => own_name,
        "99999" | "{deleted}" => "absent",
        other => other,
    };
    Ok((method, format!("{all}/{one}"), tag_body(&recorded["body"])))
}

/// Returns the body of a tag. A recorded body has the name under one of two keys, and the other fields flat or in
/// `meta`.
fn tag_body(recorded: &Value) -> Value {
    let Some(fields) = recorded.as_object() else {
        return if recorded.is_string() { json!({"name": "my_tag", "has_primary": true}) } else { Value::Null };
    };
    let mut body = fields.clone();
    if let Some(name) = body.remove("tag") {
        body.insert("name".into(), name);
    }
    if let Some(Value::Object(meta)) = body.remove("meta") {
        body.extend(meta);
    }
    // The vectors abbreviate a long text as `x*LENGTH`.
    let long = body.get("name").and_then(Value::as_str).and_then(|name| name.strip_prefix("x*")?.parse().ok());
    if let Some(length) = long {
        body.insert("name".into(), "x".repeat(length).into());
    }
    Value::Object(body)
}

/// Returns a change of a role's tags. Here, a cluster's changes of roles are one map, which is written as a whole.
fn convert_role_call(case: &mut TagCase<'_>, name: &str, recorded: &Value) -> Result<(&'static str, String, Value)> {
    let path = case.cluster_path("/roles");
    if name == "delete_assigned_role" {
        case.expect("PUT", &path, json!({"roles": {"my_role": {"add_tags": ["my_tag"]}}}))?;
        let roles = case.node_path(&json!(1), "/roles");
        case.expect("PUT", &roles, json!({"roles": ["my_role"]}))?;
        return Ok(("PUT", path, json!({"roles": {}})));
    }
    let role = recorded["body"]["name"].as_str().unwrap_or("my_role");
    let unknown = json!(["nobody-has-it"]);
    let tags = match recorded["body"]["meta"].get("tags") {
        Some(_) if name == "role_unknown_tag" => Some(&unknown),
        tags => tags,
    };
    let change = tags.map_or_else(|| json!({}), |tags| json!({"add_tags": tags}));
    Ok(("PUT", path, json!({"roles": {role: change}})))
}

const SITE: &str = r"
kind: Release
name: site
roles: {web: {tags: [nginx]}, db: {tags: [mysql], conflicts: [web]}}
tags: {nginx: {}, mysql: {}}
tasks:
  - {id: conf, type: file, tags: [nginx], parameters: {path: /conf, content: x}}
---
{kind: Cluster, name: prod, release: site}
---
{kind: NodeGroup, cluster: prod, name: all}
---
{kind: Node, name: n1, nodegroup: prod/all, roles: [web]}
---
{kind: Node, name: n2, nodegroup: prod/all, roles: [db]}
";

/// The answer to an edit of roles and tags reports the effects of the edit.
#[test]
fn edit_warns_of_tags_without_nodes() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let mut codes = |method, path: &str, body: Value| -> Result<Vec<(String, String)>> {
        let write = OperatorWrite { method, path: path.into(), body, key: Uuid::now_v7() };
        let (status, answer) = operator.write_with(&write, &[("prefer", "return=representation")])?;
        ensure!(status < 300, "{path}: {status} {answer}");
        let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        let findings = answer["findings"].as_array().into_iter().flatten();
        Ok(findings.map(|finding| (text(finding, "code"), text(finding, "object"))).collect())
    };
    let row = |code: &str, object: &str| (code.to_owned(), object.to_owned());
    let unheld = [
        row("tag.unheld", "cluster/prod tag/nginx"),
        row("task.unplaced", "cluster/prod task/conf"),
        row("task.orphaned", "node/n1"),
    ];
    assert_eq!(codes("DELETE", "/v1/nodes/n1/tags", json!({"tags": ["nginx"]}))?, unheld);
    assert_eq!(codes("PUT", "/v1/nodes/n1/tags/nginx", Value::Null)?, []);
    assert_eq!(codes("POST", "/v1/nodes/n1/roles", json!({"roles": ["db"]}))?, [row("role.conflict", "node/n1")]);
    assert_eq!(codes("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?, []);
    assert_eq!(codes("PUT", "/v1/clusters/prod/roles", json!({"roles": {"web": {"remove_tags": ["nginx"]}}}))?, unheld);
    let unknown = codes("POST", "/v1/clusters/prod/tags", json!({"name": "own", "role": "wbe"}))?;
    assert_eq!(unknown, [row("role.unknown", "cluster/prod")]);
    let output = fleet.cli(&["tag", "create", "spare", "--cluster", "prod", "--role", "bd"])?;
    let said = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && said.contains("role bd"), "{said}");
    Ok(())
}

/// A role produces the tags that name it, in the cluster that has the tag, or in all clusters of the release that has
/// it.
#[test]
fn role_produces_tag() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let tags = |node: &str| -> Result<Value> {
        let node: Value = serde_json::from_str(&fleet.stemma(&["get", "node", node, "-o", "json"])?)?;
        Ok(node["tags"].clone())
    };
    fleet.stemma(&["tag", "create", "canary", "--cluster", "prod", "--role", "web"])?;
    fleet.stemma(&["tag", "create", "beside", "--release", "site", "--role", "web"])?;
    assert_eq!((tags("n1")?, tags("n2")?), (json!(["beside", "canary", "nginx"]), json!(["mysql"])));
    fleet.stemma(&["tag", "update", "canary", "--cluster", "prod", "--title", "First"])?;
    assert_eq!(tags("n1")?, json!(["beside", "canary", "nginx"]), "what is not said stays");
    fleet.stemma(&["tag", "update", "canary", "--cluster", "prod", "--role", "db"])?;
    assert_eq!((tags("n1")?, tags("n2")?), (json!(["beside", "nginx"]), json!(["canary", "mysql"])));

    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let (_, of_role) = operator.get("/v1/releases/site/roles/web/tags")?;
    let rows = json!([{"name": "beside", "role": "web", "has_primary": false, "predefined": false},
                      {"name": "nginx", "has_primary": false, "predefined": true}]);
    assert_eq!(of_role["tags"], rows);
    let (_, roles) = operator.get("/v1/releases/site/roles")?;
    assert_eq!(roles, json!({"roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx", "beside"]}}}));
    let (status, refusal) = operator.get("/v1/releases/site/roles/wbe/tags")?;
    assert_eq!((status, &refusal["error"]["type"]), (404, &json!("object.not_found")));
    fleet.stemma(&["tag", "delete", "beside", "--release", "site"])?;
    assert_eq!(tags("n1")?, json!(["nginx"]));
    Ok(())
}

//! Fuel's recorded lifecycle of tags over HTTP: the answers of its API and the tags of nodes, step by step, against a
//! real listener. A case with another result in Stemma is listed with the reason. A listed case with the recorded
//! result fails the test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::{OperatorClient, OperatorWrite};
use stemma_tests::shared;
use uuid::Uuid;

/// A recorded case in which Stemma differs from Fuel: the name of the case, Stemma's result, and the reason.
type ListedDifference = (&'static str, &'static str, &'static str);

/// The steps of Fuel's recorded sequences with another result in Stemma. A case is `SEQUENCE/STEP`, counted from 0.
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

/// The recorded calls of Fuel's first API of tags (October 2016) that Stemma answers with another status than Fuel.
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

/// The recorded calls of Fuel's final API of tags (roles have tags) that Stemma answers with another status.
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

/// One recorded case: the operator that sends its requests, and the number that the names of its objects contain. The
/// objects are a release, its cluster with a group of three nodes, and another cluster with a tag.
struct TagCase<'a> {
    operator: &'a mut OperatorClient,
    number: usize,
}

impl<'a> TagCase<'a> {
    /// Creates the objects of a case. Their names contain `number`. The tags in `primary_tags` have a primary.
    fn new(operator: &'a mut OperatorClient, number: usize, roles: &Value, primary_tags: &[&str]) -> Result<Self> {
        let tags = roles.as_object().into_iter().flatten().filter_map(|(_, role)| role["tags"].as_array().cloned());
        let names = tags.flatten().filter_map(|tag| tag.as_str().map(str::to_owned));
        let tag = |name: String| {
            let has_primary = primary_tags.contains(&name.as_str());
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

    /// Sends a request. Returns the status and the answer.
    fn send(&mut self, method: &'static str, path: &str, body: Value) -> Result<(u16, Value)> {
        if method == "GET" {
            return self.operator.get(path);
        }
        self.operator.write(&OperatorWrite { method, path: path.to_owned(), body, key: Uuid::now_v7() })
    }

    /// Sends a request that must succeed. Returns the answer.
    fn expect(&mut self, method: &'static str, path: &str, body: Value) -> Result<Value> {
        let (status, answer) = self.send(method, path, body)?;
        ensure!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    /// Returns the path of a node of the case, followed by `suffix`.
    fn node_path(&self, node: &Value, suffix: &str) -> String {
        format!("/v1/nodes/n{}-{node}{suffix}", self.number)
    }

    /// Returns the path of the cluster of the case, followed by `suffix`.
    fn cluster_path(&self, suffix: &str) -> String {
        format!("/v1/clusters/c{}{suffix}", self.number)
    }

    /// Returns the names by which selectors match a node's tags, sorted: `primary-TAG` if primary, else `TAG`.
    fn tag_names(&mut self, node: &Value) -> Result<Vec<String>> {
        let path = self.node_path(node, "/tags");
        let answer = self.expect("GET", &path, Value::Null)?;
        let texts = |field: &str| {
            let texts = answer[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let primary = texts("primary_tags");
        let plain = texts("effective").into_iter().filter(|tag| !primary.contains(tag));
        let mut names: Vec<String> = plain.chain(primary.iter().map(|tag| format!("primary-{tag}"))).collect();
        names.sort();
        Ok(names)
    }
}

/// Returns a description of a wrong result. Returns `None` for a case in `list` that has its listed result, and for a
/// case that is not in `list` and has the recorded result. A listed case with the recorded result is wrong too.
fn compare_with_record(
    list: &[ListedDifference],
    case: &str,
    recorded: &str,
    is_as_recorded: bool,
    result: &str,
) -> Option<String> {
    match (list.iter().find(|(listed, ..)| *listed == case), is_as_recorded) {
        (None, true) => None,
        (None, false) => Some(format!("{case}: recorded {recorded}, here {result}")),
        (Some(_), true) => Some(format!("{case}: is listed, and has the recorded result")),
        (Some((_, listed, _)), false) if *listed == result => None,
        (Some((_, listed, _)), false) => Some(format!("{case}: listed as {listed}, here {result}")),
    }
}

/// Returns the recorded cases, or `None` if the shared directory is absent.
fn read_vectors() -> Result<Option<Value>> {
    let Some(path) = shared::path("vectors/tasks/tag_lifecycle.json") else { return Ok(None) };
    Ok(Some(serde_json::from_str(&std::fs::read_to_string(path)?)?))
}

/// Checks that every listed case is among the cases that ran.
fn check_listed_cases_ran(list: &[ListedDifference], case_names: &BTreeSet<String>) {
    let absent_cases: Vec<&str> = list.iter().map(|difference| difference.0).filter(|case| !case_names.contains(*case)).collect();
    assert!(absent_cases.is_empty(), "listed, and in no vector: {absent_cases:?}");
}

/// Repeats sequences of calls that were recorded with Fuel. After each step, the nodes must have the recorded tags,
/// except in listed cases.
#[test]
fn node_tags_follow_recorded_lifecycle() -> Result<()> {
    let Some(vectors) = read_vectors()? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let (mut mismatches, mut case_names) = (Vec::new(), BTreeSet::new());
    for (number, sequence) in vectors["state_sequences"].as_array().context("sequences")?.iter().enumerate() {
        let id = sequence["id"].as_str().context("id")?;
        let has_primaries = id == "life-05-primary";
        let primary_tags: &[&str] =
            if has_primaries { &["controller", "database", "keystone", "neutron", "rabbitmq"] } else { &[] };
        let mut case = TagCase::new(&mut operator, number, &sequence["roles_metadata"], primary_tags)?;
        // This sequence assigns the tag `my`, which its steps do not create.
        if id == "life-04-reset" {
            let path = case.cluster_path("/tags");
            case.expect("POST", &path, json!({"name": "my"}))?;
        }
        // The recorded steps of `life-05-primary` omit its first roles. According to its title, two nodes are
        // controllers.
        let controller_count = if has_primaries { 2 } else { 0 };
        for node in 1..=controller_count {
            let path = case.node_path(&json!(node), "/roles");
            case.expect("PUT", &path, json!({"roles": ["controller"]}))?;
        }
        for (step_number, step) in sequence["steps"].as_array().context("steps")?.iter().enumerate() {
            let name = format!("{id}/{step_number}");
            mismatches.extend(run_step(&mut case, &name, step).with_context(|| name.clone())?);
            case_names.insert(name);
        }
    }
    check_listed_cases_ran(LIFECYCLE, &case_names);
    assert!(mismatches.is_empty(), "{mismatches:#?}");
    Ok(())
}

/// Runs one recorded step, and compares its status and the tags that nodes have after the step. Returns a description
/// of a wrong result, or `None`.
fn run_step(case: &mut TagCase<'_>, name: &str, step: &Value) -> Result<Option<String>> {
    let node = &step["node"];
    let (method, path, body) = match step["op"].as_str().context("op")? {
        "set_roles" => ("PUT", case.node_path(node, "/roles"), json!({"roles": step["roles"]})),
        "assign_tags" => ("POST", case.node_path(node, "/tags"), json!({"assign": step["tags"]})),
        "unassign_tags" => ("DELETE", case.node_path(node, "/tags"), json!({"tags": step["tags"]})),
        "create_tag" => ("POST", case.cluster_path("/tags"), json!({"name": step["tag"]})),
        "remove_from_cluster" => ("PATCH", case.node_path(node, ""), json!({"nodegroup": null})),
        "set_pending_deletion" => ("PATCH", case.node_path(node, ""), json!({"description": "on its way out"})),
        // Stemma has no such request: the controller chooses primaries by itself, and a state comes from the host. A
        // read is sent instead, so that the tags are compared.
        "elect" | "set_status" => ("GET", case.node_path(&json!(1), ""), Value::Null),
        "reset_to_discover" => return Ok(compare_with_record(LIFECYCLE, name, "no tags", false, "no counterpart")),
        other => anyhow::bail!("the step {other} is not known"),
    };
    let (status, answer) = case.send(method, &path, body)?;
    let recorded = step["expect_status"].as_u64();
    ensure!(status < 400 || recorded.is_some(), "{method} {path}: {status} {answer}");
    if let Some(recorded) = recorded.filter(|recorded| *recorded != u64::from(status)) {
        let mismatch = compare_with_record(LIFECYCLE, name, &recorded.to_string(), false, &status.to_string());
        if mismatch.is_some() {
            return Ok(mismatch);
        }
    }
    let compare_tags = |case: &mut TagCase<'_>| -> Result<(Value, bool)> {
        match &step["expect_tags"] {
            Value::Object(nodes) => {
                let mut actual = serde_json::Map::new();
                for node in nodes.keys() {
                    actual.insert(node.clone(), json!(case.tag_names(&node.parse::<u64>()?.into())?));
                }
                Ok((json!(actual), actual == *nodes))
            }
            Value::Null => Ok((Value::Null, true)),
            tags => {
                let actual = json!(case.tag_names(node)?);
                Ok((actual.clone(), actual == *tags))
            }
        }
    };
    let is_listed_status = recorded.is_some_and(|recorded| recorded != u64::from(status));
    let (actual, is_as_recorded) = compare_tags(case)?;
    // If the status differs as listed, the tags must be as recorded nevertheless.
    if is_listed_status {
        return Ok((!is_as_recorded).then(|| format!("{name}: {actual}")));
    }
    Ok(compare_with_record(LIFECYCLE, name, &step["expect_tags"].to_string(), is_as_recorded, &actual.to_string()))
}

/// Sends single calls that were recorded with Fuel, in Stemma's form. Each answer must have the recorded status, except
/// in listed cases. Only the status is compared.
#[test]
fn tag_calls_return_recorded_status() -> Result<()> {
    let Some(vectors) = read_vectors()? else { return Ok(()) };
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let roles = &vectors["state_sequences"][0]["roles_metadata"];
    let mut number = 0;
    for (api, list) in [("api_node_tags_2016_10", NODE_TAG_CALLS), ("api_role_tags_final", ROLE_TAG_CALLS)] {
        let (mut mismatches, mut case_names) = (Vec::new(), BTreeSet::new());
        for recorded in vectors[api]["cases"].as_array().context("cases")? {
            number += 1;
            let mut case = TagCase::new(&mut operator, number, roles, &[])?;
            let name = recorded["case"].as_str().context("case")?;
            let (method, path, body) = convert_call(&mut case, name, recorded).with_context(|| name.to_owned())?;
            let (status, answer) = case.send(method, &path, body)?;
            // A recorded status 500 is a defect of Fuel. Stemma must answer with 400 or 409 instead.
            let expected_statuses: Vec<u64> = match recorded["status"].as_u64().context("status")? {
                500 => vec![400, 409],
                status => vec![status],
            };
            let is_as_recorded = expected_statuses.contains(&status.into());
            let mismatch =
                compare_with_record(list, name, &format!("{expected_statuses:?}"), is_as_recorded, &status.to_string());
            mismatches.extend(mismatch.map(|mismatch| format!("{mismatch}: {method} {path} {answer}")));
            case_names.insert(name.to_owned());
        }
        check_listed_cases_ran(list, &case_names);
        assert!(mismatches.is_empty(), "{api}: {mismatches:#?}");
    }
    Ok(())
}

/// Creates the objects that a recorded call needs. Returns the call as a request to Stemma: method, path and body.
fn convert_call(case: &mut TagCase<'_>, name: &str, recorded: &Value) -> Result<(&'static str, String, Value)> {
    let (cluster_tags, first_node) = (case.cluster_path("/tags"), case.node_path(&json!(1), ""));
    let node_tags = format!("{first_node}/tags");
    let needs_cluster_tags = !name.starts_with("create") || name.contains("dup_") || name.starts_with("create_same");
    let tag_name = if recorded["path"].as_str().is_some_and(|path| path.contains("my_tag")) { "my_tag" } else { "my" };
    if needs_cluster_tags && !name.ends_with("404") {
        for tag in ["my", "my_tag", "ro", "new"] {
            case.expect("POST", &cluster_tags, json!({"name": tag}))?;
        }
    }
    if name.starts_with("assign_mixed") || name == "delete_assigned" || name == "unassign_ok" {
        case.expect("POST", &node_tags, json!({"assign": ["my"]}))?;
    }
    if name == "assign_node_without_cluster" {
        case.expect("PATCH", &first_node, json!({"nodegroup": null}))?;
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
        let path = if path.contains("99999") { "/v1/nodes/absent/tags".to_owned() } else { node_tags };
        let convert_tag = |text: &str| match text {
            "<new>" => "new",
            "<not assigned>" => "ro",
            "<tag of another cluster>" => "foreign",
            _ => "my",
        };
        let tags = recorded["body"].as_array().context("a list")?.iter();
        let tags: Vec<&str> = tags.map(|tag| tag.as_str().map_or("nobody-has-it", convert_tag)).collect();
        let field = if method == "POST" { "assign" } else { "tags" };
        return Ok((method, path, json!({field: tags})));
    }
    let tags_path = match path {
        _ if path.contains("9999/tags") => "/v1/clusters/absent/tags".to_owned(),
        _ if path.starts_with("/releases") => format!("/v1/releases/r{}/tags", case.number),
        _ => cluster_tags,
    };
    let tag_segment = path.split('/').rfind(|part| !part.is_empty()).unwrap_or_default();
    let tag_segment = match tag_segment {
        "tags" => return Ok((method, tags_path, tag_body(&recorded["body"]))),
        "{predefined}" => "rabbitmq",
        "{tag_id}" | "my_tag" => tag_name,
        "99999" | "{deleted}" => "absent",
        other => other,
    };
    Ok((method, format!("{tags_path}/{tag_segment}"), tag_body(&recorded["body"])))
}

/// Converts the recorded body of a tag to Stemma's form. A recorded body has the name in `tag` or `name`. Its other
/// fields are next to the name or in `meta`.
fn tag_body(recorded: &Value) -> Value {
    let Some(fields) = recorded.as_object() else {
        // A text such as `same` abbreviates a body that other cases contain.
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
    let abbreviated_length = body.get("name").and_then(Value::as_str).and_then(|name| name.strip_prefix("x*")?.parse().ok());
    if let Some(length) = abbreviated_length {
        body.insert("name".into(), "x".repeat(length).into());
    }
    Value::Object(body)
}

/// Returns a recorded change of a role's tags as a request to Stemma: method, path and body. In Stemma, a cluster has
/// one map with its changes of all roles, and the request replaces that map.
fn convert_role_call(case: &mut TagCase<'_>, name: &str, recorded: &Value) -> Result<(&'static str, String, Value)> {
    let path = case.cluster_path("/roles");
    // The recorded call deletes a role that a node has. Here, the request removes the role from the map.
    if name == "delete_assigned_role" {
        case.expect("PUT", &path, json!({"roles": {"my_role": {"add_tags": ["my_tag"]}}}))?;
        let roles = case.node_path(&json!(1), "/roles");
        case.expect("PUT", &roles, json!({"roles": ["my_role"]}))?;
        return Ok(("PUT", path, json!({"roles": {}})));
    }
    let role = recorded["body"]["name"].as_str().unwrap_or("my_role");
    // The recorded unknown tag exists in this test, so the request has another name.
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

/// The answer to an edit of roles and tags contains the findings that the edit causes: a tag or task without a node, a
/// file that a task left on a node, roles in conflict, and an unknown role.
#[test]
fn edit_warns_of_tags_without_nodes() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, SITE)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let mut write_findings = |method, path: &str, body: Value| -> Result<Vec<(String, String)>> {
        let write = OperatorWrite { method, path: path.into(), body, key: Uuid::now_v7() };
        let (status, answer) = operator.write_with(&write, &[("prefer", "return=representation")])?;
        ensure!(status < 300, "{path}: {status} {answer}");
        let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        let findings = answer["findings"].as_array().into_iter().flatten();
        Ok(findings.map(|finding| (text(finding, "code"), text(finding, "object"))).collect())
    };
    let expected_finding = |code: &str, object: &str| (code.to_owned(), object.to_owned());
    let unheld_findings = [
        expected_finding("tag.unheld", "cluster/prod tag/nginx"),
        expected_finding("task.unplaced", "cluster/prod task/conf"),
        expected_finding("task.orphaned", "node/n1"),
    ];
    assert_eq!(write_findings("DELETE", "/v1/nodes/n1/tags", json!({"tags": ["nginx"]}))?, unheld_findings);
    assert_eq!(write_findings("PUT", "/v1/nodes/n1/tags/nginx", Value::Null)?, []);
    assert_eq!(
        write_findings("POST", "/v1/nodes/n1/roles", json!({"roles": ["db"]}))?,
        [expected_finding("role.conflict", "node/n1")]
    );
    assert_eq!(write_findings("PUT", "/v1/nodes/n1/roles", json!({"roles": ["web"]}))?, []);
    assert_eq!(
        write_findings("PUT", "/v1/clusters/prod/roles", json!({"roles": {"web": {"remove_tags": ["nginx"]}}}))?,
        unheld_findings
    );
    let create_findings = write_findings("POST", "/v1/clusters/prod/tags", json!({"name": "own", "role": "wbe"}))?;
    assert_eq!(create_findings, [expected_finding("role.unknown", "cluster/prod")]);
    let output = fleet.cli(&["tag", "create", "spare", "--cluster", "prod", "--role", "bd"])?;
    let stderr = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && stderr.contains("role bd"), "{stderr}");
    Ok(())
}

/// A tag of a cluster or of its release can name the role that produces the tag: the nodes with this role then have the
/// tag, until the tag names another role or is deleted.
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
    assert_eq!(tags("n1")?, json!(["beside", "canary", "nginx"]), "an omitted field is unchanged");
    fleet.stemma(&["tag", "update", "canary", "--cluster", "prod", "--role", "db"])?;
    assert_eq!((tags("n1")?, tags("n2")?), (json!(["beside", "nginx"]), json!(["canary", "mysql"])));

    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    let (_, role_tags) = operator.get("/v1/releases/site/roles/web/tags")?;
    let expected_tags = json!([{"name": "beside", "role": "web", "has_primary": false, "predefined": false},
                      {"name": "nginx", "has_primary": false, "predefined": true}]);
    assert_eq!(role_tags["tags"], expected_tags);
    let (_, roles) = operator.get("/v1/releases/site/roles")?;
    assert_eq!(roles, json!({"roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx", "beside"]}}}));
    let (status, refusal) = operator.get("/v1/releases/site/roles/wbe/tags")?;
    assert_eq!((status, &refusal["error"]["type"]), (404, &json!("object.not_found")));
    fleet.stemma(&["tag", "delete", "beside", "--release", "site"])?;
    assert_eq!(tags("n1")?, json!(["nginx"]));
    Ok(())
}

//! Tests the API against its description. `schemathesis` generates requests from the `OpenAPI` document and checks each
//! response. The controller has, for each row of the endpoint table, the objects that its path names. The tool finds
//! internal errors, statuses and bodies that are not described, valid requests that are refused in another way than
//! described, and a wrong `Allow`. It cannot check what it does not reach, so each row must succeed at least once. The
//! tool uses only one thread, so several processes of it share the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::python::environment;
use stemma_tests::seed::{SeededRng, is_long};
use stemma_wire::endpoint::examples::examples;
use stemma_wire::endpoint::{Endpoint, RouteMatch, SocketKind, find};

const PACKAGES: [&str; 1] = ["schemathesis==4.32.5"];
/// Number of random requests per row, in addition to the examples and the requests that cover the schema. There is no
/// time limit: the tool would divide it among the rows, and make fewer requests on a busy machine.
const RANDOM_REQUESTS: &str = "20";
/// Number of random requests per row in a long run.
const LONG_RANDOM_REQUESTS: &str = "200";
/// The seed of a usual run. The requests are always the same, so only a change of the code can make it fail. A long run
/// uses a new seed.
const SEED: u64 = 21;
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      unsupported_method,allow_header_conformance,positive_data_acceptance";
/// The idempotency key of the request that creates all objects.
const IDEMPOTENCY_KEY: &str = "0193a2d1-7c00-7000-8000-0000000000d5";

/// Rows that need not succeed, each with the reason.
const NEVER_SUCCESSFUL: &[(Endpoint, &str)] = &[
    (Endpoint::OpenApi, "it is the document, from which the requests are made"),
    (Endpoint::OwnersRelease, "the maps of a release have one owner together, so this is always refused"),
    (Endpoint::RefreshNodeRoles, "no extension decides here what a role gives"),
    (Endpoint::PutBlob, "no body that is made up has the hash of its path"),
    (Endpoint::ResizeCluster, "a cluster is never resized"),
    (Endpoint::GetBackup, "it is given to root's socket alone"),
    (Endpoint::WatchEvents, "its answer ends with the client: it is left out"),
];

/// Values of path parameters for which the rows have no objects of their own.
const PATH_VALUES: &[(&str, &str)] = &[
    ("group", "web"),
    ("property", "rack"),
    ("object", "disk"),
    ("role", "web"),
    ("task", "motd"),
    ("trait", "CUSTOM_A"),
    ("resource_type", "OS::Nova::Server"),
    ("schema", "namespace"),
    ("request", IDEMPOTENCY_KEY),
];

/// Statuses of client errors that a valid request may get. The description lists the statuses of each row, and another
/// check of the tool compares the responses with them.
const CLIENT_ERRORS: [u16; 9] = [400, 401, 403, 404, 406, 409, 412, 413, 415];

/// Returns the objects that all rows share.
fn site() -> Vec<Value> {
    let site = json!([
        release("site", "1"),
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "gold"}},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]},
        {"kind": "Namespace", "namespace": "Labels", "resource_type_associations": [{"name": "Stemma::Label"}],
         "properties": {"tier": {"title": "Tier", "type": "string"}}},
    ]);
    site.as_array().cloned().unwrap_or_default()
}

fn release(name: &str, version: &str) -> Value {
    json!({"kind": "Release", "name": name, "version": version, "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {"has_primary": true}},
        "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]})
}

/// Returns the parameters in a row's path.
fn path_parameters(row: Endpoint) -> impl Iterator<Item = &'static str> {
    row.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// Returns the objects in a row's path. They are named after the row, so that a deletion by one row does not affect
/// others.
fn objects_for_row(row: Endpoint) -> Vec<Value> {
    let name = row.name();
    // The examples transfer these keys to another manager, or replace them.
    let labels = json!({"ntp": "1", "room": "7", "row": "2", "slot": "5", "site": "a"});
    let has_contents = !name.starts_with("Create");
    let object_for = |part| match part {
        // A task is only shown if a node has it.
        "node" | "task" => {
            Some(json!({"kind": "Node", "name": name, "nodegroup": "prod/web", "resource_class": name, "roles": ["web"],
            "traits": ["CUSTOM_A"], "labels": labels}))
        }
        "cluster" => {
            Some(json!({"kind": "Cluster", "name": name, "cluster_template": "base", "labels": labels, "merge_labels": true}))
        }
        "group" => Some(json!({"kind": "NodeGroup", "cluster": name, "name": "web", "labels": labels})),
        "template" => Some(json!({"kind": "ClusterTemplate", "name": name, "labels": labels})),
        "release" => Some(release(name, "1")),
        "namespace" if has_contents => Some(json!({"kind": "Namespace", "namespace": name,
            "resource_type_associations": [{"name": "OS::Nova::Server"}], "properties": {"rack": {"title": "Rack", "type": "string"}},
            "objects": [{"name": "disk"}], "tags": [{"name": "cache"}]})),
        "namespace" => Some(json!({"kind": "Namespace", "namespace": name})),
        "rule" => Some(
            json!({"kind": "InspectionRule", "name": name, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}),
        ),
        _ => None,
    };
    let mut all: Vec<Value> = path_parameters(row).filter_map(object_for).collect();
    // The node in the example of this row must hold a tag of the cluster.
    if row == Endpoint::ChoosePrimary {
        all.push(json!({"kind": "NodeGroup", "cluster": name, "name": "web", "roles": ["web"]}));
        all.push(json!({"kind": "Node", "name": "web-1", "nodegroup": format!("{name}/web"), "roles": ["web"]}));
    }
    all
}

/// Creates the objects in a row's path that cannot be in a manifest. Returns the parameters whose value differs from
/// the row's name.
fn create_for_row(admin: &str, row: Endpoint, certificate: &Value) -> Result<BTreeMap<&'static str, String>> {
    let (name, path) = (row.name(), row.route().path);
    let mut values = BTreeMap::new();
    let text = |made: Value, field: &str| made[field].as_str().map(str::to_owned).context("a name");
    for part in path_parameters(row) {
        match part {
            "allocation" => drop(post(admin, "/v1/allocations", &json!({"name": name, "resource_class": "none"}))?),
            "release" => drop(values.insert(part, format!("{name}@1"))),
            "principal" => drop(post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?),
            "certificate" => {
                post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?;
                let request = json!({"principal": name, "csr": certificate["csr"]});
                values.insert(part, text(post(admin, "/v1/certificates", &request)?, "serial")?);
            }
            "token" if path.starts_with("/v1/principals") => {
                values.insert(part, text(post(admin, &format!("/v1/principals/{name}/tokens"), &json!({}))?, "id")?);
            }
            "token" => {
                values.insert(part, text(post(admin, "/v1/join-tokens", &json!({"nodegroup": "prod/web"}))?, "id")?);
            }
            "tag" => {
                let (tag, tags_path) = match path.split('/').nth(2) {
                    Some("nodes") => ("web", None),
                    // The tag that the node in the example holds.
                    Some("clusters") if row == Endpoint::ChoosePrimary => ("web", None),
                    Some("clusters") => ("canary", Some(format!("/v1/clusters/{name}/tags"))),
                    Some("releases") => ("cache", Some(format!("/v1/releases/{name}@1/tags"))),
                    _ => ("cache", None),
                };
                if let Some(tags_path) = tags_path {
                    post(admin, &tags_path, &json!({"name": tag}))?;
                }
                values.insert(part, tag.to_owned());
            }
            _ => {}
        }
    }
    if path.ends_with("/allocation") {
        post(admin, "/v1/allocations", &json!({"name": name, "resource_class": name}))?;
    }
    Ok(values)
}

/// Returns the configuration of a row, with the values of its parameters.
fn row_config(row: Endpoint, mut values: BTreeMap<&'static str, String>) -> String {
    // Its example contains the name of the namespace that the example of CreateNamespace created.
    if row == Endpoint::PutNamespace {
        values.insert("namespace", "Site".to_owned());
    }
    for part in path_parameters(row).filter(|part| *part != "map" && *part != "hash") {
        let value = PATH_VALUES.iter().find(|(known, _)| *known == part).map_or(row.name(), |(_, name)| name);
        values.entry(part).or_insert_with(|| value.to_owned());
    }
    let mut parameters: Vec<String> = values.into_iter().map(|(part, name)| format!("\"path.{part}\" = \"{name}\"")).collect();
    match row {
        Endpoint::ValidateNamedNode => {
            parameters.push(format!("\"query.node\" = \"{}\"", Endpoint::ValidateNode.name()));
        }
        Endpoint::ExplainKey | Endpoint::ExplainNode => parameters.push("\"query.label\" = \"tier\"".to_owned()),
        // Without `dry_run`, the request would delete the rules of the other rows.
        Endpoint::DeleteInspectionRules => parameters.push("\"query.dry_run\" = true".to_owned()),
        _ => {}
    }
    let expected = CLIENT_ERRORS.iter().chain(row.route().min_version.map(|_| &405));
    let expected: String = expected.map(|status| format!(", {status}")).collect();
    format!(
        "[[operations]]\ninclude-operation-id = \"{}\"\nparameters = {{ {} }}\n\
         checks.positive_data_acceptance.expected-statuses = [\"2xx\"{expected}]\n",
        row.name(),
        parameters.join(", ")
    )
}

/// Returns the rows that succeeded, from a record of all requests.
fn successful_rows(record: &Value) -> Result<BTreeSet<Endpoint>> {
    let entries = record["log"]["entries"].as_array().context("entries")?.iter();
    let successful = entries.filter(|entry| matches!(entry["response"]["status"].as_u64(), Some(200..300)));
    let row = |entry: &Value| {
        let (method, url) = (entry["request"]["method"].as_str()?, entry["request"]["url"].as_str()?);
        let path = url.split("://").nth(1)?.split_once('/')?.1.split('?').next()?;
        match find(SocketKind::Admin, method, &format!("/{path}")) {
            RouteMatch::Route(row, _) => Some(row),
            RouteMatch::MethodNotAllowed(_) | RouteMatch::NotFound => None,
        }
    };
    Ok(successful.filter_map(row).collect())
}

pub(crate) fn post(address: &str, path: &str, body: &Value) -> Result<Value> {
    post_with(address, path, body, &[])
}

fn post_with(address: &str, path: &str, body: &Value, options: &[&str]) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", "Content-Type: application/json", "--data"]);
    let output = curl.arg(body.to_string()).arg(format!("{address}{path}")).args(options).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the rows of the admin listener.
fn client_rows() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|row| row.route().listener == SocketKind::Admin)
}

/// Divides the rows among tests, which run in parallel, each against a controller of its own. A row belongs to the
/// first test that has a prefix of its path. Rows that create objects for requests to other rows are in the same test.
macro_rules! prefix_tests {
    ($($test:ident $begins:expr;)+) => {
        const PATH_PREFIXES: &[&[&str]] = &[$(&$begins),+];

        $(#[test]
        fn $test() -> Result<()> {
            check_rows(&$begins)
        })+
    };
}

prefix_tests! {
    node_trait_tag_and_role_requests_match_description
        ["/v1/nodes/{node}/traits", "/v1/nodes/{node}/tags", "/v1/nodes/{node}/roles"];
    other_node_requests_match_description ["/v1/nodes"];
    nodegroup_and_cluster_tag_requests_match_description
        ["/v1/clusters/{cluster}/nodegroups", "/v1/clusters/{cluster}/tags"];
    other_cluster_requests_match_description ["/v1/clusters"];
    namespace_content_requests_match_description
        ["/v2/metadefs/namespaces/{namespace}/"];
    other_catalogue_requests_match_description ["/v2"];
    release_requests_match_description ["/v1/releases"];
    template_and_allocation_requests_match_description
        ["/v1/clustertemplates", "/v1/allocations"];
    principal_and_credential_requests_match_description
        ["/v1/principals", "/v1/certificates", "/v1/join-tokens"];
    remaining_requests_match_description ["/"];
}

/// Returns the rows of a test.
fn rows_with_prefix(prefixes: &[&str]) -> Vec<Endpoint> {
    let begins = |row: Endpoint, part: &[&str]| part.iter().any(|begins| row.route().path.starts_with(begins));
    client_rows()
        .filter(|row| PATH_PREFIXES.iter().find(|part| begins(*row, part)).is_some_and(|first| *first == prefixes))
        .collect()
}

#[test]
fn path_prefixes_cover_each_row_once() {
    let mut covered: Vec<Endpoint> = PATH_PREFIXES.iter().flat_map(|part| rows_with_prefix(part)).collect();
    covered.sort_unstable();
    let mut all: Vec<Endpoint> = client_rows().collect();
    all.sort_unstable();
    assert_eq!(covered, all);
}

fn check_rows(prefixes: &[&str]) -> Result<()> {
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "schemathesis", &PACKAGES)?.join("bin");
    let controller = PlainController::start()?;
    let admin = controller.addresses.admin.clone();
    let rows = rows_with_prefix(prefixes);
    ensure!(!rows.is_empty(), "no row's path begins with any of {prefixes:?}");
    let all: Vec<Value> = site().into_iter().chain(rows.iter().copied().flat_map(objects_for_row)).collect();
    post_with(&admin, "/v1/apply", &json!({"objects": all}), &["-H", &format!("Idempotency-Key: {IDEMPOTENCY_KEY}")])?;
    let example = examples().iter().find(|example| example.endpoint == Endpoint::IssueCertificate);
    let certificate = serde_json::from_str(example.context("an example")?.body)?;
    let configured: String =
        rows.iter().map(|row| Ok(row_config(*row, create_for_row(&admin, *row, &certificate)?))).collect::<Result<_>>()?;
    let dir = tempfile::tempdir()?;
    let (configuration, record) = (dir.path().join("schemathesis.toml"), dir.path().join("record.har"));
    std::fs::write(&configuration, configured)?;
    let mut tool = Command::new(programs.join("schemathesis"));
    tool.arg("--config-file").arg(&configuration).args(["run", &format!("{admin}/openapi.json"), "--url", &admin]);
    let (seed, examples) =
        if is_long() { (SeededRng::from_env()?.next_u64() >> 32, LONG_RANDOM_REQUESTS) } else { (SEED, RANDOM_REQUESTS) };
    tool.args(["--phases", "examples,coverage,fuzzing", "--max-examples", examples, "--seed", &seed.to_string()]);
    for row in rows.iter().filter(|row| **row != Endpoint::WatchEvents) {
        tool.args(["--include-operation-id", row.name()]);
    }
    tool.args(["--report", "har", "--report-har-path"]).arg(&record);
    tool.args(["--checks", CHECKS, "--continue-on-failure", "--no-color"]);
    let output = tool.current_dir(dir.path()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(record.exists(), "{text}");
    let successful = successful_rows(&serde_json::from_slice(&std::fs::read(&record)?)?)?;
    let excluded: BTreeSet<Endpoint> = NEVER_SUCCESSFUL.iter().map(|(row, _)| *row).collect();
    let missing: Vec<_> = rows.iter().filter(|row| !successful.contains(row) && !excluded.contains(row)).collect();
    ensure!(output.status.success() && missing.is_empty(), "never done: {missing:?}\n{text}");
    controller.stop()
}

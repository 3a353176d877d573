//! The API as its description says it: `schemathesis` makes requests of the `OpenAPI` document, against a controller that has for each row
//! of the endpoint table the objects that its path names, and looks at each answer. It finds a failure within, a status or body that is not
//! described, a request that the schema allows and that is refused otherwise than as described, and a wrong `Allow`. What it can't find
//! is what it never reaches, so each row has to do what was asked at least once. It is one Python thread, so several of it share the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::chance::{Chance, is_long};
use stemma_tests::plain::Plain;
use stemma_tests::python::environment;
use stemma_wire::endpoint::examples::examples;
use stemma_wire::endpoint::{Endpoint, Found, Listener, find};

const PROGRAMS: [&str; 1] = ["schemathesis==4.32.5"];
/// So many requests of chance it makes of a row, beside the examples and those that cover the row's schema. It is told no time: it would
/// share that out among the rows, and make fewer requests on a busy machine.
const EXAMPLES: &str = "20";
/// The same of a long run.
const LONG_EXAMPLES: &str = "200";
/// The seed of a usual run: it makes the same requests each time, so that it fails by what was changed. A long run draws its seed.
const SEED: u64 = 21;
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      unsupported_method,allow_header_conformance,positive_data_acceptance";
/// The key under which everything is made beforehand.
const KEY: &str = "0193a2d1-7c00-7000-8000-0000000000d5";

/// Rows that may never be answered as done, each with the reason.
const NEVER_DONE: &[(Endpoint, &str)] = &[
    (Endpoint::OpenApi, "it is the document, from which the requests are made"),
    (Endpoint::OwnersRelease, "a release's maps are owned as one: it is refused always"),
    (Endpoint::RefreshNodeRoles, "no extension decides here what a role gives"),
    (Endpoint::PutBlob, "no body that is made up has the hash of its path"),
    (Endpoint::ResizeCluster, "a cluster is never resized"),
    (Endpoint::GetBackup, "it is given to root's socket alone"),
    (Endpoint::WatchEvents, "its answer ends with the client: it is left out"),
];

/// What a part of a path names where each row has no object of its own.
const NAMED: &[(&str, &str)] = &[
    ("group", "web"),
    ("property", "rack"),
    ("object", "disk"),
    ("role", "web"),
    ("task", "motd"),
    ("trait", "CUSTOM_A"),
    ("resource_type", "OS::Nova::Server"),
    ("schema", "namespace"),
    ("request", KEY),
];

/// Each 4xx stands in the description by its status, row by row.
const EXPECTED: [u16; 9] = [400, 401, 403, 404, 406, 409, 412, 413, 415];

/// What all rows have in common.
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

/// The names of the parts of a row's path.
fn parts(row: Endpoint) -> impl Iterator<Item = &'static str> {
    row.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The objects that a row's path names, which are called as the row: what one row takes away, no other misses.
fn objects(row: Endpoint) -> Vec<Value> {
    let name = row.name();
    // Keys that examples hand to another manager, or replace.
    let labels = json!({"ntp": "1", "room": "7", "row": "2", "slot": "5", "site": "a"});
    let is_full = !name.starts_with("Create");
    let of = |part| match part {
        // A task is shown where a node has it.
        "node" | "task" => Some(
            json!({"kind": "Node", "name": name, "nodegroup": "prod/web", "resource_class": name, "roles": ["web"],
            "traits": ["CUSTOM_A"], "labels": labels}),
        ),
        "cluster" => Some(
            json!({"kind": "Cluster", "name": name, "cluster_template": "base", "labels": labels, "merge_labels": true}),
        ),
        "group" => Some(json!({"kind": "NodeGroup", "cluster": name, "name": "web", "labels": labels})),
        "template" => Some(json!({"kind": "ClusterTemplate", "name": name, "labels": labels})),
        "release" => Some(release(name, "1")),
        "namespace" if is_full => Some(json!({"kind": "Namespace", "namespace": name,
            "resource_type_associations": [{"name": "OS::Nova::Server"}], "properties": {"rack": {"title": "Rack", "type": "string"}},
            "objects": [{"name": "disk"}], "tags": [{"name": "cache"}]})),
        "namespace" => Some(json!({"kind": "Namespace", "namespace": name})),
        "rule" => Some(
            json!({"kind": "InspectionRule", "name": name, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}),
        ),
        _ => None,
    };
    let mut all: Vec<Value> = parts(row).filter_map(of).collect();
    // The node that its example names holds a tag of the cluster.
    if row == Endpoint::ChoosePrimary {
        all.push(json!({"kind": "NodeGroup", "cluster": name, "name": "web", "roles": ["web"]}));
        all.push(json!({"kind": "Node", "name": "web-1", "nodegroup": format!("{name}/web"), "roles": ["web"]}));
    }
    all
}

/// Makes what a row's path names and no manifest holds. The values of the parts that have another name than the row.
fn make(admin: &str, row: Endpoint, certificate: &Value) -> Result<BTreeMap<&'static str, String>> {
    let (name, path) = (row.name(), row.route().path);
    let mut named = BTreeMap::new();
    let text = |made: Value, field: &str| made[field].as_str().map(str::to_owned).context("a name");
    for part in parts(row) {
        match part {
            "allocation" => drop(post(admin, "/v1/allocations", &json!({"name": name, "resource_class": "none"}))?),
            "release" => drop(named.insert(part, format!("{name}@1"))),
            "principal" => drop(post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?),
            "certificate" => {
                post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?;
                let asked = json!({"principal": name, "csr": certificate["csr"]});
                named.insert(part, text(post(admin, "/v1/certificates", &asked)?, "serial")?);
            }
            "token" if path.starts_with("/v1/principals") => {
                named.insert(part, text(post(admin, &format!("/v1/principals/{name}/tokens"), &json!({}))?, "id")?);
            }
            "token" => {
                named.insert(part, text(post(admin, "/v1/join-tokens", &json!({"nodegroup": "prod/web"}))?, "id")?);
            }
            "tag" => {
                let (tag, at) = match path.split('/').nth(2) {
                    Some("nodes") => ("web", None),
                    // What the example's node holds.
                    Some("clusters") if row == Endpoint::ChoosePrimary => ("web", None),
                    Some("clusters") => ("canary", Some(format!("/v1/clusters/{name}/tags"))),
                    Some("releases") => ("cache", Some(format!("/v1/releases/{name}@1/tags"))),
                    _ => ("cache", None),
                };
                if let Some(at) = at {
                    post(admin, &at, &json!({"name": tag}))?;
                }
                named.insert(part, tag.to_owned());
            }
            _ => {}
        }
    }
    if path.ends_with("/allocation") {
        post(admin, "/v1/allocations", &json!({"name": name, "resource_class": name}))?;
    }
    Ok(named)
}

/// How a row is asked: with the names of what was made for it.
fn configured(row: Endpoint, mut named: BTreeMap<&'static str, String>) -> String {
    // Its example keeps the name of the namespace that the example of CreateNamespace made.
    if row == Endpoint::PutNamespace {
        named.insert("namespace", "Site".to_owned());
    }
    for part in parts(row).filter(|part| *part != "map" && *part != "hash") {
        let known = NAMED.iter().find(|(known, _)| *known == part).map_or(row.name(), |(_, name)| name);
        named.entry(part).or_insert_with(|| known.to_owned());
    }
    let mut parameters: Vec<String> =
        named.into_iter().map(|(part, name)| format!("\"path.{part}\" = \"{name}\"")).collect();
    match row {
        Endpoint::ValidateNamedNode => {
            parameters.push(format!("\"query.node\" = \"{}\"", Endpoint::ValidateNode.name()));
        }
        Endpoint::ExplainKey | Endpoint::ExplainNode => parameters.push("\"query.label\" = \"tier\"".to_owned()),
        // Those of the other rows go on to be there.
        Endpoint::DeleteInspectionRules => parameters.push("\"query.dry_run\" = true".to_owned()),
        _ => {}
    }
    let expected = EXPECTED.iter().chain(row.route().since.map(|_| &405));
    let expected: String = expected.map(|status| format!(", {status}")).collect();
    format!(
        "[[operations]]\ninclude-operation-id = \"{}\"\nparameters = {{ {} }}\n\
         checks.positive_data_acceptance.expected-statuses = [\"2xx\"{expected}]\n",
        row.name(),
        parameters.join(", ")
    )
}

/// The rows that were answered as done, of a record of all requests.
fn done(record: &Value) -> Result<BTreeSet<Endpoint>> {
    let entries = record["log"]["entries"].as_array().context("entries")?.iter();
    let done = entries.filter(|entry| matches!(entry["response"]["status"].as_u64(), Some(200..300)));
    let row = |entry: &Value| {
        let (method, url) = (entry["request"]["method"].as_str()?, entry["request"]["url"].as_str()?);
        let path = url.split("://").nth(1)?.split_once('/')?.1.split('?').next()?;
        match find(Listener::Admin, method, &format!("/{path}")) {
            Found::Route(row, _) => Some(row),
            Found::OtherMethods(_) | Found::Nothing => None,
        }
    };
    Ok(done.filter_map(row).collect())
}

pub(crate) fn post(address: &str, path: &str, body: &Value) -> Result<Value> {
    post_with(address, path, body, &[])
}

fn post_with(address: &str, path: &str, body: &Value, more: &[&str]) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", "Content-Type: application/json", "--data"]);
    let output = curl.arg(body.to_string()).arg(format!("{address}{path}")).args(more).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The rows that a client may ask.
fn rows() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|row| row.route().listener == Listener::Admin)
}

/// Shares the rows out among tests, which run side by side, each against a controller of its own: a row is the first test's of whose
/// beginnings its path has one. Rows stand together that make what others of them are asked with.
macro_rules! parts {
    ($($test:ident $begins:expr;)+) => {
        const PARTS: &[&[&str]] = &[$(&$begins),+];

        $(#[test]
        fn $test() -> Result<()> {
            are_answered_as_described(&$begins)
        })+
    };
}

parts! {
    requests_of_nodes_traits_tags_and_roles_that_the_description_allows_are_answered_as_it_says
        ["/v1/nodes/{node}/traits", "/v1/nodes/{node}/tags", "/v1/nodes/{node}/roles"];
    other_requests_of_nodes_that_the_description_allows_are_answered_as_it_says ["/v1/nodes"];
    requests_of_node_groups_and_clusters_tags_that_the_description_allows_are_answered_as_it_says
        ["/v1/clusters/{cluster}/nodegroups", "/v1/clusters/{cluster}/tags"];
    other_requests_of_clusters_that_the_description_allows_are_answered_as_it_says ["/v1/clusters"];
    requests_of_what_stands_in_a_namespace_that_the_description_allows_are_answered_as_it_says
        ["/v2/metadefs/namespaces/{namespace}/"];
    other_requests_of_the_catalogue_that_the_description_allows_are_answered_as_it_says ["/v2"];
    requests_of_releases_that_the_description_allows_are_answered_as_it_says ["/v1/releases"];
    requests_of_templates_and_allocations_that_the_description_allows_are_answered_as_it_says
        ["/v1/clustertemplates", "/v1/allocations"];
    requests_of_principals_and_what_they_hold_that_the_description_allows_are_answered_as_it_says
        ["/v1/principals", "/v1/certificates", "/v1/join-tokens"];
    all_other_requests_that_the_description_allows_are_answered_as_it_says ["/"];
}

/// The rows of a part.
fn rows_of(part: &[&str]) -> Vec<Endpoint> {
    let begins = |row: Endpoint, part: &[&str]| part.iter().any(|begins| row.route().path.starts_with(begins));
    rows().filter(|row| PARTS.iter().find(|part| begins(*row, part)).is_some_and(|its| *its == part)).collect()
}

#[test]
fn the_parts_have_each_row_once() {
    let mut shared_out: Vec<Endpoint> = PARTS.iter().flat_map(|part| rows_of(part)).collect();
    shared_out.sort_unstable();
    let mut all: Vec<Endpoint> = rows().collect();
    all.sort_unstable();
    assert_eq!(shared_out, all);
}

fn are_answered_as_described(part: &[&str]) -> Result<()> {
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "schemathesis", &PROGRAMS)?.join("bin");
    let controller = Plain::start()?;
    let admin = controller.bound.admin.clone();
    let rows = rows_of(part);
    ensure!(!rows.is_empty(), "no row's path begins with any of {part:?}");
    let all: Vec<Value> = site().into_iter().chain(rows.iter().copied().flat_map(objects)).collect();
    post_with(&admin, "/v1/apply", &json!({"objects": all}), &["-H", &format!("Idempotency-Key: {KEY}")])?;
    let asked = examples().iter().find(|example| example.endpoint == Endpoint::IssueCertificate);
    let certificate = serde_json::from_str(asked.context("an example")?.body)?;
    let configured: String =
        rows.iter().map(|row| Ok(configured(*row, make(&admin, *row, &certificate)?))).collect::<Result<_>>()?;
    let dir = tempfile::tempdir()?;
    let (configuration, record) = (dir.path().join("schemathesis.toml"), dir.path().join("record.har"));
    std::fs::write(&configuration, configured)?;
    let mut tool = Command::new(programs.join("schemathesis"));
    tool.arg("--config-file").arg(&configuration).args(["run", &format!("{admin}/openapi.json"), "--url", &admin]);
    let (seed, examples) = if is_long() { (Chance::seeded()?.bits() >> 32, LONG_EXAMPLES) } else { (SEED, EXAMPLES) };
    tool.args(["--phases", "examples,coverage,fuzzing", "--max-examples", examples, "--seed", &seed.to_string()]);
    for row in rows.iter().filter(|row| **row != Endpoint::WatchEvents) {
        tool.args(["--include-operation-id", row.name()]);
    }
    tool.args(["--report", "har", "--report-har-path"]).arg(&record);
    tool.args(["--checks", CHECKS, "--continue-on-failure", "--no-color"]);
    let output = tool.current_dir(dir.path()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(record.exists(), "{said}");
    let done = done(&serde_json::from_slice(&std::fs::read(&record)?)?)?;
    let listed: BTreeSet<Endpoint> = NEVER_DONE.iter().map(|(row, _)| *row).collect();
    let missing: Vec<_> = rows.iter().filter(|row| !done.contains(row) && !listed.contains(row)).collect();
    ensure!(output.status.success() && missing.is_empty(), "never done: {missing:?}\n{said}");
    controller.stop()
}

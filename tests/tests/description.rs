//! The API as its description says it: `schemathesis` makes requests of the `OpenAPI` document, against a controller that has an object of
//! every kind, and looks at each answer. It finds a failure within, a status or body that is not described, a request that the schema
//! allows and that is refused otherwise than as described, and a wrong `Allow`.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain::Plain;
use stemma_tests::python::environment;

const PROGRAMS: [&str; 1] = ["schemathesis==4.32.5"];
/// How long it makes requests.
const SECONDS: &str = "120";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      unsupported_method,allow_header_conformance,positive_data_acceptance";

/// What is there beforehand, and which of it is deleted: so that other requests go on to find what they name. Each 4xx stands in the
/// description by its status, row by row.
const CONFIGURATION: &str = r#"
[parameters]
"path.node" = "web-1"
"path.cluster" = "prod"
"path.template" = "base"
"path.group" = "web"
"path.release" = "site@1"
"path.allocation" = "a1"
"path.namespace" = "Site"
"path.property" = "tier"
"path.object" = "disk"
"path.tag" = "web"
"path.trait" = "CUSTOM_A"
"path.resource_type" = "OS::Nova::Server"
"path.schema" = "namespace"

[checks]
positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 406, 409, 412, 413, 415]

[[operations]]
include-method = "DELETE"
parameters = { "path.node" = "spare", "path.cluster" = "spare", "path.template" = "spare", "path.group" = "spare", "path.release" = "spare", "path.namespace" = "Spare" }
"#;

fn site() -> Value {
    json!({"objects": [
        {"kind": "Release", "name": "site", "version": "1", "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {}},
         "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]},
        {"kind": "Release", "name": "spare"},
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "gold"}},
        {"kind": "ClusterTemplate", "name": "spare"},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base"},
        {"kind": "Cluster", "name": "spare"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]},
        {"kind": "Node", "name": "web-1", "nodegroup": "prod/web", "resource_class": "small"},
        {"kind": "Node", "name": "spare"},
        {"kind": "Namespace", "namespace": "Site", "visibility": "public", "properties": {"tier": {"title": "Tier", "type": "string"}},
         "objects": [{"name": "disk"}], "tags": [{"name": "web"}]},
        {"kind": "Namespace", "namespace": "Spare"},
    ]})
}

fn post(address: &str, path: &str, body: &Value) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", "Content-Type: application/json", "--data"]);
    let output = curl.arg(body.to_string()).arg(format!("{address}{path}")).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

#[test]
fn each_request_that_the_description_allows_is_answered_as_it_says() -> Result<()> {
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "schemathesis", &PROGRAMS)?.join("bin");
    let controller = Plain::start()?;
    let admin = controller.bound.admin.clone();
    post(&admin, "/v1/apply", &site())?;
    post(&admin, "/v1/allocations", &json!({"name": "a1", "resource_class": "small"}))?;
    let dir = tempfile::tempdir()?;
    let configuration = dir.path().join("schemathesis.toml");
    std::fs::write(&configuration, CONFIGURATION)?;
    let mut tool = Command::new(programs.join("schemathesis"));
    tool.arg("--config-file").arg(&configuration).args(["run", &format!("{admin}/openapi.json"), "--url", &admin]);
    tool.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--max-time", SECONDS]);
    // Its answer ends with the client.
    tool.args(["--exclude-path", "/v1/events"]);
    tool.args(["--checks", CHECKS, "--continue-on-failure", "--no-color", "--warnings", "off"]);
    let output = tool.current_dir(dir.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    controller.stop()
}

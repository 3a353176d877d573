//! Tests the API against its description. The tool `schemathesis` generates requests from the `OpenAPI` document and
//! checks each response. Before that, the test creates the objects in their paths. The tool finds internal errors,
//! statuses and bodies that are not described, valid requests that are refused in another way than described, and a
//! wrong `Allow`. Each endpoint outside `OPTIONAL_ENDPOINTS` must succeed at least once, because the tool cannot check a
//! response that it does not get. The tool uses one thread, so several tests divide the endpoints and run in parallel.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::plain_controller::PlainController;
use stemma_tests::python::environment;
use stemma_tests::seed::{SeededRng, is_long};
use stemma_wire::endpoint::examples::examples;
use stemma_wire::endpoint::{Endpoint, RouteMatch, SocketKind, find_route};

const PACKAGES: [&str; 1] = ["schemathesis==4.32.5"];
/// Maximum number of random requests per endpoint, in addition to the examples and the requests that cover the schema.
/// There is no time limit, because the tool `schemathesis` would then make fewer requests on a busy machine.
const RANDOM_REQUESTS: &str = "20";
/// Maximum number of random requests per endpoint in a long run.
const LONG_RANDOM_REQUESTS: &str = "200";
/// The seed of a usual run. The requests are always the same, so only a change of the code can make the run fail. A
/// long run uses a new seed.
const SEED: u64 = 21;
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      unsupported_method,allow_header_conformance,positive_data_acceptance";
/// The idempotency key of the apply that creates the objects. It is also the value of the path parameter `request`.
const IDEMPOTENCY_KEY: &str = "0193a2d1-7c00-7000-8000-0000000000d5";

/// Endpoints that need not succeed, each with the reason.
const OPTIONAL_ENDPOINTS: &[(Endpoint, &str)] = &[
    (Endpoint::OpenApi, "the tool reads this document, and sends no other request for it"),
    (Endpoint::OwnersRelease, "all maps of a release have one owner, so a transfer is always refused"),
    (Endpoint::RefreshNodeRoles, "no extension decides the tags of a role in this test"),
    (Endpoint::PutBlob, "a generated body does not have the hash in the path"),
    (Endpoint::ResizeCluster, "a cluster is never resized"),
    (Endpoint::GetBackup, "only root's socket serves it"),
    (Endpoint::WatchEvents, "the response has no end, so the tool does not send the request"),
    (Endpoint::RebootNode, "no host of this test is connected, so a reboot is always refused"),
];

/// Values of path parameters: parameter, value. A value from `create_objects_in_path` has priority. Every other
/// parameter except `map` and `hash` is the name of the endpoint, because each endpoint has objects of its name.
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

/// Statuses of client errors that a valid request may get. The description lists the statuses of each endpoint, and
/// another check of the tool `schemathesis` compares the responses with that list.
const CLIENT_ERRORS: [u16; 9] = [400, 401, 403, 404, 406, 409, 412, 413, 415];

/// Returns the manifests of the objects that all endpoints share.
fn shared_objects() -> Vec<Value> {
    let site = json!([
        release_manifest("site", "1"),
        {"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"tier": "gold"}},
        {"kind": "Cluster", "name": "prod", "cluster_template": "base"},
        {"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]},
        {"kind": "Namespace", "namespace": "Labels", "resource_type_associations": [{"name": "Stemma::Label"}],
         "properties": {"tier": {"title": "Tier", "type": "string"}}},
    ]);
    site.as_array().cloned().unwrap_or_default()
}

/// Returns the manifest of a release with one role, one tag and one task.
fn release_manifest(name: &str, version: &str) -> Value {
    json!({"kind": "Release", "name": name, "version": version, "roles": {"web": {"tags": ["web"]}}, "tags": {"web": {"has_primary": true}},
        "tasks": [{"id": "motd", "type": "file", "tags": ["web"], "parameters": {"path": "/etc/motd", "content": "x"}}]})
}

/// Returns the names of the parameters in an endpoint's path.
fn path_parameters(endpoint: Endpoint) -> impl Iterator<Item = &'static str> {
    endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// Returns the manifests of the objects in an endpoint's path. The objects have the endpoint's name, so that a request
/// to one endpoint does not delete the objects of another.
fn objects_for_endpoint(endpoint: Endpoint) -> Vec<Value> {
    let name = endpoint.name();
    // The example requests transfer these keys to another manager, or replace them.
    let labels = json!({"ntp": "1", "room": "7", "row": "2", "slot": "5", "site": "a"});
    // An endpoint that creates contents of a namespace needs an empty namespace.
    let has_contents = !name.starts_with("Create");
    let object_for = |parameter| match parameter {
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
        "release" => Some(release_manifest(name, "1")),
        "namespace" if has_contents => Some(json!({"kind": "Namespace", "namespace": name,
            "resource_type_associations": [{"name": "OS::Nova::Server"}], "properties": {"rack": {"title": "Rack", "type": "string"}},
            "objects": [{"name": "disk"}], "tags": [{"name": "cache"}]})),
        "namespace" => Some(json!({"kind": "Namespace", "namespace": name})),
        "rule" => Some(
            json!({"kind": "InspectionRule", "name": name, "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]}),
        ),
        _ => None,
    };
    let mut objects: Vec<Value> = path_parameters(endpoint).filter_map(object_for).collect();
    // The example of this endpoint names a node, which must have a tag of the cluster.
    if endpoint == Endpoint::ChoosePrimary {
        objects.push(json!({"kind": "NodeGroup", "cluster": name, "name": "web", "roles": ["web"]}));
        objects.push(json!({"kind": "Node", "name": "web-1", "nodegroup": format!("{name}/web"), "roles": ["web"]}));
    }
    objects
}

/// Creates the objects in an endpoint's path that cannot be in a manifest. Returns the values of the path parameters
/// that differ from the endpoint's name. `certificate` is the example body of a request for a certificate.
fn create_objects_in_path(admin: &str, endpoint: Endpoint, certificate: &Value) -> Result<BTreeMap<&'static str, String>> {
    let (name, path) = (endpoint.name(), endpoint.route().path);
    let mut values = BTreeMap::new();
    let text_field = |created: Value, field: &str| created[field].as_str().map(str::to_owned).context("a name");
    for parameter in path_parameters(endpoint) {
        match parameter {
            "allocation" => drop(post(admin, "/v1/allocations", &json!({"name": name, "resource_class": "none"}))?),
            "release" => drop(values.insert(parameter, format!("{name}@1"))),
            "principal" => drop(post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?),
            "certificate" => {
                post(admin, "/v1/principals", &json!({"name": name, "role": "viewer"}))?;
                let request = json!({"principal": name, "csr": certificate["csr"]});
                values.insert(parameter, text_field(post(admin, "/v1/certificates", &request)?, "serial")?);
            }
            "token" if path.starts_with("/v1/principals") => {
                values.insert(parameter, text_field(post(admin, &format!("/v1/principals/{name}/tokens"), &json!({}))?, "id")?);
            }
            "token" => {
                values.insert(parameter, text_field(post(admin, "/v1/join-tokens", &json!({"nodegroup": "prod/web"}))?, "id")?);
            }
            "tag" => {
                let (tag, tags_path) = match path.split('/').nth(2) {
                    Some("nodes") => ("web", None),
                    // The example names a node that has the tag `web`.
                    Some("clusters") if endpoint == Endpoint::ChoosePrimary => ("web", None),
                    Some("clusters") => ("canary", Some(format!("/v1/clusters/{name}/tags"))),
                    Some("releases") => ("cache", Some(format!("/v1/releases/{name}@1/tags"))),
                    _ => ("cache", None),
                };
                if let Some(tags_path) = tags_path {
                    post(admin, &tags_path, &json!({"name": tag}))?;
                }
                values.insert(parameter, tag.to_owned());
            }
            _ => {}
        }
    }
    // These endpoints need a node with an allocation. The node in the path has this resource class.
    if path.ends_with("/allocation") {
        post(admin, "/v1/allocations", &json!({"name": name, "resource_class": name}))?;
    }
    Ok(values)
}

/// Returns the part of the configuration of `schemathesis` for an endpoint. `values` are the values of its path
/// parameters.
fn endpoint_config(endpoint: Endpoint, mut values: BTreeMap<&'static str, String>) -> String {
    // The example of PutNamespace contains the namespace that the example of CreateNamespace creates.
    if endpoint == Endpoint::PutNamespace {
        values.insert("namespace", "Site".to_owned());
    }
    // `schemathesis` generates values of `map` and `hash` from the description.
    for parameter in path_parameters(endpoint).filter(|parameter| *parameter != "map" && *parameter != "hash") {
        let value = PATH_VALUES.iter().find(|(name, _)| *name == parameter).map_or(endpoint.name(), |(_, value)| value);
        values.entry(parameter).or_insert_with(|| value.to_owned());
    }
    let mut parameters: Vec<String> =
        values.into_iter().map(|(parameter, value)| format!("\"path.{parameter}\" = \"{value}\"")).collect();
    match endpoint {
        Endpoint::ValidateNamedNode => {
            parameters.push(format!("\"query.node\" = \"{}\"", Endpoint::ValidateNode.name()));
        }
        Endpoint::ExplainKey | Endpoint::ExplainNode => parameters.push("\"query.label\" = \"tier\"".to_owned()),
        // Without `dry_run`, the request would delete the rules of the other endpoints.
        Endpoint::DeleteInspectionRules => parameters.push("\"query.dry_run\" = true".to_owned()),
        _ => {}
    }
    // An endpoint with a minimum API version may refuse a request for an older version with 405.
    let expected = CLIENT_ERRORS.iter().chain(endpoint.route().min_version.map(|_| &405));
    let expected: String = expected.map(|status| format!(", {status}")).collect();
    format!(
        "[[operations]]\ninclude-operation-id = \"{}\"\nparameters = {{ {} }}\n\
         checks.positive_data_acceptance.expected-statuses = [\"2xx\"{expected}]\n",
        endpoint.name(),
        parameters.join(", ")
    )
}

/// Returns the endpoints that succeeded at least once. `record` contains all requests of `schemathesis`, in format HAR.
fn successful_endpoints(record: &Value) -> Result<BTreeSet<Endpoint>> {
    let entries = record["log"]["entries"].as_array().context("entries")?.iter();
    let successful = entries.filter(|entry| matches!(entry["response"]["status"].as_u64(), Some(200..300)));
    let endpoint = |entry: &Value| {
        let (method, url) = (entry["request"]["method"].as_str()?, entry["request"]["url"].as_str()?);
        let path = url.split("://").nth(1)?.split_once('/')?.1.split('?').next()?;
        match find_route(SocketKind::Admin, method, &format!("/{path}")) {
            RouteMatch::Route(endpoint, _) => Some(endpoint),
            RouteMatch::MethodNotAllowed(_) | RouteMatch::NotFound => None,
        }
    };
    Ok(successful.filter_map(endpoint).collect())
}

/// Sends a POST request with a JSON body, which must succeed. Returns the JSON response.
pub(crate) fn post(address: &str, path: &str, body: &Value) -> Result<Value> {
    post_with(address, path, body, &[])
}

/// Sends a POST request with a JSON body and these options of `curl`. The request must succeed. Returns the JSON
/// response.
fn post_with(address: &str, path: &str, body: &Value, options: &[&str]) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail-with-body", "-H", "Content-Type: application/json", "--data"]);
    let output = curl.arg(body.to_string()).arg(format!("{address}{path}")).args(options).output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the endpoints of the admin listener.
fn admin_endpoints() -> impl Iterator<Item = Endpoint> {
    Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == SocketKind::Admin)
}

/// Defines one test for each list of path prefixes. The tests run in parallel, each against a controller of its own. An
/// endpoint belongs to the first test that has a prefix of its path. The lists must put an endpoint whose requests
/// create objects for other endpoints into the same test as these endpoints.
macro_rules! prefix_tests {
    ($($test:ident $begins:expr;)+) => {
        const PATH_PREFIXES: &[&[&str]] = &[$(&$begins),+];

        $(#[test]
        fn $test() -> Result<()> {
            check_endpoints(&$begins)
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

/// Returns the endpoints of the test with this list of path prefixes.
fn endpoints_with_prefix(prefixes: &[&str]) -> Vec<Endpoint> {
    let has_prefix = |endpoint: Endpoint, list: &[&str]| list.iter().any(|prefix| endpoint.route().path.starts_with(prefix));
    admin_endpoints()
        .filter(|endpoint| PATH_PREFIXES.iter().find(|list| has_prefix(*endpoint, list)).is_some_and(|first| *first == prefixes))
        .collect()
}

#[test]
fn path_prefixes_cover_each_endpoint_once() {
    let mut covered: Vec<Endpoint> = PATH_PREFIXES.iter().flat_map(|prefixes| endpoints_with_prefix(prefixes)).collect();
    covered.sort_unstable();
    let mut endpoints: Vec<Endpoint> = admin_endpoints().collect();
    endpoints.sort_unstable();
    assert_eq!(covered, endpoints);
}

/// Tests the endpoints with these path prefixes. Starts a controller, creates the objects in the paths, and runs
/// `schemathesis`. Fails if this tool reports an error, or if an endpoint outside [`OPTIONAL_ENDPOINTS`] did not succeed.
fn check_endpoints(prefixes: &[&str]) -> Result<()> {
    let programs = environment(env!("CARGO_TARGET_TMPDIR"), "schemathesis", &PACKAGES)?.join("bin");
    let controller = PlainController::start()?;
    let admin = controller.addresses.admin.clone();
    let endpoints = endpoints_with_prefix(prefixes);
    ensure!(!endpoints.is_empty(), "no endpoint's path begins with any of {prefixes:?}");
    let objects: Vec<Value> =
        shared_objects().into_iter().chain(endpoints.iter().copied().flat_map(objects_for_endpoint)).collect();
    post_with(&admin, "/v1/apply", &json!({"objects": objects}), &["-H", &format!("Idempotency-Key: {IDEMPOTENCY_KEY}")])?;
    // The body of this example contains a certificate request.
    let example = examples().iter().find(|example| example.endpoint == Endpoint::IssueCertificate);
    let certificate = serde_json::from_str(example.context("an example")?.body)?;
    let config_text: String = endpoints
        .iter()
        .map(|endpoint| Ok(endpoint_config(*endpoint, create_objects_in_path(&admin, *endpoint, &certificate)?)))
        .collect::<Result<_>>()?;
    let dir = tempfile::tempdir()?;
    let (config_path, record_path) = (dir.path().join("schemathesis.toml"), dir.path().join("record.har"));
    std::fs::write(&config_path, config_text)?;
    let mut tool = Command::new(programs.join("schemathesis"));
    tool.arg("--config-file").arg(&config_path).args(["run", &format!("{admin}/openapi.json"), "--url", &admin]);
    let (seed, request_count) =
        if is_long() { (SeededRng::from_env()?.next_u64() >> 32, LONG_RANDOM_REQUESTS) } else { (SEED, RANDOM_REQUESTS) };
    tool.args(["--phases", "examples,coverage,fuzzing", "--max-examples", request_count, "--seed", &seed.to_string()]);
    for endpoint in endpoints.iter().filter(|endpoint| **endpoint != Endpoint::WatchEvents) {
        tool.args(["--include-operation-id", endpoint.name()]);
    }
    tool.args(["--report", "har", "--report-har-path"]).arg(&record_path);
    tool.args(["--checks", CHECKS, "--continue-on-failure", "--no-color"]);
    let output = tool.current_dir(dir.path()).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(record_path.exists(), "{stdout}");
    let successful = successful_endpoints(&serde_json::from_slice(&std::fs::read(&record_path)?)?)?;
    let excluded: BTreeSet<Endpoint> = OPTIONAL_ENDPOINTS.iter().map(|(endpoint, _)| *endpoint).collect();
    let unsuccessful: Vec<_> =
        endpoints.iter().filter(|endpoint| !successful.contains(endpoint) && !excluded.contains(endpoint)).collect();
    ensure!(output.status.success() && unsuccessful.is_empty(), "never done: {unsuccessful:?}\n{stdout}");
    controller.stop()
}

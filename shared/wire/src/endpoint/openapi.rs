//! Builds the `OpenAPI` description of the API from the table of endpoints: paths, methods, parameters, media types,
//! summaries and callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::examples::{Example, examples};
use super::{BodyType, CallerClass, Endpoint, Method, Route, SocketKind, schema};
use crate::error::ErrorType;

/// Returns the `OpenAPI` 3.1 description of the admin listener's API. `version` is the version of Stemma. The
/// controller serves the description at `/openapi.json`. The file `docs/openapi.json` is a copy of it.
pub fn openapi(version: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in Endpoint::ALL.iter().filter(|endpoint| endpoint.route().listener == SocketKind::Admin) {
        let route = endpoint.route();
        let path = paths.entry(route.path).or_insert_with(|| json!({"parameters": path_parameters(route.path)}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(*endpoint, route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Stemma", "version": version},
        "paths": paths,
        "components": {"schemas": schema::all_schemas(), "responses": error_responses(), "securitySchemes": security_schemes()}
    })
}

/// Returns the three ways to authenticate on the admin listener. A caller uses one of these ways. The `CallerSet` of an
/// endpoint decides which authenticated callers may use the endpoint.
fn security_schemes() -> Value {
    json!({
        "certificate": {"type": "mutualTLS", "description": "A client certificate of the fleet's admin issuer."},
        "bearer": {"type": "http", "scheme": "bearer", "description": "A principal's token, as ID.SECRET."},
        "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token", "description": "The same, as OpenStack's clients send it."},
    })
}

/// Returns the `OpenAPI` operation of one endpoint: callers, responses, parameters, request body and examples. `route`
/// is the row of the endpoint in the table.
fn operation(endpoint: Endpoint, route: &Route) -> Value {
    let callers: Vec<_> = CallerClass::ALL.into_iter().filter(|caller| endpoint.allows(*caller)).map(caller_name).collect();
    let success_response = |status: &u16| {
        let schema = route.accepted_schema.filter(|_| *status == 202).or(route.response_schema);
        (status.to_string(), json!({"description": "Done.", "content": body_content(route.response, schema)}))
    };
    let success_responses = route.statuses.iter().map(success_response);
    let success_responses = success_responses.chain(preferred_response(endpoint));
    let error_response = |status: u16| (status.to_string(), json!({"$ref": format!("#/components/responses/{status}")}));
    let examples = || examples().iter().filter(|example| example.endpoint == endpoint);
    let refusal_statuses = error_statuses(endpoint).into_iter().filter(|status| !route.statuses.contains(status));
    let responses: Map<String, Value> = success_responses.chain(refusal_statuses.map(error_response)).collect();
    let mut operation = json!({
        "operationId": endpoint.name(),
        "summary": route.summary,
        "x-callers": callers,
        "security": if endpoint.allows(CallerClass::Nobody) { json!([]) } else { json!([{"certificate": []}, {"bearer": []}, {"token": []}]) },
        "responses": responses,
    });
    let query_parameters = route.query.parameter_names().chain(endpoint.has_dry_run().then_some("dry_run"));
    let query_parameters = query_parameters.map(|name| parameter(name, "query"));
    let parameters: Vec<Value> = query_parameters.chain(header_parameters(endpoint)).collect();
    let example_requests =
        examples().map(|example| json!({"request": format!("{} {}", example.method, example.path), "status": example.status}));
    operation["x-examples"] = example_requests.collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if route.request != BodyType::Nothing {
        let mut body = body_content(route.request, route.request_schema);
        for example in examples() {
            add_example(&mut body, example);
        }
        operation["requestBody"] = json!({"content": body});
    }
    operation
}

/// Sets the body of an example as the `example` of its media type in `content`, instead of that of an earlier example.
/// Does nothing if `content` has no entry of the media type, or if the body is not JSON.
fn add_example(content: &mut Value, example: &Example) {
    let media_type = example.headers.iter().find(|(name, _)| *name == "Content-Type").map(|(_, value)| *value);
    if let Some(media) = content.get_mut(media_type.unwrap_or("application/json"))
        && let Ok(body) = serde_json::from_str::<Value>(example.body)
    {
        media["example"] = body;
    }
}

/// Returns the HTTP statuses with which an endpoint may respond, for success and for errors.
#[cfg(test)]
pub(super) fn response_statuses(endpoint: Endpoint) -> BTreeSet<u16> {
    let successes = endpoint.route().statuses.iter().copied().chain(endpoint.representation_status());
    successes.chain(error_statuses(endpoint)).collect()
}

/// Returns the status and description of the response to a request with `Prefer: return=representation`. Returns `None`
/// if the endpoint does not support this header.
fn preferred_response(endpoint: Endpoint) -> Option<(String, Value)> {
    let response = json!({
        "description": "The changes of the write, for a request with `Prefer: return=representation`.",
        "headers": {"Preference-Applied": {"schema": {"type": "string"}}},
        "content": body_content(BodyType::Json, Some("Changed")),
    });
    endpoint.representation_status().map(|status| (status.to_string(), response))
}

/// Returns the HTTP statuses with which an endpoint may refuse a request. Every endpoint has the six initial ones.
fn error_statuses(endpoint: Endpoint) -> BTreeSet<u16> {
    let route = endpoint.route();
    let mut statuses = BTreeSet::from([400, 406, 408, 431, 500, 503]);
    statuses.extend(route.min_version.map(|version| version.refusal.status()));
    if !endpoint.allows(CallerClass::Nobody) {
        statuses.extend([401, 403, 404]);
    }
    if route.request != BodyType::Nothing {
        statuses.extend([413, 415]);
    }
    if route.method != Method::Get {
        statuses.extend([409, 412]);
    }
    if may_call_extension(endpoint) {
        statuses.insert(ErrorType::ExtensionFailed.status());
    }
    if route.query.parameter_names().any(|name| name == "at_least") {
        statuses.insert(ErrorType::RevisionAhead.status());
    }
    if route.response == BodyType::Events {
        statuses.extend([ErrorType::RevisionAhead, ErrorType::EventsCompacted].map(ErrorType::status));
    }
    statuses
}

/// Returns whether a request to this endpoint may make the controller call an extension. Extensions decide which tags a
/// role gives to a node, so each write below the path of an object that decides roles counts.
fn may_call_extension(endpoint: Endpoint) -> bool {
    let route = endpoint.route();
    let paths = ["/v1/nodes", "/v1/cluster", "/v1/releases", "/v1/allocations", "/v1/apply"];
    route.method != Method::Get && paths.iter().any(|path| route.path.starts_with(path))
}

/// Returns the description of the error response of each HTTP status. A description lists all error types with that
/// status.
fn error_responses() -> Map<String, Value> {
    let mut error_types: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for error_type in ErrorType::ALL {
        error_types.entry(error_type.status()).or_default().push(format!("`{}`: {}", error_type.name(), error_type.title()));
    }
    let response = |(status, error_types): (u16, Vec<String>)| {
        let body = json!({"application/json": {"schema": schema::schema_reference("Error")}});
        (status.to_string(), json!({"description": error_types.join("\n\n"), "content": body}))
    };
    error_types.into_iter().map(response).collect()
}

/// Returns the media types of a body, each with its schema. A JSON patch and a server-side apply have the schema of
/// their format. Any other media type, also that of a merge patch, has the schema with the name `schema`.
fn body_content(kind: BodyType, schema: Option<&'static str>) -> Value {
    let media_type_entry = |media_type: &&'static str| {
        let schema = match (*media_type, kind) {
            ("application/apply-patch+json", _) => Some("ApplyPatch"),
            ("application/json-patch+json", _) | ("application/json", BodyType::AnyPatch | BodyType::FieldPatch) => {
                Some("JsonPatch")
            }
            _ => schema,
        };
        let body = schema.map_or_else(|| json!({}), |name| json!({"schema": schema::schema_reference(name)}));
        ((*media_type).to_owned(), body)
    };
    kind.media_types().iter().map(media_type_entry).collect::<Map<_, _>>().into()
}

/// Returns the descriptions of the parameters of a path. In the path, each parameter is a segment in braces.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| parameter(name, "path")).collect()
}

/// The schemas of parameters in paths, queries and headers. The entry `*` describes every path parameter that has no
/// entry under its own name.
static PARAMETER_SCHEMAS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("parameters.json")).expect("parameters.json is JSON"));

/// Returns the `OpenAPI` description of a parameter. `place` is `path` or `query`. A path parameter without an entry in
/// `parameters.json` gets the entry `*`. Each query parameter has an entry.
fn parameter(name: &str, place: &str) -> Value {
    let entries = &PARAMETER_SCHEMAS[place];
    parameter_object(name, place, entries.get(name).unwrap_or(&entries["*"]))
}

/// Returns a copy of an entry of `parameters.json`, completed to an `OpenAPI` parameter: its name, its place (`path`,
/// `query` or `header`), and whether requests must contain it. Only path parameters are required.
fn parameter_object(name: &str, place: &str, entry: &Value) -> Value {
    let mut parameter = entry.clone();
    parameter["name"] = name.into();
    parameter["in"] = place.into();
    parameter["required"] = (place == "path").into();
    parameter
}

/// Returns the descriptions of the request headers that an endpoint reads. `parameters.json` lists headers in named
/// sets. An endpoint reads all headers of a set, or none of them.
fn header_parameters(endpoint: Endpoint) -> impl Iterator<Item = Value> {
    let route = endpoint.route();
    let header_sets = [
        ("version", route.path.starts_with("/v1")),
        ("write", endpoint.has_dry_run()),
        ("preferred", endpoint.representation_status().is_some()),
        ("resumed", route.response == BodyType::Events),
    ];
    let set_names = header_sets.into_iter().filter(|(_, is_read)| *is_read).map(|(set_name, _)| set_name);
    let set_names = set_names.chain(route.headers.iter().map(|header| header.name()));
    let headers = set_names.flat_map(|set_name| PARAMETER_SCHEMAS["header"][set_name].as_array().into_iter().flatten());
    headers.map(|entry| parameter_object(entry["name"].as_str().unwrap_or_default(), "header", entry))
}

/// Returns the name of a class of callers, as in the field `x-callers` of the API's description.
fn caller_name(caller: CallerClass) -> &'static str {
    match caller {
        CallerClass::Nobody => "nobody",
        CallerClass::Joining => "joining",
        CallerClass::Agent => "agent",
        CallerClass::Viewer => "viewer",
        CallerClass::Operator => "operator",
        CallerClass::Admin => "admin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a page of the documentation with its generated text. Fails if the two differ. If the environment
    /// variable `STEMMA_WRITE_DOCS` is set, first overwrites the page with the generated text.
    fn check_documented(page: &str, generated: &str) {
        let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("STEMMA_WRITE_DOCS").is_some() {
            std::fs::write(&path, generated).expect("the documentation's directory");
        }
        let documented = std::fs::read_to_string(&path).expect(page);
        assert!(generated == documented, "{page} is out of date: run STEMMA_WRITE_DOCS=1 cargo test -p stemma-wire openapi");
    }

    /// Returns indented JSON text that ends with a newline.
    fn to_pretty_json(value: &Value) -> String {
        serde_json::to_string_pretty(value).expect("JSON") + "\n"
    }

    #[test]
    fn openapi_matches_documented_file() {
        check_documented("openapi.json", &to_pretty_json(&openapi(env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn manifest_reference_matches_field_table() {
        check_documented("manifests.md", &stemma_core::manifest::markdown());
        check_documented("manifest.schema.json", &to_pretty_json(&stemma_core::manifest::schema()));
    }

    #[test]
    fn openapi_describes_every_body_and_parameter() {
        let endpoints = Endpoint::ALL.iter().filter(|endpoint| endpoint.route().listener == SocketKind::Admin);
        for endpoint in endpoints {
            let route = endpoint.route();
            let is_json = |body_type| {
                matches!(body_type, BodyType::Json | BodyType::MergePatch | BodyType::AnyPatch | BodyType::FieldPatch)
            };
            assert_eq!(route.request_schema.is_some(), is_json(route.request), "{endpoint:?}: schema of the request");
            assert_eq!(route.response_schema.is_some(), is_json(route.response), "{endpoint:?}: schema of the response");
            for name in route.query.parameter_names() {
                assert!(parameter(name, "query")["description"].is_string(), "{endpoint:?} {name}");
            }
        }
    }

    #[test]
    fn openapi_lists_write_headers_of_sample_endpoints() {
        let api = openapi("1");
        for (method, path, expected) in [
            ("post", "/v1/nodes", &[][..]),
            ("post", "/v1/nodes/{node}/{map}/owners", &["If-Match"]),
            ("delete", "/v1/nodes/{node}", &["If-Match"]),
            ("delete", "/v1/join-tokens/{token}", &[]),
            ("post", "/v2/metadefs/namespaces/{namespace}/tags", &["If-Match", "X-Openstack-Append"]),
        ] {
            let parameters = api["paths"][path][method]["parameters"].as_array().expect("parameters");
            let names = parameters.iter().filter_map(|parameter| parameter["name"].as_str());
            let write_headers: Vec<_> = names.filter(|name| matches!(*name, "If-Match" | "X-Openstack-Append")).collect();
            assert_eq!(write_headers, expected, "{method} {path}");
        }
    }

    /// Checks samples of the description: callers, parameters, responses and schemas. The agents' routes are not in it.
    #[test]
    fn openapi_describes_only_admin_routes() {
        let api = openapi("1");
        let path_item = &api["paths"]["/v1/nodes/{node}/traits/{trait}"];
        assert_eq!(path_item["put"]["operationId"], "AddNodeTrait");
        assert_eq!(path_item["put"]["x-callers"], json!(["operator", "admin"]));
        assert_eq!(path_item["parameters"][1]["name"], "trait");
        for (index, name) in [(1, "strict"), (2, "force"), (3, "dry_run")] {
            let parameter = &path_item["put"]["parameters"][index];
            let description = json!([parameter["name"], parameter["in"], parameter["schema"]]);
            assert_eq!(description, json!([name, "query", {"type": "boolean"}]));
        }
        let preferred = &path_item["put"]["responses"]["200"];
        assert!(path_item["put"]["responses"]["204"].is_object());
        assert_eq!(preferred["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/Changed");
        assert!(preferred["headers"]["Preference-Applied"].is_object(), "{preferred}");
        let has_prefer = |operation: &Value| {
            operation["parameters"].as_array().is_some_and(|entries| entries.iter().any(|entry| entry["name"] == "Prefer"))
        };
        let blob = &api["paths"]["/v1/blobs/{hash}"]["put"];
        assert!(has_prefer(&path_item["put"]) && !has_prefer(blob) && blob["responses"]["200"].is_null(), "{blob}");
        assert!(api["paths"]["/v1/nodes/{node}"]["patch"]["requestBody"]["content"]["application/apply-patch+json"].is_object());
        let operation_at = |path: &str, method: &str| api["paths"][path][method].clone();
        assert_eq!(
            operation_at("/v1/nodes", "post")["requestBody"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/Node"
        );
        assert_eq!(
            operation_at("/v1/clusters/{cluster}", "get")["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/ShownCluster"
        );
        for (status, schema) in [("200", "ChangedCluster"), ("202", "ChangedUuid")] {
            let content = &operation_at("/v1/clusters/{cluster}", "patch")["responses"][status]["content"]["application/json"];
            assert_eq!(content["schema"]["$ref"], format!("#/components/schemas/{schema}"), "{status}");
        }
        assert!(api["paths"].as_object().expect("paths").keys().all(|path| !path.starts_with("/agent/")));
    }
}

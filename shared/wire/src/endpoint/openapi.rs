//! Builds the API's description in `OpenAPI` format from the table: paths, methods, parameters, media types, summaries,
//! callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::examples::{Example, examples};
use super::{BodyType, CallerClass, Endpoint, Method, Route, SocketKind, schema};
use crate::error::ErrorType;

/// Returns the description of the admin listener's API (`OpenAPI` 3.1), with the schemas of its main bodies. The
/// controller serves it at `/openapi.json`, and `docs/openapi.json` is a copy.
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

/// Returns the ways to authenticate on the admin listener. A caller needs one of them. Which callers may use an
/// endpoint depends on its `CallerSet`.
fn security_schemes() -> Value {
    json!({
        "certificate": {"type": "mutualTLS", "description": "A client certificate of the fleet's admin issuer."},
        "bearer": {"type": "http", "scheme": "bearer", "description": "A principal's token, as ID.SECRET."},
        "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token", "description": "The same, as OpenStack's clients send it."},
    })
}

/// Returns the description of one endpoint: callers, responses, parameters, body and examples.
fn operation(endpoint: Endpoint, route: &Route) -> Value {
    let callers: Vec<_> = CallerClass::ALL.into_iter().filter(|caller| endpoint.allows(*caller)).map(caller_name).collect();
    let success = |status: &u16| {
        let schema = route.accepted_schema.filter(|_| *status == 202).or(route.response_schema);
        (status.to_string(), json!({"description": "Done.", "content": body_content(route.response, schema)}))
    };
    let statuses = route.statuses.iter().map(success);
    let statuses = statuses.chain(preferred_response(endpoint));
    let error_response = |status: u16| (status.to_string(), json!({"$ref": format!("#/components/responses/{status}")}));
    let examples = || examples().iter().filter(|example| example.endpoint == endpoint);
    let refusals = error_statuses(endpoint).into_iter().filter(|status| !route.statuses.contains(status));
    let responses: Map<String, Value> = statuses.chain(refusals.map(error_response)).collect();
    let mut operation = json!({
        "operationId": endpoint.name(),
        "summary": route.summary,
        "x-callers": callers,
        "security": if endpoint.allows(CallerClass::Nobody) { json!([]) } else { json!([{"certificate": []}, {"bearer": []}, {"token": []}]) },
        "responses": responses,
    });
    let queried = route.query.parameter_names().chain(endpoint.has_dry_run().then_some("dry_run"));
    let queried = queried.map(|name| parameter(name, "query"));
    let parameters: Vec<Value> = queried.chain(header_parameters(endpoint)).collect();
    let requests =
        examples().map(|example| json!({"request": format!("{} {}", example.method, example.path), "status": example.status}));
    operation["x-examples"] = requests.collect();
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

/// Adds an example's body to its media type, if it is JSON.
fn add_example(content: &mut Value, example: &Example) {
    let media_type = example.headers.iter().find(|(name, _)| *name == "Content-Type").map(|(_, value)| *value);
    if let Some(media) = content.get_mut(media_type.unwrap_or("application/json"))
        && let Ok(body) = serde_json::from_str::<Value>(example.body)
    {
        media["example"] = body;
    }
}

/// Returns the statuses with which an endpoint may respond.
#[cfg(test)]
pub(super) fn response_statuses(endpoint: Endpoint) -> BTreeSet<u16> {
    let successes = endpoint.route().statuses.iter().copied().chain(endpoint.preferred_status());
    successes.chain(error_statuses(endpoint)).collect()
}

/// Returns the response to a request with `Prefer: return=representation`, for an endpoint whose normal response has no
/// body.
fn preferred_response(endpoint: Endpoint) -> Option<(String, Value)> {
    let response = json!({
        "description": "The changes of the write, for a request with `Prefer: return=representation`.",
        "headers": {"Preference-Applied": {"schema": {"type": "string"}}},
        "content": body_content(BodyType::Json, Some("Changed")),
    });
    endpoint.preferred_status().map(|status| (status.to_string(), response))
}

/// Returns the statuses with which an endpoint may refuse a request.
fn error_statuses(endpoint: Endpoint) -> BTreeSet<u16> {
    let route = endpoint.route();
    let mut statuses = BTreeSet::from([400, 406, 408, 431, 500, 503]);
    statuses.extend(route.min_version.map(|since| since.refusal.status()));
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

/// Returns whether an endpoint may call an extension, because it can give roles to nodes.
fn may_call_extension(endpoint: Endpoint) -> bool {
    let route = endpoint.route();
    let paths = ["/v1/nodes", "/v1/cluster", "/v1/releases", "/v1/allocations", "/v1/apply"];
    route.method != Method::Get && paths.iter().any(|path| route.path.starts_with(path))
}

/// Returns the error responses by status, with the error types of each.
fn error_responses() -> Map<String, Value> {
    let mut types: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for error_type in ErrorType::ALL {
        types.entry(error_type.status()).or_default().push(format!("`{}`: {}", error_type.name(), error_type.title()));
    }
    let response = |(status, types): (u16, Vec<String>)| {
        let body = json!({"application/json": {"schema": schema::schema_reference("Error")}});
        (status.to_string(), json!({"description": types.join("\n\n"), "content": body}))
    };
    types.into_iter().map(response).collect()
}

/// Returns the media types of a body, each with its schema.
fn body_content(kind: BodyType, schema: Option<&'static str>) -> Value {
    let entry = |media: &&'static str| {
        let schema = match (*media, kind) {
            ("application/apply-patch+json", _) => Some("ApplyPatch"),
            ("application/json-patch+json", _) | ("application/json", BodyType::AnyPatch | BodyType::FieldPatch) => {
                Some("JsonPatch")
            }
            _ => schema,
        };
        let body = schema.map_or_else(|| json!({}), |name| json!({"schema": schema::schema_reference(name)}));
        ((*media).to_owned(), body)
    };
    kind.media_types().iter().map(entry).collect::<Map<_, _>>().into()
}

/// Returns the descriptions of the parameters in braces in a path.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| parameter(name, "path")).collect()
}

/// The schemas of parameters in paths, queries and headers. A path parameter without an entry of its own has that of
/// `*`.
static PARAMETER_SCHEMAS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("parameters.json")).expect("parameters.json is JSON"));

/// Returns the description of a parameter in a path or query.
fn parameter(name: &str, place: &str) -> Value {
    let known = &PARAMETER_SCHEMAS[place];
    parameter_object(name, place, known.get(name).unwrap_or(&known["*"]))
}

fn parameter_object(name: &str, place: &str, entry: &Value) -> Value {
    let mut parameter = entry.clone();
    parameter["name"] = name.into();
    parameter["in"] = place.into();
    parameter["required"] = (place == "path").into();
    parameter
}

/// Returns the headers that an endpoint reads.
fn header_parameters(endpoint: Endpoint) -> impl Iterator<Item = Value> {
    let route = endpoint.route();
    let sets = [
        ("version", route.path.starts_with("/v1")),
        ("write", endpoint.has_dry_run()),
        ("preferred", endpoint.preferred_status().is_some()),
        ("resumed", route.response == BodyType::Events),
    ];
    let read_sets = sets.into_iter().filter(|(_, is_read)| *is_read).map(|(set, _)| set);
    let read_sets = read_sets.chain(route.headers.iter().map(|header| header.name()));
    let headers = read_sets.flat_map(|set| PARAMETER_SCHEMAS["header"][set].as_array().into_iter().flatten());
    headers.map(|entry| parameter_object(entry["name"].as_str().unwrap_or_default(), "header", entry))
}

/// Returns the name of a class of callers in the API's description.
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

    /// Compares a page of the documentation with the text that a table generates. Writes the page if
    /// `STEMMA_WRITE_DOCS` is set.
    fn check_documented(page: &str, generated: &str) {
        let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("STEMMA_WRITE_DOCS").is_some() {
            std::fs::write(&path, generated).expect("the documentation's directory");
        }
        let documented = std::fs::read_to_string(&path).expect(page);
        assert!(generated == documented, "write {page} anew: STEMMA_WRITE_DOCS=1 cargo test -p stemma-wire openapi");
    }

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
        let rows = Endpoint::ALL.iter().filter(|row| row.route().listener == SocketKind::Admin);
        for row in rows {
            let route = row.route();
            let is_json =
                |content| matches!(content, BodyType::Json | BodyType::MergePatch | BodyType::AnyPatch | BodyType::FieldPatch);
            assert_eq!(route.request_schema.is_some(), is_json(route.request), "{row:?} takes");
            assert_eq!(route.response_schema.is_some(), is_json(route.response), "{row:?} answers");
            for name in route.query.parameter_names() {
                assert!(parameter(name, "query")["description"].is_string(), "{row:?} {name}");
            }
        }
    }

    #[test]
    fn endpoints_list_headers_read_by_handlers() {
        let api = openapi("1");
        for (method, path, expected) in [
            ("post", "/v1/nodes", &[][..]),
            ("post", "/v1/nodes/{node}/{map}/owners", &["If-Match"]),
            ("delete", "/v1/nodes/{node}", &["If-Match"]),
            ("delete", "/v1/join-tokens/{token}", &[]),
            ("post", "/v2/metadefs/namespaces/{namespace}/tags", &["If-Match", "X-Openstack-Append"]),
        ] {
            let parameters = api["paths"][path][method]["parameters"].as_array().expect("parameters");
            let names = parameters.iter().filter_map(|one| one["name"].as_str());
            let found: Vec<_> = names.filter(|name| matches!(*name, "If-Match" | "X-Openstack-Append")).collect();
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn openapi_lists_admin_routes_only() {
        let api = openapi("1");
        let item = &api["paths"]["/v1/nodes/{node}/traits/{trait}"];
        assert_eq!(item["put"]["operationId"], "AddNodeTrait");
        assert_eq!(item["put"]["x-callers"], json!(["operator", "admin"]));
        assert_eq!(item["parameters"][1]["name"], "trait");
        for (at, name) in [(1, "strict"), (2, "force"), (3, "dry_run")] {
            let parameter = &item["put"]["parameters"][at];
            let shown = json!([parameter["name"], parameter["in"], parameter["schema"]]);
            assert_eq!(shown, json!([name, "query", {"type": "boolean"}]));
        }
        let preferred = &item["put"]["responses"]["200"];
        assert!(item["put"]["responses"]["204"].is_object());
        assert_eq!(preferred["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/Changed");
        assert!(preferred["headers"]["Preference-Applied"].is_object(), "{preferred}");
        let has_prefer = |operation: &Value| {
            operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "Prefer"))
        };
        let blob = &api["paths"]["/v1/blobs/{hash}"]["put"];
        assert!(has_prefer(&item["put"]) && !has_prefer(blob) && blob["responses"]["200"].is_null(), "{blob}");
        assert!(api["paths"]["/v1/nodes/{node}"]["patch"]["requestBody"]["content"]["application/apply-patch+json"].is_object());
        let of = |path: &str, method: &str| api["paths"][path][method].clone();
        assert_eq!(
            of("/v1/nodes", "post")["requestBody"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/Node"
        );
        assert_eq!(
            of("/v1/clusters/{cluster}", "get")["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/ShownCluster"
        );
        for (status, schema) in [("200", "ChangedCluster"), ("202", "ChangedUuid")] {
            let answer = &of("/v1/clusters/{cluster}", "patch")["responses"][status]["content"]["application/json"];
            assert_eq!(answer["schema"]["$ref"], format!("#/components/schemas/{schema}"), "{status}");
        }
        assert!(api["paths"].as_object().expect("paths").keys().all(|path| !path.starts_with("/agent/")));
    }
}

//! The API's description in the form of `OpenAPI`, from the table: paths, methods, parameters, media types, summaries, callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::examples::{Example, examples};
use super::{Caller, Content, Endpoint, Listener, Method, Route, schema};
use crate::error::ErrorType;

/// The description of the admin listener's API (`OpenAPI` 3.1), with the schemas of its main bodies; what the
/// controller serves at `/openapi.json` and `docs/openapi.json` holds.
pub fn openapi(version: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in Endpoint::ALL.iter().filter(|endpoint| endpoint.route().listener == Listener::Admin) {
        let route = endpoint.route();
        let path = paths.entry(route.path).or_insert_with(|| json!({"parameters": parameters(route.path)}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(*endpoint, route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Stemma", "version": version},
        "paths": paths,
        "components": {"schemas": schema::all(), "responses": errors(), "securitySchemes": security_schemes()}
    })
}

/// The ways in which who asks is shown. Any one of them does; `Callers` says which classes may.
fn security_schemes() -> Value {
    json!({
        "certificate": {"type": "mutualTLS", "description": "A client certificate of the fleet's admin issuer."},
        "bearer": {"type": "http", "scheme": "bearer", "description": "A principal's token, as ID.SECRET."},
        "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token", "description": "The same, as OpenStack's clients send it."},
    })
}

fn operation(endpoint: Endpoint, route: &Route) -> Value {
    let callers: Vec<_> = Caller::ALL.into_iter().filter(|caller| endpoint.allows(*caller)).map(name).collect();
    let done = |status: &u16| {
        let schema = route.accepted_schema.filter(|_| *status == 202).or(route.answer_schema);
        (status.to_string(), json!({"description": "Done.", "content": content(route.answer, schema)}))
    };
    let statuses = route.statuses.iter().map(done);
    let statuses = statuses.chain(preferred(endpoint));
    let refused = |status: u16| (status.to_string(), json!({"$ref": format!("#/components/responses/{status}")}));
    let examples = || examples().iter().filter(|example| example.endpoint == endpoint);
    let refusals = refusals(endpoint).into_iter().filter(|status| !route.statuses.contains(status));
    let responses: Map<String, Value> = statuses.chain(refusals.map(refused)).collect();
    let mut operation = json!({
        "operationId": endpoint.name(),
        "summary": route.summary,
        "x-callers": callers,
        "security": if endpoint.allows(Caller::Nobody) { json!([]) } else { json!([{"certificate": []}, {"bearer": []}, {"token": []}]) },
        "responses": responses,
    });
    let queried = route.query.names().chain(endpoint.has_dry_run().then_some("dry_run"));
    let queried = queried.map(|name| parameter(name, "query"));
    let parameters: Vec<Value> = queried.chain(headers(endpoint)).collect();
    let requests = examples()
        .map(|example| json!({"request": format!("{} {}", example.method, example.path), "status": example.status}));
    operation["x-examples"] = requests.collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if route.request != Content::Nothing {
        let mut taken = content(route.request, route.request_schema);
        for example in examples() {
            exemplify(&mut taken, example);
        }
        operation["requestBody"] = json!({"content": taken});
    }
    operation
}

/// Shows an example's body with its media type, where it is JSON.
fn exemplify(content: &mut Value, example: &Example) {
    let named = example.headers.iter().find(|(name, _)| *name == "Content-Type").map(|(_, value)| *value);
    if let Some(taken) = content.get_mut(named.unwrap_or("application/json"))
        && let Ok(body) = serde_json::from_str::<Value>(example.body)
    {
        taken["example"] = body;
    }
}

/// The statuses with which a row may answer.
#[cfg(test)]
pub(super) fn statuses(endpoint: Endpoint) -> BTreeSet<u16> {
    let done = endpoint.route().statuses.iter().copied().chain(endpoint.preferred_status());
    done.chain(refusals(endpoint)).collect()
}

/// The answer to a request that prefers a body, of a row that has none else.
fn preferred(endpoint: Endpoint) -> Option<(String, Value)> {
    let answer = json!({
        "description": "Done, to a request with `Prefer: return=representation`: what the write changes.",
        "headers": {"Preference-Applied": {"schema": {"type": "string"}}},
        "content": content(Content::Json, Some("Changed")),
    });
    endpoint.preferred_status().map(|status| (status.to_string(), answer))
}

/// The statuses with which a row may refuse a request.
fn refusals(endpoint: Endpoint) -> BTreeSet<u16> {
    let route = endpoint.route();
    let mut statuses = BTreeSet::from([400, 406, 408, 431, 500, 503]);
    statuses.extend(route.since.map(|since| since.refusal.status()));
    if !endpoint.allows(Caller::Nobody) {
        statuses.extend([401, 403, 404]);
    }
    if route.request != Content::Nothing {
        statuses.extend([413, 415]);
    }
    if route.method != Method::Get {
        statuses.extend([409, 412]);
    }
    if may_ask(endpoint) {
        statuses.insert(ErrorType::ExtensionFailed.status());
    }
    if route.query.names().any(|name| name == "at_least") {
        statuses.insert(ErrorType::RevisionAhead.status());
    }
    if route.answer == Content::Events {
        statuses.extend([ErrorType::RevisionAhead, ErrorType::EventsCompacted].map(ErrorType::status));
    }
    statuses
}

/// Whether an extension may be asked by a row: nodes may get roles by it.
fn may_ask(endpoint: Endpoint) -> bool {
    let route = endpoint.route();
    let gives = ["/v1/nodes", "/v1/cluster", "/v1/releases", "/v1/allocations", "/v1/apply"];
    route.method != Method::Get && gives.iter().any(|path| route.path.starts_with(path))
}

/// The refusals of each status, with the types that their bodies name.
fn errors() -> Map<String, Value> {
    let mut types: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for one in ErrorType::ALL {
        types.entry(one.status()).or_default().push(format!("`{}`: {}", one.name(), one.title()));
    }
    let of_status = |(status, types): (u16, Vec<String>)| {
        let body = json!({"application/json": {"schema": schema::named("Error")}});
        (status.to_string(), json!({"description": types.join("\n\n"), "content": body}))
    };
    types.into_iter().map(of_status).collect()
}

/// The media types of a body, each with the schema that it has there.
fn content(kind: Content, schema: Option<&'static str>) -> Value {
    let described = |media: &&'static str| {
        let schema = match (*media, kind) {
            ("application/apply-patch+json", _) => Some("ApplyPatch"),
            ("application/json-patch+json", _) | ("application/json", Content::AnyPatch | Content::FieldPatch) => {
                Some("JsonPatch")
            }
            _ => schema,
        };
        let body = schema.map_or_else(|| json!({}), |name| json!({"schema": schema::named(name)}));
        ((*media).to_owned(), body)
    };
    kind.media_types().iter().map(described).collect::<Map<_, _>>().into()
}

fn parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| parameter(name, "path")).collect()
}

/// The parameters of paths, queries and headers, with what each may be. Names in a path are as `*` says where they have no
/// entry of their own.
static PARAMETERS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("parameters.json")).expect("parameters.json is JSON"));

fn parameter(name: &str, place: &str) -> Value {
    let known = &PARAMETERS[place];
    described(name, place, known.get(name).unwrap_or(&known["*"]))
}

fn described(name: &str, place: &str, said: &Value) -> Value {
    let mut parameter = said.clone();
    parameter["name"] = name.into();
    parameter["in"] = place.into();
    parameter["required"] = (place == "path").into();
    parameter
}

/// The headers that a row looks at.
fn headers(endpoint: Endpoint) -> impl Iterator<Item = Value> {
    let route = endpoint.route();
    let sets = [
        ("version", route.path.starts_with("/v1")),
        ("write", endpoint.has_dry_run()),
        ("preferred", endpoint.preferred_status().is_some()),
        ("resumed", route.answer == Content::Events),
    ];
    let looked_at = sets.into_iter().filter(|(_, is_read)| *is_read).map(|(set, _)| set);
    let looked_at = looked_at.chain(route.headers.iter().map(|header| header.name()));
    let headers = looked_at.flat_map(|set| PARAMETERS["header"][set].as_array().into_iter().flatten());
    headers.map(|said| described(said["name"].as_str().unwrap_or_default(), "header", said))
}

fn name(caller: Caller) -> &'static str {
    match caller {
        Caller::Nobody => "nobody",
        Caller::Joining => "joining",
        Caller::Agent => "agent",
        Caller::Viewer => "viewer",
        Caller::Operator => "operator",
        Caller::Admin => "admin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a page of the documentation with what a table makes.
    fn is_documented(page: &str, here: &str) {
        let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("STEMMA_WRITE_DOCS").is_some() {
            std::fs::write(&path, here).expect("the documentation's directory");
        }
        let there = std::fs::read_to_string(&path).expect(page);
        assert!(here == there, "write {page} anew: STEMMA_WRITE_DOCS=1 cargo test -p stemma-wire openapi");
    }

    fn pretty(value: &Value) -> String {
        serde_json::to_string_pretty(value).expect("JSON") + "\n"
    }

    #[test]
    fn the_description_in_the_documentation_is_this_one() {
        is_documented("openapi.json", &pretty(&openapi(env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn the_reference_of_manifests_in_the_documentation_is_what_the_table_of_fields_makes() {
        is_documented("manifests.md", &stemma_core::manifest::markdown());
        is_documented("manifest.schema.json", &pretty(&stemma_core::manifest::schema()));
    }

    #[test]
    fn every_body_and_parameter_is_described() {
        let rows = Endpoint::ALL.iter().filter(|row| row.route().listener == Listener::Admin);
        for row in rows {
            let route = row.route();
            let is_json = |content| {
                matches!(content, Content::Json | Content::MergePatch | Content::AnyPatch | Content::FieldPatch)
            };
            assert_eq!(route.request_schema.is_some(), is_json(route.request), "{row:?} takes");
            assert_eq!(route.answer_schema.is_some(), is_json(route.answer), "{row:?} answers");
            for name in route.query.names() {
                assert!(parameter(name, "query")["description"].is_string(), "{row:?} {name}");
            }
        }
    }

    #[test]
    fn a_row_has_the_headers_that_its_handler_reads() {
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
    fn the_description_has_each_admin_route_and_no_agents_path() {
        let api = openapi("1");
        let get = &api["paths"]["/v1/nodes/{node}/traits/{trait}"];
        assert_eq!(get["put"]["operationId"], "AddNodeTrait");
        assert_eq!(get["put"]["x-callers"], json!(["operator", "admin"]));
        assert_eq!(get["parameters"][1]["name"], "trait");
        for (at, name) in [(1, "strict"), (2, "force"), (3, "dry_run")] {
            let parameter = &get["put"]["parameters"][at];
            let shown = json!([parameter["name"], parameter["in"], parameter["schema"]]);
            assert_eq!(shown, json!([name, "query", {"type": "boolean"}]));
        }
        let preferred = &get["put"]["responses"]["200"];
        assert!(get["put"]["responses"]["204"].is_object());
        assert_eq!(preferred["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/Changed");
        assert!(preferred["headers"]["Preference-Applied"].is_object(), "{preferred}");
        let has_prefer = |operation: &Value| {
            operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "Prefer"))
        };
        let blob = &api["paths"]["/v1/blobs/{hash}"]["put"];
        assert!(has_prefer(&get["put"]) && !has_prefer(blob) && blob["responses"]["200"].is_null(), "{blob}");
        assert!(
            api["paths"]["/v1/nodes/{node}"]["patch"]["requestBody"]["content"]["application/apply-patch+json"]
                .is_object()
        );
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

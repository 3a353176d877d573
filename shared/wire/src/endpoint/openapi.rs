//! The API's description in the form of `OpenAPI`, from the table: paths, methods, parameters, media types, summaries, callers.

use serde_json::{Map, Value, json};

use super::{Caller, Content, Endpoint, Listener, Route, schema};

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
        "components": {"schemas": schema::all()}
    })
}

fn operation(endpoint: Endpoint, route: &Route) -> Value {
    let callers: Vec<_> = Caller::ALL.into_iter().filter(|caller| endpoint.allows(*caller)).map(name).collect();
    let error = json!({
        "description": "An error; docs/errors.md lists the types.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    });
    let done = json!({"description": "Done.", "content": content(route.answer, route.answer_schema)});
    let statuses = route.statuses.iter().map(|status| (status.to_string(), done.clone()));
    let responses = statuses.chain(preferred(endpoint)).chain([("default".to_owned(), error)]);
    let responses: Map<String, Value> = responses.collect();
    let mut operation = json!({
        "operationId": endpoint.name(),
        "summary": route.summary,
        "x-callers": callers,
        "responses": responses,
    });
    let queried = route.query.names().chain(endpoint.has_dry_run().then_some("dry_run"));
    let prefer = endpoint.preferred_status().map(|_| parameter("Prefer", "header"));
    let parameters: Vec<Value> = queried.map(|name| parameter(name, "query")).chain(prefer).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if route.request != Content::Nothing {
        operation["requestBody"] = json!({"content": content(route.request, route.request_schema)});
    }
    operation
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

/// The media types of a body, each with the schema that it has there.
fn content(kind: Content, schema: Option<&'static str>) -> Value {
    let described = |media: &&'static str| {
        let schema = match (*media, kind) {
            ("application/apply-patch+json", _) => Some("ApplyPatch"),
            ("application/json-patch+json", _) | ("application/json", Content::AnyPatch) => Some("JsonPatch"),
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

fn parameter(name: &str, place: &str) -> Value {
    json!({"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}})
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
    fn the_description_has_each_admin_route_and_no_agents_path() {
        let api = openapi("1");
        let get = &api["paths"]["/v1/nodes/{node}/traits/{trait}"];
        assert_eq!(get["put"]["operationId"], "AddNodeTrait");
        assert_eq!(get["put"]["x-callers"], json!(["operator", "admin"]));
        assert_eq!(get["parameters"][1]["name"], "trait");
        assert_eq!(
            get["put"]["parameters"][1],
            json!({"name": "dry_run", "in": "query", "required": false, "schema": {"type": "string"}})
        );
        let preferred = &get["put"]["responses"]["200"];
        assert!(get["put"]["responses"]["204"].is_object());
        assert_eq!(preferred["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/Changed");
        assert!(preferred["headers"]["Preference-Applied"].is_object(), "{preferred}");
        assert_eq!(
            get["put"]["parameters"][2],
            json!({"name": "Prefer", "in": "header", "required": false, "schema": {"type": "string"}})
        );
        let blob = &api["paths"]["/v1/blobs/{hash}"]["put"];
        assert!(blob["responses"]["200"].is_null() && blob["parameters"].is_null(), "it changes no object: {blob}");
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
        assert!(api["paths"].as_object().expect("paths").keys().all(|path| !path.starts_with("/agent/")));
    }
}

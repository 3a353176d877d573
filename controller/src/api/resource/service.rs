//! The endpoints about the service itself: version documents, health, metrics, the description of the API, and the
//! results of earlier writes.

use hyper::StatusCode;
use hyper::header::ACCEPT;
use serde_json::{Value, json};
use stemma_wire::endpoint::openapi;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse, ResponseBody};
use crate::api::http::version::OpenStackApi;
use crate::metrics::prometheus_text;
use crate::store::Health;

/// Returns the document of version 1. `version`, which Ironic's clients read, is the newest version of Ironic's API.
/// openstacksdk reads `max_version` first for every service, so this is the newest version of Magnum's API if the
/// request has a version header for Magnum, and of Ironic's API otherwise.
fn version_1(request: &HttpRequest) -> Value {
    let base = &request.base_url;
    let is_magnum = OpenStackApi::ContainerInfra.is_requested(&request.headers);
    let (oldest, newest) = OpenStackApi::Baremetal.version_range();
    let (_, max) = if is_magnum { OpenStackApi::ContainerInfra.version_range() } else { (oldest, newest) };
    json!({
        "id": "v1", "status": "CURRENT", "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "min_version": format!("1.{}", oldest.0), "version": format!("1.{}", newest.0), "max_version": format!("1.{}", max.0),
    })
}

/// Returns the document of version 2, in the form of Glance's API. Glance's clients read `id`, `status` and `links`.
fn version_2(request: &HttpRequest) -> Value {
    let link = json!({"href": format!("{}/v2/", request.base_url), "rel": "self"});
    json!({"id": "v2.17", "status": "CURRENT", "links": [link]})
}

/// `GET /`: the list of versions, with version 1 only: openstacksdk uses the newest version in this list for requests
/// about nodes, and version 2 has no nodes.
pub(super) fn root(_api: &Api, request: &HttpRequest) -> HttpResponse {
    versions(request, &[version_1(request)])
}

/// `GET /versions`: the list of all versions, which Glance's command line reads.
pub(super) fn versions_list(_api: &Api, request: &HttpRequest) -> HttpResponse {
    versions(request, &[version_1(request), version_2(request)])
}

fn versions(request: &HttpRequest, versions: &[Value]) -> HttpResponse {
    HttpResponse::ok(json!({
        "name": "Stemma", "description": "Labels, traits, tags and tasks of a fleet of hosts, each with its origin.",
        "default_version": version_1(request), "versions": versions,
    }))
}

/// `GET /v1`: the document of version 1, in the form that Ironic's and Magnum's clients read.
pub(super) fn version_1_document(_api: &Api, request: &HttpRequest) -> HttpResponse {
    let base = &request.base_url;
    let mut body = json!({
        "id": "v1", "version": version_1(request), "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "media_types": [{"base": "application/json", "type": "application/vnd.openstack.magnum.v1+json"}],
    });
    for resource in ["nodes", "allocations", "clustertemplates", "clusters", "releases"] {
        body[resource] = json!(super::view::links(base, &format!("/v1/{resource}/")));
    }
    HttpResponse::ok(body)
}

/// `GET /v2`: the document of version 2.
pub(super) fn version_2_document(_api: &Api, request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok(json!({"version": version_2(request)}))
}

/// `GET /readyz`: succeeds if the store accepts writes. The cache is complete before this listener starts.
pub(super) fn ready(api: &Api, _request: &HttpRequest) -> HttpResponse {
    match api.registry.store().health() {
        Health::Writable => HttpResponse::ok("ready".into()),
        Health::ReadOnly { reason } => {
            HttpResponse { status: StatusCode::SERVICE_UNAVAILABLE, ..HttpResponse::ok(reason.into()) }
        }
    }
}

/// `GET /healthz`: succeeds if the process can respond.
pub(super) fn alive(_api: &Api, _request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok("ok".into())
}

/// Media type of the `OpenMetrics` format, which a client may accept instead of Prometheus' own.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// `GET /metrics`: in Prometheus' text format, or as `OpenMetrics` if the client prefers it.
pub(super) fn metrics(api: &Api, request: &HttpRequest) -> HttpResponse {
    let model = api.model();
    let inputs = || state::all_state_inputs(api, &model, model.nodes.iter().map(|node| node.id()));
    let inputs = api.is_stale.then(inputs);
    let text = api.metrics.as_ref().map(|metrics| metrics.text_from(api.visible_cluster, inputs.as_deref())).unwrap_or_default();
    let accepted = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<&str> = accepted.flat_map(|value| value.split(',')).collect();
    let body = if is_open_metrics_preferred(&accepted) {
        ResponseBody::Encoded(text.into(), "application/openmetrics-text; version=1.0.0; charset=utf-8")
    } else {
        ResponseBody::Encoded(prometheus_text(&text).into(), "text/plain; version=0.0.4; charset=utf-8")
    };
    HttpResponse { body, ..HttpResponse::ok(Value::Null) }
}

/// Returns whether a client accepts `OpenMetrics` and does not prefer Prometheus' own text format.
fn is_open_metrics_preferred(accepted: &[&str]) -> bool {
    let open = media_type_quality(OPEN_METRICS, accepted).unwrap_or_default();
    // A quality for `text/plain` itself takes precedence over the quality of a range that includes it.
    let text = ["text/plain", "text/*", "*/*"].into_iter().find_map(|kind| media_type_quality(kind, accepted));
    open > 0.0 && open >= text.unwrap_or_default()
}

/// Returns the highest quality that the client gives a media type, or `None` if the client does not name that type.
fn media_type_quality(kind: &str, accepted: &[&str]) -> Option<f32> {
    let qualities = accepted.iter().filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let is_kind = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(kind));
        is_kind.then(|| parse_quality(parts))
    });
    qualities.reduce(f32::max)
}

/// Parses the quality (`q`) of a media type from its parameters. Without `q` the quality is 1, and with an invalid `q`
/// it is 0.
fn parse_quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f32 {
    let pair = parameters.find_map(|one| one.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q")));
    let Some((_, value)) = pair else { return 1.0 };
    value.trim().parse::<f32>().ok().filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or_default()
}

/// `GET /openapi.json`: the description of the API.
pub(super) fn openapi_document(_api: &Api, _request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok(openapi(env!("CARGO_PKG_VERSION")))
}

/// Refuses a request for a path that exists only on the listener for agents.
pub(super) fn agents_path(_api: &Api, _request: &HttpRequest) -> HandlerResult {
    Err(ApiError::new(ErrorType::PathUnknown, "agents are served on their own listener"))
}

/// `GET /v1/requests/{request}`: the answer of an earlier write of the caller, by its `Idempotency-Key`. A client asks
/// for it if it lost the response.
pub(super) async fn get_request(api: &Api, request: &HttpRequest) -> HandlerResult {
    let id = request.param("request");
    let missing = || {
        let message = format!("no write was made under the Idempotency-Key {}", stemma_wire::error::quote(id));
        ApiError::new(ErrorType::ObjectNotFound, message).detail("nothing was written; it can be sent again under the same key")
    };
    let uuid: Uuid = id.parse().map_err(|_| missing())?;
    let found = api.registry.request(&request.requester, uuid).await?;
    let (record, revision) = found.ok_or_else(missing)?;
    let answer = record.answer.with_revision(revision.get());
    Ok(HttpResponse::ok(json!({
        "id": uuid, "at": super::view::format_time(record.at), "revision": revision.get(), "status": answer.status, "location": answer.location,
        "warning": answer.warning, "body": answer.body,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By RFC 9110, a quality of 0 excludes a format, and a higher quality is preferred. A missing quality is 1.
    #[test]
    fn y09_metrics_returns_preferred_format() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            ("application/openmetrics-text; version=1.0.0", true),
            ("Application/OpenMetrics-Text;Q=0.1", true),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text; q=0.000, */*", false),
            ("application/openmetrics-text;q=0.5, text/plain;q=1", false),
            ("application/openmetrics-text;q=0.5, text/plain", false),
            ("text/plain;q=0.5, application/openmetrics-text;q=0.5", true),
            ("text/plain;q=0.4, application/openmetrics-text;q=0.5, */*", true),
            ("application/openmetrics-text;q=0.5, */*;q=0.9", false),
            ("application/openmetrics-text;q=0.5, text/*;q=0.9", false),
            ("application/openmetrics-text;q=much", false),
            ("application/openmetrics-textual", false),
            (of_prometheus, true),
        ] {
            let accepted: Vec<&str> = accept.split(',').collect();
            assert_eq!(is_open_metrics_preferred(&accepted), expected, "{accept:?}");
        }
    }
}

//! The endpoints about the API itself: version documents, health, metrics, the description of the API, and the
//! responses of earlier writes.

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

/// Returns the version document of `/v1`, which clients of Ironic and of Magnum read. `version` is the newest supported
/// version of Ironic's API. openstacksdk reads `max_version` for every `OpenStack` service. So `max_version` is the
/// newest version of Magnum's API if the request has a version header for Magnum, and of Ironic's API otherwise.
fn version_1_json(request: &HttpRequest) -> Value {
    let base = &request.base_url;
    let is_magnum = OpenStackApi::ContainerInfra.is_requested(&request.headers);
    let (oldest, newest) = OpenStackApi::Baremetal.version_range();
    let (_, newest_requested) = if is_magnum { OpenStackApi::ContainerInfra.version_range() } else { (oldest, newest) };
    json!({
        "id": "v1", "status": "CURRENT", "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "min_version": format!("1.{}", oldest.0), "version": format!("1.{}", newest.0), "max_version": format!("1.{}", newest_requested.0),
    })
}

/// Returns the version document of `/v2`, in the form of Glance's API. Glance's clients read `id`, `status` and
/// `links`.
fn version_2_json(request: &HttpRequest) -> Value {
    let link = json!({"href": format!("{}/v2/", request.base_url), "rel": "self"});
    json!({"id": "v2.17", "status": "CURRENT", "links": [link]})
}

/// Handles `GET /`: returns a list of versions that contains only version 1. openstacksdk sends requests about nodes to
/// the newest version in this list, and version 2 has no nodes.
pub(super) fn root(_api: &Api, request: &HttpRequest) -> HttpResponse {
    versions_response(request, &[version_1_json(request)])
}

/// Handles `GET /versions`: returns the list of all versions, for Glance's command line.
pub(super) fn versions_list(_api: &Api, request: &HttpRequest) -> HttpResponse {
    versions_response(request, &[version_1_json(request), version_2_json(request)])
}

/// Returns a list of versions in `OpenStack`'s form. Version 1 is always the default.
fn versions_response(request: &HttpRequest, versions: &[Value]) -> HttpResponse {
    HttpResponse::ok(json!({
        "name": "Stemma", "description": "Labels, traits, tags and tasks of a fleet of hosts, each with its origin.",
        "default_version": version_1_json(request), "versions": versions,
    }))
}

/// Handles `GET /v1`: returns the document of version 1, in the form that Ironic's and Magnum's clients read.
pub(super) fn version_1_document(_api: &Api, request: &HttpRequest) -> HttpResponse {
    let base = &request.base_url;
    let mut body = json!({
        "id": "v1", "version": version_1_json(request), "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "media_types": [{"base": "application/json", "type": "application/vnd.openstack.magnum.v1+json"}],
    });
    for resource in ["nodes", "allocations", "clustertemplates", "clusters", "releases"] {
        body[resource] = json!(super::view::links(base, &format!("/v1/{resource}/")));
    }
    HttpResponse::ok(body)
}

/// Handles `GET /v2`: returns the document of version 2.
pub(super) fn version_2_document(_api: &Api, request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok(json!({"version": version_2_json(request)}))
}

/// Handles `GET /readyz`: succeeds if the store accepts writes. The cache needs no check, because this listener only
/// starts when the cache is complete.
pub(super) fn ready(api: &Api, _request: &HttpRequest) -> HttpResponse {
    match api.registry.store().health() {
        Health::Writable => HttpResponse::ok("ready".into()),
        Health::ReadOnly { reason } => {
            HttpResponse { status: StatusCode::SERVICE_UNAVAILABLE, ..HttpResponse::ok(reason.into()) }
        }
    }
}

/// Handles `GET /healthz`: succeeds if the process can respond.
pub(super) fn alive(_api: &Api, _request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok("ok".into())
}

/// Media type of the `OpenMetrics` format, an alternative to Prometheus' own text format.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Handles `GET /metrics`: returns all metrics in Prometheus' text format, or as `OpenMetrics` if the client prefers
/// this format. A caller that is bound to a cluster gets only the metrics of the objects of that cluster. If the table
/// of node states is outdated (`is_stale`), the states are computed from the model.
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

/// Returns whether a client accepts `OpenMetrics` and gives Prometheus' text format no higher quality. `accepted` are
/// the entries of its `Accept` header.
fn is_open_metrics_preferred(accepted: &[&str]) -> bool {
    let open_metrics_quality = media_type_quality(OPEN_METRICS, accepted).unwrap_or_default();
    // The quality of `text/plain` itself takes precedence over the quality of `text/*`, and this one over that of
    // `*/*`.
    let text_quality = ["text/plain", "text/*", "*/*"].into_iter().find_map(|name| media_type_quality(name, accepted));
    open_metrics_quality > 0.0 && open_metrics_quality >= text_quality.unwrap_or_default()
}

/// Returns the highest quality that the entries of an `Accept` header give a media type. Returns `None` if no entry
/// names exactly this type.
fn media_type_quality(media_type: &str, accepted: &[&str]) -> Option<f32> {
    let qualities = accepted.iter().filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let is_same_type = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type));
        is_same_type.then(|| parse_quality(parts))
    });
    qualities.reduce(f32::max)
}

/// Returns the quality (`q`, from 0 to 1) among the parameters of a media type. Without `q` the quality is 1, and with
/// an invalid `q` it is 0.
fn parse_quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f32 {
    let pair = parameters.find_map(|item| item.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q")));
    let Some((_, value)) = pair else { return 1.0 };
    value.trim().parse::<f32>().ok().filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or_default()
}

/// Handles `GET /openapi.json`: returns the description of the API.
pub(super) fn openapi_document(_api: &Api, _request: &HttpRequest) -> HttpResponse {
    HttpResponse::ok(openapi(env!("CARGO_PKG_VERSION")))
}

/// Refuses a request for a path that exists only on the listener for agents. The error names this listener.
pub(super) fn refuse_agent_path(_api: &Api, _request: &HttpRequest) -> HandlerResult {
    Err(ApiError::new(ErrorType::PathUnknown, "agents are served on their own listener"))
}

/// Handles `GET /v1/requests/{request}`: returns the response of an earlier write of the same caller, by its
/// `Idempotency-Key`. A client that lost the response of its write uses this endpoint.
pub(super) async fn get_request(api: &Api, request: &HttpRequest) -> HandlerResult {
    let id = request.param("request");
    let not_found_error = || {
        let message = format!("no write was made under the Idempotency-Key {}", stemma_wire::error::quote(id));
        ApiError::new(ErrorType::ObjectNotFound, message).detail("nothing was written; it can be sent again under the same key")
    };
    let uuid: Uuid = id.parse().map_err(|_| not_found_error())?;
    let stored_request = api.registry.request(&request.requester, uuid).await?;
    let (record, revision) = stored_request.ok_or_else(not_found_error)?;
    let answer = record.answer.with_revision(revision.get());
    Ok(HttpResponse::ok(json!({
        "id": uuid, "at": super::view::format_time(record.at), "revision": revision.get(), "status": answer.status, "location": answer.location,
        "warning": answer.warning, "body": answer.body,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By RFC 9110, a quality of 0 excludes a format, and clients prefer the format with the higher quality. A missing
    /// quality means 1. `expected` is true if the response is in the `OpenMetrics` format.
    #[test]
    fn y09_is_open_metrics_preferred_follows_accept_header() {
        let prometheus_accept_header = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
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
            (prometheus_accept_header, true),
        ] {
            let accepted: Vec<&str> = accept.split(',').collect();
            assert_eq!(is_open_metrics_preferred(&accepted), expected, "{accept:?}");
        }
    }
}

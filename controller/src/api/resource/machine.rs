//! What machines ask for: version documents, health, metrics, the description of the API itself.

use hyper::StatusCode;
use hyper::header::ACCEPT;
use serde_json::{Value, json};
use stemma_wire::endpoint::openapi;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::api::http::request::{Body, HandlerResult, Reply, Request};
use crate::api::http::version::Service;
use crate::metrics::prometheus_text;
use crate::store::Health;

/// Ironic's clients read `version`, openstacksdk reads `max_version` first for every service: both are Ironic's newest, but for
/// who names a version of Magnum's.
fn version_1(request: &Request) -> Value {
    let base = &request.base;
    let asked = Service::ContainerInfra.is_named(&request.headers);
    let (oldest, newest) = Service::Baremetal.range();
    let (_, most) = if asked { Service::ContainerInfra.range() } else { (oldest, newest) };
    json!({
        "id": "v1", "status": "CURRENT", "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "min_version": format!("1.{}", oldest.0), "version": format!("1.{}", newest.0), "max_version": format!("1.{}", most.0),
    })
}

/// As of Glance's API, whose clients read `id`, `status` and `links`.
fn version_2(request: &Request) -> Value {
    let link = json!({"href": format!("{}/v2/", request.base), "rel": "self"});
    json!({"id": "v2.17", "status": "CURRENT", "links": [link]})
}

/// `GET /`: version 1 alone, since openstacksdk speaks to nodes under the newest that stands here.
pub(super) fn root(_api: &Api, request: &Request) -> Reply {
    versions(request, &[version_1(request)])
}

/// `GET /versions`, which Glance's command reads.
pub(super) fn versions_list(_api: &Api, request: &Request) -> Reply {
    versions(request, &[version_1(request), version_2(request)])
}

fn versions(request: &Request, versions: &[Value]) -> Reply {
    Reply::ok(json!({
        "name": "Stemma", "description": "Labels, traits, tags and tasks of a fleet of hosts, each with its line of descent.",
        "default_version": version_1(request), "versions": versions,
    }))
}

/// `GET /v1`.
pub(super) fn version_1_document(_api: &Api, request: &Request) -> Reply {
    let base = &request.base;
    let mut body = json!({
        "id": "v1", "version": version_1(request), "links": [{"href": format!("{base}/v1/"), "rel": "self"}],
        "media_types": [{"base": "application/json", "type": "application/vnd.openstack.magnum.v1+json"}],
    });
    for resource in ["nodes", "allocations", "clustertemplates", "clusters", "releases"] {
        body[resource] = json!(super::view::links(base, &format!("/v1/{resource}/")));
    }
    Reply::ok(body)
}

/// `GET /v2`.
pub(super) fn version_2_document(_api: &Api, request: &Request) -> Reply {
    Reply::ok(json!({"version": version_2(request)}))
}

/// `GET /readyz`: whether the store takes writes and the cache is whole.
pub(super) fn ready(api: &Api, _request: &Request) -> Reply {
    match api.registry.store().health() {
        Health::Writable => Reply::ok("ready".into()),
        Health::ReadOnly { reason } => Reply { status: StatusCode::SERVICE_UNAVAILABLE, ..Reply::ok(reason.into()) },
    }
}

/// `GET /healthz`: that the process answers.
pub(super) fn alive(_api: &Api, _request: &Request) -> Reply {
    Reply::ok("ok".into())
}

/// The form of metrics that who asks may accept in the place of Prometheus' own.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// `GET /metrics`: in the text form of Prometheus, or as `OpenMetrics` where that is accepted.
pub(super) fn metrics(api: &Api, request: &Request) -> Reply {
    let model = api.model();
    let facts = || state::all_facts(api, &model, model.nodes.iter().map(|node| node.id()));
    let facts = api.is_behind.then(facts);
    let text = api.metrics.as_ref().map(|metrics| metrics.text_by(api.within, facts.as_deref())).unwrap_or_default();
    let accepted = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<&str> = accepted.flat_map(|value| value.split(',')).collect();
    let body = if wants_open_metrics(&accepted) {
        Body::Written(text.into(), "application/openmetrics-text; version=1.0.0; charset=utf-8")
    } else {
        Body::Written(prometheus_text(&text).into(), "text/plain; version=0.0.4; charset=utf-8")
    };
    Reply { body, ..Reply::ok(Value::Null) }
}

/// Whether `OpenMetrics` is accepted, and the text form is not wanted more.
fn wants_open_metrics(accepted: &[&str]) -> bool {
    let open = quality_of(OPEN_METRICS, accepted).unwrap_or_default();
    // What is said of the form itself goes before what is said of all forms.
    let text = ["text/plain", "text/*", "*/*"].into_iter().find_map(|kind| quality_of(kind, accepted));
    open > 0.0 && open >= text.unwrap_or_default()
}

/// How much a form is wanted, by the best that is said of it; `None`: nothing is said of it.
fn quality_of(kind: &str, accepted: &[&str]) -> Option<f32> {
    let said = accepted.iter().filter_map(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_meant = parts.next().is_some_and(|named| named.eq_ignore_ascii_case(kind));
        is_meant.then(|| quality(parts))
    });
    said.reduce(f32::max)
}

/// The quality among parameters: all where none is said, and none where it cannot be read.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f32 {
    let said = parameters.find_map(|one| one.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q")));
    let Some((_, value)) = said else { return 1.0 };
    value.trim().parse::<f32>().ok().filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or_default()
}

/// `GET /openapi.json`.
pub(super) fn description(_api: &Api, _request: &Request) -> Reply {
    Reply::ok(openapi(env!("CARGO_PKG_VERSION")))
}

/// A path of the agents' listener, which this one does not have.
pub(super) fn agents_path(_api: &Api, _request: &Request) -> HandlerResult {
    Err(ApiError::new(ErrorType::PathUnknown, "agents are served on their own listener"))
}

/// `GET /v1/requests/{request}`: what became of a write.
pub(super) async fn request(api: &Api, request: &Request) -> HandlerResult {
    let id = request.part("request");
    let missing = || {
        let message = format!("no write was made under the Idempotency-Key {}", stemma_wire::error::quote(id));
        ApiError::new(ErrorType::ObjectNotFound, message)
            .detail("nothing was written; it can be sent again under the same key")
    };
    let uuid: Uuid = id.parse().map_err(|_| missing())?;
    let found = api.registry.request(&request.who, uuid).await?;
    let (record, revision) = found.ok_or_else(missing)?;
    let answer = record.answer.at(revision.get());
    Ok(Reply::ok(json!({
        "id": uuid, "at": super::view::time(record.at), "revision": revision.get(), "status": answer.status, "location": answer.location,
        "warning": answer.warning, "body": answer.body,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By RFC 9110: a quality of nothing says that a form is not wanted, the higher one is wanted more, and none is the highest.
    #[test]
    fn y09_metrics_are_in_the_form_that_is_wanted_most() {
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
            assert_eq!(wants_open_metrics(&accepted), expected, "{accept:?}");
        }
    }
}

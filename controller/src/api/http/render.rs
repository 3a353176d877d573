//! Renders a handler's result as a response: errors in the format of the `OpenStack` API that the client uses, and the
//! headers that tell the client how to react.

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode, header};
use log::error;
use serde_json::json;
use stemma_wire::endpoint::BodyType;
use stemma_wire::error::{ApiError, ErrorType};

use super::body::{self, BoxedBody};
use super::request::{HandlerResult, HttpResponse, JSON, ResponseBody};
use super::version::OpenStackApi;
use crate::registry::budget::Share;

/// Renders a handler's result as a response. `share` is the body's share of the memory budget, which is released when
/// the body is sent. `id` is the id of the request. `service` is the `OpenStack` API that the path belongs to, if any.
pub(crate) fn render(
    outcome: HandlerResult,
    share: Option<Share>,
    id: &str,
    service: Option<OpenStackApi>,
) -> Response<BoxedBody> {
    let reply = outcome.unwrap_or_else(|refusal| error_response(refusal, id, service)).encode();
    let (body, media_type) = match reply.body {
        ResponseBody::Encoded(text, media_type) => (body::full_body(text, share), Some(media_type)),
        ResponseBody::JsonStream(pieces) => (body::stream_body(pieces), Some(JSON)),
        ResponseBody::FileStream(pieces) => (body::stream_body(pieces), BodyType::Bytes.media_types().first().copied()),
        ResponseBody::Events(events) => (body::event_body(events), BodyType::Events.media_types().first().copied()),
        // `encode` has replaced every JSON body, so only an empty body is left here.
        ResponseBody::Empty | ResponseBody::Json(_) => (body::full_body(Bytes::new(), None), None),
    };
    let mut response = Response::new(body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    if let Some(media_type) = media_type {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(id) {
        response.headers_mut().insert("x-openstack-request-id", id);
    }
    response
}

/// Returns the response for an error: its status, its headers, and a JSON body. If `service` is Ironic's API, the body
/// also has the member `error_message`, which Ironic's clients read. Logs an error of the server.
fn error_response(mut refusal: ApiError, id: &str, service: Option<OpenStackApi>) -> HttpResponse {
    refusal.request_id = Some(id.to_owned());
    // Any client can cause `ServerBusy` any number of times, so it is not logged.
    if refusal.status() >= 500 && refusal.kind != ErrorType::ServerBusy {
        error!(request = id, reason = refusal.kind.name(), error = refusal.message; "request failed");
    }
    if service == Some(OpenStackApi::Baremetal) {
        // Ironic's clients expect the error as JSON text within a string.
        let fault = if refusal.status() >= 500 { "Server" } else { "Client" };
        let inner = json!({"faultcode": fault, "faultstring": refusal.message, "debuginfo": null});
        refusal = refusal.extra("error_message", inner.to_string().into());
    }
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = HttpResponse { status, ..HttpResponse::ok(refusal.body()) };
    if let Some(allow) = &refusal.allow {
        reply.set_header(header::ALLOW, allow);
    }
    if let Some(seconds) = refusal.retry_after_s.or_else(|| retry_after_s(refusal.kind)) {
        reply.headers.insert(header::RETRY_AFTER, seconds.into());
    }
    reply
}

/// Returns the seconds after which the client can send the same request again. Returns `None` if a retry is useless, or
/// if the first request may already have had an effect.
fn retry_after_s(kind: ErrorType) -> Option<u32> {
    match kind {
        ErrorType::ServerBusy => Some(1),
        // After both errors, the service manager usually restarts the controller, which then needs this time.
        ErrorType::ServerStopping | ErrorType::StoreReadOnly => Some(10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_sets_retry_after_when_error_is_temporary() {
        for (refusal, seconds) in [
            (ErrorType::ServerBusy.into(), Some("1")),
            (ApiError::from(ErrorType::ServerBusy).retry_after(42), Some("42")),
            (ErrorType::StoreReadOnly.into(), Some("10")),
            (ErrorType::OutcomeUnknown.into(), None),
            (ErrorType::LabelConflict.into(), None),
        ] {
            let name = refusal.kind.name();
            let response = render(Err(refusal), None, "req-1", None);
            let retry_after = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(retry_after, seconds, "{name}");
        }
    }
}

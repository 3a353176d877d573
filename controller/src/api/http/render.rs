//! An outcome as it goes over the wire: the body in the form of its upstream, and the headers that say what to do about it.

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode, header};
use log::error;
use serde_json::json;
use stemma_wire::endpoint::Content;
use stemma_wire::error::{ApiError, ErrorType};

use super::body::{self, AnswerBody};
use super::request::{Body, HandlerResult, JSON, Reply};
use super::version::Service;
use crate::registry::budget::Share;

/// An outcome as it goes over the wire. The share is that of its body.
pub(crate) fn render(
    outcome: HandlerResult,
    share: Option<Share>,
    id: &str,
    service: Option<Service>,
) -> Response<AnswerBody> {
    let reply = outcome.unwrap_or_else(|refusal| refused(refusal, id, service)).written_out();
    let (body, media_type) = match reply.body {
        Body::Written(text, media_type) => (body::whole(text, share), Some(media_type)),
        Body::Pieces(pieces) => (body::streamed(pieces), Some(JSON)),
        Body::File(pieces) => (body::streamed(pieces), Content::Bytes.media_types().first().copied()),
        Body::Events(events) => (body::told(events), Content::Events.media_types().first().copied()),
        Body::Nothing | Body::Value(_) => (body::whole(Bytes::new(), None), None),
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

fn refused(mut refusal: ApiError, id: &str, service: Option<Service>) -> Reply {
    refusal.request_id = Some(id.to_owned());
    // Anybody may be told that there is too much to do, as often as he asks: no line for each.
    if refusal.status() >= 500 && refusal.kind != ErrorType::ServerBusy {
        error!(request = id, reason = refusal.kind.name(), error = refusal.message; "request failed");
    }
    if service == Some(Service::Baremetal) {
        // A string that holds JSON: what Ironic's clients read.
        let fault = if refusal.status() >= 500 { "Server" } else { "Client" };
        let inner = json!({"faultcode": fault, "faultstring": refusal.message, "debuginfo": null});
        refusal = refusal.extra("error_message", inner.to_string().into());
    }
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = Reply { status, ..Reply::ok(refusal.body()) };
    if let Some(allow) = &refusal.allow {
        reply.set(header::ALLOW, allow);
    }
    if let Some(seconds) = refusal.retry_after_s.or_else(|| retry_after_s(refusal.kind)) {
        reply.headers.insert(header::RETRY_AFTER, seconds.into());
    }
    reply
}

/// After how many seconds a request can be sent again as it is; `None` where that would be of no use, or is not known to be
/// of none the first time.
fn retry_after_s(kind: ErrorType) -> Option<u32> {
    match kind {
        ErrorType::ServerBusy => Some(1),
        // By then the service has been restarted.
        ErrorType::ServerStopping | ErrorType::StoreReadOnly => Some(10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_served_now_is_told_when_to_ask_again() {
        for (refusal, seconds) in [
            (ErrorType::ServerBusy.into(), Some("1")),
            (ApiError::from(ErrorType::ServerBusy).retry_after(42), Some("42")),
            (ErrorType::StoreReadOnly.into(), Some("10")),
            (ErrorType::OutcomeUnknown.into(), None),
            (ErrorType::LabelConflict.into(), None),
        ] {
            let name = refusal.kind.name();
            let response = render(Err(refusal), None, "req-1", None);
            let told = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(told, seconds, "{name}");
        }
    }
}

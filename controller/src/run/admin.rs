//! The admin listener's side: what is served there.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode};
use stemma_wire::error::ErrorType;
use stemma_wire::serve::{Peer, RequestBody};

use super::Parts;
use crate::config::Config;
use crate::metrics::Metrics;

/// What answers operators.
pub(super) fn handler(
    parts: &Arc<Parts>,
    _config: &Config,
    _bound: SocketAddr,
) -> impl Fn(&Arc<Peer>, Request<RequestBody>) -> Ready<Response<Full<Bytes>>> + Send + Sync + 'static {
    let metrics = Arc::clone(&parts.metrics);
    move |_peer, request| {
        let (status, text) = match request.uri().path() {
            "/healthz" => (StatusCode::OK, Metrics::healthz().to_owned()),
            "/readyz" => metrics
                .readyz()
                .map_or_else(|why| (StatusCode::SERVICE_UNAVAILABLE, why), |ok| (StatusCode::OK, ok.to_owned())),
            "/metrics" => (StatusCode::OK, metrics.text()),
            _ => (StatusCode::NOT_FOUND, ErrorType::PathUnknown.fixed_body().to_owned()),
        };
        let mut response = Response::new(Full::new(text.into()));
        *response.status_mut() = status;
        ready(response)
    }
}

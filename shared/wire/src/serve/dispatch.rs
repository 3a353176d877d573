//! Handles one request: refuses it before the handler runs, calls the handler, and responds if the handler panics.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};

use super::connections::ConnectionMonitor;
use super::peer::Peer;
use super::{BoxError, Handler, RejectionCounter, RequestBody, ServerState};
use crate::error::ErrorType;

/// The state that all requests of one connection share.
pub(super) struct Dispatcher<H> {
    pub(super) handler: Arc<H>,
    pub(super) peer: Arc<Peer>,
    pub(super) monitor: Arc<ConnectionMonitor>,
    /// The path of nearly every request. Set only on a listener that passes requests on without their headers.
    pub(super) common_path: Option<Uri>,
    pub(super) server: Arc<ServerState>,
}

/// The body of a response: the body from the handler, or a fixed text if the request was refused or the handler
/// panicked.
pub(super) enum HandlerBody<B> {
    Handler(B),
    Fixed(Option<Bytes>),
}

impl<H: Handler> Dispatcher<H> {
    /// Returns the future of the response to a request: a fixed error if the request is refused, or else the response
    /// of the handler. If the handler panics, the response is a fixed error too.
    pub(super) fn respond(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<HandlerBody<H::Body>>, BoxError>> + Send + 'static + use<H> {
        self.monitor.is_answering.store(false, Ordering::Relaxed);
        self.monitor.has_request.store(true, Ordering::Relaxed);
        // `HeadReader` cannot check a head after a chunked body, so such a request must be the connection's last one.
        let is_last_request = request.headers().contains_key(TRANSFER_ENCODING);
        let limit = self.server.limits.max_body_bytes;
        let buffered_body = self.monitor.take_buffered_body();
        if buffered_body.is_some() {
            // `GuardedStream` wrote the length 0 into this header when it moved the body to the buffer. The buffered
            // body knows its own length.
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        let mut request = request.map(|body| RequestBody::new(body, buffered_body, Arc::clone(&self.monitor), limit));
        let refusal = self.refusal_of_request(&request);
        // If `common_path` is set, the listener passes requests on without their headers.
        let reusable_headers = self.common_path.as_ref().map(|path| detach_headers(&mut request, path));
        let dispatcher = Arc::clone(self);
        async move {
            let mut response = match refusal {
                Some(kind) => fixed_response(kind),
                None => match catch_panic(|| dispatcher.handler.call(&dispatcher.peer, request)).await {
                    Ok(response) => response.map(HandlerBody::Handler),
                    Err(panic) => panic_response(&dispatcher.server.rejections, dispatcher.peer.address, &*panic),
                },
            };
            // The map of the request is empty now, and its memory is reused for the headers of the response.
            if let Some(empty_map) = reusable_headers.filter(|_| response.headers().is_empty()) {
                *response.headers_mut() = empty_map;
            }
            if is_last_request || dispatcher.monitor.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            dispatcher.monitor.is_answering.store(true, Ordering::Relaxed);
            Ok(response)
        }
    }

    /// Returns the error for a request that no handler accepts: with a `Content-Encoding` (S49), a too large declared
    /// length (S43), the method `CONNECT`, or a target that is no path. Counts the rejection, and notifies the handler.
    fn refusal_of_request(&self, request: &Request<RequestBody>) -> Option<ErrorType> {
        let kind = if request.uri().scheme().is_some() || !request.uri().path().starts_with('/') {
            ErrorType::RequestMalformed
        } else if request.method() == Method::CONNECT {
            ErrorType::RequestMethod
        } else if request.headers().contains_key(CONTENT_ENCODING) {
            ErrorType::RequestEncoding
        } else if request.body().size_hint().lower() > self.server.limits.max_body_bytes {
            ErrorType::RequestTooLarge
        } else {
            return None;
        };
        self.server.rejections.record_peer(rejection_reason(kind), &self.peer);
        self.handler.on_refused(&self.peer, request.uri().path(), kind);
        Some(kind)
    }
}

/// Removes the headers from a request, and replaces its URI by `common_path` if both have the same path and query.
/// Headers and URI refer to the read buffer of the connection, so hyper would have to allocate another buffer while
/// they exist. Returns the empty header map, so that the response can reuse its memory.
fn detach_headers(request: &mut Request<RequestBody>, common_path: &Uri) -> HeaderMap {
    if request.uri().path_and_query().map(PathAndQuery::as_str) == common_path.path_and_query().map(PathAndQuery::as_str) {
        *request.uri_mut() = common_path.clone();
    }
    let mut headers = std::mem::take(request.headers_mut());
    headers.clear();
    headers
}

/// Returns the reason under which a refused request is counted as a rejection.
fn rejection_reason(kind: ErrorType) -> &'static str {
    match kind {
        ErrorType::RequestTooLarge => "body_too_large",
        ErrorType::RequestEncoding => "body_compressed",
        ErrorType::RequestMethod => "method_connect",
        _ => "target_malformed",
    }
}

/// Returns the error response of this type. Its body is a fixed text that repeats nothing of the request.
pub(super) fn fixed_response<B>(kind: ErrorType) -> Response<HandlerBody<B>> {
    let mut response = Response::new(HandlerBody::Fixed(Some(Bytes::from_static(kind.fixed_body().as_bytes()))));
    *response.status_mut() = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Logs and counts the panic of a handler, and returns an error response. Only the request of that handler fails (S53).
fn panic_response<B>(
    rejections: &RejectionCounter,
    address: std::net::SocketAddr,
    panic: &(dyn Any + Send),
) -> Response<HandlerBody<B>> {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    log::error!(peer:% = address, error = message.unwrap_or("no message"); "request handler panicked");
    rejections.record("handler_panicked", Some(address.ip()));
    fixed_response(ErrorType::ServerInternal)
}

/// Calls `start` and awaits the future that it returns. If `start` or the future panics, returns the panic as the
/// error.
async fn catch_panic<F: Future>(start: impl FnOnce() -> F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(catch_unwind(AssertUnwindSafe(start))?);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for HandlerBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    /// Returns the next piece of the body. A fixed text is one piece.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Handler(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Fixed(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
        }
    }

    /// Returns whether no more data follows.
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Handler(body) => body.is_end_stream(),
            Self::Fixed(body) => body.is_none(),
        }
    }

    /// Returns the size of the rest of the body, as far as it is known.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Handler(body) => body.size_hint(),
            Self::Fixed(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }
}

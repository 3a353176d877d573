//! One request: what is refused before a handler sees it, and what is answered when a handler panics.

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

use super::connections::Watch;
use super::peer::Peer;
use super::{BoxError, Handler, Rejected, RequestBody, Shared};
use crate::error::ErrorType;

/// What the requests of one connection share.
pub(super) struct Answerer<H> {
    pub(super) handler: Arc<H>,
    pub(super) peer: Arc<Peer>,
    pub(super) watch: Arc<Watch>,
    /// The path of nearly every request, on a listener that hands them over without their headers.
    pub(super) usual: Option<Uri>,
    pub(super) shared: Arc<Shared>,
}

/// A handler's body, or a fixed one in its place.
pub(super) enum Reply<B> {
    Handler(B),
    Fixed(Option<Bytes>),
}

impl<H: Handler> Answerer<H> {
    pub(super) fn answer(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Reply<H::Body>>, BoxError>> + Send + 'static + use<H> {
        self.watch.answering.store(false, Ordering::Relaxed);
        self.watch.used.store(true, Ordering::Relaxed);
        // Behind a chunked body the heads are no longer followed, so no request may stand there.
        let last = request.headers().contains_key(TRANSFER_ENCODING);
        let limit = self.shared.limits.body_bytes;
        let whole = self.watch.take_whole();
        if whole.is_some() {
            // The guard made it nought when it took the body out; the body itself knows how long it is.
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        let mut request = request.map(|body| RequestBody::new(body, whole, Arc::clone(&self.watch), limit));
        let refused = self.refuse(&request);
        let spare = self.usual.as_ref().map(|usual| detach(&mut request, usual));
        let this = Arc::clone(self);
        async move {
            let mut response = match refused {
                Some(kind) => fixed(kind),
                None => match catch_panic(|| this.handler.call(&this.peer, request)).await {
                    Ok(response) => response.map(Reply::Handler),
                    Err(panic) => panicked(&this.shared.rejected, this.peer.address, &*panic),
                },
            };
            if let Some(spare) = spare.filter(|_| response.headers().is_empty()) {
                *response.headers_mut() = spare;
            }
            if last || this.watch.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            this.watch.answering.store(true, Ordering::Relaxed);
            Ok(response)
        }
    }

    /// What no handler takes: compressed bodies (S49), bodies that say that they are too large (S43), and forms of the request line
    /// that are for proxies.
    fn refuse(&self, request: &Request<RequestBody>) -> Option<ErrorType> {
        let kind = if request.uri().scheme().is_some() || !request.uri().path().starts_with('/') {
            ErrorType::RequestMalformed
        } else if request.method() == Method::CONNECT {
            ErrorType::RequestMethod
        } else if request.headers().contains_key(CONTENT_ENCODING) {
            ErrorType::RequestEncoding
        } else if request.body().size_hint().lower() > self.shared.limits.body_bytes {
            ErrorType::RequestTooLarge
        } else {
            return None;
        };
        self.shared.rejected.refuse_peer(refusal_reason(kind), &self.peer);
        self.handler.note_refused(&self.peer, request.uri().path(), kind);
        Some(kind)
    }
}

/// Takes the headers out of a request, and an address that is the usual one: each holds a part of the connection's
/// buffer, and while one is there hyper makes a new buffer for the next read. Gives back the headers' table, empty:
/// as the answer's it is what hyper reads the next head into.
fn detach(request: &mut Request<RequestBody>, usual: &Uri) -> HeaderMap {
    if request.uri().path_and_query().map(PathAndQuery::as_str) == usual.path_and_query().map(PathAndQuery::as_str) {
        *request.uri_mut() = usual.clone();
    }
    let mut headers = std::mem::take(request.headers_mut());
    headers.clear();
    headers
}

fn refusal_reason(kind: ErrorType) -> &'static str {
    match kind {
        ErrorType::RequestTooLarge => "body_too_large",
        ErrorType::RequestEncoding => "body_compressed",
        ErrorType::RequestMethod => "method_connect",
        _ => "target_malformed",
    }
}

/// The answer of fixed text: nothing of the request is in it.
pub(super) fn fixed<B>(kind: ErrorType) -> Response<Reply<B>> {
    let mut response = Response::new(Reply::Fixed(Some(Bytes::from_static(kind.fixed_body().as_bytes()))));
    *response.status_mut() = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A panic costs its own request and nothing else (S53).
fn panicked<B>(rejected: &Rejected, from: std::net::SocketAddr, panic: &(dyn Any + Send)) -> Response<Reply<B>> {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    log::error!(peer:% = from, error = message.unwrap_or("no message"); "request handler panicked");
    rejected.refuse("handler_panicked", Some(from.ip()));
    fixed(ErrorType::ServerInternal)
}

/// Starts a future and waits for it; a panic of either is the result.
async fn catch_panic<F: Future>(start: impl FnOnce() -> F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(catch_unwind(AssertUnwindSafe(start))?);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Reply<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Handler(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Fixed(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Handler(body) => body.is_end_stream(),
            Self::Fixed(body) => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Handler(body) => body.size_hint(),
            Self::Fixed(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }
}

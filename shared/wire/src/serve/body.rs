//! A request's body, with its measure: how much of it is taken is decided before a byte is kept (S43).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connections::Watch;
use crate::error::ErrorType;

/// The body of a request that a listener took. It ends with [`BodyError::TooLarge`] once it passes its limit, with and
/// without a `Content-Length`.
#[derive(Debug)]
pub struct RequestBody {
    source: Source,
    left: u64,
}

/// Where a body comes from.
#[derive(Debug)]
enum Source {
    /// It came in one read with its head, and is here.
    Whole(Bytes),
    /// It comes through hyper.
    Incoming(Incoming, Arc<Watch>),
}

/// A body that could not be taken whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is larger than is taken here.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The connection ended, or the body's framing is broken.
    #[error("the body could not be read")]
    Broken(#[source] hyper::Error),
}

impl BodyError {
    /// The error type to answer with.
    pub fn kind(&self) -> ErrorType {
        match self {
            Self::TooLarge { .. } => ErrorType::RequestTooLarge,
            Self::Broken(_) => ErrorType::RequestMalformed,
        }
    }
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, whole: Option<Bytes>, watch: Arc<Watch>, limit: u64) -> Self {
        let source = whole.map_or_else(|| Source::Incoming(incoming, watch), Source::Whole);
        Self { source, left: limit }
    }

    /// Reads it whole, up to `limit` bytes. What says at once that it is larger is refused before a byte is read.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn collect(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if self.size_hint().lower() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        if let Source::Whole(body) = self.source {
            return Ok(body);
        }
        self.left = self.left.min(limit);
        let mut whole = Parts::None;
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame.map_err(|error| error.with_limit(limit))?.into_data() {
                whole.push(data);
            }
        }
        Ok(whole.into_bytes())
    }
}

impl BodyError {
    fn with_limit(self, limit: u64) -> Self {
        match self {
            Self::TooLarge { .. } => Self::TooLarge { limit },
            Self::Broken(_) => self,
        }
    }
}

/// What was read so far: one piece is kept as it is, without a copy.
enum Parts {
    None,
    One(Bytes),
    Many(BytesMut),
}

impl Parts {
    fn push(&mut self, data: Bytes) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(data),
            Self::One(first) => {
                let mut many = BytesMut::with_capacity(first.len() + data.len());
                many.extend_from_slice(&first);
                many.extend_from_slice(&data);
                Self::Many(many)
            }
            Self::Many(mut many) => {
                many.extend_from_slice(&data);
                Self::Many(many)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::None => Bytes::new(),
            Self::One(data) => data,
            Self::Many(many) => many.freeze(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match &mut self.source {
            Source::Whole(body) if body.is_empty() => None,
            Source::Whole(body) => Some(Frame::data(std::mem::take(body))),
            Source::Incoming(incoming, watch) => match ready!(Pin::new(incoming).poll_frame(cx)) {
                Some(frame) => Some(frame.map_err(BodyError::Broken)?),
                None => {
                    // A chunked body's end is known here alone.
                    watch.body_open.store(false, Ordering::Relaxed);
                    watch.expect_nothing();
                    None
                }
            },
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let left = self.left.checked_sub(bytes).ok_or(BodyError::TooLarge { limit: self.left })?;
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(body) => body.is_empty(),
            Source::Incoming(incoming, _) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(body) => SizeHint::with_exact(body.len() as u64),
            Source::Incoming(incoming, _) => incoming.size_hint(),
        }
    }
}

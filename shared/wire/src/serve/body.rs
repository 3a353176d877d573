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
    incoming: Incoming,
    watch: Arc<Watch>,
    left: u64,
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
    pub(super) fn new(incoming: Incoming, watch: Arc<Watch>, limit: u64) -> Self {
        Self { incoming, watch, left: limit }
    }

    /// Reads it whole, up to `limit` bytes. What says at once that it is larger is refused before a byte is read.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn collect(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if self.incoming.size_hint().lower() > limit {
            return Err(BodyError::TooLarge { limit });
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
        match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            None => {
                // A chunked body's end is known here alone.
                self.watch.body_open.store(false, Ordering::Relaxed);
                self.watch.expect_nothing();
                Poll::Ready(None)
            }
            Some(Err(error)) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                match self.left.checked_sub(bytes) {
                    Some(left) => {
                        self.left = left;
                        Poll::Ready(Some(Ok(frame)))
                    }
                    None => Poll::Ready(Some(Err(BodyError::TooLarge { limit: self.left }))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

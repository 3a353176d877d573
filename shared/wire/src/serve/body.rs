//! The body of a request, with its size limit: a body that is too large is refused before any byte is stored (S43).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connections::ConnectionMonitor;
use crate::error::ErrorType;

/// The body of a request that a listener accepted. It fails with [`BodyError::TooLarge`] once it exceeds its limit,
/// with or without a `Content-Length`.
#[derive(Debug)]
pub struct RequestBody {
    source: BodyOrigin,
    remaining: u64,
}

/// The source from which a body is read.
#[derive(Debug)]
enum BodyOrigin {
    /// The whole body, which arrived in one read with its head.
    Buffered(Bytes),
    /// A body that hyper reads.
    Incoming(Incoming, Arc<ConnectionMonitor>),
}

/// Why a body could not be read completely.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than the limit.
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
    /// Returns the error type to respond with.
    pub fn kind(&self) -> ErrorType {
        match self {
            Self::TooLarge { .. } => ErrorType::RequestTooLarge,
            Self::Broken(_) => ErrorType::RequestMalformed,
        }
    }
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, buffered: Option<Bytes>, monitor: Arc<ConnectionMonitor>, limit: u64) -> Self {
        let source = buffered.map_or_else(|| BodyOrigin::Incoming(incoming, monitor), BodyOrigin::Buffered);
        Self { source, remaining: limit }
    }

    /// Reads the whole body, up to `limit` bytes. A body with a larger declared length is refused before a byte is
    /// read.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn collect(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if self.size_hint().lower() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        if let BodyOrigin::Buffered(body) = self.source {
            return Ok(body);
        }
        self.remaining = self.remaining.min(limit);
        let mut pieces = BodyPieces::None;
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame.map_err(|error| error.with_limit(limit))?.into_data() {
                pieces.push(data);
            }
        }
        Ok(pieces.into_bytes())
    }
}

impl BodyError {
    /// Returns the error with the limit of the whole body, instead of the remaining bytes.
    fn with_limit(self, limit: u64) -> Self {
        match self {
            Self::TooLarge { .. } => Self::TooLarge { limit },
            Self::Broken(_) => self,
        }
    }
}

/// The pieces of a body that were read so far. A single piece is kept without a copy.
enum BodyPieces {
    None,
    One(Bytes),
    Many(BytesMut),
}

impl BodyPieces {
    /// Adds a piece. The pieces are copied into one buffer from the second piece on.
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
            BodyOrigin::Buffered(body) if body.is_empty() => None,
            BodyOrigin::Buffered(body) => Some(Frame::data(std::mem::take(body))),
            BodyOrigin::Incoming(incoming, monitor) => match ready!(Pin::new(incoming).poll_frame(cx)) {
                Some(frame) => Some(frame.map_err(BodyError::Broken)?),
                None => {
                    // The end of a chunked body is known only here, because `HeadReader` does not parse chunks.
                    monitor.is_body_open.store(false, Ordering::Relaxed);
                    monitor.clear_deadline();
                    None
                }
            },
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let remaining = self.remaining.checked_sub(bytes).ok_or(BodyError::TooLarge { limit: self.remaining })?;
        self.remaining = remaining;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodyOrigin::Buffered(body) => body.is_empty(),
            BodyOrigin::Incoming(incoming, _) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodyOrigin::Buffered(body) => SizeHint::with_exact(body.len() as u64),
            BodyOrigin::Incoming(incoming, _) => incoming.size_hint(),
        }
    }
}

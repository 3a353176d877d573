//! The body of a response: complete, or in pieces.
//!
//! A piece is built when the client has read the previous one, so a slow client holds one piece and no more. It is
//! built on a blocking thread, not on one that serves connections.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{try_unfold, unfold};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, SizeHint};
use stemma_core::shares::Shares;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::BoxError;
use tokio::sync::mpsc::Receiver;
use tokio::task::spawn_blocking;

use super::budget::MAX_FREE_RESPONSE_BYTES;
use crate::registry::Requester;
use crate::registry::budget::{Share, SharedBudget};

/// The body of a response.
pub type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

/// The pieces of a body, in order.
pub(crate) type BodyStream = Box<dyn Iterator<Item = Result<Bytes, BoxError>> + Send>;

/// Maximum number of lists and files that are sent in pieces at the same time.
const MAX_STREAMED_BODIES: u64 = 64;

/// A limit on the number of lists and files that are sent in pieces, and so on their memory: each has a snapshot of the
/// data and one or two pieces in memory until its client has read it. Streams of events have a limit of their own.
#[derive(Clone)]
pub struct StreamLimiter(SharedBudget);

impl Default for StreamLimiter {
    fn default() -> Self {
        Self(SharedBudget::new(Shares::from_total(MAX_STREAMED_BODIES)))
    }
}

impl StreamLimiter {
    /// Counts a response that is sent in pieces, and returns its pieces. The response counts until the returned
    /// iterator is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if too many responses are sent in pieces, of all clients or of this principal.
    pub(crate) fn admit(&self, requester: &Requester, pieces: BodyStream) -> Result<BodyStream, ApiError> {
        let share = self.0.try_take(requester, 1).ok_or(ErrorType::ServerBusy)?;
        // The closure owns the share, so the share is released when the iterator is dropped.
        Ok(Box::new(pieces.inspect(move |_| {
            let _captured_share = &share;
        })))
    }
}

/// Returns the pieces of a body, with an error in place of each piece after the caller's access is revoked.
/// `is_authorized` returns whether the access is still valid.
pub(crate) fn while_authorized(pieces: BodyStream, is_authorized: impl Fn() -> bool + Send + 'static) -> BodyStream {
    let revoked = || Err("the caller's access was revoked".into());
    Box::new(pieces.map(move |piece| if is_authorized() { piece } else { revoked() }))
}

/// Returns a body with bytes from memory. The body is sent frame by frame as the client reads it. The body holds its
/// share of the memory budget until it is dropped, after its last frame or when the connection ends.
pub(crate) fn full_body(bytes: Bytes, share: Option<Share>) -> BoxedBody {
    FramedBody { rest: bytes, _share: share }.boxed_unsync()
}

/// A body of bytes that are sent in frames. If all bytes were one frame, hyper would copy them at once into the buffer
/// of the connection, which no budget counts.
struct FramedBody {
    /// The bytes that are not sent yet.
    rest: Bytes,
    _share: Option<Share>,
}

impl Body for FramedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(next_frame(&mut self.rest).map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Splits the next frame off the bytes that are not sent yet. Returns `None` if there are no more bytes.
fn next_frame(rest: &mut Bytes) -> Option<Bytes> {
    (!rest.is_empty()).then(|| rest.split_to(rest.len().min(MAX_FREE_RESPONSE_BYTES)))
}

/// Returns a body whose pieces are produced as the client reads it, and sent frame by frame. If the iterator panics,
/// the body ends with an error.
pub(crate) fn stream_body(pieces: BodyStream) -> BoxedBody {
    let frames = try_unfold((pieces, Bytes::new()), async |(mut pieces, mut buffer)| {
        while buffer.is_empty() {
            let (piece, later_pieces) = spawn_blocking(move || (pieces.next(), pieces)).await?;
            let Some(piece) = piece.transpose()? else { return Ok(None) };
            (buffer, pieces) = (piece, later_pieces);
        }
        Ok(next_frame(&mut buffer).map(|piece| (Frame::data(piece), (pieces, buffer))))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Returns a text as bytes that own `share`, a share of the memory budget, if there is one. The share is released when
/// the last part of the bytes is dropped: after it was passed to the client's connection, or when the connection ends.
pub(crate) fn bytes_with_share(text: String, share: Option<Share>) -> Bytes {
    struct HeldText {
        text: String,
        _share: Option<Share>,
    }
    impl AsRef<[u8]> for HeldText {
        fn as_ref(&self) -> &[u8] {
            self.text.as_bytes()
        }
    }
    Bytes::from_owner(HeldText { text, _share: share })
}

/// Returns a body of events, each of which is sent as soon as it arrives. The body ends when the sender is dropped.
pub(crate) fn event_body(events: Receiver<Bytes>) -> BoxedBody {
    let frames = unfold((events, Bytes::new()), async |(mut events, mut buffer)| {
        while buffer.is_empty() {
            buffer = events.recv().await?;
        }
        Some((Ok(Frame::data(next_frame(&mut buffer)?)), (events, buffer)))
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn x03_full_body_keeps_share_until_body_is_dropped() {
        // One principal may hold a quarter of the budget: 16.
        let budget = SharedBudget::new(Shares::from_total(64));
        let root = Requester::from_listener("root");
        let text: Bytes = vec![b'x'; 2 * MAX_FREE_RESPONSE_BYTES + 1].into();
        let mut body = full_body(text, budget.try_take(&root, 16));
        assert_eq!(body.size_hint().exact(), Some(2 * MAX_FREE_RESPONSE_BYTES as u64 + 1));
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.expect("no error").into_data().expect("data").len());
        }
        // A frame has at most `MAX_FREE_RESPONSE_BYTES`.
        assert_eq!(sizes, [MAX_FREE_RESPONSE_BYTES, MAX_FREE_RESPONSE_BYTES, 1]);
        assert!(budget.try_take(&root, 1).is_none(), "the body holds all that one principal may have: 16 of 64");
        drop(body);
        assert!(budget.try_take(&root, 16).is_some());
    }

    #[tokio::test]
    async fn x03_bytes_with_share_keeps_share_until_last_frame() {
        // One principal may hold a quarter of the budget: 16.
        let budget = SharedBudget::new(Shares::from_total(64));
        let root = Requester::from_listener("root");
        let (events, received_events) = tokio::sync::mpsc::channel(2);
        events
            .send(bytes_with_share("x".repeat(MAX_FREE_RESPONSE_BYTES + 1), budget.try_take(&root, 16)))
            .await
            .expect("the receiver exists");
        drop(events);
        let mut body = event_body(received_events);
        let first = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        let last = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        // A frame has at most `MAX_FREE_RESPONSE_BYTES`.
        assert_eq!((first.len(), last.len()), (MAX_FREE_RESPONSE_BYTES, 1));
        drop(first);
        assert!(budget.try_take(&root, 1).is_none(), "the last frame is not dropped yet");
        drop(last);
        assert!(body.frame().await.is_none());
        assert!(budget.try_take(&root, 16).is_some());
    }

    #[tokio::test]
    async fn x02_stream_body_splits_large_pieces_and_skips_empty() {
        let pieces = [Bytes::new(), vec![b'x'; MAX_FREE_RESPONSE_BYTES + 1].into(), Bytes::new(), Bytes::from_static(b"y")];
        let mut body = stream_body(Box::new(pieces.into_iter().map(Ok)));
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.expect("no error").into_data().expect("data").len());
        }
        // A frame has at most `MAX_FREE_RESPONSE_BYTES`.
        assert_eq!(sizes, [MAX_FREE_RESPONSE_BYTES, 1, 1]);
    }

    #[tokio::test]
    async fn stream_body_produces_piece_only_when_client_reads() {
        let produced_count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&produced_count);
        let endless = std::iter::repeat_with(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from_static(b"row"))
        });
        let mut body = stream_body(Box::new(endless));
        for read_count in 1..=5 {
            let frame = body.frame().await.expect("a piece").expect("no error");
            assert_eq!(frame.into_data().expect("data"), "row");
            tokio::task::yield_now().await;
            assert_eq!(produced_count.load(Ordering::SeqCst), read_count, "no piece is produced before the client reads it");
        }
    }

    /// The first body has no error and is read to its end. The iterator of the second one panics.
    #[tokio::test]
    async fn stream_body_ends_with_error_when_iterator_panics() {
        let body = stream_body(Box::new(["a", "b"].into_iter().map(|text| Ok(Bytes::from_static(text.as_bytes())))));
        assert_eq!(body.collect().await.expect("a whole body").to_bytes(), "ab");
        let broken = std::iter::from_fn(|| -> Option<Result<Bytes, BoxError>> { panic!("a row cannot be written") });
        let mut body = stream_body(Box::new(broken));
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
        assert!(body.frame().await.is_none(), "the body ends after the error");
    }

    #[tokio::test]
    async fn while_authorized_cuts_body_when_caller_is_revoked() {
        let remaining_checks = Arc::new(AtomicUsize::new(2));
        let endless: BodyStream = Box::new(std::iter::repeat_with(|| Ok(Bytes::from_static(b"row"))));
        let counter = Arc::clone(&remaining_checks);
        let is_authorized = move || {
            counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining_checks| remaining_checks.checked_sub(1)).is_ok()
        };
        let mut body = stream_body(while_authorized(endless, is_authorized));
        for _ in 0..2 {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()), "the access is revoked after two pieces");
        assert!(body.frame().await.is_none());
    }
}

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

/// Maximum number of responses that are sent in pieces at the same time.
const MAX_STREAMED_BODIES: u64 = 64;

/// The clients to which a response is sent in pieces. Each holds a snapshot and one or two pieces for as long as it
/// takes to read them, so a limit on their number limits the memory of all.
#[derive(Clone)]
pub struct StreamLimiter(SharedBudget);

impl Default for StreamLimiter {
    fn default() -> Self {
        Self(SharedBudget::new(Shares::from_total(MAX_STREAMED_BODIES)))
    }
}

impl StreamLimiter {
    /// Returns the pieces of a response, and counts its client for as long as they exist.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] if too many responses are sent in pieces, of all clients or of this principal.
    pub(crate) fn admit(&self, requester: &Requester, pieces: BodyStream) -> Result<BodyStream, ApiError> {
        let share = self.0.try_take(requester, 1).ok_or(ErrorType::ServerBusy)?;
        Ok(Box::new(pieces.inspect(move |_| {
            let _until_the_end = &share;
        })))
    }
}

/// Returns the pieces of a body, with an error in place of each piece that is due after the caller's access was
/// revoked. `is_good` tells whether the access is still valid.
pub(crate) fn while_authorized(pieces: BodyStream, is_good: impl Fn() -> bool + Send + 'static) -> BodyStream {
    let revoked = || Err("the caller's access was revoked".into());
    Box::new(pieces.map(move |piece| if is_good() { piece } else { revoked() }))
}

/// Builds a body from bytes in memory. The body is sent frame by frame as the client reads it, and holds its share of
/// the memory budget until the last frame.
pub(crate) fn full_body(bytes: Bytes, share: Option<Share>) -> BoxedBody {
    FramedBody { rest: bytes, _share: share }.boxed_unsync()
}

/// Bytes that are sent in frames. In one piece, hyper would copy them at once into the connection's buffer, which no
/// budget counts.
struct FramedBody {
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

/// Splits off the next frame, or returns `None` after the last one.
fn next_frame(rest: &mut Bytes) -> Option<Bytes> {
    (!rest.is_empty()).then(|| rest.split_to(rest.len().min(MAX_FREE_RESPONSE_BYTES)))
}

/// Builds a body whose pieces are produced as the client reads, and sent frame by frame. If the iterator panics, the
/// body ends with an error.
pub(crate) fn stream_body(pieces: BodyStream) -> BoxedBody {
    let frames = try_unfold((pieces, Bytes::new()), async |(mut pieces, mut rest)| {
        while rest.is_empty() {
            let (piece, after) = spawn_blocking(move || (pieces.next(), pieces)).await?;
            let Some(piece) = piece.transpose()? else { return Ok(None) };
            (rest, pieces) = (piece, after);
        }
        Ok(next_frame(&mut rest).map(|piece| (Frame::data(piece), (pieces, rest))))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Builds bytes from a text. The bytes hold their share of the memory of pending responses until the last byte is
/// passed to the client's connection.
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

/// Builds a body of events that are sent as they arrive. It ends when the sender is dropped.
pub(crate) fn event_body(events: Receiver<Bytes>) -> BoxedBody {
    let frames = unfold((events, Bytes::new()), async |(mut events, mut rest)| {
        while rest.is_empty() {
            rest = events.recv().await?;
        }
        Some((Ok(Frame::data(next_frame(&mut rest)?)), (events, rest)))
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn x03_full_body_keeps_share_until_last_frame() {
        let budget = SharedBudget::new(Shares::from_total(64));
        let root = Requester::from_listener("root");
        let text: Bytes = vec![b'x'; 2 * MAX_FREE_RESPONSE_BYTES + 1].into();
        let mut body = full_body(text, budget.try_take(&root, 16));
        assert_eq!(body.size_hint().exact(), Some(2 * MAX_FREE_RESPONSE_BYTES as u64 + 1));
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.expect("no error").into_data().expect("data").len());
        }
        assert_eq!(sizes, [MAX_FREE_RESPONSE_BYTES, MAX_FREE_RESPONSE_BYTES, 1]);
        assert!(budget.try_take(&root, 1).is_none(), "it holds a quarter");
        drop(body);
        assert!(budget.try_take(&root, 16).is_some());
    }

    #[tokio::test]
    async fn x03_bytes_with_share_keeps_share_until_last_frame() {
        let budget = SharedBudget::new(Shares::from_total(64));
        let root = Requester::from_listener("root");
        let (events, told_events) = tokio::sync::mpsc::channel(2);
        events
            .send(bytes_with_share("x".repeat(MAX_FREE_RESPONSE_BYTES + 1), budget.try_take(&root, 16)))
            .await
            .expect("it is listened to");
        drop(events);
        let mut body = event_body(told_events);
        let first = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        let last = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        assert_eq!((first.len(), last.len()), (MAX_FREE_RESPONSE_BYTES, 1));
        drop(first);
        assert!(budget.try_take(&root, 1).is_none(), "the last one is on its way");
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
        assert_eq!(sizes, [MAX_FREE_RESPONSE_BYTES, 1, 1]);
    }

    #[tokio::test]
    async fn stream_body_reads_single_piece_ahead_when_client_is_slow() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let endless = std::iter::repeat_with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from_static(b"row"))
        });
        let mut body = stream_body(Box::new(endless));
        for taken in 1..=5 {
            let frame = body.frame().await.expect("a piece").expect("no error");
            assert_eq!(frame.into_data().expect("data"), "row");
            tokio::task::yield_now().await;
            assert_eq!(made.load(Ordering::SeqCst), taken, "nothing is made that nobody took");
        }
    }

    #[tokio::test]
    async fn stream_body_ends_with_error_when_iterator_panics() {
        let body = stream_body(Box::new(["a", "b"].into_iter().map(|text| Ok(Bytes::from_static(text.as_bytes())))));
        assert_eq!(body.collect().await.expect("a whole body").to_bytes(), "ab");
        let broken = std::iter::from_fn(|| -> Option<Result<Bytes, BoxError>> { panic!("a row cannot be written") });
        let mut body = stream_body(Box::new(broken));
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
        assert!(body.frame().await.is_none(), "a body that was cut has ended, however often it is asked");
    }

    #[tokio::test]
    async fn while_authorized_cuts_body_when_caller_is_revoked() {
        let left = Arc::new(AtomicUsize::new(2));
        let endless: BodyStream = Box::new(std::iter::repeat_with(|| Ok(Bytes::from_static(b"row"))));
        let counted = Arc::clone(&left);
        let is_good = move || counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let mut body = stream_body(while_authorized(endless, is_good));
        for _ in 0..2 {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()), "it is not a whole body");
        assert!(body.frame().await.is_none());
    }
}

//! An answer's body: whole, or in pieces.
//!
//! A piece is made when the client has taken the one before it, so that a slow client holds one piece and no more. It is made
//! on a thread that may compute, not on the one that serves connections.

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

use super::budget::FRAME;
use crate::registry::Who;
use crate::registry::budget::{Budget, Share};

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// The pieces of a body, in order.
pub(crate) type Pieces = Box<dyn Iterator<Item = Result<Bytes, BoxError>> + Send>;

/// How many answers may be sent in pieces at the same time.
const MOST_READERS: u64 = 64;

/// Who is sent an answer in pieces. A reader holds a snapshot and one or two pieces for as long as it likes to take, so that
/// their number bounds what all of them hold.
#[derive(Clone)]
pub struct Readers(Budget);

impl Default for Readers {
    fn default() -> Self {
        Self(Budget::new(Shares::of(MOST_READERS)))
    }
}

impl Readers {
    /// Counts a reader until its body is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] when there are as many as may be, or as one principal may have.
    pub(crate) fn admit(&self, who: &Who, pieces: Pieces) -> Result<Pieces, ApiError> {
        let place = self.0.try_take(who, 1).ok_or(ErrorType::ServerBusy)?;
        Ok(Box::new(pieces.inspect(move |_| {
            let _until_the_end = &place;
        })))
    }
}

/// The same pieces for as long as who asked may have them; then the body is cut.
pub(crate) fn while_good(pieces: Pieces, is_good: impl Fn() -> bool + Send + 'static) -> Pieces {
    let refused = || Err("who asked may no longer".into());
    Box::new(pieces.map(move |piece| if is_good() { piece } else { refused() }))
}

/// A body that is there. It goes to the connection frame by frame, as its client takes it, and has its share until the last one went.
pub(crate) fn whole(bytes: Bytes, share: Option<Share>) -> AnswerBody {
    Framed { rest: bytes, _share: share }.boxed_unsync()
}

/// Bytes in frames. Given in one piece they would be copied at once into what waits for the connection, and nobody would count that.
struct Framed {
    rest: Bytes,
    _share: Option<Share>,
}

impl Body for Framed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(frame(&mut self.rest).map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// The next frame of some bytes; `None` behind the last.
fn frame(rest: &mut Bytes) -> Option<Bytes> {
    (!rest.is_empty()).then(|| rest.split_to(rest.len().min(FRAME)))
}

/// A body that is made as it is taken, and goes frame by frame. A panic of its maker ends it with an error.
pub(crate) fn streamed(pieces: Pieces) -> AnswerBody {
    let frames = try_unfold((pieces, Bytes::new()), async |(mut pieces, mut rest)| {
        while rest.is_empty() {
            let (piece, after) = spawn_blocking(move || (pieces.next(), pieces)).await?;
            let Some(piece) = piece.transpose()? else { return Ok(None) };
            (rest, pieces) = (piece, after);
        }
        Ok(frame(&mut rest).map(|piece| (Frame::data(piece), (pieces, rest))))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A text with its share of what waits for all clients. The share is free once the last of the text went to the client's connection.
pub(crate) fn told_in(text: String, share: Option<Share>) -> Bytes {
    struct Told {
        text: String,
        _share: Option<Share>,
    }
    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            self.text.as_bytes()
        }
    }
    Bytes::from_owner(Told { text, _share: share })
}

/// A body of what is told as it comes, until nobody tells any more.
pub(crate) fn told(events: Receiver<Bytes>) -> AnswerBody {
    let frames = unfold((events, Bytes::new()), async |(mut events, mut rest)| {
        while rest.is_empty() {
            rest = events.recv().await?;
        }
        Some((Ok(Frame::data(frame(&mut rest)?)), (events, rest)))
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn x03_an_answer_goes_in_frames_and_has_its_share_until_the_last() {
        let budget = Budget::new(Shares::of(64));
        let root = Who::by_way("root");
        let text: Bytes = vec![b'x'; 2 * FRAME + 1].into();
        let mut body = whole(text, budget.try_take(&root, 16));
        assert_eq!(body.size_hint().exact(), Some(2 * FRAME as u64 + 1));
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.expect("no error").into_data().expect("data").len());
        }
        assert_eq!(sizes, [FRAME, FRAME, 1]);
        assert!(budget.try_take(&root, 1).is_none(), "it holds a quarter");
        drop(body);
        assert!(budget.try_take(&root, 16).is_some());
    }

    #[tokio::test]
    async fn x03_a_text_that_is_told_has_its_share_until_its_last_frame_is_gone() {
        let budget = Budget::new(Shares::of(64));
        let root = Who::by_way("root");
        let (events, told_events) = tokio::sync::mpsc::channel(2);
        events.send(told_in("x".repeat(FRAME + 1), budget.try_take(&root, 16))).await.expect("it is listened to");
        drop(events);
        let mut body = told(told_events);
        let first = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        let last = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        assert_eq!((first.len(), last.len()), (FRAME, 1));
        drop(first);
        assert!(budget.try_take(&root, 1).is_none(), "the last one is on its way");
        drop(last);
        assert!(body.frame().await.is_none());
        assert!(budget.try_take(&root, 16).is_some());
    }

    #[tokio::test]
    async fn x02_large_pieces_go_in_frames_and_empty_ones_do_not_end_the_body() {
        let pieces = [Bytes::new(), vec![b'x'; FRAME + 1].into(), Bytes::new(), Bytes::from_static(b"y")];
        let mut body = streamed(Box::new(pieces.into_iter().map(Ok)));
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.expect("no error").into_data().expect("data").len());
        }
        assert_eq!(sizes, [FRAME, 1, 1]);
    }

    #[tokio::test]
    async fn a_slow_reader_is_one_piece_behind() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let endless = std::iter::repeat_with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from_static(b"row"))
        });
        let mut body = streamed(Box::new(endless));
        for taken in 1..=5 {
            let frame = body.frame().await.expect("a piece").expect("no error");
            assert_eq!(frame.into_data().expect("data"), "row");
            tokio::task::yield_now().await;
            assert_eq!(made.load(Ordering::SeqCst), taken, "nothing is made that nobody took");
        }
    }

    #[tokio::test]
    async fn pieces_end_and_a_panic_cuts_the_body() {
        let body = streamed(Box::new(["a", "b"].into_iter().map(|text| Ok(Bytes::from_static(text.as_bytes())))));
        assert_eq!(body.collect().await.expect("a whole body").to_bytes(), "ab");
        let broken = std::iter::from_fn(|| -> Option<Result<Bytes, BoxError>> { panic!("a row cannot be written") });
        let mut body = streamed(Box::new(broken));
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
        assert!(body.frame().await.is_none(), "a body that was cut has ended, however often it is asked");
    }

    #[tokio::test]
    async fn a_body_is_cut_when_who_asked_may_no_longer() {
        let left = Arc::new(AtomicUsize::new(2));
        let endless: Pieces = Box::new(std::iter::repeat_with(|| Ok(Bytes::from_static(b"row"))));
        let counted = Arc::clone(&left);
        let is_good =
            move || counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let mut body = streamed(while_good(endless, is_good));
        for _ in 0..2 {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()), "it is no whole body");
        assert!(body.frame().await.is_none());
    }
}

//! An answer's body: whole, or in pieces.
//!
//! A piece is made when the client has taken the one before it, so that a slow client holds one piece and no more. It is made
//! on a thread that may compute, not on the one that serves connections.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{try_unfold, unfold};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::serve::BoxError;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// The pieces of a body, in order.
pub(crate) type Pieces = Box<dyn Iterator<Item = Result<Bytes, BoxError>> + Send>;

/// How many answers may be sent in pieces at the same time.
const MOST_READERS: usize = 64;

/// Who is sent an answer in pieces. A reader holds a snapshot and one or two pieces for as long as it likes to take, so that
/// their number bounds what all of them hold.
#[derive(Clone)]
pub struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_READERS)))
    }
}

impl Readers {
    /// Counts a reader until its body is dropped.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`] when there are as many as may be.
    pub(crate) fn admit(&self, pieces: Pieces) -> Result<Pieces, ApiError> {
        let place = Arc::clone(&self.0).try_acquire_owned().map_err(|_| ErrorType::ServerBusy)?;
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

/// A body that is there.
pub(crate) fn whole(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is made as it is taken. A panic of its maker ends it with an error.
pub(crate) fn streamed(pieces: Pieces) -> AnswerBody {
    let frames = try_unfold(pieces, async |mut pieces| {
        let (piece, pieces) = spawn_blocking(move || (pieces.next(), pieces)).await?;
        Ok(piece.transpose()?.map(|piece| (Frame::data(piece), pieces)))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A text with its place among what waits for all clients. The place is free once the text was written to the client's connection.
pub(crate) fn told_in(text: String, place: OwnedSemaphorePermit) -> Bytes {
    struct Told {
        text: String,
        _place: OwnedSemaphorePermit,
    }
    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            self.text.as_bytes()
        }
    }
    Bytes::from_owner(Told { text, _place: place })
}

/// A body of what is told as it comes, until nobody tells any more.
pub(crate) fn told(events: Receiver<Bytes>) -> AnswerBody {
    let frames = unfold(events, async |mut events| Some((Ok(Frame::data(events.recv().await?)), events)));
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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

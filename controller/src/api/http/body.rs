//! An answer's body: whole, or in pieces.
//!
//! A piece is made when the client has taken the one before it, so that a slow client holds one piece and no more. It is made
//! on a thread that may compute, not on the one that serves connections.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use stemma_wire::serve::BoxError;
use tokio::task::{JoinHandle, spawn_blocking};

/// The pieces of a body, in order.
pub(crate) type Pieces = Box<dyn Iterator<Item = Bytes> + Send>;

/// The body of an answer.
pub struct AnswerBody(State);

enum State {
    Whole(Full<Bytes>),
    Idle(Pieces),
    Making(JoinHandle<(Option<Bytes>, Pieces)>),
    Ended,
}

impl AnswerBody {
    /// A body that is there.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(State::Whole(Full::new(bytes)))
    }

    /// A body that is made as it is taken.
    pub(crate) fn pieces(pieces: Pieces) -> Self {
        Self(State::Idle(pieces))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut self.0 {
                State::Whole(whole) => return Pin::new(whole).poll_frame(cx).map_err(|never| match never {}),
                State::Making(making) => {
                    let (piece, pieces) = ready!(Pin::new(making).poll(cx))?;
                    self.0 = if piece.is_some() { State::Idle(pieces) } else { State::Ended };
                    return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
                }
                State::Ended => return Poll::Ready(None),
                State::Idle(_) => {
                    if let State::Idle(mut pieces) = std::mem::replace(&mut self.0, State::Ended) {
                        self.0 = State::Making(spawn_blocking(move || (pieces.next(), pieces)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Whole(whole) => whole.is_end_stream(),
            State::Idle(_) | State::Making(_) => false,
            State::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Whole(whole) => whole.size_hint(),
            State::Idle(_) | State::Making(_) => SizeHint::default(),
            State::Ended => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_is_one_piece_behind() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let endless = std::iter::repeat_with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Bytes::from_static(b"row")
        });
        let mut body = AnswerBody::pieces(Box::new(endless));
        for taken in 1..=5 {
            let frame = body.frame().await.expect("a piece").expect("no error");
            assert_eq!(frame.into_data().expect("data"), "row");
            tokio::task::yield_now().await;
            assert_eq!(made.load(Ordering::SeqCst), taken, "nothing is made that nobody took");
        }
    }

    #[tokio::test]
    async fn pieces_end_and_a_panic_cuts_the_body() {
        let body = AnswerBody::pieces(Box::new(["a", "b"].into_iter().map(|text| Bytes::from_static(text.as_bytes()))));
        assert_eq!(body.collect().await.expect("a whole body").to_bytes(), "ab");
        let broken = std::iter::from_fn(|| -> Option<Bytes> { panic!("a row cannot be written") });
        assert!(AnswerBody::pieces(Box::new(broken)).collect().await.is_err());
    }
}

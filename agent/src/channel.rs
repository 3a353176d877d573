//! The channel between the agent's two halves.
//!
//! Messages cross it encoded, as they will cross the socket between two processes, so that nothing but a message
//! can ever be shared, and the split changes no line of either half. It is bounded: a half that does not listen
//! makes the other one wait.

use std::marker::PhantomData;

use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::{DecodeError, Message, WireVersion, decode_up_to, encode_as};
use tokio::sync::mpsc;

/// Messages that may wait in one direction.
const WAITING: usize = 32;

/// One end: it sends messages of one type and receives those of the other.
pub struct End<S, R> {
    sender: Sender<S>,
    receiver: mpsc::Receiver<Vec<u8>>,
    receives: PhantomData<R>,
}

/// `sync`'s end.
pub type SyncEnd = End<FromSync, FromApply>;

/// `apply`'s end.
pub type ApplyEnd = End<FromApply, FromSync>;

/// Where one half says something to the other. Clones say it to the same one, in the order in which they send.
#[derive(Clone)]
pub struct Sender<M> {
    raw: mpsc::Sender<Vec<u8>>,
    newest: WireVersion,
    sends: PhantomData<M>,
}

/// Why a message did not cross.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other half has ended.
    #[error("the other half of the agent has ended")]
    Closed,
    /// Too large to be sent.
    #[error("a message of {bytes} bytes between the halves: at most {limit} are allowed")]
    Large {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// No message that this program reads.
    #[error("a message between the halves that is none: {0}")]
    Malformed(#[from] DecodeError),
}

/// Two ends that talk to each other.
#[must_use]
pub fn pair() -> (SyncEnd, ApplyEnd) {
    pair_up_to(WireVersion::CURRENT)
}

/// The same in an agent that speaks wire versions up to this one.
#[must_use]
pub fn pair_up_to(newest: WireVersion) -> (SyncEnd, ApplyEnd) {
    let (to_apply, from_sync) = mpsc::channel(WAITING);
    let (to_sync, from_apply) = mpsc::channel(WAITING);
    (End::new(to_apply, from_apply, newest), End::new(to_sync, from_sync, newest))
}

impl<M: Message> Sender<M> {
    /// Sends to the other half, waiting while too much waits already.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send(&self, message: &M) -> Result<(), ChannelError> {
        self.send_as(self.newest, message).await
    }

    /// Sends in a version, which is that of the parts in the message.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send_as(&self, version: WireVersion, message: &M) -> Result<(), ChannelError> {
        let bytes = encode_as(version, message);
        if bytes.len() > M::MAX_BYTES {
            return Err(ChannelError::Large { bytes: bytes.len(), limit: M::MAX_BYTES });
        }
        self.raw.send(bytes).await.map_err(|_| ChannelError::Closed)
    }
}

impl<S: Message + Clone, R: Message> End<S, R> {
    fn new(raw: mpsc::Sender<Vec<u8>>, receiver: mpsc::Receiver<Vec<u8>>, newest: WireVersion) -> Self {
        Self { sender: Sender { raw, newest, sends: PhantomData }, receiver, receives: PhantomData }
    }

    /// The newest wire version that this agent speaks.
    #[must_use]
    pub fn newest(&self) -> WireVersion {
        self.sender.newest
    }

    /// Where something is said to the other half, also while this end receives.
    #[must_use]
    pub fn sender(&self) -> Sender<S> {
        self.sender.clone()
    }

    /// Sends to the other half, as [`Sender::send`].
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send(&self, message: &S) -> Result<(), ChannelError> {
        self.sender.send(message).await
    }

    /// The next message of the other half. Safe to cancel.
    ///
    /// # Errors
    /// [`ChannelError`]; after a malformed message the next one can be read.
    pub async fn receive(&mut self) -> Result<R, ChannelError> {
        Ok(self.receive_versioned().await?.1)
    }

    /// The same with the version of the message, which is that of the parts in it. Safe to cancel.
    ///
    /// # Errors
    /// [`ChannelError`], likewise.
    pub async fn receive_versioned(&mut self) -> Result<(WireVersion, R), ChannelError> {
        let bytes = self.receiver.recv().await.ok_or(ChannelError::Closed)?;
        Ok(decode_up_to(self.newest(), &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::{Hash, encode};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_message_is_refused_and_the_next_one_is_read() {
        let (SyncEnd { sender: Sender { raw, .. }, receiver: _kept, .. }, mut apply) = pair();
        let whole = encode(&FromSync::NoBody(Hash([7; 32])));
        for (name, bytes) in [
            ("empty", vec![]),
            ("another version", [&[99], &whole[1..]].concat()),
            ("cut", whole[..whole.len() - 1].to_vec()),
            ("something after it", [&whole[..], &[0]].concat()),
            ("an unknown kind", vec![whole[0], 99]),
        ] {
            raw.send(bytes).await.unwrap();
            assert!(matches!(apply.receive().await, Err(ChannelError::Malformed(_))), "{name}");
        }
        raw.send(whole).await.unwrap();
        assert_eq!(apply.receive().await, Ok(FromSync::NoBody(Hash([7; 32]))));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn messages_cross_in_order_until_an_end_is_gone() {
        let (sync, mut apply) = pair();
        for byte in 0..3 {
            sync.sender().send(&FromSync::NoBody(Hash([byte; 32]))).await.unwrap();
        }
        drop(sync);
        for byte in 0..3 {
            assert_eq!(apply.receive().await, Ok(FromSync::NoBody(Hash([byte; 32]))));
        }
        assert_eq!(apply.receive().await, Err(ChannelError::Closed));
    }
}

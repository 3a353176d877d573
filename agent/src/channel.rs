//! The channel between the two halves of the agent.
//!
//! Messages are encoded, as they will be when the halves are two processes with a socket between them. So the halves
//! can share nothing but messages, and that split changes no line of either half. The channel is bounded: if one half
//! does not receive, the other waits.

use std::marker::PhantomData;

use stemma_wire::message::channel::{ApplyMessage, SyncMessage};
use stemma_wire::message::{DecodeError, Message, WireVersion, decode_up_to, encode_as};
use tokio::sync::mpsc;

/// Maximum number of messages in one direction that were sent and not received yet.
const CAPACITY: usize = 32;

/// One end of the channel between the two halves of the agent: the network half, which talks to controllers, and the
/// root half, which applies tasks. The end sends messages of type `S` and receives messages of type `R`.
pub struct ChannelEnd<S, R> {
    sender: Sender<S>,
    receiver: mpsc::Receiver<Vec<u8>>,
    received_type: PhantomData<R>,
}

/// The end of the channel that the network half of the agent (`sync`) uses.
pub type SyncEnd = ChannelEnd<SyncMessage, ApplyMessage>;

/// The end of the channel that the root half of the agent (`apply`) uses.
pub type ApplyEnd = ChannelEnd<ApplyMessage, SyncMessage>;

/// A sender of messages of type `M` to the other half of the agent. A clone sends to the same half. Messages arrive in
/// the order in which they were sent.
#[derive(Clone)]
pub struct Sender<M> {
    queue: mpsc::Sender<Vec<u8>>,
    max_version: WireVersion,
    sent_type: PhantomData<M>,
}

/// The reason why a message was not sent or not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other half of the agent has ended.
    #[error("the other half of the agent has ended")]
    Closed,
    /// The message is too large to be sent.
    #[error("a message of {bytes} bytes between the halves: at most {limit} are allowed")]
    TooLarge {
        /// Size of the message, in bytes.
        bytes: usize,
        /// Maximum size of a message of its type, in bytes.
        limit: usize,
    },
    /// The bytes are not a message that this program can decode.
    #[error("a malformed message between the halves: {0}")]
    Malformed(#[from] DecodeError),
}

/// Creates a channel between the two halves of the agent, and returns its two ends.
#[must_use]
pub fn pair() -> (SyncEnd, ApplyEnd) {
    pair_with_version(WireVersion::CURRENT)
}

/// Creates a channel for an agent that supports wire versions up to `newest`, and returns its two ends.
#[must_use]
pub fn pair_with_version(newest: WireVersion) -> (SyncEnd, ApplyEnd) {
    let (to_apply, from_sync) = mpsc::channel(CAPACITY);
    let (to_sync, from_apply) = mpsc::channel(CAPACITY);
    (ChannelEnd::new(to_apply, from_apply, newest), ChannelEnd::new(to_sync, from_sync, newest))
}

impl<M: Message> Sender<M> {
    /// Sends a message to the other half of the agent, in the newest wire version that this agent supports. Waits while
    /// the channel is full.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::TooLarge`].
    pub async fn send(&self, message: &M) -> Result<(), ChannelError> {
        self.send_as(self.max_version, message).await
    }

    /// Sends a message to the other half of the agent in a given wire version. If the message contains parts that are
    /// encoded already, the version must be that of these parts.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::TooLarge`].
    pub async fn send_as(&self, version: WireVersion, message: &M) -> Result<(), ChannelError> {
        let bytes = encode_as(version, message);
        if bytes.len() > M::MAX_BYTES {
            return Err(ChannelError::TooLarge { bytes: bytes.len(), limit: M::MAX_BYTES });
        }
        self.queue.send(bytes).await.map_err(|_| ChannelError::Closed)
    }
}

impl<S: Message + Clone, R: Message> ChannelEnd<S, R> {
    /// Creates an end of the channel. `newest` is the newest wire version that this agent supports.
    fn new(queue: mpsc::Sender<Vec<u8>>, receiver: mpsc::Receiver<Vec<u8>>, newest: WireVersion) -> Self {
        Self { sender: Sender { queue, max_version: newest, sent_type: PhantomData }, receiver, received_type: PhantomData }
    }

    /// Returns the newest wire version that this agent supports.
    #[must_use]
    pub fn max_version(&self) -> WireVersion {
        self.sender.max_version
    }

    /// Returns a sender to the other half of the agent, which the caller can use while this end receives.
    #[must_use]
    pub fn sender(&self) -> Sender<S> {
        self.sender.clone()
    }

    /// Sends a message to the other half of the agent, like [`Sender::send`].
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::TooLarge`].
    pub async fn send(&self, message: &S) -> Result<(), ChannelError> {
        self.sender.send(message).await
    }

    /// Receives the next message of the other half of the agent. If the future is dropped before it is ready, no
    /// message is lost.
    ///
    /// # Errors
    /// [`ChannelError`]. After a malformed message, the caller can receive the next message.
    pub async fn receive(&mut self) -> Result<R, ChannelError> {
        Ok(self.receive_versioned().await?.1)
    }

    /// Receives the next message like [`Self::receive`], and returns it with its wire version. The encoded parts in the
    /// message have this version too. If the future is dropped before it is ready, no message is lost.
    ///
    /// # Errors
    /// [`ChannelError`], as for [`Self::receive`].
    pub async fn receive_versioned(&mut self) -> Result<(WireVersion, R), ChannelError> {
        let bytes = self.receiver.recv().await.ok_or(ChannelError::Closed)?;
        Ok(decode_up_to(self.max_version(), &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::{Hash, encode};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn receive_returns_next_message_when_one_is_malformed() {
        let (SyncEnd { sender: Sender { queue, .. }, receiver: _receiver, .. }, mut apply) = pair();
        let valid_bytes = encode(&SyncMessage::BodyUnavailable(Hash([7; 32])));
        for (name, bytes) in [
            // The first byte of a message is its wire version, the second its kind.
            ("empty", vec![]),
            ("another version", [&[99], &valid_bytes[1..]].concat()),
            ("cut", valid_bytes[..valid_bytes.len() - 1].to_vec()),
            ("a further byte at the end", [&valid_bytes[..], &[0]].concat()),
            ("an unknown kind", vec![valid_bytes[0], 99]),
        ] {
            queue.send(bytes).await.unwrap();
            assert!(matches!(apply.receive().await, Err(ChannelError::Malformed(_))), "{name}");
        }
        queue.send(valid_bytes).await.unwrap();
        assert_eq!(apply.receive().await, Ok(SyncMessage::BodyUnavailable(Hash([7; 32]))));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn channel_keeps_order_until_one_end_closes() {
        let (sync, mut apply) = pair();
        for byte in 0..3 {
            sync.sender().send(&SyncMessage::BodyUnavailable(Hash([byte; 32]))).await.unwrap();
        }
        drop(sync);
        for byte in 0..3 {
            assert_eq!(apply.receive().await, Ok(SyncMessage::BodyUnavailable(Hash([byte; 32]))));
        }
        assert_eq!(apply.receive().await, Err(ChannelError::Closed));
    }
}

//! The channel between the agent's two halves.
//!
//! Messages cross it encoded, as they will cross the socket between two processes, so that nothing but a message
//! can ever be shared, and the split changes no line of either half. It is bounded: a half that does not listen
//! makes the other one wait.

use stemma_wire::message::channel::{FromApply, FromSync};
use stemma_wire::message::{DecodeError, Message, decode, encode};
use tokio::sync::mpsc;

/// Messages that may wait in one direction.
const WAITING: usize = 32;

/// `sync`'s end.
pub struct SyncEnd {
    to_apply: ToApply,
    from_apply: mpsc::Receiver<Vec<u8>>,
}

/// Where `sync` says something to `apply`. Clones say it to the same one, in the order in which they send.
#[derive(Clone)]
pub struct ToApply(mpsc::Sender<Vec<u8>>);

/// `apply`'s end.
pub struct ApplyEnd {
    to_sync: mpsc::Sender<Vec<u8>>,
    from_sync: mpsc::Receiver<Vec<u8>>,
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
    let (to_apply, from_sync) = mpsc::channel(WAITING);
    let (to_sync, from_apply) = mpsc::channel(WAITING);
    (SyncEnd { to_apply: ToApply(to_apply), from_apply }, ApplyEnd { to_sync, from_sync })
}

impl ToApply {
    /// Sends to `apply`, waiting while too much waits already.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send(&self, message: &FromSync) -> Result<(), ChannelError> {
        send(&self.0, message).await
    }
}

impl SyncEnd {
    /// Where something is said to `apply`, also while this end receives.
    #[must_use]
    pub fn to_apply(&self) -> ToApply {
        self.to_apply.clone()
    }

    /// The next message of `apply`. Safe to cancel.
    ///
    /// # Errors
    /// [`ChannelError`]; after a malformed message the next one can be read.
    pub async fn receive(&mut self) -> Result<FromApply, ChannelError> {
        receive(&mut self.from_apply).await
    }
}

impl ApplyEnd {
    /// Sends to `sync`, waiting while too much waits already.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send(&self, message: &FromApply) -> Result<(), ChannelError> {
        send(&self.to_sync, message).await
    }

    /// The next message of `sync`. Safe to cancel.
    ///
    /// # Errors
    /// [`ChannelError`]; after a malformed message the next one can be read.
    pub async fn receive(&mut self) -> Result<FromSync, ChannelError> {
        receive(&mut self.from_sync).await
    }
}

async fn send<M: Message>(sender: &mpsc::Sender<Vec<u8>>, message: &M) -> Result<(), ChannelError> {
    let bytes = encode(message);
    if bytes.len() > M::MAX_BYTES {
        return Err(ChannelError::Large { bytes: bytes.len(), limit: M::MAX_BYTES });
    }
    sender.send(bytes).await.map_err(|_| ChannelError::Closed)
}

async fn receive<M: Message>(receiver: &mut mpsc::Receiver<Vec<u8>>) -> Result<M, ChannelError> {
    Ok(decode(&receiver.recv().await.ok_or(ChannelError::Closed)?)?)
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::Hash;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_message_is_refused_and_the_next_one_is_read() {
        let (SyncEnd { to_apply: ToApply(raw), .. }, mut apply) = pair();
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
            sync.to_apply().send(&FromSync::NoBody(Hash([byte; 32]))).await.unwrap();
        }
        drop(sync);
        for byte in 0..3 {
            assert_eq!(apply.receive().await, Ok(FromSync::NoBody(Hash([byte; 32]))));
        }
        assert_eq!(apply.receive().await, Err(ChannelError::Closed));
    }
}

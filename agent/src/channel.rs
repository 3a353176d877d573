//! The channel between the agent's two halves.
//!
//! Messages cross it encoded, as they will cross the socket between two processes, so that nothing but a message
//! can ever be shared, and the split changes no line of either half. It is bounded: a half that does not listen
//! makes the other one wait.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use stemma_wire::message::VERSION;
use stemma_wire::message::channel::{FromApply, FromSync};

/// The largest message: a full batch of results. Bodies cross in pieces.
pub const LARGEST: usize = 8 * 1024 * 1024;

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
    /// Too large to be sent or read.
    #[error("a message of {0} bytes between the halves: at most {LARGEST} are allowed")]
    Large(usize),
    /// No message of this version.
    #[error("a message between the halves that is none: {0}")]
    Malformed(String),
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
    /// Sends to `apply`, waiting while too much waits already.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::Large`].
    pub async fn send(&self, message: &FromSync) -> Result<(), ChannelError> {
        self.to_apply.send(message).await
    }

    /// Another way to say something to `apply`, beside receiving from it.
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

async fn send<T: Serialize>(sender: &mpsc::Sender<Vec<u8>>, message: &T) -> Result<(), ChannelError> {
    let bytes = encode(message)?;
    sender.send(bytes).await.map_err(|_| ChannelError::Closed)
}

async fn receive<T: DeserializeOwned>(receiver: &mut mpsc::Receiver<Vec<u8>>) -> Result<T, ChannelError> {
    decode(&receiver.recv().await.ok_or(ChannelError::Closed)?)
}

/// A message as it crosses: the version, then postcard.
fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ChannelError> {
    let bytes =
        postcard::to_extend(message, vec![VERSION]).map_err(|error| ChannelError::Malformed(error.to_string()))?;
    if bytes.len() > LARGEST { Err(ChannelError::Large(bytes.len())) } else { Ok(bytes) }
}

/// The whole of the bytes as one message of this version (S76).
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChannelError> {
    if bytes.len() > LARGEST {
        return Err(ChannelError::Large(bytes.len()));
    }
    let malformed = |message: &str| ChannelError::Malformed(message.into());
    let body = match bytes.split_first() {
        Some((&VERSION, body)) => body,
        Some((version, _)) => return Err(malformed(&format!("version {version}"))),
        None => return Err(malformed("no bytes")),
    };
    let (message, rest) = postcard::take_from_bytes(body).map_err(|error| malformed(&error.to_string()))?;
    if rest.is_empty() { Ok(message) } else { Err(malformed("bytes after its end")) }
}

#[cfg(test)]
mod tests {
    use stemma_wire::message::Hash;

    use super::*;

    #[test]
    fn what_is_no_message_is_refused() {
        let whole = encode(&FromApply::Want(Hash([7; 32]))).unwrap();
        assert_eq!(decode::<FromApply>(&whole), Ok(FromApply::Want(Hash([7; 32]))));
        for (name, bytes) in [
            ("empty", vec![]),
            ("another version", [&[VERSION + 1], &whole[1..]].concat()),
            ("cut", whole[..whole.len() - 1].to_vec()),
            ("something after it", [&whole[..], &[0]].concat()),
            ("an unknown kind", vec![VERSION, 99]),
        ] {
            assert!(matches!(decode::<FromApply>(&bytes), Err(ChannelError::Malformed(_))), "{name}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn messages_cross_in_order_until_an_end_is_gone() {
        let (sync, mut apply) = pair();
        for byte in 0..3 {
            sync.send(&FromSync::NoBody(Hash([byte; 32]))).await.unwrap();
        }
        drop(sync);
        for byte in 0..3 {
            assert_eq!(apply.receive().await, Ok(FromSync::NoBody(Hash([byte; 32]))));
        }
        assert_eq!(apply.receive().await, Err(ChannelError::Closed));
    }
}

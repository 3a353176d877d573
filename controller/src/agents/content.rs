//! The responses with profiles and blobs. A profile is the definitions and the order of the tasks on a host. Profiles
//! and blobs are immutable and named by their hash. A host gets one only while its desired state names the hash.
//!
//! A profile is in memory with every state that names it, so it exists exactly as long as a node may read it. A blob
//! may be 64 MiB. It is read in chunks, on a blocking thread, and is never in memory as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use stemma_wire::message::Hash;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::desired::slot::NodeSlot;

/// Maximum size of one chunk of a file that is read and sent to an agent, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Returns the profile (the definitions of the node's tasks) with this hash. The profile has one encoding and one hash
/// for each wire version. Returns `None` if no encoding of the profile in the node's desired state has this hash.
pub(super) fn profile(slot: &NodeSlot, hash: Hash) -> Option<Bytes> {
    let signed = slot.desired()?;
    let form = signed.desired.profile.as_ref()?.by_name(hash)?;
    Some(form.bytes.clone())
}

/// Returns whether the node's desired state names this blob, so that its agent may read the blob.
pub(super) fn may_have_blob(slot: &NodeSlot, hash: Hash) -> bool {
    slot.desired().is_some_and(|signed| signed.desired.has_blob(hash))
}

/// A response body that sends a file in chunks.
#[derive(Debug)]
pub(super) struct FileBody {
    /// Number of bytes that are not sent yet, by the length of the file at the start.
    remaining_bytes: u64,
    /// The read of the next chunk, which returns the file too. `None` if no chunk follows.
    pending_read: Option<JoinHandle<io::Result<(File, Bytes)>>>,
}

impl FileBody {
    /// Creates the body, and starts to read the first chunk.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let remaining_bytes = file.metadata()?.len();
        Ok(Self { remaining_bytes, pending_read: (remaining_bytes > 0).then(|| read_chunk(file)) })
    }
}

/// Reads the next chunk on a blocking thread. Returns the file with the chunk, for the next read.
fn read_chunk(mut file: File) -> JoinHandle<io::Result<(File, Bytes)>> {
    spawn_blocking(move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = file.read(&mut chunk)?;
        chunk.truncate(count);
        Ok((file, chunk.into()))
    })
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    /// Returns the next chunk of the file as soon as it is read, and starts to read the chunk after it.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(handle) = &mut self.pending_read else { return Poll::Ready(None) };
        let result = ready!(Pin::new(handle).poll(cx));
        self.pending_read = None;
        let (file, chunk) = match result.map_err(io::Error::other).flatten() {
            Ok(result) => result,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        // If the file shrinks during the transfer, the body is too short. The agent then notices the wrong length. It
        // notices any other change of the file by the hash.
        self.remaining_bytes = self.remaining_bytes.saturating_sub(chunk.len() as u64);
        if chunk.is_empty() {
            return Poll::Ready(None);
        }
        if self.remaining_bytes > 0 {
            self.pending_read = Some(read_chunk(file));
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.pending_read.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}

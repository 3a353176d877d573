//! Profiles and blobs: immutable, named by their hash, given only while the asking node's own desired state names them.
//!
//! A profile is in memory with every state that names it, so it is there exactly as long as someone may ask. A blob may be 64 MiB: it is
//! read piece by piece, by a thread that may block, and never stands in memory whole.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use stemma_wire::message::Hash;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::desired::slot::Slot;

/// How much of a file is read at once.
const PIECE: usize = 64 * 1024;

/// The profile of this name, if the node's state names it in any version.
pub(super) fn profile(slot: &Slot, hash: Hash) -> Option<Bytes> {
    let signed = slot.desired()?;
    let form = signed.released.profile.as_ref()?.named(hash)?;
    Some(form.bytes.clone())
}

/// Whether the node's state names this blob.
pub(super) fn may_have_blob(slot: &Slot, hash: Hash) -> bool {
    slot.desired().is_some_and(|signed| signed.released.names_blob(hash))
}

/// A file on its way.
#[derive(Debug)]
pub(super) struct FileBody {
    left: u64,
    reading: Option<JoinHandle<io::Result<(File, Bytes)>>>,
}

impl FileBody {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let left = file.metadata()?.len();
        Ok(Self { left, reading: (left > 0).then(|| read_piece(file)) })
    }
}

fn read_piece(mut file: File) -> JoinHandle<io::Result<(File, Bytes)>> {
    spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece)?;
        piece.truncate(read);
        Ok((file, piece.into()))
    })
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        let (file, piece) = match read.map_err(io::Error::other).flatten() {
            Ok(read) => read,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        // A file that shrank meanwhile is cut short, which the agent sees by its length; the hash sees all else.
        self.left = self.left.saturating_sub(piece.len() as u64);
        if piece.is_empty() {
            return Poll::Ready(None);
        }
        if self.left > 0 {
            self.reading = Some(read_piece(file));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

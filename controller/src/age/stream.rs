//! The payload: chunks of 64 KiB, each encrypted for its place, the last one as the last.

use std::io::{self, BufRead, Read, Write};

use ring::aead::{Aad, LessSafeKey, Nonce};

use super::header::{self, Header, random_bytes};
use super::{AgeError, FileKey, Identity, Recipient, cipher, derived};

/// How much of what is encrypted stands in a chunk.
pub(super) const CHUNK: usize = 64 * 1024;
/// What shows that a chunk is as it was written.
const TAG: usize = 16;

/// The key of a payload, and the place in it.
struct Payload {
    key: LessSafeKey,
    chunks: u64,
}

impl Payload {
    fn new(key: &FileKey, nonce: [u8; 16]) -> Self {
        Self { key: cipher(&derived(&key.0, &nonce, b"payload")), chunks: 0 }
    }

    /// Each nonce is used once: it is the number of the chunk, and whether that is the last.
    fn nonce(&mut self, is_last: bool) -> Nonce {
        let mut nonce = [0; 12];
        nonce[3..11].copy_from_slice(&self.chunks.to_be_bytes());
        nonce[11] = u8::from(is_last);
        self.chunks += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// What is written here is encrypted into another writer.
pub struct Encrypted<W> {
    to: W,
    payload: Payload,
    chunk: Vec<u8>,
}

impl<W: Write> Encrypted<W> {
    /// Begins a file for these recipients. The key shows what was written to who has no secret of theirs.
    ///
    /// # Errors
    /// What the writer says, and that there are no random bytes.
    pub fn begin(mut to: W, recipients: &[Recipient]) -> io::Result<(Self, FileKey)> {
        let (key, nonce) = (FileKey(random_bytes::<16>()?), random_bytes::<16>()?);
        to.write_all(header::written(&key, recipients)?.as_bytes())?;
        to.write_all(&nonce)?;
        let chunk = Vec::with_capacity(CHUNK + TAG);
        Ok((Self { to, payload: Payload::new(&key, nonce), chunk }, key))
    }

    /// Writes the end. Without it the file counts as one that was cut.
    ///
    /// # Errors
    /// What the writer says.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        Ok(self.to)
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = self.payload.nonce(is_last);
        let sealed = self.payload.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk);
        sealed.map_err(|_| io::Error::other("a chunk could not be encrypted"))?;
        self.to.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

impl<W: Write> Write for Encrypted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whether a whole chunk is the last is known when more comes.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.seal(false)?;
        }
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What is read here was decrypted. It is given chunk by chunk: that nothing is missing at its end is known there.
pub struct Decrypted<R> {
    from: R,
    payload: Payload,
    chunk: Vec<u8>,
    given: usize,
    is_over: bool,
}

impl<R: BufRead> Decrypted<R> {
    /// Begins to read a file that is for one of these.
    ///
    /// # Errors
    /// [`AgeError`].
    pub fn begin(mut from: R, identities: &[Identity]) -> Result<Self, AgeError> {
        let header = Header::read(&mut from)?;
        let key = header.key(identities).ok_or(AgeError::OtherIdentity)?;
        Self::behind(from, &header, &key)
    }

    /// Begins to read a file whose key is known.
    ///
    /// # Errors
    /// [`AgeError`].
    pub fn begin_with(mut from: R, key: &FileKey) -> Result<Self, AgeError> {
        let header = Header::read(&mut from)?;
        Self::behind(from, &header, key)
    }

    fn behind(mut from: R, header: &Header, key: &FileKey) -> Result<Self, AgeError> {
        if !key.has_signed(header) {
            return Err(AgeError::Damaged("its header was changed"));
        }
        let mut nonce = [0; 16];
        from.read_exact(&mut nonce).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => AgeError::Damaged("nothing stands behind its header"),
            _ => error.into(),
        })?;
        Ok(Self { from, payload: Payload::new(key, nonce), chunk: Vec::new(), given: 0, is_over: false })
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let damaged = || {
            let why = AgeError::Damaged("a part of it is not as it was written");
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        self.given = 0;
        self.chunk.clear();
        (&mut self.from).take((CHUNK + TAG) as u64).read_to_end(&mut self.chunk)?;
        self.is_over = self.chunk.len() < CHUNK + TAG || self.from.fill_buf()?.is_empty();
        let is_first = self.payload.chunks == 0;
        let nonce = self.payload.nonce(self.is_over);
        let opened = self.payload.key.open_in_place(nonce, Aad::empty(), &mut self.chunk);
        let length = opened.map_err(|_| damaged())?.len();
        self.chunk.truncate(length);
        // An empty chunk is all of a file, or was put behind it.
        if length == 0 && !is_first { Err(damaged()) } else { Ok(()) }
    }
}

impl<R: BufRead> Read for Decrypted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() && !self.is_over {
            self.next_chunk().inspect_err(|_| {
                // Nothing of a chunk that does not hold is given, also when it is asked for again.
                self.chunk.clear();
                self.is_over = true;
            })?;
        }
        let rest = &self.chunk[self.given..];
        let taken = rest.len().min(bytes.len());
        bytes[..taken].copy_from_slice(&rest[..taken]);
        self.given += taken;
        Ok(taken)
    }
}

//! The payload of an age file: chunks of 64 KiB. The nonce of each chunk contains its number and whether it is the
//! last, so that chunks cannot be reordered or cut off unnoticed.

use std::io::{self, BufRead, Read, Write};

use ring::aead::{Aad, LessSafeKey, Nonce};

use super::header::{self, AgeHeader, random_array};
use super::{AgeError, AgeIdentity, FileKey, Recipient, cipher, derive_key};

/// Maximum length of the plaintext in a chunk, in bytes.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// Length of the authentication tag after each chunk, in bytes.
const TAG_BYTES: usize = 16;

/// The key of a payload, and the number of chunks that were encrypted or decrypted so far.
struct Payload {
    key: LessSafeKey,
    chunks: u64,
}

impl Payload {
    /// Derives the key of the payload from the file key and the random bytes at the start of the payload.
    fn new(key: &FileKey, nonce: [u8; 16]) -> Self {
        Self { key: cipher(&derive_key(&key.0, &nonce, b"payload")), chunks: 0 }
    }

    /// Returns the nonce of the next chunk: its number, and whether it is the last chunk. Each nonce is used only once.
    fn next_nonce(&mut self, is_last: bool) -> Nonce {
        let mut nonce = [0; 12];
        // The number of a chunk has 11 bytes in age's format, of which the first three are always 0 here.
        nonce[3..11].copy_from_slice(&self.chunks.to_be_bytes());
        nonce[11] = u8::from(is_last);
        self.chunks += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// A writer that encrypts the bytes that it receives, and writes them to another writer.
pub struct EncryptWriter<W> {
    to: W,
    payload: Payload,
    /// The plaintext that is not encrypted yet, at most [`CHUNK_BYTES`].
    chunk: Vec<u8>,
}

impl<W: Write> EncryptWriter<W> {
    /// Starts a file for these recipients. With the returned key, the caller can read the file back without the secret
    /// key of a recipient.
    ///
    /// # Errors
    /// Fails if the writer fails, or if the system has no random bytes.
    pub fn begin(mut to: W, recipients: &[Recipient]) -> io::Result<(Self, FileKey)> {
        let (key, nonce) = (FileKey(random_array::<16>()?), random_array::<16>()?);
        to.write_all(header::encode(&key, recipients)?.as_bytes())?;
        to.write_all(&nonce)?;
        let chunk = Vec::with_capacity(CHUNK_BYTES + TAG_BYTES);
        Ok((Self { to, payload: Payload::new(&key, nonce), chunk }, key))
    }

    /// Writes the last chunk. A file without a last chunk counts as truncated.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        Ok(self.to)
    }

    /// Encrypts the buffered chunk and writes it.
    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = self.payload.next_nonce(is_last);
        let encryption = self.payload.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk);
        encryption.map_err(|_| io::Error::other("a chunk could not be encrypted"))?;
        self.to.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

impl<W: Write> Write for EncryptWriter<W> {
    /// Adds bytes up to the end of the current chunk, or of a new one if it is full. Returns how many were added.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whether a full chunk is the last one is known only when more bytes arrive.
        if self.chunk.len() == CHUNK_BYTES && !bytes.is_empty() {
            self.seal(false)?;
        }
        let count = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A reader that decrypts another reader, chunk by chunk. Only a caller that reads to the end knows that nothing is
/// missing.
pub struct DecryptReader<R> {
    from: R,
    payload: Payload,
    /// The decrypted current chunk.
    chunk: Vec<u8>,
    /// Number of bytes of `chunk` that were returned already.
    position: usize,
    /// True if the last chunk was decrypted, or if a chunk could not be read or decrypted.
    is_finished: bool,
}

impl<R: BufRead> DecryptReader<R> {
    /// Starts to read a file that is encrypted to one of these identities.
    ///
    /// # Errors
    /// [`AgeError`].
    pub fn begin(mut from: R, identities: &[AgeIdentity]) -> Result<Self, AgeError> {
        let header = AgeHeader::read(&mut from)?;
        let key = header.find_file_key(identities).ok_or(AgeError::OtherIdentity)?;
        Self::after_header(from, &header, &key)
    }

    /// Starts to read a file whose file key the caller has.
    ///
    /// # Errors
    /// [`AgeError`].
    pub fn begin_with(mut from: R, key: &FileKey) -> Result<Self, AgeError> {
        let header = AgeHeader::read(&mut from)?;
        Self::after_header(from, &header, key)
    }

    /// Checks that the header belongs to the file key, and reads the nonce of the payload.
    fn after_header(mut from: R, header: &AgeHeader, key: &FileKey) -> Result<Self, AgeError> {
        if !key.has_signed(header) {
            return Err(AgeError::Damaged("its header was changed"));
        }
        let mut nonce = [0; 16];
        from.read_exact(&mut nonce).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => AgeError::Damaged("nothing follows its header"),
            _ => error.into(),
        })?;
        Ok(Self { from, payload: Payload::new(key, nonce), chunk: Vec::new(), position: 0, is_finished: false })
    }

    /// Reads and decrypts the next chunk. Fails if the chunk was changed, or if it is empty and not the only chunk of
    /// the file.
    fn next_chunk(&mut self) -> io::Result<()> {
        let damage_error = || {
            let error = AgeError::Damaged("a part of it was changed");
            io::Error::new(io::ErrorKind::InvalidData, error)
        };
        self.position = 0;
        self.chunk.clear();
        (&mut self.from).take((CHUNK_BYTES + TAG_BYTES) as u64).read_to_end(&mut self.chunk)?;
        // A chunk is the last one if it is short, or if nothing follows it.
        self.is_finished = self.chunk.len() < CHUNK_BYTES + TAG_BYTES || self.from.fill_buf()?.is_empty();
        let is_first = self.payload.chunks == 0;
        let nonce = self.payload.next_nonce(self.is_finished);
        let plaintext = self.payload.key.open_in_place(nonce, Aad::empty(), &mut self.chunk);
        let length = plaintext.map_err(|_| damage_error())?.len();
        self.chunk.truncate(length);
        // An empty chunk is valid only as the sole chunk of a file. Any other was appended later.
        if length == 0 && !is_first { Err(damage_error()) } else { Ok(()) }
    }
}

impl<R: BufRead> Read for DecryptReader<R> {
    /// Returns decrypted bytes of the current or else the next chunk. Returns 0 after the last chunk or an error.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.position == self.chunk.len() && !self.is_finished {
            self.next_chunk().inspect_err(|_| {
                // No byte of an invalid chunk is returned, even if the caller reads again.
                self.chunk.clear();
                self.is_finished = true;
            })?;
        }
        let unread = &self.chunk[self.position..];
        let count = unread.len().min(bytes.len());
        bytes[..count].copy_from_slice(&unread[..count]);
        self.position += count;
        Ok(count)
    }
}

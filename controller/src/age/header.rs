//! The header of an age file: its file key, encrypted to each recipient, and an HMAC that detects changes.
//!
//! ```text
//!   age-encryption.org/v1
//!   -> X25519 <share>
//!   <the file's key, encrypted to a recipient>
//!   --- <HMAC of all before it>
//! ```

use std::io::{self, BufRead, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, Nonce};
use ring::hmac;
use x25519_dalek::{PublicKey, StaticSecret};

use super::{AgeError, AgeIdentity, FileKey, MAGIC, Recipient, cipher, derive_key};
use crate::ca::random_bytes;

/// Maximum length of a header, in bytes. A header of this length has some hundreds of recipients.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// Length of each line in the body of a stanza, in characters. Only the last line is shorter.
const LINE_LENGTH: usize = 64;
/// HKDF info string for the key that encrypts a file key to a recipient.
const X25519_INFO: &[u8] = b"age-encryption.org/v1/X25519";
/// Nonce of zeros, for a key that encrypts only one message.
const ZERO_NONCE: [u8; 12] = [0; 12];

/// A parsed header of an age file.
pub(super) struct AgeHeader {
    /// The file key, encrypted to each recipient.
    stanzas: Vec<Stanza>,
    /// The text of the header that the MAC authenticates.
    signed_text: Vec<u8>,
    /// The HMAC of `signed_text`, with a key that is derived from the file key.
    mac: Vec<u8>,
}

/// A stanza of a header: the file key, encrypted to one recipient.
struct Stanza {
    /// The words of the first line: the kind, and for `X25519` the public key that was created for this stanza.
    arguments: Vec<String>,
    /// The encrypted file key.
    body: Vec<u8>,
}

/// Encodes the header of a file: the file key, encrypted to each recipient, and the MAC. For each recipient, a new key
/// pair is created, and its public key is part of the stanza.
pub(super) fn encode(key: &FileKey, recipients: &[Recipient]) -> io::Result<String> {
    let mut text = String::from_utf8_lossy(MAGIC).into_owned();
    for recipient in recipients {
        let new_secret = StaticSecret::from(random_array::<32>()?);
        let new_public = PublicKey::from(&new_secret).to_bytes();
        let stanza_key = wrapping_key(&new_secret, &recipient.0, (&new_public, &recipient.0));
        let stanza_key = stanza_key.expect("the parser of recipients refuses a key of low order");
        let mut body = key.0.to_vec();
        let encryption = cipher(&stanza_key).seal_in_place_append_tag(zero_nonce(), Aad::empty(), &mut body);
        encryption.expect("a file's key is far below the cipher's bound");
        text.push_str(&format!("-> X25519 {}\n{}\n", STANDARD_NO_PAD.encode(new_public), STANDARD_NO_PAD.encode(body)));
    }
    text.push_str("---");
    let mac = hmac::sign(&key.hmac_key(), text.as_bytes());
    text.push_str(&format!(" {}\n", STANDARD_NO_PAD.encode(mac)));
    Ok(text)
}

/// Returns random bytes from the operating system.
pub(super) fn random_array<const N: usize>() -> io::Result<[u8; N]> {
    random_bytes().map_err(|_| io::Error::other("the system returned no random bytes"))
}

/// Returns a nonce of zeros. The caller uses each key for one message only, so the nonce can always be the same.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key(ZERO_NONCE)
}

/// Derives the key that encrypts a file key, from the secret key of one side and the public key `peer` of the other
/// side. `share` is the public key in the stanza, and `recipient` that of the recipient. Returns `None` if the result
/// would not depend on the secret key.
fn wrapping_key(secret: &StaticSecret, peer: &[u8; 32], (share, recipient): (&[u8; 32], &[u8; 32])) -> Option<[u8; 32]> {
    let shared_secret = secret.diffie_hellman(&PublicKey::from(*peer));
    let salt = [&share[..], &recipient[..]].concat();
    shared_secret.was_contributory().then(|| derive_key(shared_secret.as_bytes(), &salt, X25519_INFO))
}

impl FileKey {
    /// Derives the key of the header's MAC from the file key.
    fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &derive_key(&self.0, &[], b"header"))
    }

    /// Returns whether the MAC of a header was created with this file key, and the header was not changed since.
    pub(super) fn has_signed(&self, header: &AgeHeader) -> bool {
        hmac::verify(&self.hmac_key(), &header.signed_text, &header.mac).is_ok()
    }
}

impl AgeIdentity {
    /// Decrypts the file key in a stanza. Returns `None` if the stanza is not encrypted to this identity.
    fn file_key(&self, stanza: &Stanza) -> Option<FileKey> {
        let [kind, share] = stanza.arguments.as_slice() else { return None };
        // The body is the file key of 16 bytes, and its authentication tag of 16 bytes.
        if kind != "X25519" || stanza.body.len() != 32 {
            return None;
        }
        let share: [u8; 32] = STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
        let recipient = PublicKey::from(&self.0).to_bytes();
        let stanza_key = wrapping_key(&self.0, &share, (&share, &recipient))?;
        let mut body = stanza.body.clone();
        let plaintext = cipher(&stanza_key).open_in_place(zero_nonce(), Aad::empty(), &mut body).ok()?;
        Some(FileKey((&*plaintext).try_into().ok()?))
    }
}

impl AgeHeader {
    /// Reads a header. Afterwards, the next byte of the reader is the first one after the header.
    pub(super) fn read(reader: &mut impl BufRead) -> Result<Self, AgeError> {
        let mut lines = Lines { reader: reader.take(MAX_HEADER_BYTES), text: Vec::new() };
        let first_line = lines.next_line()?;
        // `MAGIC` ends with a line feed, which `next_line` removes.
        if first_line.as_bytes() != &MAGIC[..MAGIC.len() - 1] {
            return Err(AgeError::Damaged("it does not begin like an age file"));
        }
        let mut stanzas = Vec::new();
        loop {
            let line = lines.next_line()?;
            if let Some(mac) = line.strip_prefix("--- ") {
                let mac = STANDARD_NO_PAD.decode(mac).map_err(|_| header_error())?;
                // The MAC authenticates the header up to and including its `---`.
                let signed_bytes = lines.text.len() - (line.len() - "---".len()) - "\n".len();
                lines.text.truncate(signed_bytes);
                return Ok(Self { stanzas, signed_text: lines.text, mac });
            }
            let arguments = line.strip_prefix("-> ").ok_or_else(header_error)?;
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            stanzas.push(Stanza { arguments, body: lines.read_body()? });
        }
    }

    /// Returns the file key, or `None` if the file is encrypted to none of these identities.
    pub(super) fn find_file_key(&self, identities: &[AgeIdentity]) -> Option<FileKey> {
        self.stanzas.iter().find_map(|stanza| identities.iter().find_map(|identity| identity.file_key(stanza)))
    }
}

/// A reader of the lines of a header.
struct Lines<R> {
    reader: io::Take<R>,
    /// All bytes that were read so far.
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line without its line feed. Fails if the header ends or is too long before the line feed.
    fn next_line(&mut self) -> Result<String, AgeError> {
        let start = self.text.len();
        self.reader.read_until(b'\n', &mut self.text)?;
        let line = self.text[start..].strip_suffix(b"\n").ok_or_else(header_error)?;
        String::from_utf8(line.to_vec()).map_err(|_| header_error())
    }

    /// Reads and decodes the body of a stanza: full lines, then a shorter one.
    fn read_body(&mut self) -> Result<Vec<u8>, AgeError> {
        let mut text = String::new();
        loop {
            let line = self.next_line()?;
            text.push_str(&line);
            if line.len() < LINE_LENGTH {
                return STANDARD_NO_PAD.decode(text).map_err(|_| header_error());
            }
        }
    }
}

/// Returns the error for a header that is not valid.
fn header_error() -> AgeError {
    AgeError::Damaged("its header cannot be read")
}

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

/// Maximum length of a header, in bytes. It has room for some hundreds of recipients.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// Length of each line in the body of a stanza. The last line is shorter.
const LINE_LENGTH: usize = 64;
/// HKDF info string for the key that encrypts a file key to a recipient.
const X25519_INFO: &[u8] = b"age-encryption.org/v1/X25519";
/// Nonce of zeros, for a key that encrypts only one message.
const ZERO_NONCE: [u8; 12] = [0; 12];

/// A parsed header.
pub(super) struct AgeHeader {
    stanzas: Vec<Stanza>,
    /// The text of the header that the MAC authenticates.
    signed_text: Vec<u8>,
    mac: Vec<u8>,
}

/// The file key, encrypted to one recipient.
struct Stanza {
    arguments: Vec<String>,
    body: Vec<u8>,
}

/// Encodes the header of a file: the file key encrypted to each recipient, and the MAC.
pub(super) fn encode(key: &FileKey, recipients: &[Recipient]) -> io::Result<String> {
    let mut text = String::from_utf8_lossy(MAGIC).into_owned();
    for recipient in recipients {
        let secret = StaticSecret::from(random_array::<32>()?);
        let share = PublicKey::from(&secret).to_bytes();
        let wrapping = wrapping_key(&secret, &recipient.0, (&share, &recipient.0));
        let wrapping = wrapping.expect("a recipient is rejected when it is parsed if its key is of low order");
        let mut body = key.0.to_vec();
        let sealed = cipher(&wrapping).seal_in_place_append_tag(zero_nonce(), Aad::empty(), &mut body);
        sealed.expect("a file's key is far below the cipher's bound");
        text.push_str(&format!("-> X25519 {}\n{}\n", STANDARD_NO_PAD.encode(share), STANDARD_NO_PAD.encode(body)));
    }
    text.push_str("---");
    let mac = hmac::sign(&key.hmac_key(), text.as_bytes());
    text.push_str(&format!(" {}\n", STANDARD_NO_PAD.encode(mac)));
    Ok(text)
}

/// Returns random bytes from the system.
pub(super) fn random_array<const N: usize>() -> io::Result<[u8; N]> {
    random_bytes().map_err(|_| io::Error::other("the system returned no random bytes"))
}

/// Returns a nonce of zeros. The caller uses each key for one message only, so the nonce need not differ.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key(ZERO_NONCE)
}

/// Derives the key that encrypts a file key, from one party's secret key and the other party's public key. Returns
/// `None` if the result would not depend on the secret key.
fn wrapping_key(secret: &StaticSecret, peer: &[u8; 32], (share, recipient): (&[u8; 32], &[u8; 32])) -> Option<[u8; 32]> {
    let shared = secret.diffie_hellman(&PublicKey::from(*peer));
    let salt = [&share[..], &recipient[..]].concat();
    shared.was_contributory().then(|| derive_key(shared.as_bytes(), &salt, X25519_INFO))
}

impl FileKey {
    fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &derive_key(&self.0, &[], b"header"))
    }

    /// Returns whether the MAC of a header was made with this file key.
    pub(super) fn has_signed(&self, header: &AgeHeader) -> bool {
        hmac::verify(&self.hmac_key(), &header.signed_text, &header.mac).is_ok()
    }
}

impl AgeIdentity {
    /// Decrypts the file key in a stanza. Returns `None` if the stanza is not for this identity.
    fn file_key(&self, stanza: &Stanza) -> Option<FileKey> {
        let [kind, share] = stanza.arguments.as_slice() else { return None };
        if kind != "X25519" || stanza.body.len() != 32 {
            return None;
        }
        let share: [u8; 32] = STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
        let recipient = PublicKey::from(&self.0).to_bytes();
        let wrapping = wrapping_key(&self.0, &share, (&share, &recipient))?;
        let mut body = stanza.body.clone();
        let opened = cipher(&wrapping).open_in_place(zero_nonce(), Aad::empty(), &mut body).ok()?;
        Some(FileKey((&*opened).try_into().ok()?))
    }
}

impl AgeHeader {
    /// Reads a header, and no byte after it.
    pub(super) fn read(reader: &mut impl BufRead) -> Result<Self, AgeError> {
        let mut lines = Lines { reader: reader.take(MAX_HEADER_BYTES), text: Vec::new() };
        let first = lines.next_line()?;
        if first.as_bytes() != &MAGIC[..MAGIC.len() - 1] {
            return Err(AgeError::Damaged("it does not begin like an age file"));
        }
        let mut stanzas = Vec::new();
        loop {
            let line = lines.next_line()?;
            if let Some(mac) = line.strip_prefix("--- ") {
                let mac = STANDARD_NO_PAD.decode(mac).map_err(|_| header_error())?;
                let signed = lines.text.len() - (line.len() - "---".len()) - "\n".len();
                lines.text.truncate(signed);
                return Ok(Self { stanzas, signed_text: lines.text, mac });
            }
            let arguments = line.strip_prefix("-> ").ok_or_else(header_error)?;
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            stanzas.push(Stanza { arguments, body: lines.read_body()? });
        }
    }

    /// Returns the file key if the file is encrypted to one of these identities.
    pub(super) fn find_file_key(&self, identities: &[AgeIdentity]) -> Option<FileKey> {
        self.stanzas.iter().find_map(|stanza| identities.iter().find_map(|identity| identity.file_key(stanza)))
    }
}

/// The lines of a header.
struct Lines<R> {
    reader: io::Take<R>,
    /// Everything read so far.
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line without its line feed.
    fn next_line(&mut self) -> Result<String, AgeError> {
        let begin = self.text.len();
        self.reader.read_until(b'\n', &mut self.text)?;
        let line = self.text[begin..].strip_suffix(b"\n").ok_or_else(header_error)?;
        String::from_utf8(line.to_vec()).map_err(|_| header_error())
    }

    /// Reads the body of a stanza: full lines, then a shorter one.
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

fn header_error() -> AgeError {
    AgeError::Damaged("its header cannot be read")
}

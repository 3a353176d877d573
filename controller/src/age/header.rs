//! The header: the key of the file, encrypted to each recipient, and what shows that nobody changed it.
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

use super::{AgeError, FileKey, Identity, MAGIC, Recipient, cipher, derived};
use crate::ca::random;

/// The longest header: some hundreds of recipients.
const MAX_HEADER: u64 = 64 * 1024;
/// The length of a line of a stanza's body but the last, which is shorter.
const COLUMNS: usize = 64;
/// What the key is derived for that encrypts a file's key to a recipient.
const X25519_USE: &[u8] = b"age-encryption.org/v1/X25519";
/// That key encrypts one thing, and once.
const ONCE: [u8; 12] = [0; 12];

/// A header that was read.
pub(super) struct Header {
    stanzas: Vec<Stanza>,
    /// What is signed of it.
    text: Vec<u8>,
    tag: Vec<u8>,
}

/// The file's key as one recipient has it.
struct Stanza {
    arguments: Vec<String>,
    body: Vec<u8>,
}

/// Writes the header of a file.
pub(super) fn written(key: &FileKey, recipients: &[Recipient]) -> io::Result<String> {
    let mut text = String::from_utf8_lossy(MAGIC).into_owned();
    for recipient in recipients {
        let secret = StaticSecret::from(random_bytes::<32>()?);
        let share = PublicKey::from(&secret).to_bytes();
        let wrapping = wrapping(&secret, &recipient.0, (&share, &recipient.0));
        let wrapping = wrapping.expect("what is agreed on with a recipient depends on it, or it would be none");
        let mut body = key.0.to_vec();
        let sealed = cipher(&wrapping).seal_in_place_append_tag(once(), Aad::empty(), &mut body);
        sealed.expect("a file's key is far below the cipher's bound");
        text.push_str(&format!("-> X25519 {}\n{}\n", STANDARD_NO_PAD.encode(share), STANDARD_NO_PAD.encode(body)));
    }
    text.push_str("---");
    let tag = hmac::sign(&key.signing(), text.as_bytes());
    text.push_str(&format!(" {}\n", STANDARD_NO_PAD.encode(tag)));
    Ok(text)
}

/// Random bytes of the system.
pub(super) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    random().map_err(|_| io::Error::other("the system gave no random bytes"))
}

fn once() -> Nonce {
    Nonce::assume_unique_for_key(ONCE)
}

/// The key that encrypts a file's key, from one's own secret and the public key of the other; `None` where it would not depend on that.
fn wrapping(secret: &StaticSecret, other: &[u8; 32], (share, recipient): (&[u8; 32], &[u8; 32])) -> Option<[u8; 32]> {
    let shared = secret.diffie_hellman(&PublicKey::from(*other));
    let salt = [&share[..], &recipient[..]].concat();
    shared.was_contributory().then(|| derived(shared.as_bytes(), &salt, X25519_USE))
}

impl FileKey {
    fn signing(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &derived(&self.0, &[], b"header"))
    }

    /// Whether a header was written by who had this key.
    pub(super) fn has_signed(&self, header: &Header) -> bool {
        hmac::verify(&self.signing(), &header.text, &header.tag).is_ok()
    }
}

impl Identity {
    /// The file's key, where this stanza has it for this one.
    fn file_key(&self, stanza: &Stanza) -> Option<FileKey> {
        let [kind, share] = stanza.arguments.as_slice() else { return None };
        if kind != "X25519" || stanza.body.len() != 32 {
            return None;
        }
        let share: [u8; 32] = STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
        let own = PublicKey::from(&self.0).to_bytes();
        let wrapping = wrapping(&self.0, &share, (&share, &own))?;
        let mut body = stanza.body.clone();
        let opened = cipher(&wrapping).open_in_place(once(), Aad::empty(), &mut body).ok()?;
        Some(FileKey((&*opened).try_into().ok()?))
    }
}

impl Header {
    /// Reads a header, and nothing behind it.
    pub(super) fn read(from: &mut impl BufRead) -> Result<Self, AgeError> {
        let mut lines = Lines { from: from.take(MAX_HEADER), text: Vec::new() };
        let first = lines.next()?;
        if first.as_bytes() != &MAGIC[..MAGIC.len() - 1] {
            return Err(AgeError::Damaged("it does not begin as a file of age"));
        }
        let mut stanzas = Vec::new();
        loop {
            let line = lines.next()?;
            if let Some(tag) = line.strip_prefix("--- ") {
                let tag = STANDARD_NO_PAD.decode(tag).map_err(|_| bad_header())?;
                let signed = lines.text.len() - (line.len() - "---".len()) - "\n".len();
                lines.text.truncate(signed);
                return Ok(Self { stanzas, text: lines.text, tag });
            }
            let arguments = line.strip_prefix("-> ").ok_or_else(bad_header)?;
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            stanzas.push(Stanza { arguments, body: lines.body()? });
        }
    }

    /// The key of the file, if it is for one of these.
    pub(super) fn key(&self, identities: &[Identity]) -> Option<FileKey> {
        self.stanzas.iter().find_map(|stanza| identities.iter().find_map(|identity| identity.file_key(stanza)))
    }
}

/// The lines of a header.
struct Lines<R> {
    from: io::Take<R>,
    /// All that was read.
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The next line, without its end.
    fn next(&mut self) -> Result<String, AgeError> {
        let begin = self.text.len();
        self.from.read_until(b'\n', &mut self.text)?;
        let line = self.text[begin..].strip_suffix(b"\n").ok_or_else(bad_header)?;
        String::from_utf8(line.to_vec()).map_err(|_| bad_header())
    }

    /// What a stanza holds: whole lines, and a shorter one.
    fn body(&mut self) -> Result<Vec<u8>, AgeError> {
        let mut text = String::new();
        loop {
            let line = self.next()?;
            text.push_str(&line);
            if line.len() < COLUMNS {
                return STANDARD_NO_PAD.decode(text).map_err(|_| bad_header());
            }
        }
    }
}

fn bad_header() -> AgeError {
    AgeError::Damaged("its header cannot be read")
}

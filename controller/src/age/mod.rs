//! Files encrypted to age recipients, in the format of age-encryption.org/v1. The program `age` can read the files that
//! this module writes, and this module those of `age`.
//!
//! The module has only the parts of the format that a backup needs: X25519 recipients and the chunked payload. The
//! cryptography is that of ring and x25519-dalek. The crate `age` (0.12.1) was considered. It adds passphrases,
//! plugins, NIST curves, lattices and a translation framework: 74 crates that nothing else here needs, for a format
//! that does not change. A file that is armored, or encrypted to a passphrase, must be decrypted with `age -d` before
//! it is restored.

mod header;
mod stream;

use std::str::FromStr;

use bech32::Bech32;
use bech32::primitives::decode::CheckedHrpstring;
use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use x25519_dalek::{PublicKey, StaticSecret};

pub use stream::{DecryptReader, EncryptWriter};

/// The first bytes of every age file.
pub const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// Prefix of the text of a recipient, without the `1` that follows it.
const RECIPIENT_PREFIX: &str = "age";
/// Prefix of the text of an identity, in lower case and without the `1` that follows it.
const IDENTITY_PREFIX: &str = "age-secret-key-";

/// The reason why an age file cannot be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// The system could not read the file.
    #[error("it cannot be read")]
    Io(#[from] std::io::Error),
    /// The header or a chunk fails its check: the file was truncated or changed, or is not an age file. Also if the
    /// caller decrypts with the file key of another file. The text is the reason.
    #[error("it cannot be decrypted: {0}; it was truncated or changed: use another copy of it")]
    Damaged(&'static str),
    /// The file is encrypted to none of the given identities.
    #[error("it is not encrypted to any of the given identities: give the secret key of one of its recipients")]
    OtherIdentity,
}

/// The reason why a text is not a recipient. The error does not contain the text, because it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipient {
    /// The text is a secret key.
    #[error(
        "this is a secret key: give its public key, which `age-keygen -y FILE` prints, and create a new key if others could read this one"
    )]
    Secret,
    /// The text is neither a valid recipient nor a valid secret key. A public key of low order, with which anybody
    /// could decrypt the file, is not valid either.
    #[error(
        "this is not an age recipient: write age1 and 58 letters and digits, as `age-keygen` prints it (\"Public key: age1...\"); keys of SSH and \
         of plugins are not supported"
    )]
    Unknown,
}

/// The reason why a text is not a list of identities. The error does not contain the text, because it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentities {
    /// The line with this number is not an identity. The first line has the number 1.
    #[error(
        "line {0} is not an age secret key: it must begin with AGE-SECRET-KEY-1, as `age-keygen` writes it; SSH and plugin keys are not supported"
    )]
    Line(usize),
    /// The text has no line with an identity.
    #[error("it contains no secret key: give a file with a line that begins with AGE-SECRET-KEY-1, as `age-keygen` writes it")]
    Empty,
}

/// A recipient: a public key to which files are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl FromStr for Recipient {
    type Err = BadRecipient;

    /// Parses a recipient, `age1…`. A secret key has an error of its own.
    fn from_str(text: &str) -> Result<Self, BadRecipient> {
        match decode_bech32(text) {
            Some((IDENTITY_PREFIX, _)) => Err(BadRecipient::Secret),
            // A key of low order is refused: the result of a key agreement with it does not depend on the secret, so
            // anybody could decrypt the file.
            Some((RECIPIENT_PREFIX, key)) if is_contributory(&key) => Ok(Self(key)),
            _ => Err(BadRecipient::Unknown),
        }
    }
}

/// An identity: a secret key that decrypts files.
pub struct AgeIdentity(StaticSecret);

impl AgeIdentity {
    /// Parses a file that `age-keygen` wrote. Each line is an identity, a comment that begins with `#`, or empty.
    ///
    /// # Errors
    /// [`BadIdentities`].
    pub fn read_all(text: &str) -> Result<Vec<Self>, BadIdentities> {
        let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let parse_line = |(line, number)| match decode_bech32(line) {
            Some((IDENTITY_PREFIX, key)) => Ok(Self(StaticSecret::from(key))),
            _ => Err(BadIdentities::Line(number)),
        };
        let identities: Vec<Self> = lines.map(parse_line).collect::<Result<_, _>>()?;
        if identities.is_empty() { Err(BadIdentities::Empty) } else { Ok(identities) }
    }
}

/// The secret key of one file. The header of the file contains it, encrypted to each recipient.
pub struct FileKey([u8; 16]);

/// Decodes the Bech32 text of a recipient or an identity into its prefix and the 32 bytes of the key. Returns `None`
/// for any other text.
fn decode_bech32(text: &str) -> Option<(&'static str, [u8; 32])> {
    let decoded = CheckedHrpstring::new::<Bech32>(text).ok()?;
    let kind = decoded.hrp().to_lowercase();
    let kind = [RECIPIENT_PREFIX, IDENTITY_PREFIX].into_iter().find(|prefix| *prefix == kind)?;
    let bytes: Vec<u8> = decoded.byte_iter().collect();
    Some((kind, bytes.try_into().ok()?))
}

/// Returns whether a key agreement with this public key depends on the secret key. This is not so for a public key of
/// low order.
fn is_contributory(key: &[u8; 32]) -> bool {
    StaticSecret::from([1; 32]).diffie_hellman(&PublicKey::from(*key)).was_contributory()
}

/// Derives a 32-byte key from a secret with HKDF-SHA-256. `info` names the purpose of the key.
fn derive_key(secret: &[u8], salt: &[u8], info: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let secret = Salt::new(HKDF_SHA256, salt).extract(secret);
    let result = secret.expand(&[info], HKDF_SHA256).and_then(|output| output.fill(&mut key));
    result.expect("HKDF-SHA-256 gives 32 bytes");
    key
}

/// Returns the cipher ChaCha20-Poly1305 with this key.
fn cipher(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&aead::CHACHA20_POLY1305, key).expect("the key has 32 bytes"))
}

#[cfg(test)]
mod tests;

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
/// Prefix of a recipient, up to its first `1`.
const RECIPIENT_PREFIX: &str = "age";
/// Prefix of an identity, up to its first `1`.
const IDENTITY_PREFIX: &str = "age-secret-key-";

/// The reason why a file cannot be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// The system could not read the file.
    #[error("it cannot be read")]
    Io(#[from] std::io::Error),
    /// The header or a chunk fails its check: the file was truncated or changed, or is not an age file.
    #[error("it cannot be decrypted: {0}; it was truncated or changed: use another copy of it")]
    Damaged(&'static str),
    /// The file is encrypted to other recipients.
    #[error("it is not encrypted to any of the given identities: give the secret key of one of its recipients")]
    OtherIdentity,
}

/// The reason why a text is not a recipient. The text is not shown, because it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipient {
    /// The text is a secret key.
    #[error(
        "this is a secret key: give its public key, which `age-keygen -y FILE` prints, and create a new key if others could read this one"
    )]
    Secret,
    /// The text is neither a recipient nor a secret key.
    #[error(
        "this is not an age recipient: write age1 and 58 letters and digits, as `age-keygen` prints it (\"Public key: age1...\"); keys of SSH and \
         of plugins are not supported"
    )]
    Unknown,
}

/// The reason why a text contains no identities. The text is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentities {
    /// A line is not an identity.
    #[error(
        "line {0} is not an age secret key: it must begin with AGE-SECRET-KEY-1, as `age-keygen` writes it; SSH and plugin keys are not supported"
    )]
    Line(usize),
    /// The text has no line with an identity.
    #[error("it contains no secret key: give a file with a line that begins with AGE-SECRET-KEY-1, as `age-keygen` writes it")]
    Empty,
}

/// A public key that files are encrypted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl FromStr for Recipient {
    type Err = BadRecipient;

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

/// A secret key that decrypts files.
pub struct AgeIdentity(StaticSecret);

impl AgeIdentity {
    /// Parses the lines of a file written by `age-keygen`.
    ///
    /// # Errors
    /// [`BadIdentities`].
    pub fn read_all(text: &str) -> Result<Vec<Self>, BadIdentities> {
        let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let read = |(line, number)| match decode_bech32(line) {
            Some((IDENTITY_PREFIX, key)) => Ok(Self(StaticSecret::from(key))),
            _ => Err(BadIdentities::Line(number)),
        };
        let identities: Vec<Self> = lines.map(read).collect::<Result<_, _>>()?;
        if identities.is_empty() { Err(BadIdentities::Empty) } else { Ok(identities) }
    }
}

/// The key of one file. The header contains it, encrypted to each recipient.
pub struct FileKey([u8; 16]);

/// Decodes a Bech32 text into its prefix, of a recipient or an identity, and the 32 bytes of the key.
fn decode_bech32(text: &str) -> Option<(&'static str, [u8; 32])> {
    let read = CheckedHrpstring::new::<Bech32>(text).ok()?;
    let kind = read.hrp().to_lowercase();
    let kind = [RECIPIENT_PREFIX, IDENTITY_PREFIX].into_iter().find(|known| *known == kind)?;
    let bytes: Vec<u8> = read.byte_iter().collect();
    Some((kind, bytes.try_into().ok()?))
}

/// Returns whether a key agreement with this public key depends on both parties' keys.
fn is_contributory(key: &[u8; 32]) -> bool {
    StaticSecret::from([1; 32]).diffie_hellman(&PublicKey::from(*key)).was_contributory()
}

/// Derives a 32-byte key for one purpose from a secret.
fn derive_key(secret: &[u8], salt: &[u8], info: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let secret = Salt::new(HKDF_SHA256, salt).extract(secret);
    let filled = secret.expand(&[info], HKDF_SHA256).and_then(|derived| derived.fill(&mut key));
    filled.expect("HKDF-SHA-256 gives 32 bytes");
    key
}

fn cipher(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&aead::CHACHA20_POLY1305, key).expect("the key has 32 bytes"))
}

#[cfg(test)]
mod tests;

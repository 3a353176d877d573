//! Files that are encrypted to age recipients, in the format of age-encryption.org/v1: `age` reads what is written here, and the reverse.
//!
//! Of the format there is what a backup needs: X25519 recipients, and the payload in its chunks. The cryptography is ring's and
//! x25519-dalek's. The crate `age` was looked at (0.12.1): beside these it brings passphrases, plugins, NIST's curves, lattices and a framework
//! of translations, 74 crates that nothing else here needs, for a format that does not change. What is armored, or encrypted to a passphrase,
//! `age -d` decrypts before it is restored.

mod header;
mod stream;

use std::str::FromStr;

use bech32::Bech32;
use bech32::primitives::decode::CheckedHrpstring;
use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use x25519_dalek::{PublicKey, StaticSecret};

pub use stream::{Decrypted, Encrypted};

/// How each such file begins.
pub const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// How the text of a recipient begins, before its first `1`.
const RECIPIENT: &str = "age";
/// The same of an identity.
const IDENTITY: &str = "age-secret-key-";

/// Why a file is not decrypted.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// The system said no.
    #[error("it cannot be read")]
    Io(#[from] std::io::Error),
    /// Its header does not hold, or a chunk of it does not: it was cut or changed, or is no such file.
    #[error("its encryption does not hold: {0}; it was cut or changed, so take another copy of it")]
    Damaged(&'static str),
    /// It is for others.
    #[error("it is encrypted to none of the given identities: give the secret key of one of its recipients")]
    OtherIdentity,
}

/// Why a text is no recipient. It is not shown: it may be somebody's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipient {
    /// The other half of one.
    #[error(
        "this is a secret key: give its public half, which `age-keygen -y FILE` prints, and make another key if others could read this one"
    )]
    Secret,
    /// Anything else.
    #[error(
        "this is no recipient of age: write age1 and 58 letters and digits, as `age-keygen` prints it (\"Public key: age1...\"); keys of SSH and \
         of plugins are not taken"
    )]
    Unknown,
}

/// Why a text holds no identities. It is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentities {
    /// A line is something else.
    #[error(
        "line {0} is no secret key of age: one begins with AGE-SECRET-KEY-1, as `age-keygen` writes it; keys of SSH and plugins are not taken"
    )]
    Line(usize),
    /// There is none.
    #[error("there is no secret key in it: one is a line that begins with AGE-SECRET-KEY-1, as `age-keygen` writes it")]
    Empty,
}

/// Who can decrypt what is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl FromStr for Recipient {
    type Err = BadRecipient;

    fn from_str(text: &str) -> Result<Self, BadRecipient> {
        match decoded(text) {
            Some((IDENTITY, _)) => Err(BadRecipient::Secret),
            // One of which every secret would be the same is nobody's.
            Some((RECIPIENT, key)) if is_contributory(&key) => Ok(Self(key)),
            _ => Err(BadRecipient::Unknown),
        }
    }
}

/// Who decrypts.
pub struct Identity(StaticSecret);

impl Identity {
    /// Reads the lines of a file of `age-keygen`.
    ///
    /// # Errors
    /// [`BadIdentities`].
    pub fn read_all(text: &str) -> Result<Vec<Self>, BadIdentities> {
        let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let read = |(line, number)| match decoded(line) {
            Some((IDENTITY, key)) => Ok(Self(StaticSecret::from(key))),
            _ => Err(BadIdentities::Line(number)),
        };
        let all: Vec<Self> = lines.map(read).collect::<Result<_, _>>()?;
        if all.is_empty() { Err(BadIdentities::Empty) } else { Ok(all) }
    }
}

/// The key of one file, which its header holds for each recipient.
pub struct FileKey([u8; 16]);

/// What a text in Bech32 says: its kind and 32 bytes.
fn decoded(text: &str) -> Option<(&'static str, [u8; 32])> {
    let read = CheckedHrpstring::new::<Bech32>(text).ok()?;
    let kind = read.hrp().to_lowercase();
    let kind = [RECIPIENT, IDENTITY].into_iter().find(|known| *known == kind)?;
    let bytes: Vec<u8> = read.byte_iter().collect();
    Some((kind, bytes.try_into().ok()?))
}

/// Whether what is agreed on with this public key depends on it.
fn is_contributory(key: &[u8; 32]) -> bool {
    StaticSecret::from([1; 32]).diffie_hellman(&PublicKey::from(*key)).was_contributory()
}

/// 32 bytes that follow from a secret, for one use.
fn derived(secret: &[u8], salt: &[u8], use_of_it: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let secret = Salt::new(HKDF_SHA256, salt).extract(secret);
    let filled = secret.expand(&[use_of_it], HKDF_SHA256).and_then(|derived| derived.fill(&mut key));
    filled.expect("HKDF-SHA-256 gives 32 bytes");
    key
}

fn cipher(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&aead::CHACHA20_POLY1305, key).expect("the key has 32 bytes"))
}

#[cfg(test)]
mod tests;

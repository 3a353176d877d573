//! Joining and renewing: the only messages that an agent sends without, or for, a certificate.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bounded;

/// `POST /agent/v1/enroll`, without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// `id.secret`. Never logged. Longer texts than any token are read, so that who sends one is told what is wrong with it.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub token: String,
    /// PKCS#10 in DER, at most 4 KiB. Only its public key is taken.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
    /// X25519 public key, made by apply; secrets are sealed to it.
    pub seal_key: [u8; 32],
    /// The name asked for; the controller refuses a taken one, and tells so only after a valid token. Longer texts than any name are
    /// read, so that who sends one is told the rule.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub name: String,
}

/// Why a text cannot be a token: neither a join token nor a principal's. Both are `id.secret`. The id has 16 hexadecimal digits. The secret
/// has 64 of them, or 43 letters, digits, `-` and `_` where a controller made it and not `stemma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAToken {
    /// There is no dot.
    #[error("it is not ID.SECRET")]
    NoDot,
    /// The id is cut, or something stands before it.
    #[error("what stands before its dot has {0} characters, and an id has 16")]
    IdLength(usize),
    /// The id has other characters.
    #[error("what stands before its dot is not all digits and letters from a to f")]
    IdCharacters,
    /// The secret is cut, or something stands behind it.
    #[error("what stands behind its dot has {0} characters, and a secret has 64, or 43 where a controller made it")]
    SecretLength(usize),
    /// The secret has other characters.
    #[error("what stands behind its dot has characters that no secret has")]
    SecretCharacters,
}

/// Checks that a text can be a token. Whether there is such a one, a controller alone knows.
///
/// # Errors
/// [`NotAToken`].
pub fn check_token(text: &str) -> Result<(), NotAToken> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_url_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let (id, secret) = text.split_once('.').ok_or(NotAToken::NoDot)?;
    let is_secret = match (id.chars().count(), secret.chars().count()) {
        (16, 64) => secret.bytes().all(is_hex),
        (16, 43) => secret.bytes().all(is_url_safe),
        (16, other) => return Err(NotAToken::SecretLength(other)),
        (other, _) => return Err(NotAToken::IdLength(other)),
    };
    if !id.bytes().all(is_hex) {
        return Err(NotAToken::IdCharacters);
    }
    if is_secret { Ok(()) } else { Err(NotAToken::SecretCharacters) }
}

/// What a text has that no token has; `None`: it may be one. It is asked before a text is sent: a controller counts what may be a token and
/// is none as a guess, and answers nobody for a while after some guesses.
pub fn odd_in_token(text: &str) -> Option<String> {
    let known = if text.is_empty() {
        "it is empty"
    } else if text.starts_with('\u{feff}') {
        "it begins with a byte order mark"
    } else if text.contains('\0') {
        "it has NUL in it, as a text in UTF-16 has, and is to be one in UTF-8"
    } else if text.lines().count() > 1 {
        "it has more than one line"
    } else if text.starts_with('#') {
        "it is a comment"
    } else if text.contains(['"', '\'', '`']) {
        "it has quotes in it"
    } else if text.chars().any(char::is_whitespace) {
        "it has blanks in it"
    } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "it has characters in it that are no ASCII text"
    } else {
        return check_token(text).err().map(|why| why.to_string());
    };
    Some(known.to_owned())
}

/// What a joined agent keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollAnswer {
    /// The node's identity from now on, also in the certificate's SAN.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub fleet: String,
    /// The new certificate first, then its issuers below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
    /// The fleet root, DER; the agent has checked it against `--ca-hash` before it asked.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub root: Vec<u8>,
}

/// `POST /agent/v1/renew`, over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// PKCS#10 in DER for the next key.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
}

/// The next certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// The new certificate first, then its issuers below the root, DER.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
}

impl fmt::Debug for EnrollRequest {
    /// Without the token: a request that is printed must not tell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

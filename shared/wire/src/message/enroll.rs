//! Joining and renewing: the messages by which an agent gets its certificates.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::bounded;

/// The body of `POST /agent/v1/enroll`, by which a host joins. It is sent without a client certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// The join token, `id.secret`. The controller never logs the token. The field may be longer than any token, so
    /// that the controller can report the error in a text that is too long.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub token: String,
    /// The certificate request (PKCS#10 in DER), at most 4 KiB. The controller uses only its public key.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
    /// The X25519 public key with which controllers encrypt secrets for this node. The private key is in the ledger of
    /// the host. The command `stemma-agent join` creates the key pair if the ledger has none.
    pub seal_key: [u8; 32],
    /// The requested name of the node. The controller refuses the name of a node that this host cannot take over, but
    /// gives this reason only to a caller with a valid token. The field may be longer than any name, so that the
    /// controller can report the rule for names.
    #[serde(deserialize_with = "bounded::text::<_, 1024>")]
    pub name: String,
}

/// The reason why a text is neither a join token nor a token of a principal. A token has the form `id.secret`. The id
/// has 16 hexadecimal digits. A secret that `stemma` created has 64 hexadecimal digits. A secret that a controller
/// created has 43 letters, digits, `-` and `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAToken {
    /// A missing dot between id and secret.
    #[error("it is not ID.SECRET")]
    NoDot,
    /// An id with this wrong number of characters: the id is truncated, or other text precedes it.
    #[error("the part before its dot has {0} characters, and an id has 16")]
    IdLength(usize),
    /// An invalid character in the id.
    #[error("the part before its dot is not all digits and letters from a to f")]
    IdCharacters,
    /// A secret with this wrong number of characters: the secret is truncated, or other text follows it.
    #[error("the part behind its dot has {0} characters, and a secret has 64, or 43 if a controller created it")]
    SecretLength(usize),
    /// An invalid character in the secret.
    #[error("the part behind its dot has characters that no secret has")]
    SecretCharacters,
}

/// Checks that a text has the form of a token (`id.secret`). Only a controller can check that the token exists.
///
/// # Errors
/// [`NotAToken`].
pub fn check_token(text: &str) -> Result<(), NotAToken> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_url_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let (id, secret) = text.split_once('.').ok_or(NotAToken::NoDot)?;
    // A secret that `stemma` created has 64 characters, and a secret that a controller created has 43.
    let is_secret_valid = match (id.chars().count(), secret.chars().count()) {
        (16, 64) => secret.bytes().all(is_hex),
        (16, 43) => secret.bytes().all(is_url_safe),
        (16, length) => return Err(NotAToken::SecretLength(length)),
        (length, _) => return Err(NotAToken::IdLength(length)),
    };
    if !id.bytes().all(is_hex) {
        return Err(NotAToken::IdCharacters);
    }
    if is_secret_valid { Ok(()) } else { Err(NotAToken::SecretCharacters) }
}

/// Returns the reason why a text cannot be a token, or `None` if the text has the form of a token. Programs call this
/// before they send a token, because a controller counts each unknown token as a guess, and refuses a caller for a
/// while after some guesses.
pub fn find_token_error(text: &str) -> Option<String> {
    let problem = if text.is_empty() {
        "it is empty"
    } else if text.starts_with('\u{feff}') {
        "it begins with a byte order mark"
    } else if text.contains('\0') {
        "it contains NUL, as text in UTF-16 does; save it in UTF-8"
    } else if text.lines().count() > 1 {
        "it has more than one line"
    } else if text.starts_with('#') {
        "it is a comment"
    } else if text.contains(['"', '\'', '`']) {
        "it has quotes in it"
    } else if text.chars().any(char::is_whitespace) {
        "it has blanks in it"
    } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "it contains characters that are not printable ASCII"
    } else {
        return check_token(text).err().map(|error| error.to_string());
    };
    Some(problem.to_owned())
}

/// The response to a join request: the identity and certificate of the host's node. The agent stores all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollResponse {
    /// The node's uuid, also in the SAN of the certificate.
    pub node: Uuid,
    /// The fleet's name, as in `spiffe://<fleet>/…`.
    #[serde(deserialize_with = "bounded::text::<_, 255>")]
    pub fleet: String,
    /// The certificate chain, each certificate in DER: first the new certificate, then its issuers without the root.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
    /// The certificate of the fleet root, in DER. The agent refuses the response if the hash of the root's key differs
    /// from `--ca-hash`.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub root: Vec<u8>,
}

/// The body of `POST /agent/v1/renew`, by which a node requests its next certificate. It is sent over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The certificate request (PKCS#10 in DER) for the next key.
    #[serde(deserialize_with = "bounded::bytes::<_, 4096>")]
    pub csr: Vec<u8>,
}

/// The response to a request for the next certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewResponse {
    /// The certificate chain, each certificate in DER: first the new certificate, then its issuers without the root.
    #[serde(deserialize_with = "bounded::chain")]
    pub chain: Vec<Vec<u8>>,
}

impl fmt::Debug for EnrollRequest {
    /// Formats only the requested name of the node, so that a log line cannot reveal the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

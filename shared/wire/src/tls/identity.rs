//! The identities in certificates, `spiffe://<fleet>/<class>/<id>`, parsed strictly.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// Maximum length of a fleet's name, in bytes (SPIFFE's trust domain).
const MAX_FLEET_NAME_BYTES: usize = 255;
/// Maximum length of a principal's name, in bytes.
const MAX_PRINCIPAL_NAME_BYTES: usize = 64;

/// A fleet's name, as in the URIs of its certificates (SPIFFE calls it the trust domain). It consists of 1 to 255 ASCII
/// characters: lower case letters, digits, `.`, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct FleetName(Arc<str>);

/// A principal's name: 1 to 64 ASCII letters, digits, `.`, `-` and `_`, but not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct PrincipalName(Arc<str>);

/// The class of the owner of a certificate (node, controller, …), with the owner's uuid or name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IdentityClass {
    /// An agent, by the uuid of its node.
    Node(Uuid),
    /// A controller as a TLS server, by its uuid.
    Controller(Uuid),
    /// The first admin of a fleet, whose certificate `init` creates. Versions of Stemma without principals accept every
    /// certificate of this class as an admin's.
    Admin(PrincipalName),
    /// A person or program on the admin listener, with the rights of the principal of this name. Versions of Stemma
    /// without principals refuse this class.
    Principal(PrincipalName),
    /// The key by which a controller signs desired states, by the controller's uuid.
    Signer(Uuid),
}

/// The parsed URI of a certificate, which names its owner: `spiffe://<fleet>/<class>/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("spiffe://{fleet}/{class}")]
pub struct SpiffeId {
    /// The fleet's name, which is the trust domain of the URI.
    pub fleet: FleetName,
    /// The class of the certificate's owner, with the owner's uuid or name.
    pub class: IdentityClass,
}

/// The identity of a connection's peer, from its certificate alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The fleet that the certificate names.
    pub fleet: FleetName,
    /// The class of the certificate's owner, with the owner's uuid or name.
    pub class: IdentityClass,
    /// The certificate's serial number, as the bytes of its DER integer. The lists of revoked certificates contain
    /// serial numbers in this form.
    pub serial: Box<[u8]>,
    /// SHA-256 of the public key (`SubjectPublicKeyInfo`, DER).
    pub spki_sha256: [u8; 32],
    /// The last second in which the certificate is valid, in seconds since 1970.
    pub not_after: u64,
    /// True if the certificate had expired at the time of the handshake, and was accepted for renewal only
    /// (docs/trust.md, rule 5). A certificate can also expire during the connection. So to check a request, use
    /// [`Identity::is_expired_at`].
    pub is_expired: bool,
}

/// The reason why a text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnIdentity {
    /// A text that does not have the form `spiffe://FLEET/CLASS/ID`, for example because it has further segments.
    #[error("not of the form spiffe://FLEET/CLASS/ID")]
    Form,
    /// A fleet's name with an invalid character or length. A user or port before or after the name is invalid too.
    #[error("a fleet's name has 1 to 255 of a-z, 0-9, '.', '-', '_'")]
    Fleet,
    /// A class other than node, controller, admin, principal and signer.
    #[error("the class is not one of node, controller, admin, principal, signer")]
    Class,
    /// An id that is not a uuid in its canonical spelling (lower case, hyphens), or that is the nil uuid.
    #[error("the id is not a uuid in lower case with hyphens")]
    Uuid,
    /// A principal's name with an invalid character or length, or the name `.` or `..`.
    #[error("a principal's name has 1 to 64 of A-Z, a-z, 0-9, '.', '-', '_' and is not '.' or '..'")]
    Name,
}

impl Identity {
    /// Returns whether the certificate has expired at this time (seconds since 1970).
    pub fn is_expired_at(&self, unix_seconds: u64) -> bool {
        unix_seconds > self.not_after
    }

    /// Returns the node's uuid, or `None` if the peer is not a node.
    pub fn node_uuid(&self) -> Option<Uuid> {
        match self.class {
            IdentityClass::Node(uuid) => Some(uuid),
            IdentityClass::Controller(_) | IdentityClass::Admin(_) | IdentityClass::Principal(_) | IdentityClass::Signer(_) => {
                None
            }
        }
    }
}

impl IdentityClass {
    /// Returns the name of the class, as in the path of the certificate's URI.
    pub fn path_segment(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Controller(_) => "controller",
            Self::Admin(_) => "admin",
            Self::Principal(_) => "principal",
            Self::Signer(_) => "signer",
        }
    }

    /// Returns the name of an admin or principal, or `None` for another class.
    pub fn principal_name(&self) -> Option<&PrincipalName> {
        match self {
            Self::Admin(name) | Self::Principal(name) => Some(name),
            Self::Node(_) | Self::Controller(_) | Self::Signer(_) => None,
        }
    }
}

impl FleetName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PrincipalName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FleetName {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_FLEET_NAME_BYTES || !text.bytes().all(is_allowed) {
            return Err(NotAnIdentity::Fleet);
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for PrincipalName {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_PRINCIPAL_NAME_BYTES || matches!(text, "." | "..") || !text.bytes().all(is_valid) {
            return Err(NotAnIdentity::Name);
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for SpiffeId {
    type Err = NotAnIdentity;

    /// Parses `spiffe://FLEET/CLASS/ID`. Fails on any other form, also on further segments.
    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let rest = text.strip_prefix("spiffe://").ok_or(NotAnIdentity::Form)?;
        let mut segments = rest.split('/');
        let (Some(fleet), Some(class), Some(id), None) = (segments.next(), segments.next(), segments.next(), segments.next())
        else {
            return Err(NotAnIdentity::Form);
        };
        let fleet = fleet.parse()?;
        let class = match class {
            "node" => IdentityClass::Node(canonical_uuid(id)?),
            "controller" => IdentityClass::Controller(canonical_uuid(id)?),
            "signer" => IdentityClass::Signer(canonical_uuid(id)?),
            "admin" => IdentityClass::Admin(id.parse()?),
            "principal" => IdentityClass::Principal(id.parse()?),
            _ => return Err(NotAnIdentity::Class),
        };
        Ok(Self { fleet, class })
    }
}

/// Parses a uuid in its canonical spelling (lower case, hyphens). Fails on other spellings and on the nil uuid, so that
/// an identity is never written in two ways.
fn canonical_uuid(text: &str) -> Result<Uuid, NotAnIdentity> {
    let uuid = Uuid::try_parse(text).map_err(|_| NotAnIdentity::Uuid)?;
    let mut buffer = Uuid::encode_buffer();
    if uuid.is_nil() || uuid.hyphenated().encode_lower(&mut buffer) != text {
        return Err(NotAnIdentity::Uuid);
    }
    Ok(uuid)
}

impl fmt::Display for IdentityClass {
    /// Writes the last two segments of the URI: `CLASS/ID`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path_segment())?;
        f.write_str("/")?;
        match self {
            Self::Node(uuid) | Self::Controller(uuid) | Self::Signer(uuid) => fmt::Display::fmt(uuid, f),
            Self::Admin(name) | Self::Principal(name) => fmt::Display::fmt(name, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0190b6c8-4c1e-7d2a-9f00-0123456789ab";

    #[test]
    fn spiffe_id_round_trips_valid_text() {
        for text in [
            format!("spiffe://prod.example/node/{ID}"),
            format!("spiffe://f/controller/{ID}"),
            format!("spiffe://f_1-a/signer/{ID}"),
            "spiffe://prod/admin/Ada.L-1_x".to_owned(),
            "spiffe://prod/principal/Ada.L-1_x".to_owned(),
        ] {
            let id: SpiffeId = text.parse().expect("a good identity");
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn s11_spiffe_id_rejects_invalid_or_noncanonical_text() {
        use NotAnIdentity::{Class, Fleet, Form, Name, Uuid};
        for (text, error) in [
            (String::new(), Form),
            (format!("SPIFFE://f/node/{ID}"), Form),
            (format!("https://f/node/{ID}"), Form),
            (format!("spiffe://f/node/{ID}/"), Form),
            (format!("spiffe://f/x/node/{ID}"), Form),
            ("spiffe://f/node".to_owned(), Form),
            (format!("spiffe:///node/{ID}"), Fleet),
            (format!("spiffe://F/node/{ID}"), Fleet),
            (format!("spiffe://f:443/node/{ID}"), Fleet),
            (format!("spiffe://u@f/node/{ID}"), Fleet),
            (format!("spiffe://f%2e/node/{ID}"), Fleet),
            (format!("spiffe://{}/node/{ID}", "f".repeat(256)), Fleet),
            (format!("spiffe://f/Node/{ID}"), Class),
            (format!("spiffe://f//{ID}"), Class),
            (format!("spiffe://f/root/{ID}"), Class),
            (format!("spiffe://f/node/{}", ID.to_uppercase()), Uuid),
            (format!("spiffe://f/node/{}", ID.replace('-', "")), Uuid),
            (format!("spiffe://f/node/{{{ID}}}"), Uuid),
            (format!("spiffe://f/node/{ID}?x"), Uuid),
            (format!("spiffe://f/node/{ID}\0"), Uuid),
            ("spiffe://f/node/*".to_owned(), Uuid),
            ("spiffe://f/node/00000000-0000-0000-0000-000000000000".to_owned(), Uuid),
            ("spiffe://f/admin/".to_owned(), Name),
            ("spiffe://f/principal/..".to_owned(), Name),
            ("spiffe://f/principals/ada".to_owned(), Class),
            ("spiffe://f/admin/..".to_owned(), Name),
            ("spiffe://f/admin/a b".to_owned(), Name),
            // The first letter of this name is Cyrillic.
            ("spiffe://f/admin/аda".to_owned(), Name),
            (format!("spiffe://f/admin/{}", "a".repeat(65)), Name),
        ] {
            assert_eq!(text.parse::<SpiffeId>(), Err(error), "{text:?}");
        }
    }
}

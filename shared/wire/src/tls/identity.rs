//! The identities in certificates, `spiffe://<fleet>/<class>/<id>`, parsed strictly.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// Maximum length of a fleet's name, in bytes (SPIFFE's trust domain).
const MAX_FLEET_NAME_BYTES: usize = 255;
/// Maximum length of a principal's name, in bytes.
const MAX_PRINCIPAL_NAME_BYTES: usize = 64;

/// A fleet's name, as in every certificate: SPIFFE's trust domain, with lower case letters, digits, `.`, `-`, `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct FleetName(Arc<str>);

/// A principal's name: letters, digits, `.`, `-`, `_`, at most 64 bytes, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct PrincipalName(Arc<str>);

/// The class of the owner of a certificate (node, controller, …), with the owner's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IdentityClass {
    /// An agent, by the uuid of its node.
    Node(Uuid),
    /// A controller, as a server.
    Controller(Uuid),
    /// The first admin of a fleet, created by `init`. Versions without principals treat every such certificate as an
    /// admin's.
    Admin(PrincipalName),
    /// A person or program on the admin listener, with the rights of its principal. Versions without principals refuse
    /// it.
    Principal(PrincipalName),
    /// A controller's signing key for desired states.
    Signer(Uuid),
}

/// The parsed URI of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("spiffe://{fleet}/{class}")]
pub struct SpiffeId {
    /// The fleet's name, which is the trust domain of the URI.
    pub fleet: FleetName,
    /// The kind of party, with its id.
    pub class: IdentityClass,
}

/// The identity of a connection's peer, from its certificate alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The fleet that the certificate names.
    pub fleet: FleetName,
    /// The kind of party, with its id.
    pub class: IdentityClass,
    /// The certificate's serial number, as the bytes of its DER integer. A deny list contains these.
    pub serial: Box<[u8]>,
    /// SHA-256 of the public key (`SubjectPublicKeyInfo`, DER).
    pub spki_sha256: [u8; 32],
    /// The last second in which the certificate is valid, in seconds since 1970.
    pub not_after: u64,
    /// True if the certificate had expired at the handshake and was accepted for renewal (docs/trust.md, rule 5). A
    /// connection may outlive its certificate. To check a request, use [`Identity::is_expired_at`].
    pub is_expired: bool,
}

/// Why a text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnIdentity {
    /// It is not `spiffe://FLEET/CLASS/ID`. A query, fragment, port, user or further segment is not allowed.
    #[error("not of the form spiffe://FLEET/CLASS/ID")]
    Form,
    /// The trust domain has an invalid character or length.
    #[error("a fleet's name has 1 to 255 of a-z, 0-9, '.', '-', '_'")]
    Fleet,
    /// The class is not one of node, controller, admin, principal, signer.
    #[error("the class is not one of node, controller, admin, principal, signer")]
    Class,
    /// The id is not a uuid in its canonical spelling (lower case, hyphens), or it is the nil uuid.
    #[error("the id is not a uuid in lower case with hyphens")]
    Uuid,
    /// The principal's name has an invalid character or length.
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
    /// Returns the path segment of the class.
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
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_FLEET_NAME_BYTES || !text.bytes().all(allowed) {
            return Err(NotAnIdentity::Fleet);
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for PrincipalName {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_PRINCIPAL_NAME_BYTES || matches!(text, "." | "..") || !text.bytes().all(allowed) {
            return Err(NotAnIdentity::Name);
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for SpiffeId {
    type Err = NotAnIdentity;

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

/// Parses a uuid in its canonical spelling only (lower case, hyphens), so that two texts are never the same identity.
fn canonical_uuid(text: &str) -> Result<Uuid, NotAnIdentity> {
    let uuid = Uuid::try_parse(text).map_err(|_| NotAnIdentity::Uuid)?;
    let mut buffer = Uuid::encode_buffer();
    if uuid.is_nil() || uuid.hyphenated().encode_lower(&mut buffer) != text {
        return Err(NotAnIdentity::Uuid);
    }
    Ok(uuid)
}

impl fmt::Display for IdentityClass {
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
    fn s11_spiffe_id_rejects_noncanonical_text() {
        use NotAnIdentity::{Class, Fleet, Form, Name, Uuid};
        for (text, why) in [
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
            ("spiffe://f/admin/аda".to_owned(), Name),
            (format!("spiffe://f/admin/{}", "a".repeat(65)), Name),
        ] {
            assert_eq!(text.parse::<SpiffeId>(), Err(why), "{text:?}");
        }
    }
}

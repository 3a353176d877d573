//! The names that certificates carry, `spiffe://<fleet>/<class>/<id>`, read strictly.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// The longest fleet name, in bytes (SPIFFE's trust domain).
const MAX_FLEET: usize = 255;
/// The longest principal's name, in bytes.
const MAX_NAME: usize = 64;

/// A fleet's name, as it stands in every certificate: SPIFFE's trust domain, lower case letters, digits, `.`, `-`, `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct Fleet(Arc<str>);

/// A principal's name: letters, digits, `.`, `-`, `_`, at most 64 bytes, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct Name(Arc<str>);

/// What kind of party a certificate was issued to, with its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// An agent, by its node's uuid.
    Node(Uuid),
    /// A controller, as a server.
    Controller(Uuid),
    /// The first admin of a fleet, as `init` has always named it. Programs of before there were principals take every such certificate for an admin's.
    Admin(Name),
    /// A person or program on the admin listener, with the rights of its principal. Programs of before refuse it.
    Principal(Name),
    /// A controller's signing key for desired states.
    Signer(Uuid),
}

/// A certificate's URI, read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("spiffe://{fleet}/{class}")]
pub struct SpiffeId {
    /// The trust domain.
    pub fleet: Fleet,
    /// Who.
    pub class: Class,
}

/// Who is at the other end of a connection, from its certificate alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The fleet.
    pub fleet: Fleet,
    /// Who.
    pub class: Class,
    /// The certificate's serial number, as its DER integer's bytes. What a deny list names.
    pub serial: Box<[u8]>,
    /// SHA-256 of the public key (`SubjectPublicKeyInfo`, DER).
    pub spki_sha256: [u8; 32],
    /// The last second of validity, since 1970.
    pub not_after: u64,
    /// Whether it had expired when the handshake was made, and was admitted to renew (docs/trust.md, rule 5). A
    /// connection may outlive its certificate: for a request ask [`Identity::expired_at`].
    pub expired: bool,
}

/// A text that is none of our identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnIdentity {
    /// Not `spiffe://FLEET/CLASS/ID`, without query, fragment, port, user or further segments.
    #[error("not of the form spiffe://FLEET/CLASS/ID")]
    Form,
    /// The trust domain has characters or a length that it may not have.
    #[error("a fleet's name has 1 to 255 of a-z, 0-9, '.', '-', '_'")]
    Fleet,
    /// Not one of node, controller, admin, principal, signer.
    #[error("the class is none of node, controller, admin, principal, signer")]
    Class,
    /// Not a uuid in its one canonical spelling (lower case, hyphens), or the nil uuid.
    #[error("the id is no uuid in lower case with hyphens")]
    Uuid,
    /// A principal's name has characters or a length that it may not have.
    #[error("a principal's name has 1 to 64 of A-Z, a-z, 0-9, '.', '-', '_' and is not '.' or '..'")]
    Name,
}

impl Identity {
    /// Whether the certificate has expired at this time (seconds since 1970).
    pub fn expired_at(&self, unix_seconds: u64) -> bool {
        unix_seconds > self.not_after
    }

    /// The node's uuid, where it is a node's.
    pub fn node(&self) -> Option<Uuid> {
        match self.class {
            Class::Node(uuid) => Some(uuid),
            Class::Controller(_) | Class::Admin(_) | Class::Principal(_) | Class::Signer(_) => None,
        }
    }
}

impl Class {
    /// The path segment that stands for it.
    pub fn segment(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Controller(_) => "controller",
            Self::Admin(_) => "admin",
            Self::Principal(_) => "principal",
            Self::Signer(_) => "signer",
        }
    }

    /// The name of an operator; `None` where it is none.
    pub fn operator(&self) -> Option<&Name> {
        match self {
            Self::Admin(name) | Self::Principal(name) => Some(name),
            Self::Node(_) | Self::Controller(_) | Self::Signer(_) => None,
        }
    }
}

impl Fleet {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Fleet {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_FLEET || !text.bytes().all(allowed) {
            return Err(NotAnIdentity::Fleet);
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for Name {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > MAX_NAME || matches!(text, "." | "..") || !text.bytes().all(allowed) {
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
        let (Some(fleet), Some(class), Some(id), None) =
            (segments.next(), segments.next(), segments.next(), segments.next())
        else {
            return Err(NotAnIdentity::Form);
        };
        let fleet = fleet.parse()?;
        let class = match class {
            "node" => Class::Node(canonical_uuid(id)?),
            "controller" => Class::Controller(canonical_uuid(id)?),
            "signer" => Class::Signer(canonical_uuid(id)?),
            "admin" => Class::Admin(id.parse()?),
            "principal" => Class::Principal(id.parse()?),
            _ => return Err(NotAnIdentity::Class),
        };
        Ok(Self { fleet, class })
    }
}

/// A uuid in the one spelling that we write, so that two texts are never one identity.
fn canonical_uuid(text: &str) -> Result<Uuid, NotAnIdentity> {
    let uuid = Uuid::try_parse(text).map_err(|_| NotAnIdentity::Uuid)?;
    let mut buffer = Uuid::encode_buffer();
    if uuid.is_nil() || uuid.hyphenated().encode_lower(&mut buffer) != text {
        return Err(NotAnIdentity::Uuid);
    }
    Ok(uuid)
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.segment())?;
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
    fn a_good_identity_is_read_and_written_back() {
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
    fn s11_what_is_not_exactly_an_identity_is_refused() {
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

//! Why a certificate was refused: one name each, for the metric and the journal.

use std::sync::Arc;

use rustls::{CertificateError, OtherError};
use x509_parser::time::ASN1Time;

use super::NotAnIdentity;

/// Why a certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No path to an issuer that is trusted here, or a signature on the way does not hold.
    #[error("the certificate was not issued by an authority that is trusted here")]
    UnknownIssuer,
    /// Past its last day, and past the grace where there is one.
    #[error("the certificate expired on {}, and it is {}", date(*not_after), date(*now))]
    Expired {
        /// Its last second.
        not_after: u64,
        /// The time here.
        now: u64,
    },
    /// Before its first second.
    #[error("the certificate is not valid before {}, and it is {}", date(*not_before), date(*now))]
    NotYetValid {
        /// Its first second.
        not_before: u64,
        /// The time here.
        now: u64,
    },
    /// More certificates than leaf, issuer and root, or one larger than any of ours.
    #[error("the certificate chain is longer or larger than any of ours")]
    ChainTooLarge,
    /// A key that is not P-256 (in a signer's leaf: not Ed25519).
    #[error("the certificate's key is not of the kind that is taken here")]
    WrongKeyKind,
    /// A leaf that says that it may issue.
    #[error("the certificate is an authority's, not a party's")]
    IsAuthority,
    /// Not issued for this use (a client's used as a server's, or the reverse).
    #[error("the certificate was not issued for this use")]
    WrongUse,
    /// Not one URI, or further names where there may be none.
    #[error("the certificate must carry exactly one URI, and in a client's no other name")]
    WrongNames,
    /// The URI does not parse.
    #[error("the certificate's URI is no identity: {0}")]
    NotAnIdentity(NotAnIdentity),
    /// The URI names another fleet.
    #[error("the certificate is of another fleet")]
    OtherFleet,
    /// The URI names a class that has no business here.
    #[error("the certificate is of a class that is not taken here")]
    WrongClass,
    /// The server's certificate does not carry the name that was asked for.
    #[error("the certificate is not for the name that was asked for")]
    WrongName,
    /// The pinned root is not in the chain that the server sent.
    #[error("the fleet root that is pinned is not in the server's chain")]
    OtherRoot,
    /// No certificate, or one that is no DER.
    #[error("the certificate cannot be read")]
    BadEncoding,
}

impl Refusal {
    /// The stable reason, as in `rejected_total{reason}`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownIssuer => "tls_unknown_issuer",
            Self::Expired { .. } => "tls_expired",
            Self::NotYetValid { .. } => "tls_not_yet_valid",
            Self::ChainTooLarge => "tls_chain_too_large",
            Self::WrongKeyKind => "tls_odd_key",
            Self::IsAuthority => "tls_is_authority",
            Self::WrongUse => "tls_wrong_use",
            Self::WrongNames => "tls_odd_names",
            Self::NotAnIdentity(_) => "tls_not_an_identity",
            Self::OtherFleet => "tls_other_fleet",
            Self::WrongClass => "tls_wrong_class",
            Self::WrongName => "tls_wrong_name",
            Self::OtherRoot => "tls_other_root",
            Self::BadEncoding => "tls_bad_encoding",
        }
    }

    /// The refusal that a failed handshake carries, where a verifier of ours made it.
    pub fn of(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(source))) => source.downcast_ref(),
            _ => None,
        }
    }

    /// The same, from the I/O error that a TLS stream gives.
    pub fn of_io(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref().and_then(Self::of)
    }
}

/// A time in seconds since 1970 as people read it, in UTC.
fn date(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    date.map_or_else(|| seconds.to_string(), |date| date.to_string())
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

impl From<NotAnIdentity> for Refusal {
    fn from(why: NotAnIdentity) -> Self {
        Self::NotAnIdentity(why)
    }
}

impl From<webpki::Error> for Refusal {
    fn from(error: webpki::Error) -> Self {
        use webpki::Error as E;
        match error {
            E::CertExpired { time, not_after } => Self::Expired { not_after: not_after.as_secs(), now: time.as_secs() },
            E::CertNotValidYet { time, not_before } => {
                Self::NotYetValid { not_before: not_before.as_secs(), now: time.as_secs() }
            }
            E::CaUsedAsEndEntity => Self::IsAuthority,
            E::RequiredEkuNotFoundContext(_) | E::EmptyEkuExtension => Self::WrongUse,
            E::CertNotValidForName(_) => Self::WrongName,
            E::BadDer
            | E::BadDerTime
            | E::ExtensionValueInvalid
            | E::InvalidCertValidity
            | E::InvalidSerialNumber
            | E::MalformedExtensions
            | E::TrailingData(_)
            | E::UnsupportedCertVersion
            | E::UnsupportedCriticalExtension => Self::BadEncoding,
            E::MaximumPathBuildCallsExceeded
            | E::MaximumPathDepthExceeded
            | E::MaximumSignatureChecksExceeded
            | E::PathLenConstraintViolated => Self::ChainTooLarge,
            // The enum is open: whatever else it says, the path does not hold.
            _ => Self::UnknownIssuer,
        }
    }
}

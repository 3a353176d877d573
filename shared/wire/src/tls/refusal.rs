//! The reasons for which a certificate is refused. Each has a name for the metric and the journal.

use std::sync::Arc;

use rustls::{CertificateError, OtherError};
use x509_parser::time::ASN1Time;

use super::NotAnIdentity;

/// Why a certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no path to a trusted issuer, or a signature on the path is invalid.
    #[error("the certificate was not issued by an authority that is trusted here")]
    UnknownIssuer,
    /// The certificate expired, and the grace period, if any, is over.
    #[error("the certificate expired on {}, and it is {}", format_date(*not_after), format_date(*now))]
    Expired {
        /// The last second in which the certificate was valid, in seconds since 1970.
        not_after: u64,
        /// The current time.
        now: u64,
    },
    /// The certificate is not valid yet.
    #[error("the certificate is not valid before {}, and it is {}", format_date(*not_before), format_date(*now))]
    NotYetValid {
        /// The first second in which the certificate is valid, in seconds since 1970.
        not_before: u64,
        /// The current time.
        now: u64,
    },
    /// There are more certificates than leaf, issuer and root, or one is larger than the maximum.
    #[error("the certificate chain is too long or too large")]
    ChainTooLarge,
    /// The key is not P-256, or, in a signer's leaf, not Ed25519.
    #[error("the certificate's key is of a type that is not accepted here")]
    WrongKeyKind,
    /// The leaf claims to be an authority.
    #[error("the certificate is a CA certificate, which cannot identify a client, server or signer")]
    IsAuthority,
    /// The certificate was not issued for this use: a client's was used as a server's, or the reverse.
    #[error("the certificate was not issued for this use")]
    WrongUse,
    /// The certificate does not contain exactly one URI, or a client's contains other names.
    #[error("the certificate must contain exactly one URI, and a client's no other name")]
    WrongNames,
    /// The URI in the certificate is not an identity.
    #[error("the certificate's URI is not an identity: {0}")]
    NotAnIdentity(NotAnIdentity),
    /// The URI names another fleet.
    #[error("the certificate is of another fleet")]
    OtherFleet,
    /// The URI names a class that is not accepted here.
    #[error("the certificate is of a class that is not accepted here")]
    WrongClass,
    /// The server's certificate does not contain the name that was dialled.
    #[error("the certificate is not valid for the name that the client connected to")]
    WrongName,
    /// The pinned root is not in the chain that the server sent.
    #[error("the pinned fleet root is not in the server's chain")]
    OtherRoot,
    /// There is no certificate, or it is not valid DER.
    #[error("the certificate cannot be read")]
    BadEncoding,
}

impl Refusal {
    /// Returns the stable reason, as in `rejected_total{reason}`.
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

    /// Returns the refusal in the error of a failed handshake, if a verifier of this module caused the error.
    pub fn from_tls_error(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(source))) => source.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the refusal in the I/O error of a TLS stream, if a verifier of this module caused the error.
    pub fn from_io_error(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref().and_then(Self::from_tls_error)
    }
}

/// Formats a time in seconds since 1970 for people, in UTC.
fn format_date(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    date.map_or_else(|| seconds.to_string(), |date| date.to_string())
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

impl From<NotAnIdentity> for Refusal {
    fn from(error: NotAnIdentity) -> Self {
        Self::NotAnIdentity(error)
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
            // The enum is non-exhaustive. Every other error also means that there is no valid path.
            _ => Self::UnknownIssuer,
        }
    }
}

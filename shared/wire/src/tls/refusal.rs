//! The reasons for which a certificate is refused. Each has a name for the metric and the journal.

use std::sync::Arc;

use rustls::{CertificateError, OtherError};
use x509_parser::time::ASN1Time;

use super::NotAnIdentity;

/// The reason why a certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No valid path from the certificate to a trusted issuer, or an invalid signature on the path.
    #[error("the certificate was not issued by an authority that is trusted here")]
    UnknownIssuer,
    /// A certificate that has expired. If the listener has a grace period for renewals, it is over too.
    #[error("the certificate expired on {}, and it is {}", format_date(*not_after), format_date(*now))]
    Expired {
        /// The last second in which the certificate was valid, in seconds since 1970.
        not_after: u64,
        /// The time of the check, in seconds since 1970.
        now: u64,
    },
    /// A certificate that is not valid yet.
    #[error("the certificate is not valid before {}, and it is {}", format_date(*not_before), format_date(*now))]
    NotYetValid {
        /// The first second in which the certificate is valid, in seconds since 1970.
        not_before: u64,
        /// The time of the check, in seconds since 1970.
        now: u64,
    },
    /// A chain with too many or too large certificates, or a path that is too long for an issuer or too costly to
    /// check.
    #[error("the certificate chain is too long or too large")]
    ChainTooLarge,
    /// A key (not an issuer's) of another type than P-256, or, in a signer's certificate, than Ed25519.
    #[error("the certificate's key is of a type that is not accepted here")]
    WrongKeyKind,
    /// A certificate authority where a client, server or signer is expected.
    #[error("the certificate is a CA certificate, which cannot identify a client, server or signer")]
    IsAuthority,
    /// A certificate that was issued for another use, for example a client's certificate that a server presents.
    #[error("the certificate was not issued for this use")]
    WrongUse,
    /// A certificate without exactly one URI among its names, or a client's or signer's with another name as well.
    #[error("the certificate must contain exactly one URI, and a client's no other name")]
    WrongNames,
    /// A certificate whose URI is not an identity (`spiffe://FLEET/CLASS/ID`).
    #[error("the certificate's URI is not an identity: {0}")]
    NotAnIdentity(NotAnIdentity),
    /// A certificate whose URI names another fleet.
    #[error("the certificate is of another fleet")]
    OtherFleet,
    /// A certificate whose URI names a class (node, principal, …) that is not accepted here.
    #[error("the certificate is of a class that is not accepted here")]
    WrongClass,
    /// A server's certificate that does not contain the name or address to which the client connects.
    #[error("the certificate is not valid for the name that the client connected to")]
    WrongName,
    /// A server's chain without the root whose hash is pinned. For pinned certificates, see [`Refusal::UnknownIssuer`].
    #[error("the pinned fleet root is not in the server's chain")]
    OtherRoot,
    /// A certificate that is missing, is not valid DER, or has a version or a critical extension that is not supported.
    #[error("the certificate cannot be read")]
    BadEncoding,
}

impl Refusal {
    /// Returns the stable name of the reason, such as `tls_expired`, as in the metric `stemma_rejected_total{reason}`.
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

    /// Returns the refusal that the error of a failed handshake contains, or `None` if the error has another cause.
    pub fn from_tls_error(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(source))) => source.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the refusal that the I/O error of a TLS stream contains, or `None` if the error has another cause.
    pub fn from_io_error(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref().and_then(Self::from_tls_error)
    }
}

/// Formats a time (seconds since 1970) as date and time in UTC, or as the number if it is outside the range of dates.
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
    /// Returns the refusal for an error of the library that validates the path of a certificate.
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

//! Certificate requests (PKCS#10). A certificate only uses the public key of its request (docs/trust.md, rule 5).
//!
//! A request with any other field, such as a name, is refused. If the other fields were ignored, an agent would believe
//! that its certificate has them. The error lists all these fields, so that the author of the request can remove them
//! at once.

use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS9_CHALLENGE_PASSWORD, OID_PKCS9_EXTENSION_REQUEST,
};
use x509_parser::prelude::{FromDer, ParsedCriAttribute};

/// Maximum size of a request, in bytes of DER.
pub const MAX_BYTES: usize = 4096;

/// The public key of a certificate request that passed all checks.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// The public key, for which a certificate can be issued.
    pub public_key: SubjectPublicKeyInfo,
    /// SHA-256 of the key (`SubjectPublicKeyInfo` in DER). Two requests with equal values have the same key.
    pub spki_sha256: [u8; 32],
}

/// The reason why a certificate request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrRefused {
    /// The bytes are not exactly one PKCS#10 request in DER, or are more than [`MAX_BYTES`].
    #[error("it is not a PKCS#10 request in DER of at most 4096 bytes")]
    Unreadable,
    /// The public key is not an ECDSA key on the curve P-256.
    #[error("its key is not ECDSA on P-256")]
    WeakKey,
    /// The request's signature does not match the public key in the request, so the sender may not have the private
    /// key.
    #[error("its signature was not made with its own key")]
    BadSignature,
    /// The request has fields other than its public key. The list contains their names.
    #[error("only its public key is used, but it also requests: {}; remove these fields", .0.join(", "))]
    ExtraFields(Vec<String>),
}

/// Parses a certificate request in DER, and checks its key, its signature and its fields.
///
/// # Errors
/// Fails with the reason of the refusal ([`CsrRefused`]).
pub fn check(der: &[u8]) -> Result<CertificateRequest, CsrRefused> {
    use sha2::Digest as _;
    if der.len() > MAX_BYTES {
        return Err(CsrRefused::Unreadable);
    }
    let (trailing_bytes, request) = X509CertificationRequest::from_der(der).map_err(|_| CsrRefused::Unreadable)?;
    if !trailing_bytes.is_empty() {
        return Err(CsrRefused::Unreadable);
    }
    let spki = &request.certification_request_info.subject_pki;
    let curve = spki.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if spki.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve.is_none_or(|curve| curve != OID_EC_P256) {
        return Err(CsrRefused::WeakKey);
    }
    request.verify_signature().map_err(|_| CsrRefused::BadSignature)?;
    let extra_fields = extra_fields(&request);
    if !extra_fields.is_empty() {
        return Err(CsrRefused::ExtraFields(extra_fields));
    }
    let public_key = SubjectPublicKeyInfo::from_der(spki.raw).map_err(|_| CsrRefused::WeakKey)?;
    Ok(CertificateRequest { public_key, spki_sha256: sha2::Sha256::digest(spki.raw).into() })
}

/// Returns the names of all fields of a request except its public key, sorted and each once. A field without a known
/// name is listed by its object identifier.
fn extra_fields(request: &X509CertificationRequest<'_>) -> Vec<String> {
    let info = &request.certification_request_info;
    let mut names = Vec::new();
    if info.subject.iter_attributes().next().is_some() {
        names.push("subject".to_owned());
    }
    for attribute in info.iter_attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(requested) if attribute.oid == OID_PKCS9_EXTENSION_REQUEST => {
                names.extend(requested.extensions.iter().map(|extension| {
                    extension_name(extension.parsed_extension()).unwrap_or_else(|| extension.oid.to_id_string())
                }));
            }
            _ if attribute.oid == OID_PKCS9_CHALLENGE_PASSWORD => names.push("challengePassword".to_owned()),
            _ => names.push(attribute.oid.to_id_string()),
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Returns the name of an extension in RFC 5280, or `None` for an extension that is not in the list below.
fn extension_name(extension: &ParsedExtension<'_>) -> Option<String> {
    let name = match extension {
        ParsedExtension::SubjectAlternativeName(_) => "subjectAltName",
        ParsedExtension::BasicConstraints(_) => "basicConstraints",
        ParsedExtension::KeyUsage(_) => "keyUsage",
        ParsedExtension::ExtendedKeyUsage(_) => "extKeyUsage",
        ParsedExtension::NameConstraints(_) => "nameConstraints",
        ParsedExtension::SubjectKeyIdentifier(_) => "subjectKeyIdentifier",
        ParsedExtension::AuthorityKeyIdentifier(_) => "authorityKeyIdentifier",
        ParsedExtension::CertificatePolicies(_) => "certificatePolicies",
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
        PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
    };

    use super::*;

    fn empty_params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
    }

    fn request(params: &CertificateParams, key: &KeyPair) -> Vec<u8> {
        params.serialize_request(key).unwrap().der().to_vec()
    }

    #[test]
    fn check_accepts_request_for_key_alone() {
        let key = KeyPair::generate().unwrap();
        let accepted = check(&request(&empty_params(), &key)).unwrap();
        assert_eq!(rcgen::PublicKeyData::der_bytes(&accepted.public_key), key.public_key_raw());
    }

    #[test]
    fn s24_check_lists_each_field_when_request_has_more() {
        let key = KeyPair::generate().unwrap();
        let mut params = empty_params();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.subject_alt_names = vec![SanType::DnsName("evil.example".try_into().unwrap())];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // PKCS#10 has no field for a validity period, so ten years can be requested only with an unknown attribute.
        params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0])];
        let error = check(&request(&params, &key)).unwrap_err();
        assert_eq!(
            error,
            CsrRefused::ExtraFields(
                ["1.3.6.1.4.1.99999.1", "basicConstraints", "extKeyUsage", "keyUsage", "subject", "subjectAltName"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        assert_eq!(
            error.to_string(),
            "only its public key is used, but it also requests: 1.3.6.1.4.1.99999.1, basicConstraints, extKeyUsage, \
             keyUsage, subject, subjectAltName; remove these fields"
        );
    }

    #[test]
    fn s25_check_rejects_bad_signature_other_key_and_invalid_der() {
        let key = KeyPair::generate().unwrap();
        let mut damaged = request(&empty_params(), &key);
        let last_index = damaged.len() - 1;
        damaged[last_index] ^= 1;
        assert_eq!(check(&damaged).unwrap_err(), CsrRefused::BadSignature);
        for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            assert_eq!(check(&request(&empty_params(), &key)).unwrap_err(), CsrRefused::WeakKey);
        }
        let mut trailing = request(&empty_params(), &key);
        trailing.push(0);
        for der in [&[][..], &[0x30, 0x80], &trailing, &vec![0x30; MAX_BYTES + 1]] {
            assert_eq!(check(der).unwrap_err(), CsrRefused::Unreadable);
        }
    }
}

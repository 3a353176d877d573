//! Certificate requests. Only the public key is used (docs/trust.md, rule 5).
//!
//! A request that asks for anything else, such as a name, is refused. If the other fields were ignored, an agent would
//! believe that its certificate has them. The refusal lists every such field, so that the author of the request can
//! remove all of them at once.

use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS9_CHALLENGE_PASSWORD, OID_PKCS9_EXTENSION_REQUEST,
};
use x509_parser::prelude::{FromDer, ParsedCriAttribute};

/// Maximum size of a request, in bytes of DER.
pub const MAX_BYTES: usize = 4096;

/// A certificate request that passed all checks, reduced to its key.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// The key that the certificate will be for.
    pub public_key: SubjectPublicKeyInfo,
    /// SHA-256 of the key (`SubjectPublicKeyInfo`, DER), by which the keys of two requests are compared.
    pub spki_sha256: [u8; 32],
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrRefused {
    /// The bytes are not one PKCS#10 request in DER of at most [`MAX_BYTES`].
    #[error("it is not a PKCS#10 request in DER of at most 4096 bytes")]
    Unreadable,
    /// The key is not P-256.
    #[error("its key is not ECDSA on P-256")]
    WeakKey,
    /// The request is not signed with the key that it contains.
    #[error("its signature was not made with its own key")]
    BadSignature,
    /// The request asks for more than a certificate for its key. Lists the fields.
    #[error("only its public key is used, but it also requests: {}; remove these fields", .0.join(", "))]
    ExtraFields(Vec<String>),
}

/// Parses and checks a request.
///
/// # Errors
/// [`CsrRefused`] with the reason of the refusal.
pub fn check(der: &[u8]) -> Result<CertificateRequest, CsrRefused> {
    use sha2::Digest as _;
    if der.len() > MAX_BYTES {
        return Err(CsrRefused::Unreadable);
    }
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| CsrRefused::Unreadable)?;
    if !rest.is_empty() {
        return Err(CsrRefused::Unreadable);
    }
    let spki = &request.certification_request_info.subject_pki;
    let curve = spki.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if spki.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve.is_none_or(|curve| curve != OID_EC_P256) {
        return Err(CsrRefused::WeakKey);
    }
    request.verify_signature().map_err(|_| CsrRefused::BadSignature)?;
    let extra = extra_fields(&request);
    if !extra.is_empty() {
        return Err(CsrRefused::ExtraFields(extra));
    }
    let public_key = SubjectPublicKeyInfo::from_der(spki.raw).map_err(|_| CsrRefused::WeakKey)?;
    Ok(CertificateRequest { public_key, spki_sha256: sha2::Sha256::digest(spki.raw).into() })
}

/// Returns the names of all fields of a request other than its public key.
fn extra_fields(request: &X509CertificationRequest<'_>) -> Vec<String> {
    let info = &request.certification_request_info;
    let mut extra = Vec::new();
    if info.subject.iter_attributes().next().is_some() {
        extra.push("subject".to_owned());
    }
    for attribute in info.iter_attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(requested) if attribute.oid == OID_PKCS9_EXTENSION_REQUEST => {
                extra.extend(requested.extensions.iter().map(|extension| {
                    extension_name(extension.parsed_extension()).unwrap_or_else(|| extension.oid.to_id_string())
                }));
            }
            _ if attribute.oid == OID_PKCS9_CHALLENGE_PASSWORD => extra.push("challengePassword".to_owned()),
            _ => extra.push(attribute.oid.to_id_string()),
        }
    }
    extra.sort();
    extra.dedup();
    extra
}

/// Returns the RFC 5280 name of an extension.
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

    fn plain() -> CertificateParams {
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
        let got = check(&request(&plain(), &key)).unwrap();
        assert_eq!(rcgen::PublicKeyData::der_bytes(&got.public_key), key.public_key_raw());
    }

    #[test]
    fn s24_check_lists_each_field_when_request_has_more() {
        let key = KeyPair::generate().unwrap();
        let mut all = plain();
        all.distinguished_name.push(DnType::CommonName, "root");
        all.subject_alt_names = vec![SanType::DnsName("evil.example".try_into().unwrap())];
        all.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        all.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        all.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // PKCS#10 has no field for a validity period, so ten years can be requested only with an unknown attribute.
        all.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0])];
        let refused = check(&request(&all, &key)).unwrap_err();
        assert_eq!(
            refused,
            CsrRefused::ExtraFields(
                ["1.3.6.1.4.1.99999.1", "basicConstraints", "extKeyUsage", "keyUsage", "subject", "subjectAltName"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        assert_eq!(
            refused.to_string(),
            "only its public key is used, but it also requests: 1.3.6.1.4.1.99999.1, basicConstraints, extKeyUsage, \
             keyUsage, subject, subjectAltName; remove these fields"
        );
    }

    #[test]
    fn s25_check_rejects_bad_signature_and_other_key_type() {
        let key = KeyPair::generate().unwrap();
        let mut torn = request(&plain(), &key);
        let last = torn.len() - 1;
        torn[last] ^= 1;
        assert_eq!(check(&torn).unwrap_err(), CsrRefused::BadSignature);
        for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            assert_eq!(check(&request(&plain(), &key)).unwrap_err(), CsrRefused::WeakKey);
        }
        let mut trailing = request(&plain(), &key);
        trailing.push(0);
        for der in [&[][..], &[0x30, 0x80], &trailing, &vec![0x30; MAX_BYTES + 1]] {
            assert_eq!(check(der).unwrap_err(), CsrRefused::Unreadable);
        }
    }
}

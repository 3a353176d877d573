//! A certificate request, of which only the public key is taken (docs/trust.md, rule 5).
//!
//! One that asks for more is refused, not trimmed: an agent that believes it has what it asked for is worse than one that
//! is told why not. Every refused field is listed, so that whoever wrote the request mends it in one go.

use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS9_CHALLENGE_PASSWORD, OID_PKCS9_EXTENSION_REQUEST,
};
use x509_parser::prelude::{FromDer, ParsedCriAttribute};

/// The largest request taken, in bytes of DER.
pub const MAX_BYTES: usize = 4096;

/// A request that was found good: its key, and nothing else of it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The key that the certificate will be for.
    pub public_key: SubjectPublicKeyInfo,
    /// SHA-256 of the same (`SubjectPublicKeyInfo`, DER): what says whether two requests are for one key.
    pub spki_sha256: [u8; 32],
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrRefused {
    /// Not one PKCS#10 request in DER of at most [`MAX_BYTES`].
    #[error("it is no PKCS#10 request in DER of at most 4096 bytes")]
    Unreadable,
    /// The key is not P-256.
    #[error("its key is not ECDSA on P-256")]
    WeakKey,
    /// It is not signed with the key that it names.
    #[error("its signature was not made with its own key")]
    BadSignature,
    /// It asks for more than a certificate for its key.
    #[error("only its public key is taken, and it also asks for: {}; leave them out", .0.join(", "))]
    AsksForMore(Vec<String>),
}

/// Reads a request and judges all of it.
///
/// # Errors
/// [`CsrRefused`].
pub fn check(der: &[u8]) -> Result<Request, CsrRefused> {
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
    let more = asked_for_beside_the_key(&request);
    if !more.is_empty() {
        return Err(CsrRefused::AsksForMore(more));
    }
    let public_key = SubjectPublicKeyInfo::from_der(spki.raw).map_err(|_| CsrRefused::WeakKey)?;
    Ok(Request { public_key, spki_sha256: sha2::Sha256::digest(spki.raw).into() })
}

fn asked_for_beside_the_key(request: &X509CertificationRequest<'_>) -> Vec<String> {
    let info = &request.certification_request_info;
    let mut more = Vec::new();
    if info.subject.iter_attributes().next().is_some() {
        more.push("subject".to_owned());
    }
    for attribute in info.iter_attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(wanted) if attribute.oid == OID_PKCS9_EXTENSION_REQUEST => {
                more.extend(wanted.extensions.iter().map(|extension| {
                    extension_name(extension.parsed_extension()).unwrap_or_else(|| extension.oid.to_id_string())
                }));
            }
            _ if attribute.oid == OID_PKCS9_CHALLENGE_PASSWORD => more.push("challengePassword".to_owned()),
            _ => more.push(attribute.oid.to_id_string()),
        }
    }
    more.sort();
    more.dedup();
    more
}

/// The name that RFC 5280 gives to what is asked for.
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
        BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
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
    fn a_request_for_a_key_alone_is_taken() {
        let key = KeyPair::generate().unwrap();
        let got = check(&request(&plain(), &key)).unwrap();
        assert_eq!(rcgen::PublicKeyData::der_bytes(&got.public_key), key.public_key_raw());
    }

    #[test]
    fn s24_a_request_for_more_is_refused_and_each_field_listed() {
        let key = KeyPair::generate().unwrap();
        let mut all = plain();
        all.distinguished_name.push(DnType::CommonName, "root");
        all.subject_alt_names = vec![SanType::DnsName("evil.example".try_into().unwrap())];
        all.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        all.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        all.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // PKCS#10 has no field for a validity, so ten years cannot be asked for but by an unknown attribute.
        all.custom_extensions =
            vec![rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0])];
        let refused = check(&request(&all, &key)).unwrap_err();
        assert_eq!(
            refused,
            CsrRefused::AsksForMore(
                ["1.3.6.1.4.1.99999.1", "basicConstraints", "extKeyUsage", "keyUsage", "subject", "subjectAltName"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        assert_eq!(
            refused.to_string(),
            "only its public key is taken, and it also asks for: 1.3.6.1.4.1.99999.1, basicConstraints, extKeyUsage, \
             keyUsage, subject, subjectAltName; leave them out"
        );
    }

    #[test]
    fn s25_a_bad_signature_and_another_kind_of_key_are_refused() {
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

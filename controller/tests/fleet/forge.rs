//! Forged certificates, signed with the issuer keys of a fleet. A thief of such a key, or an issuer with a bug, could
//! create them.

use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
    SerialNumber, date_time_ymd,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use stemma_wire::client::Client;
use stemma_wire::clock::{Clock, SystemClock};

use super::{Fleet, private_key};

/// A leaf certificate like an agent's, but with a fixed serial number, no key usage and no authority key identifier.
pub(crate) struct ForgedCertificate {
    pub(crate) params: CertificateParams,
}

impl ForgedCertificate {
    /// Creates a leaf for this URI, valid from five minutes ago until a day from now.
    pub(crate) fn for_uri(uri: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.serial_number = Some(SerialNumber::from_slice(&[0x41; 16]));
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let forged = Self { params };
        forged.with_validity(-300, 86_400)
    }

    /// Sets the start and the end of the validity, in seconds from now.
    pub(crate) fn with_validity(mut self, from: i64, to: i64) -> Self {
        let date_after = |seconds: i64| {
            let now = i64::try_from(SystemClock.unix_seconds()).unwrap();
            date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(now + seconds).unwrap())
        };
        self.params.not_before = date_after(from);
        self.params.not_after = date_after(to);
        self
    }

    /// Signs the leaf with an issuer of a fleet: `agents`, `admin` or `signers`. Returns the chain of leaf and issuer,
    /// and the private key of the leaf.
    pub(crate) fn sign(&self, fleet: &Fleet, issuer: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let trust = fleet.directory.path().join("data/trust");
        let key = std::fs::read_to_string(trust.join(format!("{issuer}.key"))).unwrap();
        let certificate = CertificateDer::from_pem_file(trust.join(format!("{issuer}.pem"))).unwrap();
        let issuer = Issuer::from_ca_cert_der(&certificate, KeyPair::from_pem(&key).unwrap()).unwrap();
        let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let leaf = self.params.signed_by(&leaf_key, &issuer).unwrap().der().clone();
        (vec![leaf, certificate], private_key(&leaf_key))
    }

    /// Returns a client of a fleet's agent listener. The fleet's issuer of agent certificates signs the client's leaf.
    pub(crate) fn client(&self, fleet: &Fleet) -> Client {
        let (chain, key) = self.sign(fleet, "agents");
        fleet.client(chain, key)
    }
}

//! The content and lifetime of each kind of certificate. Each kind has its own function, so that a certificate cannot
//! get the key usages of another kind by mistake.

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose as Extended, IsCa, Issuer, KeyPair,
    KeyUsagePurpose as Usage, PKCS_ED25519, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use stemma_wire::tls::{FleetName, IdentityClass, PrincipalName, SpiffeId};
use uuid::Uuid;

use super::csr::CertificateRequest;
use super::{Authority, IssuerKey, ServerName, new_key, random_bytes};

const DAY_S: u64 = 24 * 3600;

/// The number of seconds by which `notBefore` precedes the time of issue, because the clock of a host may be behind
/// (docs/trust.md, rule 5).
pub const BACKDATE_S: u64 = 300;
/// Lifetime of a node's certificate, in seconds: 24 hours, so that a stolen certificate soon becomes useless.
pub const NODE_VALIDITY_S: u64 = DAY_S;
/// Lifetime of a certificate that signs desired states, in seconds: 30 days (docs/trust.md, rule 6).
pub const SIGNER_VALIDITY_S: u64 = 30 * DAY_S;
/// Lifetime of the controller's server certificate, in seconds. The certificate is issued at every start and renewed
/// while the controller runs.
pub const SERVER_VALIDITY_S: u64 = 90 * DAY_S;
/// Lifetime of the admin's certificate that `init` writes, in seconds.
pub const ADMIN_VALIDITY_S: u64 = 365 * DAY_S;
/// Lifetime of the certificates of the three certificate authorities below the root, in seconds.
const ISSUER_VALIDITY_S: u64 = 5 * 365 * DAY_S;
/// Lifetime of the root certificate of the fleet, in seconds.
const ROOT_VALIDITY_S: u64 = 10 * 365 * DAY_S;

/// The error for a certificate that could not be issued: the system returned no random bytes, a key could not be
/// created, a name cannot be encoded, or signing failed.
#[derive(Debug, thiserror::Error)]
#[error("a certificate could not be issued")]
pub struct IssueError(#[source] pub(crate) rcgen::Error);

/// An issued certificate.
#[derive(Debug)]
pub struct IssuedCertificate {
    /// The certificate chain: the issued certificate first, then the certificate of its authority. The chain of a
    /// server certificate also has the root.
    pub chain: Vec<CertificateDer<'static>>,
    /// The serial number, as the 16 bytes of its encoding in DER.
    pub serial: [u8; 16],
    /// The last second in which the certificate is valid, in seconds since 1970.
    pub not_after_s: u64,
    /// The private key (PKCS#8), or `None` if the key is not known here, because the certificate is for the key of a
    /// request.
    pub key: Option<PrivateKeyDer<'static>>,
}

impl Authority {
    /// Issues the client certificate of a node, for the key in the node's request.
    ///
    /// # Errors
    /// Fails with [`IssueError`].
    pub fn issue_node(&self, node: Uuid, request: &CertificateRequest, now_s: u64) -> Result<IssuedCertificate, IssueError> {
        let mut draft = self.new_draft(IdentityClass::Node(node), now_s, NODE_VALIDITY_S)?;
        draft.params.extended_key_usages = vec![Extended::ClientAuth];
        draft.sign(&request.public_key, &self.agents)
    }

    /// Issues the controller's server certificate, for a new key. It contains all names and addresses at which clients
    /// reach the controller.
    ///
    /// # Errors
    /// Fails with [`IssueError`].
    pub fn issue_server(&self, controller: Uuid, names: &[ServerName], now_s: u64) -> Result<IssuedCertificate, IssueError> {
        let mut draft = self.new_draft(IdentityClass::Controller(controller), now_s, SERVER_VALIDITY_S)?;
        draft.params.extended_key_usages = vec![Extended::ServerAuth];
        for name in names {
            draft.params.subject_alt_names.push(match name {
                ServerName::Dns(name) => SanType::DnsName(Ia5String::try_from(name.as_str()).map_err(IssueError)?),
                ServerName::Ip(address) => SanType::IpAddress(*address),
            });
        }
        let mut certificate = draft.sign_with_key(&new_key()?, &self.admin)?;
        // The server sends the root too. A new agent knows only the hash of the root's public key.
        certificate.chain.push(self.root.clone());
        Ok(certificate)
    }

    /// Issues the client certificate of an admin, for a new key.
    ///
    /// # Errors
    /// Fails with [`IssueError`].
    pub fn issue_admin(&self, name: PrincipalName, now_s: u64) -> Result<IssuedCertificate, IssueError> {
        let mut draft = self.new_draft(IdentityClass::Admin(name), now_s, ADMIN_VALIDITY_S)?;
        draft.params.extended_key_usages = vec![Extended::ClientAuth];
        draft.sign_with_key(&new_key()?, &self.admin)
    }

    /// Issues the client certificate of a principal, for the key in the principal's request. It is valid for `seconds`.
    ///
    /// # Errors
    /// Fails with [`IssueError`].
    pub fn issue_principal(
        &self,
        name: PrincipalName,
        request: &CertificateRequest,
        now_s: u64,
        seconds: u64,
    ) -> Result<IssuedCertificate, IssueError> {
        let mut draft = self.new_draft(IdentityClass::Principal(name), now_s, seconds)?;
        draft.params.extended_key_usages = vec![Extended::ClientAuth];
        draft.sign(&request.public_key, &self.admin)
    }

    /// Issues the certificate with which a controller signs desired states, for a new Ed25519 key.
    ///
    /// # Errors
    /// Fails with [`IssueError`].
    pub fn issue_signer(&self, controller: Uuid, now_s: u64) -> Result<IssuedCertificate, IssueError> {
        let mut draft = self.new_draft(IdentityClass::Signer(controller), now_s, SIGNER_VALIDITY_S)?;
        draft.params.extended_key_usages = vec![Extended::CodeSigning];
        draft.sign_with_key(&KeyPair::generate_for(&PKCS_ED25519).map_err(IssueError)?, &self.signers)
    }

    /// Returns a draft with the content that all certificates of hosts, people and controllers have: the identity as a
    /// SPIFFE URI, a serial number, and the validity from [`BACKDATE_S`] before `now_s` until `seconds` after `now_s`.
    fn new_draft(&self, class: IdentityClass, now_s: u64, seconds: u64) -> Result<CertificateDraft, IssueError> {
        let serial = new_serial()?;
        let uri = SpiffeId { fleet: self.fleet.clone(), class }.to_string();
        let mut certificate_params = params(DistinguishedName::new(), serial, now_s, seconds);
        certificate_params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri).map_err(IssueError)?)];
        certificate_params.key_usages = vec![Usage::DigitalSignature];
        certificate_params.use_authority_key_identifier_extension = true;
        Ok(CertificateDraft { params: certificate_params, serial, not_after_s: now_s.saturating_add(seconds) })
    }
}

/// The content of a certificate that is not signed yet.
struct CertificateDraft {
    params: CertificateParams,
    serial: [u8; 16],
    not_after_s: u64,
}

impl CertificateDraft {
    /// Signs the certificate for this public key with the key of an authority. The result contains no private key.
    fn sign(self, key: &impl PublicKeyData, authority: &IssuerKey) -> Result<IssuedCertificate, IssueError> {
        let certificate = self.params.signed_by(key, &authority.issuer).map_err(IssueError)?;
        let chain = vec![certificate.der().clone(), authority.certificate.clone()];
        Ok(IssuedCertificate { chain, serial: self.serial, not_after_s: self.not_after_s, key: None })
    }

    /// Signs the certificate for this key pair. The result contains the private key.
    fn sign_with_key(self, key: &KeyPair, authority: &IssuerKey) -> Result<IssuedCertificate, IssueError> {
        let mut certificate = self.sign(key, authority)?;
        certificate.key = Some(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())));
        Ok(certificate)
    }
}

/// Creates the key and the self-signed certificate of the fleet's root. The root has no extended key usages, so it can
/// issue authorities for all of them. Its chains have at most one authority below it.
pub(super) fn create_root(fleet: &FleetName, now_s: u64) -> Result<IssuerKey, IssueError> {
    let params = authority_params(fleet, "root", 1, Vec::new(), now_s, ROOT_VALIDITY_S)?;
    let key = new_key()?;
    let certificate = params.self_signed(&key).map_err(IssueError)?.der().clone();
    Ok(IssuerKey { issuer: Issuer::new(params, key), certificate })
}

/// Creates the key and the certificate of one of the three authorities below the root: `agents`, `admin` or `signers`.
pub(super) fn create_issuer(fleet: &FleetName, name: &str, root: &IssuerKey, now_s: u64) -> Result<IssuerKey, IssueError> {
    // A certificate is only valid for a usage that the certificate of its authority has too. So only `admin` can issue
    // certificates of servers, and only `signers` those of signers. Client certificates of `agents` and `admin` differ
    // in the listener that trusts them.
    let usages = match name {
        "agents" => vec![Extended::ClientAuth],
        "admin" => vec![Extended::ClientAuth, Extended::ServerAuth],
        _ => vec![Extended::CodeSigning],
    };
    let params = authority_params(fleet, name, 0, usages, now_s, ISSUER_VALIDITY_S)?;
    let key = new_key()?;
    let certificate = params.signed_by(&key, &root.issuer).map_err(IssueError)?.der().clone();
    Ok(IssuerKey { issuer: Issuer::new(params, key), certificate })
}

/// Returns the parameters of the certificate of an authority (the root, or an authority below it). `max_path_len` is
/// the maximum number of authorities below it in a chain.
fn authority_params(
    fleet: &FleetName,
    name: &str,
    max_path_len: u8,
    usages: Vec<Extended>,
    now_s: u64,
    seconds: u64,
) -> Result<CertificateParams, IssueError> {
    // The subject is only for human readers and for the search of a chain. An identity is never derived from it.
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, fleet.as_str());
    subject.push(DnType::CommonName, format!("stemma {name}"));
    let mut params = params(subject, new_serial()?, now_s, seconds);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(max_path_len));
    params.key_usages = vec![Usage::KeyCertSign];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Returns the parameters that every certificate has: subject, serial number and validity.
fn params(subject: DistinguishedName, serial: [u8; 16], now_s: u64, seconds: u64) -> CertificateParams {
    let epoch = date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = epoch + Duration::from_secs(now_s.saturating_sub(BACKDATE_S));
    params.not_after = epoch + Duration::from_secs(now_s.saturating_add(seconds));
    params
}

/// Returns a random serial number: 126 random bits in 16 bytes. The first byte is never negative and never zero, so DER
/// encodes the bytes unchanged.
fn new_serial() -> Result<[u8; 16], IssueError> {
    let mut serial: [u8; 16] = random_bytes().map_err(|_| IssueError(rcgen::Error::RingUnspecified))?;
    // The two highest bits become 01, which excludes a negative number and a leading zero byte.
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(serial)
}

//! What each kind of certificate says, and for how long. One function a kind, so that none can take on another's usages.

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose as Extended, IsCa, Issuer,
    KeyPair, KeyUsagePurpose as Usage, PKCS_ED25519, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use stemma_wire::tls::{Class, Fleet, Name, SpiffeId};
use uuid::Uuid;

use super::csr::Request;
use super::{Authority, ServerName, Signing, new_key, random};

const DAY_S: u64 = 24 * 3600;

/// How far `notBefore` lies in the past: clocks differ (docs/trust.md, rule 5).
pub const BACKDATED_SECONDS: u64 = 300;
/// A node's certificate: 24 hours, so that one that is stolen is soon worth nothing.
pub const NODE_SECONDS: u64 = DAY_S;
/// A signer's: 30 days (docs/trust.md, rule 6).
pub const SIGNER_SECONDS: u64 = 30 * DAY_S;
/// The controller's own as a server: made at every start, and renewed while it runs.
pub const SERVER_SECONDS: u64 = 90 * DAY_S;
/// The admin's that `init` writes.
pub const ADMIN_SECONDS: u64 = 365 * DAY_S;
/// The three issuers.
const ISSUER_SECONDS: u64 = 5 * 365 * DAY_S;
/// The fleet root.
const ROOT_SECONDS: u64 = 10 * 365 * DAY_S;

/// A certificate could not be made: the system gave no randomness, or the key does not sign.
#[derive(Debug, thiserror::Error)]
#[error("a certificate could not be made")]
pub struct IssueError(#[source] pub(crate) rcgen::Error);

/// A certificate that was made for someone.
#[derive(Debug)]
pub struct Issued {
    /// Leaf first, then its issuer; for a server the root as well.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its serial number, 16 bytes, as its DER integer's bytes.
    pub serial: [u8; 16],
    /// Its last second, since 1970.
    pub not_after_s: u64,
    /// Its private key, PKCS#8, where it was made here.
    pub key: Option<PrivateKeyDer<'static>>,
}

impl Authority {
    /// A node's certificate for the key that it asked with.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_node(&self, node: Uuid, request: &Request, now_s: u64) -> Result<Issued, IssueError> {
        let mut leaf = self.leaf(Class::Node(node), now_s, NODE_SECONDS)?;
        leaf.params.extended_key_usages = vec![Extended::ClientAuth];
        leaf.signed_by(&request.public_key, &self.agents)
    }

    /// The controller's certificate as a server, under all the names that it is reached by, with a key of its own.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_server(&self, controller: Uuid, names: &[ServerName], now_s: u64) -> Result<Issued, IssueError> {
        let mut leaf = self.leaf(Class::Controller(controller), now_s, SERVER_SECONDS)?;
        leaf.params.extended_key_usages = vec![Extended::ServerAuth];
        for name in names {
            leaf.params.subject_alt_names.push(match name {
                ServerName::Dns(name) => SanType::DnsName(Ia5String::try_from(name.as_str()).map_err(IssueError)?),
                ServerName::Ip(address) => SanType::IpAddress(*address),
            });
        }
        let mut issued = leaf.with_key(&new_key()?, &self.admin)?;
        issued.chain.push(self.root.clone());
        Ok(issued)
    }

    /// A certificate for an admin, with a key of its own.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_admin(&self, name: Name, now_s: u64) -> Result<Issued, IssueError> {
        let mut leaf = self.leaf(Class::Admin(name), now_s, ADMIN_SECONDS)?;
        leaf.params.extended_key_usages = vec![Extended::ClientAuth];
        leaf.with_key(&new_key()?, &self.admin)
    }

    /// A principal's certificate for the key that it asked with.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_principal(
        &self,
        name: Name,
        request: &Request,
        now_s: u64,
        seconds: u64,
    ) -> Result<Issued, IssueError> {
        let mut leaf = self.leaf(Class::Principal(name), now_s, seconds)?;
        leaf.params.extended_key_usages = vec![Extended::ClientAuth];
        leaf.signed_by(&request.public_key, &self.admin)
    }

    /// A controller's certificate for signing desired states, Ed25519, with a key of its own.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_signer(&self, controller: Uuid, now_s: u64) -> Result<Issued, IssueError> {
        let mut leaf = self.leaf(Class::Signer(controller), now_s, SIGNER_SECONDS)?;
        leaf.params.extended_key_usages = vec![Extended::CodeSigning];
        leaf.with_key(&KeyPair::generate_for(&PKCS_ED25519).map_err(IssueError)?, &self.signers)
    }

    fn leaf(&self, class: Class, now_s: u64, seconds: u64) -> Result<Leaf, IssueError> {
        let serial = new_serial()?;
        let uri = SpiffeId { fleet: self.fleet.clone(), class }.to_string();
        let mut params = params(DistinguishedName::new(), serial, now_s, seconds);
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri).map_err(IssueError)?)];
        params.key_usages = vec![Usage::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(Leaf { params, serial, not_after_s: now_s.saturating_add(seconds) })
    }
}

struct Leaf {
    params: CertificateParams,
    serial: [u8; 16],
    not_after_s: u64,
}

impl Leaf {
    fn signed_by(self, key: &impl PublicKeyData, by: &Signing) -> Result<Issued, IssueError> {
        let certificate = self.params.signed_by(key, &by.issuer).map_err(IssueError)?;
        let chain = vec![certificate.der().clone(), by.certificate.clone()];
        Ok(Issued { chain, serial: self.serial, not_after_s: self.not_after_s, key: None })
    }

    fn with_key(self, key: &KeyPair, by: &Signing) -> Result<Issued, IssueError> {
        let mut issued = self.signed_by(key, by)?;
        issued.key = Some(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())));
        Ok(issued)
    }
}

pub(super) fn root(fleet: &Fleet, now_s: u64) -> Result<Signing, IssueError> {
    let params = authority_params(fleet, "root", 1, Vec::new(), now_s, ROOT_SECONDS)?;
    let key = new_key()?;
    let certificate = params.self_signed(&key).map_err(IssueError)?.der().clone();
    Ok(Signing { issuer: Issuer::new(params, key), certificate })
}

pub(super) fn issuer(fleet: &Fleet, name: &str, root: &Signing, now_s: u64) -> Result<Signing, IssueError> {
    // Path validation wants a leaf's usage in every issuer above it, so these lines are what keeps the three apart.
    let usages = match name {
        "agents" => vec![Extended::ClientAuth],
        "admin" => vec![Extended::ClientAuth, Extended::ServerAuth],
        _ => vec![Extended::CodeSigning],
    };
    let params = authority_params(fleet, name, 0, usages, now_s, ISSUER_SECONDS)?;
    let key = new_key()?;
    let certificate = params.signed_by(&key, &root.issuer).map_err(IssueError)?.der().clone();
    Ok(Signing { issuer: Issuer::new(params, key), certificate })
}

fn authority_params(
    fleet: &Fleet,
    name: &str,
    below: u8,
    usages: Vec<Extended>,
    now_s: u64,
    seconds: u64,
) -> Result<CertificateParams, IssueError> {
    // The subject is for people and for chaining; identity is never taken from it.
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, fleet.as_str());
    subject.push(DnType::CommonName, format!("stemma {name}"));
    let mut params = params(subject, new_serial()?, now_s, seconds);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![Usage::KeyCertSign];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn params(subject: DistinguishedName, serial: [u8; 16], now_s: u64, seconds: u64) -> CertificateParams {
    let epoch = date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = epoch + Duration::from_secs(now_s.saturating_sub(BACKDATED_SECONDS));
    params.not_after = epoch + Duration::from_secs(now_s.saturating_add(seconds));
    params
}

/// 126 random bits in 16 bytes, the first neither negative nor zero, so that DER writes it as it is.
fn new_serial() -> Result<[u8; 16], IssueError> {
    let mut serial: [u8; 16] = random().map_err(|_| IssueError(rcgen::Error::RingUnspecified))?;
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(serial)
}

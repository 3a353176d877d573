//! The fleet's own certificate authority: one root, three issuers, and the certificates that they make.
//!
//! Three issuers stand under the root because each listener trusts one alone: an agent's certificate finds no path on the
//! admin listener whatever it says of itself, and no issuer can make another's leaves (docs/trust.md, rule 3; the table of what
//! certificates look like is `stemma_wire::tls`'s). What it takes to be each of them is one private key in one file
//! below `trust/` in the data directory; nothing of it stands in the store, so that a backup of the fleet's objects is not its keys.

pub mod csr;
pub mod files;
mod issue;
mod names;

use std::path::{Path, PathBuf};

use rcgen::{Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use stemma_wire::tls::Fleet;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use files::{FileError, Holds};
pub use issue::{ADMIN_SECONDS, BACKDATED_SECONDS, IssueError, Issued, NODE_SECONDS, SERVER_SECONDS, SIGNER_SECONDS};
pub use names::{BadServerName, ServerName};

/// Why the authority could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file of it.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds something else than it should.
    #[error("{}: it is no {what} in PEM; restore it from a backup of the data directory", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// A key and a certificate of different pairs: what it issued, no listener would take.
    #[error(
        "{} and {} do not belong together: the certificate is of another key; restore both from one backup of the data directory",
        key.display(), certificate.display()
    )]
    NotAPair {
        /// The key's file.
        key: PathBuf,
        /// The certificate's.
        certificate: PathBuf,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// One of the three issuers, or the root: a certificate and the key that signs in its name.
pub struct Signing {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// The fleet's authority.
pub struct Authority {
    fleet: Fleet,
    root: CertificateDer<'static>,
    agents: Signing,
    admin: Signing,
    signers: Signing,
}

/// The issuers' names, as their files and subjects have them.
pub(crate) const ISSUERS: [&str; 3] = ["agents", "admin", "signers"];

impl Authority {
    /// Makes a root and three issuers, and writes them below `directory`, which must be there.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn create(directory: &Path, fleet: Fleet, now_s: u64) -> Result<Self, CaError> {
        let root = issue::root(&fleet, now_s)?;
        store(directory, "root", &root)?;
        for name in ISSUERS {
            let issuer = issue::issuer(&fleet, name, &root, now_s)?;
            store(directory, name, &issuer)?;
        }
        Self::load(directory, None, fleet)
    }

    /// Reads what `create` wrote. The root's key is not needed and not looked for: it may be kept elsewhere. An issuer's key that stands
    /// among the `credentials`, as `agents.key`, goes before the one in the directory, which need not be there then.
    ///
    /// # Errors
    /// [`CaError`]; a key that others may read or write is refused (S71).
    pub fn load(directory: &Path, credentials: Option<&Path>, fleet: Fleet) -> Result<Self, CaError> {
        files::check_directory(directory)?;
        let root = read_certificate(&directory.join("root.pem"))?;
        let [agents, admin, signers] = ISSUERS.map(|name| load(directory, credentials, name));
        Ok(Self { fleet, root, agents: agents?, admin: admin?, signers: signers? })
    }

    /// The fleet's name.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The fleet root.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// What the agents' listener trusts.
    pub fn agents_issuer(&self) -> &CertificateDer<'static> {
        &self.agents.certificate
    }

    /// What the admin listener trusts.
    pub fn admin_issuer(&self) -> &CertificateDer<'static> {
        &self.admin.certificate
    }
}

/// The name of the first admin, as their certificate has it.
pub const FIRST_ADMIN: &str = "admin";

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// A new P-256 key.
pub(crate) fn new_key() -> Result<KeyPair, IssueError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError)
}

fn store(directory: &Path, name: &str, signing: &Signing) -> Result<(), FileError> {
    let key = signing.issuer.key().serialize_pem();
    files::write(&directory.join(name).with_added_extension("key"), Holds::Secret, key.as_bytes())?;
    let certificate = pem(&signing.certificate);
    files::write(&directory.join(name).with_added_extension("pem"), Holds::Settings, certificate.as_bytes())
}

/// The file of an issuer's key. One of the service manager's is closed to others by where it stands, and by its mode it is only seen that
/// the controller's user may read it.
fn key_file(directory: &Path, credentials: Option<&Path>, name: &str) -> (PathBuf, Holds) {
    let credential = credentials.map(|directory| directory.join(name).with_added_extension("key"));
    match credential.filter(|path| path.exists()) {
        Some(path) => (path, Holds::Settings),
        None => (directory.join(name).with_added_extension("key"), Holds::Secret),
    }
}

fn load(directory: &Path, credentials: Option<&Path>, name: &str) -> Result<Signing, CaError> {
    let certificate_path = directory.join(name).with_added_extension("pem");
    let certificate = read_certificate(&certificate_path)?;
    let (path, holds) = key_file(directory, credentials, name);
    let text = files::read(&path, holds)?;
    let damaged = || CaError::Damaged { path: path.clone(), what: "private key" };
    let key = KeyPair::from_pem(&text).map_err(|_| damaged())?;
    let (_, parsed) = X509Certificate::from_der(&certificate)
        .map_err(|_| CaError::Damaged { path: certificate_path.clone(), what: "certificate" })?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err(CaError::NotAPair { key: path, certificate: certificate_path });
    }
    let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|_| damaged())?;
    Ok(Signing { issuer, certificate })
}

/// Reads a file with one certificate.
///
/// # Errors
/// [`CaError`].
pub fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, CaError> {
    let text = files::read(path, Holds::Settings)?;
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| CaError::Damaged { path: path.to_owned(), what: "certificate" })
}

/// A certificate as PEM (RFC 7468).
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    encode_pem("CERTIFICATE", certificate)
}

/// A private key as PEM (PKCS#8).
pub fn key_pem(key: &rustls_pki_types::PrivateKeyDer<'_>) -> String {
    encode_pem("PRIVATE KEY", key.secret_der())
}

fn encode_pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    pem + "-----END " + label + "-----\n"
}

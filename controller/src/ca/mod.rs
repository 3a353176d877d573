//! The fleet's own certificate authority: one root, three issuers, and the certificates that they issue.
//!
//! There are three issuers because each listener trusts only one. An agent's certificate has no valid path on the admin
//! listener, whatever it contains, and no issuer can issue another's certificates (docs/trust.md, rule 3). The table of
//! certificate contents is in `stemma_wire::tls`. The private key of each issuer is in a file of its own below `trust/`
//! in the data directory. No key is in the store, so a backup of the fleet's objects does not contain its keys.

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
use stemma_wire::tls::FleetName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use files::{FileError, FileSensitivity};
pub use issue::{
    ADMIN_VALIDITY_S, BACKDATE_S, IssueError, IssuedCertificate, NODE_VALIDITY_S, SERVER_VALIDITY_S, SIGNER_VALIDITY_S,
};
pub use names::{BadServerName, ServerName};

/// Why the authority could not be created or loaded.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not contain a certificate or key in PEM.
    #[error("{}: not a {what} in PEM; restore it from a backup of the data directory", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// The key and the certificate do not match. No listener would accept a certificate issued with them.
    #[error(
        "{} and {} do not belong together: the certificate is for another key; restore both from one backup of the data directory",
        key.display(), certificate.display()
    )]
    NotAPair {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// A certificate could not be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// A certificate and its private key, of the root or one of the three issuers.
pub struct IssuerKey {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// The fleet's certificate authority.
pub struct Authority {
    fleet: FleetName,
    root: CertificateDer<'static>,
    agents: IssuerKey,
    admin: IssuerKey,
    signers: IssuerKey,
}

/// The names of the issuers in their files and subjects.
pub(crate) const ISSUERS: [&str; 3] = ["agents", "admin", "signers"];

impl Authority {
    /// Creates a root and three issuers, and writes them to `directory`, which must exist.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn create(directory: &Path, fleet: FleetName, now_s: u64) -> Result<Self, CaError> {
        let root = issue::root(&fleet, now_s)?;
        write_issuer(directory, "root", &root)?;
        for name in ISSUERS {
            let issuer = issue::issuer(&fleet, name, &root, now_s)?;
            write_issuer(directory, name, &issuer)?;
        }
        Self::load(directory, None, fleet)
    }

    /// Loads the authority that [`Self::create`] wrote. The root's key is not needed and not read, because it may be
    /// stored elsewhere. An issuer's key in `credentials`, such as `agents.key`, takes precedence over the file in the
    /// directory, which may then be absent.
    ///
    /// # Errors
    /// [`CaError`], also if others may read or write a key (S71).
    pub fn load(directory: &Path, credentials: Option<&Path>, fleet: FleetName) -> Result<Self, CaError> {
        files::check_directory(directory)?;
        let root = read_certificate(&directory.join("root.pem"))?;
        let [agents, admin, signers] = ISSUERS.map(|name| load_issuer(directory, credentials, name));
        Ok(Self { fleet, root, agents: agents?, admin: admin?, signers: signers? })
    }

    /// Returns the fleet's name.
    pub fn fleet(&self) -> &FleetName {
        &self.fleet
    }

    /// Returns the root certificate of the fleet.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// Returns the certificate that the agents' listener trusts.
    pub fn agents_issuer(&self) -> &CertificateDer<'static> {
        &self.agents.certificate
    }

    /// Returns the certificate that the admin listener trusts.
    pub fn admin_issuer(&self) -> &CertificateDer<'static> {
        &self.admin.certificate
    }
}

/// The name in the certificate of the first admin, whom `init` creates.
pub const FIRST_ADMIN: &str = "admin";

/// Returns random bytes from the system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// Creates a P-256 key.
pub(crate) fn new_key() -> Result<KeyPair, IssueError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError)
}

/// Writes the key and the certificate of the root or an issuer to their files.
fn write_issuer(directory: &Path, name: &str, signing: &IssuerKey) -> Result<(), FileError> {
    let key = signing.issuer.key().serialize_pem();
    files::write(&directory.join(name).with_added_extension("key"), FileSensitivity::Secret, key.as_bytes())?;
    let certificate = pem(&signing.certificate);
    files::write(&directory.join(name).with_added_extension("pem"), FileSensitivity::Settings, certificate.as_bytes())
}

/// Returns the file of an issuer's key, and the access check for it. A credential of the service manager is protected
/// by its directory. Its mode shows only that the controller's user may read it, so it is checked like settings.
fn key_file(directory: &Path, credentials: Option<&Path>, name: &str) -> (PathBuf, FileSensitivity) {
    let credential = credentials.map(|directory| directory.join(name).with_added_extension("key"));
    match credential.filter(|path| path.exists()) {
        Some(path) => (path, FileSensitivity::Settings),
        None => (directory.join(name).with_added_extension("key"), FileSensitivity::Secret),
    }
}

/// Reads the certificate and the key of an issuer, and checks that they belong together.
fn load_issuer(directory: &Path, credentials: Option<&Path>, name: &str) -> Result<IssuerKey, CaError> {
    let certificate_path = directory.join(name).with_added_extension("pem");
    let certificate = read_certificate(&certificate_path)?;
    let (path, sensitivity) = key_file(directory, credentials, name);
    let text = files::read(&path, sensitivity)?;
    let damaged = || CaError::Damaged { path: path.clone(), what: "private key" };
    let key = KeyPair::from_pem(&text).map_err(|_| damaged())?;
    let (_, parsed) = X509Certificate::from_der(&certificate)
        .map_err(|_| CaError::Damaged { path: certificate_path.clone(), what: "certificate" })?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err(CaError::NotAPair { key: path, certificate: certificate_path });
    }
    let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|_| damaged())?;
    Ok(IssuerKey { issuer, certificate })
}

/// Reads a file with one certificate.
///
/// # Errors
/// [`CaError`].
pub fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, CaError> {
    let text = files::read(path, FileSensitivity::Settings)?;
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| CaError::Damaged { path: path.to_owned(), what: "certificate" })
}

/// Encodes a certificate as PEM (RFC 7468).
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    encode_pem("CERTIFICATE", certificate)
}

/// Encodes a private key as PEM (PKCS#8).
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

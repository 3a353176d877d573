//! The fleet's own certificate authority: one root, three authorities (issuers) below the root, and the certificates
//! that they issue.
//!
//! There are three issuers because each listener trusts only one of them. So the admin listener never accepts an
//! agent's certificate, whatever that certificate contains. A certificate that the wrong issuer issued is refused
//! (docs/trust.md, rule 3). The documentation of `stemma_wire::tls` has a table of the contents of certificates. The
//! private key of each issuer is in its own file in the directory `trust/` of the data directory, or is a credential
//! that the service manager provides. No private key is in the store.

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

/// The error of a failed creation or load of the fleet's authority.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file could not be read or written, or other users have access to a file or directory that they must not have.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a certificate or private key in PEM.
    #[error("{}: not a {what} in PEM; restore it from a backup of the data directory", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The expected content, for the message: `certificate` or `private key`.
        what: &'static str,
    },
    /// The key and the certificate of an issuer are from different key pairs. No program would accept a certificate
    /// that is issued with them.
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

/// The certificate and the private key of the root, or of one of the three issuers below the root.
pub struct IssuerKey {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// The certificate authority of the fleet: the root certificate, and the three issuers with their private keys.
pub struct Authority {
    fleet: FleetName,
    root: CertificateDer<'static>,
    agents: IssuerKey,
    admin: IssuerKey,
    signers: IssuerKey,
}

/// The names of the three issuers, in the names of their files and in the subjects of their certificates.
pub(crate) const ISSUERS: [&str; 3] = ["agents", "admin", "signers"];

impl Authority {
    /// Creates a root and three issuers, and writes them to `directory`, which must exist. Returns the new authority.
    ///
    /// # Errors
    /// Fails with [`CaError`].
    pub fn create(directory: &Path, fleet: FleetName, now_s: u64) -> Result<Self, CaError> {
        let root = issue::create_root(&fleet, now_s)?;
        write_issuer(directory, "root", &root)?;
        for name in ISSUERS {
            let issuer = issue::create_issuer(&fleet, name, &root, now_s)?;
            write_issuer(directory, name, &issuer)?;
        }
        Self::load(directory, None, fleet)
    }

    /// Loads the authority that [`Self::create`] wrote. The root's private key is not read, because only `create` needs
    /// it and it may be stored elsewhere. If the directory `credentials` has the key of an issuer, such as
    /// `agents.key`, this key is used. The file in `directory` may then be absent.
    ///
    /// # Errors
    /// Fails with [`CaError`], for example if other users may read or write a key (S71).
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

    /// Returns the issuer's certificate that the listener for agents trusts.
    pub fn agents_issuer(&self) -> &CertificateDer<'static> {
        &self.agents.certificate
    }

    /// Returns the issuer's certificate that the admin listener trusts.
    pub fn admin_issuer(&self) -> &CertificateDer<'static> {
        &self.admin.certificate
    }
}

/// The name in the certificate of the first admin, whom `init` creates.
pub const FIRST_ADMIN: &str = "admin";

/// Returns `N` random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

/// Creates an ECDSA key pair on the curve P-256.
pub(crate) fn new_key() -> Result<KeyPair, IssueError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError)
}

/// Writes the private key and the certificate of the root or an issuer to the files `NAME.key` and `NAME.pem`.
fn write_issuer(directory: &Path, name: &str, issuer: &IssuerKey) -> Result<(), FileError> {
    let key = issuer.issuer.key().serialize_pem();
    files::write(&directory.join(name).with_added_extension("key"), FileSensitivity::Secret, key.as_bytes())?;
    let certificate = pem(&issuer.certificate);
    files::write(&directory.join(name).with_added_extension("pem"), FileSensitivity::Settings, certificate.as_bytes())
}

/// Returns the path of an issuer's private key, and the access check for it. If the service manager provides the key as
/// a credential, the file of the credential is used. The directory of this file protects the key from other users, even
/// if the mode of the file lets a group read it. So the file is checked as a settings file is, which others may read.
fn key_file(directory: &Path, credentials: Option<&Path>, name: &str) -> (PathBuf, FileSensitivity) {
    let credential = credentials.map(|directory| directory.join(name).with_added_extension("key"));
    match credential.filter(|path| path.exists()) {
        Some(path) => (path, FileSensitivity::Settings),
        None => (directory.join(name).with_added_extension("key"), FileSensitivity::Secret),
    }
}

/// Reads the certificate and the private key of an issuer, and checks that they are from one key pair.
fn load_issuer(directory: &Path, credentials: Option<&Path>, name: &str) -> Result<IssuerKey, CaError> {
    let certificate_path = directory.join(name).with_added_extension("pem");
    let certificate = read_certificate(&certificate_path)?;
    let (key_path, sensitivity) = key_file(directory, credentials, name);
    let key_text = files::read(&key_path, sensitivity)?;
    let damaged_key = || CaError::Damaged { path: key_path.clone(), what: "private key" };
    let key = KeyPair::from_pem(&key_text).map_err(|_| damaged_key())?;
    let (_, parsed_certificate) = X509Certificate::from_der(&certificate)
        .map_err(|_| CaError::Damaged { path: certificate_path.clone(), what: "certificate" })?;
    if parsed_certificate.public_key().raw != key.subject_public_key_info() {
        return Err(CaError::NotAPair { key: key_path, certificate: certificate_path });
    }
    let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|_| damaged_key())?;
    Ok(IssuerKey { issuer, certificate })
}

/// Reads a file that contains one certificate in PEM.
///
/// # Errors
/// Fails with [`CaError`].
pub fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, CaError> {
    let text = files::read(path, FileSensitivity::Settings)?;
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| CaError::Damaged { path: path.to_owned(), what: "certificate" })
}

/// Encodes a certificate as PEM (RFC 7468).
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    encode_pem("CERTIFICATE", certificate)
}

/// Encodes a private key, which must be in the form PKCS#8, as PEM.
pub fn key_pem(key: &rustls_pki_types::PrivateKeyDer<'_>) -> String {
    encode_pem("PRIVATE KEY", key.secret_der())
}

/// Encodes bytes as PEM, with this label in the first and last line.
fn encode_pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    // RFC 7468: each line has 64 characters.
    for line in text.as_bytes().chunks(64) {
        pem.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    pem + "-----END " + label + "-----\n"
}

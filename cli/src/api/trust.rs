//! Loads the files that a context names: the trusted root certificates, and the certificate and key of the client.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stemma_wire::clock::SystemClock;
use stemma_wire::config::{self, FileSensitivity};
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

use crate::args::GlobalArgs;
use crate::context::ClientContext;

/// Returns the SHA-256 of the public key of the fleet's root certificate, in hex. An agent that joins with `--ca-hash`
/// accepts only controllers with this root. The root is the first certificate in the file `ca` of the context.
///
/// The context may be root's local socket on the controller's host. The file is then the `ca` of the first admin's
/// context, which is stored next to that socket. Its permissions are not checked, because only root can write there.
///
/// # Errors
/// Fails if the context can't be read or names no `ca`, or if the file can't be read or contains no certificate.
pub(crate) fn ca_hash(global: &GlobalArgs) -> Result<String> {
    let context = ClientContext::load(global)?;
    let is_socket = context.is_socket();
    let context = context.with_socket_context()?;
    let ca = context.ca.as_ref().context("the context names no `ca`")?;
    let certificates = if is_socket {
        parse_certificates(&std::fs::read_to_string(ca).with_context(|| ca.display().to_string())?, ca)?
    } else {
        load_certificates(ca)?
    };
    let root = certificates.first().with_context(|| format!("{} contains no certificate", ca.display()))?;
    let hash = stemma_wire::tls::spki_sha256(root).with_context(|| format!("{} is not a certificate", ca.display()))?;
    Ok(stemma_core::digest::Hex(&hash).to_string())
}

/// Returns the TLS configuration of a context: the trusted root certificates, and the client's certificate and key if
/// the context names them.
///
/// # Errors
/// Fails if the context names no `ca` or only one of `cert` and `key`, if one of the named files can't be read, can be
/// changed by other users, or has the wrong content, or if other users can read the key.
pub(super) fn tls_config(context: &ClientContext) -> Result<rustls::ClientConfig> {
    let ca = context.ca.as_ref().context("the context names no `ca`, which https needs")?;
    let roots = load_certificates(ca)?;
    let identity = match (&context.cert, &context.key) {
        (Some(cert), Some(key)) => Some(ClientIdentity { chain: load_certificates(cert)?, key: read_secret_key(key)? }),
        (None, None) => None,
        _ => return Err(anyhow!("the context names only one of `cert` and `key`: set both or neither")),
    };
    // `None` means any fleet name. The root certificate already belongs to one fleet.
    Ok(client_config(&Pin::Roots(roots), None, identity, Arc::new(SystemClock))?)
}

/// Reads the client's private key. Fails if other users can read or replace the file.
fn read_secret_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = config::read(file, FileSensitivity::Secret)?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).with_context(|| format!("{} is not a key", file.display()))
}

/// Reads the certificates of a PEM file. Fails if other users can write the file.
fn load_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    parse_certificates(&config::read(file, FileSensitivity::Settings)?, file)
}

/// Parses the certificates in a PEM text. The list is empty if the text contains none. An error names the file.
fn parse_certificates(text: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<std::result::Result<Vec<_>, _>>();
    certificates.with_context(|| format!("{} contains no certificate", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The file is empty, so the error with safe permissions is about its content. Other users may read a file of
    /// certificates, but may not write it.
    #[test]
    fn s71_credentials_are_refused_with_fix_when_others_can_access() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stemma.key");
        std::fs::write(&file, "").unwrap();
        let shown = file.display();
        for (mode, sentence) in [
            (0o600, format!("{shown} is not a key")),
            (0o644, format!("{shown}: others may read it (mode 0644), and it holds a secret; run: chmod 0600 {shown}")),
            (0o666, format!("{shown}: others may write it (mode 0666), so it is not trusted; run: chmod go-w {shown}")),
        ] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret_key(&file).unwrap_err().to_string(), sentence);
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(load_certificates(&file).unwrap_err().to_string().contains("others may write it"));
    }
}

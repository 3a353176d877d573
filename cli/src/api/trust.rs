//! Whom the command trusts and as whom it asks: the files that a context names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stemma_wire::clock::SystemClock;
use stemma_wire::config::{self, Holds};
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

use crate::args::Global;
use crate::context::Context;

/// What an agent pins with `--ca-hash`: SHA-256 of the public key of the context's fleet root, in hex.
///
/// # Errors
/// When the context names no `ca`, or it holds no certificate.
pub(crate) fn ca_hash(global: &Global) -> Result<String> {
    let context = Context::load(global)?;
    let is_socket = context.is_socket();
    let context = context.beside_socket()?;
    let ca = context.ca.as_ref().context("the context names no `ca`")?;
    let certificates = if is_socket {
        read_certificates(&std::fs::read_to_string(ca).with_context(|| ca.display().to_string())?, ca)?
    } else {
        certificates(ca)?
    };
    let root = certificates.first().with_context(|| format!("{} holds no certificate", ca.display()))?;
    let hash = stemma_wire::tls::spki_sha256(root).with_context(|| format!("{} is no certificate", ca.display()))?;
    Ok(stemma_core::digest::Hex(&hash).to_string())
}

/// The TLS side of a context.
///
/// # Errors
/// When a file that it names can't be read, or is not what it should be.
pub(super) fn tls(context: &Context) -> Result<rustls::ClientConfig> {
    let ca = context.ca.as_ref().context("the context names no `ca`, which https needs")?;
    let roots = certificates(ca)?;
    let own = match (&context.cert, &context.key) {
        (Some(cert), Some(key)) => Some(ClientIdentity { chain: certificates(cert)?, key: secret_key(key)? }),
        (None, None) => None,
        _ => return Err(anyhow!("the context names one of `cert` and `key`: it takes both or neither")),
    };
    Ok(client_config(&Pin::Roots(roots), None, own, Arc::new(SystemClock))?)
}

/// The client's own key, unless others may have read or replaced it (S71).
fn secret_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = config::read(file, Holds::Secret)?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).with_context(|| format!("{} is no key", file.display()))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    read_certificates(&config::read(file, Holds::Settings)?, file)
}

fn read_certificates(text: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<std::result::Result<Vec<_>, _>>();
    read.with_context(|| format!("{} holds no certificate", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn s71_a_key_that_others_may_touch_is_refused_with_the_fixing_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stemma.key");
        std::fs::write(&file, "").unwrap();
        let shown = file.display();
        for (mode, sentence) in [
            (0o600, format!("{shown} is no key")),
            (0o644, format!("{shown}: others may read it (mode 0644), and it holds a secret; run: chmod 0600 {shown}")),
            (0o666, format!("{shown}: others may write it (mode 0666), so it is not trusted; run: chmod go-w {shown}")),
        ] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(secret_key(&file).unwrap_err().to_string(), sentence);
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(certificates(&file).unwrap_err().to_string().contains("others may write it"));
    }
}

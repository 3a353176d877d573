//! Whom the command trusts and as whom it asks: the files that a context names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stemma_wire::clock::SystemClock;
use stemma_wire::tls::{ClientIdentity, Pin, client_config};

use crate::args::Global;
use crate::context::Context;

/// What an agent pins with `--ca-hash`: SHA-256 of the public key of the context's fleet root, in hex.
///
/// # Errors
/// When the context names no `ca`, or it holds no certificate.
pub(crate) fn ca_hash(global: &Global) -> Result<String> {
    let context = Context::load(global)?;
    let ca = context.ca.as_ref().context("the context names no `ca`")?;
    let certificates = certificates(ca)?;
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
        (Some(cert), Some(key)) => {
            let key_der = PrivateKeyDer::from_pem_file(key).with_context(|| format!("{} is no key", key.display()))?;
            Some(ClientIdentity { chain: certificates(cert)?, key: key_der })
        }
        (None, None) => None,
        _ => return Err(anyhow!("the context names one of `cert` and `key`: it takes both or neither")),
    };
    Ok(client_config(&Pin::Roots(roots), None, own, Arc::new(SystemClock))?)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<std::result::Result<Vec<_>, _>>();
    read().with_context(|| format!("{} holds no certificate", file.display()))
}

//! The first principal: the admin whose certificate `init` creates. `init` also stores this principal. A fleet that was
//! created before principals existed does not have it. Such a fleet stores it together with its first other principal.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use stemma_core::access::Rights;
use stemma_core::digest::Hex;
use stemma_core::object::{PrincipalCertificate, PrincipalRole, PrincipalSpec, Timestamp};
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::runtime::Builder;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::Layout;
use crate::cache::Cache;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Context, Decision, DecisionError, Registry, store_error};
use crate::store::Store;

/// Stores the first admin in a write whose caller is the controller itself.
async fn write_first_admin(registry: &Registry, layout: &Layout) -> Result<(), ApiError> {
    let admin = first_admin(layout);
    let decide = |context: &Context<'_>| -> Result<Decision, DecisionError> {
        let mut work = PendingWrite::new(context);
        work.store_first_admin(&admin)?;
        work.finish(StoredAnswer::empty(201))
    };
    registry.write(&Caller::controller("first admin"), decide).await.map(drop)
}

/// Stores the first admin in a new store that nothing else uses yet. Uses a thread of its own, because the caller may
/// be on an asynchronous runtime, and a thread cannot enter a second runtime.
///
/// # Errors
/// Fails if the store fails, or if no runtime can be created.
pub(super) fn store_in(new_store: &Arc<dyn Store>, layout: &Layout, clock: Arc<dyn Clock>) -> Result<(), ApiError> {
    let to_error = |_| ApiError::new(ErrorType::ServerInternal, "the thread that stores the first admin could not be started");
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(to_error)?;
        runtime.block_on(async {
            let cache = Arc::new(Cache::load(new_store.as_ref()).await.map_err(|error| store_error(&error))?);
            let registry = Registry::new(Arc::clone(new_store), Arc::clone(&cache), clock);
            // A write completes only when the cache has its changes, so the cache must follow the store at the same
            // time.
            tokio::select! {
                result = write_first_admin(&registry, layout) => result,
                _ = cache.follow(new_store.as_ref()) => Err(ErrorType::ServerStopping.into()),
            }
        })
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("a write does not panic")
}

/// Returns the spec of the first admin, with the certificate that `init` created. If the file of this certificate no
/// longer exists or cannot be read, the spec accepts every certificate with the admin's name.
pub fn first_admin(layout: &Layout) -> PrincipalSpec {
    let certificate = first_certificate(layout);
    PrincipalSpec {
        role: PrincipalRole::Admin,
        takes_unlisted: certificate.is_none(),
        certificates: certificate.into_iter().collect(),
        ..PrincipalSpec::default()
    }
}

/// Reads the serial number and the validity of the certificate that `init` created. Returns `None` if its file does not
/// exist or cannot be read.
fn first_certificate(layout: &Layout) -> Option<PrincipalCertificate> {
    let der = CertificateDer::from_pem_file(layout.admin_certificate()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let timestamp = |unix_seconds: i64| Timestamp(u64::try_from(unix_seconds).unwrap_or_default().saturating_mul(1000));
    let validity = certificate.validity();
    Some(PrincipalCertificate {
        serial: Hex(certificate.raw_serial()).to_string(),
        issued_at: timestamp(validity.not_before.timestamp()),
        ends_at: timestamp(validity.not_after.timestamp()),
        revoked_at: None,
        // The certificate counts as issued by a caller with all rights, because the user who runs `init` has all keys
        // of the fleet.
        made_by: Some(Rights::ALL),
    })
}

//! The first principal: the admin whose certificate `init` makes. `init` stores it; in a fleet of before there were principals it is
//! stored with the first that is made.

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
use crate::records::request::Answer;
use crate::registry::work::Work;
use crate::registry::{Caller, Context, Decision, Registry, Undecided, store_error};
use crate::store::Store;

async fn store(registry: &Registry, layout: &Layout) -> Result<(), ApiError> {
    let first = admin(layout);
    let decide = |context: &Context<'_>| -> Result<Decision, Undecided> {
        let mut work = Work::on(context);
        work.keep_first_admin(&first)?;
        work.finish(Answer::empty(201))
    };
    registry.write(&Caller::controller("first admin"), decide).await.map(drop)
}

/// Stores the first admin in a store that nobody follows yet. It has a thread of its own, since who calls it may be within a runtime.
///
/// # Errors
/// What the store says; that there is no thread to be had.
pub(super) fn store_in(to: &Arc<dyn Store>, layout: &Layout, clock: Arc<dyn Clock>) -> Result<(), ApiError> {
    let no_thread = |_| ApiError::new(ErrorType::ServerInternal, "there is no thread to be had");
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        runtime.block_on(async {
            let cache = Arc::new(Cache::load(to.as_ref()).await.map_err(|error| store_error(&error))?);
            let registry = Registry::new(Arc::clone(to), Arc::clone(&cache), clock);
            tokio::select! {
                stored = store(&registry, layout) => stored,
                _ = cache.follow(to.as_ref()) => Err(ErrorType::ServerStopping.into()),
            }
        })
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("a write does not panic")
}

/// The first admin, with the certificate that `init` made where it still stands there.
pub fn admin(layout: &Layout) -> PrincipalSpec {
    let certificate = certificate(layout);
    PrincipalSpec {
        role: PrincipalRole::Admin,
        takes_unlisted: certificate.is_none(),
        certificates: certificate.into_iter().collect(),
        ..PrincipalSpec::default()
    }
}

fn certificate(layout: &Layout) -> Option<PrincipalCertificate> {
    let der = CertificateDer::from_pem_file(layout.admin_certificate()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let seconds = |at: i64| Timestamp(u64::try_from(at).unwrap_or_default().saturating_mul(1000));
    let validity = certificate.validity();
    Some(PrincipalCertificate {
        serial: Hex(certificate.raw_serial()).to_string(),
        issued_at: seconds(validity.not_before.timestamp()),
        ends_at: seconds(validity.not_after.timestamp()),
        revoked_at: None,
        // Whoever runs `init` holds all keys of the fleet.
        made_by: Some(Rights::ALL),
    })
}

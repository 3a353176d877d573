//! The upload of file bodies, which releases name by their hash.

use std::sync::Arc;

use hyper::StatusCode;
use stemma_core::shares::{ShareExceeded, ShareKind};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;

use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::blobs::PutResult;

/// `PUT /v1/blobs/{hash}`: uploads a file body before the manifest that names it is applied.
pub(super) async fn put(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = request.param("hash");
    let wrong = || {
        ApiError::new(
            ErrorType::FieldInvalid,
            format!("{} is not a SHA-256 hash: it has 64 lowercase hexadecimal digits", quote(name)),
        )
    };
    let hash: Hash = name.parse().map_err(|_| wrong())?;
    let (blobs, registry) = (Arc::clone(&api.blobs), Arc::clone(&api.registry));
    let (who, body) = (request.requester.clone(), request.body.clone());
    let put = tokio::task::spawn_blocking(move || {
        // A body that is already stored is accepted without a rate check, because nothing is written.
        if !matches!(blobs.contains(hash), Ok(true)) {
            registry.check_rate(&who)?;
        }
        let sender = who.holder();
        Ok::<_, ApiError>(blobs.put(hash, &body, &sender).and_then(|put| match put {
            // Bodies that a release names do not count against the limit. A release may have named some since the last
            // count, so they are counted again before the body is refused.
            PutResult::NoRoom(_) => {
                blobs.count(&registry.cache().model().named_blobs())?;
                blobs.put(hash, &body, &sender)
            }
            put => Ok(put),
        }))
    });
    let put = put.await.map_err(|_| ApiError::new(ErrorType::ServerInternal, ErrorType::ServerInternal.title()))??;
    match put {
        Ok(PutResult::Stored) => {
            api.registry.record_stored(&request.requester, request.body.len() as u64);
            Ok(HttpResponse::empty(StatusCode::NO_CONTENT))
        }
        Ok(PutResult::Exists) => Ok(HttpResponse::empty(StatusCode::NO_CONTENT)),
        Ok(PutResult::NoRoom(full)) => Err(blob_store_full(request.body.len(), full)),
        Ok(PutResult::HashMismatch(found)) => {
            let message = format!("the body has the hash {found}, which is not the hash in the path; nothing was kept");
            Err(ApiError::new(ErrorType::BlobMismatch, message))
        }
        Err(failure) => {
            log::error!(error:err = failure; "a file body could not be kept");
            Err(ApiError::new(ErrorType::ServerInternal, "the file body could not be stored; the journal has the reason"))
        }
    }
}

/// Returns the error for a file body that exceeds a limit. It names the limit that is reached: that of the sender, of
/// its cluster, or of all senders.
fn blob_store_full(bytes: usize, ShareExceeded { share: part, held, limit: most }: ShareExceeded) -> ApiError {
    let whose = match part {
        ShareKind::Principal => "your bodies",
        ShareKind::Cluster => "the bodies of all principals of your cluster",
        ShareKind::Total => "the bodies of all senders",
    };
    let message = format!(
        "a file body of {bytes} bytes exceeds the limit for bodies that no release and no released task set names: {whose} take {held} bytes \
         of {most}; nothing was kept"
    );
    let advice = "apply the manifests that name the bodies, or wait: a body that nothing names is deleted a day after it was last sent. \
                  unnamed_files_mebibytes in the controller's configuration sets the limit: one sender has a quarter, all principals that \
                  are bound to one cluster have half, and a sixteenth is kept for admins of the fleet";
    ApiError::new(ErrorType::BlobNoRoom, message).detail(advice)
}

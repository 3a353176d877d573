//! The upload of file bodies. A release names the body of a file by its hash.

use std::sync::Arc;

use hyper::StatusCode;
use stemma_core::shares::{ShareExceeded, ShareKind};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;

use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::blobs::PutResult;

/// `PUT /v1/blobs/{hash}`: stores the content of a file (a blob) before the manifest that names its hash is applied.
pub(super) async fn put(api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = request.param("hash");
    let invalid_hash = || {
        ApiError::new(
            ErrorType::FieldInvalid,
            format!("{} is not a SHA-256 hash: it has 64 lowercase hexadecimal digits", quote(name)),
        )
    };
    let hash: Hash = name.parse().map_err(|_| invalid_hash())?;
    let (blobs, registry) = (Arc::clone(&api.blobs), Arc::clone(&api.registry));
    let (requester, body) = (request.requester.clone(), request.body.clone());
    let result = tokio::task::spawn_blocking(move || {
        // A body that is already stored is accepted without a rate check, because nothing is written.
        if !matches!(blobs.contains(hash), Ok(true)) {
            registry.check_rate(&requester)?;
        }
        let sender = requester.holder();
        Ok::<_, ApiError>(blobs.put(hash, &body, &sender).and_then(|result| match result {
            // Bodies that a release names do not count against the limit. A release may have named some bodies since
            // the last count. So the bodies are counted again before this body is refused.
            PutResult::NoRoom(_) => {
                blobs.count(&registry.cache().model().named_blobs())?;
                blobs.put(hash, &body, &sender)
            }
            result => Ok(result),
        }))
    });
    let result = result.await.map_err(|_| ApiError::new(ErrorType::ServerInternal, ErrorType::ServerInternal.title()))??;
    match result {
        Ok(PutResult::Stored) => {
            api.registry.record_stored(&request.requester, request.body.len() as u64);
            Ok(HttpResponse::empty(StatusCode::NO_CONTENT))
        }
        Ok(PutResult::Exists) => Ok(HttpResponse::empty(StatusCode::NO_CONTENT)),
        Ok(PutResult::NoRoom(exceeded)) => Err(blob_store_full(request.body.len(), exceeded)),
        Ok(PutResult::HashMismatch(actual_hash)) => {
            let message = format!("the body has the hash {actual_hash}, which is not the hash in the path; nothing was stored");
            Err(ApiError::new(ErrorType::BlobMismatch, message))
        }
        Err(failure) => {
            log::error!(error:err = failure; "a file body could not be stored");
            Err(ApiError::new(ErrorType::ServerInternal, "the file body could not be stored; the journal has the reason"))
        }
    }
}

/// Returns the error for a file body that exceeds a limit. The error names the limit that is reached: the limit of the
/// sender, of the sender's cluster, or of all senders. `bytes` is the size of the refused body.
fn blob_store_full(bytes: usize, ShareExceeded { share: kind, held: size, limit: max }: ShareExceeded) -> ApiError {
    let holder_text = match kind {
        ShareKind::Principal => "your bodies",
        ShareKind::Cluster => "the bodies of all principals of your cluster",
        ShareKind::Total => "the bodies of all senders",
    };
    let message = format!(
        "a file body of {bytes} bytes exceeds the limit for bodies that no release and no released task set names: {holder_text} take {size} bytes \
         of {max}; nothing was stored"
    );
    let advice = "apply the manifests that name the bodies, or wait: a body that nothing names is deleted a day after it was last sent. \
                  If the manifests have more new files than that, apply them in parts, or raise \
                  unnamed_files_mebibytes in the controller's configuration: one sender has a quarter, all principals that \
                  are bound to one cluster have half, and a sixteenth is reserved for admins of the fleet";
    ApiError::new(ErrorType::BlobNoRoom, message).detail(advice)
}

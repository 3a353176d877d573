//! Bodies of files.

use std::sync::Arc;

use hyper::StatusCode;
use stemma_core::shares::{Full, Part};
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::blobs::Put;

/// `PUT /v1/blobs/{hash}`: a file body, before the manifest that names it.
pub(super) async fn put(api: &Api, request: &Request) -> HandlerResult {
    let name = request.part("hash");
    let wrong =
        || ApiError::new(ErrorType::FieldInvalid, format!("{} is no SHA-256: 64 digits in small letters", quote(name)));
    let hash: Hash = name.parse().map_err(|_| wrong())?;
    let (blobs, registry) = (Arc::clone(&api.blobs), Arc::clone(&api.registry));
    let (who, body) = (request.who.clone(), request.body.clone());
    let put = tokio::task::spawn_blocking(move || {
        // One that is here is taken by everybody at any time: nothing is stored.
        if !matches!(blobs.has(hash), Ok(true)) {
            registry.check_pace(&who)?;
        }
        let sender = who.holder();
        Ok::<_, ApiError>(blobs.put(hash, &body, &sender).and_then(|put| match put {
            // Some may have been named since they were counted.
            Put::NoRoom(_) => {
                blobs.count(&registry.cache().model().named_blobs())?;
                blobs.put(hash, &body, &sender)
            }
            put => Ok(put),
        }))
    });
    let put = put.await.map_err(|_| ApiError::new(ErrorType::ServerInternal, ErrorType::ServerInternal.title()))??;
    match put {
        Ok(Put::New) => {
            api.registry.note_stored(&request.who, request.body.len() as u64);
            Ok(Reply::empty(StatusCode::NO_CONTENT))
        }
        Ok(Put::Known) => Ok(Reply::empty(StatusCode::NO_CONTENT)),
        Ok(Put::NoRoom(full)) => Err(no_room(request.body.len(), full)),
        Ok(Put::OtherHash(found)) => {
            let message = format!("the body has the hash {found}, not that which the path names; nothing was kept");
            Err(ApiError::new(ErrorType::BlobMismatch, message))
        }
        Err(failure) => {
            log::error!(error:err = failure; "a file body could not be kept");
            Err(ApiError::new(ErrorType::ServerInternal, "the file body could not be kept; the journal says why"))
        }
    }
}

fn no_room(bytes: usize, Full { part, held, most }: Full) -> ApiError {
    let whose = match part {
        Part::OfOne => "those that you sent",
        Part::OfCluster => "those of all who are bound to your cluster",
        Part::OfAll => "those of all senders together",
    };
    let message = format!(
        "there is no room for a file body of {bytes} bytes among those that no release and no released task set names: {whose} take {held} bytes \
         of {most}; nothing was kept"
    );
    let advice = "apply the manifests that name what was sent, or wait: what nothing names goes a day after it was sent last. \
                  unnamed_files_mebibytes in the controller's configuration says how much they may take: one sender has a quarter, all who \
                  are bound to one cluster have half, and a sixteenth is kept for admins of the fleet";
    ApiError::new(ErrorType::BlobNoRoom, message).detail(advice)
}

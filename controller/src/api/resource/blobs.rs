//! Bodies of files.

use std::sync::Arc;

use hyper::StatusCode;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::blobs::{Put, Sender, Whose};
use crate::registry::Who;

/// `PUT /v1/blobs/{hash}`: a file body, before the manifest that names it.
pub(super) async fn put(api: &Api, request: &Request) -> HandlerResult {
    let name = request.part("hash");
    let wrong =
        || ApiError::new(ErrorType::FieldInvalid, format!("{} is no SHA-256: 64 digits in small letters", quote(name)));
    let hash: Hash = name.parse().map_err(|_| wrong())?;
    // One that is here is taken by everybody at any time: nothing is stored.
    if !matches!(api.blobs.has(hash), Ok(true)) {
        api.registry.check_pace(&request.who)?;
    }
    let (blobs, cache, body) = (Arc::clone(&api.blobs), Arc::clone(api.cache()), request.body.clone());
    let sender = sender(&request.who);
    let put = tokio::task::spawn_blocking(move || match blobs.put(hash, &body, &sender)? {
        // Some may have been named since they were counted.
        Put::NoRoom { .. } => {
            blobs.count(&cache.model().named_blobs())?;
            blobs.put(hash, &body, &sender)
        }
        put => Ok(put),
    })
    .await;
    match put {
        Ok(Ok(Put::New)) => {
            api.registry.note_stored(&request.who, request.body.len() as u64);
            Ok(Reply::empty(StatusCode::NO_CONTENT))
        }
        Ok(Ok(Put::Known)) => Ok(Reply::empty(StatusCode::NO_CONTENT)),
        Ok(Ok(Put::NoRoom { whose, taken, most })) => Err(no_room(request.body.len(), whose, taken, most)),
        Ok(Ok(Put::OtherHash(found))) => {
            let message = format!("the body has the hash {found}, not that which the path names; nothing was kept");
            Err(ApiError::new(ErrorType::BlobMismatch, message))
        }
        Ok(Err(failure)) => {
            log::error!(error:err = failure; "a file body could not be kept");
            Err(ApiError::new(ErrorType::ServerInternal, "the file body could not be kept; the journal says why"))
        }
        Err(_) => Err(ApiError::new(ErrorType::ServerInternal, ErrorType::ServerInternal.title())),
    }
}

fn sender(who: &Who) -> Sender {
    Sender { name: who.name.clone(), within: who.rights.within, is_fleet_admin: who.is_fleet_admin() }
}

fn no_room(bytes: usize, whose: Whose, taken: u64, most: u64) -> ApiError {
    let whose = match whose {
        Whose::Own => "those that you sent",
        Whose::Cluster => "those of all who are bound to your cluster",
        Whose::All => "those of all senders together",
    };
    let message = format!(
        "there is no room for a file body of {bytes} bytes among those that no release and no released task set names: {whose} take {taken} bytes \
         of {most}; nothing was kept"
    );
    let advice = "apply the manifests that name what was sent, or wait: what nothing names goes a day after it was sent last. \
                  unnamed_files_mebibytes in the controller's configuration says how much they may take: one sender has a quarter, all who \
                  are bound to one cluster have half, and a sixteenth is kept for admins of the fleet";
    ApiError::new(ErrorType::BlobNoRoom, message).detail(advice)
}

//! Bodies of files.

use std::sync::Arc;

use hyper::StatusCode;
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::blobs::Put;

/// `PUT /v1/blobs/{hash}`: a file body, before the manifest that names it.
pub(super) async fn put(api: &Api, request: &Request) -> HandlerResult {
    let name = request.part("hash");
    let wrong =
        || ApiError::new(ErrorType::FieldInvalid, format!("{} is no SHA-256: 64 digits in small letters", quote(name)));
    let hash = name.parse().map_err(|_| wrong())?;
    let (blobs, body) = (Arc::clone(&api.blobs), request.body.clone());
    let put = tokio::task::spawn_blocking(move || blobs.put(hash, &body)).await;
    match put {
        Ok(Ok(Put::New | Put::Known)) => Ok(Reply::empty(StatusCode::NO_CONTENT)),
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

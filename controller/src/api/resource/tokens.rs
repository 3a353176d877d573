//! Join tokens, which `enrol` keeps.

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::enrol::token;

/// `GET /v1/join-tokens`.
pub(super) fn list(api: &Api, _request: &Request) -> Reply {
    Reply::ok(token::list(&api.cache().model()))
}

/// `POST /v1/join-tokens`.
pub(super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    let answer = token::create(&api.registry, &request.caller()?, &request.json()?).await?;
    Ok(Reply::written(answer, &request.base))
}

/// `GET /v1/join-tokens/{token}`.
pub(super) fn get(api: &Api, request: &Request) -> HandlerResult {
    Ok(Reply::ok(token::get(&api.cache().model(), request.part("token"))?))
}

/// `DELETE /v1/join-tokens/{token}`.
pub(super) async fn delete(api: &Api, request: &Request) -> HandlerResult {
    let answer = token::delete(&api.registry, &request.caller()?, request.part("token")).await?;
    Ok(Reply::written(answer, &request.base))
}

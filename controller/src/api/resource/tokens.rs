//! The HTTP handlers of join tokens. The module `enrol` creates, stores and deletes the tokens.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use stemma_core::object::Kind;

use super::changes::{Changes, LostLabels};
use super::writes::with_changes;
use super::{lists, nodes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::enrol::token;
use crate::records::enrolled::TokenTarget;
use crate::records::request::StoredAnswer;
use crate::registry::names::{group_at, group_not_found};
use crate::registry::work::{PendingWrite, not_found};

/// Handles `GET /v1/join-tokens`: returns one page of join tokens. The query can limit the list to the tokens for one
/// node or one group.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = request.query.text("node")?.map(|id| nodes::locate(&model, id, request.ironic_version()));
    let node = node.transpose().map_err(|error| error.field("node"))?.map(|node| TokenTarget::Node(node.meta.uuid));
    let group = request.query.text("nodegroup")?.map(|id| {
        let target = group_at(&model, id).map(|group| TokenTarget::Group(group.meta.uuid));
        target.ok_or_else(|| not_found(Kind::NodeGroup, id).field("nodegroup").detail(group_not_found(&model, id)))
    });
    let targets: Vec<TokenTarget> = node.into_iter().chain(group.transpose()?).collect();
    lists::list_rows(request, "id", token::list(&model, &targets))
}

/// Handles `POST /v1/join-tokens`: creates a join token. The response also contains the URL at which agents join. Its
/// host is the one in the URL of this request. A loopback host would be useless on other machines, so it is replaced by
/// the controller's own name, if the controller has one.
pub(super) async fn create(api: &Api, request: &HttpRequest) -> HandlerResult {
    let mut answer = token::create(&api.registry, &request.caller()?, &request.json()?).await?;
    let own_name = api.agent_endpoint.name.as_ref().map(ToString::to_string);
    if let (Value::Object(body), Some(host)) = (&mut answer.body, join_host(&request.base_url, own_name.as_deref())) {
        body.insert("agents".to_owned(), format!("https://{host}:{}", api.agent_endpoint.port).into());
    }
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// Handles `GET /v1/join-tokens/{token}`: returns one join token.
pub(super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    Ok(HttpResponse::ok(token::get(&api.model(), request.param("token"))?))
}

/// Handles `DELETE /v1/join-tokens/{token}`: deletes a join token. If the request prefers a response with a body, the
/// body lists each field of the token as removed.
pub(super) async fn delete(api: &Api, request: &HttpRequest) -> HandlerResult {
    let answer = |work: &PendingWrite<'_>, token: &Value| {
        let is_set = |(_, value): &(&String, &Value)| !value.is_null();
        let fields = token.as_object().into_iter().flatten().filter(is_set);
        let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        let changes = Changes::default().field_changes(&fields.into(), &json!({}));
        with_changes(StoredAnswer::empty(204), request, changes, &LostLabels::default(), work)
    };
    let answer = token::delete(&api.registry, &request.caller()?, request.param("token"), answer).await?;
    Ok(HttpResponse::from_answer(answer, &request.base_url).with_preference(request))
}

/// Returns the host for the URL at which agents join: the host of `base_url` (the URL of the request), or in place of a
/// loopback host `own_name`, the name of this controller, if known. Returns `None` if `base_url` has no host.
fn join_host(base_url: &str, own_name: Option<&str>) -> Option<String> {
    let host = url_host(base_url)?;
    let bare_host = host.trim_matches(['[', ']']);
    let is_local = bare_host == "localhost" || bare_host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    Some(match own_name.filter(|_| is_local) {
        Some(name) if name.contains(':') => format!("[{name}]"),
        Some(name) => name.to_owned(),
        None => host.to_owned(),
    })
}

/// Returns the host in a URL such as `https://HOST:PORT`. The result has the brackets of an IPv6 address. Returns
/// `None` if there is no `://`.
fn url_host(base_url: &str) -> Option<&str> {
    let authority = base_url.split_once("://")?.1;
    let end = authority.rfind(':').filter(|colon| !authority[*colon..].contains(']'));
    Some(end.map_or(authority, |colon| &authority[..colon]))
}

#[cfg(test)]
mod tests {
    use super::{join_host, url_host};

    #[test]
    fn join_host_returns_own_name_when_url_is_local() {
        for (base, own_name, host) in [
            ("http://localhost", Some("c.example.net"), "c.example.net"),
            ("https://127.0.0.1:9443", Some("c.example.net"), "c.example.net"),
            ("https://[::1]:9443", Some("fd00::1"), "[fd00::1]"),
            ("https://b.example.net:9443", Some("c.example.net"), "b.example.net"),
            ("https://127.0.0.1:9443", None, "127.0.0.1"),
        ] {
            assert_eq!(join_host(base, own_name).as_deref(), Some(host), "{base}");
        }
    }

    #[test]
    fn url_host_keeps_brackets_of_ipv6_address() {
        for (base, host) in [
            ("https://c.example.net:9443", Some("c.example.net")),
            ("https://c.example.net", Some("c.example.net")),
            ("https://[::1]:9443", Some("[::1]")),
            ("https://[::1]", Some("[::1]")),
            ("", None),
        ] {
            assert_eq!(url_host(base), host);
        }
    }
}

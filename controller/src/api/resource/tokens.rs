//! Join tokens, which `enrol` keeps.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use stemma_core::object::Kind;

use super::changes::{Changes, LostLabels};
use super::writes::tell;
use super::{lists, nodes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::enrol::token;
use crate::records::enrolled::Bound;
use crate::records::request::Answer;
use crate::registry::names::{group_at, no_group_at};
use crate::registry::work::{Work, not_found};

/// `GET /v1/join-tokens`.
pub(super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = request.query.text("node")?.map(|id| nodes::locate(&model, id, request.ironic()));
    let node = node.transpose().map_err(|e| e.field("node"))?.map(|node| Bound::Node(node.meta.uuid));
    let group = request.query.text("nodegroup")?.map(|id| {
        let found = group_at(&model, id).map(|group| Bound::Group(group.meta.uuid));
        found.ok_or_else(|| not_found(Kind::NodeGroup, id).field("nodegroup").detail(no_group_at(&model, id)))
    });
    let bound: Vec<Bound> = node.into_iter().chain(group.transpose()?).collect();
    lists::of_rows(request, "id", token::list(&model, &bound))
}

/// `POST /v1/join-tokens`. The answer also says where agents join: at the name by which this controller was reached, or at its own
/// where it was reached by a name that means this machine to every machine.
pub(super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    let mut answer = token::create(&api.registry, &request.caller()?, &request.json()?).await?;
    let own = api.agents.name.as_ref().map(ToString::to_string);
    if let (Value::Object(body), Some(host)) = (&mut answer.body, joined_at(&request.base, own.as_deref())) {
        body.insert("agents".to_owned(), format!("https://{host}:{}", api.agents.port).into());
    }
    Ok(Reply::written(answer, &request.base))
}

/// `GET /v1/join-tokens/{token}`.
pub(super) fn get(api: &Api, request: &Request) -> HandlerResult {
    Ok(Reply::ok(token::get(&api.model(), request.part("token"))?))
}

/// `DELETE /v1/join-tokens/{token}`. Each of its fields goes.
pub(super) async fn delete(api: &Api, request: &Request) -> HandlerResult {
    let answer = |work: &Work<'_>, token: &Value| {
        let is_said = |(_, value): &(&String, &Value)| !value.is_null();
        let said = token.as_object().into_iter().flatten().filter(is_said);
        let said: Map<String, Value> = said.map(|(name, value)| (name.clone(), value.clone())).collect();
        let gone = Changes::default().between(&said.into(), &json!({}));
        tell(Answer::empty(204), request, gone, &LostLabels::default(), work)
    };
    let answer = token::delete(&api.registry, &request.caller()?, request.part("token"), answer).await?;
    Ok(Reply::written(answer, &request.base).with_preference(request))
}

/// At which host agents join, by the address that this request came to.
fn joined_at(base: &str, own: Option<&str>) -> Option<String> {
    let host = host_of(base)?;
    let bare = host.trim_matches(['[', ']']);
    let is_everyones = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    Some(match own.filter(|_| is_everyones) {
        Some(own) if own.contains(':') => format!("[{own}]"),
        Some(own) => own.to_owned(),
        None => host.to_owned(),
    })
}

/// The host of an address as `https://HOST:PORT`, with the brackets of an IPv6 address.
fn host_of(base: &str) -> Option<&str> {
    let authority = base.split_once("://")?.1;
    let end = authority.rfind(':').filter(|colon| !authority[*colon..].contains(']'));
    Some(end.map_or(authority, |colon| &authority[..colon]))
}

#[cfg(test)]
mod tests {
    use super::{host_of, joined_at};

    #[test]
    fn a_name_of_every_machine_is_none_to_join_at() {
        for (base, own, host) in [
            ("http://localhost", Some("c.example.net"), "c.example.net"),
            ("https://127.0.0.1:9443", Some("c.example.net"), "c.example.net"),
            ("https://[::1]:9443", Some("fd00::1"), "[fd00::1]"),
            ("https://b.example.net:9443", Some("c.example.net"), "b.example.net"),
            ("https://127.0.0.1:9443", None, "127.0.0.1"),
        ] {
            assert_eq!(joined_at(base, own).as_deref(), Some(host), "{base}");
        }
    }

    #[test]
    fn agents_join_at_the_name_that_was_reached() {
        for (base, host) in [
            ("https://c.example.net:9443", Some("c.example.net")),
            ("https://c.example.net", Some("c.example.net")),
            ("https://[::1]:9443", Some("[::1]")),
            ("https://[::1]", Some("[::1]")),
            ("", None),
        ] {
            assert_eq!(host_of(base), host);
        }
    }
}

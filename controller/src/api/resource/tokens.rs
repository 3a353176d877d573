//! Join tokens, which `enrol` keeps.

use serde_json::{Map, Value, json};

use super::changes::{Changes, LostLabels};
use super::writes::tell;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::enrol::token;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// `GET /v1/join-tokens`.
pub(super) fn list(api: &Api, _request: &Request) -> Reply {
    Reply::ok(token::list(&api.model()))
}

/// `POST /v1/join-tokens`. The answer also says where agents join: at the name by which this controller was reached.
pub(super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    let mut answer = token::create(&api.registry, &request.caller()?, &request.json()?).await?;
    if let (Value::Object(body), Some(host)) = (&mut answer.body, host_of(&request.base)) {
        body.insert("agents".to_owned(), format!("https://{host}:{}", api.agents_port).into());
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

/// The host of an address as `https://HOST:PORT`, with the brackets of an IPv6 address.
fn host_of(base: &str) -> Option<&str> {
    let authority = base.split_once("://")?.1;
    let end = authority.rfind(':').filter(|colon| !authority[*colon..].contains(']'));
    Some(end.map_or(authority, |colon| &authority[..colon]))
}

#[cfg(test)]
mod tests {
    use super::host_of;

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

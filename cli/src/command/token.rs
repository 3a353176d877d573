//! Join tokens. The secret is made here: the controller is told its hash alone, so no answer holds it, and a token whose
//! answer was lost is found again by the request's own key, and not made twice.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Write, random};
use crate::args::{Filter, Kind, Output, Token};
use crate::command::done::note_dry_run;
use crate::command::each::Objects;
use crate::command::{question, write};

/// `token`.
pub(crate) async fn token(api: &mut Api, what: Token, output: Output) -> Result<()> {
    match what {
        Token::Create { nodegroup, node, uses, ttl_seconds } => {
            let body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl_seconds});
            create(api, body, output).await
        }
        Token::List => {
            let filter = Filter::default();
            let mut tokens = question::list(api, Kind::Token, &filter).await?;
            let now = jiff::Timestamp::now();
            tokens.retain(|token| is_good(token, now));
            question::show(api, Kind::Token, &[], &tokens, &filter, output).await
        }
        Token::Delete { id } => write::delete(api, &Objects::named(Kind::Token.name(), &[id]), output).await,
        Token::CaHash => unreachable!("it needs no controller and was answered before"),
    }
}

/// Whether it can still be used. The controller keeps others for a day, so that it can be seen what became of them: `get tokens`.
fn is_good(token: &Value, now: jiff::Timestamp) -> bool {
    let is_left = token.get("uses_left").and_then(Value::as_u64).is_none_or(|left| left > 0);
    let expires = token.get("expires_at").and_then(Value::as_str).and_then(|at| at.parse::<jiff::Timestamp>().ok());
    is_left && expires.is_none_or(|at| at > now)
}

async fn create(api: &mut Api, mut body: Value, output: Output) -> Result<()> {
    let secret = Hex(&random::<32>()?).to_string();
    body["secret_sha256"] = Hex(&Sha256::digest(secret.as_bytes())).to_string().into();
    body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
    let mut made = api.send(Write::to(Endpoint::CreateToken, &[]).json(&body)).await?;
    if api.is_dry() {
        say!("token created (dry run)");
        note_dry_run(api);
        return Ok(());
    }
    let id = made.get("id").and_then(Value::as_str).context("the answer holds no token's id")?.to_owned();
    made["token"] = format!("{id}.{secret}").into();
    match output {
        Output::Json | Output::Yaml => question::print(&made, output)?,
        Output::Name => say!("token/{id}"),
        Output::Table | Output::Wide | Output::Manifest => say!("{id}.{secret}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_or_over_is_no_good() {
        let now: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (left, expires_at, good) in [
            (1, "2026-11-21T12:00:01+00:00", true),
            (0, "2026-11-21T12:30:00+00:00", false),
            (1, "2026-11-21T12:00:00+00:00", false),
        ] {
            let token = json!({"id": "a", "uses_left": left, "expires_at": expires_at});
            assert_eq!(is_good(&token, now), good, "{token}");
        }
    }
}

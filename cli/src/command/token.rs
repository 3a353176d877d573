//! Join tokens. The secret is made here: the controller is told its hash alone, so no answer holds it, and a token whose
//! answer was lost is found again by the request's own key, and not made twice.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Write, ca_hash, random};
use crate::args::{Filter, Global, Kind, Output, Token};
use crate::command::done::note_dry_run;
use crate::command::each::Objects;
use crate::command::{question, write};
use crate::output::{printable_lines, since};

/// `token`.
pub(crate) async fn token(api: &mut Api, global: &Global, what: Token) -> Result<()> {
    let output = global.output;
    match what {
        Token::Create { nodegroup, node, uses, ttl, ttl_seconds } => {
            let ttl = ttl_seconds.unwrap_or(ttl);
            let body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl});
            create(api, global, body).await
        }
        Token::List => {
            let filter = Filter::default();
            let mut tokens = question::list(api, Kind::Token, &filter).await?;
            let now = jiff::Timestamp::now();
            tokens.retain(|token| is_good(token, now));
            question::show(api, Kind::Token, &[], &tokens, &filter, output).await
        }
        Token::Delete { id } => {
            write::delete(api, &Objects::named(Kind::Token.name(), &[Kind::Token.bare(&id).to_owned()]), output).await
        }
        Token::CaHash => unreachable!("it needs no controller and was answered before"),
    }
}

/// Whether it can still be used. The controller keeps others for a day, so that it can be seen what became of them: `get tokens`.
fn is_good(token: &Value, now: jiff::Timestamp) -> bool {
    let is_left = token.get("uses_left").and_then(Value::as_u64).is_none_or(|left| left > 0);
    let expires = token.get("expires_at").and_then(Value::as_str).and_then(|at| stemma_core::time::read(at).ok());
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or_default();
    is_left && expires.is_none_or(|at| at > now_ms)
}

async fn create(api: &mut Api, global: &Global, mut body: Value) -> Result<()> {
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
    match global.output {
        Output::Json | Output::Yaml => question::print(&made, global.output)?,
        // The secret is told this once, whatever is asked for.
        Output::Table | Output::Wide | Output::Manifest | Output::Name => {
            say!("{id}.{secret}");
            tell!("{}", printable_lines(&how_to_join(&made, ca_hash(global).ok().as_deref())));
        }
    }
    Ok(())
}

/// What a person needs beside the token, which alone stands on standard output.
fn how_to_join(made: &Value, hash: Option<&str>) -> String {
    let uses = made.get("uses").and_then(Value::as_u64).unwrap_or(1);
    let text = |name: &str| made.get(name).and_then(Value::as_str);
    let bound = match (text("node"), text("nodegroup")) {
        (Some(node), _) => format!("the node {node}"),
        (None, Some(group)) if uses == 1 => format!("one host, into the group {group}"),
        (None, Some(group)) => format!("{uses} hosts, into the group {group}"),
        (None, None) if uses == 1 => "one host, into no group".to_owned(),
        (None, None) => format!("{uses} hosts, into no group"),
    };
    let url = text("agents").unwrap_or("https://CONTROLLER:9444");
    let hash = hash.unwrap_or("HASH");
    format!(
        "good for {bound}, until {}\non the host, as root, with the token in a file that root alone may read (`-` reads it from standard input):\n  \
         stemma-agent join {url} --token-file FILE --ca-hash {hash}",
        since(made.get("expires_at")),
    )
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

    #[test]
    fn a_person_is_told_for_whom_and_how_long_and_what_to_run() {
        let made = |nodegroup: Value, node: Value, uses: u64| {
            json!({"nodegroup": nodegroup, "node": node, "uses": uses,
            "expires_at": "2020-01-01T00:00:00+00:00", "agents": "https://c.example.net:9444"})
        };
        for (made, hash, first, command) in [
            (
                made(json!("prod/web"), Value::Null, 1),
                Some("ab12"),
                "good for one host, into the group prod/web, until 2020-01-01 00:00 (",
                "  stemma-agent join https://c.example.net:9444 --token-file FILE --ca-hash ab12",
            ),
            (
                made(json!("prod/web"), Value::Null, 3),
                None,
                "good for 3 hosts, into the group prod/web, ",
                "--ca-hash HASH",
            ),
            (made(Value::Null, json!("web-1"), 1), None, "good for the node web-1, until ", "--ca-hash HASH"),
            (made(Value::Null, Value::Null, 1), None, "good for one host, into no group, until ", "--ca-hash HASH"),
        ] {
            let told = how_to_join(&made, hash);
            assert!(told.starts_with(first) && told.ends_with(command), "{told}");
        }
    }
}

//! `stemma token`: join tokens, with which hosts join the fleet. The secret is created here, and the controller
//! receives only its hash, so no response contains the secret. A request that is repeated because its response was lost
//! has the same idempotency key, so the token is not created twice.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::endpoint::Endpoint;

use crate::api::{ApiClient, WriteRequest, ca_hash, random_bytes};
use crate::args::{FilterArgs, GlobalArgs, KindArg, Output, TokenCommand};
use crate::command::batch::Targets;
use crate::command::report::print_dry_run;
use crate::command::{read, write};
use crate::output::{printable_lines, time_with_age};

/// Runs `stemma token`: creates, lists and deletes join tokens.
pub(crate) async fn token(api: &mut ApiClient, global: &GlobalArgs, command: TokenCommand) -> Result<()> {
    let output = global.output;
    match command {
        TokenCommand::Create { nodegroup, node, uses, ttl, ttl_seconds } => {
            let ttl = ttl_seconds.unwrap_or(ttl);
            let body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl});
            create_token(api, global, body).await
        }
        TokenCommand::List => {
            let filter = FilterArgs::default();
            let mut tokens = read::list_all(api, KindArg::Token, &filter).await?;
            let now = jiff::Timestamp::now();
            tokens.retain(|token| is_usable(token, now));
            read::print_objects(api, KindArg::Token, &[], &tokens, &filter, output).await
        }
        TokenCommand::Delete { id } => {
            write::delete(api, &Targets::from_names(KindArg::Token.name(), &[KindArg::Token.bare_name(&id).to_owned()]), output)
                .await
        }
        TokenCommand::CaHash => unreachable!("the command needs no controller and was handled before"),
    }
}

/// Returns whether a host can still join with the token. The controller stores used and expired tokens for another day,
/// and `stemma get tokens` shows them.
fn is_usable(token: &Value, now: jiff::Timestamp) -> bool {
    let has_uses = token.get("uses_left").and_then(Value::as_u64).is_none_or(|count| count > 0);
    let expiry = token.get("expires_at").and_then(Value::as_str).and_then(|time| stemma_core::time::parse(time).ok());
    let now_ms = u64::try_from(now.as_millisecond()).unwrap_or_default();
    has_uses && expiry.is_none_or(|time| time > now_ms)
}

/// Runs `stemma token create`: creates the secret, sends its hash, and prints the token with the command that uses it.
async fn create_token(api: &mut ApiClient, global: &GlobalArgs, mut body: Value) -> Result<()> {
    let secret = Hex(&random_bytes::<32>()?).to_string();
    body["secret_sha256"] = Hex(&Sha256::digest(secret.as_bytes())).to_string().into();
    body.as_object_mut().expect("created as a map").retain(|_, value| !value.is_null());
    let mut response = api.send(WriteRequest::with_parameters(Endpoint::CreateToken, &[]).with_json(&body)).await?;
    if api.is_dry() {
        outln!("token created (dry run)");
        print_dry_run(api);
        return Ok(());
    }
    let id = response.get("id").and_then(Value::as_str).context("the response contains no token id")?.to_owned();
    response["token"] = format!("{id}.{secret}").into();
    match global.output {
        Output::Json | Output::Yaml => read::print_value(&response, global.output)?,
        // This is the only time the secret is printed, so every format prints it.
        Output::Table | Output::Wide | Output::Manifest | Output::Name => {
            outln!("{id}.{secret}");
            errln!("{}", printable_lines(&join_instructions(&response, ca_hash(global).ok().as_deref())));
        }
    }
    Ok(())
}

/// Returns the instructions for joining a host with a token. They are printed to standard error, so that standard
/// output contains only the token. `hash` is the value for `--ca-hash`, if known.
fn join_instructions(response: &Value, hash: Option<&str>) -> String {
    let uses = response.get("uses").and_then(Value::as_u64).unwrap_or(1);
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let target = match (text("node"), text("nodegroup")) {
        (Some(node), _) => format!("the node {node}"),
        (None, Some(group)) if uses == 1 => format!("one host, into the group {group}"),
        (None, Some(group)) => format!("{uses} hosts, into the group {group}"),
        (None, None) if uses == 1 => "one host, into no group".to_owned(),
        (None, None) => format!("{uses} hosts, into no group"),
    };
    let url = text("agents").unwrap_or("https://CONTROLLER:9444");
    let hash = hash.unwrap_or("HASH");
    format!(
        "good for {target}, until {}\non the host, as root, with the token in a file that root alone may read (`-` reads it from standard input):\n  \
         stemma-agent join {url} --token-file FILE --ca-hash {hash}",
        time_with_age(response.get("expires_at")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_usable_is_false_when_used_up_or_expired() {
        let now: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (left, expires_at, expected) in [
            (1, "2026-11-21T12:00:01+00:00", true),
            (0, "2026-11-21T12:30:00+00:00", false),
            (1, "2026-11-21T12:00:00+00:00", false),
        ] {
            let token = json!({"id": "a", "uses_left": left, "expires_at": expires_at});
            assert_eq!(is_usable(&token, now), expected, "{token}");
        }
    }

    #[test]
    fn join_instructions_show_scope_expiry_and_command() {
        let response = |nodegroup: Value, node: Value, uses: u64| {
            json!({"nodegroup": nodegroup, "node": node, "uses": uses,
            "expires_at": "2020-01-01T00:00:00+00:00", "agents": "https://c.example.net:9444"})
        };
        for (response, hash, first, command) in [
            (
                response(json!("prod/web"), Value::Null, 1),
                Some("ab12"),
                "good for one host, into the group prod/web, until 2020-01-01 00:00 (",
                "  stemma-agent join https://c.example.net:9444 --token-file FILE --ca-hash ab12",
            ),
            (response(json!("prod/web"), Value::Null, 3), None, "good for 3 hosts, into the group prod/web, ", "--ca-hash HASH"),
            (response(Value::Null, json!("web-1"), 1), None, "good for the node web-1, until ", "--ca-hash HASH"),
            (response(Value::Null, Value::Null, 1), None, "good for one host, into no group, until ", "--ca-hash HASH"),
        ] {
            let text = join_instructions(&response, hash);
            assert!(text.starts_with(first) && text.ends_with(command), "{text}");
        }
    }
}

//! `stemma token`: join tokens, with which hosts join the fleet. The secret is created here, and the controller
//! receives only its hash, so no response contains the secret. A request that is repeated because its response was lost
//! has the same idempotency key, so the token is not created twice.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::message::enroll::check_token;

use crate::api::{ApiClient, WriteRequest, ca_hash, random_bytes};
use crate::args::{FilterArgs, GlobalArgs, KindArg, Output, TokenCommand};
use crate::command::batch::Targets;
use crate::command::report::print_dry_run;
use crate::command::{read, write};
use crate::context_dir::write_file;
use crate::output::{printable, printable_lines, shell_quoted, time_with_age};

/// Runs `stemma token`: creates, lists and deletes join tokens.
pub(crate) async fn token(api: &mut ApiClient, global: &GlobalArgs, command: TokenCommand) -> Result<()> {
    let output = global.output;
    match command {
        TokenCommand::Create { nodegroup, node, uses, ttl, ttl_seconds, join_script } => {
            let ttl = ttl_seconds.unwrap_or(ttl);
            let body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl});
            create_token(api, global, body, join_script.as_deref()).await
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

/// Runs `stemma token create`: creates the secret and sends its hash. Prints the token with the command that uses it, or
/// writes both into a new script at the path `join_script`.
async fn create_token(api: &mut ApiClient, global: &GlobalArgs, mut body: Value, join_script: Option<&Path>) -> Result<()> {
    // The path and the hash are checked first, so that no token exists if the script cannot be written.
    if let Some(path) = join_script.filter(|path| path.symlink_metadata().is_ok()) {
        bail!("{}: something exists there already; name a new file", path.display());
    }
    let hash = match join_script {
        Some(_) => Some(ca_hash(global).context("--join-script needs the fleet's root certificate")?),
        None => ca_hash(global).ok(),
    };
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
    let token = format!("{id}.{secret}");
    if let Some(path) = join_script {
        let written = script_text(&response, &token, hash.as_deref()).and_then(|text| write_file(path, &text));
        written.with_context(|| format!("no script was written; delete the token with `stemma token delete {id}`"))?;
    } else {
        response["token"] = token.clone().into();
    }
    match (global.output, join_script) {
        (Output::Json | Output::Yaml, _) => read::print_value(&response, global.output)?,
        (_, Some(path)) => errln!("{}", printable_lines(&script_instructions(&response, path))),
        // This is the only time the secret is printed, so every format prints it.
        (Output::Table | Output::Wide | Output::Manifest | Output::Name, None) => {
            outln!("{token}");
            errln!("{}", printable_lines(&join_instructions(&response, hash.as_deref())));
        }
    }
    Ok(())
}

/// Returns which hosts can join with a token, and until when.
fn token_scope(response: &Value) -> String {
    let uses = use_count(response);
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let target = match (text("node"), text("nodegroup")) {
        (Some(node), _) => format!("the node {node}"),
        (None, Some(group)) if uses == 1 => format!("one host, into the group {group}"),
        (None, Some(group)) => format!("{uses} hosts, into the group {group}"),
        (None, None) if uses == 1 => "one host, into no group".to_owned(),
        (None, None) => format!("{uses} hosts, into no group"),
    };
    format!("good for {target}, until {}", time_with_age(response.get("expires_at")))
}

/// Returns the number of hosts that can join with a token.
fn use_count(response: &Value) -> u64 {
    response.get("uses").and_then(Value::as_u64).unwrap_or(1)
}

/// Returns the instructions for joining a host with a token. They are printed to standard error, so that standard
/// output contains only the token. `hash` is the value for `--ca-hash`, if known.
fn join_instructions(response: &Value, hash: Option<&str>) -> String {
    let url = response.get("agents").and_then(Value::as_str).unwrap_or("https://CONTROLLER:9444");
    let hash = hash.unwrap_or("HASH");
    format!(
        "{}\non the host, as root, with the token in a file that root alone may read (`-` reads it from standard input):\n  \
         stemma-agent join {url} --token-file FILE --ca-hash {hash}",
        token_scope(response)
    )
}

/// Returns a shell script that joins a host. The agent reads the token from standard input, so that no argument of a
/// process contains it. `hash` is the value for `--ca-hash`.
///
/// # Errors
/// Fails if the response contains no URL at which agents join, or if `hash` is `None`.
fn script_text(response: &Value, token: &str, hash: Option<&str>) -> Result<String> {
    let url = response.get("agents").and_then(Value::as_str).context("the response contains no URL of the agents' listener")?;
    let hash = hash.context("the hash of the fleet's root certificate is unknown")?;
    // The token is a line of the script. A valid token contains no character with a meaning there.
    check_token(token).context("the controller's response contains no valid token id")?;
    Ok(format!(
        "#!/bin/sh\n# Joins this host, as root: {}. This file contains the token.\n\
         stemma-agent join {} --token-file - --ca-hash {hash} <<'TOKEN'\n{token}\nTOKEN\n",
        printable(&token_scope(response)),
        shell_quoted(url),
    ))
}

/// Returns the instructions for a script at `path` that joins hosts.
fn script_instructions(response: &Value, path: &Path) -> String {
    let host = if use_count(response) == 1 { "the host" } else { "each host" };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "{}\n{} contains the token; copy it to {host}, and run it there as root:\n  sh {}",
        token_scope(response),
        path.display(),
        shell_quoted(&name)
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

    #[test]
    fn script_text_contains_token_and_quotes_url() {
        let response = json!({"nodegroup": "prod/web", "uses": 10, "expires_at": "2020-01-01T00:00:00+00:00",
            "agents": "https://[fd00::1]:9444"});
        let token = format!("{}.{}", "a".repeat(16), "b".repeat(64));
        let text = script_text(&response, &token, Some("12")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].starts_with("# Joins this host, as root: good for 10 hosts, into the group prod/web, until 2020"),
            "{text}"
        );
        let expected = ["stemma-agent join 'https://[fd00::1]:9444' --token-file - --ca-hash 12 <<'TOKEN'", &token, "TOKEN"];
        assert_eq!(lines[2..], expected);
        assert!(script_text(&json!({}), &token, Some("12")).is_err() && script_text(&response, &token, None).is_err());
        assert!(script_text(&response, "ab.cd", Some("12")).is_err());
    }
}

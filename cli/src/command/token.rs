//! Join tokens. The secret is made here: the controller is told its hash alone, so no answer holds it, and a token whose
//! answer was lost is found again by the request's own key, and not made twice.

use anyhow::{Context as _, Result};
use hyper::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;

use crate::api::{Api, Body, Write, random};
use crate::args::{Filter, Kind, Output, Token};
use crate::command::done::note_dry_run;
use crate::command::{question, write};

/// `token`.
pub(crate) async fn token(api: &mut Api, what: Token, output: Output) -> Result<()> {
    match what {
        Token::Create { nodegroup, node, uses, ttl_seconds } => {
            let body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl_seconds});
            create(api, body, output).await
        }
        Token::List => question::get(api, Kind::Token, &[], &Filter::default(), output).await,
        Token::Delete { id } => write::delete(api, Kind::Token, &id, output).await,
        Token::CaHash => unreachable!("it needs no controller and was answered before"),
    }
}

async fn create(api: &mut Api, mut body: Value, output: Output) -> Result<()> {
    let secret = Hex(&random::<32>()?).to_string();
    body["secret_sha256"] = Hex(&Sha256::digest(secret.as_bytes())).to_string().into();
    body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
    let mut made = api.send(Write::json(Method::POST, "/v1/join-tokens", Body::Json, &body)).await?;
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

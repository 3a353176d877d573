//! Principals, their certificates and tokens. Keys and secrets are made here: the controller is told a public key, or a hash.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::client::Target as ServerUrl;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Write, random};
use crate::args::{
    Cert, Global, Handover, NewPrincipal, Output, Principal, PrincipalChange, PrincipalRole, PrincipalToken,
};
use crate::command::done::{Done, note_dry_run};
use crate::command::question;
use crate::context::Context;
use crate::handover::{self, Place, Secret};
use crate::output::{cell, since, table};

/// `principal`.
pub(crate) async fn principal(api: &mut Api, global: &Global, what: Principal) -> Result<()> {
    match what {
        Principal::Create(new) => create(api, global, new).await,
        Principal::List => {
            let list = api.get(&Endpoint::ListPrincipals.path(&[])).await?;
            let head = ["name", "role", "cluster", "known by", "description"];
            print(&list, "principals", &head, principal_row, global.output)
        }
        Principal::Update(change) => update(api, global, change).await,
        Principal::Delete { name } => {
            let answer = api.send(Write::to(Endpoint::DeletePrincipal, &[&name])).await?;
            let sentence = format!("principal {name} deleted");
            Done { kind: "principal", name: &name, sentence, answer }.say(api, global.output).await
        }
        Principal::Token(PrincipalToken::Create { name, handover, lifetime }) => {
            token(api, global, &name, &handover, lifetime.ttl).await
        }
        Principal::Token(PrincipalToken::Revoke { name, id }) => {
            api.send(Write::to(Endpoint::RevokeBearerToken, &[&name, &id])).await?;
            tell(api, &format!("token {id} revoked"));
            Ok(())
        }
    }
}

async fn create(api: &mut Api, global: &Global, new: NewPrincipal) -> Result<()> {
    let NewPrincipal { name, role, cluster, description, handover, lifetime } = new;
    let target = Target::of(api, global, &handover)?;
    let body = said(json!({"name": name, "role": word(role), "cluster": cluster, "description": description}));
    let answer = api.send(Write::to(Endpoint::CreatePrincipal, &[]).json(&body)).await?;
    if let Some(target) = target.filter(|_| !api.is_dry()) {
        certify(api, &name, target, lifetime.ttl).await?;
    }
    let sentence = format!("principal {name} created");
    Done { kind: "principal", name: &name, sentence, answer }.say(api, global.output).await
}

async fn update(api: &mut Api, global: &Global, change: PrincipalChange) -> Result<()> {
    let PrincipalChange { name, role, cluster, fleet, description } = change;
    let mut body = said(json!({"role": role.map(word), "cluster": cluster, "description": description}));
    if fleet {
        body["cluster"] = Value::Null;
    }
    let write = Write::to(Endpoint::PatchPrincipal, &[&name]).json(&body);
    let (mut answer, _) = api.decide(&write).await?;
    if !api.is_dry() {
        api.may_end(&name, &ended(&answer))?;
        answer = api.make(&write).await?;
    }
    let sentence = format!("principal {name} changed");
    Done { kind: "principal", name: &name, sentence, answer }.say(api, global.output).await
}

/// The certificates and tokens that end by a change of a principal, as its answer lists them.
fn ended(answer: &Value) -> Vec<&str> {
    let changes = answer.get("changes").and_then(Value::as_array).into_iter().flatten();
    let fields = changes.filter_map(|change| change.get("field")?.as_str());
    fields.filter(|field| field.starts_with("certificates.") || field.starts_with("tokens.")).collect()
}

/// `cert`.
pub(crate) async fn cert(api: &mut Api, global: &Global, what: Cert) -> Result<()> {
    match what {
        Cert::Create { name, to, url, lifetime } => {
            let target = Target::new(api, global, &to, url.as_deref())?;
            certify(api, &name, target, lifetime.ttl).await
        }
        Cert::List => {
            let list = api.get(&Endpoint::ListCertificates.path(&[])).await?;
            print(&list, "certificates", &["serial", "principal", "ends", "revoked"], certificate_row, global.output)
        }
        Cert::Renew { ttl } => renew(api, global, ttl).await,
        Cert::Revoke { serial } => {
            api.send(Write::to(Endpoint::RevokeCertificate, &[&serial])).await?;
            tell(api, &format!("certificate {serial} revoked"));
            Ok(())
        }
    }
}

/// Where another's context goes, and what it takes over of one's own.
struct Target {
    place: Place,
    url: String,
    ca: Option<String>,
}

impl Target {
    fn of(api: &Api, global: &Global, handover: &Handover) -> Result<Option<Self>> {
        handover.to.as_deref().map(|to| Self::new(api, global, to, handover.url.as_deref())).transpose()
    }

    /// All that can fail here is done before anything is asked for that would be lost.
    fn new(api: &Api, global: &Global, directory: &Path, url: Option<&str>) -> Result<Self> {
        let own = Context::load(global)?.beside_socket()?;
        let url = url.unwrap_or(&own.url).to_owned();
        let _is_one: ServerUrl = url.parse().with_context(|| format!("--url {url}"))?;
        let ca = own.ca.as_ref().map(|ca| std::fs::read_to_string(ca).with_context(|| ca.display().to_string()));
        Ok(Self { ca: ca.transpose()?, place: Place::take(directory, api.is_dry())?, url })
    }

    fn write(self, secret: &Secret<'_>) -> Result<()> {
        let directory = self.place.write(&self.url, self.ca.as_deref(), secret)?;
        tell!("use it:  stemma --context {}/context.toml get nodes", directory.display());
        Ok(())
    }
}

/// Makes a key, has it certified, and writes a context with both.
async fn certify(api: &mut Api, name: &str, target: Target, ttl_s: u64) -> Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let body = json!({"principal": name, "csr": signing_request(&key)?, "ttl_seconds": ttl_s});
    let made = api.send(Write::to(Endpoint::IssueCertificate, &[]).json(&body)).await?;
    tell(api, &told("certificate", &made, "serial", name));
    if api.is_dry() {
        return Ok(());
    }
    let chain = made.get("certificate").and_then(Value::as_str).context("the answer holds no certificate")?;
    target.write(&Secret::Certificate { chain, key: &key.serialize_pem() })
}

/// Has the key of the context certified again. The old certificate is good for another hour, so an answer that is lost is asked for again.
async fn renew(api: &mut Api, global: &Global, ttl_s: Option<u64>) -> Result<()> {
    let own = Context::load(global)?;
    let (Some(cert), Some(key)) = (&own.cert, &own.key) else {
        anyhow::bail!("the context names no certificate; make one with: stemma cert create NAME --to DIR");
    };
    let text = std::fs::read_to_string(key).with_context(|| key.display().to_string())?;
    let pair = KeyPair::from_pem(&text).with_context(|| format!("{} is no key", key.display()))?;
    let body = said(json!({"csr": signing_request(&pair)?, "ttl_seconds": ttl_s}));
    let made = api.send(Write::to(Endpoint::IssueCertificate, &[]).json(&body)).await?;
    if !api.is_dry() {
        let chain = made.get("certificate").and_then(Value::as_str).context("the answer holds no certificate")?;
        handover::replace(cert, chain)?;
    }
    let name = made.get("principal").and_then(Value::as_str).unwrap_or_default().to_owned();
    tell(api, &told("certificate", &made, "serial", &name));
    Ok(())
}

async fn token(api: &mut Api, global: &Global, name: &str, handover: &Handover, ttl_s: u64) -> Result<()> {
    let target = Target::of(api, global, handover)?;
    let secret = Hex(&random::<32>()?).to_string();
    let hash = Hex(&Sha256::digest(secret.as_bytes())).to_string();
    let body = json!({"secret_sha256": hash, "ttl_seconds": ttl_s});
    let made = api.send(Write::to(Endpoint::CreateBearerToken, &[name]).json(&body)).await?;
    if api.is_dry() {
        tell(api, "token created");
        return Ok(());
    }
    let id = made.get("id").and_then(Value::as_str).context("the answer holds no token's id")?;
    let whole = format!("{id}.{secret}");
    tell!("{}", told("token", &made, "id", name));
    match target {
        Some(target) => target.write(&Secret::Token(&whole)),
        None => {
            say!("{whole}");
            Ok(())
        }
    }
}

/// A request for a certificate of a key, which asks for nothing else.
fn signing_request(key: &KeyPair) -> Result<String> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.pem()?)
}

fn told(what: &str, made: &Value, id: &str, name: &str) -> String {
    // One that is only tried out has no number.
    let id = made.get(id).and_then(Value::as_str).map(|id| format!(" {id}")).unwrap_or_default();
    format!("{what}{id} of principal {name}, good until {}", since(made.get("ends_at")))
}

fn tell(api: &Api, sentence: &str) {
    say!("{sentence}{}", if api.is_dry() { " (dry run)" } else { "" });
    note_dry_run(api);
}

fn word(role: PrincipalRole) -> String {
    role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The same without what was not said.
fn said(mut body: Value) -> Value {
    if let Some(map) = body.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    body
}

fn print(list: &Value, name: &str, head: &[&str], row: impl Fn(&Value) -> Vec<String>, output: Output) -> Result<()> {
    let rows = list.get(name).cloned().unwrap_or_default();
    let items: Vec<&Value> = rows.as_array().into_iter().flatten().collect();
    let names: Vec<String> =
        items.iter().map(|one| cell(one.get(if name == "principals" { "name" } else { "serial" }))).collect();
    let kind = name.trim_end_matches('s');
    let shown = || table(head, items.iter().map(|one| row(one)));
    question::print_list(&rows, (kind, names.iter().map(String::as_str)), shown, output)
}

fn principal_row(one: &Value) -> Vec<String> {
    let text = |field: &str| cell(one.get(field));
    vec![text("name"), text("role"), text("cluster"), known_by(one), text("description")]
}

/// What a principal is known by, each with its end.
fn known_by(one: &Value) -> String {
    let items = |field: &str| one.get(field).and_then(Value::as_array).into_iter().flatten();
    let certificates = items("certificates").filter(|one| one.get("revoked_at").is_none_or(Value::is_null));
    let said = certificates.map(|one| ("certificate", one)).chain(items("tokens").map(|one| ("token", one)));
    let said: Vec<String> = said.map(|(kind, one)| format!("{kind} until {}", since(one.get("ends_at")))).collect();
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

fn certificate_row(one: &Value) -> Vec<String> {
    let revoked = one.get("revoked_at").filter(|at| !at.is_null());
    let revoked = revoked.map_or_else(|| "-".to_owned(), |at| since(Some(at)));
    vec![cell(one.get("serial")), cell(one.get("principal")), since(one.get("ends_at")), revoked]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_shown_with_what_is_still_good() {
        let end = "2020-01-01T00:00:00+00:00";
        let certificate = |revoked: Value| json!({"ends_at": end, "revoked_at": revoked});
        let one = |certificates: Value, tokens: Value| json!({"certificates": certificates, "tokens": tokens});
        for (one, begins) in [
            (one(json!([]), json!([])), "-"),
            (one(json!([certificate(json!(end))]), json!([])), "-"),
            (one(json!([certificate(Value::Null)]), json!([])), "certificate until 2020-01-01 00:00"),
            (one(json!([]), json!([{"ends_at": end}])), "token until 2020-01-01 00:00"),
        ] {
            assert!(known_by(&one).starts_with(begins), "{one}: {}", known_by(&one));
        }
    }

    #[test]
    fn x04_f10_what_ends_by_a_change_is_found_among_its_changes() {
        let answer = json!({"name": "carol", "changes": [
            {"field": "role", "old": "operator", "new": "admin"},
            {"field": "cluster", "old": "a"},
            {"field": "certificates.01", "old": "good"},
            {"field": "tokens.ab", "old": "good"},
        ]});
        assert_eq!(ended(&answer), ["certificates.01", "tokens.ab"]);
        assert!(ended(&Value::Null).is_empty());
    }

    #[test]
    fn a_request_for_a_certificate_asks_for_its_key_alone() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        assert!(signing_request(&key).unwrap().starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
    }
}

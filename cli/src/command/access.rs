//! Principals, their certificates and tokens. Keys and secrets are created here. The controller receives only a public
//! key or a hash.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_wire::client::Target as ServerUrl;
use stemma_wire::endpoint::Endpoint;

use crate::api::{ApiClient, WriteRequest, random_bytes};
use crate::args::{
    CertCommand, CreatePrincipalArgs, GlobalArgs, NewContextArgs, Output, PrincipalCommand, PrincipalRoleArg,
    PrincipalTokenCommand, UpdatePrincipalArgs,
};
use crate::command::read;
use crate::command::report::{WriteReport, print_dry_run};
use crate::context::ClientContext;
use crate::context_dir::{self, ContextDir, ContextSecret};
use crate::output::{cell_text, table, time_with_age};

/// Runs `principal`.
pub(crate) async fn principal(api: &mut ApiClient, global: &GlobalArgs, command: PrincipalCommand) -> Result<()> {
    match command {
        PrincipalCommand::Create(new) => create_principal(api, global, new).await,
        PrincipalCommand::List => {
            let list = api.get(&Endpoint::ListPrincipals.path(&[])).await?;
            let head = ["name", "role", "cluster", "known by", "description"];
            print_table(&list, "principals", &head, principal_row, global.output)
        }
        PrincipalCommand::Update(change) => update_principal(api, global, change).await,
        PrincipalCommand::Delete { name } => {
            let answer = api.send(WriteRequest::with_parameters(Endpoint::DeletePrincipal, &[&name])).await?;
            let sentence = format!("principal {name} deleted");
            WriteReport { kind: "principal", name: &name, sentence, answer }.print(api, global.output).await
        }
        PrincipalCommand::Token(PrincipalTokenCommand::Create { name, handover, lifetime }) => {
            create_token(api, global, &name, &handover, lifetime.ttl).await
        }
        PrincipalCommand::Token(PrincipalTokenCommand::Revoke { name, id }) => {
            api.send(WriteRequest::with_parameters(Endpoint::RevokeBearerToken, &[&name, &id])).await?;
            print_message(api, &format!("token {id} revoked"));
            Ok(())
        }
    }
}

/// Runs `principal create`. With `--to`, also creates a certificate, and a context with it.
async fn create_principal(api: &mut ApiClient, global: &GlobalArgs, new: CreatePrincipalArgs) -> Result<()> {
    let CreatePrincipalArgs { name, role, cluster, description, handover, lifetime } = new;
    let target = ContextTarget::from_args(api, global, &handover)?;
    let body = without_nulls(json!({"name": name, "role": role_word(role), "cluster": cluster, "description": description}));
    let answer = api.send(WriteRequest::with_parameters(Endpoint::CreatePrincipal, &[]).with_json(&body)).await?;
    if let Some(target) = target.filter(|_| !api.is_dry()) {
        create_certificate(api, &name, target, lifetime.ttl).await?;
    }
    let sentence = format!("principal {name} created");
    WriteReport { kind: "principal", name: &name, sentence, answer }.print(api, global.output).await
}

/// Runs `principal update`. If the change ends credentials of the principal, a person at a terminal is asked for
/// confirmation.
async fn update_principal(api: &mut ApiClient, global: &GlobalArgs, change: UpdatePrincipalArgs) -> Result<()> {
    let UpdatePrincipalArgs { name, role, cluster, fleet, description } = change;
    let mut body = without_nulls(json!({"role": role.map(role_word), "cluster": cluster, "description": description}));
    if fleet {
        body["cluster"] = Value::Null;
    }
    let write = WriteRequest::with_parameters(Endpoint::PatchPrincipal, &[&name]).with_json(&body);
    let (mut answer, _) = api.check_write(&write).await?;
    if !api.is_dry() {
        api.check_ended(&name, &ended_credentials(&answer))?;
        answer = api.send_checked(&write).await?;
    }
    let sentence = format!("principal {name} changed");
    WriteReport { kind: "principal", name: &name, sentence, answer }.print(api, global.output).await
}

/// Returns the certificates and tokens that a change of a principal ends, from the response.
fn ended_credentials(answer: &Value) -> Vec<&str> {
    let changes = answer.get("changes").and_then(Value::as_array).into_iter().flatten();
    let fields = changes.filter_map(|change| change.get("field")?.as_str());
    fields.filter(|field| field.starts_with("certificates.") || field.starts_with("tokens.")).collect()
}

/// Runs `cert`.
pub(crate) async fn cert(api: &mut ApiClient, global: &GlobalArgs, command: CertCommand) -> Result<()> {
    match command {
        CertCommand::Create { name, to, url, lifetime } => {
            let target = ContextTarget::new(api, global, &to, url.as_deref())?;
            create_certificate(api, &name, target, lifetime.ttl).await
        }
        CertCommand::List => {
            let list = api.get(&Endpoint::ListCertificates.path(&[])).await?;
            print_table(&list, "certificates", &["serial", "principal", "ends", "revoked"], certificate_row, global.output)
        }
        CertCommand::Renew { ttl } => renew_certificate(api, global, ttl).await,
        CertCommand::Revoke { serial } => {
            api.send(WriteRequest::with_parameters(Endpoint::RevokeCertificate, &[&serial])).await?;
            print_message(api, &format!("certificate {serial} revoked"));
            Ok(())
        }
    }
}

/// The context to create for a principal: its directory, its URL, and the fleet root of the caller's own context.
struct ContextTarget {
    context_dir: ContextDir,
    url: String,
    ca: Option<String>,
}

impl ContextTarget {
    fn from_args(api: &ApiClient, global: &GlobalArgs, handover: &NewContextArgs) -> Result<Option<Self>> {
        handover.to.as_deref().map(|to| Self::new(api, global, to, handover.url.as_deref())).transpose()
    }

    /// Creates the directory and reads the caller's context. Everything that can fail is done here, before a credential
    /// is requested, so that no issued credential is lost.
    fn new(api: &ApiClient, global: &GlobalArgs, directory: &Path, url: Option<&str>) -> Result<Self> {
        let context = ClientContext::load(global)?.with_socket_context()?;
        let url = url.unwrap_or(&context.url).to_owned();
        let _parsed: ServerUrl = url.parse().with_context(|| format!("--url {url}"))?;
        let ca = context.ca.as_ref().map(|ca| std::fs::read_to_string(ca).with_context(|| ca.display().to_string()));
        Ok(Self { ca: ca.transpose()?, context_dir: ContextDir::create(directory, api.is_dry())?, url })
    }

    /// Writes the context with the credential, and prints how to use it.
    fn write(self, secret: &ContextSecret<'_>) -> Result<()> {
        let directory = self.context_dir.write(&self.url, self.ca.as_deref(), secret)?;
        errln!("use it:  stemma --context {}/context.toml get nodes", directory.display());
        Ok(())
    }
}

/// Creates a key, requests a certificate for it, and writes a context with both.
async fn create_certificate(api: &mut ApiClient, name: &str, target: ContextTarget, ttl_s: u64) -> Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let body = json!({"principal": name, "csr": signing_request(&key)?, "ttl_seconds": ttl_s});
    let response = api.send(WriteRequest::with_parameters(Endpoint::IssueCertificate, &[]).with_json(&body)).await?;
    print_message(api, &created_message("certificate", &response, "serial", name));
    if api.is_dry() {
        return Ok(());
    }
    let chain = response.get("certificate").and_then(Value::as_str).context("the response contains no certificate")?;
    target.write(&ContextSecret::Certificate { chain, key: &key.serialize_pem() })
}

/// Requests a new certificate for the key of the context. The old one is accepted for another hour, so a request with a
/// lost response can be repeated.
async fn renew_certificate(api: &mut ApiClient, global: &GlobalArgs, ttl_s: Option<u64>) -> Result<()> {
    let context = ClientContext::load(global)?;
    let (Some(cert), Some(key)) = (&context.cert, &context.key) else {
        anyhow::bail!("the context names no certificate; make one with: stemma cert create NAME --to DIR");
    };
    let text = std::fs::read_to_string(key).with_context(|| key.display().to_string())?;
    let pair = KeyPair::from_pem(&text).with_context(|| format!("{} is not a private key", key.display()))?;
    let body = without_nulls(json!({"csr": signing_request(&pair)?, "ttl_seconds": ttl_s}));
    let response = api.send(WriteRequest::with_parameters(Endpoint::IssueCertificate, &[]).with_json(&body)).await?;
    if !api.is_dry() {
        let chain = response.get("certificate").and_then(Value::as_str).context("the response contains no certificate")?;
        context_dir::replace_file(cert, chain)?;
    }
    let name = response.get("principal").and_then(Value::as_str).unwrap_or_default().to_owned();
    print_message(api, &created_message("certificate", &response, "serial", &name));
    Ok(())
}

/// Runs `principal token create`. The secret is created here. It is printed once, or written into a new context with
/// `--to`.
async fn create_token(api: &mut ApiClient, global: &GlobalArgs, name: &str, handover: &NewContextArgs, ttl_s: u64) -> Result<()> {
    let target = ContextTarget::from_args(api, global, handover)?;
    let secret = Hex(&random_bytes::<32>()?).to_string();
    let hash = Hex(&Sha256::digest(secret.as_bytes())).to_string();
    let body = json!({"secret_sha256": hash, "ttl_seconds": ttl_s});
    let response = api.send(WriteRequest::with_parameters(Endpoint::CreateBearerToken, &[name]).with_json(&body)).await?;
    if api.is_dry() {
        print_message(api, "token created");
        return Ok(());
    }
    let id = response.get("id").and_then(Value::as_str).context("the response contains no token id")?;
    let token = format!("{id}.{secret}");
    errln!("{}", created_message("token", &response, "id", name));
    match target {
        Some(target) => target.write(&ContextSecret::Token(&token)),
        None => {
            outln!("{token}");
            Ok(())
        }
    }
}

/// Returns a certificate signing request that contains only the key.
fn signing_request(key: &KeyPair) -> Result<String> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.pem()?)
}

/// Returns the sentence about a new credential. `id` is the field of the response that contains its id.
fn created_message(noun: &str, response: &Value, id: &str, name: &str) -> String {
    // In a dry run there is no number.
    let id = response.get(id).and_then(Value::as_str).map(|id| format!(" {id}")).unwrap_or_default();
    format!("{noun}{id} of principal {name}, good until {}", time_with_age(response.get("ends_at")))
}

fn print_message(api: &ApiClient, sentence: &str) {
    outln!("{sentence}{}", if api.is_dry() { " (dry run)" } else { "" });
    print_dry_run(api);
}

fn role_word(role: PrincipalRoleArg) -> String {
    role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the body without its null fields.
fn without_nulls(mut body: Value) -> Value {
    if let Some(map) = body.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    body
}

/// Prints the list in the field `name` of a response: `principals` or `certificates`.
fn print_table(list: &Value, name: &str, head: &[&str], row: impl Fn(&Value) -> Vec<String>, output: Output) -> Result<()> {
    let rows = list.get(name).cloned().unwrap_or_default();
    let items: Vec<&Value> = rows.as_array().into_iter().flatten().collect();
    let names: Vec<String> =
        items.iter().map(|item| cell_text(item.get(if name == "principals" { "name" } else { "serial" }))).collect();
    let kind = name.trim_end_matches('s');
    let shown = || table(head, items.iter().map(|item| row(item)));
    read::print_list(&rows, (kind, names.iter().map(String::as_str)), shown, output)
}

fn principal_row(principal: &Value) -> Vec<String> {
    let text = |field: &str| cell_text(principal.get(field));
    vec![text("name"), text("role"), text("cluster"), credentials(principal), text("description")]
}

/// Returns the valid credentials of a principal, each with its expiry.
fn credentials(principal: &Value) -> String {
    let items = |field: &str| principal.get(field).and_then(Value::as_array).into_iter().flatten();
    let certificates = items("certificates").filter(|cert| cert.get("revoked_at").is_none_or(Value::is_null));
    let pairs = certificates.map(|one| ("certificate", one)).chain(items("tokens").map(|one| ("token", one)));
    let texts: Vec<String> = pairs.map(|(kind, one)| format!("{kind} until {}", time_with_age(one.get("ends_at")))).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

fn certificate_row(cert: &Value) -> Vec<String> {
    let revoked = cert.get("revoked_at").filter(|at| !at.is_null());
    let revoked = revoked.map_or_else(|| "-".to_owned(), |at| time_with_age(Some(at)));
    vec![cell_text(cert.get("serial")), cell_text(cert.get("principal")), time_with_age(cert.get("ends_at")), revoked]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principal_row_shows_only_valid_credentials() {
        let end = "2020-01-01T00:00:00+00:00";
        let certificate = |revoked: Value| json!({"ends_at": end, "revoked_at": revoked});
        let one = |certificates: Value, tokens: Value| json!({"certificates": certificates, "tokens": tokens});
        for (one, begins) in [
            (one(json!([]), json!([])), "-"),
            (one(json!([certificate(json!(end))]), json!([])), "-"),
            (one(json!([certificate(Value::Null)]), json!([])), "certificate until 2020-01-01 00:00"),
            (one(json!([]), json!([{"ends_at": end}])), "token until 2020-01-01 00:00"),
        ] {
            assert!(credentials(&one).starts_with(begins), "{one}: {}", credentials(&one));
        }
    }

    #[test]
    fn x04_f10_ended_credentials_are_read_from_changes() {
        let answer = json!({"name": "carol", "changes": [
            {"field": "role", "old": "operator", "new": "admin"},
            {"field": "cluster", "old": "a"},
            {"field": "certificates.01", "old": "good"},
            {"field": "tokens.ab", "old": "good"},
        ]});
        assert_eq!(ended_credentials(&answer), ["certificates.01", "tokens.ab"]);
        assert!(ended_credentials(&Value::Null).is_empty());
    }

    #[test]
    fn signing_request_contains_only_key() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        assert!(signing_request(&key).unwrap().starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
    }
}

//! Commands for principals, their certificates and tokens. Keys and secrets are created here. The controller receives
//! only a public key or a hash.

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

/// Runs `stemma principal`: creates, lists, changes and deletes principals, and creates and revokes their tokens.
pub(crate) async fn principal(api: &mut ApiClient, global: &GlobalArgs, command: PrincipalCommand) -> Result<()> {
    match command {
        PrincipalCommand::Create(args) => create_principal(api, global, args).await,
        PrincipalCommand::List => {
            let list = api.get(&Endpoint::ListPrincipals.path(&[])).await?;
            let head = ["name", "role", "cluster", "known by", "description"];
            print_table(&list, "principals", &head, principal_row, global.output)
        }
        PrincipalCommand::Update(args) => update_principal(api, global, args).await,
        PrincipalCommand::Delete { name } => {
            let response = api.send(WriteRequest::with_parameters(Endpoint::DeletePrincipal, &[&name])).await?;
            let sentence = format!("principal {name} deleted");
            WriteReport { kind: "principal", name: &name, sentence, answer: response }.print(api, global.output).await
        }
        PrincipalCommand::Token(PrincipalTokenCommand::Create { name, handover: new_context, lifetime }) => {
            create_token(api, global, &name, &new_context, lifetime.ttl).await
        }
        PrincipalCommand::Token(PrincipalTokenCommand::Revoke { name, id }) => {
            api.send(WriteRequest::with_parameters(Endpoint::RevokeBearerToken, &[&name, &id])).await?;
            print_message(api, &format!("token {id} revoked"));
            Ok(())
        }
    }
}

/// Runs `stemma principal create`. With `--to`, also creates a certificate for the principal, and writes a context that
/// contains it into a new directory.
async fn create_principal(api: &mut ApiClient, global: &GlobalArgs, args: CreatePrincipalArgs) -> Result<()> {
    let CreatePrincipalArgs { name, role, cluster, description, handover: new_context, lifetime } = args;
    // The new directory is created first. If that fails, no principal is created.
    let target = ContextTarget::from_args(api, global, &new_context)?;
    let body = without_nulls(json!({"name": name, "role": role_word(role), "cluster": cluster, "description": description}));
    let response = api.send(WriteRequest::with_parameters(Endpoint::CreatePrincipal, &[]).with_json(&body)).await?;
    if let Some(target) = target.filter(|_| !api.is_dry()) {
        create_certificate(api, &name, target, lifetime.ttl).await?;
    }
    let sentence = format!("principal {name} created");
    WriteReport { kind: "principal", name: &name, sentence, answer: response }.print(api, global.output).await
}

/// Runs `stemma principal update`. The write is first checked in a dry run. If it would end credentials of the
/// principal, a person at a terminal must confirm it, unless `--yes` is given. With `--fleet`, the cluster is removed,
/// so the role applies to the whole fleet.
async fn update_principal(api: &mut ApiClient, global: &GlobalArgs, args: UpdatePrincipalArgs) -> Result<()> {
    let UpdatePrincipalArgs { name, role, cluster, fleet, description } = args;
    let mut body = without_nulls(json!({"role": role.map(role_word), "cluster": cluster, "description": description}));
    if fleet {
        body["cluster"] = Value::Null;
    }
    let write = WriteRequest::with_parameters(Endpoint::PatchPrincipal, &[&name]).with_json(&body);
    let (mut response, _) = api.check_write(&write).await?;
    if !api.is_dry() {
        api.confirm_invalid_credentials(&name, &ended_credentials(&response))?;
        response = api.send_checked(&write).await?;
    }
    let sentence = format!("principal {name} changed");
    WriteReport { kind: "principal", name: &name, sentence, answer: response }.print(api, global.output).await
}

/// Returns the certificates and tokens that a change of a principal ends. In the response, they are changed fields such
/// as `certificates.SERIAL` or `tokens.ID`.
fn ended_credentials(response: &Value) -> Vec<&str> {
    let changes = response.get("changes").and_then(Value::as_array).into_iter().flatten();
    let fields = changes.filter_map(|change| change.get("field")?.as_str());
    fields.filter(|field| field.starts_with("certificates.") || field.starts_with("tokens.")).collect()
}

/// Runs `stemma cert`: creates, lists, renews and revokes certificates of principals.
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

/// The context to create for a principal: its directory, the controller's URL, and the fleet's root certificate from
/// the caller's own context.
struct ContextTarget {
    context_dir: ContextDir,
    url: String,
    ca: Option<String>,
}

impl ContextTarget {
    /// Creates the directory that `--to` names, as [`Self::new`] does. Returns `None` without `--to`.
    fn from_args(api: &ApiClient, global: &GlobalArgs, new_context: &NewContextArgs) -> Result<Option<Self>> {
        new_context.to.as_deref().map(|to| Self::new(api, global, to, new_context.url.as_deref())).transpose()
    }

    /// Reads the caller's context, checks the URL (if `url` is `None`, that of the caller's context), and creates the
    /// directory. In a dry run, the directory is not created, but it must not exist. These steps run before a
    /// credential is requested, so that a wrong path or URL leaves no credential behind that can't be written.
    fn new(api: &ApiClient, global: &GlobalArgs, directory: &Path, url: Option<&str>) -> Result<Self> {
        let context = ClientContext::load(global)?.with_socket_context()?;
        let url = url.unwrap_or(&context.url).to_owned();
        let _parsed: ServerUrl = url.parse().with_context(|| format!("--url {url}"))?;
        let ca = context.ca.as_ref().map(|ca| std::fs::read_to_string(ca).with_context(|| ca.display().to_string()));
        Ok(Self { ca: ca.transpose()?, context_dir: ContextDir::create(directory, api.is_dry())?, url })
    }

    /// Writes the context with a credential into the directory, and prints how to use it.
    fn write(self, secret: &ContextSecret<'_>) -> Result<()> {
        let directory = self.context_dir.write(&self.url, self.ca.as_deref(), secret)?;
        errln!("use it:  stemma --context {}/context.toml get nodes", directory.display());
        Ok(())
    }
}

/// Creates a key, requests a certificate for it, and writes a context with both. In a dry run, only the request is
/// checked. `ttl_s` is the lifetime in seconds.
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

/// Requests a new certificate for the key of the context, and replaces the context's certificate file. In a dry run,
/// the file is unchanged. The old certificate remains valid for up to an hour, or until its original expiry if the
/// controller does not trust its clock. So the request can be repeated if its response is lost.
async fn renew_certificate(api: &mut ApiClient, global: &GlobalArgs, ttl_s: Option<u64>) -> Result<()> {
    let context = ClientContext::load(global)?;
    let (Some(cert), Some(key)) = (&context.cert, &context.key) else {
        anyhow::bail!("the context names no certificate; create one with: stemma cert create NAME --to DIR");
    };
    let key_text = std::fs::read_to_string(key).with_context(|| key.display().to_string())?;
    let key_pair = KeyPair::from_pem(&key_text).with_context(|| format!("{} is not a private key", key.display()))?;
    let body = without_nulls(json!({"csr": signing_request(&key_pair)?, "ttl_seconds": ttl_s}));
    let response = api.send(WriteRequest::with_parameters(Endpoint::IssueCertificate, &[]).with_json(&body)).await?;
    if !api.is_dry() {
        let chain = response.get("certificate").and_then(Value::as_str).context("the response contains no certificate")?;
        context_dir::replace_file(cert, chain)?;
    }
    let name = response.get("principal").and_then(Value::as_str).unwrap_or_default().to_owned();
    print_message(api, &created_message("certificate", &response, "serial", &name));
    Ok(())
}

/// Runs `stemma principal token create`. The secret is created here, and the controller receives only its hash. The
/// token is printed once, or written into a new context with `--to`.
async fn create_token(api: &mut ApiClient, global: &GlobalArgs, name: &str, context: &NewContextArgs, ttl_s: u64) -> Result<()> {
    let target = ContextTarget::from_args(api, global, context)?;
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

/// Returns a certificate signing request in PEM that contains only the public key, and no name.
fn signing_request(key: &KeyPair) -> Result<String> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.pem()?)
}

/// Returns the sentence about a new credential, with its id and its expiry. `id` is the name of the response field that
/// contains the id.
fn created_message(noun: &str, response: &Value, id: &str, name: &str) -> String {
    // The response to a dry run contains no id.
    let id = response.get(id).and_then(Value::as_str).map(|id| format!(" {id}")).unwrap_or_default();
    format!("{noun}{id} of principal {name}, good until {}", time_with_age(response.get("ends_at")))
}

/// Prints a sentence about a write. In a dry run, also prints that nothing was written.
fn print_message(api: &ApiClient, sentence: &str) {
    outln!("{sentence}{}", if api.is_dry() { " (dry run)" } else { "" });
    print_dry_run(api);
}

/// Returns the name of a principal's role in the API, such as `admin`.
fn role_word(role: PrincipalRoleArg) -> String {
    role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns a request body without its null fields.
fn without_nulls(mut body: Value) -> Value {
    if let Some(map) = body.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    body
}

/// Prints a list of the response in the requested format. `field` is the field of the list: `principals` or
/// `certificates`. `row` returns the table row of an item. With `-o name`, the name of a principal or the serial number
/// of a certificate is printed.
fn print_table(list: &Value, field: &str, head: &[&str], row: impl Fn(&Value) -> Vec<String>, output: Output) -> Result<()> {
    let entries = list.get(field).cloned().unwrap_or_default();
    let items: Vec<&Value> = entries.as_array().into_iter().flatten().collect();
    let names: Vec<String> =
        items.iter().map(|item| cell_text(item.get(if field == "principals" { "name" } else { "serial" }))).collect();
    // The word before each name in `-o name` is the singular of the field.
    let kind = field.trim_end_matches('s');
    let as_table = || table(head, items.iter().map(|item| row(item)));
    read::print_list(&entries, (kind, names.iter().map(String::as_str)), as_table, output)
}

fn principal_row(principal: &Value) -> Vec<String> {
    let text = |field: &str| cell_text(principal.get(field));
    vec![text("name"), text("role"), text("cluster"), credentials(principal), text("description")]
}

/// Returns the certificates and tokens of a principal that are not revoked, each with its expiry. Returns `-` if there
/// are none.
fn credentials(principal: &Value) -> String {
    let items = |field: &str| principal.get(field).and_then(Value::as_array).into_iter().flatten();
    // The response also contains revoked certificates. It contains no revoked tokens, because these are removed.
    let certificates = items("certificates").filter(|cert| cert.get("revoked_at").is_none_or(Value::is_null));
    let pairs = certificates.map(|cert| ("certificate", cert)).chain(items("tokens").map(|token| ("token", token)));
    let texts: Vec<String> = pairs.map(|(kind, item)| format!("{kind} until {}", time_with_age(item.get("ends_at")))).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// Returns the table row of a certificate. The last cell is the time at which it was revoked, or `-`.
fn certificate_row(cert: &Value) -> Vec<String> {
    let revoked = cert.get("revoked_at").filter(|at| !at.is_null());
    let revoked = revoked.map_or_else(|| "-".to_owned(), |at| time_with_age(Some(at)));
    vec![cell_text(cert.get("serial")), cell_text(cert.get("principal")), time_with_age(cert.get("ends_at")), revoked]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_omit_revoked_certificates() {
        let end = "2020-01-01T00:00:00+00:00";
        let certificate = |revoked: Value| json!({"ends_at": end, "revoked_at": revoked});
        let principal = |certificates: Value, tokens: Value| json!({"certificates": certificates, "tokens": tokens});
        for (principal, expected_start) in [
            (principal(json!([]), json!([])), "-"),
            (principal(json!([certificate(json!(end))]), json!([])), "-"),
            (principal(json!([certificate(Value::Null)]), json!([])), "certificate until 2020-01-01 00:00"),
            (principal(json!([]), json!([{"ends_at": end}])), "token until 2020-01-01 00:00"),
        ] {
            assert!(credentials(&principal).starts_with(expected_start), "{principal}: {}", credentials(&principal));
        }
    }

    #[test]
    fn x04_f10_ended_credentials_are_read_from_changes() {
        let response = json!({"name": "carol", "changes": [
            {"field": "role", "old": "operator", "new": "admin"},
            {"field": "cluster", "old": "a"},
            {"field": "certificates.01", "old": "good"},
            {"field": "tokens.ab", "old": "good"},
        ]});
        assert_eq!(ended_credentials(&response), ["certificates.01", "tokens.ab"]);
        assert!(ended_credentials(&Value::Null).is_empty());
    }

    #[test]
    fn signing_request_begins_with_pem_header() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        assert!(signing_request(&key).unwrap().starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
    }
}

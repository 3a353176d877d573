//! The credentials of principals: certificates and bearer tokens. Both are stored in the principal, so that its
//! deletion removes them in the same commit.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stemma_core::access::CertificateSubject;
use stemma_core::digest::Hex;
use stemma_core::manifest::read_value;
use stemma_core::object::{BearerToken, Principal, PrincipalCertificate, PrincipalSpec, Timestamp, TooManyCredentials};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::changes::{LostLabels, end_change};
use super::principals::{commit, ensure_first_admin, find};
use super::writes::with_changes;
use super::{lists, view};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::ca::csr::{self, CertificateRequest as Asked};
use crate::ca::{Authority, IssuedCertificate, pem, random_bytes};
use crate::cache::Model;
use crate::cache::model::certificate_key;
use crate::enrol::token::with_secret;
use crate::records::audit::PartAction;
use crate::records::enrolled::HexBytes as Stored;
use crate::records::request::StoredAnswer;
use crate::registry::admit::bad_field;
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Credential};

/// Default lifetime of a certificate or token, in seconds: 90 days.
const DEFAULT_TTL_S: u64 = 90 * 24 * 3600;
/// Maximum lifetime of a certificate or token, in seconds: a year.
const MAX_TTL_S: u64 = 366 * 24 * 3600;

/// The body of `POST /v1/certificates`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateCertificateBody {
    /// The principal that gets the certificate. By default it is the caller, whose own certificate is then renewed.
    principal: Option<String>,
    /// A PKCS#10 request in PEM, of which only the key is used.
    csr: String,
    ttl_seconds: Option<u64>,
}

/// The body of `POST /v1/principals/{principal}/tokens`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CreatePrincipalTokenBody {
    ttl_seconds: Option<u64>,
    /// SHA-256 of a secret that the client generated. With it, neither the answer nor the stored copy of the answer
    /// contains the secret.
    secret_sha256: Option<Stored<32>>,
}

/// `GET /v1/certificates`: lists the certificates that have not ended yet, of all principals or of one.
pub(super) fn certificates(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let principal = request.query.text("principal")?.map(|id| find(&model, id).map_err(|e| e.field("principal")));
    let (principal, now) = (principal.transpose()?, api.registry.now());
    let rows = |principal: &Arc<Principal>| -> Vec<Value> {
        let name = principal.meta.name.to_string();
        let valid = principal.spec.certificates.iter().filter(|one| one.ends_at > now);
        valid.map(|one| certificate_json(&name, one)).collect()
    };
    let is_wanted = |one: &&Arc<Principal>| principal.as_ref().is_none_or(|wanted| wanted.meta.uuid == one.meta.uuid);
    lists::list_rows(request, "serial", model.principals.iter().filter(is_wanted).flat_map(rows).collect())
}

/// `POST /v1/certificates`: issues a certificate. A caller that is not an admin can request one only for itself.
pub(super) async fn issue(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: CreateCertificateBody = read_value(&request.json()?).map_err(|error| bad_field("certificate request", &error))?;
    let csr = read_csr(&wanted.csr)?;
    let authority = api.authority.as_ref().ok_or(ErrorType::ServerInternal)?;
    commit(api, request, &caller, |work| {
        let name = wanted.principal.as_deref().unwrap_or(request.principal_name());
        let ttl_s = permitted_ttl_s(&caller, &work.model, name, wanted.ttl_seconds)?;
        let before = find(&work.model, name)?;
        let certificate = PrincipalCertificate {
            serial: String::new(),
            issued_at: work.now(),
            ends_at: Timestamp(work.now().0.saturating_add(ttl_s * 1000)),
            revoked_at: None,
            made_by: caller.requester.rights_for_credential(&before, &work.model),
        };
        // A dry run issues no certificate, because the holder of the key could use it.
        if work.is_dry_run() {
            let body = certificate_json(&before.meta.name, &certificate);
            add_certificate(work, &before, certificate, renewed_serial(&caller, &wanted))?;
            return Ok(StoredAnswer::json(201, body));
        }
        let issued = issue_certificate(authority, &before, &csr, work.now(), ttl_s)?;
        let certificate = PrincipalCertificate { serial: Hex(&issued.serial).to_string(), ..certificate };
        let mut body = certificate_json(&before.meta.name, &certificate);
        body["certificate"] = issued.chain.iter().map(pem).collect::<String>().into();
        body["ca"] = pem(authority.root()).into();
        let location = Some(Endpoint::RevokeCertificate.path(&[&certificate.serial]));
        add_certificate(work, &before, certificate, renewed_serial(&caller, &wanted))?;
        Ok(StoredAnswer { location, ..StoredAnswer::json(201, body) })
    })
    .await
}

/// Adds a certificate to its principal. If it renews another certificate (`renewed`, by serial number), that one ends.
fn add_certificate(
    work: &mut PendingWrite<'_>,
    before: &Arc<Principal>,
    certificate: PrincipalCertificate,
    renewed: Option<&str>,
) -> Result<(), ApiError> {
    // With a wrong clock, the old certificate could end before the new one is valid. So unless the clock is trusted,
    // the old certificate stays valid until its own end.
    let renewed = renewed.filter(|_| work.is_clock_trusted());
    let part = (PartAction::Issued, format!("certificates.{}", certificate.serial));
    change_credentials(work, before, part, |spec| {
        if let Some(serial) = renewed {
            spec.expire_renewed(serial, certificate.issued_at);
        }
        spec.add_certificate(certificate).map_err(too_many_credentials)
    })
}

/// Returns the lifetime of a new certificate in seconds, for the principal `name`. Fails if the caller may not create
/// such a certificate.
fn permitted_ttl_s(caller: &Caller, model: &Model, name: &str, ttl_s: Option<u64>) -> Result<u64, ApiError> {
    let who = &caller.requester;
    let usual = check_ttl_s(ttl_s)?;
    let subject = match &who.credential {
        _ if name != who.name => CertificateSubject::OtherPrincipal,
        Credential::Certificate(serial) => {
            let listed = who.principal(model).and_then(|principal| principal.spec.certificate(serial));
            CertificateSubject::Caller { presented_s: listed.map(PrincipalCertificate::lifetime_seconds) }
        }
        Credential::Token(_) | Credential::Listener => CertificateSubject::Caller { presented_s: None },
    };
    who.rights.certificate_seconds(subject, ttl_s, usual).map_err(|refused| {
        let message = format!("{refused}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message).detail("an admin may make one: stemma cert create NAME --to DIR")
    })
}

/// Returns the serial number of the certificate that a request renews: the caller's own, if the request names no
/// principal.
fn renewed_serial<'a>(caller: &'a Caller, wanted: &CreateCertificateBody) -> Option<&'a str> {
    match &caller.requester.credential {
        Credential::Certificate(serial) if wanted.principal.is_none() => Some(serial),
        _ => None,
    }
}

/// `DELETE /v1/certificates/{certificate}`: revokes a certificate, which stays listed as revoked until its end.
pub(super) async fn revoke(api: &Api, request: &HttpRequest) -> HandlerResult {
    let serial = request.param("certificate");
    commit(api, request, &request.caller()?, |work| {
        let holder = work.model.principals.get_by_key(&certificate_key(serial)).cloned();
        let (before, now) = (holder.ok_or_else(|| not_found("certificate", serial))?, work.now());
        change_credentials(work, &before, (PartAction::Revoked, format!("certificates.{serial}")), |spec| {
            for certificate in spec.certificates.iter_mut().filter(|one| one.serial == serial) {
                certificate.revoked_at.get_or_insert(now);
            }
            Ok(())
        })?;
        Ok(revoked_answer(&format!("certificates.{serial}"), request, work))
    })
    .await
}

/// `POST /v1/principals/{principal}/tokens`: creates a token. Unless the client generated the secret, the answer
/// contains it, and only this answer.
pub(super) async fn create_token(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: CreatePrincipalTokenBody = read_value(&request.json()?).map_err(|error| bad_field("token", &error))?;
    let ttl_s = check_ttl_s(wanted.ttl_seconds)?;
    let no_random = |_| ApiError::new(ErrorType::ServerInternal, "the system returned no random bytes");
    let id = Hex(&random_bytes::<8>().map_err(no_random)?).to_string();
    let secret = URL_SAFE_NO_PAD.encode(random_bytes::<32>().map_err(no_random)?);
    let hash = wanted.secret_sha256.map_or_else(|| Sha256::digest(secret.as_bytes()).into(), |hash| hash.0);
    if hash == <[u8; 32]>::from(Sha256::digest(b"")) {
        let message = "secret_sha256 is the hash of an empty secret; nothing was changed";
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("secret_sha256"));
    }
    let answer = api.registry.write(&caller, |context| {
        let mut work = PendingWrite::new(context);
        ensure_first_admin(api, &mut work)?;
        let before = find(&work.model, request.param("principal"))?;
        let ends_at = Timestamp(context.now.0.saturating_add(ttl_s * 1000));
        let token = BearerToken {
            id: id.clone(),
            secret_sha256: Hex(&hash).to_string(),
            issued_at: context.now,
            ends_at,
            made_by: caller.requester.rights_for_credential(&before, &work.model),
        };
        let part = (PartAction::Made, format!("tokens.{id}"));
        change_credentials(&mut work, &before, part, |spec| spec.add_token(token).map_err(too_many_credentials))?;
        let body = json!({"id": id, "principal": before.meta.name.to_string(), "ends_at": view::format_time(ends_at)});
        let location = Some(Endpoint::RevokeBearerToken.path(&[&before.meta.name, &id]));
        work.finish(StoredAnswer { location, ..StoredAnswer::json(201, body) })
    });
    let answer = answer.await?;
    let answer = if wanted.secret_sha256.is_some() { answer } else { with_secret(answer, &caller, &id, &secret) };
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// `DELETE /v1/principals/{principal}/tokens/{token}`: revokes a token by removing it.
pub(super) async fn revoke_token(api: &Api, request: &HttpRequest) -> HandlerResult {
    let id = request.param("token");
    commit(api, request, &request.caller()?, |work| {
        let before = find(&work.model, request.param("principal"))?;
        if !before.spec.tokens.iter().any(|token| token.id == id) {
            return Err(not_found("token", id).into());
        }
        change_credentials(work, &before, (PartAction::Revoked, format!("tokens.{id}")), |spec| {
            spec.tokens.retain(|token| token.id != id);
            Ok(())
        })?;
        Ok(revoked_answer(&format!("tokens.{id}"), request, work))
    })
    .await
}

/// Returns the answer to a revocation.
fn revoked_answer(field: &str, request: &HttpRequest, work: &PendingWrite<'_>) -> StoredAnswer {
    let changes = json!([end_change(field)]);
    with_changes(StoredAnswer::empty(204), request, changes, &LostLabels::default(), work)
}

/// Changes the credentials of a principal. Credentials that have ended stay stored until there are too many.
fn change_credentials(
    work: &mut PendingWrite<'_>,
    before: &Arc<Principal>,
    part: (PartAction, String),
    edit: impl FnOnce(&mut PrincipalSpec) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut spec = before.spec.clone();
    edit(&mut spec)?;
    work.update_credentials(before, spec.without_surplus_credentials(work.prune_before()), part)
}

fn too_many_credentials(refused: TooManyCredentials) -> ApiError {
    ApiError::new(ErrorType::CertificateTooMany, format!("{refused}; nothing was changed"))
}

/// Issues a certificate to a principal for the key in a certificate request.
fn issue_certificate(
    authority: &Authority,
    principal: &Principal,
    csr: &Asked,
    now: Timestamp,
    ttl_s: u64,
) -> Result<IssuedCertificate, ApiError> {
    let name = principal.meta.name.parse().map_err(|_| ErrorType::ServerInternal)?;
    authority.issue_principal(name, csr, now.0 / 1000, ttl_s).map_err(|error| {
        log::error!(error = stemma_wire::log::error_chain(&error); "certificate could not be made");
        ErrorType::ServerInternal.into()
    })
}

/// Reads a certificate request.
fn read_csr(text: &str) -> Result<Asked, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorType::CsrInvalid, message).field("csr");
    let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
        .map_err(|_| invalid("the certificate request is not a PEM text of type CERTIFICATE REQUEST".to_owned()))?;
    csr::check(&der).map_err(|error| invalid(format!("the certificate request is refused: {error}")))
}

fn check_ttl_s(ttl_s: Option<u64>) -> Result<u64, ApiError> {
    match ttl_s.unwrap_or(DEFAULT_TTL_S) {
        ttl_s if (1..=MAX_TTL_S).contains(&ttl_s) => Ok(ttl_s),
        other => {
            let message = format!("ttl_seconds is {other}, and may be 1 to {MAX_TTL_S}");
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("ttl_seconds"))
        }
    }
}

fn not_found(what: &str, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("no principal has a {what} {}", quote(id)))
}

fn certificate_json(principal: &str, certificate: &PrincipalCertificate) -> Value {
    json!({
        "serial": Some(&certificate.serial).filter(|serial| !serial.is_empty()), "principal": principal, "issued_at": view::format_time(certificate.issued_at), "ends_at": view::format_time(certificate.ends_at),
        "revoked_at": certificate.revoked_at.map(view::format_time),
    })
}

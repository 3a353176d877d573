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

use super::changes::{LostLabels, revocation_change};
use super::principals::{commit, ensure_first_admin, find};
use super::writes::with_changes;
use super::{lists, view};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::ca::csr::{self, CertificateRequest};
use crate::ca::{Authority, IssuedCertificate, pem, random_bytes};
use crate::cache::Model;
use crate::cache::model::certificate_key;
use crate::enrol::token::add_secret_or_warning;
use crate::records::audit::PartAction;
use crate::records::enrolled::HexBytes;
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
    /// The principal that gets the certificate. By default this is the caller, and the certificate that the caller
    /// presented is renewed.
    principal: Option<String>,
    /// A PKCS#10 request in PEM, of which only the key is used.
    csr: String,
    /// The lifetime of the certificate, in seconds.
    ttl_seconds: Option<u64>,
}

/// The body of `POST /v1/principals/{principal}/tokens`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CreatePrincipalTokenBody {
    /// The lifetime of the token, in seconds.
    ttl_seconds: Option<u64>,
    /// SHA-256 of a secret that the client generated. With this hash, the controller does not learn the secret, and no
    /// answer contains it. Without this hash, the controller generates the secret, and the first answer contains it.
    secret_sha256: Option<HexBytes<32>>,
}

/// `GET /v1/certificates`: lists the certificates that have not expired, of all principals or of one principal. Revoked
/// certificates are listed until they expire.
pub(super) fn certificates(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let principal = request.query.text("principal")?.map(|id| find(&model, id).map_err(|e| e.field("principal")));
    let (principal, now) = (principal.transpose()?, api.registry.now());
    let rows = |principal: &Arc<Principal>| -> Vec<Value> {
        let name = principal.meta.name.to_string();
        let unexpired = principal.spec.certificates.iter().filter(|certificate| certificate.ends_at > now);
        unexpired.map(|certificate| certificate_json(&name, certificate)).collect()
    };
    let is_requested = |item: &&Arc<Principal>| principal.as_ref().is_none_or(|requested| requested.meta.uuid == item.meta.uuid);
    lists::list_rows(request, "serial", model.principals.iter().filter(is_requested).flat_map(rows).collect())
}

/// `POST /v1/certificates`: issues a certificate, except in a dry run. A caller that is not an admin can request a
/// certificate only for itself, and must present a certificate that the store lists for this principal. The lifetime of
/// the new certificate is then at most that of the presented one.
pub(super) async fn issue(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let input: CreateCertificateBody = read_value(&request.json()?).map_err(|error| bad_field("certificate request", &error))?;
    let csr = read_csr(&input.csr)?;
    let authority = api.authority.as_ref().ok_or(ErrorType::ServerInternal)?;
    commit(api, request, &caller, |work| {
        let name = input.principal.as_deref().unwrap_or(request.principal_name());
        let ttl_s = permitted_ttl_s(&caller, &work.model, name, input.ttl_seconds)?;
        let principal = find(&work.model, name)?;
        let certificate = PrincipalCertificate {
            serial: String::new(),
            issued_at: work.now(),
            ends_at: Timestamp(work.now().0.saturating_add(ttl_s * 1000)),
            revoked_at: None,
            made_by: caller.requester.rights_for_credential(&principal, &work.model),
        };
        // `made_by` records the issuer's rights. They decide whether the certificate is revoked when the principal gets
        // more rights. A dry run issues no certificate, because the holder of the key could use it.
        if work.is_dry_run() {
            let body = certificate_json(&principal.meta.name, &certificate);
            add_certificate(work, &principal, certificate, renewed_serial(&caller, &input))?;
            return Ok(StoredAnswer::json(201, body));
        }
        let issued_certificate = issue_certificate(authority, &principal, &csr, work.now(), ttl_s)?;
        let certificate = PrincipalCertificate { serial: Hex(&issued_certificate.serial).to_string(), ..certificate };
        let mut body = certificate_json(&principal.meta.name, &certificate);
        body["certificate"] = issued_certificate.chain.iter().map(pem).collect::<String>().into();
        body["ca"] = pem(authority.root()).into();
        let location = Some(Endpoint::RevokeCertificate.path(&[&certificate.serial]));
        add_certificate(work, &principal, certificate, renewed_serial(&caller, &input))?;
        Ok(StoredAnswer { location, ..StoredAnswer::json(201, body) })
    })
    .await
}

/// Adds a certificate to its principal. `renewed` is the serial number of the certificate that is renewed, if any. If
/// the clock is trusted, that certificate then expires after at most one hour.
fn add_certificate(
    work: &mut PendingWrite<'_>,
    principal: &Arc<Principal>,
    certificate: PrincipalCertificate,
    renewed: Option<&str>,
) -> Result<(), ApiError> {
    // With a wrong clock, the old certificate could expire before the new one is valid. So unless the clock is trusted,
    // the old certificate stays valid until its original expiry.
    let renewed = renewed.filter(|_| work.is_clock_trusted());
    let change = (PartAction::Issued, format!("certificates.{}", certificate.serial));
    change_credentials(work, principal, change, |spec| {
        if let Some(serial) = renewed {
            spec.expire_after_renewal(serial, certificate.issued_at);
        }
        spec.add_certificate(certificate).map_err(too_many_credentials)
    })
}

/// Returns the lifetime of a new certificate in seconds. `name` is the principal that gets it, and `ttl_s` the
/// requested lifetime. A caller that is not an admin may create a certificate only for itself, and must present one.
/// The lifetime of the new certificate is then at most that of the presented one.
///
/// # Errors
/// Fails if the caller may not create a certificate for that principal with that lifetime.
fn permitted_ttl_s(caller: &Caller, model: &Model, name: &str, ttl_s: Option<u64>) -> Result<u64, ApiError> {
    let requester = &caller.requester;
    let checked_ttl_s = check_ttl_s(ttl_s)?;
    let subject = match &requester.credential {
        _ if name != requester.name => CertificateSubject::OtherPrincipal,
        Credential::Certificate(serial) => {
            let presented = requester.principal(model).and_then(|principal| principal.spec.certificate(serial));
            CertificateSubject::Caller { presented_s: presented.map(PrincipalCertificate::lifetime_seconds) }
        }
        Credential::Token(_) | Credential::Listener => CertificateSubject::Caller { presented_s: None },
    };
    requester.rights.certificate_seconds(subject, ttl_s, checked_ttl_s).map_err(|denial| {
        let message = format!("{denial}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message).detail("an admin may create one: stemma cert create NAME --to DIR")
    })
}

/// Returns the serial number of the certificate that a request renews: the certificate that the caller presented, if
/// the request names no principal.
fn renewed_serial<'a>(caller: &'a Caller, requested: &CreateCertificateBody) -> Option<&'a str> {
    match &caller.requester.credential {
        Credential::Certificate(serial) if requested.principal.is_none() => Some(serial),
        _ => None,
    }
}

/// `DELETE /v1/certificates/{certificate}`: revokes a certificate. It stays listed as revoked until it expires.
pub(super) async fn revoke(api: &Api, request: &HttpRequest) -> HandlerResult {
    let serial = request.param("certificate");
    commit(api, request, &request.caller()?, |work| {
        let holder = work.model.principals.get_by_key(&certificate_key(serial)).cloned();
        let (principal, now) = (holder.ok_or_else(|| not_found("certificate", serial))?, work.now());
        change_credentials(work, &principal, (PartAction::Revoked, format!("certificates.{serial}")), |spec| {
            for certificate in spec.certificates.iter_mut().filter(|listed| listed.serial == serial) {
                certificate.revoked_at.get_or_insert(now);
            }
            Ok(())
        })?;
        Ok(revoked_answer(&format!("certificates.{serial}"), request, work))
    })
    .await
}

/// `POST /v1/principals/{principal}/tokens`: creates a token. Only this answer contains the secret, unless the client
/// generated the secret.
pub(super) async fn create_token(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let requested: CreatePrincipalTokenBody = read_value(&request.json()?).map_err(|error| bad_field("token", &error))?;
    let ttl_s = check_ttl_s(requested.ttl_seconds)?;
    let no_random = |_| ApiError::new(ErrorType::ServerInternal, "the system returned no random bytes");
    let id = Hex(&random_bytes::<8>().map_err(no_random)?).to_string();
    let secret = URL_SAFE_NO_PAD.encode(random_bytes::<32>().map_err(no_random)?);
    let hash = requested.secret_sha256.map_or_else(|| Sha256::digest(secret.as_bytes()).into(), |hash| hash.0);
    // The hash may be that of a client's secret, so an empty secret is refused by its known hash.
    if hash == <[u8; 32]>::from(Sha256::digest(b"")) {
        let message = "secret_sha256 is the hash of an empty secret; nothing was changed";
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("secret_sha256"));
    }
    let answer = api.registry.write(&caller, |context| {
        let mut work = PendingWrite::new(context);
        ensure_first_admin(api, &mut work)?;
        let principal = find(&work.model, request.param("principal"))?;
        let ends_at = Timestamp(context.now.0.saturating_add(ttl_s * 1000));
        let token = BearerToken {
            id: id.clone(),
            secret_sha256: Hex(&hash).to_string(),
            issued_at: context.now,
            ends_at,
            made_by: caller.requester.rights_for_credential(&principal, &work.model),
        };
        let change = (PartAction::Made, format!("tokens.{id}"));
        change_credentials(&mut work, &principal, change, |spec| spec.add_token(token).map_err(too_many_credentials))?;
        let body = json!({"id": id, "principal": principal.meta.name.to_string(), "ends_at": view::format_time(ends_at)});
        let location = Some(Endpoint::RevokeBearerToken.path(&[&principal.meta.name, &id]));
        work.finish(StoredAnswer { location, ..StoredAnswer::json(201, body) })
    });
    let answer = answer.await?;
    // If the answer is that of an earlier, identical request, a warning replaces the secret, which is not stored.
    let answer = if requested.secret_sha256.is_some() { answer } else { add_secret_or_warning(answer, &caller, &id, &secret) };
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// `DELETE /v1/principals/{principal}/tokens/{token}`: revokes a token by removing it.
pub(super) async fn revoke_token(api: &Api, request: &HttpRequest) -> HandlerResult {
    let id = request.param("token");
    commit(api, request, &request.caller()?, |work| {
        let principal = find(&work.model, request.param("principal"))?;
        if !principal.spec.tokens.iter().any(|token| token.id == id) {
            return Err(not_found("token", id).into());
        }
        change_credentials(work, &principal, (PartAction::Revoked, format!("tokens.{id}")), |spec| {
            spec.tokens.retain(|token| token.id != id);
            Ok(())
        })?;
        Ok(revoked_answer(&format!("tokens.{id}"), request, work))
    })
    .await
}

/// Returns the answer to a revocation. `field` is the path of the revoked certificate or token in its principal.
fn revoked_answer(field: &str, request: &HttpRequest, work: &PendingWrite<'_>) -> StoredAnswer {
    let changes = json!([revocation_change(field)]);
    with_changes(StoredAnswer::empty(204), request, changes, &LostLabels::default(), work)
}

/// Changes the credentials of a principal with `edit`. `change` is the effect on a credential and the path of that
/// credential, for the audit. Expired credentials are removed only if the principal has too many credentials.
fn change_credentials(
    work: &mut PendingWrite<'_>,
    principal: &Arc<Principal>,
    change: (PartAction, String),
    edit: impl FnOnce(&mut PrincipalSpec) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut spec = principal.spec.clone();
    edit(&mut spec)?;
    work.update_credentials(principal, spec.without_surplus_credentials(work.prune_before()), change)
}

/// Returns the error for a principal with the maximum number of credentials.
fn too_many_credentials(error: TooManyCredentials) -> ApiError {
    ApiError::new(ErrorType::CertificateTooMany, format!("{error}; nothing was changed"))
}

/// Issues a certificate to a principal for the key in a certificate request.
fn issue_certificate(
    authority: &Authority,
    principal: &Principal,
    csr: &CertificateRequest,
    now: Timestamp,
    ttl_s: u64,
) -> Result<IssuedCertificate, ApiError> {
    let name = principal.meta.name.parse().map_err(|_| ErrorType::ServerInternal)?;
    authority.issue_principal(name, csr, now.0 / 1000, ttl_s).map_err(|error| {
        log::error!(error = stemma_wire::log::error_chain(&error); "certificate could not be issued");
        ErrorType::ServerInternal.into()
    })
}

/// Reads a certificate request from PEM. Fails if the request is not valid.
fn read_csr(text: &str) -> Result<CertificateRequest, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorType::CsrInvalid, message).field("csr");
    let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
        .map_err(|_| invalid("the certificate request is not a PEM text of type CERTIFICATE REQUEST".to_owned()))?;
    csr::check(&der).map_err(|error| invalid(format!("the certificate request is refused: {error}")))
}

/// Returns the requested lifetime or the default one, in seconds. Fails if it is 0 or over the maximum.
fn check_ttl_s(ttl_s: Option<u64>) -> Result<u64, ApiError> {
    match ttl_s.unwrap_or(DEFAULT_TTL_S) {
        ttl_s if (1..=MAX_TTL_S).contains(&ttl_s) => Ok(ttl_s),
        other => {
            let message = format!("ttl_seconds is {other}, and may be 1 to {MAX_TTL_S}");
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("ttl_seconds"))
        }
    }
}

/// Returns the error for a credential that no principal has. `credential` is the word for its type.
fn not_found(credential: &str, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("no principal has a {credential} {}", quote(id)))
}

/// Returns the JSON of a certificate without its PEM text. A dry run issues none, so its JSON has no serial number.
fn certificate_json(principal: &str, certificate: &PrincipalCertificate) -> Value {
    json!({
        "serial": Some(&certificate.serial).filter(|serial| !serial.is_empty()), "principal": principal, "issued_at": view::format_time(certificate.issued_at), "ends_at": view::format_time(certificate.ends_at),
        "revoked_at": certificate.revoked_at.map(view::format_time),
    })
}

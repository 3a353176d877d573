//! By what principals are known: certificates and bearer tokens. Both stand on the principal, so that it goes with them in one commit.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stemma_core::access::ForWhom;
use stemma_core::digest::Hex;
use stemma_core::manifest::read_value;
use stemma_core::object::{BearerToken, Principal, PrincipalCertificate, PrincipalSpec, Timestamp, TooMany};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::changes::{LostLabels, ended};
use super::principals::{commit, keep_first, named};
use super::writes::tell;
use super::{lists, view};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::ca::csr::{self, Request as Asked};
use crate::ca::{Authority, Issued, pem, random};
use crate::cache::Model;
use crate::cache::model::certificate_key;
use crate::enrol::token::with_secret;
use crate::records::audit::PartAction;
use crate::records::enrolled::Hex as Stored;
use crate::records::request::Answer;
use crate::registry::admit::bad_field;
use crate::registry::work::Work;
use crate::registry::{Caller, Shown};

/// For how long a certificate or token is good, unless said otherwise: 90 days.
const DEFAULT_TTL_S: u64 = 90 * 24 * 3600;
/// The longest that one is good for: a year.
const LONGEST_TTL_S: u64 = 366 * 24 * 3600;

/// The body of `POST /v1/certificates`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedCertificate {
    /// For whom. Unless said, for oneself, in the place of the certificate that is shown.
    principal: Option<String>,
    /// A PKCS#10 request in PEM, of which only the key is taken.
    csr: String,
    ttl_seconds: Option<u64>,
}

/// The body of `POST /v1/principals/{principal}/tokens`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WantedToken {
    ttl_seconds: Option<u64>,
    /// SHA-256 of a secret that the client made and keeps: then no answer, and nothing that is kept of one, holds it.
    secret_sha256: Option<Stored<32>>,
}

/// `GET /v1/certificates`.
pub(super) fn certificates(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let principal = request.query.text("principal")?.map(|id| named(&model, id).map_err(|e| e.field("principal")));
    let (principal, now) = (principal.transpose()?, api.registry.now());
    let of = |principal: &Arc<Principal>| -> Vec<Value> {
        let name = principal.meta.name.to_string();
        let good = principal.spec.certificates.iter().filter(|one| one.ends_at > now);
        good.map(|one| shown(&name, one)).collect()
    };
    let is_asked = |one: &&Arc<Principal>| principal.as_ref().is_none_or(|wanted| wanted.meta.uuid == one.meta.uuid);
    lists::of_rows(request, "serial", model.principals.iter().filter(is_asked).flat_map(of).collect())
}

/// `POST /v1/certificates`. Whoever is no admin asks for itself.
pub(super) async fn issue(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: WantedCertificate =
        read_value(&request.json()?).map_err(|error| bad_field("certificate request", &error))?;
    let asked = read_request(&wanted.csr)?;
    let authority = api.authority.as_ref().ok_or(ErrorType::ServerInternal)?;
    commit(api, request, &caller, |work| {
        let name = wanted.principal.as_deref().unwrap_or(request.principal());
        let ttl_s = permitted(&caller, &work.model, name, wanted.ttl_seconds)?;
        let before = named(&work.model, name)?;
        let certificate = PrincipalCertificate {
            serial: String::new(),
            issued_at: work.now(),
            ends_at: Timestamp(work.now().0.saturating_add(ttl_s * 1000)),
            revoked_at: None,
            made_by: caller.who.makes_for(&before, &work.model),
        };
        // One that is only tried out is not made: it would be good for whoever has the key.
        if work.is_dry_run() {
            let body = shown(&before.meta.name, &certificate);
            list(work, &before, certificate, renewed(&caller, &wanted))?;
            return Ok(Answer::json(201, body));
        }
        let issued = issued(authority, &before, &asked, work.now(), ttl_s)?;
        let certificate = PrincipalCertificate { serial: Hex(&issued.serial).to_string(), ..certificate };
        let mut body = shown(&before.meta.name, &certificate);
        body["certificate"] = issued.chain.iter().map(pem).collect::<String>().into();
        body["ca"] = pem(authority.root()).into();
        let location = Some(Endpoint::RevokeCertificate.path(&[&certificate.serial]));
        list(work, &before, certificate, renewed(&caller, &wanted))?;
        Ok(Answer { location, ..Answer::json(201, body) })
    })
    .await
}

/// Lists a certificate on its principal, in the place of the one that is renewed by it.
fn list(
    work: &mut Work<'_>,
    before: &Arc<Principal>,
    certificate: PrincipalCertificate,
    renewed: Option<&str>,
) -> Result<(), ApiError> {
    // By a clock that is wrong the old one may end before the new one is good. It goes on to its own end then.
    let renewed = renewed.filter(|_| work.is_clock_good());
    let part = (PartAction::Issued, format!("certificates.{}", certificate.serial));
    change(work, before, part, |spec| {
        if let Some(serial) = renewed {
            spec.end_renewed(serial, certificate.issued_at);
        }
        spec.add_certificate(certificate).map_err(too_many)
    })
}

/// For how long a certificate will be good, where whoever asks may have it.
fn permitted(caller: &Caller, model: &Model, name: &str, asked: Option<u64>) -> Result<u64, ApiError> {
    let who = &caller.who;
    let usual = bounded(asked)?;
    let whose = match &who.shown {
        _ if name != who.name => ForWhom::Another,
        Shown::Certificate(serial) => {
            let listed = who.principal(model).and_then(|one| one.spec.certificate(serial));
            ForWhom::Oneself { shown_s: listed.map(PrincipalCertificate::seconds) }
        }
        Shown::Token(_) | Shown::Way => ForWhom::Oneself { shown_s: None },
    };
    who.rights.certificate_seconds(whose, asked, usual).map_err(|refused| {
        let message = format!("{refused}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message)
            .detail("an admin may make one: stemma cert create NAME --to DIR")
    })
}

/// The serial number of the certificate in whose place another is asked for.
fn renewed<'a>(caller: &'a Caller, wanted: &WantedCertificate) -> Option<&'a str> {
    match &caller.who.shown {
        Shown::Certificate(serial) if wanted.principal.is_none() => Some(serial),
        _ => None,
    }
}

/// `DELETE /v1/certificates/{certificate}`: it stays listed until its end, as revoked.
pub(super) async fn revoke(api: &Api, request: &Request) -> HandlerResult {
    let serial = request.part("certificate");
    commit(api, request, &request.caller()?, |work| {
        let found = work.model.principals.keyed(&certificate_key(serial)).cloned();
        let (before, now) = (found.ok_or_else(|| missing("certificate", serial))?, work.now());
        change(work, &before, (PartAction::Revoked, format!("certificates.{serial}")), |spec| {
            for one in spec.certificates.iter_mut().filter(|one| one.serial == serial) {
                one.revoked_at.get_or_insert(now);
            }
            Ok(())
        })?;
        Ok(gone(&format!("certificates.{serial}"), request, work))
    })
    .await
}

/// `POST /v1/principals/{principal}/tokens`.
pub(super) async fn create_token(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: WantedToken = read_value(&request.json()?).map_err(|error| bad_field("token", &error))?;
    let ttl_s = bounded(wanted.ttl_seconds)?;
    let no_random = |_| ApiError::new(ErrorType::ServerInternal, "the system gave no random bytes");
    let id = Hex(&random::<8>().map_err(no_random)?).to_string();
    let secret = URL_SAFE_NO_PAD.encode(random::<32>().map_err(no_random)?);
    let hash = wanted.secret_sha256.map_or_else(|| Sha256::digest(secret.as_bytes()).into(), |hash| hash.0);
    if hash == <[u8; 32]>::from(Sha256::digest(b"")) {
        let message = "secret_sha256 is the hash of no secret at all; nothing was changed";
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("secret_sha256"));
    }
    let answer = api.registry.write(&caller, |context| {
        let mut work = Work::on(context);
        keep_first(api, &mut work)?;
        let before = named(&work.model, request.part("principal"))?;
        let ends_at = Timestamp(context.now.0.saturating_add(ttl_s * 1000));
        let token = BearerToken {
            id: id.clone(),
            secret_sha256: Hex(&hash).to_string(),
            issued_at: context.now,
            ends_at,
            made_by: caller.who.makes_for(&before, &work.model),
        };
        let part = (PartAction::Made, format!("tokens.{id}"));
        change(&mut work, &before, part, |spec| spec.add_token(token).map_err(too_many))?;
        let body = json!({"id": id, "principal": before.meta.name.to_string(), "ends_at": view::time(ends_at)});
        let location = Some(Endpoint::RevokeBearerToken.path(&[&before.meta.name, &id]));
        work.finish(Answer { location, ..Answer::json(201, body) })
    });
    let answer = answer.await?;
    let answer = if wanted.secret_sha256.is_some() { answer } else { with_secret(answer, &caller, &id, &secret) };
    Ok(Reply::written(answer, &request.base))
}

/// `DELETE /v1/principals/{principal}/tokens/{token}`.
pub(super) async fn revoke_token(api: &Api, request: &Request) -> HandlerResult {
    let id = request.part("token");
    commit(api, request, &request.caller()?, |work| {
        let before = named(&work.model, request.part("principal"))?;
        if !before.spec.tokens.iter().any(|token| token.id == id) {
            return Err(missing("token", id).into());
        }
        change(work, &before, (PartAction::Revoked, format!("tokens.{id}")), |spec| {
            spec.tokens.retain(|token| token.id != id);
            Ok(())
        })?;
        Ok(gone(&format!("tokens.{id}"), request, work))
    })
    .await
}

/// The answer to what takes something back.
fn gone(field: &str, request: &Request, work: &Work<'_>) -> Answer {
    let changes = json!([ended(field)]);
    tell(Answer::empty(204), request, changes, &LostLabels::default(), work)
}

/// Changes what a principal is known by. What has ended stays listed, but for what is too much.
fn change(
    work: &mut Work<'_>,
    before: &Arc<Principal>,
    part: (PartAction, String),
    edit: impl FnOnce(&mut PrincipalSpec) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut spec = before.spec.clone();
    edit(&mut spec)?;
    work.change_known_by(before, spec.without_surplus(work.forgets_until()), part)
}

fn too_many(refused: TooMany) -> ApiError {
    ApiError::new(ErrorType::CertificateTooMany, format!("{refused}; nothing was changed"))
}

fn issued(
    authority: &Authority,
    principal: &Principal,
    asked: &Asked,
    now: Timestamp,
    ttl_s: u64,
) -> Result<Issued, ApiError> {
    let name = principal.meta.name.parse().map_err(|_| ErrorType::ServerInternal)?;
    authority.issue_principal(name, asked, now.0 / 1000, ttl_s).map_err(|error| {
        log::error!(error = stemma_wire::log::chain(&error); "certificate could not be made");
        ErrorType::ServerInternal.into()
    })
}

/// Reads a request for a certificate.
fn read_request(text: &str) -> Result<Asked, ApiError> {
    let refused = |message: String| ApiError::new(ErrorType::CsrInvalid, message).field("csr");
    let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
        .map_err(|_| refused("the certificate request is no PEM text of a CERTIFICATE REQUEST".to_owned()))?;
    csr::check(&der).map_err(|error| refused(format!("the certificate request is refused: {error}")))
}

fn bounded(ttl_s: Option<u64>) -> Result<u64, ApiError> {
    match ttl_s.unwrap_or(DEFAULT_TTL_S) {
        ttl_s if (1..=LONGEST_TTL_S).contains(&ttl_s) => Ok(ttl_s),
        other => {
            let message = format!("ttl_seconds is {other}, and may be 1 to {LONGEST_TTL_S}");
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("ttl_seconds"))
        }
    }
}

fn missing(what: &str, id: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("there is no {what} {} of a principal", quote(id)))
}

fn shown(principal: &str, one: &PrincipalCertificate) -> Value {
    json!({
        "serial": Some(&one.serial).filter(|serial| !serial.is_empty()), "principal": principal, "issued_at": view::time(one.issued_at), "ends_at": view::time(one.ends_at),
        "revoked_at": one.revoked_at.map(view::time),
    })
}

//! Authenticates a caller by certificate, by token, or by the listener, and checks that the result is still valid.
//!
//! The check runs for each request, not for each connection. It also runs for each piece of a response that is sent in
//! pieces. So a revocation takes effect at once.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::HeaderMap;
use sha2::{Digest, Sha256};
use stemma_core::digest::Hex;
use stemma_core::object::Principal;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::check_token;
use stemma_wire::serve::{AdmitOutcome, PRINCIPAL_LIMIT_REASON, Peer};
use stemma_wire::tls::Identity;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::Api;
use super::http::auth::{ANONYMOUS, AmbiguousToken, AuthFailure, optional_token, request_token};
use super::http::serve::ListenerAuth;
use crate::ca::FIRST_ADMIN;
use crate::cache::Model;
use crate::cache::model::token_key;
use crate::enrol;
use crate::registry::{Credential, Requester, certificate_holder};

/// The advice for a join token that is used as a principal's token.
const JOIN_TOKEN_HINT: &str =
    "it is a join token for hosts, not a principal's token; create one with `stemma principal token create`";

/// The name of a caller on the Unix socket that sends no token.
const ROOT_NAME: &str = "root";

impl Api {
    /// Returns the caller. On a listener with certificates, a token has precedence over the certificate. The result is
    /// `None` if the request has neither a token nor the certificate of a principal. On any other listener, a caller
    /// without a principal's token is an admin.
    ///
    /// # Errors
    /// [`AuthFailure`], if the credentials are invalid, or if there are too many connections.
    pub(super) fn authenticate(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Requester>, AuthFailure> {
        let model = self.cache().model();
        // On each listener, a caller that tries to use a token must not be treated as someone else, such as the
        // listener's admin or the holder of a certificate. So a malformed token is refused first.
        let token = optional_token(headers).map_err(|AmbiguousToken| ambiguous_token())?;
        match (self.listener_auth, request_token(headers)) {
            (ListenerAuth::Root, _) => self.by_listener_or_token(peer, &model, token, ROOT_NAME),
            (ListenerAuth::Loopback, _) => self.by_listener_or_token(peer, &model, token, FIRST_ADMIN),
            (ListenerAuth::Certificates, Some(text)) => match self.authenticate_token(&model, text) {
                Ok(requester) => {
                    if let Some(peer) = peer {
                        self.admit_connection(peer, &requester)?;
                        peer.mark_authenticated();
                    }
                    Ok(Some(requester))
                }
                Err(wrong_token) => Err(self.auth_failure(peer, wrong_token)),
            },
            (ListenerAuth::Certificates, None) => match peer.and_then(|peer| peer.identity.as_ref()) {
                Some(identity) => self.authenticate_certificate(&model, identity),
                None => Ok(None),
            },
        }
    }

    /// Returns the caller on a listener where every caller is an admin, except a caller with a principal's token. A
    /// request with such a token comes from the token's principal. `name` is the name of the admin.
    fn by_listener_or_token(
        &self,
        peer: Option<&Peer>,
        model: &Model,
        token: Option<&str>,
        name: &str,
    ) -> Result<Option<Requester>, AuthFailure> {
        let Some(text) = token else { return Ok(Some(Requester::from_listener(name))) };
        self.authenticate_token(model, text).map(Some).map_err(|wrong_token| self.auth_failure(peer, wrong_token))
    }

    /// Returns the failure for an invalid token. If the token may be a guess, counts the attempt for the client's
    /// address. After too many attempts the type of the failure is `ServerBusy` instead of `AuthRequired`, so the client
    /// has to wait before it tries again.
    fn auth_failure(&self, peer: Option<&Peer>, wrong_token: WrongToken) -> AuthFailure {
        let address = peer.map(|peer| peer.address.ip()).filter(|_| wrong_token.is_guess);
        let is_busy = address.is_some_and(|client| !self.record_attempt(client));
        let kind = if is_busy { ErrorType::ServerBusy } else { ErrorType::AuthRequired };
        let refusal = ApiError::new(kind, "the token is unknown, has expired or was revoked");
        let refusal = if wrong_token.is_join_token { refusal.detail(JOIN_TOKEN_HINT) } else { refusal };
        AuthFailure { refusal: Box::new(refusal), name: wrong_token.name, uuid: wrong_token.uuid }
    }

    /// Counts the connection for the principal whose token the request has.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`], if there are too many connections and none of them can be closed instead.
    fn admit_connection(&self, peer: &Peer, requester: &Requester) -> Result<(), AuthFailure> {
        let outcome = peer.admit(&requester.holder());
        // Counts a refusal if the connection got no place, and also if another connection was closed to make a place.
        if outcome != AdmitOutcome::Admitted {
            self.rejections.record(PRINCIPAL_LIMIT_REASON, Some(peer.address.ip()));
        }
        if outcome != AdmitOutcome::Full {
            return Ok(());
        }
        let message = "there are too many connections, of you or of all clients; nothing was changed, close some and try again";
        let refusal = Box::new(ApiError::new(ErrorType::ServerBusy, message));
        Err(AuthFailure { refusal, name: requester.name.clone(), uuid: requester.uuid })
    }

    /// Returns the API restricted to what a principal can see.
    pub(super) fn visible_to(self: Arc<Self>, requester: &Requester) -> Arc<Self> {
        match requester.rights.cluster {
            None => self,
            cluster => Arc::new(Self { visible_cluster: cluster, ..Self::clone(&self) }),
        }
    }

    /// Fails if the caller's principal, role, cluster or credential has changed since the request began.
    ///
    /// # Errors
    /// As [`Requester::recheck`].
    pub(super) fn recheck(&self, requester: &Requester) -> Result<(), ApiError> {
        requester.recheck(&self.cache().model(), self.registry.now())
    }

    /// Returns whether to close the connections of a certificate's holder, because the certificate was revoked or has
    /// expired, or because its principal was deleted.
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        self.authenticate_certificate(&self.cache().model(), identity).is_err()
    }

    /// Returns the principal of a client certificate, or `None` for a certificate of another class, such as a host's.
    fn authenticate_certificate(&self, model: &Model, identity: &Identity) -> Result<Option<Requester>, AuthFailure> {
        let Some(name) = identity.class.principal_name().map(ToString::to_string) else { return Ok(None) };
        let uuid = certificate_holder(model, identity);
        let failure = |refusal| AuthFailure { refusal: Box::new(refusal), name: name.clone(), uuid };
        let now = self.registry.now();
        // `now` is in milliseconds.
        if identity.is_expired_at(now.0 / 1000) {
            let message = "the certificate has ended; another is needed";
            return Err(failure(ApiError::new(ErrorType::AuthRequired, message)));
        }
        let credential = Credential::Certificate(Hex(&identity.serial).to_string());
        let requester = match model.principals.get_by_name(None, &name) {
            Some(principal) => Requester::from_principal(principal, credential),
            // The fleet was created by a version without principals. Its admin is stored together with the first
            // principal.
            None if name == FIRST_ADMIN => Requester { credential, ..Requester::from_listener(name.clone()) },
            None => return Err(failure(ErrorType::AuthRevoked.into())),
        };
        requester.recheck(model, now).map_err(failure)?;
        Ok(Some(requester))
    }

    /// Finds the principal of a token. The comparison of the secret takes the same time whether or not the secret is
    /// correct. So a client cannot guess the secret from the duration.
    fn authenticate_token(&self, model: &Model, text: &str) -> Result<Requester, WrongToken> {
        let (id, secret) = text.split_once('.').unwrap_or((text, ""));
        let digest = Hex(&Sha256::digest(secret.as_bytes())).to_string();
        let token_of = |principal: &Principal| principal.spec.tokens.iter().find(|token| token.id == id).cloned();
        let found = model.principals.get_by_key(&token_key(id)).and_then(|principal| Some((principal, token_of(principal)?)));
        // For an unknown id, the digest is compared with zeros, which are the digest of no known secret.
        let expected = found.as_ref().map_or_else(|| "0".repeat(64), |(_, token)| token.secret_sha256.clone());
        // An empty secret is never accepted.
        let is_equal = bool::from(digest.as_bytes().ct_eq(expected.as_bytes())) && !secret.is_empty();
        match found {
            Some((principal, token)) if is_equal && token.ends_at > self.registry.now() => {
                Ok(Requester::from_principal(principal, Credential::Token(token.id)))
            }
            // The secret is correct, and the token has expired.
            Some((principal, _)) if is_equal => Err(WrongToken {
                name: principal.meta.name.to_string(),
                uuid: Some(principal.meta.uuid),
                is_guess: false,
                is_join_token: false,
            }),
            Some((_, token)) => Err(WrongToken::new(format!("token/{}", token.id), model, text)),
            None => Err(WrongToken::new(ANONYMOUS.to_owned(), model, text)),
        }
    }

    /// Counts a wrong token from a client address. Returns false if the network of this address, or all networks
    /// together, had sent too many wrong tokens before. The response then asks the client to try again later.
    fn record_attempt(&self, address: IpAddr) -> bool {
        // The clock of the registry counts milliseconds.
        let now_s = self.registry.now().0 / 1000;
        let is_allowed = self.token_attempts.is_allowed(address, now_s);
        let has_attempts_left = self.token_attempts.record_failure(address, now_s) && is_allowed;
        if !has_attempts_left {
            self.rejections.record("token_guesses", Some(address));
        }
        has_attempts_left
    }
}

/// Returns the failure for a request that may contain a principal's token, but not exactly one in the valid form.
fn ambiguous_token() -> AuthFailure {
    let message = "the request has something that looks like a principal's token but is not exactly one; nothing was changed";
    let advice = "send exactly one token, as `Authorization: Bearer ID.SECRET` or as `X-Auth-Token: ID.SECRET`, or none";
    let refusal = Box::new(ApiError::new(ErrorType::AuthRequired, message).detail(advice));
    AuthFailure { refusal, name: ANONYMOUS.to_owned(), uuid: None }
}

/// The reason why a token is invalid.
struct WrongToken {
    /// The name under which the failure is recorded: the principal, the id of the token, or the anonymous caller.
    name: String,
    /// The principal, if the secret is correct and the token has expired.
    uuid: Option<Uuid>,
    /// True if the token may be a guess.
    is_guess: bool,
    /// True if the text is a join token of a host.
    is_join_token: bool,
}

impl WrongToken {
    /// Creates the reason for a token that no principal has, because its id is unknown or its secret is wrong. A text
    /// that does not have the form of a token is not a guess, and neither is the join token of a host.
    fn new(name: String, model: &Model, text: &str) -> Self {
        let is_join_token = enrol::token::find(model, text).is_some();
        Self { name, uuid: None, is_guess: check_token(text).is_ok() && !is_join_token, is_join_token }
    }
}

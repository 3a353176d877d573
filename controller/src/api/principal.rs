//! Who asks: by certificate, by token, or by the way in, and whether that is still so.
//!
//! Each request is looked at, not each connection, and an answer in pieces at each piece: what is revoked ends at once.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::HeaderMap;
use sha2::{Digest, Sha256};
use stemma_core::digest::Hex;
use stemma_core::object::Principal;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::enroll::check_token;
use stemma_wire::serve::{Peer, Room, TOO_MANY_OF_ONE_PRINCIPAL};
use stemma_wire::tls::Identity;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::Api;
use super::http::serve::Guarding;
use super::http::who::{NOBODY, Unclear, Unknown, optional_token, token};
use crate::ca::FIRST_ADMIN;
use crate::cache::Model;
use crate::cache::model::token_key;
use crate::enrol;
use crate::registry::{Shown, Who, holder_of};

/// What is said beside a join token that is shown as a principal's.
const TO_JOIN: &str =
    "it is a join token, by which hosts join, and not a principal's, which `stemma principal token create` makes";

/// The name of who comes in by the socket.
const ROOT: &str = "root";

impl Api {
    /// Who asks; `None`: nobody, who showed nothing.
    ///
    /// # Errors
    /// [`Unknown`], for what is shown and is no good.
    pub(super) fn who(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Option<Who>, Unknown> {
        let model = self.cache().model();
        // On no listener is whoever means to be a principal taken for another: for an admin by the way in, or for the holder of a certificate.
        let optional = optional_token(headers).map_err(|Unclear| unclear())?;
        match (self.guarding, token(headers)) {
            (Guarding::Root, _) => self.by_way_or_token(peer, &model, optional, ROOT),
            (Guarding::Loopback, _) => self.by_way_or_token(peer, &model, optional, FIRST_ADMIN),
            (Guarding::Certificates, Some(text)) => match self.by_token(&model, text) {
                Ok(who) => {
                    if let Some(peer) = peer {
                        self.check_connections(peer, &who)?;
                        peer.vouch();
                    }
                    Ok(Some(who))
                }
                Err(wrong) => Err(self.unknown(peer, wrong)),
            },
            (Guarding::Certificates, None) => match peer.and_then(|peer| peer.identity.as_ref()) {
                Some(identity) => self.by_certificate(&model, identity),
                None => Ok(None),
            },
        }
    }

    /// Who comes by a way on which everybody is an admin who shows no token of a principal's. One that is shown is looked at.
    fn by_way_or_token(
        &self,
        peer: Option<&Peer>,
        model: &Model,
        token: Option<&str>,
        way: &str,
    ) -> Result<Option<Who>, Unknown> {
        let Some(text) = token else { return Ok(Some(Who::by_way(way))) };
        self.by_token(model, text).map(Some).map_err(|wrong| self.unknown(peer, wrong))
    }

    /// Who showed a token that is none.
    fn unknown(&self, peer: Option<&Peer>, wrong: WrongToken) -> Unknown {
        let from = peer.map(|peer| peer.address.ip()).filter(|_| wrong.is_guess);
        let busy = from.is_some_and(|from| !self.may_guess(from));
        let kind = if busy { ErrorType::ServerBusy } else { ErrorType::AuthRequired };
        let refusal = ApiError::new(kind, "the token is unknown, has ended or was revoked");
        let refusal = if wrong.is_to_join { refusal.detail(TO_JOIN) } else { refusal };
        Unknown { refusal: Box::new(refusal), name: wrong.name, uuid: wrong.uuid }
    }

    /// Counts a connection among those of who showed a token on it.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`], where there is no place for one more.
    fn check_connections(&self, peer: &Peer, who: &Who) -> Result<(), Unknown> {
        let room = peer.hold(&who.holder());
        if room != Room::Free {
            self.rejected.refuse(TOO_MANY_OF_ONE_PRINCIPAL, Some(peer.address.ip()));
        }
        if room != Room::Full {
            return Ok(());
        }
        let message = "there are too many connections, of you or in all; nothing was changed, close some and try again";
        let refusal = Box::new(ApiError::new(ErrorType::ServerBusy, message));
        Err(Unknown { refusal, name: who.name.clone(), uuid: who.uuid })
    }

    /// The API as a principal sees it.
    pub(super) fn seen_by(self: Arc<Self>, who: &Who) -> Arc<Self> {
        match who.rights.within {
            None => self,
            within => Arc::new(Self { within, ..Self::clone(&self) }),
        }
    }

    /// Refuses a caller whose principal, role, cluster or credential is no longer what it was at the beginning of the request.
    ///
    /// # Errors
    /// As [`Who::check_still`].
    pub(super) fn check_still(&self, who: &Who) -> Result<(), ApiError> {
        who.check_still(&self.cache().model(), self.registry.now())
    }

    /// Whether the holder of a certificate is to be cut off: it was revoked, or its principal is gone.
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        self.by_certificate(&self.cache().model(), identity).is_err()
    }

    fn by_certificate(&self, model: &Model, identity: &Identity) -> Result<Option<Who>, Unknown> {
        let Some(name) = identity.class.operator().map(ToString::to_string) else { return Ok(None) };
        let uuid = holder_of(model, identity);
        let unknown = |refusal| Unknown { refusal: Box::new(refusal), name: name.clone(), uuid };
        let now = self.registry.now();
        if identity.expired_at(now.0 / 1000) {
            let message = "the certificate has ended; another is needed";
            return Err(unknown(ApiError::new(ErrorType::AuthRequired, message)));
        }
        let shown = Shown::Certificate(Hex(&identity.serial).to_string());
        let who = match model.principals.named(None, &name) {
            Some(principal) => Who::shown(principal, shown),
            // A fleet of before there were principals: its admin is stored with the first.
            None if name == FIRST_ADMIN => Who { shown, ..Who::by_way(name.clone()) },
            None => return Err(unknown(ErrorType::AuthRevoked.into())),
        };
        who.check_still(model, now).map_err(unknown)?;
        Ok(Some(who))
    }

    /// The principal of a token. What is wrong takes as long as what is right.
    fn by_token(&self, model: &Model, text: &str) -> Result<Who, WrongToken> {
        let (id, secret) = text.split_once('.').unwrap_or((text, ""));
        let shown = Hex(&Sha256::digest(secret.as_bytes())).to_string();
        let of = |one: &Principal| one.spec.tokens.iter().find(|token| token.id == id).cloned();
        let found = model.principals.keyed(&token_key(id)).and_then(|one| Some((one, of(one)?)));
        let expected = found.as_ref().map_or_else(|| "0".repeat(64), |(_, token)| token.secret_sha256.clone());
        // Whose secret is empty has none.
        let is_equal = bool::from(shown.as_bytes().ct_eq(expected.as_bytes())) && !secret.is_empty();
        match found {
            Some((one, token)) if is_equal && token.ends_at > self.registry.now() => {
                Ok(Who::shown(one, Shown::Token(token.id)))
            }
            Some((one, _)) if is_equal => Err(WrongToken {
                name: one.meta.name.to_string(),
                uuid: Some(one.meta.uuid),
                is_guess: false,
                is_to_join: false,
            }),
            Some((_, token)) => Err(WrongToken::of(format!("token/{}", token.id), model, text)),
            None => Err(WrongToken::of(NOBODY.to_owned(), model, text)),
        }
    }

    /// Notes a wrong token; whether it is told so. Whoever was wrong too often is told to come back later instead.
    fn may_guess(&self, from: IpAddr) -> bool {
        let now_s = self.registry.now().0 / 1000;
        let is_allowed = self.guesses.allowed(from, now_s);
        let is_told = self.guesses.note(from, now_s) && is_allowed;
        if !is_told {
            self.rejected.refuse("token_guesses", Some(from));
        }
        is_told
    }
}

/// Who may have meant to show a token and did not show exactly one.
fn unclear() -> Unknown {
    let message =
        "what the request shows may be meant as a principal's token and is not exactly one; nothing was changed";
    let advice = "show one token, as `Authorization: Bearer ID.SECRET` or as `X-Auth-Token: ID.SECRET`, or none";
    let refusal = Box::new(ApiError::new(ErrorType::AuthRequired, message).detail(advice));
    Unknown { refusal, name: NOBODY.to_owned(), uuid: None }
}

/// Why a token is none.
struct WrongToken {
    name: String,
    uuid: Option<Uuid>,
    /// Whether it may be one that somebody tries out.
    is_guess: bool,
    is_to_join: bool,
}

impl WrongToken {
    /// One that no principal has. Nobody guesses with a text that can be no token, as a file of another form has it, nor with the token of a host.
    fn of(name: String, model: &Model, text: &str) -> Self {
        let is_to_join = enrol::token::find(model, text).is_some();
        Self { name, uuid: None, is_guess: check_token(text).is_ok() && !is_to_join, is_to_join }
    }
}

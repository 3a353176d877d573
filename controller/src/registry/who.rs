//! Who asks, and whether they still may.
//!
//! A request takes as long as its body, and a write is decided again when others were faster. So it is asked when the request begins,
//! when its body is there, and in each decision, on the very fleet that is decided on; the commit holds only while the principal stays as
//! it was. What is revoked while a write is on its way ends with it.

use std::fmt::Display;

use stemma_core::access::Rights;
use stemma_core::digest::Hex;
use stemma_core::object::{Kind, Principal, PrincipalRole, PrincipalSpec, Timestamp};
use stemma_core::shares::Holder;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::tls::Identity;
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::model::certificate_key;
use crate::records::key;
use crate::records::request::AskedBy;
use crate::store::{Precondition, Revision};

/// A principal that asks, or whoever else is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its name.
    pub name: String,
    /// The principal; `None` for who is none. The name may be another's meanwhile.
    pub uuid: Option<Uuid>,
    /// What it may.
    pub rights: Rights,
    /// By what it is known.
    pub shown: Shown,
}

/// By what a principal is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// By how it came in: on the socket of root, on the plain listener for development, or as the controller itself.
    Way,
    /// A certificate, by its serial number.
    Certificate(String),
    /// A token, by its id.
    Token(String),
}

/// What a principal may.
pub fn rights(spec: &PrincipalSpec) -> Rights {
    spec.rights()
}

/// The principal on which a certificate is listed, revoked or not.
pub fn holder_of(model: &Model, identity: &Identity) -> Option<Uuid> {
    let listed = certificate_key(&Hex(&identity.serial).to_string());
    model.principals.keyed(&listed).map(|one| one.meta.uuid)
}

impl Who {
    /// A principal, by what it showed.
    pub fn shown(principal: &Principal, shown: Shown) -> Self {
        let (name, uuid) = (principal.meta.name.to_string(), Some(principal.meta.uuid));
        Self { name, uuid, rights: rights(&principal.spec), shown }
    }

    /// Somebody who may do everything, by how they came in.
    pub fn by_way(name: impl Into<String>) -> Self {
        Self { name: name.into(), uuid: None, rights: Rights::ALL, shown: Shown::Way }
    }

    /// Whether it is an admin of the whole fleet, for whom a part of what is shared is kept.
    pub fn is_fleet_admin(&self) -> bool {
        self.rights.role == PrincipalRole::Admin && self.rights.within.is_none()
    }

    /// The refusal of what its role is not for; the row of the endpoint table says which role is.
    pub fn denied(&self, what: impl Display, row: Option<Endpoint>) -> ApiError {
        let all = [PrincipalRole::Viewer, PrincipalRole::Operator, PrincipalRole::Admin];
        let role = row.and_then(|row| all.into_iter().find(|role| row.allows((*role).into())));
        let needed = role.map(|role| format!("; this needs role {}", role.name())).unwrap_or_default();
        let (name, own) = (&self.name, self.rights.role.name());
        let message = format!("Permission denied: {name} ({own}) cannot {what}{needed}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message)
    }

    /// As whom it holds what is shared.
    pub fn holder(&self) -> Holder {
        Holder { name: self.name.clone(), within: self.rights.within, is_fleet_admin: self.is_fleet_admin() }
    }

    /// Refuses where this is no longer so in a fleet: what was shown is worth nothing, or what it may is something else.
    ///
    /// # Errors
    /// [`ErrorType::AuthRevoked`], [`ErrorType::AuthRequired`] or [`ErrorType::AuthForbidden`].
    pub fn check_still(&self, model: &Model, now: Timestamp) -> Result<(), ApiError> {
        let principal = self.principal(model);
        match (&self.shown, principal) {
            (Shown::Way, _) => return Ok(()),
            (Shown::Certificate(serial), Some(one)) if one.spec.takes_certificate(serial, now) => {}
            // A fleet of before there were principals.
            (Shown::Certificate(_), None) if model.principals.is_empty() => {}
            (Shown::Certificate(_), _) => return Err(ErrorType::AuthRevoked.into()),
            (Shown::Token(id), Some(one)) if one.spec.takes_token(id, now) => {}
            (Shown::Token(_), _) => {
                return Err(ApiError::new(ErrorType::AuthRequired, "the token has ended or was revoked meanwhile"));
            }
        }
        if principal.is_some_and(|one| rights(&one.spec) != self.rights) {
            let message = "what you may do was changed while this was asked; nothing was changed by it";
            return Err(ApiError::new(ErrorType::AuthForbidden, message).detail("ask again"));
        }
        Ok(())
    }

    /// What whoever makes something by which a principal is known might do, as it is noted of that: of who makes it for itself, what is noted
    /// of what it showed.
    pub fn makes_for(&self, whose: &Principal, model: &Model) -> Option<Rights> {
        let own = self.principal(model).filter(|own| own.meta.uuid == whose.meta.uuid);
        match (&self.shown, own) {
            (Shown::Certificate(serial), Some(own)) => own.spec.certificate(serial)?.made_by,
            (Shown::Token(id), Some(own)) => own.spec.tokens.iter().find(|token| token.id == *id)?.made_by,
            (Shown::Way, _) | (_, None) => Some(self.rights),
        }
    }

    /// How it stands in the record of a request.
    pub(super) fn asked_by(&self, model: &Model) -> AskedBy {
        let Rights { role, within } = self.rights;
        AskedBy { principal: self.principal(model).map(|one| one.meta.uuid), role, within }
    }

    /// What a commit requires for it to be still so.
    pub(super) fn unchanged(&self, model: &Model) -> Option<Precondition> {
        match (&self.shown, self.principal(model)) {
            (Shown::Way, _) => None,
            (_, Some(one)) => {
                let at = key::object(Kind::Principal, one.meta.uuid);
                Some(Precondition::unchanged(at, Revision::new(one.meta.resource_version)))
            }
            (_, None) => Some(Precondition::absent(key::name(Kind::Principal, None, &self.name))),
        }
    }

    /// Its principal; `None` for who is none, and in a fleet of before there were any.
    pub fn principal<'m>(&self, model: &'m Model) -> Option<&'m Principal> {
        let found = match self.uuid {
            Some(uuid) => model.principals.get(uuid),
            None => model.principals.named(None, &self.name),
        };
        found.map(|one| &**one)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use stemma_core::object::ClusterId;

    use super::*;

    /// A viewer of the whole fleet.
    pub(crate) fn viewer(name: &str) -> Who {
        viewer_within(name, None)
    }

    /// A viewer that is bound to a cluster.
    pub(crate) fn bound(name: &str, cluster: u128) -> Who {
        viewer_within(name, Some(ClusterId(Uuid::from_u128(cluster))))
    }

    fn viewer_within(name: &str, within: Option<ClusterId>) -> Who {
        Who { rights: Rights { role: PrincipalRole::Viewer, within }, ..Who::by_way(name) }
    }
}

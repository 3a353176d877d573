//! The requester of a request or write, and checks that its rights still hold.
//!
//! A request lasts as long as its body, and a write is decided again if other writes commit first. So the rights are
//! checked when the request begins, when its body has arrived, and in each decision, against the model that the
//! decision uses. The commit requires that the principal is unchanged. A credential that is revoked during a write
//! therefore makes the write fail.

use std::fmt::Display;

use stemma_core::access::Rights;
use stemma_core::digest::Hex;
use stemma_core::object::{Kind, Principal, PrincipalRole, PrincipalSpec, Timestamp};
use stemma_core::shares::ShareHolder;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::tls::Identity;
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::model::certificate_key;
use crate::records::key;
use crate::records::request::RequesterRecord;
use crate::store::{Precondition, Revision};

/// The principal that makes a request, or a caller without a principal that a listener lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The requester's name.
    pub name: String,
    /// The principal's uuid, or `None` if the requester is not a principal. By now another principal may have the
    /// requester's name.
    pub uuid: Option<Uuid>,
    /// The requester's rights.
    pub rights: Rights,
    /// The credential that the requester presented.
    pub credential: Credential,
}

/// The way a requester is identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// No credential: the requester came in on the socket of root or on the plain listener for development, or it is
    /// the controller itself.
    Listener,
    /// A certificate, by its serial number.
    Certificate(String),
    /// A token, by its id.
    Token(String),
}

/// Returns the rights of a principal.
pub fn rights(spec: &PrincipalSpec) -> Rights {
    spec.rights()
}

/// Returns the principal that lists a certificate, revoked or not.
pub fn certificate_holder(model: &Model, identity: &Identity) -> Option<Uuid> {
    let listed = certificate_key(&Hex(&identity.serial).to_string());
    model.principals.get_by_key(&listed).map(|principal| principal.meta.uuid)
}

impl Requester {
    /// Creates the requester for a principal and the credential that it presented.
    pub fn from_principal(principal: &Principal, credential: Credential) -> Self {
        let (name, uuid) = (principal.meta.name.to_string(), Some(principal.meta.uuid));
        Self { name, uuid, rights: rights(&principal.spec), credential }
    }

    /// Creates a requester with all rights, identified by the listener it came in on.
    pub fn from_listener(name: impl Into<String>) -> Self {
        Self { name: name.into(), uuid: None, rights: Rights::ALL, credential: Credential::Listener }
    }

    /// Returns whether the requester is an admin of the whole fleet. A part of each shared budget is reserved for
    /// these.
    pub fn is_fleet_admin(&self) -> bool {
        self.rights.role == PrincipalRole::Admin && self.rights.cluster.is_none()
    }

    /// Returns the error for a request that the requester's role does not allow. The endpoint `row` determines the role
    /// to name.
    pub fn denied(&self, what: impl Display, row: Option<Endpoint>) -> ApiError {
        let all = [PrincipalRole::Viewer, PrincipalRole::Operator, PrincipalRole::Admin];
        let role = row.and_then(|row| all.into_iter().find(|role| row.allows((*role).into())));
        let needed = role.map(|role| format!("; this needs role {}", role.name())).unwrap_or_default();
        let (name, own) = (&self.name, self.rights.role.name());
        let message = format!("Permission denied: {name} ({own}) cannot {what}{needed}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message)
    }

    /// Returns the holder under which the requester's shares of budgets are counted.
    pub fn holder(&self) -> ShareHolder {
        ShareHolder { name: self.name.clone(), cluster: self.rights.cluster, is_fleet_admin: self.is_fleet_admin() }
    }

    /// Fails if the requester's credential is no longer valid in this model, or its rights have changed.
    ///
    /// # Errors
    /// [`ErrorType::AuthRevoked`], [`ErrorType::AuthRequired`] or [`ErrorType::AuthForbidden`].
    pub fn recheck(&self, model: &Model, now: Timestamp) -> Result<(), ApiError> {
        let principal = self.principal(model);
        match (&self.credential, principal) {
            (Credential::Listener, _) => return Ok(()),
            (Credential::Certificate(serial), Some(principal)) if principal.spec.accepts_certificate(serial, now) => {}
            // A fleet of an older version has no principals.
            (Credential::Certificate(_), None) if model.principals.is_empty() => {}
            (Credential::Certificate(_), _) => return Err(ErrorType::AuthRevoked.into()),
            (Credential::Token(id), Some(principal)) if principal.spec.accepts_token(id, now) => {}
            (Credential::Token(_), _) => {
                return Err(ApiError::new(ErrorType::AuthRequired, "the token has expired or was revoked"));
            }
        }
        if principal.is_some_and(|one| rights(&one.spec) != self.rights) {
            let message = "your role or cluster changed while this request ran; nothing was changed";
            return Err(ApiError::new(ErrorType::AuthForbidden, message).detail("ask again"));
        }
        Ok(())
    }

    /// Returns the rights of the issuer, to be recorded in a new credential of `holder`. If the requester issues the
    /// credential for itself, they are the rights of the issuer that the credential it presented records.
    pub fn rights_for_credential(&self, holder: &Principal, model: &Model) -> Option<Rights> {
        let own = self.principal(model).filter(|own| own.meta.uuid == holder.meta.uuid);
        match (&self.credential, own) {
            (Credential::Certificate(serial), Some(own)) => own.spec.certificate(serial)?.made_by,
            (Credential::Token(id), Some(own)) => own.spec.tokens.iter().find(|token| token.id == *id)?.made_by,
            (Credential::Listener, _) | (_, None) => Some(self.rights),
        }
    }

    /// Returns the requester as stored in the record of a request.
    pub(super) fn to_record(&self, model: &Model) -> RequesterRecord {
        let Rights { role, cluster: within } = self.rights;
        RequesterRecord { principal: self.principal(model).map(|principal| principal.meta.uuid), role, within }
    }

    /// Returns the precondition that the requester's principal is unchanged, for a commit.
    pub(super) fn precondition(&self, model: &Model) -> Option<Precondition> {
        match (&self.credential, self.principal(model)) {
            (Credential::Listener, _) => None,
            (_, Some(principal)) => {
                let at = key::object(Kind::Principal, principal.meta.uuid);
                Some(Precondition::unchanged(at, Revision::new(principal.meta.resource_version)))
            }
            (_, None) => Some(Precondition::absent(key::name(Kind::Principal, None, &self.name))),
        }
    }

    /// Returns the requester's principal, or `None` if there is none, as in a fleet of an older version.
    pub fn principal<'m>(&self, model: &'m Model) -> Option<&'m Principal> {
        let principal = match self.uuid {
            Some(uuid) => model.principals.get(uuid),
            None => model.principals.get_by_name(None, &self.name),
        };
        principal.map(|principal| &**principal)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use stemma_core::object::ClusterId;

    use super::*;

    /// Returns a viewer of the whole fleet.
    pub(crate) fn viewer(name: &str) -> Requester {
        viewer_in(name, None)
    }

    /// Returns a viewer that is bound to a cluster.
    pub(crate) fn bound_viewer(name: &str, cluster: u128) -> Requester {
        viewer_in(name, Some(ClusterId(Uuid::from_u128(cluster))))
    }

    fn viewer_in(name: &str, within: Option<ClusterId>) -> Requester {
        Requester { rights: Rights { role: PrincipalRole::Viewer, cluster: within }, ..Requester::from_listener(name) }
    }
}

//! The requester (caller) of a request or write, and checks that its rights are still valid.
//!
//! A request lasts as long as its body arrives, and a write is decided again if other writes commit first. So the
//! rights are checked three times: when the request begins, when its body has arrived, and in each decision against the
//! model that the decision uses. The commit requires that the principal is unchanged. So a write fails if its
//! credential is revoked before the commit.

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

/// The party that makes a request or a write: a principal, or for example root on its socket, a host or the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The requester's name.
    pub name: String,
    /// The principal's uuid, or `None` if the requester is not a principal. The name alone is not sufficient, because
    /// another principal may get the same name later.
    pub uuid: Option<Uuid>,
    /// The requester's rights.
    pub rights: Rights,
    /// The credential that the requester presented.
    pub credential: Credential,
}

/// The means by which a requester is identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// No credential of a principal. The requester used root's socket or the plain listener for development, is a host
    /// or the holder of a join token, is anonymous, or is the controller itself.
    Listener,
    /// A certificate, by its serial number.
    Certificate(String),
    /// A token, by its id.
    Token(String),
}

/// Returns the rights of a principal, from its role and cluster.
pub fn rights(spec: &PrincipalSpec) -> Rights {
    spec.rights()
}

/// Returns the uuid of the principal that lists a certificate, even if the certificate is revoked.
pub fn certificate_holder(model: &Model, identity: &Identity) -> Option<Uuid> {
    let listed_key = certificate_key(&Hex(&identity.serial).to_string());
    model.principals.get_by_key(&listed_key).map(|principal| principal.meta.uuid)
}

impl Requester {
    /// Creates the requester for a principal and the credential that it presented.
    pub fn from_principal(principal: &Principal, credential: Credential) -> Self {
        let (name, uuid) = (principal.meta.name.to_string(), Some(principal.meta.uuid));
        Self { name, uuid, rights: rights(&principal.spec), credential }
    }

    /// Creates a requester with all rights and without a credential of a principal, for example root on its socket.
    pub fn from_listener(name: impl Into<String>) -> Self {
        Self { name: name.into(), uuid: None, rights: Rights::ALL, credential: Credential::Listener }
    }

    /// Returns whether the requester is an admin of the whole fleet. A part of each shared budget is reserved for such
    /// admins.
    pub fn is_fleet_admin(&self) -> bool {
        self.rights.role == PrincipalRole::Admin && self.rights.cluster.is_none()
    }

    /// Returns the error for a request that the requester's role does not allow. The error names the lowest role that
    /// may call `endpoint`.
    pub fn denied(&self, action: impl Display, endpoint: Option<Endpoint>) -> ApiError {
        let roles = [PrincipalRole::Viewer, PrincipalRole::Operator, PrincipalRole::Admin];
        let role = endpoint.and_then(|endpoint| roles.into_iter().find(|role| endpoint.allows((*role).into())));
        let role_text = role.map(|role| format!("; this needs role {}", role.name())).unwrap_or_default();
        let (name, own_role) = (&self.name, self.rights.role.name());
        let message = format!("Permission denied: {name} ({own_role}) cannot {action}{role_text}; nothing was changed");
        ApiError::new(ErrorType::AuthForbidden, message)
    }

    /// Returns the identity under which the requester's shares of budgets are counted.
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
            // A fleet that was created by an older version has no principals. Its admin certificates are valid without
            // one.
            (Credential::Certificate(_), None) if model.principals.is_empty() => {}
            (Credential::Certificate(_), _) => return Err(ErrorType::AuthRevoked.into()),
            (Credential::Token(id), Some(principal)) if principal.spec.accepts_token(id, now) => {}
            (Credential::Token(_), _) => {
                return Err(ApiError::new(ErrorType::AuthRequired, "the token has expired or was revoked"));
            }
        }
        if principal.is_some_and(|principal| rights(&principal.spec) != self.rights) {
            let message = "your role or cluster changed while this request ran; nothing was changed";
            return Err(ApiError::new(ErrorType::AuthForbidden, message).detail("ask again"));
        }
        Ok(())
    }

    /// Returns the rights of the issuer, to be recorded in a new credential of `holder`. These are the requester's own
    /// rights. If the requester issues the credential for itself, they are the rights recorded in the credential that
    /// it presented. Returns `None` if that credential records no rights.
    pub fn rights_for_credential(&self, holder: &Principal, model: &Model) -> Option<Rights> {
        let principal = self.principal(model).filter(|principal| principal.meta.uuid == holder.meta.uuid);
        match (&self.credential, principal) {
            (Credential::Certificate(serial), Some(principal)) => principal.spec.certificate(serial)?.made_by,
            (Credential::Token(id), Some(principal)) => principal.spec.tokens.iter().find(|token| token.id == *id)?.made_by,
            (Credential::Listener, _) | (_, None) => Some(self.rights),
        }
    }

    /// Returns the requester in the form that the record of a request stores.
    pub(super) fn to_record(&self, model: &Model) -> RequesterRecord {
        let Rights { role, cluster: within } = self.rights;
        RequesterRecord { principal: self.principal(model).map(|principal| principal.meta.uuid), role, within }
    }

    /// Returns the precondition for a commit that the requester's principal is unchanged, or still does not exist.
    /// Returns `None` if a listener identified the requester.
    pub(super) fn precondition(&self, model: &Model) -> Option<Precondition> {
        match (&self.credential, self.principal(model)) {
            (Credential::Listener, _) => None,
            (_, Some(principal)) => {
                let object_key = key::object(Kind::Principal, principal.meta.uuid);
                Some(Precondition::unchanged(object_key, Revision::new(principal.meta.resource_version)))
            }
            (_, None) => Some(Precondition::absent(key::name(Kind::Principal, None, &self.name))),
        }
    }

    /// Returns the requester's principal, by uuid, or by name if the requester has no uuid. Returns `None` if there is
    /// none, as in a fleet that an older version created.
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

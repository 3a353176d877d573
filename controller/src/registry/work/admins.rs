//! Writes of principals: creates the first admin, changes credentials, and refuses to remove the last admin of the
//! fleet. Deletes join tokens of principals that were deleted or may no longer create such tokens. This module also
//! records the clusters of the written objects in the audit, because the clusters decide who may read the audit entry.

use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::object::{Kind, Principal, PrincipalSpec};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::PendingWrite;
use crate::ca::FIRST_ADMIN;
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::{Action, PartAction};
use crate::records::{enrolled, key};
use crate::registry::context::may_write;
use crate::registry::rights;
use crate::store::{Op, Precondition};

impl PendingWrite<'_> {
    /// Creates the first admin, if the fleet has no principal yet and this write has created none.
    ///
    /// # Errors
    /// Fails as [`PendingWrite::create`] does.
    pub fn store_first_admin(&mut self, admin: &PrincipalSpec) -> Result<(), ApiError> {
        if self.context.full_model.principals.is_empty() && self.model.principals.is_empty() {
            self.create(Uuid::now_v7(), PrincipalSpec::parse_name(FIRST_ADMIN)?, admin.clone())?;
        }
        Ok(())
    }

    /// Changes the credentials of a principal. A caller may do this if it may write the principal. The principal itself
    /// may also do this if its rights remain equal. `action` and `part` record in the audit which credential changed,
    /// and how.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`] if the caller may not change these credentials. Also fails if the principal would
    /// be too large.
    pub fn update_credentials(
        &mut self,
        old_principal: &Arc<Principal>,
        spec: PrincipalSpec,
        (action, part): (PartAction, String),
    ) -> Result<(), ApiError> {
        if spec == old_principal.spec {
            return Ok(());
        }
        let caller = self.context.caller.requester.principal(self.context.full_model);
        let is_own = caller.is_some_and(|principal| principal.meta.uuid == old_principal.meta.uuid);
        if !is_own || rights(&spec) != rights(&old_principal.spec) {
            self.check_rights(old_principal)?;
        }
        let new_principal = self.next_object(old_principal, old_principal.meta.name.clone(), spec);
        self.replace(old_principal, new_principal)?;
        self.draft.set_part(action, part);
        Ok(())
    }

    /// Refuses a write that deletes an admin of the whole fleet or takes that role away, if no admin of the whole fleet
    /// then has a valid certificate or token. Two writes could each remove one of the last two admins. Both write the
    /// same mark, so only one of them is committed, and the other is decided again.
    ///
    /// Revoking the last admin's credentials is nevertheless allowed. If they are stolen, there is no time to create
    /// another admin first, and root can still use the local socket.
    pub(super) fn check_admins(&mut self) -> Result<(), ApiError> {
        let is_admin = |model: &Model, uuid| {
            model.principals.get(uuid).is_some_and(|principal| PrincipalSpec::is_fleet_admin(&principal.spec))
        };
        let removes_admin = |uuid: &Uuid| is_admin(self.context.full_model, *uuid) && !is_admin(&self.model, *uuid);
        if !self.written_principals().iter().any(removes_admin) {
            return Ok(());
        }
        let now = self.context.now;
        let is_usable = |principal: &Arc<Principal>| principal.spec.is_fleet_admin() && principal.spec.has_credential(now);
        if !self.model.principals.iter().any(is_usable) {
            let message = "this is the last admin of the fleet who has a certificate or token; nothing was changed";
            let advice = "create another first: stemma principal create NAME --role admin --to DIR";
            return Err(ApiError::new(ErrorType::ObjectInUse, message).detail(advice));
        }
        self.require_mark(key::ADMINS);
        self.draft.add_op(Op::Put { key: key::ADMINS.into(), value: bytes::Bytes::new() });
        Ok(())
    }

    /// Deletes the join tokens that a written principal has created and may no longer create, because the principal was
    /// deleted or its rights changed.
    pub(super) fn end_join_tokens(&mut self) {
        let full_model = self.context.full_model;
        for uuid in self.written_principals() {
            let Some(old_principal) = full_model.principals.get(uuid) else { continue };
            let new_rights = self.model.principals.get(uuid).map(|principal| rights(&principal.spec));
            if new_rights == Some(rights(&old_principal.spec)) {
                continue;
            }
            let may_create = |scope| new_rights.is_some_and(|rights| may_write(rights, Some(Endpoint::CreateToken), scope));
            // Each write that creates a join token of this principal changes the mark. So the model has all tokens if
            // the mark is unchanged at the commit.
            self.require_mark(&key::maker_mark(uuid));
            let created = full_model.tokens.values().filter(|token| match token.record.maker {
                Some(maker) => maker == uuid,
                // An older record has only the name of the creator. The name is unambiguous, because the tokens of an
                // earlier principal of this name were deleted with that principal.
                None => token.record.created_by == old_principal.meta.name.as_str(),
            });
            for token in created.filter(|token| !may_create(full_model.token_scope(token.record.bound))) {
                let entry_key = enrolled::token_key(&token.record.id);
                self.draft.add_precondition(Precondition::unchanged(entry_key.clone(), token.mod_revision));
                self.draft.add_op(Op::Delete { key: entry_key.into() });
            }
        }
    }

    fn written_principals(&self) -> Vec<Uuid> {
        self.written_objects().filter(|(kind, _)| *kind == Kind::Principal).map(|(_, uuid)| uuid).collect()
    }

    /// Records in the audit event for each written object: its clusters before and after the write, the cluster that it
    /// left, and its old name if the name changed. A deleted object has left no cluster.
    pub(super) fn audit_clusters(&mut self) {
        let (old, new) = (self.context.full_model, &self.model);
        for object in self.draft.audited_mut() {
            let [old_cluster, new_cluster] = [old, new].map(|model| match model.access_scope(object.kind, object.uuid)? {
                AccessScope::Cluster(cluster) => Some(cluster),
                AccessScope::Shared | AccessScope::Unplaced => None,
            });
            object.clusters = old_cluster.into_iter().chain(new_cluster).collect();
            object.left = old_cluster.filter(|_| old_cluster != new_cluster && object.action != Action::Deleted);
            object.was = old.title(object.kind, object.uuid).filter(|old_title| *old_title != object.name);
        }
    }
}

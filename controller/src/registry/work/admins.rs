//! Effects of a write of principals on the fleet: the fleet keeps an admin, the join tokens of deleted principals end,
//! and credentials change. Also records the clusters of the written objects in the audit, which decide who may read the
//! entry.

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
    /// Stores the first admin if there is no principal yet.
    ///
    /// # Errors
    /// As [`PendingWrite::create`].
    pub fn store_first_admin(&mut self, first: &PrincipalSpec) -> Result<(), ApiError> {
        if self.context.full_model.principals.is_empty() && self.model.principals.is_empty() {
            self.create(Uuid::now_v7(), PrincipalSpec::parse_name(FIRST_ADMIN)?, first.clone())?;
        }
        Ok(())
    }

    /// Changes the credentials of a principal. The principal itself may do this if its rights stay the same, and so may
    /// each caller that may write the principal. The last argument records in the audit how a credential changed, and
    /// which.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`].
    pub fn update_credentials(
        &mut self,
        before: &Arc<Principal>,
        spec: PrincipalSpec,
        (action, part): (PartAction, String),
    ) -> Result<(), ApiError> {
        if spec == before.spec {
            return Ok(());
        }
        let caller = self.context.caller.requester.principal(self.context.full_model);
        let is_own = caller.is_some_and(|principal| principal.meta.uuid == before.meta.uuid);
        if !is_own || rights(&spec) != rights(&before.spec) {
            self.check_rights(before)?;
        }
        let next = self.next_object(before, before.meta.name.clone(), spec);
        self.replace(before, next)?;
        self.draft.set_part(action, part);
        Ok(())
    }

    /// Refuses a write after which no admin of the whole fleet has a certificate or token. If two writes each remove
    /// one of the last two admins, one of them is decided again.
    ///
    /// Credentials of the last admin can be revoked all the same. If they are stolen, there is no time to create
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

    /// Ends the join tokens of a principal that was deleted or may no longer create such tokens.
    pub(super) fn end_join_tokens(&mut self) {
        let full_model = self.context.full_model;
        for uuid in self.written_principals() {
            let Some(before) = full_model.principals.get(uuid) else { continue };
            let after = self.model.principals.get(uuid).map(|principal| rights(&principal.spec));
            if after == Some(rights(&before.spec)) {
                continue;
            }
            let may_create = |scope| after.is_some_and(|rights| may_write(rights, Some(Endpoint::CreateToken), scope));
            self.require_mark(&key::maker_mark(uuid));
            let created = full_model.tokens.values().filter(|token| match token.record.maker {
                Some(maker) => maker == uuid,
                // An older record has only the name of the creator. All tokens of an earlier principal of this name
                // ended with it, so the name is unambiguous.
                None => token.record.created_by == before.meta.name.as_str(),
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

    /// Records for the audit the clusters of each written object before and after the write, the cluster that it left,
    /// and its previous name.
    pub(super) fn audit_clusters(&mut self) {
        let (before, after) = (self.context.full_model, &self.model);
        for object in self.draft.audited_mut() {
            let [old_cluster, new_cluster] = [before, after].map(|model| match model.access_scope(object.kind, object.uuid)? {
                AccessScope::Cluster(cluster) => Some(cluster),
                AccessScope::Shared | AccessScope::Unplaced => None,
            });
            object.clusters = old_cluster.into_iter().chain(new_cluster).collect();
            object.left = old_cluster.filter(|_| old_cluster != new_cluster && object.action != Action::Deleted);
            object.was = before.title(object.kind, object.uuid).filter(|was| *was != object.name);
        }
    }
}

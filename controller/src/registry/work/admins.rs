//! What a write of principals means for the fleet: that it keeps an admin, what ends with a principal, by what each is known. And where
//! what a write touches stood, for those who may see it.

use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::object::{Kind, Principal, PrincipalSpec};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::Work;
use crate::ca::FIRST_ADMIN;
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::{Action, PartAction};
use crate::records::{enrolled, key};
use crate::registry::context::may_write;
use crate::registry::rights;
use crate::store::{Op, Precondition};

impl Work<'_> {
    /// Stores the first admin where there is no principal yet.
    ///
    /// # Errors
    /// As [`Work::create`].
    pub fn keep_first_admin(&mut self, first: &PrincipalSpec) -> Result<(), ApiError> {
        if self.context.whole.principals.is_empty() && self.model.principals.is_empty() {
            self.create(Uuid::now_v7(), PrincipalSpec::parse_name(FIRST_ADMIN)?, first.clone())?;
        }
        Ok(())
    }

    /// Changes by what a principal is known: by who may write it, and by itself. `part` says for the audit what became of what.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`].
    pub fn change_known_by(
        &mut self,
        before: &Arc<Principal>,
        spec: PrincipalSpec,
        (done, part): (PartAction, String),
    ) -> Result<(), ApiError> {
        if spec == before.spec {
            return Ok(());
        }
        let asks = self.context.caller.who.principal(self.context.whole);
        let is_own = asks.is_some_and(|own| own.meta.uuid == before.meta.uuid);
        if !is_own || rights(&spec) != rights(&before.spec) {
            self.check_rights(before)?;
        }
        let next = self.next(before, before.meta.name.clone(), spec);
        self.replace(before, next)?;
        self.draft.name_part(done, part);
        Ok(())
    }

    /// Refuses a write that leaves the fleet without an admin of the whole of it who is known by anything. Of two writes that each take one
    /// of the last two away, one is decided again. What an admin is known by can be taken back all the same: when it was stolen there is no
    /// time to make another first, and root's socket is there.
    pub(super) fn check_admins(&mut self) -> Result<(), ApiError> {
        let is_admin = |model: &Model, uuid| {
            model.principals.get(uuid).is_some_and(|principal| PrincipalSpec::is_fleet_admin(&principal.spec))
        };
        let takes = |uuid: &Uuid| is_admin(self.context.whole, *uuid) && !is_admin(&self.model, *uuid);
        if !self.touched_principals().iter().any(takes) {
            return Ok(());
        }
        let now = self.context.now;
        let stays = |principal: &Arc<Principal>| principal.spec.is_fleet_admin() && principal.spec.is_known(now);
        if !self.model.principals.iter().any(stays) {
            let message = "this is the last admin of the fleet who has a certificate or token; nothing was changed";
            let advice = "make another first: stemma principal create NAME --role admin --to DIR";
            return Err(ApiError::new(ErrorType::ObjectInUse, message).detail(advice));
        }
        self.require_mark(key::ADMINS);
        self.draft.entry(Op::Put { key: key::ADMINS.into(), value: bytes::Bytes::new() });
        Ok(())
    }

    /// Ends the join tokens of a principal that is gone, or may no longer make them.
    pub(super) fn end_join_tokens(&mut self) {
        let whole = self.context.whole;
        for uuid in self.touched_principals() {
            let Some(before) = whole.principals.get(uuid) else { continue };
            let after = self.model.principals.get(uuid).map(|one| rights(&one.spec));
            if after == Some(rights(&before.spec)) {
                continue;
            }
            let may = |place| after.is_some_and(|rights| may_write(rights, Some(Endpoint::CreateToken), place));
            self.require_mark(&key::maker(uuid));
            let of = whole.tokens.values().filter(|token| match token.record.maker {
                Some(maker) => maker == uuid,
                // With each principal of this name went all of its tokens.
                None => token.record.created_by == before.meta.name.as_str(),
            });
            for token in of.filter(|token| !may(whole.place_of_bound(token.record.bound))) {
                let at = enrolled::token_key(&token.record.id);
                self.draft.require(Precondition::unchanged(at.clone(), token.written));
                self.draft.entry(Op::Delete { key: at.into() });
            }
        }
    }

    fn touched_principals(&self) -> Vec<Uuid> {
        self.written().filter(|(kind, _)| *kind == Kind::Principal).map(|(_, uuid)| uuid).collect()
    }

    /// Notes for the audit in which clusters what is touched stood, before and after, which it left, and what it was called before.
    pub(super) fn note_clusters(&mut self) {
        let (before, after) = (self.context.whole, &self.model);
        for one in self.draft.touched_mut() {
            let [stood, stands] = [before, after].map(|model| match model.place_of(one.kind, one.uuid)? {
                Place::Cluster(cluster) => Some(cluster),
                Place::Shared | Place::Nowhere => None,
            });
            one.clusters = stood.into_iter().chain(stands).collect();
            one.left = stood.filter(|_| stood != stands && one.action != Action::Deleted);
            one.was = before.title_of(one.kind, one.uuid).filter(|was| *was != one.name);
        }
    }
}

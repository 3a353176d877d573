//! That a fleet keeps an admin, and where what a write touches stood.

use stemma_core::access::Place;
use stemma_core::object::{Kind, PrincipalSpec};
use stemma_wire::error::{ApiError, ErrorType};

use uuid::Uuid;

use super::Work;
use crate::ca::FIRST_ADMIN;
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::key;
use crate::store::Op;

impl Work<'_> {
    /// Stores the first admin where there is no principal yet.
    ///
    /// # Errors
    /// As [`Work::create`].
    pub fn keep_first_admin(&mut self, first: &PrincipalSpec) -> Result<(), ApiError> {
        if self.model.principals.is_empty() {
            self.create(Uuid::now_v7(), PrincipalSpec::parse_name(FIRST_ADMIN)?, first.clone())?;
        }
        Ok(())
    }

    /// Refuses a write that leaves the fleet without an admin of the whole of it. Of two writes that each take one of the last two away,
    /// one is decided again.
    pub(super) fn check_admins(&mut self) -> Result<(), ApiError> {
        let touched = self.draft.touched().iter().filter(|one| one.kind == Kind::Principal);
        let is_admin = |model: &Model, uuid| {
            model.principals.get(uuid).is_some_and(|principal| PrincipalSpec::is_fleet_admin(&principal.spec))
        };
        let takes = |uuid| is_admin(self.context.model, uuid) && !is_admin(&self.model, uuid);
        if !touched.map(|one| one.uuid).any(takes) {
            return Ok(());
        }
        if !self.model.principals.iter().any(|principal| principal.spec.is_fleet_admin()) {
            let message = "this is the last admin of the fleet; nothing was changed";
            let advice = "make another first: stemma principal create NAME --role admin";
            return Err(ApiError::new(ErrorType::ObjectInUse, message).detail(advice));
        }
        self.require_mark(key::ADMINS);
        self.draft.entry(Op::Put { key: key::ADMINS.into(), value: bytes::Bytes::new() });
        Ok(())
    }

    /// Notes for the audit in which clusters what is touched stood, before and after.
    pub(super) fn note_clusters(&mut self) {
        let (before, after) = (self.context.model, &self.model);
        for one in self.draft.touched_mut() {
            let places = [before, after].into_iter().filter_map(|model| model.place_of(one.kind, one.uuid));
            one.clusters = places
                .filter_map(|place| match place {
                    Place::Cluster(cluster) => Some(cluster),
                    Place::Shared | Place::Nowhere => None,
                })
                .collect();
        }
    }
}

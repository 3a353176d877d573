//! Stores a release only as it was compiled, and keeps the content of a version unchanged once hosts received it.
//!
//! A release is compiled together with its imports. An edit of an import can break it, and writes of the two have no
//! object in common. So a write of a release marks all its imports, direct and indirect, as referred to, and requires
//! them unchanged. An edit of a release requires its own mark unchanged.

use stemma_core::name::ReleaseRef;
use stemma_core::object::{Kind, Object};
use stemma_core::release::has_same_content;
use stemma_wire::error::ApiError;

use super::PendingWrite;
use super::delete::refuse_used;
use crate::cache::model::{ObjectReference, Resource, fixed_content_error};
use crate::records::audit::Action;
use crate::records::key;
use crate::store::{Op, Precondition, Revision};

impl PendingWrite<'_> {
    /// Makes the commit depend on the imports that the written releases were compiled with. Refuses to change the
    /// content of a pinned version.
    ///
    /// # Errors
    /// The content is pinned.
    pub(super) fn check_releases(&mut self) -> Result<(), ApiError> {
        let releases = self.draft.audited().iter().filter(|object| object.kind == Kind::Release);
        let releases: Vec<(String, Action)> = releases.map(|object| (object.name.clone(), object.action)).collect();
        for (name, action) in releases {
            match action {
                Action::Created => self.require_imports(&name),
                Action::Updated => {
                    self.require_imports(&name);
                    self.require_mark(&key::reference_mark(Kind::Release, &name));
                    self.check_pinned(&name)?;
                }
                Action::Deleted => self.draft.add_op(Op::Delete { key: key::pin_mark(&name).into() }),
                Action::Unchanged => {}
            }
        }
        Ok(())
    }

    /// Refuses a new name if other objects refer to this one by its name, because their references would break. If no
    /// object does, the marks of the old name are deleted, and the commit requires that no new reference is added.
    ///
    /// # Errors
    /// The objects that refer to it.
    pub(super) fn check_rename<S: Resource>(&mut self, before: &Object<S>, next: &Object<S>) -> Result<(), ApiError> {
        let old = ObjectReference::new(before);
        if old == ObjectReference::new(next) {
            return Ok(());
        }
        let follows = ", which refer to it by name; nothing was changed";
        let advice = "create one with the new name and version, move these to it, and delete this one";
        refuse_used(&self.model, before, self.model.referrers(&old), follows, advice).map_err(|refusal| refusal.field("name"))?;
        let mark = key::reference_mark(old.kind, &old.id);
        self.require_mark(&mark);
        if self.context.mark_revision(&mark).is_some() {
            self.draft.add_op(Op::Delete { key: mark.into() });
        }
        self.draft.add_op(Op::Delete { key: key::pin_mark(&old.id).into() });
        Ok(())
    }

    /// Requires that the imports of a release are unchanged, and marks them as referred to. Imports that are written by
    /// the same write are left out.
    fn require_imports(&mut self, name: &str) {
        let Some(compiled) = ReleaseRef::new(name).ok().and_then(|name| self.model.fleet.release(&name).cloned()) else {
            return;
        };
        for import in &compiled.all_imports {
            let id = import.to_string();
            if self.draft.audited().iter().any(|object| object.kind == Kind::Release && object.name == id) {
                continue;
            }
            let Some(object) = self.context.full_model.releases.get_by_name(None, &id) else { continue };
            let written = Revision::new(object.meta.resource_version);
            self.draft.add_precondition(Precondition::unchanged(key::object(Kind::Release, object.meta.uuid), written));
            self.draft.add_reference(&ObjectReference { kind: Kind::Release, id });
        }
    }

    /// Refuses a change of the content of a version that hosts have or once had.
    fn check_pinned(&mut self, name: &str) -> Result<(), ApiError> {
        let is_same =
            match (self.context.full_model.releases.get_by_name(None, name), self.model.releases.get_by_name(None, name)) {
                (Some(before), Some(after)) => has_same_content(&before.spec, &after.spec),
                _ => true,
            };
        if is_same || !name.contains('@') {
            return Ok(());
        }
        let mark = key::pin_mark(name);
        if self.context.mark_revision(&mark).is_some() {
            return Err(fixed_content_error(name));
        }
        self.require_mark(&mark);
        Ok(())
    }
}

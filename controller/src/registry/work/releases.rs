//! Stores a release only as it was compiled. The content of a version cannot change once a released task set uses it.
//!
//! A release is compiled together with its imports. An edit of an import can break the release, and writes of the two
//! have no object in common. So a write of a release writes the reference marks of all its imports, direct and
//! indirect, and requires that the imports are unchanged. An edit of a release requires that its own reference mark is
//! unchanged.

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
    /// Makes the commit depend on the imports that the written releases were compiled with. Refuses a change of a
    /// pinned version ([`key::pin_mark`]), and deletes the mark of a deleted release.
    ///
    /// # Errors
    /// Fails if the write changes the content of a pinned version.
    pub(super) fn check_releases(&mut self) -> Result<(), ApiError> {
        let releases = self.draft.audited().iter().filter(|object| object.kind == Kind::Release);
        let releases: Vec<(String, Action)> = releases.map(|object| (object.name.clone(), object.action)).collect();
        for (name, action) in releases {
            match action {
                Action::Created => self.require_imports(&name),
                Action::Updated => {
                    self.require_imports(&name);
                    // Each new import of this release changes the mark. So no release is compiled concurrently with the
                    // old content of this one.
                    self.require_mark(&key::reference_mark(Kind::Release, &name));
                    self.check_pinned(&name)?;
                }
                Action::Deleted => self.draft.add_op(Op::Delete { key: key::pin_mark(&name).into() }),
                Action::Unchanged => {}
            }
        }
        Ok(())
    }

    /// Refuses a new name if other objects refer to this object by its old name, because their references would break.
    /// Otherwise deletes the marks of the old name, and requires at the commit that no new reference to the old name
    /// was added. Does nothing for an object that is not a release.
    ///
    /// # Errors
    /// Fails with the objects that refer to the old name.
    pub(super) fn check_rename<S: Resource>(&mut self, old: &Object<S>, new: &Object<S>) -> Result<(), ApiError> {
        let reference = ObjectReference::new(old);
        if reference == ObjectReference::new(new) {
            return Ok(());
        }
        let ending = ", which refer to it by name; nothing was changed";
        let advice = "create one with the new name and version, move these to it, and delete this one";
        refuse_used(&self.model, old, self.model.referrers(&reference), ending, advice).map_err(|error| error.field("name"))?;
        let mark = key::reference_mark(reference.kind, &reference.id);
        self.require_mark(&mark);
        if self.context.mark_revision(&mark).is_some() {
            self.draft.add_op(Op::Delete { key: mark.into() });
        }
        self.draft.add_op(Op::Delete { key: key::pin_mark(&reference.id).into() });
        Ok(())
    }

    /// Requires at the commit that the imports of a release are unchanged, and writes their reference marks. Skips
    /// imports that the same write contains.
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
            let revision = Revision::new(object.meta.resource_version);
            self.draft.add_precondition(Precondition::unchanged(key::object(Kind::Release, object.meta.uuid), revision));
            self.draft.add_reference(&ObjectReference { kind: Kind::Release, id });
        }
    }

    /// Refuses a change of the content of a version that a released task set uses or once used. If there is none,
    /// requires at the commit that none was released in the meantime. A release without `@VERSION` in its name may
    /// always change.
    fn check_pinned(&mut self, name: &str) -> Result<(), ApiError> {
        let is_unchanged =
            match (self.context.full_model.releases.get_by_name(None, name), self.model.releases.get_by_name(None, name)) {
                (Some(old_release), Some(new_release)) => has_same_content(&old_release.spec, &new_release.spec),
                _ => true,
            };
        if is_unchanged || !name.contains('@') {
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

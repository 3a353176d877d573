//! Stores a release only as it was compiled, and keeps a version that hosts were told of as it was.
//!
//! A release is compiled over those that it imports, so an edit of one of these can break it, and two writes of the two
//! touch no common object. So whoever writes a release marks all that it imports, also through others, as referred to, and
//! requires them as they were; and whoever edits one requires its own mark as it was.

use stemma_core::name::ReleaseRef;
use stemma_core::object::{Kind, Object};
use stemma_core::release::has_same_content;
use stemma_wire::error::ApiError;

use super::Work;
use super::delete::refuse_used;
use crate::cache::model::{Reference, Resource, content_fixed};
use crate::records::audit::Action;
use crate::records::key;
use crate::store::{Op, Precondition, Revision};

impl Work<'_> {
    /// Makes the commit depend on what the releases that it writes were compiled from, and refuses to change a version's
    /// content that hosts were told of.
    ///
    /// # Errors
    /// When the content is fixed.
    pub(super) fn check_releases(&mut self) -> Result<(), ApiError> {
        let releases = self.draft.touched().iter().filter(|one| one.kind == Kind::Release);
        let releases: Vec<(String, Action)> = releases.map(|one| (one.name.clone(), one.action)).collect();
        for (name, action) in releases {
            match action {
                Action::Created => self.require_imports(&name),
                Action::Updated => {
                    self.require_imports(&name);
                    self.require_mark(&key::referred(Kind::Release, &name));
                    self.check_fixed(&name)?;
                }
                Action::Deleted => self.draft.entry(Op::Delete { key: key::fixed(&name).into() }),
                Action::Unchanged => {}
            }
        }
        Ok(())
    }

    /// Refuses another name of what others refer to by its name, as its deletion is refused: they would name nothing. Where nobody does,
    /// the marks of the name go with it, and the commit depends on that nobody comes to refer to it.
    ///
    /// # Errors
    /// Who refers to it.
    pub(super) fn check_renamed<S: Resource>(&mut self, before: &Object<S>, next: &Object<S>) -> Result<(), ApiError> {
        let left = Reference::to(before);
        if left == Reference::to(next) {
            return Ok(());
        }
        let follows = ", and these name it; nothing was changed";
        let advice = "make another one with the new name and version, move these to it, and delete this one";
        refuse_used(&self.model, before, self.model.users(&left), follows, advice)
            .map_err(|refusal| refusal.field("name"))?;
        let mark = key::referred(left.kind, &left.id);
        self.require_mark(&mark);
        if self.context.marked(&mark).is_some() {
            self.draft.entry(Op::Delete { key: mark.into() });
        }
        self.draft.entry(Op::Delete { key: key::fixed(&left.id).into() });
        Ok(())
    }

    fn require_imports(&mut self, name: &str) {
        let Some(compiled) = ReleaseRef::new(name).ok().and_then(|name| self.model.fleet.release(&name).cloned())
        else {
            return;
        };
        for import in &compiled.all_imports {
            let id = import.to_string();
            if self.draft.touched().iter().any(|one| one.kind == Kind::Release && one.name == id) {
                continue;
            }
            let Some(object) = self.context.whole.releases.named(None, &id) else { continue };
            let written = Revision::new(object.meta.resource_version);
            self.draft.require(Precondition::unchanged(key::object(Kind::Release, object.meta.uuid), written));
            self.draft.refer(&Reference { kind: Kind::Release, id });
        }
    }

    /// Refuses another content of a version that hosts were told of, now or once.
    fn check_fixed(&mut self, name: &str) -> Result<(), ApiError> {
        let is_same = match (self.context.whole.releases.named(None, name), self.model.releases.named(None, name)) {
            (Some(before), Some(after)) => has_same_content(&before.spec, &after.spec),
            _ => true,
        };
        if is_same || !name.contains('@') {
            return Ok(());
        }
        let mark = key::fixed(name);
        if self.context.marked(&mark).is_some() {
            return Err(content_fixed(name));
        }
        self.require_mark(&mark);
        Ok(())
    }
}

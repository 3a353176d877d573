//! Releases, by `NAME@VERSION`. One is kept compiled in the fleet, over those that it imports.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_author::Reader;
use stemma_core::fleet::Change;
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Object, ReleaseSpec};
use stemma_core::release::{CompiledRelease, ReleaseError, compile, compile_each, has_same_content, refused};
use stemma_wire::error::{ApiError, ErrorType};

use super::{MIB, Reference, Resource, release_exists};
use crate::cache::model::Model;

impl Resource for ReleaseSpec {
    bounded!(8 * MIB);
    named_by!(ReleaseRef);

    fn references(&self) -> Vec<Reference> {
        self.imports.iter().map(Reference::release).collect()
    }

    kept_in!(releases);

    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        compiled(model, object)
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveRelease(object.meta.name.clone()))
    }

    /// A release that does not compile (another program admitted it, by other rules) leaves its users incomplete and all others as
    /// they are; it is logged here, and is a finding of each cluster that it is missing in.
    fn load_changes(model: &mut Model) -> Vec<Change> {
        let specs = model.releases.iter().map(|o| (o.meta.name.clone(), o.spec.clone())).collect();
        let (compiled, failed) = compile_each(&specs, &Reader);
        for (name, errors) in failed {
            model.note_broken(&name, &errors);
        }
        compiled.into_values().map(Change::Release).collect()
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        for (at, import) in self.imports.iter().enumerate() {
            release_exists(model, &format!("imports[{at}]"), Some(import))?;
        }
        Ok(())
    }

    fn refused(&self, before: Option<&Self>) -> Vec<ReleaseError> {
        refused(self, before, &Reader)
    }

    /// A version's content is fixed from the first task set that was released with it, or with a release that imports it; one
    /// without a version may be edited, each edit being other content. What a store of before the marks says
    /// ([`crate::records::key::fixed`]) is found by what runs.
    fn check_change(before: &Object<Self>, next: &Object<Self>, model: &Model) -> Result<(), ApiError> {
        let name = &next.meta.name;
        if has_same_content(&before.spec, &next.spec) || name.version.is_none() {
            return Ok(());
        }
        let full = name.to_string();
        let imports = |running: &str| {
            let running = ReleaseRef::new(running).ok().and_then(|running| model.fleet.release(&running));
            running.is_some_and(|running| running.all_imports.contains(name))
        };
        let runs = |running: &str| running == full || imports(running);
        let running: BTreeSet<&str> = model.released.values().filter_map(|one| one.release.as_deref()).collect();
        if running.into_iter().any(runs) { Err(content_fixed(&full)) } else { Ok(()) }
    }
}

/// The refusal of another content of a version.
pub fn content_fixed(full: &str) -> ApiError {
    let name = full.split('@').next().unwrap_or_default();
    let message = format!("hosts were told of the release {full}, so its content is fixed; nothing was changed");
    let advice =
        format!("make the next version: put another `version` into the manifest of {name} and `stemma apply -f` it");
    ApiError::new(ErrorType::ObjectInUse, message).detail(advice).extra("object", format!("release/{full}").into())
}

/// A release and, behind it, every one that imports it, compiled.
fn compiled(model: &Model, release: &Object<ReleaseSpec>) -> Result<Vec<Change>, Vec<ReleaseError>> {
    let mut done: Vec<Arc<CompiledRelease>> =
        vec![compile(&release.meta.name, &release.spec, &|import| model.fleet.release(import).cloned(), &Reader)?];
    let importers = model.fleet.releases().filter(|one| one.all_imports.contains(&release.meta.name));
    let mut waiting: Vec<ReleaseRef> = importers.map(|one| one.name.clone()).collect();
    while !waiting.is_empty() {
        let spec_of = |name: &ReleaseRef| model.releases.named(None, &name.to_string());
        let ready = |name: &ReleaseRef| {
            spec_of(name).is_none_or(|object| object.spec.imports.iter().all(|import| !waiting.contains(import)))
        };
        let name = waiting.remove(waiting.iter().position(ready).unwrap_or(0));
        let Some(object) = spec_of(&name) else { continue };
        let import = |wanted: &ReleaseRef| {
            done.iter().find(|one| one.name == *wanted).cloned().or_else(|| model.fleet.release(wanted).cloned())
        };
        let next = compile(&name, &object.spec, &import, &Reader)?;
        done.push(next);
    }
    Ok(done.into_iter().map(Change::Release).collect())
}

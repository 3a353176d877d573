//! Releases, by `NAME@VERSION`. The fleet has the compiled form of each release, which includes its imports.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_author::SyntaxReader;
use stemma_core::fleet::FleetChange;
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Object, ReleaseSpec};
use stemma_core::release::{CompiledRelease, ReleaseError, check_changed_tasks, compile, compile_each, has_same_content};
use stemma_wire::error::{ApiError, ErrorType};

use super::{MIB, ObjectReference, Resource, check_release_exists};
use crate::cache::model::Model;

impl Resource for ReleaseSpec {
    size_limited!(8 * MIB);
    named_by!(ReleaseRef);

    fn references(&self) -> Vec<ObjectReference> {
        self.imports.iter().map(ObjectReference::for_release).collect()
    }

    indexed_in!(releases);

    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        compile_with_importers(model, object)
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveRelease(object.meta.name.clone()))
    }

    /// Compiles all releases. A release may not compile, because another version of the controller accepted it by other
    /// rules. Such a release is logged and recorded as broken, and the others are compiled without it.
    fn load_changes(model: &mut Model) -> Vec<FleetChange> {
        let specs = model.releases.iter().map(|o| (o.meta.name.clone(), o.spec.clone())).collect();
        let (compiled, failed) = compile_each(&specs, &SyntaxReader);
        for (name, errors) in failed {
            model.record_broken(&name, &errors);
        }
        compiled.into_values().map(FleetChange::Release).collect()
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        for (at, import) in self.imports.iter().enumerate() {
            check_release_exists(model, &format!("imports[{at}]"), Some(import))?;
        }
        Ok(())
    }

    fn host_errors(&self, before: Option<&Self>) -> Vec<ReleaseError> {
        check_changed_tasks(self, before, &SyntaxReader)
    }

    /// Refuses a change of the content of a fixed version. The content is fixed by the first task set that is
    /// released with the version, or with a release that imports it. A release without a version may be edited, and
    /// each edit is new content. A store of an older version has no marks for this ([`crate::records::key::pin_mark`]),
    /// so the releases that nodes run are checked.
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
        let running: BTreeSet<&str> = model.released.values().filter_map(|record| record.release.as_deref()).collect();
        if running.into_iter().any(runs) { Err(fixed_content_error(&full)) } else { Ok(()) }
    }
}

/// Returns the error for a change of the content of a fixed version.
pub fn fixed_content_error(full: &str) -> ApiError {
    let name = full.split('@').next().unwrap_or_default();
    let message = format!("the release {full} was already sent to hosts, so its content is fixed; nothing was changed");
    let advice = format!("create a new version: change `version` in the manifest of {name} and `stemma apply -f` it");
    ApiError::new(ErrorType::ObjectInUse, message).detail(advice).extra("object", format!("release/{full}").into())
}

/// Compiles a release and every release that imports it, each after its own imports.
fn compile_with_importers(model: &Model, release: &Object<ReleaseSpec>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
    let mut compiled: Vec<Arc<CompiledRelease>> =
        vec![compile(&release.meta.name, &release.spec, &|import| model.fleet.release(import).cloned(), &SyntaxReader)?];
    let importers = model.fleet.releases().filter(|importer| importer.all_imports.contains(&release.meta.name));
    let mut waiting: Vec<ReleaseRef> = importers.map(|importer| importer.name.clone()).collect();
    while !waiting.is_empty() {
        let spec_of = |name: &ReleaseRef| model.releases.get_by_name(None, &name.to_string());
        let ready = |name: &ReleaseRef| {
            spec_of(name).is_none_or(|object| object.spec.imports.iter().all(|import| !waiting.contains(import)))
        };
        let name = waiting.remove(waiting.iter().position(ready).unwrap_or(0));
        let Some(object) = spec_of(&name) else { continue };
        let import = |wanted: &ReleaseRef| {
            compiled.iter().find(|one| one.name == *wanted).cloned().or_else(|| model.fleet.release(wanted).cloned())
        };
        let next = compile(&name, &object.spec, &import, &SyntaxReader)?;
        compiled.push(next);
    }
    Ok(compiled.into_iter().map(FleetChange::Release).collect())
}

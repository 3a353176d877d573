//! Releases, named `NAME@VERSION`. The fleet contains each release in its compiled form, which includes the releases
//! that it imports.

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

    /// Returns references to the releases that this release imports.
    fn references(&self) -> Vec<ObjectReference> {
        self.imports.iter().map(ObjectReference::for_release).collect()
    }

    indexed_in!(releases);

    /// Compiles the release and every release that imports it, and returns the compiled releases as changes to the
    /// fleet.
    fn put_changes(model: &Model, object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        compile_with_importers(model, object)
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveRelease(object.meta.name.clone()))
    }

    /// Compiles all stored releases, and returns them as changes to the fleet. A release may fail to compile, because
    /// another version of the controller accepted it by different rules. Such a release is recorded as broken, and the
    /// caller logs it later. The other releases are compiled without it.
    fn load_changes(model: &mut Model) -> Vec<FleetChange> {
        let specs = model.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
        let (compiled, broken) = compile_each(&specs, &SyntaxReader);
        for (name, errors) in broken {
            model.record_broken(&name, &errors);
        }
        compiled.into_values().map(FleetChange::Release).collect()
    }

    /// Fails if an imported release is not stored.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        for (index, import) in self.imports.iter().enumerate() {
            check_release_exists(model, &format!("imports[{index}]"), Some(import))?;
        }
        Ok(())
    }

    /// Returns the errors of changed tasks that every host would refuse, and a new cycle of tasks through a stage.
    fn host_errors(&self, old_spec: Option<&Self>) -> Vec<ReleaseError> {
        check_changed_tasks(self, old_spec, &SyntaxReader)
    }

    /// Fails for a change to the content of a version that a released task set uses, directly or through an import. A
    /// release without a version can always be edited, and each edit is new content.
    ///
    /// The first task set that is released from a version fixes for good the content of this version and of all
    /// versions that it imports. `PendingWrite::check_releases` checks this by a mark
    /// ([`crate::records::key::pin_mark`]). The store of an older controller may lack the mark, so this function checks
    /// the present task sets too.
    fn check_change(old_object: &Object<Self>, new_object: &Object<Self>, model: &Model) -> Result<(), ApiError> {
        let name = &new_object.meta.name;
        if has_same_content(&old_object.spec, &new_object.spec) || name.version.is_none() {
            return Ok(());
        }
        let full_name = name.to_string();
        let imports_release = |release: &str| {
            let release = ReleaseRef::new(release).ok().and_then(|release| model.fleet.release(&release));
            release.is_some_and(|release| release.all_imports.contains(name))
        };
        let uses_release = |release: &str| release == full_name || imports_release(release);
        let running_releases: BTreeSet<&str> = model.released.values().filter_map(|record| record.release.as_deref()).collect();
        if running_releases.into_iter().any(uses_release) { Err(fixed_content_error(&full_name)) } else { Ok(()) }
    }
}

/// Returns the error for a change to the content of a version that was already sent to hosts. `full_name` is the
/// release's NAME@VERSION.
pub fn fixed_content_error(full_name: &str) -> ApiError {
    let name = full_name.split('@').next().unwrap_or_default();
    let message = format!("the release {full_name} was already sent to hosts, so its content is fixed; nothing was changed");
    let advice = format!("create a new version: change `version` in the manifest of {name} and `stemma apply -f` it");
    ApiError::new(ErrorType::ObjectInUse, message).detail(advice).extra("object", format!("release/{full_name}").into())
}

/// Compiles a release and every release that imports it, directly or through others. Each release is compiled after the
/// releases that it imports, unless they import each other in a circle.
///
/// Every broken release is compiled too, because it may lack only this import. If it still does not compile, it stays
/// broken.
///
/// # Errors
/// Fails if this release, or an importer that was not broken before, does not compile.
fn compile_with_importers(model: &Model, release: &Object<ReleaseSpec>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
    let mut compiled: Vec<Arc<CompiledRelease>> =
        vec![compile(&release.meta.name, &release.spec, &|import| model.fleet.release(import).cloned(), &SyntaxReader)?];
    let importers = model.fleet.releases().filter(|importer| importer.all_imports.contains(&release.meta.name));
    let names = importers.map(|importer| &importer.name).chain(model.broken_releases.keys());
    let names: BTreeSet<&ReleaseRef> = names.filter(|name| **name != release.meta.name).collect();
    let mut waiting: Vec<ReleaseRef> = names.into_iter().cloned().collect();
    while !waiting.is_empty() {
        let spec_of = |name: &ReleaseRef| model.releases.get_by_name(None, &name.to_string());
        let is_ready = |name: &ReleaseRef| {
            spec_of(name).is_none_or(|object| object.spec.imports.iter().all(|import| !waiting.contains(import)))
        };
        // If none is ready, because releases import each other in a circle, no order is right, and any one is compiled.
        let name = waiting.remove(waiting.iter().position(is_ready).unwrap_or(0));
        // A release of the fleet that is not stored has no spec that could be compiled.
        let Some(object) = spec_of(&name) else { continue };
        let find_release = |key: &ReleaseRef| {
            compiled.iter().find(|item| item.name == *key).cloned().or_else(|| model.fleet.release(key).cloned())
        };
        match compile(&name, &object.spec, &find_release, &SyntaxReader) {
            Ok(compiled_release) => compiled.push(compiled_release),
            Err(errors) if !model.broken_releases.contains_key(&name) => return Err(errors),
            Err(_) => {}
        }
    }
    Ok(compiled.into_iter().map(FleetChange::Release).collect())
}

//! Runs without a controller: manifests become a fleet in memory, and the controller's own functions resolve it.
//!
//! No rule of the model is implemented here. Core reads, compiles and resolves. This module adds the place of each
//! error, so that a repository of manifests can be fixed from its CI log.

mod fields;
mod render;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use stemma_author::SyntaxReader;
use stemma_core::finding::{Finding, sort_findings};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::manifest::{BodyError, Document, ManifestObjects, ObjectKey, assemble, read_document};
use stemma_core::name::{NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{ClusterId, Object, Spec};
use stemma_core::ownership::Manager;
use stemma_core::release::{CompiledRelease, ReleaseError, check_changed_tasks, compile_set};
use stemma_core::resolve::{FleetOutput, ResolveCache, ResolveError, resolve_fleet};
use stemma_core::task::Task;

use crate::manifest::{self, Manifest, Manifests};
use crate::problem::Problems;

pub(crate) use fields::print_fields;
pub(crate) use render::render;
pub(crate) use report::{resolve, validate_files};

/// The manager for a set of manifests, which counts as written by one author.
const MANAGER: &str = "manifests";

/// Compiled releases by name.
type ReleaseMap = BTreeMap<ReleaseRef, Arc<CompiledRelease>>;

/// The purpose for which manifests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPurpose {
    /// Only the resolved result. Errors in a single task that hosts would refuse are not checked, because the result
    /// does not depend on them.
    Resolve,
    /// To find all errors in the manifests.
    Check,
}

/// A consistent set of manifests, resolved.
pub(crate) struct LocalFleet {
    output: FleetOutput,
    manifests: Vec<Manifest>,
    /// The key of each manifest, in their order.
    keys: Vec<ObjectKey>,
}

impl LocalFleet {
    /// Returns the manifest that contains a task of a release: that of the release itself, or of a release that it
    /// imports.
    fn task_manifest(&self, release: &ReleaseRef, task: &Task) -> Option<&Manifest> {
        let is_own = |key: &ObjectKey| matches!(key, ObjectKey::Release(name) if name == release);
        // A release that is neither this one nor imported by it may have another task with the same id.
        let has_task = |key: &ObjectKey, one: &Manifest| {
            one.task_parameters(&task.id).is_some_and(|parameters| is_own(key) || parameters == task.parameters)
        };
        let candidates = self.keys.iter().zip(&self.manifests).filter(|(key, one)| has_task(key, one));
        candidates.min_by_key(|(key, _)| !is_own(key)).map(|(_, one)| one)
    }
}

/// Reads manifests and resolves them as a fleet.
///
/// # Errors
/// [`Problems`] with all errors of the first stage that fails: files, fields, names, releases, placement.
pub(crate) fn load(paths: &[PathBuf], purpose: ReadPurpose) -> Result<LocalFleet> {
    let (manifests, problems) = manifest::read_all(paths);
    let sources = Sources::read(manifests, problems, purpose)?;
    let manager = Manager::new(MANAGER).expect("the name is a manager's");
    let objects = match assemble(&sources.documents, &manager) {
        Ok(objects) => objects,
        Err(errors) => return Err(sources.body_problems(errors, &manager).into()),
    };
    let releases = sources.compile(&objects)?;
    let fleet = build_fleet(objects, releases);
    sources.resolve(&fleet)
}

/// The documents with their manifests.
struct Sources {
    manifests: Vec<Manifest>,
    documents: Vec<Document>,
    purpose: ReadPurpose,
}

impl Sources {
    /// Parses each manifest. Fails with all errors, including those of reading the files.
    fn read(manifests: Manifests, mut problems: Problems, purpose: ReadPurpose) -> Result<Self> {
        let mut documents = Vec::new();
        for manifest in &manifests.objects {
            match read_document(&manifest.json) {
                Ok(document) => documents.push(document),
                Err(error) => problems.add(manifest.locate(&error.field), error),
            }
        }
        problems.into_result()?;
        Ok(Self { manifests: manifests.objects, documents, purpose })
    }

    /// Returns the errors in the bodies of the objects, and the errors in the releases, which can be checked without
    /// the other objects.
    fn body_problems(&self, errors: Vec<(usize, BodyError)>, manager: &Manager) -> Problems {
        let mut problems = Problems::default();
        for (index, error) in errors {
            problems.add(self.manifests[index].locate(&error.field), error);
        }
        let is_release = |document: &&Document| matches!(document.key, ObjectKey::Release(_));
        let releases: Vec<Document> = self.documents.iter().filter(is_release).cloned().collect();
        if let Ok(objects) = assemble(&releases, manager) {
            self.compile_into(&objects, &mut problems);
        }
        problems
    }

    /// Returns `FILE:LINE:COLUMN` of a field of the object with this key.
    fn locate(&self, key: &ObjectKey, field: &str) -> String {
        self.manifest(key).map_or_else(|| key.to_string(), |manifest| manifest.locate(field))
    }

    fn manifest(&self, key: &ObjectKey) -> Option<&Manifest> {
        let index = self.documents.iter().position(|document| document.key == *key)?;
        Some(&self.manifests[index])
    }

    /// Compiles the releases. Fails with their errors, and with each level that names a release that is not among the
    /// manifests.
    fn compile(&self, objects: &ManifestObjects) -> Result<ReleaseMap> {
        let mut problems = Problems::default();
        let releases = self.compile_into(objects, &mut problems);
        let known = |name: &ReleaseRef| objects.releases.iter().any(|one| one.meta.name == *name);
        self.check_release_names(objects, &known, &mut problems);
        problems.into_result()?;
        Ok(releases)
    }

    /// Adds the errors for which every host would refuse a release. If only the resolved result is needed, only cycles
    /// are errors, because tasks that wait for each other have no order.
    fn check_releases(&self, objects: &ManifestObjects, problems: &mut Problems) {
        let is_fatal = |error: &ReleaseError| self.purpose == ReadPurpose::Check || matches!(error, ReleaseError::Cycle { .. });
        for release in &objects.releases {
            let key = ObjectKey::Release(release.meta.name.clone());
            for error in check_changed_tasks(&release.spec, None, &SyntaxReader).into_iter().filter(is_fatal) {
                self.add_release_error(&key, &error, problems);
            }
        }
    }

    /// Adds an error of a release, at its place.
    fn add_release_error(&self, key: &ObjectKey, error: &ReleaseError, problems: &mut Problems) {
        let (field, what) = (error.field().unwrap_or_default(), error.to_string());
        let (place, what) = match self.manifest(key) {
            Some(manifest) => manifest.locate_error(&field, &what),
            None => (key.to_string(), what),
        };
        problems.add(place, what);
    }

    /// Compiles the releases and adds their errors. Returns no release if any has an error.
    fn compile_into(&self, objects: &ManifestObjects, problems: &mut Problems) -> ReleaseMap {
        let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
        let releases = compile_set(&specs, &SyntaxReader).unwrap_or_else(|failed| {
            for (name, errors) in &failed {
                let key = ObjectKey::Release(name.clone());
                // An import that failed because of its own errors is not missing.
                let is_known =
                    |error: &ReleaseError| matches!(error, ReleaseError::UnknownImport(import) if specs.contains_key(import));
                for error in errors.iter().filter(|error| !is_known(error)) {
                    self.add_release_error(&key, error, problems);
                }
            }
            ReleaseMap::new()
        });
        self.check_releases(objects, problems);
        releases
    }

    /// Adds an error for each release that a level names and that is not among the manifests.
    fn check_release_names(&self, objects: &ManifestObjects, known: &dyn Fn(&ReleaseRef) -> bool, problems: &mut Problems) {
        let mut check = |key: ObjectKey, release: Option<&ReleaseRef>| {
            if let Some(name) = release.filter(|name| !known(name)) {
                let what = format!("release: there is no release {:?}: add its manifest, or name another", name.to_string());
                problems.add(self.locate(&key, "release"), what);
            }
        };
        for template in &objects.templates {
            check(ObjectKey::ClusterTemplate(template.meta.name.clone()), template.spec.release.as_ref());
        }
        for cluster in &objects.clusters {
            check(ObjectKey::Cluster(cluster.meta.name.clone()), cluster.spec.release.as_ref());
        }
        for group in &objects.groups {
            let cluster = objects.clusters.iter().find(|one| ClusterId(one.meta.uuid) == group.spec.cluster);
            let Some(cluster) = cluster.map(|one| one.meta.name.clone()) else { continue };
            check(ObjectKey::NodeGroup { cluster, name: group.meta.name.clone() }, group.spec.release.as_ref());
        }
    }

    /// Returns findings about names that a controller refuses for new objects, if the manifests are checked for errors.
    fn name_findings(&self) -> impl Iterator<Item = Finding> {
        let checked = self.documents.iter().filter(|_| self.purpose == ReadPurpose::Check);
        checked.filter_map(|document| document.key.name_finding())
    }

    /// Resolves every node and orders the tasks of every cluster.
    fn resolve(self, fleet: &Fleet) -> Result<LocalFleet> {
        let errors = match resolve_fleet(fleet, &ResolveCache::new()) {
            Ok(mut output) => {
                output.findings.extend(self.name_findings());
                sort_findings(&mut output.findings);
                let keys = self.documents.into_iter().map(|document| document.key).collect();
                return Ok(LocalFleet { output, manifests: self.manifests, keys });
            }
            Err(errors) => errors,
        };
        let mut problems = Problems::default();
        for error in errors {
            match error {
                ResolveError::Incomplete { node, missing } => {
                    let key = NodeName::new(&node).ok().map(ObjectKey::Node);
                    let place = key.map_or(node, |key| self.locate(&key, "nodegroup"));
                    for missing in missing {
                        problems.add(&place, missing);
                    }
                }
                ResolveError::Cycle { cluster, cycle } => {
                    let key = ObjectName::new(&cluster).ok().map(ObjectKey::Cluster);
                    problems.add(key.map_or(cluster, |key| self.locate(&key, "")), cycle);
                }
            }
        }
        Err(problems.into())
    }
}

/// Builds a fleet in memory from the objects.
fn build_fleet(objects: ManifestObjects, releases: ReleaseMap) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.apply_all(releases.into_values().map(FleetChange::Release));
    fleet.apply_all(into_arcs(objects.namespaces).map(FleetChange::Namespace));
    fleet.apply_all(into_arcs(objects.rules).map(FleetChange::Rule));
    fleet.apply_all(into_arcs(objects.templates).map(FleetChange::Template));
    fleet.apply_all(into_arcs(objects.clusters).map(FleetChange::Cluster));
    fleet.apply_all(into_arcs(objects.groups).map(FleetChange::NodeGroup));
    fleet.apply_all(into_arcs(objects.nodes).map(FleetChange::Node));
    fleet.apply_all(objects.observations.into_iter().map(|(id, seen)| FleetChange::Observation(id, Arc::new(seen))));
    fleet.set_loaded();
    fleet
}

fn into_arcs<S: Spec>(objects: Vec<Object<S>>) -> impl Iterator<Item = Arc<Object<S>>> {
    objects.into_iter().map(Arc::new)
}

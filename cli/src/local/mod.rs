//! Resolves manifests without a controller: they become a fleet in memory, and the controller's own functions resolve
//! that fleet.
//!
//! No rule of the model is implemented here. The crate `stemma-core` reads, compiles and resolves. This module adds the
//! place of each error in the files, so that a person can fix a repository of manifests from its CI log.

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

/// The manager name under which the manifests are applied to the fleet in memory. All manifests count as those of one
/// author.
const MANAGER: &str = "manifests";

/// Compiled releases by name.
type ReleaseMap = BTreeMap<ReleaseRef, Arc<CompiledRelease>>;

/// The purpose for which manifests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPurpose {
    /// To resolve only (`resolve` and `render`). The errors because of which hosts would refuse a task are not
    /// searched, because the result does not depend on them. `render` then searches its tasks for them.
    Resolve,
    /// To find all errors in the manifests.
    Check,
}

/// A fleet in memory, resolved from manifests without errors.
pub(crate) struct LocalFleet {
    /// The resolved nodes, the order of their tasks, and the findings.
    output: FleetOutput,
    manifests: Vec<Manifest>,
    /// The key of the object in each manifest, in the order of `manifests`.
    keys: Vec<ObjectKey>,
}

impl LocalFleet {
    /// Returns the manifest that contains a task of a release: the manifest of the release itself, or else of another
    /// release that has a task with the same id and parameters, such as a release that it imports. `None` if there is none.
    fn task_manifest(&self, release: &ReleaseRef, task: &Task) -> Option<&Manifest> {
        let is_own = |key: &ObjectKey| matches!(key, ObjectKey::Release(name) if name == release);
        // An unrelated release may have another task with the same id, so the parameters of the task are compared too.
        let has_task = |key: &ObjectKey, manifest: &Manifest| {
            manifest.task_parameters(&task.id).is_some_and(|parameters| is_own(key) || parameters == task.parameters)
        };
        let candidates = self.keys.iter().zip(&self.manifests).filter(|(key, manifest)| has_task(key, manifest));
        candidates.min_by_key(|(key, _)| !is_own(key)).map(|(_, manifest)| manifest)
    }
}

/// Reads manifests and resolves them as a fleet.
///
/// # Errors
/// Fails with [`Problems`]: all errors of the first stage that has any. The stages are the files with the kinds and
/// names of the objects, the fields with the releases, and the nodes.
pub(crate) fn load(paths: &[PathBuf], purpose: ReadPurpose) -> Result<LocalFleet> {
    let (manifests, problems) = manifest::read_all(paths);
    let sources = Sources::read(manifests, problems, purpose)?;
    let manager = Manager::new(MANAGER).expect("the name of the manager is valid");
    let objects = match assemble(&sources.documents, &manager) {
        Ok(objects) => objects,
        Err(errors) => return Err(sources.body_problems(errors, &manager).into()),
    };
    let releases = sources.compile(&objects)?;
    let fleet = build_fleet(objects, releases);
    sources.resolve(&fleet)
}

/// The manifests, and the document that was parsed from each.
struct Sources {
    manifests: Vec<Manifest>,
    /// The parsed documents, in the order of `manifests`.
    documents: Vec<Document>,
    purpose: ReadPurpose,
}

impl Sources {
    /// Parses each manifest. Fails with the errors of all manifests, after `problems`, the errors of reading the files.
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

    /// Returns errors in the bodies of objects, each with its place in the files. Each error in `errors` has the index of
    /// its document. If the bodies of all releases are valid, also returns the errors of compiling them, because a release
    /// can be checked even if the other objects are invalid.
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

    /// Returns `FILE:LINE:COLUMN` of a field of the object with this key, or the key itself if no manifest has the
    /// object.
    fn locate(&self, key: &ObjectKey, field: &str) -> String {
        self.manifest(key).map_or_else(|| key.to_string(), |manifest| manifest.locate(field))
    }

    fn manifest(&self, key: &ObjectKey) -> Option<&Manifest> {
        let index = self.documents.iter().position(|document| document.key == *key)?;
        Some(&self.manifests[index])
    }

    /// Compiles the releases. Fails with their errors, and with an error for each level whose release is not among the
    /// manifests.
    fn compile(&self, objects: &ManifestObjects) -> Result<ReleaseMap> {
        let mut problems = Problems::default();
        let releases = self.compile_into(objects, &mut problems);
        let is_known = |name: &ReleaseRef| objects.releases.iter().any(|release| release.meta.name == *name);
        self.check_release_names(objects, &is_known, &mut problems);
        problems.into_result()?;
        Ok(releases)
    }

    /// Adds the errors of tasks that every host would refuse, of names that no object can have, and of cycles through a
    /// stage. For [`ReadPurpose::Resolve`], adds only the cycles, because their tasks have no order.
    fn check_releases(&self, objects: &ManifestObjects, problems: &mut Problems) {
        let is_fatal = |error: &ReleaseError| self.purpose == ReadPurpose::Check || matches!(error, ReleaseError::Cycle { .. });
        for release in &objects.releases {
            let key = ObjectKey::Release(release.meta.name.clone());
            for error in check_changed_tasks(&release.spec, None, &SyntaxReader).into_iter().filter(is_fatal) {
                self.add_release_error(&key, &error, problems);
            }
        }
    }

    /// Adds an error of a release, with its place in the files.
    fn add_release_error(&self, key: &ObjectKey, error: &ReleaseError, problems: &mut Problems) {
        let (field, message) = (error.field().unwrap_or_default(), error.to_string());
        let (place, message) = match self.manifest(key) {
            Some(manifest) => manifest.locate_error(&field, &message),
            None => (key.to_string(), message),
        };
        problems.add(place, message);
    }

    /// Compiles the releases. Adds the errors of compiling them, and then those of [`Self::check_releases`], to
    /// `problems`. Returns an empty map if any release does not compile.
    fn compile_into(&self, objects: &ManifestObjects, problems: &mut Problems) -> ReleaseMap {
        let specs = objects.releases.iter().map(|release| (release.meta.name.clone(), release.spec.clone())).collect();
        let releases = compile_set(&specs, &SyntaxReader).unwrap_or_else(|errors_by_release| {
            for (name, errors) in &errors_by_release {
                let key = ObjectKey::Release(name.clone());
                // An imported release with errors of its own is not unknown, so the import is not reported.
                let is_failed_import =
                    |error: &ReleaseError| matches!(error, ReleaseError::UnknownImport(import) if specs.contains_key(import));
                for error in errors.iter().filter(|error| !is_failed_import(error)) {
                    self.add_release_error(&key, error, problems);
                }
            }
            ReleaseMap::new()
        });
        self.check_releases(objects, problems);
        releases
    }

    /// Adds an error for each release that a level names and that is not among the manifests.
    fn check_release_names(&self, objects: &ManifestObjects, is_known: &dyn Fn(&ReleaseRef) -> bool, problems: &mut Problems) {
        let mut check = |key: ObjectKey, release: Option<&ReleaseRef>| {
            if let Some(name) = release.filter(|name| !is_known(name)) {
                let message = format!("release: there is no release {:?}: add its manifest, or name another", name.to_string());
                problems.add(self.locate(&key, "release"), message);
            }
        };
        for template in &objects.templates {
            check(ObjectKey::ClusterTemplate(template.meta.name.clone()), template.spec.release.as_ref());
        }
        for cluster in &objects.clusters {
            check(ObjectKey::Cluster(cluster.meta.name.clone()), cluster.spec.release.as_ref());
        }
        for group in &objects.groups {
            let cluster = objects.clusters.iter().find(|candidate| ClusterId(candidate.meta.uuid) == group.spec.cluster);
            let Some(cluster) = cluster.map(|candidate| candidate.meta.name.clone()) else { continue };
            check(ObjectKey::NodeGroup { cluster, name: group.meta.name.clone() }, group.spec.release.as_ref());
        }
    }

    /// Returns findings about names that a controller refuses for new objects. Returns none for
    /// [`ReadPurpose::Resolve`].
    fn name_findings(&self) -> impl Iterator<Item = Finding> {
        let documents = self.documents.iter().filter(|_| self.purpose == ReadPurpose::Check);
        documents.filter_map(|document| document.key.name_finding())
    }

    /// Resolves every node and orders the tasks of every cluster. Fails with the errors of nodes that cannot be
    /// resolved, and with the cycles among tasks.
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
    fleet.apply_all(objects.observations.into_iter().map(|(id, record)| FleetChange::Observation(id, Arc::new(record))));
    fleet.set_loaded();
    fleet
}

fn into_arcs<S: Spec>(objects: Vec<Object<S>>) -> impl Iterator<Item = Arc<Object<S>>> {
    objects.into_iter().map(Arc::new)
}

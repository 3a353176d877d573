//! Without a controller: manifests become a fleet in memory, and the controller's own functions decide over it.
//!
//! Nothing here knows a rule of the model. Reading, compiling and resolving are core's; what is added is the place
//! of each error, so that a repository of manifests can be mended from its CI's log.

mod fields;
mod render;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use stemma_author::Reader;
use stemma_core::finding::{Finding, sort_findings};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::manifest::{BodyError, Document, Key, Objects, assemble, read_document};
use stemma_core::name::{NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{ClusterId, Object, Spec};
use stemma_core::ownership::Manager;
use stemma_core::release::{CompiledRelease, ReleaseError, compile_set, refused};
use stemma_core::resolve::{FleetAnswer, ResolveCache, ResolveError, resolve_fleet};
use stemma_core::task::Task;

use crate::manifest::{self, Manifest, Manifests};
use crate::problem::Problems;

pub(crate) use fields::fields;
pub(crate) use render::render;
pub(crate) use report::{resolve, validate_files};

/// The manager that a set of manifests is read under: it has one author.
const MANAGER: &str = "manifests";

/// Compiled releases by name.
type Releases = BTreeMap<ReleaseRef, Arc<CompiledRelease>>;

/// What manifests are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The answer alone: what hosts would refuse of a task by itself is not judged, since no answer rests on it.
    Answer,
    /// To know what is wrong with them.
    Check,
}

/// A set of manifests that holds together.
pub(crate) struct Local {
    answer: FleetAnswer,
    manifests: Vec<Manifest>,
    /// What each of the manifests is, in their order.
    keys: Vec<Key>,
}

impl Local {
    /// The manifest that a task of a release stands in: that of the release, or of one that it imports.
    fn of_task(&self, release: &ReleaseRef, task: &Task) -> Option<&Manifest> {
        let is_own = |key: &Key| matches!(key, Key::Release(name) if name == release);
        // A release that neither is it nor is imported may have another task of that id.
        let has_it = |key: &Key, one: &Manifest| {
            one.parameters_of(&task.id).is_some_and(|given| is_own(key) || given == task.parameters)
        };
        let having = self.keys.iter().zip(&self.manifests).filter(|(key, one)| has_it(key, one));
        having.min_by_key(|(key, _)| !is_own(key)).map(|(_, one)| one)
    }
}

/// Reads manifests and puts a fleet together of them.
///
/// # Errors
/// [`Problems`]: everything that is wrong, stage by stage: files, fields, names, releases, placement.
pub(crate) fn load(paths: &[PathBuf], purpose: Purpose) -> Result<Local> {
    let (manifests, problems) = manifest::read_all(paths);
    let sources = Sources::read(manifests, problems, purpose)?;
    let manager = Manager::new(MANAGER).expect("the name is a manager's");
    let objects = match assemble(&sources.documents, &manager) {
        Ok(objects) => objects,
        Err(errors) => return Err(sources.of_bodies(errors, &manager).into()),
    };
    let releases = sources.compile(&objects)?;
    let fleet = fleet(objects, releases);
    sources.check(&fleet)
}

/// The documents with their files.
struct Sources {
    manifests: Vec<Manifest>,
    documents: Vec<Document>,
    purpose: Purpose,
}

impl Sources {
    fn read(manifests: Manifests, mut problems: Problems, purpose: Purpose) -> Result<Self> {
        let mut documents = Vec::new();
        for manifest in &manifests.objects {
            match read_document(&manifest.json) {
                Ok(document) => documents.push(document),
                Err(error) => problems.add(manifest.place(&error.field), error),
            }
        }
        problems.check()?;
        Ok(Self { manifests: manifests.objects, documents, purpose })
    }

    /// What is wrong with the bodies, and with the releases, which need no other object to be looked at.
    fn of_bodies(&self, errors: Vec<(usize, BodyError)>, manager: &Manager) -> Problems {
        let mut problems = Problems::default();
        for (at, error) in errors {
            problems.add(self.manifests[at].place(&error.field), error);
        }
        let is_release = |document: &&Document| matches!(document.key, Key::Release(_));
        let releases: Vec<Document> = self.documents.iter().filter(is_release).cloned().collect();
        if let Ok(objects) = assemble(&releases, manager) {
            self.compile_into(&objects, &mut problems);
        }
        problems
    }

    /// `FILE:LINE:COLUMN` of a field of the object with that key.
    fn place(&self, key: &Key, field: &str) -> String {
        self.manifest(key).map_or_else(|| key.to_string(), |manifest| manifest.place(field))
    }

    fn manifest(&self, key: &Key) -> Option<&Manifest> {
        let at = self.documents.iter().position(|document| document.key == *key)?;
        Some(&self.manifests[at])
    }

    fn compile(&self, objects: &Objects) -> Result<Releases> {
        let mut problems = Problems::default();
        let releases = self.compile_into(objects, &mut problems);
        let known = |name: &ReleaseRef| objects.releases.iter().any(|one| one.meta.name == *name);
        self.check_named(objects, &known, &mut problems);
        problems.check()?;
        Ok(releases)
    }

    /// What every host would refuse of the releases. Where the answer alone is asked for, that is what the answer rests on: tasks that wait
    /// for each other have no order.
    fn judge(&self, objects: &Objects, problems: &mut Problems) {
        let is_judged =
            |error: &ReleaseError| self.purpose == Purpose::Check || matches!(error, ReleaseError::Cycle { .. });
        for release in &objects.releases {
            let key = Key::Release(release.meta.name.clone());
            for error in refused(&release.spec, None, &Reader).into_iter().filter(is_judged) {
                self.add_refused(&key, &error, problems);
            }
        }
    }

    /// What is wrong with a release, at its place.
    fn add_refused(&self, key: &Key, error: &ReleaseError, problems: &mut Problems) {
        let (field, what) = (error.field().unwrap_or_default(), error.to_string());
        let (place, what) = match self.manifest(key) {
            Some(manifest) => manifest.told(&field, &what),
            None => (key.to_string(), what),
        };
        problems.add(place, what);
    }

    fn compile_into(&self, objects: &Objects, problems: &mut Problems) -> Releases {
        let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
        let releases = compile_set(&specs, &Reader).unwrap_or_else(|failed| {
            for (name, errors) in &failed {
                let key = Key::Release(name.clone());
                // An import that failed for reasons of its own is not missing.
                let is_there = |error: &ReleaseError| matches!(error, ReleaseError::UnknownImport(import) if specs.contains_key(import));
                for error in errors.iter().filter(|error| !is_there(error)) {
                    self.add_refused(&key, error, problems);
                }
            }
            Releases::new()
        });
        self.judge(objects, problems);
        releases
    }

    /// Refuses a release that some level names and that is nowhere among the manifests.
    fn check_named(&self, objects: &Objects, known: &dyn Fn(&ReleaseRef) -> bool, problems: &mut Problems) {
        let mut check = |key: Key, release: Option<&ReleaseRef>| {
            if let Some(name) = release.filter(|name| !known(name)) {
                let what =
                    format!("release: there is no release {:?}: add its manifest, or name another", name.to_string());
                problems.add(self.place(&key, "release"), what);
            }
        };
        for template in &objects.templates {
            check(Key::ClusterTemplate(template.meta.name.clone()), template.spec.release.as_ref());
        }
        for cluster in &objects.clusters {
            check(Key::Cluster(cluster.meta.name.clone()), cluster.spec.release.as_ref());
        }
        for group in &objects.groups {
            let cluster = objects.clusters.iter().find(|one| ClusterId(one.meta.uuid) == group.spec.cluster);
            let Some(cluster) = cluster.map(|one| one.meta.name.clone()) else { continue };
            check(Key::NodeGroup { cluster, name: group.meta.name.clone() }, group.spec.release.as_ref());
        }
    }

    /// The names under which a controller makes no object, where the manifests are read to know what is wrong with them.
    fn odd_names(&self) -> impl Iterator<Item = Finding> {
        let checked = self.documents.iter().filter(|_| self.purpose == Purpose::Check);
        checked.filter_map(|document| document.key.odd_name())
    }

    /// Resolves every node and orders every cluster.
    fn check(self, fleet: &Fleet) -> Result<Local> {
        let errors = match resolve_fleet(fleet, &ResolveCache::new()) {
            Ok(mut answer) => {
                answer.findings.extend(self.odd_names());
                sort_findings(&mut answer.findings);
                let keys = self.documents.into_iter().map(|document| document.key).collect();
                return Ok(Local { answer, manifests: self.manifests, keys });
            }
            Err(errors) => errors,
        };
        let mut problems = Problems::default();
        for error in errors {
            match error {
                ResolveError::Incomplete { node, missing } => {
                    let key = NodeName::new(&node).ok().map(Key::Node);
                    let place = key.map_or(node, |key| self.place(&key, "nodegroup"));
                    for missing in missing {
                        problems.add(&place, missing);
                    }
                }
                ResolveError::Cycle { cluster, cycle } => {
                    let key = ObjectName::new(&cluster).ok().map(Key::Cluster);
                    problems.add(key.map_or(cluster, |key| self.place(&key, "")), cycle);
                }
            }
        }
        Err(problems.into())
    }
}

fn fleet(objects: Objects, releases: Releases) -> Fleet {
    let mut fleet = Fleet::new();
    fleet.apply_all(releases.into_values().map(Change::Release));
    fleet.apply_all(shared(objects.namespaces).map(Change::Namespace));
    fleet.apply_all(shared(objects.rules).map(Change::Rule));
    fleet.apply_all(shared(objects.templates).map(Change::Template));
    fleet.apply_all(shared(objects.clusters).map(Change::Cluster));
    fleet.apply_all(shared(objects.groups).map(Change::NodeGroup));
    fleet.apply_all(shared(objects.nodes).map(Change::Node));
    fleet.apply_all(objects.observations.into_iter().map(|(id, seen)| Change::Observation(id, Arc::new(seen))));
    fleet.set_loaded();
    fleet
}

fn shared<S: Spec>(objects: Vec<Object<S>>) -> impl Iterator<Item = Arc<Object<S>>> {
    objects.into_iter().map(Arc::new)
}

//! From what the cache holds to changes of core's fleet: releases are compiled on the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use log::error;
use stemma_core::condition::Author;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{ClusterId, GroupId, NodeId, ReleaseSpec, TemplateId};
use stemma_core::release::compile_set;

use crate::cache::{Changed, Model};

/// Everything that is stored, in an order in which parents come before children.
pub(super) fn everything(model: &Model, author: &dyn Author) -> Vec<Change> {
    let specs = model.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
    let mut changes = compiled(&specs, &|_| true, author);
    changes.extend(model.release_tags.iter().cloned().map(Change::ReleaseTags));
    changes.extend(model.templates.iter().cloned().map(Change::Template));
    changes.extend(model.clusters.iter().cloned().map(Change::Cluster));
    changes.extend(model.groups.iter().cloned().map(Change::NodeGroup));
    changes.extend(model.primaries.iter().cloned().map(Change::Primary));
    changes.extend(model.nodes.iter().cloned().map(Change::Node));
    for (node, record) in &model.observations {
        changes.push(Change::Observation(NodeId(*node), Arc::new(record.observation.clone())));
    }
    changes
}

/// What one change of the cache is to the fleet.
pub(super) fn changes(changed: &Changed, model: &Model, fleet: &Fleet, author: &dyn Author) -> Vec<Change> {
    match changed {
        Changed::Release(pair) => match (&pair.before, &pair.after) {
            (_, Some(after)) => recompiled(&after.meta.name, model, fleet, author),
            (Some(before), None) => vec![Change::RemoveRelease(before.meta.name.clone())],
            (None, None) => Vec::new(),
        },
        Changed::ReleaseTags(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::ReleaseTags, |gone| {
            Change::RemoveReleaseTags(gone.meta.name.clone())
        }),
        Changed::Template(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::Template, |gone| {
            Change::RemoveTemplate(TemplateId(gone.meta.uuid))
        }),
        Changed::Cluster(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::Cluster, |gone| {
            Change::RemoveCluster(ClusterId(gone.meta.uuid))
        }),
        Changed::Group(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::NodeGroup, |gone| {
            Change::RemoveNodeGroup(GroupId(gone.meta.uuid))
        }),
        Changed::Node(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::Node, |gone| {
            Change::RemoveNode(NodeId(gone.meta.uuid))
        }),
        Changed::Primary(pair) => one(pair.before.as_ref(), pair.after.as_ref(), Change::Primary, |gone| {
            Change::RemovePrimary(gone.spec.cluster, gone.meta.name.clone())
        }),
        Changed::Observation(node) => {
            let id = NodeId(*node);
            vec![match model.observations.get(node) {
                Some(record) => Change::Observation(id, Arc::new(record.observation.clone())),
                None => Change::RemoveObservation(id),
            }]
        }
        Changed::Results(_) | Changed::Seen(_) => Vec::new(),
    }
}

fn one<T: Clone>(
    before: Option<&T>,
    after: Option<&T>,
    put: fn(T) -> Change,
    gone: impl Fn(&T) -> Change,
) -> Vec<Change> {
    match (before, after) {
        (_, Some(after)) => vec![put(after.clone())],
        (Some(before), None) => vec![gone(before)],
        (None, None) => Vec::new(),
    }
}

/// A release that was stored, and those that import it.
fn recompiled(name: &ReleaseRef, model: &Model, fleet: &Fleet, author: &dyn Author) -> Vec<Change> {
    let imports_it = |other: &ReleaseRef| {
        other == name || fleet.release(other).is_some_and(|release| release.all_imports.contains(name))
    };
    let mut specs = BTreeMap::new();
    for object in model.releases.iter().filter(|object| imports_it(&object.meta.name)) {
        with_imports(&object.meta.name, model, &mut specs);
    }
    compiled(&specs, &imports_it, author)
}

fn with_imports(name: &ReleaseRef, model: &Model, specs: &mut BTreeMap<ReleaseRef, ReleaseSpec>) {
    if specs.contains_key(name) {
        return;
    }
    let Some(object) = model.releases.named(None, &name.to_string()) else { return };
    specs.insert(name.clone(), object.spec.clone());
    for import in &object.spec.imports {
        with_imports(import, model, specs);
    }
}

/// The releases that are wanted of a set. One that does not compile was admitted by an older program: what it was
/// before stays in force, and the log says why.
fn compiled(
    specs: &BTreeMap<ReleaseRef, ReleaseSpec>,
    wanted: &dyn Fn(&ReleaseRef) -> bool,
    author: &dyn Author,
) -> Vec<Change> {
    match compile_set(specs, author) {
        Ok(releases) => {
            releases.into_iter().filter(|(name, _)| wanted(name)).map(|(_, one)| Change::Release(one)).collect()
        }
        Err(failed) => {
            for (name, errors) in &failed {
                let why: Vec<String> = errors.iter().map(ToString::to_string).collect();
                error!(release:% = name, errors = why.join("; "); "a stored release does not compile and is left out");
            }
            let sound: BTreeMap<_, _> = specs
                .iter()
                .filter(|(name, _)| !failed.contains_key(*name))
                .map(|(n, s)| (n.clone(), s.clone()))
                .collect();
            if sound.len() == specs.len() { Vec::new() } else { compiled(&sound, wanted, author) }
        }
    }
}

//! `policy: any`: one pair stands for an entry, the first node that has the task.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Class, ClusterGraph, Instance, Pair};
use crate::release::{CompiledRelease, Cross, TaskIx};
use crate::role::natural_cmp;
use crate::task::Policy;

impl ClusterGraph {
    /// Finds the single pairs, and makes each node that was picked a class of its own: what holds of it does not hold
    /// of those that are otherwise like it.
    pub(super) fn pick_singles(&mut self) {
        let mut singles = BTreeSet::new();
        for class in &self.classes {
            for ix in &class.profile.tasks {
                self.pick_for(class, *ix, &mut singles);
            }
        }
        let picked: BTreeSet<Arc<str>> =
            singles.iter().flat_map(|(before, after)| [before, after]).filter_map(|one| one.0.clone()).collect();
        self.singles = singles;
        let mut classes = Vec::new();
        for class in self.classes.drain(..) {
            let (alone, rest): (Vec<_>, Vec<_>) = class.nodes.into_iter().partition(|node| picked.contains(node));
            let of = |nodes| Class { profile: Arc::clone(&class.profile), nodes };
            classes.extend(alone.into_iter().map(|node| of(vec![node])));
            if !rest.is_empty() {
                classes.push(of(rest));
            }
        }
        self.classes = classes;
    }

    fn pick_for(&self, class: &Class, ix: TaskIx, singles: &mut BTreeSet<Pair>) {
        let release = &class.profile.release;
        let task = release.task(ix);
        let any = |cross: &&Cross| cross.policy == Policy::Any;
        for node in &class.nodes {
            let own: Instance = (Some(Arc::clone(node)), release.id(ix).into());
            for cross in task.cross_depends.iter().filter(any) {
                singles.extend(self.first(release, cross, &own).map(|first| (first, own.clone())));
            }
            for cross in task.cross_depended_by.iter().filter(any) {
                singles.extend(self.first(release, cross, &own).map(|first| (own.clone(), first)));
            }
        }
    }

    /// The first node by name that an entry means and that has one of its tasks, the instance itself left out.
    fn first(&self, release: &CompiledRelease, cross: &Cross, own: &Instance) -> Option<Instance> {
        let meant =
            self.classes.iter().filter(|class| class.profile.place.is_meant(release.matching.roles, &cross.target));
        let instances = meant.flat_map(|class| {
            let tasks = cross.tasks.iter().filter(|ix| class.profile.has(**ix));
            tasks.flat_map(|ix| class.nodes.iter().map(|node| (Some(Arc::clone(node)), Arc::from(release.id(*ix)))))
        });
        instances.filter(|one| one != own).min_by(|a: &Instance, b: &Instance| {
            let name = |one: &Instance| one.0.clone().unwrap_or_default();
            natural_cmp(&name(a), &name(b)).then_with(|| a.1.cmp(&b.1))
        })
    }
}

//! `policy: any`: one pair stands for an entry, the first node that has the task.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Class, ClusterGraph, Instance, Pair};
use crate::release::{CompiledRelease, Cross, TaskIx};
use crate::role::natural_cmp;
use crate::task::Policy;

/// What was picked: the pairs, and the nodes that stand out by it.
#[derive(Default)]
struct Picked {
    pairs: BTreeSet<Pair>,
    nodes: BTreeSet<Arc<str>>,
}

impl ClusterGraph {
    /// Finds the single pairs, and makes each node that was picked a class of its own: what holds of it does not hold
    /// of those that are otherwise like it.
    pub(super) fn pick_singles(&mut self) {
        let mut found = Picked::default();
        for class in &self.classes {
            for ix in &class.profile.tasks {
                self.pick_for(class, *ix, &mut found);
            }
        }
        self.singles = found.pairs;
        let mut classes = Vec::new();
        for class in self.classes.drain(..) {
            let (alone, rest): (Vec<_>, Vec<_>) = class.nodes.into_iter().partition(|node| found.nodes.contains(node));
            let of = |nodes| Class { profile: Arc::clone(&class.profile), nodes };
            classes.extend(alone.into_iter().map(|node| of(vec![node])));
            if !rest.is_empty() {
                classes.push(of(rest));
            }
        }
        self.classes = classes;
    }

    fn pick_for(&self, class: &Class, ix: TaskIx, found: &mut Picked) {
        let release = &class.profile.release;
        let task = release.task(ix);
        let any = |cross: &&Cross| cross.policy == Policy::Any;
        let (before, after): (Vec<_>, Vec<_>) =
            (task.cross_depends.iter().filter(any).collect(), task.cross_depended_by.iter().filter(any).collect());
        if before.is_empty() && after.is_empty() {
            return;
        }
        let of =
            |entries: &[&Cross]| -> Vec<Firsts> { entries.iter().map(|cross| self.firsts(release, cross)).collect() };
        let (before, after) = (of(&before), of(&after));
        for node in &class.nodes {
            let own: Instance = (Some(Arc::clone(node)), release.id(ix).into());
            for first in before.iter().filter_map(|firsts| other_than(firsts, &own)) {
                found.nodes.extend(first.0.clone());
                found.pairs.insert((first, own.clone()));
            }
            for first in after.iter().filter_map(|firsts| other_than(firsts, &own)) {
                found.nodes.extend(first.0.clone());
                found.pairs.insert((own.clone(), first));
            }
        }
    }

    /// The first two nodes by name that an entry means and that have one of its tasks.
    fn firsts(&self, release: &CompiledRelease, cross: &Cross) -> Firsts {
        let by_name = |a: &Instance, b: &Instance| {
            let name = |one: &Instance| one.0.clone().unwrap_or_default();
            natural_cmp(&name(a), &name(b)).then_with(|| a.1.cmp(&b.1))
        };
        let is_meant = |class: &&Class| class.profile.place.is_meant(release.matching.roles, &cross.target);
        let mut firsts: Firsts = Vec::new();
        for class in self.classes.iter().filter(is_meant) {
            for ix in cross.tasks.iter().filter(|ix| class.profile.has(**ix)) {
                // The nodes of a class are sorted: only its first two can be the first two of all.
                let nodes = class.nodes.iter().take(2);
                firsts.extend(nodes.map(|node| (Some(Arc::clone(node)), Arc::from(release.id(*ix)))));
            }
        }
        firsts.sort_by(by_name);
        firsts.truncate(2);
        firsts
    }
}

/// Instances in the order in which one is picked; two are enough, since only the instance itself is passed over.
type Firsts = Vec<Instance>;

fn other_than(firsts: &[Instance], own: &Instance) -> Option<Instance> {
    firsts.iter().find(|one| *one != own).cloned()
}

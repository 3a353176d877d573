//! One node, resolved.

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use super::answer::{Answer, LeftOut, Missing, Outcome, TaskSet, Unmet};
use super::lookup;
use crate::digest::{DIGEST_VERSION, TaskHasher, canonical_json};
use crate::finding::Finding;
use crate::fleet::{Fleet, GroupFold, NodeEntry};
use crate::input::{Fields, Input, Inputs, Path, Query, Read, Reference};
use crate::labels::{Labels, Parameters};
use crate::name::NodeName;
use crate::object::{ClusterId, Meta, NodeId, NodeSpec, Object, Timestamp};
use crate::origin::Level;
use crate::release::select::MASTER;
use crate::release::{CompiledTask, Profile};
use crate::requirement::{Field, NodeView, Value as FieldValue};
use crate::role::natural_cmp;
use crate::traits::{NodeTraits, Trait};

/// Memory of what was resolved before, by content: it can be thrown away at any time, and is never wrong.
#[derive(Debug, Default)]
pub struct ResolveCache {}

impl ResolveCache {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Resolves one node: what it is told, or what is missing for that.
pub fn resolve_node(fleet: &Fleet, _cache: &ResolveCache, id: NodeId) -> Outcome {
    if !fleet.is_loaded() {
        return Outcome::Incomplete(vec![Missing::Store]);
    }
    let Some(entry) = fleet.entry(id) else { return Outcome::Incomplete(vec![Missing::Node(id)]) };
    let fold = match entry.node.spec.nodegroup.map(|group| fleet.fold(group)) {
        None => None,
        Some(Ok(fold)) => Some(Arc::clone(fold)),
        Some(Err(missing)) => return Outcome::Incomplete(missing),
    };
    let sight = Sight::new(fleet, entry, fold.as_deref());
    let task_set = entry.profile.as_ref().map(|profile| Arc::new(sight.task_set(profile)));
    let unmet = fold.iter().flat_map(|fold| fold.group.spec.requirements.unmet(&sight));
    let unmet = unmet.map(|one| Unmet { key: one.key(), expression: one.expression().to_owned() }).collect();
    Outcome::Complete(Arc::new(Answer {
        node: Arc::clone(&entry.node),
        observation: entry.observation.clone(),
        fold,
        task_set,
        unmet,
    }))
}

/// What falls to `master` where no node has that name: it has no labels, no facts and no group of its own.
pub(super) fn pseudo_task_set(fleet: &Fleet, profile: &Arc<Profile>) -> TaskSet {
    let name = NodeName::new(MASTER).ok();
    let node = Object { meta: Meta::new(Uuid::nil(), name, Timestamp(0)), spec: NodeSpec::default() };
    let entry = NodeEntry { node: Arc::new(node), observation: None, profile: Some(Arc::clone(profile)) };
    Sight::new(fleet, &entry, None).task_set(profile)
}

/// All that a node's conditions, templates and requirements can see.
struct Sight<'a> {
    fleet: &'a Fleet,
    entry: &'a NodeEntry,
    fold: Option<&'a GroupFold>,
    labels: Labels,
    parameters: Parameters,
    traits: NodeTraits,
}

impl<'a> Sight<'a> {
    fn new(fleet: &'a Fleet, entry: &'a NodeEntry, fold: Option<&'a GroupFold>) -> Self {
        let seen = entry.observation.as_deref();
        let above = fold.map(|fold| fold.parameters.clone()).unwrap_or_default();
        Self {
            fleet,
            entry,
            fold,
            labels: super::labels(&entry.node, fold, seen),
            parameters: above.below(Level::Node, &entry.node.spec.inherited.parameters),
            traits: super::traits(&entry.node, seen),
        }
    }

    fn task_set(&self, profile: &Arc<Profile>) -> TaskSet {
        let mut left_out = Vec::new();
        let mut findings = Vec::new();
        let mut inputs = Inputs::new();
        let mut hasher = TaskHasher::new(&profile.place.tags, &profile.place.primaries);
        for ix in profile.all() {
            let task = profile.release.task(ix);
            match self.task(task) {
                Ok(own) => {
                    hasher.task(&task.definition, &canonical_json(&json(&own)));
                    for (reference, input) in &own {
                        if let Err(reason) = inputs.insert(reference.clone(), input.clone()) {
                            findings.push(Finding::error("inputs.size", &task.task.id, reason.to_string()));
                        }
                    }
                }
                Err(why) => {
                    findings.extend(finding(task, &why));
                    left_out.push((ix, why));
                }
            }
        }
        TaskSet {
            profile: Arc::clone(profile),
            left_out: left_out.into(),
            inputs,
            digest: hasher.finish(),
            digest_version: DIGEST_VERSION,
            findings: findings.into(),
        }
    }

    /// The inputs of one task, or why it does not run.
    fn task(&self, task: &CompiledTask) -> Result<Inputs, LeftOut> {
        if task.is_skipped_type() {
            return Err(LeftOut::Marker);
        }
        if let Some(condition) = &task.condition {
            let read = self.read(condition.references())?;
            match condition.evaluate(&read) {
                Ok(true) => {}
                Ok(false) => {
                    let condition = task.task.condition.clone().unwrap_or_default();
                    return Err(LeftOut::False { condition });
                }
                Err(reason) => return Err(LeftOut::Failed { reason: reason.to_string() }),
            }
        }
        self.read(&task.references)
    }

    fn read(&self, references: &[Reference]) -> Result<Inputs, LeftOut> {
        let mut inputs = Inputs::new();
        for reference in references {
            let added = inputs.insert(reference.clone(), self.input(reference));
            added.map_err(|reason| LeftOut::TooLarge { reason: reason.to_string() })?;
        }
        Ok(inputs)
    }

    fn input(&self, reference: &Reference) -> Input {
        match reference.read() {
            Read::Label(key) => Input::from(self.labels.get(&**key).map(|value| value.as_str().into())),
            Read::LabelsWithPrefix(prefix) => {
                let below = self.labels.iter().filter(|(key, _)| key.starts_with(&**prefix));
                Input::Value(below.map(|(key, said)| (key.to_string(), Value::from(said.value.as_str()))).collect())
            }
            Read::Parameter(path) => Input::from(self.parameter(path)),
            Read::Trait(name) => Input::Value(self.traits.has(name).into()),
            Read::Tag(name) => Input::Value(self.has_tag(name).into()),
            Read::Fact(path) => Input::from(self.entry.observation.as_ref().and_then(|seen| seen.facts.get(path))),
            Read::Node(path) => Input::from(self.node_field(path)),
            Read::Cluster(path) => Input::from(self.cluster_field(path)),
            Read::Nodes { query, fields } => Input::Value(self.nodes(query, fields)),
            Read::Primary { tag, fields } => Input::from(self.primary(tag, fields)),
            Read::Secret(name) => Input::Secret { name: name.clone(), version: self.fleet.secret_version(name) },
        }
    }

    fn parameter(&self, path: &Path) -> Option<Value> {
        path.walk_rest(self.parameters.get(path.first())?).cloned()
    }

    fn has_tag(&self, name: &str) -> bool {
        let Some(profile) = &self.entry.profile else { return false };
        profile.place.names.tag_names().any(|tag| tag == name)
    }

    fn node_field(&self, path: &Path) -> Option<Value> {
        let node = &self.entry.node;
        let fact = |keys: &[&str]| self.entry.observation.as_ref()?.facts.get(&Path::new(keys.iter().copied())?);
        match (path.first(), path.keys()) {
            ("name", _) => Some(node.display_name().into()),
            ("uuid", _) => Some(node.meta.uuid.to_string().into()),
            ("nodegroup", _) => self.fold.map(|fold| fold.group.meta.name.as_str().into()),
            ("roles", _) => Some(super::roles(node, self.fold).iter().map(|role| role.as_str()).collect()),
            ("address", _) => fact(&["network", "address"]),
            ("hostname", _) => fact(&["hostname"]),
            ("properties", [_, name]) => node.spec.properties.get(&**name).cloned(),
            _ => None,
        }
    }

    fn cluster_field(&self, path: &Path) -> Option<Value> {
        let cluster = &self.fold?.cluster;
        match path.first() {
            "name" => Some(cluster.meta.name.as_str().into()),
            "uuid" => Some(cluster.meta.uuid.to_string().into()),
            "release" => cluster.spec.release.as_ref().map(|release| release.to_string().into()),
            _ => None,
        }
    }

    fn cluster(&self) -> Option<ClusterId> {
        self.fold.map(GroupFold::cluster_id)
    }

    fn nodes(&self, query: &Query, fields: &Fields) -> Value {
        let Some(cluster) = self.cluster() else { return Value::Array(Vec::new()) };
        let meant = self.fleet.nodes_of_cluster(cluster).filter_map(|id| {
            let entry = self.fleet.entry(id)?;
            lookup::is_meant(self.fleet, entry, query).then(|| (entry.node.display_name(), id))
        });
        let mut meant: Vec<_> = meant.collect();
        meant.sort_by(|(a, x), (b, y)| natural_cmp(a, b).then_with(|| x.cmp(y)));
        meant.into_iter().filter_map(|(_, id)| lookup::view(self.fleet, cluster, id, None, fields)).collect()
    }

    fn primary(&self, tag: &str, fields: &Fields) -> Option<Value> {
        let cluster = self.cluster()?;
        lookup::view(self.fleet, cluster, self.fleet.holder(cluster, tag)?, None, fields)
    }
}

impl NodeView for Sight<'_> {
    fn has_trait(&self, name: &Trait) -> bool {
        self.traits.has(name)
    }

    fn value(&self, field: &Field) -> Option<FieldValue<'_>> {
        match field {
            Field::Label(key) => self.labels.get(key).map(|value| FieldValue::text(value.as_str())),
            Field::Property(name) => self.entry.node.spec.properties.get(&**name).and_then(FieldValue::of),
            Field::Fact(name) => {
                let path = Path::new(name.split('.'))?;
                owned(&self.entry.observation.as_ref()?.facts.get(&path)?)
            }
            Field::Parameter(key) => self.parameters.get(key).and_then(|value| FieldValue::of(value)),
        }
    }
}

/// A requirement's value that outlives the fact that it was read from.
fn owned(value: &Value) -> Option<FieldValue<'static>> {
    Some(match FieldValue::of(value)? {
        FieldValue::Text(text) => FieldValue::Text(text.into_owned().into()),
        FieldValue::List(items) => FieldValue::List(items.into_iter().map(|item| item.into_owned().into()).collect()),
    })
}

fn json(inputs: &Inputs) -> Value {
    serde_json::to_value(inputs).expect("inputs are JSON by references, which are text")
}

fn finding(task: &CompiledTask, why: &LeftOut) -> Option<Finding> {
    let object = format!("task/{}", task.task.id);
    match why {
        LeftOut::Failed { .. } => Some(Finding::warning("condition.failed", object, why.to_string())),
        LeftOut::TooLarge { .. } => Some(Finding::error("inputs.size", object, why.to_string())),
        LeftOut::False { .. } | LeftOut::Marker => None,
    }
}

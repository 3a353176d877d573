//! A set of manifests as objects: what `stemma resolve` works on, without a controller.
//!
//! Names are resolved within the set, whatever the order of its documents. An object's uuid is the hash of what it is
//! named by (a Node's author may give one), so that the same files give the same answer everywhere.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::author::{Author, Scope};
use super::body::is_null;
use super::bound;
use super::document::{Document, Key};
use super::error::{BodyError, no_object};
use super::fields::Fields;
use super::names::Names;
use super::parts::Reports;
use super::reader::read;
use super::write::{WriteError, mistakes, write};
use crate::object::{
    Cluster, ClusterId, ClusterSpec, ClusterTemplate, ClusterTemplateSpec, FactMap, GroupId, InspectionRule,
    InspectionRuleSpec, Kind, Meta, Namespace, NamespaceSpec, Node, NodeGroup, NodeGroupSpec, NodeId, NodeSpec, Object,
    Observation, Release, ReleaseSpec, ReportedLabel, Spec, TemplateId, Timestamp,
};
use crate::ownership::Manager;
use crate::traits::TraitNames;

/// The objects of a set of manifests.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Releases.
    pub releases: Vec<Release>,
    /// Cluster templates.
    pub templates: Vec<ClusterTemplate>,
    /// Clusters.
    pub clusters: Vec<Cluster>,
    /// Node groups.
    pub groups: Vec<NodeGroup>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// The catalogue.
    pub namespaces: Vec<Namespace>,
    /// Inspection rules.
    pub rules: Vec<InspectionRule>,
    /// What a Node's `reports` say that its host would.
    pub observations: Vec<(NodeId, Observation)>,
}

/// Makes objects of documents, all of them written by one manager.
///
/// # Errors
/// Every error of every document, by its index: a field that is wrong, a name that is nowhere in the set, an object that
/// stands there twice.
pub fn assemble(documents: &[Document], manager: &Manager) -> Result<Objects, Vec<(usize, BodyError)>> {
    let names = SetNames::of(documents);
    let mut objects = Objects::default();
    let mut errors = Vec::new();
    let mut seen = BTreeMap::new();
    for (at, document) in documents.iter().enumerate() {
        let made = match seen.insert(&document.key, at) {
            Some(_) => {
                Err(vec![BodyError::new("name", format!("{} stands there twice: keep one of them", document.key))])
            }
            None => add(&mut objects, document, manager, &names),
        };
        errors.extend(made.err().into_iter().flatten().map(|error| (at, error)));
    }
    if errors.is_empty() { Ok(objects) } else { Err(errors) }
}

fn add(to: &mut Objects, document: &Document, manager: &Manager, names: &SetNames) -> Result<(), Vec<BodyError>> {
    match &document.key {
        Key::Release(name) => to.releases.push(object(document, name.clone(), ReleaseSpec::default(), manager, names)?),
        Key::ClusterTemplate(name) => {
            to.templates.push(object(document, name.clone(), ClusterTemplateSpec::default(), manager, names)?);
        }
        Key::Cluster(name) => to.clusters.push(object(document, name.clone(), ClusterSpec::default(), manager, names)?),
        Key::NodeGroup { cluster, name } => {
            let parent = names.cluster(cluster.as_str());
            let of = |parent| object(document, name.clone(), NodeGroupSpec::new(parent), manager, names);
            let Some(parent) = parent else {
                let missing = no_object("cluster", (Kind::Cluster, "cluster"), cluster.as_str(), names);
                // Its other fields are read all the same, under a cluster that is nobody's.
                let others = of(ClusterId(Uuid::nil())).err().into_iter().flatten();
                return Err([missing].into_iter().chain(others).collect());
            };
            to.groups.push(of(parent)?);
        }
        Key::Node(name) => {
            let node = object(document, Some(name.clone()), NodeSpec::default(), manager, names)?;
            if let Some(raw) = document.body.get("reports").filter(|raw| !is_null(raw)) {
                bound::check_keyed("reports", raw, || serde_json::Value::Null).map_err(|error| vec![error])?;
                let reports: Reports = read(raw).map_err(|error| vec![error.within("reports")])?;
                to.observations.push((node.id(), reports.observation()));
            }
            to.nodes.push(node);
        }
        Key::Namespace(name) => {
            to.namespaces.push(object(document, name.clone(), NamespaceSpec::default(), manager, names)?);
        }
        Key::InspectionRule(name) => {
            to.rules.push(object(document, Some(name.clone()), InspectionRuleSpec::default(), manager, names)?);
        }
    }
    Ok(())
}

impl Reports {
    fn observation(self) -> Observation {
        let label = |(key, value): (String, String)| ReportedLabel {
            key: key.into(),
            value: value.into(),
            source: "reports".into(),
        };
        Observation {
            facts: FactMap::from_tree(&self.facts),
            traits: self.traits.into(),
            labels: self.labels.into_iter().map(label).collect(),
            ..Observation::default()
        }
    }
}

fn object<S: Fields + Spec>(
    document: &Document,
    name: S::Name,
    mut spec: S,
    manager: &Manager,
    names: &SetNames,
) -> Result<Object<S>, Vec<BodyError>> {
    let author = Author::Apply { manager, scope: Scope::Object, force: false, adopt: None };
    match write(&mut spec, &document.body, author, names, 0) {
        Ok(()) => Ok(Object { meta: Meta::new(uuid(document), name, Timestamp(0)), spec }),
        Err(WriteError::Body(first)) => {
            let all = mistakes(&spec, &document.body, author, names);
            // What only all fields together tell is wrong with none of them.
            Err(if all.is_empty() { vec![first] } else { all })
        }
        Err(WriteError::Conflicts(_)) => unreachable!("nobody has written a new object before"),
    }
}

/// The author's own, else the first half of the SHA-256 of the key, marked as RFC 9562's version 8 (made by own rules).
fn uuid(document: &Document) -> Uuid {
    document.uuid.unwrap_or_else(|| {
        let hash = Sha256::digest(document.key.to_string().as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// The names of a set's documents.
struct SetNames {
    by_key: BTreeMap<String, Uuid>,
    traits: TraitNames,
}

impl SetNames {
    fn of(documents: &[Document]) -> Self {
        let by_key = documents.iter().map(|document| (document.key.to_string(), uuid(document))).collect();
        Self { by_key, traits: TraitNames::default() }
    }

    fn name(&self, prefix: &str, id: Uuid) -> Option<String> {
        let found = self.by_key.iter().find(|(key, own)| **own == id && key.starts_with(prefix));
        found.map(|(key, _)| key[prefix.len()..].to_owned())
    }
}

impl Names for SetNames {
    fn template(&self, name: &str) -> Option<TemplateId> {
        self.by_key.get(&format!("clustertemplate/{name}")).copied().map(TemplateId)
    }

    fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.by_key.get(&format!("cluster/{name}")).copied().map(ClusterId)
    }

    fn group(&self, cluster: &str, group: &str) -> Option<GroupId> {
        self.by_key.get(&format!("nodegroup/{cluster}/{group}")).copied().map(GroupId)
    }

    fn template_name(&self, id: TemplateId) -> Option<String> {
        self.name("clustertemplate/", id.0)
    }

    fn group_name(&self, id: GroupId) -> Option<String> {
        self.name("nodegroup/", id.0)
    }

    fn all(&self, kind: Kind) -> Vec<String> {
        let prefix = format!("{}/", kind.word());
        self.by_key.keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    fn traits(&self) -> &TraitNames {
        &self.traits
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::read_document;
    use super::*;

    fn set(texts: &[&str]) -> Result<Objects, Vec<(usize, BodyError)>> {
        let documents: Vec<Document> = texts.iter().map(|text| read_document(text).unwrap()).collect();
        assemble(&documents, &Manager::new("test").unwrap())
    }

    #[test]
    fn names_are_resolved_whatever_the_order() {
        let objects = set(&[
            r#"{"kind": "Node", "name": "n", "nodegroup": "c/g", "traits": ["HW_CPU_X86_AVX2"], "tags": {"assigned": ["x:1"]}}"#,
            r#"{"kind": "NodeGroup", "name": "g", "cluster": "c", "labels": {"a": 1.0, "b": null}, "min_ready_seconds": 5}"#,
            r#"{"kind": "Cluster", "name": "c", "cluster_template": "t", "merge_labels": false, "labels": {}}"#,
            r#"{"kind": "ClusterTemplate", "name": "t", "coe": "kubernetes"}"#,
        ])
        .unwrap();
        let (node, group, cluster) = (&objects.nodes[0], &objects.groups[0], &objects.clusters[0]);
        assert_eq!(node.spec.nodegroup, Some(GroupId(group.meta.uuid)));
        assert_eq!(group.spec.cluster, ClusterId(cluster.meta.uuid));
        assert_eq!(cluster.spec.cluster_template, Some(TemplateId(objects.templates[0].meta.uuid)));
        assert_eq!(group.spec.inherited.labels.merge, Some(true));
        assert_eq!(cluster.spec.inherited.labels.merge, Some(false));
        assert_eq!(group.spec.inherited.lifecycle.min_ready_seconds, Some(5));
        assert_eq!(objects.templates[0].spec.extra["coe"], "kubernetes");
    }

    #[test]
    fn every_wrong_document_is_named() {
        let errors = set(&[
            r#"{"kind": "Cluster", "name": "c", "cluster_template": "none"}"#,
            r#"{"kind": "NodeGroup", "name": "g", "cluster": "c", "colour": "red"}"#,
            r#"{"kind": "NodeGroup", "name": "g", "cluster": "nowhere"}"#,
            r#"{"kind": "Node", "name": "n", "traits": ["NOPE"]}"#,
            r#"{"kind": "Node", "name": "n"}"#,
            r#"{"kind": "Node", "name": "m", "nodegroup": "g"}"#,
            r#"{"kind": "Node", "name": "o", "min_ready_seconds": -1}"#,
            r#"{"kind": "NodeGroup", "name": "h", "cluster": "nosuch", "mode": "dry", "roles": 5, "labels": 3, "colour": 1}"#,
        ])
        .unwrap_err();
        let says: Vec<String> = errors.iter().map(|(at, error)| format!("{at} {error}")).collect();
        for (found, expected) in says.iter().zip([
            "0 cluster_template: there is no cluster template \"none\"",
            "1 colour: is no field of this kind",
            "2 cluster: there is no cluster \"nowhere\"",
            "3 traits[0]: \"NOPE\" is no trait",
            "4 name: node/n stands there twice",
            "5 nodegroup: \"g\" is no node group: write CLUSTER/GROUP",
            "6 min_ready_seconds: min_ready_seconds takes 0",
            "7 cluster: there is no cluster \"nosuch\"",
            "7 mode: ",
            "7 roles: is the number 5, and a list is meant",
            "7 labels: ",
            "7 colour: is no field of this kind",
        ]) {
            assert!(found.starts_with(expected), "{found}");
        }
        assert_eq!(says.len(), 12, "{says:?}");
    }
}

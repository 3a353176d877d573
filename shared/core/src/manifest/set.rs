//! Builds the objects of a set of manifests, for `stemma resolve`, which needs no controller.
//!
//! Names are resolved within the set, in any order of its documents. The uuid of an object is a hash of its identity,
//! unless the author of a Node provides one. So the same files give the same result everywhere.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::body::is_null;
use super::bound;
use super::document::{Document, ObjectKey};
use super::error::{BodyError, missing_object};
use super::field_defs::Reports;
use super::fields::SpecFields;
use super::names::NameResolver;
use super::reader::read_json;
use super::write::{WriteError, body_errors, write_body};
use super::write_mode::{ApplyScope, WriteMode};
use crate::object::{
    Cluster, ClusterId, ClusterSpec, ClusterTemplate, ClusterTemplateSpec, FactMap, GroupId, InspectionRule, InspectionRuleSpec,
    Kind, Meta, Namespace, NamespaceSpec, Node, NodeGroup, NodeGroupSpec, NodeId, NodeSpec, Object, Observation, Release,
    ReleaseSpec, ReportedLabel, Spec, TemplateId, Timestamp,
};
use crate::ownership::Manager;
use crate::task::{TASK_TYPES_FACT, declared_task_types};
use crate::traits::TraitNames;

/// The objects of a set of manifests.
#[derive(Clone, Debug, Default)]
pub struct ManifestObjects {
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
    /// Namespaces of the catalogue, which define the keys and values of labels, parameters and the like.
    pub namespaces: Vec<Namespace>,
    /// Inspection rules.
    pub rules: Vec<InspectionRule>,
    /// The observations of nodes whose manifest has `reports`: values that their hosts would report.
    pub observations: Vec<(NodeId, Observation)>,
}

/// Builds the objects of all documents of a set of manifests, as if `manager` applied them.
///
/// # Errors
/// The errors of all documents, each with the index of its document. Examples are an invalid field, a name that is not
/// in the set, and an object that occurs twice. The fields of the second document of an object are not checked.
pub fn assemble(documents: &[Document], manager: &Manager) -> Result<ManifestObjects, Vec<(usize, BodyError)>> {
    let names = SetNames::new(documents);
    let mut objects = ManifestObjects::default();
    let mut errors = Vec::new();
    let mut index_by_key = BTreeMap::new();
    for (index, document) in documents.iter().enumerate() {
        let result = match index_by_key.insert(&document.key, index) {
            Some(_) => Err(vec![BodyError::new("name", format!("{} occurs twice: remove one of them", document.key))]),
            None => add_document(&mut objects, document, manager, &names),
        };
        errors.extend(result.err().into_iter().flatten().map(|error| (index, error)));
    }
    if errors.is_empty() { Ok(objects) } else { Err(errors) }
}

/// Builds the object of a document and adds it to the list of its kind in `objects`, and the observation of a node with
/// `reports`. Returns the errors of all fields. The `reports` are only read if all other fields are valid.
fn add_document(
    objects: &mut ManifestObjects,
    document: &Document,
    manager: &Manager,
    names: &SetNames,
) -> Result<(), Vec<BodyError>> {
    match &document.key {
        ObjectKey::Release(name) => {
            objects.releases.push(build_object(document, name.clone(), ReleaseSpec::default(), manager, names)?);
        }
        ObjectKey::ClusterTemplate(name) => {
            objects.templates.push(build_object(document, name.clone(), ClusterTemplateSpec::default(), manager, names)?);
        }
        ObjectKey::Cluster(name) => {
            objects.clusters.push(build_object(document, name.clone(), ClusterSpec::default(), manager, names)?);
        }
        ObjectKey::NodeGroup { cluster, name } => {
            let parent = names.cluster(cluster.as_str());
            let build = |parent| build_object(document, name.clone(), NodeGroupSpec::new(parent), manager, names);
            let Some(parent) = parent else {
                let missing_cluster = missing_object("cluster", (Kind::Cluster, "cluster"), cluster.as_str(), names);
                // The other fields are still read, under a cluster id that no cluster has.
                let field_errors = build(ClusterId(Uuid::nil())).err().into_iter().flatten();
                return Err([missing_cluster].into_iter().chain(field_errors).collect());
            };
            objects.groups.push(build(parent)?);
        }
        ObjectKey::Node(name) => {
            let node = build_object(document, Some(name.clone()), NodeSpec::default(), manager, names)?;
            if let Some(raw) = document.body.get("reports").filter(|raw| !is_null(raw)) {
                bound::check_keyed_field("reports", raw, || serde_json::Value::Null).map_err(|error| vec![error])?;
                let reports: Reports = read_json(raw).map_err(|error| vec![error.prefixed("reports")])?;
                objects.observations.push((node.id(), reports.into_observation()));
            }
            objects.nodes.push(node);
        }
        ObjectKey::Namespace(name) => {
            objects.namespaces.push(build_object(document, name.clone(), NamespaceSpec::default(), manager, names)?);
        }
        ObjectKey::InspectionRule(name) => {
            objects.rules.push(build_object(document, Some(name.clone()), InspectionRuleSpec::default(), manager, names)?);
        }
    }
    Ok(())
}

impl Reports {
    /// Returns the observation of a host that reports these values. Each label has the source `reports`. Unless the facts
    /// say otherwise, the agent of the host knows all task types, because no agent is there that could lack one.
    fn into_observation(self) -> Observation {
        let label =
            |(key, value): (String, String)| ReportedLabel { key: key.into(), value: value.into(), source: "reports".into() };
        let types_fact = (TASK_TYPES_FACT.to_owned(), declared_task_types().to_owned());
        let given_facts = FactMap::from_tree(&self.facts);
        let facts = given_facts.iter().map(|(path, text)| (path.to_owned(), text.to_owned()));
        Observation {
            facts: FactMap::from_texts([types_fact].into_iter().chain(facts)),
            traits: self.traits.into(),
            labels: self.labels.into_iter().map(label).collect(),
            ..Observation::default()
        }
    }
}

/// Builds an object from a document, or returns the errors of all of its fields.
fn build_object<S: SpecFields + Spec>(
    document: &Document,
    name: S::Name,
    mut spec: S,
    manager: &Manager,
    names: &SetNames,
) -> Result<Object<S>, Vec<BodyError>> {
    let author = WriteMode::Apply { manager, scope: ApplyScope::Object, force: false, adopt: None };
    match write_body(&mut spec, &document.body, author, names, 0) {
        Ok(()) => Ok(Object { meta: Meta::new(document_uuid(document), name, Timestamp(0)), spec }),
        Err(WriteError::Body(write_error)) => {
            let errors = body_errors(&spec, &document.body, author, names);
            // A rule about several fields fails for no single field. Then only the error of the whole body is known.
            Err(if errors.is_empty() { vec![write_error] } else { errors })
        }
        Err(WriteError::Conflicts(_)) => unreachable!("nobody has written a new object before"),
    }
}

/// Returns the uuid that the author provides, or else the first 16 bytes of the SHA-256 of the object's key, as a uuid
/// of version 8 (custom, RFC 9562).
fn document_uuid(document: &Document) -> Uuid {
    document.uuid.unwrap_or_else(|| {
        let hash = Sha256::digest(document.key.to_string().as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// A lookup of the objects of a set of manifests by name and by uuid.
struct SetNames {
    uuid_by_key: BTreeMap<String, Uuid>,
    traits: TraitNames,
}

impl SetNames {
    /// Creates the lookup of the objects in these documents. The traits are the standard ones.
    fn new(documents: &[Document]) -> Self {
        let by_key = documents.iter().map(|document| (document.key.to_string(), document_uuid(document))).collect();
        Self { uuid_by_key: by_key, traits: TraitNames::default() }
    }

    /// Returns the name of the object with this uuid. `prefix` is the beginning of the keys of its kind, such as
    /// `nodegroup/`.
    fn name_by_id(&self, prefix: &str, id: Uuid) -> Option<String> {
        let entry = self.uuid_by_key.iter().find(|(key, object_id)| **object_id == id && key.starts_with(prefix));
        entry.map(|(key, _)| key[prefix.len()..].to_owned())
    }
}

impl NameResolver for SetNames {
    fn template(&self, name: &str) -> Option<TemplateId> {
        self.uuid_by_key.get(&format!("clustertemplate/{name}")).copied().map(TemplateId)
    }

    fn cluster(&self, name: &str) -> Option<ClusterId> {
        self.uuid_by_key.get(&format!("cluster/{name}")).copied().map(ClusterId)
    }

    fn group(&self, cluster: &str, group: &str) -> Option<GroupId> {
        self.uuid_by_key.get(&format!("nodegroup/{cluster}/{group}")).copied().map(GroupId)
    }

    fn template_name(&self, id: TemplateId) -> Option<String> {
        self.name_by_id("clustertemplate/", id.0)
    }

    fn group_name(&self, id: GroupId) -> Option<String> {
        self.name_by_id("nodegroup/", id.0)
    }

    fn all_names(&self, kind: Kind) -> Vec<String> {
        let prefix = format!("{}/", kind.word());
        self.uuid_by_key.keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    fn trait_names(&self) -> &TraitNames {
        &self.traits
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::read_document;
    use super::*;

    fn assemble_texts(texts: &[&str]) -> Result<ManifestObjects, Vec<(usize, BodyError)>> {
        let documents: Vec<Document> = texts.iter().map(|text| read_document(text).unwrap()).collect();
        assemble(&documents, &Manager::new("test").unwrap())
    }

    /// A document may refer to an object of a later document. The fields of each document are stored in its object.
    #[test]
    fn assemble_resolves_names_in_any_order() {
        let objects = assemble_texts(&[
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
    fn assemble_reports_every_wrong_document() {
        let errors = assemble_texts(&[
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
        let messages: Vec<String> = errors.iter().map(|(index, error)| format!("{index} {error}")).collect();
        for (message, expected) in messages.iter().zip([
            "0 cluster_template: there is no cluster template \"none\"",
            "1 colour: is not a field of this kind",
            "2 cluster: there is no cluster \"nowhere\"",
            "3 traits[0]: \"NOPE\" is not a trait",
            "4 name: node/n occurs twice",
            "5 nodegroup: \"g\" is not a node group: write CLUSTER/GROUP",
            "6 min_ready_seconds: min_ready_seconds takes 0",
            "7 cluster: there is no cluster \"nosuch\"",
            "7 mode: ",
            "7 roles: must be a list, not the number 5",
            "7 labels: ",
            "7 colour: is not a field of this kind",
        ]) {
            assert!(message.starts_with(expected), "{message}");
        }
        assert_eq!(messages.len(), 12, "{messages:?}");
    }
}

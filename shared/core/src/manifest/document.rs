//! One document of a manifest: its kind, its identity and its other fields.

use uuid::Uuid;

use super::body::{JsonBody, is_null};
use super::error::{BodyError, BodyErrorKind};
use super::reader::read_json;
use super::reference;
use crate::finding::{Finding, rule};
use crate::name::{InvalidName, NamespaceName, NodeName, ObjectName, RESERVED_CLUSTER_NAMES, ReleaseRef, host_uuid_error};
use crate::object::Kind;

/// The identity of an object in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{}/{_variant}", self.kind().word())]
pub enum ObjectKey {
    /// A release, as `NAME@VERSION`, or as `NAME` if it has no version.
    Release(ReleaseRef),
    /// A cluster template.
    ClusterTemplate(ObjectName),
    /// A cluster.
    Cluster(ObjectName),
    /// A node group, by its cluster and its name.
    #[display("{cluster}/{name}")]
    NodeGroup {
        /// The cluster's name.
        cluster: ObjectName,
        /// The group's name.
        name: ObjectName,
    },
    /// A node.
    Node(NodeName),
    /// A namespace of the catalogue, which defines the keys and values of labels, parameters and the like.
    Namespace(NamespaceName),
    /// An inspection rule.
    InspectionRule(ObjectName),
}

/// One object of a manifest.
#[derive(Clone, Debug)]
pub struct Document {
    /// The object's identity.
    pub key: ObjectKey,
    /// The uuid that the manifest of a node provides. `None` if it provides none, and for the other kinds.
    pub uuid: Option<Uuid>,
    /// The fields that do not identify the object.
    pub body: JsonBody,
}

impl ObjectKey {
    /// Returns a finding if no new object may have this name. A store may still contain such an object, because older
    /// versions accepted the name.
    pub fn name_finding(&self) -> Option<Finding> {
        let why = self.check_new().err()?;
        let message = format!("{why}; a write that would create it is refused, and an existing object keeps this name");
        Some(Finding::new(rule::NAME_RESERVED, self.to_string(), message))
    }

    /// Fails if the name is reserved, so that no new object of this kind may have it.
    fn check_new(&self) -> Result<(), InvalidName> {
        match self {
            Self::Cluster(name) => name.check_new(RESERVED_CLUSTER_NAMES),
            Self::ClusterTemplate(name) | Self::NodeGroup { name, .. } | Self::InspectionRule(name) => name.check_new(&[]),
            // Node names follow Ironic's rule. Names of releases and namespaces are checked when they are read.
            Self::Release(_) | Self::Node(_) | Self::Namespace(_) => Ok(()),
        }
    }

    /// Returns the kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Release(_) => Kind::Release,
            Self::ClusterTemplate(_) => Kind::ClusterTemplate,
            Self::Cluster(_) => Kind::Cluster,
            Self::NodeGroup { .. } => Kind::NodeGroup,
            Self::Node(_) => Kind::Node,
            Self::Namespace(_) => Kind::Namespace,
            Self::InspectionRule(_) => Kind::InspectionRule,
        }
    }
}

/// Reads one document of a manifest. The fields that identify the object, such as `kind` and `name`, become its key and
/// are removed from the body. The name of a Namespace is in the field `namespace`. The `uuid` of a Node is removed too.
///
/// # Errors
/// [`BodyError`] as [`JsonBody::parse`], and if a field that identifies the object is missing or invalid.
pub fn read_document(json: &str) -> Result<Document, BodyError> {
    let mut body = JsonBody::parse(json)?;
    let kind = remove_text(&mut body, "kind")?
        .ok_or_else(|| BodyError::with_kind(BodyErrorKind::MissingField, "kind", missing_kind(&body)))?;
    let name_field = if kind == Kind::Namespace.name() { "namespace" } else { "name" };
    let name = remove_text(&mut body, name_field)?
        .ok_or_else(|| BodyError::with_kind(BodyErrorKind::MissingField, name_field, "is missing"))?;
    let mut uuid = None;
    let key = match kind.as_str() {
        "Release" => ObjectKey::Release(parse_release(&mut body, &name)?),
        "ClusterTemplate" => ObjectKey::ClusterTemplate(object_name("name", &name)?),
        "Cluster" => ObjectKey::Cluster(object_name("name", &name)?),
        "NodeGroup" => {
            let cluster = remove_text(&mut body, "cluster")?.ok_or_else(|| {
                BodyError::with_kind(BodyErrorKind::MissingField, "cluster", "is missing: a NodeGroup names its cluster")
            })?;
            ObjectKey::NodeGroup { cluster: object_name("cluster", &cluster)?, name: object_name("name", &name)? }
        }
        "Node" => {
            uuid = body
                .remove("uuid")
                .filter(|raw| !is_null(raw))
                .map(|raw| read_json(&raw))
                .transpose()
                .map_err(|e| e.prefixed("uuid"))?;
            if let Some(why) = uuid.and_then(host_uuid_error) {
                return Err(BodyError::new("uuid", why));
            }
            ObjectKey::Node(NodeName::new(&name).map_err(|why| BodyError::new("name", why.to_string()))?)
        }
        "Namespace" => {
            let name_error = |why: InvalidName| BodyError::new(name_field, why.to_string());
            ObjectKey::Namespace(NamespaceName::for_new_namespace(&name).map_err(name_error)?)
        }
        "InspectionRule" => ObjectKey::InspectionRule(object_name("name", &name)?),
        unknown => return Err(BodyError::new("kind", unknown_kind(unknown))),
    };
    Ok(Document { key, uuid, body })
}

/// Returns the names of all kinds of manifests, separated by commas.
fn kind_names() -> String {
    reference::kinds().map(|entry| entry.kind).join(", ")
}

/// Returns the message about a body without `kind`. Only an object from the API has the field `field_owners`, so the
/// message then names the command that prints a manifest.
fn missing_kind(body: &JsonBody) -> String {
    if body.get("field_owners").is_some() {
        return "is missing: this is an object as the API shows it; `stemma get -o manifest` prints a manifest to apply"
            .to_owned();
    }
    format!("is missing: it is one of {}", kind_names())
}

/// Returns the message about an unknown kind. It suggests the most similar kind. `Secret` and `Expectation` are
/// reserved for a later version, so they have their own message.
fn unknown_kind(kind: &str) -> String {
    match kind {
        "Secret" | "Expectation" => {
            format!("{kind} is not supported by this version, which supports {}", kind_names())
        }
        _ => {
            let hint = crate::name::did_you_mean(crate::name::closest_match(kind, reference::kinds().map(|entry| entry.kind)));
            format!("unknown kind {:?}{hint}: it is one of {}", crate::name::truncated(kind), kind_names())
        }
    }
}

/// Parses the name of an object. The error contains `field` as its path.
fn object_name(field: &str, text: &str) -> Result<ObjectName, BodyError> {
    ObjectName::new(text).map_err(|why| BodyError::new(field, why.to_string()))
}

/// Removes a text field from the body and returns its value, or `None` if the field is absent or `null`.
fn remove_text(body: &mut JsonBody, field: &str) -> Result<Option<String>, BodyError> {
    let text = body.text(field)?;
    body.remove(field);
    Ok(text)
}

/// Returns the reference to a release from its name and the field `version`, which is removed from the body. The
/// version must be a text in quotes, because YAML and JSON read an unquoted 2026.10 as the number 2026.1.
fn parse_release(body: &mut JsonBody, name: &str) -> Result<ReleaseRef, BodyError> {
    let version = body.remove("version").filter(|raw| !is_null(raw));
    if let Some(raw) = version.as_ref().filter(|raw| !raw.get().starts_with('"')) {
        let reason = format!("{raw} is not a text; a bare 2026.10 would be the number 2026.1: write \"{raw}\"");
        return Err(BodyError::new("version", reason));
    }
    let name_error = |why: InvalidName| BodyError::new("name", why.to_string());
    if name.contains('@') {
        return Err(BodyError::new("name", "a release's version is in `version`, not in its name"));
    }
    match version {
        None => ReleaseRef::new(name).map_err(name_error),
        Some(raw) => {
            let version: String = read_json(&raw).map_err(|error| error.prefixed("version"))?;
            ReleaseRef::new(&format!("{name}@{version}")).map_err(name_error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y04_name_finding_reports_names_refused_for_new_objects() {
        let finding_text = |json: &str| read_document(json).unwrap().key.name_finding().map(|finding| finding.to_string());
        for (json, expected) in [
            (r#"{"kind": "Cluster", "name": "detail"}"#, "cluster/detail: name \"detail\" is reserved: it is a path"),
            (r#"{"kind": "Cluster", "name": "Detail"}"#, "cluster/Detail: name \"Detail\" is reserved: it is a path"),
            (r#"{"kind": "Cluster", "name": "--help"}"#, "cluster/--help: name \"--help\" is reserved: commands would"),
            (r#"{"kind": "ClusterTemplate", "name": "-x"}"#, "clustertemplate/-x: name \"-x\" is reserved"),
            (r#"{"kind": "NodeGroup", "cluster": "c", "name": "-x"}"#, "nodegroup/c/-x: name \"-x\" is reserved"),
            (r#"{"kind": "InspectionRule", "name": "-x"}"#, "inspectionrule/-x: name \"-x\" is reserved"),
        ] {
            let message = finding_text(json).unwrap();
            assert!(message.starts_with(&format!("warning name.reserved {expected}")), "{json}: {message}");
        }
        for json in [
            r#"{"kind": "Node", "name": "-x"}"#,
            r#"{"kind": "Node", "name": "Detail"}"#,
            r#"{"kind": "ClusterTemplate", "name": "detail"}"#,
            r#"{"kind": "Cluster", "name": "x-"}"#,
        ] {
            assert_eq!(finding_text(json), None, "{json}");
        }
    }

    /// A document without a valid kind, name, cluster or version is refused. The error names the field.
    #[test]
    fn read_document_reads_kind_and_name() {
        for (json, key) in [
            (r#"{"kind": "Release", "name": "site", "version": "2026.11"}"#, "release/site@2026.11"),
            (r#"{"kind": "Release", "name": "site"}"#, "release/site"),
            (r#"{"kind": "NodeGroup", "name": "web", "cluster": "prod"}"#, "nodegroup/prod/web"),
            (r#"{"kind": "Node", "name": "web-1"}"#, "node/web-1"),
            (r#"{"kind": "Namespace", "namespace": "Site::Labels"}"#, "namespace/Site::Labels"),
        ] {
            assert_eq!(read_document(json).unwrap().key.to_string(), key);
        }
        for (json, expected) in [
            (r#"{"name": "x"}"#, "kind: is missing: it is one of"),
            (r#"{"name": "x", "field_owners": {}}"#, "kind: is missing: this is an object as the API shows it"),
            (r#"{"kind": "Widget", "name": "x"}"#, "kind: unknown kind \"Widget\": it is one of"),
            (
                r#"{"kind": "Secret", "name": "x"}"#,
                "kind: Secret is not supported by this version, which supports Release, ClusterTemplate, Cluster, NodeGroup, Node, Namespace, InspectionRule",
            ),
            (r#"{"kind": "Cluster"}"#, "name: is missing"),
            (r#"{"kind": "NodeGroup", "name": "x"}"#, "cluster: is missing"),
            (r#"{"kind": "Namespace", "name": "x"}"#, "namespace: is missing"),
            (r#"{"kind": "Namespace", "namespace": "a/b"}"#, "namespace: namespace \"a/b\" is not well formed"),
            (r#"{"kind": "Release", "name": "x", "version": 2026.10}"#, "version: 2026.10 is not a text"),
            (r#"{"kind": "Node", "name": "detail"}"#, "name: node \"detail\" is reserved"),
        ] {
            let error = read_document(json).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

//! One document of a manifest: its kind, by what it is named, and its fields.

use uuid::Uuid;

use super::body::{Body, is_null};
use super::error::{BodyError, BodyErrorKind};
use super::reader::read;
use super::reference;
use crate::finding::{Finding, rule};
use crate::name::{CLUSTER_PATHS, InvalidName, NamespaceName, NodeName, ObjectName, ReleaseRef, odd_host_uuid};
use crate::object::Kind;

/// By what an object of a manifest is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{}/{_variant}", self.kind().word())]
pub enum Key {
    /// `NAME@VERSION`, or `NAME`.
    Release(ReleaseRef),
    /// A cluster template.
    ClusterTemplate(ObjectName),
    /// A cluster.
    Cluster(ObjectName),
    /// A group within its cluster.
    #[display("{cluster}/{name}")]
    NodeGroup {
        /// The cluster's name.
        cluster: ObjectName,
        /// The group's.
        name: ObjectName,
    },
    /// A node.
    Node(NodeName),
    /// A namespace of the catalogue.
    Namespace(NamespaceName),
    /// An inspection rule.
    InspectionRule(ObjectName),
}

/// One object of a manifest.
#[derive(Clone, Debug)]
pub struct Document {
    /// By what it is named.
    pub key: Key,
    /// The uuid that a Node's author may give.
    pub uuid: Option<Uuid>,
    /// Its other fields.
    pub body: Body,
}

impl Key {
    /// What is found of a name that no new object is given. A store may have one of that name, of an older program.
    pub fn odd_name(&self) -> Option<Finding> {
        let why = self.check_new().err()?;
        let message = format!("{why}; a write that would make it is refused, and one that is there already keeps it");
        Some(Finding::of(rule::NAME_RESERVED, self.to_string(), message))
    }

    fn check_new(&self) -> Result<(), InvalidName> {
        match self {
            Self::Cluster(name) => name.check_new(CLUSTER_PATHS),
            Self::ClusterTemplate(name) | Self::NodeGroup { name, .. } | Self::InspectionRule(name) => {
                name.check_new(&[])
            }
            // Of nodes Ironic's rule holds; the others are held to theirs where they are read.
            Self::Release(_) | Self::Node(_) | Self::Namespace(_) => Ok(()),
        }
    }

    /// The kind of the object.
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

/// Reads one document: `kind`, `name` (of a Namespace `namespace`) and what else identifies it are taken out of the body.
///
/// # Errors
/// [`BodyError`] for what is no object, an unknown kind, and a name that is missing or malformed.
pub fn read_document(json: &str) -> Result<Document, BodyError> {
    let mut body = Body::parse(json)?;
    let kind = take_text(&mut body, "kind")?
        .ok_or_else(|| BodyError::of(BodyErrorKind::MissingField, "kind", no_kind(&body)))?;
    let named_by = if kind == Kind::Namespace.name() { "namespace" } else { "name" };
    let name = take_text(&mut body, named_by)?
        .ok_or_else(|| BodyError::of(BodyErrorKind::MissingField, named_by, "is missing"))?;
    let mut uuid = None;
    let key = match kind.as_str() {
        "Release" => Key::Release(release(&mut body, &name)?),
        "ClusterTemplate" => Key::ClusterTemplate(object_name("name", &name)?),
        "Cluster" => Key::Cluster(object_name("name", &name)?),
        "NodeGroup" => {
            let cluster = take_text(&mut body, "cluster")?.ok_or_else(|| {
                BodyError::of(BodyErrorKind::MissingField, "cluster", "is missing: a NodeGroup names its cluster")
            })?;
            Key::NodeGroup { cluster: object_name("cluster", &cluster)?, name: object_name("name", &name)? }
        }
        "Node" => {
            uuid = body
                .take("uuid")
                .filter(|raw| !is_null(raw))
                .map(|raw| read(&raw))
                .transpose()
                .map_err(|e| e.within("uuid"))?;
            if let Some(why) = uuid.and_then(odd_host_uuid) {
                return Err(BodyError::new("uuid", why));
            }
            Key::Node(NodeName::new(&name).map_err(|why| BodyError::new("name", why.to_string()))?)
        }
        "Namespace" => {
            let wrong = |why: InvalidName| BodyError::new(named_by, why.to_string());
            Key::Namespace(NamespaceName::of_new(&name).map_err(wrong)?)
        }
        "InspectionRule" => Key::InspectionRule(object_name("name", &name)?),
        other => return Err(BodyError::new("kind", unknown_kind(other))),
    };
    Ok(Document { key, uuid, body })
}

fn kinds() -> String {
    reference::kinds().map(|one| one.kind).join(", ")
}

fn no_kind(body: &Body) -> String {
    if body.get("field_owners").is_some() {
        return "is missing: this is an object as it is shown; what is applied is printed by `stemma get -o manifest`"
            .to_owned();
    }
    format!("is missing: it is one of {}", kinds())
}

fn unknown_kind(found: &str) -> String {
    match found {
        "Secret" | "Expectation" => {
            format!("{found} is not taken by this version; it takes {}", kinds())
        }
        _ => {
            let near = crate::name::suggest(crate::name::near(found, reference::kinds().map(|one| one.kind)));
            format!("unknown kind {:?}{near}: it is one of {}", crate::name::cut(found), kinds())
        }
    }
}

fn object_name(field: &str, text: &str) -> Result<ObjectName, BodyError> {
    ObjectName::new(text).map_err(|why| BodyError::new(field, why.to_string()))
}

fn take_text(body: &mut Body, field: &str) -> Result<Option<String>, BodyError> {
    let text = body.text(field)?;
    body.take(field);
    Ok(text)
}

/// A release's name with its version, which is text: a bare 2026.10 is the number 2026.1.
fn release(body: &mut Body, name: &str) -> Result<ReleaseRef, BodyError> {
    let version = body.take("version").filter(|raw| !is_null(raw));
    if let Some(raw) = version.as_ref().filter(|raw| !raw.get().starts_with('"')) {
        let reason = format!("{raw} is no text; a bare 2026.10 would be the number 2026.1: write \"{raw}\"");
        return Err(BodyError::new("version", reason));
    }
    let wrong = |why: InvalidName| BodyError::new("name", why.to_string());
    if name.contains('@') {
        return Err(BodyError::new("name", "a release's version is in `version`, not in its name"));
    }
    match version {
        None => ReleaseRef::new(name).map_err(wrong),
        Some(raw) => {
            let version: String = read(&raw).map_err(|error| error.within("version"))?;
            ReleaseRef::new(&format!("{name}@{version}")).map_err(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y04_a_name_that_no_new_object_is_given_is_found() {
        let found = |json: &str| read_document(json).unwrap().key.odd_name().map(|finding| finding.to_string());
        for (json, says) in [
            (r#"{"kind": "Cluster", "name": "detail"}"#, "cluster/detail: name \"detail\" is reserved: it is a path"),
            (r#"{"kind": "Cluster", "name": "Detail"}"#, "cluster/Detail: name \"Detail\" is reserved: it is a path"),
            (r#"{"kind": "Cluster", "name": "--help"}"#, "cluster/--help: name \"--help\" is reserved: commands take"),
            (r#"{"kind": "ClusterTemplate", "name": "-x"}"#, "clustertemplate/-x: name \"-x\" is reserved"),
            (r#"{"kind": "NodeGroup", "cluster": "c", "name": "-x"}"#, "nodegroup/c/-x: name \"-x\" is reserved"),
            (r#"{"kind": "InspectionRule", "name": "-x"}"#, "inspectionrule/-x: name \"-x\" is reserved"),
        ] {
            let said = found(json).unwrap();
            assert!(said.starts_with(&format!("warning name.reserved {says}")), "{json}: {said}");
        }
        for json in [
            r#"{"kind": "Node", "name": "-x"}"#,
            r#"{"kind": "Node", "name": "Detail"}"#,
            r#"{"kind": "ClusterTemplate", "name": "detail"}"#,
            r#"{"kind": "Cluster", "name": "x-"}"#,
        ] {
            assert_eq!(found(json), None, "{json}");
        }
    }

    #[test]
    fn a_document_says_what_it_is() {
        for (json, key) in [
            (r#"{"kind": "Release", "name": "site", "version": "2026.11"}"#, "release/site@2026.11"),
            (r#"{"kind": "Release", "name": "site"}"#, "release/site"),
            (r#"{"kind": "NodeGroup", "name": "web", "cluster": "prod"}"#, "nodegroup/prod/web"),
            (r#"{"kind": "Node", "name": "web-1"}"#, "node/web-1"),
            (r#"{"kind": "Namespace", "namespace": "Site::Labels"}"#, "namespace/Site::Labels"),
        ] {
            assert_eq!(read_document(json).unwrap().key.to_string(), key);
        }
        for (json, says) in [
            (r#"{"name": "x"}"#, "kind: is missing: it is one of"),
            (r#"{"name": "x", "field_owners": {}}"#, "kind: is missing: this is an object as it is shown"),
            (r#"{"kind": "Widget", "name": "x"}"#, "kind: unknown kind \"Widget\": it is one of"),
            (
                r#"{"kind": "Secret", "name": "x"}"#,
                "kind: Secret is not taken by this version; it takes Release, ClusterTemplate, Cluster, NodeGroup, Node, Namespace, InspectionRule",
            ),
            (r#"{"kind": "Cluster"}"#, "name: is missing"),
            (r#"{"kind": "NodeGroup", "name": "x"}"#, "cluster: is missing"),
            (r#"{"kind": "Namespace", "name": "x"}"#, "namespace: is missing"),
            (r#"{"kind": "Namespace", "namespace": "a/b"}"#, "namespace: namespace \"a/b\" is not well formed"),
            (r#"{"kind": "Release", "name": "x", "version": 2026.10}"#, "version: 2026.10 is no text"),
            (r#"{"kind": "Node", "name": "detail"}"#, "name: node \"detail\" is reserved"),
        ] {
            let error = read_document(json).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}

//! The endpoints of the API: their paths, callers, inputs and outputs, in one table. The controller's
//! router, the matching of paths on the agents' listener, the API's description and the test of authorisation are built
//! from it (docs/trust.md, rule 3).
//!
//! Access is denied by default. A set of callers cannot be empty, so a route without callers does not compile. Handlers
//! are chosen by an exhaustive match, so a route without a handler does not compile either. The two listeners are
//! separate sockets, and a path of one does not exist on the other.

pub mod examples;
mod kinds;
mod openapi;
mod schema;
mod table;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bytes::Bytes;
use hyper::Request;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use stemma_core::object::Kind;

use crate::error::{ApiError, ErrorType};
use crate::tls::{Identity, IdentityClass};

pub use openapi::openapi;
pub use table::{AgentEndpoint, Endpoint};

/// One of the two sockets of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// The agents' listener, for hosts.
    Agents,
    /// The admin listener, for people and programs.
    Admin,
}

/// The HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads an object or a list.
    Get,
    /// Creates an object, or requests an action.
    Post,
    /// Replaces an object.
    Put,
    /// Changes a part of an object.
    Patch,
    /// Deletes an object.
    Delete,
}

/// The type of the body of a request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyType {
    /// No body.
    Nothing,
    /// A message of the agents' protocol ([`crate::message`]).
    Postcard,
    /// JSON.
    Json,
    /// A JSON merge patch (RFC 7386).
    MergePatch,
    /// JSON patch (RFC 6902), merge patch, or server-side apply, by `Content-Type`.
    AnyPatch,
    /// JSON patch or merge patch, for a kind without maps that several authors apply.
    FieldPatch,
    /// A file's bytes.
    Bytes,
    /// Plain text.
    Text,
    /// Server-sent events, until the client disconnects.
    Events,
}

/// A class of callers, by how they authenticate and what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerClass {
    /// No certificate and no token, on the admin listener.
    Nobody,
    /// No certificate, on the agents' listener: a host that may enrol.
    Joining,
    /// A node, by its certificate.
    Agent,
    /// A principal that may only read.
    Viewer,
    /// A principal that runs clusters.
    Operator,
    /// A principal that may do everything.
    Admin,
}

/// A set of classes of callers. It is never empty, so each route has a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerSet(u8);

/// The objects that a route acts on. Before a handler runs, the caller's role and [`Scope::is_fleet_wide`] are checked.
/// The cluster of a single object is checked when the handler decides (docs/access.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole fleet. The request names no object.
    Fleet,
    /// The node that sends the request.
    Itself,
    /// The cluster that the path names, or an object in it.
    Cluster,
    /// The node that the path names, and through it the node's cluster.
    Node,
    /// The cluster template that the path names.
    Template,
    /// The release that the path names.
    Release,
    /// The namespace of the catalogue that the path names.
    Namespace,
    /// The allocation that the path names.
    Allocation,
    /// The inspection rule that the path names.
    InspectionRule,
    /// The join token that the path names.
    JoinToken,
    /// The principal that the path names.
    Principal,
    /// The principal's certificate that the path names.
    Certificate,
    /// The objects that the body names.
    Body,
}

impl Scope {
    /// Returns the parameter of the path that names the object, or `None` if the path names none.
    pub const fn parameter(self) -> Option<&'static str> {
        match self {
            Self::Fleet | Self::Itself | Self::Body => None,
            Self::Cluster => Some("{cluster}"),
            Self::Node => Some("{node}"),
            Self::Template => Some("{template}"),
            Self::Release => Some("{release}"),
            Self::Namespace => Some("{namespace}"),
            Self::Allocation => Some("{allocation}"),
            Self::InspectionRule => Some("{rule}"),
            Self::JoinToken => Some("{token}"),
            Self::Principal => Some("{principal}"),
            Self::Certificate => Some("{certificate}"),
        }
    }

    /// Returns whether the scope belongs to no cluster. There, a principal that is bound to a cluster reads what is
    /// common to all clusters, and writes nothing. In any other scope, the object that the request names decides.
    pub const fn is_fleet_wide(self) -> bool {
        match self {
            Self::Fleet => true,
            Self::Itself | Self::JoinToken | Self::Body => false,
            Self::Cluster => Kind::Cluster.is_shared(),
            Self::Node => Kind::Node.is_shared(),
            Self::Template => Kind::ClusterTemplate.is_shared(),
            Self::Release => Kind::Release.is_shared(),
            Self::Namespace => Kind::Namespace.is_shared(),
            Self::InspectionRule => Kind::InspectionRule.is_shared(),
            Self::Allocation => Kind::Allocation.is_shared(),
            Self::Principal | Self::Certificate => Kind::Principal.is_shared(),
        }
    }
}

/// The parameters that a query may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryRule {
    /// Any parameters. The route ignores them.
    Ignored,
    /// Only these parameters, listed in groups. Any other is an error.
    Only(&'static [&'static [&'static str]]),
    /// These parameters. Others are ignored, as Glance does in its list of namespaces.
    Lenient(&'static [&'static [&'static str]]),
}

impl QueryRule {
    /// Returns whether a parameter is allowed.
    pub fn allows(self, name: &str) -> bool {
        match self {
            Self::Ignored | Self::Lenient(_) => true,
            Self::Only(groups) => groups.iter().copied().flatten().any(|known| *known == name),
        }
    }

    /// Returns the names of the parameters that the route reads.
    pub fn parameter_names(self) -> impl Iterator<Item = &'static str> {
        let groups = match self {
            Self::Ignored => &[],
            Self::Only(groups) | Self::Lenient(groups) => groups,
        };
        groups.iter().copied().flatten().copied()
    }
}

/// A header that only some routes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteHeader {
    /// The version that a write expects its object to have.
    IfMatch,
    /// Glance's header: entries are added to a list instead of replacing it.
    Append,
}

impl RouteHeader {
    /// Returns the header's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfMatch => "If-Match",
            Self::Append => "X-Openstack-Append",
        }
    }
}

/// The names of the paging parameters.
pub const PAGE: &[&str] = table::PAGE;

/// The fields that a list shows of each entry if the query does not choose any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFields {
    /// These fields. A client that sends no Ironic version also gets Stemma's own fields.
    Only {
        /// The fields that every client gets.
        fields: &'static [&'static str],
        /// Stemma's own fields, for clients that send no Ironic version.
        own: &'static [&'static str],
    },
    /// All fields except these.
    AllExcept(&'static [&'static str]),
}

impl DefaultFields {
    /// Returns whether a list shows a field by default.
    pub fn contains(self, field: &str, is_ironic_client: bool) -> bool {
        match self {
            Self::Only { fields, own } => fields.contains(&field) || (!is_ironic_client && own.contains(&field)),
            Self::AllExcept(fields) => !fields.contains(&field),
        }
    }
}

/// The fields of a response that a query can choose.
#[derive(Debug, PartialEq, Eq)]
pub struct SelectableFields {
    /// The name of the list whose entries have these fields, or `None` if the response itself has them.
    pub list_name: Option<String>,
    /// The names of the fields.
    pub names: BTreeSet<String>,
}

/// Returns the first Ironic version that has this field of a node.
pub fn field_min_version(name: &str) -> Minor {
    table::FIELD_MIN_VERSIONS.iter().find(|(known, _)| *known == name).map_or(Minor(0), |(_, since)| *since)
}

/// How the body of a response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The body is built as a whole, then sent.
    Whole,
    /// The body is built piece by piece, as fast as the client reads.
    Streamed,
}

/// The minor version of an API whose major version is 1 (Ironic's or Magnum's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(pub u16);

/// The first version that has a route or parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinVersion {
    /// The minor version of the API that the path belongs to.
    pub minor: Minor,
    /// The error type for an older client.
    pub refusal: ErrorType,
    /// What the version adds, for the error message.
    pub subject: &'static str,
    /// The name of the API as a suffix in the error message.
    pub api_suffix: &'static str,
}

impl MinVersion {
    /// Returns the error for an older client.
    pub fn refuse(&self) -> ApiError {
        let Self { minor, refusal, subject, api_suffix } = self;
        ApiError::new(*refusal, format!("{subject} from version 1.{}{api_suffix} on", minor.0))
    }
}

/// Minor versions of Ironic's and Magnum's APIs that added something.
pub mod min_versions {
    use super::Minor;

    /// The version of Ironic's API that added names of nodes.
    pub const NAMES: Minor = Minor(5);
    /// The version of Ironic's API that added the query parameter `fields`.
    pub const FIELDS: Minor = Minor(8);
    /// The version of Ironic's API that added a node's `resource_class`.
    pub const RESOURCE_CLASS: Minor = Minor(21);
    /// The version of Ironic's API that added traits.
    pub const TRAITS: Minor = Minor(37);
    /// The version of Ironic's API that added the query parameter `detail`.
    pub const DETAIL: Minor = Minor(43);
    /// The version of Ironic's API that added a node's `allocation_uuid`.
    pub const ALLOCATIONS: Minor = Minor(52);
    /// The version of Ironic's API that added inspection rules.
    pub const INSPECTION_RULES: Minor = Minor(96);
    /// The version of Magnum's API that added the action `resize` of a cluster.
    pub const RESIZE: Minor = Minor(7);
    /// The version of Magnum's API that added the action `upgrade` of a cluster.
    pub const UPGRADE: Minor = Minor(8);
    /// The version of Magnum's API that added node groups.
    pub const NODEGROUPS: Minor = Minor(9);
    /// The version of Magnum's API in which a cluster template that does not exist results in 404.
    pub const TEMPLATE_NOT_FOUND: Minor = Minor(10);
}

/// A row of the endpoint table: all properties of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The socket on which the route exists.
    pub listener: SocketKind,
    /// The method.
    pub method: Method,
    /// The path, with parameters in braces. It has no trailing slash, but one in a request is accepted, because
    /// Magnum's client sends it.
    pub path: &'static str,
    /// The classes of callers that may call the route.
    pub callers: CallerSet,
    /// The objects that the route acts on.
    pub scope: Scope,
    /// The parameters that the query may contain.
    pub query: QueryRule,
    /// The headers that the handler of the route reads.
    pub headers: &'static [RouteHeader],
    /// The type of the request's body.
    pub request: BodyType,
    /// The name of the schema of the request's body in the API's description, or `None` if it is not described.
    pub request_schema: Option<&'static str>,
    /// The statuses of a successful response.
    pub statuses: &'static [u16],
    /// The type of the body of a successful response.
    pub response: BodyType,
    /// The name of the schema of the response's body in the API's description, or `None` if it is not described.
    pub response_schema: Option<&'static str>,
    /// The name of the schema of a response with status 202, if it differs from `response_schema`.
    pub accepted_schema: Option<&'static str>,
    /// How the body of the response is sent.
    pub delivery: Delivery,
    /// The fields that a list shows of each entry if the query does not choose any; `None` for all.
    pub default_fields: Option<&'static DefaultFields>,
    /// The first microversion of Ironic or Magnum that has the route.
    pub min_version: Option<&'static MinVersion>,
    /// A summary in one sentence.
    pub summary: &'static str,
}

/// The result of the search for a path and method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteMatch<'a> {
    /// A route and its path parameters in order, not decoded.
    Route(Endpoint, PathParameters<'a>),
    /// The path exists, but only with these methods.
    MethodNotAllowed(Vec<Method>),
    /// The path does not exist.
    NotFound,
}

/// The parameters of a path, in order. No path has more than three.
pub type PathParameters<'a> = Vec<&'a str>;

impl CallerClass {
    /// All classes.
    pub const ALL: [Self; 6] = [Self::Nobody, Self::Joining, Self::Agent, Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the class of a caller on the agents' listener, by the certificate that it presented, if any.
    pub fn for_agents_listener(identity: Option<&Identity>) -> Self {
        match identity.map(|identity| &identity.class) {
            None => Self::Joining,
            Some(IdentityClass::Node(_)) => Self::Agent,
            // The listener's verifier accepts only nodes. A caller of another class would be `Nobody`.
            Some(
                IdentityClass::Controller(_) | IdentityClass::Admin(_) | IdentityClass::Principal(_) | IdentityClass::Signer(_),
            ) => Self::Nobody,
        }
    }
}

impl CallerSet {
    /// All classes of callers.
    pub const EVERYONE: Self = Self(0b11_1111);
    /// Joining hosts alone.
    pub const JOINING: Self = Self::new(CallerClass::Joining);
    /// Agents alone.
    pub const AGENT: Self = Self::new(CallerClass::Agent);
    /// Viewers alone.
    pub const VIEWER: Self = Self::new(CallerClass::Viewer);
    /// Operators alone.
    pub const OPERATOR: Self = Self::new(CallerClass::Operator);
    /// Admins alone.
    pub const ADMIN: Self = Self::new(CallerClass::Admin);

    const fn new(caller: CallerClass) -> Self {
        Self(1 << caller as u8)
    }

    /// Returns the set of all callers that are in this set or in `others`.
    #[must_use]
    pub const fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns whether a class is in the set.
    pub const fn allows(self, caller: CallerClass) -> bool {
        self.0 & (1 << caller as u8) != 0
    }
}

impl Method {
    /// Returns the method as it is written in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl BodyType {
    /// Returns the media types that a body of this type may have. Empty if there is no body.
    pub const fn media_types(self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Postcard => &["application/vnd.stemma.postcard"],
            Self::Json => &["application/json"],
            Self::MergePatch => &["application/merge-patch+json"],
            Self::AnyPatch => &[
                "application/json",
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+json",
            ],
            Self::FieldPatch => &["application/json", "application/json-patch+json", "application/merge-patch+json"],
            Self::Bytes => &["application/octet-stream"],
            Self::Text => &["text/plain"],
            Self::Events => &["text/event-stream"],
        }
    }
}

impl Endpoint {
    /// Returns whether callers of a class may call this endpoint.
    pub const fn allows(self, caller: CallerClass) -> bool {
        self.route().callers.allows(caller)
    }

    /// Returns whether a call accepts `dry_run`. Every write does, except the upload of a file.
    pub fn has_dry_run(self) -> bool {
        self.route().method != Method::Get && self.route().request != BodyType::Bytes
    }

    /// Returns the status of a response that lists the changes, for a write whose normal response has no body. The
    /// client requests it with `Prefer: return=representation` (RFC 7240).
    pub fn preferred_status(self) -> Option<u16> {
        (self.route().response == BodyType::Nothing && self.has_dry_run()).then_some(200)
    }

    /// Returns the fields that a query can choose, or `None` if the query has no `fields`.
    pub fn selectable_fields(self) -> Option<&'static SelectableFields> {
        static FIELDS: LazyLock<BTreeMap<Endpoint, SelectableFields>> = LazyLock::new(schema::selectable_fields);
        FIELDS.get(&self)
    }

    /// Returns the first Ironic version that has this parameter of node queries.
    pub fn parameter_min_version(self, name: &str) -> Option<&'static MinVersion> {
        let is_ironic = self.route().path.starts_with("/v1/nodes");
        table::PARAMETER_MIN_VERSIONS.iter().find(|(known, _)| is_ironic && *known == name).map(|(_, since)| since)
    }

    /// Returns the path of a request with these parameter values, each escaped.
    pub fn path(self, values: &[&str]) -> String {
        let template = self.route().path;
        debug_assert_eq!(values.len(), template.matches('{').count(), "{template} has another number of parameters");
        let mut values = values.iter();
        let segments: Vec<_> = template
            .split('/')
            .map(|part| match part.strip_prefix('{') {
                Some(_) => escape(values.next().copied().unwrap_or_default()).into(),
                None => Cow::Borrowed(part),
            })
            .collect();
        segments.join("/")
    }

    /// Builds a request with these values for the parameters of its path.
    pub fn request(self, values: &[&str], body: Vec<u8>) -> Request<Bytes> {
        let request = Request::builder().method(self.route().method.as_str()).uri(self.path(values));
        request.body(body.into()).expect("a method and an escaped path make a request")
    }
}

/// Percent-encodes a segment of a path, or a value of a query.
pub fn escape(text: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'@').remove(b':');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Finds the route of a request on a listener. If several templates match, the one with the fewest parameters wins:
/// `/v1/nodes/detail` does not name a node.
pub fn find<'a>(listener: SocketKind, method: &str, path: &'a str) -> RouteMatch<'a> {
    let path = path.strip_suffix('/').filter(|bare| accepts_final_slash(listener, method, bare)).unwrap_or(path);
    let mut best: Option<(Endpoint, PathParameters<'a>)> = None;
    let mut other_methods: Vec<(usize, Method)> = Vec::new();
    for endpoint in Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == listener) {
        let Some(parameters) = match_path(endpoint.route().path, path) else { continue };
        if endpoint.route().method.as_str() != method {
            other_methods.push((parameters.len(), endpoint.route().method));
        } else if parameters.is_empty() {
            return RouteMatch::Route(endpoint, parameters);
        } else if best.as_ref().is_none_or(|(_, found)| parameters.len() < found.len()) {
            best = Some((endpoint, parameters));
        }
    }
    match best {
        Some((endpoint, parameters)) => RouteMatch::Route(endpoint, parameters),
        None => match other_methods.iter().map(|(parameters, _)| *parameters).min() {
            Some(fewest) => {
                let nearest = other_methods.into_iter().filter(|(parameters, _)| *parameters == fewest);
                RouteMatch::MethodNotAllowed(nearest.map(|(_, method)| method).collect())
            }
            None => RouteMatch::NotFound,
        },
    }
}

/// Returns whether a trailing slash after this path is ignored. In a write it may mean that the last name is missing,
/// so it is then not ignored: `DELETE /v1/inspection_rules/` would delete all rules instead of one.
fn accepts_final_slash(listener: SocketKind, method: &str, path: &str) -> bool {
    if path.is_empty() || method == Method::Delete.as_str() {
        return false;
    }
    let mut routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    method == Method::Get.as_str()
        || !routes.any(|route| {
            let is_candidate = route.listener == listener && route.method.as_str() == method;
            let parent = route.path.rsplit_once('/').filter(|(_, last)| last.starts_with('{') && *last != "{map}");
            is_candidate && parent.is_some_and(|(above, _)| match_path(above, path).is_some())
        })
}

/// The words that match `{map}` in a path.
const MAP_NAMES: [&str; 3] = ["labels", "annotations", "parameters"];

/// Returns the parameters of a path if it matches this template. A parameter is one segment, and not empty.
fn match_path<'a>(template: &str, path: &'a str) -> Option<PathParameters<'a>> {
    let mut parameters = Vec::new();
    let mut segments = path.split('/');
    for part in template.split('/') {
        let segment = segments.next()?;
        if part.starts_with('{') {
            if segment.is_empty() || (part == "{map}" && !MAP_NAMES.contains(&segment)) {
                return None;
            }
            parameters.push(segment);
        } else if part != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(parameters)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stemma_core::name::NodeName;

    use super::*;

    #[test]
    fn find_matches_path_only_on_own_listener() {
        use Endpoint as E;
        use SocketKind::{Admin, Agents};
        for (listener, method, path, found) in [
            (Agents, "POST", "/agent/v1/checkin", RouteMatch::Route(E::CheckIn, vec![])),
            (Agents, "GET", "/agent/v1/blobs/ab12", RouteMatch::Route(E::AgentBlob, vec!["ab12"])),
            (Agents, "GET", "/agent/v1/checkin", RouteMatch::MethodNotAllowed(vec![Method::Post])),
            (Agents, "GET", "/agent/v1/blobs/", RouteMatch::NotFound),
            (Agents, "GET", "/agent/v1/blobs/a/b", RouteMatch::NotFound),
            (Agents, "GET", "/v1/nodes", RouteMatch::NotFound),
            (Admin, "POST", "/agent/v1/checkin", RouteMatch::NotFound),
            (Admin, "GET", "/", RouteMatch::Route(E::Versions, vec![])),
            (Admin, "GET", "/v1/", RouteMatch::Route(E::Version1, vec![])),
            (Admin, "GET", "/v1/nodes/detail", RouteMatch::Route(E::ListNodesDetail, vec![])),
            (Admin, "GET", "/v1/nodes/web-1", RouteMatch::Route(E::GetNode, vec!["web-1"])),
            (Admin, "GET", "/v1/clusters/prod/nodegroups/", RouteMatch::Route(E::ListGroups, vec!["prod"])),
            (Admin, "PUT", "/v1/nodes/web-1/traits", RouteMatch::Route(E::ReplaceNodeTraits, vec!["web-1"])),
            (Admin, "PUT", "/v1/nodes/web-1/labels", RouteMatch::Route(E::PutNodeMap, vec!["web-1", "labels"])),
            (Admin, "GET", "/V1/nodes", RouteMatch::NotFound),
            (Admin, "GET", "//v1/nodes", RouteMatch::NotFound),
            (Admin, "GET", "", RouteMatch::NotFound),
            (Admin, "get", "/v1/nodes", RouteMatch::MethodNotAllowed(vec![Method::Get, Method::Post])),
        ] {
            assert_eq!(find(listener, method, path), found, "{method} {path}");
        }
    }

    /// Clients of Ironic and Magnum end paths with a slash. The slash is ignored, except in a write that could have
    /// lost the name of one object.
    #[test]
    fn x06_find_rejects_final_slash_when_id_is_empty() {
        for row in Endpoint::ALL.iter().copied() {
            let route = row.route();
            let path = route.path.replace("{map}", "labels");
            let found = find(route.listener, route.method.as_str(), &path);
            assert!(matches!(found, RouteMatch::Route(found, _) if found == row), "{path}");
            let names_one = |other: Endpoint| {
                let (above, last) = other.route().path.rsplit_once('/').expect("a path");
                above == route.path && last.starts_with('{') && last != "{map}"
            };
            let mut others = Endpoint::ALL.iter().copied().filter(|other| other.route().method == route.method);
            let slashed = format!("{path}/");
            let found = find(route.listener, route.method.as_str(), &slashed);
            let is_accepted = match route.method {
                Method::Get => true,
                Method::Delete => false,
                Method::Post | Method::Put | Method::Patch => !others.any(names_one),
            };
            let is_found = matches!(found, RouteMatch::Route(found, _) if found == row);
            assert_eq!(is_found, is_accepted || path == "/", "{} {slashed}", route.method.as_str());
        }
        let found = find(SocketKind::Admin, "PUT", "/v1/nodes/web-1/traits/");
        assert!(!matches!(found, RouteMatch::Route(..)), "{found:?}");
    }

    #[test]
    fn find_returns_endpoint_of_each_path() {
        for (endpoint, values, path) in [
            (Endpoint::ListNodes, &[][..], "/v1/nodes"),
            (Endpoint::GetNode, &["a b/ü"], "/v1/nodes/a%20b%2F%C3%BC"),
            (Endpoint::GetRelease, &["web@1.2:3~x"], "/v1/releases/web@1.2:3~x"),
            (Endpoint::PatchGroupMap, &["c", "g", "labels"], "/v1/clusters/c/nodegroups/g/labels"),
        ] {
            assert_eq!(endpoint.path(values), path);
            assert_eq!(endpoint.request(values, vec![]).uri().path(), path);
            let route = endpoint.route();
            assert!(
                matches!(find(route.listener, route.method.as_str(), path), RouteMatch::Route(found, _) if found == endpoint)
            );
        }
    }

    #[test]
    fn node_name_rejects_literal_segments_below_nodes() {
        let below = Endpoint::ALL.iter().filter_map(|row| row.route().path.strip_prefix("/v1/nodes/"));
        for word in below.flat_map(|path| path.split('/')).filter(|part| !part.starts_with('{')) {
            // A word below a map, or below another fixed word, cannot be taken for a node's name.
            let is_deeper = matches!(word, "tombstones" | "owners" | "provision" | "refresh");
            assert!(is_deeper || NodeName::new(word).is_err(), "{word}");
        }
    }

    #[test]
    fn endpoints_have_distinct_requests() {
        let rows: BTreeSet<_> = Endpoint::ALL.iter().map(|row| (row.route().method.as_str(), row.route().path)).collect();
        assert_eq!(rows.len(), Endpoint::ALL.len());
    }

    #[test]
    fn endpoint_scope_matches_path_parameters() {
        for row in Endpoint::ALL {
            let route = row.route();
            let scopes = [
                Scope::Cluster,
                Scope::Node,
                Scope::Template,
                Scope::Release,
                Scope::Namespace,
                Scope::Allocation,
                Scope::InspectionRule,
                Scope::Principal,
                Scope::JoinToken,
                Scope::Certificate,
            ];
            let found = scopes.into_iter().find(|scope| scope.parameter().is_some_and(|part| route.path.contains(part)));
            assert_eq!(route.scope.parameter(), found.and_then(Scope::parameter), "{row:?}");
            // The response to an action of Ironic's has status 202 and no body.
            let is_empty = matches!(route.statuses, [204]) || (route.statuses == [202] && route.response == BodyType::Nothing);
            assert_eq!(is_empty, route.response == BodyType::Nothing, "{row:?}");
        }
    }

    #[test]
    fn find_rejects_delete_when_id_is_empty() {
        let found = |method: &str, path| match find(SocketKind::Admin, method, path) {
            RouteMatch::Route(endpoint, _) => Some(endpoint),
            RouteMatch::MethodNotAllowed(_) | RouteMatch::NotFound => None,
        };
        assert_eq!(found("DELETE", "/v1/inspection_rules"), Some(Endpoint::DeleteInspectionRules));
        assert_eq!(found("DELETE", "/v1/inspection_rules/"), None);
        assert_eq!(found("GET", "/v1/inspection_rules/"), found("GET", "/v1/inspection_rules"));
    }

    #[test]
    fn endpoints_admit_only_caller_classes_of_own_listener() {
        for endpoint in Endpoint::ALL {
            let route = endpoint.route();
            let (agents, admin) = (
                endpoint.allows(CallerClass::Joining) || endpoint.allows(CallerClass::Agent),
                endpoint.allows(CallerClass::Viewer)
                    || endpoint.allows(CallerClass::Operator)
                    || endpoint.allows(CallerClass::Admin),
            );
            match route.listener {
                SocketKind::Agents => {
                    assert!(agents && !admin && !endpoint.allows(CallerClass::Nobody), "{endpoint:?}");
                }
                SocketKind::Admin => assert!(admin && endpoint.allows(CallerClass::Admin), "{endpoint:?}"),
            }
            let writes = route.listener == SocketKind::Admin && route.method != Method::Get;
            assert!(!(writes && endpoint.allows(CallerClass::Viewer)), "{endpoint:?}: a viewer does not write");
        }
    }

    #[test]
    fn for_agents_listener_returns_joining_without_certificate() {
        assert_eq!(CallerClass::for_agents_listener(None), CallerClass::Joining);
        assert!(!Endpoint::CheckIn.allows(CallerClass::Joining));
        assert!(Endpoint::ALL.iter().all(|row| row.route().listener == SocketKind::Admin || !row.allows(CallerClass::Nobody)));
    }
}

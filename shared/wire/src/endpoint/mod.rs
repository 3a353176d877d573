//! The endpoints of the API: their paths, callers, inputs and outputs, in one table. The controller's router, the
//! matching of paths on the agents' listener, the `OpenAPI` description and the test of authorisation are built from
//! this table (docs/trust.md, rule 3).
//!
//! Access is denied by default. A set of callers cannot be empty, so a route without callers does not compile. Handlers
//! are chosen by an exhaustive match, so a route without a handler does not compile either. The two listeners are
//! separate sockets, and a path of one listener does not exist on the other.

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

/// One of the two kinds of socket of a controller. Each kind has its own paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// The agents' listener, for hosts.
    Agents,
    /// The admin listener, for people and programs. Root's Unix socket has the same paths.
    Admin,
}

/// An HTTP method that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads an object or a list.
    Get,
    /// Creates an object, or requests an action.
    Post,
    /// Replaces an object or a part of it, adds the item that the path names, such as a trait, or sets a state.
    Put,
    /// Changes a part of an object.
    Patch,
    /// Deletes an object, or removes a part of it.
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
    /// A JSON patch (RFC 6902), a merge patch or a server-side apply. The header `Content-Type` selects one of them.
    AnyPatch,
    /// A JSON patch or a merge patch, for a kind of object that does not support server-side apply.
    FieldPatch,
    /// The bytes of a file.
    Bytes,
    /// Plain text.
    Text,
    /// Server-sent events, until the client disconnects.
    Events,
}

/// A class of callers that may call the same endpoints. The listener and the certificate or token decide the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerClass {
    /// A caller without the certificate or token of a principal, on an admin listener with TLS. On the plain listener
    /// and on root's socket, a caller without token is an admin (docs/access.md).
    Nobody,
    /// A caller on the agents' listener without certificate: a host that may enrol.
    Joining,
    /// A node's agent with its certificate, on the agents' listener.
    Agent,
    /// A principal that may only read.
    Viewer,
    /// A principal that may read, and may write clusters, node groups, nodes, allocations and join tokens. If the
    /// principal is not bound to a cluster, it may also write cluster templates.
    Operator,
    /// A principal that may do everything.
    Admin,
}

/// A set of classes of callers, with one bit for each class. The set is never empty, so each route has a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerSet(u8);

/// The objects on which a route acts. The controller checks the caller's role and [`Scope::is_fleet_wide`] before the
/// handler runs. The handler sees only objects that the caller may read, and access to the cluster of a single object
/// is checked when a write is decided (docs/access.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole fleet. The path names no object of the kinds below, but may name a task or the hash of a file.
    Fleet,
    /// The node that sends the request.
    Itself,
    /// The cluster that the path names, or an object in it.
    Cluster,
    /// The node that the path names. The cluster of this node decides about access.
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
    /// The certificate that the path names, which belongs to a principal.
    Certificate,
    /// The objects that the body names.
    Body,
}

impl Scope {
    /// Returns the path parameter that names the object, such as `{node}`. Returns `None` if the path names no object.
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

    /// Returns whether the scope is the whole fleet, or its objects belong to no cluster. A principal that is bound to
    /// a cluster may then only read. In any other scope, the cluster of the object decides about access.
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

/// The rule for the query parameters of a route, except `dry_run`. [`Endpoint::has_dry_run`] decides about `dry_run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryRule {
    /// The route reads no parameter, and ignores all parameters of a request.
    Ignored,
    /// The route reads the parameters in these groups, and rejects a request with any other parameter.
    Only(&'static [&'static [&'static str]]),
    /// The route reads the parameters in these groups, and ignores others, as Glance does in its list of namespaces.
    Lenient(&'static [&'static [&'static str]]),
}

impl QueryRule {
    /// Returns whether a request may have this parameter, which is not `dry_run`. An ignored parameter is allowed too.
    pub fn allows(self, name: &str) -> bool {
        match self {
            Self::Ignored | Self::Lenient(_) => true,
            Self::Only(groups) => groups.iter().copied().flatten().any(|allowed_name| *allowed_name == name),
        }
    }

    /// Returns the names of the query parameters that the route reads, except `dry_run`.
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
    /// The `resource_version` that the object must have, so that a stale write is refused.
    IfMatch,
    /// Glance's header that adds entries to a list, so that they do not replace the list.
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

/// The names of the query parameters that choose the part of a list to show, and its order.
pub const PAGING_PARAMETERS: &[&str] = table::PAGE;

/// The fields of each entry that the response of a list contains if the query has neither `fields` nor `detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFields {
    /// Only these fields. A client that sends no Ironic version also gets fields that Ironic does not have.
    Only {
        /// The fields that every client gets.
        fields: &'static [&'static str],
        /// Fields of Stemma that Ironic does not have, for clients that send no Ironic version.
        stemma_fields: &'static [&'static str],
    },
    /// All fields except these.
    AllExcept(&'static [&'static str]),
}

impl DefaultFields {
    /// Returns whether a list contains a field by default. `is_ironic_client` is true if the request names a version of
    /// Ironic's API.
    pub fn contains(self, field: &str, is_ironic_client: bool) -> bool {
        match self {
            Self::Only { fields, stemma_fields: own } => fields.contains(&field) || (!is_ironic_client && own.contains(&field)),
            Self::AllExcept(fields) => !fields.contains(&field),
        }
    }
}

/// The fields of a response that the query parameter `fields` can select.
#[derive(Debug, PartialEq, Eq)]
pub struct SelectableFields {
    /// The name of the list whose entries have these fields, or `None` if the response itself has them.
    pub list_name: Option<String>,
    /// The names of the fields.
    pub names: BTreeSet<String>,
}

/// Returns the first version of Ironic's API that has this field of a node. Returns version 0 for a field that all
/// versions have, and for any other name.
pub fn field_min_version(name: &str) -> MinorVersion {
    table::FIELD_MIN_VERSIONS.iter().find(|(field, _)| *field == name).map_or(MinorVersion(0), |(_, version)| *version)
}

/// The way in which the body of a response is built and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The whole body is built before it is sent.
    Whole,
    /// The body is built and sent piece by piece, as fast as the client reads.
    Streamed,
}

/// The minor version of an API whose major version is 1 (Ironic's or Magnum's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorVersion(pub u16);

/// The first API version that has a route or parameter, with the error for clients of older versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinVersion {
    /// The minor version, of Ironic's or Magnum's API.
    pub minor: MinorVersion,
    /// The error type of the response to a client of an older version.
    pub refusal: ErrorType,
    /// The start of the error message, which names the addition of the version.
    pub subject: &'static str,
    /// The text after the version number in the error message, which names the API. Empty for Ironic's API.
    pub api_suffix: &'static str,
}

impl MinVersion {
    /// Returns the error for a client that requests an older version.
    pub fn version_error(&self) -> ApiError {
        let Self { minor, refusal, subject, api_suffix } = self;
        ApiError::new(*refusal, format!("{subject} from version 1.{}{api_suffix} on", minor.0))
    }
}

/// Minor versions of Ironic's and Magnum's APIs that added or changed something.
pub mod min_versions {
    use super::MinorVersion;

    /// The version of Ironic's API that added names of nodes.
    pub const NAMES: MinorVersion = MinorVersion(5);
    /// The version of Ironic's API that added the query parameter `fields`.
    pub const FIELDS: MinorVersion = MinorVersion(8);
    /// The version of Ironic's API that added a node's `resource_class`.
    pub const RESOURCE_CLASS: MinorVersion = MinorVersion(21);
    /// The version of Ironic's API that added traits.
    pub const TRAITS: MinorVersion = MinorVersion(37);
    /// The version of Ironic's API that added the query parameter `detail`.
    pub const DETAIL: MinorVersion = MinorVersion(43);
    /// The version of Ironic's API that added allocations, and a node's `allocation_uuid`.
    pub const ALLOCATIONS: MinorVersion = MinorVersion(52);
    /// The version of Ironic's API that added inspection rules.
    pub const INSPECTION_RULES: MinorVersion = MinorVersion(96);
    /// The version of Magnum's API that added the action `resize` of a cluster.
    pub const RESIZE: MinorVersion = MinorVersion(7);
    /// The version of Magnum's API that added the action `upgrade` of a cluster.
    pub const UPGRADE: MinorVersion = MinorVersion(8);
    /// The version of Magnum's API that added node groups.
    pub const NODEGROUPS: MinorVersion = MinorVersion(9);
    /// The version of Magnum's API from which on a new cluster with a missing template gets 404, and not 400.
    pub const TEMPLATE_NOT_FOUND: MinorVersion = MinorVersion(10);
}

/// The properties of one route: a row of the endpoint table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The socket on which the route exists.
    pub listener: SocketKind,
    /// The HTTP method.
    pub method: Method,
    /// The path, with parameters in braces and without trailing slash. A request may have a trailing slash, because
    /// Magnum's client sends one, but not if a name could be missing.
    pub path: &'static str,
    /// The classes of callers that may call the route.
    pub callers: CallerSet,
    /// The objects that the route acts on.
    pub scope: Scope,
    /// The parameters that the query may contain, except `dry_run`.
    pub query: QueryRule,
    /// The headers that the handler of the route reads, except those that all routes or all writes have in common.
    pub headers: &'static [RouteHeader],
    /// The type of the request's body.
    pub request: BodyType,
    /// The name of the schema of the request's body in the `OpenAPI` description, or `None` if there is no schema.
    pub request_schema: Option<&'static str>,
    /// The statuses of a successful response. For `/readyz` also 503, the status of a controller that is not ready.
    pub statuses: &'static [u16],
    /// The type of the body of a successful response.
    pub response: BodyType,
    /// The name of the schema of the response's body in the `OpenAPI` description, or `None` if there is no schema.
    pub response_schema: Option<&'static str>,
    /// The name of the schema of a response with status 202, if it differs from `response_schema`.
    pub accepted_schema: Option<&'static str>,
    /// The way in which the body of the response is built and sent.
    pub delivery: Delivery,
    /// The fields of each entry that a list contains by default. `None` means all fields.
    pub default_fields: Option<&'static DefaultFields>,
    /// The first version of Ironic's or Magnum's API that has the route. `None` means every version.
    pub min_version: Option<&'static MinVersion>,
    /// The effect of the route in one sentence, for the `OpenAPI` description.
    pub summary: &'static str,
}

/// The result of the search for the route of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteMatch<'a> {
    /// The endpoint, and the values of its path parameters in order, still percent-encoded.
    Route(Endpoint, PathParameters<'a>),
    /// The path exists, but only with other methods: those of the matching routes with the fewest path parameters.
    MethodNotAllowed(Vec<Method>),
    /// The path does not exist on the listener.
    NotFound,
}

/// The values of the parameters of a path, in order and still percent-encoded. No path has more than three parameters.
pub type PathParameters<'a> = Vec<&'a str>;

impl CallerClass {
    /// All classes of callers.
    pub const ALL: [Self; 6] = [Self::Nobody, Self::Joining, Self::Agent, Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the class of a caller on the agents' listener. `identity` is that of the caller's certificate, or `None`
    /// if the caller has none.
    pub fn for_agents_listener(identity: Option<&Identity>) -> Self {
        match identity.map(|identity| &identity.class) {
            None => Self::Joining,
            Some(IdentityClass::Node(_)) => Self::Agent,
            // The TLS verifier of this listener accepts only certificates of nodes, so this case should not occur.
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

    /// Creates a set with one class.
    const fn new(caller: CallerClass) -> Self {
        Self(1 << caller as u8)
    }

    /// Returns the set of all classes that are in this set or in `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether a class is in the set.
    pub const fn allows(self, caller: CallerClass) -> bool {
        self.0 & (1 << caller as u8) != 0
    }
}

impl Method {
    /// Returns the name of the method in a request, such as `GET`.
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

    /// Returns whether a request to this endpoint of the admin listener may have the query parameter `dry_run`. Every
    /// write may have it, except the upload of a file. The agents' listener does not read this parameter.
    pub fn has_dry_run(self) -> bool {
        self.route().method != Method::Get && self.route().request != BodyType::Bytes
    }

    /// Returns the status of a response with a list of changes, for a write whose normal response has no body. A client
    /// requests this response with the header `Prefer: return=representation` (RFC 7240). Returns `None` for any other
    /// endpoint.
    pub fn representation_status(self) -> Option<u16> {
        (self.route().response == BodyType::Nothing && self.has_dry_run()).then_some(200)
    }

    /// Returns the fields that the query parameter `fields` can select, or `None` if the endpoint lacks this parameter.
    pub fn selectable_fields(self) -> Option<&'static SelectableFields> {
        static FIELDS: LazyLock<BTreeMap<Endpoint, SelectableFields>> = LazyLock::new(schema::selectable_fields);
        FIELDS.get(&self)
    }

    /// Returns the first version of Ironic's API that has this query parameter of the node routes. Returns `None` for a
    /// parameter that every version has, and for routes that are not about nodes.
    pub fn parameter_min_version(self, name: &str) -> Option<&'static MinVersion> {
        let is_ironic = self.route().path.starts_with("/v1/nodes");
        table::PARAMETER_MIN_VERSIONS.iter().find(|(key, _)| is_ironic && *key == name).map(|(_, version)| version)
    }

    /// Returns the path of a request with these values for the path parameters, in order. Each value is
    /// percent-encoded.
    pub fn path(self, values: &[&str]) -> String {
        let template = self.route().path;
        debug_assert_eq!(values.len(), template.matches('{').count(), "{template} has another number of parameters");
        let mut values = values.iter();
        let segments: Vec<_> = template
            .split('/')
            .map(|segment| match segment.strip_prefix('{') {
                Some(_) => escape(values.next().copied().unwrap_or_default()).into(),
                None => Cow::Borrowed(segment),
            })
            .collect();
        segments.join("/")
    }

    /// Builds a request to this endpoint with these values for the path parameters, in order.
    pub fn request(self, values: &[&str], body: Vec<u8>) -> Request<Bytes> {
        let request = Request::builder().method(self.route().method.as_str()).uri(self.path(values));
        request.body(body.into()).expect("a method and an escaped path make a request")
    }
}

/// Returns a text percent-encoded for use as a segment of a path or as a value in a query.
pub fn escape(text: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'@').remove(b':');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Finds the route of a request on a listener. If the path matches several routes, the route with the fewest path
/// parameters is returned: `/v1/nodes/detail` is the list of nodes with details, and not a node with the name `detail`.
/// If only routes with other methods match, returns the methods of those with the fewest path parameters.
pub fn find_route<'a>(listener: SocketKind, method: &str, path: &'a str) -> RouteMatch<'a> {
    let path = path.strip_suffix('/').filter(|bare| ignores_trailing_slash(listener, method, bare)).unwrap_or(path);
    let mut best_match: Option<(Endpoint, PathParameters<'a>)> = None;
    let mut other_methods: Vec<(usize, Method)> = Vec::new();
    for endpoint in Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == listener) {
        let Some(parameters) = match_template(endpoint.route().path, path) else { continue };
        if endpoint.route().method.as_str() != method {
            other_methods.push((parameters.len(), endpoint.route().method));
        } else if parameters.is_empty() {
            return RouteMatch::Route(endpoint, parameters);
        } else if best_match.as_ref().is_none_or(|(_, best_parameters)| parameters.len() < best_parameters.len()) {
            best_match = Some((endpoint, parameters));
        }
    }
    match best_match {
        Some((endpoint, parameters)) => RouteMatch::Route(endpoint, parameters),
        None => match other_methods.iter().map(|(parameters, _)| *parameters).min() {
            Some(min_parameter_count) => {
                let nearest_methods = other_methods.into_iter().filter(|(parameters, _)| *parameters == min_parameter_count);
                RouteMatch::MethodNotAllowed(nearest_methods.map(|(_, method)| method).collect())
            }
            None => RouteMatch::NotFound,
        },
    }
}

/// Returns whether a trailing slash in a request is ignored. `path` is the path without this slash.
///
/// The slash is ignored in a `GET`. In a `DELETE` it is not ignored, because the name of an object may be missing:
/// `DELETE /v1/inspection_rules/` would delete all rules. In other writes it is not ignored if a route with the same
/// method has `path` and a name after it.
fn ignores_trailing_slash(listener: SocketKind, method: &str, path: &str) -> bool {
    if path.is_empty() || method == Method::Delete.as_str() {
        return false;
    }
    let mut routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    method == Method::Get.as_str()
        || !routes.any(|route| {
            let is_candidate = route.listener == listener && route.method.as_str() == method;
            // `{map}` names a map such as `labels`, and not an object.
            let parent_path = route.path.rsplit_once('/').filter(|(_, last)| last.starts_with('{') && *last != "{map}");
            is_candidate && parent_path.is_some_and(|(parent_template, _)| match_template(parent_template, path).is_some())
        })
}

/// The values that the path parameter `{map}` may have.
const MAP_NAMES: [&str; 3] = ["labels", "annotations", "parameters"];

/// Returns the values of the path parameters if a path matches this template, or else `None`. A parameter matches one
/// segment that is not empty. The parameter `{map}` matches only the names in [`MAP_NAMES`].
fn match_template<'a>(template: &str, path: &'a str) -> Option<PathParameters<'a>> {
    let mut parameters = Vec::new();
    let mut segments = path.split('/');
    for template_segment in template.split('/') {
        let segment = segments.next()?;
        if template_segment.starts_with('{') {
            if segment.is_empty() || (template_segment == "{map}" && !MAP_NAMES.contains(&segment)) {
                return None;
            }
            parameters.push(segment);
        } else if template_segment != segment {
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
    fn find_route_compares_listener_method_and_path() {
        use Endpoint as E;
        use SocketKind::{Admin, Agents};
        for (listener, method, path, expected) in [
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
            assert_eq!(find_route(listener, method, path), expected, "{method} {path}");
        }
    }

    /// Clients of Ironic and Magnum end paths with a slash. The slash is ignored, except in a `DELETE`, and in a write
    /// that may lack the name of its object.
    #[test]
    fn x06_find_route_ignores_final_slash_unless_name_is_missing() {
        for endpoint in Endpoint::ALL.iter().copied() {
            let route = endpoint.route();
            let path = route.path.replace("{map}", "labels");
            let route_match = find_route(route.listener, route.method.as_str(), &path);
            assert!(matches!(route_match, RouteMatch::Route(found, _) if found == endpoint), "{path}");
            let names_object_below = |other: Endpoint| {
                let (parent_path, last_segment) = other.route().path.rsplit_once('/').expect("a path");
                parent_path == route.path && last_segment.starts_with('{') && last_segment != "{map}"
            };
            let mut endpoints_of_method = Endpoint::ALL.iter().copied().filter(|other| other.route().method == route.method);
            let path_with_slash = format!("{path}/");
            let route_match = find_route(route.listener, route.method.as_str(), &path_with_slash);
            let is_accepted = match route.method {
                Method::Get => true,
                Method::Delete => false,
                Method::Post | Method::Put | Method::Patch => !endpoints_of_method.any(names_object_below),
            };
            let is_found = matches!(route_match, RouteMatch::Route(found, _) if found == endpoint);
            assert_eq!(is_found, is_accepted, "{} {path_with_slash}", route.method.as_str());
        }
        let route_match = find_route(SocketKind::Admin, "PUT", "/v1/nodes/web-1/traits/");
        assert!(!matches!(route_match, RouteMatch::Route(..)), "{route_match:?}");
    }

    #[test]
    fn endpoint_path_escapes_values_and_matches_own_route() {
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
                matches!(find_route(route.listener, route.method.as_str(), path), RouteMatch::Route(found, _) if found == endpoint)
            );
        }
    }

    #[test]
    fn node_name_rejects_literal_segments_below_nodes() {
        let paths_below_nodes = Endpoint::ALL.iter().filter_map(|endpoint| endpoint.route().path.strip_prefix("/v1/nodes/"));
        for segment_name in paths_below_nodes.flat_map(|path| path.split('/')).filter(|segment| !segment.starts_with('{')) {
            // These segments are deeper in the path, so nobody can confuse them with the name of a node.
            let is_deeper = matches!(segment_name, "tombstones" | "owners" | "provision" | "refresh" | "reboot");
            assert!(is_deeper || NodeName::new(segment_name).is_err(), "{segment_name}");
        }
    }

    #[test]
    fn endpoints_have_distinct_requests() {
        let requests: BTreeSet<_> =
            Endpoint::ALL.iter().map(|endpoint| (endpoint.route().method.as_str(), endpoint.route().path)).collect();
        assert_eq!(requests.len(), Endpoint::ALL.len());
    }

    #[test]
    fn endpoint_scope_and_statuses_match_path_and_body() {
        for endpoint in Endpoint::ALL {
            let route = endpoint.route();
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
            let path_scope =
                scopes.into_iter().find(|scope| scope.parameter().is_some_and(|parameter| route.path.contains(parameter)));
            assert_eq!(route.scope.parameter(), path_scope.and_then(Scope::parameter), "{endpoint:?}");
            // The response to an Ironic action has status 202 and no body.
            let is_empty = matches!(route.statuses, [204]) || (route.statuses == [202] && route.response == BodyType::Nothing);
            assert_eq!(is_empty, route.response == BodyType::Nothing, "{endpoint:?}");
        }
    }

    #[test]
    fn find_rejects_delete_when_id_is_empty() {
        let find_endpoint = |method: &str, path| match find_route(SocketKind::Admin, method, path) {
            RouteMatch::Route(endpoint, _) => Some(endpoint),
            RouteMatch::MethodNotAllowed(_) | RouteMatch::NotFound => None,
        };
        assert_eq!(find_endpoint("DELETE", "/v1/inspection_rules"), Some(Endpoint::DeleteInspectionRules));
        assert_eq!(find_endpoint("DELETE", "/v1/inspection_rules/"), None);
        assert_eq!(find_endpoint("GET", "/v1/inspection_rules/"), find_endpoint("GET", "/v1/inspection_rules"));
    }

    #[test]
    fn endpoints_admit_callers_of_listener_and_no_viewer_writes() {
        for endpoint in Endpoint::ALL {
            let route = endpoint.route();
            let (allows_hosts, allows_principals) = (
                endpoint.allows(CallerClass::Joining) || endpoint.allows(CallerClass::Agent),
                endpoint.allows(CallerClass::Viewer)
                    || endpoint.allows(CallerClass::Operator)
                    || endpoint.allows(CallerClass::Admin),
            );
            match route.listener {
                SocketKind::Agents => {
                    assert!(allows_hosts && !allows_principals && !endpoint.allows(CallerClass::Nobody), "{endpoint:?}");
                }
                SocketKind::Admin => assert!(allows_principals && endpoint.allows(CallerClass::Admin), "{endpoint:?}"),
            }
            let is_write = route.listener == SocketKind::Admin && route.method != Method::Get;
            assert!(!(is_write && endpoint.allows(CallerClass::Viewer)), "{endpoint:?}: a viewer does not write");
        }
    }

    /// A host without certificate cannot check in. No endpoint of the agents' listener admits [`CallerClass::Nobody`].
    #[test]
    fn for_agents_listener_returns_joining_without_certificate() {
        assert_eq!(CallerClass::for_agents_listener(None), CallerClass::Joining);
        assert!(!Endpoint::CheckIn.allows(CallerClass::Joining));
        assert!(
            Endpoint::ALL
                .iter()
                .all(|endpoint| endpoint.route().listener == SocketKind::Admin || !endpoint.allows(CallerClass::Nobody))
        );
    }
}

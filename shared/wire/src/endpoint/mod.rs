//! Which paths there are, who may call them, and what they take and give: one table, from which the controller builds its router, the
//! agents' listener its matching, the API's description its paths, and the authorisation test its matrix (docs/trust.md, rule 3).
//!
//! Deny by default: the classes of callers have no empty value, so a route that nobody was named for does not compile, and handlers
//! are chosen by an exhaustive match, so neither does a route without a handler. The two listeners are separate sockets, and a path of
//! one does not exist on the other.

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
use crate::tls::{Class, Identity};

pub use openapi::openapi;
pub use table::{AgentEndpoint, Endpoint};

/// Which socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Hosts.
    Agents,
    /// People and programs.
    Admin,
}

/// The methods that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates, or asks for an action.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Deletes.
    Delete,
}

/// A body's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No body.
    Nothing,
    /// A message of the agents' protocol ([`crate::message`]).
    Postcard,
    /// JSON.
    Json,
    /// RFC 7386.
    MergePatch,
    /// JSON patch (RFC 6902), merge patch, or server-side apply, by `Content-Type`.
    AnyPatch,
    /// JSON patch or merge patch, of a kind without maps that several authors apply.
    FieldPatch,
    /// A file's bytes.
    Bytes,
    /// Plain text.
    Text,
    /// Server-sent events, for as long as the client stays.
    Events,
}

/// A class of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// No certificate and no token, on the admin listener.
    Nobody,
    /// No certificate, on the agents' listener: may want to enrol.
    Joining,
    /// A node.
    Agent,
    /// A principal that reads.
    Viewer,
    /// A principal that runs clusters.
    Operator,
    /// A principal that may do everything.
    Admin,
}

/// A set of classes, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callers(u8);

/// On what a route acts. Before a handler runs a caller's role and [`Scope::is_shared`] are looked at; the place of a single object is known in
/// the decision (docs/access.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The fleet: no object is named.
    Fleet,
    /// The node that calls.
    Itself,
    /// The cluster that the path names, or what stands in it.
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
    /// The parameter of the path that names the object; none where no object is named there.
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

    /// Whether it stands in no cluster: a principal that is bound to one reads there what is for all, and writes nothing. Everywhere
    /// else it is what the request names that has a place.
    pub const fn is_shared(self) -> bool {
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

/// The parameters that a query may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Any: the route does not look at them.
    Unread,
    /// These and no other, in groups.
    Of(&'static [&'static [&'static str]]),
    /// These; any other is passed over, as Glance does in its list of namespaces.
    Among(&'static [&'static [&'static str]]),
}

impl Query {
    /// Whether a parameter may be there.
    pub fn allows(self, name: &str) -> bool {
        match self {
            Self::Unread | Self::Among(_) => true,
            Self::Of(groups) => groups.iter().copied().flatten().any(|known| *known == name),
        }
    }

    /// The names of those that the route knows.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let groups = match self {
            Self::Unread => &[],
            Self::Of(groups) | Self::Among(groups) => groups,
        };
        groups.iter().copied().flatten().copied()
    }
}

/// A header that some rows read, beside those that all of a kind do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The version that the object of a write is presumed to have.
    IfMatch,
    /// Glance's: a list is added to, and not replaced.
    Append,
}

impl Header {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfMatch => "If-Match",
            Self::Append => "X-Openstack-Append",
        }
    }
}

/// The names of the parameters of a page.
pub const PAGE: &[&str] = table::PAGE;

/// What a list shows of each row, where nobody says which fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// These fields; to a client that names no version of Ironic's also Stemma's own.
    Listed {
        /// These.
        fields: &'static [&'static str],
        /// Stemma's own.
        own: &'static [&'static str],
    },
    /// All but these.
    Without(&'static [&'static str]),
}

impl Shows {
    /// Whether a field is shown.
    pub fn has(self, field: &str, is_ironics: bool) -> bool {
        match self {
            Self::Listed { fields, own } => fields.contains(&field) || (!is_ironics && own.contains(&field)),
            Self::Without(fields) => !fields.contains(&field),
        }
    }
}

/// The fields that can be chosen of what a row answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Fields {
    /// The name of the list of whose rows these are fields; `None`: of the answer itself.
    pub list: Option<String>,
    /// Their names.
    pub names: BTreeSet<String>,
}

/// From which version on clients of Ironic know a field of a node.
pub fn field_since(name: &str) -> Minor {
    table::FIELDS_SINCE.iter().find(|(known, _)| *known == name).map_or(Minor(0), |(_, since)| *since)
}

/// How an answer's body goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Made whole, then sent.
    Whole,
    /// Made piece by piece, as the client takes them.
    Streamed,
}

/// The minor version of an API whose major version is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(pub u16);

/// From which version on a route is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The version of the API that the path belongs to.
    pub minor: Minor,
    /// How an older client is refused.
    pub refusal: ErrorType,
    /// What is there, for the sentence of the refusal.
    pub subject: &'static str,
    /// Whose version it is, for the same.
    pub api: &'static str,
}

impl Since {
    /// The refusal of an older client.
    pub fn refuse(&self) -> ApiError {
        let Self { minor, refusal, subject, api } = self;
        ApiError::new(*refusal, format!("{subject} from version 1.{}{api} on", minor.0))
    }
}

/// Versions of Ironic's and Magnum's APIs from which on something is there.
pub mod since {
    use super::Minor;

    /// Names of nodes, in Ironic's.
    pub const NAMES: Minor = Minor(5);
    /// The query parameter `fields`, in Ironic's.
    pub const FIELDS: Minor = Minor(8);
    /// A node's `resource_class`, in Ironic's.
    pub const RESOURCE_CLASS: Minor = Minor(21);
    /// Traits, in Ironic's.
    pub const TRAITS: Minor = Minor(37);
    /// The query parameter `detail`, in Ironic's.
    pub const DETAIL: Minor = Minor(43);
    /// A node's `allocation_uuid`, in Ironic's.
    pub const ALLOCATIONS: Minor = Minor(52);
    /// Inspection rules, in Ironic's.
    pub const INSPECTION_RULES: Minor = Minor(96);
    /// The action `resize` of a cluster, in Magnum's.
    pub const RESIZE: Minor = Minor(7);
    /// The action `upgrade` of a cluster, in Magnum's.
    pub const UPGRADE: Minor = Minor(8);
    /// Node groups, in Magnum's.
    pub const NODEGROUPS: Minor = Minor(9);
    /// 404 for a cluster template that is not there, in Magnum's.
    pub const TEMPLATE_NOT_FOUND: Minor = Minor(10);
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which socket.
    pub listener: Listener,
    /// The method.
    pub method: Method,
    /// The path, with parameters in braces. Without a slash at its end; one there is taken too, as Magnum's client sends it.
    pub path: &'static str,
    /// Who may call.
    pub callers: Callers,
    /// On what it acts.
    pub scope: Scope,
    /// The parameters that its query may have.
    pub query: Query,
    /// The headers that its handler reads.
    pub headers: &'static [Header],
    /// What comes.
    pub request: Content,
    /// The schema of that, by its name in the API's description; none where that says nothing of it.
    pub request_schema: Option<&'static str>,
    /// The statuses of an answer when it went well.
    pub statuses: &'static [u16],
    /// What goes, when it went well.
    pub answer: Content,
    /// The schema of that, likewise.
    pub answer_schema: Option<&'static str>,
    /// The schema of an answer with 202, where that is another.
    pub accepted_schema: Option<&'static str>,
    /// How that goes.
    pub delivery: Delivery,
    /// What a list shows of each row where nobody says; `None`: everything.
    pub shows: Option<&'static Shows>,
    /// The microversion from which on clients of Ironic or Magnum know the route.
    pub since: Option<&'static Since>,
    /// One sentence.
    pub summary: &'static str,
}

/// A path and method, looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A route, with its parameters in their order (as they stand in the path: nothing is decoded).
    Route(Endpoint, Parameters<'a>),
    /// The path exists, with other methods.
    OtherMethods(Vec<Method>),
    /// There is no such path.
    Nothing,
}

/// The parameters of a path, in order; none has more than three.
pub type Parameters<'a> = Vec<&'a str>;

impl Caller {
    /// All classes.
    pub const ALL: [Self; 6] = [Self::Nobody, Self::Joining, Self::Agent, Self::Viewer, Self::Operator, Self::Admin];

    /// Who is at the agents' listener, by the certificate that was shown there, if any.
    pub fn at_agents_listener(identity: Option<&Identity>) -> Self {
        match identity.map(|identity| &identity.class) {
            None => Self::Joining,
            Some(Class::Node(_)) => Self::Agent,
            // The verifier of that listener takes no other class; whoever came by it all the same is nobody.
            Some(Class::Controller(_) | Class::Admin(_) | Class::Principal(_) | Class::Signer(_)) => Self::Nobody,
        }
    }
}

impl Callers {
    /// Every class that can reach the listener at all.
    pub const EVERYONE: Self = Self(0b11_1111);
    /// Joining alone.
    pub const JOINING: Self = Self::of(Caller::Joining);
    /// Agents alone.
    pub const AGENT: Self = Self::of(Caller::Agent);
    /// Viewers alone.
    pub const VIEWER: Self = Self::of(Caller::Viewer);
    /// Operators alone.
    pub const OPERATOR: Self = Self::of(Caller::Operator);
    /// Admins alone.
    pub const ADMIN: Self = Self::of(Caller::Admin);

    const fn of(caller: Caller) -> Self {
        Self(1 << caller as u8)
    }

    /// These and those.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether a class is among them.
    pub const fn allows(self, caller: Caller) -> bool {
        self.0 & (1 << caller as u8) != 0
    }
}

impl Method {
    /// As it stands in a request.
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

impl Content {
    /// The media types that a body of this kind may have; none where there is no body.
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
    /// Whether a class may call it.
    pub const fn allows(self, caller: Caller) -> bool {
        self.route().callers.allows(caller)
    }

    /// Whether a call can be tried out with `dry_run`: a write of the model. A file's bytes are kept or they are not.
    pub fn has_dry_run(self) -> bool {
        self.route().method != Method::Get && self.route().request != Content::Bytes
    }

    /// The status of an answer to a request that prefers a body (`Prefer: return=representation`, RFC 7240), where the row has none
    /// else: it says what the write changes.
    pub fn preferred_status(self) -> Option<u16> {
        (self.route().answer == Content::Nothing && self.has_dry_run()).then_some(200)
    }

    /// The fields that can be chosen of its answer; `None`: its query has no `fields`.
    pub fn fields(self) -> Option<&'static Fields> {
        static FIELDS: LazyLock<BTreeMap<Endpoint, Fields>> = LazyLock::new(schema::fields);
        FIELDS.get(&self)
    }

    /// From which version on clients of Ironic know a parameter of a node's queries.
    pub fn parameter_since(self, name: &str) -> Option<&'static Since> {
        let is_ironics = self.route().path.starts_with("/v1/nodes");
        table::PARAMETERS_SINCE.iter().find(|(known, _)| is_ironics && *known == name).map(|(_, since)| since)
    }

    /// The path of a request, with the values of its parameters in their order, each escaped.
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

    /// A request, with the values of its path's parameters.
    pub fn request(self, values: &[&str], body: Vec<u8>) -> Request<Bytes> {
        let request = Request::builder().method(self.route().method.as_str()).uri(self.path(values));
        request.body(body.into()).expect("a method and an escaped path make a request")
    }
}

/// Percent-encodes a segment of a path, or a value of a query.
pub fn escape(text: &str) -> String {
    const ESCAPED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'@').remove(b':');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Looks a request up on a listener. Of several templates that match, the one with the fewest parameters wins:
/// `/v1/nodes/detail` is no node.
pub fn find<'a>(listener: Listener, method: &str, path: &'a str) -> Found<'a> {
    let path = path.strip_suffix('/').filter(|bare| takes_final_slash(listener, method, bare)).unwrap_or(path);
    let mut best: Option<(Endpoint, Parameters<'a>)> = None;
    let mut others: Vec<(usize, Method)> = Vec::new();
    for endpoint in Endpoint::ALL.iter().copied().filter(|endpoint| endpoint.route().listener == listener) {
        let Some(parameters) = match_path(endpoint.route().path, path) else { continue };
        if endpoint.route().method.as_str() != method {
            others.push((parameters.len(), endpoint.route().method));
        } else if parameters.is_empty() {
            return Found::Route(endpoint, parameters);
        } else if best.as_ref().is_none_or(|(_, found)| parameters.len() < found.len()) {
            best = Some((endpoint, parameters));
        }
    }
    match best {
        Some((endpoint, parameters)) => Found::Route(endpoint, parameters),
        None => match others.iter().map(|(parameters, _)| *parameters).min() {
            Some(fewest) => {
                let nearest = others.into_iter().filter(|(parameters, _)| *parameters == fewest);
                Found::OtherMethods(nearest.map(|(_, method)| method).collect())
            }
            None => Found::Nothing,
        },
    }
}

/// Whether a final slash means nothing behind this path. A deletion whose last name is empty would be one of all that stand there, and
/// another write would be one of all where it may name one of them.
fn takes_final_slash(listener: Listener, method: &str, bare: &str) -> bool {
    if bare.is_empty() || method == Method::Delete.as_str() {
        return false;
    }
    let mut routes = Endpoint::ALL.iter().map(|endpoint| endpoint.route());
    method == Method::Get.as_str()
        || !routes.any(|route| {
            let is_asked = route.listener == listener && route.method.as_str() == method;
            let above = route.path.rsplit_once('/').filter(|(_, last)| last.starts_with('{') && *last != "{map}");
            is_asked && above.is_some_and(|(above, _)| match_path(above, bare).is_some())
        })
}

/// What `{map}` stands for in a path: other words there are no maps, but resources of their own or nothing.
const MAPS: [&str; 3] = ["labels", "annotations", "parameters"];

/// The parameters of a path, where it is of this template. A parameter is one segment, and not empty.
fn match_path<'a>(template: &str, path: &'a str) -> Option<Parameters<'a>> {
    let mut parameters = Vec::new();
    let mut segments = path.split('/');
    for part in template.split('/') {
        let segment = segments.next()?;
        if part.starts_with('{') {
            if segment.is_empty() || (part == "{map}" && !MAPS.contains(&segment)) {
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
    fn paths_are_found_on_their_own_listener() {
        use Endpoint as E;
        use Listener::{Admin, Agents};
        for (listener, method, path, found) in [
            (Agents, "POST", "/agent/v1/checkin", Found::Route(E::CheckIn, vec![])),
            (Agents, "GET", "/agent/v1/blobs/ab12", Found::Route(E::AgentBlob, vec!["ab12"])),
            (Agents, "GET", "/agent/v1/checkin", Found::OtherMethods(vec![Method::Post])),
            (Agents, "GET", "/agent/v1/blobs/", Found::Nothing),
            (Agents, "GET", "/agent/v1/blobs/a/b", Found::Nothing),
            (Agents, "GET", "/v1/nodes", Found::Nothing),
            (Admin, "POST", "/agent/v1/checkin", Found::Nothing),
            (Admin, "GET", "/", Found::Route(E::Versions, vec![])),
            (Admin, "GET", "/v1/", Found::Route(E::Version1, vec![])),
            (Admin, "GET", "/v1/nodes/detail", Found::Route(E::ListNodesDetail, vec![])),
            (Admin, "GET", "/v1/nodes/web-1", Found::Route(E::GetNode, vec!["web-1"])),
            (Admin, "GET", "/v1/clusters/prod/nodegroups/", Found::Route(E::ListGroups, vec!["prod"])),
            (Admin, "PUT", "/v1/nodes/web-1/traits", Found::Route(E::ReplaceNodeTraits, vec!["web-1"])),
            (Admin, "PUT", "/v1/nodes/web-1/labels", Found::Route(E::PutNodeMap, vec!["web-1", "labels"])),
            (Admin, "GET", "/V1/nodes", Found::Nothing),
            (Admin, "GET", "//v1/nodes", Found::Nothing),
            (Admin, "GET", "", Found::Nothing),
            (Admin, "get", "/v1/nodes", Found::OtherMethods(vec![Method::Get, Method::Post])),
        ] {
            assert_eq!(find(listener, method, path), found, "{method} {path}");
        }
    }

    /// Clients of Ironic and Magnum end paths with a slash: it means nothing, but where a write names one of several.
    #[test]
    fn x06_a_final_slash_never_stands_for_all() {
        for row in Endpoint::ALL.iter().copied() {
            let route = row.route();
            let path = route.path.replace("{map}", "labels");
            let found = find(route.listener, route.method.as_str(), &path);
            assert!(matches!(found, Found::Route(found, _) if found == row), "{path}");
            let names_one = |other: Endpoint| {
                let (above, last) = other.route().path.rsplit_once('/').expect("a path");
                above == route.path && last.starts_with('{') && last != "{map}"
            };
            let mut others = Endpoint::ALL.iter().copied().filter(|other| other.route().method == route.method);
            let slashed = format!("{path}/");
            let found = find(route.listener, route.method.as_str(), &slashed);
            let is_taken = match route.method {
                Method::Get => true,
                Method::Delete => false,
                Method::Post | Method::Put | Method::Patch => !others.any(names_one),
            };
            let is_found = matches!(found, Found::Route(found, _) if found == row);
            assert_eq!(is_found, is_taken || path == "/", "{} {slashed}", route.method.as_str());
        }
        let found = find(Listener::Admin, "PUT", "/v1/nodes/web-1/traits/");
        assert!(!matches!(found, Found::Route(..)), "{found:?}");
    }

    #[test]
    fn a_rows_path_is_found_as_that_row() {
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
                matches!(find(route.listener, route.method.as_str(), path), Found::Route(found, _) if found == endpoint)
            );
        }
    }

    #[test]
    fn no_node_is_called_as_a_path_below_nodes() {
        let below = Endpoint::ALL.iter().filter_map(|row| row.route().path.strip_prefix("/v1/nodes/"));
        for word in below.flat_map(|path| path.split('/')).filter(|part| !part.starts_with('{')) {
            // What stands below a map, or below another word, can't be taken for a node.
            let is_deeper = matches!(word, "tombstones" | "owners" | "provision" | "refresh");
            assert!(is_deeper || NodeName::new(word).is_err(), "{word}");
        }
    }

    #[test]
    fn no_two_rows_are_one_request() {
        let rows: BTreeSet<_> =
            Endpoint::ALL.iter().map(|row| (row.route().method.as_str(), row.route().path)).collect();
        assert_eq!(rows.len(), Endpoint::ALL.len());
    }

    #[test]
    fn a_rows_scope_is_what_its_path_names() {
        for row in Endpoint::ALL {
            let route = row.route();
            let named = [
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
            let found = named.into_iter().find(|scope| scope.parameter().is_some_and(|part| route.path.contains(part)));
            assert_eq!(route.scope.parameter(), found.and_then(Scope::parameter), "{row:?}");
            // An action of Ironic's is accepted without a body.
            let is_empty =
                matches!(route.statuses, [204]) || (route.statuses == [202] && route.answer == Content::Nothing);
            assert_eq!(is_empty, route.answer == Content::Nothing, "{row:?}");
        }
    }

    #[test]
    fn a_deletion_of_one_whose_id_is_empty_is_none_of_all() {
        let found = |method: &str, path| match find(Listener::Admin, method, path) {
            Found::Route(endpoint, _) => Some(endpoint),
            Found::OtherMethods(_) | Found::Nothing => None,
        };
        assert_eq!(found("DELETE", "/v1/inspection_rules"), Some(Endpoint::DeleteInspectionRules));
        assert_eq!(found("DELETE", "/v1/inspection_rules/"), None);
        assert_eq!(found("GET", "/v1/inspection_rules/"), found("GET", "/v1/inspection_rules"));
    }

    #[test]
    fn each_class_stays_on_its_listener() {
        for endpoint in Endpoint::ALL {
            let route = endpoint.route();
            let (agents, admin) = (
                endpoint.allows(Caller::Joining) || endpoint.allows(Caller::Agent),
                endpoint.allows(Caller::Viewer) || endpoint.allows(Caller::Operator) || endpoint.allows(Caller::Admin),
            );
            match route.listener {
                Listener::Agents => assert!(agents && !admin && !endpoint.allows(Caller::Nobody), "{endpoint:?}"),
                Listener::Admin => assert!(admin && endpoint.allows(Caller::Admin), "{endpoint:?}"),
            }
            let writes = route.listener == Listener::Admin && route.method != Method::Get;
            assert!(!(writes && endpoint.allows(Caller::Viewer)), "{endpoint:?}: a viewer does not write");
        }
    }

    #[test]
    fn a_certificate_of_another_class_is_nobody_to_the_agents_listener() {
        assert_eq!(Caller::at_agents_listener(None), Caller::Joining);
        assert!(!Endpoint::CheckIn.allows(Caller::Joining));
        assert!(Endpoint::ALL.iter().all(|row| row.route().listener == Listener::Admin || !row.allows(Caller::Nobody)));
    }
}

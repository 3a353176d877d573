//! The table of routes. The first part of each line describes the request: variant, method, path, callers, scope, query
//! parameters, headers (each after a plus sign), and the body with its schema. The part after the arrow describes the
//! response: statuses, the body with its schema, and whether the response is streamed. Then follow the fields that a
//! list shows by default (`shows`), the first version that has the route (`since`), and a summary.

use super::{
    BodyType, CallerSet, DefaultFields, Delivery, Method, MinVersion, MinorVersion, QueryRule, Route, RouteHeader, Scope,
    SocketKind, min_versions,
};
use crate::error::ErrorType;

/// Any caller that reaches the listener.
const ANYONE: CallerSet = CallerSet::EVERYONE;
/// A caller on the agents' listener without certificate: a host that enrols. The handler checks its join token.
const JOINING: CallerSet = CallerSet::JOINING;
/// A node, identified by its certificate.
const AGENT: CallerSet = CallerSet::AGENT;
/// All principals, because every principal may read.
const READ: CallerSet = CallerSet::VIEWER.union(CallerSet::OPERATOR).union(CallerSet::ADMIN);
/// Operators and admins. They may write objects of clusters and nodes.
const WRITE: CallerSet = CallerSet::OPERATOR.union(CallerSet::ADMIN);
/// Admins. Only they may write releases, inspection rules and the catalogue, or grant access to other principals.
const ADMIN: CallerSet = CallerSet::ADMIN;

/// The query may have any parameters, and they are ignored.
const IGNORED: QueryRule = QueryRule::Ignored;
/// The query may have no parameters.
const NO_PARAMETERS: QueryRule = QueryRule::Only(&[]);
/// The query parameters of a read whose only parameter is `at_least`.
const READ_ONE: QueryRule = QueryRule::Only(&[AT_LEAST_PARAMETER]);
/// The query parameters of a list that has only the common ones.
const LIST: QueryRule = QueryRule::Only(&[PAGE, &["selector"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the list of a cluster's groups.
const GROUPS: QueryRule = QueryRule::Only(&[PAGE, &["selector", "role"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the lists of nodes.
const NODES: QueryRule =
    QueryRule::Only(&[PAGE, NODE_FILTERS, IRONIC_FILTERS, FIELDS, &["detail", "deleting"], AT_LEAST_PARAMETER]);
/// The query parameters of the list of allocations.
const ALLOCATIONS: QueryRule =
    QueryRule::Only(&[PAGE, &["node", "resource_class", "state", "owner"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the list of inspection rules.
const RULES: QueryRule = QueryRule::Only(&[PAGE, &["selector", "detail", "phase"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the list of principals.
const PRINCIPALS: QueryRule = QueryRule::Only(&[PAGE, &["role", "cluster"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the list of certificates.
const CERTIFICATES: QueryRule = QueryRule::Only(&[PAGE, &["principal"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the list of join tokens.
const TOKENS: QueryRule = QueryRule::Only(&[PAGE, &["node", "nodegroup"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of a read of one object. The query can choose the fields.
const READ_FIELDS: QueryRule = QueryRule::Only(&[FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of a read of one template, cluster, node group or node. The response contains computed and
/// inherited values. With `stored`, it also contains the fields as they are stored.
const READ_LEVEL: QueryRule = QueryRule::Only(&[FIELDS, &["stored"], AT_LEAST_PARAMETER]);
/// The query parameters of the check whether a node can be used, if the query names the node, and not the path.
const NODE_QUERY: QueryRule = QueryRule::Only(&[&["node", "node_uuid"], AT_LEAST_PARAMETER]);
/// The query parameters of the explanation of a label, tag, task or trait of a node.
const EXPLAIN: QueryRule = QueryRule::Only(&[&["label", "tag", "task", "trait"], AT_LEAST_PARAMETER]);
/// The query parameters of the list of audit entries.
const AUDIT: QueryRule =
    QueryRule::Only(&[PAGE, &["principal", "object", "since", "until", "refused"], FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of the stream of events.
const EVENTS: QueryRule = QueryRule::Only(&[&["from", "class", "kind", "selector"]]);
/// The query parameters of the list of tasks. They also select the nodes whose tasks are listed.
const TASKS: QueryRule = QueryRule::Only(&[PAGE, NODE_FILTERS, FIELDS, AT_LEAST_PARAMETER]);
/// The query parameters of a single task. They also select the nodes on which its state is shown.
const ONE_TASK: QueryRule = QueryRule::Only(&[NODE_FILTERS, AT_LEAST_PARAMETER]);
/// The query parameters of the explanation of a key of the catalogue (of a label, parameter, property or fact).
const EXPLAIN_KEY: QueryRule = QueryRule::Only(&[&["label", "parameter", "property", "fact"], AT_LEAST_PARAMETER]);
/// The query parameters of a write: the manager that writes, and whether findings refuse the write.
const WRITE_QUERY: QueryRule = QueryRule::Only(&[WRITE_PARAMETERS]);
/// The query parameters of a change of maps or fields of an object. A server-side apply that changes keys or fields of
/// other managers is refused unless `force` is true. Any other change takes them over unless `force` is false.
const PATCH: QueryRule = QueryRule::Only(&[WRITE_PARAMETERS, &["force"]]);
/// The query parameters of a change of a node. With `release_primary`, the change also moves the primaries of the node
/// to other nodes. This is refused if the node is not parked after the change.
const PATCH_NODE: QueryRule = QueryRule::Only(&[WRITE_PARAMETERS, &["force", "release_primary"]]);
/// The query parameters of an apply. With `force`, it overwrites values of other managers. `adopt` names a manager
/// whose keys and fields in the manifest it takes over. With `partial`, it removes nothing that the manifest lacks.
const APPLY: QueryRule = QueryRule::Only(&[WRITE_PARAMETERS, &["force", "adopt", "partial"]]);
/// The parameters of each write except an upload: the manager that writes, and whether findings refuse the write.
const WRITE_PARAMETERS: &[&str] = &["manager", "strict"];

/// The query parameters of the list of namespaces.
const NAMESPACES: QueryRule = QueryRule::Lenient(&[PAGE, &["visibility", "resource_types"], AT_LEAST_PARAMETER]);
/// The query parameters of a read of a property of a namespace. If the query names a resource type, the name in the
/// path must begin with the prefix of that type. The name in the response lacks the prefix.
const RESOURCE_TYPE_PREFIX: QueryRule = QueryRule::Only(&[&["resource_type"], AT_LEAST_PARAMETER]);
/// The query parameters of a read of a namespace. If the query names a resource type, the response has the names of
/// properties with the prefix of that type. With `owners`, it also lists the managers that own the fields.
const NAMESPACE: QueryRule = QueryRule::Only(&[&["resource_type", "owners"], AT_LEAST_PARAMETER]);
/// The query parameters of the lists of objects or tags of a namespace.
const MEMBERS: QueryRule = QueryRule::Only(&[PAGE, AT_LEAST_PARAMETER]);

/// The parameter that chooses the fields to show.
const FIELDS: &[&str] = &["fields"];
/// The parameter with the minimum revision that a read waits for.
const AT_LEAST_PARAMETER: &[&str] = &["at_least"];
/// The parameters that choose the part of a list to show, and its order.
pub(super) const PAGE: &[&str] = &["limit", "marker", "sort_key", "sort_dir"];
/// The fields that a list of nodes shows by default: Ironic's, and Stemma's own.
const NODE_LIST_FIELDS: DefaultFields = DefaultFields::Only {
    fields: &["uuid", "name", "instance_uuid", "maintenance", "power_state", "provision_state", "links"],
    stemma_fields: &["nodegroup", "state", "notes", "connected", "roles", "tags", "mode", "labels", "traits", "resource_version"],
};
/// The fields that a list of clusters shows by default: Magnum's without `stack_id`, and also `cluster_id` (the same
/// value as `uuid`), `merge_labels` and `resource_version`.
const CLUSTER_LIST_FIELDS: DefaultFields = DefaultFields::Only {
    fields: &[
        "uuid",
        "name",
        "cluster_template_id",
        "keypair",
        "docker_volume_size",
        "labels",
        "node_count",
        "status",
        "master_flavor_id",
        "flavor_id",
        "create_timeout",
        "master_count",
        "health_status",
        "links",
        "cluster_id",
        "merge_labels",
        "resource_version",
    ],
    stemma_fields: &[],
};
/// The fields that a list of node groups shows by default: Magnum's, and Stemma's own.
const GROUP_LIST_FIELDS: DefaultFields = DefaultFields::Only {
    fields: &[
        "uuid",
        "name",
        "flavor_id",
        "image_id",
        "node_count",
        "role",
        "min_node_count",
        "max_node_count",
        "is_default",
        "stack_id",
        "status",
        "merge_labels",
        "cluster",
        "roles",
        "mode",
        "release",
        "effective_release",
        "effective_mode",
        "node_states",
        "labels",
        "links",
        "resource_version",
    ],
    stemma_fields: &[],
};
/// The fields that a list of inspection rules shows by default: Ironic's, and `name` and `resource_version`.
const RULE_LIST_FIELDS: DefaultFields = DefaultFields::Only {
    fields: &["uuid", "name", "priority", "phase", "description", "links", "resource_version"],
    stemma_fields: &[],
};
/// The fields that a list of releases shows by default: all except the tasks, because there can be many tasks.
const RELEASE_LIST_FIELDS: DefaultFields = DefaultFields::AllExcept(&["tasks"]);

/// The query parameters that early versions of Ironic's API lack, each with the first version that has it.
pub(super) const PARAMETER_MIN_VERSIONS: &[(&str, MinVersion)] = &[
    ("fields", parameter_min_version(min_versions::FIELDS, ErrorType::RequestNotAcceptable, "fields can be chosen")),
    ("detail", parameter_min_version(min_versions::DETAIL, ErrorType::RequestQuery, "details can be requested")),
    ("traits", TRAIT_FILTER_MIN_VERSION),
    ("traits-any", TRAIT_FILTER_MIN_VERSION),
    ("not-traits", TRAIT_FILTER_MIN_VERSION),
    ("not-traits-any", TRAIT_FILTER_MIN_VERSION),
];
/// The first version of Ironic's API in which a query can filter nodes by traits.
const TRAIT_FILTER_MIN_VERSION: MinVersion =
    parameter_min_version(min_versions::TRAITS, ErrorType::RequestNotAcceptable, "nodes are filtered by traits");

/// Returns the first version of Ironic's API that has a query parameter. An older client gets the error `refusal`. The
/// message of the error contains `subject`: the addition of that version.
const fn parameter_min_version(minor: MinorVersion, refusal: ErrorType, subject: &'static str) -> MinVersion {
    MinVersion { minor, refusal, subject, api_suffix: "" }
}

/// The fields of a node that early versions of Ironic's API lack, each with the first version that has it.
pub(super) const FIELD_MIN_VERSIONS: &[(&str, MinorVersion)] = &[
    ("name", min_versions::NAMES),
    ("resource_class", min_versions::RESOURCE_CLASS),
    ("traits", min_versions::TRAITS),
    ("allocation_uuid", min_versions::ALLOCATIONS),
];

/// The query parameters that filter nodes, or the tasks of nodes: the filters of Ironic's traits specification, and
/// Stemma's own.
const NODE_FILTERS: &[&str] = &[
    "traits",
    "traits-any",
    "not-traits",
    "not-traits-any",
    "selector",
    "tag",
    "role",
    "nodegroup",
    "cluster",
    "state",
    "requirement",
];

/// The query parameters that filter nodes and come from Ironic's API.
const IRONIC_FILTERS: &[&str] = &[
    "resource_class",
    "driver",
    "maintenance",
    "associated",
    "owner",
    "lessee",
    "conductor_group",
    "instance_uuid",
    "provision_state",
    "shard",
];

/// The header `If-Match`, with the `resource_version` that a write expects its object to have.
const IF_MATCH: RouteHeader = RouteHeader::IfMatch;
/// Glance's header `X-Openstack-Append`. With it, a write adds entries to a list instead of replacing the list.
const APPEND: RouteHeader = RouteHeader::Append;

const OK: &[u16] = &[200];
const CREATED: &[u16] = &[201];
const ACCEPTED: &[u16] = &[202];
/// The statuses of a change of a cluster or node group: 202 for a JSON patch, as in Magnum, and 200 for any other
/// change.
const OK_OR_ACCEPTED: &[u16] = &[200, 202];
const NO_CONTENT: &[u16] = &[204];
/// The statuses of `/readyz`. A controller that does not accept writes responds with 503 and the reason.
const OK_OR_UNAVAILABLE: &[u16] = &[200, 503];

/// The first version of Ironic's API with traits, for the routes that read them. As in Ironic, the error for an older
/// client depends on the method of the request, so `PUT` and `DELETE` have constants of their own.
const TRAITS_READ: MinVersion = traits_min_version(ErrorType::RequestNotAcceptable);
const TRAITS_PUT: MinVersion = traits_min_version(ErrorType::RequestMethod);
const TRAITS_DELETE: MinVersion = traits_min_version(ErrorType::PathUnknown);
const ALLOCATIONS_READ: MinVersion = allocations_min_version(ErrorType::PathUnknown);
const ALLOCATIONS_CREATE: MinVersion = allocations_min_version(ErrorType::RequestMethod);
const RULES_READ: MinVersion = rules_min_version(ErrorType::PathUnknown);
const RULES_WRITE: MinVersion = rules_min_version(ErrorType::RequestMethod);
const NODEGROUPS: MinVersion = container_infra_min_version(min_versions::NODEGROUPS);
const UPGRADE: MinVersion = container_infra_min_version(min_versions::UPGRADE);
const RESIZE: MinVersion = container_infra_min_version(min_versions::RESIZE);

/// Returns the first version of Magnum's API (container-infra) that has a route.
const fn container_infra_min_version(minor: MinorVersion) -> MinVersion {
    MinVersion {
        minor,
        refusal: ErrorType::RequestNotAcceptable,
        subject: "this path is available",
        api_suffix: " of container-infra",
    }
}

/// Returns the first version of Ironic's API with traits. An older client gets the error `refusal`.
const fn traits_min_version(refusal: ErrorType) -> MinVersion {
    MinVersion { minor: min_versions::TRAITS, refusal, subject: "traits are available", api_suffix: "" }
}

/// Returns the first version of Ironic's API with inspection rules. An older client gets the error `refusal`.
const fn rules_min_version(refusal: ErrorType) -> MinVersion {
    MinVersion { minor: min_versions::INSPECTION_RULES, refusal, subject: "inspection rules are available", api_suffix: "" }
}

/// Returns the first version of Ironic's API with allocations. An older client gets the error `refusal`.
const fn allocations_min_version(refusal: ErrorType) -> MinVersion {
    MinVersion { minor: min_versions::ALLOCATIONS, refusal, subject: "allocations are available", api_suffix: "" }
}

macro_rules! endpoints {
    (@since) => { None };
    (@since $since:ident) => { Some(&$since) };
    (@shows) => { None };
    (@shows $shows:ident) => { Some(&$shows) };
    (@schema) => { None };
    (@schema $schema:ident) => { Some(stringify!($schema)) };
    (@own {$($rows:tt)*}) => {};
    (@own $own:ident {$($name:ident $summary:literal;)+}) => {
        /// The routes of the agents' listener. An exhaustive `match` on this type chooses the handler of a request, so
        /// a route without a handler does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $own {
            $(#[doc = $summary] $name,)+
        }

        impl $own {
            /// Returns the route of this listener for an endpoint, or `None` if the endpoint belongs to the other
            /// listener.
            pub const fn from_endpoint(endpoint: Endpoint) -> Option<Self> {
                match endpoint {
                    $(Endpoint::$name => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
    ($($listener:ident $(as $own:ident)? { $(
        $name:ident $method:ident $path:literal $callers:ident $scope:ident $query:ident
            $(+ $header:ident)* $request:ident $(($taken:ident))? -> $statuses:ident $answer:ident $(($given:ident $(| $accepted:ident)?))? $delivery:ident $(shows $shows:ident)? $(since $since:ident)? : $summary:literal;
    )+ })+) => {
        /// The routes of both listeners. An exhaustive `match` on this type, or on [`AgentEndpoint`], chooses the
        /// handler of a request, so a route without a handler does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Endpoint {
            $($(#[doc = $summary] $name,)+)+
        }

        impl Endpoint {
            /// All routes of both listeners, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$name,)+)+];

            /// Returns the row of this endpoint in the table: path, callers, parameters, bodies and statuses.
            pub const fn route(self) -> &'static Route {
                match self {
                    $($(Self::$name => &Route {
                        listener: SocketKind::$listener,
                        method: Method::$method,
                        path: $path,
                        callers: $callers,
                        scope: Scope::$scope,
                        query: $query,
                        headers: &[$($header),*],
                        request: BodyType::$request,
                        request_schema: endpoints!(@schema $($taken)?),
                        statuses: $statuses,
                        response: BodyType::$answer,
                        response_schema: endpoints!(@schema $($given)?),
                        accepted_schema: endpoints!(@schema $($($accepted)?)?),
                        delivery: Delivery::$delivery,
                        default_fields: endpoints!(@shows $($shows)?),
                        min_version: endpoints!(@since $($since)?),
                        summary: $summary,
                    },)+)+
                }
            }

            /// Returns the name of this endpoint, which is also its operation id in the API's description.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$name => stringify!($name),)+)+ }
            }
        }

        $(endpoints!(@own $($own)? { $($name $summary;)+ });)+
    };
}

endpoints! {
    Agents as AgentEndpoint {
        Enroll Post "/agent/v1/enroll" JOINING Fleet IGNORED Postcard -> OK Postcard Whole: "Issues a node's first certificate for a join token and a signing request.";
        Renew Post "/agent/v1/renew" AGENT Itself IGNORED Postcard -> OK Postcard Whole: "Issues the next certificate to the holder of the current one.";
        CheckIn Post "/agent/v1/checkin" AGENT Itself IGNORED Postcard -> OK Postcard Whole: "Stores a host's report, and responds when something changed for the host or the wait is over.";
        AgentProfile Get "/agent/v1/profiles/{hash}" AGENT Itself IGNORED Nothing -> OK Postcard Whole: "Returns a task profile that the node's own desired state names.";
        AgentBlob Get "/agent/v1/blobs/{hash}" AGENT Itself IGNORED Nothing -> OK Bytes Whole: "Returns a file body that the node's own desired state names.";
    }
    Admin {
        Versions Get "/" ANYONE Fleet NO_PARAMETERS Nothing -> OK Json(VersionDocuments) Whole: "Lists the API's versions. A browser gets the web page.";
        VersionsList Get "/versions" ANYONE Fleet NO_PARAMETERS Nothing -> OK Json(VersionDocuments) Whole: "Lists the API's versions.";
        Version1 Get "/v1" ANYONE Fleet NO_PARAMETERS Nothing -> OK Json(VersionDocument) Whole: "Describes version 1.";
        Version2 Get "/v2" ANYONE Fleet IGNORED Nothing -> OK Json(VersionDocument) Whole: "Describes version 2.";
        Healthz Get "/healthz" ANYONE Fleet IGNORED Nothing -> OK Text Whole: "Reports that the process responds.";
        Readyz Get "/readyz" ANYONE Fleet IGNORED Nothing -> OK_OR_UNAVAILABLE Text Whole: "Reports whether the store accepts writes and the cache is complete.";
        Metrics Get "/metrics" READ Fleet IGNORED Nothing -> OK Text Whole: "Returns the metrics as text, for Prometheus.";
        OpenApi Get "/openapi.json" READ Fleet IGNORED Nothing -> OK Json(Description) Whole: "Describes this API.";

        ListNodes Get "/v1/nodes" READ Fleet NODES Nothing -> OK Json(NodeList) Streamed shows NODE_LIST_FIELDS: "Lists nodes.";
        ListNodesDetail Get "/v1/nodes/detail" READ Fleet NODES Nothing -> OK Json(NodeList) Streamed: "Lists nodes with all of their fields.";
        CreateNode Post "/v1/nodes" WRITE Body WRITE_QUERY Json(Node) -> CREATED Json(ChangedNode) Whole: "Creates a node.";
        GetNode Get "/v1/nodes/{node}" READ Node READ_LEVEL Nothing -> OK Json(ShownNode) Whole: "Shows a node.";
        PatchNode Patch "/v1/nodes/{node}" WRITE Node PATCH_NODE + IF_MATCH AnyPatch(Node) -> OK Json(ChangedNode) Whole: "Changes a node, or applies its labels, annotations and parameters.";
        DeleteNode Delete "/v1/nodes/{node}" WRITE Node WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a node.";
        ValidateNamedNode Get "/v1/nodes/validate" READ Fleet NODE_QUERY Nothing -> OK Json(Validation) Whole: "Checks whether the node that the query names can be used, as the path of a single node does.";
        ValidateNode Get "/v1/nodes/{node}/validate" READ Node READ_ONE Nothing -> OK Json(Validation) Whole: "Checks whether a node can be used: it has the traits that its instance requires, meets the requirements of its group, and refers to nothing that is missing.";
        NodeStates Get "/v1/nodes/{node}/states" READ Node READ_ONE Nothing -> OK Json(States) Whole: "Shows a node's states, as Ironic names them.";
        SetNodeProvisionState Put "/v1/nodes/{node}/states/provision" WRITE Node WRITE_QUERY + IF_MATCH Json(ProvisionTarget) -> ACCEPTED Nothing Whole: "Sets the state of a node's instance; for `active` the node must be usable.";
        ParkNode Put "/v1/nodes/{node}/maintenance" WRITE Node PATCH + IF_MATCH Json(Reason) -> ACCEPTED Nothing Whole: "Parks a node, with a reason.";
        UnparkNode Delete "/v1/nodes/{node}/maintenance" WRITE Node PATCH + IF_MATCH Nothing -> ACCEPTED Nothing Whole: "Unparks a node.";
        RebootNode Post "/v1/nodes/{node}/reboot" WRITE Node WRITE_QUERY + IF_MATCH Nothing -> ACCEPTED Nothing Whole: "Requests a reboot of a node's host, which begins when its running tasks have ended and nobody inhibits it.";
        ListNodeTraits Get "/v1/nodes/{node}/traits" READ Node READ_ONE Nothing -> OK Json(NodeTraits) Whole since TRAITS_READ: "Lists a node's traits.";
        ReplaceNodeTraits Put "/v1/nodes/{node}/traits" WRITE Node PATCH + IF_MATCH Json(Traits) -> OK Json(NodeTraits) Whole since TRAITS_PUT: "Replaces all of a node's asserted traits.";
        DeleteNodeTraits Delete "/v1/nodes/{node}/traits" WRITE Node PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since TRAITS_DELETE: "Removes all of a node's asserted traits.";
        AddNodeTrait Put "/v1/nodes/{node}/traits/{trait}" WRITE Node PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since TRAITS_PUT: "Adds a trait to a node.";
        DeleteNodeTrait Delete "/v1/nodes/{node}/traits/{trait}" WRITE Node PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since TRAITS_DELETE: "Removes a trait from a node.";
        ListNodeRoles Get "/v1/nodes/{node}/roles" READ Node READ_ONE Nothing -> OK Json(NodeRoles) Whole: "Lists a node's roles.";
        GiveNodeRoles Post "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Adds roles to a node, all or none.";
        ReplaceNodeRoles Put "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Replaces a node's roles.";
        TakeNodeRoles Delete "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Removes roles from a node, all or none.";
        RefreshNodeRoles Post "/v1/nodes/{node}/roles/refresh" WRITE Node WRITE_QUERY + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Calls the extensions again that decide which tags a node gets from its roles.";
        ListNodeTags Get "/v1/nodes/{node}/tags" READ Node READ_ONE Nothing -> OK Json(NodeTags) Whole: "Lists a node's tags with their origins.";
        AssignNodeTags Post "/v1/nodes/{node}/tags" WRITE Node PATCH + IF_MATCH Json(TagChange) -> OK Json(NodeTags) Whole: "Assigns tags to a node, all or none.";
        UnassignNodeTags Delete "/v1/nodes/{node}/tags" WRITE Node PATCH + IF_MATCH Json(TagNames) -> OK Json(NodeTags) Whole: "Unassigns tags of a node, all or none.";
        AssignNodeTag Put "/v1/nodes/{node}/tags/{tag}" WRITE Node PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Assigns a tag to a node.";
        UnassignNodeTag Delete "/v1/nodes/{node}/tags/{tag}" WRITE Node PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Unassigns a tag of a node.";
        ResolvedNode Get "/v1/nodes/{node}/resolved" READ Node READ_ONE Nothing -> OK Json(Resolved) Whole: "Shows the desired state of a node, with the origin of each value.";
        NodeReport Get "/v1/nodes/{node}/report" READ Node READ_ONE Nothing -> OK Json(HostReport) Whole: "Shows what a host reported about itself.";
        ExplainNode Get "/v1/nodes/{node}/explain" READ Node EXPLAIN Nothing -> OK Json(Explanation) Whole: "Explains why a label, tag, task or trait of a node is as it is.";
        PutNodeMap Put "/v1/nodes/{node}/{map}" WRITE Node PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedNode) Whole: "Replaces a node's whole map of labels, annotations or parameters.";
        PatchNodeMap Patch "/v1/nodes/{node}/{map}" WRITE Node PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedNode) Whole: "Changes single keys of a map.";
        TombstoneNode Post "/v1/nodes/{node}/{map}/tombstones" WRITE Node PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedNode) Whole: "Stops keys of a map from being inherited here.";
        OwnersNode Post "/v1/nodes/{node}/{map}/owners" WRITE Node WRITE_QUERY + IF_MATCH Json(NewOwner) -> OK Json(ChangedNode) Whole: "Transfers keys of a map to another manager.";

        ListTemplates Get "/v1/clustertemplates" READ Fleet LIST Nothing -> OK Json(ClusterTemplateList) Streamed: "Lists cluster templates.";
        CreateTemplate Post "/v1/clustertemplates" WRITE Fleet WRITE_QUERY Json(ClusterTemplate) -> CREATED Json(ShownClusterTemplate) Whole: "Creates a cluster template.";
        GetTemplate Get "/v1/clustertemplates/{template}" READ Template READ_LEVEL Nothing -> OK Json(ShownClusterTemplate) Whole: "Shows a cluster template.";
        PatchTemplate Patch "/v1/clustertemplates/{template}" WRITE Template PATCH + IF_MATCH AnyPatch(ClusterTemplate) -> OK Json(ChangedClusterTemplate) Whole: "Changes a cluster template, or applies its labels, annotations and parameters.";
        DeleteTemplate Delete "/v1/clustertemplates/{template}" WRITE Template WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a cluster template that no cluster uses.";
        PutTemplateMap Put "/v1/clustertemplates/{template}/{map}" WRITE Template PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedClusterTemplate) Whole: "Replaces a template's whole map of labels, annotations or parameters.";
        PatchTemplateMap Patch "/v1/clustertemplates/{template}/{map}" WRITE Template PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedClusterTemplate) Whole: "Changes single keys of a map.";
        TombstoneTemplate Post "/v1/clustertemplates/{template}/{map}/tombstones" WRITE Template PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedClusterTemplate) Whole: "Stops keys of a map from being inherited here.";
        OwnersTemplate Post "/v1/clustertemplates/{template}/{map}/owners" WRITE Template WRITE_QUERY + IF_MATCH Json(NewOwner) -> OK Json(ChangedClusterTemplate) Whole: "Transfers keys of a map to another manager.";

        ListClusters Get "/v1/clusters" READ Fleet LIST Nothing -> OK Json(ClusterList) Streamed shows CLUSTER_LIST_FIELDS: "Lists clusters.";
        ListClustersDetail Get "/v1/clusters/detail" READ Fleet LIST Nothing -> OK Json(ClusterList) Streamed: "Lists clusters with all of their fields.";
        // As in Magnum, the response to a new cluster, or to one that a JSON patch changed, has only its uuid.
        CreateCluster Post "/v1/clusters" WRITE Fleet WRITE_QUERY Json(Cluster) -> ACCEPTED Json(Uuid) Whole: "Creates a cluster.";
        GetCluster Get "/v1/clusters/{cluster}" READ Cluster READ_LEVEL Nothing -> OK Json(ShownCluster) Whole: "Shows a cluster.";
        PatchCluster Patch "/v1/clusters/{cluster}" WRITE Cluster PATCH + IF_MATCH AnyPatch(Cluster) -> OK_OR_ACCEPTED Json(ChangedCluster | ChangedUuid) Whole: "Changes a cluster, or applies its labels, annotations and parameters.";
        DeleteCluster Delete "/v1/clusters/{cluster}" WRITE Cluster WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a cluster without nodes.";
        UpgradeCluster Post "/v1/clusters/{cluster}/actions/upgrade" WRITE Cluster PATCH + IF_MATCH Json(Upgrade) -> ACCEPTED Json(ChangedUuid) Whole since UPGRADE: "Changes the cluster template of a cluster, and with it the release.";
        ResizeCluster Post "/v1/clusters/{cluster}/actions/resize" WRITE Cluster WRITE_QUERY Json(Resize) -> ACCEPTED Json(ChangedUuid) Whole since RESIZE: "Always refused: a cluster has the nodes that were assigned to it.";
        ListClusterTags Get "/v1/clusters/{cluster}/tags" READ Cluster READ_ONE Nothing -> OK Json(TagList) Whole: "Lists the tags that are visible in a cluster.";
        CreateClusterTag Post "/v1/clusters/{cluster}/tags" WRITE Cluster PATCH + IF_MATCH Json(NewTag) -> CREATED Json(Tag) Whole: "Defines a tag of a cluster's own.";
        GetClusterTag Get "/v1/clusters/{cluster}/tags/{tag}" READ Cluster READ_ONE Nothing -> OK Json(Tag) Whole: "Shows a tag of a cluster.";
        PutClusterTag Put "/v1/clusters/{cluster}/tags/{tag}" WRITE Cluster PATCH + IF_MATCH Json(TagFields) -> OK Json(Tag) Whole: "Changes a tag of a cluster's own.";
        DeleteClusterTag Delete "/v1/clusters/{cluster}/tags/{tag}" WRITE Cluster PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a tag of a cluster's own.";
        ListClusterRoles Get "/v1/clusters/{cluster}/roles" READ Cluster READ_ONE Nothing -> OK Json(RoleChanges) Whole: "Shows a cluster's changes to the tags that its roles give.";
        PutClusterRoles Put "/v1/clusters/{cluster}/roles" WRITE Cluster PATCH + IF_MATCH Json(RoleChanges) -> OK Json(ClusterRoles) Whole: "Replaces a cluster's changes to the tags that its roles give.";
        ListPrimaries Get "/v1/clusters/{cluster}/primaries" READ Cluster READ_ONE Nothing -> OK Json(PrimaryList) Whole: "Lists the primary node of each tag of a cluster, and why it was chosen.";
        ChoosePrimary Put "/v1/clusters/{cluster}/primaries/{tag}" WRITE Cluster WRITE_QUERY Json(NewPrimary) -> OK Json(ChosenPrimary) Whole: "Makes a node the primary of a tag of a cluster.";
        ValidateCluster Get "/v1/clusters/{cluster}/validate" READ Cluster READ_ONE Nothing -> OK Json(ClusterValidation) Whole: "Checks a cluster before anything is changed.";
        PutClusterMap Put "/v1/clusters/{cluster}/{map}" WRITE Cluster PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedCluster) Whole: "Replaces a cluster's whole map of labels, annotations or parameters.";
        PatchClusterMap Patch "/v1/clusters/{cluster}/{map}" WRITE Cluster PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedCluster) Whole: "Changes single keys of a map.";
        TombstoneCluster Post "/v1/clusters/{cluster}/{map}/tombstones" WRITE Cluster PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedCluster) Whole: "Stops keys of a map from being inherited here.";
        OwnersCluster Post "/v1/clusters/{cluster}/{map}/owners" WRITE Cluster WRITE_QUERY + IF_MATCH Json(NewOwner) -> OK Json(ChangedCluster) Whole: "Transfers keys of a map to another manager.";

        ListGroups Get "/v1/clusters/{cluster}/nodegroups" READ Cluster GROUPS Nothing -> OK Json(NodeGroupList) Streamed shows GROUP_LIST_FIELDS since NODEGROUPS: "Lists a cluster's node groups.";
        CreateGroup Post "/v1/clusters/{cluster}/nodegroups" WRITE Cluster WRITE_QUERY Json(NodeGroup) -> ACCEPTED Json(ShownNodeGroup) Whole since NODEGROUPS: "Creates a node group.";
        GetGroup Get "/v1/clusters/{cluster}/nodegroups/{group}" READ Cluster READ_LEVEL Nothing -> OK Json(ShownNodeGroup) Whole since NODEGROUPS: "Shows a node group.";
        PatchGroup Patch "/v1/clusters/{cluster}/nodegroups/{group}" WRITE Cluster PATCH + IF_MATCH AnyPatch(NodeGroup) -> OK_OR_ACCEPTED Json(ChangedNodeGroup) Whole: "Changes a node group, or applies its labels, annotations and parameters.";
        DeleteGroup Delete "/v1/clusters/{cluster}/nodegroups/{group}" WRITE Cluster WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since NODEGROUPS: "Deletes a node group without nodes.";
        PutGroupMap Put "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE Cluster PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedNodeGroup) Whole: "Replaces a group's whole map of labels, annotations or parameters.";
        PatchGroupMap Patch "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE Cluster PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedNodeGroup) Whole: "Changes single keys of a map.";
        TombstoneGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/tombstones" WRITE Cluster PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedNodeGroup) Whole: "Stops keys of a map from being inherited here.";
        OwnersGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/owners" WRITE Cluster WRITE_QUERY + IF_MATCH Json(NewOwner) -> OK Json(ChangedNodeGroup) Whole: "Transfers keys of a map to another manager.";

        ListAllocations Get "/v1/allocations" READ Fleet ALLOCATIONS Nothing -> OK Json(AllocationList) Streamed since ALLOCATIONS_READ: "Lists allocations.";
        CreateAllocation Post "/v1/allocations" WRITE Body WRITE_QUERY Json(Allocation) -> CREATED Json(ShownAllocation) Whole since ALLOCATIONS_CREATE: "Allocates a node that meets the request, at once. `state` shows whether one was found.";
        GetAllocation Get "/v1/allocations/{allocation}" READ Allocation READ_FIELDS Nothing -> OK Json(ShownAllocation) Whole since ALLOCATIONS_READ: "Shows an allocation, and why its node was chosen.";
        PatchAllocation Patch "/v1/allocations/{allocation}" WRITE Allocation PATCH + IF_MATCH AnyPatch(Allocation) -> OK Json(ChangedAllocation) Whole since ALLOCATIONS_READ: "Changes an allocation's name or notes.";
        DeleteAllocation Delete "/v1/allocations/{allocation}" WRITE Allocation WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since ALLOCATIONS_READ: "Deletes an allocation, and releases its node.";
        NodeAllocation Get "/v1/nodes/{node}/allocation" READ Node READ_FIELDS Nothing -> OK Json(ShownAllocation) Whole since ALLOCATIONS_READ: "Shows the allocation of a node.";
        DeleteNodeAllocation Delete "/v1/nodes/{node}/allocation" WRITE Node WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since ALLOCATIONS_READ: "Deletes the allocation of a node.";

        ListInspectionRules Get "/v1/inspection_rules" READ Fleet RULES Nothing -> OK Json(InspectionRuleList) Streamed shows RULE_LIST_FIELDS since RULES_READ: "Lists inspection rules.";
        CreateInspectionRule Post "/v1/inspection_rules" ADMIN Fleet WRITE_QUERY Json(InspectionRule) -> CREATED Json(ShownInspectionRule) Whole since RULES_WRITE: "Creates an inspection rule, which derives values from what hosts report.";
        DeleteInspectionRules Delete "/v1/inspection_rules" ADMIN Fleet WRITE_QUERY Nothing -> NO_CONTENT Nothing Whole since RULES_WRITE: "Deletes all inspection rules, and the values that they set.";
        GetInspectionRule Get "/v1/inspection_rules/{rule}" READ InspectionRule READ_FIELDS Nothing -> OK Json(ShownInspectionRule) Whole since RULES_READ: "Shows an inspection rule. The conditions and actions of a sensitive one are omitted.";
        PatchInspectionRule Patch "/v1/inspection_rules/{rule}" ADMIN InspectionRule PATCH + IF_MATCH FieldPatch(InspectionRule) -> OK Json(ChangedInspectionRule) Whole since RULES_WRITE: "Changes an inspection rule.";
        DeleteInspectionRule Delete "/v1/inspection_rules/{rule}" ADMIN InspectionRule WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole since RULES_WRITE: "Deletes an inspection rule, and the values that it set.";

        ListReleases Get "/v1/releases" READ Fleet LIST Nothing -> OK Json(ReleaseList) Streamed shows RELEASE_LIST_FIELDS: "Lists releases.";
        CreateRelease Post "/v1/releases" ADMIN Fleet WRITE_QUERY Json(Release) -> CREATED Json(ShownRelease) Whole: "Stores a release.";
        GetRelease Get "/v1/releases/{release}" READ Release READ_FIELDS Nothing -> OK Json(ShownRelease) Whole: "Shows a release, by NAME@VERSION, or NAME for one without a version.";
        PatchRelease Patch "/v1/releases/{release}" ADMIN Release PATCH + IF_MATCH AnyPatch(Release) -> OK Json(ChangedRelease) Whole: "Changes a release.";
        DeleteRelease Delete "/v1/releases/{release}" ADMIN Release WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a release that nothing uses.";
        PutReleaseMap Put "/v1/releases/{release}/{map}" ADMIN Release PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedRelease) Whole: "Replaces a release's labels or annotations.";
        PatchReleaseMap Patch "/v1/releases/{release}/{map}" ADMIN Release PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedRelease) Whole: "Changes single keys of a map.";
        OwnersRelease Post "/v1/releases/{release}/{map}/owners" ADMIN Release WRITE_QUERY + IF_MATCH Json(NewOwner) -> OK Json(ChangedRelease) Whole: "Transfers keys of a map to another manager.";
        ListReleaseTasks Get "/v1/releases/{release}/tasks" READ Release READ_ONE Nothing -> OK Json(TaskList) Whole: "Lists a release's tasks.";
        ListReleaseRoles Get "/v1/releases/{release}/roles" READ Release READ_ONE Nothing -> OK Json(ReleaseRoles) Whole: "Lists a release's roles, each with the tags that it produces unless a cluster changes it.";
        ListReleaseRoleTags Get "/v1/releases/{release}/roles/{role}/tags" READ Release READ_ONE Nothing -> OK Json(TagList) Whole: "Lists the tags that a role of a release produces, including the tags that users added.";
        ListReleaseTags Get "/v1/releases/{release}/tags" READ Release READ_ONE Nothing -> OK Json(TagList) Whole: "Lists a release's tags.";
        CreateReleaseTag Post "/v1/releases/{release}/tags" ADMIN Release WRITE_QUERY Json(NewTag) -> CREATED Json(Tag) Whole: "Adds a tag to a release.";
        GetReleaseTag Get "/v1/releases/{release}/tags/{tag}" READ Release READ_ONE Nothing -> OK Json(Tag) Whole: "Shows a tag of a release.";
        PutReleaseTag Put "/v1/releases/{release}/tags/{tag}" ADMIN Release WRITE_QUERY Json(TagFields) -> OK Json(Tag) Whole: "Changes a tag of a release.";
        DeleteReleaseTag Delete "/v1/releases/{release}/tags/{tag}" ADMIN Release WRITE_QUERY Nothing -> NO_CONTENT Nothing Whole: "Deletes a tag of a release.";

        ListNamespaces Get "/v2/metadefs/namespaces" READ Fleet NAMESPACES Nothing -> OK Json(CatalogNamespaceList) Whole: "Lists the namespaces of the catalogue.";
        CreateNamespace Post "/v2/metadefs/namespaces" ADMIN Fleet WRITE_QUERY Json(Namespace) -> CREATED Json(CatalogNamespace) Whole: "Creates a namespace with its content.";
        GetNamespace Get "/v2/metadefs/namespaces/{namespace}" READ Namespace NAMESPACE Nothing -> OK Json(CatalogNamespace) Whole: "Shows a namespace with all that is in it.";
        PutNamespace Put "/v2/metadefs/namespaces/{namespace}" ADMIN Namespace PATCH + IF_MATCH Json(Namespace) -> OK Json(CatalogNamespace) Whole: "Replaces a namespace's own fields, not what is in it.";
        DeleteNamespace Delete "/v2/metadefs/namespaces/{namespace}" ADMIN Namespace WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a namespace with all that is in it.";
        ListProperties Get "/v2/metadefs/namespaces/{namespace}/properties" READ Namespace READ_ONE Nothing -> OK Json(NamespacePropertyList) Whole: "Lists a namespace's properties, by name.";
        CreateProperty Post "/v2/metadefs/namespaces/{namespace}/properties" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceProperty) -> CREATED Json(NamespaceProperty) Whole: "Adds a property to a namespace.";
        DeleteProperties Delete "/v2/metadefs/namespaces/{namespace}/properties" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes all properties of a namespace.";
        GetProperty Get "/v2/metadefs/namespaces/{namespace}/properties/{property}" READ Namespace RESOURCE_TYPE_PREFIX Nothing -> OK Json(NamespaceProperty) Whole: "Shows a property.";
        PutProperty Put "/v2/metadefs/namespaces/{namespace}/properties/{property}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceProperty) -> OK Json(NamespaceProperty) Whole: "Replaces a property, and renames it if the body has another name.";
        DeleteProperty Delete "/v2/metadefs/namespaces/{namespace}/properties/{property}" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a property.";
        ListDefinitions Get "/v2/metadefs/namespaces/{namespace}/objects" READ Namespace MEMBERS Nothing -> OK Json(NamespaceObjectList) Whole: "Lists a namespace's objects.";
        CreateDefinition Post "/v2/metadefs/namespaces/{namespace}/objects" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceObject) -> CREATED Json(NamespaceObject) Whole: "Adds an object to a namespace.";
        DeleteDefinitions Delete "/v2/metadefs/namespaces/{namespace}/objects" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes all objects of a namespace.";
        GetDefinition Get "/v2/metadefs/namespaces/{namespace}/objects/{object}" READ Namespace READ_ONE Nothing -> OK Json(NamespaceObject) Whole: "Shows an object of a namespace.";
        PutDefinition Put "/v2/metadefs/namespaces/{namespace}/objects/{object}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceObject) -> OK Json(NamespaceObject) Whole: "Replaces an object, and renames it if the body has another name.";
        DeleteDefinition Delete "/v2/metadefs/namespaces/{namespace}/objects/{object}" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes an object of a namespace.";
        ListNamespaceTags Get "/v2/metadefs/namespaces/{namespace}/tags" READ Namespace MEMBERS Nothing -> OK Json(NamespaceTagList) Whole: "Lists a namespace's tags.";
        CreateNamespaceTags Post "/v2/metadefs/namespaces/{namespace}/tags" ADMIN Namespace PATCH + IF_MATCH + APPEND Json(NamespaceTagList) -> CREATED Json(NamespaceTagList) Whole: "Replaces a namespace's tags; with the header X-Openstack-Append: True it adds to them.";
        DeleteNamespaceTags Delete "/v2/metadefs/namespaces/{namespace}/tags" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes all tags of a namespace.";
        GetNamespaceTag Get "/v2/metadefs/namespaces/{namespace}/tags/{tag}" READ Namespace READ_ONE Nothing -> OK Json(NamespaceTag) Whole: "Shows a tag of a namespace.";
        CreateNamespaceTag Post "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Nothing -> CREATED Json(NamespaceTag) Whole: "Adds a tag to a namespace.";
        PutNamespaceTag Put "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceTag) -> OK Json(NamespaceTag) Whole: "Renames a tag of a namespace.";
        DeleteNamespaceTag Delete "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a tag of a namespace.";
        ListAssociations Get "/v2/metadefs/namespaces/{namespace}/resource_types" READ Namespace READ_ONE Nothing -> OK Json(AssociationList) Whole: "Lists the resource types that a namespace applies to.";
        CreateAssociation Post "/v2/metadefs/namespaces/{namespace}/resource_types" ADMIN Namespace PATCH + IF_MATCH Json(Association) -> CREATED Json(Association) Whole: "Makes a namespace apply to a resource type.";
        DeleteAssociation Delete "/v2/metadefs/namespaces/{namespace}/resource_types/{resource_type}" ADMIN Namespace PATCH + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Stops a namespace from applying to a resource type.";
        ListResourceTypes Get "/v2/metadefs/resource_types" READ Fleet READ_ONE Nothing -> OK Json(ResourceTypeList) Whole: "Lists the resource types that namespaces apply to.";
        GetSchema Get "/v2/schemas/metadefs/{schema}" READ Fleet NO_PARAMETERS Nothing -> OK Json(JsonSchema) Whole: "Returns the JSON Schema of a body of the catalogue, from which Glance's clients build theirs.";

        ExplainKey Get "/v1/explain" READ Fleet EXPLAIN_KEY Nothing -> OK Json(KeyExplanation) Whole: "Explains the key of a label, parameter, property or fact from the catalogue.";
        Apply Post "/v1/apply" WRITE Body APPLY Json(Apply) -> OK Json(Applied) Whole: "Applies several objects at once, all or none.";
        PutBlob Put "/v1/blobs/{hash}" WRITE Fleet IGNORED Bytes -> NO_CONTENT Nothing Whole: "Uploads a file body, before the manifest that names it.";
        WatchEvents Get "/v1/events" READ Fleet EVENTS Nothing -> OK Events Streamed: "Streams the changes from a revision on, and the states of nodes.";
        ShowFleet Get "/v1/fleet" READ Fleet NO_PARAMETERS Nothing -> OK Json(FleetState) Whole: "Shows the epoch and revision of the store, and how many hosts are ahead of it.";
        GetBackup Get "/v1/backup" ADMIN Fleet NO_PARAMETERS Nothing -> OK Bytes Streamed: "Returns a backup of the fleet. Only root on this machine may request it, because it contains the fleet's keys.";
        RecordBackup Post "/v1/backups" ADMIN Fleet WRITE_QUERY Json(NewBackup) -> OK Json(RecordedBackup) Whole: "Records that a backup was made, so that the age of the last one can be monitored.";
        ResumeFleet Post "/v1/fleet/resume" ADMIN Fleet WRITE_QUERY Json(Resumption) -> OK Json(Resumed) Whole: "Ends the epoch of a store that was restored from an older copy, so that the hosts that are ahead of it follow it again.";
        ListTasks Get "/v1/tasks" READ Fleet TASKS Nothing -> OK Json(FleetTaskList) Whole: "Lists the tasks of nodes, each with the number of nodes on which it is done, failed or waiting.";
        ShowTask Get "/v1/tasks/{task}" READ Fleet ONE_TASK Nothing -> OK Json(FleetTask) Whole: "Shows the nodes on which a task failed, with the reasons, and the nodes that the task would change.";
        ListAudit Get "/v1/audit" READ Fleet AUDIT Nothing -> OK Json(AuditList) Whole: "Lists the writes that were applied or refused, in the order of revisions. The query can select a principal, an object and a time.";
        GetRequest Get "/v1/requests/{request}" READ Fleet NO_PARAMETERS Nothing -> OK Json(RequestRecord) Whole: "Shows the result of a write.";
        ListTokens Get "/v1/join-tokens" READ Fleet TOKENS Nothing -> OK Json(TokenList) Whole: "Lists join tokens, without their secrets.";
        CreateToken Post "/v1/join-tokens" WRITE Body WRITE_QUERY Json(NewToken) -> CREATED Json(MadeToken) Whole: "Creates a join token. Its secret is returned only this once.";
        GetToken Get "/v1/join-tokens/{token}" READ JoinToken READ_FIELDS Nothing -> OK Json(Token) Whole: "Shows a join token, without its secret.";
        DeleteToken Delete "/v1/join-tokens/{token}" WRITE JoinToken WRITE_QUERY Nothing -> NO_CONTENT Nothing Whole: "Revokes a join token.";

        ListPrincipals Get "/v1/principals" READ Fleet PRINCIPALS Nothing -> OK Json(PrincipalList) Whole: "Lists principals, with their credentials and when these expire.";
        CreatePrincipal Post "/v1/principals" ADMIN Body WRITE_QUERY Json(Principal) -> CREATED Json(ShownPrincipal) Whole: "Creates a principal, without credentials.";
        GetPrincipal Get "/v1/principals/{principal}" READ Principal READ_FIELDS Nothing -> OK Json(ShownPrincipal) Whole: "Shows a principal, without secrets.";
        PatchPrincipal Patch "/v1/principals/{principal}" ADMIN Principal WRITE_QUERY + IF_MATCH MergePatch(PrincipalChange) -> OK Json(ChangedPrincipal) Whole: "Changes a principal's role, cluster or description.";
        DeletePrincipal Delete "/v1/principals/{principal}" ADMIN Principal WRITE_QUERY + IF_MATCH Nothing -> NO_CONTENT Nothing Whole: "Deletes a principal. Its certificates and tokens are no longer accepted.";
        CreateBearerToken Post "/v1/principals/{principal}/tokens" ADMIN Principal WRITE_QUERY Json(NewBearerToken) -> CREATED Json(MadeBearerToken) Whole: "Creates a bearer token for a principal. Its secret is returned only this once.";
        RevokeBearerToken Delete "/v1/principals/{principal}/tokens/{token}" ADMIN Principal WRITE_QUERY Nothing -> NO_CONTENT Nothing Whole: "Revokes a bearer token.";
        ListCertificates Get "/v1/certificates" READ Fleet CERTIFICATES Nothing -> OK Json(CertificateList) Whole: "Lists the unexpired certificates of principals.";
        IssueCertificate Post "/v1/certificates" WRITE Body WRITE_QUERY Json(NewCertificate) -> CREATED Json(MadeCertificate) Whole: "Issues a certificate for a key: to the caller, or by an admin to any principal.";
        RevokeCertificate Delete "/v1/certificates/{certificate}" ADMIN Certificate WRITE_QUERY Nothing -> NO_CONTENT Nothing Whole: "Revokes a principal's certificate, by its serial number.";
    }
}

//! The table itself. One line a route: the variant, method and path; who may call; on what it acts; the parameters of its query, behind a plus
//! the headers that its handler reads, and its body, with the body's schema; its statuses and its answer, with the schema of that, whole or streamed; since which microversion
//! it is there; and a sentence.

use super::{Callers, Content, Delivery, Header, Listener, Method, Minor, Query, Route, Scope, Shows, Since, since};
use crate::error::ErrorType;

/// Anyone who reaches the listener.
const OPEN: Callers = Callers::EVERYONE;
/// Whoever has a join token and no certificate yet.
const JOINING: Callers = Callers::JOINING;
/// A node, by its certificate.
const AGENT: Callers = Callers::AGENT;
/// Reading.
const READ: Callers = Callers::VIEWER.and(Callers::OPERATOR).and(Callers::ADMIN);
/// Writing what belongs to clusters and nodes.
const WRITE: Callers = Callers::OPERATOR.and(Callers::ADMIN);
/// Writing what belongs to the whole fleet, and what makes trust.
const ADMIN: Callers = Callers::ADMIN;

/// What is not looked at.
const UNREAD: Query = Query::Unread;
/// No parameter at all.
const NONE: Query = Query::Of(&[]);
/// A read of one object.
const READ_ONE: Query = Query::Of(&[AT_LEAST]);
/// A list.
const LIST: Query = Query::Of(&[PAGE, &["selector"], FIELDS, AT_LEAST]);
/// The list of a cluster's groups.
const GROUPS: Query = Query::Of(&[PAGE, &["selector", "role"], FIELDS, AT_LEAST]);
/// The lists of nodes.
const NODES: Query = Query::Of(&[PAGE, NODE_FILTERS, IRONIC_FILTERS, FIELDS, &["detail", "deleting"], AT_LEAST]);
/// The list of allocations.
const ALLOCATIONS: Query = Query::Of(&[PAGE, &["node", "resource_class", "state", "owner"], FIELDS, AT_LEAST]);
/// The list of inspection rules.
const RULES: Query = Query::Of(&[PAGE, &["selector", "detail", "phase"], FIELDS, AT_LEAST]);
/// The list of principals.
const PRINCIPALS: Query = Query::Of(&[PAGE, &["role", "cluster"], FIELDS, AT_LEAST]);
/// The list of certificates.
const CERTIFICATES: Query = Query::Of(&[PAGE, &["principal"], FIELDS, AT_LEAST]);
/// The list of join tokens.
const TOKENS: Query = Query::Of(&[PAGE, &["node", "nodegroup"], FIELDS, AT_LEAST]);
/// One object, of which fields can be chosen.
const ONE: Query = Query::Of(&[FIELDS, AT_LEAST]);
/// The same of one whose body also counts and takes over: its fields can be asked for as they are stored.
const LEVEL: Query = Query::Of(&[FIELDS, &["stored"], AT_LEAST]);
/// The node that the query names.
const NAMED_NODE: Query = Query::Of(&[&["node", "node_uuid"], AT_LEAST]);
/// An explanation of one thing.
const EXPLAIN: Query = Query::Of(&[&["label", "tag", "task", "trait"], AT_LEAST]);
/// The audit.
const AUDIT: Query = Query::Of(&[PAGE, &["principal", "object", "since", "until", "refused"], FIELDS, AT_LEAST]);
/// What is told of what changes.
const EVENTS: Query = Query::Of(&[&["from", "class", "kind", "selector"]]);
/// The list of tasks, and one of them: of which nodes.
const TASKS: Query = Query::Of(&[PAGE, NODE_FILTERS, FIELDS, AT_LEAST]);
const ONE_TASK: Query = Query::Of(&[NODE_FILTERS, AT_LEAST]);
/// An explanation of one key of the catalogue.
const EXPLAIN_KEY: Query = Query::Of(&[&["label", "parameter", "property", "fact"], AT_LEAST]);
/// A write: who makes it, and whether it is refused for what is found.
const BY: Query = Query::Of(&[WRITES]);
/// A change of maps, fields or one thing of an object, which may be forced upon other managers, or be refused where it takes something from
/// them.
const PATCH: Query = Query::Of(&[WRITES, &["force"]]);
/// The same of a node, which may give away what it holds as primary.
const PATCH_NODE: Query = Query::Of(&[WRITES, &["force", "release_primary"]]);
/// An apply, which may also take over what another manager has, and add to what its own manager has.
const APPLY: Query = Query::Of(&[WRITES, &["force", "adopt", "partial"]]);
/// What every write takes.
const WRITES: &[&str] = &["manager", "strict"];

/// The list of namespaces.
const NAMESPACES: Query = Query::Among(&[PAGE, &["visibility", "resource_types"], AT_LEAST]);
/// What names properties as a resource type has them.
const PREFIXED: Query = Query::Of(&[&["resource_type"], AT_LEAST]);
/// The same, and who owns what of a namespace.
const NAMESPACE: Query = Query::Of(&[&["resource_type", "owners"], AT_LEAST]);
/// The lists within a namespace.
const MEMBERS: Query = Query::Of(&[PAGE, AT_LEAST]);

/// Which fields are shown.
const FIELDS: &[&str] = &["fields"];
/// The revision that a read waits for.
const AT_LEAST: &[&str] = &["at_least"];
/// Which part of a list, and its order.
pub(super) const PAGE: &[&str] = &["limit", "marker", "sort_key", "sort_dir"];
/// What a list of nodes shows where neither fields nor details are asked for: Ironic's, and Stemma's beside them.
const NODES_SHOWN: Shows = Shows::Listed {
    fields: &["uuid", "name", "instance_uuid", "maintenance", "power_state", "provision_state", "links"],
    own: &["nodegroup", "state", "notes", "connected", "roles", "tags", "mode", "labels", "traits", "resource_version"],
};
/// What a list of Magnum's shows of a cluster.
const CLUSTERS_SHOWN: Shows = Shows::Listed {
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
    own: &[],
};
/// What a list of Magnum's shows of a node group.
const GROUPS_SHOWN: Shows = Shows::Listed {
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
    own: &[],
};
/// As Ironic's list of inspection rules, and by what it is named here.
const RULES_SHOWN: Shows = Shows::Listed {
    fields: &["uuid", "name", "priority", "phase", "description", "links", "resource_version"],
    own: &[],
};
/// A list of releases goes without the tasks, which can be many.
const RELEASES_SHOWN: Shows = Shows::Without(&["tasks"]);

/// The parameters of a query that clients of Ironic know from a version on.
pub(super) const PARAMETERS_SINCE: &[(&str, Since)] = &[
    ("fields", parameter(since::FIELDS, ErrorType::RequestNotAcceptable, "fields can be chosen")),
    ("detail", parameter(since::DETAIL, ErrorType::RequestQuery, "details can be asked for")),
    ("traits", TRAIT_FILTER),
    ("traits-any", TRAIT_FILTER),
    ("not-traits", TRAIT_FILTER),
    ("not-traits-any", TRAIT_FILTER),
];
const TRAIT_FILTER: Since = parameter(since::TRAITS, ErrorType::RequestNotAcceptable, "nodes are filtered by traits");

const fn parameter(minor: Minor, refusal: ErrorType, subject: &'static str) -> Since {
    Since { minor, refusal, subject, api: "" }
}

/// The fields of a node that clients of Ironic know from a version on.
pub(super) const FIELDS_SINCE: &[(&str, Minor)] = &[
    ("name", since::NAMES),
    ("resource_class", since::RESOURCE_CLASS),
    ("traits", since::TRAITS),
    ("allocation_uuid", since::ALLOCATIONS),
];

/// Which nodes, or the tasks of which: the trait filters of Ironic's traits specification, and Stemma's own.
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

/// Which nodes: Ironic's filters.
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

/// The version that a write presumes.
const IF_MATCH: Header = Header::IfMatch;
/// Glance's: that a list is added to.
const APPEND: Header = Header::Append;

const OK: &[u16] = &[200];
const CREATED: &[u16] = &[201];
const ACCEPTED: &[u16] = &[202];
/// As Magnum, whose JSON patch is accepted.
const OK_OR_ACCEPTED: &[u16] = &[200, 202];
const EMPTY: &[u16] = &[204];
/// A process that takes no writes is one that can be asked, and says why.
const OK_OR_UNREADY: &[u16] = &[200, 503];

/// Below it Ironic answers as if the path were not there, by method in three ways.
const TRAITS_READ: Since = traits(ErrorType::RequestNotAcceptable);
const TRAITS_PUT: Since = traits(ErrorType::RequestMethod);
const TRAITS_DELETED: Since = traits(ErrorType::PathUnknown);
const ALLOCATIONS_THERE: Since = allocations(ErrorType::PathUnknown);
const ALLOCATIONS_MADE: Since = allocations(ErrorType::RequestMethod);
const RULES_THERE: Since = rules(ErrorType::PathUnknown);
const RULES_WRITTEN: Since = rules(ErrorType::RequestMethod);
const NODEGROUPS: Since = container_infra(since::NODEGROUPS);
const UPGRADE: Since = container_infra(since::UPGRADE);
const RESIZE: Since = container_infra(since::RESIZE);

const fn container_infra(minor: Minor) -> Since {
    Since { minor, refusal: ErrorType::RequestNotAcceptable, subject: "this path is there", api: " of container-infra" }
}

const fn traits(refusal: ErrorType) -> Since {
    Since { minor: since::TRAITS, refusal, subject: "traits are there", api: "" }
}

const fn rules(refusal: ErrorType) -> Since {
    Since { minor: since::INSPECTION_RULES, refusal, subject: "inspection rules are there", api: "" }
}

const fn allocations(refusal: ErrorType) -> Since {
    Since { minor: since::ALLOCATIONS, refusal, subject: "allocations are there", api: "" }
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
        /// The routes of the agents' listener, whose handlers are chosen by an exhaustive `match` on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $own {
            $(#[doc = $summary] $name,)+
        }

        impl $own {
            /// The row of that route; `None`: it is a route of the other listener.
            pub const fn of(endpoint: Endpoint) -> Option<Self> {
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
        /// Every route of both listeners. Handlers are chosen by an exhaustive `match` on it, or on [`AgentEndpoint`], so that a
        /// route without one does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Endpoint {
            $($(#[doc = $summary] $name,)+)+
        }

        impl Endpoint {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$($(Self::$name,)+)+];

            /// What the table says of it.
            pub const fn route(self) -> &'static Route {
                match self {
                    $($(Self::$name => &Route {
                        listener: Listener::$listener,
                        method: Method::$method,
                        path: $path,
                        callers: $callers,
                        scope: Scope::$scope,
                        query: $query,
                        headers: &[$($header),*],
                        request: Content::$request,
                        request_schema: endpoints!(@schema $($taken)?),
                        statuses: $statuses,
                        answer: Content::$answer,
                        answer_schema: endpoints!(@schema $($given)?),
                        accepted_schema: endpoints!(@schema $($($accepted)?)?),
                        delivery: Delivery::$delivery,
                        shows: endpoints!(@shows $($shows)?),
                        since: endpoints!(@since $($since)?),
                        summary: $summary,
                    },)+)+
                }
            }

            /// Its name, as the operation id of the API's description.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$name => stringify!($name),)+)+ }
            }
        }

        $(endpoints!(@own $($own)? { $($name $summary;)+ });)+
    };
}

endpoints! {
    Agents as AgentEndpoint {
        Enroll Post "/agent/v1/enroll" JOINING Fleet UNREAD Postcard -> OK Postcard Whole: "Takes a join token and a signing request, gives a node's first certificate.";
        Renew Post "/agent/v1/renew" AGENT Itself UNREAD Postcard -> OK Postcard Whole: "Gives the next certificate to the holder of the present one.";
        CheckIn Post "/agent/v1/checkin" AGENT Itself UNREAD Postcard -> OK Postcard Whole: "Takes what a host says, and answers when there is news or the wait is over.";
        AgentProfile Get "/agent/v1/profiles/{hash}" AGENT Itself UNREAD Nothing -> OK Postcard Whole: "Gives a task profile that the node's own desired state names.";
        AgentBlob Get "/agent/v1/blobs/{hash}" AGENT Itself UNREAD Nothing -> OK Bytes Whole: "Gives a file body that the node's own desired state names.";
    }
    Admin {
        Versions Get "/" OPEN Fleet NONE Nothing -> OK Json(VersionDocuments) Whole: "Lists the API's versions; a browser is given the page.";
        VersionsList Get "/versions" OPEN Fleet NONE Nothing -> OK Json(VersionDocuments) Whole: "Lists the API's versions.";
        Version1 Get "/v1" OPEN Fleet NONE Nothing -> OK Json(VersionDocument) Whole: "Describes version 1.";
        Version2 Get "/v2" OPEN Fleet UNREAD Nothing -> OK Json(VersionDocument) Whole: "Describes version 2.";
        Healthz Get "/healthz" OPEN Fleet UNREAD Nothing -> OK Text Whole: "Says that the process answers.";
        Readyz Get "/readyz" OPEN Fleet UNREAD Nothing -> OK_OR_UNREADY Text Whole: "Says whether the store takes writes and the cache is whole.";
        Metrics Get "/metrics" READ Fleet UNREAD Nothing -> OK Text Whole: "Gives the metrics as text, for Prometheus.";
        OpenApi Get "/openapi.json" READ Fleet UNREAD Nothing -> OK Json(Description) Whole: "Describes this API.";

        ListNodes Get "/v1/nodes" READ Fleet NODES Nothing -> OK Json(NodeList) Streamed shows NODES_SHOWN: "Lists nodes.";
        ListNodesDetail Get "/v1/nodes/detail" READ Fleet NODES Nothing -> OK Json(NodeList) Streamed: "Lists nodes with all of their fields.";
        CreateNode Post "/v1/nodes" WRITE Body BY Json(Node) -> CREATED Json(ChangedNode) Whole: "Creates a node.";
        GetNode Get "/v1/nodes/{node}" READ Node LEVEL Nothing -> OK Json(ShownNode) Whole: "Shows a node.";
        PatchNode Patch "/v1/nodes/{node}" WRITE Node PATCH_NODE + IF_MATCH AnyPatch(Node) -> OK Json(ChangedNode) Whole: "Changes a node, or applies its labels, annotations and parameters.";
        DeleteNode Delete "/v1/nodes/{node}" WRITE Node BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a node.";
        ValidateNamedNode Get "/v1/nodes/validate" READ Fleet NAMED_NODE Nothing -> OK Json(Validation) Whole: "Says whether the node that the query names can be used, as the path below a node does.";
        ValidateNode Get "/v1/nodes/{node}/validate" READ Node READ_ONE Nothing -> OK Json(Validation) Whole: "Says whether a node can be used: it has the traits that its instance wants, meets what its group requires, and refers to nothing that is missing.";
        NodeStates Get "/v1/nodes/{node}/states" READ Node READ_ONE Nothing -> OK Json(States) Whole: "Shows a node's states, as Ironic names them.";
        SetNodeProvisionState Put "/v1/nodes/{node}/states/provision" WRITE Node BY + IF_MATCH Json(ProvisionTarget) -> ACCEPTED Nothing Whole: "Sets the state of a node's instance; for `active` the node must be usable.";
        ParkNode Put "/v1/nodes/{node}/maintenance" WRITE Node PATCH + IF_MATCH Json(Reason) -> ACCEPTED Nothing Whole: "Parks a node, with a reason.";
        UnparkNode Delete "/v1/nodes/{node}/maintenance" WRITE Node PATCH + IF_MATCH Nothing -> ACCEPTED Nothing Whole: "Ends a node's parking.";
        ListNodeTraits Get "/v1/nodes/{node}/traits" READ Node READ_ONE Nothing -> OK Json(NodeTraits) Whole since TRAITS_READ: "Lists a node's traits.";
        ReplaceNodeTraits Put "/v1/nodes/{node}/traits" WRITE Node PATCH + IF_MATCH Json(Traits) -> OK Json(NodeTraits) Whole since TRAITS_PUT: "Replaces all of a node's asserted traits.";
        DeleteNodeTraits Delete "/v1/nodes/{node}/traits" WRITE Node PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole since TRAITS_DELETED: "Takes all of a node's asserted traits.";
        AddNodeTrait Put "/v1/nodes/{node}/traits/{trait}" WRITE Node PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole since TRAITS_PUT: "Gives a node a trait.";
        DeleteNodeTrait Delete "/v1/nodes/{node}/traits/{trait}" WRITE Node PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole since TRAITS_DELETED: "Takes a trait from a node.";
        ListNodeRoles Get "/v1/nodes/{node}/roles" READ Node READ_ONE Nothing -> OK Json(NodeRoles) Whole: "Lists a node's roles.";
        GiveNodeRoles Post "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Gives a node roles, all or none.";
        ReplaceNodeRoles Put "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Replaces a node's roles.";
        TakeNodeRoles Delete "/v1/nodes/{node}/roles" WRITE Node PATCH + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Takes roles from a node, all or none.";
        RefreshNodeRoles Post "/v1/nodes/{node}/roles/refresh" WRITE Node BY + IF_MATCH Json(Roles) -> OK Json(NodeRoles) Whole: "Asks the extensions again that decide which tags a node's roles give it.";
        ListNodeTags Get "/v1/nodes/{node}/tags" READ Node READ_ONE Nothing -> OK Json(NodeTags) Whole: "Lists a node's tags with their origins.";
        AssignNodeTags Post "/v1/nodes/{node}/tags" WRITE Node PATCH + IF_MATCH Json(TagChange) -> OK Json(NodeTags) Whole: "Assigns tags to a node, all or none.";
        UnassignNodeTags Delete "/v1/nodes/{node}/tags" WRITE Node PATCH + IF_MATCH Json(TagNames) -> OK Json(NodeTags) Whole: "Unassigns tags of a node, all or none.";
        AssignNodeTag Put "/v1/nodes/{node}/tags/{tag}" WRITE Node PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Assigns a tag to a node.";
        UnassignNodeTag Delete "/v1/nodes/{node}/tags/{tag}" WRITE Node PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Unassigns a tag of a node.";
        ResolvedNode Get "/v1/nodes/{node}/resolved" READ Node READ_ONE Nothing -> OK Json(Resolved) Whole: "Shows what a node is to be, with the origin of each value.";
        NodeReport Get "/v1/nodes/{node}/report" READ Node READ_ONE Nothing -> OK Json(HostReport) Whole: "Shows what a host said of itself.";
        ExplainNode Get "/v1/nodes/{node}/explain" READ Node EXPLAIN Nothing -> OK Json(Explanation) Whole: "Says why a label, tag, task or trait of a node is as it is.";
        PutNodeMap Put "/v1/nodes/{node}/{map}" WRITE Node PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedNode) Whole: "Replaces a node's whole map of labels, annotations or parameters.";
        PatchNodeMap Patch "/v1/nodes/{node}/{map}" WRITE Node PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedNode) Whole: "Changes single keys of such a map.";
        TombstoneNode Post "/v1/nodes/{node}/{map}/tombstones" WRITE Node PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedNode) Whole: "Stops keys of such a map from being inherited here.";
        OwnersNode Post "/v1/nodes/{node}/{map}/owners" WRITE Node BY + IF_MATCH Json(NewOwner) -> OK Json(ChangedNode) Whole: "Hands keys of such a map to another manager.";

        ListTemplates Get "/v1/clustertemplates" READ Fleet LIST Nothing -> OK Json(ClusterTemplateList) Streamed: "Lists cluster templates.";
        CreateTemplate Post "/v1/clustertemplates" WRITE Fleet BY Json(ClusterTemplate) -> CREATED Json(ShownClusterTemplate) Whole: "Creates a cluster template.";
        GetTemplate Get "/v1/clustertemplates/{template}" READ Template LEVEL Nothing -> OK Json(ShownClusterTemplate) Whole: "Shows a cluster template.";
        PatchTemplate Patch "/v1/clustertemplates/{template}" WRITE Template PATCH + IF_MATCH AnyPatch(ClusterTemplate) -> OK Json(ChangedClusterTemplate) Whole: "Changes a cluster template, or applies its labels, annotations and parameters.";
        DeleteTemplate Delete "/v1/clustertemplates/{template}" WRITE Template BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a cluster template that no cluster uses.";
        PutTemplateMap Put "/v1/clustertemplates/{template}/{map}" WRITE Template PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedClusterTemplate) Whole: "Replaces a template's whole map of labels, annotations or parameters.";
        PatchTemplateMap Patch "/v1/clustertemplates/{template}/{map}" WRITE Template PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedClusterTemplate) Whole: "Changes single keys of such a map.";
        TombstoneTemplate Post "/v1/clustertemplates/{template}/{map}/tombstones" WRITE Template PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedClusterTemplate) Whole: "Stops keys of such a map from being inherited here.";
        OwnersTemplate Post "/v1/clustertemplates/{template}/{map}/owners" WRITE Template BY + IF_MATCH Json(NewOwner) -> OK Json(ChangedClusterTemplate) Whole: "Hands keys of such a map to another manager.";

        ListClusters Get "/v1/clusters" READ Fleet LIST Nothing -> OK Json(ClusterList) Streamed shows CLUSTERS_SHOWN: "Lists clusters.";
        ListClustersDetail Get "/v1/clusters/detail" READ Fleet LIST Nothing -> OK Json(ClusterList) Streamed: "Lists clusters with all of their fields.";
        // A cluster that is new, or that a JSON patch changed, is answered with its uuid alone, as Magnum does.
        CreateCluster Post "/v1/clusters" WRITE Fleet BY Json(Cluster) -> ACCEPTED Json(Uuid) Whole: "Creates a cluster.";
        GetCluster Get "/v1/clusters/{cluster}" READ Cluster LEVEL Nothing -> OK Json(ShownCluster) Whole: "Shows a cluster.";
        PatchCluster Patch "/v1/clusters/{cluster}" WRITE Cluster PATCH + IF_MATCH AnyPatch(Cluster) -> OK_OR_ACCEPTED Json(ChangedCluster | ChangedUuid) Whole: "Changes a cluster, or applies its labels, annotations and parameters.";
        DeleteCluster Delete "/v1/clusters/{cluster}" WRITE Cluster BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a cluster without nodes.";
        UpgradeCluster Post "/v1/clusters/{cluster}/actions/upgrade" WRITE Cluster PATCH + IF_MATCH Json(Upgrade) -> ACCEPTED Json(ChangedUuid) Whole since UPGRADE: "Gives a cluster another cluster template, and with it that template's release.";
        ResizeCluster Post "/v1/clusters/{cluster}/actions/resize" WRITE Cluster BY Json(Resize) -> ACCEPTED Json(ChangedUuid) Whole since RESIZE: "Is refused: a cluster has the nodes that were placed in it.";
        ListClusterTags Get "/v1/clusters/{cluster}/tags" READ Cluster READ_ONE Nothing -> OK Json(TagList) Whole: "Lists the tags that are visible in a cluster.";
        CreateClusterTag Post "/v1/clusters/{cluster}/tags" WRITE Cluster PATCH + IF_MATCH Json(NewTag) -> CREATED Json(Tag) Whole: "Defines a tag of a cluster's own.";
        GetClusterTag Get "/v1/clusters/{cluster}/tags/{tag}" READ Cluster READ_ONE Nothing -> OK Json(Tag) Whole: "Shows a tag of a cluster.";
        PutClusterTag Put "/v1/clusters/{cluster}/tags/{tag}" WRITE Cluster PATCH + IF_MATCH Json(TagFields) -> OK Json(Tag) Whole: "Changes a tag of a cluster's own.";
        DeleteClusterTag Delete "/v1/clusters/{cluster}/tags/{tag}" WRITE Cluster PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a tag of a cluster's own.";
        ListClusterRoles Get "/v1/clusters/{cluster}/roles" READ Cluster READ_ONE Nothing -> OK Json(RoleChanges) Whole: "Shows a cluster's changes to what its roles give.";
        PutClusterRoles Put "/v1/clusters/{cluster}/roles" WRITE Cluster PATCH + IF_MATCH Json(RoleChanges) -> OK Json(ClusterRoles) Whole: "Replaces a cluster's changes to what its roles give.";
        ListPrimaries Get "/v1/clusters/{cluster}/primaries" READ Cluster READ_ONE Nothing -> OK Json(PrimaryList) Whole: "Lists who holds which tag of a cluster as primary, and why.";
        ChoosePrimary Put "/v1/clusters/{cluster}/primaries/{tag}" WRITE Cluster BY Json(NewPrimary) -> OK Json(ChosenPrimary) Whole: "Gives a tag of a cluster to a node as primary.";
        ValidateCluster Get "/v1/clusters/{cluster}/validate" READ Cluster READ_ONE Nothing -> OK Json(ClusterValidation) Whole: "Checks a cluster before anything is changed.";
        PutClusterMap Put "/v1/clusters/{cluster}/{map}" WRITE Cluster PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedCluster) Whole: "Replaces a cluster's whole map of labels, annotations or parameters.";
        PatchClusterMap Patch "/v1/clusters/{cluster}/{map}" WRITE Cluster PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedCluster) Whole: "Changes single keys of such a map.";
        TombstoneCluster Post "/v1/clusters/{cluster}/{map}/tombstones" WRITE Cluster PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedCluster) Whole: "Stops keys of such a map from being inherited here.";
        OwnersCluster Post "/v1/clusters/{cluster}/{map}/owners" WRITE Cluster BY + IF_MATCH Json(NewOwner) -> OK Json(ChangedCluster) Whole: "Hands keys of such a map to another manager.";

        ListGroups Get "/v1/clusters/{cluster}/nodegroups" READ Cluster GROUPS Nothing -> OK Json(NodeGroupList) Streamed shows GROUPS_SHOWN since NODEGROUPS: "Lists a cluster's node groups.";
        CreateGroup Post "/v1/clusters/{cluster}/nodegroups" WRITE Cluster BY Json(NodeGroup) -> ACCEPTED Json(ShownNodeGroup) Whole since NODEGROUPS: "Creates a node group.";
        GetGroup Get "/v1/clusters/{cluster}/nodegroups/{group}" READ Cluster LEVEL Nothing -> OK Json(ShownNodeGroup) Whole since NODEGROUPS: "Shows a node group.";
        PatchGroup Patch "/v1/clusters/{cluster}/nodegroups/{group}" WRITE Cluster PATCH + IF_MATCH AnyPatch(NodeGroup) -> OK_OR_ACCEPTED Json(ChangedNodeGroup) Whole: "Changes a node group, or applies its labels, annotations and parameters.";
        DeleteGroup Delete "/v1/clusters/{cluster}/nodegroups/{group}" WRITE Cluster BY + IF_MATCH Nothing -> EMPTY Nothing Whole since NODEGROUPS: "Deletes a node group without nodes.";
        PutGroupMap Put "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE Cluster PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedNodeGroup) Whole: "Replaces a group's whole map of labels, annotations or parameters.";
        PatchGroupMap Patch "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE Cluster PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedNodeGroup) Whole: "Changes single keys of such a map.";
        TombstoneGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/tombstones" WRITE Cluster PATCH + IF_MATCH Json(Keys) -> OK Json(ChangedNodeGroup) Whole: "Stops keys of such a map from being inherited here.";
        OwnersGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/owners" WRITE Cluster BY + IF_MATCH Json(NewOwner) -> OK Json(ChangedNodeGroup) Whole: "Hands keys of such a map to another manager.";

        ListAllocations Get "/v1/allocations" READ Fleet ALLOCATIONS Nothing -> OK Json(AllocationList) Streamed since ALLOCATIONS_THERE: "Lists allocations.";
        CreateAllocation Post "/v1/allocations" WRITE Body BY Json(Allocation) -> CREATED Json(ShownAllocation) Whole since ALLOCATIONS_MADE: "Allocates a node that has what is asked for, at once; `state` says whether one was found.";
        GetAllocation Get "/v1/allocations/{allocation}" READ Allocation ONE Nothing -> OK Json(ShownAllocation) Whole since ALLOCATIONS_THERE: "Shows an allocation, and why its node was chosen.";
        PatchAllocation Patch "/v1/allocations/{allocation}" WRITE Allocation PATCH + IF_MATCH AnyPatch(Allocation) -> OK Json(ChangedAllocation) Whole since ALLOCATIONS_THERE: "Changes an allocation's name or notes.";
        DeleteAllocation Delete "/v1/allocations/{allocation}" WRITE Allocation BY + IF_MATCH Nothing -> EMPTY Nothing Whole since ALLOCATIONS_THERE: "Deletes an allocation, and gives its node back.";
        NodeAllocation Get "/v1/nodes/{node}/allocation" READ Node ONE Nothing -> OK Json(ShownAllocation) Whole since ALLOCATIONS_THERE: "Shows the allocation that has a node.";
        DeleteNodeAllocation Delete "/v1/nodes/{node}/allocation" WRITE Node BY + IF_MATCH Nothing -> EMPTY Nothing Whole since ALLOCATIONS_THERE: "Deletes the allocation that has a node.";

        ListInspectionRules Get "/v1/inspection_rules" READ Fleet RULES Nothing -> OK Json(InspectionRuleList) Streamed shows RULES_SHOWN since RULES_THERE: "Lists inspection rules.";
        CreateInspectionRule Post "/v1/inspection_rules" ADMIN Fleet BY Json(InspectionRule) -> CREATED Json(ShownInspectionRule) Whole since RULES_WRITTEN: "Stores an inspection rule: what follows from what hosts report.";
        DeleteInspectionRules Delete "/v1/inspection_rules" ADMIN Fleet BY Nothing -> EMPTY Nothing Whole since RULES_WRITTEN: "Deletes all inspection rules, and with them what they gave.";
        GetInspectionRule Get "/v1/inspection_rules/{rule}" READ InspectionRule ONE Nothing -> OK Json(ShownInspectionRule) Whole since RULES_THERE: "Shows an inspection rule; of a sensitive one neither conditions nor actions.";
        PatchInspectionRule Patch "/v1/inspection_rules/{rule}" ADMIN InspectionRule PATCH + IF_MATCH FieldPatch(InspectionRule) -> OK Json(ChangedInspectionRule) Whole since RULES_WRITTEN: "Changes an inspection rule.";
        DeleteInspectionRule Delete "/v1/inspection_rules/{rule}" ADMIN InspectionRule BY + IF_MATCH Nothing -> EMPTY Nothing Whole since RULES_WRITTEN: "Deletes an inspection rule, and with it what it gave.";

        ListReleases Get "/v1/releases" READ Fleet LIST Nothing -> OK Json(ReleaseList) Streamed shows RELEASES_SHOWN: "Lists releases.";
        CreateRelease Post "/v1/releases" ADMIN Fleet BY Json(Release) -> CREATED Json(ShownRelease) Whole: "Stores a release.";
        GetRelease Get "/v1/releases/{release}" READ Release ONE Nothing -> OK Json(ShownRelease) Whole: "Shows a release, by NAME@VERSION, or NAME for one without a version.";
        PatchRelease Patch "/v1/releases/{release}" ADMIN Release PATCH + IF_MATCH AnyPatch(Release) -> OK Json(ChangedRelease) Whole: "Changes a release.";
        DeleteRelease Delete "/v1/releases/{release}" ADMIN Release BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a release that nothing uses.";
        PutReleaseMap Put "/v1/releases/{release}/{map}" ADMIN Release PATCH + IF_MATCH Json(WholeMap) -> OK Json(ChangedRelease) Whole: "Replaces a release's labels or annotations.";
        PatchReleaseMap Patch "/v1/releases/{release}/{map}" ADMIN Release PATCH + IF_MATCH MergePatch(MapPatch) -> OK Json(ChangedRelease) Whole: "Changes single keys of such a map.";
        OwnersRelease Post "/v1/releases/{release}/{map}/owners" ADMIN Release BY + IF_MATCH Json(NewOwner) -> OK Json(ChangedRelease) Whole: "Hands keys of such a map to another manager.";
        ListReleaseTasks Get "/v1/releases/{release}/tasks" READ Release READ_ONE Nothing -> OK Json(TaskList) Whole: "Lists a release's tasks.";
        ListReleaseRoles Get "/v1/releases/{release}/roles" READ Release READ_ONE Nothing -> OK Json(ReleaseRoles) Whole: "Lists a release's roles, each with the tags that it produces where no cluster changes it.";
        ListReleaseRoleTags Get "/v1/releases/{release}/roles/{role}/tags" READ Release READ_ONE Nothing -> OK Json(TagList) Whole: "Lists the tags that a role of a release produces, those beside the release too.";
        ListReleaseTags Get "/v1/releases/{release}/tags" READ Release READ_ONE Nothing -> OK Json(TagList) Whole: "Lists a release's tags.";
        CreateReleaseTag Post "/v1/releases/{release}/tags" ADMIN Release BY Json(NewTag) -> CREATED Json(Tag) Whole: "Adds a tag to a release.";
        GetReleaseTag Get "/v1/releases/{release}/tags/{tag}" READ Release READ_ONE Nothing -> OK Json(Tag) Whole: "Shows a tag of a release.";
        PutReleaseTag Put "/v1/releases/{release}/tags/{tag}" ADMIN Release BY Json(TagFields) -> OK Json(Tag) Whole: "Changes a tag of a release.";
        DeleteReleaseTag Delete "/v1/releases/{release}/tags/{tag}" ADMIN Release BY Nothing -> EMPTY Nothing Whole: "Deletes a tag of a release.";

        ListNamespaces Get "/v2/metadefs/namespaces" READ Fleet NAMESPACES Nothing -> OK Json(CatalogNamespaceList) Whole: "Lists the namespaces of the catalogue.";
        CreateNamespace Post "/v2/metadefs/namespaces" ADMIN Fleet BY Json(Namespace) -> CREATED Json(CatalogNamespace) Whole: "Creates a namespace, with what the body puts into it.";
        GetNamespace Get "/v2/metadefs/namespaces/{namespace}" READ Namespace NAMESPACE Nothing -> OK Json(CatalogNamespace) Whole: "Shows a namespace with all that is in it.";
        PutNamespace Put "/v2/metadefs/namespaces/{namespace}" ADMIN Namespace PATCH + IF_MATCH Json(Namespace) -> OK Json(CatalogNamespace) Whole: "Replaces a namespace's own fields, not what is in it.";
        DeleteNamespace Delete "/v2/metadefs/namespaces/{namespace}" ADMIN Namespace BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a namespace with all that is in it.";
        ListProperties Get "/v2/metadefs/namespaces/{namespace}/properties" READ Namespace READ_ONE Nothing -> OK Json(NamespacePropertyList) Whole: "Lists a namespace's properties, by name.";
        CreateProperty Post "/v2/metadefs/namespaces/{namespace}/properties" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceProperty) -> CREATED Json(NamespaceProperty) Whole: "Adds a property to a namespace.";
        DeleteProperties Delete "/v2/metadefs/namespaces/{namespace}/properties" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes all properties of a namespace.";
        GetProperty Get "/v2/metadefs/namespaces/{namespace}/properties/{property}" READ Namespace PREFIXED Nothing -> OK Json(NamespaceProperty) Whole: "Shows a property.";
        PutProperty Put "/v2/metadefs/namespaces/{namespace}/properties/{property}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceProperty) -> OK Json(NamespaceProperty) Whole: "Replaces a property, and renames it where the body has another name.";
        DeleteProperty Delete "/v2/metadefs/namespaces/{namespace}/properties/{property}" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a property.";
        ListDefinitions Get "/v2/metadefs/namespaces/{namespace}/objects" READ Namespace MEMBERS Nothing -> OK Json(NamespaceObjectList) Whole: "Lists a namespace's objects.";
        CreateDefinition Post "/v2/metadefs/namespaces/{namespace}/objects" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceObject) -> CREATED Json(NamespaceObject) Whole: "Adds an object to a namespace.";
        DeleteDefinitions Delete "/v2/metadefs/namespaces/{namespace}/objects" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes all objects of a namespace.";
        GetDefinition Get "/v2/metadefs/namespaces/{namespace}/objects/{object}" READ Namespace READ_ONE Nothing -> OK Json(NamespaceObject) Whole: "Shows an object of a namespace.";
        PutDefinition Put "/v2/metadefs/namespaces/{namespace}/objects/{object}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceObject) -> OK Json(NamespaceObject) Whole: "Replaces an object, and renames it where the body has another name.";
        DeleteDefinition Delete "/v2/metadefs/namespaces/{namespace}/objects/{object}" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes an object of a namespace.";
        ListNamespaceTags Get "/v2/metadefs/namespaces/{namespace}/tags" READ Namespace MEMBERS Nothing -> OK Json(NamespaceTagList) Whole: "Lists a namespace's tags.";
        CreateNamespaceTags Post "/v2/metadefs/namespaces/{namespace}/tags" ADMIN Namespace PATCH + IF_MATCH + APPEND Json(NamespaceTagList) -> CREATED Json(NamespaceTagList) Whole: "Replaces a namespace's tags; with the header X-Openstack-Append: True it adds to them.";
        DeleteNamespaceTags Delete "/v2/metadefs/namespaces/{namespace}/tags" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes all tags of a namespace.";
        GetNamespaceTag Get "/v2/metadefs/namespaces/{namespace}/tags/{tag}" READ Namespace READ_ONE Nothing -> OK Json(NamespaceTag) Whole: "Shows a tag of a namespace.";
        CreateNamespaceTag Post "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Nothing -> CREATED Json(NamespaceTag) Whole: "Adds a tag to a namespace.";
        PutNamespaceTag Put "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Json(NamespaceTag) -> OK Json(NamespaceTag) Whole: "Renames a tag of a namespace.";
        DeleteNamespaceTag Delete "/v2/metadefs/namespaces/{namespace}/tags/{tag}" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a tag of a namespace.";
        ListAssociations Get "/v2/metadefs/namespaces/{namespace}/resource_types" READ Namespace READ_ONE Nothing -> OK Json(AssociationList) Whole: "Lists the resource types that a namespace applies to.";
        CreateAssociation Post "/v2/metadefs/namespaces/{namespace}/resource_types" ADMIN Namespace PATCH + IF_MATCH Json(Association) -> CREATED Json(Association) Whole: "Makes a namespace apply to a resource type.";
        DeleteAssociation Delete "/v2/metadefs/namespaces/{namespace}/resource_types/{resource_type}" ADMIN Namespace PATCH + IF_MATCH Nothing -> EMPTY Nothing Whole: "Makes a namespace apply to a resource type no longer.";
        ListResourceTypes Get "/v2/metadefs/resource_types" READ Fleet READ_ONE Nothing -> OK Json(ResourceTypeList) Whole: "Lists the resource types that namespaces apply to.";
        GetSchema Get "/v2/schemas/metadefs/{schema}" READ Fleet NONE Nothing -> OK Json(JsonSchema) Whole: "Gives the JSON Schema of a body of the catalogue, by which Glance's clients make theirs.";

        ExplainKey Get "/v1/explain" READ Fleet EXPLAIN_KEY Nothing -> OK Json(KeyExplanation) Whole: "Says what the catalogue says of a label's, parameter's, property's or fact's key.";
        Apply Post "/v1/apply" WRITE Body APPLY Json(Apply) -> OK Json(Applied) Whole: "Applies several objects at once, all or none.";
        PutBlob Put "/v1/blobs/{hash}" WRITE Fleet UNREAD Bytes -> EMPTY Nothing Whole: "Takes a file body, before the manifest that names it.";
        WatchEvents Get "/v1/events" READ Fleet EVENTS Nothing -> OK Events Streamed: "Tells what changes from a revision on, and where nodes stand.";
        ShowFleet Get "/v1/fleet" READ Fleet NONE Nothing -> OK Json(FleetState) Whole: "Shows the epoch and revision of the store, and how many hosts are ahead of it.";
        GetBackup Get "/v1/backup" ADMIN Fleet NONE Nothing -> OK Bytes Streamed: "Gives a backup of the fleet, to root on this machine alone: its keys are in it.";
        RecordBackup Post "/v1/backups" ADMIN Fleet BY Json(NewBackup) -> OK Json(RecordedBackup) Whole: "Records that a backup was made, for who looks how old the last one is.";
        ResumeFleet Post "/v1/fleet/resume" ADMIN Fleet BY Json(Resumption) -> OK Json(Resumed) Whole: "Ends the epoch of a store that was restored from an older copy, so that the hosts that are ahead of it follow it again.";
        ListTasks Get "/v1/tasks" READ Fleet TASKS Nothing -> OK Json(FleetTaskList) Whole: "Lists the tasks that nodes have, each with on how many of them it is done, failed or waits.";
        ShowTask Get "/v1/tasks/{task}" READ Fleet ONE_TASK Nothing -> OK Json(FleetTask) Whole: "Shows where a task failed and why, and what it would change on which nodes.";
        ListAudit Get "/v1/audit" READ Fleet AUDIT Nothing -> OK Json(AuditList) Whole: "Lists what was done and what was refused, in the order of revisions: whose, of which object, since when and until when.";
        GetRequest Get "/v1/requests/{request}" READ Fleet NONE Nothing -> OK Json(RequestRecord) Whole: "Says what became of a write.";
        ListTokens Get "/v1/join-tokens" READ Fleet TOKENS Nothing -> OK Json(TokenList) Whole: "Lists join tokens, without their secrets.";
        CreateToken Post "/v1/join-tokens" WRITE Body BY Json(NewToken) -> CREATED Json(MadeToken) Whole: "Makes a join token; its secret is told this once.";
        GetToken Get "/v1/join-tokens/{token}" READ JoinToken ONE Nothing -> OK Json(Token) Whole: "Shows a join token, without its secret.";
        DeleteToken Delete "/v1/join-tokens/{token}" WRITE JoinToken BY Nothing -> EMPTY Nothing Whole: "Takes a join token back.";

        ListPrincipals Get "/v1/principals" READ Fleet PRINCIPALS Nothing -> OK Json(PrincipalList) Whole: "Lists principals, with what each is known by and until when.";
        CreatePrincipal Post "/v1/principals" ADMIN Body BY Json(Principal) -> CREATED Json(ShownPrincipal) Whole: "Makes a principal; it is known by nothing yet.";
        GetPrincipal Get "/v1/principals/{principal}" READ Principal ONE Nothing -> OK Json(ShownPrincipal) Whole: "Shows a principal, without secrets.";
        PatchPrincipal Patch "/v1/principals/{principal}" ADMIN Principal BY + IF_MATCH MergePatch(PrincipalChange) -> OK Json(ChangedPrincipal) Whole: "Changes a principal's role, cluster or description.";
        DeletePrincipal Delete "/v1/principals/{principal}" ADMIN Principal BY + IF_MATCH Nothing -> EMPTY Nothing Whole: "Deletes a principal: its certificates and tokens are worth nothing from then on.";
        CreateBearerToken Post "/v1/principals/{principal}/tokens" ADMIN Principal BY Json(NewBearerToken) -> CREATED Json(MadeBearerToken) Whole: "Makes a bearer token for a principal; its secret is told this once.";
        RevokeBearerToken Delete "/v1/principals/{principal}/tokens/{token}" ADMIN Principal BY Nothing -> EMPTY Nothing Whole: "Takes a bearer token back.";
        ListCertificates Get "/v1/certificates" READ Fleet CERTIFICATES Nothing -> OK Json(CertificateList) Whole: "Lists the certificates of principals that have not ended.";
        IssueCertificate Post "/v1/certificates" WRITE Body BY Json(NewCertificate) -> CREATED Json(MadeCertificate) Whole: "Issues a certificate for a key: to oneself, or by an admin to any principal.";
        RevokeCertificate Delete "/v1/certificates/{certificate}" ADMIN Certificate BY Nothing -> EMPTY Nothing Whole: "Takes a principal's certificate back, by its serial number.";
    }
}

//! The table itself. One line a route: the variant, method and path, who may call, what comes and what goes, and a sentence.

use super::{Callers, Content, Listener, Method, Route};

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

macro_rules! endpoints {
    ($($listener:ident { $($name:ident $method:ident $path:literal $callers:ident $request:ident $answer:ident $summary:literal;)+ })+) => {
        /// Every route of both listeners. Handlers are chosen by an exhaustive `match` on it, so that a route without
        /// one does not compile.
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
                        request: Content::$request,
                        answer: Content::$answer,
                        summary: $summary,
                    },)+)+
                }
            }

            /// Its name, as the operation id of the API's description.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$name => stringify!($name),)+)+ }
            }
        }
    };
}

endpoints! {
    Agents {
        Enroll Post "/agent/v1/enroll" JOINING Postcard Postcard "Takes a join token and a signing request, gives a node's first certificate.";
        Renew Post "/agent/v1/renew" AGENT Postcard Postcard "Gives the next certificate to the holder of the present one.";
        CheckIn Post "/agent/v1/checkin" AGENT Postcard Postcard "Takes what a host says, and answers when there is news or the wait is over.";
        AgentProfile Get "/agent/v1/profiles/{hash}" AGENT Nothing Postcard "Gives a task profile that the node's own desired state names.";
        AgentBlob Get "/agent/v1/blobs/{hash}" AGENT Nothing Bytes "Gives a file body that the node's own desired state names.";
    }
    Admin {
        Versions Get "/" OPEN Nothing Json "Lists the API's versions; a browser is given the page.";
        VersionsList Get "/versions" OPEN Nothing Json "Lists the API's versions.";
        Version1 Get "/v1" OPEN Nothing Json "Describes version 1.";
        Version2 Get "/v2" OPEN Nothing Json "Describes version 2.";
        Healthz Get "/healthz" OPEN Nothing Text "Says that the process answers.";
        Readyz Get "/readyz" OPEN Nothing Text "Says whether the store takes writes and the cache is whole.";
        Metrics Get "/metrics" READ Nothing Text "Gives the metrics as text, for Prometheus.";
        OpenApi Get "/openapi.json" READ Nothing Json "Describes this API.";

        ListNodes Get "/v1/nodes" READ Nothing Json "Lists nodes.";
        ListNodesDetail Get "/v1/nodes/detail" READ Nothing Json "Lists nodes with all of their fields.";
        CreateNode Post "/v1/nodes" WRITE Json Json "Creates a node.";
        GetNode Get "/v1/nodes/{node}" READ Nothing Json "Shows a node.";
        PatchNode Patch "/v1/nodes/{node}" WRITE AnyPatch Json "Changes a node, or applies its labels, annotations and parameters.";
        DeleteNode Delete "/v1/nodes/{node}" WRITE Nothing Nothing "Deletes a node.";
        ListNodeTraits Get "/v1/nodes/{node}/traits" READ Nothing Json "Lists a node's traits.";
        ReplaceNodeTraits Put "/v1/nodes/{node}/traits" WRITE Json Json "Replaces all of a node's asserted traits.";
        DeleteNodeTraits Delete "/v1/nodes/{node}/traits" WRITE Nothing Nothing "Takes all of a node's asserted traits.";
        AddNodeTrait Put "/v1/nodes/{node}/traits/{trait}" WRITE Nothing Nothing "Gives a node a trait.";
        DeleteNodeTrait Delete "/v1/nodes/{node}/traits/{trait}" WRITE Nothing Nothing "Takes a trait from a node.";
        ListNodeRoles Get "/v1/nodes/{node}/roles" READ Nothing Json "Lists a node's roles.";
        GiveNodeRoles Post "/v1/nodes/{node}/roles" WRITE Json Json "Gives a node roles, all or none.";
        ReplaceNodeRoles Put "/v1/nodes/{node}/roles" WRITE Json Json "Replaces a node's roles.";
        TakeNodeRoles Delete "/v1/nodes/{node}/roles" WRITE Json Json "Takes roles from a node, all or none.";
        ListNodeTags Get "/v1/nodes/{node}/tags" READ Nothing Json "Lists a node's tags with their origins.";
        AssignNodeTags Post "/v1/nodes/{node}/tags" WRITE Json Json "Assigns tags to a node, all or none.";
        UnassignNodeTags Delete "/v1/nodes/{node}/tags" WRITE Json Json "Unassigns tags of a node, all or none.";
        AssignNodeTag Put "/v1/nodes/{node}/tags/{tag}" WRITE Nothing Nothing "Assigns a tag to a node.";
        UnassignNodeTag Delete "/v1/nodes/{node}/tags/{tag}" WRITE Nothing Nothing "Unassigns a tag of a node.";
        ResolvedNode Get "/v1/nodes/{node}/resolved" READ Nothing Json "Shows what a node is to be, with the origin of each value.";
        NodeReport Get "/v1/nodes/{node}/report" READ Nothing Json "Shows what a host said of itself.";
        ExplainNode Get "/v1/nodes/{node}/explain" READ Nothing Json "Says why a label, tag, task or trait of a node is as it is.";
        PutNodeMap Put "/v1/nodes/{node}/{map}" WRITE Json Json "Replaces a node's whole map of labels, annotations or parameters.";
        PatchNodeMap Patch "/v1/nodes/{node}/{map}" WRITE MergePatch Json "Changes single keys of such a map.";
        TombstoneNode Post "/v1/nodes/{node}/{map}/tombstones" WRITE Json Json "Stops keys of such a map from being inherited here.";
        OwnersNode Post "/v1/nodes/{node}/{map}/owners" WRITE Json Json "Hands keys of such a map to another manager.";

        ListTemplates Get "/v1/clustertemplates" READ Nothing Json "Lists cluster templates.";
        CreateTemplate Post "/v1/clustertemplates" WRITE Json Json "Creates a cluster template.";
        GetTemplate Get "/v1/clustertemplates/{template}" READ Nothing Json "Shows a cluster template.";
        PatchTemplate Patch "/v1/clustertemplates/{template}" WRITE AnyPatch Json "Changes a cluster template, or applies its labels, annotations and parameters.";
        DeleteTemplate Delete "/v1/clustertemplates/{template}" WRITE Nothing Nothing "Deletes a cluster template that no cluster uses.";
        PutTemplateMap Put "/v1/clustertemplates/{template}/{map}" WRITE Json Json "Replaces a template's whole map of labels, annotations or parameters.";
        PatchTemplateMap Patch "/v1/clustertemplates/{template}/{map}" WRITE MergePatch Json "Changes single keys of such a map.";
        TombstoneTemplate Post "/v1/clustertemplates/{template}/{map}/tombstones" WRITE Json Json "Stops keys of such a map from being inherited here.";
        OwnersTemplate Post "/v1/clustertemplates/{template}/{map}/owners" WRITE Json Json "Hands keys of such a map to another manager.";

        ListClusters Get "/v1/clusters" READ Nothing Json "Lists clusters.";
        ListClustersDetail Get "/v1/clusters/detail" READ Nothing Json "Lists clusters with all of their fields.";
        CreateCluster Post "/v1/clusters" WRITE Json Json "Creates a cluster.";
        GetCluster Get "/v1/clusters/{cluster}" READ Nothing Json "Shows a cluster.";
        PatchCluster Patch "/v1/clusters/{cluster}" WRITE AnyPatch Json "Changes a cluster, or applies its labels, annotations and parameters.";
        DeleteCluster Delete "/v1/clusters/{cluster}" WRITE Nothing Nothing "Deletes a cluster without nodes.";
        ListClusterTags Get "/v1/clusters/{cluster}/tags" READ Nothing Json "Lists the tags that are visible in a cluster.";
        CreateClusterTag Post "/v1/clusters/{cluster}/tags" WRITE Json Json "Defines a tag of a cluster's own.";
        GetClusterTag Get "/v1/clusters/{cluster}/tags/{tag}" READ Nothing Json "Shows a tag of a cluster.";
        PutClusterTag Put "/v1/clusters/{cluster}/tags/{tag}" WRITE Json Json "Changes a tag of a cluster's own.";
        DeleteClusterTag Delete "/v1/clusters/{cluster}/tags/{tag}" WRITE Nothing Nothing "Deletes a tag of a cluster's own.";
        ListClusterRoles Get "/v1/clusters/{cluster}/roles" READ Nothing Json "Shows a cluster's changes to what its roles give.";
        PutClusterRoles Put "/v1/clusters/{cluster}/roles" WRITE Json Json "Replaces a cluster's changes to what its roles give.";
        ValidateCluster Get "/v1/clusters/{cluster}/validate" READ Nothing Json "Checks a cluster before anything is changed.";
        PutClusterMap Put "/v1/clusters/{cluster}/{map}" WRITE Json Json "Replaces a cluster's whole map of labels, annotations or parameters.";
        PatchClusterMap Patch "/v1/clusters/{cluster}/{map}" WRITE MergePatch Json "Changes single keys of such a map.";
        TombstoneCluster Post "/v1/clusters/{cluster}/{map}/tombstones" WRITE Json Json "Stops keys of such a map from being inherited here.";
        OwnersCluster Post "/v1/clusters/{cluster}/{map}/owners" WRITE Json Json "Hands keys of such a map to another manager.";

        ListGroups Get "/v1/clusters/{cluster}/nodegroups" READ Nothing Json "Lists a cluster's node groups.";
        CreateGroup Post "/v1/clusters/{cluster}/nodegroups" WRITE Json Json "Creates a node group.";
        GetGroup Get "/v1/clusters/{cluster}/nodegroups/{group}" READ Nothing Json "Shows a node group.";
        PatchGroup Patch "/v1/clusters/{cluster}/nodegroups/{group}" WRITE AnyPatch Json "Changes a node group, or applies its labels, annotations and parameters.";
        DeleteGroup Delete "/v1/clusters/{cluster}/nodegroups/{group}" WRITE Nothing Nothing "Deletes a node group without nodes.";
        PutGroupMap Put "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE Json Json "Replaces a group's whole map of labels, annotations or parameters.";
        PatchGroupMap Patch "/v1/clusters/{cluster}/nodegroups/{group}/{map}" WRITE MergePatch Json "Changes single keys of such a map.";
        TombstoneGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/tombstones" WRITE Json Json "Stops keys of such a map from being inherited here.";
        OwnersGroup Post "/v1/clusters/{cluster}/nodegroups/{group}/{map}/owners" WRITE Json Json "Hands keys of such a map to another manager.";

        ListReleases Get "/v1/releases" READ Nothing Json "Lists releases.";
        CreateRelease Post "/v1/releases" ADMIN Json Json "Stores a release.";
        GetRelease Get "/v1/releases/{release}" READ Nothing Json "Shows a release, by NAME@VERSION, or NAME for one without a version.";
        PatchRelease Patch "/v1/releases/{release}" ADMIN AnyPatch Json "Changes a release.";
        DeleteRelease Delete "/v1/releases/{release}" ADMIN Nothing Nothing "Deletes a release that nothing uses.";
        PutReleaseMap Put "/v1/releases/{release}/{map}" ADMIN Json Json "Replaces a release's labels or annotations.";
        PatchReleaseMap Patch "/v1/releases/{release}/{map}" ADMIN MergePatch Json "Changes single keys of such a map.";
        OwnersRelease Post "/v1/releases/{release}/{map}/owners" ADMIN Json Json "Hands keys of such a map to another manager.";
        ListReleaseTasks Get "/v1/releases/{release}/tasks" READ Nothing Json "Lists a release's tasks.";
        ListReleaseTags Get "/v1/releases/{release}/tags" READ Nothing Json "Lists a release's tags.";
        CreateReleaseTag Post "/v1/releases/{release}/tags" ADMIN Json Json "Adds a tag to a release.";
        GetReleaseTag Get "/v1/releases/{release}/tags/{tag}" READ Nothing Json "Shows a tag of a release.";
        PutReleaseTag Put "/v1/releases/{release}/tags/{tag}" ADMIN Json Json "Changes a tag of a release.";
        DeleteReleaseTag Delete "/v1/releases/{release}/tags/{tag}" ADMIN Nothing Nothing "Deletes a tag of a release.";

        Apply Post "/v1/apply" WRITE Json Json "Applies several objects at once, all or none.";
        PutBlob Put "/v1/blobs/{hash}" WRITE Bytes Nothing "Takes a file body, before the manifest that names it.";
        GetRequest Get "/v1/requests/{request}" READ Nothing Json "Says what became of a write.";
        ListTokens Get "/v1/join-tokens" READ Nothing Json "Lists join tokens, without their secrets.";
        CreateToken Post "/v1/join-tokens" WRITE Json Json "Makes a join token; its secret is told this once.";
        GetToken Get "/v1/join-tokens/{token}" READ Nothing Json "Shows a join token, without its secret.";
        DeleteToken Delete "/v1/join-tokens/{token}" WRITE Nothing Nothing "Takes a join token back.";
    }
}

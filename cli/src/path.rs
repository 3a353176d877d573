//! Builds request paths from the endpoint table of the API, so that no path is written by hand.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use stemma_core::{catalog, object};
use stemma_wire::endpoint::{Endpoint, Method, escape};

use crate::api::WriteRequest;
use crate::args::{FilterArgs, KindArg, SelectionArgs};

/// The names and endpoints of one kind of object.
struct KindRow {
    /// The name in arguments and output.
    name: &'static str,
    /// The `kind` of its manifests.
    manifest: &'static str,
    /// The endpoint that returns one object.
    show: Endpoint,
    /// The endpoint that lists the objects, with the details that the command prints.
    list: Endpoint,
}

/// Returns the names and endpoints of a kind. The names are those that [`object::Kind`] defines.
const fn model_kind(kind: object::Kind, show: Endpoint, list: Endpoint) -> KindRow {
    KindRow { name: kind.word(), manifest: kind.name(), show, list }
}

/// Returns the path of an endpoint with a query that selects the nodes that match a filter.
pub(crate) fn node_list_path(endpoint: Endpoint, parameters: &[&str], filter: &FilterArgs) -> String {
    let (path, query) = (endpoint.path(parameters), KindArg::Node.query(filter));
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

impl KindArg {
    const fn kind_endpoints(self) -> KindRow {
        use Endpoint as E;
        use object::Kind;
        match self {
            Self::Allocation => model_kind(Kind::Allocation, E::GetAllocation, E::ListAllocations),
            Self::Node => model_kind(Kind::Node, E::GetNode, E::ListNodesDetail),
            Self::Nodegroup => model_kind(Kind::NodeGroup, E::GetGroup, E::ListGroups),
            Self::Cluster => model_kind(Kind::Cluster, E::GetCluster, E::ListClustersDetail),
            Self::Clustertemplate => model_kind(Kind::ClusterTemplate, E::GetTemplate, E::ListTemplates),
            Self::Release => model_kind(Kind::Release, E::GetRelease, E::ListReleases),
            Self::Namespace => model_kind(Kind::Namespace, E::GetNamespace, E::ListNamespaces),
            Self::Inspectionrule => model_kind(Kind::InspectionRule, E::GetInspectionRule, E::ListInspectionRules),
            Self::Token => KindRow { name: "token", manifest: "JoinToken", show: E::GetToken, list: E::ListTokens },
        }
    }

    /// Returns the name of the kind in arguments and output.
    pub(crate) const fn name(self) -> &'static str {
        self.kind_endpoints().name
    }

    /// Returns the name with its article, for use in a sentence.
    pub(crate) fn name_with_article(self) -> &'static str {
        let kind = object::Kind::ALL.iter().find(|kind| kind.word() == self.name());
        kind.map_or("a join token", |kind| kind.with_article())
    }

    /// Returns the kind with this name, or `None` if there is no such kind.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|kind| kind.name() == name)
    }

    /// Removes the kind from a name that `-o name` printed, such as `node/web-1`. Of a join token, returns only the id
    /// before the dot, so that the secret after the dot is neither sent nor printed. A node group is named
    /// `CLUSTER/GROUP`. So in `nodegroup/web`, the word `nodegroup` is the name of a cluster and is not removed.
    pub(crate) fn bare_name(self, name: &str) -> &str {
        let without_kind = name.strip_prefix(self.name()).and_then(|rest| rest.strip_prefix('/'));
        let name = without_kind.filter(|rest| self != Self::Nodegroup || rest.contains('/')).unwrap_or(name);
        match self {
            Self::Token => name.split_once('.').map_or(name, |(id, _)| id),
            _ => name,
        }
    }

    /// Returns the value of `kind` in the manifests of this kind.
    pub(crate) const fn manifest_name(self) -> &'static str {
        self.kind_endpoints().manifest
    }

    /// Returns whether the kind has manifests. Join tokens and allocations have none, because commands create them.
    pub(crate) fn has_manifest(self) -> bool {
        !matches!(self, Self::Allocation | Self::Token)
    }

    /// Returns the kind with this value of `kind` in manifests, or `None` if no kind with manifests has it.
    pub(crate) fn from_manifest_kind(name: &str) -> Option<Self> {
        let mut kinds = Self::value_variants().iter().copied().filter(|kind| kind.has_manifest());
        kinds.find(|kind| kind.manifest_name() == name)
    }

    /// Returns the path of one object. A node group is named `CLUSTER/GROUP`.
    ///
    /// # Errors
    /// Fails for an empty name, and for a group without its cluster.
    pub(crate) fn path(self, name: &str) -> Result<String> {
        self.endpoint_path(self.kind_endpoints().show, name, &[])
    }

    /// Returns the names of the fields that an object of this kind may have, including fields that some responses omit.
    /// Only `links` and `stored`, which the query parameter `fields` cannot select, are not among them.
    pub(crate) fn known_fields(self) -> BTreeSet<String> {
        if let Some(fields) = self.kind_endpoints().show.selectable_fields() {
            return fields.names.clone();
        }
        // The endpoint of a namespace does not list its fields. They are read from the schema that the controller gives
        // to clients of Glance (OpenStack's image service).
        let schema = catalog::schema("namespace").filter(|_| self == Self::Namespace).unwrap_or_default();
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the endpoint with this method whose path is the path of one object plus `suffix`. `None` if the kind has
    /// no such endpoint.
    pub(crate) fn endpoint(self, method: Method, suffix: &str) -> Option<Endpoint> {
        let path = self.kind_endpoints().show.route().path;
        let is_match = |item: &Endpoint| item.route().method == method && item.route().path.strip_prefix(path) == Some(suffix);
        Endpoint::ALL.iter().copied().find(is_match)
    }

    /// Creates a write request to an endpoint whose path begins with the path of the object `name`. `extra_parameters`
    /// are the path parameters after the name.
    ///
    /// # Errors
    /// Fails for an empty parameter, and for a node group without its cluster.
    pub(crate) fn write_request(self, endpoint: Endpoint, name: &str, extra_parameters: &[&str]) -> Result<WriteRequest> {
        let object = crate::output::printable(&format!("{} {}", self.name(), self.bare_name(name)));
        Ok(WriteRequest::new(endpoint, self.endpoint_path(endpoint, name, extra_parameters)?).for_object(object))
    }

    /// Returns the path of an endpoint that begins with the path of the object `name`. `extra_parameters` are the path
    /// parameters after the name.
    ///
    /// # Errors
    /// Fails for an empty parameter, and for a node group without its cluster.
    pub(crate) fn endpoint_path(self, endpoint: Endpoint, name: &str, extra_parameters: &[&str]) -> Result<String> {
        let name = self.bare_name(name);
        let mut parameters = vec![name];
        if self == Self::Nodegroup {
            let (cluster, group) = name
                .split_once('/')
                .filter(|(cluster, group)| !cluster.is_empty() && !group.is_empty())
                .with_context(|| format!("a node group is named CLUSTER/GROUP, not {name:?}"))?;
            parameters = vec![cluster, group];
        }
        parameters.extend(extra_parameters);
        // The names of the parameters in the path, such as `node` in `/v1/nodes/{node}`.
        let mut names = endpoint.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        if let Some(empty_parameter) = parameters.iter().position(|text| text.is_empty()).and_then(|index| names.nth(index)) {
            if self == Self::Token && name.is_empty() {
                bail!(
                    "which token? its id is empty: it is the part before the dot of ID.SECRET, and `stemma token list` shows it"
                );
            }
            bail!("which {empty_parameter}? its name is empty");
        }
        Ok(endpoint.path(&parameters))
    }

    /// Returns the path that lists the objects of this kind that match a filter. Fails if the list does not support the
    /// filter, and for node groups without a cluster.
    pub(crate) fn list_path(self, filter: &FilterArgs) -> Result<String> {
        let cluster = match self {
            Self::Nodegroup => Some(filter.selection.cluster.as_deref().context("a list of node groups needs a cluster")?),
            _ => None,
        };
        if self == Self::Namespace && self.is_filtered(filter) {
            bail!("namespaces of the catalogue cannot be filtered: name them");
        }
        let path = self.kind_endpoints().list.path(cluster.as_slice());
        if filter.selection.cluster.is_some() && !matches!(self, Self::Nodegroup | Self::Node) {
            bail!("--cluster narrows nodes and node groups; a {} is in no cluster", self.name());
        }
        let query = self.query(filter);
        query.split('&').filter(|term| !term.is_empty()).try_for_each(|term| self.check_parameter(term))?;
        Ok(if query.is_empty() { path } else { format!("{path}?{query}") })
    }

    /// Fails if the list of this kind does not support a query parameter. `term` is `NAME=VALUE`. The error names the
    /// option of the parameter.
    fn check_parameter(self, term: &str) -> Result<()> {
        let name = term.split_once('=').map_or(term, |(name, _)| name);
        let supports = |kind: Self| kind.kind_endpoints().list.route().query.allows(name);
        if supports(self) {
            return Ok(());
        }
        // Namespaces can't be filtered, whatever Glance's list supports.
        let kinds = Self::value_variants().iter().filter(|kind| **kind != Self::Namespace && supports(**kind));
        let kinds: Vec<String> = kinds.map(|kind| kind.plural()).collect();
        // The option for the parameter `traits` is `--trait`.
        bail!("--{} narrows {}, and not {}", name.replace("traits", "trait"), kinds.join(" and "), self.plural())
    }

    fn plural(self) -> String {
        match self {
            Self::Nodegroup => "node groups".to_owned(),
            Self::Clustertemplate => "cluster templates".to_owned(),
            Self::Inspectionrule => "inspection rules".to_owned(),
            other => format!("{}s", other.name()),
        }
    }

    /// Returns the path that lists the objects that match a filter, for nodes only with the uuid and name of each.
    ///
    /// # Errors
    /// Fails if the list does not support the filter, and for node groups without a cluster.
    pub(crate) fn names_path(self, filter: &FilterArgs) -> Result<String> {
        let path = self.list_path(filter)?;
        if self != Self::Node {
            return Ok(path);
        }
        let query = path.split_once('?').map_or_else(String::new, |(_, query)| format!("&{query}"));
        Ok(format!("{}?fields=uuid,name{query}", Endpoint::ListNodes.path(&[])))
    }

    /// Returns whether the filter limits the list of this kind.
    pub(crate) fn is_filtered(self, filter: &FilterArgs) -> bool {
        filter.selection.cluster.is_some() || !self.query(filter).is_empty()
    }

    /// Returns the query for a filter, without `?`. Only a list of nodes has the cluster in its query.
    fn query(self, filter: &FilterArgs) -> String {
        let mut terms = Vec::new();
        let mut term = |name: &str, value: &str| terms.push(format!("{name}={}", escape(value)));
        // The cluster of a group is part of the list's path.
        let SelectionArgs { selector, nodegroup, cluster, state } = &filter.selection;
        let cluster = cluster.as_ref().filter(|_| self == Self::Node);
        let single_values = [("selector", selector.as_ref()), ("nodegroup", nodegroup.as_ref()), ("cluster", cluster)];
        for (name, value) in single_values {
            if let Some(value) = value {
                term(name, value);
            }
        }
        let lists = [
            ("traits", &filter.traits),
            ("not-traits", &filter.not_trait),
            ("traits-any", &filter.trait_any),
            ("not-traits-any", &filter.not_trait_any),
            ("state", state),
        ];
        for (name, values) in lists.into_iter().filter(|(_, values)| !values.is_empty()) {
            term(name, &values.join(","));
        }
        for (name, values) in [("tag", &filter.tag), ("role", &filter.role), ("requirement", &filter.requirement)] {
            for value in values {
                term(name, value);
            }
        }
        terms.join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An invalid name is refused, and the error does not print the secret of a token.
    #[test]
    fn path_is_built_from_kind_and_name() {
        for (kind, name, path) in [
            (KindArg::Node, "web-1", "/v1/nodes/web-1"),
            (KindArg::Nodegroup, "prod/frontends", "/v1/clusters/prod/nodegroups/frontends"),
            (KindArg::Release, "site@2026.11", "/v1/releases/site@2026.11"),
            (KindArg::Node, "node/web-1", "/v1/nodes/web-1"),
            (KindArg::Nodegroup, "nodegroup/prod/frontends", "/v1/clusters/prod/nodegroups/frontends"),
            (KindArg::Node, "../n9", "/v1/nodes/..%2Fn9"),
            (KindArg::Token, "token/0a1b.5ec2e7", "/v1/join-tokens/0a1b"),
            (KindArg::Token, "0a1b", "/v1/join-tokens/0a1b"),
        ] {
            assert_eq!(kind.path(name).unwrap(), path);
        }
        for name in ["frontends", "prod/", "/web"] {
            assert!(KindArg::Nodegroup.path(name).unwrap_err().to_string().contains("CLUSTER/GROUP"), "{name}");
        }
        assert_eq!(KindArg::Node.path("").unwrap_err().to_string(), "which node? its name is empty");
        for name in [".", ".5ec2e7", "token/.5ec2e7", ""] {
            let error = KindArg::Token.path(name).unwrap_err().to_string();
            assert!(error.starts_with("which token? its id is empty: it is the part before the dot"), "{error}");
            assert!(!error.contains("5ec2e7"), "the secret is not printed: {error}");
        }
        let error = KindArg::Node.endpoint_path(Endpoint::DeleteNodeTrait, "n1", &[""]).unwrap_err();
        assert_eq!(error.to_string(), "which trait? its name is empty");
    }

    #[test]
    fn known_fields_lists_fields_of_each_kind() {
        // Some fields are in a response only sometimes: `last_seen` is null until a host has connected, and a sensitive
        // rule hides its actions.
        for (kind, fields) in [
            (KindArg::Node, &["state", "notes", "labels", "last_seen", "reported_state", "hold"][..]),
            (KindArg::Nodegroup, &["labels", "node_states", "paused"]),
            (KindArg::Cluster, &["labels", "node_states", "status"]),
            (KindArg::Clustertemplate, &["labels", "release"]),
            (KindArg::Release, &["task_count", "version"]),
            (KindArg::Allocation, &["state", "node_uuid"]),
            (KindArg::Namespace, &["namespace", "display_name", "protected"]),
            (KindArg::Inspectionrule, &["priority", "actions"]),
            (KindArg::Token, &["uses_left", "expires_at"]),
        ] {
            let names = kind.known_fields();
            for field in fields {
                assert!(names.contains(*field), "{}: {field}: {names:?}", kind.name());
            }
        }
    }

    #[test]
    fn w05_list_path_error_names_option_of_unsupported_filter() {
        let by_state = FilterArgs {
            selection: SelectionArgs { state: vec!["failed".into()], ..SelectionArgs::default() },
            ..FilterArgs::default()
        };
        let by_trait = FilterArgs { traits: vec!["CUSTOM_A".into()], ..FilterArgs::default() };
        for (kind, filter, expected) in [
            (KindArg::Cluster, &by_state, "--state narrows allocations and nodes, and not clusters"),
            (KindArg::Clustertemplate, &by_state, "--state narrows allocations and nodes, and not cluster templates"),
            (KindArg::Cluster, &by_trait, "--trait narrows "),
        ] {
            let error = kind.list_path(filter).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(KindArg::Node.list_path(&by_state).is_ok());
    }

    #[test]
    fn y09_node_list_path_has_only_allowed_parameters() {
        let filter = FilterArgs {
            selection: SelectionArgs {
                selector: Some("a=b".into()),
                nodegroup: Some("c/g".into()),
                cluster: Some("c".into()),
                state: vec!["failed".into()],
            },
            traits: vec!["A".into()],
            not_trait: vec!["A".into()],
            trait_any: vec!["A".into()],
            not_trait_any: vec!["A".into()],
            tag: vec!["t".into()],
            role: vec!["r".into()],
            requirement: vec!["x = 1".into()],
            ..FilterArgs::default()
        };
        assert_eq!(node_list_path(Endpoint::ListTasks, &[], &FilterArgs::default()), "/v1/tasks");
        for (endpoint, parameters, beginning) in
            [(Endpoint::ListTasks, &[][..], "/v1/tasks?selector="), (Endpoint::ShowTask, &["a/b"], "/v1/tasks/a%2Fb?selector=")]
        {
            let path = node_list_path(endpoint, parameters, &filter);
            assert!(path.starts_with(beginning), "{path}");
            for term in path.split_once('?').unwrap().1.split('&') {
                assert!(endpoint.route().query.allows(term.split_once('=').unwrap().0), "{term}");
            }
        }
    }

    /// Each parameter of the query is one that the list supports.
    #[test]
    fn list_path_writes_filter_as_query() {
        let filter = FilterArgs {
            selection: SelectionArgs { selector: Some("tier in (a,b)".into()), ..SelectionArgs::default() },
            traits: vec!["HW_CPU_X86_AVX2".into(), "CUSTOM_A".into()],
            tag: vec!["nginx".into(), "mysql".into()],
            requirement: vec!["property:memory_mb >= 4".into()],
            ..FilterArgs::default()
        };
        assert_eq!(
            KindArg::Node.list_path(&filter).unwrap(),
            "/v1/nodes/detail?selector=tier%20in%20%28a%2Cb%29&traits=HW_CPU_X86_AVX2%2CCUSTOM_A&tag=nginx&tag=mysql\
             &requirement=property:memory_mb%20%3E%3D%204"
        );
        assert!(KindArg::Node.names_path(&filter).unwrap().starts_with("/v1/nodes?fields=uuid,name&selector=tier%20in"));
        let supported = Endpoint::ListNodesDetail.route().query;
        let full_filter = FilterArgs {
            selection: SelectionArgs {
                selector: Some("a".into()),
                nodegroup: Some("a/b".into()),
                cluster: Some("a".into()),
                state: vec!["failed".into()],
            },
            not_trait: vec!["A".into()],
            trait_any: vec!["A".into()],
            not_trait_any: vec!["A".into()],
            role: vec!["a".into()],
            ..filter
        };
        for term in KindArg::Node.query(&full_filter).split('&') {
            let (name, _) = term.split_once('=').unwrap();
            assert!(supported.allows(name), "{name} is not a parameter of the list");
        }
    }
}

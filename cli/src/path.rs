//! The paths of the API, from the rows of the endpoint table: one function for all of them, so that none is written by hand.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use stemma_core::{catalog, object};
use stemma_wire::endpoint::{Endpoint, Method, escape};

use crate::api::Write;
use crate::args::{Filter, Kind, Selection};

/// One kind, as the command knows it.
struct Row {
    /// The name on the screen.
    name: &'static str,
    /// The `kind` of its manifests.
    manifest: &'static str,
    /// The row that shows one object.
    show: Endpoint,
    /// The row that lists them, as much of each as the command prints.
    list: Endpoint,
}

/// A kind of the model, whose names stand in the model's table.
const fn kind(of: object::Kind, show: Endpoint, list: Endpoint) -> Row {
    Row { name: of.word(), manifest: of.name(), show, list }
}

/// The path of a row that is asked about the nodes that a filter leaves.
pub(crate) fn of_nodes(row: Endpoint, parameters: &[&str], filter: &Filter) -> String {
    let (path, query) = (row.path(parameters), Kind::Node.query(filter));
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

impl Kind {
    const fn table(self) -> Row {
        use Endpoint as E;
        use object::Kind as Of;
        match self {
            Self::Allocation => kind(Of::Allocation, E::GetAllocation, E::ListAllocations),
            Self::Node => kind(Of::Node, E::GetNode, E::ListNodesDetail),
            Self::Nodegroup => kind(Of::NodeGroup, E::GetGroup, E::ListGroups),
            Self::Cluster => kind(Of::Cluster, E::GetCluster, E::ListClustersDetail),
            Self::Clustertemplate => kind(Of::ClusterTemplate, E::GetTemplate, E::ListTemplates),
            Self::Release => kind(Of::Release, E::GetRelease, E::ListReleases),
            Self::Namespace => kind(Of::Namespace, E::GetNamespace, E::ListNamespaces),
            Self::Inspectionrule => kind(Of::InspectionRule, E::GetInspectionRule, E::ListInspectionRules),
            Self::Token => Row { name: "token", manifest: "JoinToken", show: E::GetToken, list: E::ListTokens },
        }
    }

    /// The name in manifests and on the screen.
    pub(crate) const fn name(self) -> &'static str {
        self.table().name
    }

    /// One of the kind in a sentence.
    pub(crate) fn with_article(self) -> &'static str {
        let kind = object::Kind::ALL.iter().find(|kind| kind.word() == self.name());
        kind.map_or("a join token", |kind| kind.with_article())
    }

    /// The kind of that name on the screen.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|kind| kind.name() == name)
    }

    /// A name without the kind that `-o name` prints before it. Of a join token what stands before the secret is its name: the secret is
    /// neither sent nor printed.
    pub(crate) fn bare(self, name: &str) -> &str {
        let printed = name.strip_prefix(self.name()).and_then(|rest| rest.strip_prefix('/'));
        let name = printed.filter(|rest| self != Self::Nodegroup || rest.contains('/')).unwrap_or(name);
        match self {
            Self::Token => name.split_once('.').map_or(name, |(id, _)| id),
            _ => name,
        }
    }

    /// The `kind` of its manifests.
    pub(crate) const fn manifest_name(self) -> &'static str {
        self.table().manifest
    }

    /// Whether it is one of the kinds of manifests: a join token and an allocation are made where they are asked for.
    pub(crate) fn has_manifest(self) -> bool {
        !matches!(self, Self::Allocation | Self::Token)
    }

    /// The kind that a manifest names.
    pub(crate) fn of_manifest(name: &str) -> Option<Self> {
        let mut kinds = Self::value_variants().iter().copied().filter(|kind| kind.has_manifest());
        kinds.find(|kind| kind.manifest_name() == name)
    }

    /// The path of one object; a node group is `CLUSTER/GROUP`.
    ///
    /// # Errors
    /// For an empty name, and for a group's without its cluster.
    pub(crate) fn path(self, name: &str) -> Result<String> {
        self.path_of(self.table().show, name, &[])
    }

    /// The fields that may be shown of one object, also those that an answer has only at times.
    pub(crate) fn fields(self) -> BTreeSet<String> {
        if let Some(fields) = self.table().show.fields() {
            return fields.names.clone();
        }
        // Nothing is chosen of a namespace, and its schema is the one that Glance's clients are given.
        let schema = catalog::schema("namespace").filter(|_| self == Self::Namespace).unwrap_or_default();
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    /// The row with this method at the path of one object, or at what stands `below` it; none where the kind has no such row.
    pub(crate) fn row(self, method: Method, below: &str) -> Option<Endpoint> {
        let path = self.table().show.route().path;
        let is_it = |row: &Endpoint| row.route().method == method && row.route().path.strip_prefix(path) == Some(below);
        Endpoint::ALL.iter().copied().find(is_it)
    }

    /// A write to a row that stands at or below one object; `more` are its parameters beyond the object's own.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub(crate) fn write(self, row: Endpoint, name: &str, more: &[&str]) -> Result<Write> {
        let about = crate::output::printable(&format!("{} {}", self.name(), self.bare(name)));
        Ok(Write::at(row, self.path_of(row, name, more)?).about(about))
    }

    /// The path of a row that stands at or below one object; `more` are its parameters beyond the object's own.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub(crate) fn path_of(self, row: Endpoint, name: &str, more: &[&str]) -> Result<String> {
        let name = self.bare(name);
        let mut parameters = vec![name];
        if self == Self::Nodegroup {
            let (cluster, group) = name
                .split_once('/')
                .filter(|(cluster, group)| !cluster.is_empty() && !group.is_empty())
                .with_context(|| format!("a node group is named CLUSTER/GROUP, not {name:?}"))?;
            parameters = vec![cluster, group];
        }
        parameters.extend(more);
        let mut names = row.route().path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        if let Some(empty) = parameters.iter().position(|one| one.is_empty()).and_then(|at| names.nth(at)) {
            if self == Self::Token && name.is_empty() {
                bail!(
                    "which token? its id is empty: it is what stands before the dot of ID.SECRET, and `stemma token list` shows it"
                );
            }
            bail!("which {empty}? its name is empty");
        }
        Ok(row.path(&parameters))
    }

    /// The path of the list that a filter asks for.
    pub(crate) fn list_path(self, filter: &Filter) -> Result<String> {
        let cluster = match self {
            Self::Nodegroup => {
                Some(filter.selection.cluster.as_deref().context("a list of node groups is a cluster's")?)
            }
            _ => None,
        };
        if self == Self::Namespace && self.is_narrowed_by(filter) {
            bail!("namespaces of the catalogue are not selected: name them");
        }
        let path = self.table().list.path(cluster.as_slice());
        if filter.selection.cluster.is_some() && !matches!(self, Self::Nodegroup | Self::Node) {
            bail!("--cluster narrows nodes and node groups; a {} is in no cluster", self.name());
        }
        let query = self.query(filter);
        query.split('&').filter(|term| !term.is_empty()).try_for_each(|term| self.check_term(term))?;
        Ok(if query.is_empty() { path } else { format!("{path}?{query}") })
    }

    /// Refuses a filter that the list does not know, by the name of its option.
    fn check_term(self, term: &str) -> Result<()> {
        let name = term.split_once('=').map_or(term, |(name, _)| name);
        let takes = |kind: Self| kind.table().list.route().query.allows(name);
        if takes(self) {
            return Ok(());
        }
        // Namespaces are not selected, whatever Glance's list takes.
        let kinds = Self::value_variants().iter().filter(|kind| **kind != Self::Namespace && takes(**kind));
        let kinds: Vec<String> = kinds.map(|kind| kind.words()).collect();
        bail!("--{} narrows {}, and not {}", name.replace("traits", "trait"), kinds.join(" and "), self.words())
    }

    /// What several are called.
    fn words(self) -> String {
        match self {
            Self::Nodegroup => "node groups".to_owned(),
            Self::Clustertemplate => "cluster templates".to_owned(),
            Self::Inspectionrule => "inspection rules".to_owned(),
            other => format!("{}s", other.name()),
        }
    }

    /// The path of the same list, with no more of each object than its name where the list can leave the rest out.
    ///
    /// # Errors
    /// As [`Self::list_path`].
    pub(crate) fn names_path(self, filter: &Filter) -> Result<String> {
        let path = self.list_path(filter)?;
        if self != Self::Node {
            return Ok(path);
        }
        let query = path.split_once('?').map_or_else(String::new, |(_, query)| format!("&{query}"));
        Ok(format!("{}?fields=uuid,name{query}", Endpoint::ListNodes.path(&[])))
    }

    /// Whether a filter leaves anything out.
    pub(crate) fn is_narrowed_by(self, filter: &Filter) -> bool {
        filter.selection.cluster.is_some() || !self.query(filter).is_empty()
    }

    fn query(self, filter: &Filter) -> String {
        let mut terms = Vec::new();
        let mut term = |name: &str, value: &str| terms.push(format!("{name}={}", escape(value)));
        // A group's cluster stands in the path of the list.
        let Selection { selector, nodegroup, cluster, state } = &filter.selection;
        let cluster = cluster.as_ref().filter(|_| self == Self::Node);
        let single = [("selector", selector.as_ref()), ("nodegroup", nodegroup.as_ref()), ("cluster", cluster)];
        for (name, value) in single {
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

    #[test]
    fn an_object_is_found_by_kind_and_name() {
        for (kind, name, path) in [
            (Kind::Node, "web-1", "/v1/nodes/web-1"),
            (Kind::Nodegroup, "prod/frontends", "/v1/clusters/prod/nodegroups/frontends"),
            (Kind::Release, "site@2026.11", "/v1/releases/site@2026.11"),
            (Kind::Node, "node/web-1", "/v1/nodes/web-1"),
            (Kind::Nodegroup, "nodegroup/prod/frontends", "/v1/clusters/prod/nodegroups/frontends"),
            (Kind::Node, "../n9", "/v1/nodes/..%2Fn9"),
            (Kind::Token, "token/0a1b.5ec2e7", "/v1/join-tokens/0a1b"),
            (Kind::Token, "0a1b", "/v1/join-tokens/0a1b"),
        ] {
            assert_eq!(kind.path(name).unwrap(), path);
        }
        for name in ["frontends", "prod/", "/web"] {
            assert!(Kind::Nodegroup.path(name).unwrap_err().to_string().contains("CLUSTER/GROUP"), "{name}");
        }
        assert_eq!(Kind::Node.path("").unwrap_err().to_string(), "which node? its name is empty");
        for name in [".", ".5ec2e7", "token/.5ec2e7", ""] {
            let said = Kind::Token.path(name).unwrap_err().to_string();
            assert!(said.starts_with("which token? its id is empty: it is what stands before the dot"), "{said}");
            assert!(!said.contains("5ec2e7"), "the secret is not printed: {said}");
        }
        let of_no_trait = Kind::Node.path_of(Endpoint::DeleteNodeTrait, "n1", &[""]).unwrap_err();
        assert_eq!(of_no_trait.to_string(), "which trait? its name is empty");
    }

    #[test]
    fn the_fields_of_each_kind_are_known() {
        // Some that an answer has only at times are among them: `last_seen` is null until a host has come, and a rule that is sensitive shows no actions.
        for (kind, fields) in [
            (Kind::Node, &["state", "notes", "labels", "last_seen", "reported_state", "hold"][..]),
            (Kind::Nodegroup, &["labels", "node_states", "paused"]),
            (Kind::Cluster, &["labels", "node_states", "status"]),
            (Kind::Clustertemplate, &["labels", "release"]),
            (Kind::Release, &["task_count", "version"]),
            (Kind::Allocation, &["state", "node_uuid"]),
            (Kind::Namespace, &["namespace", "display_name", "protected"]),
            (Kind::Inspectionrule, &["priority", "actions"]),
            (Kind::Token, &["uses_left", "expires_at"]),
        ] {
            let known = kind.fields();
            for field in fields {
                assert!(known.contains(*field), "{}: {field}: {known:?}", kind.name());
            }
        }
    }

    #[test]
    fn w05_a_filter_that_a_list_does_not_know_is_refused_by_its_option() {
        let by_state = Filter {
            selection: Selection { state: vec!["failed".into()], ..Selection::default() },
            ..Filter::default()
        };
        let by_trait = Filter { traits: vec!["CUSTOM_A".into()], ..Filter::default() };
        for (kind, filter, said) in [
            (Kind::Cluster, &by_state, "--state narrows allocations and nodes, and not clusters"),
            (Kind::Clustertemplate, &by_state, "--state narrows allocations and nodes, and not cluster templates"),
            (Kind::Cluster, &by_trait, "--trait narrows "),
        ] {
            let refused = kind.list_path(filter).unwrap_err().to_string();
            assert!(refused.starts_with(said), "{refused}");
        }
        assert!(Kind::Node.list_path(&by_state).is_ok());
    }

    #[test]
    fn y09_tasks_are_asked_for_of_the_nodes_that_a_filter_leaves() {
        let filter = Filter {
            selection: Selection {
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
            ..Filter::default()
        };
        assert_eq!(of_nodes(Endpoint::ListTasks, &[], &Filter::default()), "/v1/tasks");
        for (row, parameters, begins) in [
            (Endpoint::ListTasks, &[][..], "/v1/tasks?selector="),
            (Endpoint::ShowTask, &["a/b"], "/v1/tasks/a%2Fb?selector="),
        ] {
            let path = of_nodes(row, parameters, &filter);
            assert!(path.starts_with(begins), "{path}");
            for term in path.split_once('?').unwrap().1.split('&') {
                assert!(row.route().query.allows(term.split_once('=').unwrap().0), "{term}");
            }
        }
    }

    #[test]
    fn a_filter_is_a_query() {
        let filter = Filter {
            selection: Selection { selector: Some("tier in (a,b)".into()), ..Selection::default() },
            traits: vec!["HW_CPU_X86_AVX2".into(), "CUSTOM_A".into()],
            tag: vec!["nginx".into(), "mysql".into()],
            requirement: vec!["property:memory_mb >= 4".into()],
            ..Filter::default()
        };
        assert_eq!(
            Kind::Node.list_path(&filter).unwrap(),
            "/v1/nodes/detail?selector=tier%20in%20%28a%2Cb%29&traits=HW_CPU_X86_AVX2%2CCUSTOM_A&tag=nginx&tag=mysql\
             &requirement=property:memory_mb%20%3E%3D%204"
        );
        assert!(Kind::Node.names_path(&filter).unwrap().starts_with("/v1/nodes?fields=uuid,name&selector=tier%20in"));
        let taken = Endpoint::ListNodesDetail.route().query;
        let every = Filter {
            selection: Selection {
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
        for term in Kind::Node.query(&every).split('&') {
            let (name, _) = term.split_once('=').unwrap();
            assert!(taken.allows(name), "{name} is no parameter of the list");
        }
    }
}

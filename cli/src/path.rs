//! Where an object stands in the API.

use anyhow::{Context as _, Result, bail};

use crate::api::escaped;
use crate::args::{Filter, Kind};

impl Kind {
    /// The name in manifests and on the screen.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Nodegroup => "nodegroup",
            Self::Cluster => "cluster",
            Self::Clustertemplate => "clustertemplate",
            Self::Release => "release",
            Self::Token => "token",
        }
    }

    /// A name without the kind that `-o name` prints before it.
    pub(crate) fn bare(self, name: &str) -> &str {
        let printed = name.strip_prefix(self.name()).and_then(|rest| rest.strip_prefix('/'));
        printed.filter(|rest| self != Self::Nodegroup || rest.contains('/')).unwrap_or(name)
    }

    /// The kind that a manifest names.
    pub(crate) fn of_manifest(kind: &str) -> Option<Self> {
        match kind {
            "Node" => Some(Self::Node),
            "NodeGroup" => Some(Self::Nodegroup),
            "Cluster" => Some(Self::Cluster),
            "ClusterTemplate" => Some(Self::Clustertemplate),
            "Release" => Some(Self::Release),
            _ => None,
        }
    }

    /// The path of one object; a node group is `CLUSTER/GROUP`.
    ///
    /// # Errors
    /// For an empty name, and for a group's without its cluster.
    pub(crate) fn path(self, name: &str) -> Result<String> {
        let name = self.bare(name);
        if name.is_empty() {
            bail!("which {}? its name is empty", self.name());
        }
        Ok(match self {
            Self::Node => format!("/v1/nodes/{}", escaped(name)),
            Self::Nodegroup => {
                let (cluster, group) = name
                    .split_once('/')
                    .filter(|(cluster, group)| !cluster.is_empty() && !group.is_empty())
                    .with_context(|| format!("a node group is named CLUSTER/GROUP, not {name:?}"))?;
                format!("/v1/clusters/{}/nodegroups/{}", escaped(cluster), escaped(group))
            }
            Self::Cluster => format!("/v1/clusters/{}", escaped(name)),
            Self::Clustertemplate => format!("/v1/clustertemplates/{}", escaped(name)),
            Self::Release => format!("/v1/releases/{}", escaped(name)),
            Self::Token => format!("/v1/join-tokens/{}", escaped(name)),
        })
    }

    /// The path of the list that a filter asks for.
    pub(crate) fn list_path(self, filter: &Filter) -> Result<String> {
        let path = match self {
            Self::Node => "/v1/nodes/detail".to_owned(),
            Self::Nodegroup => {
                let cluster = filter.cluster.as_deref().context("whose? give --cluster CLUSTER")?;
                format!("/v1/clusters/{}/nodegroups", escaped(cluster))
            }
            Self::Cluster => "/v1/clusters/detail".to_owned(),
            Self::Clustertemplate => "/v1/clustertemplates".to_owned(),
            Self::Release => "/v1/releases".to_owned(),
            Self::Token => "/v1/join-tokens".to_owned(),
        };
        let query = query(filter);
        Ok(if query.is_empty() { path } else { format!("{path}?{query}") })
    }
}

fn query(filter: &Filter) -> String {
    let mut terms = Vec::new();
    let mut term = |name: &str, value: &str| terms.push(format!("{name}={}", escaped(value)));
    for (name, value) in [("selector", &filter.selector), ("nodegroup", &filter.nodegroup)] {
        if let Some(value) = value {
            term(name, value);
        }
    }
    let lists = [
        ("traits", &filter.traits),
        ("not-traits", &filter.not_trait),
        ("traits-any", &filter.trait_any),
        ("not-traits-any", &filter.not_trait_any),
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
        ] {
            assert_eq!(kind.path(name).unwrap(), path);
        }
        for name in ["frontends", "prod/", "/web"] {
            assert!(Kind::Nodegroup.path(name).unwrap_err().to_string().contains("CLUSTER/GROUP"), "{name}");
        }
        assert_eq!(Kind::Node.path("").unwrap_err().to_string(), "which node? its name is empty");
    }

    #[test]
    fn a_filter_is_a_query() {
        let filter = Filter {
            selector: Some("tier in (a,b)".into()),
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
    }
}

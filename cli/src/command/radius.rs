//! How many hosts a write reaches: said, bounded by `--max-nodes`, and asked about at a terminal.

use std::collections::BTreeSet;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::api::Api;
use crate::args::{Filter, Kind};
use crate::command::question::{list, pages};
use crate::exit::Exit;

/// From here on a person is asked.
const ASKS_ABOVE: usize = 10;

impl Api {
    /// Says and bounds the radius of a write to one object.
    ///
    /// # Errors
    /// Above `--max-nodes`, and when a person says no.
    pub(crate) async fn within_radius(&mut self, kind: Kind, name: &str) -> Result<()> {
        self.within_radius_of(&[(kind, name.to_owned())]).await
    }

    /// The same for several objects in one write. A node's own is no radius, and an answer only says so.
    ///
    /// # Errors
    /// As [`Api::within_radius`].
    pub(crate) async fn within_radius_of(&mut self, objects: &[(Kind, String)]) -> Result<()> {
        let alone = objects.iter().filter(|(kind, _)| *kind == Kind::Node).count();
        if self.is_dry() || (alone == objects.len() && alone <= self.max_nodes().unwrap_or(ASKS_ABOVE).min(ASKS_ABOVE))
        {
            return Ok(());
        }
        let hosts = self.hosts_of(objects).await?;
        match self.max_nodes() {
            Some(most) if hosts > most => Err(Exit::Error.because(format!(
                "this reaches {hosts} hosts, more than --max-nodes {most}; nothing was changed\n  \
                 raise it, or write to a level nearer to the hosts"
            ))),
            None if hosts > ASKS_ABOVE => ask(hosts),
            _ => Ok(()),
        }
    }

    /// How many nodes stand at or below these objects.
    async fn hosts_of(&mut self, objects: &[(Kind, String)]) -> Result<usize> {
        let nodes = pages(self, "/v1/nodes".to_owned()).await?;
        let clusters = if objects.iter().any(|(kind, _)| matches!(kind, Kind::Clustertemplate | Kind::Release)) {
            list(self, Kind::Cluster, &Filter::default()).await?
        } else {
            Vec::new()
        };
        Ok(nodes.iter().filter(|node| objects.iter().any(|object| reaches(object, node, &clusters))).count())
    }
}

/// Whether a node stands at or below an object. A release reaches no host before some level names it.
fn reaches((kind, name): &(Kind, String), node: &Value, clusters: &[Value]) -> bool {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let place = text(node, "nodegroup");
    let cluster = place.split_once('/').map(|(cluster, _)| cluster);
    match kind {
        Kind::Node => text(node, "name") == *name || text(node, "uuid") == *name,
        Kind::Nodegroup => place == *name,
        Kind::Cluster => cluster == Some(name),
        Kind::Clustertemplate => {
            let made = clusters.iter().filter(|cluster| text(cluster, "cluster_template") == *name);
            let made: BTreeSet<String> = made.map(|cluster| text(cluster, "name")).collect();
            cluster.is_some_and(|cluster| made.contains(cluster))
        }
        Kind::Release | Kind::Token => false,
    }
}

/// Asks at a terminal; a script is only told, and bounds itself with `--max-nodes`.
fn ask(hosts: usize) -> Result<()> {
    eprint!("this reaches {hosts} hosts");
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        eprintln!();
        return Ok(());
    }
    eprint!(": go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("y") || answer.trim().eq_ignore_ascii_case("yes") {
        return Ok(());
    }
    bail!("nothing was changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_level_reaches_what_stands_below_it() {
        let node = json!({"name": "web-1", "uuid": "u", "nodegroup": "prod/web"});
        let clusters =
            [json!({"name": "prod", "cluster_template": "base"}), json!({"name": "lab", "cluster_template": "other"})];
        for (kind, name, expected) in [
            (Kind::Node, "web-1", true),
            (Kind::Nodegroup, "prod/web", true),
            (Kind::Nodegroup, "prod/db", false),
            (Kind::Cluster, "prod", true),
            (Kind::Cluster, "pro", false),
            (Kind::Clustertemplate, "base", true),
            (Kind::Clustertemplate, "other", false),
            (Kind::Release, "site@1", false),
        ] {
            assert_eq!(reaches(&(kind, name.to_owned()), &node, &clusters), expected, "{kind:?} {name}");
        }
    }
}

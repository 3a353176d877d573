//! `stemma primary`: shows and sets the node that holds each tag of a cluster as primary.

use anyhow::{Error, Result};
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;

use crate::api::ApiClient;
use crate::args::{KindArg, Output, PrimaryCommand};
use crate::command::read;
use crate::command::report::WriteReport;
use crate::exit::Exit;
use crate::output::{cell_text, table, time_with_age};

/// Runs `stemma primary`: shows the primaries of a cluster, or chooses a node as the primary of a tag.
pub(crate) async fn primary(api: &mut ApiClient, command: PrimaryCommand, output: Output) -> Result<()> {
    match command {
        PrimaryCommand::Show { cluster, tag } => show_primaries(api, &cluster, tag.as_deref(), output).await,
        PrimaryCommand::Set { cluster, tag, node } => {
            let node = KindArg::Node.bare_name(&node);
            let write = KindArg::Cluster.write_request(Endpoint::ChoosePrimary, &cluster, &[&tag])?;
            let response = match api.send(write.with_json(&json!({"node": node}))).await {
                Err(error) => return Err(cluster_error(api, &cluster, error).await),
                Ok(response) => response,
            };
            let sentence = format!("node {node} holds {tag} of cluster {} as primary", KindArg::Cluster.bare_name(&cluster));
            WriteReport { kind: "primary", name: &tag, sentence, answer: response }.print(api, output).await
        }
    }
}

/// Runs `stemma primary show`: prints all primaries of a cluster, or only the primary of the given tag.
async fn show_primaries(api: &mut ApiClient, cluster: &str, tag: Option<&str>, output: Output) -> Result<()> {
    let path = KindArg::Cluster.endpoint_path(Endpoint::ListPrimaries, cluster, &[])?;
    let list = match api.get(&path).await {
        Err(error) => return Err(cluster_error(api, cluster, error).await),
        Ok(list) => list,
    };
    let rows: Vec<&Value> = read::list_items(&list).filter(|row| tag.is_none_or(|tag| row_tag(row) == tag)).collect();
    let value = match (tag, rows.first()) {
        (Some(tag), None) => {
            let sentence = format!("cluster {} has no tag {tag:?} with a primary", KindArg::Cluster.bare_name(cluster));
            return Err(Exit::NotFound.with_message(sentence));
        }
        (Some(_), Some(row)) => (*row).clone(),
        (None, _) => list.clone(),
    };
    let names = rows.iter().map(|row| row_tag(row));
    read::print_list(&value, ("primary", names), || primary_table(&rows), output)
}

/// Returns the table of a cluster's primaries. Each row is an item of the controller's list.
pub(crate) fn primary_table(rows: &[&Value]) -> String {
    table(&["tag", "node", "parked", "why", "since"], rows.iter().map(|row| primary_cells(row)))
}

/// Returns the tag of an item in the list of primaries.
fn row_tag(row: &Value) -> &str {
    row.get("tag").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the table cells of the primary of a tag, with the reason of the choice. In the response, `chosen_by` is the
/// rule that chose the node, and `named` is the node that `primaries:` of the cluster names for the tag.
fn primary_cells(row: &Value) -> Vec<String> {
    let text = |field: &str| row.get(field).and_then(Value::as_str);
    let reason = match (text("chosen_by"), text("named")) {
        (Some("cluster"), _) => "the cluster names it".to_owned(),
        (Some("choice"), None) => "it was chosen".to_owned(),
        (Some("name"), None) => "the first by name".to_owned(),
        (Some(_), Some(named_node)) => format!("the cluster names {named_node}, which does not have the tag"),
        (None, Some(named_node)) => format!("nobody: the cluster names {named_node}, which does not have the tag"),
        (Some(_), None) => "-".to_owned(),
        (None, None) => "nobody has the tag, or all who have it are parked".to_owned(),
    };
    vec![
        cell_text(row.get("tag")),
        cell_text(row.get("node")),
        cell_text(row.get("parked")),
        reason,
        time_with_age(row.get("since")),
    ]
}

/// Returns the error. If the cluster does not exist, the error also suggests a similar name.
async fn cluster_error(api: &mut ApiClient, cluster: &str, error: Error) -> Error {
    if Exit::from_error(&error) == Exit::NotFound {
        read::with_suggestion(api, KindArg::Cluster, cluster, error).await
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x07_primary_table_shows_reason() {
        let row = |node, chosen_by, named_node| json!({"tag": "db", "node": node, "parked": false, "chosen_by": chosen_by, "named": named_node});
        for (row, reason) in [
            (row(Some("a"), Some("cluster"), Some("a")), "the cluster names it"),
            (row(Some("a"), Some("choice"), None), "it was chosen"),
            (row(Some("a"), Some("name"), None), "the first by name"),
            (row(Some("a"), Some("choice"), Some("b")), "the cluster names b, which does not have the tag"),
            (row(None, None, Some("b")), "nobody: the cluster names b, which does not have the tag"),
            (row(None, None, None), "nobody has the tag, or all who have it are parked"),
        ] {
            // The fourth cell is the reason.
            assert_eq!(primary_cells(&row)[3], reason, "{row}");
        }
    }
}

//! Who holds the tags of a cluster as primary: shown, and set.

use anyhow::{Error, Result};
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;

use crate::api::Api;
use crate::args::{Kind, Output, Primary};
use crate::command::done::Done;
use crate::command::question;
use crate::exit::Exit;
use crate::output::{cell, since, table};

/// `primary`.
pub(crate) async fn primary(api: &mut Api, what: Primary, output: Output) -> Result<()> {
    match what {
        Primary::Show { cluster, tag } => show(api, &cluster, tag.as_deref(), output).await,
        Primary::Set { cluster, tag, node } => {
            let node = Kind::Node.bare(&node);
            let write = Kind::Cluster.write(Endpoint::ChoosePrimary, &cluster, &[&tag])?;
            let answer = match api.send(write.json(&json!({"node": node}))).await {
                Err(error) => return Err(of_cluster(api, &cluster, error).await),
                Ok(answer) => answer,
            };
            let sentence = format!("node {node} holds {tag} of cluster {} as primary", Kind::Cluster.bare(&cluster));
            Done { kind: "primary", name: &tag, sentence, answer }.say(api, output).await
        }
    }
}

async fn show(api: &mut Api, cluster: &str, tag: Option<&str>, output: Output) -> Result<()> {
    let path = Kind::Cluster.path_of(Endpoint::ListPrimaries, cluster, &[])?;
    let list = match api.get(&path).await {
        Err(error) => return Err(of_cluster(api, cluster, error).await),
        Ok(list) => list,
    };
    let rows: Vec<&Value> = question::items(&list).filter(|row| tag.is_none_or(|tag| tag_of(row) == tag)).collect();
    let value = match (tag, rows.first()) {
        (Some(tag), None) => {
            let sentence = format!("cluster {} has no tag {tag:?} with a primary", Kind::Cluster.bare(cluster));
            return Err(Exit::NotFound.because(sentence));
        }
        (Some(_), Some(row)) => (*row).clone(),
        (None, _) => list.clone(),
    };
    let names = rows.iter().map(|row| tag_of(row));
    question::print_list(&value, ("primary", names), || shown(&rows), output)
}

/// Who holds the tags of a cluster, by rows of its list.
pub(crate) fn shown(rows: &[&Value]) -> String {
    table(&["tag", "node", "parked", "why", "since"], rows.iter().map(|row| columns(row)))
}

fn tag_of(row: &Value) -> &str {
    row.get("tag").and_then(Value::as_str).unwrap_or_default()
}

fn columns(row: &Value) -> Vec<String> {
    let text = |field: &str| row.get(field).and_then(Value::as_str);
    let why = match (text("chosen_by"), text("named")) {
        (Some("cluster"), _) => "the cluster names it".to_owned(),
        (Some("choice"), None) => "it was chosen".to_owned(),
        (Some("name"), None) => "the first by name".to_owned(),
        (Some(_), Some(named)) => format!("the cluster names {named}, which does not have the tag"),
        (None, Some(named)) => format!("nobody: the cluster names {named}, which does not have the tag"),
        (Some(_), None) => "-".to_owned(),
        (None, None) => "nobody has the tag, or all who have it are parked".to_owned(),
    };
    vec![cell(row.get("tag")), cell(row.get("node")), cell(row.get("parked")), why, since(row.get("since"))]
}

/// An error, with the cluster that may have been meant where there is none of that name.
async fn of_cluster(api: &mut Api, cluster: &str, error: Error) -> Error {
    if Exit::of(&error) == Exit::NotFound { question::nearest(api, Kind::Cluster, cluster, error).await } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x07_a_primary_is_shown_with_the_reason_why_its_node_holds_it() {
        let row = |node, chosen_by, named| json!({"tag": "db", "node": node, "parked": false, "chosen_by": chosen_by, "named": named});
        for (row, why) in [
            (row(Some("a"), Some("cluster"), Some("a")), "the cluster names it"),
            (row(Some("a"), Some("choice"), None), "it was chosen"),
            (row(Some("a"), Some("name"), None), "the first by name"),
            (row(Some("a"), Some("choice"), Some("b")), "the cluster names b, which does not have the tag"),
            (row(None, None, Some("b")), "nobody: the cluster names b, which does not have the tag"),
            (row(None, None, None), "nobody has the tag, or all who have it are parked"),
        ] {
            assert_eq!(columns(&row)[3], why, "{row}");
        }
    }
}

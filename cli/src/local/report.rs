//! `resolve` and `validate`: the answer for programs and for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use stemma_core::finding::{Finding, Severity};
use stemma_core::graph::{Class, Pair};
use stemma_core::release::select::MASTER;
use stemma_core::resolve::PlainAnswer;
use stemma_core::role::natural_cmp;

use super::{Local, load};
use crate::args::{Files, Output};
use crate::command::question;
use crate::output::{printable, table};

/// What `resolve -o json` prints.
#[derive(Debug, Serialize)]
struct Resolved {
    nodes: BTreeMap<String, PlainAnswer>,
    stages: BTreeSet<Arc<str>>,
    /// Each pair once, the first before the second; a stage stands on no node.
    order: BTreeSet<Pair>,
    findings: Vec<Finding>,
}

/// `resolve`.
///
/// # Errors
/// What is wrong with the manifests.
pub(crate) fn resolve(files: &Files, output: Output) -> Result<()> {
    let local = load(&files.paths)?;
    let resolved = Resolved::of(&local);
    match output {
        Output::Json | Output::Yaml => question::print(&serde_json::to_value(&resolved)?, output)?,
        Output::Name => resolved.nodes.keys().for_each(|name| say!("node/{}", printable(name))),
        Output::Table | Output::Wide | Output::Manifest => {
            say!("{}", nodes(&local, &resolved, output));
            print_order(&resolved);
            print_findings(&resolved.findings);
        }
    }
    Ok(())
}

/// `validate`: the findings alone.
///
/// # Errors
/// What is wrong with the manifests; where it is to be strict, findings that are errors.
pub(crate) fn validate_files(files: &Files, is_strict: bool, output: Output) -> Result<()> {
    let local = load(&files.paths)?;
    let findings = local.all_findings();
    match output {
        Output::Json | Output::Yaml => question::print(&serde_json::to_value(&findings)?, output)?,
        _ if findings.is_empty() => say!("no findings: {} nodes resolve", local.answers.len()),
        _ => print_findings(&findings),
    }
    if is_strict { check_strictly(&findings) } else { Ok(()) }
}

fn check_strictly(findings: &[Finding]) -> Result<()> {
    match findings.iter().filter(|finding| finding.severity == Severity::Error).count() {
        0 => Ok(()),
        1 => bail!("one of the findings is an error (--strict)"),
        errors => bail!("{errors} of the findings are errors (--strict)"),
    }
}

impl Resolved {
    fn of(local: &Local) -> Self {
        let mut nodes: BTreeMap<String, PlainAnswer> =
            local.answers.iter().map(|answer| (answer.node().display_name(), PlainAnswer::of(answer))).collect();
        let mut stages = BTreeSet::new();
        let mut order = BTreeSet::new();
        for graph in local.graphs.values() {
            stages.extend(graph.stages.iter().cloned());
            order.extend(graph.order_pairs());
            for class in graph.classes.iter().filter(|class| graph.has_pseudo_master && class.profile.place.is_master) {
                add_master(nodes.entry(MASTER.to_owned()).or_default(), class);
            }
        }
        Self { nodes, stages, order, findings: local.findings() }
    }
}

/// What falls to the controller's own host where no node has its name. It is no node, so nothing else is known of it.
fn add_master(master: &mut PlainAnswer, class: &Class) {
    let release = &class.profile.release;
    for ix in &class.profile.tasks {
        let id = release.id(*ix).to_owned();
        if release.task(*ix).is_skipped_type() {
            master.skipped.insert(id, "type is skipped".to_owned());
        } else if !master.tasks.contains(&id) {
            master.tasks.push(id);
        }
    }
}

fn nodes(local: &Local, resolved: &Resolved, output: Output) -> String {
    let places: BTreeMap<String, String> =
        local.answers.iter().map(|answer| (answer.node().display_name(), answer.place().unwrap_or_default())).collect();
    let mut names: Vec<&String> = resolved.nodes.keys().collect();
    names.sort_by(|a, b| natural_cmp(a, b));
    let rows = names.into_iter().map(|name| {
        let node = &resolved.nodes[name];
        let place = places.get(name).filter(|place| !place.is_empty()).map_or("-", String::as_str);
        let mut row = vec![name.clone(), place.to_owned(), list(&node.roles), list(&node.tags), list(&node.tasks)];
        if output == Output::Wide {
            let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            row.extend([list(&labels), list(&node.traits), list(node.skipped.keys())]);
            row.push(node.task_digest.as_ref().map_or_else(|| "-".to_owned(), |digest| digest[..12].to_owned()));
        }
        row
    });
    let head: &[&str] = match output {
        Output::Wide => &["node", "group", "roles", "tags", "tasks in order", "labels", "traits", "skipped", "digest"],
        _ => &["node", "group", "roles", "tags", "tasks in order"],
    };
    table(head, rows)
}

fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<T> = items.into_iter().collect();
    if items.is_empty() { "-".to_owned() } else { items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ") }
}

fn print_order(resolved: &Resolved) {
    if !resolved.stages.is_empty() {
        say!("\nstages   {}", list(&resolved.stages));
    }
    let across = resolved.order.iter().filter(|((before, _), (after, _))| before != after).count();
    say!("\norder    {} pairs, {across} of them across nodes or stages (-o json has them all)", resolved.order.len());
}

fn print_findings(findings: &[Finding]) {
    for finding in findings {
        say!("{}", printable(&finding.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_only_the_cluster_names_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\n---\nkind: Cluster\nname: prod\nrelease: r\n\
             roles: {web: {add_tags: [a]}, nope: {add_tags: [b]}}\ntags: {x: {role: gone}, y: {role: web}}\n---\n\
             kind: NodeGroup\ncluster: prod\nname: all\n";
        std::fs::write(&file, text).unwrap();
        let findings = load(&[file]).unwrap().all_findings();
        let unknown = findings.iter().filter(|finding| finding.code == "role.unknown");
        let messages: Vec<&str> = unknown.map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "roles: nope is declared by no release of its groups: is its name misspelled?",
                "tags: x is to be produced by role gone, which no release of its groups declares"
            ]
        );
    }

    #[test]
    fn a_strict_check_ends_badly_for_errors_alone() {
        let (warning, error) = (Finding::warning("a", "x", "y"), Finding::error("b", "x", "y"));
        assert!(check_strictly(&[]).is_ok());
        assert!(check_strictly(std::slice::from_ref(&warning)).is_ok());
        let refused = check_strictly(&[warning, error.clone(), error]).unwrap_err();
        assert_eq!(refused.to_string(), "2 of the findings are errors (--strict)");
    }
}

//! `resolve` and `validate`: print the resolved fleet or its findings, for people and as JSON or YAML.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use stemma_core::finding::{Finding, rule, strict_summary};
use stemma_core::resolve::FleetOutput;
use stemma_core::role::natural_cmp;

use super::{ReadPurpose, load};
use crate::args::{ManifestArgs, Output};
use crate::command::read;
use crate::output::{printable, table};
use crate::source_map::SourceMap;
use crate::tree;

/// Runs `resolve`: prints the resolved nodes, the order of their tasks, and the findings. Findings about parameters of
/// tasks are left out. `validate` reports them, and so does a write to a controller.
///
/// # Errors
/// Fails with the errors in the manifests.
pub(crate) fn resolve(files: &ManifestArgs, output: Output) -> Result<()> {
    let mut resolved = load(&tree::expanded_paths(files)?, ReadPurpose::Resolve)?.output;
    resolved.findings.retain(|finding| finding.code != rule::TASK_PARAMETERS.code);
    match output {
        Output::Json | Output::Yaml => read::print_value(&serde_json::to_value(&resolved)?, output)?,
        Output::Name => resolved.nodes.keys().for_each(|name| outln!("node/{}", printable(name))),
        Output::Table | Output::Wide | Output::Manifest => {
            outln!("{}", node_table(&resolved, output));
            print_order(&resolved);
            print_findings(&resolved.findings);
        }
    }
    Ok(())
}

/// Runs `validate`, which prints only the findings.
///
/// # Errors
/// Fails with the errors in the manifests, including tasks that every host would refuse. If `is_strict` is set, also
/// fails if a finding is a warning or an error.
pub(crate) fn validate_files(files: &ManifestArgs, is_strict: bool, output: Output) -> Result<()> {
    let local = load(&tree::expanded_paths(files)?, ReadPurpose::Check)?;
    let (findings, places) = (&local.output.findings, SourceMap::new(&local.manifests));
    match output {
        Output::Json | Output::Yaml => {
            let mut json = serde_json::to_value(findings)?;
            places.add_places(&mut json);
            read::print_value(&json, output)?;
        }
        _ if findings.is_empty() => outln!("no findings: {} nodes resolve", local.output.resolved_nodes.len()),
        _ => findings.iter().for_each(|finding| outln!("{}", places.finding_line(finding))),
    }
    match strict_summary(findings).filter(|_| is_strict) {
        Some(summary) => bail!("--strict: {summary}"),
        None => Ok(()),
    }
}

/// Returns the table of all nodes. Numbers in the names are sorted by value, so `web-2` is before `web-10`.
fn node_table(resolved: &FleetOutput, output: Output) -> String {
    let places: BTreeMap<String, String> =
        resolved.resolved_nodes.iter().map(|node| (node.node().display_name(), node.group_path().unwrap_or_default())).collect();
    let mut names: Vec<&String> = resolved.nodes.keys().collect();
    names.sort_by(|a, b| natural_cmp(a, b));
    let rows = names.into_iter().map(|name| {
        let node = &resolved.nodes[name];
        let place = places.get(name).filter(|place| !place.is_empty()).map_or("-", String::as_str);
        let mut row = vec![name.clone(), place.to_owned(), joined(&node.roles), joined(&node.tags), joined(&node.tasks)];
        if output == Output::Wide {
            let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            row.extend([joined(&labels), joined(&node.traits), joined(node.skipped.keys())]);
            // The first 12 digits are enough to tell task digests apart.
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

/// Joins texts with spaces. Returns `-` if there are none.
fn joined<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<T> = items.into_iter().collect();
    if items.is_empty() { "-".to_owned() } else { items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ") }
}

/// Prints the stages, and the number of ordered pairs of tasks: of all pairs, and of those across nodes or stages.
fn print_order(resolved: &FleetOutput) {
    if !resolved.stages.is_empty() {
        outln!("\nstages   {}", joined(&resolved.stages));
    }
    let cross_node_count = resolved.order.iter().filter(|[(first_node, _), (second_node, _)]| first_node != second_node).count();
    outln!("\norder    {} pairs, {cross_node_count} of them across nodes or stages (-o json has them all)", resolved.order.len());
}

/// Prints each finding in one line.
fn print_findings(findings: &[Finding]) {
    for finding in findings {
        outln!("{}", printable(&finding.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In this test, no release declares the roles `nope` and `gone`. Only the manifest of the cluster names them.
    #[test]
    fn load_reports_role_when_only_cluster_names_role() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\n---\nkind: Cluster\nname: prod\nrelease: r\n\
             roles: {web: {add_tags: [a]}, nope: {add_tags: [b]}}\ntags: {x: {role: gone}, y: {role: web}}\n---\n\
             kind: NodeGroup\ncluster: prod\nname: all\n";
        std::fs::write(&file, text).unwrap();
        let findings = load(&[file], ReadPurpose::Resolve).unwrap().output.findings;
        let unknown = findings.iter().filter(|finding| finding.code == "role.unknown");
        let messages: Vec<&str> = unknown.map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "roles: nope is declared by no release of its groups: is its name misspelled?",
                "tags: x should be produced by role gone, which no release of its groups declares"
            ]
        );
    }

    /// Regression: the controller refused to create an object with a reserved name, which `validate` had not reported.
    #[test]
    fn y04_load_reports_reserved_names_when_checking() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        std::fs::write(&file, "kind: Cluster\nname: Detail\n---\nkind: ClusterTemplate\nname: -x\n").unwrap();
        let reserved_names = |purpose| {
            let findings = load(std::slice::from_ref(&file), purpose).unwrap().output.findings;
            let names = findings.into_iter().filter(|finding| finding.code == rule::NAME_RESERVED.code);
            names.map(|finding| finding.object).collect::<Vec<_>>()
        };
        assert_eq!(reserved_names(ReadPurpose::Check), ["cluster/Detail", "clustertemplate/-x"]);
        assert_eq!(reserved_names(ReadPurpose::Resolve), Vec::<String>::new());
    }

    /// The reserved role `master` means the controller's own host. The condition of a task with this role can read
    /// values of the cluster and its template, but none of a node group.
    #[test]
    fn w05_condition_on_master_task_reads_cluster_values() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let task = |id: &str, condition: &str| {
            format!(" - {{id: {id}, type: shell, roles: [master], condition: \"{condition}\", parameters: {{command: [a]}}}}\n")
        };
        let tasks = [
            task("of-template", "params.size == 3"),
            task("of-cluster", "labels.tier == 'gold' && cluster.name == 'prod'"),
            task("of-no-group", "has(node.nodegroup)"),
        ];
        let text = format!(
            "kind: Release\nname: r\nroles: {{web: {{}}}}\ntasks:\n{}---\nkind: ClusterTemplate\nname: t\nparameters: {{size: 3}}\n---\n\
             kind: Cluster\nname: prod\ncluster_template: t\nrelease: r\nlabels: {{tier: gold}}\n---\n\
             kind: NodeGroup\ncluster: prod\nname: all\n",
            tasks.concat()
        );
        std::fs::write(&file, text).unwrap();
        let master = load(&[file], ReadPurpose::Resolve).unwrap().output.nodes.remove("master").unwrap();
        assert_eq!(master.tasks, ["of-cluster", "of-template"], "{:?}", master.skipped);
        assert!(master.skipped.contains_key("of-no-group"), "{:?}", master.skipped);
    }

    /// In this test, the tasks have the reserved role `master`, which means the controller's own host. One of the tasks
    /// has a condition that is always false.
    #[test]
    fn w05_condition_skips_task_on_master() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\ntasks:\n\
             - {id: never, type: shell, roles: [master], condition: '1 > 2', parameters: {command: [a]}}\n\
             - {id: always, type: shell, roles: [master], parameters: {command: [a]}}\n---\n\
             kind: Cluster\nname: prod\nrelease: r\n---\nkind: NodeGroup\ncluster: prod\nname: all\n";
        std::fs::write(&file, text).unwrap();
        let master = load(&[file], ReadPurpose::Resolve).unwrap().output.nodes.remove("master").unwrap();
        assert_eq!(master.tasks, ["always"]);
        assert_eq!(master.skipped["never"], "condition is false: 1 > 2");
    }
}

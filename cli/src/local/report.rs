//! `resolve` and `validate`: the answer for programs and for people.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use stemma_core::finding::{Finding, rule, strictly};
use stemma_core::resolve::FleetAnswer;
use stemma_core::role::natural_cmp;

use super::{Purpose, load};
use crate::args::{Files, Output};
use crate::command::question;
use crate::output::{printable, table};
use crate::place::Places;
use crate::tree;

/// `resolve`. What a type's parameters must be is not judged by it: `validate` does, and a write to a controller.
///
/// # Errors
/// What is wrong with the manifests.
pub(crate) fn resolve(files: &Files, output: Output) -> Result<()> {
    let mut resolved = load(&tree::paths(files)?, Purpose::Answer)?.answer;
    resolved.findings.retain(|finding| finding.code != rule::TASK_PARAMETERS.code);
    match output {
        Output::Json | Output::Yaml => question::print(&serde_json::to_value(&resolved)?, output)?,
        Output::Name => resolved.nodes.keys().for_each(|name| say!("node/{}", printable(name))),
        Output::Table | Output::Wide | Output::Manifest => {
            say!("{}", nodes(&resolved, output));
            print_order(&resolved);
            print_findings(&resolved.findings);
        }
    }
    Ok(())
}

/// `validate`: the findings alone.
///
/// # Errors
/// What is wrong with the manifests, what every host would refuse of them among it; where it is to be strict, findings that count.
pub(crate) fn validate_files(files: &Files, is_strict: bool, output: Output) -> Result<()> {
    let local = load(&tree::paths(files)?, Purpose::Check)?;
    let (findings, places) = (&local.answer.findings, Places::of(&local.manifests));
    match output {
        Output::Json | Output::Yaml => {
            let mut listed = serde_json::to_value(findings)?;
            places.put_into(&mut listed);
            question::print(&listed, output)?;
        }
        _ if findings.is_empty() => say!("no findings: {} nodes resolve", local.answer.answers.len()),
        _ => findings.iter().for_each(|finding| say!("{}", places.line(finding))),
    }
    match strictly(findings).filter(|_| is_strict) {
        Some(counted) => bail!("--strict: {counted}"),
        None => Ok(()),
    }
}

fn nodes(resolved: &FleetAnswer, output: Output) -> String {
    let places: BTreeMap<String, String> = resolved
        .answers
        .iter()
        .map(|answer| (answer.node().display_name(), answer.place().unwrap_or_default()))
        .collect();
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

fn print_order(resolved: &FleetAnswer) {
    if !resolved.stages.is_empty() {
        say!("\nstages   {}", list(&resolved.stages));
    }
    let across = resolved.order.iter().filter(|[(before, _), (after, _)]| before != after).count();
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
        let findings = load(&[file], Purpose::Answer).unwrap().answer.findings;
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

    /// A write of it was refused, and the check beforehand had nothing to say.
    #[test]
    fn y04_a_name_that_no_new_object_is_given_is_a_finding_of_a_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        std::fs::write(&file, "kind: Cluster\nname: Detail\n---\nkind: ClusterTemplate\nname: -x\n").unwrap();
        let of = |purpose| {
            let findings = load(std::slice::from_ref(&file), purpose).unwrap().answer.findings;
            let names = findings.into_iter().filter(|finding| finding.code == rule::NAME_RESERVED.code);
            names.map(|finding| finding.object).collect::<Vec<_>>()
        };
        assert_eq!(of(Purpose::Check), ["cluster/Detail", "clustertemplate/-x"]);
        assert_eq!(of(Purpose::Answer), Vec::<String>::new());
    }

    #[test]
    fn w05_a_condition_of_what_falls_to_master_sees_what_its_cluster_gives() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let task = |id: &str, condition: &str| {
            format!(
                " - {{id: {id}, type: shell, roles: [master], condition: \"{condition}\", parameters: {{command: [a]}}}}\n"
            )
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
        let master = load(&[file], Purpose::Answer).unwrap().answer.nodes.remove("master").unwrap();
        assert_eq!(master.tasks, ["of-cluster", "of-template"], "{:?}", master.skipped);
        assert!(master.skipped.contains_key("of-no-group"), "{:?}", master.skipped);
    }

    #[test]
    fn w05_what_falls_to_master_is_left_out_by_its_condition() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\ntasks:\n\
             - {id: never, type: shell, roles: [master], condition: '1 > 2', parameters: {command: [a]}}\n\
             - {id: always, type: shell, roles: [master], parameters: {command: [a]}}\n---\n\
             kind: Cluster\nname: prod\nrelease: r\n---\nkind: NodeGroup\ncluster: prod\nname: all\n";
        std::fs::write(&file, text).unwrap();
        let master = load(&[file], Purpose::Answer).unwrap().answer.nodes.remove("master").unwrap();
        assert_eq!(master.tasks, ["always"]);
        assert_eq!(master.skipped["never"], "condition is false: 1 > 2");
    }
}

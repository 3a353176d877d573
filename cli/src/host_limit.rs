//! Reports the number of hosts that a write reaches, limits it with `--max-nodes`, and asks for confirmation. If a
//! selector finds more than one object and any of them changes, confirmation is required whatever the number of hosts,
//! because a selector may find other objects than the person expects. `--yes` replaces each confirmation.
//!
//! The controller counts the hosts in a dry run of the write. The dry run resolves hosts as the real write does. So a
//! change that another level overrides, or a change of a release that no host uses, is counted correctly.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::args::GlobalArgs;
use crate::exit::Exit;
use crate::output::printable;

/// The maximum number of hosts that a write may reach without confirmation.
const CONFIRM_ABOVE: usize = 10;
/// The maximum number of changed objects that are listed by name before a question.
const MAX_NAMES: usize = 10;

/// A field that this program adds to a moved primary in a response. It replaces `to`, which names the next primary, if
/// the same command deletes that node. Its value is the name of that node.
const PASSED_OVER_FIELD: &str = "passed_over";
/// A field that this program adds to a moved primary in a response, with the value `false`, if another write of the
/// same command changes the next primary. That write may move the primary again.
const IS_CERTAIN_FIELD: &str = "is_certain";

/// The limits on the hosts that the writes of one command reach, and the hosts that they reach so far.
#[derive(Clone, Debug)]
pub(crate) struct HostLimit {
    /// True for `--dry-run`: the controller checks each write and stores nothing.
    pub(crate) is_dry_run: bool,
    /// The hosts that are reached by the writes that were checked so far.
    reached_hosts: HostSet,
    /// The reached hosts whose task sets change. `None` before the first dry run, or with an old controller.
    changed_hosts: Option<HostSet>,
    /// The maximum number of hosts (`--max-nodes`). `None` if the option is not given.
    max_nodes: Option<usize>,
    /// True if no confirmation is required (`--yes`).
    is_confirmed: bool,
}

/// The hosts of several writes, for counting. A host of two writes counts once if the responses contain the names of
/// the hosts.
#[derive(Clone, Debug, Default)]
struct HostSet {
    names: BTreeSet<String>,
    /// The sum of the numbers of hosts in the responses that contain no names.
    unnamed_count: usize,
}

/// The numbers of hosts that one or more writes reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteReach {
    /// The number of reached hosts.
    pub(crate) hosts: usize,
    /// The number of reached hosts whose task set changes. `None` without a dry run, or with an old controller.
    pub(crate) task_sets: Option<usize>,
}

impl HostSet {
    /// Adds the hosts of one write. Uses the list of names in the response if there is one, and otherwise `count`.
    fn add(&mut self, host_names: Option<&Value>, count: usize) {
        match host_names.and_then(Value::as_array) {
            Some(host_names) => self.names.extend(host_names.iter().filter_map(Value::as_str).map(str::to_owned)),
            None => self.unnamed_count += count,
        }
    }

    fn count(&self) -> usize {
        self.names.len() + self.unnamed_count
    }
}

impl fmt::Display for WriteReach {
    /// Formats the reach, such as `16 hosts (task sets of 8 change)`. Omits the task sets if no host is reached.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&host_count(self.hosts))?;
        match self.task_sets.filter(|_| self.hosts > 0) {
            None => Ok(()),
            Some(0) => f.write_str(" (no task set changes)"),
            Some(1) => f.write_str(" (the task set of 1 changes)"),
            Some(count) => write!(f, " (task sets of {count} change)"),
        }
    }
}

impl HostLimit {
    /// Creates the limits from the command line.
    pub(crate) fn from_args(global: &GlobalArgs) -> Self {
        Self {
            is_dry_run: global.dry_run,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: global.max_nodes,
            is_confirmed: global.yes,
        }
    }

    /// Adds the hosts that a write reaches, after its dry run. `response` is the response to the dry run, which may
    /// contain their names.
    pub(crate) fn add(&mut self, response: &Value, reach: WriteReach) {
        self.reached_hosts.add(response.get("hosts"), reach.hosts);
        if let Some(task_sets) = reach.task_sets {
            self.changed_hosts.get_or_insert_default().add(response.get("changed_task_sets"), task_sets);
        }
    }

    /// Returns the reach of all writes checked so far.
    pub(crate) fn reach(&self) -> WriteReach {
        WriteReach { hosts: self.reached_hosts.count(), task_sets: self.changed_hosts.as_ref().map(HostSet::count) }
    }

    /// Checks the number of hosts that a write reaches. A write to more than ten hosts needs confirmation by
    /// `--max-nodes`, by `--yes`, or by the person at the terminal.
    ///
    /// # Errors
    /// Fails if the write reaches more hosts than `--max-nodes` allows, or if the person does not confirm.
    pub(crate) fn check_reach(&self, reach: WriteReach) -> Result<()> {
        self.check_max_nodes(reach.hosts)?;
        if self.max_nodes.is_some() || reach.hosts <= CONFIRM_ABOVE {
            return Ok(());
        }
        let question = format!("this reaches {reach}");
        if self.is_confirmed {
            errln!("{question}");
            return Ok(());
        }
        confirm(&question, &format!("use --yes, or --max-nodes {}", reach.hosts))
    }

    /// Checks a write of the objects that a selector found. `selected` is their number, and `changed` has the names of
    /// those that the write changes. If several objects are selected and any of them changes, asks the person at the
    /// terminal for confirmation, because the selector may be wrong. `--yes` replaces this confirmation. `--max-nodes`
    /// does not, because it does not name the objects. Otherwise checks the number of hosts as [`Self::check_reach`].
    ///
    /// # Errors
    /// Fails if the write reaches more hosts than `--max-nodes` allows, or if the person does not confirm.
    pub(crate) fn check_selected(&self, kind: &str, selected: usize, changed: &[&str], reach: WriteReach) -> Result<()> {
        // A single selected object is treated as one that the user named.
        if selected < 2 || changed.is_empty() {
            return self.check_reach(reach);
        }
        self.check_max_nodes(reach.hosts)?;
        let question = match changed.len() {
            count if count == selected => format!("{selected} {kind}s are selected, which reach {reach}"),
            count => format!("{selected} {kind}s are selected, of which {count} would change: this reaches {reach}"),
        };
        if self.is_confirmed {
            errln!("{question}");
            return Ok(());
        }
        let names: Vec<String> = changed.iter().take(MAX_NAMES).map(|name| printable(name)).collect();
        let more_count = changed.len() - names.len();
        let more = if more_count > 0 { format!(" and {more_count} more") } else { String::new() };
        errln!("{}{more}", names.join(", "));
        confirm(&question, "use --yes")
    }

    /// Asks for confirmation before certificates and tokens of a principal become invalid. `credential_names` has their
    /// names. Does nothing if the list is empty.
    ///
    /// # Errors
    /// Fails if the list is not empty and the person does not confirm.
    pub(crate) fn check_credentials(&self, principal: &str, credential_names: &[&str]) -> Result<()> {
        if credential_names.is_empty() {
            return Ok(());
        }
        let credentials = printable(&credential_names.join(", "));
        let text = format!(
            "this ends {credentials} of principal {}: their creators may have fewer rights than it will have, and may know the key or secret",
            printable(principal)
        );
        if self.is_confirmed {
            errln!("{text}");
            return Ok(());
        }
        confirm(&text, "use --yes, and make new ones: stemma cert create NAME --to DIR, or stemma principal token create NAME")
    }

    /// Fails if a write reaches more hosts than `--max-nodes` allows.
    fn check_max_nodes(&self, hosts: usize) -> Result<()> {
        match self.max_nodes {
            Some(limit) if hosts > limit => Err(Exit::Error.with_message(format!(
                "this reaches {}, more than --max-nodes {limit}\n  raise it, or write to a level nearer to the hosts",
                host_count(hosts)
            ))),
            _ => Ok(()),
        }
    }
}

/// Formats a number of hosts: `1 host`, `7 hosts`.
pub(crate) fn host_count(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") }
}

/// Returns a message with the labels that hosts lose through a write, each with the number of these hosts. `response`
/// is the response of the controller. `None` if no host loses a label.
pub(crate) fn lost_label_message(response: &Value) -> Option<String> {
    let host_counts = response.get("lost_labels")?.as_object()?;
    let label_text = |(key, hosts): (&String, &Value)| {
        let hosts = hosts.as_u64().and_then(|hosts| usize::try_from(hosts).ok()).unwrap_or_default();
        format!("{key} ({})", host_count(hosts))
    };
    let labels: Vec<String> = host_counts.iter().map(label_text).collect();
    (!labels.is_empty()).then(|| format!("hosts lose the labels {}", printable(&labels.join(", "))))
}

/// Returns one message for each primary that a write moves, and one with the number of those that the response omits.
pub(crate) fn moved_primary_messages(response: &Value) -> Vec<String> {
    let moved_primaries = response.get("moved_primaries").and_then(Value::as_array).into_iter().flatten();
    moved_primaries.map(moved_primary_message).collect()
}

/// Returns the message for one entry of `moved_primaries` in a response. An entry with `left_out` contains the number
/// of moved primaries that the response omits.
fn moved_primary_message(primary: &Value) -> String {
    let text = |field: &str| primary.get(field).and_then(Value::as_str).map(printable);
    if let Some(omitted_count) = primary.get("left_out") {
        return format!("{omitted_count} more primaries move");
    }
    let [tag, cluster, from] = ["tag", "cluster", "from"].map(|field| text(field).unwrap_or_default());
    let beginning = format!("the primary of tag {tag} in cluster {cluster} moves from {from} to");
    match (text("to"), text(PASSED_OVER_FIELD)) {
        (Some(to), _) if primary.get(IS_CERTAIN_FIELD) == Some(&Value::Bool(false)) => {
            format!("{beginning} {to}, unless this command takes it from {to} too")
        }
        (Some(to), _) => format!("{beginning} {to}"),
        (None, Some(next)) => {
            format!("{beginning} another node, or to none: {next}, which is next, is deleted by this command too")
        }
        (None, None) => format!("tag {tag} in cluster {cluster} no longer has a primary; it was {from}"),
    }
}

/// The nodes that one command deletes or changes. The controller checks each write of the command separately. A
/// response may therefore move a primary to a node that another write of the same command deletes or changes.
#[derive(Debug, Default)]
pub(crate) struct ChangedNodes {
    /// The nodes that the command deletes.
    pub(crate) deleted: BTreeSet<String>,
    /// The nodes that the command changes.
    pub(crate) changed: BTreeSet<String>,
}

impl ChangedNodes {
    /// Marks the moved primaries in the response to one write of the command. If the command also deletes the next
    /// primary, the field `passed_over` replaces `to`. If another write of the command changes the next primary, adds
    /// `is_certain: false`. `node` is the node that this write itself changes.
    pub(crate) fn mark_moves(&self, node: Option<&str>, response: &mut Value) {
        let moved_primaries = response.get_mut("moved_primaries").and_then(Value::as_array_mut).into_iter().flatten();
        for primary in moved_primaries.filter_map(Value::as_object_mut) {
            // An entry without `to` has no next primary.
            let Some(next_primary) = primary.get("to").and_then(Value::as_str).map(str::to_owned) else { continue };
            if self.deleted.contains(&next_primary) {
                primary.remove("to");
                primary.insert(PASSED_OVER_FIELD.to_owned(), next_primary.into());
            } else if self.changed.contains(&next_primary) && node != Some(&*next_primary) {
                primary.insert(IS_CERTAIN_FIELD.to_owned(), false.into());
            }
        }
    }
}

/// Asks the person at the terminal for confirmation. Fails if the answer is not yes, or if there is no terminal.
/// Without a terminal, the error contains `advice`, which names the option to use instead.
fn confirm(question: &str, advice: &str) -> Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("{question}, and there is no terminal to ask for confirmation\n  {advice}");
    }
    err!("{question}: continue? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("y") || answer.trim().eq_ignore_ascii_case("yes") {
        return Ok(());
    }
    bail!("canceled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x07_moved_primary_messages_has_one_per_primary() {
        let response = serde_json::json!({"moved_primaries": [
            {"cluster": "prod", "tag": "mysql", "from": "db-1", "to": "db-2"},
            {"cluster": "prod", "tag": "redis", "from": "db-1", "to": null}, {"left_out": 7},
        ]});
        let expected = [
            "the primary of tag mysql in cluster prod moves from db-1 to db-2",
            "tag redis in cluster prod no longer has a primary; it was db-1",
            "7 more primaries move",
        ];
        assert_eq!(moved_primary_messages(&response), expected);
        assert!(moved_primary_messages(&serde_json::json!({"moved_primaries": []})).is_empty());
    }

    /// A command deletes the nodes `m1` and `m2` and changes `m3`. The primaries of `m2` move to `m1`, `m3`, `m4` and
    /// no node. Only the move to `m4` is certain. For the write of `m3` itself, the move to `m3` is certain too.
    #[test]
    fn x07_mark_moves_omits_target_when_command_deletes_node() {
        let moved_primary = |tag, to| serde_json::json!({"cluster": "prod", "tag": tag, "from": "m2", "to": to});
        let mut response = serde_json::json!({"moved_primaries": [
            moved_primary("a", Some("m1")), moved_primary("b", Some("m3")), moved_primary("c", Some("m4")), moved_primary("d", None),
        ]});
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let command_nodes = ChangedNodes { deleted: nodes(&["m1", "m2"]), changed: nodes(&["m3"]) };
        let mut response_of_m3 = serde_json::json!({"moved_primaries": [moved_primary("b", Some("m3"))]});
        command_nodes.mark_moves(Some("m3"), &mut response_of_m3);
        let expected_of_m3 = ["the primary of tag b in cluster prod moves from m2 to m3"];
        assert_eq!(moved_primary_messages(&response_of_m3), expected_of_m3, "by the write of m3 itself");
        command_nodes.mark_moves(Some("m2"), &mut response);
        let expected = [
            "the primary of tag a in cluster prod moves from m2 to another node, or to none: m1, which is next, \
             is deleted by this command too",
            "the primary of tag b in cluster prod moves from m2 to m3, unless this command takes it from m3 too",
            "the primary of tag c in cluster prod moves from m2 to m4",
            "tag d in cluster prod no longer has a primary; it was m2",
        ];
        assert_eq!(moved_primary_messages(&response), expected);
        assert_eq!(response["moved_primaries"][0].get("to"), None, "the response names no deleted node as the next primary");
        let mut nothing = Value::Null;
        ChangedNodes::default().mark_moves(None, &mut nothing);
        assert_eq!(nothing, Value::Null);
    }

    /// The last column is the start of the error, or `None` if the write is allowed. Without `--max-nodes` and `--yes`,
    /// more than ten hosts need confirmation.
    #[test]
    fn check_reach_refuses_too_many_or_unconfirmed_hosts() {
        for (max_nodes, yes, hosts, expected) in [
            (None, false, 10, None),
            (None, true, 3000, None),
            (Some(11), false, 11, None),
            (Some(0), true, 1, Some("this reaches 1 host, more than --max-nodes 0")),
            (None, false, 11, Some("this reaches 11 hosts, and there is no terminal")),
        ] {
            let limit = HostLimit {
                is_dry_run: false,
                reached_hosts: HostSet::default(),
                changed_hosts: None,
                max_nodes,
                is_confirmed: yes,
            };
            // If the tests run at a terminal, the last case would ask a question.
            if max_nodes.is_none() && !yes && hosts > CONFIRM_ABOVE && std::io::stdin().is_terminal() {
                continue;
            }
            match (limit.check_reach(WriteReach { hosts, task_sets: None }), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
                (found, expected) => panic!("{hosts}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn y09_reach_shows_hosts_and_changed_task_sets() {
        for (hosts, task_sets, expected) in [
            (16, Some(8), "16 hosts (task sets of 8 change)"),
            (16, Some(1), "16 hosts (the task set of 1 changes)"),
            (1, Some(0), "1 host (no task set changes)"),
            (0, Some(0), "0 hosts"),
            (16, None, "16 hosts"),
        ] {
            assert_eq!(WriteReach { hosts, task_sets }.to_string(), expected);
        }
        let mut limit = HostLimit {
            is_dry_run: true,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: None,
            is_confirmed: false,
        };
        let response = |hosts: &[&str], changed: &[&str]| serde_json::json!({"hosts": hosts, "changed_task_sets": changed});
        limit.add(&response(&["a", "b"], &["a"]), WriteReach { hosts: 2, task_sets: Some(1) });
        limit.add(&response(&["b", "c"], &["a", "c"]), WriteReach { hosts: 2, task_sets: Some(2) });
        assert_eq!(limit.reach(), WriteReach { hosts: 3, task_sets: Some(2) }, "each host counts once");
        // A response without names: its hosts are added to the count.
        limit.add(&Value::Null, WriteReach { hosts: 4, task_sets: Some(3) });
        assert_eq!(limit.reach(), WriteReach { hosts: 7, task_sets: Some(5) });
    }

    /// No confirmation is needed if there is no credential, or with `--yes`. `--max-nodes` is set and has no effect here.
    /// At a terminal, the last case would ask a question and is skipped.
    #[test]
    fn x04_f10_check_credentials_requires_confirmation() {
        let limit = |yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: Some(5),
            is_confirmed: yes,
        };
        assert!(limit(false).check_credentials("carol", &[]).is_ok());
        assert!(limit(true).check_credentials("carol", &["tokens.a"]).is_ok());
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        let error = limit(false).check_credentials("carol", &["certificates.01", "tokens.a"]).unwrap_err().to_string();
        assert!(error.starts_with("this ends certificates.01, tokens.a of principal carol: "), "{error}");
        assert!(error.contains("\n  use --yes"), "{error}");
    }

    /// The question shows how many objects are selected and how many of them change. At a terminal, the last cases
    /// would ask a question and are skipped.
    #[test]
    fn y09_check_selected_counts_selected_objects() {
        let limit = |yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: None,
            is_confirmed: yes,
        };
        let check = |yes, selected, changed: &[&str], hosts| {
            let reach = WriteReach { hosts, task_sets: None };
            limit(yes).check_selected("node", selected, changed, reach).map_err(|error| error.to_string())
        };
        assert_eq!(check(false, 3, &[], 0), Ok(()), "nothing changes");
        assert_eq!(check(true, 3, &["a"], 1), Ok(()));
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (selected, changed, hosts, expected) in [
            (3, &["a"][..], 1, "3 nodes are selected, of which 1 would change: this reaches 1 host, and there is no terminal"),
            (3, &["a", "b"], 2, "3 nodes are selected, of which 2 would change: this reaches 2 hosts, and there is no terminal"),
            (2, &["a", "b"], 2, "2 nodes are selected, which reach 2 hosts, and there is no terminal"),
        ] {
            let error = check(false, selected, changed, hosts).unwrap_err();
            assert!(error.starts_with(expected) && error.ends_with("\n  use --yes"), "{error}");
        }
    }

    /// The last cases show that neither a small number of hosts nor `--max-nodes` replaces the confirmation. At a
    /// terminal, these cases would ask a question and are skipped.
    #[test]
    fn x06_check_selected_requires_confirmation_when_several_are_selected() {
        let limit = |max_nodes, yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes,
            is_confirmed: yes,
        };
        let check = |limit: HostLimit, names: &[&str], hosts| {
            let reach = WriteReach { hosts, task_sets: None };
            limit.check_selected("node", names.len(), names, reach).map_err(|error| error.to_string())
        };
        assert_eq!(check(limit(None, false), &["a"], 1), Ok(()), "one selected object needs no confirmation");
        assert_eq!(check(limit(None, true), &["a", "b"], 2), Ok(()));
        let error = check(limit(Some(1), true), &["a", "b"], 2).unwrap_err();
        assert!(error.starts_with("this reaches 2 hosts, more than --max-nodes 1"), "{error}");
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (names, hosts, node_limit) in [(&["a", "b"][..], 0, None), (&["a", "b"][..], 2, Some(2)), (&["a"; 11][..], 11, None)]
        {
            let error = check(limit(node_limit, false), names, hosts).unwrap_err();
            let expected =
                format!("{} nodes are selected, which reach {}, and there is no terminal", names.len(), host_count(hosts));
            assert!(error.starts_with(&expected) && error.ends_with("\n  use --yes"), "{error}");
        }
    }
}

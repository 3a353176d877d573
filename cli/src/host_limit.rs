//! Reports how many hosts a write reaches, limits them with `--max-nodes`, and asks for confirmation. If a selector
//! finds more than one object, confirmation is always required, because a selector may find other objects than the
//! person expects.
//!
//! The controller counts the hosts by deciding the write without making it. It uses the same resolve, so overridden
//! levels and unused releases are counted correctly.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::args::GlobalArgs;
use crate::exit::Exit;
use crate::output::printable;

/// Maximum number of hosts that a write reaches without confirmation.
const CONFIRM_ABOVE: usize = 10;
/// Maximum number of selected objects that a question names.
const MAX_NAMES: usize = 10;

/// In the row of a moved primary, in place of `to`: the next node, if the command deletes it too.
const PASSED_OVER_FIELD: &str = "passed_over";
/// In the row of a moved primary: `false` if the command changes the next node too.
const IS_CERTAIN_FIELD: &str = "is_certain";

/// The limits for the writes of one command, and their reach so far.
#[derive(Clone, Debug)]
pub(crate) struct HostLimit {
    /// True if writes are only checked and not made.
    pub(crate) is_dry_run: bool,
    /// The hosts that the writes checked so far reach.
    reached_hosts: HostSet,
    /// The reached hosts whose task sets change. `None` if an older controller does not report it.
    changed_hosts: Option<HostSet>,
    max_nodes: Option<usize>,
    /// True if no confirmation is required (`--yes`).
    is_confirmed: bool,
}

/// A set of hosts. Each host counts once if every write names its hosts.
#[derive(Clone, Debug, Default)]
struct HostSet {
    names: BTreeSet<String>,
    /// The number of hosts that writes counted without naming them.
    unnamed_count: usize,
}

/// The reach of one write or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteReach {
    /// The number of hosts.
    pub(crate) hosts: usize,
    /// The number of hosts whose task set changes. `None` if an older controller does not report it.
    pub(crate) task_sets: Option<usize>,
}

impl HostSet {
    /// Adds the hosts of one write, by name if the response names them, otherwise as a number.
    fn add(&mut self, named: Option<&Value>, counted: usize) {
        match named.and_then(Value::as_array) {
            Some(named) => self.names.extend(named.iter().filter_map(Value::as_str).map(str::to_owned)),
            None => self.unnamed_count += counted,
        }
    }

    fn count(&self) -> usize {
        self.names.len() + self.unnamed_count
    }
}

impl fmt::Display for WriteReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&host_count(self.hosts))?;
        match self.task_sets.filter(|_| self.hosts > 0) {
            None => Ok(()),
            Some(0) => f.write_str(" (no task set changes)"),
            Some(1) => f.write_str(" (the task set of 1 changes)"),
            Some(more) => write!(f, " (task sets of {more} change)"),
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

    /// Adds the reach of a write that was checked.
    pub(crate) fn add(&mut self, answer: &Value, reach: WriteReach) {
        self.reached_hosts.add(answer.get("hosts"), reach.hosts);
        if let Some(task_sets) = reach.task_sets {
            self.changed_hosts.get_or_insert_default().add(answer.get("changed_task_sets"), task_sets);
        }
    }

    /// Returns the reach of all writes checked so far.
    pub(crate) fn reach(&self) -> WriteReach {
        WriteReach { hosts: self.reached_hosts.count(), task_sets: self.changed_hosts.as_ref().map(HostSet::count) }
    }

    /// Checks the reach of a write. A person at a terminal is asked for confirmation.
    ///
    /// # Errors
    /// Fails if the reach exceeds `--max-nodes`, or ten hosts without confirmation.
    pub(crate) fn check_reach(&self, reach: WriteReach) -> Result<()> {
        self.check_max_nodes(reach.hosts)?;
        if self.max_nodes.is_some() || reach.hosts <= CONFIRM_ABOVE {
            return Ok(());
        }
        let reaches = format!("this reaches {reach}");
        if self.is_confirmed {
            errln!("{reaches}");
            return Ok(());
        }
        confirm(&reaches, &format!("say --yes, or --max-nodes {}", reach.hosts))
    }

    /// Checks that these objects may be changed, out of the `selected` ones that a selector found. If it found more
    /// than one, a person at a terminal is asked for confirmation, however many of them change, because the selector
    /// may be wrong. `--max-nodes` limits the hosts and does not count as confirmation, because it does not name the
    /// objects.
    ///
    /// # Errors
    /// Fails if the reach exceeds `--max-nodes`, or if several objects are selected without confirmation.
    pub(crate) fn check_selected(&self, kind: &str, selected: usize, changed: &[&str], reach: WriteReach) -> Result<()> {
        if selected < 2 || changed.is_empty() {
            return self.check_reach(reach);
        }
        self.check_max_nodes(reach.hosts)?;
        let selected = match changed.len() {
            all if all == selected => format!("{selected} {kind}s are selected, which reach {reach}"),
            some => format!("{selected} {kind}s are selected, of which {some} would change: this reaches {reach}"),
        };
        if self.is_confirmed {
            errln!("{selected}");
            return Ok(());
        }
        let named: Vec<String> = changed.iter().take(MAX_NAMES).map(|name| printable(name)).collect();
        let more = changed.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        errln!("{}{more}", named.join(", "));
        confirm(&selected, "say --yes")
    }

    /// Asks the person at a terminal whether these certificates and tokens of a principal may end, if there are any.
    ///
    /// # Errors
    /// Fails if there are any, without confirmation.
    pub(crate) fn check_credentials(&self, principal: &str, ended: &[&str]) -> Result<()> {
        if ended.is_empty() {
            return Ok(());
        }
        let credentials = printable(&ended.join(", "));
        let ends = format!(
            "this ends {credentials} of principal {}: their creators may have fewer rights than it will have, and may know the key or secret",
            printable(principal)
        );
        if self.is_confirmed {
            errln!("{ends}");
            return Ok(());
        }
        confirm(&ends, "say --yes, and make new ones: stemma cert create NAME --to DIR, or stemma principal token create NAME")
    }

    /// Fails if a write reaches more hosts than `--max-nodes` allows.
    fn check_max_nodes(&self, hosts: usize) -> Result<()> {
        match self.max_nodes {
            Some(most) if hosts > most => Err(Exit::Error.with_message(format!(
                "this reaches {}, more than --max-nodes {most}\n  raise it, or write to a level nearer to the hosts",
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

/// Returns a message with the labels that hosts lose through a write, as the controller counts them. `None` if no label
/// is lost.
pub(crate) fn lost_label_message(answer: &Value) -> Option<String> {
    let lost = answer.get("lost_labels")?.as_object()?;
    let label_text = |(key, hosts): (&String, &Value)| {
        let hosts = hosts.as_u64().and_then(|hosts| usize::try_from(hosts).ok()).unwrap_or_default();
        format!("{key} ({})", host_count(hosts))
    };
    let labels: Vec<String> = lost.iter().map(label_text).collect();
    (!labels.is_empty()).then(|| format!("hosts lose the labels {}", printable(&labels.join(", "))))
}

/// Returns one message for each primary that a write moves.
pub(crate) fn moved_primary_messages(answer: &Value) -> Vec<String> {
    let rows = answer.get("moved_primaries").and_then(Value::as_array).into_iter().flatten();
    rows.map(moved_primary_message).collect()
}

/// Returns the message for one moved primary, or for the number of those that the response leaves out.
fn moved_primary_message(row: &Value) -> String {
    let text = |field: &str| row.get(field).and_then(Value::as_str).map(printable);
    if let Some(more) = row.get("left_out") {
        return format!("{more} more primaries move");
    }
    let [tag, cluster, from] = ["tag", "cluster", "from"].map(|field| text(field).unwrap_or_default());
    let moves = format!("the primary of tag {tag} in cluster {cluster} moves from {from} to");
    match (text("to"), text(PASSED_OVER_FIELD)) {
        (Some(to), _) if row.get(IS_CERTAIN_FIELD) == Some(&Value::Bool(false)) => {
            format!("{moves} {to}, unless this command takes it from {to} too")
        }
        (Some(to), _) => format!("{moves} {to}"),
        (None, Some(next)) => {
            format!("{moves} another node, or to none: {next}, which is next, is deleted by this command too")
        }
        (None, None) => format!("tag {tag} in cluster {cluster} no longer has a primary; it was {from}"),
    }
}

/// The nodes of one command. The controller checks each write of the command separately. A primary may therefore seem
/// to move to a node that is about to lose it.
#[derive(Debug, Default)]
pub(crate) struct ChangedNodes {
    /// The nodes that the command deletes.
    pub(crate) deleted: BTreeSet<String>,
    /// The nodes that the command changes.
    pub(crate) changed: BTreeSet<String>,
}

impl ChangedNodes {
    /// Marks the primaries in a response that would move to another node of the same command. If the command deletes
    /// that node, `to` is removed. If it changes the node, the move is marked as uncertain.
    pub(crate) fn mark_moves(&self, node: Option<&str>, answer: &mut Value) {
        let rows = answer.get_mut("moved_primaries").and_then(Value::as_array_mut).into_iter().flatten();
        for row in rows.filter_map(Value::as_object_mut) {
            let Some(to) = row.get("to").and_then(Value::as_str).map(str::to_owned) else { continue };
            if self.deleted.contains(&to) {
                row.remove("to");
                row.insert(PASSED_OVER_FIELD.to_owned(), to.into());
            } else if self.changed.contains(&to) && node != Some(&*to) {
                row.insert(IS_CERTAIN_FIELD.to_owned(), false.into());
            }
        }
    }
}

/// Asks the person at the terminal for confirmation. Without a terminal, fails with the option to use instead.
fn confirm(what: &str, instead: &str) -> Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("{what}, and there is no terminal to ask for confirmation\n  {instead}");
    }
    err!("{what}: continue? [y/N] ");
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
        let answer = serde_json::json!({"moved_primaries": [
            {"cluster": "prod", "tag": "mysql", "from": "db-1", "to": "db-2"},
            {"cluster": "prod", "tag": "redis", "from": "db-1", "to": null}, {"left_out": 7},
        ]});
        let said = [
            "the primary of tag mysql in cluster prod moves from db-1 to db-2",
            "tag redis in cluster prod no longer has a primary; it was db-1",
            "7 more primaries move",
        ];
        assert_eq!(moved_primary_messages(&answer), said);
        assert!(moved_primary_messages(&serde_json::json!({"moved_primaries": []})).is_empty());
    }

    #[test]
    fn x07_mark_moves_omits_target_when_command_deletes_node() {
        let row = |tag, to| serde_json::json!({"cluster": "prod", "tag": tag, "from": "m2", "to": to});
        let mut answer = serde_json::json!({"moved_primaries": [
            row("a", Some("m1")), row("b", Some("m3")), row("c", Some("m4")), row("d", None),
        ]});
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let together = ChangedNodes { deleted: nodes(&["m1", "m2"]), changed: nodes(&["m3"]) };
        let mut taken_over = serde_json::json!({"moved_primaries": [row("b", Some("m3"))]});
        together.mark_moves(Some("m3"), &mut taken_over);
        let says = ["the primary of tag b in cluster prod moves from m2 to m3"];
        assert_eq!(moved_primary_messages(&taken_over), says, "by the write of m3 itself");
        together.mark_moves(Some("m2"), &mut answer);
        let said = [
            "the primary of tag a in cluster prod moves from m2 to another node, or to none: m1, which is next, \
             is deleted by this command too",
            "the primary of tag b in cluster prod moves from m2 to m3, unless this command takes it from m3 too",
            "the primary of tag c in cluster prod moves from m2 to m4",
            "tag d in cluster prod no longer has a primary; it was m2",
        ];
        assert_eq!(moved_primary_messages(&answer), said);
        assert_eq!(answer["moved_primaries"][0].get("to"), None, "programs read no node there that goes");
        let mut nothing = Value::Null;
        ChangedNodes::default().mark_moves(None, &mut nothing);
        assert_eq!(nothing, Value::Null);
    }

    #[test]
    fn host_limit_is_from_arguments() {
        for (max_nodes, yes, hosts, expected) in [
            (None, false, 10, None),
            (None, true, 3000, None),
            (Some(11), false, 11, None),
            (Some(0), true, 1, Some("this reaches 1 host, more than --max-nodes 0")),
            (None, false, 11, Some("this reaches 11 hosts, and there is no terminal")),
        ] {
            let radius = HostLimit {
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
            match (radius.check_reach(WriteReach { hosts, task_sets: None }), expected) {
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
        let mut radius = HostLimit {
            is_dry_run: true,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: None,
            is_confirmed: false,
        };
        let answer = |hosts: &[&str], changed: &[&str]| serde_json::json!({"hosts": hosts, "changed_task_sets": changed});
        radius.add(&answer(&["a", "b"], &["a"]), WriteReach { hosts: 2, task_sets: Some(1) });
        radius.add(&answer(&["b", "c"], &["a", "c"]), WriteReach { hosts: 2, task_sets: Some(2) });
        assert_eq!(radius.reach(), WriteReach { hosts: 3, task_sets: Some(2) }, "each host counts once");
        radius.add(&Value::Null, WriteReach { hosts: 4, task_sets: Some(3) });
        assert_eq!(radius.reach(), WriteReach { hosts: 7, task_sets: Some(5) });
    }

    #[test]
    fn x04_f10_check_credentials_requires_confirmation() {
        let radius = |yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: Some(5),
            is_confirmed: yes,
        };
        assert!(radius(false).check_credentials("carol", &[]).is_ok());
        assert!(radius(true).check_credentials("carol", &["tokens.a"]).is_ok());
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        let asked = radius(false).check_credentials("carol", &["certificates.01", "tokens.a"]).unwrap_err().to_string();
        assert!(asked.starts_with("this ends certificates.01, tokens.a of principal carol: "), "{asked}");
        assert!(asked.contains("\n  say --yes"), "{asked}");
    }

    #[test]
    fn y09_check_selected_counts_selected_objects() {
        let radius = |yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes: None,
            is_confirmed: yes,
        };
        let said = |yes, selected, changed: &[&str], hosts| {
            let reach = WriteReach { hosts, task_sets: None };
            radius(yes).check_selected("node", selected, changed, reach).map_err(|error| error.to_string())
        };
        assert_eq!(said(false, 3, &[], 0), Ok(()), "nothing is to be done");
        assert_eq!(said(true, 3, &["a"], 1), Ok(()));
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (selected, changed, hosts, expected) in [
            (3, &["a"][..], 1, "3 nodes are selected, of which 1 would change: this reaches 1 host, and there is no terminal"),
            (3, &["a", "b"], 2, "3 nodes are selected, of which 2 would change: this reaches 2 hosts, and there is no terminal"),
            (2, &["a", "b"], 2, "2 nodes are selected, which reach 2 hosts, and there is no terminal"),
        ] {
            let asked = said(false, selected, changed, hosts).unwrap_err();
            assert!(asked.starts_with(expected) && asked.ends_with("\n  say --yes"), "{asked}");
        }
    }

    #[test]
    fn x06_check_selected_requires_confirmation_when_several_are_selected() {
        let radius = |max_nodes, yes| HostLimit {
            is_dry_run: false,
            reached_hosts: HostSet::default(),
            changed_hosts: None,
            max_nodes,
            is_confirmed: yes,
        };
        let said = |radius: HostLimit, names: &[&str], hosts| {
            let reach = WriteReach { hosts, task_sets: None };
            radius.check_selected("node", names.len(), names, reach).map_err(|error| error.to_string())
        };
        assert_eq!(said(radius(None, false), &["a"], 1), Ok(()), "one is as one that is named");
        assert_eq!(said(radius(None, true), &["a", "b"], 2), Ok(()));
        let bounded = said(radius(Some(1), true), &["a", "b"], 2).unwrap_err();
        assert!(bounded.starts_with("this reaches 2 hosts, more than --max-nodes 1"), "{bounded}");
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (names, hosts, of) in [(&["a", "b"][..], 0, None), (&["a", "b"][..], 2, Some(2)), (&["a"; 11][..], 11, None)] {
            let asked = said(radius(of, false), names, hosts).unwrap_err();
            let expected =
                format!("{} nodes are selected, which reach {}, and there is no terminal", names.len(), host_count(hosts));
            assert!(asked.starts_with(&expected) && asked.ends_with("\n  say --yes"), "{asked}");
        }
    }
}

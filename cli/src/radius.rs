//! How many hosts a write reaches: said, bounded by `--max-nodes`, and asked about. Of objects that a selector found, and of which there is
//! more than one, a person is asked whatever they reach: a selector may find others than were meant.
//!
//! The controller counts them, by deciding the write without making it: by the same resolve, so that a level that a host
//! overrides and a release that nobody runs are not guessed at here.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::args::Global;
use crate::exit::Exit;
use crate::output::printable;

/// From here on a person is asked.
const ASKS_ABOVE: usize = 10;
/// How many selected objects a question names.
const MOST_NAMED: usize = 10;

/// Of a primary that moves, in the place of `to`: the next node, which the command deletes too.
const PASSED_OVER: &str = "passed_over";
/// Of a primary that moves, `false` where the command changes the next node too.
const IS_CERTAIN: &str = "is_certain";

/// What bounds the writes of one command.
#[derive(Clone, Debug)]
pub(crate) struct Radius {
    /// Writes are only tried out.
    pub(crate) dry_run: bool,
    /// The hosts that the writes reach which were decided so far.
    reached: Hosts,
    /// Those of them of which the task sets change; `None` where the controller, an older one, does not say.
    changed: Option<Hosts>,
    max_nodes: Option<usize>,
    /// Do not ask.
    yes: bool,
}

/// Hosts, each counted once where all writes name theirs.
#[derive(Clone, Debug, Default)]
struct Hosts {
    named: BTreeSet<String>,
    /// How many more there are of writes whose hosts were counted and not named.
    counted: usize,
}

/// How far a write reaches, or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// How many hosts.
    pub(crate) hosts: usize,
    /// Of how many of them the task set changes; `None`: the controller, an older one, does not say.
    pub(crate) task_sets: Option<usize>,
}

impl Hosts {
    /// Takes in those of one write, which its answer names, or of which it says how many there are alone.
    fn add(&mut self, named: Option<&Value>, counted: usize) {
        match named.and_then(Value::as_array) {
            Some(named) => self.named.extend(named.iter().filter_map(Value::as_str).map(str::to_owned)),
            None => self.counted += counted,
        }
    }

    fn count(&self) -> usize {
        self.named.len() + self.counted
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&counted(self.hosts))?;
        match self.task_sets.filter(|_| self.hosts > 0) {
            None => Ok(()),
            Some(0) => f.write_str(" (no task set changes)"),
            Some(1) => f.write_str(" (the task set of 1 changes)"),
            Some(more) => write!(f, " (task sets of {more} change)"),
        }
    }
}

impl Radius {
    /// As the command line says.
    pub(crate) fn of(global: &Global) -> Self {
        Self {
            dry_run: global.dry_run,
            reached: Hosts::default(),
            changed: None,
            max_nodes: global.max_nodes,
            yes: global.yes,
        }
    }

    /// Notes how far a write reaches that was decided.
    pub(crate) fn note(&mut self, answer: &Value, reach: Reach) {
        self.reached.add(answer.get("hosts"), reach.hosts);
        if let Some(task_sets) = reach.task_sets {
            self.changed.get_or_insert_default().add(answer.get("changed_task_sets"), task_sets);
        }
    }

    /// How far the writes reach that were decided so far.
    pub(crate) fn reach(&self) -> Reach {
        Reach { hosts: self.reached.count(), task_sets: self.changed.as_ref().map(Hosts::count) }
    }

    /// Whether a write may reach so far; a person at a terminal is asked.
    ///
    /// # Errors
    /// Above `--max-nodes`; above ten hosts without a yes.
    pub(crate) fn check(&self, reach: Reach) -> Result<()> {
        self.check_bound(reach.hosts)?;
        if self.max_nodes.is_some() || reach.hosts <= ASKS_ABOVE {
            return Ok(());
        }
        let reaches = format!("this reaches {reach}");
        if self.yes {
            tell!("{reaches}");
            return Ok(());
        }
        ask(&reaches, &format!("say --yes, or --max-nodes {}", reach.hosts))
    }

    /// Whether these objects may be changed, of so many that a selector found, and which reach so far; where it found more than one, a person at
    /// a terminal is asked, however many of them change: the selector is what may be wrong. `--max-nodes` bounds the hosts, and is no yes: it
    /// does not say which objects were meant.
    ///
    /// # Errors
    /// Above `--max-nodes`; of more than one selected object without a yes.
    pub(crate) fn check_selected(&self, kind: &str, selected: usize, changed: &[&str], reach: Reach) -> Result<()> {
        if selected < 2 || changed.is_empty() {
            return self.check(reach);
        }
        self.check_bound(reach.hosts)?;
        let selected = match changed.len() {
            all if all == selected => format!("{selected} {kind}s are selected, which reach {reach}"),
            some => format!("{selected} {kind}s are selected, of which {some} would change: this reaches {reach}"),
        };
        if self.yes {
            tell!("{selected}");
            return Ok(());
        }
        let named: Vec<String> = changed.iter().take(MOST_NAMED).map(|name| printable(name)).collect();
        let more = changed.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        tell!("{}{more}", named.join(", "));
        ask(&selected, "say --yes")
    }

    /// Whether these certificates and tokens of a principal may end; a person at a terminal is asked.
    ///
    /// # Errors
    /// Where there are any, without a yes.
    pub(crate) fn check_ended(&self, principal: &str, ended: &[&str]) -> Result<()> {
        if ended.is_empty() {
            return Ok(());
        }
        let all = printable(&ended.join(", "));
        let ends = format!(
            "this ends {all} of principal {}: whoever made them might do less than it may from now on, and may know the key or secret",
            printable(principal)
        );
        if self.yes {
            tell!("{ends}");
            return Ok(());
        }
        ask(
            &ends,
            "say --yes, and make new ones: stemma cert create NAME --to DIR, or stemma principal token create NAME",
        )
    }

    fn check_bound(&self, hosts: usize) -> Result<()> {
        match self.max_nodes {
            Some(most) if hosts > most => Err(Exit::Error.because(format!(
                "this reaches {}, more than --max-nodes {most}\n  raise it, or write to a level nearer to the hosts",
                counted(hosts)
            ))),
            _ => Ok(()),
        }
    }
}

/// `1 host`, `7 hosts`.
pub(crate) fn counted(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") }
}

/// Which labels hosts lose by a write, as the controller counts them; `None`: none.
pub(crate) fn lost_labels(answer: &Value) -> Option<String> {
    let lost = answer.get("lost_labels")?.as_object()?;
    let one = |(key, hosts): (&String, &Value)| {
        let hosts = hosts.as_u64().and_then(|hosts| usize::try_from(hosts).ok()).unwrap_or_default();
        format!("{key} ({})", counted(hosts))
    };
    let all: Vec<String> = lost.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("hosts lose the labels {}", printable(&all.join(", "))))
}

/// Which primaries a write moves, a sentence each.
pub(crate) fn moved_primaries(answer: &Value) -> Vec<String> {
    let rows = answer.get("moved_primaries").and_then(Value::as_array).into_iter().flatten();
    rows.map(moved_primary).collect()
}

fn moved_primary(row: &Value) -> String {
    let text = |field: &str| row.get(field).and_then(Value::as_str).map(printable);
    if let Some(more) = row.get("left_out") {
        return format!("{more} more primaries move");
    }
    let [tag, cluster, from] = ["tag", "cluster", "from"].map(|field| text(field).unwrap_or_default());
    let moves = format!("the primary of tag {tag} in cluster {cluster} moves from {from} to");
    match (text("to"), text(PASSED_OVER)) {
        (Some(to), _) if row.get(IS_CERTAIN) == Some(&Value::Bool(false)) => {
            format!("{moves} {to}, unless this command takes it from {to} too")
        }
        (Some(to), _) => format!("{moves} {to}"),
        (None, Some(next)) => {
            format!(
                "{moves} another node, or nobody holds it then: {next}, which is next, is deleted by this command too"
            )
        }
        (None, None) => format!("nobody holds tag {tag} of cluster {cluster} as primary any more; {from} did"),
    }
}

/// The nodes of one command. The controller decides each of its writes as if the others were not made, so a primary may be said to move to
/// a node that is about to lose it.
#[derive(Debug, Default)]
pub(crate) struct Together {
    /// Those that it deletes.
    pub(crate) deleted: BTreeSet<String>,
    /// Those that it changes.
    pub(crate) changed: BTreeSet<String>,
}

impl Together {
    /// Says of the primaries that a write of one object moves, in its answer, which of them go to another of these nodes: `to` is left out where that
    /// is deleted too, and not certain where it is changed too.
    pub(crate) fn mark(&self, own: Option<&str>, answer: &mut Value) {
        let rows = answer.get_mut("moved_primaries").and_then(Value::as_array_mut).into_iter().flatten();
        for row in rows.filter_map(Value::as_object_mut) {
            let Some(to) = row.get("to").and_then(Value::as_str).map(str::to_owned) else { continue };
            if self.deleted.contains(&to) {
                row.remove("to");
                row.insert(PASSED_OVER.to_owned(), to.into());
            } else if self.changed.contains(&to) && own != Some(&*to) {
                row.insert(IS_CERTAIN.to_owned(), false.into());
            }
        }
    }
}

/// Asks the person at the terminal; where there is none, says what to say instead.
fn ask(what: &str, instead: &str) -> Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("{what}, and nobody is at a terminal to be asked\n  {instead}");
    }
    tell_part!("{what}: go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("y") || answer.trim().eq_ignore_ascii_case("yes") {
        return Ok(());
    }
    bail!("it was not gone on with")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x07_each_primary_that_moves_is_a_sentence() {
        let answer = serde_json::json!({"moved_primaries": [
            {"cluster": "prod", "tag": "mysql", "from": "db-1", "to": "db-2"},
            {"cluster": "prod", "tag": "redis", "from": "db-1", "to": null}, {"left_out": 7},
        ]});
        let said = [
            "the primary of tag mysql in cluster prod moves from db-1 to db-2",
            "nobody holds tag redis of cluster prod as primary any more; db-1 did",
            "7 more primaries move",
        ];
        assert_eq!(moved_primaries(&answer), said);
        assert!(moved_primaries(&serde_json::json!({"moved_primaries": []})).is_empty());
    }

    #[test]
    fn x07_a_primary_is_not_said_to_move_to_a_node_that_the_same_command_deletes() {
        let row = |tag, to| serde_json::json!({"cluster": "prod", "tag": tag, "from": "m2", "to": to});
        let mut answer = serde_json::json!({"moved_primaries": [
            row("a", Some("m1")), row("b", Some("m3")), row("c", Some("m4")), row("d", None),
        ]});
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let together = Together { deleted: nodes(&["m1", "m2"]), changed: nodes(&["m3"]) };
        let mut taken_over = serde_json::json!({"moved_primaries": [row("b", Some("m3"))]});
        together.mark(Some("m3"), &mut taken_over);
        let says = ["the primary of tag b in cluster prod moves from m2 to m3"];
        assert_eq!(moved_primaries(&taken_over), says, "by the write of m3 itself");
        together.mark(Some("m2"), &mut answer);
        let said = [
            "the primary of tag a in cluster prod moves from m2 to another node, or nobody holds it then: m1, which is next, \
             is deleted by this command too",
            "the primary of tag b in cluster prod moves from m2 to m3, unless this command takes it from m3 too",
            "the primary of tag c in cluster prod moves from m2 to m4",
            "nobody holds tag d of cluster prod as primary any more; m2 did",
        ];
        assert_eq!(moved_primaries(&answer), said);
        assert_eq!(answer["moved_primaries"][0].get("to"), None, "programs read no node there that goes");
        let mut nothing = Value::Null;
        Together::default().mark(None, &mut nothing);
        assert_eq!(nothing, Value::Null);
    }

    #[test]
    fn a_write_is_bounded_by_what_was_said() {
        for (max_nodes, yes, hosts, expected) in [
            (None, false, 10, None),
            (None, true, 3000, None),
            (Some(11), false, 11, None),
            (Some(0), true, 1, Some("this reaches 1 host, more than --max-nodes 0")),
            (None, false, 11, Some("this reaches 11 hosts, and nobody is at a terminal")),
        ] {
            let radius = Radius { dry_run: false, reached: Hosts::default(), changed: None, max_nodes, yes };
            // Where the tests run at a terminal, the last one would ask.
            if max_nodes.is_none() && !yes && hosts > ASKS_ABOVE && std::io::stdin().is_terminal() {
                continue;
            }
            match (radius.check(Reach { hosts, task_sets: None }), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
                (found, expected) => panic!("{hosts}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn y09_hosts_that_are_reached_and_task_sets_that_change_are_both_said() {
        for (hosts, task_sets, expected) in [
            (16, Some(8), "16 hosts (task sets of 8 change)"),
            (16, Some(1), "16 hosts (the task set of 1 changes)"),
            (1, Some(0), "1 host (no task set changes)"),
            (0, Some(0), "0 hosts"),
            (16, None, "16 hosts"),
        ] {
            assert_eq!(Reach { hosts, task_sets }.to_string(), expected);
        }
        let mut radius =
            Radius { dry_run: true, reached: Hosts::default(), changed: None, max_nodes: None, yes: false };
        let answer =
            |hosts: &[&str], changed: &[&str]| serde_json::json!({"hosts": hosts, "changed_task_sets": changed});
        radius.note(&answer(&["a", "b"], &["a"]), Reach { hosts: 2, task_sets: Some(1) });
        radius.note(&answer(&["b", "c"], &["a", "c"]), Reach { hosts: 2, task_sets: Some(2) });
        assert_eq!(radius.reach(), Reach { hosts: 3, task_sets: Some(2) }, "each host counts once");
        radius.note(&Value::Null, Reach { hosts: 4, task_sets: Some(3) });
        assert_eq!(radius.reach(), Reach { hosts: 7, task_sets: Some(5) });
    }

    #[test]
    fn x04_f10_what_a_principal_is_known_by_ends_with_a_yes_alone() {
        let radius = |yes| Radius { dry_run: false, reached: Hosts::default(), changed: None, max_nodes: Some(5), yes };
        assert!(radius(false).check_ended("carol", &[]).is_ok());
        assert!(radius(true).check_ended("carol", &["tokens.a"]).is_ok());
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        let asked = radius(false).check_ended("carol", &["certificates.01", "tokens.a"]).unwrap_err().to_string();
        assert!(asked.starts_with("this ends certificates.01, tokens.a of principal carol: "), "{asked}");
        assert!(asked.contains("\n  say --yes"), "{asked}");
    }

    #[test]
    fn y09_the_objects_that_are_selected_are_counted_and_not_those_that_change() {
        let radius = |yes| Radius { dry_run: false, reached: Hosts::default(), changed: None, max_nodes: None, yes };
        let said = |yes, selected, changed: &[&str], hosts| {
            let reach = Reach { hosts, task_sets: None };
            radius(yes).check_selected("node", selected, changed, reach).map_err(|error| error.to_string())
        };
        assert_eq!(said(false, 3, &[], 0), Ok(()), "nothing is to be done");
        assert_eq!(said(true, 3, &["a"], 1), Ok(()));
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (selected, changed, hosts, expected) in [
            (3, &["a"][..], 1, "3 nodes are selected, of which 1 would change: this reaches 1 host, and nobody is"),
            (3, &["a", "b"], 2, "3 nodes are selected, of which 2 would change: this reaches 2 hosts, and nobody is"),
            (2, &["a", "b"], 2, "2 nodes are selected, which reach 2 hosts, and nobody is"),
        ] {
            let asked = said(false, selected, changed, hosts).unwrap_err();
            assert!(asked.starts_with(expected) && asked.ends_with("\n  say --yes"), "{asked}");
        }
    }

    #[test]
    fn x06_more_than_one_selected_object_wants_a_yes_however_few_hosts_it_reaches() {
        let radius =
            |max_nodes, yes| Radius { dry_run: false, reached: Hosts::default(), changed: None, max_nodes, yes };
        let said = |radius: Radius, names: &[&str], hosts| {
            let reach = Reach { hosts, task_sets: None };
            radius.check_selected("node", names.len(), names, reach).map_err(|error| error.to_string())
        };
        assert_eq!(said(radius(None, false), &["a"], 1), Ok(()), "one is as one that is named");
        assert_eq!(said(radius(None, true), &["a", "b"], 2), Ok(()));
        let bounded = said(radius(Some(1), true), &["a", "b"], 2).unwrap_err();
        assert!(bounded.starts_with("this reaches 2 hosts, more than --max-nodes 1"), "{bounded}");
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            return;
        }
        for (names, hosts, of) in
            [(&["a", "b"][..], 0, None), (&["a", "b"][..], 2, Some(2)), (&["a"; 11][..], 11, None)]
        {
            let asked = said(radius(of, false), names, hosts).unwrap_err();
            let expected = format!("{} nodes are selected, which reach {}, and nobody is", names.len(), counted(hosts));
            assert!(asked.starts_with(&expected) && asked.ends_with("\n  say --yes"), "{asked}");
        }
    }
}

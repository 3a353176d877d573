//! What a `package` task requires, what is on the host, and the difference: the same for each package manager.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::request::{PackageRequest, PackageTarget, VersionRule};
use crate::apply::listing::list_names;
use crate::host::command::escape_controls;

/// Maximum number of other packages in a diff: those that were installed or removed because of the named ones.
const MAX_OTHER_LINES: usize = 200;

/// The state of one package that a task names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackageState {
    /// The name, as the task has it.
    pub(super) name: String,
    /// The installed version, or `None` if the package is not installed.
    pub(super) version: Option<String>,
    /// True if the package is installed, or if its configuration files are still there.
    pub(super) has_configuration: bool,
    /// True if upgrades of the system leave the package as it is.
    pub(super) is_held: bool,
    /// The name of an installed package that provides this name, if no package with the name itself is installed.
    pub(super) provider: Option<String>,
}

/// The state of a package whose installation or removal has stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrokenState {
    /// The files of the package are not all there.
    MustReinstall,
    /// The package is not configured, or its triggers have not run. The text is the name of dpkg for the state.
    NotConfigured(&'static str),
}

/// What must change so that the host is as a task requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackageChanges {
    /// The packages that must be installed, upgraded, downgraded or removed.
    pub(super) packages: Vec<String>,
    /// The packages of `packages` that are held.
    pub(super) held: Vec<String>,
    /// The packages whose hold must be set or cleared.
    pub(super) hold: Vec<String>,
    /// The differences as a diff.
    pub(super) diff: String,
}

impl PackageChanges {
    /// Compares the packages with what a task requires. `compare` is the order of the versions.
    pub(super) fn new(request: &PackageRequest, states: &[PackageState], compare: fn(&str, &str) -> Ordering) -> Self {
        let mut changes = Self::default();
        for state in states {
            let needs_change = match &request.target {
                PackageTarget::Absent { purge } => state.version.is_some() || (*purge && state.has_configuration),
                PackageTarget::Present(rule) => !rule.accepts(state, compare),
            };
            let sets_hold = request.hold.is_some_and(|hold| hold != state.is_held);
            if needs_change {
                changes.packages.push(state.name.clone());
                if state.is_held {
                    changes.held.push(state.name.clone());
                }
                changes.add_line('-', &state.name, &state.describe());
                changes.add_line('+', &state.name, &request.target.describe());
            }
            if sets_hold {
                changes.hold.push(state.name.clone());
                changes.add_line('-', &state.name, held_text(state.is_held));
                changes.add_line('+', &state.name, held_text(!state.is_held));
            }
        }
        changes
    }

    /// Returns whether the host is as the task requires.
    pub(super) const fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.hold.is_empty()
    }

    /// Returns what an apply would do, in one sentence.
    pub(super) fn would_message(&self, request: &PackageRequest) -> String {
        let mut parts = Vec::new();
        if !self.packages.is_empty() {
            parts.push(format!("{} {}", request.target.verb(), list_names(&self.packages)));
        }
        if !self.hold.is_empty() {
            let verb = if request.hold == Some(true) { "hold" } else { "no longer hold" };
            parts.push(format!("{verb} {}", list_names(&self.hold)));
        }
        format!("would {}", parts.join(" and "))
    }

    /// Returns the diff in one line, for a message.
    pub(super) fn one_line(&self) -> String {
        self.diff.lines().collect::<Vec<_>>().join(", ")
    }

    fn add_line(&mut self, sign: char, name: &str, text: &str) {
        // Writing to a text never fails.
        let _ = writeln!(self.diff, "{sign}{name}: {}", escape_controls(text));
    }
}

impl PackageState {
    /// Returns the state in words for a diff.
    fn describe(&self) -> String {
        match (&self.version, self.has_configuration) {
            (Some(version), _) => version.clone(),
            (None, true) => "absent, with configuration files".to_owned(),
            (None, false) => "absent".to_owned(),
        }
    }
}

impl VersionRule {
    /// Returns whether a package is as the rule requires. A name that an installed package provides counts as installed, but
    /// has no version.
    fn accepts(&self, state: &PackageState, compare: fn(&str, &str) -> Ordering) -> bool {
        match self {
            Self::Any => state.version.is_some() || state.provider.is_some(),
            Self::Exact(wanted) => state.version.as_ref().is_some_and(|version| compare(version, wanted).is_eq()),
            Self::AtLeast(wanted) => state.version.as_ref().is_some_and(|version| compare(version, wanted).is_ge()),
        }
    }
}

impl PackageTarget {
    /// Returns the target in words for a diff.
    fn describe(&self) -> String {
        match self {
            Self::Absent { purge: false } => "absent".to_owned(),
            Self::Absent { purge: true } => "absent, without configuration files".to_owned(),
            Self::Present(VersionRule::Any) => "present".to_owned(),
            Self::Present(VersionRule::Exact(version)) => version.clone(),
            Self::Present(VersionRule::AtLeast(version)) => format!("{version} or newer"),
        }
    }

    /// Returns the verb for what reaches the target.
    pub(super) const fn verb(&self) -> &'static str {
        match self {
            Self::Absent { purge: false } => "remove",
            Self::Absent { purge: true } => "purge",
            Self::Present(_) => "install",
        }
    }
}

impl BrokenState {
    /// Returns what prevents changes of packages, and the commands that mend it. `packages` is not empty.
    pub(super) fn message(packages: &[(String, Self)]) -> String {
        let describe = |(name, state): &(String, Self)| match state {
            Self::MustReinstall => format!("{name} (half-installed)"),
            Self::NotConfigured(state) => format!("{name} ({state})"),
        };
        let names: Vec<_> = packages.iter().map(describe).collect();
        let (names, advice) = (list_names(&names), Self::advice(packages));
        format!("dpkg did not finish and left {names}: {advice}; nothing was changed")
    }

    /// Returns the commands that mend these packages. `packages` is not empty.
    pub(super) fn advice(packages: &[(String, Self)]) -> String {
        let (broken, unconfigured): (Vec<_>, Vec<_>) = packages.iter().partition(|(_, state)| *state == Self::MustReinstall);
        let mut commands = Vec::new();
        // apt refuses to work before this command if dpkg left a journal.
        if !unconfigured.is_empty() {
            commands.push("`dpkg --configure -a`".to_owned());
        }
        // `apt-get --fix-broken install` sees no broken dependency, and leaves these packages as they are.
        if !broken.is_empty() {
            let names: Vec<&str> = broken.iter().map(|(name, _)| name.as_str()).collect();
            commands.push(format!("`apt-get install --reinstall {}`", names.join(" ")));
        }
        format!("run {} on the host and read what it reports", commands.join(" and then "))
    }
}

/// The packages of a host before or after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackageSnapshot {
    /// The packages that the task names.
    pub(super) named: Vec<PackageState>,
    /// The versions of all installed packages, by name.
    pub(super) installed: BTreeMap<String, String>,
}

/// Returns a diff of all packages that were installed, removed or changed. The packages that the task names come first. Of the
/// others, the diff has those that are not in `ignored`, and none if `ignored` is `None`.
pub(super) fn diff_snapshots(old: &PackageSnapshot, new: &PackageSnapshot, ignored: Option<&[String]>) -> String {
    let mut text = String::new();
    let mut add = |name: &str, old: &str, new: &str| {
        if old != new {
            // Writing to a text never fails.
            let _ = writeln!(text, "-{name}: {}\n+{name}: {}", escape_controls(old), escape_controls(new));
        }
    };
    for (old_state, new_state) in old.named.iter().zip(&new.named) {
        add(&old_state.name, &old_state.describe(), &new_state.describe());
        add(&old_state.name, held_text(old_state.is_held), held_text(new_state.is_held));
    }
    let is_named = |name: &str| old.named.iter().any(|state| state.name == name);
    let is_ignored = |name: &String| ignored.is_none_or(|ignored| ignored.contains(name));
    let names: BTreeSet<&String> = old.installed.keys().chain(new.installed.keys()).collect();
    let is_other_change =
        |name: &&String| !is_named(name) && !is_ignored(name) && old.installed.get(*name) != new.installed.get(*name);
    let others: Vec<&String> = names.into_iter().filter(is_other_change).collect();
    let version =
        |snapshot: &PackageSnapshot, name: &str| snapshot.installed.get(name).cloned().unwrap_or_else(|| "absent".to_owned());
    for name in others.iter().take(MAX_OTHER_LINES) {
        add(name, &version(old, name), &version(new, name));
    }
    if others.len() > MAX_OTHER_LINES {
        let _ = writeln!(text, " and {} more packages", others.len() - MAX_OTHER_LINES);
    }
    text
}

/// Returns in words whether a package is held.
const fn held_text(is_held: bool) -> &'static str {
    if is_held { "held" } else { "not held" }
}

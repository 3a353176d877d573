//! The reasons of failures in the output of apt and dpkg. They write English messages, because the command has `LC_ALL`.
//!
//! The output also has what scripts of packages write, which may look like a message of apt. dpkg runs these scripts, so a
//! message counts only if dpkg did not begin.

use super::request::{PackageRequest, PackageTarget, VersionRule};
use super::state::BrokenState;
use crate::apply::listing::list_names;
use crate::apply::task::FailureEffect;
use crate::host::{CommandResult, ExitKind};

/// The architecture of the host after a name, as apt has it.
pub(super) const NATIVE: &str = ":native";

/// The status of apt if it fails for a reason that it knows.
const APT_FAILED: i32 = 100;

/// The start of the last line of apt if dpkg has failed, whatever dpkg and its scripts wrote before.
const DPKG_FAILED: &str = "E: Sub-process ";

/// Texts of apt from which it follows that its lists of packages may be too old.
const OLD_LIST_TEXTS: &[&str] = &[
    "Unable to locate package",
    "' was not found",
    "has no installation candidate",
    "404  Not Found",
    "is not available, but is referred to",
];

/// Texts of apt about a lock that another process holds.
const LOCK_TEXTS: &[&str] = &["Could not get lock", "Unable to acquire the dpkg frontend lock", "Unable to lock directory"];

/// Texts about a full file system.
const SPACE_TEXTS: &[&str] = &["You don't have enough free space", "No space left on device"];

/// Texts about a source that cannot be reached.
const NETWORK_TEXTS: &[&str] = &[
    "Temporary failure resolving",
    "Could not resolve",
    "Could not connect",
    "Unable to connect",
    "Failed to fetch",
    "Unable to fetch some archives",
    "Connection failed",
    "Connection timed out",
];

/// Maximum number of lines of warnings.
const MAX_WARNING_LINES: usize = 3;

/// Returns whether dpkg may have begun its work in a command that failed.
pub(super) fn has_dpkg_begun(result: &CommandResult) -> bool {
    result.end != ExitKind::Status(APT_FAILED) || result.output.lines().any(|line| line.starts_with(DPKG_FAILED))
}

/// Returns whether a failure may have its cause in old lists of packages.
pub(super) fn may_have_old_lists(result: &CommandResult) -> bool {
    !has_dpkg_begun(result) && contains_any(&result.output, OLD_LIST_TEXTS)
}

/// Returns whether a command failed because another process held a lock.
pub(super) fn has_lock_error(result: &CommandResult) -> bool {
    !has_dpkg_begun(result) && contains_any(&result.output, LOCK_TEXTS)
}

/// Returns the first lines with errors and warnings of `apt-get update`.
pub(super) fn warnings(output: &str) -> String {
    let lines = output.lines().filter(|line| ["E: ", "W: ", "Err:"].iter().any(|start| line.starts_with(start)));
    lines.take(MAX_WARNING_LINES).collect::<Vec<_>>().join("; ")
}

/// Returns the version that apt would install, from the output of `apt-cache policy`.
pub(super) fn find_candidate(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (line != "(none)").then(|| line.to_owned())
}

/// Returns whether apt knows a version, from the output of `apt-cache policy`.
pub(super) fn has_version(output: &str, version: &str) -> bool {
    let table = output.lines().skip_while(|line| line.trim() != "Version table:").skip(1);
    table.filter_map(|line| line.trim_start().trim_start_matches("*** ").split_once(' ')).any(|(known, _)| known == version)
}

/// Returns the message about a version that apt does not know.
pub(super) fn unknown_version(name: &str, version: &str) -> String {
    format!("parameters.version: apt knows no version {version} of {name} (`apt-cache madison {name}` lists those it knows)")
}

/// Returns the message for a command that failed, and its effect. `refresh_warnings` is what went wrong when the lists of
/// packages were refreshed. `broken` has the packages that dpkg has left in the middle.
pub(super) fn explain_failure(
    request: &PackageRequest,
    result: &CommandResult,
    refresh_warnings: &str,
    broken: &[(String, BrokenState)],
) -> (String, FailureEffect) {
    let output = result.output.as_str();
    let what = format!("apt-get could not {} {}", request.target.verb(), list_names(&request.names));
    if !has_dpkg_begun(result) {
        let message = explain_refusal(request, output).unwrap_or_else(|| match first_error(output) {
            Some(line) => format!("{what}: {line}"),
            None => format!("{what}: it {}", result.end.sentence()),
        });
        let warnings = if refresh_warnings.is_empty() || !may_have_old_lists(result) {
            String::new()
        } else {
            format!("; the lists could not be refreshed completely: {refresh_warnings}")
        };
        return (format!("{message}; nothing was changed{warnings}"), FailureEffect::Unchanged);
    }
    let failed = indented_words(output, "Errors were encountered while processing:");
    let reason = match (result.end, output.lines().rev().find_map(|line| line.strip_prefix("E: "))) {
        (ExitKind::TimedOut, _) => {
            format!("it did not end within {} s (parameters.timeout) and was stopped", request.timeout.as_secs())
        }
        _ if !failed.is_empty() => format!("dpkg could not process {}", list_names(&failed)),
        (_, Some(line)) => line.to_owned(),
        (end, None) => format!("it {}", end.sentence()),
    };
    let advice = match broken {
        [] => "correct the cause, which the output names, and the next pass tries again".to_owned(),
        broken => BrokenState::advice(broken),
    };
    (format!("{what}: {reason}: {advice}"), FailureEffect::Partial)
}

/// Returns the message for a change that apt refused or could not begin, or `None` if its reason has no message of its own. dpkg
/// has not begun.
fn explain_refusal(request: &PackageRequest, output: &str) -> Option<String> {
    let names = list_names(&request.names);
    if let Some(name) = output.lines().find_map(|line| line.split_once("Unable to locate package ")) {
        let name = name.1.trim();
        let name = name.strip_suffix(NATIVE).unwrap_or(name);
        let for_architecture = name.split_once(':').map_or_else(String::new, |(_, architecture)| {
            format!(", or run `dpkg --add-architecture {architecture}` if the host does not have this architecture")
        });
        return Some(format!("apt knows no package {name}: correct its name, or add a source that has it{for_architecture}"));
    }
    if let (PackageTarget::Present(VersionRule::Exact(version)), true) = (&request.target, output.contains("' was not found")) {
        return Some(unknown_version(&request.names[0], version));
    }
    if let Some(name) = quoted_after(output, "E: Package '").filter(|_| output.contains("has no installation candidate")) {
        return Some(format!(
            "apt knows {name} only by name, and no source has it: name a package that provides it, or add a source"
        ));
    }
    if output.contains("Packages need to be removed but remove is disabled") {
        let removed = list_names(&indented_words(output, "The following packages will be REMOVED:"));
        return Some(format!(
            "with {names}, apt would remove {removed}, which the task does not name: remove it by a task with `absent: true` first"
        ));
    }
    if output.contains("Held packages were changed") {
        let held = indented_words(output, "The following held packages will be changed:");
        let command = format!("apt-mark unhold {}", held.join(" "));
        return Some(format!("{} must change too, and is held: run `{command}` on the host", list_names(&held)));
    }
    if output.contains("Packages were downgraded and -y was used without") {
        let downgraded = list_names(&indented_words(output, "The following packages will be DOWNGRADED:"));
        return Some(format!("with {names}, apt would downgrade {downgraded}: write a task with its version"));
    }
    if output.contains("Essential packages were removed") {
        return Some(format!("without {names}, the system would not work: apt refuses to remove essential packages"));
    }
    if output.contains("The following packages have unmet dependencies:") {
        let lines = unmet_lines(output);
        return Some(format!("the dependencies of {names} cannot be met: {lines}"));
    }
    if output.contains("dpkg was interrupted") {
        return Some("dpkg was interrupted: run `dpkg --configure -a` on the host and read what it reports".to_owned());
    }
    if contains_any(output, LOCK_TEXTS) {
        return Some(format!("another package manager works all the time: {}", first_error(output).unwrap_or_default()));
    }
    explain_fetch(&names, output)
}

/// Returns the message for packages that could not be fetched, because the disk is full or a source cannot be reached.
fn explain_fetch(names: &str, output: &str) -> Option<String> {
    let line = |texts: &[&str]| output.lines().find(|line| contains_any(line, texts)).map(str::trim);
    if let Some(line) = line(SPACE_TEXTS) {
        return Some(format!("a file system is too full for {names}: {line}"));
    }
    line(NETWORK_TEXTS).map(|line| format!("{names} could not be fetched: {line}"))
}

fn contains_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

/// Returns the first line with an error of apt, without its mark. Later ones follow from the first.
fn first_error(output: &str) -> Option<&str> {
    output.lines().find_map(|line| line.strip_prefix("E: "))
}

/// Returns the text between `start` and the next `'`.
fn quoted_after<'a>(output: &'a str, start: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(start)?;
    rest.split('\'').next()
}

/// Returns the words of the indented lines after a heading. apt marks a package that it would purge by `*`.
fn indented_words(output: &str, heading: &str) -> Vec<String> {
    let lines = output.lines().skip_while(|line| line.trim_end() != heading).skip(1).take_while(|line| line.starts_with(' '));
    let words = lines.flat_map(str::split_ascii_whitespace);
    words.map(|word| word.trim_end_matches('*').to_owned()).collect()
}

/// Returns the lines about unmet dependencies in one line.
fn unmet_lines(output: &str) -> String {
    let lines = output.lines().skip_while(|line| !line.contains("have unmet dependencies:")).skip(1);
    let lines =
        lines.take_while(|line| line.starts_with(' ')).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
    lines.take(MAX_WARNING_LINES).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;

//! The system calls by which a power loss leaves either the old file or the new one, as `strace` sees them from
//! outside. The agent syncs a file before the file gets its name, and syncs the directory after that.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually};
use stemma_tests::site::{SITE, check_files};
use stemma_tests::tool;

/// A system call in the trace of the agent: a sync or a rename. The test ignores other calls.
#[derive(Debug, PartialEq, Eq)]
enum SyncCall {
    /// The sync of the file or directory with this path.
    Sync(String),
    /// A rename in a directory: the directory, the old name and the new name.
    Rename(String, String, String),
}

/// Returns the text between two signs, and the text after the second.
fn split_between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(open)?.1.split_once(close)
}

/// Returns the sync or rename in a line of the trace of `strace`, or `None` for another call. A line has the id of the
/// thread and then the call, in which each descriptor is followed by its path in angle brackets.
fn parse_line(line: &str) -> Option<SyncCall> {
    let (_, call) = line.split_once(' ')?;
    let call = call.trim_start();
    if call.starts_with("fsync(") || call.starts_with("fdatasync(") {
        return split_between(call, "<", ">").map(|(path, _)| SyncCall::Sync(path.to_owned()));
    }
    let rest = call.strip_prefix("renameat")?;
    let (dir, rest) = split_between(rest, "<", ">")?;
    let (from, rest) = split_between(rest, "\"", "\"")?;
    let (to, _) = split_between(rest, "\"", "\"")?;
    Some(SyncCall::Rename(dir.to_owned(), from.to_owned(), to.to_owned()))
}

/// Checks that before each rename the file was synced, and after the rename its directory. Returns the new names of the
/// files.
fn check_calls(calls: &[SyncCall]) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (index, call) in calls.iter().enumerate() {
        let SyncCall::Rename(directory, old_name, new_name) = call else { continue };
        let is_sync = |path: String| move |call: &SyncCall| *call == SyncCall::Sync(path.clone());
        ensure!(
            calls[..index].iter().any(is_sync(format!("{directory}/{old_name}"))),
            "{directory}/{new_name} was not synced before its rename"
        );
        ensure!(
            calls[index..].iter().any(is_sync(directory.clone())),
            "{directory} was not synced after the rename of {new_name}"
        );
        names.insert(new_name.clone());
    }
    Ok(names)
}

/// Sets the label `tier`, and waits until the rendered file on the host contains the new value.
fn edit_tier(fleet: &TempFleet, agent: &TestAgent, tier: &str) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])?;
    eventually("the edit on the host", || {
        check_file_contains(&agent.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| agent.log())
    })
}

#[test]
fn w15_10_files_are_synced_before_rename_and_directory_after() -> Result<()> {
    if !tool::is_available("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || check_files(&web))?;
    web.kill()?;
    let trace = fleet.dir().join("trace");
    web.start_under(&tool::strace_command(&trace, &["trace=fsync,fdatasync,renameat,renameat2"]))?;
    edit_tier(&fleet, &web, "traced")?;
    // When the second edit is on the host, the agent has made all calls for the file of the first edit.
    edit_tier(&fleet, &web, "and-on")?;
    let names = eventually("all calls in the trace", || {
        let text = std::fs::read_to_string(&trace)?;
        let calls: Vec<_> = text.lines().filter_map(parse_line).collect();
        check_calls(&calls)
    })?;
    ensure!(names.contains("site.conf") && names.contains("labels.json") && names.contains("accepted"), "{names:?}");
    web.kill()
}

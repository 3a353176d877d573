//! The system calls by which a power loss leaves either the old file or the new one, as `strace` sees them from
//! outside. The agent syncs a file before the file gets its name, and syncs the directory after that.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::{TempFleet, TestAgent};
use stemma_tests::program::{check_file_contains, eventually};
use stemma_tests::site::{SITE, check_files};
use stemma_tests::tool;

/// A rename or a sync.
#[derive(Debug, PartialEq, Eq)]
enum SyncCall {
    /// The sync of a file or directory.
    Sync(String),
    /// A rename in a directory: the directory, the old name and the new name.
    Rename(String, String, String),
}

/// Returns the text between two signs, and the text after the second.
fn split_between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(open)?.1.split_once(close)
}

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

/// Checks that each file was synced before it got its name, and its directory after that. Returns the new names.
fn check_calls(asked: &[SyncCall]) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (at, one) in asked.iter().enumerate() {
        let SyncCall::Rename(dir, from, to) = one else { continue };
        let is_sync = |path: String| move |asked: &SyncCall| *asked == SyncCall::Sync(path.clone());
        ensure!(asked[..at].iter().any(is_sync(format!("{dir}/{from}"))), "{dir}/{to} takes its name unsynced");
        ensure!(asked[at..].iter().any(is_sync(dir.clone())), "{dir} is not synced after {to} took its name there");
        names.insert(to.clone());
    }
    Ok(names)
}

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
    // When the next edit has arrived, all calls for the first file have been made.
    edit_tier(&fleet, &web, "and-on")?;
    let names = eventually("all of it in the trace", || {
        let text = std::fs::read_to_string(&trace)?;
        let asked: Vec<_> = text.lines().filter_map(parse_line).collect();
        check_calls(&asked)
    })?;
    ensure!(names.contains("site.conf") && names.contains("labels.json") && names.contains("accepted"), "{names:?}");
    web.kill()
}

//! What the agent asks of the machine so that a loss of power finds the old file or the new one, seen from outside by `strace`: a file
//! is synced before it takes its name, and its directory after that.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::{Agent, Fleet};
use stemma_tests::program::{eventually, file_contains};
use stemma_tests::site::{SITE, whole};
use stemma_tests::tool;

/// Renames and syncs in their order.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Of a file or directory.
    Sync(String),
    /// In a directory, from a name to a name.
    Rename(String, String, String),
}

/// What stands between two signs.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(open)?.1.split_once(close)
}

fn read(line: &str) -> Option<Asked> {
    let (_, call) = line.split_once(' ')?;
    let call = call.trim_start();
    if call.starts_with("fsync(") || call.starts_with("fdatasync(") {
        return between(call, "<", ">").map(|(path, _)| Asked::Sync(path.to_owned()));
    }
    let rest = call.strip_prefix("renameat")?;
    let (dir, rest) = between(rest, "<", ">")?;
    let (from, rest) = between(rest, "\"", "\"")?;
    let (to, _) = between(rest, "\"", "\"")?;
    Some(Asked::Rename(dir.to_owned(), from.to_owned(), to.to_owned()))
}

/// That each file was synced before it took its name, and its directory after that; the names that were taken.
fn check(asked: &[Asked]) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (at, one) in asked.iter().enumerate() {
        let Asked::Rename(dir, from, to) = one else { continue };
        let is_sync = |path: String| move |asked: &Asked| *asked == Asked::Sync(path.clone());
        ensure!(asked[..at].iter().any(is_sync(format!("{dir}/{from}"))), "{dir}/{to} takes its name unsynced");
        ensure!(asked[at..].iter().any(is_sync(dir.clone())), "{dir} is not synced after {to} took its name there");
        names.insert(to.clone());
    }
    Ok(names)
}

fn edit(fleet: &Fleet, agent: &Agent, tier: &str) -> Result<()> {
    fleet.stemma(&["label", "nodegroup", "prod/frontends", &format!("tier={tier}")])?;
    eventually("the edit on the host", || {
        file_contains(&agent.path("etc/nginx/conf.d/site.conf"), &format!("tier {tier}")).with_context(|| agent.log())
    })
}

#[test]
fn w15_10_every_file_is_synced_before_it_takes_its_name_and_its_directory_after() -> Result<()> {
    if !tool::is_there("strace", &["-o", "/dev/null", "true"]) {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", SITE])?;
    let mut web = fleet.join("web-1", "prod/frontends")?;
    eventually("the first convergence", || whole(&web))?;
    web.kill()?;
    let trace = fleet.dir().join("trace");
    web.start_under(&tool::traced(&trace, &["trace=fsync,fdatasync,renameat,renameat2"]))?;
    edit(&fleet, &web, "traced")?;
    // The first file has been through all of it when the next edit is there.
    edit(&fleet, &web, "and-on")?;
    let names = eventually("all of it in the trace", || {
        let text = std::fs::read_to_string(&trace)?;
        let asked: Vec<_> = text.lines().filter_map(read).collect();
        check(&asked)
    })?;
    ensure!(names.contains("site.conf") && names.contains("labels.json") && names.contains("accepted"), "{names:?}");
    web.kill()
}

//! `leave`: what the agent keeps for itself goes from this host, and what it did for the fleet stays.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use stemma_core::task::Mode;

use super::access::check_access;
use super::{Exit, Local, print, service};
use crate::apply::ledger::HOST_MAP;
use crate::apply::leftovers::{self, StagingDirs};
use crate::apply::outputs::host_map;
use crate::args::Leave;
use crate::config::Config;
use crate::host::{Host as _, HostPath};
use crate::paths;

/// Ends the agent, takes its labels out of the host label map, and removes `/run/stemma` and its state.
///
/// # Errors
/// When an agent runs that no unit started, or others could have written its state; nothing was removed then.
pub fn leave(root: &Path, wanted: Leave) -> Result<Exit> {
    if !root.join(&paths::STATE[1..]).exists() {
        // To look into it would be to make it.
        print("this host has no state of an agent: there is nothing to leave\n")?;
        return Ok(Exit::Done);
    }
    if !wanted.keep_state {
        service::stop(root)?;
    }
    let local = Local::open(root)?;
    let Some(_lock) = local.lock()? else {
        bail!(
            "an agent that no unit started runs on this host's state: end it, then run this again; nothing was removed"
        );
    };
    check_access(&*local.host)?;
    withdraw(&local)?;
    // No pass comes after this one.
    leftovers::sweep(&local.site, &StagingDirs::new())?;
    remove(&local, paths::RUN)?;
    if wanted.keep_state {
        return Ok(Exit::Done);
    }
    remove(&local, paths::STATE)?;
    print("this host has left its fleet; what its tasks wrote is where it was\n")?;
    print("a controller still knows its node: there `stemma delete node NAME`\n")?;
    Ok(Exit::Done)
}

/// The agent's labels go from the host label map. A map that is none any more is left, and said.
fn withdraw(local: &Local) -> Result<()> {
    let ledger = &local.site.ledger;
    if ledger.get(&HOST_MAP)?.is_some() {
        let config = Config::load(&*local.host)?;
        let none = BTreeMap::new();
        for finding in
            host_map::write(&*local.host, ledger, &config.host_label_map, &none, None, Mode::Apply)?.into_findings()
        {
            print(&format!("{finding}\n"))?;
        }
    }
    Ok(())
}

/// Removes a directory of the agent's own with all that is in it; no link is followed.
fn remove(local: &Local, path: &str) -> Result<()> {
    let path = local.host.outside(&HostPath::own(path));
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::apply::testing::{Set, joined};

    #[test]
    fn who_leaves_takes_back_what_is_the_agents_own_and_nothing_else() {
        for keep_state in [true, false] {
            let root = tempfile::tempdir().unwrap();
            joined(root.path(), &Set::default());
            let (map, state) = (root.path().join("etc/stemma/node-labels"), root.path().join("var/lib/stemma-agent"));
            fs::create_dir_all(map.parent().unwrap()).unwrap();
            fs::write(&map, "zone=a\n").unwrap();
            fs::create_dir_all(root.path().join("run/stemma/tags")).unwrap();
            let local = Local::open(root.path()).unwrap();
            let labels = BTreeMap::from([("n/x".to_owned(), "1".to_owned())]);
            let config = Config::default().host_label_map;
            host_map::write(&*local.host, &local.site.ledger, &config, &labels, None, Mode::Apply).unwrap();
            assert_eq!(fs::read_to_string(&map).unwrap(), "zone=a\nn/x=1\n");

            let left = root.path().join("srv/.stemma-0123456789abcdef");
            fs::create_dir_all(left.parent().unwrap()).unwrap();
            fs::write(&left, "secret").unwrap();
            leftovers::note(&local.site, &StagingDirs::from([("/srv".to_owned(), BTreeSet::new())])).unwrap();

            drop(local);
            assert_eq!(leave(root.path(), Leave { keep_state }).unwrap(), Exit::Done);
            assert!(!left.exists(), "x05: what an agent that was killed left unfinished goes too");
            assert_eq!(fs::read_to_string(&map).unwrap(), "zone=a\n");
            assert!(!root.path().join("run/stemma").exists());
            assert_eq!(state.exists(), keep_state);
            assert_eq!(leave(root.path(), Leave { keep_state }).unwrap(), Exit::Done, "once more");
            assert_eq!(state.exists(), keep_state);
        }
    }
}

//! The command `leave`: removes the agent's own files from this host. Files that tasks wrote are not removed.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context, Result};

use super::access::check_access;
use super::membership::{Membership, read_membership};
use super::{AgentExit, LocalHost, print, unit};
use crate::apply::ledger::HOST_MAP;
use crate::apply::leftovers::{self, StagingDirs};
use crate::apply::outputs::host_map;
use crate::args::LeaveArgs;
use crate::host::{Host as _, HostPath};
use crate::identity::HostIdentity;
use crate::paths;

/// Stops the agent's systemd unit and the commands that run for it, removes the agent's labels from the host label map,
/// and removes unfinished files and `/run/stemma`. Without `keep_state`, also disables the unit and removes the state.
///
/// # Errors
/// Fails if the unit cannot be stopped, or other users could have written the state or read a secret. Then no file was
/// removed, as if another process uses the state ([`AgentExit::InUse`]). Also fails if a file cannot be removed.
pub fn leave(root: &Path, args: LeaveArgs) -> Result<AgentExit> {
    if !root.join(&paths::STATE[1..]).exists() {
        // This is checked first, because `LocalHost::open` would create the state.
        print("this host has no agent state: there is nothing to leave\n")?;
        return Ok(AgentExit::Done);
    }
    let local = LocalHost::open(root)?;
    let agent = unit::main_process(root)?;
    if let Some(holder) = local.lock_holder()?.filter(|holder| Some(*holder) != agent) {
        return report_holder(&format!("process {holder}"));
    }
    unit::stop(root, agent)?;
    let Some(_lock) = local.lock()? else {
        return report_holder("another process");
    };
    check_access(&*local.host)?;
    if !args.keep_state {
        unit::disable(root)?;
    }
    remove_labels(&local)?;
    // Deletes the unfinished files that killed tasks left, because no agent runs after `leave` that would delete them.
    leftovers::sweep(&local.site, &StagingDirs::new())?;
    remove_dir(&local, paths::RUN)?;
    if args.keep_state {
        return Ok(AgentExit::Done);
    }
    let has_joined = !matches!(read_membership(&local), Ok(Membership::NotJoined));
    let node = HostIdentity::load(&*local.host).map_or_else(|_| "NAME".to_owned(), |identity| identity.node.to_string());
    remove_dir(&local, paths::STATE)?;
    if !has_joined {
        print("this host was in no fleet; the agent's state was removed\n")?;
        return Ok(AgentExit::Done);
    }
    print("this host has left its fleet; what its tasks wrote was not changed\n")?;
    print(&format!("its node still exists: on a controller, run `stemma delete node {node}`\n"))?;
    Ok(AgentExit::Done)
}

/// Reports that a process that the agent's systemd unit did not start uses the state, such as `once`.
fn report_holder(process: &str) -> Result<AgentExit> {
    let message = format!(
        "error: {process}, which the agent's unit did not start, uses this host's state: stop it, then run this again; nothing was removed\n"
    );
    std::io::stderr().write_all(message.as_bytes())?;
    Ok(AgentExit::InUse)
}

/// Removes the agent's labels from the host label map (a file of labels on the host), if the agent has written labels
/// there. A file that is no longer a label map is not changed, and a finding about it is printed.
fn remove_labels(local: &LocalHost) -> Result<()> {
    let ledger = &local.site.ledger;
    // The record has the path, so the configuration may be unreadable.
    if let Some(record) = ledger.get(&HOST_MAP)? {
        for finding in host_map::withdraw(&*local.host, ledger, &record, &record.path)? {
            print(&format!("{finding}\n"))?;
        }
    }
    Ok(())
}

/// Removes a directory of the agent with its content. A directory that does not exist is not an error. Symbolic links
/// are not followed.
fn remove_dir(local: &LocalHost, path: &str) -> Result<()> {
    let path = local.host.system_path(&HostPath::from_static(path));
    match fs::remove_dir_all(&path) {
        // A mount point cannot be removed. Then its content is.
        Err(error) if error.kind() == ErrorKind::ResourceBusy && fs::read_dir(&path)?.next().is_none() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use stemma_core::task::Mode;

    use super::*;
    use crate::apply::testing::{TestTaskSet, joined_host};
    use crate::config::AgentConfig;

    /// In this test, the host label map (`map`) contains a label of another program (`zone`), which remains. The agent
    /// has recorded `/srv` as a directory in which it writes files, so `leave` deletes the unfinished file there.
    #[test]
    fn leave_removes_only_agent_files_and_labels() {
        for keep_state in [true, false] {
            let root = tempfile::tempdir().unwrap();
            joined_host(root.path(), &TestTaskSet::default());
            let (map, state) = (root.path().join("etc/stemma/node-labels"), root.path().join("var/lib/stemma-agent"));
            fs::create_dir_all(map.parent().unwrap()).unwrap();
            fs::write(&map, "zone=a\n").unwrap();
            fs::create_dir_all(root.path().join("run/stemma/tags")).unwrap();
            let local = LocalHost::open(root.path()).unwrap();
            let labels = BTreeMap::from([("n/x".to_owned(), "1".to_owned())]);
            let config = AgentConfig::default().host_label_map;
            host_map::write(&*local.host, &local.site.ledger, &config, &labels, None, Mode::Apply).unwrap();
            assert_eq!(fs::read_to_string(&map).unwrap(), "zone=a\nn/x=1\n");

            let unfinished_file = root.path().join("srv/.stemma-0123456789abcdef");
            fs::create_dir_all(unfinished_file.parent().unwrap()).unwrap();
            fs::write(&unfinished_file, "secret").unwrap();
            leftovers::record_dirs(&local.site, &StagingDirs::from([("/srv".to_owned(), BTreeSet::new())])).unwrap();

            drop(local);
            fs::write(root.path().join("etc/stemma/agent.toml"), "damaged = ").unwrap();
            assert_eq!(leave(root.path(), LeaveArgs { keep_state }).unwrap(), AgentExit::Done);
            assert!(!unfinished_file.exists(), "x05: an unfinished file of a killed agent is deleted too");
            assert_eq!(fs::read_to_string(&map).unwrap(), "zone=a\n");
            assert!(!root.path().join("run/stemma").exists());
            assert_eq!(state.exists(), keep_state);
            assert_eq!(leave(root.path(), LeaveArgs { keep_state }).unwrap(), AgentExit::Done, "a second `leave` succeeds too");
            assert_eq!(state.exists(), keep_state);
        }
    }
}

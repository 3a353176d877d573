//! Directories and files of a machine in memory. The process may crash before each change, and a change is durable only
//! after a sync.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use super::{MemoryEntry, MemoryHost, MemoryNode, NameTable, file_kind, io_error, new_dir};
use crate::host::extras::DEFAULT_ACL;
use crate::host::{Dir, Extras, FileDetails, FileKind, FileVersion, HostError, NewFile, ReplaceBlocker, Stat};

/// An open directory of a machine in memory.
pub(super) struct MemoryDir {
    pub(super) host: MemoryHost,
    pub(super) node: usize,
    pub(super) path: String,
}

/// A new file of a machine in memory that is open for writing.
pub(super) struct MemoryFile {
    pub(super) host: MemoryHost,
    pub(super) node: usize,
    pub(super) path: String,
}

impl MemoryDir {
    fn child_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Changes the entries of the directory by `change`, but not durably. Fails with the error "not found" if `change`
    /// returns `None`. The process may crash before the change.
    fn update(&self, operation: &'static str, change: impl FnOnce(&mut NameTable) -> Option<()>) -> Result<(), HostError> {
        self.host.count_call(&self.path)?;
        let mut nodes = self.host.0.nodes.borrow_mut();
        let MemoryEntry::Dir { now, .. } = &mut nodes[self.node].content else { unreachable!("opened as a directory") };
        change(now).ok_or_else(|| io_error(operation, &self.path, io::ErrorKind::NotFound))
    }

    /// Returns the node of a regular file, or `None` if no entry has this name. Fails for other kinds of files, for a
    /// file with several hard links, and if a test made reads of the file fail ([`MemoryHost::fail_reads`]).
    fn regular_file(&self, name: &str) -> Result<Option<usize>, HostError> {
        self.host.check_alive(&self.path)?;
        self.host.check_readable(&self.child_path(name))?;
        let Some(node) = self.host.child(self.node, name) else { return Ok(None) };
        let nodes = self.host.0.nodes.borrow();
        match (&nodes[node].content, nodes[node].links) {
            (MemoryEntry::File { .. }, 1) => Ok(Some(node)),
            (MemoryEntry::File { .. }, links) => Err(HostError::HardLinks { path: self.child_path(name), links }),
            (MemoryEntry::Link(_), _) => {
                Err(HostError::Link { path: self.child_path(name), at: self.child_path(name), real: None })
            }
            (other, _) => Err(HostError::WrongKind {
                path: self.child_path(name),
                wanted: FileKind::File.as_str(),
                found: file_kind(other).as_str(),
            }),
        }
    }
}

impl Dir for MemoryDir {
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        self.host.check_alive(&self.path)?;
        let nodes = self.host.0.nodes.borrow();
        Ok(self.host.child(self.node, name).map(|node| {
            let node = &nodes[node];
            let size = if let MemoryEntry::File { now, .. } = &node.content { now.len() as u64 } else { 0 };
            Stat { kind: file_kind(&node.content), mode: node.mode, user: node.user, group: node.group, size, links: node.links }
        }))
    }

    fn own_stat(&self) -> Result<Stat, HostError> {
        self.host.check_alive(&self.path)?;
        let node = &self.host.0.nodes.borrow()[self.node];
        let kind = file_kind(&node.content);
        Ok(Stat { kind, mode: node.mode, user: node.user, group: node.group, size: 0, links: node.links })
    }

    fn read_link(&self, name: &str) -> Result<Option<String>, HostError> {
        self.host.check_alive(&self.path)?;
        let Some(node) = self.host.child(self.node, name) else { return Ok(None) };
        match &self.host.0.nodes.borrow()[node].content {
            MemoryEntry::Link(target) => Ok(Some(target.clone())),
            other => Err(HostError::WrongKind {
                path: self.child_path(name),
                wanted: FileKind::Link.as_str(),
                found: file_kind(other).as_str(),
            }),
        }
    }

    /// Returns whether a test set the blocker [`ReplaceBlocker::Mounted`] for the entry.
    fn is_mount_point(&self, name: &str) -> Result<bool, HostError> {
        self.host.check_alive(&self.path)?;
        let nodes = self.host.0.nodes.borrow();
        let node = self.host.child(self.node, name);
        Ok(node.is_some_and(|node| nodes[node].blocker == Some(ReplaceBlocker::Mounted)))
    }

    /// Returns the version of an entry, which differs after each change of the entry. A node in memory has no change
    /// time, so the version contains a hash of the node instead.
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        let Some(stat) = self.stat(name)? else { return Ok(None) };
        let node = self.host.child(self.node, name).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        self.host.0.nodes.borrow()[node].hash(&mut hasher);
        Ok(Some(FileVersion { stat, file_id: (0, node as u64), changed_at: (hasher.finish().cast_signed(), 0) }))
    }

    /// Passes the content of a regular file to `sink` in chunks. Returns whether the file exists. Fails if the content
    /// is longer than `limit` bytes.
    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        let Some(node) = self.regular_file(name)? else { return Ok(false) };
        let MemoryEntry::File { now, .. } = self.host.0.nodes.borrow()[node].content.clone() else {
            unreachable!("looked up as a file")
        };
        if now.len() as u64 > limit {
            return Err(HostError::TooLarge { path: self.child_path(name), limit });
        }
        now.chunks(64 * 1024).try_for_each(sink)?;
        Ok(true)
    }

    /// Returns the metadata of a regular file. Its `extras` are an error if a test made them unreadable.
    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError> {
        let Some(node) = self.regular_file(name)? else { return Ok(None) };
        let extras = self.host.0.nodes.borrow()[node].extras.clone();
        // The limit is not real: tests need only some error.
        let extras = extras.ok_or_else(|| HostError::ManyExtras { path: self.child_path(name), limit: 0 });
        Ok(self.stat(name)?.map(|stat| FileDetails { stat, extras }))
    }

    /// Fails if a test set a blocker for the entry or for this directory ([`MemoryHost::set_blocker`]).
    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        self.host.check_alive(&self.path)?;
        let child = self.host.child(self.node, name);
        let nodes = self.host.0.nodes.borrow();
        let Some(blocker) = child.and_then(|node| nodes[node].blocker).or(nodes[self.node].blocker) else { return Ok(()) };
        let blocked_path = if blocker.is_about_directory() { self.path.clone() } else { self.child_path(name) };
        Err(HostError::NotReplaceable { path: self.child_path(name), at: blocked_path, by: blocker, is_there: child.is_some() })
    }

    /// Returns whether the disk is full. The required number of bytes is ignored.
    fn is_full(&self, _: u64) -> Result<bool, HostError> {
        self.host.check_alive(&self.path)?;
        Ok(self.host.0.is_full.get())
    }

    fn default_acl(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.host.check_alive(&self.path)?;
        let nodes = self.host.0.nodes.borrow();
        Ok(nodes[self.node].extras.as_ref().and_then(|extras| extras.attributes.get(DEFAULT_ACL).cloned()))
    }

    /// Returns the names in the directory, and records this call for [`MemoryHost::list_count`].
    fn names(&self) -> Result<Vec<String>, HostError> {
        self.host.check_alive(&self.path)?;
        self.host.0.listed_dirs.borrow_mut().push(self.path.clone());
        Ok(match &self.host.0.nodes.borrow()[self.node].content {
            MemoryEntry::Dir { now, .. } => now.keys().cloned().collect(),
            _ => Vec::new(),
        })
    }

    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.host.check_alive(&self.path)?;
        self.host.child(self.node, name).map(|node| self.host.open_node(node, &self.child_path(name))).transpose()
    }

    /// Creates an empty file, but not durably. Fails if the name exists or the disk is full. The process may crash
    /// before.
    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError> {
        self.host.check_room(&self.path)?;
        self.host.count_call(&self.path)?;
        if self.host.child(self.node, name).is_some() {
            return Err(io_error("make", &self.child_path(name), io::ErrorKind::AlreadyExists));
        }
        let content = MemoryEntry::File { now: Vec::new(), durable: Vec::new() };
        let node = self.host.add_node(MemoryNode {
            content,
            mode: 0o600,
            user: 0,
            group: 0,
            links: 1,
            extras: Some(self.host.0.new_file_extras.borrow().clone()),
            blocker: None,
        });
        if let MemoryEntry::Dir { now, .. } = &mut self.host.0.nodes.borrow_mut()[self.node].content {
            now.insert(name.into(), node);
        }
        Ok(Box::new(MemoryFile { host: self.host.clone(), node, path: self.child_path(name) }))
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        let node = self.host.add_node(MemoryNode { mode, ..new_dir() });
        self.update("make", |names| names.insert(name.into(), node).is_none().then_some(()))
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.host.count_call(&self.path)?;
        self.host.0.nodes.borrow_mut()[self.node].mode = mode;
        Ok(())
    }

    fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.host.count_call(&self.path)?;
        let node = &mut self.host.0.nodes.borrow_mut()[self.node];
        node.user = user.unwrap_or(node.user);
        node.group = group.unwrap_or(node.group);
        Ok(())
    }

    /// Creates a symbolic link, but not durably. Fails if the name exists. The process may crash before.
    fn make_link(&self, name: &str, target: &str) -> Result<(), HostError> {
        if self.host.child(self.node, name).is_some() {
            return Err(io_error("make", &self.child_path(name), io::ErrorKind::AlreadyExists));
        }
        let content = MemoryEntry::Link(target.into());
        let node = self.host.add_node(MemoryNode { content, mode: 0o777, ..new_dir() });
        self.update("make", |names| names.insert(name.into(), node).is_none().then_some(()))
    }

    /// Removes an empty subdirectory, but not durably. Fails for another kind of file and for a directory with entries.
    /// The process may crash before.
    fn remove_dir(&self, name: &str) -> Result<(), HostError> {
        let node = self.host.child(self.node, name);
        let error = match node.map(|node| self.host.0.nodes.borrow()[node].content.clone()) {
            Some(MemoryEntry::Dir { now, .. }) if now.is_empty() => return self.remove(name),
            Some(MemoryEntry::Dir { .. }) => io::ErrorKind::DirectoryNotEmpty,
            Some(_) => io::ErrorKind::NotADirectory,
            None => io::ErrorKind::NotFound,
        };
        Err(io_error("remove", &self.child_path(name), error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        if let Some(replaced) = self.host.child(self.node, to)
            && file_kind(&self.host.0.nodes.borrow()[replaced].content) == FileKind::Directory
        {
            return Err(io_error("replace", &self.child_path(to), io::ErrorKind::IsADirectory));
        }
        self.update("replace", |names| {
            let node = names.remove(from)?;
            names.insert(to.into(), node);
            Some(())
        })
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.update("remove", |names| names.remove(name).map(|_| ()))
    }

    /// Makes the current entries of the directory durable. The process may crash before.
    fn sync(&self) -> Result<(), HostError> {
        self.host.count_call(&self.path)?;
        if let MemoryEntry::Dir { now, durable } = &mut self.host.0.nodes.borrow_mut()[self.node].content {
            durable.clone_from(now);
        }
        Ok(())
    }
}

impl MemoryFile {
    /// Changes the node of the file. The process may crash before the change.
    fn update(&self, change: impl FnOnce(&mut MemoryNode)) -> Result<(), HostError> {
        self.host.count_call(&self.path)?;
        change(&mut self.host.0.nodes.borrow_mut()[self.node]);
        Ok(())
    }
}

impl NewFile for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.host.check_room(&self.path)?;
        self.update(|node| {
            if let MemoryEntry::File { now, .. } = &mut node.content {
                now.extend_from_slice(bytes);
            }
        })
    }

    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.update(|node| chown(node, user, group))
    }

    /// Sets the mode of the file, or the mode that a test forced ([`MemoryHost::force_mode`]).
    fn set_mode(&mut self, mode: u32) -> Result<(), HostError> {
        let effective_mode = self.host.0.forced_mode.get().unwrap_or(mode);
        self.update(|node| node.mode = effective_mode)
    }

    /// Only counts the call, because [`Self::set_extras`] sets all flags in memory.
    fn set_initial_flags(&mut self, _: &Extras) -> Result<(), HostError> {
        self.update(|_| ())
    }

    /// Sets the attributes and flags of the file. Fails if a test made the file system refuse them
    /// ([`MemoryHost::refuse_extras`]).
    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        if self.host.0.refuses_extras.get() {
            // The name is an example of an attribute that the file system refuses.
            return Err(HostError::Extra { what: "user.note".into(), source: io::ErrorKind::Unsupported.into() });
        }
        self.update(|node| node.extras = Some(extras.clone()))
    }

    /// Makes the current content of the file durable. The process may crash before.
    fn sync(&mut self) -> Result<(), HostError> {
        self.update(|node| {
            if let MemoryEntry::File { now, durable } = &mut node.content {
                durable.clone_from(now);
            }
        })
    }
}

/// Changes the owner and the group of a node. `None` does not change them. As in the kernel, this clears the bits
/// setuid and setgid of the mode.
fn chown(node: &mut MemoryNode, user: Option<u32>, group: Option<u32>) {
    node.user = user.unwrap_or(node.user);
    node.group = group.unwrap_or(node.group);
    node.mode &= 0o1777;
}

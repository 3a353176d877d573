//! Directories and files of a machine in memory: each change is a call before which it may die, and waits for a sync.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use super::{Content, MemoryHost, Names, Node, directory, failed, kind_of};
use crate::host::extras::DEFAULT_ACL;
use crate::host::{Dir, Extras, FileVersion, HostError, Kind, Look, NewFile, Stat};

pub(super) struct MemoryDir {
    pub(super) host: MemoryHost,
    pub(super) node: usize,
    pub(super) path: String,
}

pub(super) struct MemoryFile {
    pub(super) host: MemoryHost,
    pub(super) node: usize,
    pub(super) path: String,
}

impl MemoryDir {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    fn change(&self, operation: &'static str, change: impl FnOnce(&mut Names) -> Option<()>) -> Result<(), HostError> {
        self.host.call(&self.path)?;
        let mut nodes = self.host.0.nodes.borrow_mut();
        let Content::Dir { now, .. } = &mut nodes[self.node].content else { unreachable!("opened as a directory") };
        change(now).ok_or_else(|| failed(operation, &self.path, io::ErrorKind::NotFound))
    }

    fn file(&self, name: &str) -> Result<Option<usize>, HostError> {
        self.host.alive(&self.path)?;
        self.host.readable(&self.at(name))?;
        let Some(node) = self.host.child(self.node, name) else { return Ok(None) };
        let nodes = self.host.0.nodes.borrow();
        match (&nodes[node].content, nodes[node].links) {
            (Content::File { .. }, 1) => Ok(Some(node)),
            (Content::File { .. }, links) => Err(HostError::Links { path: self.at(name), links }),
            (Content::Link, _) => Err(HostError::Link { path: self.at(name), at: self.at(name), real: None }),
            (other, _) => {
                Err(HostError::Kind { path: self.at(name), wanted: Kind::File.word(), found: kind_of(other).word() })
            }
        }
    }
}

impl Dir for MemoryDir {
    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        self.host.alive(&self.path)?;
        let nodes = self.host.0.nodes.borrow();
        Ok(self.host.child(self.node, name).map(|node| {
            let node = &nodes[node];
            let size = if let Content::File { now, .. } = &node.content { now.len() as u64 } else { 0 };
            Stat {
                kind: kind_of(&node.content),
                mode: node.mode,
                user: node.user,
                group: node.group,
                size,
                links: node.links,
            }
        }))
    }

    /// The machine has no clock of changes: what the file is stands for it.
    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        let Some(stat) = self.stat(name)? else { return Ok(None) };
        let node = self.host.child(self.node, name).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.host.0.nodes.borrow()[node]).hash(&mut hasher);
        Ok(Some(FileVersion { stat, file: (0, node as u64), changed: (hasher.finish().cast_signed(), 0) }))
    }

    fn pieces(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        let Some(node) = self.file(name)? else { return Ok(false) };
        let Content::File { now, .. } = self.host.0.nodes.borrow()[node].content.clone() else {
            unreachable!("looked up as a file")
        };
        if now.len() as u64 > limit {
            return Err(HostError::Large { path: self.at(name), limit });
        }
        now.chunks(64 * 1024).try_for_each(sink)?;
        Ok(true)
    }

    fn look(&self, name: &str) -> Result<Option<Look>, HostError> {
        let Some(node) = self.file(name)? else { return Ok(None) };
        let extras = self.host.0.nodes.borrow()[node].extras.clone();
        let extras = extras.ok_or_else(|| HostError::ManyExtras { path: self.at(name), limit: 0 });
        Ok(self.stat(name)?.map(|stat| Look { stat, extras }))
    }

    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        self.host.alive(&self.path)?;
        let child = self.host.child(self.node, name);
        let nodes = self.host.0.nodes.borrow();
        let Some(by) = child.and_then(|node| nodes[node].fixed).or(nodes[self.node].fixed) else { return Ok(()) };
        let at = if by.is_of_directory() { self.path.clone() } else { self.at(name) };
        Err(HostError::Fixed { path: self.at(name), at, by, is_there: child.is_some() })
    }

    fn is_full(&self, _: u64) -> Result<bool, HostError> {
        self.host.alive(&self.path)?;
        Ok(self.host.0.full.get())
    }

    fn default_list(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.host.alive(&self.path)?;
        let nodes = self.host.0.nodes.borrow();
        Ok(nodes[self.node].extras.as_ref().and_then(|extras| extras.attributes.get(DEFAULT_ACL).cloned()))
    }

    fn names(&self) -> Result<Vec<String>, HostError> {
        self.host.alive(&self.path)?;
        self.host.0.listed.borrow_mut().push(self.path.clone());
        Ok(match &self.host.0.nodes.borrow()[self.node].content {
            Content::Dir { now, .. } => now.keys().cloned().collect(),
            _ => Vec::new(),
        })
    }

    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.host.alive(&self.path)?;
        self.host.child(self.node, name).map(|node| self.host.opened(node, &self.at(name))).transpose()
    }

    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError> {
        self.host.room(&self.path)?;
        self.host.call(&self.path)?;
        if self.host.child(self.node, name).is_some() {
            return Err(failed("make", &self.at(name), io::ErrorKind::AlreadyExists));
        }
        let content = Content::File { now: Vec::new(), durable: Vec::new() };
        let node = self.host.node(Node {
            content,
            mode: 0o600,
            user: 0,
            group: 0,
            links: 1,
            extras: Some(self.host.0.given.borrow().clone()),
            fixed: None,
        });
        if let Content::Dir { now, .. } = &mut self.host.0.nodes.borrow_mut()[self.node].content {
            now.insert(name.into(), node);
        }
        Ok(Box::new(MemoryFile { host: self.host.clone(), node, path: self.at(name) }))
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        let node = self.host.node(Node { mode, ..directory() });
        self.change("make", |names| names.insert(name.into(), node).is_none().then_some(()))
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.host.call(&self.path)?;
        self.host.0.nodes.borrow_mut()[self.node].mode = mode;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        self.change("replace", |names| {
            let node = names.remove(from)?;
            names.insert(to.into(), node);
            Some(())
        })
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.change("remove", |names| names.remove(name).map(|_| ()))
    }

    fn sync(&self) -> Result<(), HostError> {
        self.host.call(&self.path)?;
        if let Content::Dir { now, durable } = &mut self.host.0.nodes.borrow_mut()[self.node].content {
            durable.clone_from(now);
        }
        Ok(())
    }
}

impl MemoryFile {
    fn change(&self, change: impl FnOnce(&mut Node)) -> Result<(), HostError> {
        self.host.call(&self.path)?;
        change(&mut self.host.0.nodes.borrow_mut()[self.node]);
        Ok(())
    }
}

impl NewFile for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.host.room(&self.path)?;
        self.change(|node| {
            if let Content::File { now, .. } = &mut node.content {
                now.extend_from_slice(bytes);
            }
        })
    }

    fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.change(|node| own(node, user, group))
    }

    fn set_mode(&mut self, mode: u32) -> Result<(), HostError> {
        let kept = self.host.0.only_mode.get().unwrap_or(mode);
        self.change(|node| node.mode = kept)
    }

    fn begin_extras(&mut self, _: &Extras) -> Result<(), HostError> {
        self.change(|_| ())
    }

    fn set_extras(&mut self, extras: &Extras) -> Result<(), HostError> {
        if self.host.0.keeps_nothing.get() {
            return Err(HostError::Extra { what: "user.note".into(), source: io::ErrorKind::Unsupported.into() });
        }
        self.change(|node| node.extras = Some(extras.clone()))
    }

    fn sync(&mut self) -> Result<(), HostError> {
        self.change(|node| {
            if let Content::File { now, durable } = &mut node.content {
                durable.clone_from(now);
            }
        })
    }
}

/// As the kernel: a change of owner takes setuid and setgid away.
fn own(node: &mut Node, user: Option<u32>, group: Option<u32>) {
    node.user = user.unwrap_or(node.user);
    node.group = group.unwrap_or(node.group);
    node.mode &= 0o1777;
}

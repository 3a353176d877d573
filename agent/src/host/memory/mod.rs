//! A machine in memory, for tests: it can die before any of its calls, and forget what was not synced.
//!
//! Bytes of a file and names in a directory are each kept twice, as they are and as they would be after a power
//! cut. Death (SIGKILL) makes every later call fail until [`MemoryHost::revive`]; [`MemoryHost::cut_power`]
//! also brings back what was durable.

mod tree;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::{Command, Dir, End, Extras, Finished, Fixed, Host, HostError, HostPath, Kind, Pending};
use tree::MemoryDir;

type Names = BTreeMap<String, usize>;
type Answer = dyn Fn(&MemoryHost, &Command) -> Finished;

#[derive(Clone, Debug)]
enum Content {
    File { now: Vec<u8>, durable: Vec<u8> },
    Dir { now: Names, durable: Names },
    Link,
    Special,
}

#[derive(Clone, Debug)]
struct Node {
    content: Content,
    mode: u32,
    user: u32,
    group: u32,
    links: u64,
    /// `None`: they cannot be read.
    extras: Option<Extras>,
    fixed: Option<Fixed>,
}

/// A machine that a test holds in its hand. Clones are the same machine.
#[derive(Clone)]
pub struct MemoryHost(Rc<Machine>);

struct Machine {
    nodes: RefCell<Vec<Node>>,
    calls: Cell<usize>,
    dies_before: Cell<Option<usize>>,
    dead: Cell<bool>,
    full: Cell<bool>,
    keeps_nothing: Cell<bool>,
    /// The mode that each file has, whatever it is given.
    only_mode: Cell<Option<u32>>,
    /// What a new file has, as by a default list of its directory.
    given: RefCell<Extras>,
    /// The directories whose names were read, one for each time.
    listed: RefCell<Vec<String>>,
    /// A file that cannot be read, and how many times more.
    spoilt: RefCell<(String, usize)>,
    random: Cell<u64>,
    ran: RefCell<Vec<Command>>,
    answer: RefCell<Rc<Answer>>,
    uptime: Cell<Duration>,
}

impl Default for MemoryHost {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryHost {
    /// An empty machine, on which every command ends with status 0 and no output.
    pub fn new() -> Self {
        Self(Rc::new(Machine {
            nodes: RefCell::new(vec![directory()]),
            calls: Cell::new(0),
            dies_before: Cell::new(None),
            dead: Cell::new(false),
            full: Cell::new(false),
            keeps_nothing: Cell::new(false),
            only_mode: Cell::new(None),
            given: RefCell::default(),
            listed: RefCell::default(),
            spoilt: RefCell::default(),
            random: Cell::new(1),
            ran: RefCell::default(),
            answer: RefCell::new(Rc::new(|_, _| Finished { end: End::Status(0), output: String::new() })),
            uptime: Cell::new(Duration::from_secs(1)),
        }))
    }

    /// What commands do from now on.
    pub fn on_run(&self, answer: impl Fn(&Self, &Command) -> Finished + 'static) {
        *self.0.answer.borrow_mut() = Rc::new(answer);
    }

    /// The commands that were run, as their words.
    pub fn ran(&self) -> Vec<Vec<String>> {
        self.0.ran.borrow().iter().map(|command| command.argv.clone()).collect()
    }

    /// The last command that was run.
    pub fn last_run(&self) -> Option<Command> {
        self.0.ran.borrow().last().cloned()
    }

    /// How often the names in a directory were read.
    pub fn times_listed(&self, path: &str) -> usize {
        self.0.listed.borrow().iter().filter(|listed| *listed == path).count()
    }

    /// How many changing calls were made since the last [`Self::revive`].
    pub fn calls(&self) -> usize {
        self.0.calls.get()
    }

    /// The process dies before its `call`-th changing call from now, counted from 0.
    pub fn die_before(&self, call: usize) {
        self.0.calls.set(0);
        self.0.dies_before.set(Some(call));
    }

    /// Whether the process is dead.
    pub fn is_dead(&self) -> bool {
        self.0.dead.get()
    }

    /// From now on the disk takes no new file and no more bytes, or takes them again.
    pub fn fill(&self, full: bool) {
        self.0.full.set(full);
    }

    /// From now on a new file has this beside its bytes.
    pub fn give_new_files(&self, extras: Extras) {
        *self.0.given.borrow_mut() = extras;
    }

    /// From now on the file system gives a new file no attribute of the old one.
    pub fn keep_no_extras(&self) {
        self.0.keeps_nothing.set(true);
    }

    /// From now on the file system gives each new file this mode, as FAT does, and says nothing.
    pub fn keep_no_modes_but(&self, mode: u32) {
        self.0.only_mode.set(Some(mode));
    }

    /// The next so many times that this file is read, the disk says no.
    pub fn spoil(&self, path: &str, times: usize) {
        *self.0.spoilt.borrow_mut() = (path.to_owned(), times);
    }

    fn readable(&self, path: &str) -> Result<(), HostError> {
        let mut spoilt = self.0.spoilt.borrow_mut();
        if spoilt.0 != path || spoilt.1 == 0 {
            return Ok(());
        }
        spoilt.1 -= 1;
        Err(failed("read", path, io::ErrorKind::Other))
    }

    fn room(&self, path: &str) -> Result<(), HostError> {
        if self.0.full.get() { Err(failed("write", path, io::ErrorKind::StorageFull)) } else { Ok(()) }
    }

    /// A new process begins.
    pub fn revive(&self) {
        self.0.dead.set(false);
        self.0.dies_before.set(None);
        self.0.calls.set(0);
        self.0.random.set(self.0.random.get() + (1 << 40));
    }

    /// The power goes: what was not synced is gone, and the process with it.
    pub fn cut_power(&self) {
        for node in self.0.nodes.borrow_mut().iter_mut() {
            match &mut node.content {
                Content::File { now, durable } => now.clone_from(durable),
                Content::Dir { now, durable } => now.clone_from(durable),
                Content::Link | Content::Special => {}
            }
        }
        self.revive();
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.0.uptime.set(self.0.uptime.get() + time);
    }

    /// Puts a file there, durably, with its directories, as another program would.
    pub fn put(&self, path: &str, text: &str) {
        let (dir, name) = self.place(path);
        self.add(dir, &name, Content::File { now: text.into(), durable: text.into() }, 0o644);
    }

    /// Puts a symbolic link there.
    pub fn put_link(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.add(dir, &name, Content::Link, 0o777);
    }

    /// Puts a FIFO there.
    pub fn put_special(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.add(dir, &name, Content::Special, 0o644);
    }

    /// Gives the file there a second name somewhere else.
    pub fn put_hard_link(&self, path: &str) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].links += 1;
    }

    /// Sets the mode of what is there.
    pub fn chmod(&self, path: &str, mode: u32) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].mode = mode;
    }

    /// Gives what is there to another user.
    pub fn chown(&self, path: &str, user: u32) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].user = user;
    }

    /// Gives the file there to another group.
    pub fn chgrp(&self, path: &str, group: u32) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].group = group;
    }

    /// Gives the file there attributes and flags; `None`: they cannot be read.
    pub fn set_extras(&self, path: &str, extras: Option<Extras>) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].extras = extras;
    }

    /// Stops the file there from being replaced.
    pub fn fix(&self, path: &str, by: Option<Fixed>) {
        let node = self.find(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].fixed = by;
    }

    /// The text of a file; `None` when nothing is there.
    pub fn text(&self, path: &str) -> Option<String> {
        match &self.0.nodes.borrow()[self.find(path)?].content {
            Content::File { now, .. } => Some(String::from_utf8_lossy(now).into_owned()),
            _ => None,
        }
    }

    /// Takes away what is there.
    pub fn delete(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.both(dir, |names| {
            names.remove(&name);
        });
    }

    /// The names below a directory.
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.find(path).map(|node| self.0.nodes.borrow()[node].content.clone()) {
            Some(Content::Dir { now, .. }) => now.into_keys().collect(),
            _ => Vec::new(),
        }
    }

    fn both(&self, dir: usize, change: impl Fn(&mut Names)) {
        if let Content::Dir { now, durable } = &mut self.0.nodes.borrow_mut()[dir].content {
            change(now);
            change(durable);
        }
    }

    fn place(&self, path: &str) -> (usize, String) {
        let path = HostPath::parse(path).expect("a path of the test");
        let mut dir = 0;
        for name in path.parent().iter().flat_map(|parent| parent.names().map(str::to_owned).collect::<Vec<_>>()) {
            dir = match self.child(dir, &name) {
                Some(below) => below,
                None => self.add(dir, &name, directory().content, 0o755),
            };
        }
        (dir, path.name().to_owned())
    }

    fn add(&self, dir: usize, name: &str, content: Content, mode: u32) -> usize {
        let node = self.node(Node {
            content,
            mode,
            user: 0,
            group: 0,
            links: 1,
            extras: Some(Extras::default()),
            fixed: None,
        });
        self.both(dir, |names| {
            names.insert(name.to_owned(), node);
        });
        node
    }

    fn node(&self, node: Node) -> usize {
        let mut nodes = self.0.nodes.borrow_mut();
        nodes.push(node);
        nodes.len() - 1
    }

    fn child(&self, dir: usize, name: &str) -> Option<usize> {
        match &self.0.nodes.borrow()[dir].content {
            Content::Dir { now, .. } => now.get(name).copied(),
            _ => None,
        }
    }

    fn find(&self, path: &str) -> Option<usize> {
        let path = HostPath::parse(path).expect("a path of the test");
        path.names().try_fold(0, |dir, name| self.child(dir, name))
    }

    fn alive(&self, path: &str) -> Result<(), HostError> {
        if self.is_dead() { Err(failed("reach", path, io::ErrorKind::BrokenPipe)) } else { Ok(()) }
    }

    /// One changing call: the place where a process may die.
    fn call(&self, path: &str) -> Result<(), HostError> {
        self.alive(path)?;
        let call = self.0.calls.get();
        if self.0.dies_before.get() == Some(call) {
            self.0.dead.set(true);
        }
        self.alive(path)?;
        self.0.calls.set(call + 1);
        Ok(())
    }

    fn opened(&self, node: usize, path: &str) -> Result<Box<dyn Dir>, HostError> {
        let nodes = self.0.nodes.borrow();
        match &nodes[node].content {
            Content::Dir { .. } => Ok(Box::new(MemoryDir { host: self.clone(), node, path: path.into() })),
            Content::Link => Err(HostError::Link { path: path.into(), at: path.into(), real: None }),
            other => {
                Err(HostError::Kind { path: path.into(), wanted: Kind::Directory.word(), found: kind_of(other).word() })
            }
        }
    }
}

impl Host for MemoryHost {
    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        self.alive("/")?;
        self.opened(0, "")
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.alive(path.as_str())?;
        let mut dir = self.root()?;
        for name in path.names() {
            let Some(below) = dir.dir(name)? else { return Ok(None) };
            dir = below;
        }
        Ok(Some(dir))
    }

    fn run<'a>(&'a self, command: &'a Command) -> Pending<'a, Result<Finished, HostError>> {
        Box::pin(async move {
            let program = command.argv.first().map_or("", String::as_str);
            self.call(program)?;
            self.0.ran.borrow_mut().push(command.clone());
            let answer = self.0.answer.borrow().clone();
            let finished = answer(self, command);
            self.call(program)?;
            Ok(finished)
        })
    }

    fn outside(&self, path: &HostPath) -> PathBuf {
        path.as_str().into()
    }

    fn outside_root(&self) -> PathBuf {
        "/".into()
    }

    fn user(&self, name: &str) -> Result<u32, HostError> {
        account("user", name)
    }

    fn group(&self, name: &str) -> Result<u32, HostError> {
        account("group", name)
    }

    fn identity(&self) -> (u32, u32) {
        (0, 0)
    }

    fn session(&self) -> u32 {
        u32::try_from(self.0.random.get() >> 40).unwrap_or(0)
    }

    fn random(&self) -> u64 {
        self.0.random.set(self.0.random.get() + 1);
        self.0.random.get()
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000) + self.uptime()
    }

    fn uptime(&self) -> Duration {
        self.0.uptime.get()
    }
}

fn directory() -> Node {
    let content = Content::Dir { now: Names::new(), durable: Names::new() };
    Node { content, mode: 0o755, user: 0, group: 0, links: 1, extras: Some(Extras::default()), fixed: None }
}

fn kind_of(content: &Content) -> Kind {
    match content {
        Content::File { .. } => Kind::File,
        Content::Dir { .. } => Kind::Directory,
        Content::Link => Kind::Link,
        Content::Special => Kind::Special,
    }
}

fn account(kind: &'static str, name: &str) -> Result<u32, HostError> {
    match (name.parse(), name) {
        (Ok(number), _) => Ok(number),
        (_, "root") => Ok(0),
        (_, "www-data") => Ok(33),
        _ => Err(HostError::NoAccount { kind, name: name.into() }),
    }
}

fn failed(operation: &'static str, path: &str, kind: io::ErrorKind) -> HostError {
    HostError::io(operation, path)(kind.into())
}

//! A machine in memory, for tests. It can crash before any of its calls, and lose what was not synced.
//!
//! The content of a file and the names in a directory are each stored twice: as they are, and as they would be after a
//! power cut. A crash (SIGKILL) makes every later call fail until [`MemoryHost::restart`]. [`MemoryHost::cut_power`]
//! also restores what was durable.

mod tree;
mod units;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::{
    AccountKind, CommandPurpose, CommandResult, Dir, ExitKind, Extras, FileKind, Host, HostCommand, HostError, HostPath,
    LeftCommand, LockHolder, Pending, ReplaceBlocker, SystemUnits,
};
use tree::MemoryDir;
pub use units::{MemoryUnit, StartBehavior};

/// A function that is called when the unit of a command is released.
type ReleaseFunction = dyn Fn(&MemoryHost);

/// The entries of a directory: the index in `MachineState::nodes`, by the name of the entry.
type NameTable = BTreeMap<String, usize>;
/// A function that replaces the run of a command. It receives the machine and the command, and returns a result.
type CommandStub = dyn Fn(&MemoryHost, &HostCommand) -> CommandResult;

/// The kind and content of a [`MemoryNode`], which is a file, directory, link or FIFO of a simulated machine. `now` is
/// the current content. `durable` is the synced content, which remains after a power cut.
#[derive(Clone, Debug, Hash)]
enum MemoryEntry {
    File {
        now: Vec<u8>,
        durable: Vec<u8>,
    },
    Dir {
        now: NameTable,
        durable: NameTable,
    },
    /// A symbolic link with its target.
    Link(String),
    Special,
}

/// A file, directory, link or FIFO of a simulated machine, with its metadata.
#[derive(Clone, Debug, Hash)]
struct MemoryNode {
    content: MemoryEntry,
    mode: u32,
    user: u32,
    group: u32,
    links: u64,
    /// Extended attributes and flags, or `None` if a test made them unreadable.
    extras: Option<Extras>,
    /// The simulated reason why this file, or each entry of this directory, cannot be replaced.
    blocker: Option<ReplaceBlocker>,
}

/// A simulated machine that a test controls. Clones share the same machine.
#[derive(Clone)]
pub struct MemoryHost(Rc<MachineState>);

/// The state of a simulated machine.
struct MachineState {
    /// All files, directories, links and FIFOs, also those that were deleted. The first is the root directory.
    nodes: RefCell<Vec<MemoryNode>>,
    /// The number of changing calls since the process last started, or since [`MemoryHost::crash_before`] was called.
    calls: Cell<usize>,
    /// The number of the changing call before which the process crashes, counted from 0.
    crash_before: Cell<Option<usize>>,
    is_crashed: Cell<bool>,
    /// True if the disk is full.
    is_full: Cell<bool>,
    /// True if the file system refuses to copy attributes to a new file.
    refuses_extras: Cell<bool>,
    /// The mode that each new file gets, whatever mode the agent sets.
    forced_mode: Cell<Option<u32>>,
    /// The attributes and flags that the file system gives to new files.
    new_file_extras: RefCell<Extras>,
    /// The paths of the directories that were listed, one entry for each call.
    listed_dirs: RefCell<Vec<String>>,
    /// The path of a file that cannot be read, and the number of reads that still fail.
    failing_file: RefCell<(String, usize)>,
    /// The last random number. Its upper bits are the session id of the process.
    random: Cell<u64>,
    /// The commands that were run.
    commands: RefCell<Vec<HostCommand>>,
    /// The function that replaces the run of a command.
    stub: RefCell<Rc<CommandStub>>,
    /// The time that a command takes.
    command_duration: Cell<Duration>,
    /// True if commands run in units.
    has_units: Cell<bool>,
    /// True if the ends of the commands in units are lost.
    loses_ends: Cell<bool>,
    /// The function that is called when the unit of a command is released.
    release: RefCell<Rc<ReleaseFunction>>,
    /// The unit in which a program runs.
    running_unit: RefCell<Option<String>>,
    /// The processes that hold locks, by the path of the locked file.
    lock_holders: RefCell<BTreeMap<String, LockHolder>>,
    /// True if the next search for left commands fails.
    fails_search: Cell<bool>,
    /// The results of the commands that an earlier agent left, by task.
    left_commands: RefCell<Vec<(String, Result<CommandResult, HostError>)>>,
    /// The simulated units of the system.
    units: RefCell<units::MemoryUnits>,
    /// The entries of accounts of a directory service, and the number of look-ups.
    directory_entries: RefCell<BTreeMap<(AccountKind, String), String>>,
    directory_lookups: Cell<usize>,
    uptime: Cell<Duration>,
    /// The number of the present boot, from 1.
    boot: Cell<u8>,
    /// The programs that inhibit a shutdown.
    blockers: RefCell<Vec<String>>,
}

impl Default for MemoryHost {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryHost {
    /// Creates an empty machine, on which every command ends with status 0 and no output.
    pub fn new() -> Self {
        Self(Rc::new(MachineState {
            nodes: RefCell::new(vec![new_dir()]),
            calls: Cell::new(0),
            crash_before: Cell::new(None),
            is_crashed: Cell::new(false),
            is_full: Cell::new(false),
            refuses_extras: Cell::new(false),
            forced_mode: Cell::new(None),
            new_file_extras: RefCell::default(),
            listed_dirs: RefCell::default(),
            failing_file: RefCell::default(),
            random: Cell::new(1),
            commands: RefCell::default(),
            command_duration: Cell::default(),
            has_units: Cell::new(false),
            loses_ends: Cell::new(false),
            release: RefCell::new(Rc::new(|_| {})),
            running_unit: RefCell::default(),
            lock_holders: RefCell::default(),
            fails_search: Cell::new(false),
            left_commands: RefCell::default(),
            units: RefCell::default(),
            stub: RefCell::new(Rc::new(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() })),
            directory_entries: RefCell::default(),
            directory_lookups: Cell::default(),
            uptime: Cell::new(Duration::from_secs(1)),
            boot: Cell::new(1),
            blockers: RefCell::default(),
        }))
    }

    /// Sets the function that replaces the run of each command from now on.
    pub fn on_run(&self, stub: impl Fn(&Self, &HostCommand) -> CommandResult + 'static) {
        *self.0.stub.borrow_mut() = Rc::new(stub);
    }

    /// Sets the time that each command takes from now on.
    pub fn slow_down_commands(&self, duration: Duration) {
        self.0.command_duration.set(duration);
    }

    /// Sets the function that is called when the unit of a command is released.
    pub fn on_release(&self, release: impl Fn(&Self) + 'static) {
        *self.0.release.borrow_mut() = Rc::new(release);
    }

    /// Lets a program run in this unit, which no agent of this machine follows.
    pub fn run_unit(&self, unit: &str) {
        *self.0.running_unit.borrow_mut() = Some(unit.to_owned());
    }

    /// Lets each command run in the unit `unit`. With `loses_ends`, the machine does not know how a command ended.
    pub fn use_units(&self, loses_ends: bool) {
        self.0.has_units.set(true);
        self.0.loses_ends.set(loses_ends);
    }

    /// Lets another process hold a lock on a file, or with `None` no process.
    pub fn set_lock_holder(&self, path: &str, holder: Option<LockHolder>) {
        let mut holders = self.0.lock_holders.borrow_mut();
        match holder {
            Some(holder) => holders.insert(path.to_owned(), holder),
            None => holders.remove(path),
        };
    }

    /// Adds an account of a directory service, as an entry in the format of `/etc/passwd` or `/etc/group`.
    pub fn put_directory_entry(&self, kind: AccountKind, entry: &str) {
        let name = entry.split(':').next().unwrap_or_default().to_owned();
        self.0.directory_entries.borrow_mut().insert((kind, name), entry.to_owned());
    }

    /// Returns how often the directory service was asked.
    pub fn directory_lookups(&self) -> usize {
        self.0.directory_lookups.get()
    }

    /// Lets the next search for left commands fail.
    pub fn fail_search(&self) {
        self.0.fails_search.set(true);
    }

    /// Adds a command of a task that an earlier agent left, and that will have this result.
    pub fn leave_command(&self, task: &str, end: ExitKind) {
        self.0.left_commands.borrow_mut().push((task.to_owned(), Ok(CommandResult { end, output: "said\n".into() })));
    }

    /// Adds a command of a task that an earlier agent was about to start, and that systemd did not start.
    pub fn leave_unstarted_command(&self, task: &str) {
        let error = HostError::io("start the unit", "unit")(io::Error::other("not started"));
        self.0.left_commands.borrow_mut().push((task.to_owned(), Err(error)));
    }

    /// Returns the program and the arguments of each command that was run, in order.
    pub fn commands_run(&self) -> Vec<Vec<String>> {
        self.0.commands.borrow().iter().map(|command| command.argv.clone()).collect()
    }

    /// Returns the last command that was run.
    pub fn last_command(&self) -> Option<HostCommand> {
        self.0.commands.borrow().last().cloned()
    }

    /// Returns how often a directory was listed.
    pub fn list_count(&self, path: &str) -> usize {
        self.0.listed_dirs.borrow().iter().filter(|listed| *listed == path).count()
    }

    /// Returns the number of calls that change the machine since the last [`Self::restart`] or [`Self::crash_before`].
    /// The run of a command counts as two calls, because the process can crash before and after it.
    pub fn calls(&self) -> usize {
        self.0.calls.get()
    }

    /// Lets the process crash before a later call that changes the machine. `call` is the number of that call from now
    /// on, counted from 0. Resets [`Self::calls`] to 0.
    pub fn crash_before(&self, call: usize) {
        self.0.calls.set(0);
        self.0.crash_before.set(Some(call));
    }

    /// Returns whether the process has crashed.
    pub fn is_crashed(&self) -> bool {
        self.0.is_crashed.get()
    }

    /// Sets whether the disk is full. If so, each creation of a file and each write fails.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.set(is_full);
    }

    /// Sets the attributes and flags that the file system gives to each file that the process creates from now on.
    pub fn set_new_file_extras(&self, extras: Extras) {
        *self.0.new_file_extras.borrow_mut() = extras;
    }

    /// Lets the file system refuse to copy attributes to a new file, from now on.
    pub fn refuse_extras(&self) {
        self.0.refuses_extras.set(true);
    }

    /// Lets the file system give each new file this mode from now on, whatever mode the agent sets. As on FAT, this
    /// causes no error.
    pub fn force_mode(&self, mode: u32) {
        self.0.forced_mode.set(Some(mode));
    }

    /// Lets the next `times` reads of this file fail. Replaces an earlier call of this method.
    pub fn fail_reads(&self, path: &str, times: usize) {
        *self.0.failing_file.borrow_mut() = (path.to_owned(), times);
    }

    /// Fails if [`Self::fail_reads`] requires that this read of the file fails, and counts the failure.
    fn check_readable(&self, path: &str) -> Result<(), HostError> {
        let mut failing_file = self.0.failing_file.borrow_mut();
        // The path of the file, and the number of its reads that still fail.
        if failing_file.0 != path || failing_file.1 == 0 {
            return Ok(());
        }
        failing_file.1 -= 1;
        Err(io_error("read", path, io::ErrorKind::Other))
    }

    /// Fails if the disk is full. `path` is for the error.
    fn check_room(&self, path: &str) -> Result<(), HostError> {
        if self.0.is_full.get() { Err(io_error("write", path, io::ErrorKind::StorageFull)) } else { Ok(()) }
    }

    /// Starts a new process after a crash, with a new session id (the upper bits of `random`). Cancels a planned crash.
    pub fn restart(&self) {
        self.0.is_crashed.set(false);
        self.0.crash_before.set(None);
        self.0.calls.set(0);
        self.0.random.set(self.0.random.get() + (1 << 40));
    }

    /// Cuts the power: contents of files and names in directories that were not synced are lost. Other metadata, such
    /// as the mode, is durable without a sync. Then starts a new process.
    pub fn cut_power(&self) {
        for node in self.0.nodes.borrow_mut().iter_mut() {
            match &mut node.content {
                MemoryEntry::File { now, durable } => now.clone_from(durable),
                MemoryEntry::Dir { now, durable } => now.clone_from(durable),
                MemoryEntry::Link(_) | MemoryEntry::Special => {}
            }
        }
        self.restart();
    }

    /// Sets the programs that inhibit a shutdown.
    pub fn set_shutdown_blockers(&self, blockers: &[&str]) {
        *self.0.blockers.borrow_mut() = blockers.iter().map(|blocker| (*blocker).to_owned()).collect();
    }

    /// Boots the machine: cuts its power, empties `/run`, and changes its boot id.
    pub fn reboot(&self) {
        self.cut_power();
        self.0.boot.set(self.0.boot.get() + 1);
        self.delete("/run");
    }

    /// Advances the clock and the uptime of the machine.
    pub fn advance_time(&self, time: Duration) {
        self.0.uptime.set(self.0.uptime.get() + time);
    }

    /// Creates or replaces a file with this text, and creates its missing directories. All of this is durable at once.
    pub fn put(&self, path: &str, text: &str) {
        let (dir, name) = self.parent_and_name(path);
        self.add(dir, &name, MemoryEntry::File { now: text.into(), durable: text.into() }, 0o644);
    }

    /// Creates a symbolic link, whose target does not exist.
    pub fn put_link(&self, path: &str) {
        self.put_link_to(path, "missing");
    }

    /// Creates a symbolic link with this target.
    pub fn put_link_to(&self, path: &str, target: &str) {
        let (dir, name) = self.parent_and_name(path);
        self.add(dir, &name, MemoryEntry::Link(target.into()), 0o777);
    }

    /// Creates an empty directory. It is durable at once.
    pub fn put_dir(&self, path: &str) {
        let (dir, name) = self.parent_and_name(path);
        self.add(dir, &name, new_dir().content, 0o755);
    }

    /// Creates a FIFO.
    pub fn put_special(&self, path: &str) {
        let (dir, name) = self.parent_and_name(path);
        self.add(dir, &name, MemoryEntry::Special, 0o644);
    }

    /// Increases the number of hard links of a file by one.
    pub fn increase_link_count(&self, path: &str) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].links += 1;
    }

    /// Sets the mode of an entry.
    pub fn chmod(&self, path: &str, mode: u32) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].mode = mode;
    }

    /// Sets the owner of an entry.
    pub fn chown(&self, path: &str, user: u32) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].user = user;
    }

    /// Sets the group of a file.
    pub fn chgrp(&self, path: &str, group: u32) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].group = group;
    }

    /// Sets the attributes and flags of a file. `None` makes them unreadable.
    pub fn set_extras(&self, path: &str, extras: Option<Extras>) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].extras = extras;
    }

    /// Sets the simulated reason why a file, or each entry of a directory, cannot be replaced. `None` removes it.
    pub fn set_blocker(&self, path: &str, blocker: Option<ReplaceBlocker>) {
        let node = self.find_node(path).expect("the file is there");
        self.0.nodes.borrow_mut()[node].blocker = blocker;
    }

    /// Returns the text of a file, or `None` if no regular file exists at the path.
    pub fn text(&self, path: &str) -> Option<String> {
        match &self.0.nodes.borrow()[self.find_node(path)?].content {
            MemoryEntry::File { now, .. } => Some(String::from_utf8_lossy(now).into_owned()),
            _ => None,
        }
    }

    /// Removes an entry durably.
    pub fn delete(&self, path: &str) {
        let (dir, name) = self.parent_and_name(path);
        self.update_names(dir, |names| {
            names.remove(&name);
        });
    }

    /// Returns the names in a directory, or an empty list if it does not exist.
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.find_node(path).map(|node| self.0.nodes.borrow()[node].content.clone()) {
            Some(MemoryEntry::Dir { now, .. }) => now.into_keys().collect(),
            _ => Vec::new(),
        }
    }

    /// Changes the entries of a directory durably.
    fn update_names(&self, dir: usize, change: impl Fn(&mut NameTable)) {
        if let MemoryEntry::Dir { now, durable } = &mut self.0.nodes.borrow_mut()[dir].content {
            change(now);
            change(durable);
        }
    }

    /// Returns the node of the directory that contains a path, and the last name of the path. Creates missing
    /// directories.
    fn parent_and_name(&self, path: &str) -> (usize, String) {
        let path = HostPath::parse(path).expect("a path of the test");
        let mut dir = 0;
        for name in path.parent().iter().flat_map(|parent| parent.names().map(str::to_owned).collect::<Vec<_>>()) {
            dir = match self.child(dir, &name) {
                Some(subdir) => subdir,
                None => self.add(dir, &name, new_dir().content, 0o755),
            };
        }
        (dir, path.name().to_owned())
    }

    /// Adds an entry with a new node to a directory, durably. Returns the index of the node.
    fn add(&self, dir: usize, name: &str, content: MemoryEntry, mode: u32) -> usize {
        let node = self.add_node(MemoryNode {
            content,
            mode,
            user: 0,
            group: 0,
            links: 1,
            extras: Some(Extras::default()),
            blocker: None,
        });
        self.update_names(dir, |names| {
            names.insert(name.to_owned(), node);
        });
        node
    }

    /// Adds a node without an entry in a directory. Returns the index of the node.
    fn add_node(&self, node: MemoryNode) -> usize {
        let mut nodes = self.0.nodes.borrow_mut();
        nodes.push(node);
        nodes.len() - 1
    }

    /// Returns the node of an entry in a directory, or `None` if there is no such entry.
    fn child(&self, dir: usize, name: &str) -> Option<usize> {
        match &self.0.nodes.borrow()[dir].content {
            MemoryEntry::Dir { now, .. } => now.get(name).copied(),
            _ => None,
        }
    }

    /// Returns the node at a path, or `None` if no entry exists there. Does not follow links.
    fn find_node(&self, path: &str) -> Option<usize> {
        let path = HostPath::parse(path).expect("a path of the test");
        path.names().try_fold(0, |dir, name| self.child(dir, name))
    }

    /// Fails if the process has crashed. `path` is for the error.
    fn check_alive(&self, path: &str) -> Result<(), HostError> {
        if self.is_crashed() { Err(io_error("reach", path, io::ErrorKind::BrokenPipe)) } else { Ok(()) }
    }

    /// Counts a call that changes the machine. Fails if the process has crashed, or if it must crash before this call
    /// ([`Self::crash_before`]).
    fn count_call(&self, path: &str) -> Result<(), HostError> {
        self.check_alive(path)?;
        let call = self.0.calls.get();
        if self.0.crash_before.get() == Some(call) {
            self.0.is_crashed.set(true);
        }
        self.check_alive(path)?;
        self.0.calls.set(call + 1);
        Ok(())
    }

    /// Opens a node as a directory. Fails as the real machine does if the node is a link or another kind of file.
    fn open_node(&self, node: usize, path: &str) -> Result<Box<dyn Dir>, HostError> {
        let nodes = self.0.nodes.borrow();
        match &nodes[node].content {
            MemoryEntry::Dir { .. } => Ok(Box::new(MemoryDir { host: self.clone(), node, path: path.into() })),
            MemoryEntry::Link(_) => Err(HostError::Link { path: path.into(), at: path.into(), real: None }),
            other => Err(HostError::WrongKind {
                path: path.into(),
                wanted: FileKind::Directory.as_str(),
                found: file_kind(other).as_str(),
            }),
        }
    }
}

impl Host for MemoryHost {
    fn root(&self) -> Result<Box<dyn Dir>, HostError> {
        self.check_alive("/")?;
        self.open_node(0, "")
    }

    fn dir(&self, path: &HostPath) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.check_alive(path.as_str())?;
        let mut dir = self.root()?;
        for name in path.names() {
            let Some(subdir) = dir.dir(name)? else { return Ok(None) };
            dir = subdir;
        }
        Ok(Some(dir))
    }

    /// Records the command and returns the result of the stub ([`Self::on_run`]). The process may crash before and
    /// after the command.
    fn run<'a>(&'a self, command: &'a HostCommand) -> Pending<'a, Result<CommandResult, HostError>> {
        Box::pin(async move {
            let program = command.argv.first().map_or("", String::as_str);
            self.count_call(program)?;
            self.0.commands.borrow_mut().push(command.clone());
            let stub = self.0.stub.borrow().clone();
            let result = stub(self, command);
            if !self.0.command_duration.get().is_zero() {
                tokio::time::sleep(self.0.command_duration.get()).await;
            }
            self.count_call(program)?;
            if self.0.loses_ends.get() { Err(HostError::CommandLost { unit: "unit".into() }) } else { Ok(result) }
        })
    }

    fn release_unit<'a>(&'a self, _unit: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let release = self.0.release.borrow().clone();
            release(self);
        })
    }

    fn new_unit(&self, _purpose: &CommandPurpose) -> Option<String> {
        self.0.has_units.get().then(|| "unit".to_owned())
    }

    fn find_left_commands(&self, _started: BTreeMap<String, String>) -> Pending<'_, Result<Vec<LeftCommand>, HostError>> {
        if self.0.fails_search.replace(false) {
            return Box::pin(async { Err(HostError::io("list the units of", "systemd")(io::Error::other("no bus"))) });
        }
        let left = std::mem::take(&mut *self.0.left_commands.borrow_mut());
        let command = |(task, result)| LeftCommand {
            task,
            is_recorded: true,
            result: Box::pin(async { result }),
            release: Box::pin(async {}),
        };
        Box::pin(async move { Ok(left.into_iter().map(command).collect()) })
    }

    fn has_unit(&self, unit: &str) -> bool {
        self.0.running_unit.borrow().as_deref() == Some(unit)
    }

    fn system_units(&self) -> &dyn SystemUnits {
        self
    }

    fn system_path(&self, path: &HostPath) -> PathBuf {
        path.as_str().into()
    }

    fn system_root(&self) -> PathBuf {
        "/".into()
    }

    fn user_id(&self, name: &str) -> Result<u32, HostError> {
        account_number(AccountKind::User, name)
    }

    fn group_id(&self, name: &str) -> Result<u32, HostError> {
        account_number(AccountKind::Group, name)
    }

    fn find_lock_holder(&self, path: &HostPath) -> Result<Option<LockHolder>, HostError> {
        Ok(self.0.lock_holders.borrow().get(path.as_str()).cloned())
    }

    fn directory_entry(&self, kind: AccountKind, name: &str) -> Result<Option<String>, HostError> {
        self.0.directory_lookups.set(self.0.directory_lookups.get() + 1);
        Ok(self.0.directory_entries.borrow().get(&(kind, name.to_owned())).cloned())
    }

    fn directory_entry_with_id(&self, kind: AccountKind, id: u32) -> Result<Option<String>, HostError> {
        self.0.directory_lookups.set(self.0.directory_lookups.get() + 1);
        let entries = self.0.directory_entries.borrow();
        let id = id.to_string();
        let has_id = |entry: &&String| entry.split(':').nth(2) == Some(id.as_str());
        Ok(entries.iter().filter(|((found, _), _)| *found == kind).map(|(_, entry)| entry).find(has_id).cloned())
    }

    /// Returns the paths of the entries for which a test set the blocker [`ReplaceBlocker::Mounted`].
    fn mount_points(&self) -> Result<Vec<String>, HostError> {
        let nodes = self.0.nodes.borrow();
        let (mut paths, mut open) = (Vec::new(), vec![(0, String::new())]);
        while let Some((node, path)) = open.pop() {
            if nodes[node].blocker == Some(ReplaceBlocker::Mounted) {
                paths.push(path.clone());
            }
            if let MemoryEntry::Dir { now, .. } = &nodes[node].content {
                open.extend(now.iter().map(|(name, node)| (*node, format!("{path}/{name}"))));
            }
        }
        Ok(paths)
    }

    fn user_and_group(&self) -> (u32, u32) {
        (0, 0)
    }

    fn boot_id(&self) -> [u8; 16] {
        [self.0.boot.get(); 16]
    }

    fn can_reboot(&self) -> bool {
        true
    }

    fn shutdown_blockers(&self) -> Pending<'_, Result<Vec<String>, HostError>> {
        let blockers = self.0.blockers.borrow().clone();
        Box::pin(async move { Ok(blockers) })
    }

    fn kernel_release(&self) -> String {
        "6.1.0-stemma".to_owned()
    }

    /// Returns the id of the current process: the upper bits of `random`, which each restart changes.
    fn session_id(&self) -> u32 {
        u32::try_from(self.0.random.get() >> 40).unwrap_or(0)
    }

    /// Returns the next of a sequence of consecutive numbers, so that tests are repeatable.
    fn random(&self) -> u64 {
        self.0.random.set(self.0.random.get() + 1);
        self.0.random.get()
    }

    /// Returns a fixed date plus the uptime.
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000) + self.uptime()
    }

    fn uptime(&self) -> Duration {
        self.0.uptime.get()
    }
}

/// Returns the node of a new empty directory.
fn new_dir() -> MemoryNode {
    let content = MemoryEntry::Dir { now: NameTable::new(), durable: NameTable::new() };
    MemoryNode { content, mode: 0o755, user: 0, group: 0, links: 1, extras: Some(Extras::default()), blocker: None }
}

fn file_kind(content: &MemoryEntry) -> FileKind {
    match content {
        MemoryEntry::File { .. } => FileKind::File,
        MemoryEntry::Dir { .. } => FileKind::Directory,
        MemoryEntry::Link(_) => FileKind::Link,
        MemoryEntry::Special => FileKind::Special,
    }
}

/// Returns the id of a user or group. Accepts a number, `root` and `www-data`. Fails for other names.
fn account_number(kind: AccountKind, name: &str) -> Result<u32, HostError> {
    match (name.parse(), name) {
        (Ok(number), _) => Ok(number),
        (_, "root") => Ok(0),
        (_, "www-data") => Ok(33),
        _ => Err(HostError::NoAccount { kind, name: name.into() }),
    }
}

fn io_error(operation: &'static str, path: &str, kind: io::ErrorKind) -> HostError {
    HostError::io(operation, path)(kind.into())
}

//! A controller and its agents, as `cargo xtask demo` and the README set them up.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::ports::Port;
use crate::program::{Running, run, succeed};

/// What the controller prints when it is ready.
#[derive(Clone, Debug, Deserialize)]
pub struct Bound {
    /// The admin listener's URL.
    pub admin: String,
    /// The agents' listener's URL.
    pub agents: String,
    /// Path of the fleet root's certificate.
    pub ca: PathBuf,
}

/// A fleet below one temporary directory.
pub struct Fleet {
    dir: tempfile::TempDir,
    /// The controller's data directory.
    data: PathBuf,
    controller: Option<Running>,
    bound: Bound,
    /// The configuration file that it is run with.
    config: Option<PathBuf>,
    /// Where agents are told that the controller is; `None` where it says itself.
    reached: Option<String>,
    /// The words before each program of a host.
    host: Vec<OsString>,
    /// What keeps the controller's ports free while it does not run.
    _ports: Option<[Port; 2]>,
}

/// One agent below a root of its own.
pub struct Agent {
    root: PathBuf,
    running: Option<Running>,
}

impl Fleet {
    /// `init` and `run` on free ports of the loopback.
    ///
    /// # Errors
    /// When a program fails; its output is in the error.
    pub fn start() -> Result<Self> {
        Self::begin_with(None, &[])
    }

    /// The same with a configuration file of this text.
    ///
    /// # Errors
    /// As [`Fleet::start`].
    pub fn start_with(config: &str) -> Result<Self> {
        Self::begin_with(Some(config), &[])
    }

    /// The same, with a name by which hosts reach the controller.
    ///
    /// # Errors
    /// As [`Fleet::start`].
    pub fn start_named(name: &str, config: &str) -> Result<Self> {
        Self::begin_with(Some(config), &["--name", name])
    }

    fn begin_with(config: Option<&str>, names: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let init = ["init".as_ref(), "--data-dir".as_ref(), data.as_os_str()];
        succeed("stemma-controller", init.into_iter().chain(names.iter().map(OsStr::new)))?;
        let file = dir.path().join("controller.toml");
        let config = config.map(|text| std::fs::write(&file, text).map(|()| file)).transpose()?;
        let ports = [Port::free()?, Port::free()?];
        let [admin, agents] = ports.each_ref().map(|port| port.address().to_string());
        let (controller, bound) = run_controller(&[], &data, config.as_deref(), [&admin, &agents])?;
        Ok(Self {
            dir,
            data,
            controller: Some(controller),
            bound,
            config,
            reached: None,
            host: Vec::new(),
            _ports: Some(ports),
        })
    }

    /// Around a controller that the test itself runs, with its data in `data` below the directory.
    #[must_use]
    pub fn around(dir: tempfile::TempDir, bound: Bound) -> Self {
        let data = dir.path().join("data");
        Self { dir, data, controller: None, bound, config: None, reached: None, host: Vec::new(), _ports: None }
    }

    /// Has agents that join from now on reach the controller by another address: a proxy's.
    pub fn reach_agents_by(&mut self, address: SocketAddr) {
        self.reached = Some(format!("https://{address}"));
    }

    /// Has agents that join from now on reach the controller by a name, at the port that it has.
    pub fn reach_agents_by_name(&mut self, name: &str) {
        let port = self.bound.agents.rsplit(':').next().unwrap_or_default();
        self.reached = Some(format!("https://{name}:{port}"));
    }

    /// Has each agent that joins from now on join and start by another program, as [`Agent::start_under`].
    pub fn hosts_under(&mut self, words: Vec<OsString>) {
        self.host = words;
    }

    /// What the controller bound.
    #[must_use]
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The directory below which everything of this fleet stands.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The controller's data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// The admin's context file, written by `init`.
    #[must_use]
    pub fn context(&self) -> PathBuf {
        self.data().join("admin/context.toml")
    }

    /// The controller's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.controller.as_ref().map(Running::log).unwrap_or_default()
    }

    /// The controller's process id, when it runs.
    #[must_use]
    pub fn controller_id(&self) -> Option<u32> {
        self.controller.as_ref().map(Running::id)
    }

    /// Kills the controller with SIGKILL and starts it again on the same ports.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn crash_controller(&mut self) -> Result<()> {
        self.kill_controller()?;
        self.start_controller()
    }

    /// Kills the controller with SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_controller(&mut self) -> Result<()> {
        self.controller.take().context("the controller runs")?.kill()
    }

    /// Holds the controller where it is: nothing of it runs until [`Fleet::let_controller_go_on`] or its end.
    ///
    /// # Errors
    /// When it does not run, or does not stop in time.
    pub fn hold_controller(&self) -> Result<()> {
        self.controller.as_ref().context("the controller runs")?.hold()
    }

    /// Lets a controller that is held go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn let_controller_go_on(&self) -> Result<()> {
        self.controller.as_ref().context("the controller runs")?.go_on()
    }

    /// Stops the controller with SIGTERM.
    ///
    /// # Errors
    /// When it does not end cleanly.
    pub fn stop_controller(&mut self) -> Result<()> {
        self.controller.take().context("the controller runs")?.stop()
    }

    /// Starts the controller again on the ports that it had.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn start_controller(&mut self) -> Result<()> {
        self.start_controller_under(&[])
    }

    /// The same by another program, as [`Agent::start_under`].
    ///
    /// # Errors
    /// When it does not come back.
    pub fn start_controller_under(&mut self, words: &[OsString]) -> Result<()> {
        let port = |url: &str| url.trim_start_matches("https://").to_owned();
        let (admin, agents) = (port(&self.bound.admin), port(&self.bound.agents));
        let (controller, bound) = run_controller(words, &self.data(), self.config.as_deref(), [&admin, &agents])?;
        self.controller = Some(controller);
        self.bound = bound;
        Ok(())
    }

    /// Starts the controller on another data directory and another address of the loopback, at the ports that it had.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_controller_in(&mut self, data: PathBuf, ip: &str) -> Result<()> {
        let at = |url: &str| format!("https://{ip}:{}", url.rsplit(':').next().unwrap_or_default());
        (self.bound.admin, self.bound.agents) = (at(&self.bound.admin), at(&self.bound.agents));
        self.data = data;
        self.start_controller()
    }

    /// Runs the operator's command with this fleet's context.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        let context = self.context();
        let mut all = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        run("stemma", all)
    }

    /// Runs the operator's command: its standard output, its standard error and its status.
    ///
    /// # Errors
    /// When it can't be started, or a signal ended it.
    pub fn ran(&self, arguments: &[&str]) -> Result<(String, String, i32)> {
        let output = self.cli(arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output.stdout), text(&output.stderr), output.status.code().context("it ended by itself")?))
    }

    /// Runs the operator's command, which must succeed, and gives what it printed.
    ///
    /// # Errors
    /// When it fails; both outputs are in the error.
    pub fn stemma(&self, arguments: &[&str]) -> Result<String> {
        let context = self.context();
        let mut all = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        succeed("stemma", all)
    }

    /// Begins the operator's command and does not wait for it.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn begin(&self, arguments: &[&str]) -> Result<Running> {
        let context = self.context();
        let mut all = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Running::start("stemma", all)
    }

    /// Makes a token, joins an agent with it and starts it.
    ///
    /// # Errors
    /// When a program fails; its output is in the error.
    pub fn join(&self, name: &str, group: &str) -> Result<Agent> {
        let root = self.dir.path().join(name);
        std::fs::create_dir_all(&root)?;
        let token = self.dir.path().join(format!("{name}.token"));
        std::fs::write(&token, self.stemma(&["token", "create", "--nodegroup", group])?)?;
        let hash = self.stemma(&["token", "ca-hash"])?;
        let (root_text, token_text) = (root.to_string_lossy(), token.to_string_lossy());
        let arguments = [
            "--root",
            &root_text,
            "join",
            self.reached.as_ref().unwrap_or(&self.bound.agents),
            "--name",
            name,
            "--token-file",
            &token_text,
            "--ca-hash",
            hash.trim(),
        ];
        if self.host.is_empty() {
            succeed("stemma-agent", arguments)?;
        } else {
            let joining = Running::start_under(&self.host, "stemma-agent", arguments)?;
            let (is_joined, log) = joining.ended_with()?;
            ensure!(is_joined, "stemma-agent join: {log}");
        }
        let mut agent = Agent { root, running: None };
        agent.start_under(&self.host)?;
        Ok(agent)
    }
}

impl Agent {
    /// Starts its `run`.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(&mut self) -> Result<()> {
        self.start_under(&[])
    }

    /// Starts its `run` by another program, which is given with the words before the agent's own and becomes the agent.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_under(&mut self, words: &[OsString]) -> Result<()> {
        let arguments = ["--root".as_ref(), self.root.as_os_str(), "run".as_ref()];
        self.running = Some(Running::start_under(words, "stemma-agent", arguments)?);
        Ok(())
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.running.take().context("the agent runs")?.kill()
    }

    /// Holds it where it is, as one that hangs: nothing of it runs until [`Agent::go_on`] or its end.
    ///
    /// # Errors
    /// When it does not run, or does not stop in time.
    pub fn hold(&self) -> Result<()> {
        self.running.as_ref().context("the agent runs")?.hold()
    }

    /// Lets one that is held go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn go_on(&self) -> Result<()> {
        self.running.as_ref().context("the agent runs")?.go_on()
    }

    /// A path on its host.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.running.as_ref().map(Running::log).unwrap_or_default()
    }

    /// What it says of itself, whether that is good or not.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn status(&self) -> Result<String> {
        let output = run("stemma-agent", ["--root".as_ref(), self.root.as_os_str(), "status".as_ref()])?;
        Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
    }

    /// Its process id, when it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(Running::id)
    }
}

fn run_controller(
    words: &[OsString],
    data: &Path,
    config: Option<&Path>,
    [admin, agents]: [&str; 2],
) -> Result<(Running, Bound)> {
    let configured = config.into_iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]);
    let arguments = [
        "run".as_ref(),
        "--data-dir".as_ref(),
        data.as_os_str(),
        "--admin-listen".as_ref(),
        admin.as_ref(),
        "--agent-listen".as_ref(),
        agents.as_ref(),
    ];
    let arguments = arguments.into_iter().chain(configured);
    let controller = Running::start_under(words, "stemma-controller", arguments)?;
    let line = controller.line()?;
    let bound =
        serde_json::from_str(&line).with_context(|| format!("the ready line {line:?}; log:\n{}", controller.log()))?;
    Ok((controller, bound))
}

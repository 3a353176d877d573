//! A controller and its agents, set up as `cargo xtask demo` and the README do it.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::ports::ReservedPort;
use crate::program::{RunningProgram, run, succeed};

/// The URLs of the listeners and the path of the root certificate, which the controller prints when it is ready.
#[derive(Clone, Debug, Deserialize)]
pub struct ListenerAddresses {
    /// URL of the listener for operators.
    pub admin: String,
    /// URL of the listener for agents.
    pub agents: String,
    /// Path of the fleet root's certificate.
    pub ca: PathBuf,
}

/// A fleet with all its files in one temporary directory.
pub struct TempFleet {
    dir: tempfile::TempDir,
    /// The controller's data directory.
    data: PathBuf,
    controller: Option<RunningProgram>,
    addresses: ListenerAddresses,
    /// The controller's configuration file.
    config: Option<PathBuf>,
    /// URL of the controller for agents that join. If `None`, they get the URL that the controller printed.
    agent_url: Option<String>,
    /// Command line of a program that executes `join` and the first `run` of each agent. If empty, they start directly.
    host_wrapper: Vec<OsString>,
    /// Reservations of the controller's ports, so that no other test uses them while the controller is stopped.
    _ports: Option<[ReservedPort; 2]>,
}

/// An agent with its own root directory.
pub struct TestAgent {
    root: PathBuf,
    running: Option<RunningProgram>,
}

impl TempFleet {
    /// Initializes and starts a controller on free loopback ports.
    ///
    /// # Errors
    /// When a program fails. The error contains its output.
    pub fn start() -> Result<Self> {
        Self::start_with_options(None, &[])
    }

    /// Same as [`TempFleet::start`], with a configuration file that contains this text.
    ///
    /// # Errors
    /// As [`TempFleet::start`].
    pub fn start_with_config(config: &str) -> Result<Self> {
        Self::start_with_options(Some(config), &[])
    }

    /// Same as [`TempFleet::start_with_config`], with a host name in the controller's certificate. Agents use this name
    /// only after [`TempFleet::set_agent_host_name`].
    ///
    /// # Errors
    /// As [`TempFleet::start`].
    pub fn start_with_name(name: &str, config: &str) -> Result<Self> {
        Self::start_with_options(Some(config), &["--name", name])
    }

    /// Runs `stemma-controller init` with these options, then `stemma-controller run` with this configuration text.
    fn start_with_options(config: Option<&str>, options: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let init = ["init".as_ref(), "--data-dir".as_ref(), data.as_os_str()];
        succeed("stemma-controller", init.into_iter().chain(options.iter().map(OsStr::new)))?;
        let file = dir.path().join("controller.toml");
        let config = config.map(|text| std::fs::write(&file, text).map(|()| file)).transpose()?;
        let ports = [ReservedPort::reserve()?, ReservedPort::reserve()?];
        let [admin, agents] = ports.each_ref().map(|port| port.address().to_string());
        let (controller, listener_addresses) = run_controller(&[], &data, config.as_deref(), [&admin, &agents])?;
        Ok(Self {
            dir,
            data,
            controller: Some(controller),
            addresses: listener_addresses,
            config,
            agent_url: None,
            host_wrapper: Vec::new(),
            _ports: Some(ports),
        })
    }

    /// Creates a fleet for a controller that the caller runs. The controller's data must be in `data` below the
    /// directory.
    #[must_use]
    pub fn from_parts(dir: tempfile::TempDir, listener_addresses: ListenerAddresses) -> Self {
        let data = dir.path().join("data");
        Self {
            dir,
            data,
            controller: None,
            addresses: listener_addresses,
            config: None,
            agent_url: None,
            host_wrapper: Vec::new(),
            _ports: None,
        }
    }

    /// Sets the address of the controller that agents get when they join later, for example the address of a proxy.
    pub fn set_agent_address(&mut self, address: SocketAddr) {
        self.agent_url = Some(format!("https://{address}"));
    }

    /// Sets the host name of the controller that agents get when they join later. The port remains the current one.
    pub fn set_agent_host_name(&mut self, name: &str) {
        let port = self.addresses.agents.rsplit(':').next().unwrap_or_default();
        self.agent_url = Some(format!("https://{name}:{port}"));
    }

    /// Sets a program that executes `stemma-agent join` and the first `stemma-agent run` of each agent which joins
    /// later, as [`TestAgent::start_under`] does. `words` is the command line of that program.
    pub fn set_host_wrapper(&mut self, words: Vec<OsString>) {
        self.host_wrapper = words;
    }

    /// Returns the addresses on which the controller listens.
    #[must_use]
    pub fn addresses(&self) -> &ListenerAddresses {
        &self.addresses
    }

    /// Returns the directory with all files of this fleet.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the controller's data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// Returns the path of the admin's context file, which `init` wrote.
    #[must_use]
    pub fn context(&self) -> PathBuf {
        self.data().join("admin/context.toml")
    }

    /// Returns the controller's log since its last start. It is empty if this value does not run the controller.
    #[must_use]
    pub fn log(&self) -> String {
        self.controller.as_ref().map(RunningProgram::log).unwrap_or_default()
    }

    /// Returns the controller's process id if it runs.
    #[must_use]
    pub fn controller_id(&self) -> Option<u32> {
        self.controller.as_ref().map(RunningProgram::id)
    }

    /// Kills the controller with SIGKILL and starts it again on the same ports.
    ///
    /// # Errors
    /// When the controller is not running, or does not start again.
    pub fn crash_controller(&mut self) -> Result<()> {
        self.kill_controller()?;
        self.start_controller()
    }

    /// Kills the controller with SIGKILL.
    ///
    /// # Errors
    /// When the controller is not running.
    pub fn kill_controller(&mut self) -> Result<()> {
        self.controller.take().context("the controller runs")?.kill()
    }

    /// Pauses the controller with SIGSTOP until [`TempFleet::resume_controller`]. Until then, only SIGKILL ends it.
    ///
    /// # Errors
    /// When the controller is not running, or does not stop in time.
    pub fn pause_controller(&self) -> Result<()> {
        self.controller.as_ref().context("the controller runs")?.pause()
    }

    /// Continues a paused controller.
    ///
    /// # Errors
    /// When the controller is not running.
    pub fn resume_controller(&self) -> Result<()> {
        self.controller.as_ref().context("the controller runs")?.resume()
    }

    /// Stops the controller with SIGTERM.
    ///
    /// # Errors
    /// When the controller is not running, or does not end cleanly.
    pub fn stop_controller(&mut self) -> Result<()> {
        self.controller.take().context("the controller runs")?.stop()
    }

    /// Starts the controller again on its previous ports.
    ///
    /// # Errors
    /// When the controller does not start.
    pub fn start_controller(&mut self) -> Result<()> {
        self.start_controller_under(&[])
    }

    /// Same as [`TempFleet::start_controller`], through another program, as [`TestAgent::start_under`] does.
    ///
    /// # Errors
    /// When the controller does not start.
    pub fn start_controller_under(&mut self, words: &[OsString]) -> Result<()> {
        let socket_address = |url: &str| url.trim_start_matches("https://").to_owned();
        let (admin, agents) = (socket_address(&self.addresses.admin), socket_address(&self.addresses.agents));
        let (controller, addresses) = run_controller(words, &self.data(), self.config.as_deref(), [&admin, &agents])?;
        self.controller = Some(controller);
        self.addresses = addresses;
        Ok(())
    }

    /// Starts the controller with another data directory on another loopback address. The ports remain the same.
    ///
    /// # Errors
    /// When the controller does not start.
    pub fn start_controller_in(&mut self, data: PathBuf, ip: &str) -> Result<()> {
        let url_with_ip = |url: &str| format!("https://{ip}:{}", url.rsplit(':').next().unwrap_or_default());
        (self.addresses.admin, self.addresses.agents) = (url_with_ip(&self.addresses.admin), url_with_ip(&self.addresses.agents));
        self.data = data;
        self.start_controller()
    }

    /// Runs `stemma` with this fleet's context and returns its output, whatever its exit status is.
    ///
    /// # Errors
    /// When `stemma` cannot be started.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        let context = self.context();
        let mut all_arguments = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        run("stemma", all_arguments)
    }

    /// Runs `stemma` with this fleet's context. Returns its standard output, standard error and exit status.
    ///
    /// # Errors
    /// When `stemma` cannot be started, or a signal ended it.
    pub fn run_cli(&self, arguments: &[&str]) -> Result<(String, String, i32)> {
        let output = self.cli(arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output.stdout), text(&output.stderr), output.status.code().context("a signal ended stemma")?))
    }

    /// Runs `stemma` with this fleet's context and returns its standard output. The command must succeed.
    ///
    /// # Errors
    /// When `stemma` fails. The error contains both outputs.
    pub fn stemma(&self, arguments: &[&str]) -> Result<String> {
        let context = self.context();
        let mut all_arguments = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        succeed("stemma", all_arguments)
    }

    /// Starts `stemma` with this fleet's context and does not wait for its end.
    ///
    /// # Errors
    /// When `stemma` cannot be started.
    pub fn spawn_cli(&self, arguments: &[&str]) -> Result<RunningProgram> {
        let context = self.context();
        let mut all_arguments = vec!["--context".to_owned(), context.to_string_lossy().into_owned()];
        all_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        RunningProgram::start("stemma", all_arguments)
    }

    /// Creates a join token for a node group, joins a new agent with the token, and starts the agent.
    ///
    /// # Errors
    /// When a program fails. The error contains its output.
    pub fn join(&self, name: &str, group: &str) -> Result<TestAgent> {
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
            self.agent_url.as_ref().unwrap_or(&self.addresses.agents),
            "--name",
            name,
            "--token-file",
            &token_text,
            "--ca-hash",
            hash.trim(),
        ];
        if self.host_wrapper.is_empty() {
            succeed("stemma-agent", arguments)?;
        } else {
            let join_process = RunningProgram::start_under(&self.host_wrapper, "stemma-agent", arguments)?;
            let (is_joined, log) = join_process.wait_with_log()?;
            ensure!(is_joined, "stemma-agent join: {log}");
        }
        let mut agent = TestAgent { root, running: None };
        agent.start_under(&self.host_wrapper)?;
        Ok(agent)
    }
}

impl TestAgent {
    /// Starts `stemma-agent run`.
    ///
    /// # Errors
    /// When the agent cannot be started.
    pub fn start(&mut self) -> Result<()> {
        self.start_under(&[])
    }

    /// Starts `stemma-agent run` through another program. `words` is the command line of that program, which then
    /// executes the agent.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start_under(&mut self, words: &[OsString]) -> Result<()> {
        let arguments = ["--root".as_ref(), self.root.as_os_str(), "run".as_ref()];
        self.running = Some(RunningProgram::start_under(words, "stemma-agent", arguments)?);
        Ok(())
    }

    /// Kills the agent with SIGKILL.
    ///
    /// # Errors
    /// When the agent is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.running.take().context("the agent runs")?.kill()
    }

    /// Stops the agent with SIGSTOP, as if it hangs, until [`TestAgent::resume`] or its end.
    ///
    /// # Errors
    /// When the agent is not running, or does not stop in time.
    pub fn pause(&self) -> Result<()> {
        self.running.as_ref().context("the agent runs")?.pause()
    }

    /// Continues a paused agent.
    ///
    /// # Errors
    /// When the agent is not running.
    pub fn resume(&self) -> Result<()> {
        self.running.as_ref().context("the agent runs")?.resume()
    }

    /// Returns the path below the agent's root directory. The agent treats that directory as `/` of its host.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the agent's log since its last start. The log is empty after [`TestAgent::kill`].
    #[must_use]
    pub fn log(&self) -> String {
        self.running.as_ref().map(RunningProgram::log).unwrap_or_default()
    }

    /// Returns both outputs of `stemma-agent status`, whatever its exit status is.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn status(&self) -> Result<String> {
        let output = run("stemma-agent", ["--root".as_ref(), self.root.as_os_str(), "status".as_ref()])?;
        Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
    }

    /// Returns the agent's process id if it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(RunningProgram::id)
    }
}

/// Starts a controller on two addresses, through another program if `words` is not empty. Returns the running
/// controller and the addresses that it printed.
fn run_controller(
    words: &[OsString],
    data: &Path,
    config: Option<&Path>,
    [admin, agents]: [&str; 2],
) -> Result<(RunningProgram, ListenerAddresses)> {
    let config_arguments = config.into_iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]);
    let arguments = [
        "run".as_ref(),
        "--data-dir".as_ref(),
        data.as_os_str(),
        "--admin-listen".as_ref(),
        admin.as_ref(),
        "--agent-listen".as_ref(),
        agents.as_ref(),
    ];
    let arguments = arguments.into_iter().chain(config_arguments);
    let controller = RunningProgram::start_under(words, "stemma-controller", arguments)?;
    let line = controller.next_line()?;
    let addresses =
        serde_json::from_str(&line).with_context(|| format!("the ready line {line:?}; log:\n{}", controller.log()))?;
    Ok((controller, addresses))
}

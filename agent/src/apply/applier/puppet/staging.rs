//! The files that a run of Puppet reads, in a directory that only root can open. They are removed after the run.

use log::{debug, warn};
use serde_json::json;

use super::summary::PuppetSummary;
use super::{Code, PuppetRun, RunMode};
use crate::apply::applier::tree_removal::remove_tree;
use crate::apply::ledger::{STARTED_UNITS, encode_file_name};
use crate::apply::task::{Site, TaskError};
use crate::host::atomic::{Attributes, ensure_dir, replace};
use crate::host::{Dir, FileKind, HostError, HostPath};
use crate::paths;

/// The directory of the files, below the state of the root half of the agent.
const DIR_NAME: &str = "puppet";

/// Maximum size of the summary of a run, in bytes.
const MAX_SUMMARY_BYTES: u64 = 256 * 1024;

/// The files of one run of Puppet.
pub(super) struct StagedRun {
    dir: Box<dyn Dir>,
    /// The beginning of the names of the files, by which runs of several processes are distinguished.
    prefix: String,
    /// The names of the files and of the directory of modules. Puppet writes the last one.
    names: Vec<String>,
}

/// The suffix of the name of the directory of modules.
const MODULES_SUFFIX: &str = "modules";

/// Returns the directory of the files.
fn dir_path() -> HostPath {
    HostPath::from_static(&format!("{}/{DIR_NAME}", paths::APPLY_STATE))
}

/// Returns the beginning of the names of the files that this process writes for a task.
fn session_prefix(site: &Site, task: &str) -> String {
    format!("{}-{:08x}", encode_file_name(task), site.host.session_id())
}

/// Opens the directory of the files, and creates it if it does not exist.
fn open_dir(site: &Site) -> Result<Box<dyn Dir>, HostError> {
    ensure_dir(&*site.host, &dir_path(), 0o700)
}

impl StagedRun {
    /// Writes the files of a run.
    ///
    /// # Errors
    /// [`TaskError`] if a file cannot be written or a blob is missing. The files that were written are removed.
    pub(super) async fn new(site: &Site, task: &str, run: &PuppetRun) -> Result<Self, TaskError> {
        let random = site.host.random() & 0xFFFF_FFFF;
        let prefix = format!("{}{random:08x}", session_prefix(site, task));
        let mut staged = Self { dir: open_dir(site)?, prefix, names: Vec::new() };
        match staged.write_files(site, run) {
            Ok(()) => Ok(staged),
            Err(error) => {
                staged.remove(site).await;
                Err(error)
            }
        }
    }

    /// Writes the code, the data, and the configuration of Hiera that names the data.
    fn write_files(&mut self, site: &Site, run: &PuppetRun) -> Result<(), TaskError> {
        self.write_modules(site, run)?;
        if let Code::Text(_, code) = &run.code {
            self.write(site, "pp", code)?;
        }
        if !run.hiera.is_empty() {
            self.write(site, "data.json", json!(run.hiera).to_string().as_bytes())?;
            // JSON is YAML. The data is outside of any environment, so it precedes the data of environments and modules.
            let config = json!({
                "version": 5,
                "defaults": {"datadir": site.host.system_path(&dir_path()), "data_hash": "json_data"},
                "hierarchy": [{"name": "task", "path": self.name("data.json")}],
            });
            self.write(site, "hiera.yaml", config.to_string().as_bytes())?;
        }
        self.names.push(self.name("summary.yaml"));
        Ok(())
    }

    /// Writes the files of modules. Their content is not made durable, because a run after a power cut writes them again.
    fn write_modules(&mut self, site: &Site, run: &PuppetRun) -> Result<(), TaskError> {
        if run.modules.is_empty() {
            return Ok(());
        }
        let top_name = self.name(MODULES_SUFFIX);
        self.names.push(top_name.clone());
        for (path, hash) in &run.modules {
            let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
            let mut dir = open_subdir(&*self.dir, &top_name)?;
            for directory in directories.split('/').filter(|directory| !directory.is_empty()) {
                dir = open_subdir(&*dir, directory)?;
            }
            let missing_error = || TaskError::new(format!("parameters.modules: the blob of {path} has not arrived yet"));
            let bytes = site.ledger.body(*hash)?.ok_or_else(missing_error)?;
            dir.create(name)?.write(&bytes)?;
        }
        Ok(())
    }

    /// Writes one file that only root can read.
    fn write(&mut self, site: &Site, suffix: &str, bytes: &[u8]) -> Result<(), HostError> {
        let name = self.name(suffix);
        self.names.push(name.clone());
        replace(&*site.host, &*self.dir, &name, bytes, &Attributes::with_mode(0o600))
    }

    /// Returns the name of a file of this run.
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    /// Returns the path of a file of this run, as Puppet needs it.
    fn path(&self, site: &Site, suffix: &str) -> String {
        let path = HostPath::from_static(&format!("{}/{}", dir_path(), self.name(suffix)));
        site.host.system_path(&path).display().to_string()
    }

    /// Returns an output of Puppet with the parameters of the task in place of the files of this run, which nobody can open
    /// after it.
    pub(super) fn name_fields(&self, site: &Site, run: &PuppetRun, output: &str) -> String {
        let code = if let Code::Text(field, _) = run.code { field } else { "" };
        let fields = [
            ("pp", code),
            (MODULES_SUFFIX, "parameters.modules"),
            ("data.json", "parameters.hiera"),
            ("hiera.yaml", "parameters.hiera"),
        ];
        fields.iter().fold(output.to_owned(), |output, (suffix, field)| output.replace(&self.path(site, suffix), field))
    }

    /// Returns the command of the run. For a task with a secret, Puppet prints no content of files.
    pub(super) fn arguments(&self, site: &Site, run: &PuppetRun, program: &HostPath, mode: RunMode) -> Vec<String> {
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let mut arguments = vec![
            site.host.system_path(program).display().to_string(),
            "apply".to_owned(),
            "--detailed-exitcodes".to_owned(),
            "--color=false".to_owned(),
            if run.is_secret { "--no-show_diff" } else { "--show_diff" }.to_owned(),
            if mode == RunMode::Noop { "--noop" } else { "--no-noop" }.to_owned(),
            option("lastrunfile", &self.path(site, "summary.yaml")),
        ];
        if !run.hiera.is_empty() {
            arguments.push(option("hiera_config", &self.path(site, "hiera.yaml")));
        }
        let staged_modules = (!run.modules.is_empty()).then(|| self.path(site, MODULES_SUFFIX));
        let module_path: Vec<String> = staged_modules.into_iter().chain(run.module_path.clone()).collect();
        if !module_path.is_empty() {
            arguments.push(option("modulepath", &module_path.join(":")));
        }
        arguments.push(match &run.code {
            Code::Text(..) => self.path(site, "pp"),
            Code::OnHost(path) => site.host.system_path(path).display().to_string(),
        });
        arguments
    }

    /// Returns the summary that Puppet has written, or `None` if it wrote none.
    pub(super) fn summary(&self) -> Option<PuppetSummary> {
        let bytes = self.dir.read(&self.name("summary.yaml"), MAX_SUMMARY_BYTES).ok()??;
        PuppetSummary::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Removes the files. A file that cannot be removed is removed at the next start of the agent.
    pub(super) async fn remove(self, site: &Site) {
        for name in &self.names {
            if let Err(error) = remove(site, &*self.dir, name).await {
                debug!(name = name.as_str(), error = error.message.as_str(); "a file of a run of Puppet remains");
            }
        }
    }
}

/// Opens a subdirectory, and creates it if it does not exist.
fn open_subdir(dir: &dyn Dir, name: &str) -> Result<Box<dyn Dir>, TaskError> {
    if let Some(subdir) = dir.dir(name)? {
        return Ok(subdir);
    }
    dir.make_dir(name, 0o700)?;
    dir.dir(name)?.ok_or_else(|| TaskError::new(format!("{name}: the directory was removed while it was written")))
}

/// Removes a file, or a directory with everything in it, if it exists.
async fn remove(site: &Site, dir: &dyn Dir, name: &str) -> Result<(), TaskError> {
    match dir.stat(name)? {
        Some(stat) if stat.kind == FileKind::Directory => {
            remove_tree(&*site.host, dir, &HostPath::from_static(&format!("{}/{name}", dir_path()))).await
        }
        Some(_) => Ok(dir.remove(name)?),
        None => Ok(()),
    }
}

/// Removes the files of the runs of a task that a killed agent left, after these runs have ended. A file that cannot be
/// removed is removed at the next start of the agent.
pub async fn remove_left_files(site: &Site, task: &str) {
    let prefix = format!("{}-", encode_file_name(task));
    let own_prefix = session_prefix(site, task);
    let is_left = |name: &str| name.starts_with(&prefix) && !name.starts_with(&own_prefix);
    if let Err(error) = remove_where(site, is_left).await {
        warn!(task, error = error.message.as_str(); "files of a run of Puppet remain");
    }
}

/// Removes the files of runs that a killed agent left, except those of tasks whose command still runs in a unit. The caller
/// must be the only process that applies tasks.
///
/// # Errors
/// [`TaskError`].
pub async fn sweep(site: &Site) -> Result<(), TaskError> {
    let running: Vec<String> =
        site.ledger.get(&STARTED_UNITS)?.unwrap_or_default().keys().map(|task| encode_file_name(task)).collect();
    remove_where(site, |name| !running.iter().any(|prefix| name.starts_with(prefix))).await
}

/// Removes the files and directories of runs whose names have a property.
async fn remove_where(site: &Site, must_remove: impl Fn(&str) -> bool) -> Result<(), TaskError> {
    let Some(dir) = site.host.dir(&dir_path())? else { return Ok(()) };
    for name in dir.names()?.iter().filter(|name| must_remove(name)) {
        remove(site, &*dir, name).await?;
    }
    Ok(())
}

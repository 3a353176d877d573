//! What a `package` task requires, from its rendered parameters.

use std::time::Duration;

use serde_json::{Map, Value, json};
use stemma_core::task::name_rules::{package_name_error, package_version_error};
use stemma_core::task::{PackageParameters, task_type};

use super::super::parameters;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{HostTask, Site, TaskError};

/// The default of `lock_timeout`, in seconds.
const DEFAULT_LOCK_SECONDS: u64 = 600;

/// The default of `timeout`, in seconds.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;

/// What a task requires of the packages that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackageRequest {
    /// The names of the packages.
    pub(super) names: Vec<String>,
    /// The state that the packages must have.
    pub(super) target: PackageTarget,
    /// Whether the packages are held. `None` leaves this as it is.
    pub(super) hold: Option<bool>,
    /// True if recommended packages are installed too.
    pub(super) recommends: bool,
    /// The maximum time to wait for another package manager.
    pub(super) lock_timeout: Duration,
    /// The maximum duration of a command of the package manager.
    pub(super) timeout: Duration,
}

/// The state that the packages of a task must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PackageTarget {
    /// Installed.
    Present(VersionRule),
    /// Not installed. With `purge`, their configuration files must not be there either.
    Absent { purge: bool },
}

/// The versions that a task accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VersionRule {
    /// Each version.
    Any,
    /// This version.
    Exact(String),
    /// This version, or a newer one.
    AtLeast(String),
}

impl PackageRequest {
    /// Renders the parameters of a task, and checks what they render to.
    pub(super) fn new(site: &Site, task: &HostTask) -> Result<Self, TaskError> {
        let parameters: PackageParameters = parameters(task).map_err(TaskError::without_effect)?;
        Self::render(&TaskTemplates::new(site, task), &parameters, task).map_err(TaskError::without_effect)
    }

    fn render(templates: &TaskTemplates<'_>, parameters: &PackageParameters, task: &HostTask) -> Result<Self, TaskError> {
        let names = templates.words("parameters.name", &parameters.name.0)?;
        let version = render_version(templates, "version", parameters.version.as_deref())?;
        let min_version = render_version(templates, "min_version", parameters.min_version.as_deref())?;
        for name in &names {
            checked("name", package_name_error(name))?;
        }
        // Two names may render to the same text.
        let render = |(field, value): (&String, &Value)| match field.as_str() {
            "name" => (field.clone(), json!(names)),
            _ => (field.clone(), value.clone()),
        };
        let rendered: Map<_, _> = task.task.parameters.iter().map(render).collect();
        let errors = task_type(&task.task.kind).map(|kind| kind.combination_errors(&rendered)).unwrap_or_default();
        if let Some((field, message)) = errors.into_iter().next() {
            return Err(TaskError::new(format!("{field}: {message}; nothing was changed")));
        }
        let rule = match (version, min_version) {
            (Some(version), _) => VersionRule::Exact(version),
            (None, Some(version)) => VersionRule::AtLeast(version),
            (None, None) => VersionRule::Any,
        };
        Ok(Self {
            names,
            target: if parameters.absent {
                PackageTarget::Absent { purge: parameters.purge }
            } else {
                PackageTarget::Present(rule)
            },
            hold: parameters.hold,
            recommends: parameters.recommends,
            lock_timeout: Duration::from_secs(parameters.lock_timeout.unwrap_or(DEFAULT_LOCK_SECONDS)),
            timeout: Duration::from_secs(parameters.timeout.or(task.task.timeout_seconds).unwrap_or(DEFAULT_TIMEOUT_SECONDS)),
        })
    }
}

fn render_version(templates: &TaskTemplates<'_>, name: &str, text: Option<&str>) -> Result<Option<String>, TaskError> {
    let Some(text) = text else { return Ok(None) };
    let version = templates.name(&format!("parameters.{name}"), text)?;
    checked(name, package_version_error(&version))?;
    Ok(Some(version))
}

/// Fails if the rule of a name was broken.
fn checked(name: &str, error: Option<String>) -> Result<(), TaskError> {
    error.map_or(Ok(()), |error| Err(TaskError::new(format!("parameters.{name}: {error}"))))
}

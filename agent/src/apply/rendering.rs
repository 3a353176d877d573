//! Renders the templates of a task, from its inputs alone.
//!
//! Templates cannot read the host's live labels or facts, because a changed value must not reach a file before a task
//! set with this value is released. Only the values of secrets are read on the host: the inputs contain the name of a
//! secret, and the agent reads its value from the credentials of its systemd unit.

use stemma_core::task::{SECRET_EXPOSED, is_template};
use stemma_render::{Cause, NoSecrets, RenderError, RenderLimits, Renderer, SecretUnavailable, Secrets};

use super::task::{HostTask, Site, TaskError};
use crate::host::{Host, HostPath};

/// Directory of the credentials that `LoadCredential=` of the agent's systemd unit names.
const CREDENTIALS_DIR: &str = "/run/credentials/stemma-agent.service";

/// Maximum size of a secret, in bytes.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// A renderer of the templates of one task. It reads the inputs of the task and the secrets of this host.
pub struct TaskTemplates<'a> {
    task: &'a HostTask,
    host: &'a dyn Host,
    renderer: std::cell::OnceCell<Renderer>,
}

/// Reads the secrets of this host from [`CREDENTIALS_DIR`].
struct HostCredentials<'a>(&'a dyn Host);

impl<'a> TaskTemplates<'a> {
    /// Creates a renderer for the templates of this task on this host.
    #[must_use]
    pub fn new(site: &'a Site, task: &'a HostTask) -> Self {
        Self { task, host: &*site.host, renderer: std::cell::OnceCell::new() }
    }

    /// Returns whether a rendered text of this task may contain a secret.
    #[must_use]
    pub fn may_have_secrets(&self) -> bool {
        self.task.reads_secrets()
    }

    /// Renders a template of the task. The template may read secrets. `field` is the name of the field with the
    /// template, for errors. A text that is not a template is returned unchanged.
    ///
    /// # Errors
    /// [`TaskError`] with the field, the line, and the value that the template lacks.
    pub fn text(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        with_field(field, self.renderer().text(template))
    }

    /// Renders the name of a file. The name appears in results and logs and is visible to everyone on the host, so its
    /// template must not read a secret.
    ///
    /// # Errors
    /// As [`Self::text`]. Also if the template reads a secret.
    pub fn name(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        with_public_field(field, self.renderer_without_secrets().text(template))
    }

    /// Renders a path on the host. As in [`Self::name`], the template must not read a secret.
    ///
    /// # Errors
    /// As [`Self::name`]. Also if the rendered text is not a valid [`HostPath`].
    pub fn path(&self, field: &str, template: &str) -> Result<HostPath, TaskError> {
        parse_path(field, &self.name(field, template)?)
    }

    /// Renders the path of a directory, like [`Self::path`]. Returns `None` for `/`, which is not a valid [`HostPath`].
    ///
    /// # Errors
    /// As [`Self::path`].
    pub fn directory(&self, field: &str, template: &str) -> Result<Option<HostPath>, TaskError> {
        let name = self.name(field, template)?;
        if name == "/" { Ok(None) } else { parse_path(field, &name).map(Some) }
    }

    /// Renders a shell script, in which each value is quoted for `sh` unless it is marked raw.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn script(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        with_field(field, self.renderer().script(template))
    }

    /// Renders each word of a command separately, so that a value is never split into several arguments. Everyone on
    /// the host can read the arguments of a process, so the templates must not read a secret.
    ///
    /// # Errors
    /// As [`Self::name`].
    pub fn words(&self, field: &str, items: &[String]) -> Result<Vec<String>, TaskError> {
        if !items.iter().any(|item| is_template(item)) {
            return Ok(items.to_vec());
        }
        with_public_field(field, self.renderer_without_secrets().command(items))
    }

    /// Returns a renderer for texts that everyone on the host can see.
    fn renderer_without_secrets(&self) -> Renderer {
        Renderer::new(&self.task.inputs, &NoSecrets, RenderLimits::default())
    }

    /// Returns the renderer that can read secrets. Creates the renderer when it is first needed, because most checks of
    /// tasks render no template.
    fn renderer(&self) -> &Renderer {
        self.renderer.get_or_init(|| Renderer::new(&self.task.inputs, &HostCredentials(self.host), RenderLimits::default()))
    }
}

/// Parses a path. The error of an invalid path names the field.
fn parse_path(field: &str, path: &str) -> Result<HostPath, TaskError> {
    HostPath::parse(path).map_err(|error| TaskError::new(format!("{field}: {error}")))
}

/// Adds the name of the field to the error of a template that could not be rendered.
fn with_field<T>(field: &str, rendered: Result<T, RenderError>) -> Result<T, TaskError> {
    rendered.map_err(|error| TaskError::new(format!("{field}: {error}")))
}

/// Adds the name of the field to an error, like [`with_field`]. The field is visible to everyone on the host, so its
/// template must not read a secret. If a template reads a secret, the error contains this reason.
fn with_public_field<T>(field: &str, rendered: Result<T, RenderError>) -> Result<T, TaskError> {
    match rendered {
        Err(RenderError { line, cause: Cause::Secret { name, .. } }) => {
            Err(TaskError::new(format!("{field}: line {line}: it reads secret `{name}`, and {SECRET_EXPOSED}")))
        }
        other => with_field(field, other),
    }
}

impl Secrets for HostCredentials<'_> {
    /// Returns the value of the credential with this name. Fails if the credential does not exist or is not UTF-8 text.
    /// The second parameter, the version of the secret, is ignored, because a host has only one value.
    fn value(&self, name: &str, _: u64) -> Result<String, SecretUnavailable> {
        let unavailable = |reason: String| SecretUnavailable { reason };
        let path = HostPath::from_static(CREDENTIALS_DIR).join(name).map_err(|error| unavailable(error.to_string()))?;
        let result = self.0.parent_dir(&path).and_then(|dir| match dir {
            Some(dir) => dir.read(path.name(), MAX_SECRET_BYTES),
            None => Ok(None),
        });
        match result.map_err(|error| unavailable(error.sentence()))?.map(String::from_utf8) {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(unavailable("the credential on this host is not UTF-8 text".into())),
            None => Err(unavailable("this host has no credential of that name".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::json;
    use stemma_wire::message::desired::{InputValue, ProfileTask};

    use super::*;
    use crate::apply::ledger::Ledger;
    use crate::host::memory::MemoryHost;

    #[test]
    fn secret_is_read_from_host_credentials_and_errors_name_field() {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", "hunter2");
        let ledger = Rc::new(Ledger::open(Rc::new(host.clone())).unwrap());
        let site = Site::new(Rc::new(host), ledger);
        let profile = ProfileTask {
            id: "t".into(),
            definition: json!({"id": "t", "type": "file"}).to_string(),
            references: vec!["secret('db')".into(), "labels.a".into()],
            after: vec![],
            barriers: vec![],
        };
        let secret = InputValue::Secret { name: "db".into(), version: 3 };
        let inputs = [("secret('db')".to_owned(), secret), ("labels.a".to_owned(), InputValue::Absent)].into();
        let task = HostTask::new(&profile, &inputs).unwrap();
        let templates = TaskTemplates::new(&site, &task);
        assert_eq!(templates.text("f", "{{ secret('db') }}").unwrap(), "hunter2");
        let error = templates.text("parameters.template", "x {{ labels.a }}").unwrap_err().message;
        assert!(error.starts_with("parameters.template: line 1: it needs `labels.a`, which is absent"), "{error}");
        assert!(!error.contains("hunter2"));
    }
}

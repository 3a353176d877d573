//! Templates of a task, from its inputs alone.
//!
//! Nothing here can see the host's live labels or facts: a value that changed in place must not reach a file
//! before the task set with that value was released. The only thing that comes from the host are secrets, by the
//! names that the inputs hold, from the credentials that its owner gave to the agent's unit.

use stemma_core::task::{SECRET_SHOWN, is_template};
use stemma_render::{Cause, Limits, NoSecrets, RenderError, Renderer, SecretUnavailable, Secrets};

use super::task::{HostTask, Site, TaskError};
use crate::host::{Host, HostPath};

/// Where systemd puts what the unit's `LoadCredential=` names.
const CREDENTIALS: &str = "/run/credentials/stemma-agent.service";

/// The largest secret.
const LARGEST: u64 = 64 * 1024;

/// The templates of one task.
pub struct Texts<'a> {
    task: &'a HostTask,
    host: &'a dyn Host,
    renderer: std::cell::OnceCell<Renderer>,
}

/// The credentials of this host.
struct Credentials<'a>(&'a dyn Host);

impl<'a> Texts<'a> {
    /// For the templates of this task on this host.
    #[must_use]
    pub fn new(site: &'a Site, task: &'a HostTask) -> Self {
        Self { task, host: &*site.host, renderer: std::cell::OnceCell::new() }
    }

    /// Whether what is rendered may hold a secret.
    #[must_use]
    pub fn read_secrets(&self) -> bool {
        self.task.reads_secrets()
    }

    /// A text of the task, where `field` says which.
    ///
    /// # Errors
    /// With the field, the line, and what the template wanted.
    pub fn text(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        named(field, self.renderer().text(template))
    }

    /// The name of a file. It is said in results and logs and seen by everyone on the host, so no secret is part of one.
    ///
    /// # Errors
    /// As [`Self::text`]; also where it reads a secret.
    pub fn name(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        shown(field, self.without_secrets().text(template))
    }

    /// A path on the host, rendered as [`Self::name`].
    ///
    /// # Errors
    /// As [`Self::name`]; also where it is no plain path.
    pub fn path(&self, field: &str, template: &str) -> Result<HostPath, TaskError> {
        parsed(field, &self.name(field, template)?)
    }

    /// A directory on the host, rendered as [`Self::name`]; `None`: it is `/`, which is no [`HostPath`].
    ///
    /// # Errors
    /// As [`Self::path`].
    pub fn directory(&self, field: &str, template: &str) -> Result<Option<HostPath>, TaskError> {
        let name = self.name(field, template)?;
        if name == "/" { Ok(None) } else { parsed(field, &name).map(Some) }
    }

    /// A shell text, in which each value is quoted for `sh` unless marked raw.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn script(&self, field: &str, template: &str) -> Result<String, TaskError> {
        if !is_template(template) {
            return Ok(template.to_owned());
        }
        named(field, self.renderer().script(template))
    }

    /// The items of a command, each rendered by itself: a value is one argument, whatever stands in it. Everyone on the host can
    /// read the arguments of a process, so no secret is part of one.
    ///
    /// # Errors
    /// As [`Self::name`].
    pub fn words(&self, field: &str, items: &[String]) -> Result<Vec<String>, TaskError> {
        if !items.iter().any(|item| is_template(item)) {
            return Ok(items.to_vec());
        }
        shown(field, self.without_secrets().command(items))
    }

    /// For what everyone on the host sees.
    fn without_secrets(&self) -> Renderer {
        Renderer::new(&self.task.inputs, &NoSecrets, Limits::default())
    }

    /// Built when the first template is met: most tasks of most looks have none to render twice.
    fn renderer(&self) -> &Renderer {
        self.renderer.get_or_init(|| Renderer::new(&self.task.inputs, &Credentials(self.host), Limits::default()))
    }
}

fn parsed(field: &str, path: &str) -> Result<HostPath, TaskError> {
    HostPath::parse(path).map_err(|error| TaskError::new(format!("{field}: {error}")))
}

fn named<T>(field: &str, rendered: Result<T, RenderError>) -> Result<T, TaskError> {
    rendered.map_err(|error| TaskError::new(format!("{field}: {error}")))
}

/// The same of what everyone on the host sees.
fn shown<T>(field: &str, rendered: Result<T, RenderError>) -> Result<T, TaskError> {
    match rendered {
        Err(RenderError { line, cause: Cause::Secret { name, .. } }) => {
            Err(TaskError::new(format!("{field}: line {line}: it reads secret `{name}`, and {SECRET_SHOWN}")))
        }
        other => named(field, other),
    }
}

impl Secrets for Credentials<'_> {
    fn value(&self, name: &str, _: u64) -> Result<String, SecretUnavailable> {
        let unavailable = |reason: String| SecretUnavailable { reason };
        let path = HostPath::own(CREDENTIALS).join(name).map_err(|error| unavailable(error.to_string()))?;
        let read = self.0.parent_of(&path).and_then(|dir| match dir {
            Some(dir) => dir.read(path.name(), LARGEST),
            None => Ok(None),
        });
        match read.map_err(|error| unavailable(error.sentence()))?.map(String::from_utf8) {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(unavailable("the credential on this host is no text".into())),
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
    fn a_secret_comes_from_the_hosts_credentials_and_errors_name_the_field() {
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
        let sent = [("secret('db')".to_owned(), secret), ("labels.a".to_owned(), InputValue::Absent)].into();
        let task = HostTask::new(&profile, &sent).unwrap();
        let texts = Texts::new(&site, &task);
        assert_eq!(texts.text("f", "{{ secret('db') }}").unwrap(), "hunter2");
        let error = texts.text("parameters.template", "x {{ labels.a }}").unwrap_err().message;
        assert!(error.starts_with("parameters.template: line 1: it needs `labels.a`, which is absent"), "{error}");
        assert!(!error.contains("hunter2"));
    }
}

//! stemma-render: renders templates from inputs, and from nothing else.
//!
//! The agent renders as root. The values come from other authors, and some of them from other hosts. So a template sees
//! only the inputs that were sent for its task. It sees no file, no clock, no environment variable and no other label.
//! Rendering has limits on steps, depth and output. A value in a shell script is quoted for its position. The engine,
//! minijinja, is set up once here, for the agent and for `stemma render`.

mod engine;
mod error;
mod filters;
mod roots;
mod script;
mod view;

use std::fmt;

use stemma_core::input::{Inputs, Reference};

pub use error::{Cause, Remedy, RenderError};

use engine::Engine;

/// The limits of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderLimits {
    /// Maximum number of steps of the engine. A step is about one value, one operator or one iteration of a loop.
    pub steps: u64,
    /// Maximum nesting depth of loops, `with` blocks and macro calls. A macro call counts as several levels.
    pub depth: usize,
    /// Maximum size of the result, in bytes. All values that a template writes, also into variables, may have four
    /// times this size together.
    pub output_bytes: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self { steps: 100_000, depth: 64, output_bytes: 1024 * 1024 }
    }
}

/// A source of the values of secrets, for example the credentials of the host.
pub trait Secrets {
    /// Returns the value of a secret. `version` is the version that the input contains, and a source with only one
    /// value for each secret may ignore it. Version 0 means that the controller stores no value, so the value must be a
    /// credential of the host.
    ///
    /// # Errors
    /// [`SecretUnavailable`] with the reason. It must not contain any part of the value.
    fn value(&self, name: &str, version: u64) -> Result<String, SecretUnavailable>;
}

/// The error for a secret that is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SecretUnavailable {
    /// The reason, without any part of the value.
    pub reason: String,
}

/// A source that refuses every secret, for rendering that must not see secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn value(&self, _: &str, _: u64) -> Result<String, SecretUnavailable> {
        Err(SecretUnavailable { reason: "secrets are not available here".to_owned() })
    }
}

/// A renderer of the templates of one task, with its inputs.
pub struct Renderer {
    engine: Engine,
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderer").field("read", &self.references_read()).finish_non_exhaustive()
    }
}

impl Renderer {
    /// Creates a renderer for these inputs. The values of secrets are read now, not during rendering.
    pub fn new(inputs: &Inputs, secrets: &dyn Secrets, limits: RenderLimits) -> Self {
        Self { engine: Engine::new(inputs, secrets, limits) }
    }

    /// Renders the text of a file, or of one item of a command.
    ///
    /// # Errors
    /// [`RenderError`] if an input is absent or was not sent, if a limit is exceeded, or if the template does something
    /// invalid.
    pub fn text(&self, template: &str) -> Result<String, RenderError> {
        self.engine.text(template)
    }

    /// Renders a shell script. Each value is quoted for its position, unless it is marked `|raw`.
    ///
    /// # Errors
    /// As [`Renderer::text`], and if a value cannot be quoted at its position or contains a NUL.
    pub fn script(&self, template: &str) -> Result<String, RenderError> {
        self.engine.script(template)
    }

    /// Renders each item of a command separately. An item is not split, joined or quoted.
    ///
    /// # Errors
    /// As [`Renderer::text`], and if an item contains a NUL.
    pub fn command<T: AsRef<str>>(&self, items: &[T]) -> Result<Vec<String>, RenderError> {
        items.iter().map(|item| self.engine.item(item.as_ref())).collect()
    }

    /// Returns the inputs that templates have read so far, sorted.
    pub fn references_read(&self) -> Vec<Reference> {
        self.engine.references_read()
    }
}

#[cfg(test)]
mod tests;

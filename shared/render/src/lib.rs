//! stemma-render: text from templates and inputs, and from nothing else.
//!
//! The agent renders as root, with values that others wrote and partly that other hosts reported. So a
//! template sees the inputs that were sent for its task and no file, clock, variable or label beside them;
//! rendering has limits on steps, depth and output; and what is put into a shell script is quoted for the
//! place where it stands. minijinja is the engine, set up once here, for the agent and for `stemma render`.

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

/// What one rendering may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps of the engine, about one for each value, operator and turn of a loop.
    pub steps: u64,
    /// Loops, `with` blocks and macro calls in each other.
    pub depth: usize,
    /// Bytes of the result.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 100_000, depth: 64, output_bytes: 1024 * 1024 }
    }
}

/// Where the values of secrets come from: the host's credentials, or what was sealed to it.
pub trait Secrets {
    /// The value of a secret that is an input of this version (0: the controller has none, the host must).
    ///
    /// # Errors
    /// Why it cannot be had, in words that hold nothing of its value.
    fn value(&self, name: &str, version: u64) -> Result<String, SecretUnavailable>;
}

/// A secret that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SecretUnavailable {
    /// Why, without anything of its value.
    pub reason: String,
}

/// For rendering where no secret may be seen: each is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn value(&self, _: &str, _: u64) -> Result<String, SecretUnavailable> {
        Err(SecretUnavailable { reason: "secrets are not available here".to_owned() })
    }
}

/// The inputs of one task, ready for its templates.
pub struct Renderer {
    engine: Engine,
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderer").field("read", &self.read()).finish_non_exhaustive()
    }
}

impl Renderer {
    /// Takes the inputs, and the values of those that are secrets.
    pub fn new(inputs: &Inputs, secrets: &dyn Secrets, limits: Limits) -> Self {
        Self { engine: Engine::new(inputs, secrets, limits) }
    }

    /// The text of a file, or of one item of a command.
    ///
    /// # Errors
    /// [`RenderError`]: an input that is absent or was not sent, a limit, or what the template does wrong.
    pub fn text(&self, template: &str) -> Result<String, RenderError> {
        self.engine.text(template)
    }

    /// The text of a shell script, each value quoted for the place where it stands unless marked `|raw`.
    ///
    /// # Errors
    /// As [`Renderer::text`], and for a value where it cannot be quoted or that holds a NUL.
    pub fn script(&self, template: &str) -> Result<String, RenderError> {
        self.engine.script(template)
    }

    /// The items of a command, each rendered by itself: none is split, joined or quoted.
    ///
    /// # Errors
    /// As [`Renderer::text`], and for an item that holds a NUL.
    pub fn command<T: AsRef<str>>(&self, items: &[T]) -> Result<Vec<String>, RenderError> {
        items.iter().map(|item| self.engine.item(item.as_ref())).collect()
    }

    /// The inputs that templates have read so far, in order.
    pub fn read(&self) -> Vec<Reference> {
        self.engine.read()
    }
}

#[cfg(test)]
mod tests;

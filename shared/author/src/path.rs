//! Templates of paths, rendered as the host does it: what two tasks write is known where their release is resolved (docs/adr/0019).

use stemma_core::condition::Template;
use stemma_core::input::Inputs;
use stemma_render::{Limits, NoSecrets, Renderer};

/// A path is short, and each node may have one of its own: what takes more than this is left to the host.
const LIMITS: Limits = Limits { steps: 10_000, depth: 16, output_bytes: 4096 };

/// The template of a path.
#[derive(Debug)]
pub(crate) struct PathTemplate(Box<str>);

impl PathTemplate {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

impl Template for PathTemplate {
    fn render(&self, inputs: &Inputs) -> Option<String> {
        // No secret is part of a path, on the host either.
        Renderer::new(inputs, &NoSecrets, LIMITS).text(&self.0).ok()
    }
}

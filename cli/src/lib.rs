//! The operator's command: manifests and questions, with and without a controller.

pub mod yaml;

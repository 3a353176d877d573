//! The operators' side over HTTP.

mod json;
mod patch;
mod query;
mod version;

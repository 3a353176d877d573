//! The protocol: from a request on the wire to a response on it. It uses the endpoint table, and does not depend on any
//! resource.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod json;
pub(crate) mod patch;
mod prefer;
pub(crate) mod query;
mod render;
pub(crate) mod request;
pub(crate) mod serve;
pub(crate) mod version;
pub(crate) mod write_limiter;

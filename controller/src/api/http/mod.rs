//! The protocol: from a request on the wire to an answer on it. It knows what the endpoint table says of a row, and no resource.

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
pub(crate) mod who;
pub(crate) mod writers;

//! The operators' side over HTTP.

mod json;

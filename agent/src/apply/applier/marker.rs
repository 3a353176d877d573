//! `stage`, `group`, `skipped`: places in the order, with nothing to do.

use super::Applier;
use crate::apply::task::{Applied, Check, HostTask, Site, TaskError};
use crate::host::Pending;

/// A marker.
pub(super) struct Marker;

impl Applier for Marker {
    fn check<'a>(&'a self, _: &'a Site, _: &'a HostTask) -> Pending<'a, Result<Check, TaskError>> {
        Box::pin(std::future::ready(Ok(Check::AsItShould)))
    }

    fn apply<'a>(&'a self, _: &'a Site, _: &'a HostTask) -> Pending<'a, Result<Applied, TaskError>> {
        Box::pin(std::future::ready(Ok(Applied::default())))
    }
}

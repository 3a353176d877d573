//! `service`: a unit of systemd, which is started or stopped, enabled or not, masked or not.
//!
//! A check reads the status of the unit in one call over the bus, and looks for files of the unit that systemd has not read
//! ([`definition`]). Each change is a call too, after which the status is read again. So nothing is recorded, and a run that
//! was cut off continues where the unit stands. A job (start, stop, restart, reload) that does not end in time continues
//! without the agent: the next run finds and awaits it, and requests no other.

mod changes;
mod definition;
mod left;
mod wanted;

use stemma_core::task::ServiceParameters;

use super::{Applier, ManagedObject, parameters};
use crate::apply::ledger::{HostObject, ObjectKind};
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{HostError, Pending};
use changes::UnitTransition;
use wanted::WantedUnit;

/// The applier of `service` tasks.
pub(super) struct UnitApplier;

impl Applier for UnitApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let wanted = WantedUnit::new(site, task)?;
            let status = definition::check_status(site, &wanted.unit).await?;
            let diff = wanted.diff(&status);
            Ok(match (wanted.blocker(&status), diff) {
                (Some(message), diff) => CheckResult::Blocked { diff: diff.unwrap_or_default(), message },
                (None, Some(diff)) => CheckResult::Drifted { diff, message: wanted.difference_message(&status) },
                (None, None) => CheckResult::Converged,
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move { UnitTransition::begin(site, WantedUnit::new(site, task)?).await?.apply(false).await })
    }

    fn refresh<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move { UnitTransition::begin(site, WantedUnit::new(site, task)?).await?.apply(true).await })
    }

    fn is_refresh_needed(&self, task: &HostTask) -> bool {
        let is_left = |service: &ServiceParameters| service.state.as_deref() == Some("stopped") || service.masked == Some(true);
        parameters::<ServiceParameters>(task).is_ok_and(|service| !is_left(&service))
    }

    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let wanted = WantedUnit::new(site, task).ok()?;
        let is_left = wanted.is_running == Some(true) || wanted.is_enabled == Some(true);
        Some(vec![ManagedObject::new((ObjectKind::Unit, wanted.unit), is_left)])
    }

    fn has_object(&self, site: &Site, (_, unit): &HostObject) -> Result<bool, HostError> {
        Ok(left::is_present(&*site.host, unit))
    }

    fn is_left_now(&self, site: &Site, (_, unit): &HostObject) -> bool {
        left::is_enabled_or_running(&*site.host, unit)
    }
}

#[cfg(test)]
mod tests;

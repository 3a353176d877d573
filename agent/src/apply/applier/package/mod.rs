//! `package`: packages of the operating system, by apt and dpkg or by dnf and rpm.
//!
//! On a Debian host a check only reads the database of dpkg, once for all tasks as long as it does not change. A change runs
//! in a unit of its own, so that an agent that ends does not stop dpkg in the middle. The next agent waits for the end of the
//! command and then compares the host again, so a task needs no journal.

mod apt;
mod apt_output;
mod command;
mod dpkg;
mod locks;
mod request;
mod rpm;
mod state;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use log::info;

use super::{Applier, ManagedObject};
use crate::apply::ledger::{HostObject, ObjectKind};
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{HostError, Pending};
use apt::Apt;
use command::path_exists;
use dpkg::{Database, DatabaseVersion, read_database, read_database_once};
use request::{PackageRequest, PackageTarget};
use rpm::Dnf;

/// The applier of `package` tasks.
pub(super) struct PackageApplier;

/// What an agent remembers about the packages of its host.
#[derive(Default)]
struct PackageCache {
    /// The database of dpkg, and the version of its files.
    database: RefCell<Option<(DatabaseVersion, Rc<Database>)>>,
    /// The run in which the lists of available packages were refreshed last.
    refreshed_in: Cell<Option<u64>>,
}

/// The package manager of a host.
enum Manager {
    Apt(Rc<Database>),
    Dnf,
}

impl PackageCache {
    fn database(&self, version: &DatabaseVersion) -> Option<Rc<Database>> {
        let cached = self.database.borrow();
        cached.as_ref().filter(|(cached_version, _)| cached_version == version).map(|(_, database)| database.clone())
    }

    fn store_database(&self, version: DatabaseVersion, database: &Rc<Database>) {
        *self.database.borrow_mut() = Some((version, database.clone()));
    }
}

/// Returns whether the lists of available packages may be refreshed, which is so once in a run.
fn begin_refresh(site: &Site) -> bool {
    let run = site.memory.run();
    site.memory.get::<PackageCache>().refreshed_in.replace(Some(run)) != Some(run)
}

impl Applier for PackageApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            site.left.find(&*site.host, &site.ledger).await?;
            let left_result = site.left.await_ends(&task.task.id).await;
            let request = PackageRequest::new(site, task)?;
            let result = match find_manager(site).await? {
                Manager::Apt(database) => apt::check(site, &request, &database)?,
                Manager::Dnf => Dnf::new(site, &task.task.id, &request).check().await?,
            };
            Ok(match (result, left_result) {
                (CheckResult::Converged, Some(left)) => {
                    CheckResult::Completed(ApplyResult { message: left.message, output: left.output, ..ApplyResult::default() })
                }
                (result, _) => result,
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let request = PackageRequest::new(site, task)?;
            match find_manager(site).await.map_err(TaskError::without_effect)? {
                Manager::Apt(_) => Apt::new(site, &task.task.id, &request).apply().await,
                Manager::Dnf => Dnf::new(site, &task.task.id, &request).apply().await,
            }
        })
    }

    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let request = PackageRequest::new(site, task).ok()?;
        let is_left = matches!(request.target, PackageTarget::Present(_));
        Some(request.names.into_iter().map(|name| ManagedObject::new((ObjectKind::Package, name), is_left)).collect())
    }

    /// A package of a host without dpkg counts as installed, because only a process could check it. So does each package
    /// while dpkg changes its database.
    fn has_object(&self, site: &Site, (_, name): &HostObject) -> Result<bool, HostError> {
        let database = read_database_once(&*site.host, &site.memory.get())?;
        Ok(database.is_none_or(|database| database.is_installed(name)))
    }

    fn batch_key(&self, site: &Site, task: &HostTask) -> Option<String> {
        PackageRequest::new(site, task).ok().map(|request| apt::batch_key(&request))
    }

    fn apply_together<'a>(
        &'a self,
        site: &'a Site,
        tasks: &'a [Rc<HostTask>],
    ) -> Pending<'a, Vec<Result<ApplyResult, TaskError>>> {
        Box::pin(apply_together(site, tasks))
    }
}

/// Applies tasks with the same batch key in one transaction of apt. A task for which this is not possible is applied alone, and
/// so are all tasks if the transaction cannot begin: an error then belongs to the task that causes it.
async fn apply_together(site: &Site, tasks: &[Rc<HostTask>]) -> Vec<Result<ApplyResult, TaskError>> {
    let requests: Result<Vec<_>, _> = tasks.iter().map(|task| PackageRequest::new(site, task)).collect();
    let mut results = BTreeMap::new();
    if let Ok(requests) = requests
        && !have_common_name(&requests)
        && matches!(find_manager(site).await, Ok(Manager::Apt(_)))
    {
        let apts: Vec<Apt<'_>> =
            tasks.iter().zip(&requests).map(|(task, request)| Apt::new(site, &task.task.id, request)).collect();
        results = Apt::apply_together(&apts).await.unwrap_or_else(|error| {
            info!(error = error.message.as_str(); "the packages of several tasks are installed or removed one task after another");
            BTreeMap::new()
        });
    }
    let mut ordered = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        ordered.push(match results.remove(&index) {
            Some(result) => result,
            None => PackageApplier.apply(site, task).await,
        });
    }
    ordered
}

/// Returns whether two tasks name the same package.
fn have_common_name(requests: &[PackageRequest]) -> bool {
    let mut names = BTreeSet::new();
    requests.iter().flat_map(|request| &request.names).any(|name| !names.insert(name))
}

/// Returns the package manager of the host. dpkg comes first, because a Debian host may have the programs of rpm too.
async fn find_manager(site: &Site) -> Result<Manager, TaskError> {
    if let Some(database) = read_database(&*site.host, &site.memory.get()).await? {
        return Ok(Manager::Apt(database));
    }
    if path_exists(&*site.host, "/usr/bin/rpm")? && path_exists(&*site.host, "/usr/bin/dnf")? {
        return Ok(Manager::Dnf);
    }
    let message = "the host has neither dpkg (/var/lib/dpkg/status) nor dnf and rpm: nothing was changed";
    Err(TaskError::new(message).without_effect())
}

#[cfg(test)]
mod tests;

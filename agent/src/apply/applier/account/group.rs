//! `group_account`: a local group.

use std::cell::RefCell;
use std::collections::BTreeSet;

use stemma_core::task::{CONTROLLER_ACCOUNT, GroupAccountParameters};

use super::database::{GroupRecord, LocalAccounts, directory_group};
use super::plan::{AccountPlan, ToolCall, converge};
use super::{await_left_commands, directory_refusal, parameters, rendered_name};
use crate::apply::applier::{Applier, ManagedObject};
use crate::apply::ledger::{HostObject, ObjectKind};
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{AccountKind, Host, HostError, Pending};

/// The applier of `group_account` tasks.
pub(in crate::apply::applier) struct GroupApplier;

/// The groups that tasks of this process keep.
#[derive(Default)]
pub(super) struct ManagedGroups(pub(super) RefCell<BTreeSet<String>>);

/// A group as its task describes it.
struct WantedGroup {
    name: String,
    parameters: GroupAccountParameters,
}

impl Applier for GroupApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            await_left_commands(site, task).await?;
            let wanted = WantedGroup::new(site, task)?;
            Ok(wanted.plan(site)?.check_result(&wanted.label()))
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let wanted = WantedGroup::new(site, task).map_err(TaskError::without_effect)?;
            converge(site, task, &wanted.label(), || wanted.plan(site)).await
        })
    }

    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let wanted = WantedGroup::new(site, task).ok()?;
        let is_left = !wanted.parameters.absent;
        Some(vec![ManagedObject::new((ObjectKind::Group, wanted.name), is_left)])
    }

    /// An account counts as one of this host if the accounts of the host cannot be read.
    fn has_object(&self, site: &Site, (_, name): &HostObject) -> Result<bool, HostError> {
        Ok(LocalAccounts::read(&*site.host, false).map_or(true, |accounts| accounts.group(name).is_some()))
    }
}

impl WantedGroup {
    /// Reads the parameters of a task.
    fn new(site: &Site, task: &HostTask) -> Result<Self, TaskError> {
        let mut parameters: GroupAccountParameters = parameters(task)?;
        let name = rendered_name(&TaskTemplates::new(site, task), parameters.name.take())?;
        Ok(Self { name, parameters })
    }

    /// Returns the kind and the name of the account.
    fn label(&self) -> String {
        format!("group {}", self.name)
    }

    /// Compares the group of the host with the task.
    fn plan(&self, site: &Site) -> Result<AccountPlan, TaskError> {
        let host = &*site.host;
        let accounts = LocalAccounts::read(host, false)?;
        let groups = site.memory.get::<ManagedGroups>();
        if self.parameters.absent {
            groups.0.borrow_mut().remove(&self.name);
        } else {
            groups.0.borrow_mut().insert(self.name.clone());
        }
        let plan = match (accounts.group(&self.name), self.parameters.absent) {
            (Some(group), true) => Ok(self.removal_plan(&accounts, &group)),
            (Some(group), false) => self.change_plan(host, &accounts, &group),
            (None, is_absent) => match directory_group(host, &self.name)? {
                Some(group) => Ok(self.directory_plan(&group)),
                None if is_absent => Ok(AccountPlan::default()),
                None => self.creation_plan(host, &accounts),
            },
        };
        plan?.examine_files(host, AccountKind::Group)
    }

    /// Compares a group of a directory service with the task. The task cannot change such a group.
    fn directory_plan(&self, group: &GroupRecord) -> AccountPlan {
        let mut plan = AccountPlan { refusal: Some(directory_refusal(AccountKind::Group, &self.name)), ..AccountPlan::default() };
        if self.parameters.absent {
            plan.remove("group", &self.name);
        } else if let Some(gid) = self.parameters.gid {
            plan.compare("gid", &group.gid, &gid);
        }
        plan
    }

    /// Returns the plan for a group that does not exist.
    fn creation_plan(&self, host: &dyn Host, accounts: &LocalAccounts) -> Result<AccountPlan, TaskError> {
        let mut plan = AccountPlan::default();
        plan.add("group", &self.name);
        let mut words = vec!["groupadd".to_owned()];
        if self.parameters.system {
            words.push("--system".to_owned());
        }
        if let Some(gid) = self.parameters.gid {
            plan.add("gid", &gid);
            words.extend(["--gid".to_owned(), gid.to_string()]);
            plan.refusal = Self::used_number_refusal(host, accounts, gid)?;
        }
        words.push(self.name.clone());
        plan.step = Some(ToolCall::shadow(&words));
        Ok(plan)
    }

    /// Returns the plan for a group that exists and must exist.
    fn change_plan(&self, host: &dyn Host, accounts: &LocalAccounts, group: &GroupRecord) -> Result<AccountPlan, TaskError> {
        let mut plan = AccountPlan::default();
        let Some(gid) = self.parameters.gid.filter(|gid| *gid != group.gid) else { return Ok(plan) };
        plan.compare("gid", &group.gid, &gid);
        plan.refusal = match self.protection_refusal(group) {
            Some(refusal) => Some(refusal),
            None => Self::used_number_refusal(host, accounts, gid)?,
        };
        let note = format!("files of the group keep the number {}: `find / -xdev -gid {}` lists them", group.gid, group.gid);
        let step = ToolCall::shadow(&["groupmod", "--gid", &gid.to_string(), &self.name]);
        plan.step = Some(ToolCall { note, ..step });
        Ok(plan)
    }

    /// Returns the plan for a group that exists and must not exist.
    fn removal_plan(&self, accounts: &LocalAccounts, group: &GroupRecord) -> AccountPlan {
        let mut plan = AccountPlan::default();
        plan.remove("group", &self.name);
        let users: Vec<_> = accounts.users().filter(|user| user.gid == group.gid).map(|user| user.name).collect();
        let primary_refusal = (!users.is_empty()).then(|| {
            let users = users.join(", ");
            format!(
                "group {} is the primary group of {users}: give them another one, or remove them, by an earlier task",
                self.name
            )
        });
        plan.refusal = self.protection_refusal(group).or(primary_refusal);
        plan.step = Some(ToolCall::shadow(&["groupdel", &self.name]));
        plan
    }

    /// Returns the reason why no task may remove or renumber a group.
    fn protection_refusal(&self, group: &GroupRecord) -> Option<String> {
        let is_protected = group.gid == 0 || self.name == CONTROLLER_ACCOUNT;
        let needed_by = if group.gid == 0 { "the system" } else { "the controller of Stemma" };
        is_protected.then(|| format!("group {} is needed by {needed_by} as it is: remove the task", self.name))
    }

    /// Returns the reason why the group cannot get a number, if another group has it.
    fn used_number_refusal(host: &dyn Host, accounts: &LocalAccounts, gid: u32) -> Result<Option<String>, TaskError> {
        let (owner, service) = match accounts.group_with_id(gid) {
            Some(group) => (group.name, ""),
            None => match directory_group(host, &gid.to_string())? {
                Some(group) => (group.name, " of a directory service (NSS)"),
                None => return Ok(None),
            },
        };
        Ok(Some(format!("parameters.gid: the group {owner}{service} has the number {gid}: write another one")))
    }
}

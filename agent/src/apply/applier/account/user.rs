//! `user`: a local user.
//!
//! The order of the tools leaves no account open that must be locked: `useradd` creates the account without a password and,
//! if it must be locked, as expired. A lock is the first change of an existing account, and an unlock the last.

use std::collections::BTreeSet;

use stemma_core::task::name_rules::comment_error;
use stemma_core::task::{
    CONTROLLER_ACCOUNT, NamedResource, UserParameters, group_reference_error, is_template, login_shell_error,
};

use super::database::{LocalAccounts, UserRecord, directory_group, setting};
use super::group::ManagedGroups;
use super::home::{self, Creation, DEFAULT_MIN_UID, LOGIN_DEFS, NOBODY_UID, NONEXISTENT, WantedHome};
use super::plan::{AccountPlan, ToolCall, converge};
use super::{await_left_commands, directory_refusal, parameters, rendered_name, rendered_text};
use crate::apply::applier::{Applier, ManagedObject};
use crate::apply::ledger::{HostObject, LEFT_OBJECTS, ObjectKind};
use crate::apply::listing::list_names;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{AccountKind, Host, HostError, HostPath, Pending};

/// The date with which an account is expired: the first day after 1970-01-01, which has the number 0 and means "never" to
/// some programs.
const EXPIRED: &str = "1970-01-02";

/// Seconds in a day.
const DAY_SECONDS: u64 = 86_400;

/// The applier of `user` tasks.
pub(in crate::apply::applier) struct UserApplier;

/// A user as its task describes it.
struct WantedUser {
    name: String,
    home: Option<String>,
    shell: Option<String>,
    comment: Option<String>,
    /// Names and numbers of supplementary groups.
    groups: Option<Vec<String>>,
    parameters: UserParameters,
}

impl Applier for UserApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            await_left_commands(site, task).await?;
            let wanted = WantedUser::new(site, task)?;
            Ok(wanted.plan(site)?.check_result(&wanted.label()))
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let wanted = WantedUser::new(site, task).map_err(TaskError::without_effect)?;
            converge(site, task, &wanted.label(), || wanted.plan(site)).await
        })
    }

    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let wanted = WantedUser::new(site, task).ok()?;
        let is_left = !wanted.parameters.absent;
        Some(vec![ManagedObject::new((ObjectKind::User, wanted.name), is_left)])
    }

    /// An account counts as one of this host if the accounts of the host cannot be read.
    fn has_object(&self, site: &Site, (_, name): &HostObject) -> Result<bool, HostError> {
        Ok(LocalAccounts::read(&*site.host, false).map_or(true, |accounts| accounts.user(name).is_some()))
    }
}

impl WantedUser {
    /// Reads the parameters of a task, and renders their templates.
    fn new(site: &Site, task: &HostTask) -> Result<Self, TaskError> {
        let mut parameters: UserParameters = parameters(task)?;
        let templates = TaskTemplates::new(site, task);
        let name = rendered_name(&templates, parameters.name.take())?;
        let path =
            |field: &str, template: Option<String>, rule: fn(&str) -> Option<String>| -> Result<Option<String>, TaskError> {
                let Some(template) = template else { return Ok(None) };
                let text = rendered_text(&templates, field, &template, rule)?;
                // A home directory may be `/`, which is a valid directory and not a valid file.
                NamedResource::Directory.check_rendered(&text).map_err(|error| TaskError::new(format!("{field}: {error}")))?;
                Ok(Some(text))
            };
        let home = path("parameters.home", parameters.home.take(), comment_error)?;
        let shell = path("parameters.shell", parameters.shell.take(), login_shell_error)?;
        let comment = parameters.comment.take();
        let comment = comment.map(|text| rendered_text(&templates, "parameters.comment", &text, comment_error)).transpose()?;
        let groups = parameters.groups.take().map(|groups| groups.0.into_iter().enumerate());
        let group = |(index, text): (usize, String)| {
            let rule = if is_template(&text) { group_reference_error } else { |_: &str| None };
            rendered_text(&templates, &format!("parameters.groups[{index}]"), &text, rule)
        };
        let groups = groups.map(|groups| groups.map(group).collect()).transpose()?;
        Ok(Self { name, home, shell, comment, groups, parameters })
    }

    /// Returns the kind and the name of the account.
    fn label(&self) -> String {
        format!("user {}", self.name)
    }

    /// Compares the user of the host with the task.
    fn plan(&self, site: &Site) -> Result<AccountPlan, TaskError> {
        let host = &*site.host;
        let accounts = LocalAccounts::read(host, self.parameters.locked.is_some())?;
        let mut plan = match (accounts.user(&self.name), self.parameters.absent) {
            (Some(user), true) => self.removal_plan(site, &accounts, &user),
            (Some(user), false) => self.change_plan(host, &accounts, &user),
            (None, is_absent) => {
                let entry = host.directory_entry(AccountKind::User, &self.name)?;
                match entry.as_deref().and_then(UserRecord::parse) {
                    Some(user) => self.directory_plan(host, &accounts, &user),
                    None if is_absent => Ok(AccountPlan::default()),
                    None => self.creation_plan(host, &accounts),
                }
            }
        }?;
        let missing_shell = self.missing_shell_remark(host);
        if self.name == "root" && plan.has("shell") {
            plan.refusal = plan.refusal.or_else(|| missing_shell.clone());
        }
        plan.remarks.extend(missing_shell);
        plan.examine_files(host, AccountKind::User)
    }

    /// Returns a remark if the shell of the task does not exist on this host. `useradd` only warns about that too,
    /// because a later task may install the shell.
    fn missing_shell_remark(&self, host: &dyn Host) -> Option<String> {
        let path = HostPath::parse(self.shell.as_deref()?).ok()?;
        let is_missing = matches!(home::follow_links(host, &path), Ok((Some(_), None)));
        is_missing.then(|| {
            format!("the shell {path} does not exist on this host, and nobody can log in with it: let a task install it, or correct `shell`")
        })
    }

    /// Compares a user of a directory service with the task. The task cannot change such a user.
    fn directory_plan(&self, host: &dyn Host, accounts: &LocalAccounts, user: &UserRecord) -> Result<AccountPlan, TaskError> {
        let refusal = directory_refusal(AccountKind::User, &self.name);
        let mut plan = AccountPlan { refusal: Some(refusal), ..AccountPlan::default() };
        if self.parameters.absent {
            plan.remove("user", &self.name);
            return Ok(plan);
        }
        self.compare_entry(host, accounts, user, &mut plan)?;
        self.compare_groups(host, accounts, user, &mut plan)?;
        if let Some(is_locked) = self.parameters.locked {
            plan.add("locked", &is_locked);
        }
        // A home directory is no part of the account, and is created for such a user too if the task says so.
        if self.parameters.create_home == Some(true) {
            if plan.differences.is_empty() {
                plan.refusal = None;
            }
            let home = self.wanted_home(&user.home, Some(user.uid), Creation::Required).find_missing(host, &mut plan)?;
            plan.step = home.map(|home| home::creation(host, &home, user)).transpose()?;
        }
        Ok(plan)
    }

    /// Returns the home directory that the user will have.
    fn wanted_home<'a>(&'a self, path: &'a str, uid: Option<u32>, rule: Creation) -> WantedHome<'a> {
        WantedHome { path, user: &self.name, uid, rule }
    }

    /// Returns the plan for a user that does not exist. Its groups and home directory are created by the plans after
    /// it, and are compared before, so that no account is left that cannot be completed.
    fn creation_plan(&self, host: &dyn Host, accounts: &LocalAccounts) -> Result<AccountPlan, TaskError> {
        let mut plan = AccountPlan::default();
        plan.add("user", &self.name);
        let mut words: Vec<String> = vec!["useradd".into(), "--no-create-home".into()];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        if let Some(uid) = self.parameters.uid {
            plan.add("uid", &uid);
            plan.refusal = Self::used_number_refusal(host, accounts, uid)?;
            add("--uid", uid.to_string());
        }
        if let Some(group) = &self.parameters.group {
            plan.add("group", group);
            if self.primary_group_id(host, accounts, None, &mut plan)?.is_some() {
                add("--gid", group.clone());
            }
        }
        for (attribute, option, value) in
            [("home", "--home-dir", &self.home), ("shell", "--shell", &self.shell), ("comment", "--comment", &self.comment)]
        {
            if let Some(value) = value {
                plan.add(attribute, value);
                add(option, value.clone());
            }
        }
        if self.parameters.locked == Some(true) {
            plan.add("locked", &true);
            add("--expiredate", EXPIRED.to_owned());
        }
        if let Some(groups) = &self.groups {
            plan.add("groups", &groups.join(","));
            self.resolve_groups(host, accounts, &mut plan)?;
        }
        if self.parameters.system {
            words.push("--system".into());
        }
        if self.parameters.group.is_none() {
            // A group of this name may exist, from a task before this one or in a directory service. Then `useradd`
            // must not create it.
            let has_own_group = accounts.group(&self.name).is_some() || directory_group(host, &self.name)?.is_some();
            words.extend(if has_own_group { vec!["--gid".into(), self.name.clone()] } else { vec!["--user-group".into()] });
        }
        let home = self.home.clone().map_or_else(|| home::default_path(host, &self.name), Ok)?;
        let rule = self.home_rule(self.parameters.uid.unwrap_or(DEFAULT_MIN_UID));
        self.wanted_home(&home, self.parameters.uid, rule).find_missing(host, &mut plan)?;
        words.push(self.name.clone());
        plan.step = Some(ToolCall::shadow(&words));
        Ok(plan)
    }

    /// Returns the plan for a user that exists and must exist.
    fn change_plan(&self, host: &dyn Host, accounts: &LocalAccounts, user: &UserRecord) -> Result<AccountPlan, TaskError> {
        let mut plan = AccountPlan::default();
        let usermod = self.compare_entry(host, accounts, user, &mut plan)?;
        if plan.refusal.is_none() {
            plan.refusal = self.change_refusal(host, accounts, user, &plan)?;
        }
        let rule = self.home_rule(self.parameters.uid.unwrap_or(user.uid));
        let home = self.wanted_home(self.home.as_deref().unwrap_or(&user.home), Some(user.uid), rule);
        let home = home.find_missing(host, &mut plan)?.map(|home| home::creation(host, &home, user)).transpose()?;
        let groups = self.compare_groups(host, accounts, user, &mut plan)?;
        let (lock, unlock) = self.compare_lock(host, accounts, user, &mut plan);
        plan.step = lock.or(usermod).or(home).or(groups).or(unlock);
        Ok(plan)
    }

    /// Compares the entry of `/etc/passwd` with the task. Returns the tool that changes it.
    fn compare_entry(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        user: &UserRecord,
        plan: &mut AccountPlan,
    ) -> Result<Option<ToolCall>, TaskError> {
        let (mut words, mut notes): (Vec<String>, Vec<String>) = (vec!["usermod".into()], Vec::new());
        if let Some(uid) = self.parameters.uid.filter(|uid| *uid != user.uid) {
            plan.compare("uid", &user.uid, &uid);
            words.extend(["--uid".into(), uid.to_string()]);
            notes.push(format!(
                "files outside of its home directory keep the number {}: `find / -xdev -uid {}` lists them",
                user.uid, user.uid
            ));
        }
        let group = self.parameters.group.clone().unwrap_or_default();
        let old_group = || {
            let name = accounts.group_with_id(user.gid).map_or_else(|| user.gid.to_string(), |group| group.name);
            format!("{name} ({})", user.gid)
        };
        if let Some(gid) = self.primary_group_id(host, accounts, Some(user.gid), plan)?.filter(|gid| *gid != user.gid) {
            plan.compare("group", &old_group(), &format!("{group} ({gid})"));
            words.extend(["--gid".into(), group]);
            notes.push(format!("files outside of its home directory keep the group {}", user.gid));
        } else if plan.missing.is_some() {
            plan.compare("group", &old_group(), &group);
        }
        if let Some(home) = self.home.as_ref().filter(|home| **home != user.home) {
            plan.compare("home", &user.home, home);
            words.extend(["--home".into(), home.clone()]);
            notes.push(format!("the files in {} stay there", user.home));
        }
        for (attribute, option, old, new) in
            [("shell", "--shell", &user.shell, &self.shell), ("comment", "--comment", &user.comment, &self.comment)]
        {
            if let Some(new) = new.as_ref().filter(|new| *new != old) {
                plan.compare(attribute, old, new);
                words.extend([option.into(), new.clone()]);
            }
        }
        if words.len() == 1 {
            return Ok(None);
        }
        words.push(self.name.clone());
        Ok(Some(ToolCall { note: notes.join("; "), ..ToolCall::shadow(&words) }))
    }

    /// Returns the number of the primary group of the task. A group that does not exist is added to the plan as
    /// missing, unless the user has its number, `current`, already.
    fn primary_group_id(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        current: Option<u32>,
        plan: &mut AccountPlan,
    ) -> Result<Option<u32>, TaskError> {
        let Some(reference) = &self.parameters.group else { return Ok(None) };
        if current.is_some() && reference.parse().ok() == current {
            return Ok(current);
        }
        let group = match accounts.find_group(reference) {
            Some(group) => Some(group),
            None => directory_group(host, reference)?,
        };
        if group.is_none() {
            plan.missing.get_or_insert(missing_group("parameters.group", reference));
        }
        Ok(group.map(|group| group.gid))
    }

    /// Compares the supplementary groups of a user with the task. Returns the tool that changes them.
    fn compare_groups(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        user: &UserRecord,
        plan: &mut AccountPlan,
    ) -> Result<Option<ToolCall>, TaskError> {
        let Some(wanted) = self.resolve_groups(host, accounts, plan)? else { return Ok(None) };
        let mut current = accounts.groups_with_member(&self.name);
        // The user is in its primary group anyway.
        let primary = accounts.group_with_id(self.primary_group_id(host, accounts, Some(user.gid), plan)?.unwrap_or(user.gid));
        let primary = primary.map(|group| group.name).unwrap_or_default();
        let wanted: BTreeSet<_> = wanted.into_iter().filter(|group| *group != primary).collect();
        current.remove(&primary);
        let is_exact = self.parameters.exact_groups;
        let target: BTreeSet<_> = if is_exact { wanted.clone() } else { current.union(&wanted).cloned().collect() };
        let join = |groups: &BTreeSet<String>| groups.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        if target == current {
            return Ok(None);
        }
        plan.compare("groups", &join(&current), &join(&target));
        if is_exact {
            return Ok(Some(ToolCall::shadow(&["usermod", "--groups", &join(&target), &self.name])));
        }
        let added = wanted.difference(&current).cloned().collect();
        Ok(Some(ToolCall::shadow(&["usermod", "--append", "--groups", &join(&added), &self.name])))
    }

    /// Returns the names of the local groups that the task lists. A group of a directory service is left out if it lists
    /// the user as a member, and otherwise refused. A group that does not exist is added to the plan as missing.
    fn resolve_groups(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        plan: &mut AccountPlan,
    ) -> Result<Option<BTreeSet<String>>, TaskError> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let mut names = BTreeSet::new();
        for (index, text) in groups.iter().enumerate() {
            let field = format!("parameters.groups[{index}]");
            if let Some(group) = accounts.find_group(text) {
                names.insert(group.name);
                continue;
            }
            match directory_group(host, text)? {
                Some(group) if group.members.contains(&self.name) => {}
                Some(group) => {
                    if !plan.has("groups") {
                        plan.add("groups", text);
                    }
                    let reason = directory_refusal(AccountKind::Group, &group.name);
                    plan.refusal.get_or_insert(format!("{field}: {reason}, and add {} to it", self.name));
                }
                None => {
                    if !plan.has("groups") {
                        plan.add("groups", text);
                    }
                    plan.missing.get_or_insert(missing_group(&field, text));
                }
            }
        }
        Ok(Some(names))
    }

    /// Compares the lock of a user with the task. Returns the tool that locks the user, or the one that unlocks it.
    fn compare_lock(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        user: &UserRecord,
        plan: &mut AccountPlan,
    ) -> (Option<ToolCall>, Option<ToolCall>) {
        let state = accounts.login_state(user);
        let today = i64::try_from(host.unix_seconds() / DAY_SECONDS).unwrap_or(i64::MAX);
        match self.parameters.locked {
            Some(true) if !state.is_locked(today) => {
                plan.compare("locked", &false, &true);
                (Some(ToolCall::shadow(&["usermod", "--lock", "--expiredate", EXPIRED, &self.name])), None)
            }
            Some(false) if state.has_locked_password() => {
                plan.compare("locked", &true, &false);
                (None, Some(ToolCall::shadow(&["usermod", "--unlock", "--expiredate", "", &self.name])))
            }
            Some(false) if state.is_expired(today) => {
                plan.compare("locked", &true, &false);
                let note = "the account has no password of its own that was locked, and its password is left as it is: only its expiry was removed";
                let step = ToolCall::shadow(&["usermod", "--expiredate", "", &self.name]);
                (None, Some(ToolCall { note: note.to_owned(), ..step }))
            }
            _ => (None, None),
        }
    }

    /// Returns the rule whether a missing home directory of the user with this number is created.
    fn home_rule(&self, uid: u32) -> Creation {
        match self.parameters.create_home {
            Some(true) => Creation::Required,
            None if !self.parameters.system && uid >= DEFAULT_MIN_UID && uid != NOBODY_UID => Creation::IfPossible,
            Some(false) | None => Creation::Never,
        }
    }

    /// Returns the reason why no task may change the number, the group or the lock of a user.
    fn change_refusal(
        &self,
        host: &dyn Host,
        accounts: &LocalAccounts,
        user: &UserRecord,
        plan: &AccountPlan,
    ) -> Result<Option<String>, TaskError> {
        let is_protected = user.uid == 0 || self.name == CONTROLLER_ACCOUNT;
        let owner = if user.uid == 0 { "is an account of root" } else { "is the account of the controller of Stemma" };
        if is_protected && (plan.has("uid") || plan.has("group") || self.parameters.locked == Some(true)) {
            return Ok(Some(format!("user {} {owner}: no task changes its number or primary group, or locks it", self.name)));
        }
        if let Some(uid) = self.parameters.uid.filter(|_| plan.has("uid"))
            && let Some(refusal) = Self::used_number_refusal(host, accounts, uid)?
        {
            return Ok(Some(refusal));
        }
        Ok(if plan.has("uid") || plan.has("home") { self.process_refusal(host, user) } else { None })
    }

    /// Returns the plan for a user that exists and must not exist.
    fn removal_plan(&self, site: &Site, accounts: &LocalAccounts, user: &UserRecord) -> Result<AccountPlan, TaskError> {
        let host = &*site.host;
        let mut plan = AccountPlan::default();
        plan.remove("user", &self.name);
        if user.uid == 0 || self.name == CONTROLLER_ACCOUNT {
            let needed_by = if user.uid == 0 { "the system" } else { "the controller of Stemma" };
            plan.refusal = Some(format!("user {} is needed by {needed_by}: remove the task", self.name));
            return Ok(plan);
        }
        plan.refusal = self.process_refusal(host, user);
        // The directory is removed first. If the agent is killed between both, the account still names it.
        let home = if self.parameters.remove_home { home::removal(host, accounts, user, &mut plan)? } else { None };
        let separation = self.group_separation(site, accounts, user, &mut plan)?;
        let removal = if self.parameters.remove_home {
            ToolCall::shadow(&["userdel", "--remove", &self.name])
        } else {
            ToolCall::shadow(&["userdel", &self.name])
        };
        plan.step = home.or(separation).or(Some(removal));
        Ok(plan)
    }

    /// Returns the tool that gives the user another primary group before its removal, if a task keeps the group of its
    /// name. Otherwise `userdel` removes that group too. Its home directory is changed as well, because `usermod` would
    /// give the files there to the other group.
    fn group_separation(
        &self,
        site: &Site,
        accounts: &LocalAccounts,
        user: &UserRecord,
        plan: &mut AccountPlan,
    ) -> Result<Option<ToolCall>, TaskError> {
        let host = &*site.host;
        let Some(group) = accounts.group(&self.name).filter(|group| group.gid == user.gid) else { return Ok(None) };
        let key = (ObjectKind::Group, group.name);
        let is_kept = site.memory.get::<ManagedGroups>().0.borrow().contains(&key.1)
            || site.ledger.get(&LEFT_OBJECTS)?.is_some_and(|objects| objects.contains_key(&key));
        let removes_groups = setting(host, LOGIN_DEFS, "USERGROUPS_ENAB")?.is_some_and(|value| value.eq_ignore_ascii_case("yes"));
        if !is_kept || !removes_groups {
            return Ok(None);
        }
        let Some(other) = accounts.group_with_id(NOBODY_UID).filter(|group| group.gid != user.gid) else {
            plan.refusal.get_or_insert(format!(
                "userdel would also remove the group {}, which a `group_account` task keeps, and this host has no group {NOBODY_UID} to keep it apart: set USERGROUPS_ENAB to no in {LOGIN_DEFS}, or remove that task",
                self.name
            ));
            return Ok(None);
        };
        let note = format!("the group {} stays, because a `group_account` task keeps it", self.name);
        let step = ToolCall::shadow(&["usermod", "--home", NONEXISTENT, "--gid", &other.name, &self.name]);
        Ok(Some(ToolCall { note, ..step }))
    }

    /// Returns the reason why the user cannot get a number, if another user has it.
    fn used_number_refusal(host: &dyn Host, accounts: &LocalAccounts, uid: u32) -> Result<Option<String>, TaskError> {
        let (owner, service) = match accounts.users().find(|user| user.uid == uid) {
            Some(user) => (user.name, ""),
            None => match host.directory_entry_with_id(AccountKind::User, uid)?.as_deref().and_then(UserRecord::parse) {
                Some(user) => (user.name, " of a directory service (NSS)"),
                None => return Ok(None),
            },
        };
        Ok(Some(format!("parameters.uid: the user {owner}{service} has the number {uid}: write another one")))
    }

    /// Returns the reason why the user cannot be changed or removed, if processes of the user run. The tools refuse that
    /// too, and do not name the processes.
    fn process_refusal(&self, host: &dyn Host, user: &UserRecord) -> Option<String> {
        let processes = user_processes(host, user.uid);
        if processes.is_empty() {
            return None;
        }
        Some(format!("user {} has running processes, {}: end them first", self.name, list_names(&processes)))
    }
}

/// Returns the name and the number of each process of a user. Returns none if the host has no `/proc`.
fn user_processes(host: &dyn Host, uid: u32) -> Vec<String> {
    let Ok(Some(proc)) = host.dir(&HostPath::from_static("/proc")) else { return Vec::new() };
    let names = proc.names().unwrap_or_default();
    let processes = names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_of_user = |name: &&String| proc.stat(name).is_ok_and(|stat| stat.is_some_and(|stat| stat.user == uid));
    let describe = |number: &String| {
        let comm = proc.dir(number).ok().flatten().and_then(|dir| dir.read("comm", 4096).ok().flatten());
        let comm = comm.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|comm| !comm.is_empty());
        format!("{} ({number})", comm.as_deref().unwrap_or("process"))
    };
    processes.filter(is_of_user).map(describe).collect()
}

/// Returns the reason why a group cannot be used, because it does not exist. `reference` is its name or number.
fn missing_group(field: &str, reference: &str) -> String {
    let (kind, parameter) =
        if reference.parse::<u32>().is_ok() { ("group with the number", " with `gid`") } else { ("group", "") };
    format!(
        "{field}: there is no {kind} {reference} on this host: let a task before this one create it (`group_account`{parameter})"
    )
}

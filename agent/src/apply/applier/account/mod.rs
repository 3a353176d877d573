//! `user` and `group_account`: local accounts. A check reads the files of the accounts and starts no process, unless the
//! account is not local. Changes are made by the shadow tools (`useradd`, `usermod`, …), which lock the files.
//!
//! Accounts of a directory service are compared, and never changed.

mod database;
mod group;
mod home;
mod plan;
mod user;

#[cfg(test)]
mod tests;

use stemma_core::task::name_rules::account_name_error;

use super::parameters;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::AccountKind;

pub(super) use group::GroupApplier;
pub(super) use user::UserApplier;

/// Waits for the tools that an earlier agent left running for a task. Their results do not matter, because the account is
/// compared afterwards.
async fn await_left_commands(site: &Site, task: &HostTask) -> Result<(), TaskError> {
    site.left.find(&*site.host, &site.ledger).await?;
    site.left.await_ends(&task.task.id).await;
    Ok(())
}

/// Renders the name of an account, and checks it.
fn rendered_name(templates: &TaskTemplates<'_>, template: Option<String>) -> Result<String, TaskError> {
    rendered_text(templates, "parameters.name", &template.unwrap_or_default(), account_name_error)
}

/// Renders a template, and checks the text by a rule, which returns an error message.
fn rendered_text(
    templates: &TaskTemplates<'_>,
    field: &str,
    template: &str,
    rule: fn(&str) -> Option<String>,
) -> Result<String, TaskError> {
    let text = templates.name(field, template)?;
    match rule(&text) {
        Some(message) => Err(TaskError::new(format!("{field}: {message}; nothing was changed"))),
        None => Ok(text),
    }
}

/// Returns the reason why no task changes an account of a directory service.
fn directory_refusal(kind: AccountKind, name: &str) -> String {
    format!("{} {name} comes from a directory service (NSS), not from {}: change it there", kind.as_str(), kind.file())
}

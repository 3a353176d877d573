//! `run`, `once`, `check`, `refill`: the verbs that make or look.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use log::{info, warn};
use sd_notify::NotifyState;
use serde_json::json;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::desired::Profile;
use stemma_wire::message::observed::Outcome;

use super::status::word_of_outcome;
use super::{Exit, Local, print};
use crate::apply::executor::{Purpose, Run};
use crate::apply::half::{Half, Until};
use crate::apply::ledger::part;
use crate::apply::outputs;
use crate::apply::poke::{Poked, Pokes, poke};
use crate::apply::verify::Trust;
use crate::args::Output;
use crate::channel::{SyncEnd, pair};
use crate::config::Config;
use crate::host::Command;
use crate::identity::Identity;
use crate::sync;

/// Is there when systemd runs this host (`sd_booted(3)`).
const SYSTEMD: &str = "/run/systemd/system";

/// Runs both halves until a signal says stop.
///
/// # Errors
/// When this host has not joined, or its state or configuration cannot be used.
pub fn run(root: &Path) -> Result<Exit> {
    let local = Local::open(root)?;
    let config = Config::load(&*local.host)?;
    let identity = Identity::load(&*local.host)?;
    let trust = Trust::new(&identity)?;
    let _lock = local
        .host
        .lock(&crate::paths::own("/var/lib/stemma-agent/apply/lock"))?
        .context("an agent runs on this state already; `stemma-agent status` says how it stands")?;
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let pokes = Pokes::listen(&local.host)?;
        let mut half = Half::new(local.site.clone(), config, trust, apply_end, pokes, Until::Stopped)?.watching();
        if root == Path::new("/") && Path::new(SYSTEMD).exists() {
            let words = ["systemctl", "start", "--no-block", "stemma-applied.target"].map(str::to_owned);
            half = half.when_applied(Command::new(words.to_vec(), Duration::from_secs(10)));
        }
        info!(path = root.display().to_string().as_str(); "agent started");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            ended = half.run(stopped()) => ended.context("the root half")?,
            ended = sync::run(local.host.clone(), identity, sync_end, Arc::new(SystemClock)) => {
                let Err(error) = ended;
                return Err(error).context("the network half");
            }
        }
        notify(&[NotifyState::Stopping]);
        info!("agent stopped");
        Ok(Exit::Done)
    })
}

/// Tells the service manager, where there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(error:% = error; "the service manager cannot be told");
    }
}

/// Takes what the root half says where no network half runs.
async fn listen(mut end: SyncEnd) {
    while end.receive().await.is_ok() {}
}

/// Applies what is held once. Where an agent runs, that one is asked to.
///
/// # Errors
/// As [`run`].
pub fn once(root: &Path) -> Result<Exit> {
    let local = Local::open(root)?;
    let config = Config::load(&*local.host)?;
    let trust = Trust::new(&Identity::load(&*local.host)?)?;
    let Some(_lock) = local.host.lock(&crate::paths::own("/var/lib/stemma-agent/apply/lock"))? else {
        return Ok(match poke(&local.host)? {
            Poked::Running => {
                print(
                    "the agent that runs on this host was asked to look now; `stemma-agent status` says what came of it\n",
                )?;
                Exit::Done
            }
            Poked::Nobody => {
                print("another agent holds the state of this host and does not answer\n")?;
                Exit::Failed
            }
        });
    };
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let half = Half::new(local.site.clone(), config, trust, apply_end, Pokes::never(), Until::Quiet)?;
        let (ended, ()) = tokio::join!(half.run(stopped()), listen(sync_end));
        ended.context("the root half")
    })?;
    let profile = local.site.ledger.accepted()?.and_then(|accepted| accepted.desired().task_set.profile);
    if let Some(hash) = profile
        && !local.site.ledger.has_body(hash)?
    {
        print("the task profile is not on this host yet: only labels were applied; `stemma-agent run` fetches it\n")?;
        return Ok(Exit::Failed);
    }
    let failed = local.site.ledger.progress()?.tasks.values().any(|performed| {
        matches!(
            performed.outcome,
            Outcome::Failed | Outcome::DependencyFailed | Outcome::Unknown | Outcome::Unsupported
        )
    });
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Checks every task of what is held: what would change?
///
/// # Errors
/// When the state or configuration cannot be used.
pub fn check(root: &Path, output: Output) -> Result<Exit> {
    let local = Local::open(root)?;
    let config = Config::load(&*local.host)?;
    let Some(accepted) = local.site.ledger.accepted()? else {
        print("this host holds no desired state yet\n")?;
        return Ok(Exit::NotFound);
    };
    let desired = accepted.desired();
    let bytes = desired.task_set.profile.map(|hash| local.site.ledger.body(hash)).transpose()?.flatten();
    let profile = bytes.as_deref().and_then(part::<Profile>).unwrap_or_default();
    let mut run = Run::plan(local.site.clone(), &config.ceiling, &desired, &profile, Purpose::Check)?;
    let open = BTreeSet::new();
    runtime()?.block_on(async {
        while run.work(&open).await? {}
        anyhow::Ok(())
    })?;
    let results = run.into_results();
    let differs = results.iter().any(|result| result.outcome == Outcome::WouldChange);
    let failed = results.iter().any(|result| !matches!(result.outcome, Outcome::WouldChange | Outcome::Unchanged));
    match output {
        Output::Json => {
            let tasks = results.iter().map(|result| {
                let outcome = word_of_outcome(result.outcome);
                json!({"task": result.task, "outcome": outcome, "message": result.message, "diff": result.diff})
            });
            print(&format!("{}\n", serde_json::to_string_pretty(&tasks.collect::<Vec<_>>())?))?;
        }
        Output::Human => {
            for result in &results {
                let outcome = word_of_outcome(result.outcome);
                print(&format!("{:<24} {outcome:<18} {}\n{}", result.task, result.message, result.diff))?;
            }
        }
    }
    Ok(if failed {
        Exit::Failed
    } else if differs {
        Exit::WouldChange
    } else {
        Exit::Done
    })
}

/// Writes `/run/stemma` from the ledger, as `stemma-labels.service` does at boot.
///
/// # Errors
/// When the state cannot be read or `/run/stemma` cannot be written.
pub fn refill(root: &Path) -> Result<Exit> {
    let local = Local::open(root)?;
    if let Some(accepted) = local.site.ledger.accepted()? {
        let desired = accepted.desired();
        outputs::write_run(&*local.host, &desired.known, &desired.task_set)?;
    }
    Ok(Exit::Done)
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")
}

/// Over when this process is told to end.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

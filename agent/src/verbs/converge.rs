//! `run`, `once`, `check`, `refill`: the verbs that make or look.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use log::{error, info, warn};
use sd_notify::NotifyState;
use serde_json::json;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::membership::{Membership, membership};
use super::status::words;
use super::{Exit, Local, print, print_json};
use crate::apply::executor::graph::is_well;
use crate::apply::executor::{Purpose, Run};
use crate::apply::ledger::{LOCAL, PROGRESS};
use crate::apply::outputs;
use crate::apply::wake::{WakeListener, Woken, wake};
use crate::apply::worker::{ApplyWorker, Until};
use crate::args::Output;
use crate::channel::{ApplyEnd, SyncEnd, pair};
use crate::config::Config;
use crate::host::{Command, HostPath};
use crate::identity::{Identity, IdentityError};
use crate::sync;

/// Is there when systemd runs this host (`sd_booted(3)`).
const SYSTEMD: &str = "/run/systemd/system";

/// The lock that one agent holds while it applies.
const LOCK: &str = "/var/lib/stemma-agent/apply/lock";

/// An agent that was killed just now is gone by then.
const GOING: Duration = Duration::from_secs(3);

/// Runs both halves until a signal says stop. A host whose identity or key is damaged goes on with what it holds.
///
/// # Errors
/// When this host has not joined, or its state or configuration cannot be used.
pub fn run(root: &Path) -> Result<Exit> {
    let (local, config, membership) = open_joined(root)?;
    let _lock = lock(&local, GOING)?
        .context("an agent runs on this state already; `stemma-agent status` says how it stands")?;
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let wakes = WakeListener::listen(&local.host)?;
        let (worker, identity) = worker(&local, config, membership, apply_end, wakes, Until::Stopped)?;
        let mut worker = worker.watching();
        if root == Path::new("/") && Path::new(SYSTEMD).exists() {
            let words = ["systemctl", "start", "--no-block", "stemma-applied.target"].map(str::to_owned);
            worker = worker.when_applied(Command::new(words.to_vec(), Duration::from_secs(10)));
        }
        info!(path = root.display().to_string().as_str(); "agent started");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            ended = worker.run(stopped()) => ended.context("the root half")?,
            error = talk(&local, identity, sync_end) => return Err(error).context("the network half"),
        }
        notify(&[NotifyState::Stopping]);
        info!("agent stopped");
        Ok(Exit::Done)
    })
}

/// The state, configuration and membership of a host that has joined.
fn open_joined(root: &Path) -> Result<(Local, Config, Membership)> {
    let local = Local::open(root)?;
    let config = Config::load(&*local.host)?;
    let membership = membership(&local.host)?;
    if matches!(membership, Membership::NotJoined) {
        return Err(IdentityError::NotJoined.into());
    }
    Ok((local, config, membership))
}

/// The root half of a host that has joined, and who it is where it can still say so.
fn worker(
    local: &Local,
    config: Config,
    membership: Membership,
    end: ApplyEnd,
    wakes: WakeListener,
    mode: Until,
) -> Result<(ApplyWorker, Option<Identity>)> {
    let new = |trust| ApplyWorker::new(local.site.clone(), config, trust, end, wakes, mode);
    Ok(match membership {
        Membership::Member(member) => {
            let (identity, trust) = *member;
            (new(Some(trust))?, Some(identity))
        }
        Membership::Damaged(_, why) => {
            error!(error = why.as_str(); "this host cannot speak with its fleet");
            (new(None)?.apart(why), None)
        }
        Membership::NotJoined => (new(None)?, None),
    })
}

/// The network half, where there is one.
async fn talk(local: &Local, identity: Option<Identity>, end: SyncEnd) -> sync::SyncError {
    match identity {
        Some(identity) => {
            let Err(error) = sync::run(local.host.clone(), identity, end, Arc::new(SystemClock)).await;
            error
        }
        None => {
            listen(end).await;
            std::future::pending().await
        }
    }
}

/// The lock of this host's state; `None` while another agent holds it for that long.
fn lock(local: &Local, patience: Duration) -> Result<Option<OwnedFd>> {
    let until = Instant::now() + patience;
    loop {
        match local.host.lock(&HostPath::own(LOCK))? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            held => return Ok(held),
        }
    }
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
    let (local, config, membership) = open_joined(root)?;
    let Some(_lock) = lock(&local, Duration::ZERO)?.map_or_else(|| asked_or_gone(&local), |held| Ok(Some(held)))?
    else {
        return Ok(match stopped_by(&local)? {
            Some(why) => {
                print(&why)?;
                Exit::Failed
            }
            None => {
                print(
                    "the agent that runs on this host was asked to look now; `stemma-agent status` says what came of it\n",
                )?;
                Exit::Done
            }
        });
    };
    let apart = match &membership {
        Membership::Damaged(_, why) => Some(why.clone()),
        Membership::Member(_) | Membership::NotJoined => None,
    };
    runtime()?.block_on(async {
        let (sync_end, apply_end) = pair();
        let (worker, _) = worker(&local, config, membership, apply_end, WakeListener::never(), Until::Quiet)?;
        let (ended, ()) = tokio::join!(worker.run(stopped()), listen(sync_end));
        ended.context("the root half")
    })?;
    if let Some(why) = stopped_by(&local)?.or(apart.map(|why| format!("{why}\n"))) {
        print(&why)?;
        return Ok(Exit::Failed);
    }
    outcome_of_once(&local)
}

/// The running agent is asked to look (`None`), or was on its way out and has left the lock.
fn asked_or_gone(local: &Local) -> Result<Option<OwnedFd>> {
    if wake(&local.host)? == Woken::Running {
        return Ok(None);
    }
    lock(local, GOING)?.context("another agent holds the state of this host and does not answer").map(Some)
}

/// Why no task is applied on this host now, and what to do about it.
fn stopped_by(local: &Local) -> Result<Option<String>> {
    let said = local.site.ledger.get(&LOCAL)?.unwrap_or_default();
    let parked = local.site.ledger.accepted()?.is_some_and(|accepted| accepted.desired().known.parked);
    Ok(if said.paused {
        Some("this host is paused: no task was applied, labels were; run `stemma-agent resume`, then `stemma-agent once`\n".into())
    } else if parked || said.parked.is_some() {
        Some("this host is parked: no task was applied, labels were; on a controller, set parked to false\n".into())
    } else {
        None
    })
}

fn outcome_of_once(local: &Local) -> Result<Exit> {
    let profile = local.site.ledger.accepted()?.and_then(|accepted| accepted.desired().task_set.profile);
    if let Some(hash) = profile
        && !local.site.ledger.has_body(hash)?
    {
        print("the task profile is not on this host yet: only labels were applied; `stemma-agent run` fetches it\n")?;
        return Ok(Exit::Failed);
    }
    let failed = local
        .site
        .ledger
        .get(&PROGRESS)?
        .unwrap_or_default()
        .tasks
        .values()
        .any(|performed| !is_well(performed.outcome));
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
    let profile = local.site.ledger.profile(&desired)?.unwrap_or_default();
    let mut run = Run::plan(local.site.clone(), &config.ceiling, &desired, &profile, Purpose::Check)?;
    let open = BTreeSet::new();
    runtime()?.block_on(async {
        while run.work(&open).await? {}
        anyhow::Ok(())
    })?;
    let results = run.into_results();
    let differs = results.iter().any(|result| result.outcome == Outcome::WouldChange);
    let failed = results.iter().any(|result| !matches!(result.outcome, Outcome::WouldChange | Outcome::Unchanged));
    print_results(&results, output)?;
    Ok(if failed {
        Exit::Failed
    } else if differs {
        Exit::WouldChange
    } else {
        Exit::Done
    })
}

fn print_results(results: &[TaskResult], output: Output) -> Result<()> {
    let json = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| json!({"task": task, "outcome": words(outcome), "message": message, "diff": diff});
    let human = |TaskResult { task, outcome, message, diff, .. }: &TaskResult| {
        format!("{task:<24} {:<18} {message}\n{diff}", words(outcome))
    };
    match output {
        Output::Json => print_json(&results.iter().map(json).collect::<Vec<_>>()),
        Output::Human => print(&results.iter().map(human).collect::<String>()),
    }
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

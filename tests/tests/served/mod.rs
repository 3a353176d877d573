//! A controller in this process, on a thread of its own: for tests that decide its policy or its time.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use stemma_controller::args;
use stemma_controller::config::Config;
use stemma_controller::handed::Handed;
use stemma_controller::init::Layout;
use stemma_controller::run::{Options, Parts, start};
use stemma_tests::fleet::Bound;
use stemma_wire::message::PartDigest;
use tokio::sync::oneshot;
use uuid::Uuid;

/// A controller that runs until the value is dropped.
pub(crate) struct Served {
    pub(crate) bound: Bound,
    parts: Arc<Parts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves a data directory on free ports of the loopback.
pub(crate) fn serve(data: &Path, options: Options) -> Result<Served> {
    let free = || Some("127.0.0.1:0".to_owned());
    let run = args::Run {
        data_dir: Some(data.to_owned()),
        admin_listen: free(),
        agent_listen: free(),
        ..args::Run::default()
    };
    let config = Config::load_with(&run, &Handed::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let controller = runtime.block_on(start(config, options))?;
    let bound = Bound {
        admin: format!("https://{}", controller.admin_address()),
        agents: format!("https://{}", controller.agents_address()),
        ca: Layout::new(data).root(),
    };
    let parts = Arc::clone(controller.parts());
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        runtime.block_on(async {
            let _dropped = stopped.await;
            controller.stop().await;
        });
    });
    Ok(Served { bound, parts, stop: Some(stop), thread: Some(thread) })
}

impl Served {
    /// Whether the check-in of a host that holds this is kept waiting, and the host is to hold nothing else: all that is stored was looked
    /// at for it.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub(crate) fn is_content(&self, node: Uuid, held: Option<(PartDigest, PartDigest)>) -> bool {
        let desired = &self.parts.desired;
        let is_resolved = desired.resolved().0 >= self.counted("stemma_store_revision");
        is_resolved && desired.digests(node) == held && desired.is_parked(node)
    }

    /// The text of its metrics.
    pub(crate) fn metrics(&self) -> String {
        self.parts.metrics.text_within(None)
    }

    /// How many nodes earlier passes have missed: what a full resolve finds to do now.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub(crate) fn missed(&self) -> Result<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(self.parts.reconciler.check_now()).context("the reconciler was stopped")
    }

    /// What the controller counts, by the name of the metric.
    pub(crate) fn counted(&self, metric: &str) -> u64 {
        let text = self.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metric} is no metric:\n{text}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

//! A controller on a thread of the test process, for tests that set its policy or its clock.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use stemma_controller::args;
use stemma_controller::config::Config;
use stemma_controller::init::Layout;
use stemma_controller::run::{Components, Options, start};
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_tests::fleet::ListenerAddresses;
use stemma_wire::message::PartDigest;
use tokio::sync::oneshot;
use uuid::Uuid;

/// A controller that runs until the value is dropped.
pub(crate) struct InProcessController {
    pub(crate) addresses: ListenerAddresses,
    components: Arc<Components>,
    stop_sender: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a controller with a data directory, on free ports of the loopback.
pub(crate) fn serve(data: &Path, options: Options) -> Result<InProcessController> {
    let any_port = || Some("127.0.0.1:0".to_owned());
    let run = args::RunArgs {
        data_dir: Some(data.to_owned()),
        admin_listen: any_port(),
        agent_listen: any_port(),
        ..args::RunArgs::default()
    };
    let config = Config::load_with_sockets(&run, &ActivatedSockets::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let controller = runtime.block_on(start(config, options))?;
    let listener_addresses = ListenerAddresses {
        admin: format!("https://{}", controller.admin_address()),
        agents: format!("https://{}", controller.agents_address()),
        ca: Layout::new(data).root(),
    };
    let controller_components = Arc::clone(controller.components());
    let (stop_sender, stop_receiver) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        runtime.block_on(async {
            let _stop_result = stop_receiver.await;
            controller.stop().await;
        });
    });
    Ok(InProcessController {
        addresses: listener_addresses,
        components: controller_components,
        stop_sender: Some(stop_sender),
        thread: Some(thread),
    })
}

impl InProcessController {
    /// Returns whether the controller has resolved all stored changes, the desired state of this node has the digests
    /// `held_digests` (known part, task set), and the controller holds a check-in of the node open.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub(crate) fn is_waiting_unchanged(&self, node: Uuid, held_digests: Option<(PartDigest, PartDigest)>) -> bool {
        let desired = &self.components.desired;
        let is_resolved = desired.resolved_revision().0 >= self.metric("stemma_store_revision");
        is_resolved && desired.digests(node) == held_digests && desired.is_waiting(node)
    }

    /// Returns the text of the controller's metrics.
    pub(crate) fn metrics_text(&self) -> String {
        self.components.metrics.text_for_cluster(None)
    }

    /// Runs a full resolve of all nodes. Returns the number of nodes whose desired state changes by it, because the
    /// controller missed their change before.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub(crate) fn missed_count(&self) -> Result<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(self.components.reconciler.resolve_all_now()).context("the reconciler was stopped")
    }

    /// Returns the value of a metric.
    pub(crate) fn metric(&self, metric: &str) -> u64 {
        let text = self.metrics_text();
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metric} is not a metric:\n{text}"))
    }
}

impl Drop for InProcessController {
    fn drop(&mut self) {
        // The thread waits for the sender. It stops the controller when the sender is dropped.
        drop(self.stop_sender.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

//! Watches and reports the entries of other programs in the host label map.

use std::collections::BTreeMap;

use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Observation, ReportedLabel};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker};
use crate::apply::outputs::host_map::{self, ForeignLabels};
use crate::host::HostPath;
use crate::watch::{FileWatch, WatchScope};

/// The watch of the host label map, and the labels of other programs in it.
#[derive(Default)]
pub(super) struct HostMapWatch {
    /// The labels of other programs, as the agent last reported them.
    reported: BTreeMap<String, ReportedLabel>,
    /// The watch that notices changes of the map. `None` in a one-time run.
    pub(super) watch: Option<FileWatch>,
    /// Time at which the agent reads the map after a change. It is some time after the change, so that the writer can
    /// finish.
    pub(super) check_at: Option<Instant>,
}

impl ApplyWorker {
    /// Starts to watch the host label map for changes.
    pub(super) fn watch_map(&mut self) {
        let path =
            HostPath::parse(&self.config.host_label_map.path).expect("the path was checked when the configuration was read");
        let watched_paths = [(self.site.host.system_path(&path), WatchScope::File)].into();
        self.map.watch = Some(FileWatch::new(self.site.host.system_root(), watched_paths));
    }

    /// Writes the outputs (`/run/stemma` and the host label map) again, schedules the hooks if they must run, and
    /// reports the labels of other programs in the map.
    pub(super) async fn check_map(&mut self) -> Result<(), ApplyError> {
        self.map.check_at = None;
        if let Some(desired) = self.desired.clone() {
            // The desired state is unchanged, so it is also the previous one.
            self.write_outputs(&desired, Some(&desired.known));
            self.schedule_hooks(&desired)?;
        }
        self.report_foreign_labels().await?;
        self.report().await
    }

    /// Reports the labels of other programs in the host label map to the network half of the agent, if they changed.
    /// Also updates the finding about such labels that are not reported.
    pub(super) async fn report_foreign_labels(&mut self) -> Result<(), ApplyError> {
        if let Some(watch) = &mut self.map.watch {
            watch.renew();
        }
        // If the map cannot be read, the report contains no labels. The attempt to write the map reports the reason.
        let foreign_labels = host_map::foreign_labels(&*self.site.host, &self.site.ledger, &self.config.host_label_map);
        let ForeignLabels { labels, finding } = foreign_labels.unwrap_or_default();
        self.findings.map = finding;
        if labels != self.map.reported {
            self.map.reported.clone_from(&labels);
            self.channel.send(&ApplyMessage::Observed(Observation { labels, ..Observation::default() })).await?;
        }
        Ok(())
    }
}

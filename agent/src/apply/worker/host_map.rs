//! Watches and reports the entries of other programs in the host label map.

use std::collections::BTreeMap;

use stemma_wire::message::channel::ApplyMessage;
use stemma_wire::message::observed::{Observation, ReportedLabel};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker};
use crate::apply::outputs::host_map::{self, ForeignLabels};
use crate::host::HostPath;
use crate::watch::{FileWatch, WatchScope};

/// The entries of other programs in the host label map.
#[derive(Default)]
pub(super) struct HostMapWatch {
    /// The labels of other programs that were reported last.
    reported: BTreeMap<String, ReportedLabel>,
    /// Watches the map for changes. `None` in a one-time run.
    pub(super) watch: Option<FileWatch>,
    /// Time at which the map is read after a change, so that its writer has time to finish.
    pub(super) check_at: Option<Instant>,
}

impl ApplyWorker {
    /// Begins to watch the host label map.
    pub(super) fn watch_map(&mut self) {
        let path = HostPath::parse(&self.config.host_label_map.path).expect("it was checked when it was read");
        let parts = [(self.site.host.system_path(&path), WatchScope::File)].into();
        self.map.watch = Some(FileWatch::new(self.site.host.system_root(), parts));
    }

    /// Writes the outputs again and reports the labels of other programs, after the map was changed or when a failed
    /// write must be tried again.
    pub(super) async fn check_map(&mut self) -> Result<(), ApplyError> {
        self.map.check_at = None;
        if let Some(desired) = self.desired.clone() {
            self.write_outputs(&desired, Some(&desired.known));
            self.schedule_hooks(&desired)?;
        }
        self.report_foreign_labels().await?;
        self.report().await
    }

    /// Reports the labels of other programs if they changed.
    pub(super) async fn report_foreign_labels(&mut self) -> Result<(), ApplyError> {
        if let Some(watch) = &mut self.map.watch {
            watch.renew();
        }
        // If the map cannot be read, no labels are reported. The attempt to write the map reports why.
        let others = host_map::foreign_labels(&*self.site.host, &self.site.ledger, &self.config.host_label_map);
        let ForeignLabels { labels, finding } = others.unwrap_or_default();
        self.findings.map = finding;
        if labels != self.map.reported {
            self.map.reported.clone_from(&labels);
            self.end.send(&ApplyMessage::Observed(Observation { labels, ..Observation::default() })).await?;
        }
        Ok(())
    }
}

//! What others have in the host label map: reported, and seen when they change it.

use std::collections::BTreeMap;

use stemma_wire::message::channel::FromApply;
use stemma_wire::message::observed::{Observation, ReportedLabel};
use tokio::time::Instant;

use super::{ApplyError, ApplyWorker};
use crate::apply::outputs::host_map::{self, Others};
use crate::host::HostPath;
use crate::watch::{Part, Watch};

/// The host label map, as far as it is others'.
#[derive(Default)]
pub(super) struct HostMapWatch {
    /// What was told last.
    others: BTreeMap<String, ReportedLabel>,
    pub(super) watch: Option<Watch>,
    /// When a change is looked at.
    pub(super) look_at: Option<Instant>,
}

impl ApplyWorker {
    pub(super) fn watch_map(&mut self) {
        let path = HostPath::parse(&self.config.host_label_map.path).expect("it was checked when it was read");
        let map = [(self.site.host.outside(&path), Part::File)].into();
        self.map.watch = Some(Watch::new(self.site.host.outside_root(), map));
    }

    /// Another hand changed the map, or this one did, or what could not be written is due again.
    pub(super) async fn look_at_map(&mut self) -> Result<(), ApplyError> {
        self.map.look_at = None;
        if let Some(desired) = self.desired.clone() {
            self.write_outputs(&desired, Some(&desired.known));
            self.tell_hooks(&desired)?;
        }
        self.tell_others().await?;
        self.report().await
    }

    /// Tells what others have there, where that is news.
    pub(super) async fn tell_others(&mut self) -> Result<(), ApplyError> {
        if let Some(watch) = &mut self.map.watch {
            watch.renew();
        }
        // What cannot be read is a finding of who writes there.
        let others = host_map::others(&*self.site.host, &self.site.ledger, &self.config.host_label_map);
        let Others { labels, finding } = others.unwrap_or_default();
        self.findings.map = finding;
        if labels != self.map.others {
            self.map.others.clone_from(&labels);
            self.end.send(&FromApply::Observed(Observation { labels, ..Observation::default() })).await?;
        }
        Ok(())
    }
}

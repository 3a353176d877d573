//! Liveness of the nodes, which the controller determines in memory from the check-ins. It stores the liveness only
//! when a silence begins or ends. This module also stores which hosts have confirmed their desired state.
//!
//! Stored heartbeats are the bottleneck of other systems' stores, and make a restart of the controller look like the
//! loss of its fleet. Here a restarted controller gives every node that was not silent its full timeout again. A node
//! that was silent remains so until it checks in. An uneventful restart writes nothing.

use std::sync::Arc;
use std::time::Duration;

use stemma_core::status::HostConfirmation;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::desired::DesiredTable;
use crate::desired::slot::NodeSlot;
use crate::identity::Identities;
use crate::intake::{Intake, LivenessChange};

/// Interval between two checks for silent nodes. Each check also stores the confirmations of hosts.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Creates the slot (the data in memory about check-ins) of each enrolled node, with the reports of its host that are
/// stored. Without a slot, a node that has not checked in since the start would seem to have no host.
pub fn create_slots(desired: &DesiredTable, identities: &Identities, intake: &dyn Intake) {
    for node in identities.enrolled_nodes() {
        create_slot(desired, identities, intake, node);
    }
}

/// Returns the slot of an enrolled node, and creates it if it does not exist. Returns `None` if the node was deleted.
fn create_slot(desired: &DesiredTable, identities: &Identities, intake: &dyn Intake, node: Uuid) -> Option<Arc<NodeSlot>> {
    let slot = desired.enrolled_slot(node, || identities.is_enrolled(node))?;
    // The result is not needed: this call reads the stored reports into the slot.
    slot.stored_or_read(|| intake.stored_reports(node));
    Some(slot)
}

/// Updates the status of each node at regular intervals: its liveness, and whether two hosts use its identity. Stores
/// which nodes became silent, and which hosts confirmed their desired state. The future never completes.
pub async fn watch_silence(
    desired: Arc<DesiredTable>,
    identities: Arc<Identities>,
    intake: Arc<dyn Intake>,
    now_s: impl Fn() -> u64,
) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for node in identities.enrolled_nodes() {
            let Some(slot) = create_slot(&desired, &identities, intake.as_ref(), node) else { continue };
            desired.status().set_liveness(node, || slot.liveness(Instant::now()));
            desired.status().set_duplicated(node, slot.duplicate_hosts(Instant::now()).is_some());
            if slot.silent_for(Instant::now()).is_some() {
                store_liveness(&slot, intake.as_ref(), &now_s).await;
            }
        }
        store_confirmations(&desired, intake.as_ref()).await;
    }
}

/// Stores which hosts have confirmed the desired state that was last sent to them, many hosts in one commit. If this
/// fails, the next call stores the confirmations.
pub async fn store_confirmations(desired: &DesiredTable, intake: &dyn Intake) {
    let pending = desired.unrecorded_confirmations();
    if pending.is_empty() {
        return;
    }
    let confirmation = pending.iter().map(|(_, confirmation)| *confirmation).collect();
    if let Err(error) = intake.store_confirmations(confirmation).await {
        log::warn!(count = pending.len(), error:% = error; "confirmations of hosts could not be stored; they are stored later");
        return;
    }
    for (slot, confirmation) in &pending {
        slot.note_confirmed(confirmation);
    }
}

/// Stores whether a node is silent, if the stored value differs. Writes for one node are done one at a time, and the
/// value is checked again after each write. Otherwise the writes for the start and the end of a silence could overtake
/// each other, and the older value would remain.
pub(super) async fn store_liveness(slot: &NodeSlot, intake: &dyn Intake, now_s: impl Fn() -> u64) {
    let _guard = slot.lock_writes().await;
    loop {
        let silence = slot.silent_for(Instant::now());
        if !slot.begin_silence_write(silence.is_some()) {
            return;
        }
        let since_s = now_s().saturating_sub(silence.unwrap_or_default().as_secs());
        let is_unconfirmed = slot.confirmation() == HostConfirmation::Unconfirmed;
        let change = if silence.is_some() {
            LivenessChange::Lost { since_s, is_unconfirmed }
        } else {
            LivenessChange::Connected { since_s }
        };
        // After an error the stored value is unknown. The next check or check-in writes it.
        if let Err(error) = intake.store_liveness(slot.node(), change).await {
            log::warn!(node:% = slot.node(), name = intake.node_name(slot.node()), error:% = error; "silence, or its end, could not be written");
            return;
        }
        slot.note_silence_stored(silence.is_some());
        let name = intake.node_name(slot.node());
        match change {
            LivenessChange::Lost { .. } => log::warn!(node:% = slot.node(), name; "node is silent"),
            LivenessChange::Connected { .. } => log::info!(node:% = slot.node(), name; "node is back"),
        }
    }
}

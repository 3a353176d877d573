//! Who is alive: in memory, from the check-ins themselves; written only when a silence begins or ends.
//!
//! A heartbeat that is stored is what makes other systems' stores the bottleneck, and a controller's restart look like the loss of its
//! fleet. Here a restarted controller gives every node its whole time again, and a quiet restart writes nothing.

use std::sync::Arc;
use std::time::Duration;

use stemma_core::status::Told;
use tokio::time::{Instant, MissedTickBehavior, interval};
use uuid::Uuid;

use crate::desired::DesiredTable;
use crate::desired::slot::Slot;
use crate::identity::Identities;
use crate::intake::{Intake, Seen};

/// How often it is looked who has become silent.
const LOOK: Duration = Duration::from_secs(5);

/// Makes the places of those that enrolled and have not come back yet, each with what is stored of it: none of them is taken for a host that
/// never joined.
pub fn make_places(desired: &DesiredTable, identities: &Identities, intake: &dyn Intake) {
    for node in identities.enrolled() {
        make_place(desired, identities, intake, node);
    }
}

/// The place of one of them, made where there is none; `None`: it is gone meanwhile.
fn make_place(desired: &DesiredTable, identities: &Identities, intake: &dyn Intake, node: Uuid) -> Option<Arc<Slot>> {
    let slot = desired.slot_of_agent(node, || identities.is_enrolled(node))?;
    slot.stored(|| intake.stored(node));
    Some(slot)
}

/// Watches for silences for as long as it is polled, and keeps what hosts confirmed.
pub async fn watch_silence(
    desired: Arc<DesiredTable>,
    identities: Arc<Identities>,
    intake: Arc<dyn Intake>,
    now_s: impl Fn() -> u64,
) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for node in identities.enrolled() {
            let Some(slot) = make_place(&desired, &identities, intake.as_ref(), node) else { continue };
            desired.status().set_liveness(node, || slot.liveness(Instant::now()));
            desired.status().set_doubled(node, slot.two_hosts(Instant::now()).is_some());
            if slot.quiet(Instant::now()).is_some() {
                write_silence(&slot, intake.as_ref(), &now_s).await;
            }
        }
        store_confirmed(&desired, intake.as_ref()).await;
    }
}

/// Stores which hosts have confirmed what they were told last, many in one commit. What cannot be stored now is stored the next time.
pub async fn store_confirmed(desired: &DesiredTable, intake: &dyn Intake) {
    let places = desired.to_confirm();
    if places.is_empty() {
        return;
    }
    let confirmed = places.iter().map(|(_, confirmed)| *confirmed).collect();
    if let Err(error) = intake.confirmed(confirmed).await {
        log::warn!(count = places.len(), error:% = error; "what hosts confirmed could not be stored; it is stored later");
        return;
    }
    for (slot, confirmed) in &places {
        slot.note_confirmed(confirmed);
    }
}

/// Writes whether a node is silent, if the store says another thing. One task at a time writes for a node,
/// and it checks again after each write. Otherwise the writes of a silence's start and end could overtake each other, and the older would stay.
pub(super) async fn write_silence(slot: &Slot, intake: &dyn Intake, now_s: impl Fn() -> u64) {
    let _alone = slot.writing().await;
    loop {
        let quiet = slot.quiet(Instant::now());
        if !slot.begin_silence(quiet.is_some()) {
            return;
        }
        let since_s = now_s().saturating_sub(quiet.unwrap_or_default().as_secs());
        let untold = slot.confirmed() == Told::No;
        let seen = if quiet.is_some() { Seen::Lost { since_s, untold } } else { Seen::Connected { since_s } };
        // After an error it is unknown, and written with the next look or check-in.
        if let Err(error) = intake.seen(slot.node(), seen).await {
            log::warn!(node:% = slot.node(), name = intake.name(slot.node()), error:% = error; "silence, or its end, could not be written");
            return;
        }
        slot.note_silence(quiet.is_some());
        let name = intake.name(slot.node());
        match seen {
            Seen::Lost { .. } => log::warn!(node:% = slot.node(), name; "node is silent"),
            Seen::Connected { .. } => log::info!(node:% = slot.node(), name; "node is back"),
        }
    }
}

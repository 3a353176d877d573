//! Who is alive: in memory, from the check-ins themselves; written only when a silence begins or ends.
//!
//! A heartbeat that is stored is what makes other systems' stores the bottleneck, and a controller's restart look like the loss of its
//! fleet. Here a restarted controller gives every node its whole time again, and a quiet restart writes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::desired::DesiredTable;
use super::identity::Identities;
use super::intake::{Intake, Seen};

/// How often it is looked who has become silent.
const LOOK: Duration = Duration::from_secs(5);

/// Watches for silences for as long as it is polled.
pub async fn watch_silence(
    desired: Arc<DesiredTable>,
    identities: Arc<Identities>,
    intake: Arc<dyn Intake>,
    now_s: impl Fn() -> u64,
) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once: it makes the places of those who have not come back yet.
    loop {
        ticks.tick().await;
        for node in identities.enrolled() {
            let slot = desired.slot(node);
            slot.stored(|| intake.stored(node));
            let Some(quiet) = slot.silence_began(Instant::now()) else { continue };
            let since_s = now_s().saturating_sub(quiet.as_secs());
            match intake.seen(node, Seen::Lost { since_s }).await {
                Ok(()) => log::warn!(node:% = node; "node is silent"),
                Err(error) => {
                    slot.undo_silence(true);
                    log::warn!(node:% = node, error:% = error; "beginning of silence not written");
                }
            }
        }
    }
}

//! The pings that the watchdog of the service manager (systemd) expects from a service. If no ping arrives within the
//! timeout of the watchdog, the service manager restarts the service.
//!
//! A timer that pings by itself would also ping for a service that hangs. So this module has no such timer: the loop
//! that does the work calls [`Watchdog::ping_if_due`] in each turn.

use std::fmt;
use std::future::pending;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Instant, sleep_until};

/// The number of pings within the timeout of the watchdog.
const PINGS_PER_TIMEOUT: u32 = 4;

/// The times at which pings are due, and the function that sends a ping.
pub struct Watchdog {
    /// `None` if the service manager expects no pings.
    schedule: Option<PingSchedule>,
    send_ping: Box<dyn FnMut() + Send + Sync>,
}

/// The times at which pings are due.
#[derive(Debug)]
struct PingSchedule {
    /// The time between two pings.
    period: Duration,
    /// The time of the next ping.
    next_ping_at: Instant,
}

impl Watchdog {
    /// Creates the watchdog that the service manager has set for this process. If it has set none, no ping is ever due.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled(), || {
            if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                log::warn!(error:% = error; "the watchdog of the service manager could not be pinged");
            }
        })
    }

    /// Creates a watchdog for which no ping is ever due.
    #[must_use]
    pub fn disabled() -> Self {
        Self::new(None, || {})
    }

    /// Creates a watchdog with this timeout, or without pings if the timeout is `None` or zero. `send_ping` sends a
    /// ping. The first ping is due at once.
    #[must_use]
    pub fn new(timeout: Option<Duration>, send_ping: impl FnMut() + Send + Sync + 'static) -> Self {
        let timeout = timeout.filter(|timeout| !timeout.is_zero());
        let schedule = timeout.map(|timeout| PingSchedule { period: timeout / PINGS_PER_TIMEOUT, next_ping_at: Instant::now() });
        Self { schedule, send_ping: Box::new(send_ping) }
    }

    /// Waits until the next ping is due. Waits for ever if the service manager expects no pings. Cancel safe.
    pub async fn wait_until_due(&self) {
        match &self.schedule {
            Some(schedule) => sleep_until(schedule.next_ping_at).await,
            None => pending().await,
        }
    }

    /// Sends a ping if one is due. A failure to send it is only logged.
    pub fn ping_if_due(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            let now = Instant::now();
            if now >= schedule.next_ping_at {
                schedule.next_ping_at = now + schedule.period;
                (self.send_ping)();
            }
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watchdog").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::timeout;

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);

    /// Creates a watchdog with this timeout. Also returns the list of the times of its pings since now.
    fn recorded_watchdog(timeout: Option<Duration>) -> (Watchdog, Arc<Mutex<Vec<Duration>>>) {
        let (pings, started_at) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let recorded_pings = Arc::clone(&pings);
        (Watchdog::new(timeout, move || recorded_pings.lock().unwrap().push(started_at.elapsed())), pings)
    }

    /// Runs a loop that does nothing but ping the watchdog.
    async fn ping_for(watchdog: &mut Watchdog, time: Duration) {
        let pinging = async {
            loop {
                watchdog.wait_until_due().await;
                watchdog.ping_if_due();
            }
        };
        let _elapsed = timeout(time, pinging).await;
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_pinged_four_times_per_timeout() {
        let (mut watchdog, pings) = recorded_watchdog(Some(TIMEOUT));
        ping_for(&mut watchdog, Duration::from_secs(50)).await;
        assert_eq!(pings.lock().unwrap().iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 15, 30, 45]);
    }

    /// A loop that turns often sends no more pings than one that only waits. After a turn that took long, a ping is due
    /// at once, and the following pings have the usual distance.
    #[tokio::test(start_paused = true)]
    async fn ping_if_due_sends_one_ping_per_period() {
        let (mut watchdog, pings) = recorded_watchdog(Some(TIMEOUT));
        for turn_s in [1, 1, 1, 40, 1, 13, 1] {
            watchdog.ping_if_due();
            tokio::time::advance(Duration::from_secs(turn_s)).await;
        }
        watchdog.ping_if_due();
        assert_eq!(pings.lock().unwrap().iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 43, 58]);
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_not_pinged_when_service_manager_expects_none() {
        for timeout in [None, Some(Duration::ZERO)] {
            let (mut watchdog, pings) = recorded_watchdog(timeout);
            ping_for(&mut watchdog, TIMEOUT).await;
            watchdog.ping_if_due();
            assert_eq!(*pings.lock().unwrap(), [] as [Duration; 0]);
        }
    }
}

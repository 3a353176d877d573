//! Tests of when the main loop pings the watchdog of the service manager. The runtime's clock is paused.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;

/// The timeout of the watchdog. A ping is due in each quarter of it.
const TIMEOUT: Duration = Duration::from_mins(10);
/// The period of the pings.
const PERIOD: Duration = Duration::from_secs(150);

/// The times of the pings since the start of a test.
#[derive(Clone)]
struct PingTimes {
    started_at: Instant,
    pings: Arc<Mutex<Vec<Duration>>>,
}

impl PingTimes {
    /// Creates an empty list. It must be created on the runtime whose clock is paused.
    fn new() -> Self {
        Self { started_at: Instant::now(), pings: Arc::default() }
    }

    /// Returns a watchdog whose pings are recorded here.
    fn watchdog(&self) -> Watchdog {
        let times = self.clone();
        Watchdog::new(Some(TIMEOUT), move || times.pings.lock().unwrap().push(times.started_at.elapsed()))
    }

    /// Returns the time of the last ping.
    fn last(&self) -> Duration {
        *self.pings.lock().unwrap().last().unwrap()
    }

    /// Returns the longest time between two pings, and between the last ping and now.
    fn longest_gap(&self) -> Duration {
        let times = [self.pings.lock().unwrap().clone(), vec![self.started_at.elapsed()]].concat();
        times.windows(2).map(|pair| pair[1].checked_sub(pair[0]).unwrap()).max().unwrap()
    }
}

/// The command of the task takes an hour. The agent is stopped before that, and waits for the task.
#[test]
fn worker_pings_while_task_runs_and_agent_stops() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.slow_down_commands(Duration::from_hours(1));
    let offers = offer_and_body(&controller, 1, &TestTaskSet::default().command("slow", &[], &["a"]));
    runtime().block_on(async {
        let (times, (sync, apply), (stop, stopped)) = (PingTimes::new(), pair(), oneshot::channel::<()>());
        let worker = worker(&host, &controller, apply).with_watchdog(times.watchdog());
        let conversation = exchange_for(sync, offers, Duration::from_mins(61));
        let stopping = async {
            sleep(Duration::from_mins(30)).await;
            stop.send(()).unwrap();
        };
        let running = async {
            worker.run(async { stopped.await.unwrap() }).await.unwrap();
            assert!(times.started_at.elapsed() >= Duration::from_hours(1), "the worker waited for the command");
            times.longest_gap()
        };
        let (longest_gap, _, ()) = tokio::join!(running, conversation, stopping);
        assert_eq!(longest_gap, PERIOD);
    });
}

/// Each task blocks the thread for a minute, as a task of a file on a slow disk does. All tasks together take longer
/// than the timeout.
#[test]
fn worker_pings_when_tasks_block_thread() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    host.on_run(|_, _| {
        // The first poll advances the clock.
        let _pending = pin!(tokio::time::advance(Duration::from_mins(1))).poll(&mut Context::from_waker(Waker::noop()));
        CommandResult { end: ExitKind::Status(0), output: String::new() }
    });
    let set = (0..30).fold(TestTaskSet::default(), |set, number| set.command(&format!("t{number}"), &[], &["a"]));
    runtime().block_on(async {
        let (times, (sync, apply)) = (PingTimes::new(), pair());
        let worker = worker(&host, &controller, apply).with_watchdog(times.watchdog());
        let conversation = exchange_for(sync, offer_and_body(&controller, 1, &set), Duration::from_hours(1));
        let (result, messages) = tokio::join!(worker.run(std::future::pending()), conversation);
        result.unwrap();
        assert_eq!(outcomes(&messages).len(), 30);
        assert!(times.longest_gap() < TIMEOUT / 2, "{:?}", times.longest_gap());
    });
}

/// The network half receives nothing for an hour. So the worker waits in the handling of an event, although other tasks
/// of the runtime run.
#[test]
fn worker_does_not_ping_while_handler_waits() {
    let (host, controller) = (MemoryHost::new(), TestController::new());
    let set = TestTaskSet::default().label("tier", "gold");
    runtime().block_on(run_until_idle(&host, &controller, vec![offer_message(&controller, 7, &set)]));
    host.restart();
    runtime().block_on(async {
        let (times, (sync, apply)) = (PingTimes::new(), pair());
        let worker = worker(&host, &controller, apply).with_watchdog(times.watchdog());
        let conversation = async {
            let mut sync = sync;
            // The worker answers each of these offers with a refusal. The channel has no room for all answers.
            for _ in 0..32 {
                sync.sender().send(&offer_message(&controller, 6, &set)).await.unwrap();
            }
            sleep(Duration::from_hours(1)).await;
            assert!(times.last() < PERIOD, "the worker pinged at {:?} although it waits", times.last());
            while let Ok(Ok(_)) = tokio::time::timeout(PERIOD, sync.receive()).await {}
            assert!(times.last() >= Duration::from_hours(1), "the worker does not ping again");
        };
        let (result, ()) = tokio::join!(worker.run(std::future::pending()), conversation);
        result.unwrap();
    });
}

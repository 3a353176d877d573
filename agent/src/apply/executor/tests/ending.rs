//! Runs that must end, because the agent stops or has got another desired state.

use std::time::Duration;

use super::*;
use crate::apply::applier::testing::block_on;

fn plan(host: &MemoryHost, set: &TestTaskSet) -> TaskRun {
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    TaskRun::plan(site(host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap()
}

/// The pause between two tries may be an hour. The next run tries the task again.
#[test]
fn run_ends_between_tries_of_task() {
    let host = MemoryHost::new();
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: String::new() });
    let fields = json!({"parameters": {"command": ["deploy"], "retries": 9, "interval": 600}});
    let set = TestTaskSet::default().task("t", "shell", &[], &fields);
    let mut run = plan(&host, &set);
    block_on(async {
        let open_barriers = BTreeSet::new();
        tokio::time::timeout(Duration::from_secs(700), run.advance(&open_barriers)).await.unwrap_err();
        assert_eq!(host.commands_run().len(), 2);
        let end_requested_at = Instant::now();
        assert!(run.finish_running().await);
        assert!(!run.finish_running().await);
        assert_eq!(end_requested_at.elapsed(), Duration::ZERO);
    });
    assert_eq!(host.commands_run().len(), 2);
    assert_eq!(run.save_results().unwrap(), [], "the task has neither failed nor succeeded yet");
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    assert_eq!(converge(&host, &set), pairs(&[("t", Outcome::Changed)]));
}

/// In this test, the run must end while the guard runs.
#[test]
fn command_is_not_begun_when_run_must_end() {
    let host = MemoryHost::new();
    host.on_run(|_, command| CommandResult {
        end: ExitKind::Status(i32::from(command.argv == ["guard"])),
        output: String::new(),
    });
    let set =
        TestTaskSet::default().task("t", "shell", &[], &json!({"parameters": {"command": ["deploy"], "unless": ["guard"]}}));
    let mut run = plan(&host, &set);
    run.start(&BTreeSet::new()).unwrap();
    assert!(block_on(run.finish_running()));
    assert_eq!(host.commands_run(), [["guard"]]);
    assert_eq!(run.save_results().unwrap(), []);
    assert_eq!(converge(&host, &set), pairs(&[("t", Outcome::Changed)]));
}

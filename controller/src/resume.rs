//! `stemma-controller resume-fleet`: lets hosts that are ahead of a restored store follow the store again. A host is
//! ahead if it holds a later revision than the store has. A store that waits after a restore stops waiting, and usually
//! stays in its epoch. Any other store begins a new epoch.
//!
//! The command sends its requests to the running controller over root's socket, because only that process knows the
//! revisions that hosts hold.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;

use crate::args::ResumeFleetArgs;
use crate::init::Layout;
use crate::running::RunningController;

/// Text that is appended to a message about hosts that have not checked in. It says that these hosts may be ahead of
/// the store. If no known host is ahead, the text is used only if `is_resumed` returns false.
const MAY_BE_AHEAD: &str = ", and those that have not may be ahead";

/// The error if a text cannot be written before the resume. An admin cannot agree to a text that was not shown.
const WRITE_FAILED: &str = "the text to confirm could not be written; nothing was changed";

/// Shows the effect on the hosts, requests a confirmation unless `--yes` is given, and resumes the fleet. Changes
/// nothing if no known host is ahead and the store does not wait after a restore.
///
/// # Errors
/// Fails if the controller cannot be reached or refuses the request, or if the user does not confirm.
pub fn run(args: &ResumeFleetArgs) -> Result<()> {
    let mut controller = RunningController::new(&Layout::new(&args.place.data_dir()?))?;
    let mut out = std::io::stdout().lock();

    let fleet = controller.send(Endpoint::ShowFleet, &Value::Null)?;
    let Some(warning_text) = warning(&fleet) else {
        writeln!(out, "{}", none_ahead_message(&fleet)).context(WRITE_FAILED)?;
        return Ok(());
    };
    writeln!(out, "{warning_text}").context(WRITE_FAILED)?;
    let unknown_hosts = parse_number(&fleet["unknown_hosts"]);
    if unknown_hosts > 0 {
        writeln!(
            out,
            "{unknown_hosts} more hosts have certificates of this fleet but are not among its nodes: they joined after the copy was made. They are \
             refused; on each of them run stemma-agent leave, and join it again with a new token."
        )
        .context(WRITE_FAILED)?;
    }
    if !args.yes && !confirm(&mut out)? {
        bail!("nothing was changed");
    }
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    let epoch = controller.send(Endpoint::ResumeFleet, &body)?;
    let counts_text = HostCounts::from_status(&fleet).and_then(|hosts| hosts.checked_in_message()).unwrap_or_default();
    // The epoch has begun. If this line cannot be written, the command must not fail as if nothing had happened.
    let _result = writeln!(
        out,
        "epoch {} begins at revision {}; hosts follow when they check in{counts_text}",
        epoch["epoch"].as_str().unwrap_or_default(),
        parse_number(&epoch["since"])
    );
    Ok(())
}

/// Returns the text that warns the user of the effect of a new epoch on hosts. Returns `None` if no new epoch is
/// needed, because the store does not wait after a restore and no known host is ahead of the store.
fn warning(fleet: &Value) -> Option<String> {
    if fleet["waits"] == true {
        let counts_text = HostCounts::from_status(fleet).map_or_else(
            || "it is unknown how many hosts have checked in, because the running controller is of an earlier version".to_owned(),
            |hosts| format!("{} of {} hosts have checked in so far", hosts.checked_in, hosts.enrolled),
        );
        return Some(format!(
            "the store was restored from a backup, and nothing is sent to any host yet; {counts_text}. Once it continues, they \
             follow it: each applies the current content of the store, and what was written after the backup is lost."
        ));
    }
    let ahead = parse_number(&fleet["ahead"]["nodes"]);
    let missing_text = unknown_message(fleet).map(|text| format!(" {text}{MAY_BE_AHEAD}.")).unwrap_or_default();
    (ahead > 0).then(|| {
        format!(
            "{ahead} hosts hold revisions of another copy of the store ({} epochs of theirs are unknown here). This store is at \
             revision {} of epoch {}. In another epoch they follow it again: each applies the current content of the store, and what \
             was written elsewhere is lost.{missing_text}",
            parse_number(&fleet["ahead"]["unknown_epochs"]),
            parse_number(&fleet["revision"]),
            fleet["epoch"].as_str().unwrap_or_default()
        )
    })
}

/// Returns the message that no host is ahead of the store. The controller knows the revisions of hosts only in memory.
/// So after a restart the message covers only the hosts that have checked in since. If others have not, the message
/// also says how these hosts behave when they check in, or that the command must be run again then.
fn none_ahead_message(fleet: &Value) -> String {
    let revision = parse_number(&fleet["revision"]);
    match unknown_message(fleet) {
        None => format!("no host is ahead of the store, which is at revision {revision}: nothing was changed"),
        Some(unknown_text) if is_resumed(fleet) => format!(
            "no host that has checked in is ahead of the store, which is at revision {revision}: nothing was changed. {unknown_text}. Those that come \
             later follow by themselves, since this epoch began by resume-fleet; only a host with a later epoch or revision does not, and is \
             failed (host.ahead) when it checks in"
        ),
        Some(unknown_text) => format!(
            "no host that has checked in is ahead of the store, which is at revision {revision}: nothing was changed. {unknown_text}{MAY_BE_AHEAD}; \
             run this again when they have"
        ),
    }
}

/// Returns whether an admin began or resumed the present epoch with resume-fleet. In such an epoch, hosts that check in
/// later follow the store too. Such an epoch has a reason, and the first epoch has none.
fn is_resumed(fleet: &Value) -> bool {
    fleet["waits"] == false && fleet["reason"].as_str().is_some_and(|reason| !reason.is_empty())
}

/// The numbers of hosts that the running controller reports, and the time for which the controller has run, in seconds.
struct HostCounts {
    enrolled: u64,
    checked_in: u64,
    running_seconds: u64,
}

impl HostCounts {
    /// Reads the counts from the controller's response. Returns `None` if the running controller is of an older
    /// version, which does not report these counts.
    fn from_status(fleet: &Value) -> Option<Self> {
        let hosts = fleet.get("hosts")?;
        let [enrolled, checked_in, running_seconds] =
            ["enrolled", "checked_in", "running_seconds"].map(|name| parse_number(&hosts[name]));
        Some(Self { enrolled, checked_in, running_seconds })
    }

    /// Returns the message with the number of hosts that have checked in, and with the command that lists the others.
    /// Returns `None` if all hosts have checked in.
    fn checked_in_message(&self) -> Option<String> {
        let Self { enrolled, checked_in, .. } = self;
        (checked_in < enrolled).then(|| {
            format!(
                ". {checked_in} of {enrolled} hosts have checked in; the others have the finding host.awaited until they do, and are waiting or \
                 silent (stemma get nodes --state waiting,silent)"
            )
        })
    }

    /// Returns the message with the time for which the controller has run, and the number of hosts that have checked in
    /// since it started. Returns `None` if all hosts have checked in.
    fn missing_message(&self) -> Option<String> {
        let Self { enrolled, checked_in, running_seconds } = self;
        if checked_in >= enrolled {
            return None;
        }
        let time = match *running_seconds {
            0..120 => format!("{running_seconds} s"),
            120..7200 => format!("{} min", running_seconds / 60),
            7200.. => format!("{} h", running_seconds / 3600),
        };
        Some(format!("The controller has run for {time}: {checked_in} of {enrolled} hosts have checked in since"))
    }
}

/// Returns the message that some hosts have not checked in since the controller started, or that an old controller does
/// not report this. Returns `None` if all hosts have checked in.
fn unknown_message(fleet: &Value) -> Option<String> {
    let unknown =
        "The running controller is of an earlier version: it is unknown how many hosts have checked in since it started";
    HostCounts::from_status(fleet).map_or_else(|| Some(unknown.to_owned()), |hosts| hosts.missing_message())
}

/// Returns a JSON value as a number, or 0 if it is not one.
fn parse_number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Requests a confirmation at the terminal. Returns whether the user agrees. Fails if standard input is not a terminal.
fn confirm(out: &mut impl std::io::Write) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("there is no terminal for the confirmation: use --yes; nothing was changed");
    }
    write!(out, "continue? [y/N] ").and_then(|()| out.flush()).context(WRITE_FAILED)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status of a fleet in which `ahead` hosts are ahead of the store. `waits` is true if the store waits
    /// after a restore. The numbers are the enrolled hosts, the checked-in hosts, and the running time in seconds.
    fn fleet(waits: bool, ahead: u64, [enrolled, checked_in, running_seconds]: [u64; 3]) -> Value {
        json!({
            "epoch": "e", "revision": 40, "waits": waits, "ahead": {"nodes": ahead, "unknown_epochs": 1},
            "hosts": {"enrolled": enrolled, "checked_in": checked_in, "running_seconds": running_seconds},
        })
    }

    #[test]
    fn x02_none_ahead_message_counts_checked_in_hosts() {
        let message_middle = "is ahead of the store, which is at revision 40: nothing was changed";
        // The numbers of enrolled and checked-in hosts, and the seconds for which the controller has run.
        for (hosts, expected) in [
            ([5, 5, 4], format!("no host {message_middle}")),
            ([0, 0, 4], format!("no host {message_middle}")),
            (
                [5, 3, 4],
                format!(
                    "no host that has checked in {message_middle}. The controller has run for 4 s: 3 of 5 hosts have checked in since, and those that have \
                     not may be ahead; run this again when they have"
                ),
            ),
        ] {
            let fleet = fleet(false, 0, hosts);
            assert_eq!((warning(&fleet), none_ahead_message(&fleet)), (None, expected));
        }
    }

    /// In this test, three of five hosts have checked in. An epoch that an admin began with resume-fleet has a reason.
    /// The first epoch has an empty reason.
    #[test]
    fn x02_none_ahead_message_omits_retry_when_epoch_was_resumed() {
        let mut fleet = fleet(false, 0, [5, 3, 4]);
        fleet["reason"] = json!("a drill");
        let message = none_ahead_message(&fleet);
        assert!(
            message.contains(": 3 of 5 hosts have checked in since. Those that come later follow by themselves, "),
            "{message}"
        );
        assert!(!message.contains("run this again") && !message.contains("may be ahead"), "{message}");
        fleet["reason"] = json!("");
        assert!(none_ahead_message(&fleet).ends_with("; run this again when they have"), "without a reason");
        let counts_text = HostCounts::from_status(&fleet).and_then(|hosts| hosts.checked_in_message()).unwrap();
        assert!(
            counts_text.starts_with(". 3 of 5 hosts have checked in; the others have the finding host.awaited until they do")
        );
        assert_eq!(HostCounts { enrolled: 5, checked_in: 5, running_seconds: 4 }.checked_in_message(), None);
    }

    /// In this test, one host is ahead of the store. First, all five hosts have checked in, and then only two of them.
    #[test]
    fn x02_warning_counts_ahead_and_missing_hosts() {
        let text = warning(&fleet(false, 1, [5, 5, 4])).unwrap();
        assert!(text.starts_with("1 hosts hold revisions of another copy of the store"), "{text}");
        assert!(text.ends_with("and what was written elsewhere is lost."), "{text}");
        for (seconds, time) in [(119, "119 s"), (121, "2 min"), (7_300, "2 h")] {
            let text = warning(&fleet(false, 1, [5, 2, seconds])).unwrap();
            let text_end = format!(
                "is lost. The controller has run for {time}: 2 of 5 hosts have checked in since, and those that have not may be ahead."
            );
            assert!(text.ends_with(&text_end), "{text}");
        }
    }

    #[test]
    fn x02_warning_says_unknown_when_controller_omits_host_counts() {
        let without_counts = |waits, ahead| {
            let mut fleet = fleet(waits, ahead, [5, 5, 4]);
            fleet.as_object_mut().unwrap().remove("hosts");
            fleet
        };
        let waiting = warning(&without_counts(true, 0)).unwrap();
        let unknown =
            "; it is unknown how many hosts have checked in, because the running controller is of an earlier version. Once it";
        assert!(waiting.contains(unknown), "{waiting}");
        let unknown = "The running controller is of an earlier version: it is unknown how many hosts have checked in since it started, and \
                       those that have not may be ahead";
        let ahead = warning(&without_counts(false, 1)).unwrap();
        assert!(ahead.ends_with(&format!("is lost. {unknown}.")), "{ahead}");
        let message = none_ahead_message(&without_counts(false, 0));
        assert!(message.ends_with(&format!(": nothing was changed. {unknown}; run this again when they have")), "{message}");
    }

    #[test]
    fn x02_warning_counts_checked_in_hosts_when_store_waits() {
        for (hosts, expected) in
            [([5, 0, 4], "; 0 of 5 hosts have checked in so far."), ([5, 5, 4], "; 5 of 5 hosts have checked in so far.")]
        {
            let text = warning(&fleet(true, 0, hosts)).unwrap();
            assert!(text.contains(expected) && text.starts_with("the store was restored from a backup"), "{text}");
        }
    }
}

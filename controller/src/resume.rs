//! `stemma-controller resume-fleet`: hosts that are ahead of a restored store are led into another epoch.
//!
//! It is asked of the running controller, over the socket of root: what a host holds is known to it alone.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;

use crate::args::ResumeFleet;
use crate::asked::Asked;
use crate::init::Layout;

/// What may be of hosts that have not come, where no admin has led them into the present epoch.
const MAY_BE_AHEAD: &str = ", and those that have not may be ahead";

/// What nobody reads, nobody can have agreed to.
const UNSAID: &str = "what there is to say could not be written; nothing was changed";

/// Says how many hosts are ahead, asks, and ends the epoch.
///
/// # Errors
/// The controller cannot be reached or refuses, or nobody has agreed.
pub fn run(args: &ResumeFleet) -> Result<()> {
    let mut asked = Asked::new(&Layout::new(&args.place.data_dir()?))?;
    let mut out = std::io::stdout().lock();

    let fleet = asked.send(Endpoint::ShowFleet, &Value::Null)?;
    let Some(consequence) = consequence(&fleet) else {
        writeln!(out, "{}", nobody_ahead(&fleet)).context(UNSAID)?;
        return Ok(());
    };
    writeln!(out, "{consequence}").context(UNSAID)?;
    let unknown = number(&fleet["unknown_hosts"]);
    if unknown > 0 {
        writeln!(
            out,
            "{unknown} more hosts have certificates of this fleet and are none of its nodes: they joined after the copy was made. They are \
             refused; on each of them run stemma-agent leave, and join it again with a new token."
        )
        .context(UNSAID)?;
    }
    if !args.yes && !agreed(&mut out)? {
        bail!("nothing was changed");
    }
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    let resumed = asked.send(Endpoint::ResumeFleet, &body)?;
    let come = Hosts::of(&fleet).and_then(|hosts| hosts.come()).unwrap_or_default();
    // It is done, whoever reads of it.
    let _said = writeln!(
        out,
        "epoch {} begins at revision {}; hosts follow when they check in{come}",
        resumed["epoch"].as_str().unwrap_or_default(),
        number(&resumed["since"])
    );
    Ok(())
}

/// What becomes of hosts when the fleet goes on, for people; `None` where the store does not wait and no host is found to be ahead of it.
fn consequence(fleet: &Value) -> Option<String> {
    if fleet["waits"] == true {
        let come = Hosts::of(fleet).map_or_else(
            || {
                "how many hosts have come is not known, since the controller that runs is of an earlier version"
                    .to_owned()
            },
            |hosts| format!("{} of {} hosts have come so far", hosts.checked_in, hosts.enrolled),
        );
        return Some(format!(
            "the store was restored from a backup, and nothing is sent to any host yet; {come}. Once it goes on they \
             follow it: each applies what the store says now, and what was written after the backup is lost."
        ));
    }
    let ahead = number(&fleet["ahead"]["nodes"]);
    let not_come = not_come(fleet).map(|said| format!(" {said}{MAY_BE_AHEAD}.")).unwrap_or_default();
    (ahead > 0).then(|| {
        format!(
            "{ahead} hosts hold revisions of another copy of the store ({} epochs of theirs are unknown here). This store is at \
             revision {} of epoch {}. In another epoch they follow it again: each applies what the store says now, and what \
             was written elsewhere is lost.{not_come}",
            number(&fleet["ahead"]["unknown_epochs"]),
            number(&fleet["revision"]),
            fleet["epoch"].as_str().unwrap_or_default()
        )
    })
}

/// That no host is found to be ahead. What was found is in memory, so after a restart that says nothing of hosts that have not come.
fn nobody_ahead(fleet: &Value) -> String {
    let revision = number(&fleet["revision"]);
    match not_come(fleet) {
        None => format!("no host is ahead of the store, which is at revision {revision}: nothing was changed"),
        Some(said) if is_resumed(fleet) => format!(
            "no host that has checked in is ahead of the store, which is at revision {revision}: nothing was changed. {said}. Those that come \
             later follow by themselves, since this epoch began by resume-fleet; only one of a later epoch or revision would not, and is \
             failed (host.ahead) when it comes"
        ),
        Some(said) => format!(
            "no host that has checked in is ahead of the store, which is at revision {revision}: nothing was changed. {said}{MAY_BE_AHEAD}; \
             run this again when they have"
        ),
    }
}

/// Whether an admin has led the hosts into the present epoch: what was said then holds for those that come later. The first epoch has no reason.
fn is_resumed(fleet: &Value) -> bool {
    fleet["waits"] == false && fleet["reason"].as_str().is_some_and(|reason| !reason.is_empty())
}

/// Which hosts the running controller has heard of.
struct Hosts {
    enrolled: u64,
    checked_in: u64,
    running_seconds: u64,
}

impl Hosts {
    /// `None` where the controller is of an earlier version, as one that was not restarted yet: that does not say.
    fn of(fleet: &Value) -> Option<Self> {
        let hosts = fleet.get("hosts")?;
        let [enrolled, checked_in, running_seconds] =
            ["enrolled", "checked_in", "running_seconds"].map(|name| number(&hosts[name]));
        Some(Self { enrolled, checked_in, running_seconds })
    }

    /// How many hosts follow by now, and where it is seen that the others do; `None` where all have come.
    fn come(&self) -> Option<String> {
        let Self { enrolled, checked_in, .. } = self;
        (checked_in < enrolled).then(|| {
            format!(
                ". {checked_in} of {enrolled} hosts have come; the others have the finding host.awaited until they check in, and are waiting or \
                 silent (stemma get nodes --state waiting,silent)"
            )
        })
    }

    /// That what some hosts hold is not known; `None` where all have come.
    fn not_come(&self) -> Option<String> {
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

/// That what some hosts hold is not known; `None` where all have come.
fn not_come(fleet: &Value) -> Option<String> {
    let unknown = "The controller that runs is of an earlier version: how many hosts have checked in since it started is not known";
    Hosts::of(fleet).map_or_else(|| Some(unknown.to_owned()), |hosts| hosts.not_come())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Asks the person at the terminal.
fn agreed(out: &mut impl std::io::Write) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody is at a terminal to agree: say --yes; nothing was changed");
    }
    write!(out, "go on? [y/N] ").and_then(|()| out.flush()).context(UNSAID)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(waits: bool, ahead: u64, [enrolled, checked_in, running_seconds]: [u64; 3]) -> Value {
        json!({
            "epoch": "e", "revision": 40, "waits": waits, "ahead": {"nodes": ahead, "unknown_epochs": 1},
            "hosts": {"enrolled": enrolled, "checked_in": checked_in, "running_seconds": running_seconds},
        })
    }

    #[test]
    fn x02_that_nobody_is_ahead_is_said_of_hosts_that_have_come() {
        let nobody = "is ahead of the store, which is at revision 40: nothing was changed";
        for (hosts, said) in [
            ([5, 5, 4], format!("no host {nobody}")),
            ([0, 0, 4], format!("no host {nobody}")),
            (
                [5, 3, 4],
                format!(
                    "no host that has checked in {nobody}. The controller has run for 4 s: 3 of 5 hosts have checked in since, and those that have \
                     not may be ahead; run this again when they have"
                ),
            ),
        ] {
            let fleet = fleet(false, 0, hosts);
            assert_eq!((consequence(&fleet), nobody_ahead(&fleet)), (None, said));
        }
    }

    #[test]
    fn x02_of_an_epoch_that_began_by_a_resume_hosts_that_come_later_follow_by_themselves() {
        let mut fleet = fleet(false, 0, [5, 3, 4]);
        fleet["reason"] = json!("a drill");
        let said = nobody_ahead(&fleet);
        assert!(
            said.contains(": 3 of 5 hosts have checked in since. Those that come later follow by themselves, "),
            "{said}"
        );
        assert!(!said.contains("run this again") && !said.contains("may be ahead"), "{said}");
        fleet["reason"] = json!("");
        assert!(nobody_ahead(&fleet).ends_with("; run this again when they have"), "the first epoch");
        let come = Hosts::of(&fleet).and_then(|hosts| hosts.come()).unwrap();
        assert!(
            come.starts_with(". 3 of 5 hosts have come; the others have the finding host.awaited until they check in")
        );
        assert_eq!(Hosts { enrolled: 5, checked_in: 5, running_seconds: 4 }.come(), None);
    }

    #[test]
    fn x02_hosts_that_are_ahead_are_said_beside_those_that_have_not_come() {
        let said = consequence(&fleet(false, 1, [5, 5, 4])).unwrap();
        assert!(said.starts_with("1 hosts hold revisions of another copy of the store"), "{said}");
        assert!(said.ends_with("and what was written elsewhere is lost."), "{said}");
        for (seconds, time) in [(119, "119 s"), (121, "2 min"), (7_300, "2 h")] {
            let said = consequence(&fleet(false, 1, [5, 2, seconds])).unwrap();
            let not_come = format!(
                "is lost. The controller has run for {time}: 2 of 5 hosts have checked in since, and those that have not may be ahead."
            );
            assert!(said.ends_with(&not_come), "{said}");
        }
    }

    #[test]
    fn x02_of_a_controller_that_does_not_say_how_many_hosts_have_come_that_is_not_known() {
        let of_an_earlier_version = |waits, ahead| {
            let mut fleet = fleet(waits, ahead, [5, 5, 4]);
            fleet.as_object_mut().unwrap().remove("hosts");
            fleet
        };
        let waiting = consequence(&of_an_earlier_version(true, 0)).unwrap();
        let unknown =
            "; how many hosts have come is not known, since the controller that runs is of an earlier version. Once it";
        assert!(waiting.contains(unknown), "{waiting}");
        let unknown = "The controller that runs is of an earlier version: how many hosts have checked in since it started is not known, and \
                       those that have not may be ahead";
        let ahead = consequence(&of_an_earlier_version(false, 1)).unwrap();
        assert!(ahead.ends_with(&format!("is lost. {unknown}.")), "{ahead}");
        let nobody = nobody_ahead(&of_an_earlier_version(false, 0));
        assert!(
            nobody.ends_with(&format!(": nothing was changed. {unknown}; run this again when they have")),
            "{nobody}"
        );
    }

    #[test]
    fn x02_of_a_store_that_waits_it_is_said_how_many_of_its_hosts_have_come() {
        for (hosts, come) in
            [([5, 0, 4], "; 0 of 5 hosts have come so far."), ([5, 5, 4], "; 5 of 5 hosts have come so far.")]
        {
            let said = consequence(&fleet(true, 0, hosts)).unwrap();
            assert!(said.contains(come) && said.starts_with("the store was restored from a backup"), "{said}");
        }
    }
}

//! `stemma-controller resume-fleet`: hosts that are ahead of a restored store are led into another epoch.
//!
//! It is asked of the running controller, over the socket of root: what a host holds is known to it alone.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use stemma_wire::endpoint::Endpoint;

use crate::args::ResumeFleet;
use crate::asked::Asked;
use crate::init::Layout;

/// Says how many hosts are ahead, asks, and ends the epoch.
///
/// # Errors
/// The controller cannot be reached or refuses, or nobody has agreed.
pub fn run(args: &ResumeFleet) -> Result<()> {
    let mut asked = Asked::new(&Layout::new(&args.place.data_dir()?))?;
    let mut out = std::io::stdout().lock();

    let fleet = asked.send(Endpoint::ShowFleet, &Value::Null)?;
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let (revision, ahead) = (number(&fleet["revision"]), number(&fleet["ahead"]["nodes"]));
    let waits = fleet["waits"] == true;
    if ahead == 0 && !waits {
        writeln!(out, "no host is ahead of the store, which is at revision {revision}: nothing was changed")?;
        return Ok(());
    }
    let unknown_epochs = number(&fleet["ahead"]["unknown_epochs"]);
    let epoch = fleet["epoch"].as_str().unwrap_or_default();
    if waits {
        writeln!(
            out,
            "the store was restored from a backup, and nothing is sent to any host yet; {ahead} hosts have come so far. Once it goes on they \
             follow it: each applies what the store says now, and what was written after the backup is lost."
        )?;
    } else {
        writeln!(
            out,
            "{ahead} hosts hold revisions of another copy of the store ({unknown_epochs} epochs of theirs are unknown here). This store is at \
             revision {revision} of epoch {epoch}. In another epoch they follow it again: each applies what the store says now, and what \
             was written elsewhere is lost."
        )?;
    }
    let unknown = number(&fleet["unknown_hosts"]);
    if unknown > 0 {
        writeln!(
            out,
            "{unknown} more hosts have certificates of this fleet and are none of its nodes: they joined after the copy was made. They are \
             refused; on each of them run stemma-agent leave, and join it again with a new token."
        )?;
    }
    if !args.yes && !agreed(&mut out)? {
        bail!("nothing was changed");
    }
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    let resumed = asked.send(Endpoint::ResumeFleet, &body)?;
    writeln!(
        out,
        "epoch {} begins at revision {}; hosts follow when they check in: stemma get nodes --state failed lists those that have not",
        resumed["epoch"].as_str().unwrap_or_default(),
        number(&resumed["since"])
    )?;
    Ok(())
}

/// Asks the person at the terminal.
fn agreed(out: &mut impl std::io::Write) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody is at a terminal to agree: say --yes; nothing was changed");
    }
    write!(out, "go on? [y/N] ")?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

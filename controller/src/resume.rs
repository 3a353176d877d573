//! `stemma-controller resume-fleet`: hosts that are ahead of a restored store are led into another epoch.
//!
//! It is asked of the running controller, over the socket of root: what a host holds is known to it alone.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use serde_json::{Value, json};
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::endpoint::Endpoint;
use uuid::Uuid;

use crate::args::ResumeFleet;
use crate::init::Layout;

/// Says how many hosts are ahead, asks, and ends the epoch.
///
/// # Errors
/// The controller cannot be reached or refuses, or nobody has agreed.
pub fn run(args: &ResumeFleet) -> Result<()> {
    let socket = Layout::new(&args.place.data_dir()?).socket();
    let target: Target = format!("unix:{}", std::path::absolute(socket)?.display()).parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut asked = Asked { client: Client::new(target, None, ClientLimits::default()), runtime };
    let mut out = std::io::stdout().lock();

    let fleet = asked.send(Endpoint::ShowFleet, &Value::Null)?;
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let (revision, ahead) = (number(&fleet["revision"]), number(&fleet["ahead"]["nodes"]));
    let waits = fleet["waits"] == true;
    if ahead == 0 && !waits {
        writeln!(out, "no host is ahead of the store, which is at revision {revision}: nothing was changed")?;
        return Ok(());
    }
    let highest = number(&fleet["ahead"]["highest"]);
    if waits {
        writeln!(
            out,
            "the store was restored from a backup, and nothing is sent to any host yet; {ahead} hosts have come so far. Once it goes on they \
             follow it: each applies what the store says now, and what was written after the backup is lost."
        )?;
    } else {
        writeln!(
            out,
            "{ahead} hosts hold revisions up to {highest} that the store, which is at {revision}, has not come to: it was restored from an older \
         copy. In another epoch they follow it again: each applies what the store says now, and what was written after the copy is lost."
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

/// A running controller.
struct Asked {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Asked {
    fn send(&mut self, endpoint: Endpoint, body: &Value) -> Result<Value> {
        let (method, bytes) = match body {
            Value::Null => (Method::GET, Bytes::new()),
            body => (Method::POST, Bytes::from(body.to_string())),
        };
        let request = Request::builder().method(method).uri(endpoint.path(&[]));
        let request =
            request.header(CONTENT_TYPE, "application/json").header("idempotency-key", Uuid::new_v4().to_string());
        let target = self.client.target().to_string();
        let answer = self.runtime.block_on(self.client.send(request.body(bytes)?));
        let answer = answer
            .with_context(|| format!("the controller is not reached at {target}: does it run, and are you root?"))?;
        let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if !answer.status().is_success() {
            let message = said["error"]["message"].as_str().unwrap_or("it says no more");
            bail!("the controller refuses ({}): {message}", answer.status());
        }
        Ok(said)
    }
}

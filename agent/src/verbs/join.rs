//! `join`: a token becomes this host's certificate.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use stemma_core::digest::from_hex;
use stemma_wire::client::Target;
use stemma_wire::clock::SystemClock;

use super::{Exit, Local, print, service};
use crate::apply::seal::seal_key;
use crate::args::Join;
use crate::host::HostPath;
use crate::host::atomic::ensure_dir;
use crate::sync::join::{Invitation, join as ask};

/// The longest token file that is read.
const LONGEST_TOKEN: u64 = 4096;

/// Joins a fleet.
///
/// # Errors
/// When the token cannot be read, no controller can be asked, or one refuses; nothing is written then.
pub fn join(root: &Path, wanted: &Join) -> Result<Exit> {
    let controllers: Vec<Target> = wanted.controllers.iter().map(|url| url.parse()).collect::<Result<_, _>>()?;
    if let Some(plain) = controllers.iter().find(|target| !target.tls) {
        bail!("{plain}: agents speak TLS alone, write https://");
    }
    let local = Local::open(root)?;
    let invitation = Invitation {
        controllers,
        ca_hash: ca_hash(&wanted.ca_hash)?,
        token: token(&wanted.token_file)?,
        name: wanted.name.clone().map_or_else(host_name, Ok)?,
        seal_key: seal_key(&*local.host, &local.site.ledger)?,
    };
    // So that the host's own labels can be watched from the first day.
    ensure_dir(&*local.host, &HostPath::own("/etc/stemma/labels.d"), 0o755)?;
    let asked = super::converge::runtime()?.block_on(ask(&*local.host, invitation, Arc::new(SystemClock)));
    let identity = asked.map_err(|error| anyhow!(error.explanation()))?;
    print(&format!("joined {} as node {}\n", identity.fleet, identity.node))?;
    if service::start(root).context("this host has joined, and its agent does not run")? {
        print("stemma-agent.service is enabled and runs\n")?;
    }
    Ok(Exit::Done)
}

fn ca_hash(text: &str) -> Result<[u8; 32]> {
    let digits = text.trim().strip_prefix("sha256:").unwrap_or(text.trim());
    from_hex(digits).context("--ca-hash takes 64 hexadecimal digits, as `stemma token ca-hash` prints them")
}

fn token(file: &Path) -> Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(LONGEST_TOKEN).read_to_string(&mut text).context("the token on standard input")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("the token file {}", file.display()))?;
        opened.take(LONGEST_TOKEN).read_to_string(&mut text).with_context(|| file.display().to_string())?;
    }
    if text.trim().is_empty() {
        bail!("{} holds no token: make one with `stemma token create`", file.display());
    }
    let token = text.trim();
    if let Some(what) = odd_in_token(token) {
        let is_one = "a token is ID.SECRET, as `stemma token create` prints it, in a file of its own";
        bail!("{} holds no token alone: {what}; {is_one}; nothing was sent", file.display());
    }
    Ok(token.to_owned())
}

/// What a text has that no token has. A controller counts what is no token as a guess, and answers nobody for a while after some.
fn odd_in_token(text: &str) -> Option<&'static str> {
    let is_id =
        |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    Some(if text.starts_with('\u{feff}') {
        "it begins with a byte order mark"
    } else if text.lines().count() > 1 {
        "it has more than one line"
    } else if text.starts_with('#') {
        "it is a comment"
    } else if text.contains(['"', '\'', '`']) {
        "it has quotes in it"
    } else if text.chars().any(char::is_whitespace) {
        "it has blanks in it"
    } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "it has characters in it that are no ASCII text"
    } else if !text.split_once('.').is_some_and(|(id, secret)| is_id(id) && !secret.is_empty()) {
        "it is not ID.SECRET"
    } else {
        return None;
    })
}

fn host_name() -> Result<String> {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").context("this host's name; give one with --name")?;
    Ok(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_64_digits() {
        assert_eq!(ca_hash(&"0f".repeat(32)).unwrap(), [0x0f; 32]);
        assert_eq!(ca_hash(&format!("sha256:{}\n", "A0".repeat(32))).unwrap(), [0xa0; 32]);
        for wrong in ["", "0f", &"0g".repeat(32), &"é".repeat(32)] {
            assert!(ca_hash(wrong).unwrap_err().to_string().contains("stemma token ca-hash"), "{wrong}");
        }
    }

    #[test]
    fn y09_a_token_comes_from_a_file_that_holds_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, " id.secret\n").unwrap();
        assert_eq!(token(&file).unwrap(), "id.secret");
        for (text, what) in [
            ("\u{feff}id.secret\n", "a byte order mark"),
            ("\"id.secret\"\n", "quotes"),
            ("'id.secret'", "quotes"),
            ("id.secret # of web", "blanks"),
            ("# of web\nid.secret\n", "more than one line"),
            ("# id.secret\n", "a comment"),
            ("id.secret\nid.other\n", "more than one line"),
            ("token=id.secret", "not ID.SECRET"),
            ("id", "not ID.SECRET"),
            ("id.", "not ID.SECRET"),
            (".secret", "not ID.SECRET"),
            ("id.s\u{e9}cret", "no ASCII"),
            ("id.se\u{0}cret", "no ASCII"),
        ] {
            std::fs::write(&file, text).unwrap();
            let said = token(&file).unwrap_err().to_string();
            assert!(said.contains(what) && said.contains("nothing was sent"), "{text:?}: {said}");
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(token(&file).unwrap_err().to_string().contains("holds no token"));
    }
}

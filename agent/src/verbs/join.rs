//! The command `join`: exchanges a join token for this host's certificate.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use stemma_core::digest::from_hex;
use stemma_core::json;
use stemma_core::name::NodeName;
use stemma_wire::client::Target;
use stemma_wire::clock::SystemClock;
use stemma_wire::message::enroll::find_token_error;

use super::{AgentExit, LocalHost, print, unit};
use crate::apply::seal::seal_key;
use crate::args::JoinArgs;
use crate::host::HostPath;
use crate::host::atomic::ensure_dir;
use crate::identity::HostIdentity;
use crate::sync::join::{JoinOptions, join as join_fleet};

/// Maximum number of bytes that `join` reads from a token file or from standard input. Further bytes are ignored.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Advice about the content of a token file.
const TOKEN_ADVICE: &str = "a token is ID.SECRET, as `stemma token create` prints it, in a file of its own";

/// Joins a fleet with a token. If the agent's systemd unit is installed, also enables and restarts it.
///
/// # Errors
/// Fails if an argument or the token is not valid, if this host has joined already and its identity and credentials are
/// intact, if no controller can be reached, if the controller refuses, or if its response is not accepted. The host has
/// no new identity then. Also fails if the host has joined and its unit cannot be started.
pub fn join(root: &Path, args: &JoinArgs) -> Result<AgentExit> {
    let controllers: Vec<Target> = args.controllers.iter().map(|url| url.parse()).collect::<Result<_, _>>()?;
    if let Some(plaintext_target) = controllers.iter().find(|target| !target.is_tls) {
        bail!("{plaintext_target}: agents only use TLS; write https://");
    }
    let local = LocalHost::open(root)?;
    let options = JoinOptions {
        controllers,
        ca_hash: parse_ca_hash(&args.ca_hash)?,
        token: read_token(&args.token_file)?,
        name: node_name(args.name.as_deref())?,
        seal_key: seal_key(&*local.host, &local.site.ledger)?,
    };
    // The directory of label files must exist, so that the agent can watch it from the start.
    ensure_dir(&*local.host, &HostPath::from_static("/etc/stemma/labels.d"), 0o755)?;
    let name = options.name.clone();
    local.site.ledger.begin_membership().context("the stored desired state of an earlier membership")?;
    let result = super::converge::runtime()?.block_on(join_fleet(&*local.host, options, Arc::new(SystemClock)));
    let identity = result.map_err(|error| anyhow!(error.explanation()))?;
    print(&joined_message(&identity, &name))?;
    if unit::start(root).context("this host has joined, and its agent does not run")? {
        print("stemma-agent.service is enabled and runs\n")?;
    }
    Ok(AgentExit::Done)
}

/// Returns the message that this host has joined. `name` is the requested name of the node. A controller refuses a join
/// as a node with another name. Only an existing node without a name accepts any name, and stays without one.
fn joined_message(identity: &HostIdentity, name: &str) -> String {
    format!("joined {} as node {name} ({})\n", identity.fleet, identity.node)
}

/// Parses the argument `--ca-hash`: a SHA-256 of 64 hexadecimal digits, with or without the prefix `sha256:`.
fn parse_ca_hash(text: &str) -> Result<[u8; 32]> {
    let digits = text.trim().strip_prefix("sha256:").unwrap_or(text.trim());
    from_hex(digits).context("--ca-hash requires 64 hexadecimal digits, as `stemma token ca-hash` prints them")
}

/// Reads the token from a file or from standard input (`-`), and checks its form before anything is sent.
fn read_token(file: &Path) -> Result<String> {
    let (mut bytes, is_standard_input) = (Vec::new(), file == Path::new("-"));
    let source_name = if is_standard_input { "standard input".to_owned() } else { file.display().to_string() };
    if is_standard_input {
        std::io::stdin().take(MAX_TOKEN_BYTES).read_to_end(&mut bytes).context("the token on standard input")?;
    } else {
        let opened_file = std::fs::File::open(file).with_context(|| format!("the token file {source_name}"))?;
        opened_file.take(MAX_TOKEN_BYTES).read_to_end(&mut bytes).with_context(|| source_name.clone())?;
    }
    let text = match json::decode_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bail!("{source_name} holds no token: {error}; {TOKEN_ADVICE}; nothing was sent"),
    };
    let token = text.trim();
    if token.is_empty() {
        bail!("{source_name} holds no token: make one with `stemma token create`");
    }
    if let Some(problem) = find_token_error(token) {
        let blanks = text.len() - text.trim_start().len();
        // The number of the line with the token, for editors: lines are counted from 1.
        let line = text[..blanks].matches('\n').count() + 1;
        bail!("{source_name}:{line} does not contain just a token: {problem}; {TOKEN_ADVICE}; nothing was sent");
    }
    Ok(token.to_owned())
}

/// Returns the name for the node: the requested name, or else the name of this host. Fails if the name is not valid, so
/// that nothing is sent to a controller then.
fn node_name(requested: Option<&str>) -> Result<String> {
    let (name, name_source) = match requested {
        Some(name) => (name.to_owned(), "--name"),
        None => (host_name()?, "this host's name"),
    };
    if let Err(error) = NodeName::new(&name) {
        bail!("{name_source}: {error}; join with --name and another name; nothing was sent");
    }
    Ok(name)
}

/// Returns the name of this host, as the kernel stores it.
fn host_name() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("this host's name; give one with --name")?;
    Ok(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the message contained only the uuid of the node, and nobody uses the uuid as a name.
    #[test]
    fn y09_joined_message_contains_node_name() {
        let node = "0199c3a4-5b6c-7d8e-9f00-112233445566";
        let identity = HostIdentity { node: node.parse().unwrap(), fleet: "stemma-3fa2".to_owned(), root: Vec::new() };
        assert_eq!(joined_message(&identity, "web-1"), format!("joined stemma-3fa2 as node web-1 ({node})\n"));
    }

    #[test]
    fn parse_ca_hash_requires_64_digits() {
        assert_eq!(parse_ca_hash(&"0f".repeat(32)).unwrap(), [0x0f; 32]);
        assert_eq!(parse_ca_hash(&format!("sha256:{}\n", "A0".repeat(32))).unwrap(), [0xa0; 32]);
        for wrong in ["", "0f", &"0g".repeat(32), &"é".repeat(32)] {
            assert!(parse_ca_hash(wrong).unwrap_err().to_string().contains("stemma token ca-hash"), "{wrong}");
        }
    }

    #[test]
    fn y09_read_token_requires_file_with_token_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let (id, secret) = ("0123456789abcdef", "0123456789abcdef".repeat(4));
        let valid_token = format!("{id}.{secret}");
        for (leading_blanks, trailing_blanks) in [("", ""), (" ", "\n"), ("\n\n", "\r\n")] {
            std::fs::write(&file, format!("{leading_blanks}{valid_token}{trailing_blanks}")).unwrap();
            assert_eq!(read_token(&file).unwrap(), valid_token);
        }
        let in_utf_16: Vec<u8> = valid_token.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (text, expected) in [
            (
                format!("\u{feff}{valid_token}\n").into_bytes(),
                ":1 does not contain just a token: it begins with a byte order mark",
            ),
            (format!("\"{valid_token}\"\n").into_bytes(), "quotes"),
            (format!("'{valid_token}'").into_bytes(), "quotes"),
            (format!("{valid_token} # of web").into_bytes(), "blanks"),
            (format!("# of web\n{valid_token}\n").into_bytes(), "more than one line"),
            (format!("# {valid_token}\n").into_bytes(), "a comment"),
            (format!("{valid_token}\n{valid_token}\n").into_bytes(), "more than one line"),
            (format!("token={valid_token}").into_bytes(), "before its dot has 22 characters"),
            (id.as_bytes().to_vec(), "not ID.SECRET"),
            (format!("{id}.").into_bytes(), "behind its dot has 0 characters"),
            (format!(".{secret}").into_bytes(), "before its dot has 0 characters"),
            (format!("{id}.zz").into_bytes(), "behind its dot has 2 characters"),
            (format!("{id}.s\u{e9}cret").into_bytes(), "not printable ASCII"),
            (format!("{id}.se\u{0}cret").into_bytes(), "NUL"),
            (valid_token.as_bytes()[..80].to_vec(), "behind its dot has 63 characters"),
            (valid_token.as_bytes()[..20].to_vec(), "behind its dot has 3 characters"),
            (
                format!("\n\n{valid_token}0\n").into_bytes(),
                ":3 does not contain just a token: the part behind its dot has 65 characters",
            ),
            (format!("{valid_token}X").into_bytes(), "behind its dot has 65 characters"),
            (format!("{valid_token}.{valid_token}").into_bytes(), "behind its dot has 146 characters"),
            (valid_token.replace('f', "g").into_bytes(), "before its dot is not all digits"),
            (format!("{id}.{}", secret.replace('f', "g")).into_bytes(), "behind its dot has characters that no secret has"),
            (in_utf_16.clone(), "UTF-16"),
            ([&[0xff, 0xfe][..], &in_utf_16[..]].concat(), "UTF-16"),
            (vec![0xff, b'a'], "no text in UTF-8"),
        ] {
            std::fs::write(&file, &text).unwrap();
            let message = read_token(&file).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("nothing was sent"), "{text:?}: {message}");
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(read_token(&file).unwrap_err().to_string().contains("holds no token"));
    }

    #[test]
    fn y09_node_name_is_validated_before_request() {
        let (longest, too_long) = ("a".repeat(255), "a".repeat(256));
        assert_eq!(node_name(Some(&*longest)).unwrap(), longest);
        for (invalid_name, rule) in [
            (&*too_long, "…\" (256 characters) is not well formed: 1 to 255 letters"),
            ("", "1 to 255 letters"),
            ("not a name", "1 to 255 letters"),
            ("01234567-89ab-cdef-0123-456789abcdef", "it looks like a uuid"),
        ] {
            let message = node_name(Some(invalid_name)).unwrap_err().to_string();
            let has_source_and_effect = message.starts_with("--name: ") && message.ends_with("nothing was sent");
            assert!(has_source_and_effect && message.contains(rule), "{message}");
        }
    }
}

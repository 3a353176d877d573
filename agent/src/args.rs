//! The command line of `stemma-agent`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use stemma_core::name::is_blank;
use stemma_wire::log::LogFormat;

/// The agent of a Stemma fleet: it brings this host to its desired state, and reports what this host is.
#[derive(Debug, Parser)]
#[command(name = "stemma-agent", version, propagate_version = true)]
pub struct Arguments {
    /// Use this directory in place of `/` for all paths of the agent.
    #[arg(long, global = true, default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Write log lines to standard error in this format. Without this option, an agent under systemd writes to the
    /// journal.
    #[arg(long, global = true, value_name = "FORMAT", value_parser = log_format())]
    pub log_format: Option<LogFormat>,
    /// The command to run.
    #[command(subcommand)]
    pub verb: AgentCommand,
}

/// Returns the parser of the option `--log-format`.
fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(LogFormat::NAMES).try_map(|word| word.parse::<LogFormat>())
}

/// Returns the argument unchanged. Fails if it has only white space and invisible characters or is empty, because an
/// unset variable of a script results in such an argument.
fn parse_name(text: &str) -> Result<String, &'static str> {
    if is_blank(text) { Err("it is empty: give a value") } else { Ok(text.to_owned()) }
}

/// The commands of the agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Join a fleet: exchange a token for this host's certificate.
    Join(JoinArgs),
    /// Leave the fleet: remove the agent's labels and its own state from this host. Files that tasks wrote stay.
    Leave(LeaveArgs),
    /// Run as a service: bring this host to its desired state, and correct drift until the service is stopped.
    Run,
    /// Apply the stored desired state once, without a connection to a controller. The exit status is 7 if tasks wait at
    /// a barrier.
    Once,
    /// Show what the tasks of the stored desired state would change, and change nothing. The exit status is 6 if
    /// something would change.
    Check(PrintArgs),
    /// Show the desired state that this host has, and the state of its tasks.
    Status(PrintArgs),
    /// Show the origin of a label, trait, tag or task of this host.
    Explain {
        /// The kind of object.
        kind: ExplainedObject,
        /// The name or key of the object.
        #[arg(value_parser = parse_name)]
        name: String,
        /// The output options.
        #[command(flatten)]
        printed: PrintArgs,
    },
    /// Stop running tasks on this host until `resume`, even after a restart. The agent still writes labels, and other
    /// hosts wait for this host.
    Pause,
    /// Run tasks on this host again after `pause`.
    Resume,
    /// Record the outcome of a command task whose outcome is unknown, because the agent was stopped while the command
    /// ran.
    ResolveUnknown {
        /// The id of the task.
        #[arg(value_parser = parse_name)]
        task: String,
        /// The outcome of the command.
        answer: ResolveAnswer,
    },
    /// Write the files of /run/stemma from the stored desired state. The system runs this at boot, before the network
    /// is up.
    Refill,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The addresses of the controllers, https://HOST:PORT. The host joins the first controller that responds, and
    /// stores all addresses.
    #[arg(required = true, value_name = "URL")]
    pub controllers: Vec<String>,
    /// The file that contains the token. `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// SHA-256 of the fleet root's public key, in hex: `stemma token ca-hash` prints it.
    #[arg(long, value_name = "HASH")]
    pub ca_hash: String,
    /// The name of the node. The default is the host's name.
    #[arg(long)]
    pub name: Option<String>,
}

/// Arguments of `leave`.
#[derive(Clone, Copy, Debug, Args)]
pub struct LeaveArgs {
    /// Stop the agent and remove only its labels. Its identity and state remain, and an agent that starts later continues
    /// with them.
    #[arg(long)]
    pub keep_state: bool,
}

/// Arguments of the commands that print a result.
#[derive(Clone, Copy, Debug, Args)]
pub struct PrintArgs {
    /// The output format: for people or for programs.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Human)]
    pub output: OutputFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people.
    Human,
    /// JSON for programs.
    Json,
}

/// The kinds of objects that `explain` explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExplainedObject {
    /// A label.
    Label,
    /// A trait.
    Trait,
    /// A tag.
    Tag,
    /// A task.
    Task,
}

/// The outcome that a person records for a command, because the agent does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResolveAnswer {
    /// The command succeeded.
    Done,
    /// The command did not succeed, so the agent runs it again.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_parse_name_rejects_empty_name() {
        let read = |words: &[&str]| Arguments::try_parse_from([&["stemma-agent"], words].concat());
        for empty_name in ["", " ", "\t", "\u{200b}"] {
            for kind in ["label", "trait", "tag", "task"] {
                let message = read(&["explain", kind, empty_name]).unwrap_err().to_string();
                assert!(message.contains("it is empty: give a value"), "{kind} {empty_name:?}: {message}");
            }
            let message = read(&["resolve-unknown", empty_name, "done"]).unwrap_err().to_string();
            assert!(message.contains("it is empty: give a value"), "{empty_name:?}: {message}");
        }
        read(&["explain", "label", "tier"]).unwrap();
        read(&["resolve-unknown", "grow-disk", "done"]).unwrap();
    }

    #[test]
    fn y09_log_format_accepts_two_values() {
        let read = |words: &[&str]| {
            let line = [&["stemma-agent"], words].concat();
            Arguments::try_parse_from(line).map(|arguments| arguments.log_format)
        };
        assert_eq!(read(&["run"]).unwrap(), None);
        assert_eq!(read(&["--log-format", "json", "run"]).unwrap(), Some(LogFormat::Json));
        assert_eq!(read(&["run", "--log-format", "text"]).unwrap(), Some(LogFormat::Text));
        for unknown_format in ["", "JSON", "logfmt", "yaml"] {
            let message = read(&["run", "--log-format", unknown_format]).unwrap_err().to_string();
            assert!(message.contains("[possible values: text, json]"), "{unknown_format:?}: {message}");
        }
    }
}

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
    /// Put all of the agent's paths below this directory.
    #[arg(long, global = true, default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Write log lines to standard error in this format. Without this option, they go to the journal under systemd.
    #[arg(long, global = true, value_name = "FORMAT", value_parser = log_format())]
    pub log_format: Option<LogFormat>,
    /// What to do.
    #[command(subcommand)]
    pub verb: AgentCommand,
}

fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(LogFormat::NAMES).try_map(|word| word.parse::<LogFormat>())
}

/// Parses a name. In a script, an unset variable results in an empty name, which no object has.
fn parse_name(text: &str) -> Result<String, &'static str> {
    if is_blank(text) { Err("it is empty: give a value") } else { Ok(text.to_owned()) }
}

/// The commands of the agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Join a fleet: exchange a token for this host's certificate.
    Join(JoinArgs),
    /// Leave the fleet: remove the agent's labels and its own state from this host. What its tasks wrote stays.
    Leave(LeaveArgs),
    /// Run until stopped, and keep this host in its desired state.
    Run,
    /// Apply the stored desired state once, without contacting a controller. Exit status 7 if tasks wait at a barrier.
    Once,
    /// Show what applying the stored desired state would change. Nothing is changed. Exit status 6 if something would change.
    Check(PrintArgs),
    /// Show the desired state that this host has, and the state of its tasks.
    Status(PrintArgs),
    /// Show where a label, trait, tag or task of this host came from.
    Explain {
        /// The kind of object.
        kind: ExplainedObject,
        /// Its name or key.
        #[arg(value_parser = parse_name)]
        name: String,
        /// The output options.
        #[command(flatten)]
        printed: PrintArgs,
    },
    /// Stop running tasks on this host until `resume`, even after a restart. Labels are still written, and other hosts wait for this one.
    Pause,
    /// Run tasks on this host again after `pause`.
    Resume,
    /// Record the outcome of a command whose end was not recorded.
    ResolveUnknown {
        /// The task.
        #[arg(value_parser = parse_name)]
        task: String,
        /// The outcome of the command.
        answer: ResolveAnswer,
    },
    /// Write /run/stemma from the stored desired state, without network (at boot).
    Refill,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The controllers, https://HOST:PORT. The host joins the first that responds, and stores all of them.
    #[arg(required = true, value_name = "URL")]
    pub controllers: Vec<String>,
    /// The file that holds the token; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// SHA-256 of the fleet root's public key, in hex: `stemma token ca-hash` prints it.
    #[arg(long, value_name = "HASH")]
    pub ca_hash: String,
    /// The name of the node. Default: the host's name.
    #[arg(long)]
    pub name: Option<String>,
}

/// Arguments of `leave`.
#[derive(Clone, Copy, Debug, Args)]
pub struct LeaveArgs {
    /// Remove only the agent's labels, and keep its identity and state. An agent that is started later continues from there.
    #[arg(long)]
    pub keep_state: bool,
}

/// Arguments of commands that print.
#[derive(Clone, Copy, Debug, Args)]
pub struct PrintArgs {
    /// The output format: for people or for programs.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Human)]
    pub output: OutputFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// People.
    Human,
    /// Programs.
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

/// The outcome of a command whose end was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResolveAnswer {
    /// The command did its work.
    Done,
    /// The command will run again.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_parse_name_rejects_empty_name() {
        let read = |words: &[&str]| Arguments::try_parse_from([&["stemma-agent"], words].concat());
        for empty in ["", " ", "\t", "\u{200b}"] {
            for kind in ["label", "trait", "tag", "task"] {
                let said = read(&["explain", kind, empty]).unwrap_err().to_string();
                assert!(said.contains("it is empty: give a value"), "{kind} {empty:?}: {said}");
            }
            let said = read(&["resolve-unknown", empty, "done"]).unwrap_err().to_string();
            assert!(said.contains("it is empty: give a value"), "{empty:?}: {said}");
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
        for wrong in ["", "JSON", "logfmt", "yaml"] {
            let said = read(&["run", "--log-format", wrong]).unwrap_err().to_string();
            assert!(said.contains("[possible values: text, json]"), "{wrong:?}: {said}");
        }
    }
}

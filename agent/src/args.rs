//! The command line of `stemma-agent`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use stemma_core::name::is_blank;
use stemma_wire::log::Format;

/// The agent of a Stemma fleet: it makes this host what the fleet says it is, and says what this host is.
#[derive(Debug, Parser)]
#[command(name = "stemma-agent", version, propagate_version = true)]
pub struct Arguments {
    /// Put all of the agent's paths below this directory.
    #[arg(long, global = true, default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Write the lines of the log to standard error in this form, under systemd too; unless given, they go to the journal there.
    #[arg(long, global = true, value_name = "FORMAT", value_parser = log_format())]
    pub log_format: Option<Format>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

fn log_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::WORDS).try_map(|word| word.parse::<Format>())
}

/// What is named. A variable that is not set makes an empty name in a script, and nothing is called so.
fn named(text: &str) -> Result<String, &'static str> {
    if is_blank(text) { Err("it is empty: name what is meant") } else { Ok(text.to_owned()) }
}

/// What can be done on the host.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Join a fleet: a token becomes this host's certificate.
    Join(Join),
    /// Leave the fleet: the agent's labels and its own state go from this host, and what its tasks wrote stays.
    Leave(Leave),
    /// Run until stopped: keep this host as its desired state says.
    Run,
    /// Apply what is held once, without asking a controller, and end. Exit status 7 when tasks wait at a barrier.
    Once,
    /// Check what is held: what would change? Nothing is changed. Exit status 6 when something would.
    Check(Printed),
    /// Say what this host holds and where it stands.
    Status(Printed),
    /// Say where a label, trait, tag or task of this host came from.
    Explain {
        /// What kind of thing.
        kind: Explained,
        /// Its name or key.
        #[arg(value_parser = named)]
        name: String,
        /// How it is printed.
        #[command(flatten)]
        printed: Printed,
    },
    /// Stop running tasks here until `resume`, also over restarts. Labels flow on, and other hosts wait for this one.
    Pause,
    /// Run tasks here again after `pause`.
    Resume,
    /// Settle a command that was begun and that nobody saw end.
    ResolveUnknown {
        /// The task.
        #[arg(value_parser = named)]
        task: String,
        /// What is the case.
        answer: Answer,
    },
    /// Write /run/stemma from what is held, without network (at boot).
    Refill,
}

/// Whom to join, and by what.
#[derive(Debug, Args)]
pub struct Join {
    /// The controllers, https://HOST:PORT; the first that answers is joined, all are kept.
    #[arg(required = true, value_name = "URL")]
    pub controllers: Vec<String>,
    /// The file that holds the token; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// SHA-256 of the fleet root's public key, in hex: `stemma token ca-hash` prints it.
    #[arg(long, value_name = "HASH")]
    pub ca_hash: String,
    /// The node's name; the host's name unless said.
    #[arg(long)]
    pub name: Option<String>,
}

/// How much goes.
#[derive(Clone, Copy, Debug, Args)]
pub struct Leave {
    /// Take back the agent's labels alone, and keep who this host is: it goes on where it was once an agent runs again.
    #[arg(long)]
    pub keep_state: bool,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct Printed {
    /// For people, or for programs.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// For whom an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// People.
    Human,
    /// Programs.
    Json,
}

/// What can be explained on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Explained {
    /// A label.
    Label,
    /// A trait.
    Trait,
    /// A tag.
    Tag,
    /// A task.
    Task,
}

/// What became of a command that nobody saw end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Answer {
    /// It did its work.
    Done,
    /// It is to be run again.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_an_empty_name_is_refused_and_not_looked_up() {
        let read = |words: &[&str]| Arguments::try_parse_from([&["stemma-agent"], words].concat());
        for empty in ["", " ", "\t", "\u{200b}"] {
            for kind in ["label", "trait", "tag", "task"] {
                let said = read(&["explain", kind, empty]).unwrap_err().to_string();
                assert!(said.contains("it is empty: name what is meant"), "{kind} {empty:?}: {said}");
            }
            let said = read(&["resolve-unknown", empty, "done"]).unwrap_err().to_string();
            assert!(said.contains("it is empty: name what is meant"), "{empty:?}: {said}");
        }
        read(&["explain", "label", "tier"]).unwrap();
        read(&["resolve-unknown", "grow-disk", "done"]).unwrap();
    }

    #[test]
    fn y09_the_form_of_the_log_is_one_of_two() {
        let read = |words: &[&str]| {
            let line = [&["stemma-agent"], words].concat();
            Arguments::try_parse_from(line).map(|arguments| arguments.log_format)
        };
        assert_eq!(read(&["run"]).unwrap(), None);
        assert_eq!(read(&["--log-format", "json", "run"]).unwrap(), Some(Format::Json));
        assert_eq!(read(&["run", "--log-format", "text"]).unwrap(), Some(Format::Text));
        for wrong in ["", "JSON", "logfmt", "yaml"] {
            let said = read(&["run", "--log-format", wrong]).unwrap_err().to_string();
            assert!(said.contains("[possible values: text, json]"), "{wrong:?}: {said}");
        }
    }
}

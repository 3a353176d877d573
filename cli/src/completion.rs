//! What a shell proposes where a name is to be written: kinds, and the names of objects, which the controller is asked for.
//!
//! The script that `stemma completion` prints runs `stemma` with [`VARIABLE`] set and the words of the line. Who waits for a
//! proposal has no use for an error, so a controller that cannot be reached in time gives none and nothing is printed.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Arg, Command, FromArgMatches as _, ValueEnum as _};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompletionCandidate, Shell};

use crate::api::Api;
use crate::args::{Asked, Global, Kind, Subject};
use crate::command::{question, tasks};

/// The variable by which a shell asks for proposals.
pub(crate) const VARIABLE: &str = "STEMMA_COMPLETE";

/// How long a controller has to tell its names.
const DEADLINE: Duration = Duration::from_secs(1);

/// What stands at a place of the command line.
#[derive(Clone, Copy)]
enum Argument {
    /// One of these kinds, or one object of it as `KIND/NAME`.
    Subject(&'static [Kind]),
    /// The same, or tasks.
    Asked,
    /// A name of the kind that stands before it.
    Name,
    /// A name of this kind.
    Of(Kind),
}

/// Prints a shell's script.
///
/// # Errors
/// For a shell that there is no script for.
pub(crate) fn script(shell: Shell) -> Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).context("no script for this shell")?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "stemma", "stemma", "stemma", &mut script)?;
    say_part!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

/// The command line, with what is proposed for each of its names.
pub(crate) fn completing(command: Command) -> Command {
    let verb = command.get_name().to_owned();
    command.mut_args(|arg| completing_one(&verb, arg)).mut_subcommands(completing)
}

fn completing_one(verb: &str, arg: Arg) -> Arg {
    let argument = match (verb, arg.get_id().as_str()) {
        ("render", _) => return arg,
        ("get" | "describe", "subject") => Argument::Asked,
        ("pause" | "resume", "subject") => Argument::Subject(Kind::PAUSED),
        ("label", "subject") => Argument::Subject(Kind::LABELED),
        (_, "subject") => Argument::Subject(Kind::value_variants()),
        ("get" | "delete" | "pause" | "resume", "names") | ("describe" | "explain", "name") | ("label", "words") => {
            Argument::Name
        }
        (_, "names" | "words" | "node" | "candidate_node") => Argument::Of(Kind::Node),
        (_, "nodegroup") => Argument::Of(Kind::Nodegroup),
        (_, "cluster") => Argument::Of(Kind::Cluster),
        (_, "cluster_template") => Argument::Of(Kind::Clustertemplate),
        (_, "release") => Argument::Of(Kind::Release),
        ("delete", "id") => Argument::Of(Kind::Token),
        _ => return arg,
    };
    arg.add(ArgValueCompleter::new(move |begun: &OsStr| proposals(argument, &begun.to_string_lossy())))
}

/// What may stand there and begins so.
fn proposals(argument: Argument, begun: &str) -> Vec<CompletionCandidate> {
    let kinds = || Kind::value_variants().iter().copied();
    let all: Vec<String> = match (argument, begun.split_once('/')) {
        (Argument::Subject(kinds), None) => kinds.iter().map(|kind| kind.name().to_owned()).collect(),
        (Argument::Asked, None) => kinds().map(Kind::name).chain(["task"]).map(str::to_owned).collect(),
        (Argument::Asked, Some(("task", _))) => with_word("task", Listed::Tasks),
        (Argument::Subject(kinds), Some((kind, _))) => {
            Kind::named(kind).filter(|kind| kinds.contains(kind)).map(with_kind).unwrap_or_default()
        }
        (Argument::Asked, Some((kind, _))) => Kind::named(kind).map(with_kind).unwrap_or_default(),
        (Argument::Of(kind), _) => names(Listed::Of(kind)),
        (Argument::Name, _) => match words().iter().find_map(|word| word.parse::<Asked>().ok()) {
            Some(Asked::Objects(Subject { kind, name: None })) => names(Listed::Of(kind)),
            Some(Asked::Objects(Subject { kind, name: Some(_) })) => with_kind(kind),
            Some(Asked::Tasks(None)) => names(Listed::Tasks),
            Some(Asked::Tasks(Some(_))) => with_word("task", Listed::Tasks),
            None => Vec::new(),
        },
    };
    all.into_iter().filter(|one| one.starts_with(begun)).map(CompletionCandidate::new).collect()
}

/// The names of a kind's objects as `-o name` prints them.
fn with_kind(kind: Kind) -> Vec<String> {
    with_word(kind.name(), Listed::Of(kind))
}

/// The same of anything that is listed.
fn with_word(word: &str, listed: Listed) -> Vec<String> {
    names(listed).into_iter().map(|name| format!("{word}/{name}")).collect()
}

/// The words of the line that is completed.
fn words() -> Vec<String> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// What a controller is asked to name.
#[derive(Clone, Copy)]
enum Listed {
    /// The objects of a kind.
    Of(Kind),
    /// The tasks that nodes have.
    Tasks,
}

/// The names of what is listed, as far as the controller tells them in time.
fn names(listed: Listed) -> Vec<String> {
    let told = || {
        let matches = crate::command_line().ignore_errors(true).try_get_matches_from(words())?;
        let mut api = Api::new(&Global::from_arg_matches(&matches)?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(in_time(async {
            match listed {
                Listed::Of(kind) => question::names(&mut api, kind).await,
                Listed::Tasks => tasks::names(&mut api).await,
            }
        }))
    };
    told().unwrap_or_default()
}

/// What is told before the deadline.
async fn in_time<T>(telling: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(DEADLINE, telling).await?
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn y09_a_verb_is_proposed_the_kinds_that_it_takes() {
        for (verb, kinds, expected) in [
            ("pause", Kind::PAUSED, &["nodegroup", "cluster"][..]),
            ("resume", Kind::PAUSED, &["nodegroup", "cluster"]),
            ("label", Kind::LABELED, &["node", "nodegroup", "cluster", "clustertemplate", "release"]),
        ] {
            let proposed = proposals(Argument::Subject(kinds), "");
            let words: Vec<_> = proposed.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect();
            assert_eq!(words, expected, "{verb}");
            let help = crate::command_line().try_get_matches_from(["stemma", verb, "-h"]).unwrap_err().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(expected.iter().all(|kind| help.contains(&format!("`{kind}`"))), "{verb}: {help}");
            assert!(!help.contains("The kind, as"), "{verb}: {help}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn w13_a_controller_that_says_nothing_is_waited_for_a_second_and_no_longer() {
        let begun = Instant::now();
        let told = in_time(std::future::pending::<Result<Vec<String>>>()).await;
        assert!(told.is_err());
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    }
}

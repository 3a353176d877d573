//! Completes kinds and object names for a shell. The names are read from the controller.
//!
//! The script that `stemma completion` prints runs `stemma` with [`VARIABLE`] set and with the words of the line. An
//! error is useless during completion. So if the controller does not answer in time, there are no candidates and
//! nothing is printed.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Arg, Command, FromArgMatches as _, ValueEnum as _};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompletionCandidate, Shell};

use crate::api::ApiClient;
use crate::args::{GetTarget, GlobalArgs, KindArg, ObjectRef};
use crate::command::{read, tasks};

/// The environment variable with which a shell requests completion candidates from `stemma`.
pub(crate) const VARIABLE: &str = "STEMMA_COMPLETE";

/// Maximum time for the controller to return its names during a completion.
const DEADLINE: Duration = Duration::from_secs(1);

/// Text that makes a script complete at once if zsh loads it from a file `_stemma` of `fpath`. zsh then runs the script as
/// the completion function. The script of `clap_complete` only registers another function, so the first completion of
/// each shell would have no candidates.
const ZSH_AUTOLOAD: &str = "\nif [ \"$funcstack[1]\" = \"_stemma\" ]; then\n    _clap_dynamic_completer_stemma \"$@\"\nfi\n";

/// The kind of value that an argument of the command line accepts.
#[derive(Clone, Copy)]
enum CompletionArgument {
    /// One of these kinds, or one object as `KIND/NAME`.
    ObjectRef(&'static [KindArg]),
    /// Any kind, any object as `KIND/NAME`, or tasks.
    GetTarget,
    /// The name of an object or the id of a task. An earlier argument has the kind, alone or as `KIND/NAME`.
    Name,
    /// The name of an object of this kind.
    NameOfKind(KindArg),
}

/// Prints the completion script of a shell.
///
/// # Errors
/// Fails if there is no script for the shell.
pub(crate) fn print_script(shell: Shell) -> Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).context("no script for this shell")?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "stemma", "stemma", "stemma", &mut script)?;
    out!("{}{}", String::from_utf8_lossy(&script), if shell == Shell::Zsh { ZSH_AUTOLOAD } else { "" });
    Ok(())
}

/// Adds completion to each argument that names a kind or an object, in the command and in its subcommands.
pub(crate) fn with_completions(command: Command) -> Command {
    let verb = command.get_name().to_owned();
    command.mut_args(|arg| with_completion(&verb, arg)).mut_subcommands(with_completions)
}

/// Adds completion to an argument of the command `verb`, if the argument names a kind or an object. The arguments of
/// `render` get none, because that command contacts no controller.
fn with_completion(verb: &str, arg: Arg) -> Arg {
    let argument = match (verb, arg.get_id().as_str()) {
        ("render", _) => return arg,
        ("get" | "describe", "subject") => CompletionArgument::GetTarget,
        ("pause" | "resume", "subject") => CompletionArgument::ObjectRef(KindArg::PAUSABLE),
        ("label", "subject") => CompletionArgument::ObjectRef(KindArg::LABELED),
        (_, "subject") => CompletionArgument::ObjectRef(KindArg::value_variants()),
        ("get" | "delete" | "pause" | "resume" | "wait", "names") | ("describe" | "explain", "name") | ("label", "words") => {
            CompletionArgument::Name
        }
        (_, "names" | "words" | "node" | "candidate_node") => CompletionArgument::NameOfKind(KindArg::Node),
        (_, "nodegroup") => CompletionArgument::NameOfKind(KindArg::Nodegroup),
        (_, "cluster") => CompletionArgument::NameOfKind(KindArg::Cluster),
        (_, "cluster_template") => CompletionArgument::NameOfKind(KindArg::Clustertemplate),
        (_, "release") => CompletionArgument::NameOfKind(KindArg::Release),
        ("delete", "id") => CompletionArgument::NameOfKind(KindArg::Token),
        _ => return arg,
    };
    arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(argument, &typed.to_string_lossy())))
}

/// Returns the candidates for an argument that begin with the text that the user has typed.
fn candidates(argument: CompletionArgument, typed: &str) -> Vec<CompletionCandidate> {
    let kinds = || KindArg::value_variants().iter().copied();
    let options: Vec<String> = match (argument, typed.split_once('/')) {
        (CompletionArgument::ObjectRef(kinds), None) => kinds.iter().map(|kind| kind.name().to_owned()).collect(),
        (CompletionArgument::GetTarget, None) => kinds().map(KindArg::name).chain(["task"]).map(str::to_owned).collect(),
        (CompletionArgument::GetTarget, Some(("task", _))) => with_prefix("task", NameSource::Tasks),
        (CompletionArgument::ObjectRef(kinds), Some((kind, _))) => {
            KindArg::from_name(kind).filter(|kind| kinds.contains(kind)).map(prefixed_names).unwrap_or_default()
        }
        (CompletionArgument::GetTarget, Some((kind, _))) => KindArg::from_name(kind).map(prefixed_names).unwrap_or_default(),
        (CompletionArgument::NameOfKind(kind), _) => read_names(NameSource::Objects(kind)),
        // The kind is the first word that is a kind or an object.
        (CompletionArgument::Name, _) => match command_words().iter().find_map(|word| word.parse::<GetTarget>().ok()) {
            Some(GetTarget::Objects(ObjectRef { kind, name: None })) => read_names(NameSource::Objects(kind)),
            Some(GetTarget::Objects(ObjectRef { kind, name: Some(_) })) => prefixed_names(kind),
            Some(GetTarget::Tasks(None)) => read_names(NameSource::Tasks),
            Some(GetTarget::Tasks(Some(_))) => with_prefix("task", NameSource::Tasks),
            None => Vec::new(),
        },
    };
    options.into_iter().filter(|option| option.starts_with(typed)).map(CompletionCandidate::new).collect()
}

/// Returns the names of a kind's objects as `KIND/NAME`, the form that `-o name` prints.
fn prefixed_names(kind: KindArg) -> Vec<String> {
    with_prefix(kind.name(), NameSource::Objects(kind))
}

/// Returns the names from a source, as `WORD/NAME`.
fn with_prefix(word: &str, source: NameSource) -> Vec<String> {
    read_names(source).into_iter().map(|name| format!("{word}/{name}")).collect()
}

/// Returns the words of the command line to complete. The shell passes them after `--`.
fn command_words() -> Vec<String> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The list from which names are read for completion.
#[derive(Clone, Copy)]
enum NameSource {
    /// The objects of a kind.
    Objects(KindArg),
    /// The tasks of all nodes.
    Tasks,
}

/// Returns the names from a source, or none after an error, for example if the controller does not respond in time.
fn read_names(source: NameSource) -> Vec<String> {
    let try_read = || {
        let matches = crate::command_line().ignore_errors(true).try_get_matches_from(command_words())?;
        let mut api = ApiClient::new(&GlobalArgs::from_arg_matches(&matches)?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(with_deadline(async {
            match source {
                NameSource::Objects(kind) => read::object_names(&mut api, kind).await,
                NameSource::Tasks => tasks::task_ids(&mut api).await,
            }
        }))
    };
    try_read().unwrap_or_default()
}

/// Waits for the result of a future. Fails if there is no result within [`DEADLINE`].
async fn with_deadline<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(DEADLINE, future).await?
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// The candidates are the kinds that the command accepts, and its help names the same kinds.
    #[test]
    fn y09_candidates_are_kinds_of_verb() {
        for (verb, kinds, expected) in [
            ("pause", KindArg::PAUSABLE, &["nodegroup", "cluster"][..]),
            ("resume", KindArg::PAUSABLE, &["nodegroup", "cluster"]),
            ("label", KindArg::LABELED, &["node", "nodegroup", "cluster", "clustertemplate", "release"]),
        ] {
            let offered = candidates(CompletionArgument::ObjectRef(kinds), "");
            let words: Vec<_> = offered.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect();
            assert_eq!(words, expected, "{verb}");
            let help = crate::command_line().try_get_matches_from(["stemma", verb, "-h"]).unwrap_err().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(expected.iter().all(|kind| help.contains(&format!("`{kind}`"))), "{verb}: {help}");
            assert!(!help.contains("The kind, such as"), "{verb}: {help}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn w13_with_deadline_gives_up_after_one_second() {
        let start = Instant::now();
        let result = with_deadline(std::future::pending::<Result<Vec<String>>>()).await;
        assert!(result.is_err());
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }
}

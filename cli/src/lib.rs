//! The operator's command: manifests and questions, with and without a controller.

#[macro_use]
mod output; // First, for its macros.

mod api;
mod args;
mod beside;
mod command;
mod completion;
mod context;
mod directory;
mod exit;
mod explain;
mod handover;
mod local;
mod manifest;
mod path;
mod place;
mod problem;
mod radius;
mod settings;
mod tree;
pub mod yaml;

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory as _, FromArgMatches as _};
use clap_complete::CompleteEnv;
use stemma_core::name;
use stemma_wire::error::quote;

use api::Api;
use args::{Args, Asked, Catalog, Command, Explained, Kind, Mode, Named, Release, Subject, Token};
use command::each::Objects;
use command::import::Import;
use command::{access, apply, describe, label, node, primary, question, tasks, token, watch, write};
use exit::Exit;

/// The commands that write nothing.
const QUESTIONS: &[&[&str]] = &[
    &["resolve"],
    &["render"],
    &["validate"],
    &["fields"],
    &["audit"],
    &["events"],
    &["wait"],
    &["completion"],
    &["get"],
    &["describe"],
    &["explain"],
    &["trait", "list"],
    &["tag", "list"],
    &["primary", "show"],
    &["token", "list"],
    &["token", "ca-hash"],
    &["principal", "list"],
    &["cert", "list"],
];

/// The options that mean something to writes alone, but for `manager`, whose part `get -o manifest` prints.
const OF_WRITES: &[&str] = &["manager", "reason", "dry_run", "strict", "max_nodes", "yes"];

/// The commands that are about no nodes, and take options of nodes only to refuse them.
const OF_LEVELS: [&str; 2] = ["pause", "resume"];

/// The options of a selection that mean something to nodes alone.
const OF_NODES: [&str; 2] = ["state", "nodegroup"];

/// The options whose text may be empty: a description or title is taken away then, and labels are refused as Magnum's command refuses them.
const MAY_BE_EMPTY: [&str; 3] = ["description", "title", "labels"];

/// The arguments that name objects or what is given to them: several with commas, and each by a path.
const NAMES: [&str; 18] = [
    "subject",
    "names",
    "words",
    "name",
    "object",
    "node",
    "nodegroup",
    "cluster",
    "cluster_template",
    "candidate_node",
    "tag",
    "role",
    "roles",
    "traits",
    "not_trait",
    "trait_any",
    "not_trait_any",
    "id",
];

/// The command line as clap knows it, for completions and man pages. The help of a question leaves out what only writes take.
pub fn command_line() -> clap::Command {
    let command = Args::command();
    let of_writes = command.get_arguments().filter(|option| OF_WRITES.contains(&option.get_id().as_str()));
    let hidden: Vec<Arg> = of_writes.map(|option| option.clone().hide(true)).collect();
    // A part of what is there is asked for by its manager.
    let of_export: Vec<Arg> = hidden.iter().filter(|option| option.get_id().as_str() != "manager").cloned().collect();
    let command = QUESTIONS.iter().fold(command, |command, path| {
        with_options(command, path, if *path == ["get"] { &of_export } else { &hidden })
    });
    let hide = |command: clap::Command, option| command.mut_arg(option, |option| option.hide(true));
    OF_LEVELS
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, |command| OF_NODES.into_iter().fold(command, hide)))
}

/// A command with options of its own at the end of a path, in place of those that all have. Where it has one already, as `validate` its
/// `--strict`, that stays.
fn with_options(command: clap::Command, path: &[&'static str], options: &[Arg]) -> clap::Command {
    match path {
        [] => {
            let has = |option: &Arg| command.get_arguments().any(|own| own.get_id() == option.get_id());
            let added: Vec<Arg> = options.iter().filter(|option| !has(option)).cloned().collect();
            command.args(added)
        }
        [first, below @ ..] => command.mut_subcommand(first, |command| with_options(command, below, options)),
    }
}

/// Runs the command as the process's arguments say.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(|| completion::completing(command_line())).var(completion::VARIABLE).complete();
    let mut command = command_line();
    let matches = command.get_matches_mut();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let writes = args.command.writes();
    if writes {
        output::go_on_unread();
    }
    match check_not_empty(&command, &matches).and_then(|()| run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, writes),
    }
}

/// Whether a text has nothing but blanks in it.
fn is_blank(text: &OsStr) -> bool {
    text.to_str().is_some_and(name::is_blank)
}

/// Whether a part of what names something is empty: the key of `KEY=VALUE` and of `KEY-`, an entry between commas, a step between slashes.
fn has_empty_part(text: &OsStr) -> bool {
    let Some(text) = text.to_str() else { return false };
    match text.split_once('=') {
        Some((key, _)) => name::is_blank(key),
        None => text.strip_suffix('-').unwrap_or(text).split([',', '/']).any(name::is_blank),
    }
}

/// Refuses an argument that is empty, or a part of which is. A variable that is not set makes one in a script, and an empty name, selector
/// or filter must never stand for everything. All of them are looked at before the first request, so nothing is changed by then.
///
/// # Errors
/// The argument, by its option or by what the help calls it.
fn check_not_empty(command: &clap::Command, matches: &ArgMatches) -> Result<()> {
    let mut asked = command.get_arguments().filter(|argument| !MAY_BE_EMPTY.contains(&argument.get_id().as_str()));
    asked.try_for_each(|argument| check_argument(argument, matches))?;
    match matches.subcommand() {
        Some((name, below)) => {
            let command = command.find_subcommand(name).expect("a subcommand that was matched");
            check_not_empty(command, below)
        }
        None => Ok(()),
    }
}

fn check_argument(argument: &Arg, matches: &ArgMatches) -> Result<()> {
    let id = argument.get_id().as_str();
    let option = argument.get_long().map(|long| format!("--{long}"));
    let called = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => {
            option.unwrap_or_else(|| argument.get_value_names().unwrap_or_default().join(" "))
        }
        Some(ValueSource::EnvVariable) => argument.get_env().unwrap_or_default().to_string_lossy().into_owned(),
        Some(_) | None => return Ok(()),
    };
    let refused = |what: String| Err(Exit::Usage.because(format!("{what} is empty: name what is meant")));
    for text in matches.get_raw(id).into_iter().flatten() {
        if is_blank(text) {
            return refused(called);
        }
        if NAMES.contains(&id) && has_empty_part(text) {
            return refused(format!("a part of {called} {}", quote(&text.to_string_lossy())));
        }
    }
    Ok(())
}

fn run(mut args: Args) -> Result<()> {
    if let Some(files) = args.command.files().filter(|_| args.global.manager.is_none()) {
        args.global.manager = settings::manager(files)?;
    }
    match args.command {
        Command::Completion { shell } => completion::script(shell),
        Command::Resolve(files) => local::resolve(&files, args.global.output),
        Command::Validate { files, strict } => local::validate_files(&files, strict, args.global.output),
        Command::Fields { path } => local::fields(path.as_deref(), args.global.output),
        Command::Render { files, node, task } => local::render(&files, &node, task.as_deref(), args.global.output),
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(ask(args.global, command))
        }
    }
}

/// What needs a controller.
async fn ask(global: args::Global, command: Command) -> Result<()> {
    if let Command::Token(Token::CaHash) = command {
        say!("{}", api::ca_hash(&global)?);
        return Ok(());
    }
    if let Command::Release(Release::Import { fuel, name, version, graph, force }) = &command {
        let what = Import { path: fuel, graph, name, version: version.as_deref(), force: *force };
        return command::import::release(&global, what).await;
    }
    if let Command::Catalog(Catalog::Import { paths, builtin, diff, merge, overwrite }) = &command {
        let mode = match (diff, merge, overwrite) {
            (true, _, _) => Mode::Diff,
            (_, true, _) => Mode::Merge,
            (_, _, true) => Mode::Overwrite,
            (false, false, false) => Mode::Keep,
        };
        return command::catalog::import(&global, paths, *builtin, mode).await;
    }
    let api = &mut Api::new(&global)?;
    if command.writes() { change(api, &global, command).await } else { question(api, &global, command).await }
}

/// What changes nothing.
async fn question(api: &mut Api, global: &args::Global, command: Command) -> Result<()> {
    let output = global.output;
    match command {
        Command::Get { raw: Some(path), .. } => question::raw(api, &path).await,
        Command::Get { subject: Some(Asked::Tasks(_)), watch: true, .. } => {
            Err(Exit::Usage.because("tasks are not watched: `stemma events` tells what becomes of nodes"))
        }
        Command::Get { subject: Some(Asked::Tasks(name)), names, filter, .. } => {
            let names: Vec<String> = name.into_iter().chain(names).collect();
            tasks::get(api, &names, &filter, output).await
        }
        Command::Get { subject: Some(Asked::Objects(subject)), names, filter, watch, .. } => {
            let (kind, names) = of_one_kind(&subject, names)?;
            if watch {
                let watched = watch::Watched { kind, names: &names, filter: &filter, output };
                return Box::pin(watch::watch(api, watched)).await;
            }
            question::get(api, kind, &names, &filter, output).await
        }
        Command::Describe { subject: Asked::Tasks(own), name } => {
            let name = own.or(name).ok_or_else(|| Exit::Usage.because("which task? name one"))?;
            tasks::describe(api, &name, output).await
        }
        Command::Describe { subject: Asked::Objects(subject), name } => {
            let (kind, names) = of_one_kind(&subject, name)?;
            let name = names.first().ok_or_else(|| Exit::Usage.because(format!("which {}? name one", kind.name())))?;
            describe::describe(api, kind, kind.bare(name), output).await
        }
        Command::Audit(asked) => command::audit::audit(api, &asked, output).await,
        Command::Events(asked) => Box::pin(command::events::events(api, &asked, output)).await,
        Command::Wait(waited) => {
            let (kind, names) = of_one_kind(&waited.subject, waited.names.clone())?;
            let names = command::events::awaited(api, kind, names, &waited.selection).await?;
            Box::pin(command::events::wait(api, kind, &names, &waited)).await
        }
        Command::Explain { kind: Explained::Object(kind), name, question, about } => {
            question::explain(api, kind, &name, question.zip(about.as_deref()), output).await
        }
        Command::Explain { kind: Explained::Key(bound), name, question: None, .. } => {
            question::explain_key(api, bound, &name, output).await
        }
        Command::Explain { .. } => {
            Err(Exit::Usage.because("explain asks of a key, or of a node: nothing follows a key"))
        }
        Command::Trait(what) => node::traits(api, what, output).await,
        Command::Tag(what) => write::tag(api, what, output).await,
        Command::Primary(what) => primary::primary(api, what, output).await,
        Command::Token(what) => token::token(api, global, what).await,
        Command::Principal(what) => access::principal(api, global, what).await,
        Command::Cert(what) => access::cert(api, global, what).await,
        _ => unreachable!("clap gives `get` a kind or --raw, and what needs no controller was done before"),
    }
}

fn of_one_kind(subject: &Subject, names: impl IntoIterator<Item = String>) -> Result<(Kind, Vec<String>)> {
    subject.with(names).map_err(|sentence| Exit::Usage.because(sentence))
}

/// What changes something.
async fn change(api: &mut Api, global: &args::Global, command: Command) -> Result<()> {
    let output = global.output;
    match command {
        Command::Apply { files, force, adopt } => {
            apply::apply(api, &files, apply::Terms { force, adopt: adopt.as_deref() }, output).await
        }
        Command::Create(what) => write::create(api, what, output).await,
        Command::Delete(named) => {
            let objects = Objects::of(api, &named).await?;
            write::delete(api, &objects, output).await
        }
        Command::Label { subject, words, selection, not_inherited, merge, replace, overwrite } => {
            let merge = if merge { Some(true) } else { replace.then_some(false) };
            let has_names = subject.name.is_none() && selection.is_empty();
            let has_changes = not_inherited.is_empty() && merge.is_none();
            let (names, changes) = label::split(&words, has_names, has_changes);
            let objects = Objects::of(api, &Named { subject, names: names.to_vec(), selection }).await?;
            let wanted = label::LabelChange { changes, not_inherited: &not_inherited, merge, overwrite };
            label::label(api, &objects, wanted, output).await
        }
        Command::Node(what) => node::node(api, what, global.reason.as_deref(), output).await,
        Command::Pause(what) => write::pause(api, &what, true, output).await,
        Command::Resume(what) => write::pause(api, &what, false, output).await,
        Command::Trait(what) => node::traits(api, what, output).await,
        Command::Role(what) => node::role(api, what, output).await,
        Command::Tag(what) => write::tag(api, what, output).await,
        Command::Primary(what) => primary::primary(api, what, output).await,
        Command::Token(what) => token::token(api, global, what).await,
        Command::Principal(what) => access::principal(api, global, what).await,
        Command::Cert(what) => access::cert(api, global, what).await,
        _ => unreachable!("what imports was done before, and other commands write nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_a_question_leaves_out_what_only_writes_take() {
        let help = |path: &[&str]| {
            let error = command_line().try_get_matches_from([&["stemma"], path, &["--help"]].concat()).unwrap_err();
            error.to_string()
        };
        for path in QUESTIONS {
            let text = help(path);
            assert!(text.contains("--context") && !text.contains("--dry-run") && !text.contains("--yes"), "{text}");
        }
        let all = Args::command();
        let leaves = all.get_subcommands().filter(|command| !command.has_subcommands()).map(clap::Command::get_name);
        let writing = ["apply", "delete", "label", "pause", "resume"];
        for name in leaves.filter(|name| !QUESTIONS.contains(&&[*name][..])) {
            assert!(writing.contains(&name), "{name} writes, or is a question that the list does not know");
        }
        assert!(help(&["wait"]).contains("--selector"));
        for path in [&["label"][..], &["apply"], &["trait", "add"], &["token", "create"]] {
            assert!(help(path).contains("--dry-run"), "{path:?}");
        }
        for name in OF_LEVELS {
            let text = help(&[name]);
            assert!(text.contains("--cluster") && !text.contains("--state") && !text.contains("--nodegroup"), "{text}");
        }
        assert!(help(&["get"]).contains("--state"));
        assert!(help(&["get"]).contains("--manager") && !help(&["events"]).contains("--manager"));
        for (path, has_it) in
            [(&["label"][..], true), (&["node", "park"], true), (&["validate"], true), (&["get"], false)]
        {
            assert_eq!(help(path).contains("--strict"), has_it, "{path:?}");
        }
        let matches = command_line().try_get_matches_from(["stemma", "get", "nodes", "--dry-run"]).unwrap();
        assert!(Args::from_arg_matches(&matches).unwrap().global.dry_run, "it is taken all the same");
    }

    #[test]
    fn y09_the_help_of_what_stops_a_host_says_what_stops_and_how_it_ends() {
        for (path, said) in [
            (
                &["node", "park"][..],
                &["Stop running tasks there", "Other hosts stop waiting", "primary stays", "`unpark`"][..],
            ),
            (&["node", "hold"], &["no new task set", "go on with the one", "`unhold`"]),
            (&["pause"], &["no new task set", "go on with the one", "`resume`"]),
        ] {
            let text = command_line().try_get_matches_from([&["stemma"], path, &["--help"]].concat()).unwrap_err();
            let words = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            for one in said {
                assert!(words.contains(one), "{path:?} does not say {one:?}: {words}");
            }
        }
    }

    #[test]
    fn the_help_of_validate_says_with_which_status_findings_end() {
        let text = command_line().try_get_matches_from(["stemma", "validate", "--help"]).unwrap_err();
        let words = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        for said in ["findings, which end with status 0 unless --strict", "they end with 0, errors among them too"] {
            assert!(words.contains(said), "{said:?} in {words}");
        }
    }

    #[test]
    fn x06_an_empty_argument_is_refused_in_each_verb_and_option() {
        let refused = |line: &[&str]| {
            let mut command = command_line();
            let matches = command.try_get_matches_from_mut([&["stemma"], line].concat()).unwrap();
            check_not_empty(&command, &matches).map_err(|error| error.to_string())
        };
        for line in [
            &["trait", "remove", "n1", ""][..],
            &["trait", "add", "n1", "CUSTOM_A", ""],
            &["role", "add", "n1", ""],
            &["tag", "delete", "", "--cluster", "c"],
            &["primary", "show", ""],
            &["primary", "set", "c", "t", ""],
            &["principal", "delete", ""],
            &["principal", "token", "revoke", "admin", ""],
            &["cert", "revoke", ""],
            &["token", "delete", ""],
            &["get", "nodes", "-l", ""],
            &["get", "nodes", "--cluster="],
            &["delete", "nodes", "-l", ""],
            &["delete", "nodes", "-l", " "],
            &["delete", "node", ""],
            &["label", "node", "-l", "", "tier=gold"],
            &["node", "park", ""],
            &["audit", ""],
            &["--context", "", "get", "nodes"],
            &["delete", "node", "\u{200b}"],
            &["get", "nodes", "-l", "\u{feff} "],
            &["get", "nodes", "--fields", "name,"],
        ] {
            let error = refused(line).expect_err(&format!("{line:?}"));
            assert!(error.ends_with("is empty: name what is meant"), "{line:?}: {error}");
        }
        for line in [
            &["principal", "update", "ann", "--description", ""][..],
            &["label", "node", "n1", "tier="],
            &["tag", "update", "t", "--cluster", "c", "--title", ""],
        ] {
            refused(line).unwrap();
        }
    }

    #[test]
    fn x06_an_empty_part_of_a_name_is_refused_in_each_verb_that_takes_names() {
        let refused = |line: &[&str]| {
            let mut command = command_line();
            let matches = command.try_get_matches_from_mut([&["stemma"], line].concat()).unwrap();
            check_not_empty(&command, &matches).map_err(|error| error.to_string())
        };
        // Where several nodes are written with commas.
        let of_nodes: [&[&str]; 9] = [
            &["trait", "add"],
            &["trait", "remove"],
            &["trait", "suppress"],
            &["trait", "unsuppress"],
            &["role", "add"],
            &["role", "remove"],
            &["role", "refresh"],
            &["tag", "assign"],
            &["tag", "unassign"],
        ];
        for verb in of_nodes {
            for nodes in ["n1,", ",n1", "n1,,n2", "n1, ", ",", "node/", "node/n1,"] {
                let line = [verb, &[nodes, "x"]].concat();
                let error = refused(&line).expect_err(&format!("{line:?}"));
                assert!(error.ends_with("is empty: name what is meant") && error.contains(nodes), "{line:?}: {error}");
            }
            refused(&[verb, &["n1,n2", "x"]].concat()).unwrap();
            refused(&[verb, &["node/n1", "node/n2", "x"]].concat()).unwrap();
        }
        for line in [
            &["trait", "remove", "n1,", "--all"][..],
            &["trait", "remove", "n1", "CUSTOM_A,"],
            &["delete", "node", "n1", "n2,"],
            &["delete", "node/n1", "node/"],
            &["delete", "nodegroup", "c/g", "c/"],
            &["delete", "nodegroup", "/g"],
            &["node", "park", "n1", "node/"],
            &["node", "unpark", "n1,"],
            &["node", "hold", "n1,"],
            &["node", "unhold", "n1,"],
            &["node", "move", "n1", "c/"],
            &["node", "move", "n1,", "c/g"],
            &["node", "rename", "n1", "/"],
            &["pause", "nodegroup", "c/g", "/g"],
            &["resume", "cluster", "c,"],
            &["label", "node", "n1,", "a=b"],
            &["label", "node", "n1", "-"],
            &["label", "node", "n1", "=b"],
            &["label", "node/", "a=b"],
            &["tag", "delete", "t,", "--cluster", "c"],
            &["wait", "node", "n1,", "--for", "deleted"],
            &["describe", "node/"],
            &["get", "node/"],
            &["get", "nodes", "--trait", "CUSTOM_A,"],
            &["get", "nodes", "--trait-any", ",CUSTOM_A"],
            &["get", "nodes", "--not-trait", "CUSTOM_A,,CUSTOM_B"],
            &["get", "nodes", "--not-trait-any", ","],
            &["get", "nodes", "--tag", "a,"],
            &["get", "nodes", "--role", "a,"],
            &["get", "nodes", "--nodegroup", "c/"],
            &["audit", "node/"],
            &["audit", "nodegroup/c/"],
            &["audit", "nodegroup//g"],
            &["token", "create", "--nodegroup", "c/"],
        ] {
            let error = refused(line).expect_err(&format!("{line:?}"));
            assert!(error.starts_with("a part of ") && error.ends_with("is empty: name what is meant"), "{error}");
        }
        for line in [
            &["create", "allocation", "--resource-class", "r", "--candidate-node", "n1,"][..],
            &["create", "allocation", "--resource-class", "r", "--trait", "CUSTOM_A,"],
            &["create", "nodegroup", "c", "g", "--roles", "web,"],
        ] {
            let error = refused(line).expect_err(&format!("{line:?}"));
            assert!(error.starts_with("--") && error.ends_with("is empty: name what is meant"), "{error}");
        }
        for line in [
            &["label", "node", "n1", "a=b,", "c-", "d=", "e=/f/"][..],
            &["label", "node", "web-", "a-"],
            &["get", "nodes", "-l", "a in (x,)"],
            &["delete", "nodegroup", "c/g", "c/h"],
            &["delete", "nodegroup/c/g", "nodegroup/c/h"],
            &["node", "move", "n1", "n2", "c/g"],
        ] {
            refused(line).unwrap();
        }
    }

    #[test]
    fn every_shell_has_completions_of_every_command() {
        command_line().debug_assert();
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command_line(), "stemma", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("nodegroup") && script.contains("not-inherited"), "{shell}");
        }
    }
}

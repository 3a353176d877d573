//! The command `stemma` of operators. It reads and writes objects of a controller. It also checks and renders manifests
//! without a controller.

#[macro_use]
mod output; // Declared first, because the other modules use its macros.

mod api;
mod args;
mod command;
mod completion;
mod context;
mod context_dir;
mod directory;
mod exit;
mod explain;
mod host_limit;
mod include_path;
mod local;
mod manifest;
mod path;
mod problem;
mod settings;
mod source_map;
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

use api::ApiClient;
use args::{
    Args, CatalogCommand, Command, ExplainTarget, GetTarget, ImportMode, KindArg, ObjectArgs, ObjectRef, ReleaseCommand,
    TokenCommand,
};
use command::batch::Targets;
use command::import::ReleaseImport;
use command::{access, apply, describe, label, node, primary, read, tasks, token, watch, write};
use exit::Exit;

/// The commands that change nothing, each as the words of its command line.
const READ_COMMANDS: &[&[&str]] = &[
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

/// The ids of the global options that only commands that write use. Exception: `get -o manifest` uses `manager` to
/// select the fields to print. The option `--strict` of `validate` is that command's own, not the global one.
const WRITE_OPTIONS: &[&str] = &["manager", "reason", "dry_run", "strict", "max_nodes", "yes"];

/// The commands that pause or resume whole clusters and node groups. They parse [`NODE_OPTIONS`] only to refuse them,
/// so their help hides these options.
const LEVEL_COMMANDS: [&str; 2] = ["pause", "resume"];

/// The ids of the selection options that apply to nodes only.
const NODE_OPTIONS: [&str; 2] = ["state", "nodegroup"];

/// The ids of the options that may have an empty value. An empty description or title removes the stored text. Empty
/// labels are refused later, with a more specific message.
const EMPTY_ALLOWED: [&str; 3] = ["description", "title", "labels"];

/// The ids of the arguments that contain names of objects, tags, roles or traits. An argument may contain several
/// names, separated by commas. A name may be a path, such as `CLUSTER/GROUP`.
const NAME_ARGUMENTS: [&str; 18] = [
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

/// Returns clap's command line, also for completion and man pages. The help of a read command hides the options of
/// writes. The help of `pause` and `resume` hides the options that select nodes.
pub fn command_line() -> clap::Command {
    let command = Args::command();
    let write_options = command.get_arguments().filter(|option| WRITE_OPTIONS.contains(&option.get_id().as_str()));
    let hidden_args: Vec<Arg> = write_options.map(|option| option.clone().hide(true)).collect();
    // The help of `get` shows `--manager`, because `get -o manifest` prints only the fields of that manager.
    let export_options: Vec<Arg> = hidden_args.iter().filter(|option| option.get_id().as_str() != "manager").cloned().collect();
    let command = READ_COMMANDS.iter().fold(command, |command, path| {
        with_options(command, path, if *path == ["get"] { &export_options } else { &hidden_args })
    });
    // These options are only parsed to give a clear error.
    let hide = |command: clap::Command, option| command.mut_arg(option, |option| option.hide(true));
    LEVEL_COMMANDS
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, |command| NODE_OPTIONS.into_iter().fold(command, hide)))
}

/// Adds options to the subcommand at `path`, where they replace the global options with the same ids. An option that
/// the subcommand defines itself, such as `--strict` of `validate`, is not replaced.
fn with_options(command: clap::Command, path: &[&'static str], options: &[Arg]) -> clap::Command {
    match path {
        [] => {
            let has = |option: &Arg| command.get_arguments().any(|argument| argument.get_id() == option.get_id());
            let new_options: Vec<Arg> = options.iter().filter(|option| !has(option)).cloned().collect();
            command.args(new_options)
        }
        [first, subcommand_path @ ..] => command.mut_subcommand(first, |command| with_options(command, subcommand_path, options)),
    }
}

/// Runs the command with the arguments of the process. A request of a shell for completions is answered first, and then
/// the process exits.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(|| completion::with_completions(command_line())).var(completion::VARIABLE).complete();
    let mut command = command_line();
    let matches = command.get_matches_mut();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let is_write = args.command.is_write();
    if is_write {
        // A write must finish even if the reader of its output has ended.
        output::ignore_broken_pipe();
    }
    match check_not_blank(&command, &matches).and_then(|()| run_command(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, is_write),
    }
}

/// Returns whether a text is empty or blank.
fn is_blank(text: &OsStr) -> bool {
    text.to_str().is_some_and(name::is_blank)
}

/// Returns whether a part of a name is empty: the key of `KEY=VALUE` or `KEY-`, an entry between commas, or a step
/// between slashes.
fn has_empty_part(text: &OsStr) -> bool {
    let Some(text) = text.to_str() else { return false };
    match text.split_once('=') {
        // The value after the equals sign may be empty.
        Some((key, _)) => name::is_blank(key),
        None => text.strip_suffix('-').unwrap_or(text).split([',', '/']).any(name::is_blank),
    }
}

/// Refuses empty arguments, and names with an empty part, of a command and its subcommands. A variable that is not set
/// in a script produces an empty argument. An empty name, selector or filter must never select everything. The
/// arguments in `EMPTY_ALLOWED` may be empty. This check runs before the first request, so a refused command has
/// changed nothing.
///
/// # Errors
/// Fails with a usage error that names the argument as the help does: by its option, its environment variable or its
/// placeholder.
fn check_not_blank(command: &clap::Command, matches: &ArgMatches) -> Result<()> {
    let mut arguments = command.get_arguments().filter(|argument| !EMPTY_ALLOWED.contains(&argument.get_id().as_str()));
    arguments.try_for_each(|argument| check_argument(argument, matches))?;
    match matches.subcommand() {
        Some((name, subcommand_matches)) => {
            let command = command.find_subcommand(name).expect("a subcommand that was matched");
            check_not_blank(command, subcommand_matches)
        }
        None => Ok(()),
    }
}

/// Refuses a value that is empty or blank, and a name with an empty part. Default values are not checked.
fn check_argument(argument: &Arg, matches: &ArgMatches) -> Result<()> {
    let id = argument.get_id().as_str();
    let option = argument.get_long().map(|long| format!("--{long}"));
    let name = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => option.unwrap_or_else(|| argument.get_value_names().unwrap_or_default().join(" ")),
        Some(ValueSource::EnvVariable) => argument.get_env().unwrap_or_default().to_string_lossy().into_owned(),
        Some(_) | None => return Ok(()),
    };
    let usage_error = |subject: String| Err(Exit::Usage.with_message(format!("{subject} is empty: give a value")));
    for text in matches.get_raw(id).into_iter().flatten() {
        if is_blank(text) {
            return usage_error(name);
        }
        if NAME_ARGUMENTS.contains(&id) && has_empty_part(text) {
            return usage_error(format!("a part of {name} {}", quote(&text.to_string_lossy())));
        }
    }
    Ok(())
}

/// Runs a command. Without `--manager`, the file `stemma.toml` in the directory of the manifests sets the manager.
fn run_command(mut args: Args) -> Result<()> {
    if let Some(files) = args.command.manifests().filter(|_| args.global.manager.is_none()) {
        args.global.manager = settings::directory_manager(files)?;
    }
    match args.command {
        // These commands never contact a controller.
        Command::Completion { shell } => completion::print_script(shell),
        Command::Resolve(files) => local::resolve(&files, args.global.output),
        Command::Validate { files, strict } => local::validate_files(&files, strict, args.global.output),
        Command::Fields { path } => local::print_fields(path.as_deref(), args.global.output),
        Command::Render { files, node, task } => local::render(&files, &node, task.as_deref(), args.global.output),
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(run_remote(args.global, command))
        }
    }
}

/// Runs a command that may need a controller. The hash of the root certificate needs none. The imports create their own
/// clients, because they have other default managers, and the import of a release may only print.
async fn run_remote(global: args::GlobalArgs, command: Command) -> Result<()> {
    if let Command::Token(TokenCommand::CaHash) = command {
        outln!("{}", api::ca_hash(&global)?);
        return Ok(());
    }
    if let Command::Release(ReleaseCommand::Import { fuel, name, version, graph, force }) = &command {
        let release_import = ReleaseImport { path: fuel, graph, name, version: version.as_deref(), force: *force };
        return command::import::import_release(&global, release_import).await;
    }
    if let Command::Catalog(CatalogCommand::Import { paths, builtin, diff, merge, overwrite }) = &command {
        let mode = match (diff, merge, overwrite) {
            (true, _, _) => ImportMode::Diff,
            (_, true, _) => ImportMode::Merge,
            (_, _, true) => ImportMode::Overwrite,
            (false, false, false) => ImportMode::Keep,
        };
        return command::catalog::import(&global, paths, *builtin, mode).await;
    }
    let api = &mut ApiClient::new(&global)?;
    if command.is_write() { run_write(api, &global, command).await } else { run_read(api, &global, command).await }
}

/// Runs a command that changes nothing.
async fn run_read(api: &mut ApiClient, global: &args::GlobalArgs, command: Command) -> Result<()> {
    let output = global.output;
    match command {
        Command::Get { raw: Some(path), .. } => read::get_raw(api, &path).await,
        Command::Get { subject: Some(GetTarget::Tasks(_)), watch: true, .. } => {
            Err(Exit::Usage.with_message("tasks can't be watched: `stemma events` shows changes of nodes"))
        }
        Command::Get { subject: Some(GetTarget::Tasks(name)), names, filter, .. } => {
            let names: Vec<String> = name.into_iter().chain(names).collect();
            tasks::get(api, &names, &filter, output).await
        }
        Command::Get { subject: Some(GetTarget::Objects(subject)), names, filter, watch, .. } => {
            let (kind, names) = split_one_kind(&subject, names)?;
            if watch {
                let options = watch::WatchOptions { kind, names: &names, filter: &filter, output };
                return Box::pin(watch::watch(api, options)).await;
            }
            read::get(api, kind, &names, &filter, output).await
        }
        Command::Describe { subject: GetTarget::Tasks(id), name } => {
            let name = id.or(name).ok_or_else(|| Exit::Usage.with_message("which task? name one"))?;
            tasks::describe(api, &name, output).await
        }
        Command::Describe { subject: GetTarget::Objects(subject), name } => {
            let (kind, names) = split_one_kind(&subject, name)?;
            let name = names.first().ok_or_else(|| Exit::Usage.with_message(format!("which {}? name one", kind.name())))?;
            describe::describe(api, kind, kind.bare_name(name), output).await
        }
        Command::Audit(args) => command::audit::audit(api, &args, output).await,
        Command::Events(args) => Box::pin(command::events::events(api, &args, output)).await,
        Command::Wait(args) => {
            let (kind, names) = split_one_kind(&args.subject, args.names.clone())?;
            let names = command::events::selected_names(api, kind, names, &args.selection).await?;
            Box::pin(command::events::wait(api, kind, &names, &args)).await
        }
        Command::Explain { kind: ExplainTarget::Object(kind), name, question, about } => {
            read::explain(api, kind, &name, question.zip(about.as_deref()), output).await
        }
        Command::Explain { kind: ExplainTarget::Key(kind), name, question: None, .. } => {
            read::explain_key(api, kind, &name, output).await
        }
        Command::Explain { .. } => {
            Err(Exit::Usage.with_message("explain needs a node and the subject to explain, or only a key"))
        }
        Command::Trait(subcommand) => node::traits(api, subcommand, output).await,
        Command::Tag(subcommand) => write::tag(api, subcommand, output).await,
        Command::Primary(subcommand) => primary::primary(api, subcommand, output).await,
        Command::Token(subcommand) => token::token(api, global, subcommand).await,
        Command::Principal(subcommand) => access::principal(api, global, subcommand).await,
        Command::Cert(subcommand) => access::cert(api, global, subcommand).await,
        _ => unreachable!("clap gives `get` a kind or --raw, and commands that need no controller ran before"),
    }
}

/// Returns the kind and the names of the objects in the arguments. Fails with a usage error if they name objects of
/// different kinds.
fn split_one_kind(subject: &ObjectRef, names: impl IntoIterator<Item = String>) -> Result<(KindArg, Vec<String>)> {
    subject.with_names(names).map_err(|sentence| Exit::Usage.with_message(sentence))
}

/// Runs a command that changes something.
async fn run_write(api: &mut ApiClient, global: &args::GlobalArgs, command: Command) -> Result<()> {
    let output = global.output;
    match command {
        Command::Apply { files, force, adopt } => {
            apply::apply(api, &files, apply::ApplyOptions { force, adopt: adopt.as_deref() }, output).await
        }
        Command::Create(subcommand) => write::create(api, subcommand, output).await,
        Command::Delete(arguments) => {
            let objects = Targets::from_args(api, &arguments).await?;
            write::delete(api, &objects, output).await
        }
        Command::Label { subject, words, selection, not_inherited, merge, replace, overwrite } => {
            let merge = if merge { Some(true) } else { replace.then_some(false) };
            let needs_name = subject.name.is_none() && selection.is_empty();
            let needs_change = not_inherited.is_empty() && merge.is_none();
            let (names, changes) = label::split_words(&words, needs_name, needs_change);
            let objects = Targets::from_args(api, &ObjectArgs { subject, names: names.to_vec(), selection }).await?;
            let change = label::LabelChange { changes, not_inherited: &not_inherited, merge, overwrite };
            label::label(api, &objects, change, output).await
        }
        Command::Node(subcommand) => node::node(api, subcommand, global.reason.as_deref(), output).await,
        Command::Pause(subcommand) => write::pause(api, &subcommand, true, output).await,
        Command::Resume(subcommand) => write::pause(api, &subcommand, false, output).await,
        Command::Trait(subcommand) => node::traits(api, subcommand, output).await,
        Command::Role(subcommand) => node::role(api, subcommand, output).await,
        Command::Tag(subcommand) => write::tag(api, subcommand, output).await,
        Command::Primary(subcommand) => primary::primary(api, subcommand, output).await,
        Command::Token(subcommand) => token::token(api, global, subcommand).await,
        Command::Principal(subcommand) => access::principal(api, global, subcommand).await,
        Command::Cert(subcommand) => access::cert(api, global, subcommand).await,
        _ => unreachable!("imports ran before, and other commands write nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each top-level command without subcommands is in `READ_COMMANDS` or in the list of this test. The last part
    /// checks single options of single commands.
    #[test]
    fn help_of_command_shows_only_used_options() {
        let help = |path: &[&str]| {
            let error = command_line().try_get_matches_from([&["stemma"], path, &["--help"]].concat()).unwrap_err();
            error.to_string()
        };
        for path in READ_COMMANDS {
            let text = help(path);
            assert!(text.contains("--context") && !text.contains("--dry-run") && !text.contains("--yes"), "{text}");
        }
        let root_command = Args::command();
        let leaf_names = root_command.get_subcommands().filter(|command| !command.has_subcommands()).map(clap::Command::get_name);
        let write_commands = ["apply", "delete", "label", "pause", "resume"];
        for name in leaf_names.filter(|name| !READ_COMMANDS.contains(&&[*name][..])) {
            assert!(write_commands.contains(&name), "{name} writes, or is missing in READ_COMMANDS");
        }
        assert!(help(&["wait"]).contains("--selector"));
        for path in [&["label"][..], &["apply"], &["trait", "add"], &["token", "create"]] {
            assert!(help(path).contains("--dry-run"), "{path:?}");
        }
        for name in LEVEL_COMMANDS {
            let text = help(&[name]);
            assert!(text.contains("--cluster") && !text.contains("--state") && !text.contains("--nodegroup"), "{text}");
        }
        assert!(help(&["get"]).contains("--state"));
        assert!(help(&["get"]).contains("--manager") && !help(&["events"]).contains("--manager"));
        for (path, has_strict) in [(&["label"][..], true), (&["node", "park"], true), (&["validate"], true), (&["get"], false)] {
            assert_eq!(help(path).contains("--strict"), has_strict, "{path:?}");
        }
        let matches = command_line().try_get_matches_from(["stemma", "get", "nodes", "--dry-run"]).unwrap();
        assert!(Args::from_arg_matches(&matches).unwrap().global.dry_run, "a hidden option is still accepted");
    }

    /// The texts are compared without line breaks, because the help is wrapped.
    #[test]
    fn y09_help_of_stopping_command_names_effect_and_end() {
        for (path, phrases) in [
            (
                &["node", "park"][..],
                &["Stop running tasks on nodes", "Other hosts stop waiting", "primary stays", "`unpark`"][..],
            ),
            (&["node", "hold"], &["no new task set", "go on with the one", "`unhold`"]),
            (&["pause"], &["no new task set", "go on with the one", "`resume`"]),
        ] {
            let text = command_line().try_get_matches_from([&["stemma"], path, &["--help"]].concat()).unwrap_err();
            let words = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            for phrase in phrases {
                assert!(words.contains(phrase), "{path:?} does not contain {phrase:?}: {words}");
            }
        }
    }

    #[test]
    fn help_of_validate_names_status_of_findings() {
        let text = command_line().try_get_matches_from(["stemma", "validate", "--help"]).unwrap_err();
        let words = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        for phrase in ["Findings end with status 0 unless --strict", "findings end with status 0, even errors"] {
            assert!(words.contains(phrase), "{phrase:?} in {words}");
        }
    }

    /// An argument with only blanks and invisible characters counts as empty. So does a missing entry after a comma.
    #[test]
    fn x06_check_not_empty_rejects_empty_argument() {
        let check = |line: &[&str]| {
            let mut command = command_line();
            let matches = command.try_get_matches_from_mut([&["stemma"], line].concat()).unwrap();
            check_not_blank(&command, &matches).map_err(|error| error.to_string())
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
            let error = check(line).expect_err(&format!("{line:?}"));
            assert!(error.ends_with("is empty: give a value"), "{line:?}: {error}");
        }
        // A description, a title or the value of a label may be empty.
        for line in [
            &["principal", "update", "ann", "--description", ""][..],
            &["label", "node", "n1", "tier="],
            &["tag", "update", "t", "--cluster", "c", "--title", ""],
        ] {
            check(line).unwrap();
        }
    }

    #[test]
    fn x06_check_not_empty_rejects_empty_part_of_name() {
        let check = |line: &[&str]| {
            let mut command = command_line();
            let matches = command.try_get_matches_from_mut([&["stemma"], line].concat()).unwrap();
            check_not_blank(&command, &matches).map_err(|error| error.to_string())
        };
        // The commands that take several nodes, separated by commas.
        let node_commands: [&[&str]; 9] = [
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
        for verb in node_commands {
            for nodes in ["n1,", ",n1", "n1,,n2", "n1, ", ",", "node/", "node/n1,"] {
                let line = [verb, &[nodes, "x"]].concat();
                let error = check(&line).expect_err(&format!("{line:?}"));
                assert!(error.ends_with("is empty: give a value") && error.contains(nodes), "{line:?}: {error}");
            }
            check(&[verb, &["n1,n2", "x"]].concat()).unwrap();
            check(&[verb, &["node/n1", "node/n2", "x"]].concat()).unwrap();
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
            let error = check(line).expect_err(&format!("{line:?}"));
            assert!(error.starts_with("a part of ") && error.ends_with("is empty: give a value"), "{error}");
        }
        for line in [
            &["create", "allocation", "--resource-class", "r", "--candidate-node", "n1,"][..],
            &["create", "allocation", "--resource-class", "r", "--trait", "CUSTOM_A,"],
            &["create", "nodegroup", "c", "g", "--roles", "web,"],
        ] {
            let error = check(line).expect_err(&format!("{line:?}"));
            assert!(error.starts_with("--") && error.ends_with("is empty: give a value"), "{error}");
        }
        for line in [
            &["label", "node", "n1", "a=b,", "c-", "d=", "e=/f/"][..],
            &["label", "node", "web-", "a-"],
            &["get", "nodes", "-l", "a in (x,)"],
            &["delete", "nodegroup", "c/g", "c/h"],
            &["delete", "nodegroup/c/g", "nodegroup/c/h"],
            &["node", "move", "n1", "n2", "c/g"],
        ] {
            check(line).unwrap();
        }
    }

    #[test]
    fn completion_script_has_all_commands_for_each_shell() {
        command_line().debug_assert();
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command_line(), "stemma", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("nodegroup") && script.contains("not-inherited"), "{shell}");
        }
    }
}

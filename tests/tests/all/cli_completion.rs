//! Completions of a real shell with the script of `stemma completion`, with and without a controller.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{self, eventually};

/// Manifests of the objects whose names bash completes in these tests.
const COMPLETED_OBJECTS: &str = "kind: Release\nname: site\nversion: \"1\"\nroles: {web: {}}\n---\n\
    kind: Cluster\nname: eu\nrelease: site@1\n---\nkind: NodeGroup\ncluster: eu\nname: web\n---\n\
    kind: Node\nname: web-1\nnodegroup: eu/web\n---\nkind: Node\nname: web-2\n---\nkind: Node\nname: db-1\n";

/// Returns the completions that bash proposes for the last of these words. `context` is the path of a context file.
fn bash_candidates(context: &str, words: &[&str]) -> Result<Vec<String>> {
    let program = program::path("stemma");
    let dir = program.parent().context("a program has a directory")?;
    let current_word = words.last().context("a word")?;
    let previous_word = words[words.len() - 2];
    // As bash does, the script calls the completion function with the command, the current word and the previous word.
    let script = format!(
        "source <(stemma completion bash) || exit 9\n\
         COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9\n\
         call=$(complete -p stemma); call=${{call#*-F }}; ${{call%% *}} stemma '{current_word}' '{previous_word}'\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["--norc", "-c", &script, "bash"])
        .args(words)
        .env("PATH", path)
        .env("STEMMA_CONTEXT", context)
        .output()
        .context("bash")?;
    let to_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", to_text(&output.stderr));
    Ok(to_text(&output.stdout).lines().map(str::to_owned).filter(|line| !line.is_empty()).collect())
}

#[test]
fn w13_bash_completes_kinds_and_names() -> Result<()> {
    let fleet = TempFleet::start()?;
    let file = fleet.dir().join("site.yaml");
    std::fs::write(&file, COMPLETED_OBJECTS)?;
    fleet.stemma(&["apply", "-f", &file.to_string_lossy()])?;
    let context = fleet.context().to_string_lossy().into_owned();
    for (words, expected) in [
        (&["get", "cl"][..], &["cluster", "clustertemplate"][..]),
        (&["describe", "node"], &["node", "nodegroup"]),
        (&["delete", "tok"], &["token"]),
        (&["label", "r"], &["release"]),
        (&["explain", "no"], &["node"]),
        (&["get", "node", "w"], &["web-1", "web-2"]),
        (&["get", "nodes", "web-1", "d"], &["db-1"]),
        (&["get", "node/w"], &["node/web-1", "node/web-2"]),
        (&["delete", "node/web-1", "node/d"], &["node/db-1"]),
        (&["describe", "nodegroup", "eu/w"], &["eu/web"]),
        (&["describe", "release", "s"], &["site@1"]),
        (&["pause", "cluster", "e"], &["eu"]),
        (&["explain", "node", "db"], &["db-1"]),
        (&["label", "node", "web-"], &["web-1", "web-2"]),
        (&["node", "park", "w"], &["web-1", "web-2"]),
        (&["trait", "add", "db"], &["db-1"]),
        (&["get", "nodes", "--cluster", "e"], &["eu"]),
        (&["get", "nodes", "--nodegroup", "eu/w"], &["eu/web"]),
        (&["--output", "name", "get", "node", "db"], &["db-1"]),
        (&["get", "nodes", "--state", "fa"], &["failed"]),
        (&["node", "unh"], &["unhold"]),
        (&["get", "node", "nosuch"], &[]),
        (&["create", "node", "we"], &[]),
    ] {
        let words = [&["stemma"], words].concat();
        // On a busy machine the controller may return the names too late. Then there are no candidates.
        eventually("the expected completions", || {
            let proposed = bash_candidates(&context, &words)?;
            ensure!(proposed == expected, "{words:?}: {proposed:?}");
            Ok(())
        })?;
    }
    let kinds = bash_candidates(&context, &["stemma", "get", ""])?;
    ensure!(kinds.iter().any(|kind| kind == "node") && kinds.iter().any(|kind| kind == "release"), "{kinds:?}");
    Ok(())
}

/// The first completion of a shell has candidates. In this test, zsh loads the script from a file of `fpath`.
#[test]
fn zsh_and_fish_completion_returns_commands() -> Result<()> {
    let program = program::path("stemma");
    let path = format!("{}:/usr/bin:/bin", program.parent().context("a program has a directory")?.display());
    let dir = tempfile::tempdir()?;
    let run = |shell: &str, script: &str| -> Result<String> {
        let output = Command::new(shell).args(["-c", script]).env("PATH", &path).current_dir(dir.path()).output();
        Ok(String::from_utf8(output.with_context(|| shell.to_owned())?.stdout)?)
    };
    let zsh = "stemma completion zsh > _stemma; fpath=(. $fpath); autoload -Uz _stemma; compdef() { }; \
               _describe() { print -l -- ${(P)3} }; words=(stemma expl); CURRENT=2; _stemma";
    let fish = "stemma completion fish | source; complete -C 'stemma expl'";
    for (shell, script) in [("zsh", zsh), ("fish", fish)] {
        let candidates = run(shell, script)?;
        ensure!(candidates.starts_with("explain"), "{shell}: {candidates:?}");
    }
    Ok(())
}

#[test]
fn w13_completion_is_silent_when_controller_is_unreachable() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let context = dir.path().join("context.toml");
    // A port that accepts connections and never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    for url in [format!("http://{}", silent.local_addr()?), "http://127.0.0.1:1".to_owned()] {
        std::fs::write(&context, format!("url = \"{url}\"\n"))?;
        assert_eq!(bash_candidates(&context.to_string_lossy(), &["stemma", "get", "node", "w"])?, [""; 0]);
        assert_eq!(bash_candidates(&context.to_string_lossy(), &["stemma", "get", "nodeg"])?, ["nodegroup"]);
    }
    assert_eq!(bash_candidates("/none", &["stemma", "get", "node", "w"])?, [""; 0]);
    Ok(())
}

/// Previously, an unset variable in `STEMMA_CONTEXT=$name` made the command read `~/.config/stemma/.toml`.
#[test]
fn x06_empty_context_variable_is_refused() -> Result<()> {
    let home = tempfile::tempdir()?;
    for context in ["", " ", "\u{200b}"] {
        let output = Command::new(program::path("stemma"))
            .args(["get", "nodes"])
            .env("HOME", home.path())
            .env("STEMMA_CONTEXT", context)
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2) && stderr.contains("STEMMA_CONTEXT is empty"), "{context:?}: {stderr}");
        ensure!(!stderr.contains(".toml"), "{stderr}");
    }
    Ok(())
}

/// Files in the working directory may be from another person, for example from an unpacked archive. So the command
/// reads a context from there only if `--context` or `STEMMA_CONTEXT` gives a path.
#[test]
fn x06_context_of_working_directory_is_ignored() -> Result<()> {
    let (home, work) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let config_dir = work.path().join(".config/stemma");
    std::fs::create_dir_all(&config_dir)?;
    for file in [config_dir.join("default.toml"), work.path().join("default"), work.path().join("prod")] {
        std::fs::write(file, "url = \"https://127.0.0.1:1\"\n")?;
    }
    let run_and_get_stderr = |home: &str, words: &[&str]| -> Result<String> {
        let mut stemma = Command::new(program::path("stemma"));
        stemma.args(words).args(["get", "nodes"]).current_dir(work.path());
        let output = stemma.env("HOME", home).env_remove("STEMMA_CONTEXT").output()?;
        ensure!(!output.status.success(), "{home} {words:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let home = home.path().to_string_lossy().into_owned();
    let cases: [(&str, &[&str], &str); 5] = [
        ("", &[], "HOME is not set to an absolute path"),
        (".", &[], "HOME is not set to an absolute path"),
        (&home, &[], "/.config/stemma/default.toml: name one with --context"),
        (&home, &["--context", "prod"], "write ./prod"),
        (&home, &["--context", "./prod"], "the context names no `ca`"),
    ];
    for (home, words, expected) in cases {
        let stderr = run_and_get_stderr(home, words)?;
        ensure!(stderr.contains(expected), "{home} {words:?}: {stderr}");
    }
    Ok(())
}

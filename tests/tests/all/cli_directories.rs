//! Which directories the operator's command reads manifests from.

use anyhow::Result;
use stemma_tests::program::run;

#[test]
fn w13_directories_below_are_read_when_told_and_never_passed_over_in_silence() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (file, text) in [
        ("release.yaml", "kind: Release\nname: r\nroles: {web: {}}\n"),
        (
            "clusters/eu/eu.yaml",
            "kind: Cluster\nname: eu\nrelease: r\n---\nkind: NodeGroup\ncluster: eu\nname: web\nroles: [web]\n",
        ),
        ("clusters/eu/nodes/web.yaml", "kind: Node\nname: web-1\nnodegroup: eu/web\n"),
        (".hidden/odd.yaml", "no: manifest\n"),
        ("parts/tasks.yaml", "- {id: a}\n"),
    ] {
        let file = dir.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap_or(dir.path()))?;
        std::fs::write(file, text)?;
    }
    std::os::unix::fs::symlink(dir.path(), dir.path().join("clusters/round"))?;
    let path = dir.path().to_string_lossy().into_owned();
    let resolve = |more: &[&str], path: &str| run("stemma", [&["resolve", "-o", "name", "-f", path], more].concat());

    let alone = resolve(&[], &path)?;
    let told = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(alone.status.success() && alone.stdout.is_empty(), "{told}");
    let warning = format!(
        "warning: {path}/clusters/eu: manifests stand there and are not read; -R reads the directories below too"
    );
    assert!(told.contains(&warning) && told.matches("warning").count() == 1, "{told}");

    let clusters = format!("{path}/clusters");
    let whole = run("stemma", ["resolve", "-o", "name", "-f", &format!("{path}/release.yaml"), "-R", "-f", &clusters])?;
    let told = String::from_utf8_lossy(&whole.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&whole.stdout), "node/web-1\n", "{told}");
    assert!(!told.contains("warning"), "{told}");
    // A part that a release would include is no object, and is told with its place.
    let wrong = resolve(&["-R"], &path)?;
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("parts/tasks.yaml") && !told.contains(".hidden"), "{told}");
    Ok(())
}

#[test]
fn y08_what_is_left_out_of_a_directory_is_said_once_and_not_read() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
    write(
        "site.yaml",
        "kind: Cluster\nname: c\n---\nkind: NodeGroup\ncluster: c\nname: g\n---\nkind: Node\nname: n\nnodegroup: c/g\n",
    )?;
    let left = [".site.yaml", "#site.yaml#", "site.bak.yaml", "site.yaml.rpmsave", "site.yaml~"];
    for name in left.into_iter().chain(["README.md", "motd.yaml.j2", "deploy.sh"]) {
        write(name, "kind: Node\nname: other\n")?;
    }
    std::fs::create_dir(dir.path().join(".git.yaml"))?;
    let path = dir.path().to_string_lossy().into_owned();
    for command in ["resolve", "validate"] {
        let read = run("stemma", [command, "-o", "name", "-f", &path])?;
        let told = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(read.status.success(), "{told}");
        let [hidden, sharp, ..] = left;
        let warning = format!(
            "warning: {path}: left out: {sharp}, {hidden}, site.bak.yaml, site.yaml.rpmsave, site.yaml~; of a directory "
        );
        assert!(told.contains(&warning) && told.matches("warning").count() == 1, "{told}");
        assert!(command == "validate" || read.stdout == b"node/n\n", "{}", String::from_utf8_lossy(&read.stdout));
    }
    let named = format!("{path}/.site.yaml");
    let read = run("stemma", ["resolve", "-o", "name", "-f", &named])?;
    assert!(!String::from_utf8_lossy(&read.stderr).contains("left out"), "what is named itself is read");
    Ok(())
}

#[test]
fn y08_a_directory_that_was_put_away_is_not_read_with_the_others_and_said_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let put = |directory: &str, name: &str| -> Result<()> {
        let directory = dir.path().join(directory);
        std::fs::create_dir_all(&directory)?;
        Ok(std::fs::write(directory.join("a.yaml"), format!("kind: Node\nname: {name}\n"))?)
    };
    for (directory, name) in [("sub", "n1"), ("sub/deep", "n2"), ("10-b_C", "n3")] {
        put(directory, name)?;
    }
    for directory in ["d 1", "sub.bak", "sub/deep/old~", "sub/x.d", "x.yaml.d", "sub~", ".git", "sub.bak/deep"] {
        put(directory, "left")?;
    }
    let path = dir.path().to_string_lossy().into_owned();
    let read = run("stemma", ["resolve", "-o", "name", "-R", "-f", &path])?;
    let told = String::from_utf8_lossy(&read.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&read.stdout), "node/n1\nnode/n2\nnode/n3\n", "{told}");
    let warning = format!(
        "warning: {path}: directories left out: d 1, sub/deep/old~, sub/x.d, sub.bak, sub~ and 1 more; -R reads a directory with a name of "
    );
    assert!(told.contains(&warning) && told.matches("warning").count() == 1, "{told}");
    let named = run("stemma", ["resolve", "-o", "name", "-f", &format!("{path}/sub.bak")])?;
    assert_eq!(String::from_utf8_lossy(&named.stdout), "node/left\n", "what is named itself is read");
    Ok(())
}

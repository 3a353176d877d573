//! The directories from which the operator's command reads manifests.

use anyhow::Result;
use stemma_tests::program::run;

#[test]
fn w13_apply_reads_subdirectories_on_request_and_warns_otherwise() -> Result<()> {
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
    let warning =
        format!("warning: {path}/clusters/eu: contains manifests that are not read; -R also reads the directories below");
    assert!(told.contains(&warning) && told.matches("warning").count() == 1, "{told}");

    let clusters = format!("{path}/clusters");
    let whole = run("stemma", ["resolve", "-o", "name", "-f", &format!("{path}/release.yaml"), "-R", "-f", &clusters])?;
    let told = String::from_utf8_lossy(&whole.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&whole.stdout), "node/web-1\n", "{told}");
    assert!(!told.contains("warning"), "{told}");
    // A file that a release includes is not an object. The error contains its position.
    let wrong = resolve(&["-R"], &path)?;
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("parts/tasks.yaml") && !told.contains(".hidden"), "{told}");
    Ok(())
}

#[test]
fn y08_apply_reports_skipped_file_once() -> Result<()> {
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
fn y08_apply_reports_skipped_directory_once() -> Result<()> {
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

#[test]
fn y08_apply_reads_path_once_when_named_twice() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (file, name) in [
        ("a.yaml", "n1"),
        ("a.yaml~", "left"),
        ("sub/b.yaml", "n2"),
        ("sub/b.yaml.bak", "left"),
        ("sub/deep/c.yaml", "n3"),
        ("sub/old~/d.yaml", "n4"),
    ] {
        let file = dir.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap_or(dir.path()))?;
        std::fs::write(file, format!("kind: Node\nname: {name}\n"))?;
    }
    let path = dir.path().to_string_lossy().into_owned();
    let below = |name: &str| format!("{path}/{name}");
    // Each line of standard error is a warning here, and begins with its file.
    let read = |more: &[&str], paths: &[String]| -> Result<(String, Vec<String>)> {
        let named = paths.iter().flat_map(|path| ["-f", path.as_str()]);
        let read = run("stemma", ["resolve", "-o", "name"].iter().chain(more).copied().chain(named))?;
        let told = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(read.status.success(), "{told}");
        let warnings = told.lines().map(|line| line.split(';').next().unwrap_or_default().replace(&path, "DIR"));
        Ok((String::from_utf8_lossy(&read.stdout).into_owned(), warnings.collect()))
    };
    let (top, sub) = ("warning: DIR: left out: a.yaml~", "warning: DIR/sub: left out: b.yaml.bak");
    let old = "warning: DIR: directories left out: sub/old~";
    let unread = |dir: &str| format!("warning: DIR/{dir}: contains manifests that are not read");
    for (more, paths, nodes, warnings) in [
        (&[][..], vec![path.clone(), path.clone()], "n1", vec![unread("sub"), top.to_owned()]),
        (&[], vec![path.clone(), below("."), below("a.yaml")], "n1", vec![unread("sub"), top.to_owned()]),
        (&[], vec![path.clone(), below("sub")], "n1 n2", vec![unread("sub/deep"), top.to_owned(), sub.to_owned()]),
        (
            &["-R"],
            vec![path.clone(), below("sub"), below("sub/deep")],
            "n1 n2 n3",
            vec![old.to_owned(), top.to_owned(), sub.to_owned()],
        ),
        (&["-R"], vec![below("sub/old~"), path.clone()], "n1 n2 n3 n4", vec![top.to_owned(), sub.to_owned()]),
    ] {
        let (read, told) = read(more, &paths)?;
        let expected: String = nodes.split(' ').map(|name| format!("node/{name}\n")).collect();
        assert_eq!((read, told), (expected, warnings), "{more:?} {paths:?}");
    }
    Ok(())
}

#[test]
fn y09_apply_explains_directories_only_for_directory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let empty = dir.path().join("empty.yaml");
    std::fs::write(&empty, "")?;
    let empty = empty.to_string_lossy().into_owned();
    let refused = run("stemma", ["validate", "-f", &empty])?;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("{empty}: no object here: the file contains none")), "{told}");
    assert!(!told.contains("right in the directory"), "{told}");
    Ok(())
}

/// Previously, the file was skipped without a warning.
#[test]
fn y08_import_reports_discarded_task_file_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let task = |id: &str| format!("- {{id: {id}, type: shell, groups: [web], parameters: {{cmd: /bin/true, timeout: 9}}}}\n");
    std::fs::create_dir_all(dir.path().join("web/modular"))?;
    std::fs::write(
        dir.path().join("openstack.yaml"),
        "- pk: 1\n  fields: {roles_metadata: {web: {tags: [web]}}, tags_metadata: {web: {}}}\n",
    )?;
    for (file, id) in [
        ("web/tasks.yaml", "taken"),
        ("web/tasks.yaml~", "left"),
        ("web/modular/tasks.yaml.bak", "left"),
        ("web/modular/.tasks.yaml.swp", "left"),
        ("web/modular/hiera.yaml.bak", "other"),
    ] {
        std::fs::write(dir.path().join(file), task(id))?;
    }
    let path = dir.path().to_string_lossy().into_owned();
    let read = run("stemma", ["release", "import", "--fuel", &path, "--name", "fuel", "-o", "manifest"])?;
    let told = String::from_utf8_lossy(&read.stderr).into_owned();
    let manifest = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(read.status.success() && manifest.contains("taken") && !manifest.contains("id: left"), "{told}\n{manifest}");
    let warning = format!(
        "warning: {path}: left out: web/modular/.tasks.yaml.swp, web/modular/tasks.yaml.bak, web/tasks.yaml~; of a directory "
    );
    assert!(told.contains(&warning) && told.matches(": left out: ").count() == 1, "{told}");
    Ok(())
}

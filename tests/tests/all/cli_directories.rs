//! The directories from which the operator's command reads manifests.

use anyhow::Result;
use stemma_tests::program::run;

#[test]
fn w13_resolve_reads_subdirectories_on_request_and_warns_otherwise() -> Result<()> {
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
    // A link makes the directories a loop. `-R` must not follow the link.
    std::os::unix::fs::symlink(dir.path(), dir.path().join("clusters/round"))?;
    let path = dir.path().to_string_lossy().into_owned();
    let resolve = |options: &[&str], path: &str| run("stemma", [&["resolve", "-o", "name", "-f", path], options].concat());

    let flat_output = resolve(&[], &path)?;
    let stderr = String::from_utf8_lossy(&flat_output.stderr).into_owned();
    assert!(flat_output.status.success() && flat_output.stdout.is_empty(), "{stderr}");
    let warning =
        format!("warning: {path}/clusters/eu: contains manifests that are not read; -R also reads the directories below");
    assert!(stderr.contains(&warning) && stderr.matches("warning").count() == 1, "{stderr}");

    let clusters = format!("{path}/clusters");
    let recursive_output =
        run("stemma", ["resolve", "-o", "name", "-f", &format!("{path}/release.yaml"), "-R", "-f", &clusters])?;
    let stderr = String::from_utf8_lossy(&recursive_output.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&recursive_output.stdout), "node/web-1\n", "{stderr}");
    assert!(!stderr.contains("warning"), "{stderr}");
    // `parts/tasks.yaml` is a list of tasks for a release and not an object. The error contains its path.
    let refused_output = resolve(&["-R"], &path)?;
    let stderr = String::from_utf8_lossy(&refused_output.stderr).into_owned();
    assert!(!refused_output.status.success() && stderr.contains("parts/tasks.yaml") && !stderr.contains(".hidden"), "{stderr}");
    Ok(())
}

#[test]
fn y08_resolve_and_validate_report_skipped_files_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let write_file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
    write_file(
        "site.yaml",
        "kind: Cluster\nname: c\n---\nkind: NodeGroup\ncluster: c\nname: g\n---\nkind: Node\nname: n\nnodegroup: c/g\n",
    )?;
    let skipped_names = [".site.yaml", "#site.yaml#", "site.bak.yaml", "site.yaml.rpmsave", "site.yaml~"];
    for name in skipped_names.into_iter().chain(["README.md", "motd.yaml.j2", "deploy.sh"]) {
        write_file(name, "kind: Node\nname: other\n")?;
    }
    std::fs::create_dir(dir.path().join(".git.yaml"))?;
    let path = dir.path().to_string_lossy().into_owned();
    for command in ["resolve", "validate"] {
        let output = run("stemma", [command, "-o", "name", "-f", &path])?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        let [hidden, sharp, ..] = skipped_names;
        let warning = format!(
            "warning: {path}: left out: {sharp}, {hidden}, site.bak.yaml, site.yaml.rpmsave, site.yaml~; of a directory "
        );
        assert!(stderr.contains(&warning) && stderr.matches("warning").count() == 1, "{stderr}");
        assert!(command == "validate" || output.stdout == b"node/n\n", "{}", String::from_utf8_lossy(&output.stdout));
    }
    let hidden_file = format!("{path}/.site.yaml");
    let output = run("stemma", ["resolve", "-o", "name", "-f", &hidden_file])?;
    assert!(!String::from_utf8_lossy(&output.stderr).contains("left out"), "a file is read if an argument names it");
    Ok(())
}

#[test]
fn y08_resolve_reports_skipped_directories_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let write_node = |directory: &str, name: &str| -> Result<()> {
        let directory = dir.path().join(directory);
        std::fs::create_dir_all(&directory)?;
        Ok(std::fs::write(directory.join("a.yaml"), format!("kind: Node\nname: {name}\n"))?)
    };
    for (directory, name) in [("sub", "n1"), ("sub/deep", "n2"), ("10-b_C", "n3")] {
        write_node(directory, name)?;
    }
    for directory in ["d 1", "sub.bak", "sub/deep/old~", "sub/x.d", "x.yaml.d", "sub~", ".git", "sub.bak/deep"] {
        write_node(directory, "left")?;
    }
    let path = dir.path().to_string_lossy().into_owned();
    let output = run("stemma", ["resolve", "-o", "name", "-R", "-f", &path])?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "node/n1\nnode/n2\nnode/n3\n", "{stderr}");
    let warning = format!(
        "warning: {path}: directories left out: d 1, sub/deep/old~, sub/x.d, sub.bak, sub~ and 1 more; -R reads a directory with a name of "
    );
    assert!(stderr.contains(&warning) && stderr.matches("warning").count() == 1, "{stderr}");
    let named_output = run("stemma", ["resolve", "-o", "name", "-f", &format!("{path}/sub.bak")])?;
    assert_eq!(String::from_utf8_lossy(&named_output.stdout), "node/left\n", "a directory is read if an argument names it");
    Ok(())
}

#[test]
fn y08_resolve_reads_path_once_when_named_twice() -> Result<()> {
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
    let path_of = |name: &str| format!("{path}/{name}");
    // Each line of standard error is a warning about one directory. The closure cuts the advice after the semicolon.
    let resolve = |options: &[&str], paths: &[String]| -> Result<(String, Vec<String>)> {
        let file_options = paths.iter().flat_map(|path| ["-f", path.as_str()]);
        let output = run("stemma", ["resolve", "-o", "name"].iter().chain(options).copied().chain(file_options))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        let warnings = stderr.lines().map(|line| line.split(';').next().unwrap_or_default().replace(&path, "DIR"));
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), warnings.collect()))
    };
    let (top_warning, sub_warning) = ("warning: DIR: left out: a.yaml~", "warning: DIR/sub: left out: b.yaml.bak");
    let directory_warning = "warning: DIR: directories left out: sub/old~";
    let unread_warning = |dir: &str| format!("warning: DIR/{dir}: contains manifests that are not read");
    for (options, paths, nodes, warnings) in [
        (&[][..], vec![path.clone(), path.clone()], "n1", vec![unread_warning("sub"), top_warning.to_owned()]),
        (&[], vec![path.clone(), path_of("."), path_of("a.yaml")], "n1", vec![unread_warning("sub"), top_warning.to_owned()]),
        (
            &[],
            vec![path.clone(), path_of("sub")],
            "n1 n2",
            vec![unread_warning("sub/deep"), top_warning.to_owned(), sub_warning.to_owned()],
        ),
        (
            &["-R"],
            vec![path.clone(), path_of("sub"), path_of("sub/deep")],
            "n1 n2 n3",
            vec![directory_warning.to_owned(), top_warning.to_owned(), sub_warning.to_owned()],
        ),
        (&["-R"], vec![path_of("sub/old~"), path.clone()], "n1 n2 n3 n4", vec![top_warning.to_owned(), sub_warning.to_owned()]),
    ] {
        let (stdout, warnings_found) = resolve(options, &paths)?;
        let expected: String = nodes.split(' ').map(|name| format!("node/{name}\n")).collect();
        assert_eq!((stdout, warnings_found), (expected, warnings), "{options:?} {paths:?}");
    }
    Ok(())
}

#[test]
fn y09_validate_mentions_no_directory_for_empty_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let empty = dir.path().join("empty.yaml");
    std::fs::write(&empty, "")?;
    let empty = empty.to_string_lossy().into_owned();
    let output = run("stemma", ["validate", "-f", &empty])?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("{empty}: no object here: the file contains none")), "{stderr}");
    assert!(!stderr.contains("right in the directory"), "{stderr}");
    Ok(())
}

/// Regression: the import skipped backup copies of task files without a warning.
#[test]
fn y08_import_reports_skipped_copies_of_task_files_once() -> Result<()> {
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
        // This is no copy of a task file, so the warning does not mention it.
        ("web/modular/hiera.yaml.bak", "other"),
    ] {
        std::fs::write(dir.path().join(file), task(id))?;
    }
    let path = dir.path().to_string_lossy().into_owned();
    let output = run("stemma", ["release", "import", "--fuel", &path, "--name", "fuel", "-o", "manifest"])?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let manifest = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && manifest.contains("taken") && !manifest.contains("id: left"), "{stderr}\n{manifest}");
    let warning = format!(
        "warning: {path}: left out: web/modular/.tasks.yaml.swp, web/modular/tasks.yaml.bak, web/tasks.yaml~; of a directory "
    );
    assert!(stderr.contains(&warning) && stderr.matches(": left out: ").count() == 1, "{stderr}");
    Ok(())
}

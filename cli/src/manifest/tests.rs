//! Tests of reading manifests, of the files next to them, and of the errors.

use super::*;

/// Creates a temporary directory with these files, given as pairs of name and text.
fn temp_dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn read_text_stops_at_limit_when_file_has_no_end() {
    let dir = tempfile::tempdir().unwrap();
    let endless = dir.path().join("endless.yaml");
    std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
    let error = read_text(&endless, 4096).unwrap_err().to_string();
    assert_eq!(error, "is larger than the limit of 4096 bytes: split it");
}

/// A number in a JSON file retains its spelling, as it does in YAML and in a request to the API. A JSON file with a
/// comma after the last member is still refused.
#[test]
fn y04_read_keeps_number_text_in_json() {
    let text = r#"{"kind": "Cluster", "name": "c", "labels": {"a": 1e400, "b": -1e400, "c": 18446744073709551616, "d": 1.10}}"#;
    for name in ["a.json", "a.yaml"] {
        let dir = temp_dir(&[(name, text)]);
        let manifests = read(&[dir.path().to_owned()]).unwrap();
        let json = &manifests.objects[0].json;
        for number in ["1e400", "-1e400", "18446744073709551616", "1.10"] {
            assert!(json.contains(number), "{name}: {number}: {json}");
        }
    }
    let dir = temp_dir(&[("a.json", r#"{"kind": "Cluster", "name": "c",}"#)]);
    assert!(read(&[dir.path().to_owned()]).unwrap_err().to_string().contains("not JSON"));
}

/// Regression test: when included files were added to a release, the numbers in its labels got another spelling.
#[test]
fn y04_release_keeps_number_text_of_labels() {
    let labels = r#"{"a": 1.10, "b": 1e2, "c": -0, "d": 1e400, "e": 18446744073709551616}"#;
    let texts = [("a", "1.10"), ("b", "1e2"), ("c", "-0"), ("d", "1e400"), ("e", "18446744073709551616")];
    for name in ["a.json", "a.yaml"] {
        let manifest = format!(
            r#"{{"kind": "Release", "name": "z", "labels": {labels}, "annotations": {{"z": 0.50}}, "include": ["part.yml"]}}"#
        );
        let part = format!("annotations: {labels}\nlabels: {{z: 2.0}}\ntasks: [{{id: t, type: shell}}]\n");
        let dir = temp_dir(&[(name, manifest.as_str()), ("part.yml", part.as_str())]);
        let manifests = read(&[dir.path().to_owned()]).unwrap();
        assert_eq!(manifests.objects.len(), 1, "{name}: an included file is not an object");
        let release: Value = serde_json::from_str(&manifests.objects[0].json).unwrap();
        for (map, number_of_z) in [("labels", "2.0"), ("annotations", "0.50")] {
            let expected = texts.into_iter().chain([("z", number_of_z)]);
            let expected: Map<String, Value> = expected.map(|(key, text)| (key.to_owned(), text.into())).collect();
            assert_eq!(release[map], Value::Object(expected), "{name}: {map}");
        }
    }
}

#[test]
fn read_orders_directory_by_name_and_keeps_label_text() {
    let dir = temp_dir(&[
        ("b.yml", "kind: Cluster\nname: c\nlabels: {n: 1.10}\n---\nkind: Cluster\nname: d\n"),
        ("a.json", r#"[{"kind": "Node", "name": "x"}, {"kind": "Node", "name": "y"}]"#),
        ("notes.txt", "not a manifest"),
    ]);
    let manifests = read(&[dir.path().to_owned()]).unwrap();
    let json_texts: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    assert_eq!(
        json_texts,
        [
            r#"{"kind":"Node","name":"x"}"#,
            r#"{"kind":"Node","name":"y"}"#,
            r#"{"kind":"Cluster","name":"c","labels":{"n":1.10}}"#,
            r#"{"kind":"Cluster","name":"d"}"#
        ]
    );
    assert!(manifests.objects[3].locate("name").ends_with("b.yml:6:1"));
}

#[test]
fn read_rejects_yaml_in_json_file() {
    let dir = temp_dir(&[("a.json", "{\"kind\": \"Node\", \"name\": \"x\",}\n")]);
    let error = read(&[dir.path().join("a.json")]).unwrap_err().to_string();
    assert!(error.contains("a.json:1:30: not JSON: trailing comma at line 1 column 30; "), "{error}");
}

#[test]
fn y09_read_ignores_byte_order_mark() {
    for (name, text) in
        [("a.json", "\u{feff}{\"kind\": \"Node\", \"name\": \"x\"}"), ("a.yaml", "\u{feff}{kind: Node, name: x}\n")]
    {
        let dir = temp_dir(&[(name, text)]);
        let manifests = read(&[dir.path().to_owned()]).unwrap();
        assert_eq!(manifests.objects[0].json, r#"{"kind":"Node","name":"x"}"#);
    }
}

#[test]
fn y09_read_names_encoding_when_file_is_utf_16() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.json", "a.yaml"] {
        let file = dir.path().join(name);
        for text in ["\u{feff}{\"kind\": \"Node\", \"name\": \"x\"}", "{\"kind\": \"Node\", \"name\": \"x\"}"] {
            for bytes in [
                text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
                text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            ] {
                std::fs::write(&file, &bytes).unwrap();
                let error = read(std::slice::from_ref(&file)).unwrap_err().to_string();
                let expected = format!("{name}: it is a text in UTF-16: save it in UTF-8");
                assert!(error.contains(&expected), "{text:?}: {error}");
            }
        }
        // A text that is neither UTF-8 nor UTF-16.
        std::fs::write(&file, b"{\"kind\": \"\xff\"}").unwrap();
        let error = read(std::slice::from_ref(&file)).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}: it is no text in UTF-8")), "{error}");
    }
}

/// Regression test: a file that a release or its tasks name was read as a manifest, and the whole directory was
/// refused. Such a file is still read as a manifest if the user names it, or if it contains an object.
#[test]
fn y09_read_skips_included_file_of_directory() {
    let dir = temp_dir(&[
        ("site.yaml", "kind: Release\nname: r\ninclude: [a-part.yaml, b-part.yml]\n"),
        ("a-part.yaml", "- {id: a, type: file, parameters: {source: deploy.yaml}}\n"),
        ("b-part.yml", "tasks: [{id: b, type: file, parameters: {template_file: z.json}}]\n"),
        ("deploy.yaml", "kind: Deployment\n"),
        ("z.json", "{{ labels.z }}\n"),
    ]);
    let manifests = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!((manifests.objects.len(), manifests.blobs.len()), (1, 1));
    let read_file = |name: &str| read(&[dir.path().join(name)]);
    assert_eq!(read_file("a-part.yaml").unwrap().objects.len(), 1, "a file that the user names is read");
    assert!(read_file("z.json").unwrap_err().to_string().contains("not JSON"));
    std::fs::write(dir.path().join("deploy.yaml"), "kind: Cluster\nname: c\n").unwrap();
    assert_eq!(
        read(&[dir.path().to_owned()]).unwrap().objects.len(),
        2,
        "a file with an object is read, although a task uses the file as its source"
    );
}

#[test]
fn y08_read_reads_file_once_when_named_twice() {
    let node = |name: &str| format!("kind: Node\nname: {name}\n");
    let dir = temp_dir(&[
        ("a.yaml", &node("a")),
        ("b.yaml", &node("b")),
        (".c.yaml", &node("c")),
        ("r.yaml", "kind: Release\nname: r\ninclude: [tasks.yaml]\n"),
        ("tasks.yaml", "- {id: t, type: stage}\n"),
    ]);
    let dir_path = dir.path().to_owned();
    let path = |name: &str| dir_path.join(name);
    let names = |paths: &[PathBuf]| -> Vec<String> {
        let objects = read(paths).unwrap().objects;
        let name = |object: &Manifest| serde_json::from_str::<Value>(&object.json).unwrap()["name"].as_str().unwrap().to_owned();
        objects.iter().map(name).collect()
    };
    for (paths, expected) in [
        (vec![dir_path.clone(), dir_path.join("."), path("a.yaml")], &["a", "b", "r"][..]),
        (vec![path("b.yaml"), dir_path.clone()], &["b", "a", "r"]),
        (vec![path("a.yaml"), path("./a.yaml")], &["a"]),
        (vec![dir_path.clone(), path(".c.yaml")], &["a", "b", "r", "c"]),
    ] {
        assert_eq!(names(&paths), expected, "{paths:?}");
    }
    let objects = read(&[dir_path.clone(), path("tasks.yaml")]).unwrap().objects;
    assert_eq!(objects.len(), 4, "a file that the user names is read as an object, even if a release includes the file");
}

#[test]
fn y09_read_reports_missing_objects_by_source() {
    let dir = temp_dir(&[("empty.yaml", ""), ("none.yaml", "# kind: Node\n")]);
    let dir_path = dir.path().to_owned();
    let file_error = "no object here: the file contains none; an object begins with its kind";
    let directory_error = "no object here: a manifest is NAME.yaml, NAME.yml or NAME.json right in the directory";
    for (paths, expected) in [
        (vec![dir_path.join("empty.yaml")], format!("{}: {file_error}", dir_path.join("empty.yaml").display())),
        (
            vec![dir_path.join("empty.yaml"), dir_path.join("none.yaml")],
            format!("{0}/empty.yaml, {0}/none.yaml: {file_error}", dir_path.display()),
        ),
        (vec![dir_path.clone()], format!("{}: {directory_error}", dir_path.display())),
    ] {
        let error = read(&paths).unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
        assert!(paths == [dir_path.clone()] || !error.contains("right in the directory"), "{error}");
    }
}

/// Regression test: the error was reported at the task, with a line number counted from the start of the template. The
/// first position in the message becomes a position in the file, if the field has a template file or a literal block.
/// Otherwise the message is unchanged, and the place is that of the field.
#[test]
fn y09_template_error_names_line_of_template_file() {
    let dir = temp_dir(&[
        (
            "site.yaml",
            "kind: Release\nname: r\ninclude: [more.inc]\ntasks:\n- id: a\n  type: file\n  parameters: {template_file: t.j2}\n\
             - id: b\n  type: file\n  parameters:\n    template: |\n      x\n      {{ y }}\n\
             - {id: c, type: file, parameters: {template: \"x\\n{{ y }}\"}}\n",
        ),
        ("more.inc", "- id: d\n  type: shell\n  parameters:\n    script: |\n      x\n"),
        ("t.j2", "x\n{% for %}\n"),
    ]);
    let manifests = read(&[dir.path().join("site.yaml")]).unwrap();
    let locate = |field: &str, message: &str| {
        let (place, message) = manifests.objects[0].locate_error(field, message);
        format!("{}: {message}", place.strip_prefix(&format!("{}/", dir.path().display())).unwrap())
    };
    let error_text = "parameters.template: line 2, column 4: `y`: there is no: line 1, column 1: y";
    for (field, message, expected) in [
        ("task a parameters.template", error_text, "t.j2:2:4: parameters.template: `y`: there is no: line 1, column 1: y"),
        ("task b parameters.template", error_text, "site.yaml:13:10: parameters.template: `y`: there is no: line 1, column 1: y"),
        (
            "task c parameters.template",
            error_text,
            "site.yaml:14:36: parameters.template: line 2, column 4: `y`: there is no: line 1, column 1: y",
        ),
        ("tasks[1].parameters.template", "line 2, column 4: z", "site.yaml:13:10: z"),
        ("task d parameters.script", "line 1, column 2: z", "more.inc:5:8: z"),
        ("task a parameters.template", "is not a text", "site.yaml:7:3: is not a text"),
        ("task a id", "line 1, column 1: z", "site.yaml:5:3: line 1, column 1: z"),
    ] {
        assert_eq!(locate(field, message), expected, "{field}: {message}");
    }
}

#[test]
fn resolve_includes_adds_content_of_included_files() {
    let dir = temp_dir(&[
        (
            "site.yaml",
            "kind: Release\nname: r\ninclude: [more.inc]\ntasks:\n- {id: a, type: file, parameters: {template_file: t.j2}}\n",
        ),
        ("more.inc", "tasks:\n- {id: b, type: file, parameters: {source: blob.bin}}\ntags: {x: {}}\n"),
        ("t.j2", "{{ labels.a }}\n"),
        ("blob.bin", "abc"),
    ]);
    let manifests = read(&[dir.path().join("site.yaml")]).unwrap();
    let release: Value = serde_json::from_str(&manifests.objects[0].json).unwrap();
    assert_eq!(release["tasks"][0]["parameters"]["template"], "{{ labels.a }}\n");
    // The SHA-256 of "abc" in FIPS 180-2.
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(release["tasks"][1]["parameters"]["source"], format!("sha256:{hash}"));
    assert_eq!(manifests.blobs.keys().collect::<Vec<_>>(), [hash]);
    assert!(release.get("include").is_none());
}

/// `source_dir` and `modules_dir` become maps with each file at any depth. Names in `files` are replaced too, but not those
/// of the host.
#[test]
fn resolve_includes_expands_directory_of_files() {
    let dir = temp_dir(&[(
        "site.yaml",
        "kind: Release\nname: r\ntasks:\n- {id: a, type: sync, parameters: {dst: /srv/a, source_dir: pages/}}\n\
             - {id: b, type: copy_files, parameters: {files: [{src: pages/x, dst: /srv/b}, {src: /opt/x, dst: /srv/c}]}}\n\
             - {id: c, type: sync, parameters: {dst: /srv/c, files: {y: pages/css/y}}}\n\
             - {id: d, type: puppet, parameters: {source: pages/x, modules_dir: pages}}\n\
             - {id: e, type: puppet, parameters: {manifest: '', modules: {web/x: pages/x}}}\n",
    )]);
    std::fs::create_dir_all(dir.path().join("pages/css")).unwrap();
    std::fs::write(dir.path().join("pages/x"), "abc").unwrap();
    std::fs::write(dir.path().join("pages/css/y"), "").unwrap();
    let manifests = read(&[dir.path().join("site.yaml")]).unwrap();
    let release: Value = serde_json::from_str(&manifests.objects[0].json).unwrap();
    // The SHA-256 of "abc" and of nothing, in FIPS 180-2 and its examples.
    let x = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let y = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let parameters = |index: usize| release["tasks"][index]["parameters"].clone();
    assert_eq!(parameters(0), serde_json::json!({"dst": "/srv/a", "files": {"x": x, "css/y": y}}));
    assert_eq!(parameters(1), serde_json::json!({"files": [{"src": x, "dst": "/srv/b"}, {"src": "/opt/x", "dst": "/srv/c"}]}));
    assert_eq!(parameters(2), serde_json::json!({"dst": "/srv/c", "files": {"y": y}}));
    assert_eq!(parameters(3), serde_json::json!({"source": x, "modules": {"x": x, "css/y": y}}));
    assert_eq!(parameters(4), serde_json::json!({"manifest": "", "modules": {"web/x": x}}));
    assert_eq!(manifests.blobs.len(), 2);
}

#[test]
fn s63_source_dir_reads_nothing_outside_of_manifest() {
    let dir = temp_dir(&[("outside", "secret")]);
    let site = dir.path().join("site");
    std::fs::create_dir_all(site.join("empty")).unwrap();
    std::fs::create_dir_all(site.join("links")).unwrap();
    std::os::unix::fs::symlink("../../outside", site.join("links/l")).unwrap();
    std::fs::write(site.join("file"), "").unwrap();
    for (parameters, expected) in [
        ("source_dir: ..", "task a: source_dir: ..: it leads out of the manifest's directory"),
        ("source_dir: /etc", "it is an absolute path"),
        ("source_dir: links", "l: it is a link or a special file"),
        ("source_dir: file", "file: it is not a directory"),
        ("source_dir: empty", "empty: it has no file"),
        ("source_dir: none", "there is no such file or directory"),
        ("source_dir: empty, files: {a: file}", "files and source_dir are both set"),
        ("files: {a: ../outside}", "it leads out of the manifest's directory"),
    ] {
        let manifest = site.join("site.yaml");
        let text = format!("kind: Release\nname: r\ntasks: [{{id: a, type: sync, parameters: {{dst: /srv/a, {parameters}}}}}]\n");
        std::fs::write(&manifest, text).unwrap();
        let error = format!("{:#}", read(&[manifest]).unwrap_err());
        assert!(error.contains(expected) && error.contains("site.yaml:3:"), "{parameters}: {error}");
    }
}

/// Regression test: a directory of more than 256 MiB was valid, and its upload was then refused half way.
#[test]
fn source_dir_over_limit_of_controller_is_refused() {
    let dir = temp_dir(&[(
        "site.yaml",
        "kind: Release\nname: r\ntasks: [{id: a, type: sync, parameters: {dst: /srv/a, source_dir: big}}]\n",
    )]);
    std::fs::create_dir(dir.path().join("big")).unwrap();
    for (name, mebibytes, expected) in
        [("large", 65, "large: has 68157440 bytes, more than the limit of 67108864"), ("e", 60, "268435456 bytes")]
    {
        // The files take no room on disk.
        for name in if name == "e" { vec!["a", "b", "c", "d", "e"] } else { vec![name] } {
            let file = File::create(dir.path().join("big").join(name)).unwrap();
            file.set_len(mebibytes * 1024 * 1024).unwrap();
        }
        let error = format!("{:#}", read(&[dir.path().join("site.yaml")]).unwrap_err());
        assert!(error.contains(expected) && error.contains("site.yaml:3:"), "{error}");
        let _ = std::fs::remove_file(dir.path().join("big/large"));
    }
}

/// Two manifests have two tasks each, and every task names a file that does not exist.
#[test]
fn resolve_includes_reports_each_missing_file() {
    let task = |id: &str, parameter: &str| format!("- {{id: {id}, type: file, parameters: {{{parameter}: {id}.none}}}}\n");
    let text = format!("kind: Release\nname: r\ntasks:\n{}{}", task("a", "source"), task("b", "template_file"));
    let dir = temp_dir(&[("m.yaml", &text), ("n.yaml", &text)]);
    let error = read(&[dir.path().to_owned()]).unwrap_err().to_string();
    for (file, line, expected) in [("m", 4, "task a: source"), ("m", 5, "task b: template_file"), ("n", 5, "task b")] {
        let place = format!("{file}.yaml:{line}:");
        assert!(
            error.lines().any(|error_line| error_line.contains(&place) && error_line.contains(expected)),
            "{place} {expected}: {error}"
        );
    }
}

/// Regression test: a file with a blank name was read, or the error named the directory of the manifest as the file.
#[test]
fn x06_join_path_rejects_empty_name() {
    for name in ["", " ", "\u{200b}"] {
        let release = |rest: &str| format!("kind: Release\nname: r\n{rest}\n");
        let task = |parameter: &str| release(&format!("tasks: [{{id: a, type: file, parameters: {{{parameter}: \"{name}\"}}}}]"));
        for (text, expected) in [
            (task("source"), "task a: source: is empty: name a file"),
            (task("template_file"), "task a: template_file: is empty: name a file"),
            (release(&format!("include: [\"{name}\"]")), "include: is empty: name a file"),
        ] {
            let dir = temp_dir(&[("m.yaml", &text), (" ", ""), ("\u{200b}", "")]);
            let error = format!("{:#}", read(&[dir.path().join("m.yaml")]).unwrap_err());
            assert!(error.contains("m.yaml:3:") && error.contains(expected), "{name:?}: {error}");
        }
    }
}

/// Each manifest has one mistake.
#[test]
fn read_error_names_file() {
    for (text, expected) in [
        ("kind: Release\nname: r\ntasks: [{id: a, parameters: {template_file: none.j2}}]\n", "task a"),
        ("kind: Release\nname: r\ninclude: [none.inc]\n", "none.inc"),
        ("kind: Release\nversion: 2026.10\n", "m.yaml:2:1: version 2026.10 is a number"),
        (
            "kind: Release\nname: r\ntasks: [{id: a, type: file, parameters: {source: 'sha256:AB'}}]\n",
            "task a: source \"sha256:AB\": it does not name a blob",
        ),
        (
            "kind: Release\nname: r\ntasks: [{id: a, type: file,\n parameters: {mode: 18446744073709551616}}]\n",
            "m.yaml:4:15: tasks[0].parameters.mode: number out of range: 18446744073709551616 does not fit into 64 bits",
        ),
        ("- 1\n", "an object is a map with a `kind`"),
        ("kind: Release\n\"say \\\"x\\\"\": 1\nversion: 1\n", "m.yaml:3:1: version 1 is a number"),
        ("# nothing\n", "no object here"),
        (
            "kind: Release\nname: r\ntasks: [{id: a, type: file,\n parameters: {source: /etc/passwd}}]\n",
            "m.yaml:4:15: task a: source: /etc/passwd: it is an absolute path",
        ),
        (
            "kind: Release\nname: r\ntasks: [{id: a, parameters: {template_file: ../../etc/shadow}}]\n",
            "it leads out of the manifest's directory",
        ),
        ("kind: Release\nname: r\ninclude: [../x.inc]\n", "it leads out of the manifest's directory"),
    ] {
        let dir = temp_dir(&[("m.yaml", text)]);
        let error = format!("{:#}", read(&[dir.path().join("m.yaml")]).unwrap_err());
        assert!(error.contains(expected) && error.contains(".yaml"), "{error}");
    }
}

/// Regression test: a file that a manifest includes was reported as skipped, although it was read. `old.inc.yaml`
/// remains skipped, because only a skipped file includes it.
#[test]
fn y08_is_included_is_true_when_manifest_names_part() {
    let dir = temp_dir(&[
        ("site.yaml", "kind: Release\nname: r\ninclude: [tasks.inc.yaml]\n"),
        (
            "tasks.inc.yaml",
            "- {id: a, type: file, parameters: {path: /a, template_file: t.yaml.1}}\n- {id: b, type: file, parameters: {path: /b, source: b.yaml.bak}}\n",
        ),
        ("t.yaml.1", "x\n"),
        ("b.yaml.bak", "x\n"),
        ("site.yaml.bak", "kind: Release\nname: old\ninclude: [old.inc.yaml]\n"),
        ("old.inc.yaml", "[]\n"),
    ]);
    let path = |name: &str| dir.path().join(name);
    let mut listing = list_files(dir.path()).unwrap();
    let skipped = ["b.yaml.bak", "old.inc.yaml", "site.yaml.bak", "t.yaml.1", "tasks.inc.yaml"].map(path);
    assert_eq!(listing.skipped, skipped);
    let included = included_files(&[dir.path().to_owned()]);
    listing.skipped.retain(|file| !is_included(&included, file));
    assert_eq!(listing.skipped, ["old.inc.yaml", "site.yaml.bak"].map(path));
    let manifests = read(&[dir.path().to_owned()]).unwrap();
    let release: Value = serde_json::from_str(&manifests.objects[0].json).unwrap();
    assert_eq!(release["tasks"].as_array().map(Vec::len), Some(2), "the included tasks are read");
}

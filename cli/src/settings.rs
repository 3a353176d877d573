//! What a directory of manifests says of itself, in the file `stemma.toml` beside them: in whose name it is applied.
//!
//! Unless said, a manager is the person who applies. Two people who share a repository would then be told that the other owns everything. They
//! write in the name of the repository, which it carries with it.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use stemma_core::name::{near, suggest};
use stemma_core::ownership::Manager;
use stemma_wire::error::quote;

use crate::args::Files;
use crate::manifest;
use crate::tree::{self, Directory};

/// The file.
const FILE: &str = "stemma.toml";
/// The one setting.
const MANAGER: &str = "manager";
/// What to do about one that cannot be read.
const ADVICE: &str = "mend it, take it away, or say --manager NAME";
/// The largest such file, in bytes.
const MAX: u64 = 64 * 1024;

/// The manager that the directories of these files name; `None`: none of them does.
///
/// # Errors
/// What is wrong with such a file; two directories that name two managers.
pub(crate) fn manager(files: &Files) -> Result<Option<String>> {
    let mut found: Option<(PathBuf, String)> = None;
    for directory in tree::directories(files)? {
        let file = directory.path.join(FILE);
        let Some(manager) = read(&file, &directory)? else { continue };
        match &found {
            Some((before, other)) if *other != manager => bail!(
                "{}: manager: is {}, and {} says {}: apply them one after the other, or say --manager NAME for all",
                file.display(),
                quote(&manager),
                before.display(),
                quote(other)
            ),
            Some(_) => {}
            None => found = Some((file, manager)),
        }
    }
    Ok(found.map(|(_, manager)| manager))
}

/// The manager that a file names; `None`: there is no such file, or it names none.
fn read(file: &Path, directory: &Directory) -> Result<Option<String>> {
    let place = file.display();
    let Some(found) = found(file)? else { return Ok(None) };
    check_mode(file, found.mode())?;
    check_owner(file, found.uid(), directory)?;
    let text = manifest::text(file, MAX).with_context(|| place.to_string())?;
    let settings: toml::Table =
        toml::from_str(manifest::unmarked(&text)).with_context(|| format!("{place}: is no TOML"))?;
    if let Some(other) = settings.keys().find(|key| key.as_str() != MANAGER) {
        let near = suggest(near(other, [MANAGER]));
        bail!("{place}: {other}: is no setting{near}: there is manager alone; mend its spelling, or take it out");
    }
    let Some(value) = settings.get(MANAGER) else { return Ok(None) };
    let Some(name) = value.as_str() else { bail!("{place}: manager: is {value}, and a text is meant, as \"team-a\"") };
    Manager::of_new(name).with_context(|| format!("{place}: manager"))?;
    Ok(Some(name.to_owned()))
}

/// What the system says of such a file; `None`: there is none. What is there and cannot be one is refused: passed over, others would own what is
/// applied.
fn found(file: &Path) -> Result<Option<Metadata>> {
    let place = file.display();
    match std::fs::symlink_metadata(file) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => bail!("{place}: cannot be looked at: {error}; {ADVICE}"),
        Ok(_) => {}
    }
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{place}: is a link to nothing; {ADVICE}"),
        Err(error) => bail!("{place}: cannot be looked at: {error}; {ADVICE}"),
        Ok(found) if !found.is_file() => {
            bail!("{place}: is no file: write `manager = \"NAME\"` into one, or take it away")
        }
        Ok(found) => Ok(Some(found)),
    }
}

/// Refuses a file that everybody may write: they would say in whose name others apply.
fn check_mode(file: &Path, mode: u32) -> Result<()> {
    let (place, mode) = (file.display(), mode & 0o7777);
    if mode & 0o002 == 0 {
        return Ok(());
    }
    bail!("{place}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod o-w {place}")
}

/// Refuses a file that another person put beside a manifest, as anybody may in `/tmp`: what its manager no longer says is taken back.
fn check_owner(file: &Path, owner: u32, directory: &Directory) -> Result<()> {
    let named = std::fs::metadata(&directory.of).with_context(|| directory.of.display().to_string())?;
    if owner == 0 || owner == named.uid() {
        return Ok(());
    }
    bail!(
        "{}: belongs to another user than {}, and says in whose name that is applied: give it the same owner, take it away, or say --manager NAME",
        file.display(),
        directory.of.display()
    );
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn site(files: &[(&str, &str)]) -> tempfile::TempDir {
        let site = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = site.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        site
    }

    /// The manager of what is named, with the site's own path left out of what is wrong.
    fn of(site: &tempfile::TempDir, paths: &[&str], recursive: bool) -> Result<Option<String>, String> {
        let paths = paths.iter().map(|path| site.path().join(path)).collect();
        let own = format!("{}/", site.path().display());
        manager(&Files { paths, recursive }).map_err(|error| format!("{error:#}").replace(&own, ""))
    }

    #[test]
    fn y09_a_directory_names_the_manager_of_what_is_applied_from_it() {
        let site = site(&[
            ("a/stemma.toml", "# of two people\nmanager = \"team-a\"\n"),
            ("a/site.yaml", ""),
            ("a/below/more.yaml", ""),
            ("b/stemma.toml", "manager = \"team-b\"\n"),
            ("plain/site.yaml", ""),
            ("empty/stemma.toml", ""),
            ("over/a/stemma.toml", "\u{feff}manager = \"team-a\"\n"),
            ("over/b/stemma.toml", "manager = \"team-b\"\n"),
        ]);
        let named = |name: &str| Ok(Some(name.to_owned()));
        for (paths, recursive, expected) in [
            (&["a"][..], false, named("team-a")),
            (&["a"], true, named("team-a")),
            (&["a/site.yaml"], false, named("team-a")),
            (&["a/below"], false, Ok(None)),
            (&["plain", "a"], false, named("team-a")),
            (&["a", "a/site.yaml"], false, named("team-a")),
            (&["plain"], true, Ok(None)),
            (&["empty"], false, Ok(None)),
            (&["over"], false, Ok(None)),
        ] {
            assert_eq!(of(&site, paths, recursive), expected, "{paths:?}");
        }
        let advice = "apply them one after the other, or say --manager NAME for all";
        for (paths, recursive, first, second) in
            [(&["a", "b/stemma.toml"][..], false, "a", "b"), (&["over"], true, "over/a", "over/b")]
        {
            let refused = of(&site, paths, recursive).unwrap_err();
            let said =
                format!("{second}/stemma.toml: manager: is 'team-b', and {first}/stemma.toml says 'team-a': {advice}");
            assert_eq!(refused, said);
        }
        assert_eq!(manager(&Files { paths: vec![PathBuf::from("-")], recursive: true }).unwrap(), None);
    }

    #[test]
    fn y09_what_is_no_setting_of_a_directory_is_refused_with_what_was_meant() {
        for (text, expected) in [
            (
                "manger = \"a\"\n",
                "stemma.toml: manger: is no setting (did you mean \"manager\"?): there is manager alone",
            ),
            ("manager = \"a\"\ncolour = 1\n", "stemma.toml: colour: is no setting: there is manager alone"),
            ("manager = 7\n", "stemma.toml: manager: is 7, and a text is meant, as \"team-a\""),
            ("manager = \"\"\n", "stemma.toml: manager: manager \"\" must have 1 to 128 bytes"),
            ("manager = \" \"\n", "stemma.toml: manager: manager \" \" is of blanks alone: give it a name"),
            ("manager = \"a:apply\"\n", "stemma.toml: manager: manager \"a:apply\" ends as an owner does"),
            ("manager\n", "stemma.toml: is no TOML: "),
        ] {
            let site = site(&[("stemma.toml", text), ("site.yaml", "")]);
            for path in ["", "site.yaml"] {
                let refused = of(&site, &[path], false).unwrap_err();
                assert!(refused.starts_with(expected), "{text:?}: {refused}");
            }
        }
        let site = site(&[("stemma.toml/x", "")]);
        assert!(of(&site, &[""], false).unwrap_err().starts_with("stemma.toml: is no file"));
    }

    #[test]
    fn y09_a_file_that_says_nothing_for_sure_is_not_passed_over() {
        let link = |to: &str| {
            let site = site(&[("site.yaml", ""), ("own.toml", "manager = \"a\"\n")]);
            std::os::unix::fs::symlink(to, site.path().join(FILE)).unwrap();
            of(&site, &["site.yaml"], false)
        };
        assert_eq!(link("own.toml"), Ok(Some("a".to_owned())));
        let nothing = format!("stemma.toml: is a link to nothing; {ADVICE}");
        assert_eq!(link("nosuch.toml"), Err(nothing));
        let round = link(FILE).unwrap_err();
        assert!(round.starts_with("stemma.toml: cannot be looked at: ") && round.ends_with(ADVICE), "{round}");
        assert_eq!(link(".").unwrap_err().split_once(": is no file").map(|(place, _)| place), Some(FILE));
    }

    #[test]
    fn y09_a_file_that_everybody_may_write_is_refused() {
        let site = site(&[("stemma.toml", "manager = \"a\"\n"), ("site.yaml", "")]);
        for (mode, is_taken) in [(0o600, true), (0o644, true), (0o664, true), (0o646, false), (0o666, false)] {
            std::fs::set_permissions(site.path().join(FILE), std::fs::Permissions::from_mode(mode)).unwrap();
            match of(&site, &["site.yaml"], false) {
                Ok(manager) => assert!(is_taken && manager.as_deref() == Some("a"), "{mode:04o}"),
                Err(refused) => {
                    let said = format!(
                        "stemma.toml: others may write it (mode {mode:04o}), so it is not trusted; run: chmod o-w stemma.toml"
                    );
                    assert!(!is_taken && refused == said, "{refused}");
                }
            }
        }
    }

    #[test]
    fn y09_a_file_that_somebody_else_put_beside_a_manifest_is_refused() {
        let site = site(&[("stemma.toml", "manager = \"git\"\n"), ("site.yaml", "")]);
        // Only root can give a file away.
        if std::os::unix::fs::chown(site.path().join("stemma.toml"), Some(4711), None).is_err() {
            return;
        }
        let refused = of(&site, &["site.yaml"], false).unwrap_err();
        assert!(refused.starts_with("stemma.toml: belongs to another user than site.yaml"), "{refused}");
    }
}

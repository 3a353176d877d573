//! Reads the settings of a directory of manifests from the file `stemma.toml` in that directory. The only setting is
//! the manager in whose name the manifests are applied.
//!
//! By default, the manager is the person who applies. Two people who share a repository would then get conflicts about
//! each other's fields. With this file, both people apply in the name of the repository.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::ownership::Manager;
use stemma_wire::error::quote;

use crate::args::ManifestArgs;
use crate::manifest;
use crate::tree::{self, ManifestDirectory};

/// The name of the settings file.
const FILE_NAME: &str = "stemma.toml";
/// The key of the only setting in the file.
const MANAGER_KEY: &str = "manager";
/// The advice for a settings file that can't be read.
const ADVICE: &str = "fix it, delete it, or use --manager NAME";
/// The maximum size of the settings file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Returns the manager that the settings files in the directories of these manifests set. `None` if no such file sets a
/// manager.
///
/// # Errors
/// Fails as [`read_manager`] for each settings file, and if two settings files set different managers.
pub(crate) fn directory_manager(files: &ManifestArgs) -> Result<Option<String>> {
    let mut first: Option<(PathBuf, String)> = None;
    for directory in tree::directories(files)? {
        let file = directory.path.join(FILE_NAME);
        let Some(manager) = read_manager(&file, &directory)? else { continue };
        match &first {
            Some((first_file, first_manager)) if *first_manager != manager => bail!(
                "{}: manager: is {}, and {} says {}: apply them separately, or use --manager NAME for all",
                file.display(),
                quote(&manager),
                first_file.display(),
                quote(first_manager)
            ),
            Some(_) => {}
            None => first = Some((file, manager)),
        }
    }
    Ok(first.map(|(_, manager)| manager))
}

/// Returns the manager that a settings file sets. `None` if the file does not exist or sets no manager. Fails if the
/// file is invalid, if every user may write it, or if neither root nor the owner of the manifests owns it.
fn read_manager(file: &Path, directory: &ManifestDirectory) -> Result<Option<String>> {
    let place = file.display();
    let Some(metadata) = find_file(file)? else { return Ok(None) };
    check_mode(file, metadata.mode())?;
    check_owner(file, metadata.uid(), directory)?;
    let text = manifest::read_text(file, MAX_FILE_BYTES).with_context(|| place.to_string())?;
    let settings: toml::Table = toml::from_str(manifest::without_bom(&text)).with_context(|| format!("{place}: is not TOML"))?;
    if let Some(key) = settings.keys().find(|key| key.as_str() != MANAGER_KEY) {
        let suggestion = did_you_mean(closest_match(key, [MANAGER_KEY]));
        bail!("{place}: {key}: is not a setting{suggestion}: the only setting is manager; correct the spelling, or remove it");
    }
    let Some(value) = settings.get(MANAGER_KEY) else { return Ok(None) };
    let Some(name) = value.as_str() else { bail!("{place}: manager: is {value}; write a text, such as \"team-a\"") };
    Manager::new_visible(name).with_context(|| format!("{place}: manager"))?;
    Ok(Some(name.to_owned()))
}

/// Returns the metadata of the settings file, or `None` if the path does not exist. Fails for a dangling link, a
/// directory or another special file. If the path were ignored, another manager would own the applied fields.
fn find_file(file: &Path) -> Result<Option<Metadata>> {
    let place = file.display();
    match std::fs::symlink_metadata(file) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => bail!("{place}: cannot be accessed: {error}; {ADVICE}"),
        Ok(_) => {}
    }
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{place}: is a link to nothing; {ADVICE}"),
        Err(error) => bail!("{place}: cannot be accessed: {error}; {ADVICE}"),
        Ok(metadata) if !metadata.is_file() => {
            bail!("{place}: is not a file: write `manager = \"NAME\"` into a file, or remove it")
        }
        Ok(metadata) => Ok(Some(metadata)),
    }
}

/// Fails if every user may write the file. Any user could then change the manager with which other people apply.
fn check_mode(file: &Path, mode: u32) -> Result<()> {
    let (place, mode) = (file.display(), mode & 0o7777);
    if mode & 0o002 == 0 {
        return Ok(());
    }
    bail!("{place}: others may write it (mode {mode:04o}), so it is not trusted; run: chmod o-w {place}")
}

/// Fails unless root or the owner of the manifests owns the settings file. In a directory such as `/tmp`, any user
/// could create the file. An apply removes the fields that its manager no longer provides, so a wrong manager would do
/// harm.
fn check_owner(file: &Path, owner: u32, directory: &ManifestDirectory) -> Result<()> {
    let source_metadata = std::fs::metadata(&directory.source).with_context(|| directory.source.display().to_string())?;
    if owner == 0 || owner == source_metadata.uid() {
        return Ok(());
    }
    bail!(
        "{}: belongs to another user than {}, and sets the manager of what is applied: give it the same owner, delete it, or use --manager NAME",
        file.display(),
        directory.source.display()
    );
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Creates a temporary directory with these files.
    fn temp_site(files: &[(&str, &str)]) -> tempfile::TempDir {
        let site = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = site.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        site
    }

    /// Returns the manager for these paths. The path of the site is removed from errors.
    fn manager_in(site: &tempfile::TempDir, paths: &[&str], recursive: bool) -> Result<Option<String>, String> {
        let paths = paths.iter().map(|path| site.path().join(path)).collect();
        let site_prefix = format!("{}/", site.path().display());
        directory_manager(&ManifestArgs { paths, recursive }).map_err(|error| format!("{error:#}").replace(&site_prefix, ""))
    }

    /// A settings file applies only to files directly in its directory. Standard input belongs to no directory.
    #[test]
    fn y09_directory_manager_is_read_from_directory() {
        let site = temp_site(&[
            ("a/stemma.toml", "# of two people\nmanager = \"team-a\"\n"),
            ("a/site.yaml", ""),
            ("a/below/more.yaml", ""),
            ("b/stemma.toml", "manager = \"team-b\"\n"),
            ("plain/site.yaml", ""),
            ("empty/stemma.toml", ""),
            ("over/a/stemma.toml", "\u{feff}manager = \"team-a\"\n"),
            ("over/b/stemma.toml", "manager = \"team-b\"\n"),
        ]);
        let manager = |name: &str| Ok(Some(name.to_owned()));
        for (paths, recursive, expected) in [
            (&["a"][..], false, manager("team-a")),
            (&["a"], true, manager("team-a")),
            (&["a/site.yaml"], false, manager("team-a")),
            (&["a/below"], false, Ok(None)),
            (&["plain", "a"], false, manager("team-a")),
            (&["a", "a/site.yaml"], false, manager("team-a")),
            (&["plain"], true, Ok(None)),
            (&["empty"], false, Ok(None)),
            (&["over"], false, Ok(None)),
        ] {
            assert_eq!(manager_in(&site, paths, recursive), expected, "{paths:?}");
        }
        let advice = "apply them separately, or use --manager NAME for all";
        for (paths, recursive, first, second) in
            [(&["a", "b/stemma.toml"][..], false, "a", "b"), (&["over"], true, "over/a", "over/b")]
        {
            let error = manager_in(&site, paths, recursive).unwrap_err();
            let expected = format!("{second}/stemma.toml: manager: is 'team-b', and {first}/stemma.toml says 'team-a': {advice}");
            assert_eq!(error, expected);
        }
        assert_eq!(directory_manager(&ManifestArgs { paths: vec![PathBuf::from("-")], recursive: true }).unwrap(), None);
    }

    #[test]
    fn y09_directory_manager_rejects_invalid_settings_file() {
        for (text, expected) in [
            (
                "manger = \"a\"\n",
                "stemma.toml: manger: is not a setting (did you mean \"manager\"?): the only setting is manager",
            ),
            ("manager = \"a\"\ncolour = 1\n", "stemma.toml: colour: is not a setting: the only setting is manager"),
            ("manager = 7\n", "stemma.toml: manager: is 7; write a text, such as \"team-a\""),
            ("manager = \"\"\n", "stemma.toml: manager: manager \"\" must have 1 to 128 bytes"),
            ("manager = \" \"\n", "stemma.toml: manager: manager \" \" is blank: use a name"),
            ("manager = \"a:apply\"\n", "stemma.toml: manager: manager \"a:apply\" must not end in"),
            ("manager\n", "stemma.toml: is not TOML: "),
        ] {
            let site = temp_site(&[("stemma.toml", text), ("site.yaml", "")]);
            for path in ["", "site.yaml"] {
                let error = manager_in(&site, &[path], false).unwrap_err();
                assert!(error.starts_with(expected), "{text:?}: {error}");
            }
        }
        let site = temp_site(&[("stemma.toml/x", "")]);
        assert!(manager_in(&site, &[""], false).unwrap_err().starts_with("stemma.toml: is not a file"));
    }

    #[test]
    fn y09_directory_manager_rejects_dangling_link_or_non_file() {
        let manager_of_link = |to: &str| {
            let site = temp_site(&[("site.yaml", ""), ("own.toml", "manager = \"a\"\n")]);
            std::os::unix::fs::symlink(to, site.path().join(FILE_NAME)).unwrap();
            manager_in(&site, &["site.yaml"], false)
        };
        assert_eq!(manager_of_link("own.toml"), Ok(Some("a".to_owned())));
        let dangling_link_error = format!("stemma.toml: is a link to nothing; {ADVICE}");
        assert_eq!(manager_of_link("nosuch.toml"), Err(dangling_link_error));
        let link_loop_error = manager_of_link(FILE_NAME).unwrap_err();
        assert!(
            link_loop_error.starts_with("stemma.toml: cannot be accessed: ") && link_loop_error.ends_with(ADVICE),
            "{link_loop_error}"
        );
        assert_eq!(manager_of_link(".").unwrap_err().split_once(": is not a file").map(|(place, _)| place), Some(FILE_NAME));
    }

    #[test]
    fn y09_directory_manager_rejects_world_writable_file() {
        let site = temp_site(&[("stemma.toml", "manager = \"a\"\n"), ("site.yaml", "")]);
        for (mode, is_accepted) in [(0o600, true), (0o644, true), (0o664, true), (0o646, false), (0o666, false)] {
            std::fs::set_permissions(site.path().join(FILE_NAME), std::fs::Permissions::from_mode(mode)).unwrap();
            match manager_in(&site, &["site.yaml"], false) {
                Ok(manager) => assert!(is_accepted && manager.as_deref() == Some("a"), "{mode:04o}"),
                Err(error) => {
                    let expected = format!(
                        "stemma.toml: others may write it (mode {mode:04o}), so it is not trusted; run: chmod o-w stemma.toml"
                    );
                    assert!(!is_accepted && error == expected, "{error}");
                }
            }
        }
    }

    #[test]
    fn y09_directory_manager_rejects_file_of_other_owner() {
        let site = temp_site(&[("stemma.toml", "manager = \"git\"\n"), ("site.yaml", "")]);
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(site.path().join("stemma.toml"), Some(4711), None).is_err() {
            return;
        }
        let error = manager_in(&site, &["site.yaml"], false).unwrap_err();
        assert!(error.starts_with("stemma.toml: belongs to another user than site.yaml"), "{error}");
    }
}

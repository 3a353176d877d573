//! The mount points of the machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::swaps::unescape;
use crate::host::HostError;

/// The kernel's list of the mounts that this process sees.
const MOUNT_INFO: &str = "/proc/self/mountinfo";

/// Returns the mount points below a directory, as absolute paths from that directory on.
pub(super) fn read_mount_points(root: &Path) -> Result<Vec<String>, HostError> {
    let text = std::fs::read(MOUNT_INFO).map_err(HostError::io("read", MOUNT_INFO))?;
    Ok(mount_points(&String::from_utf8_lossy(&text), root))
}

/// Returns the mount points below a directory from the text of `/proc/self/mountinfo`. The fifth field of a line is the
/// mount point, in which some bytes are octal escapes.
fn mount_points(text: &str, root: &Path) -> Vec<String> {
    let escaped = text.lines().filter_map(|line| line.split(' ').nth(4));
    let below_root = |escaped: &str| {
        let path = unescape(escaped);
        let relative = Path::new(OsStr::from_bytes(&path)).strip_prefix(root).ok()?.to_string_lossy().into_owned();
        Some(format!("/{relative}"))
    };
    escaped.filter_map(below_root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// proc(5) defines the fields. The second line is a bind mount of the file system of the first.
    #[test]
    fn mount_points_are_read_below_root() {
        let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    40 22 8:1 /srv/keep /home/m1/my\\040data rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
                    41 22 0:5 / /proc rw - proc proc rw\n";
        assert_eq!(mount_points(text, Path::new("/")), ["/", "/home/m1/my data", "/proc"]);
        assert_eq!(mount_points(text, Path::new("/home")), ["/m1/my data"]);
    }
}

//! The active swap files of the machine, which nobody can replace.

use std::ffi::CString;

/// The kernel's list of active swap files and swap partitions.
pub(super) const PROC_SWAPS: &str = "/proc/swaps";

/// Returns the paths of the swap files in the text of `/proc/swaps`. The first line is a heading. Each further line
/// describes a swap area, with its path and type in the first two fields. In a path, blanks and backslashes are written
/// as octal escapes.
pub(super) fn swap_files(swaps: &str) -> impl Iterator<Item = CString> {
    let fields = swaps.lines().skip(1).map(|line| line.split_ascii_whitespace());
    let files = fields.filter_map(|mut fields| fields.next().filter(|_| fields.next() == Some("file")));
    files.filter_map(|path| CString::new(unescape(path)).ok())
}

/// Decodes a path in which the kernel wrote some bytes as a backslash and three octal digits. A backslash without three
/// octal digits is unchanged.
pub(super) fn unescape(path: &str) -> Vec<u8> {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let octal = part.split_at_checked(3);
        if let Some((byte, rest)) = octal.and_then(|(digits, rest)| Some((u8::from_str_radix(digits, 8).ok()?, rest))) {
            bytes.push(byte);
            bytes.extend_from_slice(rest.as_bytes());
        } else {
            bytes.push(b'\\');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    bytes
}

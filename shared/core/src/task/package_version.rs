//! The order of package versions: that of dpkg (`deb-version(7)`) and that of rpm (`rpm-version(7)`).

use std::cmp::Ordering;

/// Compares two versions of Debian packages as `dpkg --compare-versions` does: first the epochs, then the upstream
/// versions, then the revisions.
pub fn compare_debian_versions(left: &str, right: &str) -> Ordering {
    let (left, right) = (DebianVersion::split(left), DebianVersion::split(right));
    compare_digits(left.epoch.as_bytes(), right.epoch.as_bytes())
        .then_with(|| compare_debian_parts(left.upstream.as_bytes(), right.upstream.as_bytes()))
        .then_with(|| compare_debian_parts(left.revision.as_bytes(), right.revision.as_bytes()))
}

/// Compares two versions of rpm packages (`EPOCH:VERSION-RELEASE`). If one of them has no release, the releases are not
/// compared, so that `1.20` equals each release of 1.20.
pub fn compare_rpm_versions(left: &str, right: &str) -> Ordering {
    let split = |text| {
        let (epoch, rest) = split_epoch(text);
        let (version, release) = rest.rsplit_once('-').map_or((rest, None), |(version, release)| (version, Some(release)));
        (epoch, version, release)
    };
    let ((left_epoch, left_version, left_release), (right_epoch, right_version, right_release)) = (split(left), split(right));
    let compare_releases = || match (left_release, right_release) {
        (Some(left), Some(right)) => compare_rpm_parts(left.as_bytes(), right.as_bytes()),
        _ => Ordering::Equal,
    };
    compare_digits(left_epoch.as_bytes(), right_epoch.as_bytes())
        .then_with(|| compare_rpm_parts(left_version.as_bytes(), right_version.as_bytes()))
        .then_with(compare_releases)
}

/// The three parts of a Debian version.
struct DebianVersion<'a> {
    epoch: &'a str,
    upstream: &'a str,
    revision: &'a str,
}

impl<'a> DebianVersion<'a> {
    /// Splits a version. A missing epoch or revision is empty, which has the same order as 0.
    fn split(text: &'a str) -> Self {
        let (epoch, rest) = split_epoch(text);
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        Self { epoch, upstream, revision }
    }
}

/// Returns the epoch of a version and the rest. The epoch is empty if the version has none.
fn split_epoch(text: &str) -> (&str, &str) {
    text.split_once(':').filter(|(epoch, _)| epoch.bytes().all(|byte| byte.is_ascii_digit())).unwrap_or(("", text))
}

/// Splits a text after its first bytes for which `is_inside` is true.
fn split_while(text: &[u8], is_inside: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| !is_inside(*byte)).unwrap_or(text.len()))
}

/// Compares two numbers of decimal digits, which may be longer than any integer type. An empty text is 0.
fn compare_digits(left: &[u8], right: &[u8]) -> Ordering {
    let (left, right) = (split_while(left, |byte| byte == b'0').1, split_while(right, |byte| byte == b'0').1);
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

/// Compares two upstream versions or two revisions: alternately a part without digits and a number.
fn compare_debian_parts(mut left: &[u8], mut right: &[u8]) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        let (left_text, left_rest) = split_while(left, |byte| !byte.is_ascii_digit());
        let (right_text, right_rest) = split_while(right, |byte| !byte.is_ascii_digit());
        let (left_number, left_end) = split_while(left_rest, |byte| byte.is_ascii_digit());
        let (right_number, right_end) = split_while(right_rest, |byte| byte.is_ascii_digit());
        let order = compare_debian_texts(left_text, right_text).then_with(|| compare_digits(left_number, right_number));
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (left_end, right_end);
    }
    Ordering::Equal
}

/// Compares two parts without digits by the order of their characters. `~` comes before the end of a part, then come
/// letters, then all other characters.
fn compare_debian_texts(left: &[u8], right: &[u8]) -> Ordering {
    let rank = |byte: Option<&u8>| match byte {
        Some(b'~') => -1,
        None => 0,
        Some(letter) if letter.is_ascii_alphabetic() => i32::from(*letter),
        Some(other) => i32::from(*other) + 256,
    };
    let mut ranks = (0..left.len().max(right.len())).map(|index| rank(left.get(index)).cmp(&rank(right.get(index))));
    ranks.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Compares two versions or two releases by the rules of `rpmvercmp`.
fn compare_rpm_parts<'a>(mut left: &'a [u8], mut right: &'a [u8]) -> Ordering {
    let is_separator = |byte: u8| !byte.is_ascii_alphanumeric() && byte != b'~' && byte != b'^';
    loop {
        (left, right) = (split_while(left, is_separator).1, split_while(right, is_separator).1);
        match (left.split_first(), right.split_first()) {
            (Some((b'~', left_rest)), Some((b'~', right_rest))) | (Some((b'^', left_rest)), Some((b'^', right_rest))) => {
                (left, right) = (left_rest, right_rest);
            }
            (Some((b'~', _)), _) => return Ordering::Less,
            (_, Some((b'~', _))) => return Ordering::Greater,
            (Some((b'^', _)), right_part) => return if right_part.is_none() { Ordering::Greater } else { Ordering::Less },
            (left_part, Some((b'^', _))) => return if left_part.is_none() { Ordering::Less } else { Ordering::Greater },
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some((first, _)), Some(_)) => {
                let order;
                (order, left, right) = compare_rpm_segment(left, right, first.is_ascii_digit());
                if order != Ordering::Equal {
                    return order;
                }
            }
        }
    }
}

/// Compares the first segments of two texts, which are numbers or words as the first segment of `left` is. Returns the
/// order and what follows the segments. A number is higher than a word.
fn compare_rpm_segment<'a>(left: &'a [u8], right: &'a [u8], is_number: bool) -> (Ordering, &'a [u8], &'a [u8]) {
    let is_inside = |byte: u8| if is_number { byte.is_ascii_digit() } else { byte.is_ascii_alphabetic() };
    let (left_segment, left_rest) = split_while(left, is_inside);
    let (right_segment, right_rest) = split_while(right, is_inside);
    let order = match (right_segment.is_empty(), is_number) {
        (true, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (false, true) => compare_digits(left_segment, right_segment),
        (false, false) => left_segment.cmp(right_segment),
    };
    (order, left_rest, right_rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions in ascending order, as `dpkg --compare-versions` of dpkg 1.21 has them.
    const DEBIAN_ASCENDING: &[&str] = &[
        "0~~",
        "0~~a",
        "0~",
        "0",
        "0a",
        "0+",
        "1.0~beta1~svn1245",
        "1.0~beta1",
        "1.0",
        "1.0-1",
        "1.0-1+b1",
        "1.0-1+deb12u1",
        "1.0-1.1",
        "1.0-2~bpo12+1",
        "1.0-2",
        "1.0a-1",
        "1.0+dfsg-1",
        "1.0.1-1",
        "1.2-1",
        "1.10-1",
        "2.0-1",
        "99999999999999999999-1",
        "1:0.1-1",
        "2:0.0.1",
        "10:0",
    ];

    /// Pairs that `dpkg --compare-versions` holds equal.
    const DEBIAN_EQUAL: &[(&str, &str)] = &[
        ("1.0", "0:1.0"),
        ("1.0", "1.0-0"),
        ("1.0-", "1.0"),
        ("1.00", "1.0"),
        ("1.0-01", "1.0-1"),
        ("0001:1", "1:1"),
        ("", "0"),
    ];

    #[test]
    fn debian_versions_have_order_of_dpkg() {
        for (index, left) in DEBIAN_ASCENDING.iter().enumerate() {
            for (other, right) in DEBIAN_ASCENDING.iter().enumerate() {
                assert_eq!(compare_debian_versions(left, right), index.cmp(&other), "{left} {right}");
            }
        }
        for (left, right) in DEBIAN_EQUAL {
            assert_eq!(compare_debian_versions(left, right), Ordering::Equal, "{left} {right}");
        }
    }

    /// Most of the pairs are from the test suite of rpm (`tests/rpmvercmp.at`).
    #[test]
    fn rpm_versions_have_order_of_rpm() {
        for (left, right, order) in [
            ("1.0", "1.0", Ordering::Equal),
            ("1.0", "2.0", Ordering::Less),
            ("2.0.1a", "2.0.1", Ordering::Greater),
            ("5.5p1", "5.5p10", Ordering::Less),
            ("10xyz", "10.1xyz", Ordering::Less),
            ("xyz10", "xyz10.1", Ordering::Less),
            ("xyz.4", "8", Ordering::Less),
            ("5.5p2", "5.6p1", Ordering::Less),
            ("6.0.rc1", "6.0", Ordering::Greater),
            ("10b2", "10a1", Ordering::Greater),
            ("10.0001", "10.1", Ordering::Equal),
            ("4.999.9", "5.0", Ordering::Less),
            ("2_0", "2.0", Ordering::Equal),
            ("a+", "a_", Ordering::Equal),
            ("1.0~rc1", "1.0", Ordering::Less),
            ("1.0~rc1", "1.0~rc2", Ordering::Less),
            ("1.0~rc1~git123", "1.0~rc1", Ordering::Less),
            ("1.0^", "1.0", Ordering::Greater),
            ("1.0^git1", "1.01", Ordering::Less),
            ("1.0^git1~pre", "1.0^git1", Ordering::Less),
            ("1:1.0-1", "2.0-1", Ordering::Greater),
            ("1.20.1-1.fc39", "1.20.1-2.fc39", Ordering::Less),
            ("1.20.1", "0:1.20.1-2.fc39", Ordering::Equal),
        ] {
            assert_eq!(compare_rpm_versions(left, right), order, "{left} {right}");
            assert_eq!(compare_rpm_versions(right, left), order.reverse(), "{right} {left}");
        }
    }
}

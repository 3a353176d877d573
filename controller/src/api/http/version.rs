//! Microversions: which versions the clients of Ironic (`OpenStack`'s bare-metal API) and Magnum (`OpenStack`'s cluster
//! API) request, and the headers of the response.
//!
//! Ironic and Magnum negotiate the version by headers. Their clients give up without the response headers that they
//! expect, so these headers are built here, once, for every route. If the request has no version header, the newest
//! version is used (Ironic and Magnum use the oldest), so that a person with curl sees everything. The clients always
//! send a version header.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use stemma_wire::endpoint::{MinVersion, MinorVersion};

/// An `OpenStack` API whose version a client negotiates. Glance's API, which Stemma also serves, has no such version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStackApi {
    /// Ironic: nodes with their traits, allocations, inspection rules.
    Baremetal,
    /// Magnum: cluster templates, clusters, node groups.
    ContainerInfra,
}

/// The versions that a request negotiated. An API that the request does not address has its newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiatedVersions {
    /// The service that the path belongs to. `None` for the version documents, for Glance's API and for Stemma's own.
    pub upstream: Option<OpenStackApi>,
    /// Ironic's minor version.
    pub baremetal: MinorVersion,
    /// Magnum's minor version.
    pub container_infra: MinorVersion,
    /// True if the request has a version header for Ironic, as Ironic's clients send.
    pub is_ironic_client: bool,
}

/// The error for a requested version that is not offered, or that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAcceptable {
    /// The version is outside the offered range.
    #[error("version {requested} of {} is not offered; 1.{} to 1.{} are", service.service_type(), service.version_range().0.0, service.version_range().1.0)]
    OutOfRange {
        /// The service whose version was requested.
        service: OpenStackApi,
        /// The requested version, truncated.
        requested: String,
    },
    /// The version in the header cannot be parsed, or the header for Magnum's API names only other services.
    #[error("{header} is {text:?}, which is not a version; a valid value is {example}")]
    Malformed {
        /// The name of the header.
        header: &'static str,
        /// The text of the header, truncated.
        text: String,
        /// A valid value of the header.
        example: &'static str,
    },
}

/// The name of the version header of Ironic's clients.
pub(crate) const IRONIC_VERSION: &str = "x-openstack-ironic-api-version";
/// The name of the version header of Magnum's clients, and of Ironic's newer clients.
pub(crate) const OPENSTACK_VERSION: &str = "openstack-api-version";
/// The names of Magnum in a version header.
const MAGNUM_NAMES: [&str; 3] = ["container-infra", "container-infrastructure", "container-infrastructure-management"];

impl OpenStackApi {
    /// Returns the oldest and the newest minor version that Stemma offers of this API.
    pub(crate) const fn version_range(self) -> (MinorVersion, MinorVersion) {
        match self {
            Self::Baremetal => (MinorVersion(1), MinorVersion(115)),
            Self::ContainerInfra => (MinorVersion(1), MinorVersion(14)),
        }
    }

    /// Returns the service type, which names the service in a version header.
    pub(crate) const fn service_type(self) -> &'static str {
        match self {
            Self::Baremetal => "baremetal",
            Self::ContainerInfra => "container-infra",
        }
    }

    /// Returns whether the headers of a request contain a version of this service, as its newer clients send.
    pub(crate) fn is_requested(self, headers: &HeaderMap) -> bool {
        let versions = header_text(headers, OPENSTACK_VERSION).unwrap_or_default();
        versions.split(',').filter_map(|entry| entry.trim().split_once(' ')).any(|(name, _)| self.has_name(name))
    }

    /// Returns whether `name` is a name of this service in a version header.
    fn has_name(self, name: &str) -> bool {
        match self {
            Self::Baremetal => name == "baremetal",
            Self::ContainerInfra => MAGNUM_NAMES.contains(&name),
        }
    }

    /// Returns the service that a path belongs to, by the path's first part after `/v1/`. Paths of Stemma's own API
    /// belong to neither service.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let root = path.strip_prefix("/v1/")?.split('/').next()?;
        match root {
            "nodes" | "allocations" | "inspection_rules" => Some(Self::Baremetal),
            "clusters" | "clustertemplates" => Some(Self::ContainerInfra),
            _ => None,
        }
    }

    /// Parses a version of this service: `1.N` within the offered range, or `latest`. `header` is the name of the
    /// header, for the error.
    fn parse_version(self, text: &str, header: &'static str) -> Result<MinorVersion, NotAcceptable> {
        let malformed = || NotAcceptable::Malformed { header, text: truncate(text), example: self.example(header) };
        let (oldest, newest) = self.version_range();
        let text = text.trim();
        if text.eq_ignore_ascii_case("latest") {
            return Ok(newest);
        }
        let (major, minor) = text.split_once('.').ok_or_else(malformed)?;
        let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<u16>().ok()).flatten();
        let (major, minor) = (number(major).ok_or_else(malformed)?, number(minor).ok_or_else(malformed)?);
        if major == 1 && (oldest.0..=newest.0).contains(&minor) {
            Ok(MinorVersion(minor))
        } else {
            Err(NotAcceptable::OutOfRange { service: self, requested: truncate(text) })
        }
    }

    /// Returns a valid value of a version header, for an error.
    fn example(self, header: &'static str) -> &'static str {
        match (self, header) {
            (Self::Baremetal, IRONIC_VERSION) => "1.37",
            (Self::Baremetal, _) => "baremetal 1.37",
            (Self::ContainerInfra, _) => "container-infra 1.14",
        }
    }
}

/// Returns the API versions that the headers of a request select.
///
/// # Errors
/// [`NotAcceptable`], for a 406 response.
pub(crate) fn negotiate(path: &str, headers: &HeaderMap) -> Result<NegotiatedVersions, NotAcceptable> {
    let service = OpenStackApi::from_path(path);
    let is_version_document = matches!(path, "/" | "/v1" | "/v1/");
    // Begins with the newest versions, which are the second members of the ranges.
    let mut negotiated = NegotiatedVersions {
        upstream: service,
        baremetal: OpenStackApi::Baremetal.version_range().1,
        container_infra: OpenStackApi::ContainerInfra.version_range().1,
        is_ironic_client: headers.contains_key(IRONIC_VERSION) || OpenStackApi::Baremetal.is_requested(headers),
    };
    if service == Some(OpenStackApi::Baremetal) || is_version_document {
        negotiated.baremetal = ironic_version(headers)?;
    }
    if service == Some(OpenStackApi::ContainerInfra) || is_version_document {
        negotiated.container_infra = magnum_version(headers, is_version_document)?;
    }
    Ok(negotiated)
}

/// Returns the version of Ironic's API that a request selects, or the newest if it selects none.
/// `OpenStack-API-Version` has precedence over the older header. Versions of other services in its list are ignored, as
/// in Ironic.
fn ironic_version(headers: &HeaderMap) -> Result<MinorVersion, NotAcceptable> {
    for entry in header_text(headers, OPENSTACK_VERSION).unwrap_or_default().split(',') {
        if let Some((name, version)) = entry.trim().split_once(' ')
            && OpenStackApi::Baremetal.has_name(name)
        {
            return OpenStackApi::Baremetal.parse_version(version, OPENSTACK_VERSION);
        }
    }
    match header_text(headers, IRONIC_VERSION) {
        Some(version) if !version.trim().is_empty() => OpenStackApi::Baremetal.parse_version(&version, IRONIC_VERSION),
        _ => Ok(OpenStackApi::Baremetal.version_range().1),
    }
}

/// Returns the version of Magnum's API that a request selects, or the newest if it has no header. Like Magnum, refuses
/// a header that names only another service. A version document (`/` or `/v1`) accepts such a header, because clients
/// of both services read the document.
fn magnum_version(headers: &HeaderMap, is_version_document: bool) -> Result<MinorVersion, NotAcceptable> {
    let newest = OpenStackApi::ContainerInfra.version_range().1;
    let Some(header) = header_text(headers, OPENSTACK_VERSION) else { return Ok(newest) };
    for entry in header.split(',') {
        if let Some((name, version)) = entry.trim().split_once(' ')
            && OpenStackApi::ContainerInfra.has_name(name)
        {
            return OpenStackApi::ContainerInfra.parse_version(version, OPENSTACK_VERSION);
        }
    }
    if is_version_document || header.trim().is_empty() {
        return Ok(newest);
    }
    let example = OpenStackApi::ContainerInfra.example(OPENSTACK_VERSION);
    Err(NotAcceptable::Malformed { header: OPENSTACK_VERSION, text: truncate(&header), example })
}

impl NegotiatedVersions {
    /// Returns whether the client's version of the path's API is older than `min_version`. A path of Stemma's own API
    /// has no version, so no client is too old for it.
    pub(crate) fn is_before(self, min_version: &MinVersion) -> bool {
        match self.upstream {
            Some(OpenStackApi::Baremetal) => self.baremetal < min_version.minor,
            Some(OpenStackApi::ContainerInfra) => self.container_infra < min_version.minor,
            None => false,
        }
    }

    /// Sets the version headers that clients read from a response. A path of one service gets the headers of that
    /// service. A version document, or a path of Stemma's own API or of Glance's, gets the headers of both services.
    pub(crate) fn write_headers(self, headers: &mut HeaderMap) {
        if self.upstream != Some(OpenStackApi::ContainerInfra) {
            set_version_range(headers, OpenStackApi::Baremetal);
            set_header(headers, IRONIC_VERSION, format!("1.{}", self.baremetal.0));
        }
        if self.upstream != Some(OpenStackApi::Baremetal) {
            set_version_range(headers, OpenStackApi::ContainerInfra);
            set_header(headers, OPENSTACK_VERSION, format!("{} 1.{}", MAGNUM_NAMES[2], self.container_infra.0));
        }
        headers.append("vary", HeaderValue::from_static("OpenStack-API-Version"));
    }
}

impl NotAcceptable {
    /// Sets the headers with the offered versions if the requested version could be parsed. A client needs these
    /// headers to choose another version.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap) {
        if let Self::OutOfRange { service, .. } = self {
            set_version_range(headers, *service);
        }
    }
}

/// Sets the headers with the oldest and the newest version of a service, in the form that the service's clients read.
fn set_version_range(headers: &mut HeaderMap, service: OpenStackApi) {
    let (oldest, newest) = service.version_range();
    let (names, prefix) = match service {
        OpenStackApi::Baremetal => {
            (["x-openstack-ironic-api-minimum-version", "x-openstack-ironic-api-maximum-version"], String::new())
        }
        OpenStackApi::ContainerInfra => {
            // Magnum's clients read the longest of its names in a response.
            (["openstack-api-minimum-version", "openstack-api-maximum-version"], format!("{} ", MAGNUM_NAMES[2]))
        }
    };
    set_header(headers, names[0], format!("{prefix}1.{}", oldest.0));
    set_header(headers, names[1], format!("{prefix}1.{}", newest.0));
}

fn set_header(headers: &mut HeaderMap, name: &'static str, value: String) {
    let value = HeaderValue::try_from(value).expect("a service name and two numbers are header text");
    headers.insert(HeaderName::from_static(name), value);
}

/// Returns the text of a header, with invalid UTF-8 replaced.
fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Returns the first 64 characters of a text, for an error.
fn truncate(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_str(v).unwrap())).collect()
    }

    #[test]
    fn negotiate_reads_version_from_ironic_headers() {
        for (sent, expected) in [
            (vec![], Some(115)),
            (vec![(IRONIC_VERSION, "")], Some(115)),
            (vec![(IRONIC_VERSION, "1.37")], Some(37)),
            (vec![(IRONIC_VERSION, "01.37")], Some(37)),
            (vec![(IRONIC_VERSION, " 1.37 ")], Some(37)),
            (vec![(IRONIC_VERSION, "LATEST")], Some(115)),
            (vec![(IRONIC_VERSION, "1.20"), (OPENSTACK_VERSION, "baremetal 1.37")], Some(37)),
            (vec![(OPENSTACK_VERSION, "compute 2.1")], Some(115)),
            (vec![(OPENSTACK_VERSION, "compute 2.1, baremetal 1.40")], Some(40)),
            (vec![(IRONIC_VERSION, "1.116")], None),
            (vec![(IRONIC_VERSION, "1.0")], None),
            (vec![(IRONIC_VERSION, "2.0")], None),
            (vec![(IRONIC_VERSION, "1")], None),
            (vec![(IRONIC_VERSION, "1.37.1")], None),
            (vec![(IRONIC_VERSION, "1.x")], None),
        ] {
            let version = negotiate("/v1/nodes", &headers(&sent)).ok().map(|versions| versions.baremetal.0);
            assert_eq!(version, expected, "{sent:?}");
        }
    }

    #[test]
    fn negotiate_reads_version_from_magnum_header() {
        for (sent, expected) in [
            ("container-infra latest", Some(14)),
            ("container-infra 1.9", Some(9)),
            ("container-infrastructure-management 1.1", Some(1)),
            ("container-infra 1.15", None),
            ("container-infra 2.0", None),
            ("container-infra 1", None),
            ("1.9", None),
            ("baremetal 1.9", None),
            ("latest", None),
        ] {
            let versions = negotiate("/v1/clusters", &headers(&[(OPENSTACK_VERSION, sent)]));
            assert_eq!(versions.ok().map(|n| n.container_infra.0), expected, "{sent}");
        }
        assert!(negotiate("/v1", &headers(&[(OPENSTACK_VERSION, "baremetal 1.9")])).is_ok());
    }

    #[test]
    fn not_acceptable_sends_range_only_when_version_is_parsed() {
        for (sent, has_range) in [("1.116", true), ("abc", false)] {
            let error = negotiate("/v1/nodes", &headers(&[(IRONIC_VERSION, sent)])).unwrap_err();
            let mut response_headers = HeaderMap::new();
            error.write_headers(&mut response_headers);
            assert_eq!(response_headers.contains_key("x-openstack-ironic-api-maximum-version"), has_range, "{sent}");
        }
    }
}

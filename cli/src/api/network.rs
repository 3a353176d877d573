//! Describes why a request got no response, and what the person should check.

use stemma_wire::client::{ClientError, RequestOutcome};
use stemma_wire::log::error_chain;
use stemma_wire::net::UnknownHost;
use stemma_wire::tls::Refusal;

/// Returns whether the controller may have carried out a request that failed. Unlike [`ClientError::outcome`], this
/// function returns [`RequestOutcome::NotSent`] for each failed TLS handshake, and for a peer that rejected our
/// certificate or does not speak HTTP. Such a peer has carried out nothing.
pub(super) fn request_outcome(error: &ClientError) -> RequestOutcome {
    match error {
        ClientError::Handshake { .. } => RequestOutcome::NotSent,
        ClientError::Broken { .. } if is_certificate_refused(error) || is_http_parse_error(error) => RequestOutcome::NotSent,
        other => other.outcome(),
    }
}

/// Returns a message of two lines for a request without a response. The first line is the failure with its cause. The
/// second line suggests what to check. `url` is the address of the controller.
pub(super) fn error_message(error: &ClientError, url: &str) -> String {
    let (failure, advice) = match error {
        ClientError::Unreachable { source, .. } => (error_chain(error), unreachable_advice(source)),
        ClientError::ConnectTimeout { .. } => (
            error_chain(error),
            "is the host up, and does a firewall let this port through? --context or --server names another controller",
        ),
        // The peer has a certificate of this fleet that is not for a controller, for example of an agent.
        ClientError::Untrusted { source: Refusal::WrongUse, .. } => (
            format!("{url} is not trusted: it has no certificate of a controller of this fleet"),
            untrusted_advice(&Refusal::WrongUse),
        ),
        ClientError::Untrusted { source, .. } => (error_chain(error), untrusted_advice(source)),
        ClientError::Handshake { .. } if is_not_tls(error) => (
            format!("{url} does not speak TLS"),
            "is this the admin's port? a plain listener for development is written http://127.0.0.1:PORT",
        ),
        ClientError::Handshake { .. } => (error_chain(error), "is this the admin's port of a controller?"),
        ClientError::Broken { .. } if is_certificate_refused(error) => (
            format!("{url} refused this client's certificate"),
            "is `cert` of this fleet, and still valid? is this the admin's port, not the agents'? --context names another",
        ),
        ClientError::Broken { .. } if is_http_parse_error(error) => {
            (format!("{url} does not speak plain HTTP"), "use https:// if it speaks TLS, and the admin's port")
        }
        ClientError::Broken { .. } => (error_chain(error), "was the controller stopped? try again"),
        ClientError::AnswerTimeout { .. } => (error_chain(error), "is the controller busy? see its journal and /metrics"),
        ClientError::TooLarge { .. } => (error_chain(error), "request less: use a selector, or names"),
        // This program could not process the response, for example because the disk is full.
        ClientError::NotTaken { .. } => (error_chain(error), "is there room for it?"),
    };
    crate::output::printable_lines(&format!("{failure}\n  {advice}"))
}

/// Returns what the user should check if no connection to the controller could be opened.
fn unreachable_advice(source: &std::io::Error) -> &'static str {
    if source.kind() == std::io::ErrorKind::ConnectionRefused {
        return "is the controller running there? --context or --server names another one";
    }
    if source.get_ref().and_then(|inner| inner.downcast_ref::<UnknownHost>()).is_some() {
        return "no name server knows this host: correct `url` in the context, or set another one with --server";
    }
    "is there a route to that host? --context or --server names another controller"
}

/// Returns what the user should check if we rejected the certificate of the peer.
fn untrusted_advice(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Expired { .. } | Refusal::NotYetValid { .. } => {
            "are the clocks right, here and on the controller's host? a controller renews its own certificate"
        }
        Refusal::WrongName => {
            "use a host name from the certificate: `names` in the controller's configuration, or `stemma-controller init --name`"
        }
        _ => "is it the controller of another fleet, or the agents' port? `ca` in the context must be this fleet's ca.pem",
    }
}

/// Returns whether the peer rejected our TLS certificate, or required one. The peer reports both as a TLS alert.
fn is_certificate_refused(error: &ClientError) -> bool {
    use rustls::AlertDescription as Alert;
    let is_refusal = |alert: &Alert| {
        matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::UnknownCA
                | Alert::AccessDenied
        )
    };
    tls_errors(error).any(|error| matches!(error, rustls::Error::AlertReceived(alert) if is_refusal(alert)))
}

/// Returns whether the peer sent something that is not a TLS record.
fn is_not_tls(error: &ClientError) -> bool {
    tls_errors(error).any(|error| matches!(error, rustls::Error::InvalidMessage(_)))
}

/// Returns whether the peer sent something that the HTTP parser does not accept as a response.
fn is_http_parse_error(error: &ClientError) -> bool {
    matches!(error, ClientError::Broken { source } if source.is_parse())
}

/// Returns the TLS errors among the causes of an error, including those that an I/O error among the causes contains.
fn tls_errors(error: &ClientError) -> impl Iterator<Item = &rustls::Error> {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.filter_map(|cause| {
        let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        inner.and_then(|error| error.downcast_ref::<rustls::Error>()).or_else(|| cause.downcast_ref::<rustls::Error>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use std::time::Duration;

    #[test]
    fn error_message_names_next_check_for_each_failure() {
        let target = || "https://c.example:9443".parse().unwrap();
        // rustls errors arrive inside an I/O error.
        let tls = |error| Error::new(ErrorKind::InvalidData, error);
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::HandshakeFailure);
        let invalid_record = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        for (error, expected) in [
            (
                ClientError::Unreachable { target: target(), source: ErrorKind::ConnectionRefused.into() },
                "https://c.example:9443 cannot be reached: connection refused\n  is the controller running there?",
            ),
            (
                ClientError::Unreachable {
                    target: target(),
                    source: Error::other(UnknownHost::from(Error::other("failed to lookup address information: x"))),
                },
                "cannot be reached: failed to lookup address information: x\n  no name server knows this host: correct `url`",
            ),
            (
                ClientError::ConnectTimeout { target: target(), within: Duration::from_secs(10) },
                "did not answer within 10 s\n  is the host up, and does a firewall",
            ),
            (
                ClientError::Untrusted { target: target(), source: Refusal::UnknownIssuer },
                "is not trusted: the certificate was not issued by an authority that is trusted here\n  is it the controller of another fleet",
            ),
            (ClientError::Untrusted { target: target(), source: Refusal::WrongName }, "use a host name from the certificate"),
            (
                ClientError::Handshake { target: target(), source: tls(invalid_record) },
                "https://c.example:9443 does not speak TLS\n  is this the admin's port?",
            ),
            (
                ClientError::Handshake { target: target(), source: tls(alert) },
                "the TLS handshake with https://c.example:9443 failed",
            ),
            (ClientError::AnswerTimeout { within: Duration::from_secs(30) }, "no answer within 30 s\n  is the controller busy?"),
        ] {
            let text = error_message(&error, "https://c.example:9443");
            assert!(text.contains(expected), "{text}");
        }
    }
}

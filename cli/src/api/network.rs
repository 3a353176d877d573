//! Why a request had no answer, and what a person looks at then.

use stemma_wire::client::{ClientError, RequestOutcome};
use stemma_wire::log::chain;
use stemma_wire::net::UnknownHost;
use stemma_wire::tls::Refusal;

/// What may have become of a request. Beside what the client knows: who refused our certificate, or speaks another
/// protocol, has carried nothing out.
pub(super) fn outcome(error: &ClientError) -> RequestOutcome {
    match error {
        ClientError::Handshake { .. } => RequestOutcome::NotSent,
        ClientError::Broken { .. } if is_refused(error) || is_no_http(error) => RequestOutcome::NotSent,
        other => other.outcome(),
    }
}

/// What failed and why, and in a second line what to look at.
pub(super) fn sentence(error: &ClientError, url: &str) -> String {
    let (what, advice) = match error {
        ClientError::Unreachable { source, .. } => (chain(error), unreachable(source)),
        ClientError::ConnectTimeout { .. } => (
            chain(error),
            "is the host up, and does a firewall let this port through? --context or --server names another controller",
        ),
        ClientError::Untrusted { source: Refusal::WrongUse, .. } => (
            format!("{url} is not trusted: it shows no certificate of this fleet's controller"),
            untrusted(&Refusal::WrongUse),
        ),
        ClientError::Untrusted { source, .. } => (chain(error), untrusted(source)),
        ClientError::Handshake { .. } if is_no_tls(error) => (
            format!("{url} does not speak TLS"),
            "is this the admin's port? a plain listener for development is written http://127.0.0.1:PORT",
        ),
        ClientError::Handshake { .. } => (chain(error), "is this the admin's port of a controller?"),
        ClientError::Broken { .. } if is_refused(error) => (
            format!("{url} refused this client's certificate"),
            "is `cert` of this fleet, and still valid? is this the admin's port, not the agents'? --context names another",
        ),
        ClientError::Broken { .. } if is_no_http(error) => {
            (format!("{url} does not speak plain HTTP"), "write https:// where it speaks TLS, and the admin's port")
        }
        ClientError::Broken { .. } => (chain(error), "was the controller stopped? ask again"),
        ClientError::AnswerTimeout { .. } => (chain(error), "is the controller busy? its journal says, and /metrics"),
        ClientError::TooLarge { .. } => (chain(error), "ask for less: a selector, or names"),
        ClientError::NotTaken { .. } => (chain(error), "is there room for it?"),
    };
    crate::output::printable_lines(&format!("{what}\n  {advice}"))
}

fn unreachable(source: &std::io::Error) -> &'static str {
    if source.kind() == std::io::ErrorKind::ConnectionRefused {
        return "is the controller running there? --context or --server names another one";
    }
    if source.get_ref().and_then(|inner| inner.downcast_ref::<UnknownHost>()).is_some() {
        return "no name server knows this host: mend `url` in the context, or name another one with --server";
    }
    "is there a way to that host? --context or --server names another controller"
}

fn untrusted(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Expired { .. } | Refusal::NotYetValid { .. } => {
            "is the clock right, here and there? a controller renews its own"
        }
        Refusal::WrongName => {
            "name the host as the certificate has it: `stemma-controller init --name NAME` put names into it"
        }
        _ => {
            "is it the controller of another fleet, or the agents' port? `ca` in the context must be this fleet's ca.pem"
        }
    }
}

/// The peer's TLS side said that it does not take our certificate, or that there is none.
fn is_refused(error: &ClientError) -> bool {
    use rustls::AlertDescription as Alert;
    let refuses = |alert: &Alert| {
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
    of_tls(error).any(|error| matches!(error, rustls::Error::AlertReceived(alert) if refuses(alert)))
}

/// What came is no TLS record.
fn is_no_tls(error: &ClientError) -> bool {
    of_tls(error).any(|error| matches!(error, rustls::Error::InvalidMessage(_)))
}

/// What came back is no HTTP answer.
fn is_no_http(error: &ClientError) -> bool {
    matches!(error, ClientError::Broken { source } if source.is_parse())
}

/// The errors of the TLS side among an error's causes. They stand within those of the socket.
fn of_tls(error: &ClientError) -> impl Iterator<Item = &rustls::Error> {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.filter_map(|cause| {
        let within = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        within.and_then(|error| error.downcast_ref::<rustls::Error>()).or_else(|| cause.downcast_ref::<rustls::Error>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use std::time::Duration;

    #[test]
    fn each_failure_says_what_to_look_at() {
        let target = || "https://c.example:9443".parse().unwrap();
        let tls = |error| Error::new(ErrorKind::InvalidData, error);
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::HandshakeFailure);
        let no_tls = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
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
                "cannot be reached: failed to lookup address information: x\n  no name server knows this host: mend `url`",
            ),
            (
                ClientError::ConnectTimeout { target: target(), within: Duration::from_secs(10) },
                "did not answer within 10 s\n  is the host up, and does a firewall",
            ),
            (
                ClientError::Untrusted { target: target(), source: Refusal::UnknownIssuer },
                "is not trusted: the certificate was not issued by an authority that is trusted here\n  is it the controller of another fleet",
            ),
            (
                ClientError::Untrusted { target: target(), source: Refusal::WrongName },
                "name the host as the certificate has it",
            ),
            (
                ClientError::Handshake { target: target(), source: tls(no_tls) },
                "https://c.example:9443 does not speak TLS\n  is this the admin's port?",
            ),
            (
                ClientError::Handshake { target: target(), source: tls(alert) },
                "the TLS handshake with https://c.example:9443 failed",
            ),
            (
                ClientError::AnswerTimeout { within: Duration::from_secs(30) },
                "no answer within 30 s\n  is the controller busy?",
            ),
        ] {
            let text = sentence(&error, "https://c.example:9443");
            assert!(text.contains(expected), "{text}");
        }
    }
}

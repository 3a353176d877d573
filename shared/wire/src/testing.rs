//! A fleet's certificates and an in-memory network, for the tests of this crate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
    SanType, SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::clock::FixedClock;
use crate::net::{Accept, Connector};
use crate::tls::{ClientIdentity, FleetName, ListenerRole, Pin, RENEW_GRACE_SECONDS, ServerKey, TlsListener};

/// The current time in the tests: 2026-06-15T12:00:00Z.
pub(crate) const NOW_UNIX_SECONDS: u64 = 1_781_524_800;
pub(crate) const DAY_SECONDS: u64 = 24 * 3600;
pub(crate) const NODE_ID: &str = "0190b6c8-4c1e-7d2a-9f00-0123456789ab";
pub(crate) const CONTROLLER_ID: &str = "0190b6c8-4c1e-7d2a-9f00-00000000c0de";

/// A certificate authority of the test fleet: its certificate and its key.
pub(crate) struct TestAuthority {
    pub(crate) params: CertificateParams,
    pub(crate) key: KeyPair,
    pub(crate) der: CertificateDer<'static>,
}

/// The authorities of a test fleet: the root, and its issuers for agents, admins and signers.
pub(crate) struct TestFleet {
    pub(crate) root: TestAuthority,
    pub(crate) agents: TestAuthority,
    pub(crate) admin: TestAuthority,
    pub(crate) signers: TestAuthority,
}

/// The parameters of a certificate to issue. [`TestLeaf::node`] and the similar functions return valid parameters, and
/// a test can then change one of them.
pub(crate) struct TestLeaf {
    pub(crate) params: CertificateParams,
    pub(crate) algorithm: &'static SignatureAlgorithm,
}

/// An issued certificate with its private key.
pub(crate) struct TestCertificate {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key: KeyPair,
}

pub(crate) fn uri_name(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

impl TestAuthority {
    /// Creates an authority with these extended key usages. Without an issuer, the authority is a self-signed root.
    fn new(name: &str, usages: Vec<ExtendedKeyUsagePurpose>, issuer: Option<&Self>) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        // At most one issuer may follow the root in a chain, and none may follow an issuer.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(u8::from(issuer.is_none())));
        params.extended_key_usages = usages;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2040, 1, 1);
        let certificate = match issuer {
            Some(issuer) => params.signed_by(&key, &Issuer::from_params(&issuer.params, &issuer.key)),
            None => params.self_signed(&key),
        };
        let der = certificate.expect("an authority").der().clone();
        Self { params, key, der }
    }

    /// Issues a certificate with these parameters for a new key.
    pub(crate) fn issue(&self, leaf: &TestLeaf) -> TestCertificate {
        let key = KeyPair::generate_for(leaf.algorithm).expect("a key");
        let certificate = leaf.params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).expect("a leaf");
        TestCertificate { der: certificate.der().clone(), key }
    }
}

impl TestFleet {
    /// Creates a fleet: a root, and three issuers with the extended key usages of the certificates that they issue.
    pub(crate) fn new() -> Self {
        use ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
        let root = TestAuthority::new("fleet root", vec![], None);
        let agents = TestAuthority::new("agents", vec![ClientAuth], Some(&root));
        let admin = TestAuthority::new("admin", vec![ClientAuth, ServerAuth], Some(&root));
        let signers = TestAuthority::new("signers", vec![CodeSigning], Some(&root));
        Self { root, agents, admin, signers }
    }

    pub(crate) fn roots(&self) -> Pin {
        Pin::Roots(vec![self.root.der.clone()])
    }

    /// Returns the trust settings of the agents' listener.
    pub(crate) fn agents_listener(&self) -> TlsListener {
        TlsListener {
            role: ListenerRole::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS },
            fleet: fleet(),
            issuers: vec![self.agents.der.clone()],
        }
    }

    /// Returns the trust settings of the admin listener.
    pub(crate) fn admin_listener(&self) -> TlsListener {
        TlsListener { role: ListenerRole::Admins, fleet: fleet(), issuers: vec![self.admin.der.clone()] }
    }

    /// Issues a certificate for a controller. Returns its chain up to the root, and its key.
    pub(crate) fn server_key(&self) -> ServerKey {
        let issued = self.admin.issue(&TestLeaf::controller());
        ServerKey { chain: vec![issued.der.clone(), self.admin.der.clone(), self.root.der.clone()], key: issued.private_key() }
    }
}

impl TestLeaf {
    /// Returns the parameters of a certificate that is valid for one day around [`NOW_UNIX_SECONDS`].
    fn new(usage: ExtendedKeyUsagePurpose, names: Vec<SanType>) -> Self {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2026, 6, 15);
        params.not_after = date_time_ymd(2026, 6, 16);
        params.serial_number = Some(SerialNumber::from_slice(&[0x5a, 1, 2, 3]));
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = names;
        Self { params, algorithm: &PKCS_ECDSA_P256_SHA256 }
    }

    pub(crate) fn node() -> Self {
        Self::new(ExtendedKeyUsagePurpose::ClientAuth, vec![uri_name(&format!("spiffe://prod/node/{NODE_ID}"))])
    }

    pub(crate) fn admin() -> Self {
        Self::new(ExtendedKeyUsagePurpose::ClientAuth, vec![uri_name("spiffe://prod/admin/ada")])
    }

    /// Returns the parameters of a controller's certificate, which also contains a DNS name.
    pub(crate) fn controller() -> Self {
        let names = vec![
            uri_name(&format!("spiffe://prod/controller/{CONTROLLER_ID}")),
            SanType::DnsName("ctl.example".try_into().expect("ASCII")),
        ];
        Self::new(ExtendedKeyUsagePurpose::ServerAuth, names)
    }

    /// Returns the parameters of a signer's certificate, with an Ed25519 key.
    pub(crate) fn signer() -> Self {
        let leaf =
            Self::new(ExtendedKeyUsagePurpose::CodeSigning, vec![uri_name(&format!("spiffe://prod/signer/{CONTROLLER_ID}"))]);
        Self { algorithm: &PKCS_ED25519, ..leaf }
    }

    /// Changes parameters of the certificate, so that a test can issue an invalid one.
    pub(crate) fn with_params(mut self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        change(&mut self.params);
        self
    }
}

impl TestCertificate {
    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    pub(crate) fn identity(&self) -> ClientIdentity {
        ClientIdentity { chain: vec![self.der.clone()], key: self.private_key() }
    }
}

pub(crate) fn fleet() -> FleetName {
    "prod".parse().expect("a fleet's name")
}

pub(crate) fn clock() -> Arc<FixedClock> {
    Arc::new(FixedClock(NOW_UNIX_SECONDS))
}

/// The listening end of an in-memory network. Tests with a paused clock need it: with kernel sockets, the clock would
/// advance while bytes are on their way.
pub(crate) struct PipeListener(mpsc::UnboundedReceiver<(DuplexStream, SocketAddr)>);

/// The connecting end of an in-memory network.
#[derive(Clone)]
pub(crate) struct PipeConnector {
    sender: mpsc::UnboundedSender<(DuplexStream, SocketAddr)>,
    pub(crate) client_address: SocketAddr,
}

/// Creates an in-memory network with its two ends.
pub(crate) fn pipe() -> (PipeListener, PipeConnector) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (PipeListener(receiver), PipeConnector { sender, client_address: ([192, 0, 2, 1], 4000).into() })
}

impl Accept for PipeListener {
    type Stream = DuplexStream;

    /// Waits for the next connection. Waits forever if all connecting ends were dropped.
    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(connection) => Ok(connection),
            None => std::future::pending().await,
        }
    }
}

impl Connector for PipeConnector {
    type Stream = DuplexStream;

    /// Opens a connection to the listening end, whatever the host and port. Each direction buffers 16 KiB.
    async fn connect(&self, _host: &str, _port: u16) -> io::Result<DuplexStream> {
        let (client_end, server_end) = tokio::io::duplex(16 * 1024);
        self.sender.send((server_end, self.client_address)).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(client_end)
    }
}

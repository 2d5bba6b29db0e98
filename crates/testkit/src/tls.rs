//! TLS in front of something that has none.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Whether a client has to show who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Nobody,
    Everybody,
}

/// TLS in front of `target`, with certificates that only its own files vouch for.
pub struct TlsFront {
    address: SocketAddr,
    folder: tempfile::TempDir,
    _stop: DropGuard,
}

impl TlsFront {
    /// Lets everybody in.
    pub async fn start(target: SocketAddr) -> Self {
        Self::asking(target, Asks::Nobody).await
    }

    /// Lets in whoever has [`Self::client_certificate`].
    pub async fn mutual(target: SocketAddr) -> Self {
        Self::asking(target, Asks::Everybody).await
    }

    #[expect(clippy::disallowed_methods, reason = "tests have no supervisor; the task ends with the front")]
    async fn asking(target: SocketAddr, asks: Asks) -> Self {
        crate::install_crypto();
        let folder = tempfile::tempdir().expect("make a folder for certificates");
        let write =
            |name: &str, pem: String| std::fs::write(folder.path().join(name), pem).expect("write a certificate");
        let server = generate_simple_self_signed(["localhost".to_owned()]).expect("make a certificate");
        write("authority.pem", server.cert.pem());
        let mut authority = CertificateParams::new(Vec::new()).expect("name an authority");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("make a key");
        let root = authority.self_signed(&key).expect("make an authority");
        let client_key = KeyPair::generate().expect("make a key");
        let client = CertificateParams::new(["client".to_owned()]).expect("name a client");
        let client = client.signed_by(&client_key, &Issuer::new(authority, key)).expect("make a certificate");
        write("client.pem", client.pem());
        write("client.key", client_key.serialize_pem());
        let config = match asks {
            Asks::Nobody => ServerConfig::builder().with_no_client_auth(),
            Asks::Everybody => {
                let mut roots = RootCertStore::empty();
                roots.add(root.der().clone()).expect("trust the authority");
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("ask for certificates");
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let key = PrivatePkcs8KeyDer::from(server.signing_key.serialize_der());
        let config = config.with_single_cert(vec![server.cert.der().clone()], key.into()).expect("use the certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the front");
        let address = listener.local_addr().expect("read the bound address");
        let token = CancellationToken::new();
        let stop = token.clone();
        tokio::spawn(async move {
            while let Some(Ok((stream, _))) = token.run_until_cancelled(listener.accept()).await {
                let acceptor = acceptor.clone();
                tokio::spawn(token.clone().run_until_cancelled_owned(async move {
                    let (Ok(mut near), Ok(mut far)) = (acceptor.accept(stream).await, TcpStream::connect(target).await)
                    else {
                        return;
                    };
                    // Either side may go at any time.
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
                }));
            }
        });
        Self { address, folder, _stop: stop.drop_guard() }
    }

    /// `https://localhost:port`.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// The file of whoever vouches for it.
    pub fn authority(&self) -> PathBuf {
        self.file("authority.pem")
    }

    /// A certificate that it lets in, and its key.
    pub fn client_certificate(&self) -> (PathBuf, PathBuf) {
        (self.file("client.pem"), self.file("client.key"))
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::join(self.folder.path(), name)
    }
}

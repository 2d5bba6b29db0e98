//! TLS in an image without certificates: public authorities are trusted, and one's own beside them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use watchfire_simulator::{Dialect, Simulator};
use watchfire_testkit::Receiver;

use crate::support::{Api, Setup, run, text};

/// As in an image without certificates: every client then looks at a file without a name, and nobody has named one.
const NONE: (&str, &str) = ("SSL_CERT_FILE", "");

/// An empty list over TLS, for whoever trusts an authority that nobody else knows.
struct Private {
    /// `localhost:port`.
    address: String,
    authority: String,
}

impl Private {
    fn serve() -> Self {
        watchfire_testkit::install_crypto();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key);
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        // Ends with the tests: it blocks, as rustls alone does.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
                // A client that does not trust it says so and goes.
                let _refused = answer(&mut stream);
            }
        });
        Self { address, authority: cert.pem() }
    }
}

fn answer(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.extend(byte);
    }
    let body = r#"{"kind":"ClusterList","page":1,"size":0,"total":0,"items":[]}"#;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    stream.flush()
}

#[tokio::test]
async fn every_client_has_authorities_to_trust_and_the_api_those_of_its_file_besides() {
    let far = Private::serve();
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority.pem");
    std::fs::write(&authority, &far.authority).unwrap();
    let check = async |more: &str, env: &[(&str, &str)]| {
        let file = folder.path().join("sentinel.yaml");
        let url = format!("https://{}", far.address);
        std::fs::write(&file, format!("resource_type: clusters\nhyperfleet_api:\n  endpoint: {url}\n{more}")).unwrap();
        let env: Vec<_> = env.iter().copied().chain([NONE]).collect();
        let output = run(&["config", "check", "--live", "--config", &file.display().to_string()], &env).await;
        assert_eq!(text(&output.stdout).matches("the configuration is valid").count(), 1);
        text(&output.stdout) + &text(&output.stderr)
    };
    let http = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://a"), ("BROKER_HTTP_STORE", "/tmp/none")];
    let said = check(&format!("  ca_file: {}\n", authority.display()), &http).await;
    assert!(said.contains("answers: 0 clusters"), "{said}");

    let amqps = format!("amqps://{}", far.address);
    let emulator = format!("https://{}", far.address);
    let rabbitmq = [("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", amqps.as_str())];
    let pubsub = [("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "p"), ("PUBSUB_EMULATOR_HOST", &emulator)];
    // The subscribers of the embedded broker are not asked.
    for (env, refused) in [(&http[..], 1), (&rabbitmq, 2), (&pubsub, 2)] {
        let said = check("", env).await;
        let untrusted = said.lines().filter(|line| line.contains("FAILED") && line.contains("UnknownIssuer")).count();
        assert_eq!(untrusted, refused, "{said}");
    }
}

#[tokio::test]
async fn a_sentinel_without_certificates_says_so_and_works() {
    let api = Api::serve(Simulator::new(Dialect::Hyperfleet)).await;
    let receiver = Receiver::start().await;
    let sentinel = Setup::new(&api.url, "", receiver.url()).env(NONE.0, NONE.1).start().await;
    sentinel.readiness(200).await;
    let trusted =
        std::fs::read_to_string(format!("/proc/{}/environ", sentinel.process.pid().as_raw_nonzero())).unwrap();
    assert!(trusted.contains("SSL_CERT_FILE=/proc/self/fd/"), "{trusted}");
    let said = sentinel.stop().await;
    assert_eq!(said.matches("the system has no certificates of authorities").count(), 1, "{said}");
}

#[tokio::test]
async fn who_is_to_be_trusted_is_never_replaced_by_those_built_in() {
    let output = run(&["version"], &[("SSL_CERT_FILE", "/nowhere/authority.pem")]).await;
    let said = text(&output.stderr);
    assert!(said.contains("SSL_CERT_FILE=/nowhere/authority.pem holds none"), "{said}");
    assert!(output.status.success());
}

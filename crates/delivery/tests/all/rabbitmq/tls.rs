//! A broker that speaks TLS, one whose authority nobody trusts, and one that speaks none.

use watchfire_testkit::{alone_with, free_port, missing};

use super::*;

const TLS_CHILD: &str = "WATCHFIRE_TEST_TLS_URL";

/// The other half of the next test: publishes to a broker whose authority `SSL_CERT_FILE` names.
#[tokio::test]
#[ignore = "runs as a child of a_broker_with_tls_is_published_to_if_its_authority_is_trusted"]
async fn child_that_publishes_over_tls() {
    let Ok(url) = std::env::var(TLS_CHILD) else { return };
    watchfire_testkit::install_crypto();
    publish_one(&RabbitMq::new(config(&url, "tls")), "over-tls").await.unwrap();
}

#[tokio::test]
async fn a_broker_with_tls_is_published_to_if_its_authority_is_trusted() {
    let name = "a_broker_with_tls_is_published_to_if_its_authority_is_trusted";
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
    let Some(()) = certify(name, &path) else { return };
    let port = free_port();
    let conf = format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_none\n",
        path("ca.pem"),
        path("broker.pem"),
        path("broker.key"),
    );
    let Some(broker) = private_broker_with(name, &conf).await else { return };
    let mut consumer = Rabbit::listen(&broker.url(), "tls", "fanout", "").await;
    let url = format!("amqps://guest:guest@127.0.0.1:{port}/%2f");
    let error = publish_one(&RabbitMq::new(config(&url, "tls")), "untrusted").await.unwrap_err();
    assert_eq!(error.kind(), "connect", "{error:?}");

    let env = [(TLS_CHILD, url.as_str()), ("SSL_CERT_FILE", &path("ca.pem"))];
    alone_with("rabbitmq::tls::child_that_publishes_over_tls", &env).await;
    assert_eq!(consumer.take(1).await[0].headers["_watermill_message_uuid"], "over-tls");
}

/// Makes an authority, and with it a certificate for localhost.
fn certify(test: &str, path: &impl Fn(&str) -> String) -> Option<()> {
    std::fs::write(path("names"), "subjectAltName = DNS:localhost, IP:127.0.0.1\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for command in [
        format!("req -x509 {key} -days 2 -subj /CN=test-authority -keyout {} -out {}", path("ca.key"), path("ca.pem")),
        format!("req -new {key} -subj /CN=localhost -keyout {} -out {}", path("broker.key"), path("request")),
        format!(
            "x509 -req -days 2 -in {} -CA {} -CAkey {} -CAcreateserial -extfile {} -out {}",
            path("request"),
            path("ca.pem"),
            path("ca.key"),
            path("names"),
            path("broker.pem")
        ),
    ] {
        let Ok(output) = std::process::Command::new("openssl").args(command.split(' ')).output() else {
            missing(test, "openssl", "`apt-get install openssl`");
            return None;
        };
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Some(())
}

#[tokio::test]
async fn a_port_that_speaks_no_tls_is_an_error_and_not_a_hang() {
    let Some(url) = amqp_url("a_port_that_speaks_no_tls_is_an_error_and_not_a_hang") else { return };
    let mut tls = config(&url, &unique("tls"));
    (tls.transport, tls.timeout) = (Transport::Tls, STEP);
    let error = publish_one(&RabbitMq::new(tls), "a").await.unwrap_err();
    assert_eq!(error.kind(), "connect", "{error:?}");
    assert!(error.to_string().contains("amqps://"), "{error}");
}

//! Each fault is seen from the client's side.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use watchfire_testkit::{Mode, Proxy, eventually};

const STEP: Duration = Duration::from_secs(10);
/// Long against a loopback round trip.
const NOTHING: Duration = Duration::from_millis(200);

#[expect(clippy::disallowed_methods, reason = "the echo server ends with the test's runtime")]
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok();
            });
        }
    });
    Proxy::start(address).await
}

async fn say(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");
    eventually(STEP, "five bytes back", async || (proxy.received() == 5).then_some(())).await;
    assert_eq!((proxy.sent(), proxy.open()), (5, 1));
}

#[tokio::test]
async fn a_cut_ends_open_connections_and_takes_new_ones() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    say(&mut stream, "hello").await.unwrap();
    proxy.cut();
    eventually(STEP, "the connection is closed", async || (proxy.open() == 0).then_some(())).await;
    assert!(say(&mut stream, "anyone").await.is_err());
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "again").await.unwrap(), "again");
}

#[tokio::test]
async fn down_refuses_and_up_listens_on_the_same_port() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    say(&mut stream, "hello").await.unwrap();
    proxy.down().await;
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    proxy.up().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "again").await.unwrap(), "again");
}

#[tokio::test]
async fn a_blackhole_takes_bytes_and_gives_none_until_it_ends() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    say(&mut stream, "hello").await.unwrap();
    proxy.set(Mode::Blackhole).await;
    stream.write_all(b"anyone").await.unwrap();
    let mut answer = [0; 6];
    let silent = tokio::time::timeout(NOTHING, stream.read_exact(&mut answer)).await;
    assert!(silent.is_err(), "nothing passes");
    proxy.set(Mode::Pass).await;
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"anyone");
}

#[tokio::test]
async fn a_delay_holds_each_direction() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(30))).await;
    let start = std::time::Instant::now();
    say(&mut stream, "hello").await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
}

#[tokio::test]
async fn one_way_takes_the_question_to_the_target_and_keeps_the_answer() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    say(&mut stream, "hello").await.unwrap();
    proxy.set(Mode::OneWay).await;
    stream.write_all(b"anyone").await.unwrap();
    eventually(STEP, "the question arrives", async || (proxy.sent() == 11).then_some(())).await;
    let mut answer = [0; 6];
    let silent = tokio::time::timeout(NOTHING, stream.read_exact(&mut answer)).await;
    assert!(silent.is_err(), "nothing comes back");
    proxy.set(Mode::Pass).await;
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"anyone");
}

#[tokio::test]
async fn a_reset_is_one_to_open_connections_and_to_new_ones() {
    let proxy = echo().await;
    let mut open = TcpStream::connect(proxy.address()).await.unwrap();
    say(&mut open, "hello").await.unwrap();
    proxy.set(Mode::Reset).await;
    say(&mut open, "again").await.unwrap();
    proxy.cut();
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    for stream in [&mut open, &mut new] {
        let error = stream.read_exact(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    proxy.set(Mode::Pass).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");
}

#[tokio::test]
async fn a_slow_connection_passes_so_many_bytes_a_second() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Mode::Slow(2_000)).await;
    let start = std::time::Instant::now();
    say(&mut stream, &"x".repeat(400)).await.unwrap();
    // Both directions overlap.
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

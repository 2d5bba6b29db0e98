use std::sync::Mutex;
use std::time::Instant;

use axum::body::Body;
use http::StatusCode;

use super::*;
use crate::retry::Verdict;
use crate::testing::{Receiver, event};

fn sink(receiver: &Receiver) -> Http {
    Http::new(Config::new(receiver.url())).unwrap()
}

async fn publish(sink: &Http, id: &str) -> Result<(), Error> {
    sink.publish_all(&[event(id, "s")]).await.remove(0)
}

#[tokio::test]
async fn an_event_is_posted_as_its_frozen_structured_body() {
    let receiver = Receiver::start(|_| async { StatusCode::NO_CONTENT }).await;
    let mut config = Config::new(receiver.url());
    config.token = Some(SecretSource::literal("t0ken"));
    config.headers.insert("x-team", HeaderValue::from_static("fleet"));
    publish(&Http::new(config).unwrap(), "1").await.unwrap();
    let seen = receiver.seen().remove(0);
    assert_eq!(&seen.body, event("1", "s").body());
    assert_eq!((seen.method, seen.uri.path()), (Method::POST, "/events"));
    assert_eq!(seen.headers["content-type"], "application/cloudevents+json");
    assert_eq!(seen.headers["authorization"], "Bearer t0ken");
    assert_eq!(seen.headers["x-team"], "fleet");
}

/// S40 of the beacon.
#[tokio::test]
async fn binary_mode_puts_attributes_into_headers() {
    let receiver = Receiver::start(|_| async {}).await;
    let config = Config { mode: Mode::Binary, ..Config::new(receiver.url()) };
    publish(&Http::new(config).unwrap(), "1").await.unwrap();
    let seen = receiver.seen().remove(0);
    assert_eq!(seen.body, r#"{"id":"1","generation":3}"#);
    assert_eq!(seen.headers["content-type"], "application/json");
    assert_eq!(
        (&seen.headers["ce-id"], &seen.headers["ce-subject"]),
        (&HeaderValue::from_static("1"), &HeaderValue::from_static("s"))
    );
}

#[tokio::test]
async fn outcomes_are_each_events_own_and_in_order() {
    let receiver = Receiver::start(|seen| async move {
        let number: u16 = seen.id().parse().unwrap();
        // Later ones answer first.
        tokio::time::sleep(Duration::from_millis(u64::from(60 - number % 60) / 4)).await;
        if number.is_multiple_of(3) { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK }
    })
    .await;
    let events: Vec<_> = (0..200).map(|id| event(&id.to_string(), "s")).collect();
    let outcomes = sink(&receiver).publish_all(&events).await;
    assert_eq!(outcomes.len(), 200);
    for (number, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.is_err(), number % 3 == 0, "event {number}: {outcome:?}");
    }
    assert!(sink(&receiver).publish_all(&[]).await.is_empty());
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_allowed() {
    let under_way = Arc::new(Mutex::new((0_usize, 0_usize)));
    let count = Arc::clone(&under_way);
    let receiver = Receiver::start(move |_| {
        let count = Arc::clone(&count);
        async move {
            {
                let mut count = count.lock().unwrap();
                count.0 += 1;
                count.1 = count.1.max(count.0);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            count.lock().unwrap().0 -= 1;
        }
    })
    .await;
    let config = Config { concurrency: NonZeroUsize::new(4).unwrap(), ..Config::new(receiver.url()) };
    let events: Vec<_> = (0..100).map(|id| event(&id.to_string(), "s")).collect();
    Http::new(config).unwrap().publish_all(&events).await;
    assert_eq!(under_way.lock().unwrap().1, 4);
}

#[tokio::test]
async fn statuses_become_verdicts_and_retry_after_is_read() {
    let receiver = Receiver::start(|seen| async move {
        let status = StatusCode::from_u16(seen.id().parse().unwrap()).unwrap();
        (status, [("retry-after", "17")])
    })
    .await;
    let after = Some(Duration::from_secs(17));
    for (status, verdict) in [
        (400, Verdict::Permanent),
        (401, Verdict::Provisional),
        (403, Verdict::Provisional),
        (404, Verdict::Permanent),
        (410, Verdict::Pause),
        (429, Verdict::Retry { after }),
        (503, Verdict::Retry { after }),
    ] {
        let error = publish(&sink(&receiver), &status.to_string()).await.unwrap_err();
        assert_eq!(error.verdict(), verdict, "{error}");
        // Without the path, which may be the secret of a webhook.
        let url = receiver.url();
        let (host, port) = (url.host_str().unwrap(), url.port().unwrap());
        assert_eq!(error.to_string(), format!("post to http://{host}:{port}: status {status}"));
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Receiver::start(|_| async {}).await;
    let location = elsewhere.url().to_string();
    for status in [301, 302, 303, 307, 308] {
        let location = location.clone();
        let receiver = Receiver::start(move |_| {
            let location = location.clone();
            async move { (StatusCode::from_u16(status).unwrap(), [("location", location)]) }
        })
        .await;
        let error = publish(&sink(&receiver), "1").await.unwrap_err();
        assert_eq!(error.verdict(), Verdict::Permanent);
    }
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn an_endless_answer_does_not_hold_up_its_event() {
    let receiver = Receiver::start(|_| async {
        Body::from_stream(futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 8 << 10])))
    })
    .await;
    let started = Instant::now();
    publish(&sink(&receiver), "1").await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_answer_that_stops_in_the_middle_counts_by_its_status() {
    let receiver = Receiver::start(|_| async {
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>("x")]);
        Body::from_stream(first.chain(futures_util::stream::pending()))
    })
    .await;
    publish(&sink(&receiver), "1").await.unwrap();
}

#[tokio::test]
async fn an_answer_has_the_rest_of_its_requests_time_and_no_more() {
    let timeout = Duration::from_secs(2);
    let receiver = Receiver::start(move |_| async move {
        tokio::time::sleep(timeout * 3 / 5).await;
        Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>())
    })
    .await;
    let sink = Http::new(Config { timeout, ..Config::new(receiver.url()) }).unwrap();
    let started = Instant::now();
    publish(&sink, "1").await.unwrap();
    assert!(started.elapsed() < timeout * 3 / 5 + timeout, "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_endpoint_that_never_answers_costs_few_timeouts() {
    let receiver = Receiver::start(|_| std::future::pending::<()>()).await;
    let timeout = Duration::from_millis(100);
    let config = Config { timeout, concurrency: NonZeroUsize::new(8).unwrap(), ..Config::new(receiver.url()) };
    let events: Vec<_> = (0..1_000).map(|id| event(&id.to_string(), "s")).collect();
    let started = Instant::now();
    let outcomes = Http::new(config).unwrap().publish_all(&events).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Err(error) if error.verdict() == Verdict::Retry { after: None }))
    );
    assert!(matches!(outcomes[0], Err(Error::Timeout { .. })));
    assert!(receiver.seen().len() <= 16, "{} were sent", receiver.seen().len());
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_told_without_its_secrets() {
    let address = format!("127.0.0.1:{}", watchfire_testkit::free_port());
    let url: Url = format!("http://user:pa55@{address}/services/s3cret?token=s3cret#f").parse().unwrap();
    let config = Config { token: Some(SecretSource::literal("s3cret")), ..Config::new(url) };
    let shown = format!("{config:?}");
    let sink = Http::new(config).unwrap();
    let error = publish(&sink, "1").await.unwrap_err();
    assert_eq!(error.to_string(), format!("reach http://{address}"));
    let everything = format!("{error:?} {} {sink:?} {shown}", watchfire_runtime::chain(&error));
    assert!(!everything.contains("pa55") && !everything.contains("s3cret"), "{everything}");
    assert!(matches!(sink.check().await, Err(Error::Connect { .. })));
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_at_start() {
    let url = |url: &str| Config::new(url.parse().unwrap());
    let error = Http::new(url("ftp://host/x")).unwrap_err();
    assert_eq!(error.to_string(), "use ftp://host: its scheme is neither http nor https");
    let token = Some(SecretSource::literal("two\nlines"));
    let error = Http::new(Config { token, ..url("http://host/x") }).unwrap_err();
    assert!(watchfire_runtime::chain(&error).contains("the token has characters"));
    assert!(!format!("{error:?}").contains("two"));
    // A file may come later.
    let token = Some(SecretSource::file("/nowhere/token"));
    let sink = Http::new(Config { token, ..url("http://host/x") }).unwrap();
    let error = publish(&sink, "1").await.unwrap_err();
    assert!(watchfire_runtime::chain(&error).contains("/nowhere/token"), "{error:?}");
    assert_eq!((error.verdict(), sink.credentials().is_err()), (Verdict::Provisional, true));
}

#[tokio::test]
async fn a_rotated_token_is_sent_with_the_next_request() {
    let valid = Arc::new(Mutex::new("first"));
    let expected = Arc::clone(&valid);
    let receiver = Receiver::start(move |seen| {
        let fits = seen.headers["authorization"] == format!("Bearer {}", expected.lock().unwrap());
        async move { if fits { StatusCode::OK } else { StatusCode::UNAUTHORIZED } }
    })
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "first\n").unwrap();
    let config = Config { token: Some(SecretSource::file(file.path())), ..Config::new(receiver.url()) };
    let sink = Http::new(config).unwrap();
    publish(&sink, "1").await.unwrap();
    *valid.lock().unwrap() = "other";
    assert_eq!(publish(&sink, "2").await.unwrap_err().verdict(), Verdict::Provisional);
    std::fs::write(file.path(), "other\n").unwrap();
    sink.check().await.unwrap();
    publish(&sink, "2").await.unwrap();
    std::fs::remove_file(file.path()).unwrap();
    let error = publish(&sink, "3").await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), ("denied", Verdict::Provisional));
    assert_eq!(receiver.count(), 4, "nothing goes out without its token");
}

#[tokio::test]
async fn a_slow_endpoint_does_not_keep_a_window_for_longer_than_two_timeouts() {
    let receiver = Receiver::start(|_| tokio::time::sleep(Duration::from_millis(250))).await;
    let timeout = Duration::from_secs(1);
    let config = Config { timeout, concurrency: NonZeroUsize::new(2).unwrap(), ..Config::new(receiver.url()) };
    let events: Vec<_> = (0..200).map(|id| event(&id.to_string(), "s")).collect();
    let started = Instant::now();
    let outcomes = Http::new(config).unwrap().publish_all(&events).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}, all of them take 25 s", started.elapsed());
    let taken = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert!((1..200).contains(&taken), "{taken}");
    for outcome in &outcomes[taken..] {
        assert_eq!(outcome.as_ref().unwrap_err().verdict(), Verdict::Retry { after: None });
    }
    assert!(receiver.count() < 100, "{} were sent", receiver.count());
}

#[tokio::test]
async fn the_check_asks_without_sending_an_event() {
    let status = Arc::new(Mutex::new(StatusCode::METHOD_NOT_ALLOWED));
    let answer = Arc::clone(&status);
    let receiver = Receiver::start(move |_| {
        let status = *answer.lock().unwrap();
        async move { status }
    })
    .await;
    let sink = sink(&receiver);
    for (code, up) in [(405, true), (404, true), (200, true), (501, true), (503, false), (401, false), (410, false)] {
        *status.lock().unwrap() = StatusCode::from_u16(code).unwrap();
        assert_eq!(sink.check().await.is_ok(), up, "{code}");
    }
    assert!(receiver.seen().iter().all(|seen| seen.method == Method::HEAD));
}

/// A receiver checks what it was sent: the headers, and the bytes.
#[tokio::test]
async fn what_is_signed_is_what_the_receiver_gets() {
    let receiver = Receiver::start(|_| async {}).await;
    let secrets = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let config = Config { signing: Some(SecretSource::literal(secrets)), ..Config::new(receiver.url()) };
    publish(&Http::new(config).unwrap(), "ä b").await.unwrap();
    let seen = receiver.seen().remove(0);
    let header = |name: &str| seen.headers[name].to_str().unwrap();
    let at = header("webhook-timestamp").parse().unwrap();
    let signed = signature::sign(secrets, header("webhook-id"), at, &seen.body).unwrap();
    assert_eq!(header("webhook-signature"), signed);
    assert_eq!((header("webhook-id"), signed.split(' ').count()), ("%C3%A4%20b", 2));
}

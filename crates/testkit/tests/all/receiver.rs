//! What a sender sees of the receiver.

use std::time::Duration;

use watchfire_testkit::{Answer, Receiver, install_crypto};

fn client() -> reqwest::Client {
    install_crypto();
    reqwest::Client::builder().timeout(Duration::from_secs(10)).build().unwrap()
}

#[tokio::test]
async fn requests_are_recorded_and_the_script_is_answered_in_order() {
    let (receiver, client) = (Receiver::start().await, client());
    receiver.script([Answer::status(503).header("retry-after", "2"), Answer::status(404).body("no")]);
    let url = format!("{}/hook?x=1", receiver.url());
    let first = client.post(&url).header("x-test", "a").body("one").send().await.unwrap();
    assert_eq!((first.status().as_u16(), first.headers()["retry-after"].to_str().unwrap()), (503, "2"));
    let second = client.post(&url).body("two").send().await.unwrap();
    assert_eq!((second.status().as_u16(), second.text().await.unwrap().as_str()), (404, "no"));
    assert_eq!(client.post(&url).body("three").send().await.unwrap().status().as_u16(), 200);
    let requests = receiver.wait_for(3).await;
    let bodies: Vec<_> = requests.iter().map(|request| request.body.as_ref()).collect();
    assert_eq!(bodies, [b"one".as_ref(), b"two", b"three"]);
    assert_eq!((requests[0].uri.to_string().as_str(), requests[0].header("x-test")), ("/hook?x=1", "a"));
}

#[tokio::test]
async fn a_hanging_answer_never_comes_and_the_request_is_recorded() {
    let receiver = Receiver::start().await;
    receiver.otherwise(Answer::hang());
    let hanging = client().post(receiver.url()).body("one").timeout(Duration::from_millis(300)).send().await;
    assert!(hanging.unwrap_err().is_timeout());
    assert_eq!(receiver.take().len(), 1);
    receiver.otherwise(Answer::status(202).after(Duration::from_millis(20)));
    assert_eq!(client().post(receiver.url()).send().await.unwrap().status().as_u16(), 202);
}

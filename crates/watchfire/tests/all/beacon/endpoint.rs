//! What an endpoint may be and answer.

use std::time::Duration;

use watchfire_testkit::TlsFront;

use super::*;

impl Stage {
    /// With that address in place of the receiver's, and more about the endpoint.
    async fn begin_to(&self, url: &str, more: &str) -> Beacon {
        let config = self.config("", more, "warningThreshold: 100, criticalThreshold: 100");
        let config = config.replace(self.receiver.url(), url);
        Beacon::started(self.process_of(&self.account.kubeconfig(), &config)).await
    }

    /// The deliveries in a state.
    async fn listed(&self, state: &str) -> Vec<Value> {
        let args = ["outbox", "--store", &self.ledger(), "list", "--limit", "1000", "--state", state, "-o", "json"];
        let output = run(&args, &[]).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until this stands in the log.
    async fn says(&self, beacon: &Beacon, parts: &[&str]) {
        beacon.process.line(parts).await;
    }
}

/// What is to become of an event whose first answer has this status.
fn expected(status: u16) -> &'static str {
    match status {
        200..=299 => "taken",
        401 | 403 | 408 | 425 | 429 | 500..=599 => "taken later",
        _ => "dead",
    }
}

/// S35, and each status that an endpoint may answer with but 410: taken, tried again, or a dead letter.
#[tokio::test]
async fn every_status_means_what_it_says() {
    let Some(stage) = Stage::set("beacon::status").await else { return };
    let told: HashSet<u16> = HashSet::new();
    let told = std::sync::Mutex::new(told);
    stage.receiver.choose(move |request| {
        if request.uri.path() != "/events" {
            return Some(Answer::status(200));
        }
        let event: Value = serde_json::from_slice(&request.body).unwrap();
        let status = event["data"]["resource"]["name"].as_str()?.strip_prefix("s-")?.parse().ok()?;
        let answer = Answer::status(status).header("location", "/secret?secret=1");
        told.lock().unwrap().insert(status).then_some(answer)
    });
    let beacon = stage.start().await;
    let taken = |name: &str| {
        stage
            .receiver
            .requests()
            .iter()
            .filter(|request| {
                serde_json::from_slice::<Value>(&request.body).unwrap()["data"]["resource"]["name"] == *name
            })
            .count()
    };
    let statuses = || (200..600).filter(|status| *status != 410);
    // One after the other where a failure in a row with others would stop everything.
    for status in statuses().filter(|status| expected(*status) == "taken later") {
        let name = format!("s-{status}");
        stage.create(&name, Some("1")).await;
        eventually(DEADLINE, &format!("{status} is tried again"), async || (taken(&name) == 2).then_some(())).await;
    }
    for status in statuses().filter(|status| expected(*status) != "taken later") {
        stage.create(&format!("s-{status}"), Some("1")).await;
    }
    eventually(DEADLINE, "nothing waits", async || {
        let (waits, done) = (stage.listed("pending").await.len(), stage.listed("delivered").await.len());
        (waits == 0 && done + stage.listed("dead").await.len() == statuses().count()).then_some(())
    })
    .await;
    let number = |it: &Value| it["subject"].as_str().unwrap().rsplit('-').next().unwrap().parse::<u16>().unwrap();
    let dead: BTreeMap<_, _> = stage.listed("dead").await.into_iter().map(|it| (number(&it), it)).collect();
    for status in statuses() {
        let reason = dead.get(&status).map(|it| it["reason"].as_str().unwrap());
        assert_eq!(reason.is_some(), expected(status) == "dead", "{status}: {reason:?}");
        if let Some(reason) = reason {
            assert!(reason.ends_with(&format!("status {status}")) && !reason.contains("secret"), "{status}: {reason}");
            assert_eq!(reason.contains("it redirects to another path"), (300..400).contains(&status), "{reason}");
        }
        assert_eq!(taken(&format!("s-{status}")), if expected(status) == "taken later" { 2 } else { 1 }, "{status}");
    }
    assert!(stage.receiver.requests().iter().all(|request| request.uri.path() == "/events"), "nobody is followed");

    stage.receiver.choose(|_| None);
    stage.receiver.script([Answer::status(410)]);
    stage.create("gone", Some("1")).await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("delivery_endpoint") && unready.contains("watchfire outbox resume endpoint"), "{unready}");
    stage.create("behind", Some("1")).await;
    let resumed = run(&["outbox", "--store", &stage.ledger(), "resume", "endpoint"], &[]).await;
    assert!(resumed.status.success());
    beacon.readiness(200).await;
    eventually(DEADLINE, "what waited is taken", async || (taken("gone") == 2 && taken("behind") == 1).then_some(()))
        .await;
    beacon.stop().await;
}

/// S38: a token that is not good any more costs no event, and one that is written anew is used at once.
#[tokio::test]
async fn a_token_that_was_rotated_burns_nothing() {
    let Some(stage) = Stage::set("beacon::token").await else { return };
    let file = stage.folder.path().join("token");
    stage.receiver.choose(|request| match request.header("authorization") {
        "Bearer new" => Some(Answer::status(200)),
        _ => Some(Answer::status(401)),
    });
    let config = stage.config(
        "",
        &format!("  tokenFile: {}\n", file.display()),
        "warningThreshold: 100, criticalThreshold: 100",
    );
    let mut command = stage.command(&stage.account.kubeconfig(), &config);
    command.args(["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"]);
    let beacon = Beacon::started(Process::start(command)).await;
    beacon.readiness(200).await;
    stage.create("early", Some("1")).await;
    stage.create("soon", Some("1")).await;
    beacon.process.line(&["sink is down", "read the credentials", "check that the file is there"]).await;
    std::fs::write(&file, "old").unwrap();
    for n in 0..20 {
        stage.create(&format!("n-{n}"), Some("1")).await;
    }
    stage.receiver.wait_for(1).await;
    let before = stage.receiver.posts();
    std::fs::write(&file, "new").unwrap();
    eventually(DEADLINE, "all are taken", async || stage.verify().await.0.then_some(())).await;
    assert!(before < 20, "{before} requests were refused");
    let dead = beacon.series("outbox_dead_letters").await;
    assert!(dead.iter().all(|line| line.ends_with(" 0")), "{dead:?}");
    beacon.stop().await;
}

#[tokio::test]
async fn an_endpoint_whose_certificate_nobody_vouches_for_gets_nothing_until_somebody_does() {
    let Some(stage) = Stage::set("beacon::tls").await else { return };
    let front = TlsFront::start(stage.receiver.address()).await;
    let beacon = stage.begin_to(&front.url(), "").await;
    beacon.readiness(200).await;
    for name in ["a", "b"] {
        stage.create(name, Some("1")).await;
    }
    stage.says(&beacon, &["sink is down", "UnknownIssuer", "check the certificates"]).await;
    assert_eq!(stage.receiver.posts(), 0);
    beacon.stop().await;
    let vouched = format!("  tls: {{caFile: {}}}\n", front.authority().display());
    let beacon = stage.begin_to(&front.url(), &vouched).await;
    eventually(DEADLINE, "both are taken", async || (stage.told().len() == 2).then_some(())).await;
    assert!(!beacon.process.out().contains("insecureSkipVerify"));
    beacon.stop().await;
    let beacon = stage.begin_to(&front.url(), "  tls: {insecureSkipVerify: true}\n").await;
    stage.says(&beacon, &["insecureSkipVerify", "takes whoever answers"]).await;
    stage.create("c", Some("1")).await;
    eventually(DEADLINE, "the third is taken", async || (stage.told().len() == 3).then_some(())).await;
    beacon.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_asks_who_we_are_is_shown_a_certificate() {
    let Some(stage) = Stage::set("beacon::mutual").await else { return };
    let front = TlsFront::mutual(stage.receiver.address()).await;
    let vouched = format!("caFile: {}", front.authority().display());
    let beacon = stage.begin_to(&front.url(), &format!("  tls: {{{vouched}}}\n")).await;
    for name in ["a", "b"] {
        stage.create(name, Some("1")).await;
    }
    stage.says(&beacon, &["sink is down", "check the certificates"]).await;
    assert_eq!(stage.receiver.posts(), 0);
    beacon.stop().await;
    let (certificate, key) = front.client_certificate();
    let shown = format!("  tls: {{{vouched}, certFile: {}, keyFile: {}}}\n", certificate.display(), key.display());
    let beacon = stage.begin_to(&front.url(), &shown).await;
    eventually(DEADLINE, "both are taken", async || (stage.told().len() == 2).then_some(())).await;
    beacon.stop().await;
}

#[tokio::test]
async fn an_endpoint_is_asked_first_and_sent_nothing_until_it_allows_it() {
    let Some(stage) = Stage::set("beacon::handshake").await else { return };
    let of_question = |request: &watchfire_testkit::Request| request.method.as_str() == "OPTIONS";
    stage.receiver.choose(move |request| of_question(request).then(|| Answer::status(200)));
    let beacon =
        stage.begin_over(&stage.account.kubeconfig(), "  handshake: {origin: fleet.example.com, rate: 600}\n").await;
    for n in 0..5 {
        stage.create(&format!("n-{n}"), Some("1")).await;
    }
    stage.says(&beacon, &["sink is down", "WebHook-Allowed-Origin", "allow this origin"]).await;
    let asked = stage.receiver.requests();
    assert!(asked.iter().all(of_question), "nothing was sent");
    assert_eq!(
        (asked[0].header("webhook-request-origin"), asked[0].header("webhook-request-rate")),
        ("fleet.example.com", "600")
    );
    stage.receiver.take();
    stage.receiver.choose(move |request| {
        let granted = Answer::status(405).header("webhook-allowed-origin", "fleet.example.com");
        of_question(request).then(|| granted.header("webhook-allowed-rate", "300"))
    });
    eventually(DEADLINE, "all are taken", async || stage.verify().await.0.then_some(())).await;
    let requests = stage.receiver.requests();
    let last = requests.iter().rposition(of_question).unwrap();
    let sent_before = requests[..last].iter().any(|request| !of_question(request));
    assert!(!sent_before, "nobody asks again once it is allowed");
    let posts: Vec<_> = requests.iter().filter(|request| !of_question(request)).collect();
    assert!(posts.len() == 5 && posts.iter().all(|post| post.header("webhook-request-origin") == "fleet.example.com"));
    let took = posts[4].at - posts[1].at;
    assert!(took >= Duration::from_millis(500), "three at 300 a minute, in {took:?}");
    beacon.stop().await;
}

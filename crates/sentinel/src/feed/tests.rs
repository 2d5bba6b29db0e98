use futures_util::future::join;
use tokio::time::sleep;
use watchfire_runtime::config::{Document, Env};
use watchfire_runtime::health::Health;

use super::*;
use crate::config::check;

fn reader(search: Option<&str>, labels: Option<&str>) -> Reader {
    Reader {
        search: search.map(str::to_owned),
        labels: labels.map(str::to_owned),
        payload: Arc::new(Payload::default_payload()),
        expression: None,
        form: Form::Flat,
        api_state: Health::new().dependency("api"),
    }
}

/// Hands out pages to two that take so long for each; returns how many they got, and how long the walk took.
async fn hand_out(pages: usize, takes: [Duration; 2]) -> ([usize; 2], Duration) {
    let begun = Instant::now();
    let hungry = Arc::new(Notify::new());
    let mut patience = Patience::new(Arc::clone(&hungry));
    let (mut targets, mut hands) = (Vec::new(), Vec::new());
    for time in takes {
        let (pieces, receiver) = mpsc::channel(1);
        let own = Own { span: Span::none(), hungry: Arc::clone(&hungry), work: pending().boxed() };
        let own = Arc::new(Mutex::new(own));
        targets.push(Target { reader: Arc::new(reader(None, None)), pieces, own: Arc::downgrade(&own) });
        let mut walk = Walk { began: begun, unlisted: 0, pieces: receiver, own };
        hands.push(async move {
            let mut got = 0;
            while let Ok(Some(_)) = walk.next().await {
                got += 1;
                sleep(time).await;
            }
            got
        });
    }
    let handing = async {
        for _ in 0..pages {
            let late;
            (targets, late) = patience.until_room(std::mem::take(&mut targets)).await;
            for target in late {
                target.end(Ok(0));
            }
            patience.fed();
            let page = Arc::new(Page::parse("[]".to_owned()).unwrap());
            for target in &targets {
                target.pieces.try_send(Piece::Page(Arc::clone(&page))).unwrap();
            }
        }
        let took = begun.elapsed();
        for target in targets {
            target.end(Ok(0));
        }
        took
    };
    let [second, first] = [hands.pop().unwrap(), hands.pop().unwrap()];
    let (took, (first, second)) = join(handing, join(first, second)).await;
    ([first, second], took)
}

#[tokio::test(start_paused = true)]
async fn who_is_slower_keeps_the_others_for_no_longer_than_half_of_the_walk() {
    let ms = Duration::from_millis;
    // As fast as the other, or nearly: to the end.
    assert_eq!(hand_out(1000, [ms(10), ms(10)]).await.0, [1000, 1000]);
    assert_eq!(hand_out(1000, [ms(10), ms(12)]).await.0, [1000, 1000]);
    // A bit slower for each page adds up.
    for slow in [40, 200, 100_000] {
        let ([fast, slow], took) = hand_out(100, [ms(10), ms(slow)]).await;
        assert_eq!(fast, 100);
        assert!(slow < 100 && took <= ms(2 * 1000 + 600), "{slow} {took:?}");
    }
    // Where all are slow, nobody is kept.
    assert_eq!(hand_out(10, [ms(60_000), ms(60_000)]).await.0, [10, 10]);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_asks_to_be_left_alone_is_left_alone_by_all() {
    watchfire_testkit::install_crypto();
    let text = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://127.0.0.1:9\n";
    let config = check(Document::parse("sentinel.yaml", text).unwrap(), &Env::default()).0.unwrap();
    let (feeds, health) = (Feeds::default(), Health::new());
    let [mut first, mut second] = [(); 2].map(|()| feeds.join(&config, health.dependency("api")).unwrap());
    let begun = Instant::now();
    first.leave_alone(Duration::from_mins(1));
    let walk = async |seat: &mut Seat| seat.walk(begun, Duration::ZERO, Span::none).await.0.began - begun;
    let (first, second) = join(walk(&mut first), walk(&mut second)).await;
    assert!(first >= Duration::from_mins(1) && second == first, "{first:?} {second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_is_wanted_soon_comes_soon_and_no_flood_of_wishes_makes_it_more_than_one_in_a_fifth_of_the_interval()
 {
    watchfire_testkit::install_crypto();
    let text = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://127.0.0.1:9\n";
    let config = check(Document::parse("sentinel.yaml", text).unwrap(), &Env::default()).0.unwrap();
    let (feeds, health) = (Feeds::default(), Health::new());
    for (interval, soonest) in [(10, 2), (3_600, 5)].map(|(a, b)| (Duration::from_secs(a), Duration::from_secs(b))) {
        let mut seat = feeds.join(&config, health.dependency("api")).unwrap();
        let mut walk = async |due: Instant| seat.walk(due, interval / 2, Span::none).await.0.began;
        let mut began = walk(Instant::now()).await;
        for waits in [Duration::from_secs(1), soonest + Duration::from_secs(1)] {
            let wishes = async {
                tokio::time::sleep(waits).await;
                (0..100).for_each(|_| feeds.poll_soon());
            };
            let (next, ()) = join(walk(began + interval), wishes).await;
            assert_eq!(next - began, waits.max(soonest), "{interval:?}");
            began = next;
        }
        // None of those wishes is left.
        assert_eq!(walk(began + interval).await - began, interval);
        // One that came while the list was walked is.
        feeds.poll_soon();
        let next = walk(began + 2 * interval).await;
        assert_eq!(next - began, interval + soonest, "{interval:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wishes_that_never_end_do_not_put_off_the_walk_that_several_share() {
    watchfire_testkit::install_crypto();
    let text = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://127.0.0.1:9\n";
    let config = check(Document::parse("sentinel.yaml", text).unwrap(), &Env::default()).0.unwrap();
    let (feeds, health) = (Feeds::default(), Health::new());
    let [mut first, mut second] = [(); 2].map(|()| feeds.join(&config, health.dependency("api")).unwrap());
    let interval = Duration::from_secs(10);
    let walks = async |seat: &mut Seat| {
        let mut began = Instant::now();
        for _ in 0..5 {
            let walk = seat.walk(began + interval, interval / 2, Span::none).await.0;
            assert!(walk.began - began <= Duration::from_secs(3), "{:?}", walk.began - began);
            began = walk.began;
        }
    };
    let wishes = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            feeds.poll_soon();
        }
    };
    tokio::select! {
        _ = join(walks(&mut first), walks(&mut second)) => {}
        () = wishes => {}
    }
}

fn asked(readers: &[(Option<&str>, Option<&str>)]) -> Option<(Option<String>, Option<String>)> {
    let readers: Vec<_> = readers.iter().map(|(search, labels)| reader(*search, *labels)).collect();
    ask(readers.iter()).map(|query| (query.search, query.labels))
}

#[test]
fn what_any_of_them_selects_is_asked_for() {
    let (a, b) = ((Some("a='1'"), Some("a=1")), (Some("b='2'"), Some("b=2")));
    let owned = |text: &str| Some(text.to_owned());
    let asks = |readers: &[_]| asked(readers).unwrap();
    assert_eq!(asks(&[a]), (owned("a='1'"), owned("a=1")));
    assert_eq!(asks(&[a, a]), (owned("a='1'"), owned("a=1")));
    assert_eq!(asks(&[a, b]), (owned("((a='1') or (b='2'))"), None));
    assert_eq!(asks(&[a, (None, None)]), (None, None));
    assert_eq!(asks(&[(None, None), (None, None)]), (None, None));
    let long = format!("a='{}'", "x".repeat(MAX_SEARCH - 10));
    assert_eq!(asked(&[b, (Some(&long), None)]), None, "more than the API takes");
}

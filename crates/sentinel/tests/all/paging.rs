//! None missed, none twice: over pages, dialects, and servers that page in their own way.

use std::collections::HashMap;

use axum::Router;
use axum::extract::{Query as Params, State};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use watchfire_sentinel::api::Api as Client;
use watchfire_sentinel::api::paging::{Pages, Query};
use watchfire_sentinel::resource::parse_id;
use watchfire_simulator::{Dialect, FleetState, NewResource};
use watchfire_testkit::{Answer as Reply, Receiver};

use crate::support::{Api, Bench, Memory, Running, minimal, parse};

fn client(url: &str) -> Client {
    Client::new(&parse(&minimal(url)).api).unwrap()
}

/// Walks to the end; `between` runs after each page.
async fn walk_with(url: &str, query: &Query, mut between: impl FnMut(usize)) -> (Vec<String>, usize) {
    let client = client(url);
    let mut pages = Pages::new(&client, query, &|_| {});
    let mut ids = Vec::new();
    let mut count = 0;
    while let Some(page) = pages.next().await.unwrap() {
        ids.extend(page.items().filter_map(parse_id).map(std::borrow::Cow::into_owned));
        count += 1;
        between(count);
    }
    (ids, pages.requests)
}

async fn walk(url: &str) -> (Vec<String>, usize) {
    walk_with(url, &Query::default(), |_| {}).await
}

fn assert_each_once(mut ids: Vec<String>, expected: usize) {
    assert_eq!(ids.len(), expected);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), expected, "an id came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_size_of_list_is_read_to_its_end_in_every_dialect() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed, Dialect::Operator] {
        for size in [0u32, 1, 20, 21, 99, 100, 101, 200, 5000] {
            let api = Api::start(dialect).await;
            if size > 0 {
                api.fleet.seed("clusters", size, FleetState::Fresh).unwrap();
            }
            let (ids, requests) = walk(&api.url).await;
            assert_each_once(ids, size as usize);
            if dialect == Dialect::Hyperfleet {
                assert_eq!(requests, (size as usize / 100) + 1, "{size}");
            }
        }
    }
}

/// What goes was on the page that was read first, and what comes stands before and behind the page in hand: by offset,
/// the pages that follow would begin too late.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_created_and_deleted_while_pages_are_read_moves_nothing_else() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let create = |id: String| api.fleet.create("clusters", NewResource::named(&id).id(&id)).unwrap().id;
    let doomed: Vec<_> = (0..20).map(|index| create(format!("b-{index:03}"))).collect();
    let steady: Vec<_> = (0..450).map(|index| create(format!("c-{index:03}"))).collect();
    let mut gone = 0;
    let (mut ids, requests) = walk_with(&api.url, &Query::default(), |page| {
        for doomed in doomed.iter().skip((page - 1) * 5).take(5) {
            api.fleet.force_delete("clusters", doomed).unwrap();
            gone += 1;
        }
        if page < 4 {
            create(format!("a-{page}"));
            create(format!("d-{page}"));
        }
    })
    .await;
    assert_eq!((gone, requests), (20, 5), "each page was followed by changes");
    ids.sort();
    let mut unique = ids.clone();
    unique.dedup();
    assert_eq!(ids, unique, "none twice");
    assert!(steady.iter().all(|id| ids.binary_search(id).is_ok()), "none missed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_asked_for_by_key_with_the_selector() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 400, FleetState::Fresh).unwrap();
    let selector =
        Query { search: Some("labels.region='us-east'".into()), labels: Some("region=us-east".into()), fields: None };
    let (ids, _) = walk_with(&api.url, &selector, |_| {}).await;
    assert!(!ids.is_empty() && ids.len() < 400);
    let lists = api.fleet.faults().lists();
    assert_eq!(lists[0].query("search"), Some("labels.region='us-east'"));
    assert_eq!(lists[0].query("labels"), Some("region=us-east"));
    assert_eq!((lists[0].query("order"), lists[0].query("size")), (Some("id asc"), Some("100")));
    let second = lists[1].query("search").unwrap();
    assert!(second.starts_with("id > '") && second.ends_with("' and labels.region='us-east'"), "{second}");
}

type Log = Arc<Mutex<Vec<HashMap<String, String>>>>;
type Answer = Arc<dyn Fn(&HashMap<String, String>) -> Result<Value, u16> + Send + Sync>;

/// The number of the first item of a page that is asked for by key.
fn after(query: &HashMap<String, String>) -> usize {
    query.get("search").map_or(0, |search| {
        let id = search.trim_start_matches("id > 'r-").trim_end_matches('\'');
        id.parse::<usize>().unwrap() + 1
    })
}

/// A server that pages in a way of its own, with numbered items.
async fn odd_server(
    answer: impl Fn(&HashMap<String, String>) -> Result<Value, u16> + Send + Sync + 'static,
) -> (String, Log, Running) {
    watchfire_testkit::install_crypto();
    let log: Log = Arc::default();
    let answer: Answer = Arc::new(answer);
    let handler = |State((log, answer)): State<(Log, Answer)>, Params(query): Params<HashMap<String, String>>| async move {
        log.lock().unwrap().push(query.clone());
        match answer(&query) {
            Ok(body) => axum::Json(body).into_response(),
            Err(status) => axum::http::StatusCode::from_u16(status).unwrap().into_response(),
        }
    };
    let router =
        Router::new().route("/api/hyperfleet/v1/clusters", get(handler)).with_state((Arc::clone(&log), answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let running = Running::start(async move { axum::serve(listener, router).await.unwrap() });
    (url, log, running)
}

fn items(range: std::ops::Range<usize>) -> Vec<Value> {
    range.map(|index| json!({"id": format!("r-{index:05}")})).collect()
}

fn number(query: &HashMap<String, String>, name: &str, default: usize) -> usize {
    query.get(name).map_or(default, |text| text.parse().unwrap())
}

fn offset(query: &HashMap<String, String>, total: usize) -> Value {
    let (page, size) = (number(query, "page", 1), number(query, "size", 20));
    let from = ((page - 1) * size).min(total);
    json!({"items": items(from..(from + size).min(total)), "total": total})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_a_search_by_id_is_paged_by_offset() {
    let (url, log, _running) = odd_server(|query| {
        if query.get("search").is_some_and(|search| search.contains("id >")) {
            Err(400)
        } else {
            Ok(offset(query, 321))
        }
    })
    .await;
    let (ids, _) = walk(&url).await;
    assert_each_once(ids, 321);
    let log = log.lock().unwrap();
    assert_eq!(log.last().unwrap()["order"], "created_time asc,id asc");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_the_search_is_paged_by_offset() {
    for total in [100, 101, 200, 321] {
        let (url, _, _running) = odd_server(move |query| Ok(offset(query, total))).await;
        assert_each_once(walk(&url).await.0, total);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_finds_nothing_by_id_and_counts_more_is_paged_by_offset() {
    let (url, _, _running) = odd_server(|query| {
        if query.contains_key("search") { Ok(json!({"items": [], "total": 0})) } else { Ok(offset(query, 321)) }
    })
    .await;
    assert_each_once(walk(&url).await.0, 321);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_pages_by_id_go_in_circles_ends() {
    // After the third page comes the second again, for ever.
    let (url, log, _running) = odd_server(|query| {
        let after = after(query);
        let from = if after >= 300 { 100 } else { after };
        Ok(json!({"items": items(from..from + 100)}))
    })
    .await;
    let (mut ids, _) = walk(&url).await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 300, "none missed");
    assert!(log.lock().unwrap().len() <= 10, "{}", log.lock().unwrap().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_always_has_more_is_told_to_have_no_end() {
    let (url, log, _running) = odd_server(|query| {
        let after = after(query);
        Ok(json!({"items": items(after..after + 5_000), "total": 7_000}))
    })
    .await;
    let client = client(&url);
    let (query, mut pages) = (Query::default(), 0);
    let mut walk = Pages::new(&client, &query, &|_| {});
    let error = loop {
        match walk.next().await {
            Ok(page) => assert!(page.is_some() && pages < 100, "ended after {pages} pages"),
            Err(error) => break error,
        }
        pages += 1;
    };
    assert_eq!((error.kind(), pages, log.lock().unwrap().len()), ("fetch_error", 22, 23));
    assert!(error.to_string().ends_with("it has no end, 115000 resources came and the API counts 7000"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_every_parameter_ends() {
    for (count, total) in
        [(100, None), (100, Some(100)), (100, Some(500)), (40, Some(500)), (250, None), (250, Some(900))]
    {
        let (url, log, _running) = odd_server(move |_| {
            Ok(match total {
                Some(total) => json!({"items": items(0..count), "total": total}),
                None => json!({"items": items(0..count)}),
            })
        })
        .await;
        assert_each_once(walk(&url).await.0, count);
        assert!(log.lock().unwrap().len() <= 4, "{}", log.lock().unwrap().len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_counts_and_does_not_list_is_told() {
    for (listed, counted, missing) in
        [(100, 500, 400), (0, 5, 5), (95, 100, 0), (94, 100, 6), (100, 100, 0), (40, 7, 0), (1, u32::MAX, u32::MAX - 1)]
    {
        let (url, _, _running) = odd_server(move |_| Ok(json!({"items": items(0..listed), "total": counted}))).await;
        let (client, query) = (client(&url), Query::default());
        let mut pages = Pages::new(&client, &query, &|_| {});
        while pages.next().await.unwrap().is_some() {}
        assert_eq!(pages.missing(), u64::from(missing), "{listed} of {counted}");

        let mut bench = Bench::new(&minimal(&url), Arc::new(Memory::default()));
        bench.cycle().await.unwrap();
        let unlisted = bench.metric("hyperfleet_sentinel_resources_unlisted", &[]).unwrap();
        assert!((unlisted - f64::from(missing)).abs() < 0.5, "{unlisted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_serves_fewer_than_asked_is_read_to_its_end() {
    // By key, 20 at a time whatever is asked, with the count of what is left.
    let (url, _, _running) = odd_server(|query| {
        let after = after(query);
        Ok(json!({"items": items(after..(after + 20).min(95)), "total": 95 - after.min(95)}))
    })
    .await;
    assert_each_once(walk(&url).await.0, 95);
    // The same from one that numbers its pages and counts nothing, and from one that says nothing about them.
    for numbers in [json!({"page": 1, "size": 20}), json!({})] {
        let (url, _, _running) = odd_server(move |query| {
            let (after, mut page) = (after(query), numbers.clone());
            page["items"] = items(after..(after + 20).min(95)).into();
            Ok(page)
        })
        .await;
        assert_each_once(walk(&url).await.0, 95);
    }
    // By offset, likewise.
    let (url, _, _running) = odd_server(|query| {
        if query.contains_key("search") {
            return Err(400);
        }
        let mut query = query.clone();
        query.insert("size".into(), "20".into());
        Ok(offset(&query, 95))
    })
    .await;
    assert_each_once(walk(&url).await.0, 95);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_moves_between_two_pages_by_offset_is_not_read_twice() {
    // Each request finds one more resource in front, so that the last of a page is the first of the next.
    let moved = Mutex::new(0);
    let (url, _, _running) = odd_server(move |query| {
        if query.contains_key("search") {
            return Err(400);
        }
        let mut moved = moved.lock().unwrap();
        *moved += 1;
        let (page, size) = (number(query, "page", 1), number(query, "size", 20));
        let from = ((page - 1) * size).saturating_sub(*moved).min(300);
        Ok(json!({"items": items(from..(from + size).min(300)), "total": 300}))
    })
    .await;
    let (mut ids, _) = walk(&url).await;
    ids.sort();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count, "none twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_twice_in_one_page_is_published_once() {
    let (url, _, _running) = odd_server(|_| {
        let item = json!({"id": "a", "kind": "Cluster", "generation": 1});
        Ok(json!({"items": [item, item, {"id": "b", "kind": "Cluster", "generation": 1}], "total": 3}))
    })
    .await;
    let memory = Arc::new(Memory::default());
    let mut bench = Bench::new(&minimal(&url), Arc::clone(&memory) as Arc<dyn watchfire_delivery::EventSink>);
    assert_eq!(bench.cycle().await.unwrap().published, 2);
    assert_eq!(memory.take().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quote_in_an_id_is_doubled() {
    let (url, log, _running) = odd_server(|query| {
        let list: Vec<_> = (0..100).map(|index| json!({"id": format!("o'{index}")})).collect();
        Ok(if query.contains_key("search") { json!({"items": []}) } else { json!({"items": list}) })
    })
    .await;
    assert_each_once(walk(&url).await.0, 100);
    assert_eq!(log.lock().unwrap()[1]["search"], "id > 'o''99'");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_that_is_refused_later_is_given_up() {
    let refuses = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&refuses);
    let (url, log, _running) = odd_server(move |query| {
        if query.contains_key("fields") && flag.load(Ordering::Relaxed) {
            return Err(400);
        }
        let resource = json!({"id": "a", "kind": "Cluster", "generation": 1, "href": "/clusters/a"});
        Ok(json!({"items": [resource], "total": 1}))
    })
    .await;
    let mut bench = Bench::new(&minimal(&url), Arc::new(Memory::default()));
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert!(log.lock().unwrap().last().unwrap().contains_key("fields"));
    refuses.store(true, Ordering::Relaxed);
    assert!(bench.cycle().await.is_err());
    assert_eq!(bench.cycle().await.unwrap().seen, 1);
    assert!(!log.lock().unwrap().last().unwrap().contains_key("fields"));
}

/// The API is asked whole first, then projected; then the walk goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_busy_turns_no_projection_off_for_good() {
    watchfire_testkit::install_crypto();
    let resource = r#"{"id":"a","kind":"Cluster","generation":1,"href":"/clusters/a"}"#;
    let list = Reply::status(200).header("content-type", "application/json");
    let list = list.body(format!(r#"{{"items":[{resource}],"total":1}}"#));
    for busy in [429, 500, 503] {
        let api = Receiver::start().await;
        api.otherwise(list.clone());
        api.script([list.clone(), Reply::status(busy)]);
        let mut bench = Bench::new(&minimal(api.url()), Arc::new(Memory::default()));
        assert_eq!(bench.cycle().await.unwrap().published, 1, "{busy}");
        let asked = |requests: Vec<watchfire_testkit::Request>| -> Vec<bool> {
            requests.iter().map(|it| it.uri.query().unwrap_or_default().contains("fields=")).collect()
        };
        assert_eq!(asked(api.take()), [false, true, false], "asked once, and then for the whole, {busy}");
        assert_eq!(bench.cycle().await.unwrap().seen, 1);
        assert_eq!(asked(api.take()), [false, true, true], "asked again in the next cycle, and used, {busy}");

        // Where it says for how long, it is left alone, and not asked for anything else.
        let api = Receiver::start().await;
        api.otherwise(list.clone());
        api.script([list.clone(), Reply::status(busy).header("retry-after", "120")]);
        let mut bench = Bench::new(&minimal(api.url()), Arc::new(Memory::default()));
        let error = bench.cycle().await.unwrap_err();
        assert_eq!((error.retry_after(), api.take().len()), (Some(Duration::from_mins(2)), 2), "{busy}");
        bench.cycle().await.unwrap();
        assert_eq!(asked(api.take()), [false, true, true], "{busy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_that_is_no_text_costs_the_text_that_it_stands_in_and_nothing_else() {
    watchfire_testkit::install_crypto();
    let items = [&br#"{"items":[{"id":"a","kind":"Cluster","generation":1,"name":""#[..], b"\xff", br#""},"#];
    let body = [&items[..], &[br#"{"id":"b","kind":"Cluster","generation":1}],"total":2}"#]].concat().concat();
    let api = Receiver::start().await;
    api.otherwise(Reply::status(200).header("content-type", "application/json").body(body));
    let mut bench = Bench::new(&minimal(api.url()), Arc::new(Memory::default()));
    assert_eq!(bench.cycle().await.unwrap().published, 2);
}

/// The resource is read whole, then projected; in between comes a report.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_in_between_turns_no_projection_off_for_good() {
    watchfire_testkit::install_crypto();
    let list = |second: u32| {
        let time = format!("2026-01-01T00:00:0{second}Z");
        let ready =
            json!({"type": "Reconciled", "status": "True", "observed_generation": 1, "last_updated_time": time});
        let resource = json!({"id": "a", "kind": "Cluster", "generation": 1, "href": "/clusters/a", "status": {"conditions": [ready]}});
        let list = Reply::status(200).header("content-type", "application/json");
        list.body(json!({"items": [resource], "total": 1}).to_string())
    };
    let api = Receiver::start().await;
    api.script([list(1)]);
    api.otherwise(list(2));
    let mut bench = Bench::new(&minimal(api.url()), Arc::new(Memory::default()));
    let projects = |requests: Vec<watchfire_testkit::Request>| {
        requests.last().unwrap().uri.query().unwrap_or_default().contains("fields=")
    };
    bench.cycle().await.unwrap();
    assert!(!projects(api.take()), "asked for the whole");
    bench.cycle().await.unwrap();
    assert!(projects(api.take()), "proven with the next list");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_whole_says_nothing_about_the_projection() {
    let refuses = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&refuses);
    let (url, log, _running) = odd_server(move |_| {
        if flag.load(Ordering::Relaxed) {
            return Err(400);
        }
        Ok(json!({"items": [{"id": "a", "kind": "Cluster", "generation": 1, "href": "/clusters/a"}], "total": 1}))
    })
    .await;
    let mut bench = Bench::new(&minimal(&url), Arc::new(Memory::default()));
    assert!(bench.cycle().await.is_err());
    refuses.store(false, Ordering::Relaxed);
    assert_eq!(bench.cycle().await.unwrap().seen, 1);
    assert!(log.lock().unwrap().last().unwrap().contains_key("fields"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_is_instead_of_a_list_is_quoted_in_short_and_without_the_token() {
    let (url, _, _running) = odd_server(|_| Ok(json!(format!("Bearer s3cret {}", "x".repeat(1_000_000))))).await;
    let mut config = parse(&minimal(&url)).api;
    config.token = Some(watchfire_runtime::SecretSource::literal("s3cret".to_owned()));
    let client = Client::new(&config).unwrap();
    let error = Pages::new(&client, &Query::default(), &|_| {}).next().await.unwrap_err();
    let text = watchfire_runtime::chain(&error);
    assert!(text.contains("invalid type: string") && !text.contains("s3cret") && text.len() < 500, "{}", text.len());
}

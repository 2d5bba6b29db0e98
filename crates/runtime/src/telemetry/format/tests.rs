use std::error::Error as _;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tracing::field::Empty;
use tracing::{Dispatch, error, info, info_span, warn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Registry};

use super::*;
use crate::telemetry::TelemetryError;
use crate::telemetry::tests::{Capture, config, logged};

/// What is logged, and what stands behind the hostname of a JSON line and behind the message of a text line.
const CASES: [(fn(), &str, &str); 13] = [
    (|| info!("polled"), "", ""),
    (
        || info!(count = 3, most = u64::MAX, least = i64::MIN, wide = i128::MAX, "polled"),
        r#","count":3,"most":18446744073709551615,"least":-9223372036854775808,"wide":"170141183460469231731687303715884105727""#,
        " count=3 most=18446744073709551615 least=-9223372036854775808 wide=170141183460469231731687303715884105727",
    ),
    (
        || info!(ok = false, ratio = 0.5, none = f64::NAN, endless = f64::INFINITY, "polled"),
        r#","ok":false,"ratio":0.5,"none":null,"endless":null"#,
        " ok=false ratio=0.5 none=null endless=null",
    ),
    (
        || info!(id = "x", name = "a b", empty = "", pair = "a=b", path = r"C:\x", ms = ?[1, 2], "polled"),
        r#","id":"x","name":"a b","empty":"","pair":"a=b","path":"C:\\x","ms":"[1, 2]""#,
        r#" id=x name="a b" empty="" pair="a=b" path=C:\x ms="[1, 2]""#,
    ),
    (
        || info!(said = "\"no\"\r\nERROR forged", "polled"),
        r#","said":"\"no\"\r\nERROR forged""#,
        r#" said="\"no\"\r\nERROR forged""#,
    ),
    (
        || info!(clear = "\u{1b}[2J", c1 = "\u{9b}2J", "polled"),
        ",\"clear\":\"\\u001b[2J\",\"c1\":\"\u{9b}2J\"",
        r#" clear="\u{1b}[2J" c1="\u{9b}2J""#,
    ),
    (
        || {
            info!(
                del = "a \u{7f}",
                nel = "a\u{85}b",
                ls = "a\u{2028}b",
                ps = "a\u{2029}b",
                rlo = "a\u{202e}b",
                "polled"
            );
        },
        ",\"del\":\"a \u{7f}\",\"nel\":\"a\u{85}b\",\"ls\":\"a\u{2028}b\",\"ps\":\"a\u{2029}b\",\"rlo\":\"a\u{202e}b\"",
        r#" del="a \u{7f}" nel="a\u{85}b" ls="a\u{2028}b" ps="a\u{2029}b" rlo="a\u{202e}b""#,
    ),
    (|| info!(r#type = "clusters", größe = 1, "polled"), r#","type":"clusters","größe":1"#, " type=clusters größe=1"),
    (
        || info!("a\"b" = 1, "c d" = 2, "e\n" = 3, "polled"),
        r#","a\"b":1,"c d":2,"e\n":3"#,
        r#" "a\"b"=1 "c d"=2 "e\n"=3"#,
    ),
    (
        || info!(level = "own", hostname = "its", field_level = "last", "polled"),
        r#","field_level":"last","field_hostname":"its""#,
        " level=own hostname=its field_level=last",
    ),
    (
        || {
            let _cycle = info_span!("cycle", cycle = 7, topic = "outer", shard = "all").entered();
            let _page = info_span!("page", topic = "in", page = 1).entered();
            info!(rows = 2, topic = "innermost", "polled");
        },
        r#","cycle":7,"topic":"innermost","shard":"all","page":1,"rows":2"#,
        " cycle=7 topic=innermost shard=all page=1 rows=2",
    ),
    (
        || {
            let _span = info_span!("cycle", message = "of the span").entered();
            info!("polled");
        },
        r#","field_message":"of the span""#,
        r#" message="of the span""#,
    ),
    (
        || {
            let (trace, span) = (TraceId::from(0x4bf9), SpanId::from(0x00f0));
            let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE);
            let _trace = opentelemetry::Context::new().with_remote_span_context(context).attach();
            info!(id = 5, "polled");
        },
        r#","id":5,"trace_id":"00000000000000000000000000004bf9","span_id":"00000000000000f0""#,
        " id=5 trace_id=00000000000000000000000000004bf9 span_id=00000000000000f0",
    ),
];

/// What the lines are but for the time, which each begins with.
fn after_the_time(format: LogFormat, log: impl FnOnce()) -> String {
    let text = logged("info", format, [], log).text();
    let (time, rest) = match format {
        LogFormat::Json => text.strip_prefix(r#"{"timestamp":""#).unwrap().split_once("\",").unwrap(),
        LogFormat::Text => text.split_once(' ').unwrap(),
    };
    assert!(time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok(), "{text}");
    rest.to_owned()
}

#[test]
fn a_json_line_is_flat_and_carries_the_fields_of_its_spans() {
    for (log, fields, _) in CASES {
        let head = r#""level":"info","message":"polled","component":"sentinel","version":"1.2.3","hostname":"pod-7""#;
        assert_eq!(after_the_time(LogFormat::Json, log), format!("{head}{fields}}}\n"));
    }
}

#[test]
fn a_text_line_quotes_only_what_could_be_taken_for_something_else() {
    for (log, _, fields) in CASES {
        assert_eq!(after_the_time(LogFormat::Text, log), format!("INFO  [sentinel] [1.2.3] [pod-7] polled{fields}\n"));
    }
}

#[test]
fn a_message_stays_one_line() {
    let log = || warn!("\"polled\"\nERROR forged \u{1b}[2J \u{9b}2J \u{2028} \u{202e}");
    let text = r#"WARN  [sentinel] [1.2.3] [pod-7] "polled"\nERROR forged \u{1b}[2J \u{9b}2J \u{2028} \u{202e}"#;
    assert_eq!(after_the_time(LogFormat::Text, log), format!("{text}\n"));
    let json =
        "\"level\":\"warn\",\"message\":\"\\\"polled\\\"\\nERROR forged \\u001b[2J \u{9b}2J \u{2028} \u{202e}\",";
    assert!(after_the_time(LogFormat::Json, log).starts_with(json));
}

#[test]
fn what_a_span_records_again_takes_the_place_of_what_it_recorded_before() {
    let capture = Capture::default();
    let writer = capture.clone();
    let lines = Lines::new(&config("info", LogFormat::Text), "pod-7".to_owned(), move || writer.clone());
    let dispatch = Dispatch::new(Registry::default().with(lines));
    tracing::dispatcher::with_default(&dispatch, || {
        let span = info_span!("loop", page = Empty, topic = "clusters", cycle = 0);
        for cycle in 1..=1_000 {
            span.record("cycle", cycle);
            span.record("page", format!("page {cycle}"));
        }
        span.in_scope(|| info!("polled"));
        let registry = dispatch.downcast_ref::<Registry>().unwrap();
        let span = registry.span(&span.id().unwrap()).unwrap();
        let held = span.extensions().get::<Fields>().unwrap().rendered.len();
        assert_eq!(held, "clusters1000\"page 1000\"".len());
    });
    let text = capture.text();
    assert!(text.ends_with("polled topic=clusters cycle=1000 page=\"page 1000\"\n"), "{text}");
}

#[test]
fn an_error_value_is_logged_with_its_causes_and_a_long_one_is_cut() {
    let source = EnvFilter::builder().parse("a=loud").unwrap_err();
    let error = TelemetryError::Level { level: "loud".to_owned(), source: Some(source) };
    let causes = format!("{error}: {}", error.source().unwrap());
    let capture = logged("info", LogFormat::Json, [], || {
        error!(error = &error as &dyn std::error::Error, page = "é".repeat(8_000), "{}", "x".repeat(9_000));
    });
    let line = &capture.lines()[0];
    assert_eq!(line["error"], causes);
    assert_eq!(line["page"], format!("{}... (16000 bytes)", "é".repeat(4_096)));
    assert_eq!(line["message"], format!("{}... (9000 bytes)", "x".repeat(8_192)));
    let odd = logged("info", LogFormat::Json, [], || info!(page = format!("x{}", "é".repeat(8_000)), "polled"));
    assert_eq!(odd.lines()[0]["page"], format!("x{}... (16001 bytes)", "é".repeat(4_095)), "between two characters");
}

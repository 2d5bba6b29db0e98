//! The console's front page: what runs here, how it is, and where to look. No script, no outside asset.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

use crate::health::{Health, Report, Status};

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1b1b1b;background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:1.5rem}table{border-collapse:collapse;\
width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #ddd;vertical-align:top}\
.ok{color:#176b2c}.error{color:#b00020;font-weight:600}@media(prefers-color-scheme:dark){body{color:#e6e6e6;\
background:#161616}th,td{border-color:#333}.ok{color:#6fcf87}.error{color:#ff7b8a}a{color:#8ab4f8}}";

/// Renders the page.
pub(super) fn page(health: &Health, routes: &[String]) -> Response {
    let services =
        table("Services", health.services().iter().map(|(name, about)| row(&[escaped(name), escaped(about)])));
    let readiness = checks("Readiness", &health.readiness());
    let liveness = checks("Liveness", &health.liveness());
    let pages = table(
        "Pages",
        routes.iter().map(|route| {
            let route = escaped(route);
            row(&[format!("<a href=\"{route}\">{route}</a>")])
        }),
    );
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Watchfire</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body><h1>Watchfire</h1>{services}{readiness}{liveness}{pages}</body></html>\n"
    );
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(html)).into_response()
}

fn checks(title: &str, report: &Report) -> String {
    let rows = report
        .checks
        .iter()
        .map(|(name, check)| row(&[escaped(name), badge(check.status).to_owned(), escaped(&check.message)]));
    table(&format!("{title}: {}", badge(report.status)), rows)
}

fn badge(status: Status) -> &'static str {
    match status {
        Status::Ok => "<span class=\"ok\">ok</span>",
        Status::Error => "<span class=\"error\">error</span>",
    }
}

fn table(title: &str, rows: impl Iterator<Item = String>) -> String {
    format!("<h2>{title}</h2><table>{}</table>", rows.collect::<String>())
}

fn row(cells: &[String]) -> String {
    format!("<tr><td>{}</td></tr>", cells.join("</td><td>"))
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

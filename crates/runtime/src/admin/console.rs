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
    let services = health.services();
    let mut body = String::new();
    if !services.is_empty() {
        body.push_str("<h2>Services</h2><table>");
        for (name, description) in &services {
            row(&mut body, &[escaped(name), escaped(description)]);
        }
        body.push_str("</table>");
    }
    checks(&mut body, "Readiness", &health.readiness());
    checks(&mut body, "Liveness", &health.liveness());
    body.push_str("<h2>Pages</h2><ul>");
    for route in routes {
        let route = escaped(route);
        body.push_str(&format!("<li><a href=\"{route}\">{route}</a></li>"));
    }
    body.push_str("</ul>");
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Watchfire</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body><h1>Watchfire</h1>{body}</body></html>\n"
    );
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(html)).into_response()
}

fn checks(body: &mut String, title: &str, report: &Report) {
    body.push_str(&format!("<h2>{title}: {}</h2>", badge(report.status)));
    if report.checks.is_empty() {
        return;
    }
    body.push_str("<table>");
    for (name, check) in &report.checks {
        row(body, &[escaped(name), badge(check.status).to_owned(), escaped(&check.message)]);
    }
    body.push_str("</table>");
}

fn badge(status: Status) -> &'static str {
    match status {
        Status::Ok => "<span class=\"ok\">ok</span>",
        Status::Error => "<span class=\"error\">error</span>",
    }
}

fn row(body: &mut String, cells: &[String]) {
    body.push_str("<tr>");
    for cell in cells {
        body.push_str(&format!("<td>{cell}</td>"));
    }
    body.push_str("</tr>");
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

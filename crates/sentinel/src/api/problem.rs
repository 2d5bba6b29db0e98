//! Says in a line what a problem document (RFC 9457) says in many.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use watchfire_runtime::redact::REDACTED;

/// What is quoted of a problem, at the most.
const MAX_DETAIL: usize = 300;

/// A header's value that is shorter, such as `true`, is no secret, and is part of many words.
const SHORTEST_SECRET: usize = 6;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    code: Option<String>,
    trace_id: Option<String>,
    errors: Vec<FieldError>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FieldError {
    field: Option<String>,
    message: Option<String>,
}

/// Quotes what the API says about its refusal; nothing if the body is no problem document.
pub(super) fn explain(content_type: &str, body: &[u8], secrets: &[SecretString]) -> String {
    if !content_type.contains("json") {
        return String::new();
    }
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let mut parts: Vec<String> = [problem.title, problem.detail].into_iter().flatten().collect();
    parts.extend(problem.errors.into_iter().filter_map(|error| match (error.field, error.message) {
        (Some(field), Some(message)) => Some(format!("{field}: {message}")),
        (_, message) => message,
    }));
    let marks = [problem.code, problem.trace_id.filter(|id| !id.is_empty()).map(|id| format!("trace {id}"))];
    let marks: Vec<_> = marks.into_iter().flatten().collect();
    let mut text = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        text.push_str(": ");
        text.push_str(part);
    }
    if !marks.is_empty() {
        text.push_str(" (");
        text.push_str(&marks.join(", "));
        text.push(')');
    }
    quote(&text, secrets)
}

/// Keeps what the far side wrote on one line, short, and free of what we sent in secret, which some echo.
pub(super) fn quote(text: &str, secrets: &[SecretString]) -> String {
    let secrets = secrets.iter().map(ExposeSecret::expose_secret).filter(|secret| secret.len() >= SHORTEST_SECRET);
    let text = secrets.fold(text.to_owned(), |text, secret| text.replace(secret, REDACTED));
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_DETAIL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_quoted_with_its_fields_and_code() {
        let body = br#"{"code":"HYPERFLEET-VAL-000","detail":"Invalid query parameters","errors":[{"constraint":"max",
            "field":"size","message":"size must be at most 100","value":101}],"status":400,"title":"Validation Failed",
            "trace_id":"01a2"}"#;
        assert_eq!(
            explain("application/problem+json", body, &[]),
            ": Validation Failed: Invalid query parameters: size: size must be at most 100 (HYPERFLEET-VAL-000, trace 01a2)"
        );
    }

    #[test]
    fn an_empty_trace_is_left_out() {
        let body = br#"{"code":"HYPERFLEET-NTF-000","title":"Endpoint Not Found","trace_id":""}"#;
        assert_eq!(explain("application/problem+json", body, &[]), ": Endpoint Not Found (HYPERFLEET-NTF-000)");
    }

    #[test]
    fn what_is_no_problem_document_is_not_quoted() {
        assert_eq!(explain("text/html", b"<html>secret</html>", &[]), "");
        assert_eq!(explain("application/json", b"[1]", &[]), "");
        assert_eq!(explain("application/json", b"{\"title\":5}", &[]), "");
        assert_eq!(explain("application/json", b"{}", &[]), "");
    }

    #[test]
    fn a_quote_is_one_short_line() {
        let body = format!(r#"{{"detail":"a\nb{}"}}"#, "x".repeat(1000));
        let text = explain("application/json", body.as_bytes(), &[]);
        assert!(text.starts_with(": a b") && text.chars().count() == 300);
    }

    #[test]
    fn a_secret_that_the_api_echoes_is_not_quoted() {
        let secrets = ["true", "s3cret-token", "k3y-of-tenant"].map(SecretString::from);
        for before in [0, 270, 280, 295] {
            let body = format!(
                r#"{{"detail":"{}Bearer s3cret-token is expired, X-Key k3y-of-tenant is true"}}"#,
                "x".repeat(before)
            );
            let text = explain("application/json", body.as_bytes(), &secrets);
            assert!(text.starts_with(": ") && !text.contains("s3c") && !text.contains("k3y"), "{text}");
            assert!(before > 0 || text.ends_with("is true"), "what is too short to be secret stays: {text}");
        }
    }
}

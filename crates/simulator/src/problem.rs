//! What the API refuses, as RFC 9457 problem documents with HyperFleet's codes.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// A refusal: the part of a problem document that does not depend on the request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// For example `HYPERFLEET-NTF-001`.
    pub code: &'static str,
    /// The kind of problem, for people.
    pub title: &'static str,
    /// The last segment of the problem's type URL.
    pub kind: &'static str,
    /// What is wrong with this request.
    pub detail: String,
    /// The fields at fault, where the problem is in fields.
    pub errors: Vec<FieldError>,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldError {
    /// The rule it breaks.
    pub constraint: &'static str,
    /// Its name.
    pub field: &'static str,
    /// The rule in words.
    pub message: String,
    /// What was sent.
    pub value: Value,
}

#[derive(Serialize)]
struct Document<'a> {
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    instance: &'a str,
    status: u16,
    timestamp: Timestamp,
    title: &'a str,
    trace_id: &'a str,
    r#type: String,
}

impl Problem {
    fn new(status: u16, code: &'static str, title: &'static str, kind: &'static str, detail: String) -> Self {
        Self { status, code, title, kind, detail, errors: Vec::new() }
    }

    /// 400: the body or the query is wrong.
    pub fn validation(detail: impl Into<String>) -> Self {
        Self::new(400, "HYPERFLEET-VAL-000", "Validation Failed", "validation-error", detail.into())
    }

    /// 400: query parameters break a rule.
    pub fn query(errors: Vec<FieldError>) -> Self {
        Self { errors, ..Self::validation("Invalid query parameters") }
    }

    /// 400: the search expression is wrong.
    pub fn search(detail: impl Into<String>) -> Self {
        Self::new(400, "HYPERFLEET-VAL-005", "Bad Request", "bad-request", detail.into())
    }

    /// 401: no token, or not the right one.
    pub fn unauthenticated() -> Self {
        let detail = "Account authentication could not be verified".to_owned();
        Self::new(401, "HYPERFLEET-AUT-001", "Authentication Required", "authentication-required", detail)
    }

    /// 403: a tenant that may not.
    pub fn forbidden() -> Self {
        let detail = "The tenant is not allowed to perform this action".to_owned();
        Self::new(403, "HYPERFLEET-AUZ-001", "Permission Denied", "permission-denied", detail)
    }

    /// 404: no such path.
    pub fn no_endpoint(path: &str) -> Self {
        let detail = format!("The requested endpoint '{path}' does not exist");
        Self::new(404, "HYPERFLEET-NTF-000", "Endpoint Not Found", "not-found", detail)
    }

    /// 404: no such resource.
    pub fn not_found(kind: &str, id: &str) -> Self {
        let detail = format!("{kind} with id='{id}' not found");
        Self::new(404, "HYPERFLEET-NTF-001", "Resource Not Found", "not-found", detail)
    }

    /// 405: the path does not take this method.
    pub fn method(method: &str) -> Self {
        let detail = format!("Method {method} is not supported by this endpoint");
        Self::new(405, "HYPERFLEET-VAL-006", "Method Not Allowed", "method-not-allowed", detail)
    }

    /// 409: the name is taken.
    pub fn exists(kind: &str, name: &str) -> Self {
        let detail = format!("{kind} with name '{name}' already exists");
        Self::new(409, "HYPERFLEET-CNF-001", "Resource Conflict", "conflict", detail)
    }

    /// 409: the resource is on its way out.
    pub fn deleting(kind: &str, id: &str) -> Self {
        let detail = format!("{kind} '{id}' is marked for deletion");
        Self::new(409, "HYPERFLEET-CNF-003", "State Conflict", "conflict", detail)
    }

    /// A failure of the server, for tests of its clients.
    pub fn internal(status: u16) -> Self {
        let detail = "Unspecified error".to_owned();
        match status {
            429 => Self::new(429, "HYPERFLEET-LMT-001", "Rate Limit Exceeded", "rate-limit-exceeded", detail),
            503 => Self::new(503, "HYPERFLEET-SVC-001", "Service Unavailable", "service-unavailable", detail),
            401 => Self::unauthenticated(),
            403 => Self::forbidden(),
            _ => Self::new(status, "HYPERFLEET-INT-001", "Internal Server Error", "internal-error", detail),
        }
    }

    /// Renders the document that answers one request.
    pub fn render(&self, instance: &str, trace_id: &str, timestamp: Timestamp) -> Vec<u8> {
        let document = Document {
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
            instance,
            status: self.status,
            timestamp,
            title: self.title,
            // The router answers unknown paths before a trace begins.
            trace_id: if self.code == "HYPERFLEET-NTF-000" { "" } else { trace_id },
            r#type: format!("https://api.hyperfleet.io/errors/{}", self.kind),
        };
        serde_json::to_vec(&document).unwrap_or_default()
    }
}

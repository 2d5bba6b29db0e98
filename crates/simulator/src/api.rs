//! The HTTP face: which path means what, and the answer to each.

mod fault;
mod list;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::clock;

use crate::faults::{Request, Scope};
use crate::fleet::{Deleted, Reported};
use crate::kind::BASE;
use crate::problem::Problem;
use crate::resource::{Report, Resource};
use crate::server::Wire;
use crate::simulator::Simulator;
use crate::view::{self, ConditionOrder, Fields, Style};

/// The largest request body that is read.
const MAX_BODY: usize = 1024 * 1024;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Context {
    simulator: Simulator,
    token: CancellationToken,
}

/// The router: one handler, because the plurals are data.
pub(crate) fn router(simulator: Simulator, token: CancellationToken) -> Router {
    Router::new().fallback(handle).with_state(Context { simulator, token })
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// All of a kind, or those of one owner.
    Collection { plural: String, owner: Option<String> },
    /// One resource.
    Resource { plural: String, id: String, owner: Option<String> },
    /// The reports about one resource.
    Statuses { plural: String, id: String, owner: Option<String> },
    /// Removal at once.
    ForceDelete { plural: String, id: String, owner: Option<String> },
}

/// Reads a path, given the parent of each plural; `None` is an unknown endpoint.
fn target(path: &str, parent_of: impl Fn(&str) -> Option<Option<String>>) -> Option<Target> {
    let rest = path.strip_prefix(BASE)?.strip_prefix('/')?;
    let segments: Vec<&str> = rest.split('/').collect();
    if segments.iter().any(|segment| segment.is_empty()) {
        return None;
    }
    let (owner, segments) = match segments.as_slice() {
        [parent, owner, plural, ..] if parent_of(plural).flatten().as_deref() == Some(*parent) => {
            (Some(*owner), &segments[2..])
        }
        _ => (None, &segments[..]),
    };
    parent_of(segments.first()?)?;
    let owner = owner.map(str::to_owned);
    match *segments {
        [plural] => Some(Target::Collection { plural: plural.to_owned(), owner }),
        [plural, id] => Some(Target::Resource { plural: plural.to_owned(), id: id.to_owned(), owner }),
        [plural, id, "statuses"] => Some(Target::Statuses { plural: plural.to_owned(), id: id.to_owned(), owner }),
        [plural, id, "force-delete"] => {
            Some(Target::ForceDelete { plural: plural.to_owned(), id: id.to_owned(), owner })
        }
        _ => None,
    }
}

async fn handle(
    State(context): State<Context>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let simulator = &context.simulator;
    let path = uri.path();
    let target = {
        let fleet = simulator.read();
        target(path, |plural| fleet.table(plural).map(|table| table.kind.parent.clone()))
    };
    let scope = match (&target, &method) {
        (Some(Target::Collection { .. }), &Method::GET) => Scope::Lists,
        (Some(Target::Resource { .. }), &Method::GET) => Scope::Reads,
        (Some(Target::Statuses { .. }), &Method::PUT | &Method::POST) => Scope::Reports,
        _ => Scope::All,
    };
    let pairs = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let query: Vec<(String, String)> = pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
    simulator.faults().record(Request {
        at: clock::now(),
        method: method.to_string(),
        path: path.to_owned(),
        query: query.clone(),
        scope,
        traceparent: headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned),
    });
    let answer = async {
        simulator.faults().admit(&headers)?;
        let target = target.ok_or_else(|| Problem::no_endpoint(path))?;
        let body =
            axum::body::to_bytes(body, MAX_BODY).await.map_err(|_| Problem::validation("request body too large"))?;
        answer(simulator, &method, target, &query, &body)
    };
    let respond = async { answer.await.unwrap_or_else(|problem| refuse(&problem, path)) };
    match simulator.faults().strike(scope) {
        None => respond.await,
        Some(fault) => fault::apply(fault, respond, path, &wire, &context.token).await,
    }
}

fn answer(
    simulator: &Simulator,
    method: &Method,
    target: Target,
    query: &[(String, String)],
    body: &[u8],
) -> Result<Response, Problem> {
    let owned = |plural: &str, id: &str, owner: &Option<String>| owned_by(simulator, plural, id, owner.as_deref());
    match (target, method) {
        (Target::Collection { plural, owner }, &Method::GET) => list::list(simulator, plural, owner, query),
        (Target::Collection { plural, owner }, &Method::POST) => {
            let created = simulator.create_in(&plural, owner.as_deref(), parse(body)?)?;
            Ok(one(simulator, StatusCode::CREATED, &plural, &created, ConditionOrder::AsWritten))
        }
        (Target::Resource { plural, id, owner }, method) => {
            owned(&plural, &id, &owner)?;
            match *method {
                Method::GET => read(simulator, &plural, &id),
                Method::PATCH => {
                    let patched = simulator.patch(&plural, &id, parse(body)?)?;
                    Ok(one(simulator, StatusCode::OK, &plural, &patched, ConditionOrder::AsWritten))
                }
                Method::DELETE => {
                    let (Deleted::Marked(gone) | Deleted::Removed(gone)) = simulator.delete(&plural, &id)?;
                    Ok(one(simulator, StatusCode::ACCEPTED, &plural, &gone, ConditionOrder::AsWritten))
                }
                _ => Err(Problem::method(method.as_str())),
            }
        }
        (Target::Statuses { plural, id, owner }, method) => {
            owned(&plural, &id, &owner)?;
            match *method {
                Method::GET => statuses(simulator, &plural, &id, query),
                Method::PUT | Method::POST => match simulator.report(&plural, &id, parse(body)?)? {
                    Reported::Accepted(report) => Ok(json(StatusCode::CREATED, to_vec(&report))),
                    Reported::Discarded(_) => Ok(empty(StatusCode::NO_CONTENT)),
                },
                _ => Err(Problem::method(method.as_str())),
            }
        }
        (Target::ForceDelete { plural, id, owner }, &Method::POST) => {
            owned(&plural, &id, &owner)?;
            simulator.force_delete(&plural, &id)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (Target::Collection { .. } | Target::ForceDelete { .. }, method) => Err(Problem::method(method.as_str())),
    }
}

/// A nested path must name the resource's own parent.
fn owned_by(simulator: &Simulator, plural: &str, id: &str, owner: Option<&str>) -> Result<(), Problem> {
    let Some(owner) = owner else { return Ok(()) };
    let fleet = simulator.read();
    let kind = fleet.table(plural).map(|table| table.kind.name.clone()).unwrap_or_default();
    match fleet.get(plural, id)? {
        crate::table::Row::Stored(Resource { owner: Some(actual), .. }) if actual.id == owner => Ok(()),
        _ => Err(Problem::not_found(&kind, id)),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::validation(format!("Invalid request body: {error}")))
}

fn read(simulator: &Simulator, plural: &str, id: &str) -> Result<Response, Problem> {
    let fleet = simulator.read();
    let row = fleet.get(plural, id)?;
    let Some(table) = fleet.table(plural) else { return Err(Problem::no_endpoint(plural)) };
    let style = Style { dialect: fleet.dialect, kind: &table.kind, fields: Fields::ALL, order: ConditionOrder::ByType };
    let mut out = Vec::with_capacity(4096);
    row.write(&mut out, style);
    Ok(json(StatusCode::OK, out))
}

fn one(
    simulator: &Simulator,
    status: StatusCode,
    plural: &str,
    resource: &Resource,
    order: ConditionOrder,
) -> Response {
    let fleet = simulator.read();
    let mut out = Vec::with_capacity(4096);
    if let Some(table) = fleet.table(plural) {
        let style = Style { dialect: fleet.dialect, kind: &table.kind, fields: Fields::ALL, order };
        view::write_resource(&mut out, resource, style);
    }
    json(status, out)
}

#[derive(Serialize)]
struct Reports<'a> {
    items: &'a [Report],
    page: u64,
    size: usize,
    total: usize,
}

fn statuses(simulator: &Simulator, plural: &str, id: &str, query: &[(String, String)]) -> Result<Response, Problem> {
    let (page, size) = list::paging(query)?;
    let mut reports = match simulator.get(plural, id) {
        Some(resource) => resource.reports,
        None => simulator.read().get(plural, id).map(|_| Vec::new())?,
    };
    // Newest first, as lists are.
    reports.sort_by_key(|report| std::cmp::Reverse(report.created_time));
    let total = reports.len();
    let skip = usize::try_from((page - 1) * size).unwrap_or(usize::MAX);
    let items: Vec<Report> = reports.into_iter().skip(skip).take(usize::try_from(size).unwrap_or(usize::MAX)).collect();
    Ok(json(StatusCode::OK, to_vec(&Reports { size: items.len(), items: &items, page, total })))
}

fn to_vec(value: &impl Serialize) -> Vec<u8> {
    // Every type served here has string keys and cannot fail to serialise.
    serde_json::to_vec(value).unwrap_or_default()
}

fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    typed(status, "application/json", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn refuse(problem: &Problem, path: &str) -> Response {
    let trace = uuid::Uuid::now_v7().to_string();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = typed(status, "application/problem+json", problem.render(path, &trace, clock::now()));
    if problem.status == 401 {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Option<Target> {
        target(&format!("{BASE}{path}"), |plural| match plural {
            "clusters" => Some(None),
            "nodepools" => Some(Some("clusters".to_owned())),
            _ => None,
        })
    }

    #[test]
    fn paths_are_flat_or_nested() {
        let (plural, id, owner) = ("nodepools".to_owned(), "n".to_owned(), Some("c".to_owned()));
        assert_eq!(read("/clusters"), Some(Target::Collection { plural: "clusters".to_owned(), owner: None }));
        assert_eq!(
            read("/nodepools/n"),
            Some(Target::Resource { plural: plural.clone(), id: id.clone(), owner: None })
        );
        assert_eq!(
            read("/clusters/c/nodepools"),
            Some(Target::Collection { plural: plural.clone(), owner: owner.clone() })
        );
        assert_eq!(read("/clusters/c/nodepools/n/statuses"), Some(Target::Statuses { plural, id, owner }));
        let (plural, id, owner) = ("clusters".to_owned(), "c".to_owned(), None);
        assert_eq!(read("/clusters/c/force-delete"), Some(Target::ForceDelete { plural, id, owner }));
    }

    #[test]
    fn other_paths_do_not_exist() {
        for path in ["", "/", "/gizmos", "/clusters/", "/clusters/c/gizmos", "/clusters/c/statuses/x"] {
            assert_eq!(read(path), None, "{path}");
        }
        assert_eq!(target("/healthz", |_| Some(None)), None);
    }
}

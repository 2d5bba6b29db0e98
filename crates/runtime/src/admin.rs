//! The admin server: health, metrics, a console, and the read-only pages of the services.
//!
//! It is meant for probes, scrapers and people inside the cluster, and it is the last thing to stop. The most that one
//! can do with it is to make the product hurry. What a slow or hostile client can hold is bounded: connections,
//! headers, bodies, time.

mod address;
mod console;
mod serve;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Report, Status};

pub use address::{AddressError, parse_bind_address};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where the admin server listens; one address for both is one listener.
#[derive(Clone, Copy, Debug)]
pub struct AdminConfig {
    /// Health, console and pages.
    pub health: SocketAddr,
    /// Metrics.
    pub metrics: SocketAddr,
}

/// Where a service answers; each path stands once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Whether it lives.
    pub liveness: String,
    /// Whether it is ready.
    pub readiness: Vec<String>,
    /// What it counts, unless nobody is to know.
    pub metrics: Option<String>,
}

impl Default for Paths {
    fn default() -> Self {
        let readiness = ["/readyz", "/ready"].map(str::to_owned).to_vec();
        Self { liveness: "/healthz".to_owned(), readiness, metrics: Some("/metrics".to_owned()) }
    }
}

/// Why an address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is taken, not allowed, or not of this machine.
    #[error("listen on {address} for {purpose} (is another process using it? another address can be configured)")]
    Bind {
        /// What was to be served.
        purpose: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The admin server: bound when made, serving when run.
#[derive(Debug)]
pub struct Admin {
    health_listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    health_addr: SocketAddr,
    metrics_addr: SocketAddr,
    health: Health,
    registry: Arc<Registry>,
    paths: Paths,
    routes: Vec<String>,
    pages: Router,
}

#[derive(Clone)]
struct Shared {
    health: Health,
    registry: Arc<Registry>,
    routes: Arc<[String]>,
}

impl Admin {
    /// Binds the listeners; clients wait from then on, and are answered once the server runs.
    pub async fn bind(
        config: AdminConfig,
        health: Health,
        registry: impl Into<Arc<Registry>>,
    ) -> Result<Self, AdminError> {
        let (health_listener, health_addr) = address::bind("health", config.health).await?;
        let (metrics_listener, metrics_addr) = if config.metrics == config.health {
            (None, health_addr)
        } else {
            let (listener, address) = address::bind("metrics", config.metrics).await?;
            (Some(listener), address)
        };
        let registry = registry.into();
        let (paths, routes, pages) = (Paths::default(), Vec::new(), Router::new());
        Ok(Self {
            health_listener,
            metrics_listener,
            health_addr,
            metrics_addr,
            health,
            registry,
            paths,
            routes,
            pages,
        })
    }

    /// Answers at other paths than the usual ones.
    #[must_use]
    pub fn at(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// Adds a service's pages below `path`, which begins with a slash and has more than that; the console lists it.
    #[must_use]
    pub fn route(mut self, path: &str, pages: Router) -> Self {
        self.routes.push(path.to_owned());
        self.pages = self.pages.nest(path, pages);
        self
    }

    /// Returns where health, console and pages are served.
    pub fn health_addr(&self) -> SocketAddr {
        self.health_addr
    }

    /// Returns where metrics are served.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Serves until the token is cancelled; requests that have begun are finished.
    pub async fn run(self, token: CancellationToken) -> Result<(), AdminError> {
        let Paths { liveness, readiness, metrics: path } = self.paths;
        let mut routes: Vec<_> = [liveness.clone()].into_iter().chain(readiness.first().cloned()).collect();
        routes.extend(path.clone().filter(|_| self.metrics_listener.is_none()));
        routes.extend(self.routes);
        let shared = Shared { health: self.health, registry: self.registry, routes: routes.into() };
        let metrics: Router<Shared> = path.iter().fold(Router::new(), |router, path| router.route(path, get(metrics)));
        let ready = async |State(shared): State<Shared>| answer(&shared.health.readiness());
        let health = readiness
            .iter()
            .fold(Router::new(), |router, path| router.route(path, get(ready)))
            .route(&liveness, get(async |State(shared): State<Shared>| answer(&shared.health.liveness())))
            .route("/", get(async |State(shared): State<Shared>| console::page(&shared.health, &shared.routes)));
        match self.metrics_listener {
            None => {
                let all = health.merge(metrics).with_state(shared).merge(self.pages);
                serve::serve(self.health_listener, all, token).await;
            }
            Some(listener) => {
                let metrics = metrics.with_state(shared.clone());
                let health = health.with_state(shared).merge(self.pages);
                tokio::join!(
                    serve::serve(self.health_listener, health, token.clone()),
                    serve::serve(listener, metrics, token)
                );
            }
        }
        Ok(())
    }
}

fn answer(report: &Report) -> Response {
    let status = match report.status {
        Status::Ok => StatusCode::OK,
        Status::Error => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(report)).into_response()
}

async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let open = accepted.any(|value| value.contains("application/openmetrics-text"));
    let mut text = String::new();
    let (content_type, encoded): (_, fmt::Result) = if open {
        (OPEN_METRICS, prometheus_client::encoding::text::encode(&mut text, &shared.registry))
    } else {
        use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
        (CONTENT_TYPE, encode(&mut text, &shared.registry))
    };
    match encoded {
        Ok(()) => ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a metric can't be encoded").into_response(),
    }
}

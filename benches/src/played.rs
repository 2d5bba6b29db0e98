//! A played API server, for rates that a real one does not reach on this machine: one kind, of which nothing is there
//! at first, and what is told of it from then on.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The namespace of its objects.
pub(crate) const NAMESPACE: &str = "models";

/// Lines that a watch may be behind.
const BEHIND: usize = 1 << 16;

pub(crate) struct Played {
    pub(crate) url: String,
    told: Arc<broadcast::Sender<String>>,
    _stop: DropGuard,
}

impl Played {
    #[expect(clippy::disallowed_methods, reason = "a bench has no supervisor; the task ends with it")]
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let told = Arc::new(broadcast::channel(BEHIND).0);
        let kind = json!({"kind": "ConfigMap", "name": "configmaps", "singularName": "configmap", "namespaced": true,
            "verbs": ["get", "list", "watch"]});
        let kinds = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [kind]});
        let router = Router::new()
            .route("/api/v1", get(async move || Json(kinds)))
            .route(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), get(objects))
            .with_state(Arc::clone(&told));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let token = CancellationToken::new();
        let stop = token.clone().drop_guard();
        tokio::spawn(async move { token.run_until_cancelled(axum::serve(listener, router).into_future()).await });
        Ok(Self { url, told, _stop: stop })
    }

    /// A kubeconfig of whoever may ask it.
    pub(crate) fn kubeconfig(&self) -> Value {
        let named = |kind: &str, it: Value| json!([{"name": "played", kind: it}]);
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "played",
            "clusters": named("cluster", json!({"server": self.url})), "users": named("user", json!({})),
            "contexts": named("context", json!({"cluster": "played", "user": "played"}))})
    }

    /// Tells whoever watches that an object was made.
    pub(crate) fn add(&self, metadata: &Value) {
        let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        // Whoever has gone needs to know nothing.
        _ = self.told.send(format!("{}\n", json!({"type": "ADDED", "object": object})));
    }
}

async fn objects(State(told): State<Arc<broadcast::Sender<String>>>, RawQuery(query): RawQuery) -> Response {
    if !query.unwrap_or_default().contains("watch=") {
        let none = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": []});
        return Json(none).into_response();
    }
    let lines = stream::unfold(told.subscribe(), async |mut told| {
        // Whoever is further behind than the bench allows is cut off, and what it missed fails the bench.
        let line = told.recv().await.ok()?;
        Some((Ok::<_, Infallible>(line), told))
    });
    Body::from_stream(lines).into_response()
}

//! A running simulator and a client for it.

use std::net::Ipv4Addr;

use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use watchfire_simulator::{Server, Simulator};

/// Path below which everything lives.
pub(crate) const BASE: &str = "/api/hyperfleet/v1";

/// A served simulator; it stops when dropped.
pub(crate) struct Running {
    pub(crate) simulator: Simulator,
    pub(crate) url: String,
    client: reqwest::Client,
    _stop: DropGuard,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: Option<String>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The ids of a list, in order.
    pub(crate) fn ids(&self) -> Vec<String> {
        let items = self.json()["items"].as_array().unwrap_or_else(|| panic!("no items in {self:?}")).clone();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no supervisor")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

pub(crate) async fn serve(simulator: Simulator) -> Running {
    let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into(), simulator.clone()).await.unwrap();
    let (url, token) = (server.url(), CancellationToken::new());
    let stop = token.clone().drop_guard();
    spawn(async move { server.run(token).await.unwrap() });
    Running { simulator, url, client: client(), _stop: stop }
}

pub(crate) fn client() -> reqwest::Client {
    watchfire_testkit::install_crypto();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl Running {
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        self.client.request(method, format!("{}{BASE}{path}", self.url))
    }

    pub(crate) async fn send(&self, method: &str, path: &str, query: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let mut request = self.request(method, &format!("{path}?{query}"));
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        answer(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Answer {
        self.send("GET", path, query, None).await
    }
}

pub(crate) async fn answer(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let content_type = response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
    Ok(Answer { status: response.status().as_u16(), content_type, text: response.text().await? })
}

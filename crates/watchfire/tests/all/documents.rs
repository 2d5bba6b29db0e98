//! Every command in README.md and in the guides does what it says, and every file in them is accepted.
//!
//! A block runs as it stands, in bash, in a folder with the document's `sentinel.yaml`. What is replaced: the API's
//! address by a simulated one, the broker's by the one of the tests, ports by free ones, and endless commands by ones
//! that end once they have shown that they work.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::{Rabbit, Receiver, amqp_url, free_port, pubsub_endpoint, unique};

use crate::support::{Api, BINARY, isolate, read, root, run, text};

/// What serves ends when it has published, and in the background when the rest of its block has run as well.
const WATCHFIRE: &str = r#"#!/bin/bash
case "$1" in
  demo) shift; [[ "$*" == *--seconds* ]] || set -- "$@" --plain --seconds 12; exec BINARY demo "$@" ;;
  sentinel|serve|run)
    if [[ "$*" == *--help* || "$2" != -* ]]; then exec BINARY "$@"; fi
    BINARY "$@" --health-bind-address 127.0.0.1:HEALTH --metrics-bind-address 127.0.0.1:METRICS >log 2>&1 &
    pid=$!
    trap 'kill -TERM $pid' TERM
    while kill -0 $pid 2>/dev/null; do
      if grep -q 'event published' log && { [[ -z $BACKGROUND ]] || [[ -e done ]]; }; then kill -TERM $pid; break; fi
      sleep 0.05
    done
    wait $pid; status=$?
    cat log
    grep -q 'event published' log && exit $status
    exit 9 ;;
  *) exec BINARY "$@" ;;
esac
"#;

const CARGO: &str = r#"#!/bin/bash
case "$*" in
  "run --release -- "*) shift 3; exec watchfire "$@" ;;
  "install --locked --path "*) test -f "ROOT/$4/Cargo.toml" ;;
  "build --release") ;;
  "test -p "*" --test all "*) grep -rq "fn .*$6" "ROOT/crates/$3/tests/all" ;;
  *) echo "no such command is known: cargo $*" >&2; exit 8 ;;
esac
"#;

const MAKE: &str = "#!/bin/bash\nexec /usr/bin/make --dry-run -C ROOT \"$@\"\n";

/// The fenced blocks of one language, in order.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    document
        .split(&fence)
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block.to_owned())
        .collect()
}

fn script(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a script");
}

/// Puts the programs there that stand in for the real ones.
fn install(folder: &Path, health: u16, metrics: u16) {
    let programs = folder.join("bin");
    std::fs::create_dir(&programs).unwrap();
    let completed = |text: &str| {
        text.replace("BINARY", BINARY)
            .replace("HEALTH", &health.to_string())
            .replace("METRICS", &metrics.to_string())
            .replace("ROOT", &root().display().to_string())
    };
    for (name, content) in [("watchfire", WATCHFIRE), ("cargo", CARGO), ("make", MAKE)] {
        script(&programs, name, &completed(content));
    }
}

/// Puts the document's files there; where it has none for the sentinel, that of the readme.
fn furnish(folder: &Path, document: &str, api: &str) {
    let mut files = blocks(document, "yaml").into_iter().chain(blocks(&read("README.md"), "yaml"));
    let file = files.find(|block| block.contains("resource_type")).unwrap_or_default();
    let file = file.replace("http://hyperfleet-api:8000", api).replace("/run/secrets/hyperfleet/token", "token");
    for name in ["sentinel.yaml", "config.yaml"] {
        std::fs::write(folder.join(name), &file).unwrap();
    }
    if let Some(broker) = blocks(document, "yaml").into_iter().find(|block| block.starts_with("broker:")) {
        std::fs::write(folder.join("broker.yaml"), broker).unwrap();
    }
    std::fs::write(folder.join("token"), "a-token").unwrap();
    std::fs::write(folder.join("password"), "guest").unwrap();
}

/// Runs a block; what it printed, with its end.
async fn perform(block: &str, document: &str) -> Option<String> {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.create("clusters", NewResource::named("alpha").label("region", "us-east")).unwrap();
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let folder = tempfile::tempdir().unwrap();
    let (health, metrics) = (free_port(), free_port());
    install(folder.path(), health, metrics);
    furnish(folder.path(), document, &api.url);

    let mut command = Command::new("bash");
    isolate(&mut command);
    let mut replaced = block
        .replace("localhost:8080", &format!("127.0.0.1:{health}"))
        .replace("localhost:9090", &format!("127.0.0.1:{metrics}"))
        .replace("http://hyperfleet-api:8000", &api.url)
        .replace("/run/secrets/rabbitmq/password", "password");
    let mut queue = None;
    if block.contains("BROKER_TYPE=rabbitmq") {
        let url = amqp_url("documents::every_command_works")?;
        let (user, address) = url.trim_start_matches("amqp://").rsplit_once('@').expect("credentials");
        let (user, password) = user.split_once(':').expect("a password");
        let host = address.split(['/', ':']).next().expect("a host");
        std::fs::write(folder.path().join("password"), password).unwrap();
        replaced = replaced.replace("BROKER_HOST=rabbitmq", &format!("BROKER_HOST={host}"));
        replaced = replaced.replace("BROKER_USER=sentinel", &format!("BROKER_USER={user}"));
        let exchange = unique("documents");
        queue = Some(Rabbit::listen(&url, &exchange, "fanout", "").await);
        command.env("BROKER_EXCHANGE", exchange);
    }
    if block.contains("BROKER_TYPE=pubsub") {
        command.env("PUBSUB_EMULATOR_HOST", pubsub_endpoint("documents::every_command_works")?);
        replaced = replaced.replace("BROKER_PROJECT_ID=hyperfleet-prod", &format!("BROKER_PROJECT_ID={}", unique("p")));
    }
    if block.contains("BROKER_TYPE=http") {
        for subscriber in ["http://validation:8080", "http://localhost:9000", "https://vpc.example.com"] {
            replaced = replaced.replace(subscriber, receiver.url());
        }
    }
    if block.lines().any(|line| line.trim_end().ends_with('&')) {
        command.env("BACKGROUND", "1");
    }
    let path = format!("{}:{}", folder.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).current_dir(folder.path());
    command.args(["-euo", "pipefail", "-c", &format!("{replaced}\ntouch done\nwait")]);
    let output = tokio::time::timeout(Duration::from_mins(2), command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("no end of:\n{block}")).expect("bash");
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?} of:\n{block}\n{said}", output.status);
    if let Some(mut queue) = queue {
        queue.take(1).await;
        queue.delete().await;
    }
    Some(said)
}

async fn every_block(path: &str) {
    let document = read(path);
    let blocks = blocks(&document, "sh");
    assert!(!blocks.is_empty(), "{path}");
    for block in blocks {
        // Absent brokers are told by their finders.
        perform(&block, &document).await;
    }
}

#[tokio::test]
async fn every_command_of_the_readme_works() {
    every_block("README.md").await;
}

#[tokio::test]
async fn every_command_of_the_guide_works() {
    every_block("docs/sentinel.md").await;
}

#[tokio::test]
async fn every_command_about_delivery_works() {
    every_block("docs/delivery.md").await;
}

#[tokio::test]
async fn every_command_on_the_way_from_todays_sentinel_works() {
    every_block("docs/migrate-hyperfleet-sentinel.md").await;
}

/// What `make` would do is enough to know of a target that takes minutes.
#[tokio::test]
async fn every_command_that_measures_or_breaks_something_is_one() {
    every_block("docs/performance.md").await;
    every_block("docs/reliability.md").await;
}

#[tokio::test]
async fn every_file_of_the_documents_is_accepted() {
    for path in ["README.md", "docs/sentinel.md"] {
        for (index, block) in blocks(&read(path), "yaml").into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let path_of = |name: &str| folder.path().join(name).display().to_string();
            let (file, token) = (path_of("sentinel.yaml"), path_of("token"));
            std::fs::write(&token, "a-token").unwrap();
            let mut whole = block.clone();
            // An excerpt shows one key; what is required stands around it.
            if !block.contains("resource_type:") {
                whole.push_str("resource_type: clusters\n");
            }
            if !block.contains("hyperfleet_api:") {
                whole.push_str("hyperfleet_api:\n  endpoint: http://hyperfleet-api:8000\n");
            }
            let whole = whole.replace("/run/secrets/hyperfleet/token", &token);
            std::fs::write(&file, &whole).unwrap();
            let env = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://a")];
            let output = run(&["config", "check", "--config", &file], &env).await;
            let mut said = String::new();
            write!(said, "{path}, block {index}:\n{whole}\n{}", text(&output.stderr)).unwrap();
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert_eq!(text(&output.stdout), "the configuration is valid\n", "no warnings; {said}");
        }
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let decisions = std::fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path());
    let top = ["README.md", "CONTRIBUTING.md"].map(|name| root().join(name));
    for path in docs.chain(decisions).chain(top).filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let document = std::fs::read_to_string(&path).unwrap();
        for (target, _) in document.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(file.exists(), "{}: {target}", path.display());
            if !anchor.is_empty() {
                assert!(has_heading(&file, anchor), "{}: {target}", path.display());
            }
        }
    }
}

/// Whether a document has a heading with this anchor.
pub(crate) fn has_heading(file: &Path, anchor: &str) -> bool {
    let text = std::fs::read_to_string(file).expect("a document");
    text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor)
}

/// The anchor that a heading gets.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

//! `watchfire sentinel coverage`: lists the fleet once and says how the selectors divide it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use anyhow::{Context, anyhow};
use serde_json::json;
use watchfire_runtime::config::Env;
use watchfire_runtime::one_line;
use watchfire_runtime::redact::address;
use watchfire_sentinel::SentinelConfig;
use watchfire_sentinel::api::{Api, ApiConfig, UNLISTED};
use watchfire_sentinel::coverage::{Coverage, Finding, Findings};

use super::{told, unlisted};
use crate::cli::Format;
use crate::cli::sentinel::CoverageArgs;
use crate::config;
use crate::failure::{Failure, say, tell};

/// Findings of each kind that are named without `--all`.
const NAMED: usize = 20;

pub(super) async fn run(args: &CoverageArgs, env: &Env) -> Result<(), Failure> {
    let configs = config::fleet(&args.files, env)?;
    let mut lists = group(configs.into_iter(), if args.all { usize::MAX } else { NAMED });
    for (config, coverage) in &mut lists {
        let client = Api::new(&config.api).context("make the API client")?;
        coverage.read(&client, &told, progress).await.map_err(|error| unlisted(&error, config))?;
    }
    finish_progress();
    let lists: Vec<_> = lists.into_iter().map(|(_, coverage)| coverage).collect();
    let exact = lists.iter().all(Coverage::is_exact);
    match args.output.format {
        Format::Json => {
            let document = json!({"covered": exact, "lists": lists});
            say(&serde_json::to_string_pretty(&document).context("print the coverage")?)?;
        }
        Format::Text => tell(&lists.iter().map(text).collect::<Vec<_>>().join("\n"))?,
    }
    if exact {
        return Ok(());
    }
    let missed: u64 = lists.iter().map(|list| list.resources - list.covered_once + list.unlisted).sum();
    let all: u64 = lists.iter().map(|list| list.resources + list.unlisted).sum();
    Err(Failure::Failed(anyhow!("{missed} of {all} resources are not covered exactly once")))
}

/// The sentinels of each list: those that ask the same API for the same resources, in the same name.
fn group(configs: impl Iterator<Item = (String, SentinelConfig)>, keep: usize) -> Vec<(SentinelConfig, Coverage)> {
    let mut lists: Vec<(SentinelConfig, Coverage)> = Vec::new();
    for (file, config) in configs {
        // A tenant may be told by a header, or by whose token it is.
        let asks = |it: &SentinelConfig| {
            let ApiConfig { endpoint, resource_type, headers, token, .. } = it.api.clone();
            (endpoint, resource_type, headers, token)
        };
        if let Some((_, list)) = lists.iter_mut().find(|(first, _)| asks(first) == asks(&config)) {
            list.share(file, config.selector.clone());
        } else {
            let mut list = Coverage::new(address(&config.api.endpoint), config.api.resource_type.clone(), keep);
            list.share(file, config.selector.clone());
            lists.push((config, list));
        }
    }
    lists
}

fn text(list: &Coverage) -> String {
    let Coverage { endpoint, resource_type, resources, covered_once, .. } = list;
    let mut text =
        format!("{resource_type} at {endpoint}: {resources} listed, {covered_once} of them covered exactly once\n");
    if list.unlisted > 0 {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "\n  counted by the API and not listed: {}; {UNLISTED}", list.unlisted);
    }
    for (what, findings) in [
        ("covered by no selector", &list.uncovered),
        ("covered by several selectors", &list.overlapping),
        ("unreadable for every sentinel", &list.unreadable),
    ] {
        if findings.count > 0 {
            section(&mut text, what, findings);
        }
    }
    text.push_str("\n  each sentinel's share:\n");
    for share in &list.shares {
        let selector = share.selector.as_deref().unwrap_or("everything");
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "{:>10}  {}  ({selector})", share.resources, one_line(&share.file));
    }
    text
}

fn section(text: &mut String, what: &str, findings: &Findings) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(text, "\n  {what}: {}", findings.count);
    for Finding { id, labels, files, error } in &findings.first {
        let labels = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let id = if id.is_empty() { "(no id)" } else { id };
        let labels = if labels.is_empty() && error.is_none() { "(no labels)".to_owned() } else { labels };
        let rest = [labels, files.join(", "), error.clone().unwrap_or_default()];
        let rest = rest.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ");
        let _infallible = writeln!(text, "    {}  {}", one_line(id), one_line(&rest));
    }
    let named = findings.first.len() as u64;
    if named < findings.count {
        let _infallible = writeln!(text, "    and {} more, which --all names", findings.count - named);
    }
}

fn progress(count: u64) {
    if io::stderr().is_terminal() {
        // Nobody is left to tell if standard error is closed.
        let _unheard = write!(io::stderr().lock(), "\r{count} resources listed");
    }
}

fn finish_progress() {
    if io::stderr().is_terminal() {
        // Nobody is left to tell if standard error is closed.
        let _unheard = writeln!(io::stderr().lock());
    }
}

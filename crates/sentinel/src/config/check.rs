//! Checks what was read: raw in, checked out, every problem told at its place.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, header};
use reqwest::Certificate;
use serde_json::Value;
use url::Url;
use watchfire_runtime::chain;
use watchfire_runtime::config::{Env, Origin, Problems};
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::secret::SecretSource;
use watchfire_runtime::telemetry::{LogFormat, LogOutput};

use super::raw::{RawApi, RawConfig, RawDecision, RawHeader, RawPolicy, RawSelector, Republish};
use super::setting::{Overrides, RawProcess, TOPIC, Whole};
use super::{Form, Process, Reading, SentinelConfig, rules, selector};
use crate::api::ApiConfig;
use crate::api::paging::PAGE_SIZE;
use crate::decision::MaxAge;
use crate::expression::Expression;
use crate::payload::{Leaves, Payload};

/// What today's HyperFleet takes as a page size.
const MAX_PAGE_SIZE: usize = 500;

/// A bundle of every authority of the web is a quarter of a MiB; a path that was mistyped may lead to anything.
const MAX_AUTHORITIES: u64 = 4 * 1024 * 1024;

/// Collects what is wrong, each under the name and at the place where the user wrote it.
pub(super) struct Report<'a> {
    form: Form,
    overrides: &'a Overrides,
    problems: Problems,
}

impl Report<'_> {
    fn origin(&self, key: &str) -> Origin {
        self.overrides.origin(key).unwrap_or_else(|| Origin::key(self.form.key(key)))
    }

    pub(super) fn push(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(self.origin(key), message);
    }

    pub(super) fn warn(&mut self, key: &str, message: impl Into<String>) {
        self.problems.warn(self.origin(key), message);
    }

    pub(super) fn take<T, E: std::error::Error>(&mut self, key: &str, result: Result<T, E>) -> Option<T> {
        self.problems.take(self.origin(key), result)
    }

    /// What a key is called where the user writes it, as the last part of its path.
    fn name(&self, key: &str) -> String {
        let key = self.form.key(key);
        key.rsplit('.').next().unwrap_or_default().to_owned()
    }
}

/// Lays what is given elsewhere on top, and checks all of it.
pub(super) fn check(form: Form, mut whole: Whole, overrides: &Overrides, env: &Env, mut problems: Problems) -> Reading {
    overrides.apply(&mut whole, &mut problems);
    let mut report = Report { form, overrides, problems };
    let sentinel = sentinel(&whole.config, env, &mut report);
    let process = process(&whole.process, &mut report);
    let topic = whole.process.topic.map(|topic| (topic, report.origin(TOPIC)));
    Reading { form, sentinel, process, topic, problems: report.problems }
}

impl Process {
    /// Reads what flags and environment say about the process, where there is no file.
    pub fn read(overrides: &Overrides) -> (Option<Self>, Problems) {
        let (mut whole, mut problems) = (Whole::default(), Problems::without_file());
        overrides.apply(&mut whole, &mut problems);
        let mut report = Report { form: Form::HyperFleet, overrides, problems };
        let process = process(&whole.process, &mut report);
        (process, report.problems)
    }
}

fn process(raw: &RawProcess, report: &mut Report<'_>) -> Option<Process> {
    if let Some(version) = raw.version.as_deref().filter(|version| !matches!(*version, "" | "v1")) {
        let message = format!("{version:?} is not used: the API's path is /api/hyperfleet/v1, whatever stands here");
        report.warn("clients.hyperfleet_api.version", message);
    }
    let format = raw.log.format.as_deref().map_or(Ok(LogFormat::default()), str::parse);
    let format = report.take("log.format", format);
    let output = raw.log.output.as_deref().map_or(Ok(LogOutput::default()), str::parse);
    let output = report.take("log.output", output);
    Some(Process {
        name: raw.name.clone().unwrap_or_else(|| "hyperfleet-sentinel".to_owned()),
        debug_config: raw.debug_config.unwrap_or(false),
        tracing: raw.tracing_enabled.unwrap_or(true),
        log_level: raw.log.level.clone().unwrap_or_else(|| "info".to_owned()),
        log_format: format?,
        log_output: output?,
    })
}

fn sentinel(raw: &RawConfig, env: &Env, report: &mut Report<'_>) -> Option<SentinelConfig> {
    let resource_type = resource_type(raw.resource_type.as_deref(), report);
    let poll_interval = positive("poll_interval", raw.poll_interval, 5, report);
    let not_ready = positive("max_age_not_ready", raw.max_age_not_ready, 10, report);
    let ready = positive("max_age_ready", raw.max_age_ready, 30 * 60, report);
    if let (Some(not_ready), Some(ready)) = (not_ready, ready)
        && not_ready > ready
    {
        let message =
            "longer than max_age_ready: resources that are not ready are looked at less often than those that are";
        report.warn("max_age_not_ready", message);
    }
    let api = api(raw.hyperfleet_api.as_ref(), env, report);
    let selector = selector::check(raw.resource_selector.as_ref(), report);
    let decision = raw.decision.unwrap_or_else(|| RawPolicy::implied_by(raw.message_decision.as_ref()));
    // Paths and templates are understood there too: they begin as no expression does.
    let expressions = decision == RawPolicy::Expression || report.form == Form::HyperFleet;
    let leaves = if expressions { Leaves::Mixed } else { Leaves::Paths };
    let payload = payload(raw.message_data.as_ref(), leaves, report);
    let max_age = ready.zip(not_ready).map(|(ready, not_ready)| MaxAge { ready, not_ready });
    let expression = expression(decision, raw.message_decision.as_ref(), max_age.as_ref(), report);
    let republish = raw.republish.unwrap_or(match raw.message_decision {
        Some(_) => Republish::Always,
        None => Republish::InFlight,
    });
    let unused = rules::unused(decision, republish);
    let rules = max_age.and_then(|max_age| rules::check(raw, decision, unused, max_age, report));
    let max_events_per_second = rules::check_ceiling(raw.max_events_per_second, report);
    let (api, effective_api) = api.unzip();
    let in_effect = |key| rules.filter(|_| !unused.contains(&key));
    let effective = RawConfig {
        resource_type: resource_type.clone(),
        poll_interval: poll_interval.map(GoDuration::new),
        max_age_not_ready: not_ready.map(GoDuration::new),
        max_age_ready: ready.map(GoDuration::new),
        refresh_spread: in_effect("refresh_spread").map(|rules| format!("{}%", rules.refresh_spread.percent())),
        no_progress_after: in_effect("no_progress_after").map(|rules| GoDuration::new(rules.no_progress.after)),
        max_age_no_progress: in_effect("max_age_no_progress").map(|rules| GoDuration::new(rules.no_progress.max_age)),
        max_events_per_second: raw.max_events_per_second,
        resource_selector: Some(raw.resource_selector.clone().unwrap_or(RawSelector::Pairs(Vec::new()))),
        hyperfleet_api: effective_api,
        message_data: raw.message_data.clone(),
        decision: Some(decision),
        message_decision: raw.message_decision.clone(),
        republish: Some(republish),
    };
    Some(SentinelConfig {
        form: report.form,
        api: ApiConfig { resource_type: resource_type?, ..api? },
        poll_interval: poll_interval?,
        rules: rules?,
        expression,
        max_events_per_second,
        republish,
        selector: selector?,
        payload: Arc::new(payload?),
        effective,
    })
}

fn positive(key: &str, value: Option<GoDuration>, default: u64, report: &mut Report<'_>) -> Option<Duration> {
    if value.is_some_and(GoDuration::is_zero) {
        report.push(key, format!("must be longer than 0, for example {}", GoDuration::from_secs(default)));
        return None;
    }
    Some(value.map_or_else(|| Duration::from_secs(default), GoDuration::get))
}

fn resource_type(raw: Option<&str>, report: &mut Report<'_>) -> Option<String> {
    let Some(plural) = raw.filter(|plural| !plural.is_empty()) else {
        report.push("resource_type", "missing; write the plural that the API serves, for example clusters");
        return None;
    };
    // One path segment: anything else would ask for another endpoint.
    if !plural.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
        report.push(
            "resource_type",
            format!("{plural:?} is not a plural: only letters, digits, '-' and '_', for example clusters"),
        );
        return None;
    }
    Some(plural.to_owned())
}

/// The client's configuration, but for the resource type, and what of it is in effect.
fn api(raw: Option<&RawApi>, env: &Env, report: &mut Report<'_>) -> Option<(ApiConfig, RawApi)> {
    let given = raw.is_some();
    let raw = raw.cloned().unwrap_or_default();
    let timeout = positive("hyperfleet_api.timeout", raw.timeout, 10, report);
    let endpoint = endpoint(raw.endpoint.as_deref(), given, report);
    let token = token(&raw, env, report);
    let page_size = page_size(raw.page_size, report);
    let headers = headers(&raw, env, report);
    let authorities = raw.ca_file.as_deref().map_or(Some(Vec::new()), |path| authorities(path, report));
    let effective = RawApi {
        timeout: timeout.map(GoDuration::new),
        page_size: page_size.and_then(|size| u32::try_from(size).ok()),
        headers: raw.headers.map(|headers| headers.into_iter().map(|(name, value)| (name, value.redacted())).collect()),
        ..raw
    };
    let config = ApiConfig {
        endpoint: endpoint?,
        timeout: timeout?,
        token,
        resource_type: String::new(),
        page_size: page_size?,
        headers: headers?,
        authorities: authorities?,
    };
    Some((config, effective))
}

fn endpoint(raw: Option<&str>, section: bool, report: &mut Report<'_>) -> Option<Url> {
    let name = report.name("hyperfleet_api.endpoint");
    let key = if section { "hyperfleet_api.endpoint" } else { "hyperfleet_api" };
    let Some(text) = raw.filter(|text| !text.is_empty()) else {
        let message = format!("missing; write the API's address, for example {name}: http://hyperfleet-api:8000");
        report.push(key, message);
        return None;
    };
    let example = "write it like http://hyperfleet-api:8000";
    let url = match text.parse::<Url>() {
        Ok(url) => url,
        Err(error) => {
            report.push(key, format!("not an address: {error}; {example}"));
            return None;
        }
    };
    if !matches!(url.scheme(), "http" | "https") {
        report.push(key, format!("the scheme must be http or https; {example}"));
    } else if !url.username().is_empty() || url.password().is_some() {
        let token = report.name("hyperfleet_api.token_file");
        report.push(key, format!("credentials in the address are not used; set HYPERFLEET_API_TOKEN or {token}"));
    } else if url.query().is_some() || url.fragment().is_some() {
        report.push(key, format!("must not have a query or a fragment; {example}"));
    } else {
        return Some(url);
    }
    None
}

fn token(api: &RawApi, env: &Env, report: &mut Report<'_>) -> Option<SecretSource> {
    let token = env.get("HYPERFLEET_API_TOKEN").map(str::trim).filter(|token| !token.is_empty());
    let file = api.token_file.clone().filter(|path| path != Path::new(""));
    if token.is_some() && file.is_some() {
        report.warn("hyperfleet_api.token_file", "not used: HYPERFLEET_API_TOKEN is set and takes precedence");
    }
    if let Some(token) = token {
        return Some(SecretSource::literal(token));
    }
    let file = SecretSource::file(file?);
    if let Err(error) = file.current() {
        report.warn("hyperfleet_api.token_file", format!("{}; nothing can be listed until it is there", chain(&error)));
    }
    Some(file)
}

fn page_size(raw: Option<u32>, report: &mut Report<'_>) -> Option<usize> {
    let key = "hyperfleet_api.page_size";
    let size = raw.map_or(PAGE_SIZE, |size| usize::try_from(size).unwrap_or(usize::MAX));
    if !(1..=MAX_PAGE_SIZE).contains(&size) {
        report.push(key, format!("{size} is out of range, write 1 to {MAX_PAGE_SIZE} (the API serves {PAGE_SIZE})"));
        return None;
    }
    if size > PAGE_SIZE {
        let message = format!("{size} is more than the API serves, asking for {PAGE_SIZE}; it would refuse every list");
        report.warn(key, message);
    }
    Some(size.min(PAGE_SIZE))
}

fn headers(api: &RawApi, env: &Env, report: &mut Report<'_>) -> Option<Vec<(HeaderName, SecretSource)>> {
    let mut headers = Vec::new();
    let mut sound = true;
    for (written, value) in api.headers.iter().flatten() {
        let key = format!("hyperfleet_api.headers.{written}");
        match one_header(written, value, env) {
            Ok((name, _)) if headers.iter().any(|(known, _)| *known == name) => {
                let message = "stands twice: the names of headers differ by more than capitals; leave one of them out";
                report.push(&key, message);
                sound = false;
            }
            Ok((name, source)) => {
                if let RawHeader::Text(_) = value
                    && ["token", "secret", "password", "key"].iter().any(|part| written.to_lowercase().contains(part))
                {
                    let message = "seems to be secret, and stands in a file that is kept in the open; write file: \
                                   PATH or env: NAME below it";
                    report.warn(&key, message);
                }
                headers.push((name, source));
            }
            Err(message) => {
                report.push(&key, message);
                sound = false;
            }
        }
    }
    sound.then_some(headers)
}

fn one_header(name: &str, value: &RawHeader, env: &Env) -> Result<(HeaderName, SecretSource), String> {
    let name: HeaderName = name.parse().map_err(|_| "is not the name of a header".to_owned())?;
    if [header::AUTHORIZATION, header::ACCEPT, header::HOST, header::CONTENT_LENGTH, header::USER_AGENT].contains(&name)
    {
        return Err("is set by the sentinel itself; a token goes into HYPERFLEET_API_TOKEN or a token file".to_owned());
    }
    let source = match value {
        RawHeader::Text(text) => {
            HeaderValue::from_str(text).map_err(|_| "has characters that a header cannot carry".to_owned())?;
            SecretSource::literal(text.as_str())
        }
        RawHeader::From(source) => match (&source.file, &source.env) {
            (Some(path), None) => SecretSource::file(path),
            (None, Some(variable)) => {
                let text = env.get(variable).ok_or_else(|| format!("the variable {variable} is not set"))?;
                SecretSource::literal(text)
            }
            _ => return Err("needs one of file: PATH and env: NAME".to_owned()),
        },
    };
    Ok((name, source))
}

fn authorities(path: &Path, report: &mut Report<'_>) -> Option<Vec<Certificate>> {
    let mut pem = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_AUTHORITIES + 1).read_to_end(&mut pem));
    let found = match read {
        Ok(bytes) if bytes as u64 > MAX_AUTHORITIES => Err("it is larger than 4 MiB, is the path right?".to_owned()),
        Ok(_) => Certificate::from_pem_bundle(&pem).map_err(|error| chain(&error)),
        Err(error) => Err(error.to_string()),
    };
    let problem = match found {
        Ok(found) if !found.is_empty() => return Some(found),
        Ok(_) => format!("{} holds no certificate; it has to be in PEM form", path.display()),
        Err(problem) => format!("read {}: {problem}", path.display()),
    };
    report.push("hyperfleet_api.ca_file", problem);
    None
}

fn expression(
    decision: RawPolicy,
    raw: Option<&RawDecision>,
    max_age: Option<&MaxAge>,
    report: &mut Report<'_>,
) -> Option<Arc<Expression>> {
    if decision != RawPolicy::Expression {
        if raw.is_some() {
            report.push("message_decision", "not used by this decision; leave one of the two out");
        }
        return None;
    }
    match super::decision::compile(raw, max_age?) {
        Ok(expression) => {
            for doubt in expression.doubts() {
                report.warn(&format!("message_decision.{}", doubt.part.key()), doubt.to_string());
            }
            Some(Arc::new(expression))
        }
        Err(found) => {
            for (key, message) in found {
                report.push(&format!("message_decision.{key}"), message);
            }
            None
        }
    }
}

fn payload(raw: Option<&Value>, leaves: Leaves, report: &mut Report<'_>) -> Option<Payload> {
    let Some(raw) = raw.filter(|raw| !raw.is_null()) else { return Some(Payload::default_payload()) };
    match Payload::compile(raw, leaves) {
        Ok(payload) => {
            for (field, doubt) in payload.doubts() {
                report.warn(&format!("message_data.{field}"), format!("expression: {doubt}"));
            }
            Some(payload)
        }
        Err(errors) => {
            for error in errors {
                report.push(&error.field, error.problem.to_string());
            }
            None
        }
    }
}

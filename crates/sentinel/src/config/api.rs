//! Checks `hyperfleet_api`: where the API is, and how it is asked.

use std::path::Path;

use http::{HeaderName, HeaderValue, header};
use url::Url;
use watchfire_runtime::chain;
use watchfire_runtime::config::Env;
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::http::Authorities;
use watchfire_runtime::secret::SecretSource;

use super::check::{Report, positive};
use super::raw::{RawApi, RawHeader};
use crate::api::ApiConfig;
use crate::api::paging::PAGE_SIZE;

/// What today's HyperFleet takes as a page size.
const MAX_PAGE_SIZE: usize = 500;

/// The client's configuration, but for the resource type, and what of it is in effect.
pub(super) fn check(raw: Option<&RawApi>, env: &Env, report: &mut Report<'_>) -> Option<(ApiConfig, RawApi)> {
    let given = raw.is_some();
    let raw = raw.cloned().unwrap_or_default();
    let timeout = positive("hyperfleet_api.timeout", raw.timeout, 10, report);
    let endpoint = endpoint(raw.endpoint.as_deref(), given, report);
    let token = token(&raw, env, report);
    let page_size = page_size(raw.page_size, report);
    let headers = headers(&raw, env, report);
    let authorities = raw.ca_file.as_deref().map_or_else(|| Ok(Authorities::default()), Authorities::read);
    let authorities = report.take("hyperfleet_api.ca_file", authorities);
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
        // Whoever may write an object says by it whose token is sent.
        let variable = if report.is_object() { "" } else { "HYPERFLEET_API_TOKEN or " };
        report.push(key, format!("credentials in the address are not used; set {variable}{token}"));
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
        if ["file", "env"].iter().any(|part| report.is_left_out(&format!("{key}.{part}"))) {
            sound = false;
            continue;
        }
        match one_header(written, value, env) {
            Ok((name, _)) if headers.iter().any(|(known, _)| *known == name) => {
                let message = "stands twice: capitals make no other header; leave one of them out";
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

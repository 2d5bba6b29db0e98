//! Every setting that a variable or a flag can give, by its key in the first form.
//!
//! One list: reading, precedence, messages and the generated reference all go by it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use watchfire_runtime::config::{Env, Origin, Problems};
use watchfire_runtime::duration::GoDuration;

use super::raw::{RawApi, RawConfig};

/// What file, environment and flags say together, whatever the form of the file.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    /// What the sentinel does.
    pub config: RawConfig,
    /// How its process is set up.
    pub process: RawProcess,
}

/// What only the form of today's HyperFleet keeps in the file.
#[derive(Debug, Clone, Default)]
pub struct RawProcess {
    /// `sentinel.name`.
    pub name: Option<String>,
    /// `debug_config`.
    pub debug_config: Option<bool>,
    /// `tracing_enabled`.
    pub tracing_enabled: Option<bool>,
    /// `log`.
    pub log: RawLog,
    /// `clients.hyperfleet_api.version`.
    pub version: Option<String>,
    /// `clients.hyperfleet_api.auth.token_cache_ttl`.
    pub token_cache_ttl: Option<GoDuration>,
    /// `clients.broker.topic`.
    pub topic: Option<String>,
}

/// What is logged, how and where.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Log")]
pub struct RawLog {
    /// `off`, `error`, `warn`, `info` (default), `debug` or `trace`.
    pub level: Option<String>,
    /// `json` (default) or `text`.
    pub format: Option<String>,
    /// `stdout` (default) or `stderr`.
    pub output: Option<String>,
}

/// One setting that can be given outside of the file.
pub struct Setting {
    /// Its key; those of [`RawProcess`] by their key in the form of today's HyperFleet.
    pub key: &'static str,
    /// Its variables, the first that is set counts.
    pub variables: &'static [&'static str],
    /// Its flag, without dashes.
    pub flag: Option<&'static str>,
    set: fn(&mut Whole, &str) -> Result<(), String>,
}

/// All of them.
pub const SETTINGS: [Setting; 15] = [
    setting("sentinel.name", &["HYPERFLEET_SENTINEL_NAME"], Some("name"), |whole, text| {
        whole.process.name = Some(text.to_owned());
        Ok(())
    }),
    setting("debug_config", &["HYPERFLEET_DEBUG_CONFIG"], Some("debug-config"), |whole, text| {
        whole.process.debug_config = Some(flag(text)?);
        Ok(())
    }),
    setting("tracing_enabled", &["HYPERFLEET_TRACING_ENABLED"], Some("tracing-enabled"), |whole, text| {
        whole.process.tracing_enabled = Some(flag(text)?);
        Ok(())
    }),
    setting("log.level", &["HYPERFLEET_LOG_LEVEL", "LOG_LEVEL"], Some("log-level"), |whole, text| {
        whole.process.log.level = Some(text.to_owned());
        Ok(())
    }),
    setting("log.format", &["HYPERFLEET_LOG_FORMAT", "LOG_FORMAT"], Some("log-format"), |whole, text| {
        whole.process.log.format = Some(text.to_owned());
        Ok(())
    }),
    setting("log.output", &["HYPERFLEET_LOG_OUTPUT"], Some("log-output"), |whole, text| {
        whole.process.log.output = Some(text.to_owned());
        Ok(())
    }),
    setting(ADDRESS, &["HYPERFLEET_API_BASE_URL"], Some("hyperfleet-api-base-url"), |whole, text| {
        api(whole).endpoint = Some(text.to_owned());
        Ok(())
    }),
    setting(
        "clients.hyperfleet_api.version",
        &["HYPERFLEET_API_VERSION"],
        Some("hyperfleet-api-version"),
        |whole, text| {
            whole.process.version = Some(text.to_owned());
            Ok(())
        },
    ),
    setting("hyperfleet_api.timeout", &["HYPERFLEET_API_TIMEOUT"], Some("hyperfleet-api-timeout"), |whole, text| {
        api(whole).timeout = Some(read(text)?);
        Ok(())
    }),
    setting(
        "hyperfleet_api.page_size",
        &["HYPERFLEET_API_PAGE_SIZE"],
        Some("hyperfleet-api-page-size"),
        |whole, text| {
            api(whole).page_size = Some(text.parse().map_err(|_| format!("{text:?} is not a number, 1 to 500"))?);
            Ok(())
        },
    ),
    setting(
        "hyperfleet_api.token_file",
        &["HYPERFLEET_API_AUTH_TOKEN_PATH", "HYPERFLEET_API_TOKEN_FILE"],
        None,
        |whole, text| {
            api(whole).token_file = Some(text.into());
            Ok(())
        },
    ),
    setting(
        "clients.hyperfleet_api.auth.token_cache_ttl",
        &["HYPERFLEET_API_AUTH_TOKEN_CACHE_TTL"],
        None,
        |whole, text| {
            whole.process.token_cache_ttl = Some(read(text)?);
            Ok(())
        },
    ),
    setting(TOPIC, &["HYPERFLEET_BROKER_TOPIC"], Some("broker-topic"), |whole, text| {
        whole.process.topic = Some(text.to_owned());
        Ok(())
    }),
    setting("resource_type", &["HYPERFLEET_RESOURCE_TYPE"], Some("resource-type"), |whole, text| {
        whole.config.resource_type = Some(text.to_owned());
        Ok(())
    }),
    setting("poll_interval", &["HYPERFLEET_POLL_INTERVAL"], Some("poll-interval"), |whole, text| {
        whole.config.poll_interval = Some(read(text)?);
        Ok(())
    }),
];

/// The API's address.
const ADDRESS: &str = "hyperfleet_api.endpoint";
/// Where events go.
pub(super) const TOPIC: &str = "clients.broker.topic";

const fn setting(
    key: &'static str,
    variables: &'static [&'static str],
    flag: Option<&'static str>,
    set: fn(&mut Whole, &str) -> Result<(), String>,
) -> Setting {
    Setting { key, variables, flag, set }
}

fn api(whole: &mut Whole) -> &mut RawApi {
    whole.config.hyperfleet_api.get_or_insert_default()
}

fn read<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn flag(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{text:?} is not true or false")),
    }
}

/// What is given outside of the file.
#[derive(Default)]
pub struct Overrides(BTreeMap<&'static str, (String, Origin)>);

impl Overrides {
    /// What flags give, by their names without dashes, and what the environment does where these give nothing.
    pub fn new(env: &Env, flags: &[(&str, Option<&str>)]) -> Self {
        let given = |setting: &Setting| {
            let by_flag = setting.flag.and_then(|name| {
                let (_, value) = flags.iter().find(|(flag, value)| *flag == name && value.is_some())?;
                Some(((*value)?.to_owned(), Origin::flag(format!("--{name}"))))
            });
            let by_variable =
                || setting.variables.iter().find_map(|name| Some((env.get(name)?.to_owned(), Origin::env(*name))));
            Some((setting.key, by_flag.or_else(by_variable)?))
        };
        Self(SETTINGS.iter().filter_map(given).collect())
    }

    /// Whether the API's address is among them.
    pub(super) fn has_address(&self) -> bool {
        self.0.contains_key(ADDRESS)
    }

    /// Puts them above what the file says; one that cannot be read is a problem.
    pub(super) fn apply(&self, whole: &mut Whole, problems: &mut Problems) {
        for setting in &SETTINGS {
            if let Some((text, origin)) = self.0.get(setting.key)
                && let Err(message) = (setting.set)(whole, text)
            {
                problems.push(origin.clone(), message);
            }
        }
    }

    /// Where a setting was given, if not in the file.
    pub(super) fn origin(&self, key: &str) -> Option<Origin> {
        self.0.get(key).map(|(_, origin)| origin.clone())
    }
}

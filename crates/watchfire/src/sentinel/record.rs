//! `watchfire sentinel record`: lists as the service does, and keeps what it sees; decides and publishes nothing.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};
use watchfire_runtime::config::Env;
use watchfire_runtime::{chain, clock};
use watchfire_sentinel::SentinelConfig;
use watchfire_sentinel::api::paging::{Pages, Query};
use watchfire_sentinel::api::{self, Api, UNLISTED};
use watchfire_sentinel::recording::{By, Kept, Recorder, Scope, Writer};

use super::{told, unlisted};
use crate::cli::RecordBesideArgs;
use crate::cli::sentinel::RecordArgs;
use crate::config;
use crate::failure::{Failure, note_aside, tell};

pub(super) async fn run(args: &RecordArgs, env: &Env) -> Result<(), Failure> {
    let config = config::sentinel(&args.config, env)?;
    let kept = if args.whole { Kept::everything() } else { Kept::read_by(&config) };
    let scope = Scope { by: By::Onlooker, max: args.max_size, kept: redact(kept, &args.redact, &config)? };
    let mut writer = Writer::open(&args.output, scope, &config, clock::now()).context("begin to record")?;
    let api = Api::new(&config.api).context("make the API client")?;
    let mut ends = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [interrupt, terminate] = &mut ends;
    let (Ok(interrupt), Ok(terminate)) = (interrupt, terminate) else {
        return Err(anyhow::anyhow!("listen for signals").into());
    };
    let over = async {
        match args.duration {
            Some(duration) => sleep(duration.get()).await,
            None => std::future::pending().await,
        }
    };
    let (output, kind) = (args.output.display(), &config.api.resource_type);
    tell(&format!("recording {kind} every {:?} into {output}", config.poll_interval))?;
    let mut polls = 0;
    let ended = tokio::select! {
        ended = record(&config, &api, &mut writer, &mut polls) => ended,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        () = over => Ok(()),
    };
    let closed = writer.close().context("end the recording");
    ended?;
    closed?;
    for path in writer.unmet().filter(|_| polls > 0) {
        note_aside(&format!(
            "{path:?} was nowhere in what was recorded, and took nothing out; is it written as the API has it, capitals \
             included?"
        ));
    }
    let polls = match polls {
        0 => "no whole poll".to_owned(),
        1 => "1 poll".to_owned(),
        polls => format!("{polls} polls"),
    };
    tell(&format!("recorded {polls} into {output}"))
}

/// Begins to record beside the service; what has a name, into a folder of its own.
pub(super) fn beside(
    args: &RecordBesideArgs,
    name: Option<&str>,
    config: &SentinelConfig,
) -> Result<Option<Recorder>, Failure> {
    let Some(folder) = &args.folder else { return Ok(None) };
    let folder = name.map_or_else(|| folder.clone(), |name| folder.join(name));
    let kept = redact(Kept::read_by(config), &args.redact, config)?;
    let scope = Scope { by: By::Sentinel, max: args.max_size, kept };
    let writer = Writer::open(&folder, scope, config, clock::now()).context("begin to record")?;
    Ok(Some(Recorder::start(writer).context("begin to record")?))
}

fn redact(kept: Kept, paths: &[String], config: &SentinelConfig) -> Result<Kept, Failure> {
    let wrong = |error| Failure::Configuration(anyhow::Error::new(error));
    paths.iter().try_fold(kept, |kept, path| kept.redact(path, &config.selector)).map_err(wrong)
}

/// Polls for ever. An API that can't be listed at first is a failure; later it is waited for.
async fn record(config: &SentinelConfig, api: &Api, writer: &mut Writer, polls: &mut u64) -> Result<(), Failure> {
    let query = Query { search: config.selector.search(), labels: config.selector.labels(), fields: None };
    let mut ticks = interval(config.poll_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failing, mut short) = (false, false);
    loop {
        ticks.tick().await;
        let error = match poll(api, &query, writer).await? {
            Ok(unlisted) => {
                *polls += 1;
                failing = false;
                let was = std::mem::replace(&mut short, unlisted > 0);
                if short && !was {
                    note_aside(&format!("the API counts {unlisted} resources that it does not list; {UNLISTED}"));
                }
                continue;
            }
            Err(error) => error,
        };
        if *polls == 0 {
            return Err(unlisted(&error, config).into());
        }
        if !std::mem::replace(&mut failing, true) {
            let hint = error.hint(config.form);
            note_aside(&format!("{}; {hint}; going on", chain(&error)));
        }
        if let Some(asked) = error.retry_after() {
            sleep(asked).await;
        }
    }
}

/// Records one list, and says how many resources the API counted and did not list. What cannot be written ends the
/// recording; what cannot be read does not.
async fn poll(api: &Api, query: &Query, writer: &mut Writer) -> anyhow::Result<Result<u64, api::Error>> {
    let mut pages = Pages::new(api, query, &told);
    loop {
        let page = pages.next().await;
        let now = clock::now();
        match page {
            Ok(Some(page)) => writer.page(now, page.items())?,
            Ok(None) => {
                writer.end(now, true)?;
                return Ok(Ok(pages.missing()));
            }
            Err(error) => {
                writer.end(now, false)?;
                return Ok(Err(error));
            }
        }
    }
}

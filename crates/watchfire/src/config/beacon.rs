//! `watchfire config check --live` of a beacon's file.

use anyhow::{Context, anyhow};
use watchfire_beacon::{BeaconConfig, live};
use watchfire_runtime::crypto;

use super::live::Answer;
use crate::beacon::connect;
use crate::cli::LiveArgs;
use crate::failure::Failure;

/// Asks the cluster about each kind, and the endpoint whether it is there.
pub(super) fn ask(config: BeaconConfig, args: &LiveArgs) -> Result<Vec<Answer>, Failure> {
    if args.management_url.is_some() {
        return Err(Failure::Configuration(anyhow!(
            "read --management-url: it asks RabbitMQ about a sentinel's queues, and this is a beacon's file; leave it out"
        )));
    }
    crypto::install_crypto_provider();
    let answers = tokio::runtime::Runtime::new().context("start the async runtime")?.block_on(async {
        let client = connect().await?;
        Ok::<_, Failure>(live::ask(config, &client).await)
    })?;
    Ok(answers.into_iter().map(|(name, answer)| (name, answer.map_err(|error| anyhow!(error)))).collect())
}

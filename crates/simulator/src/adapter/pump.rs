//! Takes messages from a source and works on several at once, in one future.

use std::pin::pin;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::Error;

/// Why the pump stopped.
#[derive(Debug)]
pub(super) enum End<E> {
    /// It was told to, and finished what it held.
    Stopped,
    /// The source is gone; what was held is finished.
    Lost(Option<E>),
    /// The adapter died; what was held is abandoned.
    Crashed,
}

/// Works on up to `limit` messages at once until told to stop.
pub(super) async fn pump<T, E, F>(
    token: &CancellationToken,
    limit: usize,
    source: impl Stream<Item = Result<T, E>>,
    work: impl Fn(T) -> F,
) -> End<E>
where
    F: Future<Output = Result<(), Error>>,
{
    let mut source = pin!(source);
    let mut held = FuturesUnordered::<F>::new();
    let end = loop {
        tokio::select! {
            biased;
            () = token.cancelled() => break End::Stopped,
            Some(done) = held.next(), if !held.is_empty() => {
                if done.is_err() {
                    return End::Crashed;
                }
            }
            message = source.next(), if held.len() < limit => match message {
                Some(Ok(message)) => held.push(work(message)),
                Some(Err(error)) => break End::Lost(Some(error)),
                None => break End::Lost(None),
            },
        }
    };
    while let Some(done) = held.next().await {
        if done.is_err() {
            return End::Crashed;
        }
    }
    end
}

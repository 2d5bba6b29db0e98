//! The signals that end a process.

use std::io;

/// A signal that asks the process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Terminate,
    Interrupt,
}

impl Signal {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        }
    }

    /// The status a shell reports for a process that this signal ended.
    pub(super) fn exit_code(self) -> i32 {
        match self {
            Self::Terminate => 143,
            Self::Interrupt => 130,
        }
    }
}

/// The stream of signals; a test sends its own.
pub(super) enum Signals {
    Process {
        terminate: tokio::signal::unix::Signal,
        interrupt: tokio::signal::unix::Signal,
    },
    #[cfg(test)]
    Channel(tokio::sync::mpsc::Receiver<Signal>),
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self::Process { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal; for ever if none can come any more.
    pub(super) async fn next(&mut self) -> Signal {
        let signal = match self {
            Self::Process { terminate, interrupt } => tokio::select! {
                received = terminate.recv() => received.map(|()| Signal::Terminate),
                received = interrupt.recv() => received.map(|()| Signal::Interrupt),
            },
            #[cfg(test)]
            Self::Channel(receiver) => receiver.recv().await,
        };
        match signal {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

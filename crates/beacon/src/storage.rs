//! Watches the volume that the ledger is on, and closes the intake before it is full.
//!
//! What was taken in can then still be delivered and noted. Bytes are counted as `df` counts them: what is kept for the
//! superuser is of no use to this process. A volume that runs out of inodes is as full as one without bytes.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;
use rustix::fs::statvfs;
use tokio::sync::watch;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use watchfire_delivery::store::{Error, Store};
use watchfire_runtime::health::Dependency;
use watchfire_runtime::{chain, clock};

use crate::ledger;
use crate::metrics::Metrics;

/// From which share of the volume on what is done, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// It is told.
    pub warning: u32,
    /// Nothing more is taken in.
    pub critical: u32,
}

/// How a volume stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of its bytes.
    pub size: u64,
    /// Bytes that nobody uses.
    pub free: u64,
    /// Bytes of these that this process may use.
    pub available: u64,
    /// All of its inodes; none where it does not count them.
    pub inodes: u64,
    /// Inodes that nobody uses.
    pub free_inodes: u64,
    /// Bytes of the ledger's file and of its log.
    pub database: u64,
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not so full.
    None,
    /// Above the first threshold.
    Warning,
    /// Above the second.
    Critical,
}

impl Pressure {
    /// As in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl Usage {
    fn of(volume: &Path, ledger: &Path) -> std::io::Result<Self> {
        let found = statvfs(volume)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", ledger.display()));
        let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        Ok(Self {
            size: bytes(found.f_blocks),
            free: bytes(found.f_bfree),
            available: bytes(found.f_bavail),
            inodes: found.f_files,
            free_inodes: found.f_ffree,
            database: length(ledger.to_owned()) + length(beside("-wal")),
        })
    }

    /// The share of bytes that is used, in percent.
    pub fn percent(&self) -> f64 {
        share(self.size.saturating_sub(self.free), self.available)
    }

    fn inodes_percent(&self) -> f64 {
        share(self.inodes.saturating_sub(self.free_inodes), self.free_inodes)
    }

    /// What the thresholds say about it.
    pub fn pressure(&self, thresholds: Thresholds) -> Pressure {
        let fuller = self.percent().max(self.inodes_percent());
        match fuller {
            _ if fuller >= f64::from(thresholds.critical) => Pressure::Critical,
            _ if fuller >= f64::from(thresholds.warning) => Pressure::Warning,
            _ => Pressure::None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share of bytes needs no more digits than that")]
fn share(used: u64, left: u64) -> f64 {
    if used == 0 { 0.0 } else { used as f64 * 100.0 / (used.saturating_add(left)) as f64 }
}

/// Looks at the volume from time to time.
pub(crate) struct Monitor {
    pub(crate) volume: PathBuf,
    pub(crate) store: Store,
    pub(crate) every: Duration,
    pub(crate) thresholds: Thresholds,
    /// How long what is over is kept, if not for ever.
    pub(crate) keep: Option<Duration>,
    pub(crate) metrics: Metrics,
    pub(crate) state: Dependency,
    /// Whether the ledger is there.
    pub(crate) of_ledger: Dependency,
    /// Whether anything is taken in.
    pub(crate) intake: watch::Sender<bool>,
}

impl Monitor {
    /// Looks until told to stop.
    pub(crate) async fn run(self, token: CancellationToken) -> Result<(), Infallible> {
        let (mut ticks, mut before, mut failing) = (interval(self.every), Pressure::None, false);
        let mut unusable = false;
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            let mut well = true;
            match Usage::of(&self.volume, self.store.path()) {
                Ok(usage) => {
                    failing = false;
                    let pressure = usage.pressure(self.thresholds);
                    self.metrics.stored(&usage, pressure);
                    self.tell(&usage, before, pressure);
                    before = pressure;
                }
                // A volume that cannot say how full it is takes everything; the ledger will say so if it is full.
                Err(error) => {
                    self.state.up();
                    self.takes_in(true);
                    before = Pressure::None;
                    well = false;
                    if !std::mem::replace(&mut failing, true) {
                        warn!(volume = %self.volume.display(), %error, "the volume does not say how full it is");
                    }
                }
            }
            let now = clock::now();
            let over = self.keep.map(|keep| now.checked_sub(keep).unwrap_or(Timestamp::MIN));
            let counts = self.store.read(move |connection| count(connection, over)).await;
            let counted = counts.map(|counts| self.count(counts, now));
            match self.store.check().await.and(counted) {
                Ok(()) => {
                    if std::mem::take(&mut unusable) {
                        info!("the ledger can be used again");
                        self.of_ledger.up();
                    }
                }
                Err(error) => {
                    well = false;
                    let (reason, hint) = (chain(&error), error.hint());
                    self.of_ledger.down(format!("{reason}; {hint}"));
                    if !std::mem::replace(&mut unusable, true) {
                        error!(error = reason, hint, "the ledger cannot be used");
                    }
                }
            }
            self.metrics.monitored(well);
        }
        Ok(())
    }

    fn tell(&self, usage: &Usage, before: Pressure, now: Pressure) {
        let Thresholds { warning, critical } = self.thresholds;
        let (used, inodes) = (usage.percent().round(), usage.inodes_percent().round());
        let volume = self.volume.display();
        if now == Pressure::Critical {
            let hint = "enlarge the volume, or remove what else is on it; delivery and cleaning go on";
            self.state.down(format!(
                "{used} % of {volume} and {inodes} % of its inodes are used: nothing more is taken in; {hint}"
            ));
            if before != now {
                error!(%volume, used, inodes, critical, hint, "the volume is nearly full, nothing more is taken in");
            }
        } else {
            self.state.up();
            if now == Pressure::Warning && before != now {
                warn!(%volume, used, inodes, warning, "the volume fills");
            } else if before != now {
                info!(%volume, used, inodes, "the volume has room again");
            }
        }
        self.takes_in(now != Pressure::Critical);
    }

    fn takes_in(&self, whether: bool) {
        self.intake.send_if_modified(|open| std::mem::replace(open, whether) != *open);
    }

    fn count(&self, Counts { episodes, dead, pending, eligible, oldest }: Counts, now: Timestamp) {
        self.metrics.over(eligible, oldest.and_then(|since| Duration::try_from(now.duration_since(since)).ok()));
        for (state, rows) in [("exists", episodes[0]), ("deleted", episodes[1])] {
            self.metrics.counted("managed_objects", state, rows);
        }
        self.metrics.counted("deliveries", "dead", dead);
        for (kind, counts) in pending {
            for (event_type, events) in ["created", "deleted"].into_iter().zip(counts) {
                self.metrics.waiting(kind.clone(), event_type, events);
            }
        }
    }
}

struct Counts {
    episodes: [i64; 2],
    dead: i64,
    /// Of each kind, the beginnings and ends that wait.
    pending: Vec<(String, [i64; 2])>,
    /// Episodes that may be removed.
    eligible: i64,
    /// Since when the oldest that is over has been over.
    oldest: Option<Timestamp>,
}

/// Counts; what was over before a time may be removed.
fn count(connection: &Connection, before: Option<Timestamp>) -> Result<Counts, Error> {
    let one = |sql: &str| connection.query_row(sql, [], |row| row.get(0));
    let episodes = [
        one("SELECT count(*) FROM episodes WHERE state = 'exists'")?,
        one("SELECT count(*) FROM episodes WHERE state = 'deleted'")?,
    ];
    let dead = one("SELECT count(*) FROM deliveries WHERE state = 'dead'")?;
    let pending = ledger::pending(connection)?;
    let eligible = before.map_or(Ok(0), |before| ledger::eligible(connection, before))?;
    let sql = "SELECT min(deleted_at) FROM episodes WHERE state = 'deleted'";
    let oldest: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
    let oldest = oldest.and_then(|millis| Timestamp::from_millisecond(millis).ok());
    Ok(Counts { episodes, dead, pending, eligible, oldest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_as_full_as_the_scarcer_of_bytes_and_inodes() {
        let thresholds = Thresholds { warning: 80, critical: 90 };
        let usage =
            |free, free_inodes| Usage { size: 100, free, available: free, inodes: 100, free_inodes, database: 0 };
        for (free, free_inodes, expected) in [
            (50, 50, Pressure::None),
            (21, 50, Pressure::None),
            (20, 50, Pressure::Warning),
            (50, 20, Pressure::Warning),
            (10, 50, Pressure::Critical),
            (50, 10, Pressure::Critical),
            (0, 100, Pressure::Critical),
        ] {
            assert_eq!(usage(free, free_inodes).pressure(thresholds), expected, "{free} {free_inodes}");
        }
        // Where there are no inodes to count, none is missing.
        assert_eq!(Usage { inodes: 0, free_inodes: 0, ..usage(50, 0) }.pressure(thresholds), Pressure::None);
        // What the superuser keeps is not left.
        assert_eq!(Usage { available: 5, ..usage(20, 50) }.pressure(thresholds), Pressure::Critical);
    }
}

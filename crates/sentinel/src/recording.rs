//! What the API said over time, on disk: written by `watchfire sentinel record` or by the service itself, read by
//! `watchfire sentinel simulate`.
//!
//! A recording is a folder of segments. A segment is gzip over lines of JSON, so that `zcat` shows it: a header, and
//! then, poll by poll, the pages in the order of the list. An item that is what it was is only counted, as part of a
//! run; one that changed is there as read, cut down to what decisions and payload read. What a whole poll does not
//! mention is gone. Every segment begins with the whole fleet and stands for itself, so that the oldest can go when the
//! folder has reached its size.
//!
//! The writer flushes after each poll, so a recording that is cut off is good up to its last poll, and the reader says
//! where it ends. The service also records what became of each event: times of confirmation are part of later event
//! ids, which is why a recording replays to the very same ids.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

mod kept;
mod reader;
mod recorder;
mod writer;

pub(crate) use kept::decides_by;
pub use kept::{Kept, PathError};
pub use reader::{Cut, Observed, Reader};
pub use recorder::Recorder;
pub use writer::{Scope, Writer};

/// The version of the format.
pub const VERSION: u64 = 1;

/// What segments are called, after their time.
const SUFFIX: &str = ".recording.gz";

/// The first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub watchfire_recording: u64,
    /// The plural, such as `clusters`.
    pub resource_type: String,
    /// Who recorded.
    pub by: By,
    /// Whether the process that recorded goes on from the segment before, its memory of own events included.
    pub continues: bool,
    /// When the segment begins.
    pub begun: Timestamp,
    /// From the beginning of one poll to the beginning of the next, in milliseconds.
    pub poll_millis: u64,
    /// What was listed, in Kubernetes syntax; nothing is everything.
    pub selector: Option<String>,
    /// The fields that were kept; nothing is all of them.
    pub fields: Option<BTreeSet<String>>,
    /// What was taken out, as it was named.
    pub redacted: Vec<String>,
}

/// Who records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A sentinel, with what became of its events.
    Sentinel,
    /// An onlooker, who publishes nothing.
    Onlooker,
}

/// Every other line of a segment.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    /// A page of the list: `[first, count]` for resources that are as they were, by the order in which they first
    /// appeared in the segment; the resource itself where it changed.
    Page {
        at: Timestamp,
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    },
    /// What became of an event.
    Event(Fate),
    /// The end of a poll; `whole` when the list was read to its end.
    End { at: Timestamp, whole: bool },
    /// Something could not be recorded here.
    Gap { at: Timestamp },
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fate {
    /// The event's id.
    pub id: String,
    /// The resource that it is about.
    pub resource: String,
    /// Why it was sent.
    pub reason: Cow<'static, str>,
    /// The generation it carried.
    pub generation: Option<i64>,
    /// When that was known.
    pub at: Timestamp,
    /// Why the broker did not take it in that cycle; nothing if it confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Why a recording can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder can't be made or looked into.
    #[error("open the folder of recordings {folder}")]
    Folder {
        /// The folder.
        folder: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A segment can't be written.
    #[error("write the recording {file}")]
    Write {
        /// The segment.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A segment can't be read.
    #[error("read the recording {file}")]
    Read {
        /// The segment.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// One list of the fleet does not fit.
    #[error("write the recording {file}: one list of the fleet is larger than {max} bytes")]
    TooSmall {
        /// The segment.
        file: String,
        /// What the recording may take.
        max: u64,
    },
    /// A folder without segments.
    #[error("find a recording in {folder}: no file there ends in .recording.gz")]
    Nothing {
        /// The folder.
        folder: String,
    },
    /// Segments in which no list was read to its end.
    #[error("use the recording {recording}: no whole list of the fleet is in it")]
    NoList {
        /// The folder or the segment.
        recording: String,
    },
    /// A segment whose header is not whole.
    #[error("read the recording {file}: it is empty, or cut off within its first line")]
    Empty {
        /// The segment.
        file: String,
    },
    /// Something else.
    #[error("read the recording {file}: it is no recording of a sentinel")]
    Foreign {
        /// The file.
        file: String,
    },
    /// Written by a newer build.
    #[error("read the recording {file}: it has version {version}, and this build knows {VERSION}")]
    Newer {
        /// The segment.
        file: String,
        /// Its version.
        version: u64,
    },
    /// Segments, or a configuration, of different resources.
    #[error("use the recording {file}: it is of {found}, not of {expected}")]
    Mixed {
        /// The segment.
        file: String,
        /// Its resources.
        found: String,
        /// The resources that were to be expected.
        expected: String,
    },
}

impl Error {
    /// What the operator can check or change.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Folder { .. } => "check that it is a folder, and that this user may read and write it",
            Self::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or lower --max-size; what was written so far can be used"
            }
            Self::Write { .. } => "check the volume and this user's rights; what was written so far can be used",
            Self::Read { .. } => "check the path, the volume and this user's rights",
            Self::TooSmall { .. } => "raise --max-size, or record fewer resources or fields",
            Self::Nothing { .. } => "name the folder that --output or --record named, or one file in it",
            Self::NoList { .. } => "record for at least as long as the API takes to be listed once",
            Self::Empty { .. } => "nothing was recorded yet, or the process ended at its start; record again",
            Self::Foreign { .. } => "name a file that ends in .recording.gz, as it was written",
            Self::Newer { .. } => "use the release that recorded it, or a later one",
            Self::Mixed { .. } => "keep a folder for each resource_type, and simulate with a configuration of the same",
        }
    }
}

/// Names a path in messages.
fn name(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;

//! Records beside the service, which never waits for it: what can't be kept is a gap.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::{error, info, warn};
use watchfire_runtime::chain;

use super::{Error, Fate, Writer};
use crate::page::Page;

/// What may wait for the disk: the outcomes of a few windows, and pages of so many bytes.
const WAITING: usize = 8192;
const WAITING_BYTES: usize = 32 * 1024 * 1024;

/// How long a stop waits for the disk.
const FAREWELL: Duration = Duration::from_secs(5);

/// A volume that is full is tried again so often.
const PAUSE: SignedDuration = SignedDuration::from_mins(1);

/// Hands what the service saw and did to the thread that writes it.
pub struct Recorder {
    notes: Option<SyncSender<Note>>,
    /// Closes when the thread has written everything.
    written: Mutex<Receiver<Infallible>>,
    /// The bytes of the pages that wait.
    waiting: Arc<AtomicUsize>,
    lost: AtomicBool,
}

enum Note {
    Page(Timestamp, Arc<Page>),
    Fate(Fate),
    End(Timestamp, bool),
    Gap(Timestamp),
}

impl Note {
    fn at(&self) -> Timestamp {
        match self {
            Self::Page(at, _) | Self::End(at, _) | Self::Gap(at) => *at,
            Self::Fate(fate) => fate.at,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Page(_, page) => page.bytes(),
            Self::Fate(_) | Self::End(..) | Self::Gap(_) => 0,
        }
    }
}

impl Recorder {
    /// Begins to write.
    pub fn start(writer: Writer) -> std::io::Result<Self> {
        let (notes, received) = sync_channel(WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let thread = thread::Builder::new().name("recording".to_owned());
        let (end, written) = sync_channel(0);
        thread.spawn({
            let waiting = Arc::clone(&waiting);
            move || {
                write(writer, &received, &waiting);
                drop(end);
            }
        })?;
        Ok(Self { notes: Some(notes), written: Mutex::new(written), waiting, lost: AtomicBool::new(false) })
    }

    /// A page that the service decides on at this time.
    pub(crate) fn page(&self, at: Timestamp, page: &Arc<Page>) {
        self.note(Note::Page(at, Arc::clone(page)));
    }

    /// What became of an event.
    pub(crate) fn fate(&self, fate: Fate) {
        self.note(Note::Fate(fate));
    }

    /// The end of a cycle.
    pub(crate) fn end(&self, at: Timestamp, whole: bool) {
        self.note(Note::End(at, whole));
    }

    fn note(&self, note: Note) {
        let Some(notes) = &self.notes else { return };
        if self.lost.load(Ordering::Relaxed) {
            // A gap is told before anything else; as long as that can't be, it grows.
            if notes.try_send(Note::Gap(note.at())).is_err() {
                return;
            }
            self.lost.store(false, Ordering::Relaxed);
        }
        let bytes = note.bytes();
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        // One page always fits, however large it is.
        let fits = before == 0 || before + bytes <= WAITING_BYTES;
        if fits && notes.try_send(note).is_ok() {
            return;
        }
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        if !self.lost.swap(true, Ordering::Relaxed) {
            warn!("the recording does not keep up, it has a gap");
        }
    }
}

impl Drop for Recorder {
    /// Writes what is left, so that a recording ends where the service did; a volume that hangs holds up no stop.
    fn drop(&mut self) {
        drop(self.notes.take());
        let written = self.written.get_mut().unwrap_or_else(PoisonError::into_inner);
        if written.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            warn!("the recording's volume does not take what is left in time, leaving it");
        }
    }
}

fn write(mut writer: Writer, notes: &Receiver<Note>, waiting: &AtomicUsize) {
    // Since when nothing can be written; it goes on at the beginning of a poll.
    let mut failing: Option<Timestamp> = None;
    for note in notes {
        let (at, is_end) = (note.at(), matches!(note, Note::End(..)));
        waiting.fetch_sub(note.bytes(), Ordering::Relaxed);
        if let Some(since) = failing {
            // The clock may have been set back: until it has caught up would be any time.
            if is_end && (at < since || at.duration_since(since) >= PAUSE) {
                failing = writer.gap(at).err().map(|_| at);
                if failing.is_none() {
                    info!("the recording goes on");
                }
            }
            continue;
        }
        let written = match note {
            Note::Page(at, page) => writer.page(at, page.items()),
            Note::Fate(fate) => writer.fate(fate),
            Note::End(at, whole) => writer.end(at, whole),
            Note::Gap(at) => writer.gap(at),
        };
        if let Err(error) = written {
            tell(&error);
            failing = Some(at);
        }
    }
    if let Err(error) = writer.close() {
        tell(&error);
    }
}

fn tell(error: &Error) {
    error!(error = %chain(error), hint = error.hint(), "cannot record, trying again every minute; the service goes on");
}

//! The one file of a process: what must not be lost is committed here before anything else happens.
//!
//! One thread owns the writing connection. A caller hands it a closure, and gets its result once the closure's rows
//! are on the disk. Commits are grouped without a timer: a commit takes what queued up during the one before, up to
//! [`COMMIT_ROWS`]. Each closure but the first is a savepoint: an error takes back its own rows, and nobody else's. A
//! second thread reads, and sees what is committed only.
//!
//! Intake stops while the volume has less than the floor free ([`Tx::admit`]), so that there is always room to note
//! what was delivered.

mod open;

use std::any::Any;
use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

pub use rusqlite::Connection;
use rusqlite::{ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot, watch};

use crate::metrics::StoreMetrics;

use open::identity;
pub use open::{Damaged, Module, Options, open_beside, write_beside};

/// Rows after which a commit takes no further closure. A thousand rows take 4 ms to commit, and everyone waits for it.
pub const COMMIT_ROWS: u64 = 500;
/// Closures that may wait for the owner thread; more of them make their callers wait. Two full commits of single rows.
const QUEUE: usize = 1_024;

/// What to do about a damaged file.
const DAMAGED: &str =
    "put a copy of it back that is whole; or move it and its .lock aside, and everything is begun anew, and told again";

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A statement failed.
    #[error("use the store")]
    Sqlite(#[from] rusqlite::Error),
    /// The rows could not be committed; nothing of them is kept.
    #[error("commit to the store")]
    Commit(#[source] Arc<rusqlite::Error>),
    /// The volume is nearly full, and what is left is kept for the marks of what was delivered.
    #[error("take an event in: {free} bytes are free on the store's volume, and {floor} are kept")]
    Full {
        /// Bytes free.
        free: u64,
        /// Bytes that intake leaves alone.
        floor: u64,
    },
    /// The file at the store's path is not the one that was opened: whatever is written now is gone with the process.
    #[error("use the store {}: its file was deleted or replaced while it was open", .0.display())]
    Gone(PathBuf),
    /// The store is closed, or its thread has ended.
    #[error("use the store: it is closed")]
    Closed,
    /// A closure panicked; its rows are taken back.
    #[error("use the store: a transaction panicked: {0}")]
    Panicked(String),
    /// A file or folder could not be used.
    #[error("open the store: {action} {}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the store open.
    #[error("open the store {}: another service has it open", .0.display())]
    Locked(PathBuf),
    /// A newer version of the product wrote the file; it is left untouched.
    #[error("open the store {}: its {module} has version {found}, and this build knows {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        module: String,
        /// The version in the file.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The file is no store, but another program's: a database or anything else; it is left untouched.
    #[error("open the store {}: it is a file of another program", .0.display())]
    Foreign(PathBuf),
    /// A folder, a device or a pipe.
    #[error("open the store {}: it is no regular file", .0.display())]
    NoFile(PathBuf),
    /// The file has further names: SQLite's log stands beside each, and two services would find the file free.
    #[error("open the store {}: the file has {names} names (hard links)", path.display())]
    Linked {
        /// One of the names.
        path: PathBuf,
        /// How many there are.
        names: u64,
    },
    /// The file is damaged, and what it knew cannot be made up.
    #[error("open the store {}: it is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite found.
        #[source]
        source: rusqlite::Error,
    },
    /// There was a store, and what it knew cannot be made up.
    #[error("open the store {}: it was here, and is missing or empty now", .0.display())]
    Emptied(PathBuf),
    /// Whoever opens the store now takes it to be free.
    #[error("use the store {}: its lock file was removed", .0.display())]
    Unlocked(PathBuf),
    /// Another service made the file for itself.
    #[error("open the store {}: it is another service's", .0.display())]
    OfAnother(PathBuf),
    /// A tool was to open a store that is not there.
    #[error("open the store {}: there is no such file", .0.display())]
    Missing(PathBuf),
}

impl Error {
    /// What the operator can check or change.
    pub fn hint(&self) -> &'static str {
        match self {
            _ if self.is_busy() => {
                "another program keeps the store busy, such as a backup or a tool: it goes on when that has ended"
            }
            Self::Sqlite(_) | Self::Commit(_) if self.kind() == "corrupt" => DAMAGED,
            Self::Sqlite(_) | Self::Commit(_) => "check the disk, its free space and the permissions of the folder",
            Self::Full { .. } => "free space on the volume or enlarge it; deliveries go on and make room by themselves",
            Self::Gone(_) => {
                "restart the service, which makes the file anew; what it had not delivered is lost unless the file is put \
                 back first"
            }
            Self::Closed => "the process is stopping; if it is not, look for an earlier error of the store",
            Self::Panicked(_) => "this is a defect: report it with the log",
            Self::File { .. } => "check that the folder exists and that this user may write to it",
            Self::Locked(_) => "stop the other process, or give each its own file",
            Self::Newer { .. } => "run the newer version again, or give this one its own file",
            Self::NoFile(_) => "name a file; it is made where there is none",
            Self::Foreign(_) => "choose another path for the store",
            Self::Linked { .. } => "remove the other names; a copy is a store of its own, a second name is not",
            Self::Damaged { .. } => DAMAGED,
            Self::Emptied(_) => "put a copy of it back; to begin anew, remove the file that ends in .lock, too",
            Self::Unlocked(_) => {
                "stop whatever else has opened the store since, and restart the service; the file that ends in .lock stays"
            }
            Self::OfAnother(_) => "give each service a file of its own",
            Self::Missing(_) => {
                "check the path; it is the one that the service has, by BROKER_HTTP_STORE or storage.dbPath"
            }
        }
    }

    /// Whether it only was not our turn in time.
    fn is_busy(&self) -> bool {
        self.code() == Some(ErrorCode::DatabaseBusy)
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sqlite(cause) => cause.sqlite_error_code(),
            Self::Commit(cause) => cause.sqlite_error_code(),
            _ => None,
        }
    }

    /// The name in metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match (self, self.code()) {
            (Self::Full { .. }, _) | (_, Some(ErrorCode::DiskFull)) => "full",
            (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => "busy",
            (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) => "corrupt",
            (Self::Gone(_) | Self::Unlocked(_), _)
            | (_, Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly)) => "io",
            _ => "other",
        }
    }
}

/// The open store. Clones share it; [`Store::close`] ends it for all of them.
#[derive(Clone)]
pub struct Store {
    writer: mpsc::Sender<Job>,
    reader: mpsc::Sender<Job>,
    wake: watch::Receiver<u64>,
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    folder: PathBuf,
    /// Device and number of the file that is open.
    identity: (u64, u64),
    /// The lock, and the same of it.
    lock: (PathBuf, (u64, u64)),
    floor: u64,
    metrics: StoreMetrics,
}

impl Store {
    /// Opens or creates the file, with the tables of `modules`. Blocks while it checks the file.
    ///
    /// A store that is damaged is moved aside and told in the log, unless the options say otherwise; a newer or foreign
    /// file is an error, and untouched.
    pub fn open(path: &Path, modules: &[Module], options: Options) -> Result<Self, Error> {
        let file = open::open(path, modules, options.damaged)?;
        let (wake_sender, wake) = watch::channel(0);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            folder: file.folder,
            identity: file.identity,
            lock: file.lock_identity,
            floor: options.floor,
            metrics: options.metrics,
        });
        let owner = Owner { shared: Arc::clone(&shared), wake: wake_sender };
        let (writer, jobs) = mpsc::channel(QUEUE);
        let (connection, lock) = (file.writer, file.lock);
        start("store-writer", path, move || {
            let closing = owner.write_all(connection, jobs);
            drop(lock);
            drop(closing); // Last, so that whoever waits for it finds a file at rest.
        })?;
        let (reader, jobs) = mpsc::channel(QUEUE);
        let connection = file.reader;
        start("store-reader", path, move || drop(read_all(connection, jobs)))?;
        Ok(Self { writer, reader, wake, shared })
    }

    /// Runs `work` in a transaction of the owner thread, and returns once its rows are on the disk.
    ///
    /// An error of `work` takes back its rows. Dropping the future does not stop work that is queued.
    pub async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.operate("write", submit(&self.writer, work)).await
    }

    /// Runs `work` on the reading connection, which sees what is committed.
    pub async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.operate("read", submit(&self.reader, move |tx: &Tx<'_>| work(tx))).await
    }

    async fn operate<T>(&self, name: &'static str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let begun = Instant::now();
        let done = work.await;
        self.shared.metrics.operated(name, done.as_ref().err(), begun.elapsed());
        done
    }

    /// A receiver that changes whenever a commit brought something to deliver.
    pub fn wake(&self) -> watch::Receiver<u64> {
        self.wake.clone()
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Gives up to `pages` unused pages back to the volume, if more than a quarter of the file is unused: less than
    /// that is used again soon. Returns how many pages went.
    pub async fn vacuum(&self, pages: u32) -> Result<u32, Error> {
        self.write(move |tx| {
            let number = |pragma| tx.pragma_query_value(None, pragma, |row| row.get::<_, u32>(0));
            if number("freelist_count")? <= number("page_count")? / 4 {
                return Ok(0);
            }
            // Each step of the statement frees one page.
            let mut statement = tx.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
            let mut rows = statement.query([])?;
            let mut freed = 0;
            while rows.next()?.is_some() {
                freed += 1;
            }
            Ok(freed)
        })
        .await
    }

    /// A number that is another one after someone else, such as a command-line tool, has changed the file; what is
    /// written through this store leaves it as it is.
    pub async fn changes_by_others(&self) -> Result<i64, Error> {
        let (sender, receiver) = oneshot::channel();
        self.writer.send(Job::Version(sender)).await.map_err(|_| Error::Closed)?;
        Ok(receiver.await.map_err(|_| Error::Closed)??)
    }

    /// Checks that the store answers and takes events in.
    pub async fn check(&self) -> Result<(), Error> {
        self.shared.admit()?;
        self.read(|connection| Ok(connection.query_row("SELECT 1", [], |_| Ok(()))?)).await
    }

    /// Commits what is queued, folds the log into the file, and releases the lock. Idempotent.
    pub async fn close(&self) {
        for thread in [&self.reader, &self.writer] {
            let (done, ended) = oneshot::channel();
            if thread.send(Job::Close(done)).await.is_ok() {
                // The thread drops its side when it has ended, so the error is the good news.
                ended.await.ok();
            }
        }
    }
}

impl Shared {
    fn admit(&self) -> Result<(), Error> {
        if !identity(&self.path).is_ok_and(|found| found == self.identity) {
            return Err(Error::Gone(self.path.clone()));
        }
        let (lock, ours) = &self.lock;
        if !identity(lock).is_ok_and(|found| found == *ours) {
            return Err(Error::Unlocked(self.path.clone()));
        }
        // A volume that cannot say how full it is takes everything; SQLite will say so if it is.
        let Ok(volume) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = volume.f_bavail.saturating_mul(volume.f_frsize);
        if free < self.floor { Err(Error::Full { free, floor: self.floor }) } else { Ok(()) }
    }
}

/// What a closure works with: the connection inside its savepoint.
pub struct Tx<'c> {
    connection: &'c Connection,
    shared: Option<&'c Shared>,
    wakes: Cell<bool>,
}

impl<'c> Tx<'c> {
    /// Wraps a connection that is not the store's own: that of a command-line tool.
    pub fn over(connection: &'c Connection) -> Self {
        Self { connection, shared: None, wakes: Cell::new(false) }
    }

    /// Fails while the volume is nearly full or the file is gone. Whoever takes something in asks; whoever settles does
    /// not.
    pub fn admit(&self) -> Result<(), Error> {
        self.shared.map_or(Ok(()), Shared::admit)
    }

    /// Wakes those who deliver, once this is committed.
    pub fn wake(&self) {
        self.wakes.set(true);
    }
}

impl Deref for Tx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

type Work = Box<dyn FnOnce(Result<&Tx<'_>, Error>) -> Option<Reply> + Send>;
/// Tells a caller how it went, once that is known; the argument is the commit's own error.
type Reply = Box<dyn FnOnce(Result<(), Error>) + Send>;

enum Job {
    Work(Work),
    /// Only the writing connection can tell the changes of others from its own.
    Version(oneshot::Sender<rusqlite::Result<i64>>),
    Close(oneshot::Sender<()>),
}

async fn submit<T, F>(thread: &mpsc::Sender<Job>, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce(&Tx<'_>) -> Result<T, Error> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    // A caller that has gone away does not need the answer: every `send` below may fail.
    let work: Work = Box::new(move |tx| {
        let outcome = tx.and_then(|tx| {
            catch_unwind(AssertUnwindSafe(|| work(tx))).unwrap_or_else(|payload| Err(Error::Panicked(text(&*payload))))
        });
        match outcome {
            Ok(value) => Some(Box::new(move |committed: Result<(), Error>| {
                sender.send(committed.map(|()| value)).ok();
            })),
            Err(error) => {
                sender.send(Err(error)).ok();
                None
            }
        }
    });
    thread.send(Job::Work(work)).await.map_err(|_| Error::Closed)?;
    receiver.await.unwrap_or(Err(Error::Closed))
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn start(name: &'static str, path: &Path, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let file = |source| Error::File { action: "start a thread for", path: path.to_owned(), source };
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(file)
}

struct Owner {
    shared: Arc<Shared>,
    wake: watch::Sender<u64>,
}

impl Owner {
    fn write_all(&self, mut connection: Connection, mut jobs: mpsc::Receiver<Job>) -> Option<oneshot::Sender<()>> {
        let mut closing = None;
        while closing.is_none() {
            match jobs.blocking_recv() {
                Some(Job::Work(work)) => closing = self.commit(&mut connection, work, &mut jobs),
                Some(Job::Version(reply)) => tell_version(&connection, reply),
                Some(Job::Close(done)) => closing = Some(done),
                None => break,
            }
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            if let Job::Work(work) = job {
                work(Err(Error::Closed));
            }
        }
        if let Err((_, error)) = connection.close() {
            tracing::warn!(%error, "store not closed cleanly, it will recover at the next start");
        }
        closing
    }

    /// Commits `first` and what queued up behind it. Returns the request to close, if that is what came next.
    fn commit(
        &self,
        connection: &mut Connection,
        first: Work,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Option<oneshot::Sender<()>> {
        let started = Instant::now();
        let mut transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(transaction) => transaction,
            Err(error) => {
                first(Err(error.into()));
                return None;
            }
        };
        let before = transaction.total_changes();
        // The first needs no savepoint: there is nothing before it to keep, and a transaction that is dropped is taken
        // back.
        let tx = Tx { connection: &transaction, shared: Some(&self.shared), wakes: Cell::new(false) };
        let reply = first(Ok(&tx))?;
        let (mut replies, mut wakes, mut closing) = (vec![reply], tx.wakes.get(), None);
        let mut next = None;
        loop {
            if let Some(work) = next
                && let Some((reply, woken)) = self.perform(&mut transaction, work)
            {
                wakes |= woken;
                replies.push(reply);
            }
            // A full disk makes SQLite end the whole transaction by itself; what comes next must not start another.
            if transaction.is_autocommit() || transaction.total_changes() - before >= COMMIT_ROWS {
                break;
            }
            next = match jobs.try_recv() {
                Ok(Job::Work(work)) => Some(work),
                Ok(Job::Version(reply)) => {
                    // Nobody else changes anything meanwhile; whoever waits asks again in a moment.
                    tell_version(&transaction, reply);
                    None
                }
                Ok(Job::Close(done)) => {
                    closing = Some(done);
                    None
                }
                Err(_) => None,
            };
            if next.is_none() {
                break;
            }
        }
        let rows = transaction.total_changes() - before;
        let committed = transaction.commit().map_err(Arc::new);
        if committed.is_ok() {
            self.shared.metrics.committed(rows, started.elapsed());
            if wakes {
                self.wake.send_modify(|commits| *commits += 1);
            }
        }
        for reply in replies {
            reply(committed.clone().map_err(Error::Commit));
        }
        closing
    }

    /// Does one caller's work in its savepoint. Returns how to tell the caller what becomes of the commit, and whether
    /// those who deliver are to be woken by it; nothing if the caller was told of an error already.
    fn perform(&self, transaction: &mut Transaction<'_>, work: Work) -> Option<(Reply, bool)> {
        let savepoint = match transaction.savepoint() {
            Ok(savepoint) => savepoint,
            Err(error) => {
                drop(work(Err(error.into())));
                return None;
            }
        };
        let tx = Tx { connection: &savepoint, shared: Some(&self.shared), wakes: Cell::new(false) };
        let reply = work(Ok(&tx))?;
        let woken = tx.wakes.get();
        match savepoint.commit() {
            Ok(()) => Some((reply, woken)),
            Err(error) => {
                reply(Err(error.into()));
                None
            }
        }
    }
}

fn tell_version(connection: &Connection, reply: oneshot::Sender<rusqlite::Result<i64>>) {
    // Whoever asked may be gone.
    reply.send(connection.pragma_query_value(None, "data_version", |row| row.get(0))).ok();
}

fn read_all(connection: Connection, mut jobs: mpsc::Receiver<Job>) -> Option<oneshot::Sender<()>> {
    while let Some(job) = jobs.blocking_recv() {
        match job {
            Job::Work(work) => {
                if let Some(reply) = work(Ok(&Tx::over(&connection))) {
                    reply(Ok(()));
                }
            }
            Job::Version(reply) => tell_version(&connection, reply),
            Job::Close(done) => {
                drop(connection);
                return Some(done);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;

//! Opening the file: whose it is, whether it is whole, which version it has, and only then writing to it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior};

use super::{Error, Tx};
use crate::metrics::StoreMetrics;

/// Marks the file as ours: `WFIR`.
const APPLICATION_ID: u32 = 0x5746_4952;
/// The version of the file's own layout, kept in `user_version`; each module has its version in table `modules`.
const LAYOUT: u32 = 1;
/// What SQLite calls `auto_vacuum = INCREMENTAL`.
const INCREMENTAL: u32 = 2;
/// Bytes that intake leaves free on the volume: a write-ahead log and a day of marks fit in it.
const FLOOR: u64 = 64 << 20;
/// How long a statement waits for a command-line tool's short transaction.
const BUSY: Duration = Duration::from_secs(5);

/// A group of tables with its own version, such as the outbox: migration `i` leads to version `i + 1`.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// The name under which the version is kept.
    pub name: &'static str,
    /// One script per version; what was released never changes.
    pub migrations: &'static [&'static str],
}

/// How the store behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that intake leaves free on the volume.
    pub floor: u64,
    /// Where commits are counted.
    pub metrics: StoreMetrics,
    /// What becomes of a file that is damaged.
    pub damaged: Damaged,
}

/// What becomes of a file that is damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Damaged {
    /// It is moved aside, which is told, and the store begins empty.
    #[default]
    MoveAside,
    /// The store is not opened: an empty one would be taken for what is known. Nor does it begin empty where one was
    /// before, or in a folder that is not there, such as one on a volume that is not mounted.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self { floor: FLOOR, metrics: StoreMetrics::default(), damaged: Damaged::default() }
    }
}

pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) lock: File,
    pub(super) lock_identity: (PathBuf, (u64, u64)),
    pub(super) folder: PathBuf,
    pub(super) identity: (u64, u64),
}

pub(super) fn open(path: &Path, modules: &[Module], damaged: Damaged) -> Result<Opened, Error> {
    // Of a link that leads nowhere yet, the lock would stand beside the link, and later beside the file.
    if fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink()) && !path.exists() {
        private().open(path).map_err(file("create", path))?;
    }
    let path = &itself(path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    if damaged == Damaged::MoveAside {
        fs::create_dir_all(&folder).map_err(file("create folder", &folder))?;
    }
    refuse_by_header(path)?;
    let lock = lock(path)?;
    let of_lock = beside(path, ".lock");
    let about = lock.metadata().map_err(file("look at", &of_lock))?;
    let lock_identity = (of_lock, (about.dev(), about.ino()));
    let was_here = about.len() > 0;
    if damaged == Damaged::Refuse && was_here && fs::metadata(path).map_or(0, |it| it.len()) == 0 {
        return Err(Error::Emptied(path.clone()));
    }
    let mut writer = match open_writer(path, modules) {
        Err(Error::Sqlite(source)) if is_damage(&source) && damaged == Damaged::Refuse => {
            return Err(Error::Damaged { path: path.clone(), source });
        }
        Err(Error::Sqlite(error)) if is_damage(&error) => {
            let aside = move_aside(path)?;
            tracing::error!(
                path = %path.display(), aside = %aside.display(), %error,
                "store is damaged, moved aside and started empty: what it had not delivered is in that file"
            );
            open_writer(path, modules)?
        }
        other => other?,
    };
    refuse_others(&writer, path, modules)?;
    migrate(&mut writer, modules)?;
    let reader = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    if !was_here {
        // Where the volume is full, the next start writes it.
        (&lock).write_all(b"in use\n").ok();
    }
    let identity = identity(path).map_err(file("look at", path))?;
    Ok(Opened { writer, reader, lock, lock_identity, folder, identity })
}

/// Opens the store for a command-line tool, which works beside the service: no lock, nothing created or changed.
///
/// The tool keeps its transactions immediate and short, since the service waits for them; with
/// [`Tx::over`](super::Tx::over) the outbox's functions take part in them.
pub fn open_beside(path: &Path, modules: &[Module]) -> Result<Connection, Error> {
    let path = &itself(path)?;
    if !path.exists() {
        return Err(Error::Missing(path.clone()));
    }
    refuse_by_header(path)?;
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    refuse_newer(&connection, path, modules)?;
    Ok(connection)
}

/// The file that a path leads to, over whatever links: the lock stands beside it. A device or a pipe is no store, and
/// is not even opened; nor is a file with several names, which SQLite would give a log for each.
fn itself(path: &Path) -> Result<PathBuf, Error> {
    // Where it cannot be found out, opening says why. Absolute: SQLite takes some names, such as `:memory:`, for no
    // file.
    let Ok(found) = fs::canonicalize(path) else { return Ok(absolute(path).unwrap_or_else(|_| path.to_owned())) };
    let about = fs::metadata(&found).map_err(file("look at", path))?;
    match about.nlink() {
        _ if !about.is_file() => Err(Error::NoFile(path.to_owned())),
        // There are file systems that count none.
        0 | 1 => Ok(found),
        names => Err(Error::Linked { path: path.to_owned(), names }),
    }
}

/// Does a tool's work in one short transaction that takes its turn at once; an error undoes it.
pub fn write_beside<T>(connection: &Connection, work: impl FnOnce(&Tx<'_>) -> Result<T, Error>) -> Result<T, Error> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let value = work(&Tx::over(&transaction))?;
    transaction.commit()?;
    Ok(value)
}

fn open_writer(path: &Path, modules: &[Module]) -> Result<Connection, Error> {
    create_private(path)?;
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Until its version is known the file stays as it is, so closing must not fold the log into it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    refuse_newer(&connection, path, modules)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(code, Some(verdict)).into());
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    // The order matters: once the file is in WAL mode, auto_vacuum cannot be turned on.
    // Setting it writes, also where it is what it was.
    if connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, u32>(0))? != INCREMENTAL {
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    // A log that grew during a burst is cut back at the next checkpoint, which comes after 16 MiB: what is written
    // again and again until then is copied into the file once.
    connection.query_row("PRAGMA journal_size_limit = 16777216", [], |_| Ok(()))?;
    connection.query_row("PRAGMA wal_autocheckpoint = 4096", [], |_| Ok(()))?;
    // What a savepoint keeps to take its rows back would be a file of its own, made and removed with each.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

fn connect(path: &Path, access: OpenFlags) -> Result<Connection, Error> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// The lock is a file of its own, since SQLite's locks come and go with each transaction.
fn lock(path: &Path) -> Result<File, Error> {
    let name = beside(path, ".lock");
    let lock = private().open(&name).map_err(file("create lock file", &name))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Locked(path.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(file("lock", &name)(source)),
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

/// SQLite gives its log the permissions that the file has.
fn create_private(path: &Path) -> Result<(), Error> {
    let created = private().open(path).map_err(file("create", path))?;
    created.set_permissions(fs::Permissions::from_mode(0o600)).map_err(file("restrict access to", path))
}

/// Reads whose the file is, and its versions, out of its first 100 bytes: without SQLite, which would create its log
/// beside it, and before the lock is there. Where the header does not say that the file is ours, only what an earlier
/// run left beside it does: the lock, or a log that is not folded into it yet.
fn refuse_by_header(path: &Path) -> Result<(), Error> {
    let mut header = Vec::new();
    match File::open(path).and_then(|file| file.take(100).read_to_end(&mut header)) {
        Ok(0) => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(file("read", path)(source)),
    }
    let number = |at: usize| header.iter().skip(at).take(4).fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
    let is_database = header.len() == 100 && header.starts_with(b"SQLite format 3\0");
    let says_so = is_database && number(68) == APPLICATION_ID;
    if !says_so && ![".lock", "-wal"].iter().any(|suffix| beside(path, suffix).exists()) {
        return Err(Error::Foreign(path.to_owned()));
    }
    if !is_database {
        return Ok(()); // Damaged, which SQLite will say.
    }
    refuse(path, number(60), number(68))
}

fn refuse(path: &Path, version: u32, application: u32) -> Result<(), Error> {
    if application != APPLICATION_ID && (application, version) != (0, 0) {
        return Err(Error::Foreign(path.to_owned()));
    }
    if version > LAYOUT {
        let module = "layout".to_owned();
        return Err(Error::Newer { path: path.to_owned(), module, found: version, known: LAYOUT });
    }
    Ok(())
}

fn refuse_newer(connection: &Connection, path: &Path, modules: &[Module]) -> Result<(), Error> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, u32>(0));
    refuse(path, number("user_version")?, number("application_id")?)?;
    let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(());
    }
    if number("application_id")? != APPLICATION_ID {
        return Err(Error::Foreign(path.to_owned()));
    }
    for module in modules {
        let (found, known) = (version_of(connection, module)?, known(module));
        if found > known {
            return Err(Error::Newer { path: path.to_owned(), module: module.name.to_owned(), found, known });
        }
    }
    Ok(())
}

/// A service whose tables are not asked for made the file for itself; tools look into any.
fn refuse_others(connection: &Connection, path: &Path, modules: &[Module]) -> Result<(), Error> {
    let tables: u32 =
        connection.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'modules'", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(());
    }
    let mut statement = connection.prepare("SELECT name FROM modules")?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let known = |name: &String| modules.iter().any(|module| module.name == name);
    if names.iter().all(known) { Ok(()) } else { Err(Error::OfAnother(path.to_owned())) }
}

fn version_of(connection: &Connection, module: &Module) -> rusqlite::Result<u32> {
    let sql = "SELECT version FROM modules WHERE name = ?1";
    Ok(connection.query_row(sql, [module.name], |row| row.get(0)).optional()?.unwrap_or_default())
}

fn known(module: &Module) -> u32 {
    u32::try_from(module.migrations.len()).unwrap_or(u32::MAX)
}

/// Brings the file to the versions known here; of one that has them, not a byte is changed, since the volume may be
/// full.
fn migrate(connection: &mut Connection, modules: &[Module]) -> Result<(), Error> {
    if is_current(connection, modules)? {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", LAYOUT)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS modules (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    )?;
    for module in modules {
        let done = usize::try_from(version_of(&transaction, module)?).unwrap_or(usize::MAX);
        for script in module.migrations.iter().skip(done) {
            transaction.execute_batch(script)?;
        }
        let sql = "INSERT INTO modules VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET version = excluded.version";
        transaction.execute(sql, (module.name, known(module)))?;
    }
    transaction.commit().map_err(Error::from)
}

fn is_current(connection: &Connection, modules: &[Module]) -> Result<bool, Error> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, u32>(0));
    if (number("application_id")?, number("user_version")?) != (APPLICATION_ID, LAYOUT) {
        return Ok(false);
    }
    for module in modules {
        if version_of(connection, module)? != known(module) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tells the file at this path from any other: its device and its number there.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let mut number = 1;
    let aside = loop {
        let candidate = beside(path, &format!(".corrupt-{number}"));
        if !candidate.exists() {
            break candidate;
        }
        number += 1;
    };
    for suffix in ["", "-wal", "-shm"] {
        let from = beside(path, suffix);
        match fs::rename(&from, beside(&aside, suffix)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(file("move aside", &from)(source)),
            _ => {}
        }
    }
    Ok(aside)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { action, path, source }
}

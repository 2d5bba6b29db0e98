//! Secrets from the environment or from files that are read again when they change.
//!
//! A file is looked at each time its secret is asked for, so a rotated token is used at once and one that was deleted
//! is an error, never yesterday's value. What it costs when nothing changed is one `stat`, which on the memory file
//! systems that hold secrets never waits; so there is no task, no watch, and it may be called from async code.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use secrecy::{ExposeSecret, SecretString};

use crate::clock;
use crate::file::open_regular;

/// A token is a few KiB; a path that was mistyped may lead to anything.
const MAX_SECRET_BYTES: u64 = 64 * 1024;
/// A file changed this shortly before it was read may change again without a new time stamp: it is read once more.
const TIMESTAMP_GRANULARITY_SECONDS: i64 = 1;

/// Where a secret comes from; clones share what was read.
#[derive(Clone)]
pub struct SecretSource(Kind);

#[derive(Clone)]
enum Kind {
    Literal(SecretString),
    File { path: PathBuf, last: Arc<Mutex<Option<Reading>>> },
}

/// A file's content, and what the file looked like when it was read.
struct Reading {
    stamp: Stamp,
    settled: bool,
    secret: SecretString,
}

/// What changes when a file is replaced, rewritten, or the link to it is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Why a secret is not to be had; names the file, never its content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("read secret file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file holds nothing but white space.
    #[error("secret file {} is empty", .0.display())]
    Empty(PathBuf),
    /// The file is no secret.
    #[error("secret file {} is larger than 64 KiB, is the path right?", .0.display())]
    TooLarge(PathBuf),
}

/// The same source: the same secret, or the same file, whatever it holds.
impl PartialEq for SecretSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Literal(ours), Kind::Literal(theirs)) => ours.expose_secret() == theirs.expose_secret(),
            (Kind::File { path: ours, .. }, Kind::File { path: theirs, .. }) => ours == theirs,
            (Kind::Literal(_), Kind::File { .. }) | (Kind::File { .. }, Kind::Literal(_)) => false,
        }
    }
}

impl SecretSource {
    /// A secret that is known and stays the same: from the environment.
    pub fn literal(secret: impl Into<SecretString>) -> Self {
        Self(Kind::Literal(secret.into()))
    }

    /// A secret in a file; the file need not be there yet.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kind::File { path: path.into(), last: Arc::default() })
    }

    /// Whether it may be another one later.
    pub fn is_file(&self) -> bool {
        matches!(self.0, Kind::File { .. })
    }

    /// Returns the secret as it is at this moment, without the white space around it.
    pub fn current(&self) -> Result<SecretString, Error> {
        match &self.0 {
            Kind::Literal(secret) => Ok(secret.clone()),
            Kind::File { path, last } => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(reading) = last.as_ref().filter(|reading| reading.settled)
                    && std::fs::metadata(path).is_ok_and(|file| Stamp::from(&file) == reading.stamp)
                {
                    return Ok(reading.secret.clone());
                }
                *last = None;
                Ok(last.insert(read(path)?).secret.clone())
            }
        }
    }
}

fn read(path: &Path) -> Result<Reading, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = open_regular(path).map_err(failed)?;
    // The open file's own stamp, not the path's: the link may move between two looks.
    let metadata = file.metadata().map_err(failed)?;
    let mut text = String::new();
    if (&mut file).take(MAX_SECRET_BYTES + 1).read_to_string(&mut text).map_err(failed)? as u64 > MAX_SECRET_BYTES {
        return Err(Error::TooLarge(path.to_owned()));
    }
    let secret = SecretString::from(text.trim());
    drop(secrecy::SecretString::from(text));
    if secret.expose_secret().is_empty() {
        return Err(Error::Empty(path.to_owned()));
    }
    let settled = clock::now().as_second() - metadata.mtime() > TIMESTAMP_GRANULARITY_SECONDS;
    Ok(Reading { stamp: Stamp::from(&metadata), settled, secret })
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Literal(_) => f.write_str("SecretSource(<redacted>)"),
            Kind::File { path, .. } => write!(f, "SecretSource({})", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use secrecy::ExposeSecret;

    use super::*;

    fn now(source: &SecretSource) -> String {
        source.current().unwrap().expose_secret().to_owned()
    }

    /// Sets the file's time of change back, so that its reading counts as settled.
    fn age(path: &Path) {
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }

    #[test]
    fn a_literal_is_returned_as_it_is() {
        assert_eq!(now(&SecretSource::literal("token".to_owned())), "token");
    }

    #[test]
    fn white_space_around_a_secret_is_not_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "  tok en\r\n").unwrap();
        assert_eq!(now(&SecretSource::file(dir.path().join("token"))), "tok en");
    }

    #[test]
    fn a_rewritten_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let source = SecretSource::file(&path);
        for secret in ["first", "other", "third"] {
            fs::write(&path, secret).unwrap();
            assert_eq!(now(&source), secret);
            let SecretSource(Kind::File { last, .. }) = &source else { panic!("a file") };
            assert!(!last.lock().unwrap().as_ref().unwrap().settled, "the next change may bear the same time stamp");
        }
        age(&path);
        assert_eq!(now(&source), "third");
        fs::write(&path, "later").unwrap();
        assert_eq!(now(&source), "later");
    }

    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "first").unwrap();
        age(&path);
        let source = SecretSource::file(&path);
        assert_eq!(now(&source), "first");
        let SecretSource(Kind::File { last, .. }) = &source else { panic!("a file") };
        last.lock().unwrap().as_mut().unwrap().secret = "kept".into();
        assert_eq!(now(&source), "kept");
    }

    #[test]
    fn the_link_swap_of_a_projected_token_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let version = |name: &str, secret: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("token"), secret).unwrap();
            age(&dir.path().join(name).join("token"));
            symlink(name, dir.path().join("..data_tmp")).unwrap();
            fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        };
        version("..2026_1", "first");
        symlink("..data/token", dir.path().join("token")).unwrap();
        let source = SecretSource::file(dir.path().join("token"));
        assert_eq!(now(&source), "first");
        version("..2026_2", "other");
        fs::remove_dir_all(dir.path().join("..2026_1")).unwrap();
        assert_eq!(now(&source), "other");
    }

    #[test]
    fn a_deleted_file_is_an_error_each_time_and_heals_when_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let source = SecretSource::file(&path);
        assert!(matches!(source.current(), Err(Error::Read { .. })));
        fs::write(&path, "first").unwrap();
        age(&path);
        assert_eq!(now(&source), "first");
        fs::remove_file(&path).unwrap();
        for _ in 0..2 {
            assert!(matches!(source.current(), Err(Error::Read { .. })));
        }
        fs::write(&path, "again").unwrap();
        assert_eq!(now(&source), "again");
    }

    #[test]
    fn what_is_no_secret_is_refused_without_telling_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let source = SecretSource::file(&path);
        fs::write(&path, " \n").unwrap();
        assert!(matches!(source.current(), Err(Error::Empty(_))));
        fs::write(&path, "x".repeat(65 * 1024)).unwrap();
        assert!(matches!(source.current(), Err(Error::TooLarge(_))));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(source.current(), Err(Error::Read { .. })));
        assert!(matches!(SecretSource::file(dir.path()).current(), Err(Error::Read { .. })));
        assert!(matches!(SecretSource::file("/dev/zero").current(), Err(Error::Read { .. })));
        assert!(!format!("{:?}", SecretSource::literal("s3cret".to_owned())).contains("s3cret"));
    }

    #[test]
    fn a_pipe_in_place_of_the_file_is_an_error_and_not_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("token");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let error = SecretSource::file(&pipe).current().unwrap_err();
        assert!(crate::chain(&error).contains("not a regular file"), "{error}");
    }
}

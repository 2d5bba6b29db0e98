use std::fs;
use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use tempfile::TempDir;

use super::*;
use crate::metrics::Metrics;

const NOTES: Module =
    Module { name: "notes", migrations: &["CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)"] };

const NEWER: Module =
    Module { name: "notes", migrations: &[NOTES.migrations[0], "ALTER TABLE notes ADD COLUMN more TEXT"] };

fn open_in(folder: &TempDir) -> Result<Store, Error> {
    Store::open(&folder.path().join("store.db"), &[NOTES], Options::default())
}

fn note(tx: &Tx<'_>, text: &str) -> Result<(), Error> {
    tx.execute("INSERT INTO notes (text) VALUES (?1)", [text])?;
    Ok(())
}

async fn count(store: &Store) -> i64 {
    store.read(|c| Ok(c.query_row("SELECT count(*) FROM notes", [], |row| row.get(0))?)).await.unwrap()
}

#[tokio::test]
async fn what_is_written_is_there_after_reopening() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    store.write(|tx| note(tx, "one")).await.unwrap();
    assert_eq!(count(&store).await, 1);
    store.check().await.unwrap();
    store.close().await;
    store.close().await;
    assert!(matches!(store.write(|tx| note(tx, "two")).await, Err(Error::Closed)));
    assert!(!folder.path().join("store.db-wal").exists(), "closing folds the log into the file");
    let store = open_in(&folder).unwrap();
    assert_eq!(count(&store).await, 1);
    assert!(!folder.path().join("store.db.corrupt-1").exists());
}

/// S32 of the beacon: what is committed outlives a loss of power.
#[tokio::test]
async fn the_file_is_set_up_as_promised() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("store.db"), "").unwrap();
    fs::set_permissions(folder.path().join("store.db"), fs::Permissions::from_mode(0o644)).unwrap();
    let store = open_in(&folder).unwrap();
    let pragmas = store
        .write(|tx| {
            let number = |pragma| tx.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
            let mode: String = tx.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            Ok((mode, number("synchronous")?, number("auto_vacuum")?, number("foreign_keys")?, number("user_version")?))
        })
        .await
        .unwrap();
    assert_eq!(pragmas, ("wal".into(), 2, 2, 1, 1));
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.db.lock"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn an_error_takes_back_its_own_rows_only() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    let writes = (0..30).map(|n| {
        store.write(move |tx| {
            note(tx, &format!("first of {n}"))?;
            // Every third one meets the UNIQUE constraint.
            note(tx, &if n % 3 == 0 { format!("first of {n}") } else { format!("second of {n}") })
        })
    });
    let outcomes = join_all(writes).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 10);
    assert_eq!(count(&store).await, 40);
}

#[tokio::test]
async fn a_panic_takes_back_its_rows_and_the_store_goes_on() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    let panicked = store
        .write(|tx| {
            note(tx, "gone")?;
            if tx.is_autocommit() { Ok(()) } else { panic!("inside") }
        })
        .await;
    assert!(matches!(panicked, Err(Error::Panicked(text)) if text == "inside"));
    store.write(|tx| note(tx, "kept")).await.unwrap();
    assert_eq!(count(&store).await, 1);
}

/// Holds the owner thread while other work queues up, and returns how many commits the whole took.
async fn commits_of(store: &Store, registry: &Registry, works: usize, rows: usize) -> u64 {
    let (started, has_started) = oneshot::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let holding = store.write(move |_| {
        started.send(()).unwrap();
        held.recv().unwrap();
        Ok(())
    });
    let writes =
        (0..works).map(|work| store.write(move |tx| (0..rows).try_for_each(|row| note(tx, &format!("{work} {row}")))));
    // Unconstrained, so that the first poll queues all of them.
    let all = tokio::task::unconstrained(join_all(writes));
    let release = async {
        has_started.await.unwrap();
        assert_eq!(store.writer.capacity(), QUEUE - works, "everything is queued");
        release.send(()).unwrap();
    };
    let (held, outcomes, ()) = tokio::join!(holding, all, release);
    held.unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(count(store).await, i64::try_from(works * rows).unwrap());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let line = text.lines().find(|line| line.starts_with("store_commit_rows_count")).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn counted(folder: &TempDir) -> (Store, Registry) {
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    let options = Options { metrics: metrics.store, ..Options::default() };
    (Store::open(&folder.path().join("store.db"), &[NOTES], options).unwrap(), registry)
}

#[tokio::test]
async fn what_queued_up_goes_into_one_commit() {
    let folder = TempDir::new().unwrap();
    let (store, registry) = counted(&folder);
    assert_eq!(commits_of(&store, &registry, 400, 1).await, 1);
}

#[tokio::test]
async fn a_commit_takes_no_more_work_after_500_rows() {
    let folder = TempDir::new().unwrap();
    let (store, registry) = counted(&folder);
    assert_eq!(commits_of(&store, &registry, 20, 100).await, 4);
}

#[tokio::test]
async fn the_rows_of_a_commit_that_failed_are_not_counted() {
    let folder = TempDir::new().unwrap();
    let (store, registry) = counted(&folder);
    let links = "CREATE TABLE links (to_note INTEGER REFERENCES notes (id) DEFERRABLE INITIALLY DEFERRED)";
    store.write(move |tx| Ok(tx.execute_batch(links)?)).await.unwrap();
    let failed = store.write(|tx| Ok(tx.execute("INSERT INTO links VALUES (7)", [])?)).await;
    assert!(matches!(failed, Err(Error::Commit(_))), "{failed:?}");
    store.write(|tx| note(tx, "kept")).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("store_commit_rows_count 2\n") && text.contains("store_commit_rows_sum 1.0\n"), "{text}");
}

#[tokio::test]
async fn only_commits_with_something_to_deliver_wake() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    let mut wake = store.wake();
    store.write(|tx| note(tx, "quiet")).await.unwrap();
    assert!(!wake.has_changed().unwrap());
    let failed = store.write(|tx| {
        tx.wake();
        note(tx, "quiet")
    });
    failed.await.unwrap_err();
    assert!(!wake.has_changed().unwrap());
    let woken = store.write(|tx| {
        tx.wake();
        Ok(())
    });
    woken.await.unwrap();
    wake.changed().await.unwrap();
}

#[tokio::test]
async fn intake_stops_at_the_floor_and_marks_go_on() {
    let folder = TempDir::new().unwrap();
    let options = Options { floor: u64::MAX, ..Options::default() };
    let store = Store::open(&folder.path().join("store.db"), &[NOTES], options).unwrap();
    let intake = store.write(|tx| {
        tx.admit()?;
        note(tx, "in")
    });
    assert!(matches!(intake.await, Err(Error::Full { floor: u64::MAX, .. })));
    assert!(matches!(store.check().await, Err(Error::Full { .. })));
    store.write(|tx| note(tx, "mark")).await.unwrap();
    assert_eq!(count(&store).await, 1);
}

#[tokio::test]
async fn a_second_service_is_kept_out_until_the_first_has_closed() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    assert!(matches!(open_in(&folder), Err(Error::Locked(_))));
    let beside = open_beside(store.path(), &[NOTES]).unwrap();
    beside.execute("INSERT INTO notes (text) VALUES ('from a tool')", []).unwrap();
    assert_eq!(count(&store).await, 1, "tools work beside the service");
    drop(beside);
    store.close().await;
    open_in(&folder).unwrap();
}

#[tokio::test]
async fn a_newer_file_is_refused_untouched() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let layout = |version: u32| move |c: &Connection| c.pragma_update(None, "user_version", version);
    Store::open(&path, &[NEWER], Options::default()).unwrap().close().await;
    let before = fs::read(&path).unwrap();
    let error = open_in(&folder).err().unwrap();
    assert!(matches!(&error, Error::Newer { module, found: 2, known: 1, .. } if module == "notes"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(matches!(open_beside(&path, &[NOTES]), Err(Error::Newer { .. })));

    layout(7)(&Connection::open(&path).unwrap()).unwrap();
    let before = fs::read(&path).unwrap();
    let error = open_in(&folder).err().unwrap();
    assert!(matches!(&error, Error::Newer { module, found: 7, known: 1, .. } if module == "layout"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    layout(1)(&Connection::open(&path).unwrap()).unwrap();
    Store::open(&path, &[NEWER], Options::default()).unwrap();
}

#[tokio::test]
async fn a_newer_version_that_is_still_in_the_log_is_refused_untouched() {
    let folder = TempDir::new().unwrap();
    let image = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    store.write(|tx| Ok(tx.execute("UPDATE modules SET version = 9", [])?)).await.unwrap();
    for name in ["store.db", "store.db-wal"] {
        fs::copy(folder.path().join(name), image.path().join(name)).unwrap();
    }
    let before = fs::read(image.path().join("store.db")).unwrap();
    assert!(matches!(open_in(&image), Err(Error::Newer { found: 9, .. })));
    assert_eq!(fs::read(image.path().join("store.db")).unwrap(), before);
}

#[tokio::test]
async fn migrations_run_once_each_and_modules_share_a_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let store = open_in(&folder).unwrap();
    store.write(|tx| note(tx, "old")).await.unwrap();
    store.close().await;
    let other = Module { name: "other", migrations: &["CREATE TABLE other (id INTEGER)"] };
    for _ in 0..2 {
        let store = Store::open(&path, &[NEWER, other], Options::default()).unwrap();
        let more: Option<String> =
            store.read(|c| Ok(c.query_row("SELECT more FROM notes", [], |row| row.get(0))?)).await.unwrap();
        assert_eq!(more, None);
        store.close().await;
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_untouched() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (id INTEGER)").unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(open_in(&folder), Err(Error::Foreign(_))));
    assert_eq!(fs::read(&path).unwrap(), before);
    Connection::open(&path).unwrap().pragma_update(None, "application_id", 5).unwrap();
    assert!(matches!(open_in(&folder), Err(Error::Foreign(_))));
}

/// Such as the one that was meant for another variable.
#[tokio::test]
async fn a_file_that_never_was_a_store_is_refused_untouched_however_often_it_is_tried() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let text = "broker:\n  type: rabbitmq\n";
    for text in [text.to_owned(), text.repeat(50)] {
        fs::write(&path, &text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        for _ in 0..2 {
            assert!(matches!(open_in(&folder), Err(Error::Foreign(_))));
            assert!(matches!(open_beside(&path, &[NOTES]), Err(Error::Foreign(_))));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "and nothing is left beside it");
    }
}

#[tokio::test]
async fn what_is_no_file_is_not_even_opened_and_a_link_leads_to_the_store_that_it_names() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(open_in(&folder), Err(Error::NoFile(_))));
    assert!(matches!(open_beside(&path, &[NOTES]), Err(Error::NoFile(_))));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "and nothing is left beside it");

    let linked = TempDir::new().unwrap();
    std::os::unix::fs::symlink(linked.path().join("store.db"), folder.path().join("link")).unwrap();
    fs::rename(folder.path().join("link"), &path).unwrap();
    let _store = open_in(&linked).unwrap();
    assert!(matches!(open_in(&folder), Err(Error::Locked(_))));

    let (link, file) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::os::unix::fs::symlink(file.path().join("new.db"), link.path().join("store.db")).unwrap();
    let _first = open_in(&link).unwrap();
    assert!(matches!(open_in(&link), Err(Error::Locked(_))), "also where it leads nowhere yet");
}

#[tokio::test]
async fn a_store_that_is_as_it_should_be_is_opened_without_a_write() {
    let folder = TempDir::new().unwrap();
    open_in(&folder).unwrap().close().await;
    let before = open_beside(&folder.path().join("store.db"), &[NOTES]).unwrap();
    // Counts what other connections commit.
    let version = |connection: &Connection| -> i64 {
        connection.pragma_query_value(None, "data_version", |row| row.get(0)).unwrap()
    };
    let was = version(&before);
    let store = open_in(&folder).unwrap();
    assert_eq!(version(&before), was, "nothing was committed");
    store.close().await;
}

#[tokio::test]
async fn a_file_with_two_names_is_refused_under_each() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (path, second) = (folder.path().join("store.db"), other.path().join("store.db"));
    let store = open_in(&folder).unwrap();
    fs::hard_link(&path, &second).unwrap();
    assert!(matches!(open_in(&other), Err(Error::Linked { names: 2, .. })));
    assert!(matches!(open_beside(&second, &[NOTES]), Err(Error::Linked { .. })));
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1, "nothing is made beside it");
    store.close().await;
    assert!(matches!(open_in(&folder), Err(Error::Linked { .. })));
    fs::remove_file(&second).unwrap();
    drop(open_in(&folder).unwrap());
}

#[tokio::test]
async fn a_tool_makes_no_store_and_does_not_blame_the_disk_for_what_it_waits_for() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let missing = open_beside(&path, &[NOTES]).unwrap_err();
    assert!(matches!(missing, Error::Missing(_)) && missing.hint().contains("check the path"), "{missing:?}");
    assert!(!path.exists());

    let store = open_in(&folder).unwrap();
    let (backup, tool) = (open_beside(&path, &[NOTES]).unwrap(), open_beside(&path, &[NOTES]).unwrap());
    tool.busy_timeout(std::time::Duration::ZERO).unwrap();
    backup.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = write_beside(&tool, |tx| note(tx, "one")).unwrap_err();
    assert!(busy.hint().contains("another program") && !busy.hint().contains("disk"), "{busy:?}");
    drop(backup);
    write_beside(&tool, |tx| note(tx, "one")).unwrap();
    assert_eq!(count(&store).await, 1);
}

#[tokio::test]
async fn a_damaged_file_is_moved_aside() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    for number in 1..=2 {
        let store = open_in(&folder).unwrap();
        let fill = |tx: &Tx<'_>| (0..2_000).try_for_each(|n| note(tx, &format!("a text that fills pages {n}")));
        store.write(fill).await.unwrap();
        store.close().await;
        let mut bytes = fs::read(&path).unwrap();
        if number == 1 {
            bytes[20_000..40_000].fill(0xa5); // Inside.
        } else {
            bytes[..100].fill(b'x'); // The header.
        }
        fs::write(&path, &bytes).unwrap();
        let store = open_in(&folder).unwrap();
        let aside = folder.path().join(format!("store.db.corrupt-{number}"));
        assert_eq!(fs::read(aside).unwrap(), bytes, "kept as it was found");
        assert_eq!(count(&store).await, 0);
        store.close().await;
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_told() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let error = Store::open(&folder.path().join("file/store.db"), &[], Options::default()).err().unwrap();
    assert!(error.to_string().starts_with("open the store: create folder"), "{error}");
}

/// S31 of the beacon.
#[tokio::test]
async fn the_log_stays_small_however_much_is_written() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    let log = folder.path().join("store.db-wal");
    let mut longest = 0;
    for turn in 0..40 {
        let large =
            move |tx: &Tx<'_>| (0..400).try_for_each(|n| note(tx, &format!("{turn} {n} {}", "x".repeat(4_000))));
        store.write(large).await.unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    // 64 MiB were written; a checkpoint comes after 16, and what is in one transaction stays together.
    assert!((8 << 20..24 << 20).contains(&longest), "{longest}");
    store.close().await;
}

#[tokio::test]
async fn a_large_unused_part_is_given_back() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    assert_eq!(store.vacuum(100).await.unwrap(), 0);
    let long = "x".repeat(4_000);
    store.write(move |tx| (0..500).try_for_each(|n| note(tx, &format!("{long}{n}")))).await.unwrap();
    store.write(|tx| Ok(tx.execute("DELETE FROM notes", [])?)).await.unwrap();
    assert_eq!(store.vacuum(100).await.unwrap(), 100);
    while store.vacuum(100).await.unwrap() > 0 {}
    let pages: i64 = store.write(|tx| Ok(tx.pragma_query_value(None, "page_count", |row| row.get(0))?)).await.unwrap();
    assert!(pages < 20, "{pages} pages left");
}

#[tokio::test]
async fn a_store_that_must_not_begin_empty_says_that_it_was_there() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.db");
    let open = || Store::open(&path, &[NOTES], Options { damaged: Damaged::Refuse, ..Options::default() });
    open().unwrap().close().await;
    fs::write(&path, "").unwrap();
    assert!(matches!(open(), Err(Error::Emptied(_))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(open(), Err(Error::Emptied(_))));
    fs::remove_file(folder.path().join("store.db.lock")).unwrap();
    open().unwrap().close().await;
    let nowhere = folder.path().join("not-mounted/store.db");
    let opened = Store::open(&nowhere, &[NOTES], Options { damaged: Damaged::Refuse, ..Options::default() });
    assert!(matches!(opened, Err(Error::File { .. })) && !folder.path().join("not-mounted").exists());
}

#[tokio::test]
async fn a_store_without_its_lock_takes_nothing_in() {
    let folder = TempDir::new().unwrap();
    let store = open_in(&folder).unwrap();
    store.check().await.unwrap();
    fs::remove_file(folder.path().join("store.db.lock")).unwrap();
    assert!(matches!(store.check().await, Err(Error::Unlocked(_))));
    let _second = open_in(&folder).unwrap();
    assert!(matches!(store.check().await, Err(Error::Unlocked(_))), "the lock is another's");
    assert!(matches!(store.write(|tx| tx.admit().map(|()| 1)).await, Err(Error::Unlocked(_))));
}

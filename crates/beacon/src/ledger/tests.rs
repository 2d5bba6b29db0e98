use std::collections::HashSet;

use watchfire_delivery::outbox;
use watchfire_delivery::store::{Options, Store};

use super::*;

struct Scene {
    _folder: tempfile::TempDir,
    store: Store,
    book: Book,
}

async fn scene() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("l.db"), &[outbox::MODULE, MODULE], Options::default()).unwrap();
    let key = ScopeKey { group: String::new(), resource: "pods".into(), namespace: String::new(), kind: "Pod".into() };
    let envelope = Envelope { source: "/beacon".into(), type_prefix: "t".into() };
    let named = key.clone();
    let (id, sink) =
        store.write(move |tx| Ok((scope(tx, &named)?.0, outbox::register(tx, "endpoint")?))).await.unwrap();
    Scene { _folder: folder, store, book: Book { id, key, envelope, sink, order: Order::Name } }
}

fn pod(uid: &str, value: &str) -> Snapshot {
    Snapshot {
        namespace: "ns".into(),
        name: "a".into(),
        uid: uid.into(),
        value: value.into(),
        annotations: BTreeMap::new(),
        labels: [("tier".to_owned(), "front".to_owned())].into(),
        resource_version: "7".into(),
    }
}

impl Scene {
    async fn note(&self, step: Step) -> bool {
        let book = self.book.clone();
        self.store.write(move |tx| book.note(tx, &step, Timestamp::UNIX_EPOCH)).await.unwrap().is_some()
    }

    /// The events in the outbox, in order, as `type value`.
    async fn events(&self) -> Vec<String> {
        let read = |connection: &Connection| {
            let sql = "SELECT body ->> '$.type' || ' ' || (body ->> '$.data.resource.annotationValue') FROM events ORDER BY seq";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            Ok(rows)
        };
        self.store.read(read).await.unwrap()
    }
}

#[tokio::test]
async fn an_episode_has_one_event_for_its_beginning_and_one_for_its_end() {
    let scene = scene().await;
    for _ in 0..2 {
        let begin = Step::Begin(pod("1", "x"), Source::Watch);
        scene.note(begin).await;
    }
    scene.note(Step::Change(pod("1", "y"))).await;
    for news in [true, false] {
        assert_eq!(scene.note(Step::End("1".into(), Source::Mutation)).await, news);
    }
    assert!(scene.note(Step::Begin(pod("1", "z"), Source::Mutation)).await, "another episode");
    assert_eq!(scene.events().await, ["t.created x", "t.deleted y", "t.created z"]);
    let id = scene.book.id;
    let open = move |it: &Connection| {
        let mut open = Vec::new();
        each_open(it, id, |snapshot| open.push(snapshot))?;
        Ok(open)
    };
    assert_eq!(scene.store.read(open).await.unwrap(), [pod("1", "z")]);
}

#[tokio::test]
async fn that_an_event_was_delivered_stands_with_its_episode_in_the_columns_of_the_original() {
    let scene = scene().await;
    scene.note(Step::Begin(pod("1", "x"), Source::Watch)).await;
    scene.note(Step::End("1".into(), Source::Watch)).await;
    let row = async || {
        let read = |connection: &Connection| {
            let sql = "SELECT resource_type, cluster_state, notified_created, notified_deleted, created_at,
                created_notification_sent_at IS NULL, notification_failed FROM managed_objects";
            let row = connection.query_row(sql, [], |row| {
                Ok((
                    (row.get::<_, String>(0)?, row.get::<_, String>(1)?),
                    (row.get::<_, bool>(2)?, row.get::<_, bool>(3)?),
                    row.get::<_, String>(4)?,
                    (row.get::<_, bool>(5)?, row.get::<_, bool>(6)?),
                ))
            });
            Ok(row?)
        };
        scene.store.read(read).await.unwrap()
    };
    let times = "1970-01-01T00:00:00Z".to_owned();
    let deleted = || ("Pod".to_owned(), "deleted".to_owned());
    assert_eq!(row().await, (deleted(), (false, false), times.clone(), (true, false)));
    let before = async |keep: i64| {
        let before = Timestamp::from_second(keep).unwrap();
        scene.store.write(move |tx| prune(tx, before, 10)).await.unwrap()
    };
    assert_eq!(before(100).await, 0, "what was not told is kept");
    let settle = async |mark: outbox::Mark, seq| {
        scene.store.write(move |tx| outbox::settle(tx, seq, &mark, Timestamp::UNIX_EPOCH)).await.unwrap();
    };
    settle(outbox::Mark::Delivered, 1).await;
    assert_eq!(row().await, (deleted(), (true, false), times.clone(), (false, false)));
    settle(outbox::Mark::Dead { reason: "status 400".into() }, 2).await;
    assert_eq!(row().await, (deleted(), (true, false), times.clone(), (false, true)));
    assert_eq!(before(100).await, 0, "a dead letter keeps its episode");
}

#[tokio::test]
async fn a_scope_is_known_again_and_whether_it_was_listed() {
    let scene = scene().await;
    let (key, id) = (scene.book.key.clone(), scene.book.id);
    let named = key.clone();
    assert_eq!(scene.store.write(move |tx| scope(tx, &named)).await.unwrap(), (id, false));
    scene.store.write(move |tx| listed(tx, id, Timestamp::UNIX_EPOCH)).await.unwrap();
    let named = key.clone();
    assert_eq!(scene.store.write(move |tx| scope(tx, &named)).await.unwrap(), (id, true));
    let other = ScopeKey { namespace: "ns".into(), ..key };
    assert_ne!(scene.store.write(move |tx| scope(tx, &other)).await.unwrap().0, id);
}

/// Whatever the envelope and the concurrency were when an event was written, its end goes out behind its beginning.
#[tokio::test]
async fn what_waits_keeps_its_order_when_the_configuration_changes() {
    let scene = scene().await;
    let sink = scene.book.sink;
    scene.note(Step::Begin(pod("1", "x"), Source::Watch)).await;
    for (order, source) in [(Order::Name, "/other"), (Order::All, "/beacon"), (Order::Name, "/beacon")] {
        let envelope = Envelope { source: source.into(), type_prefix: "t".into() };
        let book = Book { envelope, order, ..scene.book.clone() };
        scene.store.write(move |tx| outbox::reorder(tx, sink, |event| order.key_of(event))).await.unwrap();
        let steps = [Step::End("1".into(), Source::Watch), Step::Begin(pod("1", "x"), Source::Watch)];
        let noted =
            move |tx: &Tx<'_>| steps.iter().try_for_each(|it| book.note(tx, it, Timestamp::UNIX_EPOCH).map(drop));
        scene.store.write(noted).await.unwrap();
        let due = move |connection: &Connection| {
            outbox::claim(connection, sink, 100, &HashSet::default(), Timestamp::UNIX_EPOCH)
        };
        let due = scene.store.read(due).await.unwrap();
        assert_eq!(due.claims.len(), 1, "{order:?}: the first alone");
        assert_eq!(due.claims[0].seq, 1);
    }
}

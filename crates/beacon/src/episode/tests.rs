use super::*;

fn rule(values: Option<&[&str]>) -> Rule {
    Rule { key: "watch".into(), values: values.map(|values| values.iter().map(|&value| value.to_owned()).collect()) }
}

fn object(uid: &str, value: Option<&str>) -> Object {
    let annotations = value.map(|value| ("watch".to_owned(), value.to_owned())).into_iter().collect();
    Object { namespace: "ns".into(), name: "a".into(), uid: uid.into(), annotations, ..Object::default() }
}

/// Begin, change and end, in short.
fn told(steps: Vec<Step>) -> Vec<String> {
    let short = |step| match step {
        Step::Begin(it, source) => format!("begin {}={} {}", it.uid, it.value, source.as_str()),
        Step::Change(it) => format!("change {}={}", it.uid, it.value),
        Step::End(uid, source) => format!("end {uid} {}", source.as_str()),
    };
    steps.into_iter().map(short).collect()
}

struct Scope(Known, Rule);

impl Scope {
    fn new() -> Self {
        Self(Known::default(), rule(None))
    }

    fn hear(&mut self, heard: Heard, object: Object) -> Vec<String> {
        told(self.0.applied(object, heard, &self.1, &Allowed::default()))
    }

    fn watch(&mut self, uid: &str, value: Option<&str>) -> Vec<String> {
        self.hear(Heard::Watch, object(uid, value))
    }

    fn list(&mut self, lists: Lists, objects: &[(&str, Option<&str>)]) -> Vec<String> {
        self.0.list_begins(lists);
        let mut all = Vec::new();
        for (uid, value) in objects {
            all.extend(self.hear(Heard::List, object(uid, *value)));
        }
        all.extend(told(self.0.list_ends()));
        all
    }

    fn delete(&mut self, uid: &str) -> Vec<String> {
        told(self.0.deleted("ns", "a", uid, Heard::Watch).into_iter().collect())
    }
}

#[test]
fn an_object_with_the_annotation_comes_and_goes() {
    let mut scope = Scope::new();
    assert_eq!(scope.watch("1", Some("x")), ["begin 1=x watch"]);
    assert!(scope.watch("1", Some("x")).is_empty(), "nothing that is told of it changed");
    assert_eq!(scope.delete("1"), ["end 1 watch"]);
    assert!(scope.delete("1").is_empty());
}

#[test]
fn the_annotation_comes_and_goes() {
    let mut scope = Scope::new();
    assert!(scope.watch("1", None).is_empty());
    assert_eq!(scope.watch("1", Some("x")), ["begin 1=x mutation"]);
    assert_eq!(scope.watch("1", Some("y")), ["change 1=y"]);
    assert_eq!(scope.watch("1", None), ["end 1 mutation"]);
    assert_eq!(scope.watch("1", Some("x")), ["begin 1=x mutation"]);
}

#[test]
fn a_value_enters_and_leaves_those_that_count() {
    let mut scope = Scope(Known::default(), rule(Some(&["x", "y"])));
    assert!(scope.watch("1", Some("z")).is_empty());
    assert_eq!(scope.watch("1", Some("x")), ["begin 1=x mutation"]);
    assert_eq!(scope.watch("1", Some("y")), ["change 1=y"]);
    assert_eq!(scope.watch("1", Some("z")), ["end 1 mutation"]);
}

/// S6 of what was not watched.
#[test]
fn another_object_under_the_name_ends_the_one_before() {
    let mut scope = Scope::new();
    scope.watch("1", Some("x"));
    assert_eq!(scope.watch("2", Some("x")), ["end 1 watch", "begin 2=x watch"]);
    assert_eq!(scope.list(Lists::Again, &[("3", Some("x"))]), ["end 2 reconciliation", "begin 3=x reconciliation"]);
    assert_eq!(scope.watch("4", None), ["end 3 watch"]);
    assert!(scope.delete("3").is_empty(), "over already");
}

#[test]
fn a_list_that_comes_to_its_end_tells_what_is_gone() {
    let mut scope = Scope::new();
    assert_eq!(scope.list(Lists::First, &[("1", Some("x"))]), ["begin 1=x watch"], "nothing was missed at the first");
    assert!(scope.list(Lists::Again, &[("1", Some("x"))]).is_empty());
    scope.0.list_begins(Lists::Again);
    scope.0.list_begins(Lists::Again);
    assert!(scope.hear(Heard::List, object("1", Some("x"))).is_empty());
    assert!(told(scope.0.list_ends()).is_empty(), "one that was cut off says nothing");
    assert_eq!(scope.list(Lists::Again, &[("1", None)]), ["end 1 reconciliation"]);
    assert_eq!(scope.watch("1", Some("x")), ["begin 1=x mutation"], "it was listed without");
    assert_eq!(scope.list(Lists::Again, &[]), ["end 1 reconciliation"]);
}

#[test]
fn what_the_ledger_has_is_no_news() {
    let mut scope = Scope::new();
    let mut told = object("1", Some("x"));
    told.labels.insert("tier".into(), "front".into());
    let known = snapshot(told.clone(), &scope.1, &Allowed::default()).unwrap();
    scope.0.remember(&known);
    scope.0.list_begins(Lists::Again);
    assert!(scope.hear(Heard::List, Object { resource_version: "9".into(), ..told }).is_empty());
    assert!(super::tests::told(scope.0.list_ends()).is_empty());
}

/// S17, S18: neither a list nor a watch that is older than an answer makes a deletion, or an object that is gone.
#[test]
fn a_watch_that_is_behind_an_answer_invents_nothing() {
    let at = |uid, value, version: &str| Object { resource_version: version.to_owned(), ..object(uid, value) };
    let mut scope = Scope::new();
    assert_eq!(scope.hear(Heard::Question, at("1", Some("x"), "10")), ["begin 1=x reconciliation"]);
    assert!(scope.hear(Heard::Watch, at("1", None, "8")).is_empty(), "as it was before");
    assert!(scope.hear(Heard::Watch, at("1", Some("x"), "10")).is_empty());
    assert_eq!(
        scope.hear(Heard::Question, at("1", Some("x"), "10")),
        ["begin 1=x reconciliation"],
        "the ledger decides"
    );
    assert_eq!(scope.hear(Heard::Watch, at("1", None, "12")), ["end 1 mutation"]);

    assert_eq!(scope.hear(Heard::Watch, at("1", Some("x"), "14")), ["begin 1=x mutation"]);
    let gone = scope.0.deleted("ns", "a", "1", Heard::Question);
    assert_eq!(told(gone.into_iter().collect()), ["end 1 reconciliation"]);
    assert!(scope.hear(Heard::Watch, at("1", Some("y"), "15")).is_empty(), "a UID does not come back");
    assert!(scope.delete("1").is_empty());

    // Of those that had the name in between, the watch tells late.
    scope.hear(Heard::Watch, at("2", Some("x"), "20"));
    assert_eq!(
        scope.hear(Heard::Question, at("4", Some("x"), "26")),
        ["end 2 reconciliation", "begin 4=x reconciliation"]
    );
    assert!(scope.delete("2").is_empty());
    assert!(scope.hear(Heard::Watch, at("3", Some("x"), "22")).is_empty());
    assert!(scope.delete("3").is_empty());
    assert!(scope.hear(Heard::Watch, at("4", Some("x"), "24")).is_empty());
    assert_eq!(scope.hear(Heard::Watch, at("4", Some("y"), "28")), ["change 4=y"]);
    assert_eq!(scope.hear(Heard::Watch, at("5", Some("x"), "30")), ["end 4 watch", "begin 5=x watch"]);
}

#[test]
fn only_what_is_allowed_is_told_and_counts_as_a_change() {
    let allowed = Allowed { annotations: vec!["a".into()], labels: Some(vec!["l".into()]) };
    let mut known = Known::default();
    let mut it = object("1", Some("x"));
    it.annotations.extend([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
    it.labels.extend([("l".to_owned(), "1".to_owned()), ("m".to_owned(), "2".to_owned())]);
    let steps = known.applied(it.clone(), Heard::Watch, &rule(None), &allowed);
    let [Step::Begin(snapshot, Source::Watch)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((snapshot.annotations.len(), snapshot.labels.len()), (1, 1));
    it.labels.insert("m".into(), "3".into());
    assert!(known.applied(it.clone(), Heard::Watch, &rule(None), &allowed).is_empty());
    it.labels.insert("l".into(), "3".into());
    assert_eq!(told(known.applied(it, Heard::Watch, &rule(None), &allowed)), ["change 1=x"]);
}

use super::*;

fn pairs(pairs: &[(&str, &str)]) -> Selector {
    Selector::from_pairs(pairs.iter().copied()).unwrap()
}

fn one(key: &str, operator: Operator) -> Selector {
    Selector::new(vec![Requirement { key: key.into(), operator }]).unwrap()
}

fn values(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn labels(pairs: &[(&'static str, &'static str)]) -> Labels<'static> {
    pairs.iter().copied().collect()
}

#[test]
fn nothing_required_selects_everything() {
    let everything = pairs(&[]);
    assert!(everything.is_everything());
    assert!(everything.matches(&labels(&[])));
    assert_eq!((everything.search(), everything.labels()), (None, None));
    assert_eq!(everything.metric_label(), "all");
}

#[test]
fn all_pairs_must_match_and_are_sorted() {
    let selector = pairs(&[("region", "us-east"), ("environment", "production")]);
    assert!(!selector.is_everything());
    assert!(selector.matches(&labels(&[("environment", "production"), ("region", "us-east"), ("x", "y")])));
    assert!(!selector.matches(&labels(&[("region", "us-east")])));
    assert!(!selector.matches(&labels(&[("environment", "production"), ("region", "us-west")])));
    assert_eq!(selector.search().unwrap(), "labels.environment='production' and labels.region='us-east'");
    assert_eq!(selector.labels().unwrap(), "environment=production,region=us-east");
    assert_eq!(selector.metric_label(), "environment:production,region:us-east");
}

#[test]
fn a_key_with_a_hyphen_is_filtered_here_and_not_searched() {
    let selector = pairs(&[("cluster-type", "hypershift"), ("region", "us-east")]);
    assert_eq!(selector.search().unwrap(), "labels.region='us-east'");
    assert_eq!(selector.labels().unwrap(), "cluster-type=hypershift,region=us-east");
    assert!(!selector.matches(&labels(&[("region", "us-east")])));
    assert_eq!(pairs(&[("cluster-type", "gpu")]).search(), None);
}

#[test]
fn dots_slashes_and_underscores_are_searched() {
    let selector = pairs(&[("app.kubernetes.io/managed_by", "me")]);
    assert_eq!(selector.search().unwrap(), "labels.app.kubernetes.io/managed_by='me'");
}

#[test]
fn expressions_follow_kubernetes() {
    let absent = labels(&[("other", "x")]);
    let us = labels(&[("region", "us")]);
    let empty = labels(&[("region", "")]);
    let cases: &[(Operator, &str, &str, [bool; 3])] = &[
        (
            Operator::In(values(&["us", "eu"])),
            "labels.region in ['us','eu']",
            "region in (us,eu)",
            [false, true, false],
        ),
        (
            Operator::NotIn(values(&["us"])),
            "(labels.region is null or (labels.region != 'us'))",
            "region!=us",
            [true, false, true],
        ),
        (
            Operator::NotIn(values(&["us", "eu"])),
            "(labels.region is null or (labels.region != 'us' and labels.region != 'eu'))",
            "region notin (us,eu)",
            [true, false, true],
        ),
        (Operator::Exists, "labels.region like '%'", "region", [false, true, true]),
        (Operator::DoesNotExist, "labels.region is null", "!region", [true, false, false]),
    ];
    for (operator, search, text, expected) in cases {
        let selector = one("region", operator.clone());
        assert_eq!(selector.search().as_deref(), Some(*search));
        assert_eq!(selector.labels().as_deref(), Some(*text));
        assert_eq!(selector.metric_label(), *text);
        assert_eq!([&absent, &us, &empty].map(|labels| selector.matches(labels)), *expected, "{text}");
    }
}

#[test]
fn an_empty_value_selects_the_label_with_nothing_in_it() {
    let selector = pairs(&[("tier", "")]);
    assert!(selector.matches(&labels(&[("tier", "")])));
    assert!(!selector.matches(&labels(&[])));
    assert_eq!(selector.search().unwrap(), "labels.tier=''");
}

#[test]
fn what_selects_nothing_or_everything_by_accident_is_refused() {
    assert_eq!(Selector::from_pairs([("", "x")]), Err(Error::EmptyKey));
    let twice = Selector::from_pairs([("region", "a"), ("region", "b")]);
    assert_eq!(twice, Err(Error::Duplicate { key: "region".into() }));
    for operator in [Operator::In(vec![]), Operator::NotIn(vec![])] {
        let empty = Selector::new(vec![Requirement { key: "k".into(), operator }]);
        assert_eq!(empty, Err(Error::NoValues { key: "k".into() }));
    }
}

#[test]
fn keys_and_values_have_the_syntax_of_labels() {
    let long = "a".repeat(64);
    for key in ["a b", "-a", "a-", "a='b", "/a", "x/", "Example.com/a", "a..b/c", "-a.b/c", "a-.b/c", "a/b/c", &long] {
        assert_eq!(Selector::from_pairs([(key, "v")]), Err(Error::Key { key: key.into() }), "{key}");
    }
    for value in ["a b", "-a", "a'", "a,b", "ä", &long] {
        assert_eq!(Selector::from_pairs([("k", value)]), Err(Error::Value { value: value.into() }), "{value}");
    }
    let prefix = format!("{}/a", "a".repeat(254));
    assert!(Selector::from_pairs([(prefix.as_str(), "v")]).is_err());
    let longest = format!("{}/{}", "a".repeat(253), "b".repeat(63));
    assert!(Selector::from_pairs([(longest.as_str(), "v")]).is_ok());
    for key in ["a", "A.b_c-d", "example.com/a", "0x/9"] {
        assert!(Selector::from_pairs([(key, "a.b_c-d")]).is_ok(), "{key}");
    }
}

#[test]
fn a_search_leaves_room_for_the_id_of_a_page_below_what_the_api_takes() {
    let keys: Vec<String> = (0..100).map(|index| format!("k{index:061}")).collect();
    let selector = Selector::from_pairs(keys.iter().map(|key| (key.as_str(), "v"))).unwrap();
    let search = selector.search().unwrap();
    assert!(search.len() <= 4096 - 256 && search.len() > 3700, "{}", search.len());
    assert!(search.ends_with("='v'"));
}

#[test]
fn a_search_is_filled_to_the_last_byte() {
    let filled = |last: usize| {
        let mut pairs: Vec<_> = (0..49).map(|index| (format!("k{index:061}"), "v".to_owned())).collect();
        pairs.push(("zz".to_owned(), "x".repeat(last)));
        let selector = Selector::from_pairs(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        selector.unwrap().search().unwrap().len()
    };
    assert_eq!((filled(6), filled(7)), (4096 - 256, 3817));
}

#[test]
fn a_quote_in_a_value_is_doubled() {
    assert_eq!(quote("a'b"), "'a''b'");
}

#[test]
fn requirements_that_no_resource_can_meet_are_noticed() {
    let of = |requirements: Vec<(&str, Operator)>| {
        let requirements = requirements.into_iter().map(|(key, operator)| Requirement { key: key.into(), operator });
        Selector::new(requirements.collect()).unwrap().contradiction().map(str::to_owned)
    };
    let (one, two) = (values(&["x"]), values(&["x", "y"]));
    let never = [
        vec![("a", Operator::In(one.clone())), ("a", Operator::NotIn(two.clone()))],
        vec![("a", Operator::In(one.clone())), ("a", Operator::In(values(&["y"])))],
        vec![("a", Operator::In(one.clone())), ("a", Operator::DoesNotExist)],
        vec![("b", Operator::Exists), ("a", Operator::Exists), ("a", Operator::DoesNotExist)],
    ];
    for requirements in never {
        assert_eq!(of(requirements.clone()).as_deref(), Some("a"), "{requirements:?}");
    }
    let possible = [
        vec![],
        vec![("a", Operator::In(two.clone())), ("a", Operator::NotIn(one.clone()))],
        vec![("a", Operator::Exists), ("a", Operator::NotIn(two.clone()))],
        vec![("a", Operator::NotIn(two.clone())), ("a", Operator::DoesNotExist)],
        vec![("a", Operator::Exists), ("b", Operator::DoesNotExist)],
        vec![("a", Operator::In(two)), ("a", Operator::In(one))],
    ];
    for requirements in possible {
        assert_eq!(of(requirements.clone()), None, "{requirements:?}");
    }
}

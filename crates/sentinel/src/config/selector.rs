//! Checks `resource_selector`: every entry by itself, so that all that is wrong with it is told at once.

use std::collections::BTreeSet;

use super::check::Report;
use super::raw::{RawExpression, RawLabelSelector, RawPair, RawSelector};
use crate::selector::{Error, Operator, Requirement, Selector};

/// A requirement, and the key of the entry that makes it.
type Placed = (String, Requirement);

/// Makes the selector; nothing where an entry is wrong, which is told.
pub(super) fn check(raw: Option<&RawSelector>, report: &mut Report<'_>) -> Option<Selector> {
    let entries = match raw {
        None => Vec::new(),
        Some(RawSelector::Pairs(pairs)) => of_pairs(pairs, report),
        Some(RawSelector::Kubernetes(raw)) => of_kubernetes(raw, report),
    };
    let mut requirements = Vec::new();
    for entry in entries {
        let sound = entry.and_then(|(key, requirement)| {
            report.take(&key, requirement.check())?;
            Some(requirement)
        });
        requirements.push(sound);
    }
    let requirements = requirements.into_iter().collect::<Option<_>>()?;
    let selector = report.take("resource_selector", Selector::new(requirements))?;
    if let Some(label) = selector.contradiction() {
        let message = format!("nothing can match: the requirements for label {label:?} contradict each other");
        // On an object nobody would see a warning.
        if report.is_object() {
            report.push("resource_selector", message);
            return None;
        }
        report.warn("resource_selector", message);
    }
    Some(selector)
}

fn of_pairs(pairs: &[RawPair], report: &mut Report<'_>) -> Vec<Option<Placed>> {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for (index, RawPair { label, value }) in pairs.iter().enumerate() {
        let key = format!("resource_selector.{index}");
        for (name, given) in [("label", label.is_some()), ("value", value.is_some())] {
            if !given {
                let example = "an entry is a pair, for example label: region and value: us-east";
                report.push(&format!("{key}.{name}"), format!("missing; {example}"));
            }
        }
        let twice = label.as_ref().filter(|label| !seen.insert(label.as_str()));
        if let Some(label) = twice {
            report.push(&key, Error::Duplicate { key: label.clone() }.to_string());
        }
        let pair = label.clone().zip(value.clone()).filter(|_| twice.is_none());
        entries.push(pair.map(|(label, value)| (key, Requirement { key: label, operator: Operator::In(vec![value]) })));
    }
    entries
}

fn of_kubernetes(raw: &RawLabelSelector, report: &mut Report<'_>) -> Vec<Option<Placed>> {
    let labels = raw.match_labels.iter().map(|(label, value)| {
        let operator = Operator::In(vec![value.clone()]);
        let requirement = Requirement { key: label.clone(), operator };
        Some((format!("resource_selector.matchLabels.{label}"), requirement))
    });
    let mut entries: Vec<_> = labels.collect();
    for (index, expression) in raw.match_expressions.iter().enumerate() {
        let key = format!("resource_selector.matchExpressions.{index}");
        let operator = operator(expression, &key, report);
        entries.push(operator.map(|operator| (key, Requirement { key: expression.key.clone(), operator })));
    }
    entries
}

fn operator(raw: &RawExpression, key: &str, report: &mut Report<'_>) -> Option<Operator> {
    let values = raw.values.clone();
    match raw.operator.as_str() {
        "In" => Some(Operator::In(values)),
        "NotIn" => Some(Operator::NotIn(values)),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            report.push(&format!("{key}.values"), format!("{} takes no values", raw.operator));
            None
        }
        "Exists" => Some(Operator::Exists),
        "DoesNotExist" => Some(Operator::DoesNotExist),
        other => {
            report.push(&format!("{key}.operator"), format!("{other:?} is not In, NotIn, Exists or DoesNotExist"));
            None
        }
    }
}

//! `message_decision`: the expressions that decide.

use crate::decision::MaxAge;
use crate::expression::{Expression, Problem};

use super::RawDecision;

/// What stands for an expression that is missing: of any type, and not the same over every resource.
const UNKNOWN: &str = "resource.spec";

/// Messages, each with its key below `message_decision`.
type Told = Vec<(String, String)>;

/// Compiles what is built in.
pub(super) fn built_in(max_age: &MaxAge) -> Result<Expression, Told> {
    Expression::built_in(max_age).map_err(told)
}

fn told(problems: Vec<Problem>) -> Told {
    problems.into_iter().map(|problem| (problem.part.key(), problem.to_string())).collect()
}

/// Compiles what is written.
pub(super) fn compile(raw: &RawDecision) -> Result<Expression, Told> {
    let mut missing = Vec::new();
    let mut params = Vec::new();
    for (index, param) in raw.params.iter().flatten().enumerate() {
        for (key, given) in [("name", param.name.is_some()), ("expr", param.expr.is_some())] {
            if !given {
                let example = "an entry is a pair, for example name: is_ready and expr: summary().ready";
                missing.push((format!("params.{index}.{key}"), format!("missing; {example}")));
            }
        }
        let name = param.name.clone().unwrap_or_else(|| format!("__{index}"));
        params.push((name, param.expr.clone().unwrap_or_else(|| UNKNOWN.to_owned())));
    }
    if raw.result.is_none() {
        let example = "write which resources are due, for example result: is_new || is_stale";
        missing.push(("result".to_owned(), format!("missing; {example}")));
    }
    let compiled = Expression::compile(&params, raw.result.as_deref().unwrap_or("true")).map_err(told);
    if missing.is_empty() {
        return compiled;
    }
    // What is there is told of as well.
    missing.extend(compiled.err().into_iter().flatten());
    Err(missing)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::RawParam;
    use super::*;

    fn keys(raw: &RawDecision) -> Vec<String> {
        compile(raw).unwrap_err().into_iter().map(|(key, _)| key).collect()
    }

    fn param(name: &str, expr: &str) -> RawParam {
        RawParam { name: Some(name.to_owned()), expr: Some(expr.to_owned()) }
    }

    #[test]
    fn what_is_missing_is_named() {
        let nameless = RawParam { name: None, expr: Some("1".to_owned()) };
        let empty = RawParam { name: Some("a".to_owned()), expr: None };
        let raw = RawDecision { params: Some(vec![nameless, empty]), result: None };
        assert_eq!(keys(&raw), ["params.0.name", "params.1.expr", "result"]);
        assert_eq!(keys(&RawDecision::default()), ["result"]);
    }

    #[test]
    fn what_is_missing_hides_nothing_of_what_is_there() {
        let params = vec![
            RawParam { name: None, expr: Some("1 +".to_owned()) },
            RawParam { name: Some("a".to_owned()), expr: None },
            param("b", "nonsense"),
            param("c", "1 / a"),
        ];
        let raw = RawDecision { params: Some(params), result: Some("a > 1 && 5".to_owned()) };
        assert_eq!(keys(&raw), ["params.0.name", "params.1.expr", "params.0.expr", "params.2.expr", "result"]);
    }

    #[test]
    fn every_problem_has_its_key() {
        let raw =
            RawDecision { params: Some(vec![param("a", "b"), param("b", "1 +")]), result: Some("a + 1".to_owned()) };
        assert_eq!(keys(&raw), ["params.0.expr", "params.1.expr", "result"]);
    }

    #[test]
    fn what_is_built_in_compiles_with_any_age() {
        for age in [Duration::from_nanos(1), Duration::from_millis(1_500), Duration::from_hours(24 * 365 * 200)] {
            assert!(built_in(&MaxAge { ready: age, not_ready: age }).is_ok(), "{age:?}");
        }
    }
}

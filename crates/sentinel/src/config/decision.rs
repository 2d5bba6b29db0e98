//! `message_decision`: the expressions that decide.

use crate::decision::MaxAge;
use crate::expression::{Expression, Problem};

use super::RawDecision;

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
        match (&param.name, &param.expr) {
            (Some(name), Some(expr)) => params.push((name.clone(), expr.clone())),
            (name, _) => {
                let what = if name.is_some() { "expr" } else { "name" };
                let example = "an entry is a pair, for example name: is_ready and expr: summary().ready";
                missing.push((format!("params.{index}"), format!("{what} is missing; {example}")));
            }
        }
    }
    if raw.result.is_none() {
        let example = "write which resources are due, for example result: is_new || is_stale";
        missing.push(("result".to_owned(), format!("missing; {example}")));
    }
    match &raw.result {
        Some(result) if missing.is_empty() => Expression::compile(&params, result).map_err(told),
        _ => Err(missing),
    }
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
        assert_eq!(keys(&raw), ["params.0", "params.1", "result"]);
        assert_eq!(keys(&RawDecision::default()), ["result"]);
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

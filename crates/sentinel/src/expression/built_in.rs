//! The decision of the policy `expression` where none is written: today's seven params and their result, put right.

use std::time::Duration;

use super::{Expression, Problem};
use crate::decision::MaxAge;

/// What decides where nothing is written: the params of today's sentinel under their names.
///
/// Two of its conditions never hold against today's API, whose `Reconciled` is there from the beginning and always
/// has the resource's own generation. Here they ask `summary()`, which goes by the adapters' own conditions, and ages
/// are those of the configuration, reached as soon as they have passed.
pub(super) fn source(max_age: &MaxAge) -> (Vec<(String, String)>, String) {
    let age = |age: Duration| format!("duration(\"{}s\")", age.as_secs_f64());
    let stale = |age: String| format!("has_ref_time && now - timestamp(ref_time) >= {age}");
    let params = [
        ("ref_time", "summary().last_updated_time".to_owned()),
        ("is_reconciled", "summary().ready && summary().generation <= summary().observed_generation".to_owned()),
        // A report of the future says nothing about when it came.
        ("has_ref_time", "ref_time != \"\" && timestamp(ref_time) <= now".to_owned()),
        ("is_new_resource", "!has_ref_time && (ref_time != \"\" || !summary().observed_ahead)".to_owned()),
        ("generation_mismatch", "summary().generation > summary().observed_generation".to_owned()),
        ("reconciled_and_stale", format!("is_reconciled && {}", stale(age(max_age.ready)))),
        ("not_reconciled_and_debounced", format!("!is_reconciled && {}", stale(age(max_age.not_ready)))),
    ];
    let result = "is_new_resource || generation_mismatch || reconciled_and_stale || not_reconciled_and_debounced";
    (params.map(|(name, source)| (name.to_owned(), source)).into(), result.to_owned())
}

impl Expression {
    /// Compiles the decision that holds where none is written.
    pub fn built_in(max_age: &MaxAge) -> Result<Self, Vec<Problem>> {
        let (params, result) = source(max_age);
        Self::compile(&params, &result)
    }
}

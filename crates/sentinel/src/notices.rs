//! Which warnings about single resources are news: each is given once, and of each kind there are only so many.
//!
//! Every kind has a budget of its own, so that a flood of one silences no other; when it is used up, that is told,
//! once. What is no longer told is still counted by the metrics.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use tracing::warn;

/// Warnings of one kind that are given: enough for a fleet that is odd in one way, and a bound for its memory.
const BUDGET: usize = 10_000;

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A resource that cannot be read.
    Unreadable,
    /// A generation that was observed before it was there.
    ObservedAhead,
    /// A report from the future.
    FromFuture,
    /// A field of the payload that the resource lacks.
    MissingField,
    /// A field of the payload that failed.
    FailedField,
    /// A field of the payload that is left out.
    OmittedField,
    /// An expression that failed on a resource.
    FailedExpression,
    /// An event that the broker refuses for what it is.
    Refused,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Unreadable,
        Self::ObservedAhead,
        Self::FromFuture,
        Self::MissingField,
        Self::FailedField,
        Self::OmittedField,
        Self::FailedExpression,
        Self::Refused,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::ObservedAhead => "observed_ahead",
            Self::FromFuture => "from_future",
            Self::MissingField => "missing_field",
            Self::OmittedField => "omitted_field",
            Self::FailedExpression => "failed_expression",
            Self::FailedField => "failed_field",
            Self::Refused => "refused",
        }
    }
}

/// The warnings that were given, as their hashes: they name what the API wrote, which may be of any length.
#[derive(Default)]
pub(crate) struct Notices {
    given: [HashSet<u64>; Kind::ALL.len()],
    hasher: RandomState,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    Old,
    Fresh,
    /// Fresh, and the last of its kind that is told.
    Last,
}

impl Notices {
    /// Says whether to warn about `what`, and notes that it was done.
    pub(crate) fn is_news(&mut self, kind: Kind, what: &str) -> bool {
        let news = self.note(kind, what);
        if news == News::Last {
            let kind = kind.as_str();
            warn!(kind, given = BUDGET, "enough warnings of this kind were given, further ones are only counted");
        }
        news != News::Old
    }

    fn note(&mut self, kind: Kind, what: &str) -> News {
        let Self { given, hasher } = self;
        let given = &mut given[kind as usize];
        if given.len() >= BUDGET || !given.insert(hasher.hash_one(what)) {
            return News::Old;
        }
        if given.len() == BUDGET { News::Last } else { News::Fresh }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_news_once_for_each_kind() {
        let mut notices = Notices::default();
        for kind in Kind::ALL {
            assert!(
                notices.is_news(kind, "a") && !notices.is_news(kind, "a") && notices.is_news(kind, "b"),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_flood_of_one_kind_is_told_to_be_one_once_and_silences_no_other() {
        let mut notices = Notices::default();
        for index in 1..BUDGET {
            assert_eq!(notices.note(Kind::Unreadable, &index.to_string()), News::Fresh);
        }
        assert_eq!(notices.note(Kind::Unreadable, "the last"), News::Last);
        assert_eq!(notices.note(Kind::Unreadable, "one more"), News::Old);
        assert_eq!(notices.note(Kind::MissingField, "one more"), News::Fresh);
    }
}

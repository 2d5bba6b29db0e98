//! Builds the reconcile event of a decision.
//!
//! The id is derived, not drawn: the same cause gives the same id, in the next cycle and after a restart. `time` is
//! when the resource became due, not when somebody got round to it.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use serde_json::value::RawValue;
use uuid::Uuid;
use watchfire_delivery::CloudEvent;
use watchfire_delivery::event::Attributes;

use crate::decision::Decision;
use crate::resource::Resource;

/// What consumers in the field see as the event's source.
pub const SOURCE: &str = "hyperfleet-sentinel";

/// A kind is a name, such as `NodePool`; what is longer does not fit the headers of every broker.
const MAX_KIND: usize = 63;

/// Builds the event for a resource that is due. `resource_type` stands in for a kind that the API does not serve, or
/// that is no name: consumers route by the type, and brokers carry it in a header.
pub fn reconcile(
    resource: &Resource<'_>,
    decision: &Decision,
    data: Box<RawValue>,
    resource_type: &str,
    now: Timestamp,
) -> CloudEvent {
    let kind = if is_name(&resource.kind) { &resource.kind } else { singular(resource_type) };
    let mut ty = String::with_capacity(64);
    ty.extend(["com.redhat.hyperfleet.", kind, ".reconcile"]);
    ty.make_ascii_lowercase();
    let attributes = Attributes {
        id: id_of(resource, decision),
        source: SOURCE.to_owned(),
        ty,
        subject: None,
        time: Some(decision.due.unwrap_or(now)),
        extensions: Vec::new(),
    };
    // Consumers read the resource anew, so that the later of two events says all that the earlier one did.
    CloudEvent::new(attributes, data).superseding(resource.id.as_ref())
}

/// The id of the event for a decision.
pub fn id_of(resource: &Resource<'_>, decision: &Decision) -> String {
    let (generation, since) = (OrNothing(resource.generation), OrNothing(decision.since));
    // None of the parts can hold a line break but the id, and that one stands last.
    let mut cause = String::with_capacity(128);
    let (reason, id) = (decision.reason.cause().as_str(), &resource.id);
    // Writing to a String cannot fail.
    let _infallible = write!(cause, "{SOURCE}\n{generation}\n{reason}\n{since}\n{id}");
    Uuid::new_v5(&Uuid::NAMESPACE_OID, cause.as_bytes()).to_string()
}

/// Writes nothing where there is nothing.
struct OrNothing<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrNothing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |it| it.fmt(f))
    }
}

fn is_name(kind: &str) -> bool {
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=MAX_KIND).contains(&kind.len()) && kind.chars().all(of_a_name)
}

/// `clusters` is a list of `cluster`.
fn singular(resource_type: &str) -> &str {
    resource_type.strip_suffix('s').unwrap_or(resource_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::resource::{Labels, Status};

    fn resource(id: &str, generation: i64) -> Resource<'_> {
        Resource {
            id: id.into(),
            kind: "NodePool".into(),
            generation: Some(generation),
            labels: Labels::default(),
            deleted_time: None,
            status: Status::default(),
        }
    }

    fn decision(reason: Reason, since: i64) -> Decision {
        Decision {
            reason,
            since: Some(Timestamp::from_second(since).unwrap()),
            due: Some(Timestamp::from_second(since + 10).unwrap()),
            observed_ahead: false,
            from_future: false,
            no_progress: false,
        }
    }

    fn build(resource: &Resource<'_>, decision: &Decision) -> CloudEvent {
        let data = RawValue::from_string("{}".to_owned()).unwrap();
        reconcile(resource, decision, data, "nodepools", Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_same_cause_has_the_same_id_and_any_other_has_another() {
        let base = build(&resource("a", 1), &decision(Reason::MaxAgeReady, 5));
        assert_eq!(base.id(), build(&resource("a", 1), &decision(Reason::MaxAgeReady, 5)).id());
        for other in [
            build(&resource("b", 1), &decision(Reason::MaxAgeReady, 5)),
            build(&resource("a", 2), &decision(Reason::MaxAgeReady, 5)),
            build(&resource("a", 1), &decision(Reason::MaxAgeNotReady, 5)),
            build(&resource("a", 1), &decision(Reason::MaxAgeReady, 6)),
        ] {
            assert_ne!(base.id(), other.id());
        }
    }

    #[test]
    fn that_nothing_changes_is_no_other_cause() {
        let due = build(&resource("a", 1), &decision(Reason::MaxAgeNotReady, 5));
        assert_eq!(due.id(), build(&resource("a", 1), &decision(Reason::NoProgress, 5)).id());
        let deleting = build(&resource("a", 1), &decision(Reason::Deleting, 5));
        assert_ne!(deleting.id(), build(&resource("a", 1), &decision(Reason::DeletionRequested, 5)).id());
    }

    #[test]
    fn the_type_carries_the_kind_in_lower_case() {
        let event = build(&resource("a", 1), &decision(Reason::MaxAgeReady, 5));
        assert_eq!(event.attributes().ty, "com.redhat.hyperfleet.nodepool.reconcile");
        assert_eq!(event.attributes().source, "hyperfleet-sentinel");
        assert_eq!((event.attributes().subject.as_deref(), event.supersedes()), (None, Some("a")));
        let mut nameless = resource("a", 1);
        nameless.kind = "".into();
        let event = build(&nameless, &decision(Reason::MaxAgeReady, 5));
        assert_eq!(event.attributes().ty, "com.redhat.hyperfleet.nodepool.reconcile");
        assert_eq!(singular("wifconfig"), "wifconfig");
    }

    #[test]
    fn a_kind_that_is_no_name_does_not_get_into_the_type() {
        for kind in ["Clu\nster", "../../x", "  ", "\0", "a.reconcile", "İ", &"K".repeat(300_000)] {
            let mut forged = resource("a", 1);
            forged.kind = kind.to_owned().into();
            let event = build(&forged, &decision(Reason::MaxAgeReady, 5));
            assert_eq!(event.attributes().ty, "com.redhat.hyperfleet.nodepool.reconcile");
        }
    }

    #[test]
    fn the_time_is_when_it_became_due() {
        let event = build(&resource("a", 1), &decision(Reason::MaxAgeReady, 5));
        assert_eq!(event.attributes().time, Some(Timestamp::from_second(15).unwrap()));
        let mut undated = decision(Reason::MaxAgeReady, 5);
        undated.due = None;
        assert_eq!(build(&resource("a", 1), &undated).attributes().time, Some(Timestamp::UNIX_EPOCH));
    }
}

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn report(adapter: &str, generation: i32, available: Status, second: i64) -> Report {
    let condition = |(ty, status): (&str, Status)| ReportedCondition {
        last_transition_time: at(second),
        message: None,
        reason: Some("Because".to_owned()),
        status,
        ty: ty.to_owned(),
    };
    let conditions = [("Applied", Status::True), ("Available", available), ("Health", Status::True)];
    Report {
        adapter: adapter.to_owned(),
        conditions: conditions.map(condition).into(),
        created_time: at(second),
        data: serde_json::value::to_raw_value(&()).unwrap().into(),
        last_report_time: at(second),
        metadata: None,
        observed_generation: generation,
    }
}

fn finalized(adapter: &str, generation: i32, second: i64) -> Report {
    let mut report = report(adapter, generation, Status::False, second);
    let mut condition = report.conditions[0].clone();
    condition.ty = "Finalized".to_owned();
    report.conditions.push(condition);
    report
}

/// A resource of two required adapters that goes through a life.
struct Life {
    required: Vec<String>,
    generation: i32,
    updated: i64,
    deletion: Deletion,
    reports: Vec<Report>,
    conditions: Vec<Condition>,
}

impl Life {
    fn new() -> Self {
        let required = vec!["validation".to_owned(), "dns".to_owned()];
        let (reports, conditions, deletion) = (Vec::new(), Vec::new(), Deletion::None);
        let mut life = Self { required, generation: 1, updated: 0, deletion, reports, conditions };
        life.aggregate();
        life
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            generation: self.generation,
            updated_time: at(self.updated),
            deletion: self.deletion,
            required: &self.required,
            reports: &self.reports,
            previous: &self.conditions,
        }
    }

    fn aggregate(&mut self) {
        self.conditions = aggregate(&self.facts());
    }

    fn reported(&mut self, report: Report) {
        self.reports.retain(|stored| stored.adapter != report.adapter);
        self.reports.push(report);
        self.aggregate();
    }

    fn changed(&mut self, second: i64) {
        self.generation += 1;
        self.updated = second;
        self.aggregate();
    }

    /// Status, generation, last update and last transition of a condition.
    fn seen(&self, ty: &str) -> (Status, i32, Timestamp, Timestamp) {
        let condition = self.conditions.iter().find(|condition| condition.ty == ty).unwrap();
        (condition.status, condition.observed_generation, condition.last_updated_time, condition.last_transition_time)
    }

    fn reason(&self, ty: &str) -> &str {
        self.conditions.iter().find(|condition| condition.ty == ty).unwrap().reason.as_deref().unwrap()
    }
}

#[test]
fn a_life_from_creation_to_reconciled_to_changed() {
    let mut life = Life::new();
    assert_eq!(life.seen("Reconciled"), (Status::False, 1, at(0), at(0)));
    assert_eq!(life.seen("LastKnownReconciled"), (Status::False, 1, at(0), at(0)));
    life.reported(report("validation", 1, Status::True, 10));
    assert_eq!(life.seen("Reconciled"), (Status::False, 1, at(10), at(0)));
    assert_eq!(life.seen("LastKnownReconciled"), (Status::False, 1, at(0), at(0)));
    assert_eq!(life.reason("LastKnownReconciled"), "AdaptersMissingReports");
    life.reported(report("dns", 1, Status::True, 20));
    assert_eq!(life.seen("Reconciled"), (Status::True, 1, at(10), at(10)));
    assert_eq!(life.seen("DnsSuccessful"), (Status::True, 1, at(20), at(20)));
    life.changed(30);
    assert_eq!(life.seen("Reconciled"), (Status::False, 2, at(30), at(30)));
    assert_eq!(life.seen("LastKnownReconciled"), (Status::True, 1, at(10), at(10)));
    life.reported(report("dns", 2, Status::True, 40));
    assert_eq!(life.seen("Reconciled"), (Status::False, 2, at(40), at(30)));
    assert_eq!(life.seen("DnsSuccessful"), (Status::True, 2, at(40), at(20)));
    assert_eq!(life.seen("LastKnownReconciled"), (Status::True, 1, at(10), at(10)));
    life.reported(report("validation", 2, Status::True, 50));
    assert_eq!(life.seen("Reconciled"), (Status::True, 2, at(40), at(40)));
    assert_eq!(life.seen("LastKnownReconciled"), (Status::True, 2, at(40), at(10)));
}

#[test]
fn the_last_known_state_outlives_a_failure_of_the_next_generation_only() {
    let mut life = Life::new();
    life.reported(report("validation", 1, Status::True, 10));
    life.reported(report("dns", 1, Status::True, 10));
    life.changed(20);
    life.reported(report("dns", 2, Status::False, 30));
    assert_eq!(life.seen("LastKnownReconciled").0, Status::True);
    life.reported(report("validation", 1, Status::False, 40));
    assert_eq!(life.seen("LastKnownReconciled").0, Status::False);
    assert_eq!(life.reason("LastKnownReconciled"), "AdapterReportedNotAvailable");
    life.reported(report("dns", 2, Status::True, 50));
    life.reported(report("validation", 1, Status::True, 50));
    assert_eq!(life.reason("LastKnownReconciled"), "AdaptersNotAtSameGeneration");
}

#[test]
fn unknown_and_foreign_reports_do_not_count() {
    let mut life = Life::new();
    life.reported(report("validation", 1, Status::Unknown, 10));
    life.reported(report("billing", 1, Status::True, 10));
    assert_eq!(life.conditions.len(), 2);
    assert_eq!(life.seen("Reconciled"), (Status::False, 1, at(0), at(0)));
}

#[test]
fn a_deleted_resource_goes_when_all_finalized_the_current_generation() {
    let mut life = Life::new();
    life.deletion = Deletion::Asked;
    life.changed(10);
    assert!(!is_finalized(&life.facts()));
    life.reported(finalized("dns", 2, 20));
    life.reported(finalized("validation", 1, 20));
    assert!(!is_finalized(&life.facts()));
    life.reported(finalized("validation", 2, 30));
    assert!(is_finalized(&life.facts()));
    life.deletion = Deletion::WaitingForChildren;
    life.aggregate();
    assert!(!is_finalized(&life.facts()));
    assert_eq!(life.seen("Reconciled").0, Status::False);
    assert_eq!(life.reason("Reconciled"), "ReconciledWaitingForChildren");
}

#[test]
fn reports_are_judged_in_the_apis_order() {
    let stored = report("dns", 2, Status::True, 0);
    let now = at(0);
    let judge = |incoming: &Report| judge(3, incoming, Some(&stored), now);
    assert_eq!(judge(&report("dns", 2, Status::True, 1)), Verdict::Store { aggregate: true });
    assert_eq!(judge(&report("dns", 3, Status::True, -5)), Verdict::Store { aggregate: true });
    assert_eq!(judge(&report("dns", 2, Status::True, 0)), Verdict::Same);
    assert!(matches!(judge(&report("dns", 2, Status::True, -1)), Verdict::Discard(_)));
    assert!(matches!(judge(&report("dns", 1, Status::True, 1)), Verdict::Discard(_)));
    assert!(matches!(judge(&report("dns", 4, Status::True, 1)), Verdict::Discard(_)));
    assert!(matches!(judge(&report("dns", 3, Status::Unknown, 1)), Verdict::Discard(_)));
    assert!(matches!(judge(&report("dns", 0, Status::True, 1)), Verdict::Refuse(_)));
    assert_eq!(judge(&report("dns", 3, Status::True, 300)), Verdict::Store { aggregate: true });
    assert!(matches!(judge(&report("dns", 3, Status::True, 301)), Verdict::Refuse(_)));
    assert_eq!(judge(&report("dns", 3, Status::True, -1800)), Verdict::Store { aggregate: true });
    assert!(matches!(judge(&report("dns", 3, Status::True, -1801)), Verdict::Refuse(_)));
    let mut incomplete = report("dns", 1, Status::True, 1);
    incomplete.conditions.pop();
    // An old generation is dropped before anyone looks at the conditions.
    assert!(matches!(judge(&incomplete), Verdict::Discard(_)));
    incomplete.observed_generation = 3;
    assert!(matches!(judge(&incomplete), Verdict::Refuse(_)));
    assert_eq!(super::judge(3, &report("dns", 3, Status::Unknown, 1), None, now), Verdict::Store { aggregate: false });
}

#[test]
fn transition_times_survive_while_the_status_stays() {
    let stored = report("dns", 1, Status::True, 0);
    let mut next = report("dns", 1, Status::False, 10);
    succeed(&mut next, &stored);
    let times: Vec<Timestamp> = next.conditions.iter().map(|condition| condition.last_transition_time).collect();
    assert_eq!(times, [at(0), at(10), at(0)]);
    assert_eq!(next.created_time, at(0));
}

#[test]
fn mirrors_are_named_in_pascal_case() {
    assert_eq!(mirror_type("dns"), "DnsSuccessful");
    assert_eq!(mirror_type("gcp-pull-secret"), "GcpPullSecretSuccessful");
    assert_eq!(mirror_type("a--b"), "ABSuccessful");
}

//! A fleet of any size that exists only as a rule: resource number `i` is computed when someone looks at it.
//!
//! Ids are UUIDv7 in ascending order, labels and specs repeat with a short period, and a few status profiles are shared
//! by all, as ready-made JSON. So a million resources take a few hundred kilobytes, a page is copied together from
//! fragments, and counting by label needs one look per residue of the period.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use crate::aggregation::{Deletion, Facts, aggregate};
use crate::dialect::{Dialect, Phase};
use crate::kind::{Kind, href};
use crate::resource::{Condition, Labels, Report, ReportedCondition, Resource, Status, whole_second};
use crate::view::{ConditionOrder, LabelsPart, Parts, StatusPart};

const REGIONS: [&str; 4] = ["us-east", "us-west", "eu-west", "ap-south"];
const ENVIRONMENTS: [&str; 3] = ["production", "staging", "development"];
const TYPES: [&str; 2] = ["hypershift", "standalone"];
/// After this many resources, labels and specs repeat.
pub(crate) const PERIOD: u32 = 24;
/// Bytes of padding that bring a full resource to about 2 KB, as real specs do.
const SPEC_PADDING: usize = 300;
/// The id of number 0 says that it was created then; every further one a millisecond later.
const FIRST_MILLISECOND: u64 = 1_767_225_600_000;

/// What a synthetic fleet's status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetState {
    /// Every resource is ready and was reported at the moment of seeding: nothing is due.
    Fresh,
    /// Every resource is ready and was last reported a day before: all are due.
    Due,
    /// Of ten: one ready and due, one not ready, one with a newer spec than reported, seven fresh.
    Mixed,
}

/// The status that many resources share.
#[derive(Debug)]
struct Profile {
    generation: i32,
    updated_time: Timestamp,
    conditions: Vec<Condition>,
    reports: Vec<Report>,
    status: Box<RawValue>,
}

/// A synthetic fleet of one kind.
#[derive(Debug)]
pub(crate) struct Synthetic {
    kind: Kind,
    count: u32,
    state: FleetState,
    dialect: Dialect,
    created_time: Timestamp,
    labels: Vec<(Arc<Labels>, Box<RawValue>)>,
    specs: Vec<Arc<RawValue>>,
    profiles: Vec<Profile>,
}

impl Synthetic {
    pub(crate) fn new(
        kind: &Kind,
        count: u32,
        state: FleetState,
        dialect: Dialect,
        now: Timestamp,
    ) -> Result<Self, serde_json::Error> {
        let created_time = whole_second(now.saturating_sub(SignedDuration::from_hours(48)).unwrap_or(now));
        let labels = |residue: u32| {
            let labels: Labels = [
                ("region", REGIONS[residue as usize % 4]),
                ("environment", ENVIRONMENTS[residue as usize / 4 % 3]),
                ("cluster-type", TYPES[residue as usize / 12 % 2]),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
            let raw = to_raw_value(&labels)?;
            Ok((Arc::new(labels), raw))
        };
        let seconds = |back: i64| now.saturating_sub(SignedDuration::from_secs(back)).unwrap_or(now);
        let profile = |generation: i32, reported: i32, available: Status, back: i64| {
            Profile::new(kind, dialect, created_time, [generation, reported], available, whole_second(seconds(back)))
        };
        Ok(Self {
            kind: kind.clone(),
            count,
            state,
            dialect,
            created_time,
            labels: (0..PERIOD).map(labels).collect::<Result<_, serde_json::Error>>()?,
            specs: (0..PERIOD).map(spec).collect::<Result<_, _>>()?,
            profiles: vec![
                profile(1, 1, Status::True, 0)?,
                profile(1, 1, Status::True, 86_400)?,
                profile(1, 1, Status::False, 3_600)?,
                profile(2, 1, Status::True, 60)?,
            ],
        })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The millisecond of the last id, after which every created resource's id must lie.
    pub(crate) fn last_millisecond(&self) -> u64 {
        FIRST_MILLISECOND + u64::from(self.count)
    }

    pub(crate) fn id(index: u32) -> String {
        uuid(index).to_string()
    }

    /// The number of the resource with that id.
    pub(crate) fn index(&self, id: &str) -> Option<u32> {
        let parsed = Uuid::try_parse(id).ok()?;
        let millisecond = u64::try_from(parsed.as_u128() >> 80).ok()?;
        let index = u32::try_from(millisecond.checked_sub(FIRST_MILLISECOND)?).ok()?;
        (index < self.count && Self::id(index) == id).then_some(index)
    }

    /// The first number whose id is greater than `id`.
    pub(crate) fn first_after(&self, id: &str) -> u32 {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if Self::id(middle).as_str() > id {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    pub(crate) fn name(&self, index: u32) -> String {
        format!("{}-{index:07}", self.kind.name.to_lowercase())
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        let number = name.rsplit_once('-').and_then(|(_, number)| number.parse::<u32>().ok());
        number.is_some_and(|index| index < self.count && self.name(index) == name)
    }

    pub(crate) fn labels(&self, index: u32) -> &Labels {
        &self.labels[(index % PERIOD) as usize].0
    }

    pub(crate) fn spec(&self, index: u32) -> &RawValue {
        &self.specs[(index % PERIOD) as usize]
    }

    pub(crate) fn created_time(&self) -> Timestamp {
        self.created_time
    }

    pub(crate) fn updated_time(&self, index: u32) -> Timestamp {
        self.profile(index).updated_time
    }

    pub(crate) fn generation(&self, index: u32) -> i32 {
        self.profile(index).generation
    }

    pub(crate) fn conditions(&self, index: u32) -> &[Condition] {
        &self.profile(index).conditions
    }

    /// How many of all are ready.
    pub(crate) fn ready(&self) -> u64 {
        let ready = |index: &u32| {
            let conditions = self.conditions(*index);
            conditions.iter().any(|condition| condition.ty == "Reconciled" && condition.status == Status::True)
        };
        let period = 10.min(self.count);
        let per_period: Vec<bool> = (0..period).map(|index| ready(&index)).collect();
        let whole = u64::from(self.count / 10) * per_period.iter().filter(|ready| **ready).count() as u64;
        let rest = per_period.iter().take(self.count as usize % 10).filter(|ready| **ready).count() as u64;
        whole + rest
    }

    fn profile(&self, index: u32) -> &Profile {
        let profile = match (self.state, index % 10) {
            (FleetState::Fresh, _) | (FleetState::Mixed, 3..) => 0,
            (FleetState::Due, _) | (FleetState::Mixed, 0) => 1,
            (FleetState::Mixed, 1) => 2,
            (FleetState::Mixed, _) => 3,
        };
        &self.profiles[profile]
    }

    /// Hands the parts of one resource to a writer.
    pub(crate) fn with_parts<T>(&self, index: u32, order: ConditionOrder, write: impl FnOnce(&Parts<'_>) -> T) -> T {
        let (id, name) = (Self::id(index), self.name(index));
        let profile = self.profile(index);
        let status = match order {
            ConditionOrder::ByType if !self.dialect.has_phase() => StatusPart::Conditions(&profile.conditions, order),
            ConditionOrder::ByType | ConditionOrder::AsWritten => StatusPart::Raw(&profile.status),
        };
        write(&Parts {
            id: &id,
            name: &name,
            href: &href(&self.kind, &id, None),
            generation: profile.generation,
            labels: LabelsPart::Raw(&self.labels[(index % PERIOD) as usize].1),
            spec: self.spec(index),
            owner: None,
            created_time: self.created_time,
            updated_time: profile.updated_time,
            deleted_time: None,
            status,
        })
    }

    /// The resource as a stored one, for when it is about to change.
    pub(crate) fn materialise(&self, index: u32) -> Resource {
        let (id, profile) = (Self::id(index), self.profile(index));
        Resource {
            kind: self.kind.name.clone(),
            name: self.name(index),
            href: href(&self.kind, &id, None),
            generation: profile.generation,
            labels: Arc::clone(&self.labels[(index % PERIOD) as usize].0),
            spec: Arc::clone(&self.specs[(index % PERIOD) as usize]),
            owner: None,
            created_time: self.created_time,
            updated_time: profile.updated_time,
            deleted_time: None,
            conditions: profile.conditions.clone(),
            reports: profile.reports.clone(),
            id,
        }
    }
}

impl Profile {
    fn new(
        kind: &Kind,
        dialect: Dialect,
        created_time: Timestamp,
        [generation, reported_generation]: [i32; 2],
        available: Status,
        reported: Timestamp,
    ) -> Result<Self, serde_json::Error> {
        let report = |adapter: &String| {
            let condition = |(ty, status): (&str, Status)| ReportedCondition {
                last_transition_time: reported,
                message: None,
                reason: Some("Synthetic".to_owned()),
                status,
                ty: ty.to_owned(),
            };
            let conditions = [("Applied", Status::True), ("Available", available), ("Health", Status::True)];
            Ok(Report {
                adapter: adapter.clone(),
                conditions: conditions.map(condition).into(),
                created_time: reported,
                data: RawValue::from_string("{}".to_owned())?.into(),
                last_report_time: reported,
                metadata: None,
                observed_generation: reported_generation,
            })
        };
        let reports: Vec<Report> =
            kind.required_adapters.iter().map(report).collect::<Result<_, serde_json::Error>>()?;
        let facts = |generation, updated_time, previous| Facts {
            generation,
            updated_time,
            deletion: Deletion::None,
            required: &kind.required_adapters,
            reports: &reports,
            previous,
        };
        let mut conditions = aggregate(&facts(reported_generation, created_time, &[]));
        let mut updated_time = created_time;
        if generation > reported_generation {
            updated_time = reported;
            conditions = aggregate(&facts(generation, updated_time, &conditions));
        }
        let status = if dialect.has_phase() {
            to_raw_value(&Phase::of(dialect, kind, generation, updated_time, &conditions))?
        } else {
            to_raw_value(&StatusPart::Conditions(&conditions, ConditionOrder::AsWritten))?
        };
        Ok(Self { generation, updated_time, conditions, reports, status })
    }
}

fn uuid(index: u32) -> Uuid {
    // Bits that look drawn, and are the same every time.
    let mixed = u128::from(u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15)) * 0xD129_0A5C_9B71_4E6B_u128;
    let mut random = [0; 10];
    random.copy_from_slice(&mixed.to_be_bytes()[4..14]);
    uuid::Builder::from_unix_timestamp_millis(FIRST_MILLISECOND + u64::from(index), &random).into_uuid()
}

fn spec(residue: u32) -> Result<Arc<RawValue>, serde_json::Error> {
    let spec = serde_json::json!({
        "platform": { "type": "gcp", "gcp": { "project": "fleet-prod", "region": REGIONS[residue as usize % 4] } },
        "release": { "version": format!("4.19.{residue}"), "channel": "stable-4.19" },
        "replicas": 3 + residue % 5,
        "networking": { "clusterNetwork": "10.128.0.0/14", "serviceNetwork": "172.30.0.0/16", "hostPrefix": 23 },
        "features": ["autoscaling", "encryption", "audit-logs", "workload-identity"],
        "notes": "x".repeat(SPEC_PADDING),
    });
    RawValue::from_string(spec.to_string()).map(Arc::from)
}

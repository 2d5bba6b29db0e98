//! All resources of one kind: those that were written, and a synthetic fleet below them.
//!
//! Synthetic resources come first in the order of ids, and are stored only once they change. A page by key costs what
//! its rows cost: the position of a key is computed, and totals over ids and labels are counted without a scan. A
//! search over anything else, a page deep into a filtered list, and an unusual order look at every resource.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use jiff::Timestamp;

use crate::kind::Kind;
use crate::resource::{Condition, Labels, Resource};
use crate::search::{ConditionField, Expr, Field, Value};
use crate::synthetic::{PERIOD, Synthetic};
use crate::view::{self, AUTHOR, Style};

/// The resources of one kind.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) kind: Kind,
    pub(crate) synthetic: Option<Synthetic>,
    /// Synthetic resources that changed; `None` is one that was removed.
    touched: HashMap<u32, Option<Box<Resource>>>,
    /// Touched ones whose labels no longer follow the rule, or that were removed.
    odd: BTreeSet<u32>,
    rows: BTreeMap<String, Resource>,
    /// Names taken, each below its owner.
    names: HashSet<(Option<String>, String)>,
    /// Whether the order of ids is the order of creation: no creator chose an id.
    pub(crate) chronological: bool,
}

/// One resource, stored or synthetic.
#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    Synthetic(&'a Synthetic, u32),
    Stored(&'a Resource),
}

/// A column to order by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) field: Field,
    pub(crate) descending: bool,
}

/// Which rows of a list are wanted.
#[derive(Default)]
pub(crate) struct Query<'a> {
    pub(crate) skip: u64,
    pub(crate) take: u64,
    pub(crate) order: &'a [Column],
    pub(crate) after: Option<&'a str>,
    pub(crate) rest: Option<&'a Expr>,
    pub(crate) only_labels: bool,
    pub(crate) owner: Option<&'a str>,
}

impl<'a> Row<'a> {
    pub(crate) fn labels(self) -> &'a Labels {
        match self {
            Self::Synthetic(synthetic, index) => synthetic.labels(index),
            Self::Stored(resource) => &resource.labels,
        }
    }

    pub(crate) fn conditions(self) -> &'a [Condition] {
        match self {
            Self::Synthetic(synthetic, index) => synthetic.conditions(index),
            Self::Stored(resource) => &resource.conditions,
        }
    }

    pub(crate) fn id(self) -> String {
        match self {
            Self::Synthetic(_, index) => Synthetic::id(index),
            Self::Stored(resource) => resource.id.clone(),
        }
    }

    fn owner(self) -> Option<&'a str> {
        match self {
            Self::Synthetic(..) => None,
            Self::Stored(resource) => resource.owner.as_ref().map(|owner| owner.id.as_str()),
        }
    }

    pub(crate) fn write(self, out: &mut Vec<u8>, style: Style<'_>) {
        match self {
            Self::Synthetic(synthetic, index) => {
                synthetic.with_parts(index, style.order, |parts| view::write(out, parts, style));
            }
            Self::Stored(resource) => view::write_resource(out, resource, style),
        }
    }

    fn value(self, kind: &'a Kind, field: &Field) -> Value<'a> {
        let optional = |time: Option<Timestamp>| time.map_or(Value::Null, Value::Time);
        match (field, self) {
            (Field::Id, Self::Synthetic(_, index)) => Value::Owned(Synthetic::id(index)),
            (Field::Id, Self::Stored(resource)) => Value::Text(&resource.id),
            (Field::Name, Self::Synthetic(synthetic, index)) => Value::Owned(synthetic.name(index)),
            (Field::Name, Self::Stored(resource)) => Value::Text(&resource.name),
            (Field::Kind, _) => Value::Text(&kind.name),
            (Field::Generation, Self::Synthetic(synthetic, index)) => Value::Number(synthetic.generation(index).into()),
            (Field::Generation, Self::Stored(resource)) => Value::Number(resource.generation.into()),
            (Field::CreatedTime, Self::Synthetic(synthetic, _)) => Value::Time(synthetic.created_time()),
            (Field::CreatedTime, Self::Stored(resource)) => Value::Time(resource.created_time),
            (Field::UpdatedTime, Self::Synthetic(synthetic, index)) => Value::Time(synthetic.updated_time(index)),
            (Field::UpdatedTime, Self::Stored(resource)) => Value::Time(resource.updated_time),
            (Field::DeletedTime, Self::Synthetic(..)) => Value::Null,
            (Field::DeletedTime, Self::Stored(resource)) => optional(resource.deleted_time),
            (Field::Author, _) => Value::Text(AUTHOR),
            (Field::OwnerId, row) => row.owner().map_or(Value::Null, Value::Text),
            (Field::Label(key), row) => row.labels().get(key).map_or(Value::Null, |value| Value::Text(value)),
            (Field::Spec(path), Self::Synthetic(synthetic, index)) => spec_value(synthetic.spec(index).get(), path),
            (Field::Spec(path), Self::Stored(resource)) => spec_value(resource.spec.get(), path),
            (Field::Condition(ty, field), row) => {
                let condition = row.conditions().iter().find(|condition| condition.ty == *ty);
                condition.map_or(Value::Null, |condition| match field {
                    ConditionField::Status => Value::Text(condition.status.as_str()),
                    ConditionField::LastUpdatedTime => Value::Time(condition.last_updated_time),
                    ConditionField::LastTransitionTime => Value::Time(condition.last_transition_time),
                    ConditionField::ObservedGeneration => Value::Number(condition.observed_generation.into()),
                })
            }
        }
    }
}

/// The text of a field within a spec, as the database's `->>` has it.
fn spec_value(spec: &str, path: &[String]) -> Value<'static> {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(spec) else { return Value::Null };
    for segment in path {
        value = value.get_mut(segment).map(serde_json::Value::take).unwrap_or_default();
    }
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::String(text) => Value::Owned(text),
        other => Value::Owned(other.to_string()),
    }
}

impl Table {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            synthetic: None,
            touched: HashMap::new(),
            odd: BTreeSet::new(),
            rows: BTreeMap::new(),
            names: HashSet::new(),
            chronological: true,
        }
    }

    fn index(&self, id: &str) -> Option<u32> {
        self.synthetic.as_ref()?.index(id)
    }

    fn row(&self, index: u32) -> Option<Row<'_>> {
        match self.touched.get(&index) {
            None => self.synthetic.as_ref().map(|synthetic| Row::Synthetic(synthetic, index)),
            Some(touched) => touched.as_deref().map(Row::Stored),
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Row<'_>> {
        match self.index(id) {
            Some(index) => self.row(index),
            None => self.rows.get(id).map(Row::Stored),
        }
    }

    /// The stored resource, which becomes one if it was synthetic.
    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut Resource> {
        match (self.index(id), &self.synthetic) {
            (Some(index), Some(synthetic)) => {
                let touched = self.touched.entry(index);
                touched.or_insert_with(|| Some(Box::new(synthetic.materialise(index)))).as_deref_mut()
            }
            _ => self.rows.get_mut(id),
        }
    }

    /// Must follow a change of labels.
    pub(crate) fn relabelled(&mut self, id: &str) {
        self.odd.extend(self.index(id));
    }

    pub(crate) fn insert(&mut self, resource: Resource) {
        self.names.insert((resource.owner.as_ref().map(|owner| owner.id.clone()), resource.name.clone()));
        self.rows.insert(resource.id.clone(), resource);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        if let Some(index) = self.index(id) {
            self.touched.insert(index, None);
            self.odd.insert(index);
        } else if let Some(resource) = self.rows.remove(id) {
            self.names.remove(&(resource.owner.map(|owner| owner.id), resource.name));
        }
    }

    pub(crate) fn has_name(&self, owner: Option<&str>, name: &str) -> bool {
        self.names.contains(&(owner.map(str::to_owned), name.to_owned()))
            || self.synthetic.as_ref().is_some_and(|synthetic| synthetic.has_name(name))
    }

    /// The ids of what `owner` owns.
    pub(crate) fn owned_by(&self, owner: &str) -> Vec<String> {
        let children = self.rows.values().filter(|row| row.owner.as_ref().is_some_and(|it| it.id == owner));
        children.map(|row| row.id.clone()).collect()
    }

    /// How many there are, and what is stored of them.
    pub(crate) fn census(&self) -> (u64, u64, impl Iterator<Item = &Resource>) {
        let as_seeded = |number: &u32| self.synthetic.as_ref().map(|synthetic| Row::Synthetic(synthetic, *number));
        let ready = |row: &Row<'_>| {
            let conditions = row.conditions().iter();
            conditions.clone().any(|it| it.ty == "Reconciled" && it.status == crate::resource::Status::True)
        };
        let replaced = self.touched.keys().filter_map(as_seeded).filter(ready).count() as u64;
        let synthetic = self.synthetic.as_ref();
        let pristine = synthetic.map_or(0, |it| u64::from(it.count())) - self.touched.len() as u64;
        let pristine_ready = synthetic.map_or(0, Synthetic::ready) - replaced;
        (pristine, pristine_ready, self.touched.values().flatten().map(Box::as_ref).chain(self.rows.values()))
    }

    fn count_of_synthetic(&self) -> u32 {
        self.synthetic.as_ref().map_or(0, Synthetic::count)
    }

    fn rows_after(&self, after: Option<&str>) -> impl DoubleEndedIterator<Item = &Resource> + Clone {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range::<str, _>((from, Bound::Unbounded)).map(|(_, row)| row)
    }

    /// Emits the wanted rows in order and returns how many match in all.
    pub(crate) fn list<'a>(&'a self, query: &Query<'_>, emit: &mut dyn FnMut(Row<'a>)) -> u64 {
        let natural = match query.order {
            [] => Some(true),
            [Column { field: Field::Id, descending }, ..] => Some(*descending),
            [Column { field: Field::CreatedTime, descending }, ..] if self.chronological => Some(*descending),
            _ => None,
        };
        match natural {
            None => self.list_sorted(query, emit),
            Some(descending) => match self.count(query) {
                Some(total) => {
                    self.emit_natural(query, descending, emit);
                    total
                }
                None => self.emit_natural(query, descending, emit),
            },
        }
    }

    fn matches(&self, query: &Query<'_>, row: Row<'_>) -> bool {
        query.owner.is_none_or(|owner| row.owner() == Some(owner))
            && query.rest.is_none_or(|rest| rest.matches(&|field| row.value(&self.kind, field)))
    }

    /// Counts without a scan of the synthetic fleet, where that is possible.
    fn count(&self, query: &Query<'_>) -> Option<u64> {
        if query.owner.is_some() || (query.rest.is_some() && !query.only_labels) {
            return None;
        }
        let start = self.start(query.after);
        let odd = self.odd.range(start..);
        let Some(rest) = query.rest else {
            let gone = odd.filter(|index| self.row(**index).is_none()).count();
            let stored = if query.after.is_none() { self.rows.len() } else { self.rows_after(query.after).count() };
            return Some(u64::from(self.count_of_synthetic() - start) - gone as u64 + stored as u64);
        };
        let by_rule = |labels: &Labels| {
            let lookup = |field: &Field| match field {
                Field::Label(key) => labels.get(key).map_or(Value::Null, |value| Value::Text(value)),
                _ => Value::Null,
            };
            rest.matches(&lookup)
        };
        let mut total = self.rows_after(query.after).filter(|row| by_rule(&row.labels)).count() as u64;
        if let Some(synthetic) = &self.synthetic {
            for residue in (0..PERIOD).filter(|residue| by_rule(synthetic.labels(*residue))) {
                let below = |end: u32| u64::from(end / PERIOD + u32::from(end % PERIOD > residue));
                total += below(synthetic.count()) - below(start);
            }
            for &index in odd {
                total -= u64::from(by_rule(synthetic.labels(index)));
                total += u64::from(self.row(index).is_some_and(|row| by_rule(row.labels())));
            }
        }
        Some(total)
    }

    fn start(&self, after: Option<&str>) -> u32 {
        self.synthetic.as_ref().zip(after).map_or(0, |(synthetic, after)| synthetic.first_after(after))
    }

    /// Walks in the order of ids; returns the number of matches if it had to look at all rows, see `count`.
    fn emit_natural<'a>(&'a self, query: &Query<'_>, descending: bool, emit: &mut dyn FnMut(Row<'a>)) -> u64 {
        let (mut start, mut end) = (self.start(query.after), self.count_of_synthetic());
        let mut skip = query.skip;
        let filtered = query.rest.is_some() || query.owner.is_some();
        let mut stored = self.rows_after(query.after);
        if !filtered && self.odd.is_empty() {
            // Without holes a position is a number.
            if descending {
                let above = stored.clone().count() as u64;
                if skip >= above {
                    stored = self.rows_after(Some("\u{10FFFF}"));
                    end = u32::try_from(u64::from(end).saturating_sub(skip - above)).unwrap_or(0).max(start);
                    skip = 0;
                }
            } else {
                let jump = skip.min(u64::from(end - start));
                start += u32::try_from(jump).unwrap_or(0);
                skip -= jump;
            }
        }
        let rows = (start..end).filter_map(|index| self.row(index)).chain(stored.map(Row::Stored));
        let whole = self.count(query).is_none();
        let mut page = Page { skip, take: query.take, seen: 0, whole };
        let mut visit = |row: Row<'a>| -> bool { !self.matches(query, row) || page.visit(|| emit(row)) };
        if descending {
            rows.rev().all(&mut visit);
        } else {
            let mut rows = rows;
            rows.all(&mut visit);
        }
        page.seen
    }

    fn list_sorted<'a>(&'a self, query: &Query<'_>, emit: &mut dyn FnMut(Row<'a>)) -> u64 {
        let all = (self.start(query.after)..self.count_of_synthetic()).filter_map(|index| self.row(index));
        let all = all.chain(self.rows_after(query.after).map(Row::Stored)).filter(|row| self.matches(query, *row));
        let key = |row: Row<'a>| query.order.iter().map(|it| row.value(&self.kind, &it.field)).collect::<Vec<_>>();
        let mut sorted: Vec<(Vec<Value<'a>>, Row<'a>)> = all.map(|row| (key(row), row)).collect();
        sorted.sort_by(|(left, _), (right, _)| {
            let pairs = left.iter().zip(right).zip(query.order);
            let orders = pairs.map(|((left, right), column)| {
                let order = left.order(right);
                if column.descending { order.reverse() } else { order }
            });
            orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        });
        let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
        let take = usize::try_from(query.take).unwrap_or(usize::MAX);
        for (_, row) in sorted.iter().skip(skip).take(take) {
            emit(*row);
        }
        sorted.len() as u64
    }
}

struct Page {
    skip: u64,
    take: u64,
    seen: u64,
    whole: bool,
}

impl Page {
    /// Counts a match, emits it if it is on the page, and says whether to go on.
    fn visit(&mut self, emit: impl FnOnce()) -> bool {
        if self.seen >= self.skip && self.seen - self.skip < self.take {
            emit();
        }
        self.seen += 1;
        self.whole || self.seen < self.skip + self.take
    }
}

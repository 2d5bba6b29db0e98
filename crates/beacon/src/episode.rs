//! Where it is decided what becomes of an object: whether an episode begins, ends, or goes on.
//!
//! Nothing here asks a clock or a cluster. What is absent from the answer to a list that came to its end is gone; of
//! whoever did not answer nothing is concluded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// The annotation that makes an object one that is announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its key.
    pub key: String,
    /// The values that count; none means any.
    pub values: Option<HashSet<String>>,
}

impl Rule {
    /// The value of the annotation, if it makes the object one that is announced.
    pub fn value<'a>(&self, annotations: &'a BTreeMap<String, String>) -> Option<&'a str> {
        let value = annotations.get(&self.key)?;
        self.values.as_ref().is_none_or(|values| values.contains(value)).then_some(value.as_str())
    }
}

/// What of an object is sent; none means all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    /// Annotations.
    pub annotations: Vec<String>,
    /// Labels.
    pub labels: Option<Vec<String>>,
}

/// An object as a watch or a list has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Empty where the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity: another object under the same name has another.
    pub uid: String,
    /// All of its annotations.
    pub annotations: BTreeMap<String, String>,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// As the API server counts.
    pub resource_version: String,
}

/// What is told of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Empty where the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// The value of the annotation.
    pub value: String,
    /// Those that are sent.
    pub annotations: BTreeMap<String, String>,
    /// Those that are sent.
    pub labels: BTreeMap<String, String>,
    /// When it was taken, as the API server counts.
    pub resource_version: String,
}

/// How it was found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The object came or went while it was watched.
    Watch,
    /// The annotation came or went while the object was watched.
    Mutation,
    /// Cluster and ledger differed.
    Reconciliation,
}

impl Source {
    /// As the ledger and metrics have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Mutation => "mutation",
            Self::Reconciliation => "reconciliation",
        }
    }
}

/// What the ledger has to note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An episode begins.
    Begin(Snapshot, Source),
    /// What would be told of it is another.
    Change(Snapshot),
    /// The episode of this UID is over.
    End(String, Source),
}

/// Whether a scope was ever listed to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    /// It was not: what is found was not missed.
    First,
    /// It was.
    Again,
}

/// How something was heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// In a list, which may differ from what was known.
    List,
    /// In a watch, as it happened.
    Watch,
    /// By asking for one object, since cluster and ledger seemed to differ.
    Question,
}

/// An episode that is going on.
#[derive(Debug)]
struct Open {
    uid: Box<str>,
    /// A hash of what would be told of it.
    told: u64,
}

/// What is known of the objects of one scope: enough to decide, and little for each.
#[derive(Debug, Default)]
pub struct Known {
    /// The episodes that are going on, by namespace and name.
    open: HashMap<Box<str>, Open>,
    /// Objects without the annotation, by a hash of their UID: whoever gets it later was changed, and not made.
    plain: HashSet<u64>,
    /// What a list that is under way has had so far.
    listed: Option<Listed>,
    /// The versions that the answers to questions had, by a hash of the UID and by one of the name, where a watch may
    /// still tell of what was before; of objects that are no more, the last that there can be.
    asked: HashMap<u64, u64>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Listed {
    first: bool,
    open: HashSet<Box<str>>,
    plain: HashSet<u64>,
}

impl Known {
    /// Takes over an episode from the ledger.
    pub fn remember(&mut self, snapshot: &Snapshot) {
        let open = Open { uid: snapshot.uid.as_str().into(), told: self.hasher.hash_one(snapshot.told()) };
        self.open.insert(key(&snapshot.namespace, &snapshot.name), open);
    }

    /// How many episodes are going on.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether a list is under way: it may be older than the answer to a question.
    pub fn is_listing(&self) -> bool {
        self.listed.is_some()
    }

    /// A list begins; one that was under way did not come to its end, and says nothing about what is absent from it.
    pub fn list_begins(&mut self, lists: Lists) {
        self.listed = Some(Listed { first: lists == Lists::First, ..Listed::default() });
    }

    /// A list has come to its end: what it does not have is gone.
    pub fn list_ends(&mut self) -> Vec<Step> {
        let Some(Listed { open: listed, plain, .. }) = self.listed.take() else { return Vec::new() };
        self.plain = plain;
        self.asked.clear();
        let mut ended = Vec::new();
        self.open.retain(|key, open| {
            let stays = listed.contains(key);
            if !stays {
                ended.push(Step::End(open.uid.clone().into(), Source::Reconciliation));
            }
            stays
        });
        ended
    }

    /// An object is there, as it is now.
    pub fn applied(&mut self, object: Object, heard: Heard, rule: &Rule, allowed: &Allowed) -> Vec<Step> {
        let mut steps = Vec::new();
        let at = key(&object.namespace, &object.name);
        let uid = self.hasher.hash_one(&object.uid);
        if self.is_behind([uid, self.hasher.hash_one(&at)], &object.resource_version, heard) {
            return steps;
        }
        let found = self.found(heard);
        // Another object under the name: the one before is gone, whether or not anybody said so.
        if let Some(open) = self.open.get(&at)
            && *open.uid != *object.uid
        {
            steps.push(Step::End(open.uid.clone().into(), found));
            let gone = self.hasher.hash_one(&*open.uid);
            self.open.remove(&at);
            if heard == Heard::Question {
                self.asked.insert(gone, u64::MAX);
            }
        }
        let Some(snapshot) = snapshot(object, rule, allowed) else {
            if let Some(open) = self.open.remove(&at) {
                steps.push(Step::End(open.uid.into(), if heard == Heard::Watch { Source::Mutation } else { found }));
            }
            match &mut self.listed {
                Some(listed) => listed.plain.insert(uid),
                None => self.plain.insert(uid),
            };
            return steps;
        };
        if let Some(listed) = &mut self.listed {
            listed.open.insert(at.clone());
        }
        let was_plain = self.plain.remove(&uid);
        let told = self.hasher.hash_one(snapshot.told());
        match self.open.get_mut(&at) {
            // Whoever asks knows that the ledger has it otherwise.
            Some(open) if open.told == told && heard == Heard::Question => steps.push(Step::Begin(snapshot, found)),
            Some(open) if open.told == told => {}
            Some(open) => {
                open.told = told;
                steps.push(Step::Change(snapshot));
            }
            None => {
                self.open.insert(at, Open { uid: snapshot.uid.as_str().into(), told });
                let source = if was_plain && heard == Heard::Watch { Source::Mutation } else { found };
                steps.push(Step::Begin(snapshot, source));
            }
        }
        steps
    }

    /// An object is no more.
    pub fn deleted(&mut self, namespace: &str, name: &str, uid: &str, heard: Heard) -> Option<Step> {
        let hash = self.hasher.hash_one(uid);
        self.plain.remove(&hash);
        if heard == Heard::Question {
            self.asked.insert(hash, u64::MAX);
        } else {
            self.asked.remove(&hash);
        }
        let at = key(namespace, name);
        self.open.get(&at).filter(|open| *open.uid == *uid)?;
        let open = self.open.remove(&at)?;
        Some(Step::End(open.uid.into(), self.found(heard)))
    }

    fn found(&self, heard: Heard) -> Source {
        match heard {
            Heard::Watch => Source::Watch,
            // Nothing was missed of what was never listed before.
            Heard::List if self.listed.as_ref().is_some_and(|listed| listed.first) => Source::Watch,
            Heard::List | Heard::Question => Source::Reconciliation,
        }
    }

    /// Whether a watch tells of what was before somebody asked: of the object, or of another one under its name.
    fn is_behind(&mut self, about: [u64; 2], version: &str, heard: Heard) -> bool {
        let version = version.parse().unwrap_or(u64::MAX - 1);
        match heard {
            Heard::Question => self.asked.extend(about.map(|about| (about, version))),
            // It is of its own time, and ends what was asked before.
            Heard::List => {}
            Heard::Watch => {
                if about.iter().any(|about| self.asked.get(about).is_some_and(|asked| version < *asked)) {
                    return true;
                }
                for about in about {
                    self.asked.remove(&about);
                }
            }
        }
        false
    }
}

impl Snapshot {
    /// What makes it another one: not the version, which changes with whatever nobody is told of.
    fn told(&self) -> (&str, &BTreeMap<String, String>, &BTreeMap<String, String>) {
        (&self.value, &self.annotations, &self.labels)
    }
}

/// What is told of an object, if it is one that is announced.
fn snapshot(object: Object, rule: &Rule, allowed: &Allowed) -> Option<Snapshot> {
    let value = rule.value(&object.annotations)?.to_owned();
    let Object { namespace, name, uid, mut annotations, mut labels, resource_version } = object;
    annotations.retain(|key, _| allowed.annotations.contains(key));
    if let Some(allowed) = &allowed.labels {
        labels.retain(|key, _| allowed.contains(key));
    }
    Some(Snapshot { namespace, name, uid, value, annotations, labels, resource_version })
}

fn key(namespace: &str, name: &str) -> Box<str> {
    [namespace, "/", name].concat().into()
}

#[cfg(test)]
mod tests;

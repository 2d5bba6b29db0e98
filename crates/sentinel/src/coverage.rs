//! Tells which resources no selector covers, and which several do: what sentinels that share a fleet can't see alone.
//!
//! Resources are taken one by one as the list is read; only the first of each kind of finding are kept, so that a fleet
//! of any size fits. What a sentinel could not read is a finding of its own: nobody would publish it.

use std::collections::BTreeMap;

use serde::Serialize;
use watchfire_runtime::chain;

use crate::api::paging::{Pages, Query};
use crate::api::{Api, Error, OnFailure};
use crate::resource::Resource;
use crate::selector::Selector;

/// How the sentinels of one list divide it.
#[derive(Debug, Serialize)]
pub struct Coverage {
    /// Where the list is.
    pub endpoint: String,
    /// The plural, such as `clusters`.
    pub resource_type: String,
    /// How many resources the API listed.
    pub resources: u64,
    /// How many more it counted, and did not list.
    pub unlisted: u64,
    /// How many of them exactly one selector covers.
    pub covered_once: u64,
    /// What no selector covers.
    pub uncovered: Findings,
    /// What more than one selector covers.
    pub overlapping: Findings,
    /// What no sentinel can read, and so none publishes.
    pub unreadable: Findings,
    /// Each sentinel's share.
    pub shares: Vec<Share>,
    #[serde(skip)]
    keep: usize,
}

/// One sentinel's share of a list.
#[derive(Debug, Serialize)]
pub struct Share {
    /// The configuration.
    pub file: String,
    /// What it selects, in Kubernetes syntax; nothing selects everything.
    pub selector: Option<String>,
    /// How many resources it covers.
    pub resources: u64,
    #[serde(skip)]
    compiled: Selector,
}

/// Resources of one kind of finding: how many, and the first of them.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Vec<Finding>,
}

/// One resource that is not covered exactly once.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its id, where it has one.
    pub id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The configurations that cover it.
    pub files: Vec<String>,
    /// Why it can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Findings {
    fn add(&mut self, keep: usize, finding: impl FnOnce() -> Finding) {
        self.count += 1;
        if self.first.len() < keep {
            self.first.push(finding());
        }
    }
}

impl Coverage {
    /// Begins with an empty list; `keep` findings of each kind are kept.
    pub fn new(endpoint: String, resource_type: String, keep: usize) -> Self {
        Self {
            endpoint,
            resource_type,
            resources: 0,
            unlisted: 0,
            covered_once: 0,
            uncovered: Findings::default(),
            overlapping: Findings::default(),
            unreadable: Findings::default(),
            shares: Vec::new(),
            keep,
        }
    }

    /// Adds a sentinel of this list.
    pub fn share(&mut self, file: String, selector: Selector) {
        self.shares.push(Share { file, selector: selector.labels(), resources: 0, compiled: selector });
    }

    /// Takes one item of the list.
    pub fn take(&mut self, item: &str) {
        self.resources += 1;
        let resource = match Resource::parse(item) {
            Ok(resource) => resource,
            Err(error) => {
                let id = crate::resource::parse_id(item).map(std::borrow::Cow::into_owned).unwrap_or_default();
                let error = Some(chain(&error));
                let finding = || Finding { id, labels: BTreeMap::new(), files: Vec::new(), error };
                return self.unreadable.add(self.keep, finding);
            }
        };
        let mut covering = Vec::new();
        for (index, share) in self.shares.iter_mut().enumerate() {
            if share.compiled.matches(&resource.labels) {
                share.resources += 1;
                covering.push(index);
            }
        }
        let finding = || Finding {
            id: resource.id.clone().into_owned(),
            labels: resource.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            files: covering.iter().map(|&index| self.shares[index].file.clone()).collect(),
            error: None,
        };
        match covering.len() {
            0 => self.uncovered.add(self.keep, finding),
            1 => self.covered_once += 1,
            _ => self.overlapping.add(self.keep, finding),
        }
    }

    /// Whether every resource is listed, and covered exactly once.
    pub fn is_exact(&self) -> bool {
        self.covered_once == self.resources && self.unlisted == 0
    }

    /// Reads the whole list; `progress` hears how many were read after each page.
    pub async fn read(
        &mut self,
        api: &Api,
        failed: OnFailure<'_>,
        progress: impl Fn(u64) + Send + Sync,
    ) -> Result<(), Error> {
        let query = Query::default();
        let mut pages = Pages::new(api, &query, failed);
        while let Some(page) = pages.next().await? {
            page.items().for_each(|item| self.take(item));
            progress(self.resources);
        }
        self.unlisted = pages.missing();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(keep: usize) -> Coverage {
        let mut coverage = Coverage::new("http://api".into(), "clusters".into(), keep);
        coverage.share("east.yaml".into(), Selector::from_pairs([("region", "east")]).unwrap());
        coverage.share("west.yaml".into(), Selector::from_pairs([("region", "west")]).unwrap());
        coverage.share("gold.yaml".into(), Selector::from_pairs([("tier", "gold")]).unwrap());
        coverage
    }

    fn ids(findings: &Findings) -> Vec<&str> {
        findings.first.iter().map(|finding| finding.id.as_str()).collect()
    }

    #[test]
    fn what_nobody_covers_and_what_several_do_is_told() {
        let mut coverage = coverage(10);
        for item in [
            r#"{"id":"a","labels":{"region":"east"}}"#,
            r#"{"id":"b","labels":{"region":"north"}}"#,
            r#"{"id":"c","labels":{"region":"west","tier":"gold"}}"#,
            r#"{"id":"d"}"#,
        ] {
            coverage.take(item);
        }
        assert_eq!((coverage.resources, coverage.covered_once, coverage.is_exact()), (4, 1, false));
        assert_eq!(ids(&coverage.uncovered), ["b", "d"]);
        assert_eq!(coverage.uncovered.first[0].labels["region"], "north");
        assert_eq!(ids(&coverage.overlapping), ["c"]);
        assert_eq!(coverage.overlapping.first[0].files, ["west.yaml", "gold.yaml"]);
        assert_eq!(coverage.shares.iter().map(|share| share.resources).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn what_no_sentinel_can_read_is_not_covered() {
        let mut coverage = coverage(10);
        coverage.take(r#"{"id":"a","labels":{"region":"east"},"status":{"last_updated_time":"yesterday"}}"#);
        coverage.take("[]");
        assert_eq!((coverage.unreadable.count, coverage.is_exact()), (2, false));
        assert_eq!(ids(&coverage.unreadable), ["a", ""]);
        assert!(coverage.unreadable.first[0].error.as_ref().unwrap().contains("yesterday"));
    }

    #[test]
    fn all_are_counted_and_the_first_are_kept() {
        let mut coverage = coverage(2);
        (0..5).for_each(|id| coverage.take(&format!(r#"{{"id":"{id}"}}"#)));
        assert_eq!((coverage.uncovered.count, ids(&coverage.uncovered)), (5, vec!["0", "1"]));
    }

    #[test]
    fn a_fleet_that_is_empty_or_well_divided_is_covered() {
        let mut coverage = coverage(2);
        assert!(coverage.is_exact());
        coverage.take(r#"{"id":"a","labels":{"region":"west"}}"#);
        assert!(coverage.is_exact());
    }
}

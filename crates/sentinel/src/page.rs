//! One answer of the list endpoint: its items, found but not yet read.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The items of one answer, each a slice of the one body.
#[derive(Debug)]
pub struct Page {
    body: String,
    items: Vec<Range<usize>>,
    /// How many the API says there are in all for this query, where it says.
    pub total: Option<u64>,
    /// Whether the API says which page it is, or of what size: then it is one of several, however short.
    pub numbered: bool,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
    // Whatever stands here: a count that makes no sense is no reason to refuse the list.
    #[serde(borrow)]
    total: Option<&'a RawValue>,
    #[serde(borrow)]
    page: Option<&'a RawValue>,
    #[serde(borrow)]
    size: Option<&'a RawValue>,
}

impl Page {
    /// Finds the items: `{"items": [...]}` as every API serves it today, or a bare list.
    pub fn parse(body: String) -> Result<Self, serde_json::Error> {
        let envelope = if body.trim_start().starts_with('[') {
            Envelope { items: Some(serde_json::from_str(&body)?), total: None, page: None, size: None }
        } else {
            serde_json::from_str(&body)?
        };
        let start = body.as_ptr().addr();
        let range = |item: &&RawValue| {
            let from = item.get().as_ptr().addr() - start;
            from..from + item.get().len()
        };
        let items = envelope
            .items
            .ok_or_else(|| <serde_json::Error as serde::de::Error>::missing_field("items"))?
            .iter()
            .map(range)
            .collect();
        let total = envelope.total.and_then(|total| total.get().parse().ok());
        let numbered = envelope.page.is_some() || envelope.size.is_some();
        Ok(Self { body, items, total, numbered })
    }

    /// The JSON of each item.
    pub fn items(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.items.iter().map(|range| &self.body[range.clone()])
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Keeps the items for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        let body = &self.body;
        self.items.retain(|range| keep(&body[range.clone()]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_slices_of_the_body() {
        let page =
            Page::parse(r#"{"kind":"ClusterList","items":[ {"id":"a"}, 5 ],"page":1,"total":2}"#.into()).unwrap();
        assert_eq!(page.items().collect::<Vec<_>>(), [r#"{"id":"a"}"#, "5"]);
        assert_eq!((page.len(), page.total, page.numbered, page.is_empty()), (2, Some(2), true, false));
    }

    #[test]
    fn a_bare_list_is_a_page_without_a_total() {
        let page = Page::parse(r#" [{"id":"a"}]"#.into()).unwrap();
        assert_eq!((page.len(), page.total, page.numbered), (1, None, false));
    }

    #[test]
    fn a_count_that_makes_no_sense_is_no_count() {
        for total in ["-1", "99999999999999999999", "\"5\"", "null", "1.5", "[]"] {
            let page = Page::parse(format!(r#"{{"items":[1],"total":{total}}}"#)).unwrap();
            assert_eq!((page.len(), page.total), (1, None), "{total}");
        }
    }

    #[test]
    fn an_empty_page_is_a_page() {
        assert!(Page::parse(r#"{"items":[]}"#.into()).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for body in ["", "{}", r#"{"items":null}"#, r#"{"items":{}}"#, r#"{"items":[{"id":"#, "<html>", "null"] {
            assert!(Page::parse(body.into()).is_err(), "{body}");
        }
    }

    #[test]
    fn retain_drops_items() {
        let mut page = Page::parse("[1,2,3]".into()).unwrap();
        page.retain(|item| item != "2");
        assert_eq!(page.items().collect::<Vec<_>>(), ["1", "3"]);
    }
}

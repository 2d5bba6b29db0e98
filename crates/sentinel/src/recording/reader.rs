//! Reads segments, as far as they are whole.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use watchfire_runtime::file::open_regular;

use super::writer::segments;
use super::{Error, Fate, Header, Line, VERSION, name};
use crate::resource::parse_id;

/// A line is a page of the list, and that is what one answer of the API may weigh.
const MAX_LINE: u64 = 64 * 1024 * 1024;

/// How every header begins.
const BEGINNING: &str = "{\"watchfire_recording\":";

/// What is wrong with a segment without a whole header.
const SHORT: &str = "it is empty, or cut off within its first line";

/// What stands in a recording, in the order in which it happened.
#[derive(Debug)]
pub enum Observed {
    /// A segment begins; where it does not go on from the one before, a process began with an empty memory.
    Begun(Header),
    /// A page of the list.
    Page(Timestamp),
    /// What became of an event.
    Event(Fate),
    /// A poll ended; whether the list was read to its end.
    End(Timestamp, bool),
    /// Something is missing here.
    Gap(Timestamp),
}

/// A segment that is not whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// The segment.
    pub file: String,
    /// Up to where it is good; nothing if not even one line is.
    pub after: Option<Timestamp>,
    /// What is wrong behind that.
    pub why: String,
}

/// Reads one recording from its beginning to its end.
pub struct Reader {
    files: std::vec::IntoIter<PathBuf>,
    resource_type: Option<String>,
    segment: Option<Segment>,
    text: String,
    /// The resources that were ever seen, by number.
    items: Vec<Box<str>>,
    numbers: HashMap<Box<str>, usize>,
    /// The resources of the page in hand, in order: which, and whether it may have changed.
    page: Vec<(usize, bool)>,
    /// The segments that are not whole.
    pub cuts: Vec<Cut>,
}

struct Segment {
    file: PathBuf,
    lines: BufReader<GzDecoder<BufReader<File>>>,
    /// The number of each resource, by first appearance in this segment.
    slots: Vec<usize>,
    appeared: HashSet<usize>,
    /// The last time that was read.
    at: Option<Timestamp>,
}

impl Reader {
    /// Opens one segment, or all of a folder.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { file: name(path), source };
        let files = if std::fs::metadata(path).map_err(failed)?.is_dir() {
            let files: Vec<_> = segments(path).map_err(failed)?.into_iter().map(|(file, _)| file).collect();
            if files.is_empty() {
                return Err(Error::Nothing { folder: name(path) });
            }
            files
        } else {
            vec![path.to_owned()]
        };
        Ok(Self {
            files: files.into_iter(),
            resource_type: None,
            segment: None,
            text: String::new(),
            items: Vec::new(),
            numbers: HashMap::new(),
            page: Vec::new(),
            cuts: Vec::new(),
        })
    }

    /// The header of one segment.
    pub fn header_of(file: &Path) -> Result<Header, Error> {
        Ok(Segment::open(file, &mut String::new())?.1)
    }

    /// The resources of the page that was read last, in the order of the list: the number of each, and whether it
    /// may have changed.
    pub fn page(&self) -> &[(usize, bool)] {
        &self.page
    }

    /// What is known of a resource.
    pub fn item(&self, number: usize) -> &str {
        &self.items[number]
    }

    /// What comes next; nothing at the end.
    pub fn read(&mut self) -> Result<Option<Observed>, Error> {
        loop {
            let Some(segment) = &mut self.segment else {
                let Some(file) = self.files.next() else {
                    return match self.cuts.first() {
                        Some(Cut { file, .. }) if self.resource_type.is_none() => {
                            Err(Error::Empty { file: file.clone() })
                        }
                        _ => Ok(None),
                    };
                };
                match self.begin(&file) {
                    Ok(header) => return Ok(Some(Observed::Begun(header))),
                    // A process that is stopped hard may leave one with nothing in it yet.
                    Err(Error::Empty { file }) => {
                        self.cuts.push(Cut { file, after: None, why: SHORT.to_owned() });
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            };
            let why = match segment.line(&mut self.text) {
                Ok(0) => {
                    self.segment = None;
                    continue;
                }
                Ok(_) => match self.take() {
                    Ok(observed) => return Ok(Some(observed)),
                    Err(why) => why,
                },
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => "it breaks off".to_owned(),
                Err(error) => error.to_string(),
            };
            if let Some(Segment { file, at, .. }) = self.segment.take() {
                self.cuts.push(Cut { file: name(&file), after: at, why });
            }
        }
    }

    fn begin(&mut self, file: &Path) -> Result<Header, Error> {
        let (segment, header) = Segment::open(file, &mut self.text)?;
        match &self.resource_type {
            Some(expected) if *expected != header.resource_type => {
                let (found, expected) = (header.resource_type, expected.clone());
                return Err(Error::Mixed { file: name(file), found, expected });
            }
            _ => self.resource_type = Some(header.resource_type.clone()),
        }
        self.segment = Some(segment);
        Ok(header)
    }

    /// Understands the line that was read.
    fn take(&mut self) -> Result<Observed, String> {
        let Some(segment) = &mut self.segment else { return Err("there is no segment".to_owned()) };
        // What breaks off without its line break is not whole, even where it can be read.
        if !self.text.ends_with('\n') {
            return Err("it breaks off".to_owned());
        }
        let line = serde_json::from_str(&self.text).map_err(|error| error.to_string())?;
        let (at, observed) = match line {
            Line::Page { at, items } => {
                self.page.clear();
                for item in items.iter().map(|item| item.get()) {
                    if item.starts_with('[') {
                        let [first, count]: [usize; 2] =
                            serde_json::from_str(item).map_err(|error| error.to_string())?;
                        let run = first.checked_add(count).and_then(|end| segment.slots.get(first..end));
                        let run = run.ok_or_else(|| "it counts resources that it has not shown".to_owned())?;
                        self.page.extend(run.iter().map(|&number| (number, false)));
                        continue;
                    }
                    let id = parse_id(item).ok_or_else(|| "it has a resource without an id".to_owned())?;
                    let number = *self.numbers.entry(id.into()).or_insert(self.items.len());
                    match self.items.get_mut(number) {
                        Some(known) => *known = item.into(),
                        None => self.items.push(item.into()),
                    }
                    if segment.appeared.insert(number) {
                        segment.slots.push(number);
                    }
                    self.page.push((number, true));
                }
                (at, Observed::Page(at))
            }
            Line::Event(fate) => (fate.at, Observed::Event(fate)),
            Line::End { at, whole } => (at, Observed::End(at, whole)),
            Line::Gap { at } => (at, Observed::Gap(at)),
        };
        segment.at = Some(at);
        Ok(observed)
    }
}

/// Whether as much as there is of a first line may be that of a recording.
fn begins_as_ours(text: &str) -> bool {
    text.starts_with(BEGINNING) || BEGINNING.starts_with(text)
}

/// What is understood of every header, of whatever version.
#[derive(Deserialize)]
struct Version {
    watchfire_recording: u64,
}

impl Segment {
    fn open(path: &Path, text: &mut String) -> Result<(Self, Header), Error> {
        let file = name(path);
        let failed = |source| Error::Read { file: file.clone(), source };
        let handle = open_regular(path).map_err(failed)?;
        if handle.metadata().map_err(failed)?.len() == 0 {
            return Err(Error::Empty { file });
        }
        let lines = BufReader::new(GzDecoder::new(BufReader::new(handle)));
        let mut segment = Self { file: path.to_owned(), lines, slots: Vec::new(), appeared: HashSet::new(), at: None };
        match segment.line(text) {
            Ok(0) => return Err(Error::Empty { file }),
            Ok(_) => {}
            // The first line is flushed with the first poll, and of a copy any part may be missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && begins_as_ours(text) => {
                return Err(Error::Empty { file });
            }
            Err(_) => return Err(Error::Foreign { file }),
        }
        match serde_json::from_str::<Version>(text) {
            Ok(Version { watchfire_recording: VERSION }) => {}
            Ok(Version { watchfire_recording: version }) => return Err(Error::Newer { file, version }),
            Err(_) => return Err(Error::Foreign { file }),
        }
        let header = serde_json::from_str(text).map_err(|_| Error::Foreign { file })?;
        Ok((segment, header))
    }

    /// Reads a line; 0 at the end.
    fn line(&mut self, text: &mut String) -> io::Result<usize> {
        text.clear();
        (&mut self.lines).take(MAX_LINE).read_line(text)
    }
}

//! Writes segments: only what changed, flushed after each poll, the oldest removed when the folder is full.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};

use super::{By, Error, Fate, Header, Kept, Line, Reader, SUFFIX, VERSION, name};
use crate::config::SentinelConfig;
use crate::resource::parse_id;

/// A segment is at least this large, so that a folder never holds thousands of them.
const MIN_SEGMENT: u64 = 64 * 1024;

/// The folder holds about this many segments when it is full.
const SEGMENTS: u64 = 8;

/// What a recording holds, and how much of it.
pub struct Scope {
    /// Who records.
    pub by: By,
    /// What the folder may take, in bytes.
    pub max: u64,
    /// What of a resource is kept.
    pub kept: Kept,
}

/// Writes a recording into a folder.
pub struct Writer {
    folder: PathBuf,
    max: u64,
    kept: Kept,
    header: Header,
    segment: Option<Segment>,
    /// What the first list of the last segment took; before there is one, what no list in the folder takes more than.
    first: u64,
    hasher: RandomState,
}

/// The segment in hand.
struct Segment {
    file: PathBuf,
    encoder: GzEncoder<Counted>,
    /// The place of each resource, by first appearance in the segment, under the hash of its id; and under that of what
    /// it is. Bounded as the segment is.
    places: HashMap<u64, usize>,
    unchanged: HashMap<u64, usize>,
    /// The hash of what each place was last.
    contents: Vec<u64>,
    /// What the first list took: a segment holds several of them.
    first: u64,
}

/// A file that knows its size.
struct Counted {
    file: BufWriter<File>,
    size: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writer {
    /// Opens a folder, making it if need be; what is in it stays until it is too much. Refuses a folder that records
    /// other resources.
    pub fn open(folder: &Path, scope: Scope, config: &SentinelConfig, now: Timestamp) -> Result<Self, Error> {
        let failed = |source| Error::Folder { folder: name(folder), source };
        // It shows a fleet: nobody else's business.
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let Scope { by, max, kept } = scope;
        let header = Header {
            watchfire_recording: VERSION,
            resource_type: config.api.resource_type.clone(),
            by,
            continues: false,
            begun: now,
            poll_millis: u64::try_from(config.poll_interval.as_millis()).unwrap_or(u64::MAX),
            selector: config.selector.labels(),
            fields: kept.fields().cloned(),
            redacted: kept.redacted(),
        };
        let segments = segments(folder).map_err(failed)?;
        let first = segments.iter().map(|(_, size)| *size).max().unwrap_or(0);
        // What cannot be read is none of the writer's business: it only adds.
        let found = |(file, _): (PathBuf, u64)| Some((Reader::header_of(&file).ok()?.resource_type, file));
        if let Some((found, newest)) = segments.into_iter().rev().find_map(found)
            && found != header.resource_type
        {
            return Err(Error::Mixed { file: name(&newest), found, expected: header.resource_type });
        }
        Ok(Self { folder: folder.to_owned(), max, kept, header, segment: None, first, hasher: RandomState::new() })
    }

    /// Writes a page, as it was read at `at`.
    pub fn page<'a>(&mut self, at: Timestamp, items: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        let mut segment = self.take_segment(at)?;
        let result = segment.page(at, items, &mut self.kept, &self.hasher);
        if result.is_ok() && segment.size() > self.max {
            let file = self.give_up(segment);
            return Err(Error::TooSmall { file, max: self.max });
        }
        self.keep(segment, result)
    }

    /// What was to be taken out and stood in nothing that was written, as it was typed.
    pub fn unmet(&self) -> impl Iterator<Item = &str> {
        self.kept.unmet()
    }

    /// Writes what became of an event.
    pub fn fate(&mut self, fate: Fate) -> Result<(), Error> {
        self.line(fate.at, &Line::Event(fate))
    }

    /// Writes that something is missing here.
    pub fn gap(&mut self, at: Timestamp) -> Result<(), Error> {
        self.line(at, &Line::Gap { at })
    }

    /// Ends a poll; `whole` when the list was read to its end. What was written is safe from here on, and a segment
    /// that is large enough is closed.
    pub fn end(&mut self, at: Timestamp, whole: bool) -> Result<(), Error> {
        let mut segment = self.take_segment(at)?;
        let result = segment.end(at, whole);
        let size = segment.size();
        self.first = segment.first;
        self.keep(segment, result)?;
        if size >= self.enough() {
            self.close()?;
            self.header.continues = true;
        }
        Ok(())
    }

    /// At this size a segment is closed: several lists are in it, and several of it fit into the folder.
    fn enough(&self) -> u64 {
        (self.max / SEGMENTS).max(MIN_SEGMENT).max(self.first.saturating_mul(2)).min(self.max / 2)
    }

    /// Closes the segment in hand.
    pub fn close(&mut self) -> Result<(), Error> {
        let Some(segment) = self.segment.take() else { return Ok(()) };
        let failed = |source| Error::Write { file: name(&segment.file), source };
        segment.encoder.finish().and_then(|mut counted| counted.flush()).map_err(failed)
    }

    fn line(&mut self, at: Timestamp, line: &Line<'_>) -> Result<(), Error> {
        let mut segment = self.take_segment(at)?;
        let result = segment.line(line);
        self.keep(segment, result)
    }

    fn keep(&mut self, segment: Segment, result: io::Result<()>) -> Result<(), Error> {
        if let Err(source) = result {
            return Err(Error::Write { file: self.give_up(segment), source });
        }
        self.segment = Some(segment);
        Ok(())
    }

    /// Leaves a segment as it is, and the next goes on from it, unless it is of no use.
    fn give_up(&mut self, segment: Segment) -> String {
        let file = segment.file.clone();
        // Without a whole poll the room it takes is worth more.
        if segment.first == 0 {
            drop(segment);
            drop(fs::remove_file(&file));
        } else {
            self.header.continues = true;
        }
        name(&file)
    }

    fn take_segment(&mut self, at: Timestamp) -> Result<Segment, Error> {
        if let Some(segment) = self.segment.take() {
            return Ok(segment);
        }
        self.make_room()?;
        self.header.begun = at;
        Segment::create(&self.folder, &self.header)
    }

    /// Removes the oldest segments until another one fits: one that all but had enough, and a whole list on top.
    fn make_room(&self) -> Result<(), Error> {
        let failed = |source| Error::Folder { folder: name(&self.folder), source };
        let segments = segments(&self.folder).map_err(failed)?;
        let mut total: u64 = segments.iter().map(|(_, size)| size).sum();
        let room = self.enough().saturating_add(self.first).min(self.max);
        for (file, size) in segments {
            if total + room <= self.max {
                break;
            }
            fs::remove_file(&file).map_err(|source| Error::Write { file: name(&file), source })?;
            total -= size;
        }
        Ok(())
    }
}

impl Segment {
    fn create(folder: &Path, header: &Header) -> Result<Self, Error> {
        // In the order of time by name; two of one moment differ by their number.
        let stamp = header.begun.strftime("%Y%m%dT%H%M%S.%3fZ").to_string();
        let mut number = 0;
        let (file, handle) = loop {
            let file = folder.join(format!("{stamp}-{number}{SUFFIX}"));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file) {
                Ok(handle) => break (file, handle),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(Error::Write { file: name(&file), source }),
            }
        };
        let counted = Counted { file: BufWriter::new(handle), size: 0 };
        let encoder = GzEncoder::new(counted, Compression::default());
        let mut segment =
            Self { file, encoder, places: HashMap::new(), unchanged: HashMap::new(), contents: Vec::new(), first: 0 };
        let written = serde_json::to_writer(&mut segment.encoder, header).map_err(io::Error::from);
        let written = written.and_then(|()| segment.encoder.write_all(b"\n"));
        written.map_err(|source| Error::Write { file: name(&segment.file), source })?;
        Ok(segment)
    }

    fn size(&self) -> u64 {
        self.encoder.get_ref().size
    }

    fn page<'a>(
        &mut self,
        at: Timestamp,
        items: impl Iterator<Item = &'a str>,
        kept: &mut Kept,
        hasher: &RandomState,
    ) -> io::Result<()> {
        let mut written: Vec<Box<RawValue>> = Vec::new();
        let mut run: Option<[usize; 2]> = None;
        for item in items {
            let content = hasher.hash_one(item);
            match (self.unchanged.get(&content).copied(), &mut run) {
                (Some(place), Some([first, count])) if *first + *count == place => *count += 1,
                (Some(place), _) => {
                    let ended = run.replace([place, 1]);
                    written.extend(ended.map(|run| to_raw_value(&run)).transpose()?);
                }
                (None, _) => {
                    // What has no id cannot be told from others; no sentinel can read it.
                    let Some(id) = parse_id(item) else { continue };
                    let Ok(cut) = kept.cut(item) else { continue };
                    written.extend(run.take().map(|run| to_raw_value(&run)).transpose()?);
                    written.push(to_raw_value(&cut)?);
                    self.know(hasher.hash_one(id.as_ref()), content);
                }
            }
        }
        written.extend(run.map(|run| to_raw_value(&run)).transpose()?);
        self.line(&Line::Page { at, items: written.iter().map(AsRef::as_ref).collect() })
    }

    fn know(&mut self, id: u64, content: u64) {
        let place = *self.places.entry(id).or_insert(self.contents.len());
        match self.contents.get_mut(place) {
            Some(before) => {
                self.unchanged.remove(before);
                *before = content;
            }
            None => self.contents.push(content),
        }
        self.unchanged.insert(content, place);
    }

    fn end(&mut self, at: Timestamp, whole: bool) -> io::Result<()> {
        self.line(&Line::End { at, whole })?;
        self.encoder.flush()?;
        if self.first == 0 {
            self.first = self.size();
        }
        Ok(())
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.encoder, line)?;
        self.encoder.write_all(b"\n")
    }
}

/// The segments of a folder with their sizes, oldest first.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
            found.push((entry.path(), entry.metadata()?.len()));
        }
    }
    found.sort();
    Ok(found)
}

use std::fs;
use std::path::Path;
use std::sync::Arc;

use watchfire_runtime::config::{Document, Env};

use super::*;
use crate::config::{RawConfig, SentinelConfig, check};
use crate::page::Page;
use crate::selector::Selector;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn config(more: &str) -> SentinelConfig {
    let text = format!("resource_type: clusters\n{more}hyperfleet_api:\n  endpoint: http://api\n");
    let (config, problems) = check(Document::<RawConfig>::parse("test.yaml", &text).unwrap(), &Env::default());
    problems.finish().unwrap();
    config.unwrap()
}

fn scope(max: u64, kept: Kept) -> Scope {
    Scope { by: By::Onlooker, max, kept }
}

fn writer(folder: &Path, max: u64) -> Writer {
    Writer::open(folder, scope(max, Kept::everything()), &config(""), at(0)).unwrap()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    writer::segments(folder).unwrap().into_iter().map(|(file, _)| file).collect()
}

/// Each poll's whole list as the reader shows it, and where segments are cut.
fn read(path: &Path) -> (Vec<Vec<String>>, Vec<Cut>) {
    let mut reader = Reader::open(path).unwrap();
    let (mut polls, mut poll) = (Vec::new(), Vec::new());
    while let Some(observed) = reader.read().unwrap() {
        match observed {
            Observed::Page(_) => poll.extend(reader.page().iter().map(|&(number, _)| reader.item(number).to_owned())),
            Observed::End(..) => polls.push(std::mem::take(&mut poll)),
            Observed::Begun(_) | Observed::Event(_) | Observed::Gap(_) => {}
        }
    }
    (polls, reader.cuts)
}

fn item(id: &str, generation: u64) -> String {
    format!(r#"{{"id":"{id}","generation":{generation}}}"#)
}

fn record(writer: &mut Writer, seconds: i64, pages: &[&[String]]) {
    for page in pages {
        writer.page(at(seconds), page.iter().map(String::as_str)).unwrap();
    }
    writer.end(at(seconds), true).unwrap();
}

#[test]
fn what_was_listed_is_what_is_read_in_the_order_of_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|id| item(id, 1));
    let changed = item("b", 2);
    let lists: [&[&[String]]; 6] = [
        &[&[a.clone(), b.clone()], std::slice::from_ref(&c)],
        &[&[a.clone(), b.clone()], std::slice::from_ref(&c)],
        &[&[a.clone(), changed.clone()], &[d.clone(), c.clone()]],
        &[&[c.clone(), a.clone()]],
        &[&[]],
        &[&[d.clone(), changed.clone(), a.clone()]],
    ];
    let mut writer = writer(folder.path(), 1 << 20);
    for (poll, list) in (0..).zip(lists) {
        record(&mut writer, poll, list);
    }
    writer.close().unwrap();
    let (polls, cuts) = read(folder.path());
    let expected: Vec<Vec<String>> = lists.iter().map(|pages| pages.concat()).collect();
    assert_eq!(polls, expected);
    assert!(cuts.is_empty(), "{cuts:?}");
}

#[test]
fn a_poll_in_which_nothing_changed_takes_next_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), 1 << 30);
    // More than the compression remembers, and nothing that it could compress.
    let mut noise = 1_u64;
    let items: Vec<_> = (0..1000)
        .map(|id| {
            let words = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                format!("{noise:x}")
            });
            format!(r#"{{"id":"{id}","spec":"{}"}}"#, words.take(8).collect::<String>())
        })
        .collect();
    let pages: Vec<_> = items.chunks(100).collect();
    let size = || writer::segments(folder.path()).unwrap().iter().map(|(_, size)| size).sum::<u64>();
    record(&mut writer, 0, &pages);
    let first = size();
    (1..=10).for_each(|poll| record(&mut writer, poll * 5, &pages));
    let unchanged = (size() - first) / 10;
    assert!(unchanged < 1024, "{unchanged} bytes for a poll of 1,000 resources, {first} for the first one");
}

#[test]
fn what_has_no_id_and_what_nobody_reads_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Kept::read_by(&config("message_data:\n  name: .name\n"));
    let mut writer = Writer::open(folder.path(), scope(1 << 20, kept), &config(""), at(0)).unwrap();
    let deleted = r#"{"id":"b","deletedTime":"2026-01-01T00:00:00Z"}"#;
    let items = [r#"{"id":"a","name":"x","spec":{"secret":1},"labels":{"k":"v"}}"#, "[]", deleted, "{}", "5"];
    writer.page(at(1), items.into_iter()).unwrap();
    writer.end(at(1), true).unwrap();
    writer.close().unwrap();
    assert_eq!(read(folder.path()).0, [[r#"{"id":"a","name":"x","labels":{"k":"v"}}"#, deleted]]);
}

#[test]
fn a_recording_that_is_cut_anywhere_is_good_up_to_a_whole_poll() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), 1 << 20);
    for poll in 0..50 {
        record(&mut writer, poll, &[&[item("a", poll.unsigned_abs()), item("b", 1)]]);
    }
    writer.close().unwrap();
    let file = files(folder.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    let complete = read(&file).0;
    assert_eq!(complete.len(), 50);
    let mut most = 0;
    for length in (0..whole.len()).rev().step_by(7) {
        fs::write(&file, &whole[..length]).unwrap();
        if let Err(error) = Reader::open(&file).unwrap().read() {
            assert!(matches!(error, Error::Empty { .. }), "{length}: {error}");
            continue;
        }
        let (polls, cuts) = read(&file);
        assert_eq!(polls[..], complete[..polls.len()], "{length}");
        assert_eq!(cuts.len(), 1, "{length}");
        if let Some(last) = polls.len().checked_sub(1) {
            assert!(cuts[0].after >= Some(at(i64::try_from(last).unwrap())), "{length}: {cuts:?}");
        }
        most = most.max(polls.len());
    }
    assert!(most >= 49, "what was flushed is read: {most}");
}

#[test]
fn what_is_flushed_can_be_read_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), 1 << 20);
    record(&mut writer, 1, &[&[item("a", 1)]]);
    let (polls, cuts) = read(folder.path());
    assert_eq!((polls.len(), cuts[0].after), (1, Some(at(1))));
    // Without a farewell, as if killed.
    std::mem::forget(writer);
    assert_eq!(read(folder.path()).0.len(), 1);
}

#[test]
fn damage_in_the_middle_ends_a_segment_and_not_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    for begin in [0, 10_000] {
        let mut writer = writer(folder.path(), 1 << 20);
        (begin..begin + 2000).for_each(|poll| record(&mut writer, poll, &[&[item("a", poll.unsigned_abs())]]));
        writer.close().unwrap();
    }
    let file = files(folder.path()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let (polls, cuts) = read(folder.path());
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    // Some 32 KiB before the damage are lost with it.
    assert!((2200..4000).contains(&polls.len()), "{}", polls.len());
}

#[test]
fn a_segment_with_nothing_in_it_is_told_wherever_it_stands_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for seconds in [0, 2, 4] {
        let name = format!("{}-0{SUFFIX}", at(seconds).strftime("%Y%m%dT%H%M%S.%3fZ"));
        fs::write(folder.path().join(name), b"").unwrap();
    }
    let error = Reader::open(folder.path()).unwrap().read().unwrap_err();
    assert!(matches!(error, Error::Empty { .. }), "nothing else is there: {error}");
    for seconds in [1, 3] {
        let mut writer = writer(folder.path(), 1 << 20);
        record(&mut writer, seconds, &[&[item("a", 1)]]);
        writer.close().unwrap();
    }
    let (polls, cuts) = read(folder.path());
    assert_eq!((polls.len(), cuts.len()), (2, 3), "{cuts:?}");
    let mut other = config("");
    other.api.resource_type = "nodepools".to_owned();
    let error = Writer::open(folder.path(), scope(1 << 20, Kept::everything()), &other, at(5)).err().unwrap();
    assert!(matches!(error, Error::Mixed { .. }), "an empty one does not hide what the folder holds: {error}");
}

#[test]
fn a_folder_keeps_to_its_size_and_loses_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let max = 1 << 20;
    let mut writer = writer(folder.path(), max);
    let mut noise = 1_u64;
    for poll in 0..600 {
        let items: Vec<_> = (0..100)
            .map(|id| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                format!(r#"{{"id":"{id}","spec":"{noise:x}{:x}"}}"#, noise.rotate_left(17))
            })
            .collect();
        record(&mut writer, poll, &[&items]);
        let total: u64 = writer::segments(folder.path()).unwrap().iter().map(|(_, size)| size).sum();
        assert!(total <= max + max / 8, "{total}");
    }
    writer.close().unwrap();
    let (polls, cuts) = read(folder.path());
    assert!(cuts.is_empty() && (50..600).contains(&polls.len()), "{}", polls.len());
    let mut reader = Reader::open(folder.path()).unwrap();
    let Some(Observed::Begun(header)) = reader.read().unwrap() else { panic!("a header") };
    assert!(header.continues, "the oldest segment is gone");
}

#[test]
fn a_folder_keeps_to_its_size_also_where_a_list_takes_much_of_it() {
    let max: u64 = 1 << 20;
    for resources in [8_000, 16_000] {
        let folder = tempfile::tempdir().unwrap();
        let mut noise = 1_u64;
        let mut list = || {
            let item = |id| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                format!(r#"{{"id":"{id}","spec":"{noise:016x}{:016x}"}}"#, noise.rotate_left(17))
            };
            (0..resources).map(item).collect::<Vec<_>>()
        };
        // A restart in between knows nothing of the size of a list.
        for begin in [0, 10] {
            let mut writer = writer(folder.path(), max);
            for poll in begin..begin + 5 {
                record(&mut writer, poll, &[&list()]);
                let total: u64 = writer::segments(folder.path()).unwrap().iter().map(|(_, size)| size).sum();
                assert!((max / 8..=max).contains(&total), "{resources} resources, poll {poll}: {total}");
            }
            writer.close().unwrap();
        }
    }
}

#[test]
fn a_fleet_that_does_not_fit_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), 1000);
    let mut noise = 1_u64;
    let items: Vec<_> = (0..50_000)
        .map(|id| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            item(&format!("{id}-{noise:x}"), noise)
        })
        .collect();
    let error = writer.page(at(1), items.iter().map(String::as_str)).unwrap_err();
    assert!(matches!(error, Error::TooSmall { max: 1000, .. }) && error.hint().contains("--max-size"), "{error}");
}

#[test]
fn a_recording_that_fails_goes_on_after_a_minute_and_has_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let mut noise = 1_u64;
    let mut large = Vec::new();
    for id in 0..5000 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        large.push(item(&format!("{id}-{noise:x}"), noise));
    }
    let page = |items: &[String]| Arc::new(Page::parse(format!("[{}]", items.join(","))).unwrap());
    let (large, small) = (page(&large), page(&[item("a", 1)]));
    let recorder = Recorder::start(writer(folder.path(), 2000)).unwrap();
    // What does not fit fails as a full volume does; within the minute nothing is tried.
    for (seconds, page) in [(0, &large), (30, &small), (61, &small), (66, &small)] {
        recorder.page(at(seconds), page);
        recorder.end(at(seconds), true);
    }
    drop(recorder);
    let mut reader = Reader::open(folder.path()).unwrap();
    let mut seen = Vec::new();
    while let Some(observed) = reader.read().unwrap() {
        match observed {
            Observed::Begun(_) | Observed::Event(_) => {}
            Observed::Gap(at) => seen.push(("gap", at)),
            Observed::Page(at) => seen.push(("page", at)),
            Observed::End(at, _) => seen.push(("end", at)),
        }
    }
    assert_eq!(seen, [("gap", at(61)), ("page", at(66)), ("end", at(66))]);
}

#[test]
fn a_recording_that_failed_goes_on_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut noise = 1_u64;
    let large = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        item(&format!("{noise:x}"), noise)
    });
    let page = |items: &[String]| Arc::new(Page::parse(format!("[{}]", items.join(","))).unwrap());
    let (large, small) = (page(&large.take(5000).collect::<Vec<_>>()), page(&[item("a", 1)]));
    let recorder = Recorder::start(writer(folder.path(), 2000)).unwrap();
    for (seconds, page) in [(3600, &large), (0, &small), (5, &small)] {
        recorder.page(at(seconds), page);
        recorder.end(at(seconds), true);
    }
    drop(recorder);
    assert_eq!(read(folder.path()).0.len(), 1);
}

#[test]
fn a_process_whose_first_segment_is_of_no_use_does_not_go_on_from_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = writer(folder.path(), 1 << 20);
    record(&mut before, 0, &[&[item("a", 1)]]);
    before.close().unwrap();
    let mut writer = writer(folder.path(), 1 << 20);
    let mut noise = 1_u64;
    let large = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        item(&format!("{noise:x}-{:x}", noise.rotate_left(17)), noise)
    });
    let large: Vec<_> = large.take(60_000).collect();
    let error = writer.page(at(1), large.iter().map(String::as_str)).unwrap_err();
    assert!(matches!(error, Error::TooSmall { .. }), "{error}");
    record(&mut writer, 2, &[&[item("a", 1)]]);
    writer.close().unwrap();
    let last = files(folder.path()).pop().unwrap();
    assert!(!Reader::header_of(&last).unwrap().continues);
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let cut_within = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.flush().unwrap();
        encoder.get_ref().clone()
    };
    let newer = gzip("{\"watchfire_recording\":2,\"anything\":[]}\n");
    let short = "it is empty, or cut off within its first line";
    let table: [(&[u8], &str, &str); 8] = [
        (&newer, "it has version 2, and this build knows 1", "a later one"),
        (&gzip("{\"id\":\"a\"}\n"), "it is no recording of a sentinel", "ends in .recording.gz"),
        (&gzip("\0\0\0"), "it is no recording of a sentinel", "ends in .recording.gz"),
        (b"resource_type: clusters\n", "it is no recording of a sentinel", "ends in .recording.gz"),
        (&gzip(""), short, "record again"),
        (b"", short, "record again"),
        (&cut_within("{\"watchfire_recording\":1,\"resource_type\":\"clu"), short, "record again"),
        (&cut_within("{\"id\":\"a\",\"kind\":"), "it is no recording of a sentinel", "ends in .recording.gz"),
    ];
    for (bytes, message, hint) in table {
        let file = folder.path().join("x.recording.gz");
        fs::write(&file, bytes).unwrap();
        let error = Reader::open(&file).unwrap().read().unwrap_err();
        assert!(error.to_string().ends_with(message) && error.to_string().contains("x.recording.gz"), "{error}");
        assert!(error.hint().contains(hint), "{error}: {}", error.hint());
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Reader::open(empty.path()), Err(Error::Nothing { .. })));
    assert!(matches!(Reader::open(&empty.path().join("absent")), Err(Error::Read { .. })));
}

#[test]
fn lines_that_make_no_sense_end_a_segment() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = writer(folder.path(), 1 << 20);
    record(&mut recorded, 1, &[&[item("a", 1)]]);
    recorded.close().unwrap();
    let header = {
        let mut text = String::new();
        let bytes = fs::read(&files(folder.path())[0]).unwrap();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(bytes.as_slice()), &mut text).unwrap();
        text.lines().next().unwrap().to_owned()
    };
    for line in [
        "{}",
        "null",
        r#"{"page":{"at":"2026-01-01T00:00:00Z","items":[[0,1]]}}"#,
        r#"{"page":{"at":"2026-01-01T00:00:00Z","items":[[18446744073709551615,2]]}}"#,
        r#"{"page":{"at":"2026-01-01T00:00:00Z","items":[{"no":"id"}]}}"#,
        r#"{"page":{"at":"yesterday","items":[]}}"#,
    ] {
        let file = folder.path().join("forged.recording.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writeln!(encoder, "{header}\n{line}").unwrap();
        fs::write(&file, encoder.finish().unwrap()).unwrap();
        let (polls, cuts) = read(&file);
        assert_eq!((polls.len(), cuts.len()), (0, 1), "{line}");
    }
}

#[test]
fn a_folder_of_other_resources_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = writer(folder.path(), 1 << 20);
    record(&mut first, 1, &[&[item("a", 1)]]);
    first.close().unwrap();
    let mut other = config("");
    other.api.resource_type = "nodepools".to_owned();
    let error = Writer::open(folder.path(), scope(1 << 20, Kept::everything()), &other, at(2)).err().unwrap();
    assert!(error.to_string().ends_with("it is of clusters, not of nodepools"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Writer::open(&file, scope(1 << 20, Kept::everything()), &config(""), at(2)).err().unwrap();
    assert!(matches!(error, Error::Folder { .. }), "{error}");
}

#[test]
fn a_volume_that_is_full_is_told_as_such() {
    let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let error = Error::Write { file: "x".into(), source };
    assert!(error.hint().contains("free some space"));
}

#[test]
fn nobody_else_may_read_a_recording() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("made/by/it");
    let mut writer = writer(&folder, 1 << 20);
    record(&mut writer, 1, &[&[item("a", 1)]]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&files(&folder)[0])), (0o700, 0o600));
}

#[test]
fn a_path_that_can_name_nothing_is_refused() {
    for path in ["", ".", ".labels..owner", ".labels.owner ", ".labels.\"a.b/c\"", ".spec.", "..spec", ".'spec'"] {
        let refused = Kept::everything().redact(path, &Selector::default());
        assert!(matches!(refused, Err(PathError::Empty { .. })), "{path:?}");
    }
    for path in [".labels.app.kubernetes.io/owner", "spec._x", ".labels.a..b", ".name"] {
        Kept::everything().redact(path, &Selector::default()).unwrap();
    }
}

#[test]
fn what_is_taken_out_never_reaches_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let kept = [".labels.owner", ".spec.password", ".status.conditions.message"]
        .into_iter()
        .fold(Kept::everything(), |kept, path| kept.redact(path, &Selector::default()).unwrap());
    let mut writer = Writer::open(folder.path(), scope(1 << 20, kept), &config(""), at(0)).unwrap();
    for generation in 1..3 {
        let item = format!(
            r#"{{"id":"a","generation":{generation},"labels":{{"owner":"s3cret"}},"metadata":{{"labels":{{"owner":"s3cret"}}}},
            "spec":{{"password":"s3cret","size":{generation}}},"status":{{"conditions":[{{"type":"A","message":"s3cret"}}]}}}}"#
        );
        record(&mut writer, generation, &[&[item]]);
    }
    writer.close().unwrap();
    let mut text = String::new();
    let bytes = fs::read(&files(folder.path())[0]).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(bytes.as_slice()), &mut text).unwrap();
    assert!(!text.contains("s3cret") && text.contains(r#""size":2"#) && text.contains(".spec.password"), "{text}");
}

//! Everything that the fuzz targets have found, or begin from, is read once more: `make fuzz` looks for more of it.

use std::path::Path;

#[path = "../../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a library where the fuzzer builds it")]
mod targets;

#[test]
fn every_corpus_is_read_and_nothing_panics() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let files: Vec<_> = std::fs::read_dir(corpora.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name} has a corpus");
        for file in files {
            // Named before it is read: a panic says what was wrong, and this says with which file.
            println!("{}", file.display());
            target(&std::fs::read(file).unwrap());
        }
    }
}

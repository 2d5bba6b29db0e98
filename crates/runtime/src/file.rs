//! Opening files whose paths people write.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Opens a file to read it. A pipe or a device is refused unopened: opening a pipe waits for whoever writes to it, and
/// with it the whole process.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_unopened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [folder.path(), &pipe, Path::new("/dev/null")] {
            assert_eq!(open_regular(path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        assert_eq!(open_regular(&folder.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(folder.path().join("file"), "text").unwrap();
        open_regular(&folder.path().join("file")).unwrap();
    }
}

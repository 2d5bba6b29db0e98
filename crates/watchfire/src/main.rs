//! The `watchfire` binary.

fn main() {}

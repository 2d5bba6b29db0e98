//! An error and what caused it, as one line for logs and terminals.

use std::error::Error;

/// Writes an error and its sources, each after a colon.
///
/// A source whose text the error before it already ends with is left out: some libraries repeat theirs.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("read page {0}")]
        Page(u8, #[source] io::Error),
        #[error("list clusters")]
        List(#[source] Box<Failure>),
        #[error("list clusters: {0}")]
        Repeating(#[source] Box<Failure>),
    }

    #[test]
    fn each_cause_follows_once() {
        let page = || Box::new(Failure::Page(3, io::Error::other("refused")));
        assert_eq!(super::chain(&Failure::List(page())), "list clusters: read page 3: refused");
        assert_eq!(super::chain(&Failure::Repeating(page())), "list clusters: read page 3: refused");
        assert_eq!(super::chain(&io::Error::other("refused")), "refused");
    }
}

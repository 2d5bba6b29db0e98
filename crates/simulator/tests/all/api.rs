//! Rules of the API beyond the recording.

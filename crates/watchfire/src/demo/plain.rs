//! The demo as lines, for scripts and logs.

use std::io::{self, Write};

use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::story::{Line, Story};
use super::{Course, change_a_spec};

pub(super) async fn tell(mut story: Story, api: &str, course: Course, stop: &CancellationToken) -> io::Result<()> {
    let Course { end, mut change_at } = course;
    print(&format!("watchfire demo: a simulated API at {api}, two sentinels, the embedded broker, two adapters"))?;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep_until(end) => break,
            () = sleep_until(change_at.unwrap_or(end)), if change_at.is_some() => {
                change_at = None;
                if let Some(id) = story.a_cluster() {
                    change_a_spec(&story.fleet, &id, 5);
                }
            }
            lines = story.next() => match lines {
                Some(lines) => lines.iter().try_for_each(|line| print(&text(line)))?,
                None => break,
            },
        }
    }
    print(&summary(&story))
}

fn summary(story: &Story) -> String {
    let (ready, all) = story.ready();
    let state = match story.all_ready {
        Some(at) if ready == all => format!("all of them for the first time after {:.1}s", at.as_secs_f64()),
        Some(_) | None => format!("{} still on their way", all - ready),
    };
    let took = story.begun.elapsed().as_secs_f64();
    format!("{ready} of {all} resources Ready, {state}; {} events published in {took:.1}s", story.events)
}

fn text(line: &Line) -> String {
    format!("{:>7.2}s  {:<8}  {:<20}  {}", line.at.as_secs_f64(), line.verb, line.subject, line.text)
}

/// A closed pipe ends the printing, not the demo.
fn print(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

//! The demo as lines, for scripts and logs.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::change_a_spec;
use super::story::{Line, Story};

/// Longer than any demo: a deadline for those who did not ask for one.
const FOREVER: Duration = Duration::from_hours(365 * 24);

pub(super) async fn tell(
    mut story: Story,
    api: &str,
    seconds: Option<Duration>,
    spec_change: bool,
    stop: &CancellationToken,
) -> io::Result<()> {
    let begun = Instant::now();
    let end = begun + seconds.unwrap_or(FOREVER);
    let mut change_at = spec_change.then(|| begun + seconds.map_or(Duration::from_secs(10), |whole| whole / 2));
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
    let (ready, all) = story.ready();
    print(&format!(
        "{ready} of {all} resources Ready after {:.1}s, {} events published, {} still on their way",
        story.begun.elapsed().as_secs_f64(),
        story.events,
        all - ready
    ))
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

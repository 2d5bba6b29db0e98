//! The demo as a live view: resources on their way to Ready, and the events that take them there.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Table};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use watchfire_simulator::{NewResource, Status};

use super::story::{Line, Row, Story};
use super::{Course, change_a_spec};

/// Redrawn this often while nothing happens, so that the clock moves.
const FRAME: Duration = Duration::from_millis(100);

/// How long the reader of keys waits before it looks whether the view has ended.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Lines of the story that are kept.
const KEPT: usize = 200;

/// Keys that may wait; a person is slower.
const KEYS: usize = 16;

pub(super) async fn draw(mut story: Story, api: &str, course: Course, stop: &CancellationToken) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &mut story, api, course, stop).await;
    ratatui::restore();
    shown
}

async fn show(
    terminal: &mut DefaultTerminal,
    story: &mut Story,
    api: &str,
    course: Course,
    stop: &CancellationToken,
) -> io::Result<()> {
    let Course { end, mut change_at } = course;
    let mut keys = keys(stop.clone())?;
    let mut frames = interval(FRAME);
    let mut lines = VecDeque::with_capacity(KEPT);
    let mut made = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep_until(end) => return Ok(()),
            _ = frames.tick() => {
                if change_at.is_some_and(|at| at <= Instant::now()) {
                    change_at = None;
                    change(story);
                }
                terminal.draw(|frame| render(frame, story, api, &lines)).map(drop)?;
            }
            Some(key) = keys.recv() => match key {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') => change(story),
                KeyCode::Char('n') => {
                    made += 1;
                    // A name that is taken is refused, and the next key press has another.
                    _ = story.fleet.create("clusters", NewResource::named(format!("new-{made}")));
                }
                KeyCode::Char('d') => {
                    if let Some(id) = story.a_cluster() {
                        // It may be gone already.
                        _ = story.fleet.delete("clusters", &id);
                    }
                }
                _ => {}
            },
            happened = story.next() => match happened {
                Some(happened) => {
                    lines.extend(happened);
                    let surplus = lines.len().saturating_sub(KEPT);
                    lines.drain(..surplus);
                }
                None => return Ok(()),
            },
        }
    }
}

fn change(story: &Story) {
    if let Some(id) = story.a_cluster() {
        change_a_spec(&story.fleet, &id, story.begun.elapsed().as_secs());
    }
}

/// Reads keys on a thread of its own: the terminal has no other way to wait for them.
fn keys(stop: CancellationToken) -> io::Result<mpsc::Receiver<KeyCode>> {
    let (sender, receiver) = mpsc::channel(KEYS);
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while !stop.is_cancelled() && !sender.is_closed() {
            match event::poll(KEY_WAIT).and_then(|ready| if ready { event::read().map(Some) } else { Ok(None) }) {
                Ok(Some(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                    // In raw mode the terminal sends no signal.
                    let interrupt = key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('c');
                    let code = if interrupt { KeyCode::Esc } else { key.code };
                    if sender.blocking_send(code).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(receiver)
}

fn render(frame: &mut Frame<'_>, story: &Story, api: &str, lines: &VecDeque<Line>) {
    let [head, table, log, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Percentage(45),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let (ready, all) = story.ready();
    let title = format!(
        " watchfire demo   {ready} of {all} Ready   {} events published   {:.0}s",
        story.events,
        story.begun.elapsed().as_secs_f64()
    );
    frame.render_widget(Paragraph::new(title).style(Style::new().add_modifier(Modifier::REVERSED)), head);
    frame.render_widget(resources(story, api), table);
    frame.render_widget(happenings(lines, log.height), log);
    frame.render_widget(Paragraph::new(" c change a spec   n new cluster   d delete one   q quit"), foot);
}

fn resources<'s>(story: &'s Story, api: &str) -> Table<'s> {
    let header = TableRow::new(["RESOURCE", "GEN", "STATE", "VALIDATION", "DNS", "EVENTS"])
        .style(Style::new().add_modifier(Modifier::BOLD));
    let rows = story.rows.iter().map(|((plural, _), row)| {
        let kind = plural.strip_suffix('s').unwrap_or(plural);
        let (state, color) = match (row.deleting, row.ready) {
            (true, _) => ("Deleting", Color::Magenta),
            (false, true) => ("Ready", Color::Green),
            (false, false) => ("NotReady", Color::Yellow),
        };
        TableRow::new([
            Cell::from(format!("{kind}/{}", row.name)),
            Cell::from(row.generation.to_string()),
            Cell::from(state).style(Style::new().fg(color)),
            adapter(row, "validation"),
            if plural == "clusters" { adapter(row, "dns") } else { Cell::from("") },
            Cell::from(row.events.to_string()),
        ])
    });
    let widths = [22, 5, 10, 12, 10, 8].map(Constraint::Length);
    Table::new(rows, widths).header(header).block(Block::bordered().title(format!(" fleet at {api} ")))
}

fn adapter(row: &Row, name: &str) -> Cell<'static> {
    match row.adapters.get(name) {
        None => Cell::from("-").style(Style::new().fg(Color::DarkGray)),
        Some(Status::True) => Cell::from("True").style(Style::new().fg(Color::Green)),
        Some(Status::False) => Cell::from("waiting").style(Style::new().fg(Color::Yellow)),
        Some(Status::Unknown) => Cell::from("Unknown").style(Style::new().fg(Color::Yellow)),
    }
}

fn happenings(lines: &VecDeque<Line>, height: u16) -> Paragraph<'_> {
    let room = usize::from(height.saturating_sub(2));
    let text = lines.iter().skip(lines.len().saturating_sub(room)).map(|line| {
        let color = match line.verb {
            "event" => Color::Cyan,
            "READY" => Color::Green,
            "changed" | "created" => Color::Yellow,
            _ => Color::Reset,
        };
        TextLine::from(vec![
            Span::raw(format!("{:>7.2}s  ", line.at.as_secs_f64())),
            Span::styled(format!("{:<9}", line.verb), Style::new().fg(color)),
            Span::raw(format!("{:<22}{}", line.subject, line.text)),
        ])
    });
    Paragraph::new(text.collect::<Vec<_>>()).block(Block::bordered().title(" what happens "))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tokio::sync::mpsc;
    use watchfire_simulator::{Dialect, Simulator};

    use super::*;

    #[test]
    fn the_view_says_where_the_fleet_is() {
        let fleet = Simulator::new(Dialect::Hyperfleet);
        let (changes, (_sender, published)) = (fleet.changes(), mpsc::channel(1));
        let story = Story::new(fleet, changes, published);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| render(frame, &story, "http://127.0.0.1:4567", &VecDeque::new())).unwrap();
        let drawn = terminal.backend().to_string();
        assert!(drawn.contains(" fleet at http://127.0.0.1:4567 "), "{drawn}");
    }
}

//! `watchfire demo` on a terminal: what is drawn, which keys it takes, and how it leaves the terminal behind.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tokio::process::{Child, Command};
use watchfire_testkit::eventually;

use crate::support::{BINARY, DEADLINE, isolate};

const ROWS: u16 = 40;
const COLUMNS: u16 = 110;

/// The binary on a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    /// Held open, so that the modes can be read after the process has ended.
    line: OwnedFd,
    screen: Arc<Mutex<(vt100::Parser, Vec<u8>)>>,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("a terminal");
        unlockpt(&keyboard).expect("a terminal");
        tcsetwinsize(&keyboard, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let name = ptsname(&keyboard, Vec::new()).expect("a name");
        let line = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the other side");
        // In a session of its own, with this terminal as the one it controls, as a shell would have it.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", BINARY]).args(args);
        isolate(&mut command);
        command.env("TERM", "xterm-256color");
        let side = || File::from(line.try_clone().expect("a descriptor"));
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().expect("a start");
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new((vt100::Parser::new(ROWS, COLUMNS, 0), Vec::new())));
        let (mut from, into) = (keyboard.try_clone().expect("a descriptor"), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let mut screen = into.lock().expect("whole");
                screen.0.process(&bytes[..count]);
                screen.1.extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, keyboard, line, screen }
    }

    fn screen(&self) -> String {
        self.screen.lock().expect("whole").0.screen().contents()
    }

    async fn shows(&self, what: &str) {
        let shown = async || self.screen().contains(what).then_some(());
        let late = tokio::time::timeout(DEADLINE, eventually(DEADLINE * 2, what, shown)).await;
        assert!(late.is_ok(), "{what:?} is not on the screen:\n{}", self.screen());
    }

    /// Waits for a row that ends with this, in this column.
    async fn shows_row(&self, end: &str, columns: usize) {
        let shown = async || {
            let screen = self.screen();
            screen.lines().any(|line| line.ends_with(end) && line.chars().count() == columns).then_some(())
        };
        eventually(DEADLINE, &format!("a row of {columns} that ends with {end}"), shown).await;
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("another size");
        self.screen.lock().expect("whole").0.screen_mut().set_size(rows, columns);
    }

    fn press(&mut self, key: &str) {
        self.keyboard.write_all(key.as_bytes()).expect("a key press");
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.line).expect("modes").local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end, and checks that the terminal is as it was.
    async fn ended(&mut self) {
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("no end:\n{}", self.screen())).expect("a status");
        assert_eq!(status.code(), Some(0), "{}", self.screen());
        assert!(!self.is_raw(), "lines are edited again");
        let restored = async || {
            let screen = self.screen.lock().expect("whole");
            let screen = screen.0.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        };
        eventually(DEADLINE, "the shell's own screen, with its cursor", restored).await;
    }
}

#[tokio::test]
async fn the_view_draws_the_loop_takes_keys_and_restores_the_terminal() {
    let mut terminal = Terminal::start(&["demo"]);
    for part in [
        "watchfire demo",
        "fleet at http://127.0.0.1:",
        "RESOURCE",
        "cluster/alpha",
        "what happens",
        "c change a spec",
        "READY",
    ] {
        terminal.shows(part).await;
    }
    assert!(terminal.is_raw() && terminal.screen.lock().unwrap().0.screen().alternate_screen());
    terminal.press("c");
    terminal.shows("its spec, generation 2").await;
    terminal.press("n");
    terminal.shows("cluster/new-1").await;
    terminal.press("d");
    terminal.shows("Deleting").await;
    terminal.press("x");
    terminal.press("q");
    terminal.ended().await;
}

#[tokio::test]
async fn the_view_follows_the_size_of_the_terminal_down_to_one_that_is_far_too_small() {
    let mut terminal = Terminal::start(&["demo"]);
    terminal.shows("c change a spec").await;
    for (rows, columns) in [(1, 1), (3, 200), (24, 60)] {
        terminal.resize(rows, columns);
    }
    // Drawn anew in full: the border is where the smaller terminal ends.
    terminal.shows_row("┐", 60).await;
    terminal.press("q");
    terminal.ended().await;
}

#[tokio::test]
async fn escape_control_c_and_sigterm_end_the_view_as_well() {
    for key in ["\u{1b}", "\u{3}"] {
        let mut terminal = Terminal::start(&["demo"]);
        terminal.shows("RESOURCE").await;
        terminal.press(key);
        terminal.ended().await;
    }
    let mut terminal = Terminal::start(&["demo"]);
    terminal.shows("RESOURCE").await;
    // The process that draws: `setsid` became it, or waits for it as its child.
    let id = terminal.child.id().expect("running");
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let drawing = children.split_whitespace().next().map_or(id, |child| child.parse().expect("a process id"));
    let drawing = rustix::process::Pid::from_raw(drawing.try_into().expect("a process id")).expect("a process id");
    rustix::process::kill_process(drawing, Signal::TERM).expect("a process to signal");
    terminal.ended().await;
}

#[tokio::test]
async fn plain_on_a_terminal_prints_lines_and_leaves_its_modes_alone() {
    let mut terminal = Terminal::start(&["demo", "--plain", "--seconds", "8"]);
    terminal.shows("event").await;
    assert!(!terminal.is_raw());
    terminal.ended().await;
    let bytes = String::from_utf8_lossy(&terminal.screen.lock().unwrap().1).into_owned();
    assert!(!bytes.contains('\u{1b}'), "no escape sequences: {bytes:?}");
}

#[tokio::test]
async fn a_file_that_is_printed_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml").display().to_string();
    let config = "resource_type: a\nhyperfleet_api:\n  endpoint: http://a\nmessage_data:\n  id: \"{{ `\\u202e` }}\"\n";
    std::fs::write(&file, config).unwrap();
    let mut terminal = Terminal::start(&["config", "migrate", &file]);
    terminal.shows(r"{{ `\u{202e}` }}").await;
    terminal.ended().await;
    let bytes = String::from_utf8_lossy(&terminal.screen.lock().unwrap().1).into_owned();
    assert!(!bytes.contains('\u{202e}'), "{bytes:?}");
}

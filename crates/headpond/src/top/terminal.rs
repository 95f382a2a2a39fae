//! The terminal while it is ours: taken whole, given back as it was, whatever ends the command.

use std::fs::File;
use std::io::{self, IsTerminal, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use headpond_host::signals::Signals;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a signal is looked for while nobody presses a key.
const LOOK: Duration = Duration::from_millis(100);

/// What whoever looks wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// To leave.
    Quit,
    /// The picture to stand still, or to go on.
    Pause,
    /// A longer interval.
    Slower,
    /// A shorter one.
    Faster,
    /// The picture again: the window has another size.
    Redraw,
    /// The next figures: it is time.
    Next,
}

/// A terminal in raw mode, on its other screen. Dropped, it is as it was; a panic gives it back before its message.
pub struct Terminal {
    screen: DefaultTerminal,
    /// Where keys come from.
    keys: OwnedFd,
    signals: Signals,
}

impl Terminal {
    /// Takes it.
    pub fn take() -> io::Result<Terminal> {
        let signals = Signals::hold_with_hangup()?;
        let keys = match stdin().is_terminal() {
            true => stdin().as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        Ok(Terminal { screen: ratatui::try_init()?, keys, signals })
    }

    /// Draws a picture.
    pub fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.screen.draw(picture).map(drop)
    }

    /// Waits up to `limit` for a key, or the end of the terminal; whether it has ended. The library would read for ever what is
    /// never there.
    fn is_gone(&self, limit: Duration) -> bool {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let mut keys = [PollFd::new(&self.keys, PollFlags::IN)];
        // A signal, such as that of another size, ends the wait.
        poll(&mut keys, Some(&limit)).is_ok() && keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
    }

    /// Waits for a wish, at the longest until it is time for the next figures.
    pub fn wait(&self, until: Instant) -> io::Result<Wish> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.signals.wait(Duration::ZERO) {
                return Ok(Wish::Quit);
            }
            if self.is_gone(left.min(LOOK)) {
                return Ok(Wish::Quit);
            }
            if event::poll(Duration::ZERO)? {
                if let Some(wish) = wish(&event::read()?) {
                    return Ok(wish);
                }
            } else if left.is_zero() {
                return Ok(Wish::Next);
            }
        }
    }
}

fn wish(event: &Event) -> Option<Wish> {
    let key = match event {
        Event::Resize(..) => return Some(Wish::Redraw),
        Event::Key(key) if key.kind == KeyEventKind::Press => key,
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('p' | ' ') => Some(Wish::Pause),
        KeyCode::Char('+') => Some(Wish::Slower),
        KeyCode::Char('-') => Some(Wish::Faster),
        _ => None,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

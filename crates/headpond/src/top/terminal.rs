//! The terminal while it is ours: taken whole, given back as it was, whatever ends the command.

use std::io;
use std::time::{Duration, Instant};

use headpond_host::signals::Signals;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

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
    signals: Signals,
}

impl Terminal {
    /// Takes it.
    pub fn take() -> io::Result<Terminal> {
        let signals = Signals::hold_with_hangup()?;
        Ok(Terminal { screen: ratatui::try_init()?, signals })
    }

    /// Draws a picture.
    pub fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.screen.draw(picture).map(drop)
    }

    /// Waits for a wish, at the longest until it is time for the next figures.
    pub fn wait(&self, until: Instant) -> io::Result<Wish> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.signals.wait(Duration::ZERO) {
                return Ok(Wish::Quit);
            }
            if event::poll(left.min(LOOK))? {
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

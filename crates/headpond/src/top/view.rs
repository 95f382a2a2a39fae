//! The screen as a whole: what is where, at 80x24 and larger.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use super::seen::Seen;
use super::tables;

/// From this height on there is room for curves, and for a row for each volume and device.
const TALL: u16 = 36;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, seen: &Seen, interval: Duration, paused: bool) {
    let area = frame.area();
    let tall = area.height >= TALL;
    let wrong = wrong(seen);
    let said = if tall { 6 } else { 2 };
    let wrong_rows = if wrong.len() == 1 { 1 } else { said.min(area.height / 4) };
    let volume_rows = 1 + (seen.volumes.len() + usize::from(seen.volumes.len() != 1)).min(if tall { 8 } else { 2 }) as u16;
    let device_rows = 1 + (seen.all.members.len() + seen.all.disks.len()).min(if tall { 12 } else { 4 }) as u16;
    let [title, problems, volumes, _, curves, middle, _, devices, destage, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(wrong_rows),
        Constraint::Length(volume_rows),
        Constraint::Length(1),
        Constraint::Length(if tall { 8 } else { 0 }),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(device_rows),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);

    frame.render_widget(heading(seen, usize::from(area.width)), title);
    frame.render_widget(Paragraph::new(Text::from(wrong)).wrap(Wrap { trim: true }), problems);
    lines(frame, tables::volumes(seen, usize::from(volume_rows - 1)), volumes);
    if tall {
        past(frame, seen, curves);
    }
    let [fates, _, times, _, sizes] = Layout::horizontal([
        Constraint::Fill(4),
        Constraint::Length(1),
        Constraint::Fill(3),
        Constraint::Length(1),
        Constraint::Fill(3),
    ])
    .areas(middle);
    let rows = usize::from(middle.height);
    lines(frame, tables::fates(&seen.all, usize::from(fates.width), rows), fates);
    lines(frame, tables::times(&seen.kinds, usize::from(times.width), rows), times);
    lines(frame, tables::sizes(&seen.kinds, usize::from(sizes.width), rows), sizes);
    lines(frame, tables::devices(&seen.all, usize::from(devices.width), usize::from(devices.height)), devices);
    frame.render_widget(tables::destage(seen, usize::from(destage.width)), destage);
    let state = if paused { "paused, p goes on" } else { "p pauses" };
    let text = format!("q quits  {state}  + - every {} s", interval.as_secs_f64());
    frame.render_widget(Line::from(text).dim(), keys);
}

fn lines(frame: &mut Frame<'_>, lines: Vec<Line<'static>>, area: Rect) {
    frame.render_widget(Paragraph::new(Text::from(lines)), area);
}

fn heading(seen: &Seen, width: usize) -> Line<'static> {
    let r = &seen.report;
    let (state, color) = match (r.stalled, r.degraded) {
        (true, _) => ("STALLED", Color::Red),
        (_, true) => ("DEGRADED", Color::Yellow),
        _ => ("healthy", Color::Green),
    };
    let left = format!("pool {}  ", r.pool);
    let right = format!(
        "  epoch {}  {} copies  {} of {} segments free  up {}",
        r.epoch,
        r.copies,
        r.segments_free,
        r.segments,
        tables::age(r.uptime_seconds)
    );
    let used = left.chars().count() + state.len() + right.chars().count();
    let fill = " ".repeat(width.saturating_sub(used));
    Line::from(vec![Span::raw(left).bold(), Span::from(state).fg(color).bold(), Span::raw(right), Span::raw(fill)]).reversed()
}

/// What is wrong, and what to do next; one line if nothing is.
fn wrong(seen: &Seen) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(why) = &seen.silent {
        lines.push(Line::from(why.clone()).style(Style::new().red().bold()));
        lines.push(Line::from("These figures are its last. It is asked again and again."));
    }
    let advice = &seen.report.advice;
    for (n, it) in advice.iter().enumerate() {
        let more = match (n, advice.len()) {
            (0, all @ 2..) => format!("({all} problems: `headpond status` has all) "),
            _ => String::new(),
        };
        lines.push(Line::from(format!("{more}{}", it.wrong)).style(Style::new().red().bold()));
        lines.push(Line::from(it.next.clone()));
    }
    if lines.is_empty() {
        lines.push(Line::from("nothing is wrong").green());
    }
    lines
}

/// Reads and writes a second since the command began.
fn past(frame: &mut Frame<'_>, seen: &Seen, area: Rect) {
    let [reads, _, writes] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let (read, written): (Vec<u64>, Vec<u64>) = seen.past.iter().copied().unzip();
    for (name, values, area, color) in [("reads/s", read, reads, Color::Cyan), ("writes/s", written, writes, Color::Yellow)] {
        let [title, curve, _] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
        let shown = &values[values.len().saturating_sub(usize::from(curve.width))..];
        let most = shown.iter().max().copied().unwrap_or(0);
        frame.render_widget(Line::from(format!("{name}, up to {most}")).bold().underlined(), title);
        frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(color)), curve);
    }
}

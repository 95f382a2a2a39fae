//! The report's structure, from figures that were made up.

use super::super::figures::{Check, Dirty, Figures, Loads, Measurement, Reached, Setup, random_rate};
use super::super::load::Series;
use super::{page, terminal};

/// Bytes per bucket that swing a little about `rate` bytes per second.
fn reached(rate: f64, request: u64, round: u32) -> Reached {
    let buckets = 0..16u64;
    let swing = |n: u64| 1.0 + 0.03 * (((n * 7 + u64::from(round) * 3) % 5) as f64 - 2.0) / 2.0;
    let bytes: Vec<u64> = buckets.map(|n| (rate / 4.0 * swing(n) / request as f64) as u64 * request).collect();
    let answers = bytes.iter().sum::<u64>() / request;
    let latencies_us = (0..answers).map(|n| 500 + (n % 100) as u32 * 40).collect();
    Reached::new(&Series { bytes, latencies_us }, request, 3..16)
}

/// Figures as a good run brings them.
fn made_up() -> Figures {
    let mut measurements = Vec::new();
    for round in 1..=2 {
        for (setup, loads, stream, random) in [
            (Setup::Bare, Loads::Stream, Some((195e6, 1 << 20)), None),
            (Setup::Bare, Loads::ShortStream, Some((194e6, 128 << 10)), None),
            (Setup::Bare, Loads::Random, None, Some(640.0)),
            (Setup::Bare, Loads::Both, Some((92e6, 1 << 20)), Some(210.0)),
            (Setup::WriteThrough, Loads::Both, Some((91e6, 1 << 20)), Some(208.0)),
            (Setup::WriteBack, Loads::Stream, Some((195e6, 1 << 20)), None),
            (Setup::WriteBack, Loads::ShortStream, Some((193e6, 128 << 10)), None),
            (Setup::WriteBack, Loads::Random, None, Some(41_000.0)),
            (Setup::WriteBack, Loads::Both, Some((194e6, 1 << 20)), Some(38_000.0)),
        ] {
            let back = setup == Setup::WriteBack;
            measurements.push(Measurement {
                setup,
                loads,
                round,
                stream: stream.map(|(rate, request)| reached(rate, request, round)),
                random: random.map(|rate| reached(rate * 4096.0, 4096, round)),
                dirty: back.then_some(Dirty { fitted_s: 4.0, most_bytes: 260 << 20, percent_at_end: 31, ..Dirty::default() }),
            });
        }
    }
    let check = |what: &str, found: &str, passed| Check { what: what.into(), found: found.into(), passed, took_s: 3.2 };
    Figures {
        version: "0.0.0",
        method: vec![
            ("Machine".into(), "2 cores, <Linux> 6.1".into()),
            ("Disk".into(), "a model at 7200 rpm, 200 MB/s outside".into()),
        ],
        measurements,
        checks: vec![
            check(
                "Daemon killed in mid-write, restarted",
                "2,621,440 sectors looked at, 1,400,000 of them written, none wrong",
                Some(true),
            ),
            check("A real file system", "left out: not root", None),
        ],
        measured_s: 10.0,
        judged: true,
        took_s: 97.0,
    }
}

/// What stands between `from` and `to`, each time.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    text.split(from).skip(1).filter_map(|rest| rest.split(to).next()).collect()
}

#[test]
fn the_page_stands_alone() {
    let page = page(&made_up());
    if let Some(path) = std::env::var_os("HEADPOND_KEEP_PAGE") {
        std::fs::write(path, &page).unwrap();
    }
    for outside in ["http:", "https:", "src=", "href=", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"));
    assert!(page.contains("&lt;Linux&gt;") && !page.contains("<Linux>"));
    for tag in ["table", "svg", "figure", "tr", "p", "h2", "div"] {
        let (opened, closed) = (
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count(),
            page.matches(&format!("</{tag}>")).count(),
        );
        assert_eq!(opened, closed, "{tag}");
    }
}

#[test]
fn every_number_in_a_plot_is_one_and_lies_within_it() {
    let page = page(&made_up());
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(!page.contains("NaN") && !page.contains("inf"));
    let lines = between(&page, "points=\"", "\"");
    assert_eq!(lines.len(), 2 * 2 * 4, "two plots, two rounds, alone and three setups");
    for line in lines {
        for point in line.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=720.0).contains(&x) && (0.0..=250.0).contains(&y), "{point}");
        }
    }
    for attribute in ["x", "y", "width", "height", "x1", "y2"] {
        for value in between(&page, &format!(" {attribute}=\""), "\"") {
            assert!(value.parse::<f64>().unwrap() >= 0.0, "{attribute}={value}");
        }
    }
}

#[test]
fn the_terminal_shows_a_row_for_each_load_and_its_ratio() {
    let text = terminal(&made_up());
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{text}"));
    assert!(
        line("Both: the stream, MB/s").trim_end().ends_with("0.99 of alone")
            || line("Both: the stream, MB/s").contains("1.00 of alone")
    );
    assert!(line("Both: random 4 KiB, writes/s").contains("of alone"));
    assert!(line("Stream of 128 KiB alone").contains("  -  "), "not measured in write-through");
    assert_eq!(text.matches("kept").count(), 5, "{text}");
    assert!(line("passed").contains("killed") && line("left out").contains("not root"));
    assert!(text.contains("fitted for 4.0 s"));
    let table: Vec<&str> = text.lines().take_while(|line| !line.starts_with("Medians")).collect();
    assert!(table.iter().all(|line| line.len() == table[1].len()), "{text}");
}

#[test]
fn what_is_broken_is_named_in_both() {
    let mut figures = made_up();
    figures.measurements.retain(|it| it.setup == Setup::Bare || it.loads != Loads::Both);
    let slow = Measurement { random: Some(reached(1000.0 * 4096.0, 4096, 1)), ..figures.measurements[3].clone() };
    figures.measurements.push(Measurement { setup: Setup::WriteBack, ..slow });
    assert!(figures.measurements.iter().filter_map(random_rate).all(f64::is_finite));
    for text in [terminal(&figures), page(&figures)] {
        assert!(text.contains("BROKEN"), "{text}");
    }
    assert!(page(&figures).contains("2 things are not as they must be"));
}

/// Three of six runs of the demo said of one noisy round of two that a promise was broken.
#[test]
fn a_promise_that_one_round_keeps_and_another_does_not_is_not_decided_and_wants_one_more_round() {
    let mut figures = made_up();
    assert_eq!(figures.once_more(), []);
    let beside = |it: &&mut Measurement| (it.setup, it.loads) == (Setup::WriteBack, Loads::Both);
    let slow = figures.measurements.iter_mut().rfind(beside).unwrap();
    slow.stream = Some(reached(150e6, 1 << 20, 2));
    assert_eq!(figures.once_more(), [(Setup::Bare, Loads::Stream), (Setup::WriteBack, Loads::Both)]);
    assert_eq!((figures.failures().len(), terminal(&figures).matches("BROKEN").count()), (0, 0));
    for text in [terminal(&figures), page(&figures)] {
        assert!(text.contains("not decided") && text.contains("0.88 (0.77 to 0.99; 0.97 or better)"), "{text}");
    }
    assert!(page(&figures).contains("One promise on speed is not decided"));
    let third = |setup, loads, rate| Measurement {
        setup,
        loads,
        round: 3,
        stream: Some(reached(rate, 1 << 20, 3)),
        random: None,
        dirty: None,
    };
    let bare = third(Setup::Bare, Loads::Stream, 195e6);
    figures.measurements.extend([bare, third(Setup::WriteBack, Loads::Both, 194e6)]);
    assert_eq!((figures.once_more(), figures.not_decided()), (vec![], None));
    let beside = figures.measurements.iter_mut().filter(beside);
    beside.for_each(|it| it.stream = Some(reached(150e6, 1 << 20, it.round)));
    assert_eq!(figures.failures().len(), 1, "broken where no round keeps it");
}

#[test]
fn figures_of_nothing_are_no_trouble() {
    let figures = Figures { measurements: Vec::new(), checks: Vec::new(), ..made_up() };
    assert!(!page(&figures).contains("NaN"));
    assert!(!terminal(&figures).is_empty());
}

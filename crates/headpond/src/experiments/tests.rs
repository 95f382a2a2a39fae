//! What is made of reports, from figures that were made up.

use super::{Count, Form, Reports, csv, json, markdown, page, terminal};
use headpond_sim::experiments::outcome::{self, Missing, Outcome, Scale, Who};
use headpond_sim::experiments::{ALL, Options, Report};
use std::path::Path;
use std::process::Command;

fn made_up() -> Reports {
    let mut outcome = Outcome::default();
    outcome.calibrate("bare, <MiB>/s", 2018.0, 2000.0);
    outcome.figure("writes", "MiB/s", &[(Who::Bare, 2018.0), (Who::Back, 2020.0), (Who::Theirs, 399.0)]);
    outcome.must("writes, by bare", 1.001, 0.97);
    outcome.must("others, by bare", 3.2, 5.0);
    outcome.aim("a fill", 0.1, 1.0);
    outcome.note("Scaled & said so.");
    let line = |who: Who, points: &[(f64, f64)]| (who, who.name().to_owned(), points.to_vec());
    let counted = vec![line(Who::Bare, &[(1.0, 900.0), (64.0, 2018.0)]), line(Who::Theirs, &[(1.0, 400.0), (64.0, 399.0)])];
    outcome.lines("Writes", "clients", "MiB/s", Scale::Linear, counted);
    outcome.lines("Filling", "seconds", "1/s", Scale::Powers, vec![line(Who::Back, &[(0.0, 100_000.0), (9.0, 0.0)])]);
    let bars = vec![line(Who::Bare, &[(0.0, 90.0), (1.0, 4.0)]), line(Who::Back, &[(0.0, 9000.0), (1.0, 80.0)])];
    outcome.bars("Mixed", "1/s", Scale::Powers, &["write".into(), "read".into()], bars);
    let report = |e: &headpond_sim::experiments::Experiment| Report {
        id: e.id,
        title: e.title,
        method: e.method,
        published: e.published,
        wanted: e.wanted,
        outcome: if e.id == "C7" { Err(Missing::Failed("a request failed".into())) } else { Ok(outcome.clone()) },
    };
    let reports = ALL.iter().map(report).collect();
    Reports {
        form: Form::Simulated,
        reports,
        options: Options { seed: 1, quick: true },
        command: "headpond experiments all --simulated --quick --seed 1".into(),
        parameters: outcome::parameters().to_vec(),
    }
}

#[test]
fn every_experiment_is_in_every_form() {
    let reports = made_up();
    let (page, text, table) = (page(&reports), terminal(&reports), csv(&reports));
    let value: serde_json::Value = serde_json::from_str(&json(&reports).to_string()).unwrap();
    assert_eq!(value["experiments"].as_array().unwrap().len(), ALL.len());
    let made = markdown("before <!-- begin: made by the command below -->what was there<!-- end --> after", &reports).unwrap();
    assert!(made.starts_with("before ") && made.ends_with(" after") && !made.contains("what was there"));
    assert!(markdown("no place for it", &reports).is_none());
    for e in ALL {
        for (form, it) in [("page", &page), ("text", &text), ("Markdown", &made)] {
            assert!(it.contains(e.id), "{} is not in the {form}", e.id);
        }
        assert_eq!(table.contains(&format!("\n{},", e.id)), e.id != "C7");
    }
    assert!(text.contains("MISSES") && text.contains("aim not reached") && text.contains("64.0 % of the mark"), "{text}");
    assert_eq!(reports.count(), Count { all: 2 * (ALL.len() - 1), missed: ALL.len() - 1, undecided: 0 });
}

#[test]
fn the_real_form_has_its_own_place_shows_rounds_and_says_what_it_has_not() {
    let mut reports = made_up();
    reports.form = Form::Real;
    reports.command = "headpond experiments all --real".into();
    for report in &mut reports.reports {
        match &mut report.outcome {
            Ok(it) => {
                it.figures[0].spread = vec![(Who::Back, [1900.0, 2100.0])];
                it.verdicts[2].spread = Some([3.0, 5.5]);
            }
            Err(why) => *why = Missing::NotHere("its tool is absent".into()),
        }
    }
    assert_eq!(reports.count(), Count { all: 2 * (ALL.len() - 1), missed: 0, undecided: ALL.len() - 1 });
    let old = "<!-- begin: made by the command below -->simulated<!-- end -->\n\
               <!-- begin: real form, made by the command below -->old<!-- end of the real form -->";
    let made = markdown(old, &reports).unwrap();
    assert!(made.contains("-->simulated<!--") && !made.contains("-->old<!--"), "{made}");
    // What ran on devices has a place of its own, beside that.
    reports.form = Form::Devices { slower: 1 };
    assert_eq!(markdown(old, &reports), None);
    let places = format!(
        "{old}\n<!-- begin: real form on devices, made by the command below -->new<!-- end of the real form on devices -->"
    );
    let beside = markdown(&places, &reports).unwrap();
    assert!(beside.starts_with(old) && !beside.contains("-->new<!--"), "{beside}");
    assert!(page(&reports).contains("on the devices that were given") && !page(&reports).contains("slower"));
    // And so has what ran on devices that were slower than what they stand for.
    reports.form = Form::Devices { slower: 10 };
    assert_eq!(markdown(&places, &reports), None);
    assert!(page(&reports).contains("are 10 times slower than what they stand for"));
    reports.form = Form::Real;
    for (form, it) in [("page", page(&reports)), ("text", terminal(&reports)), ("Markdown", made)] {
        for words in ["ot in this form: its tool is absent", "2,020 (1,900 to 2,100)", "rounds 3.000 to 5.500", "not decided"] {
            assert!(it.contains(words), "{words} is not in the {form}");
        }
    }
    let table = csv(&reports);
    assert!(table.contains(",least,\"writes\",\"Headpond\",,1900,MiB/s"), "{table}");
    assert_eq!(json(&reports)["form"], "real");
}

#[test]
fn the_page_stands_alone() {
    let page = page(&made_up());
    for outside in ["http:", "https:", "src=", "href=", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"));
    assert!(page.contains("&lt;MiB&gt;") && !page.contains("NaN") && !page.contains("inf"));
    for tag in ["table", "svg", "figure", "section", "tr", "p", "h2", "tbody"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert_eq!(page.matches("<svg").count(), 3 * (ALL.len() - 1));
}

/// Opens the page in a browser without a screen. Skipped where there is none, unless `HEADPOND_CHROMIUM=required`.
#[test]
fn a_browser_shows_the_page() {
    let required = std::env::var("HEADPOND_CHROMIUM").is_ok_and(|it| it == "required");
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(there) else {
        assert!(!required, "no Chromium here, though HEADPOND_CHROMIUM=required");
        eprintln!("skipped: no Chromium here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (file, shot) = (folder.path().join("page.html"), folder.path().join("page.png"));
    std::fs::write(&file, page(&made_up())).unwrap();
    let url = format!("file://{}", file.display());
    let profile = format!("--user-data-dir={}", folder.path().display());
    let ask = |more: &[&str]| {
        let all = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile];
        Command::new(browser).args(all).args(more).arg(&url).output().unwrap()
    };
    let dom = ask(&["--dump-dom"]);
    let text = String::from_utf8_lossy(&dom.stdout);
    assert!(text.contains("<h2>C6 ") && text.contains("<svg"), "{}", String::from_utf8_lossy(&dom.stderr));
    ask(&[&format!("--screenshot={}", shot.display()), "--window-size=1280,2400"]);
    assert!(is_png(&shot), "no picture was taken");
}

fn is_png(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000)
}

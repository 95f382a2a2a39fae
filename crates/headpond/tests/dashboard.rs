//! The Grafana dashboard: each of its queries, asked of a Prometheus server that scrapes a daemon.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use common::http::{Prometheus, get};
use common::{Nbd, Yard, have, served};
use serde_json::Value;

fn dashboard() -> Value {
    serde_json::from_str(include_str!("../../../packaging/grafana-dashboard.json")).unwrap()
}

/// Titles and queries of all panels, and of the variables.
fn queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            queries.push((panel["title"].as_str().unwrap().to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    assert!(queries.len() > 40, "{queries:?}");
    queries
}

/// Names of metrics in a text, without what Prometheus adds to a histogram's.
fn metrics(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices("headpond_") {
        let end = text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(text.len(), |end| at + end);
        let name = &text[at..end];
        names.insert(["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name).to_owned());
    }
    names
}

#[test]
fn every_metric_of_the_dashboard_is_exported_and_in_the_documentation() {
    let yard = Yard::new();
    let daemon = served(&yard);
    let text = get(&daemon.metrics(), "/metrics").1;
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect();
    let variables = dashboard()["templating"]["list"].to_string();
    let page = include_str!("../../../docs/METRICS.md");
    let all = queries().into_iter().map(|(_, query)| query).chain([variables]);
    for name in all.flat_map(|query| metrics(&query)) {
        assert!(exported.contains(&name), "{name} is not exported");
        // The page names the others of a group by what follows the group's own name.
        let documented =
            (9..name.len()).filter(|at| name[*at..].starts_with('_')).any(|at| page.contains(&format!("`{}`", &name[at..])));
        let of_disk = name.starts_with("headpond_disk_") && page.contains("`headpond_disk_...`");
        assert!(page.contains(&format!("`{name}`")) || documented || of_disk, "docs/METRICS.md does not name {name}");
    }
}

#[test]
fn no_two_panels_share_an_identity_or_a_place() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let number = |panel: &Value, name: &str| panel["gridPos"][name].as_u64().unwrap();
    for (n, a) in panels.iter().enumerate() {
        assert!(number(a, "x") + number(a, "w") <= 24, "{}", a["title"]);
        for b in &panels[n + 1..] {
            assert_ne!((&a["id"], &a["title"]), (&b["id"], &b["title"]));
            assert_ne!(a["id"], b["id"]);
            let apart = |at: &str, len: &str| {
                number(a, at) + number(a, len) <= number(b, at) || number(b, at) + number(b, len) <= number(a, at)
            };
            assert!(apart("x", "w") || apart("y", "h"), "{} and {} overlap", a["title"], b["title"]);
        }
    }
}

/// A little of everything that a panel shows.
fn load(nbd: &mut Nbd, round: u64) {
    nbd.write(round % 256 * 4096, &[round as u8; 4096], false).unwrap();
    nbd.read(round % 256 * 4096, 4096).unwrap();
    nbd.read((2 << 20) + round * 32768 % (2 << 20), 4096).unwrap();
    if round.is_multiple_of(8) {
        nbd.flush().unwrap();
    }
}

#[test]
fn a_prometheus_server_answers_every_query_of_the_dashboard() {
    if !have("prometheus") {
        return;
    }
    let yard = Yard::new();
    let daemon = served(&yard);
    let prometheus = Prometheus::scraping(&yard, &daemon.metrics());
    let mut nbd = yard.nbd("v");
    // As Grafana does before it asks.
    let ask = |query: &str| {
        let query = query.replace("$__rate_interval", "30s").replace("$pool", ".*").replace("$volume", ".*");
        prometheus.query(&query)
    };
    let mut left = queries();
    let until = Instant::now() + Duration::from_secs(90);
    let mut round = 0;
    while !left.is_empty() {
        (0..20).for_each(|_| {
            round += 1;
            load(&mut nbd, round);
        });
        left.retain(|(_, query)| ask(query).is_empty());
        assert!(Instant::now() < until, "not answered within 90 s: {left:#?}");
        std::thread::sleep(Duration::from_millis(250));
    }
    // The values are the daemon's own.
    let value: Value = serde_json::from_str(&yard.run(&["status", "--json"]).good().out).unwrap();
    let wanted = value["volumes"][0]["requests"]["absorbed"]["requests"].as_f64().unwrap();
    let query = "headpond_volume_requests_total{fate=\"absorbed\",volume=\"v\"}";
    while ask(query) != [wanted] {
        assert!(Instant::now() < until, "{query} is {:?}, not {wanted}", ask(query));
        std::thread::sleep(Duration::from_millis(250));
    }
    let hits = ask("sum(rate(headpond_volume_requests_total{fate=\"hit\"}[30s]))");
    assert!(hits[0] > 0.0, "{hits:?}");
    let median = ask("histogram_quantile(0.5, sum by (le) (rate(headpond_request_duration_seconds_bucket{fate=\"hit\"}[30s])))");
    assert!(median[0] > 0.0 && median[0] < 60.0, "{median:?}");
    assert!(fs::read_dir(yard.path("tsdb")).unwrap().count() > 0);
}

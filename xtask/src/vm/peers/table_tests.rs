use super::super::CONTENDERS;
use super::*;

fn table(rows: &[&str], samples: &[(&'static str, &'static str, &[f64])]) -> Table<'static> {
    let contenders: Vec<&Contender> = CONTENDERS.iter().collect();
    let mut table = Table::new(&contenders, rows);
    for (key, contender, values) in samples {
        for &value in *values {
            let sample = Sample { value, beyond: false };
            table.take(contender, Run { samples: vec![(key, sample)], dirty_kib: None }, Vec::new());
        }
    }
    table
}

fn metric(key: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.key == key).unwrap()
}

#[test]
fn a_median_is_of_the_middle_and_keeps_its_ends() {
    let samples = [3.0, 1.0, 2.0, 10.0].map(|value| Sample { value, beyond: false });
    let spread = Spread::of(&samples).unwrap();
    assert_eq!((spread.median.value, spread.least.value, spread.most.value), (2.5, 1.0, 10.0));
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn the_best_median_is_first_and_ours_is_compared_with_the_best_of_the_others() {
    let table = table(
        &["fill"],
        &[("fill", "bare", &[300.0]), ("fill", "writecache", &[1000.0, 1200.0]), ("fill", "headpond", &[990.0])],
    );
    let standing = table.standing(metric("fill")).unwrap();
    assert_eq!(standing.first, "dm-writecache");
    assert!((standing.ours.unwrap() - 0.9).abs() < 1e-9);
    assert!(table.figures().contains("| 0.90 | **no** |"), "{}", table.figures());
}

#[test]
fn of_times_less_is_better_and_the_bare_disk_takes_no_part() {
    let table = table(&["clean"], &[("clean", "bare", &[0.1]), ("clean", "bcache", &[6.0]), ("clean", "headpond", &[4.0])]);
    let standing = table.standing(metric("clean")).unwrap();
    assert_eq!(standing.first, "Headpond");
    assert!((standing.ours.unwrap() - 1.5).abs() < 1e-9);
    assert!(table.figures().contains("| – |"));
}

#[test]
fn figures_have_three_digits() {
    let said = |value, beyond| figure(Sample { value, beyond });
    assert_eq!(
        [said(12_626.7, false), said(123.4, false), said(45.67, true), said(0.314, false)],
        ["12,627", "123", "> 45.7", "0.31"]
    );
}

//! Rounds: whoever is measured takes turns, and what is said of them are medians with the least and the most.

use super::processors::{Processors, STOLEN};
use anyhow::Result;
use headpond_sim::experiments::outcome::{Figure, Outcome, Verdict, Weight, Who};

/// What each reached in each round: one value for each quantity.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Samples(Vec<(Who, Vec<Vec<f64>>)>);

/// A ratio, of several rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The least and the most.
    pub spread: [f64; 2],
}

impl Ratio {
    /// So many times less.
    pub fn over(self, times: f64) -> Ratio {
        Ratio { median: self.median / times, spread: self.spread.map(|it| it / times) }
    }
}

fn median_of(mut values: Vec<f64>) -> Ratio {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    };
    let (least, most) = (values.first().copied().unwrap_or(median), values.last().copied().unwrap_or(median));
    Ratio { median, spread: [least, most] }
}

impl Samples {
    /// Measures each of `whos` in so many rounds: in every second round in the opposite order, so that slow changes of the machine
    /// touch all alike.
    ///
    /// A turn in which a virtual machine's host took much of the processors for others is taken again, as many in all as there are
    /// rounds; the one counts that lost least.
    pub fn take(rounds: usize, whos: &[Who], mut measure: impl FnMut(Who) -> Result<Vec<f64>>) -> Result<Samples> {
        Samples::take_of(rounds, whos, |who| {
            let before = Processors::now()?;
            let values = measure(who)?;
            Ok((values, before.stolen_until(&Processors::now()?)))
        })
    }

    /// The same, of who tells in percent what was taken from it.
    fn take_of(rounds: usize, whos: &[Who], mut measure: impl FnMut(Who) -> Result<(Vec<f64>, f64)>) -> Result<Samples> {
        let mut again = rounds;
        let mut all: Vec<(Who, Vec<Vec<f64>>)> = whos.iter().map(|who| (*who, Vec::new())).collect();
        for round in 0..rounds {
            let mut turn: Vec<&mut (Who, Vec<Vec<f64>>)> = all.iter_mut().collect();
            if round % 2 == 1 {
                turn.reverse();
            }
            for (who, values) in turn {
                let mut best = measure(*who)?;
                while best.1 > STOLEN && again > 0 {
                    again -= 1;
                    eprintln!("The machine's host took {:.0} % of the processors from {}: once more.", best.1, who.name());
                    let other = measure(*who)?;
                    if other.1 < best.1 {
                        best = other;
                    }
                }
                values.push(best.0);
            }
        }
        Ok(Samples(all))
    }

    fn values(&self, who: Who, quantity: usize) -> Vec<f64> {
        let of = self.0.iter().find(|(w, _)| *w == who);
        of.map_or_else(Vec::new, |(_, rounds)| rounds.iter().map(|values| values[quantity]).collect())
    }

    /// One's median of a quantity.
    pub fn median(&self, who: Who, quantity: usize) -> f64 {
        median_of(self.values(who, quantity)).median
    }

    /// Of each round one's quantity by another's; of these the median.
    pub fn ratio(&self, (who, quantity): (Who, usize), (by, of): (Who, usize)) -> Ratio {
        let pairs = self.values(who, quantity).into_iter().zip(self.values(by, of));
        median_of(pairs.map(|(a, b)| a / b.max(1e-9)).collect())
    }

    /// Of each round one's quantity by the most that one of the others reached in it; of these the median.
    pub fn ratio_to_better(&self, who: Who, quantity: usize, others: &[Who]) -> Ratio {
        let mut better = vec![1e-9f64; self.values(who, quantity).len()];
        for other in others {
            better.iter_mut().zip(self.values(*other, quantity)).for_each(|(most, value)| *most = most.max(value));
        }
        median_of(self.values(who, quantity).into_iter().zip(better).map(|(a, b)| a / b).collect())
    }

    /// One's quantity that is a ratio already.
    pub fn own(&self, who: Who, quantity: usize) -> Ratio {
        median_of(self.values(who, quantity))
    }

    /// A quantity as a figure of the report.
    pub fn figure(&self, out: &mut Outcome, what: impl Into<String>, unit: &'static str, quantity: usize) {
        let all: Vec<(Who, Ratio)> = self.0.iter().map(|(who, _)| (*who, median_of(self.values(*who, quantity)))).collect();
        out.figures.push(Figure {
            what: what.into(),
            unit,
            reached: all.iter().map(|(who, it)| (*who, it.median)).collect(),
            spread: all.iter().map(|(who, it)| (*who, it.spread)).collect(),
        });
    }
}

/// A ratio that must come to so much.
pub fn must(out: &mut Outcome, what: impl Into<String>, ratio: Ratio, at_least: f64) {
    out.verdicts.push(Verdict {
        what: what.into(),
        figure: ratio.median,
        spread: Some(ratio.spread),
        at_least,
        at_most: f64::INFINITY,
        weight: Weight::Must,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_turns_and_ratios_are_within_a_round() {
        let (mut order, mut n) = (Vec::new(), 0.0);
        let samples = Samples::take_of(3, &[Who::Bare, Who::Back], |who| {
            order.push(who);
            n += 1.0;
            Ok((vec![n, 10.0], 0.0))
        });
        let samples = samples.unwrap();
        assert_eq!(order, [Who::Bare, Who::Back, Who::Back, Who::Bare, Who::Bare, Who::Back]);
        assert_eq!(samples.median(Who::Bare, 0), 4.0);
        // 2 by 1, 3 by 4, 6 by 5.
        let ratio = samples.ratio((Who::Back, 0), (Who::Bare, 0));
        assert_eq!(ratio, Ratio { median: 1.2, spread: [0.75, 2.0] });
        // Ten by ten each time; and by the better, which is itself, once.
        assert_eq!(samples.ratio_to_better(Who::Back, 1, &[Who::Bare]).median, 1.0);
        assert_eq!(samples.ratio_to_better(Who::Back, 0, &[Who::Bare, Who::Back]), Ratio { median: 1.0, spread: [0.75, 1.0] });
        let mut out = Outcome::default();
        samples.figure(&mut out, "n", "1", 0);
        assert_eq!(out.figures[0].spread_of(Who::Back), Some([2.0, 6.0]));
    }

    /// C5 was said to miss, each time with another figure, in runs in which the host took up to a third of the processors.
    #[test]
    fn a_turn_from_which_the_host_took_the_processors_is_taken_again_and_no_more_of_them_than_there_are_rounds() {
        let measured = |taken: &[f64]| {
            let (mut taken, mut n) = (taken.iter().copied(), 0.0);
            let samples = Samples::take_of(2, &[Who::Back], |_| {
                n += 1.0;
                Ok((vec![n], taken.next().unwrap_or(0.0)))
            });
            samples.unwrap().values(Who::Back, 0)
        };
        assert_eq!(measured(&[2.0, 0.5]), [1.0, 2.0]);
        assert_eq!(measured(&[30.0, 1.0, 0.0]), [2.0, 3.0]);
        assert_eq!(measured(&[30.0, 40.0, 20.0, 30.0, 9.0]), [3.0, 4.0], "the least of three, and no more are taken");
    }

    #[test]
    fn what_is_short_by_the_median_and_not_in_a_round_is_not_decided() {
        let mut out = Outcome::default();
        for (median, most) in [(0.98, 1.0), (0.9, 1.1), (0.9, 0.95)] {
            must(&mut out, "it", Ratio { median, spread: [0.8, most] }, 0.97);
        }
        let all: Vec<(bool, bool)> = out.verdicts.iter().map(|v| (v.holds(), v.undecided())).collect();
        assert_eq!(all, [(true, false), (false, true), (false, false)]);
    }
}

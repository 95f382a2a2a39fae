//! The named regressions: how caches before this one lost data (P1 to P39 in the project's notes on reliability), and the
//! sequences that break a design like ours (H1 to H20); and steps that must not be left out. Each that can happen here is a scene in `crates/sim/tests/named`,
//! and fails on an engine with that very mistake.

mod abandon;
mod around;
mod bands;
mod beside;
mod diskless;
mod doubts;
mod durability;
mod endurance;
mod evict;
mod format;
mod gain;
mod growing;
mod hazards;
mod holes;
mod leaving;
mod lent;
mod loading;
mod moves;
mod numbers;
mod passing;
mod peers;
mod preload;
mod reads;
mod room;
mod shares;
mod silence;
mod slow;
mod starts;
mod steps;
mod sweeps;
mod synchronous;
mod witness;

use crate::mistakes::Mistake;

/// A scene, with the mistake that it must fail on.
pub type Told = (&'static str, &'static str);

/// Mistakes that only these scenes need.
pub fn mistakes() -> impl Iterator<Item = &'static Mistake> {
    peers::MISTAKES
        .iter()
        .chain(diskless::MISTAKES)
        .chain(doubts::MISTAKES)
        .chain(durability::MISTAKES)
        .chain(endurance::MISTAKES)
        .chain(evict::MISTAKES)
        .chain(gain::MISTAKES)
        .chain(hazards::MISTAKES)
        .chain(growing::MISTAKES)
        .chain(holes::MISTAKES)
        .chain(leaving::MISTAKES)
        .chain(lent::MISTAKES)
        .chain(loading::MISTAKES)
        .chain(moves::MISTAKES)
        .chain(numbers::MISTAKES)
        .chain(passing::MISTAKES)
        .chain(starts::MISTAKES)
        .chain(steps::MISTAKES)
        .chain(abandon::MISTAKES)
        .chain(bands::MISTAKES)
        .chain(beside::MISTAKES)
        .chain(preload::MISTAKES)
        .chain(reads::MISTAKES)
        .chain(room::MISTAKES)
        .chain(around::MISTAKES)
        .chain(silence::MISTAKES)
        .chain(slow::MISTAKES)
        .chain(synchronous::MISTAKES)
        .chain(shares::MISTAKES)
        .chain(sweeps::MISTAKES)
        .chain(witness::MISTAKES)
        .chain(format::MISTAKES)
}

fn told() -> impl Iterator<Item = &'static Told> {
    peers::TOLD
        .iter()
        .chain(diskless::TOLD)
        .chain(doubts::TOLD)
        .chain(durability::TOLD)
        .chain(endurance::TOLD)
        .chain(evict::TOLD)
        .chain(gain::TOLD)
        .chain(growing::TOLD)
        .chain(hazards::TOLD)
        .chain(holes::TOLD)
        .chain(leaving::TOLD)
        .chain(lent::TOLD)
        .chain(loading::TOLD)
        .chain(moves::TOLD)
        .chain(numbers::TOLD)
        .chain(passing::TOLD)
        .chain(starts::TOLD)
        .chain(steps::TOLD)
        .chain(abandon::TOLD)
        .chain(bands::TOLD)
        .chain(beside::TOLD)
        .chain(preload::TOLD)
        .chain(reads::TOLD)
        .chain(room::TOLD)
        .chain(around::TOLD)
        .chain(silence::TOLD)
        .chain(slow::TOLD)
        .chain(synchronous::TOLD)
        .chain(shares::TOLD)
        .chain(sweeps::TOLD)
        .chain(witness::TOLD)
        .chain(format::TOLD)
}

/// Numbers without a scene, with the reason.
pub fn elsewhere() -> impl Iterator<Item = (String, &'static str)> {
    let of =
        |letter: char, list: &'static [(usize, &'static str)]| list.iter().map(move |(n, why)| (format!("{letter}{n}"), *why));
    of('P', peers::ELSEWHERE).chain(of('H', hazards::ELSEWHERE))
}

/// The scenes that tell a mistake's story.
pub fn scenes_of(mistake: &str) -> Vec<&'static str> {
    told().filter(|(_, of)| *of == mistake).map(|(scene, _)| *scene).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes;
    use crate::root;
    use std::collections::BTreeSet;

    #[test]
    fn each_scene_is_told_of_a_mistake_that_can_be_planted() {
        let names: BTreeSet<&str> = mistakes::all().iter().map(|m| m.name).collect();
        let unknown: Vec<&Told> = told().filter(|(_, mistake)| !names.contains(mistake)).collect();
        assert!(unknown.is_empty(), "no such mistake: {unknown:?}");
    }

    #[test]
    fn each_scene_in_the_folder_has_its_mistake() {
        let listed: BTreeSet<&str> =
            told().chain(room::UNTOLD).chain(witness::UNTOLD).chain(diskless::UNTOLD).map(|(scene, _)| *scene).collect();
        let folder = root().join("crates/sim/tests/named");
        for file in std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).filter(|f| !f.ends_with("main.rs")) {
            let module = file.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            let written = text.split("#[test]\nfn ").skip(1).map(|t| format!("{module}::{}", t.split('(').next().unwrap()));
            let lacking: Vec<String> = written.filter(|name| !listed.contains(name.as_str())).collect();
            assert!(lacking.is_empty(), "no mistake is named for {lacking:?}");
        }
    }

    /// A number is told by a scene, or it is said why it is not.
    fn complete(letter: char, last: usize, told: &[Told], elsewhere: &[(usize, &str)]) {
        for n in 1..=last {
            let name = format!("::{}{n}_", letter.to_ascii_lowercase());
            let scenes = told.iter().filter(|(scene, _)| scene.contains(&name)).count();
            let reasons = elsewhere.iter().filter(|(m, _)| *m == n).count();
            assert!(scenes > 0 || reasons == 1, "{letter}{n} is neither a scene nor is there a reason");
        }
    }

    #[test]
    fn all_that_happened_to_peers_is_a_scene_or_has_a_reason() {
        complete('P', 39, peers::TOLD, peers::ELSEWHERE);
    }

    #[test]
    fn all_hazards_are_scenes_or_have_a_reason() {
        complete('H', 20, hazards::TOLD, hazards::ELSEWHERE);
    }
}

//! That the table of the real form is whole.

use super::catalogue::{ALL, Form};
use headpond_sim::experiments;

#[test]
fn each_experiment_has_a_real_form_or_a_reason_for_having_none() {
    let ids: Vec<&str> = ALL.iter().map(|(id, _)| *id).collect();
    let wanted: Vec<&str> = experiments::ALL.iter().map(|e| e.id).collect();
    assert_eq!(ids, wanted);
    for (id, form) in ALL {
        match form {
            Form::Runs { method, tools, .. } => assert!(method.ends_with('.') && !tools.is_empty(), "{id}: {method}"),
            Form::Not(why) => assert!(why.len() > 40, "{id}: {why}"),
        }
    }
}

//! That the table of the real form is whole.

use super::catalogue::{ALL, Form, takes_devices};
use headpond_sim::experiments;

#[test]
fn each_experiment_has_a_real_form_and_those_of_the_nfs_server_take_devices() {
    let ids: Vec<&str> = ALL.iter().map(|(id, _)| *id).collect();
    let wanted: Vec<&str> = experiments::ALL.iter().map(|e| e.id).collect();
    assert_eq!(ids, wanted);
    for (id, Form { method, tools, .. }) in ALL {
        assert!(method.ends_with('.') && !tools.is_empty(), "{id}: {method}");
    }
    let on_devices: Vec<&str> = ids.into_iter().filter(|id| takes_devices(id)).collect();
    assert_eq!(on_devices, ["A1", "A2", "A3", "A4", "A6", "A7"]);
}

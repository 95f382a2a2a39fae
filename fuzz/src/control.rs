//! Frames of the control socket from bytes.

use headpond_host::control::{Call, Fault, LIMIT, Service, converse};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Cursor;
use std::sync::Mutex;

/// Counts calls, and answers each in some way.
#[derive(Default)]
struct Counter(Mutex<usize>);

impl Service for Counter {
    fn call(&self, call: Call, progress: &mut dyn FnMut(Value)) -> Result<Value, Fault> {
        *self.0.lock().expect("one thread") += 1;
        match call {
            Call::Destage { name, .. } => {
                progress(json!({ "dirty_bytes": 1 }));
                Ok(json!({ "name": name }))
            }
            Call::Stop => Err(Fault::refused("no")),
            call => Ok(json!({ "call": format!("{call:?}") })),
        }
    }
}

/// Answers whatever frames there are. Each gets one answer, which is a frame too, and no longer than a client reads.
pub fn run(data: &[u8]) {
    let (service, answers) = (Counter::default(), RefCell::new(Vec::new()));
    let whole = converse(&mut Cursor::new(data), &mut *answers.borrow_mut(), &service).is_ok();
    let answers = answers.into_inner();
    assert!(answers.is_empty() || answers.ends_with(&[0]));
    let mut ended = 0;
    for frame in answers.split(|b| *b == 0).filter(|f| !f.is_empty()) {
        assert!(frame.len() < 1 << 20, "an answer is longer than clients read");
        let answer: Value = serde_json::from_slice(frame).expect("an answer is JSON");
        assert!(answer["parameters"].is_object());
        ended += usize::from(answer.get("continues").is_none());
    }
    let asked = data.split_inclusive(|b| *b == 0).take_while(|f| f.ends_with(&[0]) && f.len() <= LIMIT + 1).count();
    assert_eq!(ended, asked, "an answer for each frame");
    assert!(*service.0.lock().expect("one thread") <= asked);
    assert_eq!(whole, data.is_empty() || data.ends_with(&[0]) && data.split(|b| *b == 0).all(|f| f.len() <= LIMIT));
}

/// A call of each kind, and what is none.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |method: &str, parameters: Value| {
        let mut bytes = json!({ "method": format!("org.headpond.{method}"), "parameters": parameters, "more": true }).to_string();
        bytes.push('\0');
        bytes.into_bytes()
    };
    let name = || json!({ "name": "v" });
    vec![
        frame("Status", json!({})),
        frame("Attach", json!({ "name": "a", "spec": "/b", "mode": "write-back", "phase": 7 })),
        frame("Detach", name()),
        frame("SetMode", json!({ "name": "v", "mode": "pass-through" })),
        [frame("Destage", name()), frame("Checkpoint", json!({}))].concat(),
        [frame("Cancel", name()), frame("Stop", json!({}))].concat(),
        b"{\"method\":\"org.headpond.Status\",\"x\":[1,2.5e-3,\"\\u00e4\\n\",null,true]}\0[1]\0{\0\0".to_vec(),
    ]
}

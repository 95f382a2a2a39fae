//! Runs seeds: torture FROM COUNT; or tells one: torture SEED, with SMALL=1 in the small geometry.
use headpond_sim::{Plan, Summary, run_seed};
fn main() {
    if std::env::args().count() == 2 {
        let seed = std::env::args().nth(1).unwrap().parse().unwrap();
        let plan = Plan::of(seed);
        let plan = if std::env::var_os("SMALL").is_some() { plan.small() } else { plan };
        println!("{plan}");
        let o = headpond_sim::torture::tell_plan(&plan, Some(Box::new(|l| println!("{l}"))));
        println!("{:?}", o.violation);
        return;
    }
    let a: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let mut s = Summary::default();
    let t = std::time::Instant::now();
    for seed in a[0]..a[0] + a[1] {
        let o = match std::panic::catch_unwind(|| run_seed(seed)) {
            Ok(o) => o,
            Err(_) => {
                println!("PANIC {}", Plan::of(seed));
                continue;
            }
        };
        if let Some(v) = &o.violation {
            println!("FAIL {}\n   {:.1500}", Plan::of(seed), v);
        }
        s.add(seed, &o);
    }
    println!("{s}\n{} failures, {:?}", s.failures.len(), t.elapsed());
}

//! Headrow as one of several contenders that a driver times in turns: `peer-worker THREADS`.
//!
//! The protocol is that of [`headrow_bench_protocol`]; the cases are those of [`headrow_benches::cases`]. Folders of models lie
//! in `models` under the path in `PEERS_HOME`.

use headrow_bench_protocol::{Outcome, Peer, Result, home, serve, threads};
use headrow_benches::cases::Case;
use std::sync::Arc;

/// A loaded folder.
struct Model {
    model: Arc<headrow::Model>,
    threads: usize,
}

impl Peer for Model {
    type Case = Case;

    fn load(model: &str, threads: usize) -> Result<Model> {
        let model = headrow::Model::from_dir(home()?.join("models").join(model))?;
        Ok(Model { model: Arc::new(model), threads })
    }

    fn case(&self, name: &str) -> Result<Case> {
        Case::new(&self.model, name, self.threads)
    }

    fn call(&mut self, case: &mut Case, ns: &mut Vec<u64>) -> Result<()> {
        case.call(ns)
    }

    fn outcome<'a>(&'a self, case: &'a Case) -> Result<Outcome<'a>> {
        Ok(case.outcome())
    }
}

fn main() -> Result<()> {
    serve::<Model>(threads()?)
}

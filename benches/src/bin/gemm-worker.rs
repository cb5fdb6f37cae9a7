//! Headrow's matrix product as a contender of `benches/gemm_peers.py`: `gemm-worker THREADS`.
//!
//! The protocol is that of [`headrow_bench_protocol`]; a case is `gemm:MxKxN`, and B is packed before any call. The name of the
//! model says nothing.

use headrow_bench_protocol::{Outcome, Peer, Result, nanoseconds, serve, threads};
use headrow_kernels::{
    Cpu, Epilogue, LeftKind, Mat, MatMut, PackedB, Par, RightKind, Scratch, Team, Write, gemm,
    gemm_scratch,
};
use std::time::Instant;

struct Products {
    cpu: Cpu,
    team: Team,
}

struct Case {
    m: usize,
    a: Vec<f32>,
    b: PackedB,
    c: Vec<f32>,
    scratch: Scratch,
}

/// The values of a matrix, the same for every contender: multiples of a thousandth in [−1, 1].
fn drawn(len: usize, factor: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * factor + 13) % 2001) as f32 / 1000.0 - 1.0).collect()
}

impl Peer for Products {
    type Case = Case;

    fn load(_: &str, threads: usize) -> Result<Products> {
        Ok(Products { cpu: Cpu::detect(), team: Team::new(threads) })
    }

    fn case(&self, name: &str) -> Result<Case> {
        let unknown = || format!("no case {name}: a case is gemm:MxKxN");
        let sizes = name.strip_prefix("gemm:").ok_or_else(unknown)?.split('x').map(str::parse);
        let sizes = sizes.collect::<std::result::Result<Vec<usize>, _>>()?;
        let &[m, k, n] = &sizes[..] else { return Err(unknown().into()) };
        let (cpu, threads) = (self.cpu, self.team.threads());
        let need = gemm_scratch(cpu, threads, m, n, k, LeftKind::Plain, RightKind::Packed);
        let b = PackedB::new(cpu, Mat::new(&drawn(k * n, 7919), k, n));
        Ok(Case { m, a: drawn(m * k, 6007), b, c: vec![0.0; m * n], scratch: Scratch::new(need) })
    }

    fn call(&mut self, case: &mut Case, ns: &mut Vec<u64>) -> Result<()> {
        let start = Instant::now();
        let (k, n) = (case.a.len() / case.m, case.c.len() / case.m);
        let (a, c) = (Mat::new(&case.a, case.m, k), MatMut::new(&mut case.c, case.m, n));
        let (cpu, b, mut stack) = (self.cpu, &case.b, case.scratch.stack());
        let product = |par: Par<'_>| {
            gemm(cpu, par, a, b, Write::Replace, &Epilogue::default(), c, &mut stack);
        };
        if self.team.threads() == 1 {
            product(Par::SERIAL)
        } else {
            self.team.open(product)
        }
        ns.push(nanoseconds(start));
        Ok(())
    }

    fn outcome<'a>(&'a self, case: &'a Case) -> Result<Outcome<'a>> {
        Ok(Outcome::Values((&case.c[..]).into()))
    }
}

fn main() -> Result<()> {
    serve::<Products>(threads()?)
}

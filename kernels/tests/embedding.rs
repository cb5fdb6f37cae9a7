//! Gathering and adding rows of embedding tables.

mod support;

use headrow_kernels::{Cpu, Lookup, Mat, MatMut, Par, Team, embed};
use support::{Guarded, Random};

#[test]
fn rows_are_gathered_scaled_and_added_in_their_order() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for d in (0..=70).chain([384]) {
            let tokens = Guarded::random(11, d, d + 3, 1, &mut rng);
            let positions = Guarded::random(5, d, d, 0, &mut rng);
            let (ids, places) = ([7, 0, 10, 7, 3], [0, 1, 2, 3, 4]);
            let mut out = Guarded::filled(5, d, d + 2, 3, f32::NAN);
            let lookups = [
                Lookup { table: tokens.view(), ids: &ids, scale: 22.5 },
                Lookup { table: positions.view(), ids: &places, scale: 1.0 },
            ];
            embed(cpu, Par::SERIAL, &lookups, out.view_mut());
            out.assert_intact("embed");
            for i in 0..5 {
                for j in 0..d {
                    let token = tokens.view().row(ids[i] as usize)[j] * 22.5;
                    let sum = token + positions.view().row(places[i] as usize)[j];
                    assert_eq!(out.view().row(i)[j].to_bits(), sum.to_bits(), "[{i}, {j}] of {d}");
                }
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mut rng = Random::new(2);
    let (rows, d) = (700, 65);
    let table = rng.vec(100 * d);
    let ids: Vec<u32> = (0..rows).map(|_| rng.below(100) as u32).collect();
    let lookup = Lookup { table: Mat::new(&table, 100, d), ids: &ids, scale: 8.0 };
    let run = |par: Par<'_>| {
        let mut out = vec![0.0; rows * d];
        embed(Cpu::detect(), par, &[lookup, lookup], MatMut::new(&mut out, rows, d));
        out
    };
    let expected = run(Par::SERIAL);
    for threads in 1..=8 {
        assert_eq!(Team::new(threads).open(run), expected, "{threads} threads");
    }
}

#[test]
fn without_tables_the_sum_is_zero() {
    let mut out = [f32::NAN; 6];
    embed(Cpu::detect(), Par::SERIAL, &[], MatMut::new(&mut out, 2, 3));
    assert_eq!(out, [0.0; 6]);
}

#[test]
#[should_panic(expected = "id 4 at place 1 in a table of 4 rows")]
fn an_id_beyond_its_table_is_refused() {
    let lookup = Lookup { table: Mat::new(&[0.0; 8], 4, 2), ids: &[0, 4], scale: 1.0 };
    embed(Cpu::detect(), Par::SERIAL, &[lookup], MatMut::new(&mut [0.0; 4], 2, 2));
}

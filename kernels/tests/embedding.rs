//! Gathering and adding rows of embedding tables.

mod support;

use headrow_kernels::{Cpu, Lookup, Mat, MatMut, Par, Team, embed, embed_backward};
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
fn gradients_are_added_to_the_rows_of_their_ids_in_the_order_of_the_rows() {
    let mut rng = Random::new(3);
    for cpu in Cpu::all() {
        for d in (0..=70).chain([384]) {
            // A frequent id, others in disorder, and rows that no id names.
            let ids = [7, 0, 7, 10, 7, 3, 0, 7];
            let dy = Guarded::random(ids.len(), d, d + 1, 2, &mut rng);
            let before = Guarded::random(12, d, d + 3, 1, &mut rng);
            let mut expected: Vec<Vec<f32>> =
                (0..12).map(|i| before.view().row(i).to_vec()).collect();
            for (i, &id) in ids.iter().enumerate() {
                let row = expected[id as usize].iter_mut();
                row.zip(dy.view().row(i)).for_each(|(sum, dy)| *sum += dy * 22.5);
            }
            for threads in 1..=4 {
                let mut sums = Guarded::from_fn(12, d, d + 3, 1, |i, j| before.view().row(i)[j]);
                Team::new(threads).open(|par| {
                    embed_backward(cpu, par, &ids, 22.5, dy.view(), sums.view_mut());
                });
                sums.assert_intact("embed_backward");
                assert!(sums.values() == expected.concat(), "{d} wide, {threads} threads");
            }
        }
    }
}

/// The gradient of Σ y·dy is what moving each element of the table changes: gathering is linear, and in whole
/// numbers exact.
#[test]
fn the_gradient_is_what_a_step_in_the_table_gives() {
    let (vocabulary, d) = (5, 3);
    let mut rng = Random::new(4);
    let mut whole =
        |len: usize| -> Vec<f32> { (0..len).map(|_| rng.below(17) as f32 - 8.0).collect() };
    let ids = [4, 1, 1, 0, 4, 1];
    let (table, dy) = (whole(vocabulary * d), whole(ids.len() * d));
    let value = |table: &[f32]| -> f32 {
        let mut out = vec![0.0; ids.len() * d];
        let lookup = Lookup { table: Mat::new(table, vocabulary, d), ids: &ids, scale: 4.0 };
        embed(Cpu::detect(), Par::SERIAL, &[lookup], MatMut::new(&mut out, ids.len(), d));
        out.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
    };
    let mut gradient = vec![0.0; vocabulary * d];
    let (dy, sums) = (Mat::new(&dy, ids.len(), d), MatMut::new(&mut gradient, vocabulary, d));
    embed_backward(Cpu::detect(), Par::SERIAL, &ids, 4.0, dy, sums);
    for at in 0..vocabulary * d {
        let mut moved = table.clone();
        moved[at] += 1.0;
        assert_eq!(value(&moved) - value(&table), gradient[at], "[{at}]");
    }
}

#[test]
fn a_nan_among_gradients_reaches_its_column_of_its_id_alone() {
    let (mut dy, mut sums) = ([1.0f32; 9], [0.5f32; 12]);
    dy[4] = f32::NAN;
    let d_table = MatMut::new(&mut sums, 4, 3);
    embed_backward(Cpu::detect(), Par::SERIAL, &[2, 3, 2], 1.0, Mat::new(&dy, 3, 3), d_table);
    let nan: Vec<usize> = (0..12).filter(|&at| sums[at].is_nan()).collect();
    assert_eq!(nan, [10]);
}

#[test]
#[should_panic(expected = "id 4 at place 1 in a table of 4 rows")]
fn a_gradient_for_an_id_beyond_its_table_is_refused() {
    let (dy, mut sums) = ([0.0; 4], [0.0; 8]);
    let d_table = MatMut::new(&mut sums, 4, 2);
    embed_backward(Cpu::detect(), Par::SERIAL, &[0, 4], 1.0, Mat::new(&dy, 2, 2), d_table);
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

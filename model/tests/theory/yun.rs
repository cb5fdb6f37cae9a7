//! The class T^{2,1,4}, alone and with positions.

use super::definition::{Definition, Matrix};
use super::{Random, bits, moved, sequence, transformer};
use headrow::theory::SequenceMap;
use headrow::theory::column::Dimensions;
use headrow::theory::symmetry::permutations;
use headrow::theory::yun::{FixedWidth, HEAD_WIDTH, HEADS, HIDDEN, Positional};

/// Those of the class.
fn widths(d: usize, blocks: usize) -> Dimensions {
    Dimensions::new(d).with_heads(HEADS, HEAD_WIDTH).with_hidden(HIDDEN).with_blocks(blocks)
}

fn member(d: usize, blocks: usize, random: &mut Random) -> FixedWidth {
    moved(FixedWidth::random(d, blocks, random.next()).unwrap(), random)
}

#[test]
fn its_widths_are_2_1_and_4_and_others_are_refused() {
    assert_eq!((HEADS, HEAD_WIDTH, HIDDEN), (2, 1, 4));
    let cases = [
        (widths(3, 1).with_heads(1, 1), "H of T^{2,1,4} is 1, expected 2"),
        (widths(3, 1).with_heads(3, 1), "H of T^{2,1,4} is 3, expected 2"),
        (widths(3, 1).with_heads(2, 2), "m of T^{2,1,4} is 2, expected 1"),
        (widths(3, 1).with_hidden(5), "r of T^{2,1,4} is 5, expected 4"),
    ];
    for (dimensions, expected) in cases {
        let wide = transformer(dimensions, &mut Random(1));
        let error = FixedWidth::from_column(&wide, &[[0.0; 2]]).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let one = transformer(widths(3, 1), &mut Random(1));
    let error = FixedWidth::from_column(&one, &[[0.0; 2]; 2]).unwrap_err();
    assert_eq!(error.to_string(), "query biases is 2, expected 1");
}

#[test]
fn a_block_has_two_numbers_more_than_the_column_transformer_and_without_them_is_one() {
    let mut random = Random(2);
    for (d, blocks) in [(1, 1), (3, 2), (6, 4)] {
        let column = transformer(widths(d, blocks), &mut random);
        let plain = FixedWidth::from_column(&column, &vec![[0.0; 2]; blocks]).unwrap();
        assert_eq!(plain.parameters().len(), column.parameters().len() + 2 * blocks);
        assert_eq!(plain.parameters().len(), blocks * (8 * d + 2 + 8 * d + 4 + d));
        let x = sequence(&mut random, d, 5);
        let [found, expected] = [plain.forward(&x), column.forward(&x)].map(Result::unwrap);
        assert_eq!(bits(&found), bits(&expected));
        let biased = FixedWidth::from_column(&column, &vec![[0.7, -0.4]; blocks]).unwrap();
        assert_ne!(bits(&biased.forward(&x).unwrap()), bits(&expected));
        assert_eq!((biased.d(), biased.blocks()), (d, blocks));
    }
}

#[test]
fn it_is_its_definition() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (d, n, blocks) = (1 + random.below(5), 1 + random.below(9), 1 + random.below(5));
        let x = sequence(&mut random, d, n);
        let close = |found: Matrix, expected: &Matrix| {
            let unit = expected.0.iter().flatten().fold(1.0f64, |most, x| most.max(x.abs()));
            assert!(found.distance(expected) < 2e-5 * unit, "{found:?}, expected {expected:?}");
        };
        let plain = member(d, blocks, &mut random);
        let expected = Definition::of(&plain).forward(&Matrix::of(&x));
        close(Matrix::of(&plain.forward(&x).unwrap()), &expected);
        let positional = moved(Positional::random(d, n, blocks, seed).unwrap(), &mut random);
        let expected = Definition::of(&positional).forward(&Matrix::of(&x));
        close(Matrix::of(&positional.forward(&x).unwrap()), &expected);
    }
}

#[test]
fn it_is_closed_under_composition() {
    let mut random = Random(3);
    let (f, g) = (member(2, 3, &mut random), member(2, 1, &mut random));
    let both = f.then(&g).unwrap();
    assert_eq!(both.blocks(), 4);
    let x = sequence(&mut random, 2, 5);
    let expected = g.forward(&f.forward(&x).unwrap()).unwrap();
    assert_eq!(bits(&both.forward(&x).unwrap()), bits(&expected));
    let error = f.then(&member(3, 1, &mut random)).unwrap_err();
    assert_eq!(error.to_string(), "d of what follows is 3, expected 2");
}

#[test]
fn with_positions_it_is_g_of_x_plus_e_and_tells_places_apart() {
    let mut random = Random(4);
    let (g, e) = (member(2, 2, &mut random), sequence(&mut random, 2, 4));
    let map = Positional::new(&g, &e).unwrap();
    assert_eq!((map.d(), map.n(), map.blocks()), (2, 4, 2));
    assert_eq!(map.positions(), e);
    assert_eq!(map.parameters().len(), g.parameters().len() + 8);
    let x = sequence(&mut random, 2, 4);
    let sum: Vec<f32> = x.values().iter().zip(e.values()).map(|(x, e)| x + e).collect();
    let sum = headrow::theory::Columns::new(2, sum).unwrap();
    let y = map.forward(&x).unwrap();
    assert_eq!(bits(&y), bits(&g.forward(&sum).unwrap()));
    let mut apart = permutations(4).into_iter().filter(|order| !order.is_sorted());
    assert!(apart.all(|order| {
        let found = map.forward(&x.permuted(&order)).unwrap();
        found.differences(&y.permuted(&order)).fold(0.0, f32::max) > 1e-3
    }));
    let error = map.forward(&sequence(&mut random, 2, 5)).unwrap_err();
    assert_eq!(error.to_string(), "X is 2×5, expected 2×4");
    let error = Positional::new(&g, &sequence(&mut random, 3, 4)).unwrap_err();
    assert_eq!(error.to_string(), "E is 3×4, expected 2×n");
    let error = Positional::random(2, 0, 1, 1).unwrap_err();
    assert_eq!(error.to_string(), "n is 0, expected at least 1");
}

//! The mathematician's Transformer: its definition, its count, and the case of one head.

use super::definition::{Definition, Matrix};
use super::{Random, bits, dimensions, largest, sequence, transformer};
use headrow::theory::column::{Block, Dimensions, Head, Transformer};
use headrow::theory::{Columns, SequenceMap};
use headrow::{Error, Mat};

#[test]
fn it_is_its_definition_over_any_dimensions() {
    for seed in 0..80 {
        let mut random = Random(seed);
        let dimensions = dimensions(&mut random);
        let map = transformer(dimensions, &mut random);
        let definition = Definition::of(&map);
        for n in [1, 2, 3, 17, 70] {
            let x = sequence(&mut random, dimensions.d, n);
            let (found, expected) = (map.forward(&x).unwrap(), definition.forward(&Matrix::of(&x)));
            let error = Matrix::of(&found).distance(&expected);
            let unit = f64::from(largest(&found)).max(1.0);
            assert!(error < 2e-5 * unit, "{dimensions:?}, n = {n}: {error} of {unit}");
        }
    }
}

#[test]
fn parameters_are_4hmd_2rd_r_d_a_block_whatever_the_length() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let dimensions = dimensions(&mut random);
        let Dimensions { d, heads, head_width: m, hidden: r, blocks, .. } = dimensions;
        let map = Transformer::random(dimensions, seed).unwrap();
        let block = 4 * heads * m * d + 2 * r * d + r + d;
        assert_eq!(dimensions.block_parameters(), Some(block));
        assert_eq!(map.parameters().len(), blocks * block, "{dimensions:?}");
        assert_eq!(map.dimensions(), dimensions);
        for n in [1, 5, 33] {
            let y = map.forward(&sequence(&mut random, d, n)).unwrap();
            assert_eq!((y.d(), y.n()), (d, n));
        }
    }
}

/// X + Wᴼ·Σ_i p_ij·Wⱽx_i for each token j, with p_ij ∝ exp((Wᴷx_i)·(Wꟴx_j)): one head, token by token.
fn single_head([q, k, v, o]: [&[f32]; 4], x: &Columns) -> Vec<Vec<f64>> {
    let d = x.d();
    let product = |w: &[f32], x: &[f64]| -> Vec<f64> {
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        w.chunks(x.len()).map(dot).collect()
    };
    let tokens = (0..x.n()).map(|j| x.column(j).iter().map(|&x| x.into()).collect());
    let tokens: Vec<Vec<f64>> = tokens.collect();
    let one = |x: &Vec<f64>| {
        let query = product(q, x);
        let score = |y: &Vec<f64>| -> f64 {
            product(k, y).iter().zip(&query).map(|(key, query)| key * query).sum()
        };
        let weights: Vec<f64> = tokens.iter().map(|y| score(y).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut seen = vec![0.0; v.len() / d];
        for (y, weight) in tokens.iter().zip(&weights) {
            seen.iter_mut().zip(product(v, y)).for_each(|(sum, v)| *sum += weight / total * v);
        }
        x.iter().zip(product(o, &seen)).map(|(x, y)| x + y).collect()
    };
    tokens.iter().map(one).collect()
}

#[test]
fn one_head_is_single_head_attention() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (d, m) = (1 + random.below(8), 1 + random.below(8));
        let mut numbers = |count| -> Vec<f32> { (0..count).map(|_| random.unit()).collect() };
        let [q, k, v, o] = [(); 4].map(|()| numbers(m * d));
        // W₂ = 0 and b₂ = 0: FF(X) = X.
        let (w1, zeros) = (numbers(3 * d), vec![0.0; 3 * d]);
        let head = Head {
            query: Mat::new(&q, m, d),
            key: Mat::new(&k, m, d),
            value: Mat::new(&v, m, d),
            output: Mat::new(&o, d, m),
        };
        let block = Block {
            heads: &[head],
            w1: Mat::new(&w1, 3, d),
            b1: &[0.5; 3],
            w2: Mat::new(&zeros, d, 3),
            b2: &zeros[..d],
        };
        let map = Transformer::from_arrays(&[block]).unwrap();
        let n = 1 + random.below(20);
        let x = sequence(&mut random, d, n);
        let found = map.forward(&x).unwrap();
        let expected = single_head([&q, &k, &v, &o], &x);
        for (j, expected) in expected.iter().enumerate() {
            for (found, expected) in found.column(j).iter().zip(expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-5 * expected.abs().max(1.0), "{found}, expected {expected}");
            }
        }
    }
}

#[test]
fn arrays_come_to_where_the_definition_has_them() {
    let mut random = Random(5);
    let dimensions = Dimensions::new(3).with_heads(2, 4).with_hidden(5).with_blocks(2);
    let map = transformer(dimensions, &mut random);
    let tensor = |index: usize, part: &str| map.tensor(&format!("blocks.{index}.{part}")).unwrap();
    let stacked = |index, part: &str, h: usize| {
        Mat::new(tensor(index, part), 8, 3).rows_range(4 * h..4 * h + 4)
    };
    let head = |index, h: usize| Head {
        query: stacked(index, "attention.query.weight", h),
        key: stacked(index, "attention.key.weight", h),
        value: stacked(index, "attention.value.weight", h),
        output: Mat::new(tensor(index, "attention.output.weight"), 3, 8).columns(4 * h..4 * h + 4),
    };
    let heads = [0, 1].map(|index| [head(index, 0), head(index, 1)]);
    let block = |index: usize| Block {
        heads: &heads[index],
        w1: Mat::new(tensor(index, "feed_forward.inner.weight"), 5, 3),
        b1: tensor(index, "feed_forward.inner.bias"),
        w2: Mat::new(tensor(index, "feed_forward.outer.weight"), 3, 5),
        b2: tensor(index, "feed_forward.outer.bias"),
    };
    let blocks = [block(0), block(1)];
    let again = Transformer::from_arrays(&blocks).unwrap();
    assert_eq!(again.parameters(), map.parameters());
    let x = sequence(&mut random, 3, 6);
    assert_eq!(bits(&again.forward(&x).unwrap()), bits(&map.forward(&x).unwrap()));

    let refused = |blocks: &[Block<'_>]| Transformer::from_arrays(blocks).unwrap_err().to_string();
    let short = [blocks[0], Block { heads: &heads[1][..1], ..blocks[1] }];
    assert_eq!(refused(&short), "blocks.1.H is 1, expected 2");
    let turned = [heads[0][0], Head { output: heads[0][1].query, ..heads[0][1] }];
    let wrong = [Block { heads: &turned, ..blocks[0] }];
    assert_eq!(refused(&wrong), "blocks.0.attention.output of head 1 is 4×3, expected 3×4");
    let wrong = [Block { b2: blocks[0].b1, ..blocks[0] }];
    assert_eq!(refused(&wrong), "blocks.0.feed_forward.outer.bias is 1×5, expected 1×3");
    assert_eq!(refused(&[]), "N is 0, expected at least 1");
    assert_eq!(refused(&[Block { heads: &[], ..blocks[0] }]), "H is 0, expected at least 1");
}

#[test]
fn what_is_no_transformer_is_refused() {
    let two = Dimensions::new(2);
    let named = [
        (Dimensions::new(0), "d"),
        (two.with_heads(0, 1), "H"),
        (two.with_heads(1, 0), "m"),
        (two.with_hidden(0), "r"),
        (two.with_blocks(0), "N"),
    ];
    for (dimensions, name) in named {
        let error = Transformer::random(dimensions, 1).unwrap_err();
        assert_eq!(error.to_string(), format!("{name} is 0, expected at least 1"));
    }
    for dimensions in [two.with_hidden(usize::MAX), two.with_heads(usize::MAX / 2, 3)] {
        let error = Transformer::random(dimensions, 1).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    }
    let map = Transformer::random(two, 1).unwrap();
    let error = map.forward(&sequence(&mut Random(1), 3, 4)).unwrap_err();
    assert_eq!(error.to_string(), "X is 3×4, expected 2×n");
    assert!(matches!(Columns::new(2, vec![1.0; 3]), Err(Error::Dimensions { .. })));
    assert!(matches!(Columns::new(2, Vec::new()), Err(Error::Dimensions { .. })));
}

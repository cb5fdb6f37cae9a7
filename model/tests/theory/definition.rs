//! The maps as their definition writes them: d × n matrices in f64, a product after the other.

use headrow::theory::{Columns, SequenceMap};
use std::collections::BTreeMap;

/// A matrix by rows.
#[derive(Clone, Debug)]
pub(crate) struct Matrix(pub(crate) Vec<Vec<f64>>);

impl Matrix {
    pub(crate) fn of(x: &Columns) -> Matrix {
        let row = |i: usize| (0..x.n()).map(|j| x.column(j)[i].into()).collect();
        Matrix((0..x.d()).map(row).collect())
    }

    /// From numbers in row-major order.
    fn new(values: &[f64], rows: usize) -> Matrix {
        Matrix(values.chunks(values.len() / rows).map(<[f64]>::to_vec).collect())
    }

    pub(crate) fn columns(&self) -> usize {
        self.0[0].len()
    }

    pub(crate) fn times(&self, other: &Matrix) -> Matrix {
        let entry = |row: &[f64], j: usize| row.iter().zip(&other.0).map(|(x, y)| x * y[j]).sum();
        let row = |row: &Vec<f64>| (0..other.columns()).map(|j| entry(row, j)).collect();
        Matrix(self.0.iter().map(row).collect())
    }

    fn transposed(&self) -> Matrix {
        let row = |j: usize| self.0.iter().map(|row| row[j]).collect();
        Matrix((0..self.columns()).map(row).collect())
    }

    pub(crate) fn plus(&self, other: &Matrix) -> Matrix {
        let row = |(x, y): (&Vec<f64>, &Vec<f64>)| x.iter().zip(y).map(|(x, y)| x + y).collect();
        Matrix(self.0.iter().zip(&other.0).map(row).collect())
    }

    /// Adds b 1ᵀ.
    fn plus_each(&self, b: &[f64]) -> Matrix {
        let row = |(x, b): (&Vec<f64>, &f64)| x.iter().map(|x| x + b).collect();
        Matrix(self.0.iter().zip(b).map(row).collect())
    }

    fn relu(&self) -> Matrix {
        Matrix(self.0.iter().map(|row| row.iter().map(|x| x.max(0.0)).collect()).collect())
    }

    /// Each column divided by its sum, after the exponential.
    fn softmax(&self) -> Matrix {
        let column = |column: &Vec<f64>| -> Vec<f64> {
            let most = column.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = column.iter().map(|x| (x - most).exp()).sum();
            column.iter().map(|x| (x - most).exp() / sum).collect()
        };
        Matrix(self.transposed().0.iter().map(column).collect()).transposed()
    }

    /// XP.
    pub(crate) fn permuted(&self, order: &[usize]) -> Matrix {
        Matrix(self.0.iter().map(|row| order.iter().map(|&j| row[j]).collect()).collect())
    }

    /// The largest |x − y|.
    pub(crate) fn distance(&self, other: &Matrix) -> f64 {
        let pairs = self.0.iter().flatten().zip(other.0.iter().flatten());
        pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
    }
}

/// A map with its numbers in f64.
pub(crate) struct Definition {
    d: usize,
    heads: usize,
    m: usize,
    blocks: usize,
    tensors: BTreeMap<String, Vec<f64>>,
}

impl Definition {
    pub(crate) fn of(map: &impl SequenceMap) -> Definition {
        let mut tensors = BTreeMap::new();
        let (mut shape, mut blocks) = (Vec::new(), 0);
        for (name, dimensions, values) in map.tensors() {
            if name.ends_with("attention.output.weight") {
                shape = dimensions.to_vec();
                blocks += 1;
            }
            tensors.insert(name.to_owned(), values.iter().map(|&x| x.into()).collect());
        }
        Definition { d: shape[0], heads: shape[1], m: shape[2], blocks, tensors }
    }

    /// Adds to one number.
    pub(crate) fn nudge(&mut self, name: &str, index: usize, by: f64) {
        self.tensors.get_mut(name).unwrap()[index] += by;
    }

    pub(crate) fn forward(&self, x: &Matrix) -> Matrix {
        let mut z = match self.tensors.get("positions") {
            Some(e) => x.plus(&Matrix::new(e, x.columns()).transposed()),
            None => x.clone(),
        };
        for block in 0..self.blocks {
            z = self.attention(block, &z);
            z = self.feed_forward(block, &z);
        }
        z
    }

    fn tensor(&self, block: usize, part: &str) -> &[f64] {
        &self.tensors[&format!("blocks.{block}.{part}")]
    }

    /// W_h of the matrices that stand one below the other.
    fn stacked(&self, block: usize, part: &str, h: usize) -> Matrix {
        let all = self.tensor(block, &format!("attention.{part}.weight"));
        let size = self.m * self.d;
        Matrix::new(&all[h * size..(h + 1) * size], self.m)
    }

    /// W_hᴼ = `[:, h, :]`.
    fn output(&self, block: usize, h: usize) -> Matrix {
        let all = self.tensor(block, "attention.output.weight");
        let entry = |i: usize, p: usize| all[(i * self.heads + h) * self.m + p];
        let row = |i| (0..self.m).map(|p| entry(i, p)).collect();
        Matrix((0..self.d).map(row).collect())
    }

    /// X + Σ_h W_hᴼ (W_hⱽX) Softmax[(W_hᴷX)ᵀ (W_hꟴX + b_hꟴ1ᵀ)].
    fn attention(&self, block: usize, x: &Matrix) -> Matrix {
        let bias = self.tensors.get(&format!("blocks.{block}.attention.query.bias"));
        let mut sum = x.clone();
        for h in 0..self.heads {
            let [q, k, v] = ["query", "key", "value"].map(|part| self.stacked(block, part, h));
            let mut q = q.times(x);
            if let Some(bias) = bias {
                q = q.plus_each(&bias[h * self.m..(h + 1) * self.m]);
            }
            let weights = k.times(x).transposed().times(&q).softmax();
            sum = sum.plus(&self.output(block, h).times(&v.times(x)).times(&weights));
        }
        sum
    }

    /// X + W₂ ReLU(W₁X + b₁1ᵀ) + b₂1ᵀ.
    fn feed_forward(&self, block: usize, x: &Matrix) -> Matrix {
        let of = |part: &str| self.tensor(block, &format!("feed_forward.{part}"));
        let (b1, b2) = (of("inner.bias"), of("outer.bias"));
        let (w1, w2) = (Matrix::new(of("inner.weight"), b1.len()), of("outer.weight"));
        let hidden = w1.times(x).plus_each(b1).relu();
        x.plus(&Matrix::new(w2, self.d).times(&hidden).plus_each(b2))
    }
}

//! Permutations of tokens, and what a map that respects them can and cannot do.
//!
//! A map g on ℝ^{d×n} is permutation equivariant when g(XP) = g(X)P for every permutation matrix P. Without positions every Transformer
//! is. Let f be any map. On the orbit of X, which is all XP, such a g has one choice only, g(X), and
//!
//! Σ_P ‖f(XP) − g(XP)‖² = Σ_P ‖f(XP)P⁻¹ − g(X)‖²
//!
//! is least for the mean g(X) = (1/n!) Σ_P f(XP)P⁻¹, which is equivariant: the *symmetrised* f. What it misses, no equivariant
//! map of whatever size can avoid.

use super::columns::Columns;

/// All n! orders of 0, …, n − 1.
pub fn permutations(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |orders, next| {
        let insert = |order: Vec<usize>| {
            (0..=next).map(move |at| {
                let mut order = order.clone();
                order.insert(at, next);
                order
            })
        };
        orders.into_iter().flat_map(insert).collect()
    })
}

/// The orbit of X: all XP.
pub fn orbit(x: &Columns) -> impl Iterator<Item = Columns> + '_ {
    permutations(x.n()).into_iter().map(|order| x.permuted(&order))
}

/// (1/n!) Σ_P f(XP)P⁻¹, the sum in f64: what the equivariant map closest to f has for X.
///
/// # Panics
/// When f gives other dimensions than it was given.
pub fn symmetrized(f: impl Fn(&Columns) -> Columns, x: &Columns) -> Columns {
    let mean = mean(&brought_back(f, x));
    Columns::from_fn(x.d(), x.n(), |i, j| mean[j * x.d() + i] as f32)
}

/// The mean squared error over all entries that every equivariant map has at least against f on the orbit of X.
///
/// # Panics
/// When f gives other dimensions than it was given.
///
/// ```
/// use headrow::theory::Columns;
/// use headrow::theory::symmetry::{equivariant_bound, orbit, permutations, symmetrized};
///
/// let x = Columns::from_fn(1, 3, |_, j| j as f32);
/// assert_eq!((permutations(3).len(), orbit(&x).count()), (6, 6));
/// // Doubling is equivariant: nothing is missed.
/// let doubled = |x: &Columns| Columns::from_fn(1, 3, |_, j| 2.0 * x.column(j)[0]);
/// assert_eq!(equivariant_bound(doubled, &x), 0.0);
/// // Reversing is not. The best that can be said of a token is the mean of all, weighted as its places come.
/// let reversed = |x: &Columns| x.permuted(&[2, 1, 0]);
/// assert_eq!(symmetrized(reversed, &x).values(), [1.0; 3]);
/// assert!(equivariant_bound(reversed, &x) > 0.6);
/// ```
pub fn equivariant_bound(f: impl Fn(&Columns) -> Columns, x: &Columns) -> f64 {
    let all = brought_back(f, x);
    let mean = mean(&all);
    let squares = all.iter().flat_map(|y| y.values().iter().zip(&mean));
    let sum: f64 = squares.map(|(&y, mean)| (f64::from(y) - mean).powi(2)).sum();
    sum / (all.len() * mean.len()) as f64
}

/// f(XP)P⁻¹ for all P.
fn brought_back(f: impl Fn(&Columns) -> Columns, x: &Columns) -> Vec<Columns> {
    let brought_back = |order: Vec<usize>| {
        let mut inverse = vec![0; order.len()];
        order.iter().enumerate().for_each(|(j, &from)| inverse[from] = j);
        let y = f(&x.permuted(&order));
        assert_eq!((y.d(), y.n()), (x.d(), x.n()), "f gives other dimensions");
        y.permuted(&inverse)
    };
    permutations(x.n()).into_iter().map(brought_back).collect()
}

/// Entry by entry.
fn mean(all: &[Columns]) -> Vec<f64> {
    let mut mean = vec![0.0; all[0].values().len()];
    for y in all {
        mean.iter_mut().zip(y.values()).for_each(|(mean, &y)| *mean += f64::from(y));
    }
    mean.iter_mut().for_each(|mean| *mean /= all.len() as f64);
    mean
}

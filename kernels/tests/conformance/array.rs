//! A small n-dimensional array, row-major: what conformance cases are stated in.
//!
//! It does layout only (reshape, permute, broadcast, concatenate, …). All of it goes through one copy
//! along given strides, [`Array::strided`]. Arithmetic is the kernels' business.

/// Numbers of one type with a shape; no dimension at all is a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array<T> {
    shape: Vec<usize>,
    data: Vec<T>,
}

impl<T: Copy> Array<T> {
    #[track_caller]
    pub(crate) fn new(shape: &[usize], data: Vec<T>) -> Array<T> {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of shape {shape:?}");
        Array { shape: shape.to_vec(), data }
    }

    pub(crate) fn full(shape: &[usize], value: T) -> Array<T> {
        Array::new(shape, vec![value; shape.iter().product()])
    }

    pub(crate) fn scalar(value: T) -> Array<T> {
        Array::new(&[], vec![value])
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn data(&self) -> &[T] {
        &self.data
    }

    pub(crate) fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    pub(crate) fn map<U: Copy>(&self, f: impl Fn(T) -> U) -> Array<U> {
        Array::new(&self.shape, self.data.iter().map(|&x| f(x)).collect())
    }

    /// The same elements in the same order under another shape.
    #[track_caller]
    pub(crate) fn reshape(self, shape: &[usize]) -> Array<T> {
        Array::new(shape, self.data)
    }

    /// Elements between neighbours along each dimension.
    fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for d in (1..self.rank()).rev() {
            strides[d - 1] = strides[d] * self.shape[d];
        }
        strides
    }

    /// A copy of the elements at Σ index·stride + `start`, for all indices of `shape`.
    fn strided(&self, start: usize, shape: &[usize], strides: &[usize]) -> Array<T> {
        let len = shape.iter().product();
        let mut data = Vec::with_capacity(len);
        let mut index = vec![0; shape.len()];
        let mut at = start;
        for _ in 0..len {
            data.push(self.data[at]);
            // Step like an odometer: the last dimension runs fastest.
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                at += strides[d];
                if index[d] < shape[d] {
                    break;
                }
                at -= strides[d] * shape[d];
                index[d] = 0;
            }
        }
        Array::new(shape, data)
    }

    /// Dimension d of the result is dimension `order[d]` of this array.
    #[track_caller]
    pub(crate) fn permute(&self, order: &[usize]) -> Array<T> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..self.rank()), "{order:?} of {:?}", self.shape);
        let strides = self.strides();
        let shape: Vec<usize> = order.iter().map(|&d| self.shape[d]).collect();
        self.strided(0, &shape, &order.iter().map(|&d| strides[d]).collect::<Vec<_>>())
    }

    /// The matrix transposed, or a stack of matrices each transposed.
    pub(crate) fn transposed(&self) -> Array<T> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(self.rank() - 2, self.rank() - 1);
        self.permute(&order)
    }

    /// Dimension `from` becomes dimension `to`; the others keep their order.
    pub(crate) fn moved(&self, from: usize, to: usize) -> Array<T> {
        let mut order: Vec<usize> = (0..self.rank()).filter(|&d| d != from).collect();
        order.insert(to, from);
        self.permute(&order)
    }

    /// Repeats dimensions of 1, and missing leading ones, until the shape is `shape`.
    #[track_caller]
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Array<T> {
        let fits = self.rank() <= shape.len()
            && self.shape.iter().rev().zip(shape.iter().rev()).all(|(&a, &b)| a == b || a == 1);
        assert!(fits, "{:?} does not broadcast to {shape:?}", self.shape);
        let missing = shape.len() - self.rank();
        let mut strides = vec![0; shape.len()];
        for (d, stride) in self.strides().into_iter().enumerate() {
            strides[missing + d] = if self.shape[d] == 1 { 0 } else { stride };
        }
        self.strided(0, shape, &strides)
    }

    /// With leading dimensions of 1 up to `rank`.
    pub(crate) fn with_rank(self, rank: usize) -> Array<T> {
        let mut shape = vec![1; rank.saturating_sub(self.rank())];
        shape.extend(&self.shape);
        self.reshape(&shape)
    }

    /// Dimensions `a` < `b` of equal size run together and become dimension `a`.
    pub(crate) fn diagonal(&self, a: usize, b: usize) -> Array<T> {
        assert_eq!(self.shape[a], self.shape[b], "diagonal of {:?}", self.shape);
        let (mut shape, mut strides) = (self.shape.clone(), self.strides());
        strides[a] += strides[b];
        shape.remove(b);
        strides.remove(b);
        self.strided(0, &shape, &strides)
    }

    /// Indices `first .. first + count` of dimension `axis`.
    #[track_caller]
    pub(crate) fn slice(&self, axis: usize, first: usize, count: usize) -> Array<T> {
        assert!(first + count <= self.shape[axis]);
        let strides = self.strides();
        let mut shape = self.shape.clone();
        shape[axis] = count;
        self.strided(first * strides[axis], &shape, &strides)
    }

    /// This array and `other`, one after the other along `axis`.
    #[track_caller]
    pub(crate) fn concat(&self, other: &Array<T>, axis: usize) -> Array<T> {
        let (a, b) = (self.moved(axis, 0), other.moved(axis, 0));
        assert_eq!(a.shape[1..], b.shape[1..], "concatenation along {axis}");
        let mut shape = a.shape.clone();
        shape[0] += b.shape[0];
        Array::new(&shape, [a.data, b.data].concat()).moved(0, axis)
    }
}

/// The shape that both broadcast to, if there is one.
pub(crate) fn common_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], d: usize| match (d + shape.len()).checked_sub(rank) {
        Some(d) => shape[d],
        None => 1,
    };
    (0..rank)
        .map(|d| match (dim(a, d), dim(b, d)) {
            (x, y) if x == y => Some(x),
            (1, x) | (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

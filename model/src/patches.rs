//! Images as sequences: patches side by side, each mapped to a vector, behind a first token that stands for the whole.
//!
//! (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021.) The convolution whose steps are as wide as its
//! kernel is a linear map of patches, so it is one product: patches as rows, channel after channel.

#[cfg(feature = "train")]
mod backward;

use crate::linear::{Call, Linear, room, take};
use crate::origin::Values;
use headrow_kernels::{Activation, Cpu, Mat, MatMut, Need, Stack};

/// \[x_first; x_patch₁·W + b; …\] + positions.
pub(crate) struct Patches {
    /// Numbers of a pixel.
    pub(crate) channels: usize,
    /// Rows and columns of an image.
    pub(crate) image: usize,
    /// Rows and columns of a patch.
    pub(crate) patch: usize,
    /// W, b: channels·patch² to d_model.
    pub(crate) projection: Linear,
    /// The first token, the same for all images.
    pub(crate) first: Values,
    /// A row for the first token and one for each patch.
    pub(crate) positions: Values,
}

impl Patches {
    /// Rows of an image: its patches and the first token.
    pub(crate) fn places(&self) -> usize {
        self.patches() + 1
    }

    fn patches(&self) -> usize {
        (self.image / self.patch).pow(2)
    }

    /// out ← the vectors of `count` images, each channels × rows × columns, image after image.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        pixels: &[f32],
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let d_model = self.projection.outputs();
        let positions = Mat::new(&self.positions, self.places(), d_model);
        let images = pixels.chunks_exact(self.channels * self.image * self.image);
        let (mut rows, mut stack) = take(stack, self.patches(), self.projection.weight.k());
        for (index, image) in images.enumerate() {
            let first = index * self.places();
            let token = out.row_mut(first).iter_mut().zip(self.first.iter());
            token.zip(positions.row(0)).for_each(|((out, x), position)| *out = x + position);
            self.gather(image, rows.reborrow());
            let out = out.reborrow().rows_range(first + 1..first + self.places());
            let residual = Some(positions.rows_range(1..self.places()));
            let identity = Activation::Identity;
            self.projection.forward(call, rows.as_ref(), identity, residual, out, &mut stack);
        }
    }

    /// rows\[i\] ← the pixels of patch i, channel by channel and row by row, as the weights have them.
    fn gather(&self, image: &[f32], mut rows: MatMut<'_>) {
        let (side, patch) = (self.image / self.patch, self.patch);
        for i in 0..side * side {
            let (top, left) = (i / side * patch, i % side * patch);
            let lines = rows.row_mut(i).chunks_exact_mut(patch).enumerate();
            for (line, to) in lines {
                let (channel, y) = (line / patch, line % patch);
                let from = (channel * self.image + top + y) * self.image + left;
                to.copy_from_slice(&image[from..from + patch]);
            }
        }
    }

    /// Scratch for any number of images, which are mapped one by one.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize) -> Need {
        let rows = self.patches();
        room(rows, self.projection.weight.k()).and(self.projection.scratch(cpu, threads, rows))
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.projection.bytes() + size_of_val(&*self.first) + size_of_val(&*self.positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrow_kernels::{PackedB, Par, Scratch};

    /// A convolution by its definition, in f64.
    fn convolved(weight: &[f32], image: &[f32], patches: &Patches, at: [usize; 2]) -> f64 {
        let Patches { channels, image: side, patch, .. } = *patches;
        let mut sum = 0.0;
        for c in 0..channels {
            for y in 0..patch {
                for x in 0..patch {
                    let pixel = image[(c * side + at[0] * patch + y) * side + at[1] * patch + x];
                    let weight = weight[(c * patch + y) * patch + x];
                    sum += f64::from(pixel) * f64::from(weight);
                }
            }
        }
        sum
    }

    #[test]
    fn patches_are_what_the_convolution_gives() {
        let (channels, side, patch, d) = (2, 9, 3, 5);
        let number = |i: usize| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0;
        let weights: Vec<f32> = (0..d * channels * patch * patch).map(number).collect();
        let k = channels * patch * patch;
        let cpu = Cpu::detect();
        let weight = PackedB::from_transposed(cpu, Mat::new(&weights, d, k));
        let bias: Vec<f32> = (0..d).map(|i| i as f32 / 4.0).collect();
        let patches = Patches {
            channels,
            image: side,
            patch,
            projection: Linear::new(weight, Some(bias.clone())),
            first: (0..d).map(|i| number(i + 3)).collect::<Vec<f32>>().into(),
            positions: (0..10 * d).map(|i| number(i + 5)).collect::<Vec<f32>>().into(),
        };
        let each = channels * side * side;
        let pixels: Vec<f32> = (0..2 * each).map(|i| number(i * i + 1)).collect();
        let mut out = vec![f32::NAN; 2 * patches.places() * d];
        let mut scratch = Scratch::new(patches.scratch(cpu, 1));
        let call = Call { cpu, par: Par::SERIAL };
        let view = MatMut::new(&mut out, 2 * patches.places(), d);
        patches.forward(call, &pixels, view, &mut scratch.stack());
        for (index, x) in out.into_iter().enumerate() {
            let (image, place, feature) = (index / d / 10, index / d % 10, index % d);
            let position = f64::from(patches.positions[place * d + feature]);
            let expected = match place.checked_sub(1) {
                None => f64::from(patches.first[feature]) + position,
                Some(i) => {
                    let weight = &weights[feature * k..][..k];
                    let image = &pixels[image * each..][..each];
                    let sum = convolved(weight, image, &patches, [i / 3, i % 3]);
                    sum + f64::from(bias[feature]) + position
                }
            };
            assert!((f64::from(x) - expected).abs() < 1e-5, "{index}: {x} {expected}");
        }
    }
}

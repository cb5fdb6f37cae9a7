//! From spectrograms to the vectors that enter an encoder, as Whisper does it: two convolutions over time, the second of
//! which halves the length, and positions.
//!
//! A convolution is a product with the windows of its input. In memory that goes frame by frame a window is
//! one stretch, and it overlaps with the next one; but every second or third window does not. So the windows are
//! the rows of two or three matrices that lie in the input itself, and nothing is gathered.

#[cfg(feature = "train")]
mod backward;

#[cfg(feature = "train")]
pub(crate) use backward::SpectrogramKept;

use crate::linear::{Call, Linear, room};
use crate::origin::Values;
use headrow_kernels::{Activation, Cpu, Mat, MatMut, Need, Stack};

/// Frames of a window.
pub(crate) const TAPS: usize = 3;

/// Frames read per frame of the result.
pub(crate) const STRIDE: usize = 2;

/// Frames that one worker lays out at a time.
const BLOCK: usize = 64;

/// Two convolutions and a table of positions.
pub(crate) struct Spectrogram {
    /// Frequency bands of a frame.
    pub(crate) bands: usize,
    /// Frames of the result.
    pub(crate) frames: usize,
    /// TAPS·bands → d_model, at every frame.
    pub(crate) first: Linear,
    /// TAPS·d_model → d_model, at every second frame.
    pub(crate) second: Linear,
    /// Added at the end, frames × d_model.
    pub(crate) positions: Values,
}

impl Spectrogram {
    /// out ← GELU(conv₂(GELU(conv₁(values)))) + positions, count·frames × d_model, for `count` spectrograms of
    /// bands × 2·frames. Beyond its ends a spectrogram is 0, and so are its states.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        values: &[f32],
        count: usize,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let &Spectrogram { bands, frames, .. } = self;
        let (read, d_model) = (STRIDE * frames, out.cols());
        let positions = Mat::new(&self.positions, frames, d_model);
        let (input, mut stack) = stack.take::<f32>((read + 2) * bands);
        let (states, mut stack) = stack.take::<f32>((read + 1) * d_model);
        states[..d_model].fill(0.0);
        for (i, values) in values.chunks_exact(bands * read).take(count).enumerate() {
            lay_out(call, Mat::new(values, bands, read), MatMut::new(input, read + 2, bands));
            let here = MatMut::new(&mut states[d_model..], read, d_model);
            convolve(call, &self.first, 1, input, None, here, &mut stack);
            let here = out.reborrow().rows_range(i * frames..(i + 1) * frames);
            convolve(call, &self.second, STRIDE, states, Some(positions), here, &mut stack);
        }
    }

    /// Scratch, for any number of spectrograms.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize) -> Need {
        let read = STRIDE * self.frames;
        let products = self.first.scratch(cpu, threads, read);
        let products = products.or(self.second.scratch(cpu, threads, self.frames));
        room(read + 2, self.bands).and(room(read + 1, self.first.outputs())).and(products)
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes() + size_of_val(&*self.positions)
    }
}

/// padded ← 0, the spectrogram frame by frame, 0.
fn lay_out(call: Call<'_>, spectrogram: Mat<'_>, padded: MatMut<'_>) {
    let last = padded.rows() - 1;
    call.par.for_rows(padded, BLOCK, &|first, mut block| {
        for i in 0..block.rows() {
            let at = first + i;
            let row = block.row_mut(i);
            if at == 0 || at == last {
                row.fill(0.0);
                continue;
            }
            for (band, x) in row.iter_mut().enumerate() {
                *x = spectrogram.row(band)[at - 1];
            }
        }
    });
}

/// Every `step`-th window of an input, from window `first` on: none overlaps with the next.
#[derive(Clone, Copy)]
struct Windows {
    first: usize,
    step: usize,
    /// Numbers of a window, and from the begin of one to the begin of the next.
    width: usize,
    hop: usize,
}

impl Windows {
    /// `count` windows of so many numbers, one at every `stride`-th frame, parted so.
    fn parted(width: usize, stride: usize, count: usize) -> impl Iterator<Item = Windows> {
        let (hop, step) = (stride * width / TAPS, TAPS.div_ceil(stride));
        (0..step.min(count)).map(move |first| Windows { first, step, width, hop })
    }

    /// The windows that belong to `count` rows of a result, as rows. `padded` holds the frames one behind the other.
    fn of(self, padded: &[f32], count: usize) -> Mat<'_> {
        let Windows { first, step, width, hop } = self;
        Mat::with_stride(&padded[first * hop..], count, width, step * hop)
    }
}

/// out ← GELU(windows·W + b) + residual, from the frames of `padded`.
fn convolve(
    call: Call<'_>,
    map: &Linear,
    stride: usize,
    padded: &[f32],
    residual: Option<Mat<'_>>,
    mut out: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    for part in Windows::parted(map.weight.k(), stride, out.rows()) {
        let out = out.reborrow().every(part.first, part.step);
        let windows = part.of(padded, out.rows());
        let residual = residual.map(|residual| residual.every(part.first, part.step));
        let activation = Activation::GeluErf;
        map.forward(call, windows, activation, residual, out, stack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrow_kernels::{PackedB, Par, Scratch};

    const BANDS: usize = 3;
    const FRAMES: usize = 5;
    const D: usize = 4;

    /// A map with W\[tap·channels + channel, o\] and b of small whole numbers.
    fn map(cpu: Cpu, channels: usize) -> (Linear, impl Fn(usize, usize, usize) -> f64) {
        let weight = |o: usize, channel: usize, tap: usize| {
            ((o * 7 + channel * 5 + tap * 11) % 13) as f64 / 8.0 - 0.75
        };
        let values: Vec<f32> = (0..D * TAPS * channels)
            .map(|i| {
                let (o, k) = (i / (TAPS * channels), i % (TAPS * channels));
                weight(o, k % channels, k / channels) as f32
            })
            .collect();
        let weight_t = Mat::new(&values, D, TAPS * channels);
        let bias = (0..D).map(|o| o as f32 / 4.0 - 0.5).collect();
        (Linear::new(PackedB::from_transposed(cpu, weight_t), Some(bias)), weight)
    }

    fn gelu(x: f64) -> f64 {
        0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))
    }

    /// Convolution by its definition over channels × frames.
    fn reference(
        x: &[Vec<f64>],
        stride: usize,
        weight: impl Fn(usize, usize, usize) -> f64,
    ) -> Vec<Vec<f64>> {
        let frames = x[0].len();
        let at = |channel: usize, frame: isize| {
            usize::try_from(frame).ok().and_then(|frame| x[channel].get(frame)).map_or(0.0, |&x| x)
        };
        let one = |o: usize, t: usize| {
            let terms = (0..x.len()).flat_map(|channel| (0..TAPS).map(move |tap| (channel, tap)));
            let frame = |tap: usize| (t * stride + tap) as isize - 1;
            let sum: f64 =
                terms.map(|(channel, tap)| weight(o, channel, tap) * at(channel, frame(tap))).sum();
            gelu(sum + o as f64 / 4.0 - 0.5)
        };
        (0..D).map(|o| (0..frames / stride).map(|t| one(o, t)).collect()).collect()
    }

    #[test]
    fn two_convolutions_are_as_defined_for_every_spectrogram_of_several() {
        let cpu = Cpu::detect();
        let (first, first_weight) = map(cpu, BANDS);
        let (second, second_weight) = map(cpu, D);
        let positions: Vec<f32> = (0..FRAMES * D).map(|i| i as f32 / 16.0).collect();
        let positions = positions.into();
        let entrance = Spectrogram { bands: BANDS, frames: FRAMES, first, second, positions };
        let count = 2;
        let read = STRIDE * FRAMES;
        let values: Vec<f32> =
            (0..count * BANDS * read).map(|i| ((i * 37) % 23) as f32 / 16.0 - 0.5).collect();
        let mut out = vec![f32::NAN; count * FRAMES * D];
        let mut scratch = Scratch::new(entrance.scratch(cpu, 1));
        let call = Call { cpu, par: Par::SERIAL };
        let view = MatMut::new(&mut out, count * FRAMES, D);
        entrance.forward(call, &values, count, view, &mut scratch.stack());
        for (values, out) in values.chunks(BANDS * read).zip(out.chunks(FRAMES * D)) {
            let x: Vec<Vec<f64>> = values
                .chunks(read)
                .map(|band| band.iter().map(|&x| f64::from(x)).collect())
                .collect();
            let states = reference(&reference(&x, 1, &first_weight), STRIDE, &second_weight);
            for (i, &actual) in out.iter().enumerate() {
                let expected = states[i % D][i / D] + f64::from(entrance.positions[i]);
                assert!((f64::from(actual) - expected).abs() < 1e-5, "{i}: {actual} {expected}");
            }
        }
    }
}

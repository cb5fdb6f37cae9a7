//! Patches in training: the map's weights, the first token and the positions learn; pixels do not.

use super::Patches;
use crate::embedding::backward::{MASK, look_back};
use crate::linear::{room, take};
use crate::train::pass::{Back, TrainingPass};
use headrow_kernels::{Activation, Cpu, Mat, MatMut, Need, Stack, add_column_sums, dropout};

impl Patches {
    /// out ← dropout of what [`Patches::forward`] gives, from parameters.
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        pixels: &[f32],
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (places, d_model) = (self.places(), self.projection.width());
        let first = &parameters[self.first.place.clone()];
        let positions = Mat::new(&parameters[self.positions.place.clone()], places, d_model);
        let (mut rows, mut stack) = take(stack, self.patches(), self.inputs());
        for (index, image) in pixels.chunks_exact(self.pixels()).enumerate() {
            let mut out = out.reborrow().rows_range(index * places..(index + 1) * places);
            let token = out.row_mut(0).iter_mut().zip(first);
            token.zip(positions.row(0)).for_each(|((out, x), position)| *out = x + position);
            self.gather(image, rows.reborrow());
            let (x, out) = (rows.as_ref(), out.rows_range(1..places));
            let residual = Some(positions.rows_range(1..places));
            let identity = Activation::Identity;
            self.projection.apply(call, parameters, x, identity, residual, out, &mut stack);
        }
        if let Some(drop) = pass.dropout(MASK) {
            dropout(call.cpu, call.par, &drop, out);
        }
    }

    /// Adds to the gradients of W and b (over the patches of one image after the other), of the first token and of the positions,
    /// from the gradient `d` of what [`Patches::apply`] gave, which is overwritten.
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        pixels: &[f32],
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Back { mut d, gradients } = back;
        let (call, places) = (pass.call, self.places());
        if let Some(drop) = pass.dropout(MASK) {
            dropout(call.cpu, call.par, &drop, d.reborrow());
        }
        let d = d.as_ref();
        look_back(call, pass.places, 1.0, d, &mut gradients[self.positions.place.clone()]);
        let firsts = d.every(0, places);
        add_column_sums(call.cpu, call.par, firsts, &mut gradients[self.first.place.clone()]);
        let (mut rows, mut stack) = take(stack, self.patches(), self.inputs());
        for (index, image) in pixels.chunks_exact(self.pixels()).enumerate() {
            self.gather(image, rows.reborrow());
            let d = d.rows_range(index * places + 1..(index + 1) * places);
            self.projection.add_gradients(call, rows.as_ref(), d, gradients, &mut stack);
        }
    }

    /// Scratch of both for any number of images.
    pub(crate) fn training_scratch(&self, cpu: Cpu, threads: usize) -> Need {
        let rows = self.patches();
        room(rows, self.inputs()).and(self.projection.training_scratch(cpu, threads, rows))
    }

    /// Numbers of an image.
    fn pixels(&self) -> usize {
        self.channels * self.image * self.image
    }

    /// Numbers of a patch.
    fn inputs(&self) -> usize {
        self.channels * self.patch * self.patch
    }
}

//! The rows that have labels. A masked language model is asked for the hidden tokens alone, a seventh of all in BERT's training, and
//! scores of the others would be thrown away.

use super::claims::Claims;
use super::pass::grown;
use crate::error::Result;
use headrow_kernels::{Mat, MatMut};

/// Copies of those rows, and room for their gradients.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    /// Which rows of all they are, ascending.
    rows: Vec<usize>,
    pub(super) labels: Vec<Option<u32>>,
    states: Vec<f32>,
    d: Vec<f32>,
}

impl Labelled {
    /// For up to `rows` rows of d_model features.
    pub(super) fn new(rows: usize, d_model: usize, claims: &mut Claims) -> Result<Labelled> {
        Ok(Labelled {
            rows: claims.room(rows)?,
            labels: claims.room(rows)?,
            states: claims.zeros(rows, d_model)?,
            d: claims.zeros(rows, d_model)?,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        grown(&self.rows) + grown(&self.labels) + grown(&self.states) + grown(&self.d)
    }

    /// Takes the rows of the states that have a label.
    ///
    /// # Panics
    /// When there is no room for them, as after a panic that came while another had taken the buffers.
    pub(super) fn gather(&mut self, states: Mat<'_>, labels: &[Option<u32>]) {
        let (room, count) = (self.states.len(), labels.iter().flatten().count());
        assert!(count * states.cols() <= room, "{count} labels, and room for {room} features");
        self.rows.clear();
        self.labels.clear();
        let wanted = labels.iter().enumerate().filter(|(_, label)| label.is_some());
        for ((row, &label), to) in wanted.zip(self.states.chunks_exact_mut(states.cols())) {
            to.copy_from_slice(states.row(row));
            self.rows.push(row);
            self.labels.push(label);
        }
    }

    /// The states, the labels, and the room for the gradient of the states.
    pub(super) fn parts(&mut self, d_model: usize) -> (Mat<'_>, &[Option<u32>], MatMut<'_>) {
        let rows = self.rows.len();
        let (states, d) = (&self.states[..rows * d_model], &mut self.d[..rows * d_model]);
        (Mat::new(states, rows, d_model), &self.labels, MatMut::new(d, rows, d_model))
    }

    /// d ← the gradient of all states: 0 where there is no label.
    pub(super) fn scatter(&self, mut d: MatMut<'_>) {
        d.fill(0.0);
        let d_model = d.cols();
        for (&row, from) in self.rows.iter().zip(self.d.chunks_exact(d_model)) {
            d.row_mut(row).copy_from_slice(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A use that panics leaves no buffers, and the next one is not to pass for one without labels.
    #[test]
    #[should_panic(expected = "1 labels, and room for 0 features")]
    fn labels_without_room_are_not_passed_over() {
        let mut labelled = Labelled::default();
        labelled.gather(Mat::new(&[1.0, 2.0], 1, 2), &[None]);
        labelled.gather(Mat::new(&[1.0, 2.0], 1, 2), &[Some(7)]);
    }

    #[test]
    fn rows_come_back_where_they_were() {
        let mut labelled = Labelled::new(4, 2, &mut Claims::taking()).unwrap();
        let states = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        labelled.gather(Mat::new(&states, 4, 2), &[None, Some(7), None, Some(0)]);
        let (kept, labels, mut d) = labelled.parts(2);
        assert_eq!((kept.row(0), kept.row(1)), (&states[2..4], &states[6..]));
        assert_eq!(labels, [Some(7), Some(0)]);
        d.copy_from(kept);
        let mut all = [9.0; 8];
        labelled.scatter(MatMut::new(&mut all, 4, 2));
        assert_eq!(all, [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 7.0, 8.0]);
        labelled.gather(Mat::new(&states, 4, 2), &[None; 4]);
        assert_eq!(labelled.parts(2).0.rows(), 0);
    }
}

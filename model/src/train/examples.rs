//! What a step of training reads and is to predict.

/// Sequences of different lengths one behind the other, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ragged {
    ids: Vec<u32>,
    /// Where each sequence begins, and the end of the last.
    offsets: Vec<usize>,
}

impl Default for Ragged {
    fn default() -> Ragged {
        Ragged { ids: Vec::new(), offsets: vec![0] }
    }
}

impl Ragged {
    /// No sequences.
    pub fn new() -> Ragged {
        Ragged::default()
    }

    /// Adds a sequence.
    pub fn push(&mut self, sequence: impl IntoIterator<Item = u32>) {
        self.ids.extend(sequence);
        self.offsets.push(self.ids.len());
    }

    /// Forgets all sequences and keeps the memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.offsets.truncate(1);
    }

    /// How many sequences there are.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, one sequence behind the other.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Where each sequence begins among the ids, and the end of the last: one more than there are sequences.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// A sequence.
    ///
    /// # Panics
    /// When there is no such one.
    #[track_caller]
    pub fn get(&self, index: usize) -> &[u32] {
        &self.ids[self.offsets[index]..self.offsets[index + 1]]
    }

    /// The length of a sequence.
    ///
    /// # Panics
    /// When there is no such one.
    #[track_caller]
    pub fn length(&self, index: usize) -> usize {
        self.offsets[index + 1] - self.offsets[index]
    }

    /// The sequences in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.offsets.windows(2).map(|ends| &self.ids[ends[0]..ends[1]])
    }
}

impl<S: IntoIterator<Item = u32>> FromIterator<S> for Ragged {
    fn from_iter<I: IntoIterator<Item = S>>(sequences: I) -> Ragged {
        let mut ragged = Ragged::new();
        sequences.into_iter().for_each(|sequence| ragged.push(sequence));
        ragged
    }
}

/// Examples that a step learns from together.
///
/// | | `sources` | `targets` | `features` | `labels` |
/// |---|---|---|---|---|
/// | from sequence to sequence | x … `</s>` | `<s>` y₁ … yₙ | none | y₁ … yₙ `</s>` |
/// | from spectrogram to sequence | none | `<s>` y₁ … yₙ | one for each target | y₁ … yₙ `</s>` |
/// | causal language model | none | `<s>` x₁ … xₙ₋₁ | none | x₁ … xₙ |
/// | masked language model | none | x with masks | none | x where it is hidden or to be confirmed, else none |
/// | tags of tokens | none | x | none | one for each token |
/// | classes of texts | none | x | none | one for each text |
/// | classes of images | none | none | the images | one for each image |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examples {
    /// What the encoder beside a decoder reads: a sequence for each of the targets. None for a model of one stack.
    pub sources: Ragged,
    /// What the stack that is read out reads.
    pub targets: Ragged,
    /// Images (channels × rows × columns) or log-mel spectrograms (bands × frames), one behind the other, in place of the sequences
    /// of a stack that reads such.
    pub features: Vec<f32>,
    /// What is to be predicted of each id of the targets, or of each sequence or image, as the [`Goal`](super::Goal) is; `None`
    /// counts nowhere.
    pub labels: Vec<Option<u32>>,
    /// What is to be predicted where the goal is numbers: of each sequence or image as many as the head gives.
    pub numbers: Vec<f32>,
    /// For each id of the targets its type, in a model that has such; where there are none given, all are 0.
    pub types: Vec<u32>,
}

impl Examples {
    /// Forgets all examples and keeps the memory.
    pub fn clear(&mut self) {
        self.sources.clear();
        self.targets.clear();
        self.features.clear();
        self.labels.clear();
        self.numbers.clear();
        self.types.clear();
    }

    /// How many targets there are.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Labels that count.
    pub fn predicted(&self) -> usize {
        self.labels.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_lie_behind_each_other() {
        let mut ragged: Ragged = [vec![1, 2], vec![], vec![3]].into_iter().collect();
        assert_eq!((ragged.len(), ragged.ids()), (3, &[1, 2, 3][..]));
        assert_eq!(ragged.offsets(), [0, 2, 2, 3]);
        assert_eq!((ragged.get(0), ragged.get(1), ragged.length(2)), (&[1, 2][..], &[][..], 1));
        assert!(ragged.iter().eq([&[1, 2][..], &[], &[3]]));
        ragged.clear();
        assert!(ragged.is_empty() && ragged == Ragged::new());
    }

    #[test]
    fn labels_that_are_none_are_not_predicted() {
        let labels = vec![None, Some(3), None, Some(0)];
        let targets = [vec![1, 2], vec![3, 4]].into_iter().collect();
        let examples = Examples { targets, labels, ..Examples::default() };
        assert_eq!((examples.len(), examples.predicted()), (2, 2));
    }
}

//! Files of a recorded folder: tensors by name, and sequences without their padding.

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// The tensors of a `golden.safetensors`, and which of them were asked for.
pub(crate) struct Record<'a> {
    tensors: SafeTensors<'a>,
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Record<'a> {
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Record<'a>, String> {
        let tensors =
            SafeTensors::deserialize(bytes).map_err(|error| format!("golden: {error}"))?;
        Ok(Record { tensors, used: RefCell::default() })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names = self.tensors.names();
        names.sort_unstable();
        names
    }

    /// The names `prefix0`, `prefix1`, … that there are, with their numbers.
    pub(crate) fn numbered(&self, prefix: &str) -> Vec<(usize, String)> {
        let names = self.names().into_iter();
        let numbered = names.filter_map(|name| {
            let number = name.strip_prefix(prefix)?.parse().ok()?;
            Some((number, name.to_owned()))
        });
        let mut numbered: Vec<(usize, String)> = numbered.collect();
        numbered.sort_unstable();
        numbered
    }

    /// What nothing asked for. Of a group of names, `grad.a` and `grad.b`, only how many there are.
    pub(crate) fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        let left: Vec<&str> =
            self.names().into_iter().filter(|&name| !used.contains(name)).collect();
        let group = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let groups: BTreeSet<String> = left.iter().map(|name| group(name)).collect();
        let of = |wanted: &String| left.iter().filter(|name| group(name) == *wanted).count();
        let lines = groups.iter().map(|wanted| match of(wanted) {
            1 => left
                .iter()
                .find(|name| group(name) == *wanted)
                .map_or_else(String::new, |n| (*n).to_owned()),
            count => format!("{wanted}.* ({count})"),
        });
        lines.collect()
    }

    /// Shape and values; f64 records are rounded.
    pub(crate) fn floats(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
        let (dtype, shape, data) = self.tensor(name)?;
        let values = match dtype {
            Dtype::F32 => data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::F64 => {
                data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect()
            }
            other => return Err(format!("{name} of type {other}")),
        };
        Ok((shape, values))
    }

    pub(crate) fn integers(&self, name: &str) -> Result<(Vec<usize>, Vec<u32>), String> {
        let (dtype, shape, data) = self.tensor(name)?;
        let values = match dtype {
            Dtype::I64 => {
                data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect()
            }
            Dtype::I32 => {
                data.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b) as u32).collect()
            }
            Dtype::U8 | Dtype::BOOL => data.iter().map(|&b| u32::from(b)).collect(),
            other => return Err(format!("{name} of type {other}")),
        };
        Ok((shape, values))
    }

    fn tensor(&self, name: &str) -> Result<(Dtype, Vec<usize>, &'a [u8]), String> {
        let tensor = self.tensors.tensor(name).map_err(|error| format!("{name}: {error}"))?;
        self.used.borrow_mut().insert(name.to_owned());
        Ok((tensor.dtype(), tensor.shape().to_vec(), tensor.data()))
    }
}

/// How long the sequences of a padded batch are.
#[derive(Clone, Debug)]
pub(crate) struct Ragged {
    pub(crate) lengths: Vec<usize>,
    /// Places of a padded row.
    pub(crate) padded: usize,
}

impl Ragged {
    /// The sequences of a mask, `batch × padded`, whose places equal `real` where there are tokens; padding
    /// is behind them.
    pub(crate) fn of_mask(mask: &[u32], padded: usize, real: u32) -> Result<Ragged, String> {
        let mut lengths = Vec::new();
        for row in mask.chunks(padded.max(1)) {
            let length = row.iter().take_while(|&&bit| bit == real).count();
            if row[length..].contains(&real) {
                return Err("a mask with real tokens behind padding".to_owned());
            }
            lengths.push(length);
        }
        Ok(Ragged { lengths, padded })
    }

    pub(crate) fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Which tokens sequence `index` has.
    pub(crate) fn rows(&self, index: usize) -> Range<usize> {
        let start: usize = self.lengths[..index].iter().sum();
        start..start + self.lengths[index]
    }

    /// The rows of real tokens of a `batch × padded × width` tensor.
    pub(crate) fn real<T: Copy>(&self, values: &[T], width: usize) -> Vec<T> {
        let rows = values.chunks(self.padded * width).zip(&self.lengths);
        rows.flat_map(|(row, length)| row[..length * width].iter().copied()).collect()
    }
}

/// The tokens of a recorded batch without their padding.
pub(crate) struct Tokens {
    pub(crate) ids: Vec<u32>,
    pub(crate) ragged: Ragged,
}

impl Tokens {
    /// Without a mask every place is a token.
    pub(crate) fn read(record: &Record<'_>, name: &str, mask: &str) -> Result<Tokens, String> {
        let (shape, ids) = record.integers(name)?;
        let &[rows, padded] = &shape[..] else {
            return Err(format!("{name} of shape {shape:?}"));
        };
        let bits = match record.has(mask) {
            true => record.integers(mask)?.1,
            false => vec![1; rows * padded],
        };
        let ragged = Ragged::of_mask(&bits, padded, 1)?;
        Ok(Tokens { ids: ragged.real(&ids, 1), ragged })
    }

    /// The ids of each sequence.
    pub(crate) fn each(&self) -> Vec<&[u32]> {
        (0..self.ragged.lengths.len()).map(|index| self.row(index)).collect()
    }

    pub(crate) fn row(&self, index: usize) -> &[u32] {
        &self.ids[self.ragged.rows(index)]
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(crate) fn json(path: &Path) -> Result<Value, String> {
    serde_json::from_slice(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

//! Safetensors files: the header checked against the file, the data read piece by piece.
//!
//! A checkpoint is one file, several shards, or bytes in memory. Opening one reads headers only. What the
//! data is read into belongs to the caller, so nothing here grows with what a header claims.

use crate::config::{Fields, printable, read_file, regular_file};
use crate::error::{Error, Result};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// The length of a header comes first, in eight bytes.
const PREFIX: usize = 8;
/// Largest header that is read. Real ones have about 100 bytes for each tensor; parsed, a header takes
/// several times its length.
const MAX_HEADER: u64 = 16 << 20;
/// Largest `model.safetensors.index.json` that is read.
const MAX_INDEX: u64 = 16 << 20;

/// A tensor as its header describes it.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    source: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Where its data lies in the file. Shape and type agree with the length.
    bytes: Range<u64>,
}

/// An opened checkpoint.
pub(crate) struct Checkpoint<'a> {
    /// For messages: the file, the index of the shards, or a word for bytes.
    pub(crate) place: String,
    sources: Vec<Source<'a>>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// Where data is read from.
enum Source<'a> {
    File { file: File, place: String, len: u64 },
    Bytes(&'a [u8]),
}

impl Source<'_> {
    fn place(&self) -> &str {
        match self {
            Source::File { place, .. } => place,
            Source::Bytes(_) => "weights",
        }
    }

    fn len(&self) -> u64 {
        match self {
            Source::File { len, .. } => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `out` from byte `offset` on.
    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Source::File { file, place, .. } => read_exact_at(file, out, offset)
                .map_err(|error| Error::file(place, format_args!("byte {offset}: {error}"))),
            Source::Bytes(bytes) => {
                let start = offset as usize;
                let part = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(part.ok_or_else(|| Error::file("weights", "truncated"))?);
                Ok(())
            }
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => {
                out = &mut out[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

impl<'a> Checkpoint<'a> {
    /// Opens `model.safetensors` of a folder, or the shards that its index names.
    pub(crate) fn open(folder: &Path) -> Result<Checkpoint<'static>> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if !single.exists() && index.exists() {
            return Checkpoint::open_shards(folder, &index);
        }
        Checkpoint::of_file(&single)
    }

    /// Opens one file, whatever its name.
    pub(crate) fn of_file(path: &Path) -> Result<Checkpoint<'static>> {
        let mut checkpoint = Checkpoint::empty(path.display().to_string());
        checkpoint.add(open_file(path)?)?;
        Ok(checkpoint)
    }

    /// Takes a whole safetensors file from memory.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Checkpoint<'a>> {
        let mut checkpoint = Checkpoint::empty("weights".to_owned());
        checkpoint.add(Source::Bytes(bytes))?;
        Ok(checkpoint)
    }

    /// No tensors at all.
    pub(crate) fn nothing() -> Checkpoint<'static> {
        Checkpoint::empty("nothing".to_owned())
    }

    /// Tensors of these names and shapes, without data.
    #[cfg(feature = "train")]
    pub(crate) fn described<'t>(
        tensors: impl Iterator<Item = (&'t str, &'t [usize])>,
    ) -> Checkpoint<'static> {
        let mut checkpoint = Checkpoint::nothing();
        checkpoint.tensors = tensors
            .map(|(name, shape)| {
                let (shape, dtype) = (shape.to_vec(), Dtype::F32);
                (name.to_owned(), Tensor { source: 0, dtype, shape, bytes: 0..0 })
            })
            .collect();
        checkpoint
    }

    fn open_shards(folder: &Path, index: &Path) -> Result<Checkpoint<'static>> {
        let place = index.display().to_string();
        let json = read_file(index, MAX_INDEX)?;
        let fields = Fields::parse(&json, &place)?;
        let map = fields.get("weight_map").and_then(|map| map.as_object());
        let map = map.ok_or_else(|| fields.wrong("weight_map", "expected an object"))?;
        let mut shards = BTreeSet::new();
        for (tensor, shard) in map {
            let shard = shard.as_str().filter(|name| is_plain_name(name)).ok_or_else(|| {
                fields.wrong("weight_map", &format!("{}: not a file name", printable(tensor)))
            })?;
            shards.insert(shard);
        }
        let mut checkpoint = Checkpoint::empty(place.clone());
        for shard in shards {
            checkpoint.add(open_file(&folder.join(shard))?)?;
        }
        match map.keys().find(|tensor| !checkpoint.tensors.contains_key(*tensor)) {
            Some(tensor) => {
                let problem = format!("{} is in none of the shards", printable(tensor));
                Err(fields.wrong("weight_map", &problem))
            }
            None => Ok(checkpoint),
        }
    }

    fn empty(place: String) -> Checkpoint<'a> {
        Checkpoint { place, sources: Vec::new(), tensors: BTreeMap::new() }
    }

    /// Reads the header of `source` and adds its tensors.
    fn add(&mut self, source: Source<'a>) -> Result<()> {
        let bad = |problem: &dyn std::fmt::Display| {
            let problem = printable(&problem.to_string());
            Error::file(source.place(), format_args!("not a whole safetensors file: {problem}"))
        };
        let rest = source
            .len()
            .checked_sub(PREFIX as u64)
            .ok_or_else(|| bad(&format_args!("{} bytes", source.len())))?;
        let mut prefix = [0; PREFIX];
        source.read_at(&mut prefix, 0)?;
        let len = u64::from_le_bytes(prefix);
        if len > rest.min(MAX_HEADER) {
            let problem = format!("a header of {len} bytes in a file of {}", source.len());
            return Err(bad(&problem));
        }
        let mut header = vec![0; len as usize];
        source.read_at(&mut header, PREFIX as u64)?;
        // Parsing checks that the data of the tensors lies gapless and without overlap, and that each
        // one's length is what its shape and type need, in checked arithmetic.
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| bad(&error))?;
        let data = rest - len;
        if metadata.data_len() as u64 != data {
            let problem = format!("{data} bytes of data, the header has {}", metadata.data_len());
            return Err(bad(&problem));
        }
        let begin = PREFIX as u64 + len;
        for (name, info) in metadata.tensors() {
            let (first, end) = info.data_offsets;
            let tensor = Tensor {
                source: self.sources.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: begin + first as u64..begin + end as u64,
            };
            if self.tensors.contains_key(&name) {
                return Err(bad(&format_args!("{name} is in another shard too")));
            }
            self.tensors.insert(name, tensor);
        }
        self.sources.push(source);
        Ok(())
    }

    /// Reads elements `first .. first + out.len()` of a tensor, widened to f32 exactly.
    /// `staging` is the only memory that is used, whatever the tensor's size.
    pub(crate) fn read(
        &self,
        tensor: &Tensor,
        first: usize,
        out: &mut [f32],
        staging: &mut [u8],
    ) -> Result<()> {
        let width = tensor.dtype.bitsize() / 8;
        let source = &self.sources[tensor.source];
        let mut offset = tensor.bytes.start + (first * width) as u64;
        debug_assert!(offset + (out.len() * width) as u64 <= tensor.bytes.end);
        for piece in out.chunks_mut(staging.len() / width) {
            let bytes = &mut staging[..piece.len() * width];
            source.read_at(bytes, offset)?;
            widen(tensor.dtype, bytes, piece);
            offset += bytes.len() as u64;
        }
        Ok(())
    }
}

#[cfg(feature = "train")]
impl Checkpoint<'_> {
    /// Reads a tensor's data from byte `offset` on, of whatever type.
    pub(crate) fn read_bytes(&self, tensor: &Tensor, offset: u64, out: &mut [u8]) -> Result<()> {
        debug_assert!(offset + out.len() as u64 <= self.size(tensor));
        self.sources[tensor.source].read_at(out, tensor.bytes.start + offset)
    }
}

/// The types whose values are f32 values.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Little-endian f32, f16 or bf16 to f32, exactly.
fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        Dtype::F32 => {
            for (x, &b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(b);
            }
        }
        Dtype::F16 => {
            out.iter_mut().zip(pairs()).for_each(|(x, &b)| *x = f16::from_le_bytes(b).to_f32())
        }
        Dtype::BF16 => {
            out.iter_mut().zip(pairs()).for_each(|(x, &b)| *x = bf16::from_le_bytes(b).to_f32())
        }
        other => unreachable!("tensors of type {other} are refused when the checkpoint is opened"),
    }
}

fn open_file(path: &Path) -> Result<Source<'static>> {
    let len = regular_file(path)?;
    let file = File::open(path).map_err(Error::io(path))?;
    Ok(Source::File { file, place: path.display().to_string(), len })
}

/// A file of this very folder: no separators, no parent.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(std::path::Component::Normal(_)))
        && components.next().is_none()
}

impl Checkpoint<'_> {
    /// Bytes of a tensor's data.
    pub(crate) fn size(&self, tensor: &Tensor) -> u64 {
        tensor.bytes.end - tensor.bytes.start
    }

    /// Bytes of the data of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| self.size(tensor)).sum()
    }

    /// The floating-point types that occur, by name.
    pub(crate) fn float_types(&self) -> Vec<String> {
        let types = self.tensors.values().map(|tensor| tensor.dtype);
        let types: BTreeSet<Dtype> = types.filter(|&dtype| is_float(dtype)).collect();
        types.into_iter().map(|dtype| dtype.to_string()).collect()
    }
}

//! Checkpoints of a training: all that it needs to go on as if it had never stopped.
//!
//! A checkpoint is a folder `step-N` that is a model folder too (`config.json`, `model.safetensors` in f32, the tokenizer).
//! Beside the model it has the moments of the optimiser (`optimizer.safetensors`: `first.NAME` and `second.NAME` for each
//! tensor) and `training.json`: options, counters, and the seals of the other two files, by which damage is found. It is
//! there as a whole or not at all.

use super::claims::Claims;
use super::companions::Companion;
use super::files::{NewFolder, Numbers, Seal, retire, write, write_tensors};
use crate::config::read_file;
use crate::error::{Error, Problems, Result};
use crate::weights::Checkpoint;
use safetensors::Dtype;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What this file reads and writes.
const FORMAT: u32 = 1;
/// Largest `training.json` that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Bytes of a tensor that are read at a time.
const STAGING: usize = 256 << 10;

const WEIGHTS: &str = "model.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = "training.json";
const PREFIX: &str = "step-";

/// Where a tensor stands in the vectors of parameters, gradients and moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) place: Range<usize>,
}

/// The vectors that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Vectors<V> {
    pub(super) weights: V,
    /// Adam's mean of the gradients.
    pub(super) first: V,
    /// Adam's mean of their squares.
    pub(super) second: V,
}

#[derive(Serialize, Deserialize)]
struct Manifest<S> {
    format: u32,
    model: Seal,
    optimizer: Seal,
    state: S,
}

/// Makes the checkpoint `folder`, in the place of one of that name.
///
/// # Errors
/// [`Error::Io`]; [`Error::File`] when the folder has other things in it.
pub(super) fn save<S: Serialize>(
    folder: &Path,
    slots: &[Slot],
    vectors: Vectors<&[f32]>,
    state: &S,
    companions: &[Companion],
) -> Result<()> {
    let new = NewFolder::create(folder, STATE)?;
    for (name, bytes) in companions {
        new.write(name, |out| out.write_all(bytes))?;
    }
    let model = write_slots(&new.inside(WEIGHTS), &[("", vectors.weights)], slots)?;
    let moments = [("first.", vectors.first), ("second.", vectors.second)];
    let optimizer = write_slots(&new.inside(MOMENTS), &moments, slots)?;
    let manifest = Manifest { format: FORMAT, model, optimizer, state };
    write(&new.inside(STATE), |out| Ok(serde_json::to_writer_pretty(out, &manifest)?))?;
    new.publish()
}

/// Writes vectors of which each tensor has a name with the vector's prefix.
fn write_slots(path: &Path, vectors: &[(&str, &[f32])], slots: &[Slot]) -> Result<Seal> {
    let mut tensors = Vec::with_capacity(vectors.len() * slots.len());
    for (prefix, values) in vectors {
        tensors.extend(slots.iter().map(|slot| {
            let name = format!("{prefix}{}", slot.name);
            Numbers::f32(name, &slot.shape, &values[slot.place.clone()])
        }));
    }
    write(path, |out| write_tensors(out, &tensors))
}

fn manifest<S: DeserializeOwned>(folder: &Path) -> Result<Manifest<S>> {
    let path = folder.join(STATE);
    let bytes = read_file(&path, MAX_BYTES)?;
    let damaged = |error| Error::file(path.display(), format_args!("no training's state: {error}"));
    let manifest: Manifest<S> = serde_json::from_slice(&bytes).map_err(damaged)?;
    match manifest.format {
        FORMAT => Ok(manifest),
        other => Err(Error::file(path.display(), format_args!("format {other} is not known"))),
    }
}

/// Reads a checkpoint.
///
/// # Errors
/// [`Error::Io`], [`Error::File`] when a file is missing, cut off or otherwise not what was written; [`Error::Weights`] when it is
/// that of another model.
pub(super) fn load<S: DeserializeOwned>(
    folder: &Path,
    slots: &[Slot],
) -> Result<(Vectors<Vec<f32>>, S)> {
    let manifest = manifest(folder)?;
    let (weights, moments) = (folder.join(WEIGHTS), folder.join(MOMENTS));
    check(&weights, manifest.model)?;
    check(&moments, manifest.optimizer)?;
    let (weights, moments) = (Checkpoint::of_file(&weights)?, Checkpoint::of_file(&moments)?);
    let vectors = Vectors {
        weights: read_slots(&weights, "", slots)?,
        first: read_slots(&moments, "first.", slots)?,
        second: read_slots(&moments, "second.", slots)?,
    };
    Ok((vectors, manifest.state))
}

fn check(path: &Path, seal: Seal) -> Result<()> {
    match Seal::of_file(path)? == seal {
        true => Ok(()),
        false => Err(Error::file(path.display(), "damaged: not what the training wrote")),
    }
}

/// Refuses the weights of a checkpoint that are not what was written. A folder that is no checkpoint has no seal.
///
/// # Errors
/// [`Error::Io`], [`Error::File`].
pub(super) fn check_weights(folder: &Path) -> Result<()> {
    if folder.join(STATE).symlink_metadata().is_err() {
        return Ok(());
    }
    check(&folder.join(WEIGHTS), manifest::<IgnoredAny>(folder)?.model)
}

fn read_slots(checkpoint: &Checkpoint<'_>, prefix: &str, slots: &[Slot]) -> Result<Vec<f32>> {
    let size = slots.last().map_or(0, |slot| slot.place.end);
    let mut values = Claims::taking().zeros(size, 1)?;
    let (mut problems, mut staging) = (Problems::default(), vec![0; STAGING]);
    for slot in slots {
        let name = format!("{prefix}{}", slot.name);
        match checkpoint.tensors.get(&name) {
            Some(tensor) if tensor.dtype == Dtype::F32 && tensor.shape == slot.shape => {
                checkpoint.read(tensor, 0, &mut values[slot.place.clone()], &mut staging)?;
            }
            Some(tensor) => problems.add(|| {
                let (dtype, shape) = (tensor.dtype, &tensor.shape);
                format!("{name} is {dtype} {shape:?}, expected F32 {:?}", slot.shape)
            }),
            None => problems.add(|| format!("{name} is missing")),
        }
    }
    match problems.count() == 0 {
        true => Ok(values),
        false => Err(Error::Weights { place: checkpoint.place.clone(), problems }),
    }
}

/// The folder of the checkpoint after `step` steps.
pub(super) fn path(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{step}"))
}

/// The checkpoints in a folder, by their steps, oldest first. There need not be such a folder.
///
/// # Errors
/// [`Error::Io`].
pub fn checkpoints(folder: impl AsRef<Path>) -> Result<Vec<(u64, PathBuf)>> {
    let folder = folder.as_ref();
    if folder.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        found.extend(step.map(|step: u64| (step, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes all checkpoints but those of these steps.
pub(super) fn retain(folder: &Path, steps: &[u64]) -> Result<()> {
    let found = checkpoints(folder)?;
    found.iter().filter(|(step, _)| !steps.contains(step)).try_for_each(|(_, path)| retire(path))
}

/// Why a checkpoint makes way for the run that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    Damaged,
    /// Of a step that the run is yet to come to.
    Later,
}

impl Aside {
    fn path(self, checkpoint: &Path) -> PathBuf {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        let mark = match self {
            Aside::Damaged => "damaged",
            Aside::Later => "later",
        };
        checkpoint.with_file_name(format!("{name}.{mark}"))
    }
}

/// Gives a checkpoint a name that is none of a checkpoint.
pub(super) fn set_aside(path: &Path, aside: Aside) -> Result<()> {
    let to = aside.path(path);
    // What is there was written anew since.
    retire(&to)?;
    std::fs::rename(path, to).map_err(Error::io(path))
}

/// Removes what was set aside of a checkpoint that is written anew.
pub(super) fn forget_aside(path: &Path) -> Result<()> {
    [Aside::Damaged, Aside::Later].into_iter().try_for_each(|aside| retire(&aside.path(path)))
}

/// Whether reading a checkpoint failed because its files are not what was written; not because they are those of another model,
/// or cannot be reached.
pub(super) fn is_damage(error: &Error) -> bool {
    match error {
        Error::File { .. } => true,
        Error::Io { source, .. } => matches!(
            source.kind(),
            ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn slots() -> Vec<Slot> {
        let slot = |name: &str, shape: &[usize], place| Slot {
            name: name.to_owned(),
            shape: shape.to_vec(),
            place,
        };
        vec![slot("z.weight", &[4, 3], 0..12), slot("a.bias", &[4], 12..16)]
    }

    fn vectors() -> Vectors<Vec<f32>> {
        let vector = |from: f32| (0..16).map(|i| (from + i as f32).sin()).collect();
        Vectors { weights: vector(0.1), first: vector(0.2), second: vector(0.3) }
    }

    fn borrowed(vectors: &Vectors<Vec<f32>>) -> Vectors<&[f32]> {
        let Vectors { weights, first, second } = vectors;
        Vectors { weights, first, second }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrow-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    /// Numbers that decimals are known to lose.
    const STATE: (u64, f64) = (u64::MAX, 0.1 + 0.2);

    #[test]
    fn a_checkpoint_comes_back_bit_for_bit() {
        let folder = folder("checkpoint");
        let names = ["config.json", "1_Pooling/config.json"];
        let companions = names.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
        let (one, two) = (path(&folder, 9), path(&folder, 10));
        save(&one, &slots(), borrowed(&vectors()), &STATE, &companions).unwrap();
        save(&two, &slots(), borrowed(&vectors()), &(1, -0.0), &companions).unwrap();
        let (read, state) = load::<(u64, f64)>(&one, &slots()).unwrap();
        assert_eq!(read, vectors());
        assert_eq!((state.0, state.1.to_bits()), (STATE.0, STATE.1.to_bits()));
        assert_eq!(load::<(u64, f64)>(&two, &slots()).unwrap().1, (1, 0.0));
        for name in names {
            assert_eq!(fs::read(one.join(name)).unwrap(), name.as_bytes());
        }
        assert_eq!(checkpoints(&folder).unwrap(), [(9, one), (10, two)]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damage_is_found_and_named() {
        let folder = folder("damaged-checkpoint");
        let step = path(&folder, 1);
        for file in [WEIGHTS, MOMENTS, super::STATE] {
            save(&step, &slots(), borrowed(&vectors()), &STATE, &[]).unwrap();
            let path = step.join(file);
            let bytes = fs::read(&path).unwrap();
            let refused = |what: &str| {
                let error = load::<(u64, f64)>(&step, &slots()).unwrap_err();
                assert!(matches!(error, Error::File { .. } | Error::Io { .. }), "{what}: {error}");
                assert!(error.to_string().contains(file), "{what}: {error}");
            };
            for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
                fs::write(&path, &bytes[..length]).unwrap();
                refused("cut off");
            }
            if file != super::STATE {
                let mut flipped = bytes.clone();
                flipped[bytes.len() - 3] ^= 4;
                fs::write(&path, &flipped).unwrap();
                refused("a flipped bit");
                fs::write(&path, [&bytes[..], &[0]].concat()).unwrap();
                refused("too long");
            }
            fs::remove_file(&path).unwrap();
            refused("missing");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_damage_is_damage() {
        let io = |kind: ErrorKind| Error::Io { path: "a".into(), source: kind.into() };
        assert!(is_damage(&io(ErrorKind::NotFound)) && is_damage(&Error::file("a", "cut off")));
        assert!(!is_damage(&io(ErrorKind::PermissionDenied)) && !is_damage(&Error::NoStart));
    }

    #[test]
    fn the_checkpoint_of_another_model_is_refused() {
        let folder = folder("other-checkpoint");
        let step = path(&folder, 1);
        save(&step, &slots(), borrowed(&vectors()), &STATE, &[]).unwrap();
        let mut other = slots();
        other[0].shape = vec![3, 4];
        other[1].name = "b.bias".to_owned();
        let error = load::<(u64, f64)>(&step, &other).unwrap_err();
        let Error::Weights { problems, .. } = error else { panic!("{error}") };
        let problems = problems.to_string();
        assert!(problems.contains("z.weight is F32 [4, 3], expected F32 [3, 4]"), "{problems}");
        assert!(problems.contains("b.bias is missing"), "{problems}");
        fs::write(step.join(super::STATE), "{\"format\": 2}").unwrap();
        assert!(load::<(u64, f64)>(&step, &slots()).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn old_checkpoints_make_way() {
        let folder = folder("old-checkpoints");
        let steps = |folder: &Path| {
            checkpoints(folder).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>()
        };
        for step in [100, 20, 3, 40] {
            save(&path(&folder, step), &slots(), borrowed(&vectors()), &STATE, &[]).unwrap();
        }
        fs::create_dir_all(folder.join("step-x")).unwrap();
        assert_eq!(steps(&folder), [3, 20, 40, 100]);
        retain(&folder, &[100, 3, 40, 7]).unwrap();
        assert_eq!(steps(&folder), [3, 40, 100]);
        set_aside(&path(&folder, 100), Aside::Later).unwrap();
        set_aside(&path(&folder, 40), Aside::Damaged).unwrap();
        assert_eq!(steps(&folder), [3]);
        assert!(folder.join("step-100.later").join(super::STATE).exists());
        // Until they are written anew.
        retain(&folder, &[3]).unwrap();
        assert!(folder.join("step-40.damaged").exists());
        forget_aside(&path(&folder, 40)).unwrap();
        assert!(!folder.join("step-40.damaged").exists() && folder.join("step-100.later").exists());
        assert_eq!(steps(&folder.join("nothing")), [0; 0]);
        fs::remove_dir_all(folder).unwrap();
    }
}

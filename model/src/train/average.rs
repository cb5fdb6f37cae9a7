//! Models of the same form averaged, tensor by tensor (§6.1: the last 5 checkpoints of the base model, the last 20 of the big one).

use super::checkpoint::check_weights;
use super::companions::companions;
use super::files::{NewFiles, Numbers, PIECE, WriteNumbers, write_tensors};
use super::parameters::Precision;
use crate::config::Config;
use crate::error::{Error, Problems, Result};
use crate::weights::{Checkpoint, Tensor, is_float};
use half::{bf16, f16};
use std::io::{self, Write};
use std::path::Path;

/// Writes the mean of some models into the folder `out`: each number is the sum of the models' numbers in f64, in the order of
/// `folders`, divided by how many there are and rounded once. The other files are the [`companions`] of the
/// last folder.
///
/// The folders may be of any family, in one file or in shards; training checkpoints are such folders too. Tensors that are no
/// floating-point numbers must be equal. Memory grows with those other files, not with the weights.
///
/// # Errors
/// When a folder is no model, or the weights of a checkpoint are not what its training wrote; when models differ in their config, or in
/// names, shapes or kinds of tensors; when `out` cannot be written. `out` is as it was then: not there, or with what it had.
///
/// ```no_run
/// use headrow::train::{Precision, average, checkpoints};
///
/// let all = checkpoints("run/checkpoints")?;
/// let last: Vec<_> = all.iter().rev().take(5).rev().map(|(_, folder)| folder).collect();
/// average(&last, "mean", Precision::F32)?;
/// # Ok::<(), headrow::Error>(())
/// ```
pub fn average<P: AsRef<Path>>(
    folders: &[P],
    out: impl AsRef<Path>,
    precision: Precision,
) -> Result<()> {
    let (Some(first), Some(last)) = (folders.first(), folders.last()) else {
        return Err(Error::training_option("average", "there are no models to be averaged"));
    };
    let config = |folder: &P| Config::from_file(folder.as_ref().join("config.json"));
    let (models, expected) = (folders.iter().map(open), config(first)?);
    for folder in folders {
        check_weights(folder.as_ref())?;
        if config(folder)? != expected {
            let problem = format!("another model than {}", first.as_ref().display());
            return Err(Error::file(folder.as_ref().join("config.json").display(), problem));
        }
    }
    let models: Vec<Checkpoint<'static>> = models.collect::<Result<_>>()?;
    models[1..].iter().try_for_each(|model| same_form(&models[0], model))?;
    let tensors: Vec<Numbers<'_>> =
        models[0].tensors.keys().map(|name| mean(&models, name, precision)).collect();

    let companions = companions(last)?;
    let mut files = NewFiles::create(out.as_ref())?;
    let weights = files.write("model.safetensors", |file| write_tensors(file, &tensors));
    weights.map_err(untangled)?;
    for (name, bytes) in &companions {
        files.write(name, |out| out.write_all(bytes))?;
    }
    files.publish()
}

fn open<P: AsRef<Path>>(folder: &P) -> Result<Checkpoint<'static>> {
    Checkpoint::open(folder.as_ref())
}

/// Whether two models have the same tensors, up to the width of their numbers.
fn same_form(a: &Checkpoint<'_>, b: &Checkpoint<'_>) -> Result<()> {
    let mut problems = Problems::default();
    for (name, tensor) in &a.tensors {
        match b.tensors.get(name) {
            None => problems.add(|| format!("{name} is missing")),
            Some(other) if other.shape != tensor.shape => {
                problems.add(|| format!("{name} is {:?}, expected {:?}", other.shape, tensor.shape))
            }
            Some(other) if kind(other) != kind(tensor) => {
                problems.add(|| format!("{name} is {}, expected {}", other.dtype, tensor.dtype))
            }
            Some(_) => {}
        }
    }
    for name in b.tensors.keys().filter(|name| !a.tensors.contains_key(*name)) {
        problems.add(|| format!("{name} is left over"));
    }
    match problems.count() == 0 {
        true => Ok(()),
        false => Err(Error::Weights { place: b.place.clone(), problems }),
    }
}

/// All floating-point types that are read are one kind.
fn kind(tensor: &Tensor) -> Option<safetensors::Dtype> {
    (!is_float(tensor.dtype)).then_some(tensor.dtype)
}

/// A tensor of the mean, computed as it is written.
fn mean<'a>(models: &'a [Checkpoint<'static>], name: &'a str, precision: Precision) -> Numbers<'a> {
    let tensor = &models[0].tensors[name];
    let count: usize = tensor.shape.iter().product();
    let (dtype, bytes, write): (_, _, WriteNumbers<'a>) = match is_float(tensor.dtype) {
        true => {
            let (dtype, width) = form(precision);
            let write = move |out: &mut dyn Write| write_mean(models, name, precision, out);
            (dtype.to_owned(), count as u64 * width, Box::new(write))
        }
        false => {
            let write = move |out: &mut dyn Write| write_common(models, name, out);
            (tensor.dtype.to_string(), models[0].size(tensor), Box::new(write))
        }
    };
    Numbers { name: name.to_owned(), shape: &tensor.shape, dtype, bytes, write }
}

/// An error of reading that came up while a file was written.
fn untangled(error: Error) -> Error {
    match error {
        Error::Io { path, source } => match source.downcast::<Error>() {
            Ok(reading) => reading,
            Err(source) => Error::Io { path, source },
        },
        error => error,
    }
}

fn write_mean(
    models: &[Checkpoint<'static>],
    name: &str,
    precision: Precision,
    out: &mut dyn Write,
) -> io::Result<()> {
    const NUMBERS: usize = PIECE / 4;
    let count: usize = models[0].tensors[name].shape.iter().product();
    let (mut numbers, mut staging) = (vec![0.0; NUMBERS], vec![0; PIECE]);
    let (mut sums, mut bytes) = (vec![0.0; NUMBERS], Vec::with_capacity(PIECE));
    for begin in (0..count).step_by(NUMBERS) {
        let length = NUMBERS.min(count - begin);
        let (numbers, sums) = (&mut numbers[..length], &mut sums[..length]);
        sums.fill(0.0);
        for model in models {
            model
                .read(&model.tensors[name], begin, numbers, &mut staging)
                .map_err(io::Error::other)?;
            sums.iter_mut().zip(&*numbers).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        bytes.clear();
        for sum in sums {
            push(precision, *sum / models.len() as f64, &mut bytes);
        }
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// A tensor that is the same in all models.
fn write_common(models: &[Checkpoint<'static>], name: &str, out: &mut dyn Write) -> io::Result<()> {
    let size = models[0].size(&models[0].tensors[name]);
    let (mut bytes, mut other) = (vec![0; PIECE], vec![0; PIECE]);
    for offset in (0..size).step_by(PIECE) {
        let length = PIECE.min((size - offset) as usize);
        let read = |model: &Checkpoint<'_>, out: &mut [u8]| {
            model.read_bytes(&model.tensors[name], offset, out).map_err(io::Error::other)
        };
        read(&models[0], &mut bytes[..length])?;
        for model in &models[1..] {
            read(model, &mut other[..length])?;
            if other[..length] != bytes[..length] {
                let problem = format!("{name} differs, and is not of numbers that have a mean");
                return Err(io::Error::other(Error::file(&model.place, problem)));
            }
        }
        out.write_all(&bytes[..length])?;
    }
    Ok(())
}

/// What safetensors call a precision, and its bytes.
fn form(precision: Precision) -> (&'static str, u64) {
    match precision {
        Precision::F32 => ("F32", 4),
        Precision::Bf16 => ("BF16", 2),
        Precision::F16 => ("F16", 2),
    }
}

/// Adds a number, rounded once.
fn push(precision: Precision, x: f64, bytes: &mut Vec<u8>) {
    match precision {
        Precision::F32 => bytes.extend((x as f32).to_le_bytes()),
        Precision::Bf16 => bytes.extend(bf16::from_f32(to_odd(x)).to_le_bytes()),
        Precision::F16 => bytes.extend(f16::from_f32(to_odd(x)).to_le_bytes()),
    }
}

/// `x` as an f32 from which a narrower type is rounded as from `x` itself: cut off, and odd when something was cut off, so that it
/// is never mistaken for a tie (Boldo and Melquiond, "When double rounding is odd"). Conversions of f64 to 16 bits round twice on
/// some processors.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    if x.is_nan() || f64::from(near) == x {
        return near;
    }
    let beyond = f64::from(near).abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

#[cfg(test)]
mod tests {
    use super::super::files::write;
    use super::super::parameters::Parameters;
    use super::*;
    use crate::Model;
    use std::path::PathBuf;

    /// A folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrow-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn config(d_ff: usize) -> Config {
        let mut config = Config::base(40, 40);
        config.d_model = 16;
        for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
            let input = crate::Input::Tokens(crate::TokenInput::paper(40, 16));
            *stack = crate::StackConfig::paper(input, 1, 16, 2, d_ff);
        }
        config
    }

    /// Writes models of other seeds.
    fn models(name: &str, seeds: &[u64], precision: Precision) -> (Vec<PathBuf>, Vec<Parameters>) {
        let parent = folder(name);
        let write_model = |&seed: &u64| {
            let path = parent.join(format!("model-{seed}"));
            std::fs::create_dir_all(&path).unwrap();
            let parameters = Parameters::initialise(&config(24), seed).unwrap();
            std::fs::write(path.join("config.json"), config(24).to_json().unwrap()).unwrap();
            let bytes = parameters.to_safetensors(precision);
            std::fs::write(path.join("model.safetensors"), bytes).unwrap();
            std::fs::write(path.join("tokenizer.json"), seed.to_string()).unwrap();
            (path, parameters)
        };
        seeds.iter().map(write_model).unzip()
    }

    #[test]
    fn the_mean_is_rounded_once() {
        let (folders, parameters) = models("mean", &[1, 2, 3], Precision::F32);
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let out = folders[0].with_file_name("mean");
            average(&folders, &out, precision).unwrap();
            let mean = Parameters::from_dir(&out).unwrap();
            for (index, &value) in mean.values().iter().enumerate() {
                let sum: f64 = parameters.iter().map(|p| f64::from(p.values()[index])).sum();
                assert_eq!(value, rounded(precision, sum / 3.0));
            }
            assert_eq!(std::fs::read(out.join("tokenizer.json")).unwrap(), b"3");
            let name = format!("{precision:?}").to_uppercase();
            assert_eq!(Model::from_dir(&out).unwrap().stored_types(), [name]);
        }
        std::fs::remove_dir_all(folders[0].parent().unwrap()).unwrap();
    }

    /// What is written for `x`, read back.
    fn rounded(precision: Precision, x: f64) -> f32 {
        let mut bytes = Vec::new();
        push(precision, x, &mut bytes);
        match (precision, bytes.as_slice()) {
            (Precision::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Precision::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Precision::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            _ => panic!("{bytes:?} for {precision:?}"),
        }
    }

    #[test]
    fn numbers_of_16_bits_are_nearest_and_ties_are_even() {
        type Value = fn(u16) -> f64;
        let forms: [(Precision, u16, f64, Value); 2] = [
            (Precision::Bf16, 0x7f80, 128f64.exp2(), |bits| bf16::from_bits(bits).to_f64()),
            (Precision::F16, 0x7c00, 16f64.exp2(), |bits| f16::from_bits(bits).to_f64()),
        ];
        for (precision, infinity, beyond, value) in forms {
            for lower in 0..infinity {
                // Ties at the end of the range are between the last number and the next, were there one.
                let upper = if lower + 1 == infinity { beyond } else { value(lower + 1) };
                let middle = value(lower) / 2.0 + upper / 2.0;
                let even = lower + lower % 2;
                let cases = [
                    (value(lower), lower),
                    (middle.next_down(), lower),
                    (middle, even),
                    (middle.next_up(), lower + 1),
                ];
                for (x, expected) in cases {
                    for (x, expected) in [(x, value(expected)), (-x, -value(expected))] {
                        let actual = f64::from(rounded(precision, x));
                        assert_eq!(actual.to_bits(), expected.to_bits(), "{precision:?}, {x:e}");
                    }
                }
            }
            assert!(rounded(precision, f64::NAN).is_nan());
            for (x, expected) in [(f64::MAX, f32::INFINITY), (5e-324, 0.0), (-5e-324, -0.0)] {
                assert_eq!(rounded(precision, x).to_bits(), expected.to_bits(), "{precision:?}");
            }
        }
    }

    #[test]
    fn one_model_is_its_own_mean_in_place() {
        let (folders, parameters) = models("one-mean", &[5], Precision::Bf16);
        average(&folders, &folders[0], Precision::F32).unwrap();
        let rounded = parameters[0].values().iter().map(|&x| bf16::from_f32(x).to_f32());
        assert!(Parameters::from_dir(&folders[0]).unwrap().values().iter().copied().eq(rounded));
        std::fs::remove_dir_all(folders[0].parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_number_must_be_equal() {
        let tensor = |ids: &'static [u8]| Numbers {
            name: "ids".to_owned(),
            shape: &[2],
            dtype: "U8".to_owned(),
            bytes: 2,
            write: Box::new(|out: &mut dyn Write| out.write_all(ids)),
        };
        let (folders, _) = models("ids", &[1, 2], Precision::F32);
        let put = |folder: &PathBuf, ids| {
            let path = folder.join("model.safetensors");
            write(&path, |out| write_tensors(out, &[tensor(ids)])).unwrap();
        };
        folders.iter().for_each(|folder| put(folder, b"ab"));
        let out = folders[0].with_file_name("mean");
        average(&folders, &out, Precision::F32).unwrap();
        let same = std::fs::read(folders[0].join("model.safetensors")).unwrap();
        assert_eq!(std::fs::read(out.join("model.safetensors")).unwrap(), same);
        put(&folders[1], b"ac");
        let error = average(&folders, &out, Precision::F32).unwrap_err();
        assert!(error.to_string().contains("ids differs"), "{error}");
        // The mean that was there is still whole, and where there was none there is none.
        assert_eq!(std::fs::read(out.join("model.safetensors")).unwrap(), same);
        let new = folders[0].with_file_name("new");
        average(&folders, &new, Precision::F32).unwrap_err();
        assert!(!new.exists());
        assert_eq!(std::fs::read_dir(folders[0].parent().unwrap()).unwrap().count(), 3);
        std::fs::remove_dir_all(folders[0].parent().unwrap()).unwrap();
    }

    #[test]
    fn models_of_other_forms_are_refused() {
        let (folders, _) = models("forms", &[1, 2], Precision::F32);
        let out = folders[0].with_file_name("mean");
        let none: [&Path; 0] = [];
        assert!(matches!(average(&none, &out, Precision::F32), Err(Error::TrainingOption { .. })));
        let other = Parameters::initialise(&config(8), 1).unwrap();
        let bytes = other.to_safetensors(Precision::F32);
        std::fs::write(folders[1].join("model.safetensors"), bytes).unwrap();
        let error = average(&folders, &out, Precision::F32).unwrap_err();
        let Error::Weights { problems, .. } = error else { panic!("{error}") };
        assert!(problems.to_string().contains("[8, 16], expected [24, 16]"), "{problems}");
        std::fs::write(folders[1].join("config.json"), config(8).to_json().unwrap()).unwrap();
        let error = average(&folders, &out, Precision::F32).unwrap_err();
        assert!(error.to_string().contains("another model than"), "{error}");
        assert!(!out.exists());
        std::fs::remove_dir_all(folders[0].parent().unwrap()).unwrap();
    }
}

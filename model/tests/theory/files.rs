//! Safetensors files of the maps, whole and damaged.

use super::tiny::{Tensor, file};
use super::{Random, moved, transformer};
use headrow::Error;
use headrow::theory::SequenceMap;
use headrow::theory::column::{Dimensions, Transformer};
use headrow::theory::yun::{FixedWidth, Positional};

/// The tensors of a map, to be changed.
fn tensors(map: &impl SequenceMap) -> Vec<Tensor> {
    let tensor = |(name, shape, values): (&str, &[usize], &[f32])| Tensor {
        name: name.to_owned(),
        dtype: "F32",
        shape: shape.to_vec(),
        data: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    map.tensors().map(tensor).collect()
}

/// Some Transformer with more than one of everything.
fn example() -> Transformer {
    let dimensions = Dimensions::new(5).with_heads(3, 2).with_hidden(7).with_blocks(12);
    transformer(dimensions, &mut Random(1))
}

#[test]
fn files_bring_back_every_bit() {
    let column = example();
    let again = Transformer::from_safetensors(&column.to_safetensors()).unwrap();
    assert_eq!(again.dimensions(), column.dimensions());
    assert_eq!(again.parameters(), column.parameters());
    let plain = moved(FixedWidth::random(3, 2, 1).unwrap(), &mut Random(2));
    let again = FixedWidth::from_safetensors(&plain.to_safetensors()).unwrap();
    assert_eq!(again.parameters(), plain.parameters());
    let positional = moved(Positional::random(3, 4, 2, 1).unwrap(), &mut Random(3));
    let again = Positional::from_safetensors(&positional.to_safetensors()).unwrap();
    assert_eq!(again.positions(), positional.positions());
    assert_eq!(again.parameters(), positional.parameters());
}

/// The message of a refusal of the example with its tensors changed.
fn refused(change: impl FnOnce(&mut Vec<Tensor>)) -> String {
    let mut tensors = tensors(&example());
    change(&mut tensors);
    let error = Transformer::from_safetensors(&file(&tensors)).unwrap_err();
    assert!(matches!(error, Error::Weights { .. } | Error::Dimensions { .. }), "{error}");
    error.to_string()
}

fn at<'t>(tensors: &'t mut [Tensor], name: &str) -> &'t mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

#[test]
fn what_does_not_fit_is_named() {
    let name = "blocks.11.attention.key.weight";
    let missing = refused(|tensors| tensors.retain(|tensor| tensor.name != name));
    assert!(missing.contains(&format!("{name} is missing")), "{missing}");
    let turned = refused(|tensors| at(tensors, name).shape = vec![5, 6]);
    assert!(turned.contains(&format!("{name} has shape [5, 6], expected [6, 5]")), "{turned}");
    let first = "blocks.0.attention.output.weight";
    let flat = refused(|tensors| at(tensors, first).shape = vec![5, 6]);
    assert!(flat.contains(&format!("{first} with 3 dimensions is missing")), "{flat}");
    // Whose block the first gap leaves behind.
    let gap = refused(|tensors| tensors.retain(|tensor| !tensor.name.starts_with("blocks.4.")));
    assert!(gap.contains("blocks.5.attention.key.weight is unexpected"), "{gap}");
    let integers = refused(|tensors| at(tensors, name).dtype = "I32");
    assert!(integers.contains(&format!("{name} has type I32")), "{integers}");
    let empty = refused(|tensors| {
        let tensor = at(tensors, first);
        (tensor.shape, tensor.data) = (vec![0, 3, 2], Vec::new());
    });
    assert_eq!(empty, "d is 0, expected at least 1");
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_an_error() {
    let bytes = FixedWidth::random(2, 1, 1).unwrap().to_safetensors();
    for end in 0..bytes.len() {
        assert!(FixedWidth::from_safetensors(&bytes[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn a_map_of_another_kind_is_refused() {
    let column = transformer(Dimensions::new(3).with_heads(2, 1).with_hidden(4), &mut Random(4));
    let plain = FixedWidth::random(3, 1, 1).unwrap();
    let positional = Positional::random(3, 4, 1, 1).unwrap();
    let weights = |error: Error, words: &str| {
        assert!(matches!(error, Error::Weights { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let error = FixedWidth::from_safetensors(&column.to_safetensors()).unwrap_err();
    weights(error, "blocks.0.attention.query.bias is missing");
    let error = Transformer::from_safetensors(&plain.to_safetensors()).unwrap_err();
    weights(error, "blocks.0.attention.query.bias is unexpected");
    let error = FixedWidth::from_safetensors(&positional.to_safetensors()).unwrap_err();
    weights(error, "positions is unexpected");
    let error = Positional::from_safetensors(&plain.to_safetensors()).unwrap_err();
    weights(error, "positions with 2 dimensions is missing");
}

#[test]
fn files_of_other_widths_are_not_of_the_class() {
    // One head, of the class's tensors.
    let mut tensors = tensors(&FixedWidth::random(3, 1, 1).unwrap());
    for (part, shape) in [
        ("query.weight", vec![1, 3]),
        ("query.bias", vec![1]),
        ("key.weight", vec![1, 3]),
        ("value.weight", vec![1, 3]),
        ("output.weight", vec![3, 1, 1]),
    ] {
        let tensor = at(&mut tensors, &format!("blocks.0.attention.{part}"));
        tensor.data.truncate(4 * shape.iter().product::<usize>());
        tensor.shape = shape;
    }
    let error = FixedWidth::from_safetensors(&file(&tensors)).unwrap_err();
    assert_eq!(error.to_string(), "H of T^{2,1,4} is 1, expected 2");
}

//! The conformance harness itself: that it reads what it says, and that it can fail.

mod conformance;

use conformance::array::Array;
use conformance::compare::{Tolerance, compare};
use conformance::einsum::einsum;
use conformance::tensors::{Kind, Value, f16_to_f32, f32_to_f16};
use conformance::{Blind, Lane, Output, Stop, number, on_every_lane, parse_index, read_index};
use headrow_kernels::{Cpu, Par};

fn ramp(shape: &[usize]) -> Array<f32> {
    Array::new(shape, (0..shape.iter().product()).map(|i: usize| i as f32).collect())
}

fn lane() -> Lane<'static> {
    Lane { cpu: Cpu::detect(), par: Par::SERIAL, packed: false }
}

#[test]
fn every_half_survives_the_way_there_and_back() {
    for bits in 0..=u16::MAX {
        let x = f16_to_f32(bits);
        if !x.is_nan() {
            assert_eq!(f32_to_f16(x), bits, "{x}");
        }
    }
}

#[test]
fn rounding_to_the_short_types_is_to_nearest_with_ties_to_even() {
    // Ten fraction bits: 1 + 2⁻¹¹ is half way.
    assert_eq!(Kind::F16.round(1.0 + 1.0 / 2048.0), 1.0);
    assert_eq!(Kind::F16.round(1.0 + 3.0 / 2048.0), 1.0 + 4.0 / 2048.0);
    assert_eq!(Kind::F16.round(65519.0), 65504.0);
    assert_eq!(Kind::F16.round(65520.0), f32::INFINITY);
    assert_eq!(Kind::F16.round(2f32.powi(-25)), 0.0);
    assert_eq!(Kind::F16.round(1.5 * 2f32.powi(-24)), 2f32.powi(-23));
    // Seven: 1 + 2⁻⁸ is half way.
    assert_eq!(Kind::Bf16.round(1.0 + 1.0 / 256.0), 1.0);
    assert_eq!(Kind::Bf16.round(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
    assert!(Kind::Bf16.round(f32::NAN).is_nan());
}

#[test]
fn bare_infinities_and_nan_of_python_are_read() {
    let text = r#"{"name": "a NaN \" Infinity", "x": [NaN, -Infinity, Infinity, 1.5], "y": null}"#;
    let rows = parse_index(&format!("{text}\n\n{text}\n")).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["name"], "a NaN \" Infinity");
    let numbers: Vec<f64> =
        rows[0]["x"].as_array().unwrap().iter().map(|x| number(x).unwrap()).collect();
    assert!(numbers[0].is_nan());
    assert_eq!(numbers[1..], [f64::NEG_INFINITY, f64::INFINITY, 1.5]);
    assert!(parse_index("{").unwrap_err().contains("line 1"));
}

#[test]
fn a_folder_without_cases_is_an_error() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    assert!(!read_index(&data.join("onnx_cases")).unwrap().is_empty());
    assert!(read_index(&data).unwrap_err().contains("index.jsonl"));
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_cases");
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::write(empty.join("index.jsonl"), "\n\n").unwrap();
    assert!(read_index(&empty).unwrap_err().contains("0 cases run"));
}

#[test]
fn arrays_are_permuted_broadcast_and_joined() {
    let x = ramp(&[2, 3]);
    assert_eq!(x.transposed(), Array::new(&[3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    assert_eq!(x.moved(1, 0), x.transposed());
    let row = ramp(&[1, 3]);
    assert_eq!(row.broadcast(&[2, 2, 3]).data(), ramp(&[3]).data().repeat(4));
    assert_eq!(x.slice(1, 1, 2).data(), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(x.concat(&Array::full(&[2, 1], 9.0), 1).data()[..4], [0.0, 1.0, 2.0, 9.0]);
    assert_eq!(ramp(&[2, 3, 3]).diagonal(1, 2).data(), [0.0, 4.0, 8.0, 9.0, 13.0, 17.0]);
    assert_eq!(ramp(&[2, 0, 4]).permute(&[2, 1, 0]).shape(), [4, 0, 2]);
}

#[test]
fn einstein_sums_are_products_sums_and_diagonals() {
    let (a, b) = (ramp(&[2, 3]), ramp(&[3, 2]));
    let run = |equation: &str, arrays: &[Array<f32>]| einsum(lane(), equation, arrays).unwrap();
    let product = [10.0, 13.0, 28.0, 40.0];
    assert_eq!(run("ij,jk->ik", &[a.clone(), b.clone()]).data(), product);
    assert_eq!(run("ij, jk", &[a.clone(), b.clone()]).data(), product);
    assert_eq!(run("ij,jk->ki", &[a.clone(), b.clone()]).data(), [10.0, 28.0, 13.0, 40.0]);
    assert_eq!(run("ij->", std::slice::from_ref(&a)).data(), [15.0]);
    assert_eq!(run("ij->j", std::slice::from_ref(&a)).data(), [3.0, 5.0, 7.0]);
    assert_eq!(run("i,j->ij", &[ramp(&[2]), ramp(&[3])]).data(), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(run("...ii->...i", &[ramp(&[2, 2, 2])]).data(), [0.0, 3.0, 4.0, 7.0]);
    assert_eq!(run("ii", &[ramp(&[3, 3])]).data(), [12.0]);
    let stretched = run("...ij,...jk->...ik", &[ramp(&[1, 2, 3]), ramp(&[2, 3, 1])]);
    assert_eq!(stretched.data(), [5.0, 14.0, 14.0, 50.0]);
    let three = run("ij,jk,k->i", &[a.clone(), b.clone(), ramp(&[2])]);
    assert_eq!(three.data(), [13.0, 40.0]);
    assert!(matches!(einsum(lane(), "ij,jk->iz", &[a, b]), Err(Stop::Fail(_))));
}

#[test]
fn a_comparison_fails_where_it_must() {
    let tolerance = Tolerance { absolute: 1e-6, relative: 1e-3 };
    let compared = |got: &[f32], want: &[f64], kind, blind, overflow: Option<&[bool]>| {
        let value = Array::new(&[got.len()], got.to_vec());
        let output = Output { value, blind: Some(Array::full(&[1], blind)) };
        let want = Value::Float(Array::new(&[want.len()], want.to_vec()));
        let overflow = overflow.map(|marks| Array::new(&[marks.len()], marks.to_vec()));
        compare("y", &output, &want, kind, tolerance, overflow.as_ref())
    };
    let check = |got: &[f32], want: &[f64], kind, blind: bool| {
        let blind = if blind { Blind::Exactly(0.0) } else { Blind::No };
        compared(got, want, kind, blind, None)
    };
    let f32 = Kind::F32;
    assert_eq!(check(&[1.0, -2.0], &[1.0009, -2.0], f32, false), Ok(()));
    assert!(check(&[1.0, -2.0], &[1.002, -2.0], f32, false).is_err());
    assert!(check(&[1.0], &[1.0, 1.0], f32, false).is_err(), "shapes");
    assert!(check(&[f32::NAN], &[0.0], f32, false).is_err());
    assert!(check(&[f32::INFINITY], &[f64::NEG_INFINITY], f32, false).is_err());
    assert_eq!(check(&[f32::INFINITY, f32::NAN], &[1e39, f64::NAN], f32, false), Ok(()));
    // NaN against a number passes only for queries that see nothing, and only where the record is NaN.
    assert!(check(&[0.0], &[f64::NAN], f32, false).is_err());
    assert_eq!(check(&[0.0], &[f64::NAN], f32, true), Ok(()));
    assert!(check(&[f32::NAN], &[0.0], f32, true).is_err());
    // And only when it is the number owed.
    let blind = |got: f32, blind: Blind| compared(&[got], &[f64::NAN], f32, blind, None);
    assert!(blind(1e-30, Blind::Exactly(0.0)).is_err());
    assert!(blind(f32::NAN, Blind::Exactly(0.0)).is_err());
    assert_eq!(blind(0.5, Blind::Exactly(0.5)), Ok(()));
    assert_eq!(blind(0.5, Blind::InSomeHeads), Ok(()));
    assert!(blind(f32::NAN, Blind::InSomeHeads).is_err());
    // Sums that overflow on their way excuse their own elements and no others.
    let overflow =
        |got: &[f32], marks: &[bool]| compared(got, &[1e30, 2.0], f32, Blind::No, Some(marks));
    assert_eq!(overflow(&[f32::NAN, 2.0], &[true, false]), Ok(()));
    assert!(overflow(&[f32::NAN, 3.0], &[true, false]).is_err());
    assert!(overflow(&[f32::NAN, f32::NAN], &[true, false]).is_err());
    assert!(overflow(&[1e30, 2.0], &[true]).is_err(), "shapes");
    assert_eq!(check(&[1.0 + 1.0 / 256.0], &[1.0], Kind::Bf16, false), Ok(()));
    assert!(check(&[1.0 + 1.0 / 256.0], &[1.0], f32, false).is_err());
    // A record of integers is none of a kernel in f32.
    let output = Output::from(Array::scalar(1.0));
    let ints = Value::Int(Array::scalar(1));
    assert!(compare("y", &output, &ints, Kind::Int, tolerance, None).is_err());
}

#[test]
fn lanes_that_differ_in_one_bit_are_told() {
    let compute = |lane: Lane<'_>| {
        let x = if lane.packed { f32::from_bits(1.0f32.to_bits() + 1) } else { 1.0 };
        Ok(vec![Array::scalar(x).into()])
    };
    let outcome = on_every_lane(compute, |_| Ok(()));
    assert!(matches!(outcome, Err(Stop::Fail(text)) if text.contains("differ")));
}

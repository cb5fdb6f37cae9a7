//! Tensors as the cases store them: safetensors files, read strictly.

use super::Stop;
use super::array::Array;
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::Path;

/// The element type that a case states. bf16 tensors are stored as f32, so the file does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F16,
    Bf16,
    F32,
    F64,
    Int,
    Bool,
}

impl Kind {
    pub(crate) fn parse(name: &str) -> Result<Kind, Stop> {
        Ok(match name.trim_start_matches("torch.") {
            "float16" | "half" => Kind::F16,
            "bfloat16" => Kind::Bf16,
            "float32" | "float" => Kind::F32,
            "float64" | "double" => Kind::F64,
            "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64" => {
                Kind::Int
            }
            "bool" => Kind::Bool,
            other => return Err(Stop::skip(format!("not claimed: elements of type {other}"))),
        })
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Kind::Int | Kind::Bool)
    }

    /// An f32 result as this type holds it: rounded to nearest, ties to even.
    pub(crate) fn round(self, x: f32) -> f32 {
        match self {
            Kind::F16 => f16_to_f32(f32_to_f16(x)),
            Kind::Bf16 if x.is_nan() => x,
            Kind::Bf16 => {
                let bits = x.to_bits();
                f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
            }
            _ => x,
        }
    }
}

/// A tensor of any type: floats in f64, which holds all of ours exactly.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Float(Array<f64>),
    Int(Array<i64>),
    Bool(Array<bool>),
}

impl Value {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Value::Float(a) => a.shape(),
            Value::Int(a) => a.shape(),
            Value::Bool(a) => a.shape(),
        }
    }

    /// Floating-point elements in f32, the type that the kernels compute in.
    pub(crate) fn floats(&self) -> Result<Array<f32>, Stop> {
        match self {
            Value::Float(a) => Ok(a.map(|x| x as f32)),
            _ => Err(Stop::skip("not claimed: this operator on integers (f32 kernels only)")),
        }
    }

    /// As the type that the case states: some files hold truth values as bytes.
    pub(crate) fn stated(self, kind: Kind) -> Value {
        match (self, kind) {
            (Value::Int(a), Kind::Bool) => Value::Bool(a.map(|x| x != 0)),
            (value, _) => value,
        }
    }

    pub(crate) fn ints(&self) -> Result<Array<i64>, Stop> {
        match self {
            Value::Int(a) => Ok(a.clone()),
            _ => Err(Stop::fail("expected a tensor of integers")),
        }
    }
}

/// The bytes of one case's file.
pub(crate) struct Tensors(Vec<u8>);

impl Tensors {
    pub(crate) fn open(path: &Path) -> Result<Tensors, Stop> {
        fs::read(path).map(Tensors).map_err(|e| Stop::fail(format!("{}: {e}", path.display())))
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        SafeTensors::deserialize(&self.0).is_ok_and(|file| file.tensor(key).is_ok())
    }

    /// What is there, by name.
    #[allow(dead_code, reason = "one of two tests asks")]
    pub(crate) fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0);
        file.map_or(Vec::new(), |file| file.names().into_iter().map(str::to_owned).collect())
    }

    pub(crate) fn get(&self, key: &str) -> Result<Value, Stop> {
        let file = SafeTensors::deserialize(&self.0).map_err(|e| Stop::fail(e.to_string()))?;
        let view = file.tensor(key).map_err(|e| Stop::fail(format!("{key}: {e}")))?;
        let (shape, bytes) = (view.shape(), view.data());
        let ints = |data: Vec<i64>| Value::Int(Array::new(shape, data));
        let floats = |data: Vec<f64>| Value::Float(Array::new(shape, data));
        Ok(match view.dtype() {
            Dtype::F64 => floats(each(bytes, f64::from_le_bytes)),
            Dtype::F32 => floats(each(bytes, |b| f32::from_le_bytes(b).into())),
            Dtype::F16 => floats(each(bytes, |b| f16_to_f32(u16::from_le_bytes(b)).into())),
            Dtype::BF16 => floats(each(bytes, |b| {
                f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into()
            })),
            Dtype::I64 => ints(each(bytes, i64::from_le_bytes)),
            Dtype::I32 => ints(each(bytes, |b| i32::from_le_bytes(b).into())),
            Dtype::I16 => ints(each(bytes, |b| i16::from_le_bytes(b).into())),
            Dtype::I8 => ints(each(bytes, |b| i8::from_le_bytes(b).into())),
            Dtype::U32 => ints(each(bytes, |b| u32::from_le_bytes(b).into())),
            Dtype::U16 => ints(each(bytes, |b| u16::from_le_bytes(b).into())),
            Dtype::U8 => ints(each(bytes, |b| u8::from_le_bytes(b).into())),
            Dtype::BOOL => Value::Bool(Array::new(shape, each(bytes, |[b]: [u8; 1]| b != 0))),
            other => return Err(Stop::skip(format!("not claimed: elements of type {other:?}"))),
        })
    }
}

fn each<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|chunk| f(chunk.try_into().unwrap())).collect()
}

/// Widening is exact: a subnormal is its integer times 2⁻²⁴, everything else moves its fields.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction as f32 / (1u32 << 24) as f32,
        31 if fraction == 0 => f32::INFINITY,
        31 => f32::NAN,
        _ => f32::from_bits((exponent + 127 - 15) << 23 | fraction << 13),
    }
}

/// Rounds to nearest, ties to even. Adding the right power of two makes the f32 adder round at the bit
/// where f16 ends; below 2⁻¹⁴ that bit stays at 2⁻²⁴.
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let a = x.abs();
    if a.is_nan() {
        return sign | 0x7e00;
    }
    if a >= 65520.0 {
        return sign | 0x7c00;
    }
    if a < 2f32.powi(-14) {
        return sign | ((a + 0.5 - 0.5) * (1u32 << 24) as f32) as u16;
    }
    let bits = a.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    sign | ((rounded >> 13) - ((127 - 15) << 10)) as u16
}

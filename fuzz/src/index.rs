use crate::checkpoint::{damage_bytes, hostile};
use crate::memory;
use crate::tiny::{Tensor, Tiny, file};
use arbitrary::{Result, Unstructured};
use headrow::Model;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Names of shards, the hostile ones too.
const SHARDS: [&str; 8] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors",
    "config.json",
    "../escape.safetensors",
    "/dev/zero",
    "",
    ".",
];

/// A folder of this process, emptied when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let thread = format!("{:?}", std::thread::current().id());
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let path = base.join(format!("headrow-fuzz-{}-{thread}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model in two shards and the index that says where its tensors are, damaged in ways that `u` chooses: an error of one line
/// in memory proportional to the files, or the model.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let tiny = Tiny::new(u.choose(&["distilbert", "gpt2", "llama"])?);
    let cut = u.int_in_range(0..=tiny.tensors.len())?;
    let mut map: Map<String, Value> = Map::new();
    for (at, Tensor { name, .. }) in tiny.tensors.iter().enumerate() {
        map.insert(name.clone(), json!(SHARDS[usize::from(at >= cut)]));
    }
    let damages = u.int_in_range(0..=3)?;
    let mut files = [file(&tiny.tensors[..cut]), file(&tiny.tensors[cut..])];
    let mut index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    for _ in 0..damages {
        match u.int_in_range(0..=3)? {
            0 => {
                let which = usize::from(u.arbitrary::<bool>()?);
                damage_bytes(u, &mut files[which])?;
            }
            1 => index["weight_map"] = serde_json::from_str(&hostile(u)?).unwrap_or(Value::Null),
            _ => damage_map(u, &mut index["weight_map"])?,
        }
    }
    let mut index = index.to_string().into_bytes();
    if damages > 0 && u.ratio(1, 4)? {
        damage_bytes(u, &mut index)?;
    }

    let folder = Folder::new();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.0.join(name), bytes).expect("a file in the folder");
    };
    write("config.json", &tiny.config_json());
    write("model.safetensors.index.json", &index);
    files.iter().zip(SHARDS).for_each(|(bytes, name)| write(name, bytes));
    let size: usize = files.iter().map(Vec::len).sum::<usize>() + index.len();
    match memory::within((2 << 20) + 64 * size, || Model::from_dir(&folder.0)) {
        Ok(model) => assert!(model.bytes() > 0),
        Err(error) => {
            assert!(damages > 0, "{error}");
            let message = error.to_string();
            assert!(!message.contains('\n') && message.len() < 8000, "{message:?}");
        }
    }
    Ok(())
}

/// A tensor is said to lie elsewhere, or nowhere, or there is one more.
fn damage_map(u: &mut Unstructured<'_>, map: &mut Value) -> Result<()> {
    let Value::Object(map) = map else { return Ok(()) };
    let names: Vec<String> = map.keys().cloned().collect();
    let name = if names.is_empty() { String::new() } else { u.choose(&names)?.clone() };
    match u.int_in_range(0..=3)? {
        0 => drop(map.remove(&name)),
        1 => drop(map.insert(format!("{name}x"), json!(SHARDS[0]))),
        2 => {
            let value = serde_json::from_str(&hostile(u)?).unwrap_or(Value::Null);
            map.insert(name, value);
        }
        _ => drop(map.insert(name, json!(u.choose(&SHARDS)?))),
    }
    Ok(())
}

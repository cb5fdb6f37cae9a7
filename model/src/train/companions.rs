//! What stands beside the weights of a model and goes along with them.

use crate::config;
use crate::error::Result;
use crate::tokenizer::MAX_BYTES;
use std::path::{Component, Path};

/// A file of a model's folder: its name there, and what it says.
pub(super) type Companion = (String, Vec<u8>);

/// What says how the weights are used, here or elsewhere, and on which terms. Vocabularies that only tokenizers of other
/// libraries read are not among them: `tokenizer.json` says the same.
const NAMES: [&str; 20] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "source_vocabulary.txt",
    "target_vocabulary.txt",
    "preprocessor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "README.md",
];

/// The files of a model's folder that go along with its weights, by name and content: tokenizer, decoding options, the recipe of a
/// sentence encoder with what its `modules.json` names, licences, README, and last `config.json`, which must be there. Names may
/// be paths with `/`, as `1_Pooling/config.json`. Other files are left alone.
///
/// # Errors
/// As [`read_file`], for `config.json` also when there is none.
///
/// ```no_run
/// let files = headrow::train::companions("model")?;
/// assert_eq!(files.last().map(|(name, _)| name.as_str()), Some("config.json"));
/// # Ok::<(), headrow::Error>(())
/// ```
pub fn companions(folder: impl AsRef<Path>) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = folder.as_ref();
    let optional = |name: &str| config::read_optional_file(&folder.join(name), MAX_BYTES);
    let mut files = Vec::new();
    for name in NAMES {
        if let Some(bytes) = optional(name)? {
            if name == "modules.json" {
                for name in configs_of_modules(&bytes) {
                    files.extend(optional(&name)?.map(|bytes| (name, bytes)));
                }
            }
            files.push((name.to_owned(), bytes));
        }
    }
    // Last: whoever finds it finds the others.
    let config = "config.json";
    files.push((config.to_owned(), read_file(folder.join(config))?));
    Ok(files)
}

/// Where the modules of a sentence encoder have their configs, the first one's aside, which is the model's own. Whether the list
/// is a good one is for those to say who read it as a recipe.
fn configs_of_modules(json: &[u8]) -> Vec<String> {
    let list: Vec<serde_json::Value> = serde_json::from_slice(json).unwrap_or_default();
    let paths = list.iter().filter_map(|module| module.get("path")?.as_str());
    let inside = |path: &&str| {
        let mut parts = Path::new(path).components();
        !path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    paths.filter(inside).map(|path| format!("{path}/config.json")).collect()
}

/// Reads a file as it may stand beside a model's weights: a regular one, since a pipe might never end, of at most 256 MiB, which is
/// the most that a tokenizer has.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io); [`Error::File`](crate::Error::File) for one that is not regular, or larger.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    config::read_file(path.as_ref(), MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::fs::{self, File};
    use std::path::PathBuf;

    /// A folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrow-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn all_that_is_there_goes_along() {
        let folder = folder("companions");
        assert!(
            matches!(companions(&folder), Err(Error::Io { path, .. }) if path.ends_with("config.json"))
        );
        fs::write(folder.join("config.json"), "{}").unwrap();
        fs::write(folder.join("model.safetensors"), "weights").unwrap();
        assert_eq!(companions(&folder).unwrap(), [("config.json".to_owned(), b"{}".to_vec())]);
        for name in NAMES {
            fs::write(folder.join(name), name).unwrap();
        }
        let all: Vec<_> = NAMES.map(|name| (name.to_owned(), name.as_bytes().to_vec())).into();
        let config = ("config.json".to_owned(), b"{}".to_vec());
        assert_eq!(companions(&folder).unwrap(), [all, vec![config]].concat());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn configs_of_modules_go_along_wherever_they_lie_inside() {
        let folder = folder("companions-modules");
        let modules = r#"[{"path": ""}, {"path": "parts/pool"}, {"path": "2_Normalize"}, {"path": "../up"}, {}]"#;
        fs::create_dir_all(folder.join("parts/pool")).unwrap();
        let files =
            [("parts/pool/config.json", "pool"), ("modules.json", modules), ("config.json", "{}")];
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let found = companions(&folder).unwrap();
        let found = found.iter().map(|(name, bytes)| (&**name, str::from_utf8(bytes).unwrap()));
        assert_eq!(found.collect::<Vec<_>>(), files);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let folder = folder("companions-refused");
        fs::write(folder.join("config.json"), "{}").unwrap();
        let refused = |name: &str, problem: &str| {
            let error = companions(&folder).unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(problem), "{error}");
        };
        fs::create_dir(folder.join("NOTICE")).unwrap();
        refused("NOTICE", "not a regular file");
        fs::remove_dir(folder.join("NOTICE")).unwrap();
        let large = File::create(folder.join("LICENSE")).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        refused("LICENSE", "268435457 bytes, more than the 268435456");
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_not_passed_over() {
        let folder = folder("companions-link");
        fs::write(folder.join("config.json"), "{}").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("LICENSE")).unwrap();
        let error = companions(&folder).unwrap_err();
        assert!(matches!(error, Error::Io { path, .. } if path.ends_with("LICENSE")));
        fs::remove_dir_all(folder).unwrap();
    }
}

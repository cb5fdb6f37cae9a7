//! What stands beside the weights of a model and goes along with them.

use crate::config;
use crate::error::Result;
use crate::tokenizer::MAX_BYTES;
use std::io::ErrorKind;
use std::path::Path;

/// A file of a model's folder: its name there, and what it says.
pub(super) type Companion = (String, Vec<u8>);

/// What says how the weights are used, here or elsewhere, and on which terms. Vocabularies that only tokenizers of other
/// libraries read are not among them: `tokenizer.json` says the same. The config is last: whoever finds it finds the others.
const NAMES: [&str; 22] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "source_vocabulary.txt",
    "target_vocabulary.txt",
    "preprocessor_config.json",
    "modules.json",
    "1_Pooling/config.json",
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
    "config.json",
];

/// The files of a model's folder that go along with its weights, by name and content: tokenizer, decoding options, the recipe of a
/// sentence encoder, licences, README, and last `config.json`, which must be there. Names may have a folder in them, behind a
/// `/`. Other files are left alone.
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
    let mut files = Vec::new();
    for name in NAMES {
        let path = folder.as_ref().join(name);
        match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound && name != "config.json" => {}
            // A name that leads nowhere, as a link may, is a file that cannot be read.
            _ => files.push((name.to_owned(), read_file(path)?)),
        }
    }
    Ok(files)
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
        fs::create_dir_all(folder.join("1_Pooling")).unwrap();
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
        let all = NAMES.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
        assert_eq!(companions(&folder).unwrap(), all);
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

//! What the small files of a sentence-transformers folder say: pooling, normalisation, limits.

use crate::config::{Fields, printable, read_optional_file};
use crate::error::{Error, Result};
use crate::head::{Normalization, Pooling};
use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Where the files come from.
#[derive(Clone, Copy)]
pub(super) enum Files<'a> {
    Folder(&'a Path),
    /// Paths inside the folder, with `/`, and contents.
    Memory(&'a [(&'a str, &'a [u8])]),
}

impl<'a> Files<'a> {
    /// The file's name in messages.
    fn place(&self, path: &Path) -> String {
        match self {
            Files::Folder(folder) => folder.join(path).display().to_string(),
            Files::Memory(_) => path.display().to_string(),
        }
    }

    /// A file of a set in memory.
    pub(super) fn in_memory(&self, path: &Path) -> Result<&'a [u8]> {
        let Files::Memory(files) = self else { unreachable!("asked of sets in memory only") };
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|&(_, bytes)| bytes).ok_or_else(|| missing(path))
    }

    /// A small file, or `None` when there is none of that name.
    fn optional(&self, path: &Path) -> Result<Option<Cow<'a, [u8]>>> {
        match self {
            Files::Folder(folder) => {
                Ok(read_optional_file(&folder.join(path), MAX_BYTES)?.map(Cow::Owned))
            }
            Files::Memory(_) => Ok(self.in_memory(path).ok().map(Cow::Borrowed)),
        }
    }
}

fn missing(path: &Path) -> Error {
    Error::Io { path: path.to_owned(), source: ErrorKind::NotFound.into() }
}

/// What the files beside the encoder say.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Where `config.json`, the weights and the tokenizer lie, relative to the folder.
    pub(super) transformer: PathBuf,
    pub(super) pooling: Pooling,
    pub(super) normalization: Normalization,
    /// The width that the pooling was written for, and the file that says so.
    width: Option<(usize, String)>,
    pub(super) max_length: Option<usize>,
    /// Texts are lower-cased before the tokenizer sees them.
    pub(super) lower: bool,
}

/// Largest of the small JSON files that is read.
const MAX_BYTES: u64 = 1 << 20;

impl Recipe {
    pub(super) fn read(files: &Files<'_>) -> Result<Recipe> {
        let mut recipe = Recipe {
            transformer: PathBuf::new(),
            pooling: Pooling::Mean,
            normalization: Normalization::None,
            width: None,
            max_length: None,
            lower: false,
        };
        recipe.read_modules(files)?;
        recipe.read_limits(files)?;
        Ok(recipe)
    }

    /// Transformer, Pooling, and perhaps Normalize, in this order.
    fn read_modules(&mut self, files: &Files<'_>) -> Result<()> {
        let modules = Path::new("modules.json");
        let Some(json) = files.optional(modules)? else { return Ok(()) };
        let place = files.place(modules);
        let list: Vec<serde_json::Value> = serde_json::from_slice(&json).map_err(|error| {
            let problem = printable(&error.to_string());
            Error::file(&place, format_args!("not a list of modules: {problem}"))
        })?;
        let wrong = |problem: String| Error::file(&place, problem);
        let kinds = ["Transformer", "Pooling", "Normalize"];
        for (index, module) in list.iter().enumerate() {
            let field = |name| module.get(name).and_then(serde_json::Value::as_str);
            let kind = field("type").ok_or_else(|| wrong(format!("module {index} has no type")))?;
            let short = kind.rsplit('.').next().unwrap_or(kind);
            if kinds.get(index) != Some(&short) {
                let kind = printable(kind);
                return Err(wrong(format!(
                    "module {index} is {kind}: supported are Transformer, Pooling and then Normalize"
                )));
            }
            let path = Path::new(field("path").unwrap_or_default());
            if path
                .components()
                .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
            {
                return Err(wrong(format!("module {index} lies outside the folder")));
            }
            match index {
                0 => self.transformer = path.to_owned(),
                1 => self.read_pooling(files, &path.join("config.json"))?,
                _ => self.normalization = Normalization::L2,
            }
        }
        match list.len() {
            0 => Err(wrong("no modules".to_owned())),
            _ => Ok(()),
        }
    }

    /// `pooling_mode_*` flags, of which one must be set, or the single word of newer files.
    fn read_pooling(&mut self, files: &Files<'_>, path: &Path) -> Result<()> {
        const PREFIX: &str = "pooling_mode_";
        let place = files.place(path);
        let json = files.optional(path)?.ok_or_else(|| missing(Path::new(&place)))?;
        let fields = Fields::parse(&json, &place)?;
        let mut modes = Vec::new();
        for name in fields.names().filter(|name| name.starts_with(PREFIX)) {
            if fields.flag(name, false)? {
                modes.push(name[PREFIX.len()..].to_owned());
            }
        }
        if fields.get("pooling_mode").is_some() {
            modes.push(fields.word("pooling_mode", None)?);
        }
        let [mode] = &modes[..] else {
            return Err(fields.unsupported(
                "pooling_mode",
                &if modes.is_empty() { "none".to_owned() } else { modes.join(" and ") },
                " (expected one mode)",
            ));
        };
        self.pooling = match mode.as_str() {
            "mean_tokens" | "mean" => Pooling::Mean,
            "cls_token" | "cls" => Pooling::Cls,
            "max_tokens" | "max" => Pooling::Max,
            "lasttoken" => Pooling::LastToken,
            _ => {
                let known = " (expected mean, cls, max or lasttoken)";
                return Err(fields.unsupported("pooling_mode", mode, known));
            }
        };
        if fields.get("word_embedding_dimension").is_some() {
            self.width = Some((fields.size("word_embedding_dimension", None)?, place.clone()));
        }
        Ok(())
    }

    /// `sentence_bert_config.json`, under any of the names it has had.
    fn read_limits(&mut self, files: &Files<'_>) -> Result<()> {
        let mut found = None;
        for name in ["bert", "roberta", "distilbert", "camembert", "xlm-roberta"] {
            let path = self.transformer.join(format!("sentence_{name}_config.json"));
            found = files.optional(&path)?.map(|json| (files.place(&path), json));
            if found.is_some() {
                break;
            }
        }
        let Some((place, json)) = found else { return Ok(()) };
        let fields = Fields::parse(&json, &place)?;
        if fields.get("max_seq_length").is_some() {
            let limit = fields.size("max_seq_length", None)?;
            if limit == 0 {
                return Err(fields.wrong("max_seq_length", "must not be 0"));
            }
            self.max_length = Some(limit);
        }
        self.lower = fields.flag("do_lower_case", false)?;
        Ok(())
    }

    pub(super) fn check_width(&self, d_model: usize) -> Result<()> {
        match &self.width {
            Some((width, place)) if *width != d_model => {
                let problem = format_args!("{width}, the encoder has {d_model}");
                Err(Error::config(place, "word_embedding_dimension", problem))
            }
            _ => Ok(()),
        }
    }
}

//! A model's config without its weights: the paper's by name, or any from a file.

use crate::failure::Failure;
use headrow::accounting::Published;
use headrow::{Config, Input};

/// Which config.
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// Sizes without weights: base or big for the paper's models, or a config.json of any family.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "model")]
    pub(crate) config: Option<String>,

    /// Tokens of the vocabulary. Without it: as the file has it, or 37000 as in the paper.
    #[arg(long, value_name = "N", requires = "config", value_parser = clap::value_parser!(u32).range(1..))]
    vocab: Option<u32>,
}

/// A config and what the paper says of it.
pub(crate) struct Sizes {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) published: Option<Published>,
}

impl ConfigArgs {
    /// The config that is named, if one is.
    pub(crate) fn load(&self) -> Result<Option<Sizes>, Failure> {
        let Some(name) = &self.config else { return Ok(None) };
        self.named(name).map(Some)
    }

    /// The config of that name, or in that file.
    pub(crate) fn named(&self, name: &str) -> Result<Sizes, Failure> {
        let vocabulary = self.vocab.map(|vocabulary| vocabulary as usize);
        if let Some(published) = Published::named(name) {
            let config = published.config(vocabulary.unwrap_or(published.vocabulary));
            let name = format!("the paper's {name} model");
            return Ok(Sizes { name, config, published: Some(published) });
        }
        let mut config = Config::from_file(name)?;
        if let Some(vocabulary) = vocabulary {
            for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
                if let Input::Tokens(tokens) = &mut stack.input {
                    tokens.vocabulary = vocabulary;
                }
            }
        }
        Ok(Sizes { name: name.to_owned(), config, published: None })
    }
}

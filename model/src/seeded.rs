//! A model inside the library, so that the first call needs no download.
//!
//! `examples/seeded_model.rs` writes the folder. A test holds the two together.

use crate::assets::files;
use crate::error::Result;
use crate::sentence::{SentenceEncoder, SentenceOptions};

const FILES: [(&str, &[u8]); 6] = files![
    "seeded-bert":
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
];

impl SentenceEncoder {
    /// A small encoder that lies inside the library: a BERT of 2 layers and 32 features, whose weights are
    /// seeded and untrained. Its vectors say which words two texts share, and little more. It is here
    /// to try the library, and for tests.
    ///
    /// # Errors
    /// When `options` ask for an instruction set that this machine lacks.
    pub fn seeded_with(options: &SentenceOptions) -> Result<SentenceEncoder> {
        SentenceEncoder::from_files_with(&FILES, options)
    }

    /// [`SentenceEncoder::seeded_with`] the default options.
    ///
    /// ```
    /// use headrow::SentenceEncoder;
    ///
    /// let encoder = SentenceEncoder::seeded()?;
    /// let vectors = encoder.embed(["one line", "another line"])?;
    /// assert_eq!((vectors.len(), vectors[0].len()), (2, encoder.dimension()));
    /// # Ok::<(), headrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// None with these options.
    pub fn seeded() -> Result<SentenceEncoder> {
        SentenceEncoder::seeded_with(&SentenceOptions::default())
    }
}

//! A trained model inside the library: words into phonemes.

use crate::assets::files;
use crate::error::Result;
use crate::model::LoadOptions;
use crate::text::TextModel;

const FILES: [(&str, &[u8]); 4] =
    files!["g2p": "config.json", "model.safetensors", "tokenizer.json", "generation_config.json"];

impl TextModel {
    /// The model that lies inside the library: an encoder–decoder after the paper that was trained on the CMU Pronouncing
    /// Dictionary. It reads the letters of an English word, as [`TextModel::spell`] writes them, and writes
    /// its phonemes in ARPAbet without stress. Its options ask for beam search with 4 live hypotheses.
    ///
    /// ```
    /// use headrow::TextModel;
    ///
    /// let model = TextModel::pronouncer()?;
    /// let mut session = model.session(&model.session_options(1, model.options()).with_threads(1))?;
    /// let answers = model.translate(&mut session, [model.spell("Transformer")?], model.options())?;
    /// println!("{}", answers[0].hypotheses[0].text.as_deref().unwrap_or_default());
    /// # Ok::<(), headrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// None.
    pub fn pronouncer() -> Result<TextModel> {
        TextModel::pronouncer_with(&LoadOptions::default())
    }

    /// [`TextModel::pronouncer`] with options.
    ///
    /// # Errors
    /// When `options` ask for an instruction set that this machine lacks.
    pub fn pronouncer_with(options: &LoadOptions) -> Result<TextModel> {
        TextModel::from_files_with(&FILES, options)
    }
}

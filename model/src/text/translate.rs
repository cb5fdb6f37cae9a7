//! Many sources at a time through an encoder–decoder.

use super::TextModel;
use crate::batch::Batch;
use crate::error::Result;
use crate::generate::{Callbacks, Generated, GenerationOptions};
use crate::session::Session;

impl TextModel {
    /// Translates texts, or whatever an encoder–decoder makes of them: answers in their order, each what the text gets
    /// alone. Sources are encoded together, as many as the session has room for.
    ///
    /// # Errors
    /// The first of those that [`TextModel::translate_each`] gives for a text, and its own.
    pub fn translate<T: AsRef<str>>(
        &self,
        session: &mut Session,
        texts: impl IntoIterator<Item = T>,
        options: &GenerationOptions,
    ) -> Result<Vec<Generated>> {
        self.translate_each(session, texts, options)?.into_iter().collect()
    }

    /// [`TextModel::translate`] that goes on where a text is refused, or has more tokens than the session takes, or where the
    /// model fails on it: in its place is the error, with its number among `texts`. Such a text changes no other's answer.
    ///
    /// # Errors
    /// For what concerns all texts, as [`Session::generate_from`].
    pub fn translate_each<T: AsRef<str>>(
        &self,
        session: &mut Session,
        texts: impl IntoIterator<Item = T>,
        options: &GenerationOptions,
    ) -> Result<Vec<Result<Generated>>> {
        let mut answers = Vec::new();
        let mut group = Group::default();
        for (index, text) in texts.into_iter().enumerate() {
            match self.source_encoding(session, text.as_ref()) {
                Err(error) => answers.push((index, Err(error.of_text(index)))),
                Ok(encoding) => {
                    if !group.has_room(session, &encoding.ids) {
                        group.flush(self, session, options, &mut answers)?;
                    }
                    group.sources.push((index, encoding.ids));
                }
            }
        }
        group.flush(self, session, options, &mut answers)?;
        answers.sort_unstable_by_key(|&(index, _)| index);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

/// Sources that are waiting to be translated together, with their numbers.
#[derive(Default)]
struct Group {
    sources: Vec<(usize, Vec<u32>)>,
}

impl Group {
    fn has_room(&self, session: &Session, more: &[u32]) -> bool {
        let tokens = self.sources.iter().map(|(_, ids)| ids.len()).sum::<usize>();
        let fits = tokens + more.len() <= session.max_tokens();
        self.sources.is_empty() || fits && self.sources.len() < session.max_sequences()
    }

    /// Translates what is waiting. A source on which the model fails is taken out, and the others are tried again.
    fn flush(
        &mut self,
        model: &TextModel,
        session: &mut Session,
        options: &GenerationOptions,
        answers: &mut Vec<(usize, Result<Generated>)>,
    ) -> Result<()> {
        let tokenizer = model.target_tokenizer();
        while !self.sources.is_empty() {
            let ids = self.sources.iter().flat_map(|(_, ids)| ids).copied().collect::<Vec<_>>();
            let lengths = self.sources.iter().map(|(_, ids)| ids.len()).collect::<Vec<_>>();
            let mut hooks = Callbacks::new().with_detokenizer(tokenizer.token_text(&[]));
            let batch = Batch::ragged(&ids, &lengths);
            match session.generate_from(&batch, options, &mut hooks) {
                Ok(generated) => {
                    let numbers = self.sources.drain(..).map(|(index, _)| index);
                    answers.extend(numbers.zip(generated.into_iter().map(Ok)));
                }
                Err(mut error) => match error.sequence_mut() {
                    Some(sequence) if *sequence < self.sources.len() => {
                        let (index, _) = self.sources.remove(*sequence);
                        *sequence = index;
                        answers.push((index, Err(error)));
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

//! What can go wrong with data from outside: files, configs, ids, limits.
//!
//! Every message names the place. Nothing here is a bug of the library: those are panics.

use headrow_kernels::Isa;
use std::fmt;
use std::path::{Path, PathBuf};

/// A result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a folder, a file, a config or a batch was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name promises: no regular file, too large, not JSON, a damaged header.
    #[error("{place}: {problem}")]
    File {
        /// The file, or a word for the bytes that were given.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A field of a config is missing, of the wrong type or out of its range.
    #[error("{place}: {field}: {problem}")]
    Config {
        /// The file, or a word for the bytes that were given.
        place: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A config asks for something that this library does not compute.
    #[error("{place}: {field}: {value} is not supported{hint}")]
    Unsupported {
        /// The file, or a word for the bytes that were given.
        place: String,
        /// The field.
        field: String,
        /// What it says.
        value: String,
        /// What would be, as ` (expected …)`, or nothing.
        hint: String,
    },
    /// The tensors of a checkpoint are not those its config describes.
    #[error("{place}: the tensors do not fit the config: {problems}")]
    Weights {
        /// The file, or a word for the bytes that were given.
        place: String,
        /// Each tensor that is missing, left over, or of a wrong shape or type.
        problems: Problems,
    },
    /// The tokenizer's file or its text was refused.
    #[error("{place}: {problem}")]
    Tokenizer {
        /// The file or the text.
        place: String,
        /// What the tokenizer said.
        problem: String,
    },
    /// The machine, or this build, lacks an instruction set that was asked for.
    #[error("the instruction set {0} is not available here")]
    Isa(Isa),
    /// A token id is outside the vocabulary.
    #[error(
        "sequence {sequence}, token {index}: id {id} is not below the vocabulary's {vocabulary}"
    )]
    TokenId {
        /// Which sequence of the batch.
        sequence: usize,
        /// Which token of the sequence.
        index: usize,
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A token type is outside the table of the model.
    #[error("sequence {sequence}, token {index}: token type {token_type} of a model with {types}")]
    TokenType {
        /// Which sequence of the batch.
        sequence: usize,
        /// Which token of the sequence.
        index: usize,
        /// The type.
        token_type: u32,
        /// How many the model has.
        types: usize,
    },
    /// A sequence without tokens.
    #[error("sequence {sequence} has no tokens")]
    EmptySequence {
        /// Which sequence of the batch.
        sequence: usize,
    },
    /// A sequence has more tokens than the model has positions.
    #[error("sequence {sequence} has {tokens} tokens, the limit is {maximum}")]
    SequenceTooLong {
        /// Which sequence of the batch.
        sequence: usize,
        /// Its length.
        tokens: usize,
        /// The longest there may be.
        maximum: usize,
    },
    /// A text has more tokens than the encoder reads.
    #[error("text {text} has {tokens} tokens, the limit is {maximum}")]
    TextTooLong {
        /// Which text of the call.
        text: usize,
        /// Its tokens, special ones included.
        tokens: usize,
        /// Most tokens of a text.
        maximum: usize,
    },
    /// A text has more bytes than its tokenizer is to read.
    #[error("a text of {bytes} bytes, the limit is {maximum}")]
    TextTooLarge {
        /// Its length.
        bytes: usize,
        /// Most bytes of a text.
        maximum: usize,
    },
    /// A text was refused for another reason, such as a tokenizer that has no token for a word, or a session
    /// that is too small for it.
    #[error("text {text}: {source}")]
    Text {
        /// Which text of the call.
        text: usize,
        /// Why.
        source: Box<Error>,
    },
    /// The lengths of a batch do not add up to its ids.
    #[error("{what}: {actual} given, the lengths of the sequences add up to {expected}")]
    Lengths {
        /// Ids or token types.
        what: &'static str,
        /// The sum of the lengths.
        expected: usize,
        /// What there is.
        actual: usize,
    },
    /// A batch is larger than what the session was made for.
    #[error("the batch has {actual} {what}, the session was made for {maximum}")]
    BatchTooLarge {
        /// Tokens or sequences.
        what: &'static str,
        /// How many the batch has.
        actual: usize,
        /// How many the session has room for.
        maximum: usize,
    },
    /// The caller's buffer for a result has the wrong length.
    #[error("the buffer for {what} has {actual} elements, the result {expected}")]
    Buffer {
        /// Which result.
        what: &'static str,
        /// The length of the result.
        expected: usize,
        /// The length of the buffer.
        actual: usize,
    },
    /// The checkpoint holds no weights for a head that was asked for.
    #[error("the model has no {head}")]
    NoHead {
        /// Which head.
        head: &'static str,
    },
    /// An option of decoding is out of its range, or does not fit the rest.
    #[error("generation option {field}: {problem}")]
    GenerationOption {
        /// The option.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A matrix, or a class of maps, has other dimensions than its definition asks for.
    #[cfg(feature = "train")]
    #[error("{what} is {actual}, expected {expected}")]
    Dimensions {
        /// Which matrix or dimension.
        what: String,
        /// What it is.
        actual: String,
        /// What it would have to be.
        expected: String,
    },
    /// An option of training is out of its range, or does not fit the rest.
    #[cfg(feature = "train")]
    #[error("training option {field}: {problem}")]
    TrainingOption {
        /// The option.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A label that the head does not know.
    #[cfg(feature = "train")]
    #[error("sequence {sequence}: label {label} of a head with {labels}")]
    Label {
        /// Which sequence of the batch.
        sequence: usize,
        /// The label.
        label: u32,
        /// How many the head has.
        labels: usize,
    },
    /// Training came upon NaN or ∞. The step that met it changed nothing.
    #[cfg(feature = "train")]
    #[error("step {step}: {what} is {value}")]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The loss, or the gradient or the weights of a tensor.
        what: String,
        /// NaN or ∞.
        value: f64,
    },
    /// A model, or the caller's processor of logits, gave NaN or +∞ for a token.
    #[error("sequence {sequence}, step {step}: the logit of token {id} is {value}")]
    InvalidLogit {
        /// Which request.
        sequence: usize,
        /// How many tokens had been generated.
        step: usize,
        /// The first such token.
        id: u32,
        /// NaN or +∞.
        value: f32,
    },
    /// Every token is ruled out: all logits are −∞ once the constraints are applied.
    #[error("sequence {sequence}, step {step}: no token may follow")]
    NoToken {
        /// Which request.
        sequence: usize,
        /// How many tokens had been generated.
        step: usize,
    },
    /// A generator was asked to go on after a panic in the caller's code, or for the result of a request that came to none.
    #[error("the generation was broken off; clear the generator first")]
    Unfinished,
    /// A generator has other requests.
    #[error("the generator is running other requests")]
    Busy,
    /// A session would need more memory than its cap allows.
    #[error("the session needs {need} bytes, the cap is {cap}")]
    MemoryCap {
        /// What it needs.
        need: usize,
        /// What it may have.
        cap: usize,
    },
    /// A model lacks the stack that a call needs.
    #[error("the model has no {stack}")]
    NoStack {
        /// Encoder or decoder.
        stack: &'static str,
    },
    /// A layer or a head beyond those there are.
    #[error("there is no {what} {index}: the stack has {count}, counted from 0")]
    OutOfStack {
        /// Layer or head.
        what: &'static str,
        /// Which was named.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A decoder attends to a source, and a sequence without one was asked for.
    #[error("the decoder attends to a source: sequences are made from sources")]
    NoSource,
    /// An input is not of the kind that a stack reads.
    #[error("the model reads {expected}, not {actual}")]
    WrongInput {
        /// What it reads.
        expected: &'static str,
        /// What it was given.
        actual: &'static str,
    },
    /// A sequence was removed, or never was one of this session's.
    #[error("the session remembers no such sequence")]
    NoSequence,
    /// A call names a sequence twice.
    #[error("chunk {chunk} extends a sequence that an earlier chunk of the call extends")]
    TwiceInCall {
        /// Which chunk of the call.
        chunk: usize,
    },
    /// A session remembers as many sequences as it was made for.
    #[error("the session remembers {maximum} sequences, as many as it was made for")]
    TooManySequences {
        /// How many it was made for.
        maximum: usize,
    },
    /// The caches have too few free pages.
    #[error("no room to remember {tokens} more tokens, the caches have {free} left")]
    CacheFull {
        /// Tokens, in whole pages, that were wanted.
        tokens: usize,
        /// Tokens for which whole pages are free.
        free: usize,
    },
    /// A sequence is shorter than it was to be made.
    #[error("a sequence of {actual} tokens has no first {length}")]
    Truncate {
        /// How long it was to be.
        length: usize,
        /// How long it is.
        actual: usize,
    },
    /// Tokens were to see later ones in a decoder that looks backwards only.
    #[error("tokens see later ones only in a decoder without a window and biases by distance")]
    WholeChunk,
    /// A decoder has nothing to begin with: neither the config nor the options name a start token.
    #[error("neither the config nor the options name a token that the decoder starts with")]
    NoStart,
    /// The call was given up.
    #[error("cancelled")]
    Cancelled,
    /// The allocator refused, or the size is beyond any memory.
    #[error("no memory for {}", if .0.is_empty() { "what was asked" } else { .0 })]
    OutOfMemory(String),
}

impl Error {
    /// Says what there was no memory for, in few words, when there is memory for the words.
    pub(crate) fn out_of_memory(what: fmt::Arguments<'_>) -> Error {
        let mut words = String::new();
        if words.try_reserve(160).is_ok() {
            // A string takes whatever is written to it.
            let _ = fmt::Write::write_fmt(&mut words, what);
        }
        Error::OutOfMemory(words)
    }

    /// What is wrong with a field of a config.
    pub(crate) fn config(place: &str, field: &str, problem: impl fmt::Display) -> Error {
        let (place, field) = (place.to_owned(), field.to_owned());
        Error::Config { place, field, problem: problem.to_string() }
    }

    /// A value of a field that is not computed here. `hint` says what would be, as ` (expected …)`.
    pub(crate) fn unsupported(place: &str, field: &str, value: String, hint: &str) -> Error {
        let (place, field) = (place.to_owned(), field.to_owned());
        Error::Unsupported { place, field, value, hint: hint.to_owned() }
    }

    /// What is wrong with a field of the generation options.
    pub(crate) fn generation(field: &'static str, problem: impl ToString) -> Error {
        Error::GenerationOption { field, problem: problem.to_string() }
    }

    /// The same error about text `text`, when it does not say so itself.
    #[cfg(feature = "tokenizers")]
    pub(crate) fn of_text(self, text: usize) -> Error {
        match self {
            Error::TextTooLong { .. } | Error::Text { .. } => self,
            error => Error::Text { text, source: Box::new(error) },
        }
    }

    /// The same error with sequences counted from `first`, for one batch of several.
    pub(crate) fn counted_from(mut self, first: usize) -> Error {
        if let Some(sequence) = self.sequence_mut() {
            *sequence += first;
        }
        self
    }

    /// The sequence that the error is about.
    pub(crate) fn sequence_mut(&mut self) -> Option<&mut usize> {
        match self {
            Error::TokenId { sequence, .. }
            | Error::TokenType { sequence, .. }
            | Error::EmptySequence { sequence }
            | Error::SequenceTooLong { sequence, .. }
            | Error::InvalidLogit { sequence, .. }
            | Error::NoToken { sequence, .. } => Some(sequence),
            _ => None,
        }
    }

    #[cfg(feature = "train")]
    pub(crate) fn training_option(field: &'static str, problem: impl fmt::Display) -> Error {
        Error::TrainingOption { field, problem: problem.to_string() }
    }

    #[cfg(feature = "train")]
    pub(crate) fn dimensions(
        what: impl fmt::Display,
        actual: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Error {
        let (what, actual) = (what.to_string(), actual.to_string());
        Error::Dimensions { what, actual, expected: expected.to_string() }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    pub(crate) fn file(place: impl fmt::Display, problem: impl fmt::Display) -> Error {
        Error::File { place: place.to_string(), problem: problem.to_string() }
    }
}

/// Problems of one kind found together: the first few in words, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    first: Vec<String>,
    count: usize,
}

impl Problems {
    /// How many are kept in words.
    pub const SHOWN: usize = 20;

    pub(crate) fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.count < Problems::SHOWN {
            self.first.push(problem());
        }
        self.count += 1;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first of them, at most [`Problems::SHOWN`].
    pub fn first(&self) -> &[String] {
        &self.first
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.join("; "))?;
        match self.count - self.first.len() {
            0 if self.count == 1 => Ok(()),
            0 => write!(f, " ({} problems)", self.count),
            more => write!(f, "; and {more} more ({} problems)", self.count),
        }
    }
}

//! `headrow attention`: pictures of where a model looks.

mod picture;

use crate::failure::{Failure, explain};
use crate::options::{LengthArgs, PronouncerArgs};
use clap::ValueEnum;
use headrow::generate::GenerationOptions;
use headrow::{AttentionKind, Config, Text, TextModel};
use picture::Picture;
use std::io::{Write, stdout};
use std::path::PathBuf;

/// Most tokens over all maps of a picture: at most 256 of a row's squares are dark enough to be drawn, so this bounds it.
const MOST: usize = 8192;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: PronouncerArgs,

    #[command(flatten)]
    length: LengthArgs,

    /// Which attention: without it cross-attention where there is one, else that of a text to itself.
    #[arg(long, value_name = "KIND", value_enum)]
    kind: Option<Kind>,

    /// Layers, counted from 0; without it the last one.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    layer: Vec<usize>,

    /// Heads, counted from 0; without it all.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    head: Vec<usize>,

    /// Write the picture to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What the model reads; for the model inside the program, a word.
    text: String,

    /// What the decoder of an encoder–decoder reads; without it, its own translation.
    target: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A decoder's attention to what it has read.
    #[value(name = "self")]
    Decoder,
    /// A decoder's attention to the source.
    Cross,
    /// An encoder's attention to its own text.
    Encoder,
}

impl Kind {
    fn of(config: &Config) -> Kind {
        match (&config.encoder, &config.decoder) {
            (Some(_), Some(_)) => Kind::Cross,
            (_, None) => Kind::Encoder,
            (None, _) => Kind::Decoder,
        }
    }

    fn attention(self) -> AttentionKind {
        match self {
            Kind::Decoder => AttentionKind::Decoder,
            Kind::Cross => AttentionKind::Cross,
            Kind::Encoder => AttentionKind::Encoder,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::Decoder => "Decoder self-attention",
            Kind::Cross => "Cross-attention",
            Kind::Encoder => "Encoder self-attention",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.load()?;
    let source = match &args.model.model {
        Some(_) => args.text.clone(),
        None => model.spell(&args.text).map_err(refused)?,
    };
    let config = model.model().config();
    let kind = args.kind.unwrap_or_else(|| Kind::of(config));
    let stack = match kind {
        Kind::Encoder => config.encoder.as_ref(),
        Kind::Decoder | Kind::Cross => config.decoder.as_ref(),
    };
    let layers = match (args.layer.as_slice(), stack) {
        ([], Some(stack)) => vec![stack.layers - 1],
        (layers, _) => layers.to_vec(),
    };
    let heads = match (args.head.len(), stack) {
        (0, Some(stack)) => stack.heads,
        (named, _) => named,
    };
    let shown = layers.len().saturating_mul(heads);
    fits(longest(&model, &source, args.target.as_deref())?, shown)?;
    // A target may be as long as the model reads; what it writes by itself, as long as its options have it.
    let options = match &args.target {
        Some(_) => GenerationOptions::default(),
        None => model.options().clone(),
    };
    let options = args.length.over(options);
    let mut session = args.length.session(&args.model.compute, &model, &options)?;
    let text = match &args.target {
        Some(target) => Text::Pair(&source, target),
        None => Text::Single(&source),
    };
    let maps = model
        .attention(&mut session, text, kind.attention(), &layers, &args.head)
        .map_err(refused)?;
    fits(maps.queries.len().max(maps.keys.len()), shown)?;
    let svg = Picture { title: kind.title(), maps: &maps }.svg();
    match &args.output {
        None => {
            let mut out = stdout().lock();
            out.write_all(svg.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
        }
        Some(path) => std::fs::write(path, svg)
            .map_err(|error| Failure::Message(format!("{}: {error}", path.display()))),
    }
}

fn refused(error: headrow::Error) -> Failure {
    Failure::Message(explain("the text", error))
}

/// Tokens of the longer of the texts.
fn longest(model: &TextModel, source: &str, target: Option<&str>) -> Result<usize, Failure> {
    let source = model.tokenize(source).map_err(refused)?.ids.len();
    let Some(target) = target else { return Ok(source) };
    let target = model.target_tokenizer().encode(target, None).map_err(refused)?.ids.len();
    Ok(source.max(target))
}

/// Refuses maps that would make a picture nobody can open.
fn fits(tokens: usize, maps: usize) -> Result<(), Failure> {
    if tokens.saturating_mul(maps) <= MOST {
        return Ok(());
    }
    Err(Failure::Message(format!(
        "{tokens} tokens in {maps} maps: a picture shows at most {MOST} over all maps, choose with --layer and --head"
    )))
}

//! `headrow plot`: what attention costs, what bounds a layer, and the sinusoids, as pictures.

mod cost;
mod machine;
mod measure;
mod positions;
mod roofline;

use crate::failure::Failure;
use crate::options::ComputeArgs;
use crate::sizes::{ConfigArgs, Sizes};
use clap::Subcommand;
use headrow::chart::Chart;
use headrow::{Config, Cpu, Side, StackConfig, default_threads};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    picture: Picture,
}

#[derive(Subcommand)]
enum Picture {
    /// Operations of attention and of the rest of a layer against the number of tokens, and where they are equal.
    ///
    /// Both axes are logarithmic: attention rises with n², the linear maps with n.
    Cost(cost::Args),
    /// What the parts of a layer reach on a machine: operations per byte moved against operations per second.
    Roofline(roofline::Args),
    /// The sinusoids of positions, and the kernel PE(p)·PE(p + k), which depends on k alone.
    Positions(positions::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.picture {
        Picture::Cost(args) => cost::run(args),
        Picture::Roofline(args) => roofline::run(args),
        Picture::Positions(args) => positions::run(args),
    }
}

/// Whose layers a picture is of, where it goes, and what computes where something is measured.
#[derive(clap::Args)]
struct LayerArgs {
    /// Folder of a model, of which only config.json is read. Without it and --config: the paper's base model.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Where the SVG goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    compute: ComputeArgs,
}

impl LayerArgs {
    fn load(&self) -> Result<Sizes, Failure> {
        if let Some(folder) = &self.model {
            let config = Config::from_file(folder.join("config.json"))?;
            return Ok(Sizes { name: folder.display().to_string(), config, published: None });
        }
        match self.config.load()? {
            Some(sizes) => Ok(sizes),
            None => self.config.named("base"),
        }
    }

    /// What computes, and how many threads.
    fn processor(&self) -> Result<(Cpu, usize), Failure> {
        let cpu = match self.compute.isa {
            Some(isa) => Cpu::with_isa(isa).ok_or(headrow::Error::Isa(isa))?,
            None => Cpu::detect(),
        };
        Ok((cpu, self.compute.threads.map_or_else(default_threads, usize::from)))
    }

    /// Writes the picture to its file.
    fn write(&self, chart: &Chart) -> Result<(), Failure> {
        write(&self.out, &chart.svg()?)
    }
}

/// The stack that a picture is of: the encoder where there is one.
fn first_stack(config: &Config) -> Result<(Side, &StackConfig), Failure> {
    match (&config.encoder, &config.decoder) {
        (Some(stack), _) => Ok((Side::Encoder, stack)),
        (None, Some(stack)) => Ok((Side::Decoder, stack)),
        (None, None) => Err(Failure::Message("neither an encoder nor a decoder".to_owned())),
    }
}

/// Writes a picture to its file.
fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    std::fs::write(path, svg)
        .map_err(|error| Failure::Message(format!("{}: {error}", path.display())))
}

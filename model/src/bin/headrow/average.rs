//! `headrow average`: the mean of models.

use crate::failure::Failure;
use crate::train::Dtype;
use headrow::train::{average, checkpoints};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the mean. Made where it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// The folder of a training: its last checkpoints are averaged.
    #[arg(long, value_name = "DIR", requires = "last", conflicts_with = "models")]
    run: Option<PathBuf>,

    /// So many of them.
    #[arg(long, value_name = "K", requires = "run", value_parser = clap::value_parser!(u16).range(1..))]
    last: Option<u16>,

    /// The type of the numbers.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Dtype::F32)]
    dtype: Dtype,

    /// Folders of models or checkpoints.
    #[arg(value_name = "CHECKPOINT", required_unless_present = "run")]
    models: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folders = match (&args.run, args.last) {
        (Some(run), Some(last)) => {
            let found = checkpoints(run.join("checkpoints"))?;
            let last = usize::from(last);
            if found.len() < last {
                let (run, found) = (run.display(), found.len());
                return Err(Failure::Message(format!("{run}: {found} checkpoints, not {last}")));
            }
            found.into_iter().rev().take(last).rev().map(|(_, path)| path).collect()
        }
        _ => args.models.clone(),
    };
    Ok(average(&folders, &args.out, args.dtype.into())?)
}

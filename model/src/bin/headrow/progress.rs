//! A progress bar, for whoever watches.

use crate::source::Position;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr, stdout};
use std::time::{Duration, Instant};

/// Input that is done sooner needs no bar.
const LONG: Duration = Duration::from_millis(1500);

/// Shows nothing unless standard error is a terminal, and standard output, whose lines would run through
/// the bar, is none.
pub(crate) struct Progress {
    watched: bool,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn start() -> Progress {
        let watched = stderr().is_terminal() && !stdout().is_terminal();
        Progress { watched, started: Instant::now(), bar: None }
    }

    pub(crate) fn show(&mut self, position: Position) {
        if !self.watched || self.started.elapsed() < LONG {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(position, self.started));
        let seconds = self.started.elapsed().as_secs_f64();
        let texts = position.texts;
        bar.set_message(format!("{texts} texts, {:.0} per second", texts as f64 / seconds));
        match position.part {
            Some((done, _)) => bar.set_position(done),
            None => bar.tick(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(position: Position, started: Instant) -> ProgressBar {
    let total = position.part.map(|(_, total)| total);
    let template = match total {
        Some(_) => "{wide_bar} {percent:>3} %  {msg}, {eta} left",
        None => "{spinner} {msg}",
    };
    // A template that cannot be read would leave the default look.
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
        .with_style(style)
        .with_elapsed(started.elapsed())
}

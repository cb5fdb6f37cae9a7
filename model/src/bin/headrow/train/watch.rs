//! What a training shows while it runs, and how it is stopped.

use crate::failure::Failure;
use headrow::train::{Event, LogLine, StepReport};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status of a process that was interrupted twice.
const INTERRUPTED: i32 = 130;

/// Set by an interrupt (Ctrl-C) or a request to terminate. The second one ends the process at once.
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn listen() -> Result<Stop, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        let handler = move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED);
            }
        };
        ctrlc::set_handler(handler)
            .map_err(|error| Failure::Message(format!("interrupts: {error}")))?;
        Ok(Stop(asked))
    }
}

/// Writes a line for each of the log's to standard output, and shows a bar on standard error when that is a terminal.
pub(super) struct Watcher {
    stop: Stop,
    bar: Option<ProgressBar>,
    /// Why lines can no longer be written.
    pub(super) failure: Option<Failure>,
    /// Moving means of the loss of a token, and of a step's tokens and seconds.
    loss: f64,
    tokens: f64,
    seconds: f64,
}

impl Watcher {
    /// For a training of so many steps, when that is known.
    pub(super) fn new(stop: Stop, done: u64, steps: Option<u64>) -> Watcher {
        let bar = stderr().is_terminal().then(|| {
            let template = match steps {
                Some(_) => "{wide_bar} {pos}/{len}  {msg}, {eta} left",
                None => "{spinner} step {pos}  {msg}",
            };
            // A template that cannot be read would leave the default look.
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::with_draw_target(steps, ProgressDrawTarget::stderr())
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_position(done);
            bar.reset_eta();
            bar
        });
        Watcher { stop, bar, failure: None, loss: f64::NAN, tokens: f64::NAN, seconds: f64::NAN }
    }

    pub(super) fn watch(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Step(report) => self.step(report),
            Event::Line(line) => self.write(&text(line)),
            _ => (),
        }
        match self.stop.0.load(Ordering::Relaxed) || self.failure.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn step(&mut self, report: &StepReport) {
        let moved = |mean: f64, x: f64| if mean.is_nan() { x } else { mean + 0.05 * (x - mean) };
        self.loss = moved(self.loss, report.loss.mean());
        self.tokens = moved(self.tokens, report.loss.tokens as f64);
        self.seconds = moved(self.seconds, report.seconds);
        if let Some(bar) = &self.bar {
            bar.set_message(format!(
                "loss {:.4}, {:.0} tokens/s, rate {:.2e}",
                self.loss,
                self.tokens / self.seconds,
                report.rate
            ));
            bar.set_position(report.step);
        }
    }

    fn write(&mut self, line: &str) {
        let write = || {
            let mut out = stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
        let done = match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        };
        if let Err(error) = done {
            self.failure.get_or_insert(Failure::output(error));
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A line of the log for people.
fn text(line: &LogLine) -> String {
    match line {
        LogLine::Train(line) => format!(
            "step {}  epoch {}  loss {:.4}  accuracy {:.4}  rate {:.3e}  norm {:.3}  {:.0} tokens/s",
            line.step,
            line.epoch,
            line.loss,
            line.accuracy,
            line.rate,
            line.norm,
            line.tokens_per_second
        ),
        LogLine::Validation(line) => {
            let mut text = format!(
                "step {}  validation  loss {:.4}  perplexity {:.3}  accuracy {:.4}",
                line.step, line.loss, line.perplexity, line.accuracy
            );
            if let Some(bleu) = line.bleu {
                // Writing to a string does not fail.
                let _ = write!(text, "  BLEU {bleu:.2}");
            }
            text
        }
        line => format!("step {}", line.step()),
    }
}

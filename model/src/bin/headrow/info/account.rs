//! What a model costs, as `info` shows it: computed from its config and the list of its tensors.

use crate::failure::Failure;
use crate::table::{Table, bytes};
use headrow::accounting::{
    ClosedForm, Counts, LayerType, Operations, Published, Step, Tensor, activations, cache,
    cache_per_token, closed_forms, crossover, naive_scores, trace,
};
use headrow::{Config, Input, Side, StackConfig, Sublayer};
use serde_json::{Map, Value, json};

/// Tokens that figures are for unless others are wanted.
const TOKENS: usize = 512;

/// For which sizes figures are wanted.
#[derive(clap::Args)]
pub(crate) struct SizeArgs {
    /// Tokens of the source, and as many of the target, that operations, shapes and memory are for. Without it: 512, or
    /// as many as the model reads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: Option<u32>,

    /// k: tokens of a convolution's window, in the table of layer types.
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    kernel: u32,

    /// r: neighbours that a token sees in restricted attention, in the table of layer types.
    #[arg(long, value_name = "R", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    neighbours: u32,

    /// Write the shapes of a pass too. In JSON they are always there.
    #[arg(long)]
    pub(crate) shapes: bool,
}

/// A model's sizes, and how many tokens they are for.
pub(crate) struct Account<'a> {
    config: &'a Config,
    counts: &'a Counts,
    published: Option<Published>,
    sizes: &'a SizeArgs,
    /// Tokens of the source.
    n: usize,
    /// Tokens of the target, or of a text.
    m: usize,
}

impl<'a> Account<'a> {
    pub(crate) fn new(
        config: &'a Config,
        counts: &'a Counts,
        published: Option<Published>,
        sizes: &'a SizeArgs,
    ) -> Result<Account<'a>, Failure> {
        let n = tokens(config.encoder.as_ref(), sizes.n)?;
        let m = tokens(config.decoder.as_ref(), sizes.n)?;
        Ok(Account { config, counts, published, sizes, n, m })
    }

    fn sides(&self) -> impl Iterator<Item = (Side, &'static str, &StackConfig)> {
        self.config.stacks().map(|(name, stack)| {
            (if name == "encoder" { Side::Encoder } else { Side::Decoder }, name, stack)
        })
    }

    /// The operations that are told of, by name.
    fn operations(&self) -> Vec<(&'static str, Operations)> {
        let &Account { config, n, m, .. } = self;
        let mut all = Vec::new();
        if config.encoder.is_some() {
            all.push(("encoder", Operations::encoder(config, n)));
        }
        if config.decoder.is_some() {
            if config.encoder.is_some() {
                all.push(("sources", Operations::sources(config, n)));
            }
            all.push(("decoder", Operations::decoder(config, 0, m, n)));
            all.push(("decoder_step", Operations::decoder(config, m - 1, 1, n)));
        }
        all.push(("forward", Operations::forward(config, n, m)));
        all.push(("training", Operations::training(config, n, m)));
        all
    }

    /// Operations of the paper's training, in batches of sentences of these lengths.
    fn by_operations(&self, published: &Published) -> f64 {
        let sentences = published.batch_tokens as f64 / self.n as f64;
        let sentence = Operations::training(self.config, self.n, self.m).total();
        published.steps as f64 * sentences * sentence
    }

    fn layer_types(&self) -> [LayerType; 6] {
        LayerType::table(self.sizes.neighbours as usize, self.sizes.kernel as usize)
    }

    /// Tokens of the table of layer types.
    fn longest(&self) -> usize {
        self.n.max(self.m)
    }
}

/// Tokens of a stack: as many as are wanted, or as an image or a spectrogram has.
fn tokens(stack: Option<&StackConfig>, wanted: Option<u32>) -> Result<usize, Failure> {
    let Some(stack) = stack else { return Ok(0) };
    let most = stack.max_length();
    match (&stack.input, wanted) {
        (Input::Patches { .. } | Input::Spectrogram { .. }, _) => Ok(most),
        (_, None) => Ok(TOKENS.min(most)),
        (_, Some(n)) if n as usize > most => {
            Err(Failure::Message(format!("--n {n}: the model reads at most {most} tokens")))
        }
        (_, Some(n)) => Ok(n as usize),
    }
}

impl Account<'_> {
    /// The fields that a report has of it.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let &Account { config, n, m, .. } = self;
        let by_side = |of: &dyn Fn(Side, &StackConfig) -> Value| -> Map<String, Value> {
            self.sides().map(|(side, name, stack)| (name.to_owned(), of(side, stack))).collect()
        };
        let operations = self.operations().into_iter();
        let operations = operations.map(|(name, all)| (name.to_owned(), operations_json(&all)));
        let layer_types: Vec<Value> =
            self.layer_types().iter().map(|&kind| self.layer_type_json(kind)).collect();
        let fields = [
            ("parameters", self.parameters_json()),
            ("tokens", json!({"source": n, "target": m})),
            ("operations", operations.collect::<Map<_, _>>().into()),
            ("crossover", by_side(&|side, _| crossover(config, side).into()).into()),
            (
                "activations",
                by_side(&|side, stack| {
                    let tokens = if side == Side::Encoder { n } else { m };
                    let layers = stack.layers;
                    json!({
                        "pass": activations(config, side, tokens),
                        "whole_scores": naive_scores(config, side, tokens),
                        "layers": layers,
                    })
                })
                .into(),
            ),
            ("cache", json!({"per_token": cache_per_token(config), "bytes": cache(config, m, n)})),
            ("shapes", trace(config, n, m).iter().map(step_json).collect::<Vec<_>>().into()),
            ("layer_types", layer_types.into()),
            ("training", self.published.map(|published| self.training_json(&published)).into()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn parameters_json(&self) -> Value {
        let Account { config, counts, .. } = self;
        let parts = counts.parts().into_iter();
        let parts: Map<String, Value> =
            parts.map(|(name, numbers)| (name.to_owned(), numbers.into())).collect();
        let mut parameters = json!({
            "total": counts.total(),
            "parts": parts,
            "closed_forms": closed_forms(config, counts).iter().map(form_json).collect::<Vec<_>>(),
            "tensors": counts.tensors().iter().map(tensor_json).collect::<Vec<_>>(),
        });
        for (side, name, stack) in self.sides() {
            parameters[name] = json!({
                "total": counts.stack(side),
                "layers": stack.layers,
                "layer": counts.layer(side, 0),
            });
        }
        if let Some(published) = &self.published {
            let words = published.vocabularies(config, counts);
            parameters["published"] = json!({
                "millions": published.millions,
                "vocabularies": [words.start(), words.end()],
            });
        }
        parameters
    }

    fn training_json(&self, published: &Published) -> Value {
        json!({
            "published": published.operations,
            "by_time": published.by_time(),
            "by_operations": self.by_operations(published),
        })
    }

    fn layer_type_json(&self, kind: LayerType) -> Value {
        let (n, d) = (self.longest(), self.config.d_model);
        json!({
            "name": kind.name(),
            "orders": kind.orders(),
            "complexity": kind.complexity(n, d),
            "sequential": kind.sequential(n),
            "path": kind.path(n),
        })
    }
}

fn operations_json(operations: &Operations) -> Value {
    json!({
        "projections": operations.projections,
        "attention": operations.attention,
        "feed_forward": operations.feed_forward,
        "ends": operations.ends,
        "total": operations.total(),
    })
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Encoder => "encoder",
        Side::Decoder => "decoder",
    }
}

fn sublayer_name(sublayer: Sublayer) -> &'static str {
    match sublayer {
        Sublayer::SelfAttention => "attention",
        Sublayer::CrossAttention => "cross-attention",
        Sublayer::FeedForward => "feed-forward",
        _ => "other",
    }
}

fn form_json(form: &ClosedForm) -> Value {
    json!({
        "stack": form.side.map(side_name),
        "what": form.what,
        "formula": form.formula,
        "value": form.value,
        "exact": form.exact,
    })
}

fn tensor_json(tensor: &Tensor) -> Value {
    json!({
        "name": tensor.name,
        "shape": tensor.shape,
        "numbers": tensor.numbers(),
        "shared": tensor.shared,
    })
}

fn step_json(step: &Step) -> Value {
    json!({
        "stack": step.side.map(side_name),
        "sublayer": step.sublayer.map(sublayer_name),
        "what": step.what,
        "shape": step.shape,
        "times": step.times,
    })
}

impl Account<'_> {
    /// The same for readers, in tables.
    pub(crate) fn plain(&self) -> String {
        let mut tables = vec![
            self.forms_table(),
            self.operations_table(),
            self.memory_table(),
            self.layer_types_table(),
        ];
        tables.extend(self.published.map(|published| self.training_table(&published)));
        if self.sizes.shapes {
            tables.push(self.shapes_table());
        }
        tables.iter().map(|table| format!("\n{table}")).collect()
    }

    /// Where the paper's number is another one.
    pub(crate) fn published(&self) -> Option<String> {
        let published = self.published.as_ref()?;
        let words = published.vocabularies(self.config, self.counts);
        let (least, most) = (words.start(), words.end());
        let millions = published.millions;
        Some(format!("{millions} million in the paper, as with {least} to {most} words"))
    }

    fn forms_table(&self) -> Table {
        let mut table = Table::new(["parameters of a layer", "form", "its value", "exactly"]);
        for ClosedForm { side, what, formula, value, exact, .. } in
            closed_forms(self.config, self.counts)
        {
            let name = match side {
                Some(side) => format!("{}, {what}", side_name(side)),
                None => what.to_owned(),
            };
            table.row([name, formula.to_owned(), value.to_string(), exact.to_string()]);
        }
        table
    }

    fn operations_table(&self) -> Table {
        let first = format!("operations, n = {}", self.longest());
        let mut table =
            Table::new([&first, "projections", "attention", "feed-forward", "ends", "all"]);
        for (name, of) in self.operations() {
            let numbers = [of.projections, of.attention, of.feed_forward, of.ends, of.total()];
            let [a, b, c, d, e] = numbers.map(|number| format!("{number:.3e}"));
            table.row([name.replace('_', " "), a, b, c, d, e]);
        }
        table
    }

    fn memory_table(&self) -> Table {
        let &Account { config, n, m, .. } = self;
        let mut table = Table::new(["memory and crossover", ""]);
        for (side, name, _) in self.sides() {
            let tokens = if side == Side::Encoder { n } else { m };
            let pass = bytes(activations(config, side, tokens));
            table.row([format!("{name}, live in a pass of {tokens} tokens"), pass]);
            let scores = bytes(naive_scores(config, side, tokens));
            table.row([format!("{name}, one layer's scores if they were whole"), scores]);
            let crossing = crossover(config, side).map_or("never".to_owned(), |crossing| {
                format!("{crossing} = {:.2} d", crossing as f64 / config.d_model as f64)
            });
            table.row([format!("{name}, attention costs as much as the rest at n"), crossing]);
        }
        if config.decoder.is_some() {
            table.row([
                "cache of keys and values, a token".to_owned(),
                bytes(cache_per_token(config)),
            ]);
            let tokens =
                if config.encoder.is_some() { format!("{m} + {n}") } else { m.to_string() };
            table.row([format!("cache of {tokens} tokens"), bytes(cache(config, m, n))]);
        }
        table
    }

    fn layer_types_table(&self) -> Table {
        let (n, d, sizes) = (self.longest(), self.config.d_model, self.sizes);
        let first = format!(
            "layer types, n = {n}, d = {d}, k = {}, r = {}",
            sizes.kernel, sizes.neighbours
        );
        let mut table =
            Table::new([&first, "order", "operations", "in sequence", "path", "longest"]);
        for kind in self.layer_types() {
            let [complexity, _, path] = kind.orders();
            table.row([
                kind.name().to_owned(),
                complexity.to_owned(),
                format!("{:.3e}", kind.complexity(n, d)),
                kind.sequential(n).to_string(),
                path.to_owned(),
                kind.path(n).to_string(),
            ]);
        }
        table
    }

    fn training_table(&self, published: &Published) -> Table {
        let mut table = Table::new(["operations of the paper's training", ""]);
        let number = |number: f64| format!("{number:.2e}");
        let by_time = "time × processors × what they sustain";
        table.row(["in the paper".to_owned(), number(published.operations)]);
        table.row([by_time.to_owned(), number(published.by_time())]);
        let counted = format!("products, in sentences of {} tokens", self.longest());
        table.row([counted, number(self.by_operations(published))]);
        table
    }

    fn shapes_table(&self) -> Table {
        let mut table = Table::new(["shapes", "", "shape", "times"]);
        for Step { side, sublayer, what, shape, times, .. } in trace(self.config, self.n, self.m) {
            let place = match (side, sublayer) {
                (Some(side), Some(sublayer)) => {
                    format!("{}, {}", side_name(side), sublayer_name(sublayer))
                }
                (Some(side), None) => side_name(side).to_owned(),
                (None, _) => "read-out".to_owned(),
            };
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            table.row([place, what.to_owned(), shape.join(" × "), times.to_string()]);
        }
        table
    }
}

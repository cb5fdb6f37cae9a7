//! A model in training: losses of examples, and their gradients.

mod lay_out;

use super::claims::{Claims, probe};
use super::entrance::Given;
use super::examples::Examples;
use super::labels::{self, Wanted};
use super::loss::Loss;
use super::objective::{Dropping, Goal, Objective, Vectors};
use super::options::{Limits, NetworkOptions};
use super::parameters::Parameters;
use super::pass::{Back, Masks, TrainingPass, grown};
use super::read_out::{Answer, AnswerKept, Question};
use super::side::{Env, Parts, Side};
use super::stack::Layers;
use crate::attention::{Pass, SourceRows};
use crate::checkpoint::{Plan, plan};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::head::Heads;
use crate::linear::Call;
use crate::observer;
use crate::transformer::Transformer;
use crate::weights::Checkpoint;
use headrow_kernels::{CrossEntropy, Mat, MatMut, Need, Scratch, Segment, Stack, Team, TokenLoss};
use std::sync::Arc;

/// Computes losses and gradients of one model, one batch at a time.
///
/// All memory is taken when it is made, for the largest batch. Losses and gradients have the same bits with any number of
/// threads and on every instruction set; those of several examples are sums in the order of their tokens.
///
/// ```
/// use headrow::train::{Examples, Network, NetworkOptions, Objective, Parameters};
/// # use headrow::{Config, Input, StackConfig, TokenInput};
/// # let mut config = Config::general(16);
/// # config.decoder = Some(StackConfig::paper(Input::Tokens(TokenInput::paper(9, 16)), 1, 16, 2, 32));
/// let parameters = Parameters::initialise(&config, 1)?;
/// let mut network = Network::new(&config, &NetworkOptions::default().with_max_tokens(64))?;
/// let mut examples = Examples::default();
/// examples.targets.push([0, 3, 4]);
/// examples.labels.extend([Some(3), Some(4), Some(1)]);
/// let mut gradients = vec![0.0; parameters.values().len()];
/// let loss = network.accumulate(&parameters, &examples, &Objective::default(), None, &mut gradients)?;
/// assert!(loss.mean() > 0.0 && gradients.iter().any(|&g| g != 0.0));
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Network {
    config: Config,
    plan: Plan,
    limits: Limits,
    team: Team,
    scratch: Scratch,
    buffers: Buffers,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What is kept of a pass.
#[derive(Debug)]
struct Buffers {
    /// The encoder beside a decoder.
    source: Option<Side>,
    /// The stack that is read out.
    target: Side,
    /// Which rows of the source each sequence attends to.
    crossing: Vec<Segment>,
    answer: AnswerKept,
    /// Of labels.
    losses: Vec<TokenLoss>,
}

impl Buffers {
    fn new(
        model: Model<'_>,
        config: &Config,
        limits: &Limits,
        claims: &mut Claims,
    ) -> Result<Buffers> {
        let source = match model.source {
            Some(parts) => Some(Side::new(parts, config, limits, claims)?),
            None => None,
        };
        let target = Side::new(model.target, config, limits, claims)?;
        let crossing = claims.room(source.as_ref().map_or(0, |_| limits.rows))?;
        let answer = AnswerKept::new(model.answer, limits, claims)?;
        let labelled = if labels::any(model.heads) { limits.rows } else { 0 };
        let losses = claims.zeros(labelled, 1)?;
        Ok(Buffers { source, target, crossing, answer, losses })
    }
}

/// What both sides read in a pass.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    source: Option<Given<'a>>,
    target: Given<'a>,
}

/// The model's parts.
#[derive(Clone, Copy)]
struct Model<'a> {
    source: Option<Parts<'a>>,
    target: Parts<'a>,
    answer: Option<Answer<'a>>,
    heads: &'a Heads,
}

impl<'a> Model<'a> {
    fn of(transformer: &'a Transformer, d_model: usize) -> Result<Model<'a>> {
        let encoder = transformer
            .encoder
            .as_ref()
            .map(|(entrance, encoder)| Parts { entrance, layers: Layers::Encoder(encoder) });
        let decoder = transformer
            .decoder
            .as_ref()
            .map(|(entrance, decoder)| Parts { entrance, layers: Layers::Decoder(decoder) });
        let (source, target) = match (encoder, decoder) {
            (source, Some(target)) => (source, target),
            (Some(target), None) => (None, target),
            (None, None) => return Err(Error::NoStack { stack: "stack" }),
        };
        let (answer, heads) = (Answer::of(transformer, d_model), &transformer.heads);
        Ok(Model { source, target, answer, heads })
    }

    /// Scratch of all passes.
    fn scratch(self, d_model: usize, limits: &Limits) -> Need {
        let sides = [self.source, Some(self.target)].into_iter().flatten();
        let sides = sides.map(|parts| Side::scratch(parts, d_model, limits));
        let answer = self.answer.map_or(Need::NONE, |answer| answer.scratch(limits));
        let labels = labels::scratch(self.heads, limits, d_model).unwrap_or(Need::NONE);
        sides.fold(answer.or(labels), Need::or)
    }
}

/// Why a head is there in a pass.
const CHECKED: &str = "the head was looked for with the labels";

/// What a pass over the whole model shares.
struct Run<'a> {
    model: Model<'a>,
    env: Env<'a>,
    inputs: Inputs<'a>,
}

impl Run<'_> {
    fn forward(&self, buffers: &mut Buffers, stack: &mut Stack<'_>) {
        let Buffers { source, target, crossing, .. } = buffers;
        let Run { model, env, inputs } = self;
        let mut encoded = None;
        if let (Some(side), Some(parts), Some(given)) = (source, model.source, inputs.source) {
            side.forward(*env, parts, given, None, stack);
            encoded =
                Some(SourceRows { encoded: side.output(), segments: crossing, keys: given.keys() });
        }
        target.forward(*env, model.target, inputs.target, encoded, stack);
    }

    /// The loss of what the stacks gave, and, with `gradients`, the gradient of their last states.
    fn judge(
        &self,
        buffers: &mut Buffers,
        examples: &Examples,
        objective: &Objective,
        gradients: Option<&mut [f32]>,
        stack: &mut Stack<'_>,
    ) -> Loss {
        let Buffers { target, answer, losses, .. } = buffers;
        let (pass, Examples { labels, numbers, .. }) = (bare(self.env), examples);
        let (encoded, d) = target.encoded_and_gradient();
        let Some(head) = objective.goal.head() else {
            let how = CrossEntropy::default().with_smoothing(objective.smoothing);
            let head = self.model.answer.expect(CHECKED);
            let question = Question { answer: head, how: &how, states: encoded.hidden, labels };
            return match gradients {
                Some(gradients) => answer.learn(&pass, question, Back { d, gradients }, stack),
                None => answer.evaluate(&pass, question, stack),
            };
        };
        let head = self.model.heads.labelling(head).expect(CHECKED);
        let wanted = Wanted { objective, labels, numbers };
        let back = gradients.map(|gradients| Back { d, gradients });
        let learning = back.is_some();
        let judge = |scores: MatMut<'_>| wanted.judge(pass.call, scores, losses, learning);
        head.judged(&pass, encoded, judge, back, stack)
    }

    /// Walks both stacks back from the gradient of the last states.
    fn backward(
        &self,
        buffers: &mut Buffers,
        gradients: &mut [f32],
        observe: &mut dyn FnMut(observer::Side, usize, Mat<'_>),
        stack: &mut Stack<'_>,
    ) {
        let Buffers { source, target, crossing, .. } = buffers;
        let &Run { model, env, inputs } = self;
        let target_side = match model.target.layers {
            Layers::Encoder(_) => observer::Side::Encoder,
            Layers::Decoder(_) => observer::Side::Decoder,
        };
        let mut of_target = |layer, d: Mat<'_>| observe(target_side, layer, d);
        if let (Some(side), Some(parts), Some(given)) = (source, model.source, inputs.source) {
            let (encoded, mut d_encoded) = side.output_and_gradient();
            d_encoded.fill(0.0);
            let keys = given.keys();
            let crossed = (SourceRows { encoded, segments: crossing, keys }, d_encoded);
            let observe_target = &mut of_target;
            let (ours, read) = (model.target, inputs.target);
            target.backward(env, ours, read, Some(crossed), gradients, observe_target, stack);
            let mut of_source = |layer, d: Mat<'_>| observe(observer::Side::Encoder, layer, d);
            side.backward(env, parts, given, None, gradients, &mut of_source, stack);
            // A shared table takes what the source says before what the target does.
            side.entrance_backward(env, parts, given, gradients, stack);
        } else {
            let (parts, read) = (model.target, inputs.target);
            target.backward(env, parts, read, None, gradients, &mut of_target, stack);
        }
        target.entrance_backward(env, model.target, inputs.target, gradients, stack);
    }
}

impl Network {
    /// A network for the models of `config`, with the tensors that this asks for.
    ///
    /// # Errors
    /// When the config does not describe a model, or there is no memory.
    pub fn new(config: &Config, options: &NetworkOptions) -> Result<Network> {
        Network::build(config, &Checkpoint::nothing(), options, 0)
    }

    /// A network for parameters that were read from a file, which may have other heads than the config names.
    ///
    /// # Errors
    /// As [`Network::new`].
    pub fn for_parameters(parameters: &Parameters, options: &NetworkOptions) -> Result<Network> {
        Network::beside(parameters, options, 0)
    }

    /// The same where `others` bytes will be needed beside it.
    ///
    /// # Errors
    /// As [`Network::for_parameters`], also when there is no memory for both.
    pub(super) fn beside(
        parameters: &Parameters,
        options: &NetworkOptions,
        others: usize,
    ) -> Result<Network> {
        let tensors = parameters.planned().iter();
        let described = tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
        Network::build(parameters.config(), &Checkpoint::described(described), options, others)
    }

    fn build(
        config: &Config,
        checkpoint: &Checkpoint<'_>,
        options: &NetworkOptions,
        others: usize,
    ) -> Result<Network> {
        let plan = plan(config, checkpoint)?;
        let (d_model, limits) = (config.d_model, options.limits(config)?);
        let model = Model::of(&plan.transformer, d_model)?;
        let mut counted = Claims::counting();
        counted.counts(others);
        Buffers::new(model, config, &limits, &mut counted)?;
        // Sizes that there is memory for can be computed with.
        probe(counted.bytes())?;
        let need = model.scratch(d_model, &limits);
        counted.counts(need.bytes());
        probe(counted.bytes())?;
        let buffers = Buffers::new(model, config, &limits, &mut Claims::taking())?;
        let refused = || Error::out_of_memory(format_args!("{} bytes of scratch", need.bytes()));
        let scratch = Scratch::try_new(need).ok_or_else(refused)?;
        let team = match &options.pool {
            Some(pool) => Team::with_pool(Arc::clone(pool), limits.threads),
            None => Team::new(limits.threads),
        };
        Ok(Network { config: config.clone(), plan, limits, team, scratch, buffers })
    }

    /// What it is made for.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Most tokens of a batch on each side.
    pub fn max_tokens(&self) -> usize {
        self.limits.rows
    }

    /// Threads that work on a batch, the caller included.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Bytes of all buffers. Nothing else is allocated by a batch.
    pub fn memory(&self) -> usize {
        let Buffers { source, target, crossing, answer, losses } = &self.buffers;
        let sides = target.bytes() + source.as_ref().map_or(0, Side::bytes);
        sides + grown(crossing) + answer.bytes() + grown(losses) + self.scratch.bytes()
    }

    /// The losses of examples, without dropout.
    ///
    /// # Errors
    /// Before anything is computed: when the parameters are those of another model, the batch is larger than the network was made
    /// for, lengths do not fit, a sequence is empty or too long, an id or a label is outside the vocabulary or beyond the
    /// labels, or the model has no head for the goal.
    pub fn evaluate(
        &mut self,
        parameters: &Parameters,
        examples: &Examples,
        objective: &Objective,
    ) -> Result<Loss> {
        let inputs = self.lay_out_examples(parameters, examples)?;
        self.check_labels(objective.goal, examples)?;
        self.run(parameters, inputs, None, |run, buffers, stack| {
            run.forward(buffers, stack);
            run.judge(buffers, examples, objective, None, stack)
        })
    }

    /// The losses of examples, and their gradients: ∂(Σ loss of every label)/∂parameters is added to `gradients`, so that several
    /// batches can make one step, whose optimiser divides by the number of labels.
    ///
    /// # Errors
    /// As [`Network::evaluate`], and when `gradients` is not as long as the parameters or the rate of dropout no
    /// probability below 1.
    pub fn accumulate(
        &mut self,
        parameters: &Parameters,
        examples: &Examples,
        objective: &Objective,
        dropping: Option<Dropping>,
        gradients: &mut [f32],
    ) -> Result<Loss> {
        let nothing = &mut |_, _, _: Mat<'_>| {};
        self.accumulate_observed(parameters, examples, objective, dropping, gradients, nothing)
    }

    /// [`Network::accumulate`] that also shows the gradient of the residual stream: what layer ℓ reads, and, with ℓ the number of
    /// layers, what the last one gives; from the last layer to the first. The bits are the same.
    ///
    /// # Errors
    /// As [`Network::accumulate`].
    pub fn accumulate_observed(
        &mut self,
        parameters: &Parameters,
        examples: &Examples,
        objective: &Objective,
        dropping: Option<Dropping>,
        gradients: &mut [f32],
        observe: &mut dyn FnMut(observer::Side, usize, Mat<'_>),
    ) -> Result<Loss> {
        let inputs = self.lay_out_examples(parameters, examples)?;
        self.check_labels(objective.goal, examples)?;
        check_length("gradients", parameters.values().len(), gradients.len())?;
        self.run(parameters, inputs, dropping, |run, buffers, stack| {
            run.forward(buffers, stack);
            let loss = run.judge(buffers, examples, objective, Some(gradients), stack);
            run.backward(buffers, gradients, observe, stack);
            loss
        })
    }

    /// The scores of every word at every token of the targets, tokens × vocabulary, without dropout.
    ///
    /// # Errors
    /// As [`Network::evaluate`], and when `out` has another length.
    pub fn logits(
        &mut self,
        parameters: &Parameters,
        examples: &Examples,
        out: &mut [f32],
    ) -> Result<()> {
        self.scores(parameters, examples, Goal::Words, out)
    }

    /// What the head of a goal gives, without dropout: a row for each token, or for each sequence or image, of scores of its words
    /// or labels, or of its numbers.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub fn scores(
        &mut self,
        parameters: &Parameters,
        examples: &Examples,
        goal: Goal,
        out: &mut [f32],
    ) -> Result<()> {
        let inputs = self.lay_out_examples(parameters, examples)?;
        let (rows, columns) = self.scored(goal)?;
        check_length("the scores", rows * columns, out.len())?;
        let mut out = MatMut::new(out, rows, columns);
        self.run(parameters, inputs, None, |run, buffers, stack| {
            run.forward(buffers, stack);
            let Buffers { target, answer, .. } = buffers;
            let (pass, (encoded, _)) = (bare(run.env), target.encoded_and_gradient());
            match goal.head() {
                None => {
                    let head = run.model.answer.expect(CHECKED);
                    answer.scores(&pass, head, encoded.hidden, out, stack);
                }
                Some(head) => {
                    let head = run.model.heads.labelling(head).expect(CHECKED);
                    let copy = |scores: MatMut<'_>| out.copy_from(scores.as_ref());
                    head.judged(&pass, encoded, copy, None, stack);
                }
            }
        })
    }

    /// The last states of stacks that read vectors, tokens of the targets × d_model, without dropout.
    ///
    /// # Errors
    /// As [`Network::evaluate`] where no labels are concerned, and when `out` has another length.
    pub fn states(
        &mut self,
        parameters: &Parameters,
        sources: Option<Vectors<'_>>,
        targets: Vectors<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let inputs = self.lay_out_vectors(parameters, sources, targets)?;
        check_length("the hidden states", targets.values.len(), out.len())?;
        self.run(parameters, inputs, None, |run, buffers, stack| {
            run.forward(buffers, stack);
            let states = buffers.target.output();
            MatMut::new(out, states.rows(), states.cols()).copy_from(states);
        })
    }

    /// Adds to `gradients` those of a loss of the caller's own, whose gradient for the last states of stacks that read vectors is
    /// `d_out`. That for the vectors is then in [`Network::source_gradient`] and [`Network::target_gradient`].
    ///
    /// # Errors
    /// As [`Network::states`] and [`Network::accumulate`].
    pub fn accumulate_states(
        &mut self,
        parameters: &Parameters,
        sources: Option<Vectors<'_>>,
        targets: Vectors<'_>,
        dropping: Option<Dropping>,
        d_out: &[f32],
        gradients: &mut [f32],
    ) -> Result<()> {
        let nothing = &mut |_, _, _: Mat<'_>| {};
        self.accumulate_states_observed(
            parameters, sources, targets, dropping, d_out, gradients, nothing,
        )
    }

    /// [`Network::accumulate_states`] that also shows the gradient of the residual stream, as [`Network::accumulate_observed`].
    ///
    /// # Errors
    /// As [`Network::accumulate_states`].
    #[expect(clippy::too_many_arguments, reason = "those of a pass, and who looks at it")]
    pub fn accumulate_states_observed(
        &mut self,
        parameters: &Parameters,
        sources: Option<Vectors<'_>>,
        targets: Vectors<'_>,
        dropping: Option<Dropping>,
        d_out: &[f32],
        gradients: &mut [f32],
        observe: &mut dyn FnMut(observer::Side, usize, Mat<'_>),
    ) -> Result<()> {
        let inputs = self.lay_out_vectors(parameters, sources, targets)?;
        check_length("the gradient of the states", targets.values.len(), d_out.len())?;
        check_length("gradients", parameters.values().len(), gradients.len())?;
        self.run(parameters, inputs, dropping, |run, buffers, stack| {
            run.forward(buffers, stack);
            let (states, mut d) = buffers.target.output_and_gradient();
            d.copy_from(Mat::new(d_out, states.rows(), states.cols()));
            run.backward(buffers, gradients, observe, stack);
        })
    }

    /// The gradient of the vectors that the encoder beside a decoder has read, after [`Network::accumulate_states`].
    pub fn source_gradient(&self) -> &[f32] {
        self.buffers.source.as_ref().map_or(&[], Side::gradient)
    }

    /// The gradient of the vectors that the last stack has read, after [`Network::accumulate_states`].
    pub fn target_gradient(&self) -> &[f32] {
        self.buffers.target.gradient()
    }

    fn model(&self) -> Result<Model<'_>> {
        Model::of(&self.plan.transformer, self.config.d_model)
    }

    /// One team for a whole pass.
    fn run<R>(
        &mut self,
        parameters: &Parameters,
        inputs: Inputs<'_>,
        dropping: Option<Dropping>,
        pass: impl FnOnce(&Run<'_>, &mut Buffers, &mut Stack<'_>) -> R,
    ) -> Result<R> {
        let masks = match dropping {
            Some(dropping) if dropping.check()? => {
                let Dropping { rate, seed, step } = dropping;
                Some(Masks { rate, seed, step, side: 0 })
            }
            _ => None,
        };
        let Network { config, plan, limits, team, scratch, buffers } = self;
        let model = Model::of(&plan.transformer, config.d_model)?;
        Ok(team.open(|par| {
            let call = Call { cpu: limits.cpu, par };
            let env = Env { call, parameters: parameters.values(), masks };
            pass(&Run { model, env, inputs }, buffers, &mut scratch.stack())
        }))
    }
}

/// A pass that knows no places: of what stands behind the stacks.
fn bare(env: Env<'_>) -> TrainingPass<'_> {
    let pass = Pass { call: env.call, places: &[], rope: None, relative: None };
    TrainingPass { pass, parameters: env.parameters, masks: None, keys: None }
}

fn check_length(what: &'static str, expected: usize, actual: usize) -> Result<()> {
    match expected == actual {
        true => Ok(()),
        false => Err(Error::Buffer { what, expected, actual }),
    }
}

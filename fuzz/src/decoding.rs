use crate::toy::Toy;
use arbitrary::{Result, Unstructured};
use headrow::Error;
use headrow::generate::{
    Beam, EarlyStopping, Finish, Generated, GenerationOptions, Generator, Limits, Prompt, Sampling,
    Strategy,
};

/// Options as a caller may set them or a file may state them, over logits that may be no numbers: an error with the name of
/// an option, or an answer that keeps to the options, and the same one again.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let vocabulary = u.int_in_range(1..=9)?;
    let awkward = u.arbitrary()?;
    let mut toy = Toy::draw(u, vocabulary, awkward)?;
    let options = if u.ratio(1, 3)? { stated(u)? } else { Some(chosen(u, vocabulary)?) };
    let Some(options) = options else { return Ok(()) };
    let start = u.int_in_range(0..=vocabulary as u32 - 1)?;
    let first = run(&mut toy, start, &options);
    assert_eq!(toy.live(), 0, "a sequence was not released");
    assert_eq!(first, run(&mut toy, start, &options), "another answer for the same request");
    match first {
        Ok(generated) => keeps_to(&options, &generated, vocabulary),
        Err(message) => assert!(!message.contains('\n') && message.len() < 2000, "{message:?}"),
    }
    Ok(())
}

fn run(
    toy: &mut Toy,
    start: u32,
    options: &GenerationOptions,
) -> std::result::Result<Generated, String> {
    let message = |error: Error| error.to_string();
    let mut generator = Generator::new(Limits::new(toy.vocabulary, 6, 24)).map_err(message)?;
    let logits = toy.row(start).to_vec();
    let sequence = toy.begin(start);
    let prompt = [start];
    let prompt = Prompt::new(sequence, &prompt, &logits);
    let added = generator.add(toy, prompt, options, &mut ());
    let request = added.map_err(|error| {
        headrow::generate::StepModel::release(toy, sequence);
        error.to_string()
    })?;
    generator.run(toy, &mut ()).map_err(message)?;
    generator.take(request).expect("it is over").map_err(message)
}

/// Options in the words of a `generation_config.json`.
fn stated(u: &mut Unstructured<'_>) -> Result<Option<GenerationOptions>> {
    const NAMES: [&str; 16] = [
        "do_sample",
        "num_beams",
        "num_return_sequences",
        "early_stopping",
        "length_penalty",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "max_new_tokens",
        "min_length",
        "eos_token_id",
        "bad_words_ids",
        "suppress_tokens",
    ];
    const VALUES: [&str; 16] = [
        "true",
        "false",
        "null",
        "0",
        "1",
        "2",
        "4",
        "-1",
        "0.5",
        "1e300",
        "18446744073709551616",
        "\"never\"",
        "[]",
        "[1,2]",
        "[[1],[2,3]]",
        "[[]]",
    ];
    let mut fields = Vec::new();
    for _ in 0..u.int_in_range(0..=6)? {
        fields.push(format!("{:?}:{}", u.choose(&NAMES)?, u.choose(&VALUES)?));
    }
    let json = format!("{{{}}}", fields.join(","));
    match GenerationOptions::from_json("file", json.as_bytes()) {
        Ok(options) => Ok(Some(options.with_max_new_tokens(8usize))),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("file") && !message.contains('\n'), "{json}: {message:?}");
            Ok(None)
        }
    }
}

/// Options field by field; ids may be out of range, numbers none.
fn chosen(u: &mut Unstructured<'_>, vocabulary: usize) -> Result<GenerationOptions> {
    let id = |u: &mut Unstructured<'_>| -> Result<u32> {
        let beyond = u32::from(u.ratio(1, 40)?);
        u.int_in_range(0..=vocabulary as u32 - 1 + beyond)
    };
    let ids = |u: &mut Unstructured<'_>, most: usize| -> Result<Vec<u32>> {
        (0..u.int_in_range(0..=most)?).map(|_| id(u)).collect()
    };
    let number = |u: &mut Unstructured<'_>, usual: &[f32]| -> Result<f32> {
        Ok(if u.ratio(1, 30)? { f32::from_bits(u.arbitrary()?) } else { *u.choose(usual)? })
    };
    let mut options = GenerationOptions::default();
    options.strategy = match u.int_in_range(0..=2)? {
        0 => Strategy::Greedy,
        1 => {
            let sampling = Sampling::new(u.arbitrary()?)
                .with_temperature(number(u, &[0.0, 0.1, 0.7, 1.0, 3.0])?)
                .with_top_k(*u.choose(&[0, 1, 2, 5, usize::MAX])?)
                .with_top_p(number(u, &[0.0, 0.1, 0.5, 0.9, 1.0])?)
                .with_min_p(number(u, &[0.0, 0.05, 0.5, 1.0])?);
            Strategy::Sample(sampling)
        }
        _ => {
            let stopping = [
                EarlyStopping::ByBound,
                EarlyStopping::FirstComplete,
                EarlyStopping::BestComplete,
                EarlyStopping::Heuristic,
                EarlyStopping::Never,
            ];
            let beam = Beam::new(u.int_in_range(0..=7)?).with_n_best(u.int_in_range(0..=4)?);
            Strategy::Beam(beam.with_early_stopping(*u.choose(&stopping)?))
        }
    };
    options.max_new_tokens =
        *u.choose(&[None, Some(0), Some(1), Some(3), Some(8), Some(usize::MAX)])?;
    options.min_new_tokens = u.int_in_range(0..=4)?;
    options.stop_ids = ids(u, 2)?;
    options.repetition_penalty = number(u, &[1.0, 1.0, 0.5, 1.3])?;
    options.no_repeat_ngram = u.int_in_range(0..=3)?;
    options.forced_first = if u.ratio(1, 8)? { Some(id(u)?) } else { None };
    options.forced_last = if u.ratio(1, 8)? { Some(id(u)?) } else { None };
    options.suppressed = ids(u, 2)?;
    options.suppressed_first = ids(u, 1)?;
    options.bad_words = vec![ids(u, 3)?; u.int_in_range(0..=1)?];
    options.log_probabilities = *u.choose(&[0, 0, 1, 3, usize::MAX])?;
    Ok(options)
}

/// What can be said of an answer from the options alone.
fn keeps_to(options: &GenerationOptions, generated: &Generated, vocabulary: usize) {
    assert!(!generated.hypotheses.is_empty());
    for hypothesis in &generated.hypotheses {
        let tokens = &hypothesis.tokens;
        assert!(!tokens.is_empty() && tokens.iter().all(|&id| (id as usize) < vocabulary));
        assert!(options.max_new_tokens.is_none_or(|most| tokens.len() <= most), "{hypothesis:?}");
        let stops = |id: &u32| options.stop_ids.contains(id);
        let at = tokens.iter().position(stops);
        match hypothesis.finish {
            Finish::StopToken => assert_eq!(at, Some(tokens.len() - 1), "{hypothesis:?}"),
            _ => assert!(at.is_none(), "{options:?}: {hypothesis:?}"),
        }
        let early = at.is_some_and(|at| at < options.min_new_tokens);
        let forced = options.forced_first.is_some() || options.forced_last.is_some();
        assert!(!early || forced, "{options:?}: {hypothesis:?}");
        let ruled_out = tokens.iter().any(|id| options.suppressed.contains(id));
        assert!(!ruled_out, "{options:?}: {hypothesis:?}");
        assert!(hypothesis.log_probabilities.iter().all(|p| !p.is_nan()), "{hypothesis:?}");
    }
}

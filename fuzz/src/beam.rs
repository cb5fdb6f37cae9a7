use crate::toy::Toy;
use arbitrary::{Result, Unstructured};
use headrow::generate::{
    Beam, EarlyStopping, Generated, GenerationOptions, Generator, LengthPenalty, Limits, Prompt,
};

const STOP: u32 = 1;
const START: u32 = 0;

/// Beams that are wide enough for everything find what an exhaustive search finds; others find real
/// sequences with their true scores, and the same ones whether they stop by the bound or not at all.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let vocabulary = u.int_in_range(2..=4)?;
    let most = u.int_in_range(1..=4)?;
    let mut toy = Toy::draw(u, vocabulary, false)?;
    let penalty = penalty(u)?;
    let mut all = exhaustive(&toy, most);
    let score = |(tokens, sum): &(Vec<u32>, f64)| penalty.score(*sum, tokens.len());
    all.sort_by(|a, b| score(b).total_cmp(&score(a)));

    let widest = vocabulary.pow(most as u32);
    let size = u.int_in_range(1..=widest)?;
    let beam = Beam::new(size).with_length_penalty(penalty).with_n_best(u.int_in_range(1..=size)?);
    let bounded = search(&mut toy, beam.with_early_stopping(EarlyStopping::ByBound), most);
    let never = search(&mut toy, beam.with_early_stopping(EarlyStopping::Never), most);
    assert_eq!(bounded, never, "{beam:?}");
    for hypothesis in &bounded.hypotheses {
        let entry = all.iter().find(|(tokens, _)| *tokens == hypothesis.tokens);
        let truth = score(entry.unwrap_or_else(|| panic!("{hypothesis:?} is no sequence")));
        assert!(near(hypothesis.score, truth), "{hypothesis:?} scores {truth}");
    }

    let beam = Beam::new(widest).with_length_penalty(penalty).with_n_best(all.len().min(widest));
    let found = search(&mut toy, beam, most);
    assert_eq!(found.hypotheses.len(), all.len().min(widest));
    // Equal scores may stand in another order.
    for (hypothesis, best) in found.hypotheses.iter().zip(&all) {
        assert!(near(hypothesis.score, score(best)), "{hypothesis:?} in the place of {best:?}");
    }
    Ok(())
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * (1.0 + b.abs())
}

fn penalty(u: &mut Unstructured<'_>) -> Result<LengthPenalty> {
    let alpha = *u.choose(&[-1.5, -0.3, 0.0, 0.6, 1.0, 2.0])?;
    Ok(match u.int_in_range(0..=3)? {
        0 => LengthPenalty::None,
        1 => LengthPenalty::Gnmt { alpha },
        2 => LengthPenalty::Average { alpha },
        _ => {
            let word_penalty = *u.choose(&[-2.0, -0.4, 0.0, 0.3])?;
            LengthPenalty::Marian { normalize: alpha, word_penalty }
        }
    })
}

fn search(toy: &mut Toy, beam: Beam, most: usize) -> Generated {
    let options = GenerationOptions::default()
        .with_strategy(beam)
        .with_stop_ids([STOP])
        .with_max_new_tokens(most);
    let limits = Limits::new(toy.vocabulary, beam.size, 64);
    let mut generator = Generator::new(limits).expect("a small generator");
    let logits = toy.row(START).to_vec();
    let sequence = toy.begin(START);
    let prompt = Prompt::new(sequence, &[START], &logits);
    let request = generator.add(toy, prompt, &options, &mut ()).expect("there is room for one");
    generator.run(toy, &mut ()).expect("the toy does not fail");
    assert_eq!(toy.live(), 0, "a sequence was not released");
    generator.take(request).expect("it is over").expect("finite logits")
}

/// All sequences that end with the stop token or have the most tokens, and their Σ ln p.
fn exhaustive(toy: &Toy, most: usize) -> Vec<(Vec<u32>, f64)> {
    let (mut open, mut ended) = (vec![(Vec::new(), 0.0)], Vec::new());
    while let Some((tokens, sum)) = open.pop() {
        if tokens.last() == Some(&STOP) || tokens.len() == most {
            ended.push((tokens, sum));
            continue;
        }
        let row = toy.row(*tokens.last().unwrap_or(&START));
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        for (token, &x) in (0..).zip(row) {
            let mut longer: Vec<u32> = tokens.clone();
            longer.push(token);
            open.push((longer, sum + f64::from(x) - f64::from(max) - total.ln()));
        }
    }
    ended
}

//! Several requests at once: each gets what it gets alone.

use crate::toy::{Random, Toy};
use headrow::generate::{
    Beam, EarlyStopping, Generated, GenerationOptions, Generator, LengthPenalty, Limits, Sampling,
};
use headrow::{Cpu, Result};

/// A request of any kind.
fn any(random: &mut Random) -> (Vec<u32>, GenerationOptions) {
    let prompt = (0..1 + random.below(4)).map(|_| random.below(24) as u32).collect();
    let mut options = GenerationOptions::default()
        .with_stop_ids([1, 2])
        .with_max_new_tokens(1 + random.below(14))
        .with_log_probabilities(random.below(4));
    if random.below(3) == 0 {
        options = options.with_repetition_penalty(1.4).with_no_repeat_ngram(2usize);
    }
    let seed = random.below(1 << 20) as u64;
    let options = match random.below(3) {
        0 => options,
        1 => {
            let sampling = Sampling::new(seed).with_temperature(0.7 + random.below(3) as f32 / 4.0);
            let top_p = random.pick(&[0.5, 0.9, 1.0]);
            options.with_strategy(sampling.with_top_k(random.below(30)).with_top_p(top_p))
        }
        _ => {
            let size = 1 + random.below(5);
            let early_stopping = random.pick(&[
                EarlyStopping::ByBound,
                EarlyStopping::FirstComplete,
                EarlyStopping::BestComplete,
                EarlyStopping::Heuristic,
                EarlyStopping::Never,
            ]);
            let alpha = random.pick(&[0.6, 1.0, -0.5]);
            let beam = Beam::new(size).with_n_best(1 + random.below(size));
            let beam = beam.with_length_penalty(LengthPenalty::Average { alpha });
            options.with_strategy(beam.with_early_stopping(early_stopping))
        }
    };
    (prompt, options)
}

/// Runs requests that come in one by one, some of them when others are under way, and checks that all
/// sequences come back.
fn together(
    toy: &mut Toy,
    limits: Limits,
    requests: &[(Vec<u32>, GenerationOptions)],
    random: &mut Random,
) -> Vec<Result<Generated>> {
    let mut generator = Generator::new(limits).unwrap();
    let mut numbers = Vec::new();
    for (prompt, options) in requests {
        numbers.push(toy.add(&mut generator, prompt, options, &mut ()).unwrap());
        for _ in 0..random.below(3) {
            generator.step(toy, &mut ()).unwrap();
        }
    }
    generator.run(toy, &mut ()).unwrap();
    assert_eq!((generator.running(), toy.live()), (0, 0));
    numbers.into_iter().map(|number| generator.take(number).unwrap()).collect()
}

#[test]
fn a_request_gets_the_same_bits_alone_and_among_others() {
    let mut random = Random(5);
    for seed in 0..40 {
        let mut toy = Toy::new(24, seed, &[1, 2]);
        let requests: Vec<_> = (0..1 + random.below(9)).map(|_| any(&mut random)).collect();
        let all = together(&mut toy, Limits::new(24, 64, 64), &requests, &mut random);
        for ((prompt, options), among) in requests.iter().zip(all) {
            let alone = toy.generate(prompt, options, &mut ()).unwrap();
            assert_eq!(alone, among.unwrap(), "{options:?}");
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for seed in 0..10 {
        let results: Vec<Vec<Generated>> = Cpu::all()
            .map(|cpu| {
                let mut random = Random(100 + seed);
                let mut toy = Toy::new(300, seed, &[1, 2]);
                let requests: Vec<_> = (0..6).map(|_| any(&mut random)).collect();
                let limits = Limits::new(300, 64, 64).with_cpu(cpu);
                let all = together(&mut toy, limits, &requests, &mut random);
                all.into_iter().map(Result::unwrap).collect()
            })
            .collect();
        assert!(results.iter().all(|result| *result == results[0]));
    }
}

#[test]
fn requests_are_numbered_as_they_come() {
    let mut toy = Toy::new(24, 1, &[1]);
    let mut generator = Generator::new(Limits::new(24, 4, 64)).unwrap();
    let options = GenerationOptions::default().with_max_new_tokens(2usize);
    let add = |toy: &mut Toy, generator: &mut Generator<usize>| {
        toy.add(generator, &[3], &options, &mut ()).unwrap()
    };
    assert_eq!([add(&mut toy, &mut generator), add(&mut toy, &mut generator)], [0, 1]);
    assert!(generator.take(0).is_none(), "it is running");
    generator.run(&mut toy, &mut ()).unwrap();
    assert!(generator.take(0).unwrap().is_ok());
    assert!(generator.take(0).is_none(), "it was taken");
    assert!(generator.take(7).is_none(), "there is none");
    assert_eq!([add(&mut toy, &mut generator), add(&mut toy, &mut generator)], [2, 3]);
    assert!(generator.take(0).is_none(), "numbers are not used again");
    generator.clear(&mut toy);
    assert_eq!(add(&mut toy, &mut generator), 0, "until all are cleared");
    generator.clear(&mut toy);
    assert_eq!((generator.running(), toy.live()), (0, 0));
}

#[test]
fn a_step_that_the_model_refused_can_be_tried_again() {
    let requests: Vec<_> = (0..6).map(|i| any(&mut Random(i * 100))).collect();
    let mut expected = Toy::new(24, 3, &[1, 2]);
    let expected = requests.iter().map(|(p, o)| expected.generate(p, o, &mut ()).unwrap());
    let mut toy = Toy::new(24, 3, &[1, 2]);
    let mut generator = Generator::new(Limits::new(24, 64, 64)).unwrap();
    for (prompt, options) in &requests {
        toy.add(&mut generator, prompt, options, &mut ()).unwrap();
    }
    let mut refusals = 0;
    while generator.running() > 0 {
        toy.failing_step = Some(toy.steps);
        refusals += usize::from(generator.step(&mut toy, &mut ()).is_err());
        generator.step(&mut toy, &mut ()).unwrap();
    }
    assert!(refusals > 3);
    for (number, expected) in expected.enumerate() {
        assert_eq!(generator.take(number).unwrap().unwrap(), expected);
    }
}

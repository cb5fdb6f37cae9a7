//! Once a request is added, its steps allocate nothing.

#[path = "support/counting.rs"]
mod counting;
#[allow(dead_code, reason = "the tests of `generate` use all of it")]
#[path = "generate/toy.rs"]
mod toy;

use counting::counted;
use headrow::generate::{
    Beam, EarlyStopping, GenerationOptions, Generator, Limits, Sampling, Strategy,
};
use toy::Toy;

fn options(strategy: impl Into<Strategy>) -> GenerationOptions {
    GenerationOptions::default()
        .with_strategy(strategy)
        .with_max_new_tokens(40usize)
        .with_log_probabilities(3usize)
        .with_repetition_penalty(1.1)
        .with_no_repeat_ngram(4usize)
}

#[test]
fn a_step_allocates_nothing() {
    let sampling = Sampling::new(1);
    let all = [
        options(Strategy::Greedy),
        options(sampling),
        options(sampling.with_top_k(40)),
        options(sampling.with_top_k(200).with_top_p(0.9)),
        options(sampling.with_top_p(0.95).with_min_p(0.01)),
        options(Beam::new(4).with_early_stopping(EarlyStopping::Never)),
        options(Beam::new(70).with_n_best(9).with_early_stopping(EarlyStopping::Never)),
    ];
    let mut toy = Toy::new(300, 1, &[]);
    let mut generator = Generator::new(Limits::new(300, 100, 64)).unwrap();
    for options in &all {
        toy.add(&mut generator, &[3, 4], options, &mut ()).unwrap();
    }
    // The toy's own memory of its sequences grows while the beams fill up.
    for _ in 0..4 {
        generator.step(&mut toy, &mut ()).unwrap();
    }
    let own = toy.forks;
    let ((), calls, ..) = counted(|| {
        for _ in 0..30 {
            assert_eq!(generator.step(&mut toy, &mut ()).unwrap(), all.len());
        }
    });
    assert_eq!(calls, toy.forks - own, "beside what the toy allocates for its forks");
    assert!(toy.forks > own);
    generator.run(&mut toy, &mut ()).unwrap();
}

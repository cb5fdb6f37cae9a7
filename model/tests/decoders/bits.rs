//! The same bits however a sequence is computed.

use crate::random_models::{LONGEST, Seeded, V, begin};
use crate::{Random, SOURCE, cuts, decoders, extend, fresh, options, session, tokens, width};
use headrow::{
    Chunk, Cpu, LoadOptions, Output, RelativePositions, Rotary, RotaryScaling, Session,
    SessionOptions,
};

#[test]
fn a_prompt_has_the_same_bits_in_one_pass_in_pieces_and_token_by_token() {
    for (seed, seeded) in decoders().enumerate() {
        let (model, mut random) = (seeded.model(), Random(seed as u64));
        let mut whole = session(&model);
        for output in [Output::AllLogits, Output::AllHidden] {
            let length = 1 + random.below(LONGEST);
            let tokens = tokens(&mut random, length);
            let expected = fresh(&mut whole, &tokens, output);
            assert!(expected.iter().all(|&x| f32::from_bits(x).is_finite()), "{}", seeded.label);
            // Passes of few tokens cut a chunk by themselves.
            for longest in [1, 2, 7, 64, 100] {
                let source = model.config().encoder.as_ref().map_or(0, |_| SOURCE.len());
                let few = options().with_max_tokens(longest.max(source));
                let mut narrow = Session::new(&model, &few).unwrap();
                assert!(fresh(&mut narrow, &tokens, output) == expected, "{}", seeded.label);
                let sequence = begin(&mut whole, &SOURCE).unwrap();
                let (mut start, mut bits) = (0, Vec::new());
                for end in cuts(&mut random, length, longest) {
                    let chunk = Chunk::new(sequence, &tokens[start..end]);
                    bits.extend(extend(&mut whole, &[chunk], end - start, output));
                    start = end;
                }
                whole.remove(sequence).unwrap();
                assert!(bits == expected, "{}, pieces of up to {longest}", seeded.label);
            }
        }
    }
}

#[test]
fn the_last_token_has_the_same_bits_alone_and_among_all() {
    for (seed, seeded) in decoders().enumerate() {
        let mut session = session(&seeded.model());
        let tokens = tokens(&mut Random(seed as u64), 90);
        let pairs =
            [(Output::AllLogits, Output::LastLogits), (Output::AllHidden, Output::LastHidden)];
        for (all, last) in pairs {
            let expected = fresh(&mut session, &tokens, all);
            let row = width(&session, all);
            let last = fresh(&mut session, &tokens, last);
            assert!(last == expected[expected.len() - row..], "{}", seeded.label);
        }
    }
}

#[test]
fn prompts_and_single_tokens_in_one_call_have_the_bits_they_have_alone() {
    for (seed, seeded) in decoders().enumerate() {
        let (model, mut random) = (seeded.model(), Random(100 + seed as u64));
        let (mut alone, mut together) = (session(&model), session(&model));
        let lengths = [70, 1, 13, 64, 1, 33, 2].map(|most| 1 + random.below(most));
        let all = lengths.map(|length| tokens(&mut random, length));
        let sequences = [(); 7].map(|()| begin(&mut together, &SOURCE).unwrap());
        // Some have read a part before.
        let before = lengths.map(|length| random.below(length));
        for i in (0..7).filter(|&i| before[i] > 0) {
            let chunk = Chunk::new(sequences[i], &all[i][..before[i]]);
            extend(&mut together, &[chunk], 0, Output::None);
        }
        let chunks: [_; 7] =
            std::array::from_fn(|i| Chunk::new(sequences[i], &all[i][before[i]..]));
        let bits = extend(&mut together, &chunks, 7, Output::LastLogits);
        for (bits, tokens) in bits.chunks(V).zip(&all) {
            assert!(bits == fresh(&mut alone, tokens, Output::LastLogits), "{}", seeded.label);
        }
    }
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    for (seed, seeded) in decoders().enumerate() {
        let (model, mut random) = (seeded.model(), Random(seed as u64));
        let all = [(); 8].map(|()| tokens(&mut random, LONGEST - 1));
        let mut results = (1..=4).map(|threads| {
            let options = options().with_threads(threads).with_max_tokens(8 * LONGEST);
            let mut session = Session::new(&model, &options.with_cache_tokens(24 * 64)).unwrap();
            let sequences = [(); 8].map(|()| begin(&mut session, &SOURCE).unwrap());
            let chunks: [_; 8] = std::array::from_fn(|i| Chunk::new(sequences[i], &all[i]));
            let mut bits = extend(&mut session, &chunks, 8 * (LONGEST - 1), Output::AllLogits);
            let next = sequences.map(|sequence| Chunk::new(sequence, &[5]));
            bits.extend(extend(&mut session, &next, 8, Output::LastLogits));
            bits
        });
        let one = results.next().unwrap();
        assert!(results.all(|bits| bits == one), "{}", seeded.label);
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for (seed, seeded) in decoders().enumerate() {
        let mut random = Random(seed as u64);
        let tokens = tokens(&mut random, 100);
        let mut results = Cpu::all().map(|cpu| {
            let model = seeded.model_with(&LoadOptions::default().with_isa(cpu.isa()));
            assert_eq!(model.cpu().isa(), cpu.isa());
            let mut session = session(&model);
            let sequence = begin(&mut session, &SOURCE).unwrap();
            let [prompt, rest] = [&tokens[..77], &tokens[77..]];
            let prompt = Chunk::new(sequence, prompt);
            let mut bits = extend(&mut session, &[prompt], 77, Output::AllLogits);
            for token in rest.chunks(1) {
                let token = Chunk::new(sequence, token);
                bits.extend(extend(&mut session, &[token], 1, Output::LastLogits));
            }
            bits
        });
        let first = results.next().unwrap();
        assert!(results.all(|bits| bits == first), "{}", seeded.label);
    }
}

#[test]
fn sessions_of_several_threads_on_one_model_give_the_bits_of_one() {
    for (seed, seeded) in decoders().step_by(5).enumerate() {
        let model = seeded.model();
        let tokens = tokens(&mut Random(seed as u64), 120);
        let expected = fresh(&mut session(&model), &tokens, Output::AllLogits);
        std::thread::scope(|scope| {
            for threads in [1, 1, 2, 3] {
                let (model, tokens, expected) = (&model, &tokens, &expected);
                scope.spawn(move || {
                    let options = options().with_threads(threads);
                    let mut session = Session::new(model, &options).unwrap();
                    for _ in 0..5 {
                        assert!(fresh(&mut session, tokens, Output::AllLogits) == *expected);
                    }
                });
            }
        });
    }
}

#[test]
fn a_base_that_grows_with_the_length_is_the_sessions() {
    let mut seeded = Seeded::decoder(0);
    let stack = seeded.config.decoder.as_mut().unwrap();
    let mut rotary = Rotary::new(100.0, stack.d_k.next_multiple_of(2), 50);
    rotary.scaling = RotaryScaling::Dynamic { factor: 2.0 };
    stack.relative = RelativePositions::Rotary(rotary);
    let model = Seeded::new("dynamic", seeded.config, 0).model();
    let make = |options: SessionOptions| Session::new(&model, &options).unwrap();
    // As long as the training's texts, unless more is asked for: here up to twice as many.
    assert_eq!(make(SessionOptions::default()).max_length(), 50);
    let mut long = make(options());
    assert_eq!(long.max_length(), 100);
    let tokens = tokens(&mut Random(3), 100);
    let expected = fresh(&mut long, &tokens, Output::AllLogits);
    let mut narrow = make(options().with_max_tokens(7));
    assert!(fresh(&mut narrow, &tokens, Output::AllLogits) == expected);
    // The angles are those of the session, also for its short texts.
    assert!(fresh(&mut long, &tokens[..40], Output::AllLogits) == expected[..40 * V]);
    let mut short = make(options().with_max_length(50));
    assert!(fresh(&mut short, &tokens[..40], Output::AllLogits) != expected[..40 * V]);
}

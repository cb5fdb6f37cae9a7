//! Attention against its definition, and its bits against themselves.

mod support;

use headrow_kernels::attention::Blocking;
use headrow_kernels::rows::math;
use headrow_kernels::{
    AttentionExtent, AttentionShape, Cpu, Isa, MatMut, Par, PerHead, Scratch, Segment, Team,
    attention, attention_scratch,
};
use support::attention::{
    BIAS, Case, HEADS, KEYS, NO_HOLES, PER_HEAD, RELATIVE, VISIBLE, WIDTHS, all_masks, banded,
    mixed, shape, small_shapes,
};
use support::{Guarded, Random, every, hash, report, unless_emulated};

#[test]
fn small_shapes_with_every_mask_are_within_the_stated_bound() {
    for cpu in Cpu::all() {
        small_shapes(&mut Random::new(1), |case, _, what| case.check(cpu, what));
    }
    report("attention, small shapes");
}

#[test]
fn every_pair_of_widths_and_every_head_count_is_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(2);
        for d_k in WIDTHS.into_iter().chain([0]).step_by(every(3)) {
            for d_v in WIDTHS {
                for (heads, kv_heads) in HEADS {
                    let shape = shape(heads, kv_heads, d_k, d_v);
                    let lengths = [(7, 37, Some(30)), (0, 3, None), (1, 18, None), (5, 0, None)];
                    let masks = rng.below(32);
                    Case::new(shape, &lengths, masks, &mut rng).check(cpu, &format!("{shape:?}"));
                }
            }
        }
    }
    report("attention, all widths");
}

#[test]
fn longer_sequences_are_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(3);
        for (lengths, masks) in [
            ([(130, 130, None), (3, 700, Some(697))], 0),
            ([(200, 150, Some(-50)), (40, 1100, None)], 0),
            ([(90, 300, Some(210)), (1, 520, None)], KEYS | NO_HOLES),
            ([(50, 333, None), (100, 100, Some(0))], VISIBLE | BIAS | PER_HEAD),
        ] {
            let case = Case::new(shape(2, 1, 24, 40), &lengths, masks, &mut rng);
            case.check(cpu, &format!("{lengths:?} masks {masks}"));
        }
    }
    report("attention, longer sequences");
}

#[test]
fn instruction_sets_threads_and_block_sizes_do_not_show_in_the_bits() {
    let mut rng = Random::new(4);
    let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
    let mut teams: Vec<Team> = (2..=8).step_by(every(2)).map(Team::new).collect();
    for (turn, masks) in all_masks().enumerate() {
        let make = if turn % 2 == 0 { mixed } else { banded };
        let case = make(masks, &mut rng);
        let expected = case.run(scalar, Par::SERIAL).bits();
        for cpu in Cpu::all() {
            assert_eq!(case.run(cpu, Par::SERIAL).bits(), expected, "{cpu:?}");
            for team in &mut teams {
                team.open(|par| {
                    let bits = case.run(cpu, par).bits();
                    assert_eq!(bits, expected, "{cpu:?}, {} threads", par.threads());
                });
            }
            if cpu.isa() == Isa::Scalar && masks % 5 != 0 {
                continue;
            }
            let rows = [1, 2, 5, 7, 24, 84, usize::MAX].into_iter().skip(masks % 2);
            for rows in rows.step_by(2 * every(2)) {
                let blocks = [(1, 1, 0), (3, 10, 5), (64, 33, 1000), (usize::MAX, 7, 5)];
                for (keys, queries, pack_values) in blocks {
                    let copy_queries = keys.saturating_mul(20);
                    let spread = false;
                    let blocking =
                        Blocking { rows, keys, queries, pack_values, copy_queries, spread };
                    let bits = case.run_blocked(cpu, Par::SERIAL, &blocking);
                    assert_eq!(bits, expected, "{cpu:?}, {blocking:?}");
                    if rows == 5 || rows == 7 {
                        let bits = teams[2].open(|par| case.run_blocked(cpu, par, &blocking));
                        assert_eq!(bits, expected, "{cpu:?}, {blocking:?}, 4 threads");
                    }
                }
            }
        }
    }
}

#[test]
fn a_segment_alone_has_the_bits_it_has_in_a_batch() {
    let mut rng = Random::new(6);
    for masks in all_masks() {
        let batch = mixed(masks, &mut rng);
        for cpu in Cpu::all() {
            let all = batch.run(cpu, Par::SERIAL);
            for segment in &batch.segments {
                // The same views, one segment: the other rows of the result stay as they are.
                let alone = Case { segments: vec![segment.clone()], ..batch.copy() };
                let out = alone.run(cpu, Par::SERIAL);
                for row in 0..out.view().rows() {
                    let bits = |m: &Guarded| -> Vec<u32> {
                        m.view().row(row).iter().map(|x| x.to_bits()).collect()
                    };
                    if segment.queries.contains(&row) {
                        assert_eq!(bits(&out), bits(&all), "row {row}");
                    } else {
                        assert!(out.view().row(row).iter().all(|x| x.is_nan()), "row {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_prefill_has_the_bits_of_its_chunks_and_of_token_by_token() {
    let mut rng = Random::new(7);
    for (n, past) in [(40, 0), (1, 0), (75, 22), (131, 1)].into_iter().step_by(every(2)) {
        for (heads, kv_heads) in [(2, 2), (4, 1)] {
            let s = n + past;
            let whole = Case::new(
                shape(heads, kv_heads, 20, 16),
                &[(n, s, Some(past as isize))],
                rng.below(2) * KEYS,
                &mut rng,
            );
            for cpu in Cpu::all() {
                let expected = whole.run(cpu, Par::SERIAL).bits();
                for chunk in [1, 7, 16, 33] {
                    // Each chunk sees the cache as long as it is by then.
                    let mut bits = vec![];
                    for first in (0..n).step_by(chunk) {
                        let queries = first..n.min(first + chunk);
                        let segment = Segment::causal(queries.clone(), 0..past + queries.end);
                        let part = Case { segments: vec![segment], ..whole.copy() };
                        let out = part.run(cpu, Par::SERIAL);
                        for row in queries {
                            bits.extend(out.view().row(row).iter().map(|x| x.to_bits()));
                        }
                    }
                    assert_eq!(bits, expected, "{cpu:?}, {n} after {past} in chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn scratch_for_the_longest_serves_every_shorter_call() {
    let mut rng = Random::new(10);
    for cpu in Cpu::all() {
        for threads in [1, 3] {
            let shape = shape(4, 2, 8, 24);
            let keys = unless_emulated(3000, 700);
            let most = AttentionExtent { queries: 150, keys };
            let need = attention_scratch(cpu, threads, &shape, most);
            for _ in 0..300 {
                let extent = AttentionExtent { queries: rng.below(151), keys: rng.below(keys + 1) };
                assert!(attention_scratch(cpu, threads, &shape, extent) <= need, "{extent:?}");
            }
            let mut team = Team::new(threads);
            let mut scratch = Scratch::new(need);
            for (t, s) in [(150, 150), (1, keys), (150, 700), (20, keys / 2), (1, 1)] {
                let case = Case::new(shape, &[(t, s, None)], KEYS, &mut rng);
                let mut out = case.out();
                team.open(|par| {
                    attention(
                        cpu,
                        par,
                        &shape,
                        case.q.view(),
                        case.k.view(),
                        case.v.view(),
                        &case.segments,
                        &case.mask(),
                        out.view_mut(),
                        &mut scratch.stack(),
                    );
                });
                assert!(out.values().iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// The bits by their definition: scores as one chain each, scaled, capped and biased with a rounding each, the
/// sum in 32 lanes, values as one chain, one division.
fn by_definition(case: &Case) -> Vec<u32> {
    let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
    let AttentionShape { heads, kv_heads, d_k, d_v, scale, softcap, .. } = case.shape;
    let capped = |x: f32| {
        let Some(cap) = softcap else { return x };
        let mut y = [x / cap];
        math::tanh(scalar, Par::SERIAL, MatMut::new(&mut y, 1, 1));
        y[0] * cap
    };
    let mut out = case.out();
    for segment in &case.segments {
        for row in segment.queries.clone() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let query = &case.q.view().row(row)[head * d_k..][..d_k];
                let visible: Vec<usize> =
                    segment.keys.clone().filter(|&j| case.sees(head, row, j)).collect();
                let mut weights: Vec<f32> = visible
                    .iter()
                    .map(|&j| {
                        let key = &case.k.view().row(j)[kv_head * d_k..][..d_k];
                        let chain =
                            query.iter().zip(key).fold(0.0, |c: f32, (q, k)| q.mul_add(*k, c));
                        let bias = case.mask().bias.map(|bias| match bias {
                            PerHead::Shared(bias) => bias.row(row)[j - segment.keys.start],
                            PerHead::Each(bias) => {
                                bias.row(head * case.q.view().rows() + row)[j - segment.keys.start]
                            }
                        });
                        let j = (j - segment.keys.start) as isize;
                        let i = (row - segment.queries.start) as isize;
                        let relative = case.relative(head, j - i - segment.reach.offset);
                        let added = match (relative, bias) {
                            (Some(relative), Some(bias)) => relative + bias,
                            (relative, bias) => relative.or(bias).unwrap_or(-0.0),
                        };
                        capped(chain * scale) + added
                    })
                    .collect();
                let max = weights.iter().fold(f32::NEG_INFINITY, |max, &s| max.max(s));
                weights.iter_mut().for_each(|s| *s -= max);
                let count = weights.len();
                math::exp(scalar, Par::SERIAL, MatMut::new(&mut weights, 1, count));
                let mut lanes = [0.0f32; 32];
                for (&j, p) in visible.iter().zip(&weights) {
                    lanes[(j - segment.keys.start) % 32] += p;
                }
                for half in [16, 8, 4, 2, 1] {
                    (0..half).for_each(|i| lanes[i] += lanes[i + half]);
                }
                for c in 0..d_v {
                    let values = visible.iter().map(|&j| case.v.view().row(j)[kv_head * d_v + c]);
                    let chain =
                        weights.iter().zip(values).fold(0.0, |o: f32, (p, v)| p.mul_add(v, o));
                    let result = if count == 0 { 0.0 } else { chain / lanes[0] };
                    out.set(row, head * d_v + c, result);
                }
            }
        }
    }
    out.bits()
}

#[test]
fn the_bits_are_those_of_the_definition() {
    let mut rng = Random::new(11);
    for masks in all_masks() {
        for case in [mixed(masks, &mut rng), banded(masks, &mut rng)] {
            let expected = by_definition(&case);
            for cpu in Cpu::all() {
                assert_eq!(case.run(cpu, Par::SERIAL).bits(), expected, "{cpu:?}, masks {masks}");
            }
        }
    }
}

/// Every instruction set gives these, whichever machine ran it: those that this one lacks run elsewhere
/// or in an emulator.
#[test]
fn recorded_hashes_hold_on_every_instruction_set() {
    const RECORDED: [(usize, u64); 4] = [
        (0, 0x5150_e9d5_cbb7_6c9b),
        (KEYS, 0xbae2_27d3_ee10_a1ae),
        (VISIBLE | BIAS | NO_HOLES, 0x5a4e_0484_cdc6_d12e),
        (KEYS | VISIBLE | BIAS | PER_HEAD, 0x2988_f719_0864_8b50),
    ];
    const RECORDED_BANDS: [(usize, u64); 3] = [
        (0, 0x3dcd_4314_f764_a377),
        (RELATIVE, 0x64df_7361_d97f_da18),
        (BIAS | RELATIVE | VISIBLE, 0xb7bb_1e84_bed6_69e7),
    ];
    type Make = fn(usize, &mut Random) -> Case;
    let mut wrong = Vec::new();
    for cpu in Cpu::all() {
        for (name, make, records) in
            [("mixed", mixed as Make, &RECORDED[..]), ("banded", banded, &RECORDED_BANDS)]
        {
            for &(masks, recorded) in records {
                let case = make(masks, &mut Random::new(100 + masks as u64));
                let found = hash(&case.run(cpu, Par::SERIAL).values());
                if found != recorded {
                    wrong.push(format!("{}, {name}, masks {masks}: {found:#018x}", cpu.isa()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "other bits than recorded:\n{}", wrong.join("\n"));
}

//! Attention maps: the weights beside the result.

mod support;

use headrow_kernels::{
    AttentionExtent, AttentionOutput, Cpu, Maps, Par, Scratch, Team, attention, attention_scratch,
    reference,
};
use support::attention::{Case, VISIBLE, all_masks, banded, mixed, shape};
use support::{Guarded, Random};

/// The maps of some heads, and the bits of the result beside them.
fn with_maps(case: &Case, cpu: Cpu, par: Par<'_>, heads: &[usize]) -> (Guarded, Vec<u32>) {
    let (rows, cols) = (heads.len() * case.q.view().rows(), case.longest);
    let mut maps = Guarded::filled(rows, cols, cols + 2, 1, f32::NAN);
    let mut out = case.out();
    let extent = AttentionExtent::of(&case.segments);
    let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), &case.shape, extent));
    let (q, k, v) = (case.q.view(), case.k.view(), case.v.view());
    let to = AttentionOutput::from(out.view_mut());
    let to = to.with_maps(Maps { heads, out: maps.view_mut() });
    let (segments, mask, stack) = (&case.segments, case.mask(), &mut scratch.stack());
    attention(cpu, par, &case.shape, q, k, v, segments, &mask, to, stack);
    (maps, out.bits())
}

#[test]
fn maps_are_the_weights_and_cost_no_bit_of_the_result() {
    let mut rng = Random::new(13);
    let mut team = Team::new(3);
    for masks in all_masks() {
        for case in [mixed(masks, &mut rng), banded(masks, &mut rng)] {
            let (t, all) = (case.q.view().rows(), case.shape.heads);
            let expected = reference::attention::attention(
                &case.shape,
                case.q.view(),
                case.k.view(),
                case.v.view(),
                &case.segments,
                &case.mask(),
            );
            let longest = expected.weights.len() / (all * t);
            let heads = [1, all - 1];
            for cpu in Cpu::all() {
                let bits = case.run(cpu, Par::SERIAL).bits();
                let (maps, same) = with_maps(&case, cpu, Par::SERIAL, &heads);
                assert_eq!(same, bits, "{cpu:?}, masks {masks}");
                maps.assert_intact("maps");
                let (again, same) = team.open(|par| with_maps(&case, cpu, par, &heads));
                assert_eq!((again.bits(), same), (maps.bits(), bits), "{cpu:?}, masks {masks}");
                for (row, head) in (0..2 * t).map(|row| (row, heads[row / t])) {
                    let bound = expected.weights_bound[head * t + row % t];
                    let p = &expected.weights[(head * t + row % t) * longest..][..longest];
                    for (j, &x) in maps.view().row(row).iter().enumerate() {
                        let p = p.get(j).copied().unwrap_or(0.0);
                        let error = (f64::from(x) - p).abs();
                        let most =
                            if p == 0.0 { 0.0 } else { bound * p + f64::from(f32::MIN_POSITIVE) };
                        assert!(
                            error <= most,
                            "{cpu:?}, head {head}, row {row}, key {j}: {x}, {p}"
                        );
                        assert!(x.is_sign_positive());
                    }
                }
            }
        }
    }
}

#[test]
fn maps_of_one_query_are_the_same_when_it_is_spread() {
    let mut rng = Random::new(14);
    let mut team = Team::new(4);
    let case = Case::new(shape(2, 1, 16, 8), &[(1, 3000, None)], VISIBLE, &mut rng);
    for cpu in Cpu::all() {
        let (maps, bits) = with_maps(&case, cpu, Par::SERIAL, &[0, 1]);
        let (again, same) = team.open(|par| with_maps(&case, cpu, par, &[0, 1]));
        assert_eq!((again.bits(), same), (maps.bits(), bits), "{cpu:?}");
    }
}

#[test]
#[should_panic(expected = "maps of 8×6 for 2 heads of 4 queries and up to 7 keys")]
fn maps_of_another_shape_are_refused() {
    let mut case = Case::new(shape(3, 1, 1, 1), &[(4, 7, None)], 0, &mut Random::new(0));
    case.longest = 6;
    with_maps(&case, Cpu::detect(), Par::SERIAL, &[0, 2]);
}

//! The bits of every operation, recorded: each instruction set and each number of threads must give these.
//!
//! On a machine without AVX-512 or NEON the same test runs in an emulator, so the records compare all
//! instruction sets with each other, not only those that one machine has.

mod backward;
mod forward;
mod inputs;
#[path = "../support/mod.rs"]
mod support;

use backward::*;
use forward::*;
use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, Cpu, LayerNorm, Lookup, MatMut, Par, RmsNorm, Team, Visible, activate,
    add_layer_norm, add_rms_norm, embed, gate, layer_norm, log_softmax, masked_softmax, rms_norm,
    rope, rope_backward, softmax,
};
use inputs::{Strided, matrix};
use support::{Random, emulated, hash};

/// An operation over fixed inputs; appends its results.
type Operation = fn(Cpu, Par<'_>, &mut Vec<f32>);

const ALL: &[(&str, Operation, u64)] = &[
    ("matrix products", products, 0xe697_84e9_1b09_6721),
    ("epilogues", epilogues, 0x4309_a370_36c1_fe02),
    ("elementary functions", elementary, 0x28b2_9c13_4290_a40b),
    ("activations", activations, 0x1393_c5e9_5bf6_2fcf),
    ("softmax", softmaxes, 0xf7c6_61ef_c56e_400f),
    ("log softmax", log_softmaxes, 0x34ea_92e3_9b08_07bf),
    ("masked softmax", masked_softmaxes, 0xe682_fe96_5bbf_bc37),
    ("LayerNorm", layer_norms, 0xd112_4d48_45a6_4d6f),
    ("RMSNorm", rms_norms, 0x6227_2758_c8ee_8f28),
    ("attention", attentions, 0xbc4c_7b5f_3262_b913),
    ("attention gradients", attentions_backward, 0x6ee2_1d1f_6b3e_d40d),
    ("embedding", embeddings, 0xfb2b_8990_1c7b_09d4),
    ("embedding gradients", embeddings_backward, 0x0d9c_7ad5_fa89_05ff),
    (
        "RoPE gradients",
        |cpu, par, out| rotations(rope_backward, cpu, par, out),
        0xf4b4_4efb_9bb8_7d63,
    ),
    ("gates", gates, 0x86a6_1630_a2b7_aefa),
    ("activation and gate gradients", slopes, 0x5e71_ef64_c70e_41ff),
    ("softmax gradients", softmaxes_backward, 0x2198_c823_1a3d_8520),
    ("norm gradients", norms_backward, 0x37d7_60a1_c8d7_7f1d),
    ("cross entropy and its gradients", losses, 0x20a1_7c0a_57b3_3d47),
    ("dropout", dropouts, 0x94c0_fdd3_3b6a_6746),
    ("optimisers, sums of columns and of squares", optimisers, 0x2028_8c6d_4982_5c7e),
    ("RoPE", |cpu, par, out| rotations(rope, cpu, par, out), 0x5020_545e_e911_c487),
];

#[test]
fn the_recorded_bits_appear_on_every_instruction_set_with_any_number_of_threads() {
    let mut wrong = Vec::new();
    for cpu in Cpu::all() {
        for threads in if emulated() { 1..=2 } else { 1..=8 } {
            for &(name, operation, recorded) in ALL {
                let mut results = Vec::new();
                match threads {
                    1 => operation(cpu, Par::SERIAL, &mut results),
                    _ => Team::new(threads).open(|par| operation(cpu, par, &mut results)),
                }
                let found = hash(&results);
                if found != recorded {
                    wrong.push(format!("{name}, {}, {threads} threads: {found:#018x}", cpu.isa()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "other bits than recorded:\n{}", wrong.join("\n"));
}

/// A row operation in place.
type RowOperation<'a> = (&'a str, &'a dyn Fn(Cpu, Par<'_>, MatMut<'_>));

#[test]
fn many_rows_are_shared_out_and_each_is_as_alone() {
    // Enough elements for every worker of the largest team.
    let (rows, cols) = if emulated() { (200, 97) } else { (700, 97) };
    let mut rng = Random::new(23);
    let x = Strided::random(rows, cols, &mut rng);
    let (gamma, beta) = (rng.vec(cols), rng.vec(cols));
    let layer = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-5 };
    let rms = RmsNorm { gamma: &gamma, epsilon: 1e-5 };
    let copy = |x: &MatMut<'_>| {
        let rows = (0..x.rows()).flat_map(|i| x.as_ref().row(i).to_vec());
        rows.collect::<Vec<f32>>()
    };
    let operations: [RowOperation<'_>; 15] = [
        ("exp", &|cpu, par, x| math::exp(cpu, par, x)),
        ("ln", &|cpu, par, x| math::ln(cpu, par, x)),
        ("erf", &|cpu, par, x| math::erf(cpu, par, x)),
        ("tanh", &|cpu, par, x| math::tanh(cpu, par, x)),
        ("sigmoid", &|cpu, par, x| math::sigmoid(cpu, par, x)),
        ("GELU", &|cpu, par, x| activate(cpu, par, Activation::GeluErf, x)),
        ("gate", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            gate(cpu, par, Activation::Silu, input, input, x);
        }),
        ("softmax", &|cpu, par, x| softmax(cpu, par, x)),
        ("log softmax", &|cpu, par, x| log_softmax(cpu, par, x)),
        ("masked softmax", &|cpu, par, x| {
            masked_softmax(cpu, par, 0.7, Visible::Range(3..50), x);
        }),
        ("LayerNorm", &|cpu, par, x| {
            let input = copy(&x);
            layer_norm(cpu, par, &layer, matrix(&input, x.cols()), x);
        }),
        ("add LayerNorm", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            let mut sum = vec![0.0; input.rows() * input.cols()];
            let sum = MatMut::new(&mut sum, input.rows(), input.cols());
            add_layer_norm(cpu, par, &layer, input, input, Some(sum), x);
        }),
        ("RMSNorm", &|cpu, par, x| {
            let input = copy(&x);
            rms_norm(cpu, par, &rms, matrix(&input, x.cols()), x);
        }),
        ("add RMSNorm", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            add_rms_norm(cpu, par, &rms, input, input, None, x);
        }),
        ("embedding", &|cpu, par, x| {
            let table = copy(&x);
            let ids: Vec<u32> = (0..x.rows() as u32).collect();
            embed(
                cpu,
                par,
                &[Lookup { table: matrix(&table, x.cols()), ids: &ids, scale: 0.3 }],
                x,
            );
        }),
    ];
    let bits = |x: &Strided| {
        let mut values = Vec::new();
        x.append_to(&mut values);
        // The payload of a NaN (here the logarithm of a negative number) is not promised.
        values
            .iter()
            .map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect::<Vec<u32>>()
    };
    for cpu in Cpu::all() {
        for (name, operation) in operations {
            let mut alone = Strided(x.0.clone(), rows, cols);
            for i in 0..rows {
                operation(cpu, Par::SERIAL, alone.view_mut().rows_range(i..i + 1));
            }
            let alone = bits(&alone);
            for threads in 1..=if emulated() { 2 } else { 8 } {
                let mut together = Strided(x.0.clone(), rows, cols);
                Team::new(threads).open(|par| operation(cpu, par, together.view_mut()));
                assert!(bits(&together) == alone, "{name}, {}, {threads} threads", cpu.isa());
            }
        }
    }
}

/// What an emulator, or a machine that is known, must detect.
#[test]
fn the_expected_instruction_set_is_detected() {
    let Ok(expected) = std::env::var("HEADROW_EXPECT_ISA") else { return };
    assert_eq!(Cpu::detect().isa().name(), expected);
}

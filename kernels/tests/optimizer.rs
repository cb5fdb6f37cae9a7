//! Optimisers against their definitions in f64, their edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::training as reference;
use headrow_kernels::{Adagrad, Adam, Cpu, Look, Momentum, Par, Team, adagrad, adam, momentum};
use support::{Random, every, hash, unless_emulated};

fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 1000]).step_by(every(5))
}

/// |found − exact| ≤ `ulps`·2⁻²³·scale.
#[track_caller]
fn assert_near(what: &str, found: f32, exact: f64, scale: f64, ulps: f64) {
    let error = (f64::from(found) - exact).abs();
    let bound = ulps * 2f64.powi(-23) * scale;
    assert!(error <= bound, "{what}: {found:e} for {exact:e}, {error:e} > {bound:e}");
}

fn adams() -> [Adam; 3] {
    let mut decayed = Adam::default();
    (decayed.beta2, decayed.epsilon, decayed.weight_decay) = (0.999, 1e-8, 0.01);
    let mut coarse = Adam::default();
    coarse.epsilon = 0.01;
    [Adam::default(), decayed, coarse]
}

#[test]
fn adam_follows_its_definition_over_many_steps() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for n in lengths() {
            for how in adams() {
                let rate = 1e-2;
                let (mut m, mut v, mut p) = (vec![0.0; n], vec![0.0; n], rng.vec(n));
                let mut exact: Vec<[f64; 3]> = p.iter().map(|&p| [0.0, 0.0, p.into()]).collect();
                for step in 1..=20 {
                    let g = rng.vec(n);
                    adam(cpu, Par::SERIAL, &how, step, rate, 0.5, &g, &mut m, &mut v, &mut p);
                    for (state, &g) in exact.iter_mut().zip(&g) {
                        *state =
                            reference::adam(&how, step, rate.into(), 0.5 * f64::from(g), *state);
                    }
                }
                for (at, &[exact_m, exact_v, exact_p]) in exact.iter().enumerate() {
                    let what = format!("{} {how:?} [{at}] of {n}", cpu.isa());
                    assert_near(&what, m[at], exact_m, 0.5, 4.0);
                    assert_near(&what, v[at], exact_v, 0.25, 4.0);
                    // 20 roundings of p, and updates of at most about 5 rates that err by a few units each.
                    assert_near(&what, p[at], exact_p, 1.0 + 20.0 * 5.0 * 1e-2, 16.0);
                }
            }
        }
    }
}

#[test]
fn the_first_step_of_adam_goes_a_rate_against_the_sign() {
    for cpu in Cpu::all() {
        for g in [1e-6f32, 0.3, -7.0, 1e12] {
            let how = Adam::default();
            let (mut m, mut v, mut p) = ([0.0], [0.0], [0.0]);
            adam(cpu, Par::SERIAL, &how, 1, 0.125, 1.0, &[g], &mut m, &mut v, &mut p);
            let exact = -0.125 * f64::from(g) / (f64::from(g).abs() + 1e-9);
            assert_near("first step", p[0], exact, exact.abs(), 4.0);
        }
    }
}

#[test]
fn momentum_and_adagrad_follow_their_definitions() {
    let mut rng = Random::new(2);
    for cpu in Cpu::all() {
        for n in lengths() {
            for look in [Look::Back, Look::Ahead] {
                let mut how = Momentum::default();
                (how.gain, how.weight_decay, how.look) = (0.3, 0.01, look);
                let (mut v, mut p) = (vec![0.0; n], rng.vec(n));
                let mut exact: Vec<[f64; 2]> = p.iter().map(|&p| [0.0, p.into()]).collect();
                for step in 1..=9 {
                    let g = rng.vec(n);
                    momentum(cpu, Par::SERIAL, &how, step, 0.01, 2.0, &g, &mut v, &mut p);
                    for (state, &g) in exact.iter_mut().zip(&g) {
                        let (g, rate) = (2.0 * f64::from(g), f64::from(0.01f32));
                        *state = reference::momentum(&how, step, rate, g, *state);
                    }
                }
                for (at, &[exact_v, exact_p]) in exact.iter().enumerate() {
                    let what = format!("{} {look:?} [{at}] of {n}", cpu.isa());
                    assert_near(&what, v[at], exact_v, 8.0, 4.0);
                    assert_near(&what, p[at], exact_p, 1.0, 16.0);
                }
            }
            let mut how = Adagrad::default();
            how.weight_decay = 0.01;
            let (mut h, mut p) = (vec![0.0; n], rng.vec(n));
            let mut exact: Vec<[f64; 2]> = p.iter().map(|&p| [0.0, p.into()]).collect();
            for _ in 0..9 {
                let g = rng.vec(n);
                adagrad(cpu, Par::SERIAL, &how, 0.1, 2.0, &g, &mut h, &mut p);
                for (state, &g) in exact.iter_mut().zip(&g) {
                    let rate = f64::from(0.1f32);
                    *state = reference::adagrad(&how, rate, 2.0 * f64::from(g), *state);
                }
            }
            for (at, &[exact_h, exact_p]) in exact.iter().enumerate() {
                assert_near("adagrad h", h[at], exact_h, exact_h, 8.0);
                assert_near("adagrad p", p[at], exact_p, 1.0, 16.0);
            }
        }
    }
}

/// All three over `n` elements; hashes of what they leave.
fn run(cpu: Cpu, par: Par<'_>, n: usize) -> [u64; 3] {
    let mut rng = Random::new(3);
    let [g, a, b, p] = [0; 4].map(|_| rng.vec(n));
    let squares: Vec<f32> = b.iter().map(|x| x * x).collect();
    let mut how = Momentum::default();
    how.look = Look::Ahead;
    let (mut m, mut v, mut q) = (a.clone(), squares.clone(), p.clone());
    adam(cpu, par, &adams()[1], 7, 0.1, 0.3, &g, &mut m, &mut v, &mut q);
    let adam = hash(&[m, v, q].concat());
    let (mut v, mut q) = (a, p.clone());
    momentum(cpu, par, &how, 2, 0.1, 0.3, &g, &mut v, &mut q);
    let momentum = hash(&[v, q].concat());
    let (mut h, mut q) = (squares, p);
    adagrad(cpu, par, &Adagrad::default(), 0.1, 0.3, &g, &mut h, &mut q);
    [adam, momentum, hash(&[h, q].concat())]
}

#[test]
fn the_same_bits_on_every_instruction_set_and_thread_count() {
    for n in [0, 1, 77, unless_emulated(50_000, 20_000)] {
        let expected = run(Cpu::detect(), Par::SERIAL, n);
        for cpu in Cpu::all() {
            for threads in (1..=8).step_by(every(3)) {
                let found = Team::new(threads).open(|par| run(cpu, par, n));
                assert_eq!(found, expected, "{} {threads} threads", cpu.isa());
            }
        }
    }
}

#[test]
fn a_nan_gradient_spoils_its_own_parameter_and_no_other() {
    for cpu in Cpu::all() {
        for n in [1, 33, 70] {
            for at in 0..n {
                let mut g = vec![0.5; n];
                g[at] = f32::NAN;
                let [mut m, mut v, mut p] = [0.0, 0.0, 1.0].map(|x| vec![x; n]);
                let how = Adam::default();
                adam(cpu, Par::SERIAL, &how, 1, 0.1, 1.0, &g, &mut m, &mut v, &mut p);
                for values in [m, v, p] {
                    assert!((0..n).all(|j| values[j].is_nan() == (j == at)), "{at} of {n}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "3 gradients for moments and parameters of [3, 2, 3]")]
fn lengths_that_differ_are_refused() {
    let how = Adam::default();
    let [mut m, mut p] = [[0.0; 3]; 2];
    adam(Cpu::detect(), Par::SERIAL, &how, 1, 0.1, 1.0, &[0.0; 3], &mut m, &mut [0.0; 2], &mut p);
}

#[test]
#[should_panic(expected = "count from 1")]
fn a_step_0_is_refused() {
    let [mut m, mut v, mut p] = [[0.0; 3]; 3];
    let how = Adam::default();
    adam(Cpu::detect(), Par::SERIAL, &how, 0, 0.1, 1.0, &[0.0; 3], &mut m, &mut v, &mut p);
}

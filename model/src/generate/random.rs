//! Random numbers without a state: a function of seed and step.
//!
//! Philox 4×32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the
//! seed is the key, the step the counter. So a request draws the same numbers whatever its neighbours do,
//! and a step can be drawn again.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The four words for a counter under a key.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let product = |i: usize| u64::from(counter[2 * i]) * u64::from(MULTIPLIERS[i]);
        let (low, high) = (product(0), product(1));
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// A number below `n` from 64 random bits: ⌊bits·n / 2⁶⁴⌋, which favours none by more than n in 2⁶⁴.
#[cfg(feature = "train")]
pub(crate) fn below(words: [u32; 2], n: usize) -> usize {
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    ((u128::from(bits) * n as u128) >> 64) as usize
}

/// A number in [0, 1) with 53 random bits.
pub(crate) fn uniform(seed: u64, step: u64) -> f64 {
    uniform_in(0, seed, step)
}

/// [`uniform`] of one of many streams under the same seed.
pub(crate) fn uniform_in(stream: u64, seed: u64, step: u64) -> f64 {
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let ([s0, s1], [s2, s3]) = (words(step), words(stream));
    let [a, b, ..] = philox([s0, s1, s2, s3], words(seed));
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their code.
    #[test]
    fn philox_gives_the_published_words() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(philox(counter, key), words);
        }
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval_evenly() {
        let n = 20_000;
        let mut bins = [0u32; 10];
        for step in 0..n {
            let u = uniform(7, step);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 10.0) as usize] += 1;
        }
        // χ² with 9 degrees of freedom: above 27.9 once in a thousand seeds.
        let expected = n as f64 / 10.0;
        let chi: f64 = bins.iter().map(|&b| (f64::from(b) - expected).powi(2) / expected).sum();
        assert!(chi < 27.9, "{bins:?}");
        assert_ne!(uniform(7, 0), uniform(8, 0));
        assert_ne!(uniform(7, 0), uniform(7 << 32, 0));
        assert_ne!(uniform(7, 1), uniform(7, 1 << 32));
    }
}

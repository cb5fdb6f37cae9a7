//! Rotary positions, T5's buckets and ALiBi against values recorded from PyTorch and transformers, and what configs may say.

use headrow::position::{
    BucketRange, RelativeTable, Rotary, RotaryScaling, SinusoidLayout, alibi_slopes, bucket,
    check_buckets, sinusoids,
};
use headrow::{Cpu, Error, Mat};
use headrow_kernels::{
    AttentionExtent, AttentionShape, Mask, MatMut, Par, Scratch, Segment, attention,
    attention_scratch,
};

#[track_caller]
fn assert_close(found: &[f64], recorded: &[f64]) {
    assert_eq!(found.len(), recorded.len());
    for (i, (x, y)) in found.iter().zip(recorded).enumerate() {
        // The records are in f32 throughout.
        assert!((x - y).abs() <= 2e-6 * y.abs(), "[{i}] {x:e}, recorded {y:e}");
    }
}

/// A config of the old or the new form.
fn read(parameters: &str, d_k: usize, max_position: usize) -> Result<Rotary, Error> {
    let json = format!(r#"{{"max_position_embeddings": {max_position}, {parameters}}}"#);
    Rotary::from_json(json.as_bytes(), "config.json", d_k)
}

#[test]
fn without_scaling_the_frequencies_are_powers_of_the_base() {
    let forms = [
        "",
        r#""rope_theta": 10000.0"#,
        r#""rope_scaling": null, "rope_theta": 10000"#,
        r#""rope_scaling": {}, "rotary_emb_base": 10000"#,
        r#""rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_theta": 5.0"#,
        r#""rope_scaling": {"type": "default"}"#,
    ];
    for form in forms {
        let form = format!(r#"{form}{} "hidden_size": 1"#, if form.is_empty() { "" } else { "," });
        let rotary = read(&form, 8, 64).unwrap();
        assert_eq!(rotary, Rotary::new(10000.0, 8, 64));
        assert_close(&rotary.frequencies(64), &[1.0, 0.1, 0.01, 0.001]);
    }
}

#[test]
fn a_part_of_the_head_may_turn() {
    for form in [
        r#""partial_rotary_factor": 0.25"#,
        r#""rotary_pct": 0.25"#,
        r#""model_type": "gpt_neox""#,
        r#""rope_parameters": {"partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.5"#,
    ] {
        assert_eq!(read(form, 16, 64).unwrap(), Rotary::new(10000.0, 4, 64), "{form}");
    }
    assert_eq!(read(r#""rotary_pct": 1.0, "model_type": "gpt_neox""#, 16, 64).unwrap().width, 16);
}

#[test]
fn linear_and_dynamic_scaling_are_as_recorded() {
    let linear = r#""rope_parameters": {"rope_type": "linear", "factor": 2.5}"#;
    let linear = read(linear, 16, 64).unwrap();
    let recorded = [
        0.400000006,
        0.1264911,
        0.0399999991,
        0.0126491114,
        0.00399999972,
        0.00126491114,
        0.000400000019,
        0.000126491112,
    ];
    assert_close(&linear.frequencies(1000), &recorded);

    let dynamic = read(r#""rope_scaling": {"type": "dynamic", "factor": 4}"#, 16, 64).unwrap();
    assert_eq!(dynamic.scaling, RotaryScaling::Dynamic { factor: 4.0 });
    let short = Rotary::new(10000.0, 16, 64).frequencies(64);
    assert_eq!(dynamic.frequencies(64), short);
    assert_eq!(dynamic.frequencies(1), short);
    let recorded = [
        1.0,
        0.229258373,
        0.0525593981,
        0.0120496824,
        0.00276249065,
        0.000633324089,
        0.000145194848,
        3.3287135e-05,
    ];
    assert_close(&dynamic.frequencies(200), &recorded);
}

#[test]
fn llama3_scaling_is_as_recorded() {
    let config = |factor, original| {
        format!(
            r#""rope_parameters": {{"rope_type": "llama3", "factor": {factor}, "rope_theta": 500000.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": {original}}}"#
        )
    };
    let recorded = [
        0.576056361,
        0.0242403448,
        0.00470075384,
        0.000911583134,
        0.000176776681,
        3.42810235e-05,
        6.64786967e-06,
        1.28917316e-06,
    ];
    assert_close(&read(&config(8.0, 16), 16, 64).unwrap().frequencies(64), &recorded);
    // LLaMA 3.2.
    let recorded = [
        1.0,
        0.663601279,
        0.440366626,
        0.292227834,
        0.193922758,
        0.128687382,
        0.0853971019,
        0.0566696189,
        0.0376060307,
        0.0249554086,
        0.0165604409,
        0.0109895291,
        0.00729266508,
        0.00483942125,
        0.00321144611,
        0.00129054801,
        0.000429556705,
        9.70828623e-05,
        1.94616387e-05,
        1.29147675e-05,
        8.57025589e-06,
        5.68723226e-06,
        3.77405445e-06,
        2.50446715e-06,
        1.66196742e-06,
        1.10288363e-06,
        7.31874934e-07,
        4.85673127e-07,
        3.22293289e-07,
        2.1387423e-07,
        1.41927202e-07,
        9.41830649e-08,
    ];
    assert_close(&read(&config(32.0, 8192), 64, 131072).unwrap().frequencies(64), &recorded);
}

#[test]
fn yarn_scaling_is_as_recorded() {
    let attention_factor = |rotary: &Rotary| match rotary.scaling {
        RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
        _ => unreachable!("not YaRN"),
    };
    let recorded = [
        1.0,
        0.562341332,
        0.316227764,
        0.177827939,
        0.100000001,
        0.0502090417,
        0.02484647,
        0.0120668961,
        0.00571428565,
        0.0026108704,
        0.00112938497,
        0.000444569858,
        0.000250000012,
        0.000140585325,
        7.90569466e-05,
        4.44569851e-05,
    ];
    for form in [
        r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}"#,
        // The factor is that of the lengths, and the length may stand outside.
        r#""rope_parameters": {"rope_type": "yarn", "factor": null}, "original_max_position_embeddings": 2048"#,
    ] {
        let yarn = read(form, 32, 8192).unwrap();
        assert_close(&yarn.frequencies(8192), &recorded);
        assert_close(&[attention_factor(&yarn)], &[1.138629436111989]);
        // Sines and cosines are multiplied by it.
        let tables = yarn.tables(2).unwrap();
        assert_eq!(tables.rope().cos.row(0), [1.138629436111989f64 as f32; 16]);
        assert_eq!(tables.rope().sin.row(0), [0.0; 16]);
    }

    let form = r#""rope_parameters": {"rope_type": "yarn", "factor": 40.0, "beta_fast": 16, "beta_slow": 2,
        "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false}"#;
    let yarn = read(form, 32, 163840).unwrap();
    let recorded = [
        1.0,
        0.562341332,
        0.316227764,
        0.177827939,
        0.100000001,
        0.0562341288,
        0.0316227786,
        0.0150961196,
        0.00579010462,
        0.00173821871,
        0.000123952457,
        4.44569851e-05,
        2.49999994e-05,
        1.40585325e-05,
        7.90569447e-06,
        4.44569832e-06,
    ];
    assert_close(&yarn.frequencies(1), &recorded);
    assert_close(&[attention_factor(&yarn)], &[1.1557219901962608]);

    // A ramp of no width.
    let form = r#""rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1000000.0,
        "original_max_position_embeddings": 32, "attention_factor": 0.9}"#;
    let yarn = read(form, 8, 64).unwrap();
    assert_close(&yarn.frequencies(1), &[1.0, 0.0158113893, 0.000500000024, 1.58113871e-05]);
    assert_eq!(attention_factor(&yarn), 0.9);
}

#[test]
fn tables_hold_cosines_and_sines_of_position_times_frequency() {
    let rotary = Rotary::new(10000.0, 8, 3000);
    let tables = rotary.tables(3000).unwrap();
    let (rope, frequencies) = (tables.rope(), rotary.frequencies(3000));
    assert_eq!((tables.positions(), rope.cos.rows(), rope.cos.cols()), (3000, 3000, 4));
    for p in [0, 1, 63, 2999] {
        for (i, theta) in frequencies.iter().enumerate() {
            let angle = p as f64 * theta;
            assert!((f64::from(rope.cos.row(p)[i]) - angle.cos()).abs() < 6e-8);
            assert!((f64::from(rope.sin.row(p)[i]) - angle.sin()).abs() < 6e-8);
        }
    }
    assert!(matches!(rotary.tables(usize::MAX), Err(Error::OutOfMemory(_))));
}

#[test]
fn what_a_config_must_not_say_is_an_error_that_names_it() {
    let refused = |parameters: &str, words: &[&str]| {
        let error = read(parameters, 16, 64).unwrap_err().to_string();
        for word in ["config.json"].iter().chain(words) {
            assert!(error.contains(word), "{parameters}: {error}");
        }
    };
    let known = "default, linear, dynamic, yarn or llama3";
    refused(r#""rope_scaling": {"type": "su"}"#, &["rope_scaling.rope_type", "su", known]);
    refused(r#""rope_parameters": {"rope_type": "longrope"}"#, &["longrope", known]);
    refused(r#""rope_parameters": {"rope_type": 7}"#, &["rope_parameters.rope_type", "a word"]);
    refused(r#""rope_parameters": {"full_attention": {}}"#, &["rope_parameters", "full_attention"]);
    refused(r#""rope_parameters": {"mrope_section": [1]}"#, &["mrope_section"]);
    refused(r#""rope_parameters": []"#, &["rope_parameters", "an object"]);
    refused(r#""rope_scaling": {"type": "linear"}"#, &["rope_scaling.factor", "missing"]);
    refused(r#""rope_scaling": {"type": "linear", "factor": 0.5}"#, &["factor", "at least 1"]);
    refused(r#""rope_scaling": {"type": "linear", "factor": "2"}"#, &["factor", "a number"]);
    refused(r#""rope_theta": -1"#, &["rope_theta", "above 1"]);
    refused(r#""rope_theta": 1e999"#, &[]);
    refused(r#""rotary_pct": 1.5"#, &["partial_rotary_factor", "at most 1"]);
    refused(r#""rotary_pct": 0.19"#, &["partial_rotary_factor", "3 of the 16 features"]);
    refused(r#""rotary_pct": 0.01"#, &["0 of the 16 features"]);
    let two = r#""rope_scaling": {"type": "dynamic", "factor": 2}, "rotary_pct": 0.125"#;
    refused(two, &["more than one pair"]);
    let llama3 = r#""rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
        "high_freq_factor": 4, "original_max_position_embeddings": 16}"#;
    refused(llama3, &["high_freq_factor", "above 4"]);
    let yarn =
        r#""rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 2.5}"#;
    refused(yarn, &["original_max_position_embeddings", "whole number"]);
    let missing = Rotary::from_json(b"{}", "config.json", 8).unwrap_err().to_string();
    assert!(missing.contains("max_position_embeddings") && missing.contains("missing"));
    for damaged in [&b"{"[..], b"[1]", b"\xff"] {
        assert!(matches!(Rotary::from_json(damaged, "x", 8), Err(Error::File { .. })));
    }
    assert!(read(r#""rope_theta": 2, "hidden_size": 9"#, 0, 64).is_err(), "heads without features");
}

/// The first distance of every bucket, recorded from `T5Attention._relative_position_bucket`.
const BUCKETS: [(BucketRange, usize, usize, &[usize]); 12] = [
    (BucketRange::Both, 32, 128, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]),
    (
        BucketRange::Past,
        32,
        128,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31, 35, 40,
            46, 52, 59, 67, 77, 87, 99, 113,
        ],
    ),
    (BucketRange::Both, 8, 20, &[0, 1, 2, 7]),
    (BucketRange::Past, 8, 20, &[0, 1, 2, 3, 4, 6, 9, 14]),
    (
        BucketRange::Both,
        64,
        512,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 25, 31, 39, 48, 59, 73,
            91, 113, 140, 174, 216, 268, 332, 413,
        ],
    ),
    (
        BucketRange::Past,
        64,
        1000,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
            24, 25, 26, 27, 28, 29, 30, 31, 32, 36, 40, 45, 50, 55, 62, 68, 76, 85, 94, 105, 117,
            130, 145, 161, 179, 200, 222, 248, 276, 307, 342, 380, 423, 471, 525, 585, 651, 725,
            807, 899,
        ],
    ),
    (BucketRange::Both, 12, 50, &[0, 1, 2, 3, 8, 20]),
    (BucketRange::Past, 7, 33, &[0, 1, 2, 3, 6, 10, 19]),
    (BucketRange::Past, 10, 77, &[0, 1, 2, 3, 4, 5, 9, 15, 26, 45]),
    (
        BucketRange::Past,
        32,
        20000,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 25, 40, 61, 96, 149, 232,
            363, 566, 884, 1380, 2154, 3364, 5253, 8202, 12808,
        ],
    ),
    (BucketRange::Past, 4, 8, &[0, 1, 2, 4]),
    (BucketRange::Both, 4, 3, &[0, 1]),
];

#[test]
fn buckets_of_all_offsets_are_as_recorded() {
    for (range, buckets, max_distance, firsts) in BUCKETS {
        for distance in 0..40_000isize {
            let expected = firsts.partition_point(|&first| first <= distance as usize) - 1;
            let after = match range {
                BucketRange::Past => 0,
                _ if distance == 0 => 0,
                _ => expected + buckets / 2,
            };
            let found = |offset| bucket(range, buckets, max_distance, offset);
            let what = format!("{range:?} {buckets} {max_distance} at {distance}");
            assert_eq!((found(-distance), found(distance)), (expected, after), "{what}");
        }
    }
}

#[test]
fn a_table_of_buckets_has_the_number_of_each_heads_bucket() {
    let (buckets, heads, longest) = (8, 3, 30);
    let weights: Vec<f32> = (0..buckets * heads).map(|i| i as f32).collect();
    let weights = Mat::new(&weights, buckets, heads);
    for range in [BucketRange::Both, BucketRange::Past] {
        let relative = RelativeTable::from_buckets(weights, range, 20, longest).unwrap();
        let table = relative.table();
        assert_eq!((table.rows(), table.cols(), relative.zero()), (heads, 59, 29));
        for head in 0..heads {
            for offset in -29isize..=29 {
                let expected = weights.row(bucket(range, buckets, 20, offset))[head];
                let column = (offset + relative.zero() as isize) as usize;
                assert_eq!(table.row(head)[column], expected);
            }
        }
    }
    for longest in [0, 1] {
        let relative =
            RelativeTable::from_buckets(weights, BucketRange::Both, 20, longest).unwrap();
        assert_eq!((relative.table().cols(), relative.zero()), (1, 0));
    }
}

#[test]
fn too_few_buckets_and_too_short_distances_are_errors() {
    let error =
        |range, buckets, max| check_buckets(range, buckets, max, "x").unwrap_err().to_string();
    for (range, buckets) in [(BucketRange::Both, 3), (BucketRange::Past, 1), (BucketRange::Past, 0)]
    {
        assert!(error(range, buckets, 100).contains("relative_attention_num_buckets"));
    }
    assert!(error(BucketRange::Past, 32, 16).contains("relative_attention_max_distance"));
    assert!(check_buckets(BucketRange::Past, 2, 2, "x").is_ok());
    let weights = [0.0; 2];
    let table = RelativeTable::from_buckets(Mat::new(&weights, 2, 1), BucketRange::Both, 9, 4);
    assert!(table.is_err());
}

#[test]
fn slopes_are_those_of_press_et_al() {
    assert!(alibi_slopes(0).is_empty());
    assert_eq!(alibi_slopes(1), [1.0 / 256.0]);
    assert_eq!(alibi_slopes(3), [0.0625, 0.00390625, 0.25]);
    assert_eq!(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
    let eight: Vec<f32> = (1..=8).map(|h| 0.5f32.powi(h)).collect();
    assert_eq!(alibi_slopes(8), eight);
    let twelve = alibi_slopes(12);
    assert_eq!(twelve[..8], eight);
    // The records of the others are powers taken in f32, a few units off.
    let wide = |slopes: &[f32]| slopes.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let recorded = [0.7071067690849304, 0.3535533845424652, 0.1767766773700714, 0.0883883386850357];
    assert_close(&wide(&twelve[8..]), &recorded);
    let recorded = [0.8408964276313782, 0.5946035981178284, 0.4204482436180115, 0.2973017990589142];
    assert_close(&wide(&alibi_slopes(20)[16..]), &recorded);
}

#[test]
fn the_bias_of_alibi_falls_with_the_distance() {
    for heads in [1, 4, 6] {
        let relative = RelativeTable::alibi(heads, 50).unwrap();
        for (head, slope) in alibi_slopes(heads).into_iter().enumerate() {
            let row = relative.table().row(head);
            for i in 0..50 {
                for j in 0..50 {
                    let exact = -f64::from(slope) * (i as f64 - j as f64).abs();
                    let found = f64::from(row[j + relative.zero() - i]);
                    assert!((found - exact).abs() <= 6e-8 * exact.abs(), "{i} {j}");
                }
            }
        }
    }
}

/// §3.5: an offset is a linear map of the sinusoids, so attention can learn to look back by it. Here Wꟴ is that map for −k, and
/// Wᴷ the identity.
#[test]
fn a_head_built_by_hand_attends_k_back() {
    const D: usize = 64;
    const N: usize = 50;
    let table = sinusoids(SinusoidLayout::Paper, N, D).unwrap();
    let values: Vec<f32> = (0..N).map(|j| j as f32).collect();
    let cpu = Cpu::detect();
    for k in [0, 1, 3, 7] {
        // Each pair (sin, cos) turned back by k·θ.
        let mut queries = table.clone();
        for row in queries.chunks_mut(D) {
            for (i, pair) in row.chunks_mut(2).enumerate() {
                let angle = k as f64 * 10000f64.powf(-2.0 * i as f64 / D as f64);
                let (s, c) = (f64::from(pair[0]), f64::from(pair[1]));
                pair[0] = (s * angle.cos() - c * angle.sin()) as f32;
                pair[1] = (c * angle.cos() + s * angle.sin()) as f32;
            }
        }
        let shape = AttentionShape::new(1, 1, D, 1).with_scale(20.0);
        let segments = [Segment::causal(0..N, 0..N)];
        let extent = AttentionExtent { queries: N, keys: N };
        let mut scratch = Scratch::new(attention_scratch(cpu, 1, &shape, extent));
        let mut out = vec![0.0; N];
        attention(
            cpu,
            Par::SERIAL,
            &shape,
            Mat::new(&queries, N, D),
            Mat::new(&table, N, D),
            Mat::new(&values, N, 1),
            &segments,
            &Mask::default(),
            MatMut::new(&mut out, N, 1),
            &mut scratch.stack(),
        );
        // The value is the place itself, so the result tells where the head looks.
        for (p, &at) in out.iter().enumerate().skip(k) {
            assert!((at - (p - k) as f32).abs() < 1e-3, "from {p}, {k} back: at {at}");
        }
    }
}

use crate::values::{Matrix, any, assert_close, cpu, size};
use crate::{scratch, with_par};
use arbitrary::{Result, Unstructured};
use headrow_kernels::reference;
use headrow_kernels::{
    AttentionExtent, AttentionShape, Mask, Mat, PerHead, Reach, Segment, attention, attention_scratch,
};

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let cpu = cpu(u)?;
    let kv_heads = u.int_in_range(1..=3)?;
    let heads = kv_heads * u.int_in_range(1..=3)?;
    let (d_k, d_v) = (size(u, 20)?.max(1), size(u, 20)?.max(1));
    let shape = AttentionShape::new(heads, kv_heads, d_k, d_v);

    // Sequences one after the other, some of them empty.
    let (mut t, mut s, mut segments) = (0, 0, Vec::new());
    for _ in 0..u.int_in_range(1..=3)? {
        let (queries, keys) = (size(u, 40)?, size(u, 70)?);
        let diagonal = if u.arbitrary()? { Some(u.int_in_range(-80..=80)?) } else { None };
        let reach = Reach { offset: diagonal.unwrap_or(0), ahead: diagonal.map(|_| 0), behind: None };
        segments.push(Segment::full(t..t + queries, s..s + keys).with_reach(reach));
        t += queries;
        s += keys;
    }
    let longest = segments.iter().map(|segment| segment.keys.len()).max().unwrap_or(0);
    let q = Matrix::draw_plain(u, t, heads * d_k)?;
    let k = Matrix::draw_plain(u, s, kv_heads * d_k)?;
    let mut v = Matrix::draw_plain(u, s, kv_heads * d_v)?;

    let visible_keys: Vec<bool> = (0..s).map(|_| u.ratio(3, 4)).collect::<Result<_>>()?;
    let per_head: bool = u.arbitrary()?;
    let rows = if per_head { heads * t } else { t };
    let bits: Vec<bool> = (0..rows * longest).map(|_| u.ratio(2, 3)).collect::<Result<_>>()?;
    let mut bias = Matrix::draw_plain(u, rows, longest)?;
    for i in 0..rows {
        for x in bias.view_mut().row_mut(i) {
            if u.ratio(1, 8)? {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    let heads_of = |mat| if per_head { PerHead::Each(mat) } else { PerHead::Shared(mat) };
    let bits = Mat::new(&bits, rows, longest);
    let bits = if per_head { PerHead::Each(bits) } else { PerHead::Shared(bits) };
    let (with_keys, with_bits, with_bias) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let mask = Mask {
        keys: bool::then_some(with_keys, &visible_keys),
        visible: bool::then_some(with_bits, bits),
        bias: bool::then_some(with_bias, heads_of(bias.view())),
        ..Mask::default()
    };
    let extent = AttentionExtent::of(&segments);
    let run = |threads: usize, q: &Matrix, k: &Matrix, v: &Matrix, fill: f32| -> Result<Matrix> {
        let mut out = Matrix::filled(&mut Unstructured::new(&[]), t, heads * d_v, fill)?;
        let need = attention_scratch(cpu, threads, &shape, extent);
        with_par(threads, |par| {
            let (q, k, v) = (q.view(), k.view(), v.view());
            let mut memory = scratch(need);
            attention(
                cpu,
                par,
                &shape,
                q,
                k,
                v,
                &segments,
                &mask,
                out.view_mut(),
                &mut memory.stack(),
            );
        });
        Ok(out)
    };

    let got = run(1, &q, &k, &v, f32::NAN)?;
    let want =
        reference::attention::attention(&shape, q.view(), k.view(), v.view(), &segments, &mask);
    for i in 0..t {
        for (j, &x) in got.row(i).iter().enumerate() {
            let at = i * heads * d_v + j;
            assert_close(x, want.output[at], want.bound[at], format_args!("row {i}, column {j}"));
        }
    }

    // Keys that nobody may see leave no trace, whatever they hold; threads leave none either.
    let mut k = k;
    for (j, &visible) in visible_keys.iter().enumerate() {
        if with_keys && !visible {
            for x in k.view_mut().row_mut(j).iter_mut().chain(v.view_mut().row_mut(j)) {
                *x = any(u)?;
            }
        }
    }
    let threads = u.int_in_range(1..=3)?;
    assert_eq!(
        run(threads, &q, &k, &v, 0.0)?.bits(),
        got.bits(),
        "hidden keys or {threads} threads"
    );
    Ok(())
}

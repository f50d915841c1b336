//! Row operations against float64, on every instruction set that can run here.

use ehun_graph::{Activation, RotaryLayout, RotarySpec};

use super::*;
use crate::testing::{isas, random};

/// Widths around the vectors' lanes.
const WIDTHS: [usize; 12] = [1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 100, 384];

fn close(got: &[f32], want: impl IntoIterator<Item = f64>, tolerance: f64, what: &str) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        assert!(error <= tolerance * (1.0 + w.abs()), "{what} at {i}: {g}, not {w}");
    }
}

#[test]
fn layer_norm_alone_and_with_a_sum() {
    for isa in isas() {
        for width in WIDTHS {
            let (x, y) = (random(3 * width, 1), random(3 * width, 2));
            let (weight, bias) = (random(width, 3), random(width, 4));
            for (weight, bias) in [(Some(&weight[..]), Some(&bias[..])), (Some(&weight[..]), None), (None, None)] {
                let norm = LayerNorm { width, weight, bias, eps: 1e-5 };
                let want = |x: &[f64]| -> Vec<f64> {
                    x.chunks(width)
                        .flat_map(|row| {
                            let mean = row.iter().sum::<f64>() / width as f64;
                            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                            let row = row.iter().enumerate().map(move |(j, v)| {
                                (v - mean) / (variance + 1e-5).sqrt() * weight.map_or(1.0, |w| f64::from(w[j]))
                                    + bias.map_or(0.0, |b| f64::from(b[j]))
                            });
                            row.collect::<Vec<_>>()
                        })
                        .collect()
                };
                let mut out = vec![0.0; x.len()];
                layer_norm(isa, &norm, &x, &mut out);
                let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                // A row of one value less its mean is rounding error divided by sqrt(eps).
                close(&out, want(&wide), 2e-5, &format!("{isa:?} layer norm of {width}"));
                let mut sum = x.clone();
                add_layer_norm_in_place(isa, &norm, &mut sum, &y);
                let wide: Vec<f64> = x.iter().zip(&y).map(|(a, b)| f64::from(a + b)).collect();
                close(&sum, want(&wide), 2e-5, &format!("{isa:?} layer norm of a sum, {width}"));
            }
        }
    }
}

#[test]
fn rms_norm_of_rows_and_heads_and_l2() {
    for isa in isas() {
        for group in WIDTHS {
            let (x, weight) = (random(6 * group, 5), random(group, 6));
            let norm = RmsNorm { group, weight: Some(&weight), offset: 1.0, eps: 1e-6 };
            let square = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let want: Vec<f64> = x
                .chunks(group)
                .flat_map(|row| {
                    let by = 1.0 / (square(row) / group as f64 + 1e-6).sqrt();
                    row.iter().zip(&weight).map(|(v, w)| f64::from(*v) * by * (f64::from(*w) + 1.0)).collect::<Vec<_>>()
                })
                .collect();
            let mut out = vec![0.0; x.len()];
            rms_norm(isa, &norm, &x, &mut out);
            close(&out, want.iter().copied(), 2e-6, &format!("{isa:?} rms norm of {group}"));
            let half: Vec<f32> = x.iter().map(|v| v / 2.0).collect();
            let mut sum = half.clone();
            add_rms_norm_in_place(isa, &norm, &mut sum, &half);
            assert_eq!(sum, out, "{isa:?}: halves add up exactly");

            let mut unit = x.clone();
            unit[..group].fill(0.0);
            l2_normalize_in_place(isa, &mut unit, group, 1e-12);
            assert!(unit[..group].iter().all(|v| *v == 0.0));
            for row in unit[group..].chunks(group) {
                assert!((square(row).sqrt() - 1.0).abs() < 1e-6, "{isa:?} l2 of {group}");
            }
        }
    }
}

#[test]
fn elementwise() {
    for isa in isas() {
        for width in WIDTHS {
            let (x, y) = (random(4 * width, 7), random(4 * width, 8));
            let row = &y[..width];
            let check = |name: &str, run: &dyn Fn(&mut [f32]), want: &dyn Fn(usize) -> f32| {
                let mut out = x.clone();
                run(&mut out);
                let want: Vec<f32> = (0..x.len()).map(want).collect();
                assert_eq!(out, want, "{isa:?} {name} of {width}");
            };
            check("add", &|o| add_in_place(isa, o, &y), &|i| x[i] + y[i]);
            check("multiply", &|o| multiply_in_place(isa, o, &y), &|i| x[i] * y[i]);
            check("add row", &|o| add_row_in_place(isa, o, row), &|i| x[i] + row[i % width]);
            check("multiply row", &|o| multiply_row_in_place(isa, o, row), &|i| x[i] * row[i % width]);
            check("scale", &|o| scale_in_place(isa, 0.3, o), &|i| x[i] * 0.3);
            check("relu", &|o| activation_in_place(isa, Activation::Relu, o), &|i| x[i].max(0.0));
            let mut gate = x.clone();
            gate_in_place(isa, Activation::Silu, &mut gate, &y);
            let want = x.iter().zip(&y).map(|(g, u)| Activation::Silu.eval(f64::from(*g)) * f64::from(*u));
            close(&gate, want, 5e-7, "gate");
        }
    }
}

#[test]
fn softmax_rows_add_to_one_and_keep_their_ratios() {
    for isa in isas() {
        for width in WIDTHS {
            let mut x: Vec<f32> = random(3 * width, 9).iter().map(|v| v * 20.0).collect();
            x[0] = 90.0;
            let want: Vec<f64> = x
                .chunks(width)
                .flat_map(|row| {
                    let max = row.iter().copied().fold(f32::MIN, f32::max);
                    let e: Vec<f64> = row.iter().map(|v| f64::from(*v - max).exp()).collect();
                    let sum: f64 = e.iter().sum();
                    e.into_iter().map(move |v| v / sum)
                })
                .collect();
            softmax_in_place(isa, &mut x, width);
            close(&x, want, 5e-7, &format!("{isa:?} softmax of {width}"));
        }
    }
}

#[test]
fn rotary_turns_pairs_and_leaves_the_rest() {
    for layout in [RotaryLayout::HalfSplit, RotaryLayout::Interleaved] {
        for (head_dim, rotary_dim) in [(8, 8), (64, 64), (64, 32), (96, 96), (10, 6)] {
            let spec = RotarySpec { rotary_dim, layout, ..RotarySpec::plain(head_dim, 10_000.0) };
            let (cos, sin) = spec.tables(50);
            let rotary = Rotary { heads: 3, head_dim, rotary_dim, layout, cos: &cos, sin: &sin };
            let (stride, positions) = (3 * head_dim + 5, [0u32, 7, 49]);
            let x = random(3 * stride, 11);
            let mut want: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let half = rotary_dim / 2;
            for (i, position) in positions.iter().enumerate() {
                for head in 0..3 {
                    for j in 0..half {
                        let (a, b) = match layout {
                            RotaryLayout::HalfSplit => (j, j + half),
                            RotaryLayout::Interleaved => (2 * j, 2 * j + 1),
                        };
                        let base = i * stride + head * head_dim;
                        let angle = f64::from(*position) * 10_000f64.powf(-2.0 * j as f64 / rotary_dim as f64);
                        let (u, v) = (want[base + a], want[base + b]);
                        want[base + a] = u * angle.cos() - v * angle.sin();
                        want[base + b] = v * angle.cos() + u * angle.sin();
                    }
                }
            }
            for isa in isas() {
                let mut out = x.clone();
                rotary_in_place(isa, &rotary, &mut out, stride, &positions);
                close(&out, want.iter().copied(), 3e-6, &format!("{isa:?} {layout:?} {head_dim}/{rotary_dim}"));
            }
        }
    }
}

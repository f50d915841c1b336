//! Plots as SVG text.

use svg::Document;
use svg::node::element::{Circle, Group, Line as Stroke, Polyline, Text};

use crate::paper::AttentionTime;
use crate::report::{Comparison, LengthResult};

/// Size of a plot, and the room left, right, above and below what is drawn, in points.
const SIZE: (f64, f64) = (760.0, 340.0);
const ROOM: (f64, f64, f64, f64) = (70.0, 20.0, 40.0, 46.0);

const BASELINE: &str = "#57606a";
const CANDIDATE: &str = "#2166ac";
const ALLOWED: &str = "#bf812d";

/// Points with what they are called.
struct Series {
    name: String,
    color: &'static str,
    points: Vec<(f64, f64)>,
}

/// Attention alone: microseconds by length, both on logarithmic axes. Nothing where nothing was measured.
pub(crate) fn attention(found: &Comparison) -> Option<String> {
    let series = |name: &str, color, value: fn(&AttentionTime) -> f64| Series {
        name: name.to_owned(),
        color,
        points: found
            .paper
            .iter()
            .filter(|time| time.gain.is_some() && value(time) > 0.0)
            .map(|time| (time.length as f64, value(time)))
            .collect(),
    };
    let all = [
        series(&found.baseline.name, BASELINE, |time| time.baseline_us),
        series(&found.candidate.name, CANDIDATE, |time| time.candidate_us),
    ];
    let axes = Axes::around(all.iter().flat_map(|series| &series.points).copied(), Scale::Logarithmic)?;
    let title = "Attention alone: microseconds of one sequence, by its length in tokens";
    Some(axes.draw(title, &all, &[]))
}

/// Gains by mean chunk length: of attention alone, what that allows, and what was measured. Nothing without a job.
pub(crate) fn gains(found: &Comparison) -> Option<String> {
    let points = |value: fn(&LengthResult) -> Option<f64>| -> Vec<(f64, f64)> {
        found.pipeline.iter().filter_map(|at| Some((at.mean_tokens, value(at)?))).collect()
    };
    let all = [
        Series { name: "attention alone".into(), color: BASELINE, points: points(|at| at.attention_gain) },
        Series { name: "allowed by its share".into(), color: ALLOWED, points: points(|at| at.allowed_gain) },
        Series { name: "measured, 95 %".into(), color: CANDIDATE, points: points(|at| Some(at.gain.estimate)) },
    ];
    let bars: Vec<[(f64, f64); 2]> =
        found.pipeline.iter().map(|at| [(at.mean_tokens, at.gain.low), (at.mean_tokens, at.gain.high)]).collect();
    let first = bars.first()?[0].0;
    let values = all.iter().flat_map(|series| &series.points).chain(bars.iter().flatten()).copied();
    let axes = Axes::around(values.chain([(first, 1.0)]), Scale::Linear)?;
    Some(axes.draw("Gain over the baseline (1 is none), by mean tokens of a chunk", &all, &bars))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Logarithmic,
}

/// What is shown: lengths on a logarithmic axis, values on either.
struct Axes {
    scale: Scale,
    /// Least and greatest, as they are on the axis.
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    /// Axes with all points and some room around them; nothing without points.
    fn around(points: impl Iterator<Item = (f64, f64)>, scale: Scale) -> Option<Self> {
        let mut axes = Self { scale, x: (f64::INFINITY, f64::NEG_INFINITY), y: (f64::INFINITY, f64::NEG_INFINITY) };
        let wider = |range: (f64, f64), value: f64| (range.0.min(value), range.1.max(value));
        for (length, value) in points {
            (axes.x, axes.y) = (wider(axes.x, length.log2()), wider(axes.y, axes.on_y(value)));
        }
        if !(axes.x.0.is_finite() && axes.y.0.is_finite()) {
            return None;
        }
        let roomier = |range: (f64, f64), least: f64| {
            let room = (0.06 * (range.1 - range.0)).max(least);
            (range.0 - room, range.1 + room)
        };
        (axes.x, axes.y) = (roomier(axes.x, 0.2), roomier(axes.y, 0.02));
        Some(axes)
    }

    fn on_y(&self, value: f64) -> f64 {
        if self.scale == Scale::Logarithmic { value.log10() } else { value }
    }

    /// Where a point is on the page.
    fn place(&self, (length, value): (f64, f64)) -> (f64, f64) {
        let (left, right, top, bottom) = ROOM;
        let part = |value: f64, range: (f64, f64)| (value - range.0) / (range.1 - range.0);
        let x = left + part(length.log2(), self.x) * (SIZE.0 - left - right);
        let y = SIZE.1 - bottom - part(self.on_y(value), self.y) * (SIZE.1 - top - bottom);
        (round(x), round(y))
    }

    /// Powers of two on the axis of lengths.
    fn lengths(&self) -> Vec<f64> {
        (self.x.0.ceil() as i32..=self.x.1.floor() as i32).map(|power| 2f64.powi(power)).collect()
    }

    /// Round numbers on the axis of values.
    fn values(&self) -> Vec<f64> {
        if self.scale == Scale::Logarithmic {
            let decades = self.y.0.floor() as i32..=self.y.1.ceil() as i32;
            let all = decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
            return all.filter(|value| (self.y.0..=self.y.1).contains(&value.log10())).collect();
        }
        let rough = (self.y.1 - self.y.0) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(rough);
        ((self.y.0 / step).ceil() as i64..=(self.y.1 / step).floor() as i64).map(|count| count as f64 * step).collect()
    }

    fn draw(&self, title: &str, all: &[Series], bars: &[[(f64, f64); 2]]) -> String {
        let (left, right, top, bottom) = ROOM;
        let mut document = Document::new()
            .set("viewBox", (0, 0, SIZE.0, SIZE.1))
            .set("width", SIZE.0)
            .set("role", "img")
            .set("font-family", "system-ui, sans-serif")
            .set("font-size", 13)
            .set("fill", "#1b1f24")
            .add(text(title, (left, 20.0), "start").set("font-size", 15));
        let mut grid = Group::new().set("stroke", "#d7dce1");
        let mut labels = Group::new();
        for length in self.lengths() {
            let (x, _) = self.place((length, 1.0));
            grid = grid.add(stroke((x, top), (x, SIZE.1 - bottom)));
            labels = labels.add(text(&format!("{length}"), (x, SIZE.1 - bottom + 18.0), "middle"));
        }
        for value in self.values() {
            let (_, y) = self.place((1.0, value));
            grid = grid.add(stroke((left, y), (SIZE.0 - right, y)));
            labels = labels.add(text(&number(value), (left - 8.0, y + 4.0), "end"));
        }
        document = document.add(grid).add(labels);
        if self.scale == Scale::Linear {
            let (_, y) = self.place((1.0, 1.0));
            document =
                document.add(stroke((left, y), (SIZE.0 - right, y)).set("stroke", "#57606a").set("stroke-width", 1.5));
        }
        for bar in bars {
            let line = stroke(self.place(bar[0]), self.place(bar[1]));
            document = document.add(line.set("stroke", CANDIDATE).set("stroke-width", 7).set("stroke-opacity", 0.35));
        }
        for (number, series) in all.iter().enumerate() {
            let places: Vec<(f64, f64)> = series.points.iter().map(|&point| self.place(point)).collect();
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x},{y}")).collect();
            let line = Polyline::new().set("points", path.join(" ")).set("fill", "none");
            document = document.add(line.set("stroke", series.color).set("stroke-width", 2));
            for (x, y) in places {
                document =
                    document.add(Circle::new().set("cx", x).set("cy", y).set("r", 3.5).set("fill", series.color));
            }
            // The legend: a line of words under the axis.
            let x = left + 220.0 * number as f64;
            let sample = stroke((x, SIZE.1 - 10.0), (x + 22.0, SIZE.1 - 10.0));
            document = document.add(sample.set("stroke", series.color).set("stroke-width", 3)).add(text(
                &series.name,
                (x + 28.0, SIZE.1 - 6.0),
                "start",
            ));
        }
        document.to_string()
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A label with no more digits than it needs.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn stroke(from: (f64, f64), to: (f64, f64)) -> Stroke {
    Stroke::new().set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1)
}

fn text(content: &str, place: (f64, f64), anchor: &str) -> Text {
    Text::new(content).set("x", place.0).set("y", place.1).set("text-anchor", anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_on_their_axes() {
        let points = [(64.0, 1.0), (1024.0, 100.0)];
        let axes = Axes::around(points.into_iter(), Scale::Logarithmic).unwrap();
        assert_eq!(axes.lengths(), [64.0, 128.0, 256.0, 512.0, 1024.0]);
        assert_eq!(axes.values(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        let (low, middle, high) = (axes.place(points[0]), axes.place((256.0, 10.0)), axes.place(points[1]));
        assert!((low.0 + high.0 - 2.0 * middle.0).abs() < 0.3 && (low.1 + high.1 - 2.0 * middle.1).abs() < 0.3);
        assert!(low.0 > ROOM.0 && high.0 < SIZE.0 - ROOM.1 && high.1 > ROOM.2 && low.1 < SIZE.1 - ROOM.3);
        assert!(Axes::around(std::iter::empty(), Scale::Linear).is_none());
        assert_eq!((number(1.0), number(0.25), number(100.0)), ("1".into(), "0.25".into(), "100".into()));
    }
}

//! A scale that maps figures to parts of a chart's width. No figure disappears beside a large one.

/// The least part of the width that a bar takes.
pub const PART_MIN: f64 = 0.02;
/// The next round number below the lowest figure is at least this much lower.
const BELOW: f64 = 1.5;
/// Maximum number of labelled ticks.
const TICKS_MAX: usize = 4;

/// A scale from 0 (the left edge) to 1 (the right edge).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal ratios have equal lengths. From a power of ten below the lowest figure to the highest one.
    Logarithmic {
        /// The figure at the left edge.
        low: f64,
        /// The figure at the right edge.
        high: f64,
    },
    /// Equal differences have equal lengths. From 0.
    Linear {
        /// The figure at the right edge.
        high: f64,
    },
}

impl Scale {
    /// The logarithmic scale for these figures. Figures that are not positive do not count; [`Scale::part`] puts them at the left.
    pub fn logarithmic(figures: impl IntoIterator<Item = f64>) -> Scale {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for figure in figures.into_iter().filter(|figure| *figure > 0.0 && figure.is_finite()) {
            (least, most) = (least.min(figure), most.max(figure));
        }
        if most == 0.0 {
            return Scale::Logarithmic { low: 1.0, high: 10.0 };
        }
        let low = 10.0_f64.powf((least / BELOW).log10().floor());
        Scale::Logarithmic { low, high: most.max(low * 10.0) }
    }

    /// The part of the width that the bar of a figure takes: from [`PART_MIN`] to 1.
    pub fn part(self, figure: f64) -> f64 {
        let part = match self {
            Scale::Logarithmic { low, high } if figure > 0.0 => (figure / low).ln() / (high / low).ln(),
            Scale::Logarithmic { .. } => 0.0,
            Scale::Linear { high } => figure / high,
        };
        part.clamp(PART_MIN, 1.0)
    }

    /// Round figures for labelled ticks, in ascending order: at most four, and the left edge is one of them.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Logarithmic { low, high } => {
                let decades = (high / low).log10() + 1e-9;
                let step = (decades / TICKS_MAX as f64).floor() as i32 + 1;
                (0..=decades as i32).step_by(step as usize).map(|decade| low * 10.0_f64.powi(decade)).collect()
            }
            Scale::Linear { high } => vec![0.0, high / 2.0, high],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_large_figure_does_not_flatten_the_others() {
        let figures = [27.0, 40.0, 81.0, 11_000.0];
        let scale = Scale::logarithmic(figures);
        assert_eq!(scale, Scale::Logarithmic { low: 10.0, high: 11_000.0 });
        let parts = figures.map(|figure| scale.part(figure));
        assert!(parts.is_sorted() && parts[0] > 0.1 && parts[1] - parts[0] > 0.04, "{parts:?}");
        assert_eq!(parts[3], 1.0);
    }

    #[test]
    fn every_bar_can_be_seen() {
        let scale = Scale::logarithmic([1.0, 1e9]);
        for figure in [-5.0, 0.0, 1.0, 1e-9, 1e12] {
            assert!((PART_MIN..=1.0).contains(&scale.part(figure)), "{figure}");
        }
        assert!(scale.part(1.0) > PART_MIN, "the lowest figure is not at the edge");
        assert_eq!(Scale::logarithmic([]).part(0.0), PART_MIN);
        assert_eq!(Scale::Linear { high: 1.0 }.part(0.001), PART_MIN);
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(Scale::logarithmic([27.0, 11_000.0]).ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(Scale::logarithmic([27.0, 31.0]).ticks(), [10.0, 100.0]);
        assert_eq!(Scale::logarithmic([1.0, 1e9]).ticks().len(), 4);
        for ticks in (0..12).map(|decades| Scale::logarithmic([2.0, 3.0 * 10.0_f64.powi(decades)]).ticks()) {
            assert!((2..=TICKS_MAX).contains(&ticks.len()), "{ticks:?}");
        }
        assert_eq!(Scale::Linear { high: 1.0 }.ticks(), [0.0, 0.5, 1.0]);
    }
}

//! The outcomes as a bar chart in SVG, alone or in a page of HTML.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::report::table;

/// The title of a panel, and the figure that its bars show.
type Figure = (&'static str, fn(&Outcome) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("acquisitions per second (more is better)", |outcome| Some(outcome.per_second())),
    ("server CPU per acquisition, µs (less is better)", Outcome::cpu_us_each),
    ("wait, 99th percentile, ms (less is better)", |outcome| {
        (!outcome.waits_us.is_empty()).then(|| outcome.waits_us.value_at_quantile(0.99) as f64 / 1000.0)
    }),
    ("commands per acquisition (less is better)", Outcome::commands_each),
];
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 69, 65),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 150, 30),
    RGBColor(110, 110, 110),
];
const WIDTH: u32 = 960;
const BAR: u32 = 16;
/// Space between workloads.
const GAP: u32 = 10;
const TITLE: u32 = 40;
/// Space for the names of the workloads.
const LEFT: i32 = 250;
/// Space for the figure behind the longest bar.
const RIGHT: i32 = 80;

/// Renders the chart. The file's name selects the form: SVG, or a page of HTML with the table below the chart.
///
/// # Errors
/// The reason why the chart cannot be drawn, in words for people.
pub fn render(plan: &Plan, outcomes: &[Outcome], path: &Path) -> Result<String, String> {
    let svg = svg(outcomes).map_err(|error| format!("the chart cannot be drawn: {error}"))?;
    if path.extension().is_some_and(|extension| extension == "svg") {
        return Ok(svg);
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>portcullis bench</title>\
         <style>body{{font-family:sans-serif;margin:2em}}pre{{font-size:13px;overflow-x:auto}}</style></head>\n\
         <body><h1>portcullis bench</h1>\n{svg}\n<pre>{}</pre>\n</body></html>\n",
        escape(&table::render(plan, outcomes))
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn svg(outcomes: &[Outcome]) -> Result<String, Box<dyn std::error::Error>> {
    let (mut workloads, mut targets): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        if !workloads.contains(&outcome.workload.as_str()) {
            workloads.push(&outcome.workload);
        }
        if !targets.contains(&outcome.target.as_str()) {
            targets.push(&outcome.target);
        }
    }
    let legend = 30;
    let height = TITLE + workloads.len() as u32 * (targets.len() as u32 * BAR + GAP);
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, legend + FIGURES.len() as u32 * height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(legend);
        for (number, target) in targets.iter().enumerate() {
            let x = 20 + number as i32 * 220;
            head.draw(&Rectangle::new([(x, 10), (x + 14, 24)], COLOURS[number % COLOURS.len()].filled()))?;
            head.draw(&Text::new((*target).to_owned(), (x + 20, 11), ("sans-serif", 14)))?;
        }
        for (area, figure) in rest.split_evenly((FIGURES.len(), 1)).into_iter().zip(FIGURES) {
            panel(&area, figure, &workloads, &targets, outcomes)?;
        }
        root.present()?;
    }
    Ok(out)
}

/// Draws the panel of one figure: a group of bars for each workload, a bar for each server.
fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    (title, figure): Figure,
    workloads: &[&str],
    targets: &[&str],
    outcomes: &[Outcome],
) -> Result<(), Box<dyn std::error::Error>> {
    area.draw(&Text::new(title, (20, 14), ("sans-serif", 16)))?;
    let measured = |outcome: &Outcome| if outcome.skipped.is_none() { figure(outcome) } else { None };
    let most = outcomes.iter().filter_map(measured).fold(0.0, f64::max);
    let scale = f64::from(WIDTH as i32 - LEFT - RIGHT) / if most > 0.0 { most } else { 1.0 };
    for (row, workload) in workloads.iter().enumerate() {
        let top = (TITLE + row as u32 * (targets.len() as u32 * BAR + GAP)) as i32;
        area.draw(&Text::new(shortened(workload), (20, top + 2), ("sans-serif", 13)))?;
        for (number, target) in targets.iter().enumerate() {
            let found = outcomes.iter().find(|outcome| outcome.workload == *workload && outcome.target == *target);
            let y = top + (number as u32 * BAR) as i32;
            let Some(value) = found.and_then(measured) else {
                area.draw(&Text::new("–", (LEFT + 4, y + 1), ("sans-serif", 12)))?;
                continue;
            };
            let end = LEFT + (value * scale).round() as i32;
            let colour = COLOURS[number % COLOURS.len()];
            area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + BAR as i32 - 2)], colour.filled()))?;
            let text = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
            area.draw(&Text::new(text, (end + 4, y + 1), ("sans-serif", 12)))?;
        }
    }
    Ok(())
}

fn shortened(name: &str) -> String {
    const MOST: usize = 32;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

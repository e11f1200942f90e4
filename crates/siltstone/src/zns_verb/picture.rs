//! Pictures of a drive's wear, as SVG.

use serde_json::Value;
use std::fmt::Write;

/// Width and height of a cell.
const CELL: (usize, usize) = (14, 14);
/// Left and upper margin.
const MARGIN: (usize, usize) = (70, 60);
/// Limit of rows and of columns. Above it neighbours are drawn as one cell, with the largest value.
const MAX: usize = 256;

/// Table of values to draw.
struct Picture {
    title: String,
    across: &'static str,
    down: &'static str,
    /// Value by row and column; `None` for no value.
    cells: Vec<Vec<Option<f64>>>,
    /// Value of the darkest colour.
    most: f64,
    /// Formats a value.
    words: fn(f64) -> String,
}

/// Draws the erase counts of all blocks: a row per block of a die, a column per die.
pub fn erases(wear: &Value) -> String {
    let none = Vec::new();
    let blocks = wear["blocks"].as_array().unwrap_or(&none);
    let number = |block: &Value, key: &str| block[key].as_u64().unwrap_or(0) as usize;
    let rows = blocks.iter().map(|block| number(block, "block") + 1).max().unwrap_or(0);
    let columns = blocks.iter().map(|block| number(block, "die") + 1).max().unwrap_or(0);
    let mut cells = vec![vec![None; columns]; rows];
    for block in blocks {
        cells[number(block, "block")][number(block, "die")] = block["erases"].as_f64();
    }
    let endurance = wear["endurance"].as_f64().unwrap_or(0.0);
    let most = blocks.iter().filter_map(|block| block["erases"].as_f64()).fold(0.0, f64::max);
    let title = format!("Erases of each block; the most is {most}, the endurance {endurance}");
    draw(Picture {
        title,
        across: "die",
        down: "block",
        cells,
        most,
        words: |value| format!("{value} erases"),
    })
}

/// Draws the bit error rates of a zone: a row per page, a column per block.
pub fn errors(zone: u32, rates: &[Vec<f64>], limit: f64) -> String {
    let pages = rates.first().map_or(0, Vec::len);
    let cells = (0..pages).map(|page| rates.iter().map(|block| block.get(page).copied()).collect());
    let title = format!(
        "Raw bit error rate of each page of zone {zone}; darkest at the limit of correction, {limit:.2e}"
    );
    draw(Picture {
        title,
        across: "block (one on each die)",
        down: "page",
        cells: cells.collect(),
        most: limit,
        words: |value| format!("{value:.3e}"),
    })
}

/// Reduces rows and columns to at most [`MAX`], with the largest value of neighbours.
fn coarse(cells: Vec<Vec<Option<f64>>>) -> Vec<Vec<Option<f64>>> {
    let worst = |values: &mut dyn Iterator<Item = Option<f64>>| values.flatten().reduce(f64::max);
    let step = cells.len().div_ceil(MAX).max(1);
    let rows = cells.chunks(step).map(|rows| {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let step = columns.div_ceil(MAX).max(1);
        let columns = (0..columns)
            .step_by(step)
            .map(|from| worst(&mut rows.iter().flat_map(|row| row.iter().skip(from).take(step).copied())));
        columns.collect()
    });
    rows.collect()
}

fn draw(picture: Picture) -> String {
    let cells = coarse(picture.cells);
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (MARGIN.0 + columns.max(30) * CELL.0 + 20, MARGIN.1 + cells.len() * CELL.1 + 20);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\">{}</text>\n<text x=\"{}\" y=\"45\" fill=\"#456\">{} →</text>\n\
         <text x=\"10\" y=\"{}\" fill=\"#456\">{} ↓</text>\n",
        picture.title,
        MARGIN.0,
        picture.across,
        MARGIN.1 + 12,
        picture.down
    );
    for (row, values) in cells.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let share = if picture.most > 0.0 { (value / picture.most).clamp(0.0, 1.0) } else { 0.0 };
            // Interpolates between light and dark red.
            let shade = |light: f64, dark: f64| (light + (dark - light) * share) as u8;
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#{:02x}{:02x}{:02x}\"><title>{} {column}, {} {row}: {}</title></rect>",
                MARGIN.0 + column * CELL.0,
                MARGIN.1 + row * CELL.1,
                CELL.0 - 1,
                CELL.1 - 1,
                shade(245.0, 120.0),
                shade(240.0, 0.0),
                shade(235.0, 20.0),
                picture.across,
                picture.down,
                (picture.words)(*value)
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_block_and_page_is_drawn_and_worse_ones_are_darker() {
        let block = |die: u32, erases: u32| json!({"die": die, "block": 0, "erases": erases});
        let text = erases(&json!({"endurance": 9, "blocks": [block(0, 0), block(1, 9)]}));
        assert_eq!(text.matches("<title>").count(), 2, "{text}");
        assert!(text.contains("#f5f0eb\"><title>die 0, block 0: 0 erases"), "{text}");
        assert!(text.contains("#780014\"><title>die 1, block 0: 9 erases"), "{text}");
        let text = errors(3, &[vec![1e-3, 2e-3], vec![9e-3, 4e-3]], 8e-3);
        assert_eq!(text.matches("<title>").count(), 4, "{text}");
    }

    #[test]
    fn large_drives_are_drawn_coarsely_by_their_worst() {
        let mut cells = vec![vec![Some(0.0); 1000]; 600];
        cells[599][999] = Some(7.0);
        let cells = coarse(cells);
        assert!(cells.len() <= MAX && cells.iter().all(|row| row.len() <= MAX));
        assert_eq!(cells.last().and_then(|row| row.last()).copied().flatten(), Some(7.0));
    }
}

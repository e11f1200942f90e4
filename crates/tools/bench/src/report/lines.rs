//! Chart of a table that a command has printed: lines of some columns over the first one, on linear or
//! logarithmic axes.

use super::COLOURS;
use super::charts::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, short};
use super::svg::{Anchor, Scale, Svg, spread_out};
use crate::results::{Column, Table};
use serde_json::Value;

/// Draws the columns that the table names in `lines`; `None` without any, or without numbers in them. Lines
/// skip rows without a number.
pub(super) fn chart(table: &Table) -> Option<String> {
    let over = table.columns.first()?;
    let lines: Vec<(&Column, Vec<(f64, f64)>)> = table
        .lines
        .iter()
        .filter_map(|name| {
            let column = table.column(name)?;
            let number =
                |row: &serde_json::Map<String, Value>, name: &str| row.get(name).and_then(Value::as_f64);
            let points =
                table.rows.iter().filter_map(|row| Some((number(row, &over.name)?, number(row, name)?)));
            Some((column, points.collect()))
        })
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (first, last) = (all().map(|it| it.0).reduce(f64::min)?, all().map(|it| it.0).reduce(f64::max)?);
    let (lowest, highest) =
        all().map(|it| it.1).fold((f64::MAX, 0.0), |(low, high), y| (y.min(low), y.max(high)));
    let (x, y) = match table.logarithmic {
        // A decade at least, so that noise of what is flat isn't the whole height.
        true => {
            let decade = (lowest, highest.max(lowest * 10.0));
            (Scale::log((first, last), (LEFT, RIGHT)), Scale::log(decade, (BOTTOM, TOP)))
        }
        false => {
            (Scale::linear((first, last), (LEFT, RIGHT)), Scale::linear((0.0, highest * 1.05), (BOTTOM, TOP)))
        }
    };
    let unit = lines.first()?.0.unit;
    let title = table.title.as_ref().unwrap_or(&table.name);
    let mut svg = Svg::new(WIDTH, HEIGHT, title);
    for tick in y.ticks(4) {
        svg.line("grid", (LEFT, y.at(tick)), (RIGHT, y.at(tick)));
        svg.text("tick", Anchor::End, (LEFT - 6.0, y.at(tick) + 4.0), unit.say(Some(&tick.into())));
    }
    for tick in x.ticks(4) {
        svg.text("tick", Anchor::Middle, (x.at(tick), BOTTOM + 17.0), over.unit.say(Some(&tick.into())));
    }
    svg.text("axis", Anchor::End, (RIGHT, BOTTOM + 33.0), &over.title);
    for (index, (column, points)) in lines.iter().enumerate() {
        let colour = index % COLOURS;
        let places: Vec<(f64, f64)> = points.iter().map(|it| (x.at(it.0), y.at(it.1))).collect();
        svg.polyline(&format!("trace s{colour}"), &places);
        for ((over_value, value), place) in points.iter().zip(&places) {
            let at = over.unit.say(Some(&(*over_value).into()));
            let tip =
                format!("{}: {} at {} {at}", column.title, unit.say(Some(&(*value).into())), over.title);
            svg.circle(&format!("hit point s{colour}"), *place, 2.2, &tip);
        }
    }
    let ends = lines.iter().map(|(_, points)| points.last().map_or(BOTTOM, |it| y.at(it.1)));
    let places = spread_out(&ends.collect::<Vec<_>>(), 14.0, (TOP, BOTTOM));
    for (index, ((column, _), place)) in lines.iter().zip(places).enumerate() {
        let class = format!("label name s{}", index % COLOURS);
        svg.text(&class, Anchor::Start, (RIGHT + 8.0, place + 4.0), short(&column.title, 10));
    }
    Some(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_first_column_skip_rows_without_a_number() {
        let text = r#"{"columns": [{"name": "x", "title": "deletes, %"}, {"name": "a", "title": "FADE <1>"}, {"name": "b", "title": "b"}],
            "lines": ["a", "b"], "rows": [{"x": 2, "a": 1, "b": 3}, {"x": 4, "a": "–"}, {"x": 6, "a": 2, "b": 4}]}"#;
        let mut table: Table = serde_json::from_str(text).unwrap();
        let drawn = chart(&table).unwrap();
        assert_eq!(drawn.matches("<polyline").count(), 2, "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 4, "{drawn}");
        assert!(drawn.contains("FADE &lt;1&gt;") && drawn.contains("deletes, %"));
        table.rows.clear();
        assert_eq!(chart(&table), None);
        table.lines.clear();
        assert_eq!(chart(&table), None);
    }

    #[test]
    fn proportional_columns_are_straight_on_logarithmic_axes() {
        let text = r#"{"columns": [{"name": "x", "title": "keys"}, {"name": "a", "title": "memory"}], "lines": ["a"], "logarithmic": true,
            "rows": [{"x": 1e3, "a": 2}, {"x": 1e5, "a": 200}, {"x": 1e7, "a": 20000}]}"#;
        let drawn = chart(&serde_json::from_str(text).unwrap()).unwrap();
        for axis in ["cx=\"", "cy=\""] {
            let places =
                drawn.split(axis).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap());
            let places: Vec<f64> = places.collect();
            assert!((places[0] + places[2] - 2.0 * places[1]).abs() < 0.2, "{places:?} in {drawn}");
        }
    }
}

//! The columns of the table: which ones fit, and how wide they are.

use crate::top::rows::{Row, bar};
use crate::top::view::fit::{padded, width};

/// Cells between columns.
const GAP: usize = 2;
/// Cells of the bar of a lease.
const BAR: usize = 8;

/// Width that a name gets before there are the less important columns.
const COMFORT: usize = 24;

named! {
    /// A column, with its title. They stand in this order from left to right.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Column in ORDER {
        Name = "lock",
        Kind = "kind",
        Waiters = "wait",
        Oldest = "oldest",
        Holder = "holder",
        Held = "held",
        Lease = "lease",
        LeaseBar = "left",
        Gone = "gone",
        Client = "client",
        Address = "address",
    }
}

/// All columns in the order in which they get a place.
const IMPORTANCE: [Column; 11] = [
    Column::Name,
    Column::Waiters,
    Column::Oldest,
    Column::Holder,
    Column::Held,
    Column::Gone,
    Column::Lease,
    Column::LeaseBar,
    Column::Address,
    Column::Client,
    Column::Kind,
];

impl Column {
    fn cell(self, row: &Row) -> String {
        let cell = match self {
            Column::Name => &row.name,
            Column::Kind => &row.kind,
            Column::Waiters => &row.waiters,
            Column::Oldest => &row.oldest,
            Column::Holder => &row.holder,
            Column::Held => &row.held,
            Column::Lease => &row.lease,
            Column::LeaseBar => return row.lease_part.map(|part| bar(part, BAR)).unwrap_or_default(),
            Column::Client => &row.client,
            Column::Address => &row.address,
            Column::Gone => &row.gone,
        };
        cell.clone()
    }

    /// The least and the greatest width.
    fn range(self) -> (usize, usize) {
        match self {
            Column::Name => (10, 60),
            Column::Kind => (4, 9),
            Column::Waiters => (5, 7),
            Column::Oldest | Column::Held | Column::Lease | Column::Gone => (6, 6),
            Column::Holder => (8, 45),
            Column::LeaseBar => (BAR, BAR),
            Column::Client => (8, 30),
            Column::Address => (15, 47),
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Column::Waiters | Column::Oldest | Column::Held | Column::Lease | Column::Gone)
    }
}

/// The columns in the order in which they get a place. That a connection is gone matters more than for how long a lock was held.
fn by_importance(rows: &[Row]) -> Vec<Column> {
    let mut order = IMPORTANCE.to_vec();
    if rows.iter().any(|row| !row.gone.is_empty()) {
        order.retain(|column| *column != Column::Gone);
        order.insert(4, Column::Gone);
    }
    order
}

/// The columns that fit, with their widths.
pub fn plan(rows: &[Row], cells: usize) -> Vec<(Column, usize)> {
    let wanted = |column: Column| {
        let longest = rows.iter().map(|row| width(&column.cell(row))).max().unwrap_or(0).max(width(column.name()));
        let (least, most) = column.range();
        longest.clamp(least, most)
    };
    let mut left = cells;
    let mut chosen: Vec<(Column, usize)> = Vec::new();
    for column in by_importance(rows) {
        if column == Column::LeaseBar {
            // Names are read in full before there is a bar.
            grow(&mut chosen, &mut left, |column| wanted(column).min(COMFORT));
        }
        let least = column.range().0.min(wanted(column));
        let gap = if chosen.is_empty() { 0 } else { GAP };
        if least + gap > left {
            break;
        }
        left -= least + gap;
        chosen.push((column, least));
    }
    grow(&mut chosen, &mut left, wanted);
    Column::ORDER.into_iter().filter_map(|column| chosen.iter().find(|(chosen, _)| *chosen == column).copied()).collect()
}

/// Gives what is left to the columns that want more, in the order of their importance.
fn grow(columns: &mut [(Column, usize)], left: &mut usize, wanted: impl Fn(Column) -> usize) {
    for (column, width) in columns {
        let more = wanted(*column).saturating_sub(*width).min(*left);
        *width += more;
        *left -= more;
    }
}

/// The line with the titles.
pub fn head(plan: &[(Column, usize)]) -> String {
    line(plan, |column| column.name().to_owned())
}

/// The line of a lock.
pub fn body(plan: &[(Column, usize)], row: &Row) -> String {
    line(plan, |column| column.cell(row))
}

fn line(plan: &[(Column, usize)], cell: impl Fn(Column) -> String) -> String {
    let cells: Vec<String> = plan.iter().map(|(column, width)| padded(&cell(*column), *width, column.is_number())).collect();
    cells.join(&" ".repeat(GAP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_tables_keep_what_matters_most() {
        let row = Row { name: "order:42".into(), holder: "worker-7".into(), ..Row::default() };
        let rows = [row];
        let names = |cells: usize| plan(&rows, cells).into_iter().map(|(column, _)| column).collect::<Vec<_>>();
        assert_eq!(names(38), [Column::Name, Column::Waiters, Column::Oldest, Column::Holder]);
        assert!(names(78).contains(&Column::LeaseBar) && names(78).contains(&Column::Gone) && !names(78).contains(&Column::Kind));
        assert_eq!(names(200), Column::ORDER);
        let gone = [Row { gone: "2m05s".into(), ..rows[0].clone() }];
        let narrow: Vec<_> = plan(&gone, 48).into_iter().map(|(column, _)| column).collect();
        assert_eq!(narrow, [Column::Name, Column::Waiters, Column::Oldest, Column::Holder, Column::Gone]);
        for cells in 0..250 {
            assert!(width(&head(&plan(&rows, cells))) <= cells, "{cells}");
        }
    }

    #[test]
    fn names_are_shown_before_addresses() {
        let rows = [Row { name: "n".repeat(23), holder: "h".repeat(20), address: "10.0.0.1:7000".into(), ..Row::default() }];
        assert!(body(&plan(&rows, 90), &rows[0]).contains(&rows[0].name));
        assert!(!head(&plan(&rows, 90)).contains("address") && head(&plan(&rows, 120)).contains("address"));
    }

    #[test]
    fn long_names_take_what_is_left() {
        let rows = [Row { name: "n".repeat(100), holder: "h".repeat(100), ..Row::default() }];
        let widths: usize = plan(&rows, 120).iter().map(|(_, width)| width + GAP).sum();
        assert_eq!(widths, 120 + GAP);
        assert!(body(&plan(&rows, 120), &rows[0]).contains('…'));
    }
}

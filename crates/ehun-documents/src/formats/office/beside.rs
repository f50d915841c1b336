//! What a sheet has beside its cells: which rows and columns are hidden, comments, text boxes, charts, headers, footers.

use std::ops::RangeInclusive;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::opc::Package;
use super::xlsb;
use crate::builder::{DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BlockKind, Layer};

/// Of one sheet. Rows and columns count from 0.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    pub hidden_rows: Vec<RangeInclusive<u32>>,
    pub hidden_columns: Vec<RangeInclusive<u32>>,
    /// Comments on cells.
    pub notes: Vec<String>,
    /// Text boxes, shapes and charts.
    pub boxes: Vec<String>,
    pub headers: Vec<String>,
    pub footers: Vec<String>,
}

impl Beside {
    /// True if a reader does not see the cell.
    pub fn hides(&self, row: u32, column: u32) -> bool {
        let within = |ranges: &[RangeInclusive<u32>], n| ranges.iter().any(|range| range.contains(&n));
        // Rows rise, and there can be a million of them.
        let after = self.hidden_rows.partition_point(|range| *range.start() <= row);
        after.checked_sub(1).is_some_and(|n| self.hidden_rows[n].contains(&row)) || within(&self.hidden_columns, column)
    }

    /// Notes that another row is hidden; rows come in rising order.
    pub fn hide_row(&mut self, row: u32) {
        match self.hidden_rows.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(row) => *last = *last.start()..=row,
            _ => self.hidden_rows.push(row..=row),
        }
    }

    /// Writes all texts, those of the body's margins and those without a place in it.
    pub fn write(self, out: &mut DocumentBuilder, place: Place) -> Result<(), DocumentError> {
        let loose = match place.layer {
            Layer::Body => place.in_layer(Layer::Unplaced),
            _ => place,
        };
        let kinds = [
            (self.headers, BlockKind::PageHeader, place),
            (self.footers, BlockKind::PageFooter, place),
            (self.notes, BlockKind::Footnote, place),
            (self.boxes, BlockKind::Paragraph, loose),
        ];
        for (texts, kind, place) in kinds {
            for text in texts {
                out.push_at(kind.clone(), &text, place)?;
            }
        }
        Ok(())
    }
}

/// Headers and footers hold codes for fonts and fields: `&L&"Arial,Bold"&12Text &P`.
pub(crate) fn without_codes(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '&' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('&') => out.push('&'),
            Some('"') => while chars.next().is_some_and(|c| c != '"') {},
            Some('K') => while chars.next_if(|c| c.is_ascii_hexdigit()).is_some() {},
            Some('L' | 'C' | 'R') => out.push(' '),
            Some(c) if c.is_ascii_digit() => while chars.next_if(char::is_ascii_digit).is_some() {},
            _ => {}
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Of all sheets of an XLSX or XLSB file, in their order.
pub(super) fn of_package(package: &mut Package<'_>, is_binary: bool) -> Result<Vec<Beside>, DocumentError> {
    let usual = if is_binary { "xl/workbook.bin" } else { "xl/workbook.xml" };
    let main = package.related("", "officeDocument")?.unwrap_or_else(|| usual.to_owned());
    let relations = package.relations(&main)?;
    let parts: Vec<Option<String>> = if is_binary {
        let workbook = package.container.read(&main)?.unwrap_or_default();
        let target = |id: String| relations.get(&id).map(|relation| relation.target.clone());
        xlsb::sheets(&workbook).into_iter().map(target).collect()
    } else {
        let Some(tree) = package.tree(&main, None)? else { return Ok(Vec::new()) };
        let list = tree.path(0, &["workbook", "sheets"]);
        let sheets = list.into_iter().flat_map(|list| tree.all(list, "sheet"));
        let target = |sheet| tree.attributes(sheet).find_map(|value| relations.get(value));
        sheets.map(|sheet| target(sheet).map(|relation| relation.target.clone())).collect()
    };
    let mut all = Vec::new();
    for part in parts {
        let mut beside = Beside::default();
        if let Some(part) = part {
            read_sheet(package, &part, is_binary, &mut beside)?;
        }
        all.push(beside);
    }
    Ok(all)
}

fn read_sheet(
    package: &mut Package<'_>,
    part: &str,
    is_binary: bool,
    beside: &mut Beside,
) -> Result<(), DocumentError> {
    let bytes = package.container.read(part)?.unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        _ if is_binary => xlsb::scan(&bytes, beside),
        Ok(source) => scan(source, beside),
        Err(_) => {}
    }
    let mut relations: Vec<_> = package.relations(part)?.into_values().collect();
    relations.sort_by(|a, b| a.target.cmp(&b.target));
    for relation in relations {
        match relation.kind.as_str() {
            "comments" if relation.target.ends_with(".bin") => {
                let part = package.container.read(&relation.target)?.unwrap_or_default();
                beside.notes.extend(xlsb::comments(&part));
            }
            "comments" => {
                let Some(tree) = package.tree(&relation.target, None)? else { continue };
                let comments = tree.descendants(0).filter(|n| tree.name(*n) == "comment");
                beside.notes.extend(comments.map(|n| texts(&tree, n)));
            }
            "drawing" => {
                let Some(tree) = package.tree(&relation.target, None)? else { continue };
                beside.boxes.extend(paragraphs(&tree));
                let mut charts: Vec<_> = package.relations(&relation.target)?.into_values().collect();
                charts.retain(|r| matches!(r.kind.as_str(), "chart" | "chartEx" | "diagramData"));
                charts.sort_by(|a, b| a.target.cmp(&b.target));
                for chart in charts {
                    let tree = package.tree(&chart.target, None)?;
                    beside.boxes.extend(tree.iter().flat_map(paragraphs));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs of text below a node without phonetic guides.
fn texts(tree: &Tree, node: NodeId) -> String {
    let runs = tree.descendants(node).filter(|n| tree.name(*n) == "t");
    runs.map(|n| tree.all_text(n)).collect()
}

/// Paragraphs of DrawingML.
pub(super) fn paragraphs(tree: &Tree) -> Vec<String> {
    let paragraphs = tree.descendants(0).filter(|n| tree.name(*n) == "p");
    paragraphs.map(|p| texts(tree, p)).filter(|text| !text.trim().is_empty()).collect()
}

/// Goes over a sheet's part, which may be too large for a tree.
fn scan(source: &str, beside: &mut Beside) {
    let mut reader = Reader::from_str(source);
    let config = reader.config_mut();
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    let mut row = 0u32;
    let mut margin: Option<bool> = None;
    loop {
        match reader.read_event() {
            Ok(Event::Start(start) | Event::Empty(start)) => {
                let number = |name| attribute(&start, name).and_then(|v| v.parse::<u32>().ok()).filter(|n| *n > 0);
                let hidden = || matches!(attribute(&start, "hidden").as_deref(), Some("1" | "true"));
                let name = start.local_name();
                match name.as_ref() {
                    "row" => {
                        row = number("r").unwrap_or(row.saturating_add(1));
                        if hidden() {
                            beside.hide_row(row - 1);
                        }
                    }
                    "col" if hidden() => {
                        if let (Some(first), Some(last)) = (number("min"), number("max")) {
                            beside.hidden_columns.push(first - 1..=last - 1);
                        }
                    }
                    name => {
                        margin = match name {
                            "oddHeader" | "evenHeader" | "firstHeader" => Some(true),
                            "oddFooter" | "evenFooter" | "firstFooter" => Some(false),
                            _ => None,
                        };
                        if let Some(is_header) = margin {
                            beside.margin(is_header).push(String::new());
                        }
                    }
                }
            }
            Ok(Event::Text(text)) => {
                if let Some(last) = margin.and_then(|is_header| beside.margin(is_header).last_mut()) {
                    last.push_str(&text);
                }
            }
            Ok(Event::GeneralRef(name)) => {
                if let Some(last) = margin.and_then(|is_header| beside.margin(is_header).last_mut()) {
                    last.push_str(quick_xml::escape::resolve_xml_entity(&name).unwrap_or_default());
                }
            }
            Ok(Event::End(_)) => margin = None,
            Ok(Event::Eof) | Err(_) => break,
            Ok(_) => {}
        }
    }
    for texts in [&mut beside.headers, &mut beside.footers] {
        *texts = texts.iter().map(|text| without_codes(text)).collect();
        texts.dedup();
    }
    beside.hidden_rows.sort_by_key(|range| *range.start());
}

impl Beside {
    fn margin(&mut self, is_header: bool) -> &mut Vec<String> {
        if is_header { &mut self.headers } else { &mut self.footers }
    }
}

/// The value of an attribute by its local name, as it is written.
pub(super) fn attribute(start: &BytesStart<'_>, wanted: &str) -> Option<String> {
    let mut attributes = start.attributes();
    let attributes = attributes.with_checks(false).flatten();
    let mut found = attributes.filter(|a| a.key.local_name().as_ref() == wanted);
    found.next().map(|a| a.value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_margins() {
        for (source, text) in [
            ("&L&\"Arial,Bold\"&12Quarter &D&RPage &P of &N", "Quarter Page of"),
            ("&CR&&D &K00FF00green", "R&D green"),
            ("&", ""),
        ] {
            assert_eq!(without_codes(source), text);
        }
    }

    #[test]
    fn rows_and_columns() {
        let mut beside = Beside::default();
        scan(
            "<worksheet><cols><col min='3' max='4' hidden='1'/></cols><sheetData><row hidden='1'/><row r='2' hidden='true'>\
             <c/></row><row r='9' hidden='1'/></sheetData><headerFooter><oddHeader>&amp;LA &amp;amp; B</oddHeader>\
             </headerFooter></worksheet>",
            &mut beside,
        );
        assert_eq!(
            (beside.hidden_rows.as_slice(), beside.hidden_columns.as_slice()),
            ([0..=1, 8..=8].as_slice(), [2..=3].as_slice())
        );
        assert_eq!(
            [(0, 0), (2, 0), (8, 9), (2, 3), (9, 4)].map(|(r, c)| beside.hides(r, c)),
            [true, false, true, true, false]
        );
    }
}

//! What the reader of ODS leaves out: hidden rows and columns, comments, text boxes of a sheet.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::beside::{Beside, attribute};

/// Of all sheets, from `content.xml`, which may be too large for a tree.
pub(super) fn beside(content: &str) -> Vec<Beside> {
    let mut reader = Reader::from_str(content);
    let config = reader.config_mut();
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    let mut scan = Scan::default();
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => scan.start(&start, false),
            Ok(Event::Empty(start)) => scan.start(&start, true),
            Ok(Event::End(end)) => scan.end(end.local_name().as_ref()),
            Ok(Event::Text(text)) => scan.text(&text),
            Ok(Event::GeneralRef(name)) => match name.resolve_char_ref() {
                Ok(Some(c)) => scan.text(c.encode_utf8(&mut [0; 4])),
                _ => scan.text(quick_xml::escape::resolve_xml_entity(&name).unwrap_or_default()),
            },
            Ok(Event::Eof) | Err(_) => break,
            Ok(_) => {}
        }
    }
    scan.sheets
}

#[derive(Default)]
struct Scan {
    sheets: Vec<Beside>,
    /// Tables around the place: one within a sheet's shapes is no sheet.
    tables: u32,
    row: u32,
    column: u32,
    /// Groups of rows or columns around the place, and whether each is folded away.
    groups: Vec<bool>,
    within: Option<Within>,
    /// Lines of the comment or shape so far.
    lines: Vec<String>,
    in_paragraph: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Comment,
    Shapes,
}

impl Scan {
    fn start(&mut self, start: &BytesStart<'_>, is_empty: bool) {
        let name = start.local_name();
        let is = |name: &str, values: &[&str]| attribute(start, name).is_some_and(|v| values.contains(&v.as_str()));
        let repeated = |name: &str| attribute(start, name).and_then(|v| v.parse::<u32>().ok()).unwrap_or(1).max(1);
        match name.as_ref() {
            "table" if !is_empty => {
                self.tables += 1;
                if self.tables == 1 {
                    self.sheets.push(Beside::default());
                    (self.row, self.column) = (0, 0);
                }
            }
            "table-row-group" | "table-column-group" if !is_empty => self.groups.push(is("display", &["false"])),
            name @ ("table-row" | "table-column") if self.tables == 1 => {
                let is_row = name == "table-row";
                let count = repeated(if is_row { "number-rows-repeated" } else { "number-columns-repeated" });
                let first = if is_row { self.row } else { self.column };
                let after = first.saturating_add(count);
                *(if is_row { &mut self.row } else { &mut self.column }) = after;
                let hidden = is("visibility", &["collapse", "filter"]) || self.groups.contains(&true);
                if let (true, Some(sheet)) = (hidden, self.sheets.last_mut()) {
                    let ranges = if is_row { &mut sheet.hidden_rows } else { &mut sheet.hidden_columns };
                    match ranges.last_mut() {
                        Some(last) if last.end().checked_add(1) == Some(first) => *last = *last.start()..=after - 1,
                        _ => ranges.push(first..=after - 1),
                    }
                }
            }
            "annotation" if !is_empty => self.begin(Within::Comment),
            "shapes" if !is_empty && self.tables == 1 => self.begin(Within::Shapes),
            "p" if self.within.is_some() && !is_empty => {
                self.in_paragraph = true;
                self.lines.push(String::new());
            }
            "s" => self.text(" "),
            "tab" => self.text("\t"),
            "line-break" => self.text("\n"),
            _ => {}
        }
    }

    fn begin(&mut self, within: Within) {
        // A comment on a shape is text among the shapes.
        if self.within.is_none() {
            self.within = Some(within);
            self.lines.clear();
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "table" => self.tables = self.tables.saturating_sub(1),
            "table-row-group" | "table-column-group" => drop(self.groups.pop()),
            "p" => self.in_paragraph = false,
            "annotation" if self.within == Some(Within::Comment) => {
                self.within = None;
                let text = self.lines.join("\n");
                if let Some(sheet) = self.sheets.last_mut() {
                    sheet.notes.push(text);
                }
            }
            "shapes" if self.within == Some(Within::Shapes) => {
                self.within = None;
                if let Some(sheet) = self.sheets.last_mut() {
                    sheet.boxes.append(&mut self.lines);
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let (true, Some(line)) = (self.in_paragraph, self.lines.last_mut()) {
            line.push_str(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_columns_comments_and_shapes() {
        let sheets = beside(
            "<table:table table:name='A'><table:shapes><draw:custom-shape><text:p>In a <text:span>shape</text:span></text:p>\
             </draw:custom-shape></table:shapes><table:table-column table:number-columns-repeated='2'/>\
             <table:table-column table:visibility='collapse'/><table:table-row><table:table-cell office:value='1'>\
             <office:annotation><dc:creator>Nobody</dc:creator><text:p>Who &amp; why?</text:p><text:p>When</text:p>\
             </office:annotation><text:p>1</text:p></table:table-cell></table:table-row>\
             <table:table-row table:visibility='filter' table:number-rows-repeated='3'><table:table-cell/></table:table-row>\
             <table:table-row-group table:display='false'><table:table-row/><table:table-row/></table:table-row-group>\
             <table:table-row/></table:table><table:table table:name='B'><table:table-row/>\
             <table:table-row table:visibility='collapse'/></table:table>",
        );
        assert_eq!(sheets.len(), 2);
        assert_eq!(sheets[0].notes, ["Who & why?\nWhen"]);
        assert_eq!(sheets[0].boxes, ["In a shape"]);
        assert_eq!(
            (sheets[0].hidden_rows.as_slice(), sheets[0].hidden_columns.as_slice()),
            (&[1..=5][..], &[2..=2][..])
        );
        assert_eq!(sheets[1].hidden_rows, [1..=1]);
    }
}

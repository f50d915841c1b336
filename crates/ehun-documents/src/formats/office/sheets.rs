//! Spreadsheets: XLSX, XLSB, XLS and ODS. Each sheet is a page with a heading and a table.

use std::io::Cursor;

use calamine::{Cell, Data, DataRef, DataType, Ods, Reader, SheetVisible, Sheets, Xls, Xlsb, Xlsx};

use super::beside::{self, Beside};
use super::ods;
use super::opc::Package;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::container::Container;
use crate::formats::{ParseOptions, ole};
use crate::model::{BlockKind, Document, HiddenReason, Layer, PageInfo, PageStatus};

/// Parses a workbook. Formulas give their stored values.
pub(crate) fn parse(bytes: &[u8], media_type: &str, options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut out = DocumentBuilder::new(media_type, limits);
    let mut is_binary = false;
    let mut beside = Vec::new();
    if bytes.starts_with(b"PK") {
        // The reader below knows no limits: bombs are found before it sees them.
        let mut container = Container::open(bytes, "spreadsheet", limits)?;
        for index in 0..container.len() {
            is_binary |= container.entry(index).is_ok_and(|e| e.name.ends_with("workbook.bin"));
            match container.read_index(index) {
                Err(e @ (DocumentError::LimitExceeded { .. } | DocumentError::Encrypted { .. })) => return Err(e),
                _ => continue,
            }
        }
        if media_type != super::ODS {
            let mut package = Package::open(bytes, "spreadsheet", limits)?;
            package.properties(&mut out)?;
            beside = beside::of_package(&mut package, is_binary)?;
        } else if let Some(content) = container.read("content.xml")?
            && let Ok(content) = std::str::from_utf8(&content)
        {
            beside = ods::beside(content);
        }
    } else if media_type == super::XLS {
        beside = ole::xls_beside(bytes, limits)?;
    }
    let mut beside = beside.into_iter();
    let mut workbook = open(bytes, media_type, is_binary).map_err(|reason| {
        match reason.to_ascii_lowercase().contains("password") {
            true => DocumentError::Encrypted { format: "spreadsheet".to_owned() },
            false => DocumentError::malformed("spreadsheet", reason),
        }
    })?;
    let sheets = workbook.sheets_metadata().to_vec();
    for (sheet, number) in sheets.iter().zip(1u32..) {
        let mut place = Place::on_page(number, None);
        if sheet.visible != SheetVisible::Visible {
            place = place.in_layer(Layer::Hidden(HiddenReason::LayerOff));
        }
        let beside = beside.next().unwrap_or_default();
        let before = out.text_len();
        let status = match cells(&mut workbook, &sheet.name) {
            Err(reason) => {
                let reason = format!("sheet {}: {reason}", sheet.name);
                out.warn(reason.clone());
                PageStatus::Failed { reason }
            }
            Ok(cells) => {
                write_sheet(&mut out, &sheet.name, cells, &beside, place)?;
                PageStatus::Text
            }
        };
        beside.write(&mut out, place)?;
        let status = match status {
            PageStatus::Text if out.text_len() == before => PageStatus::Empty,
            status => status,
        };
        out.push_page(PageInfo { number, width: 0.0, height: 0.0, status });
    }
    out.finish()
}

/// A cell that is not empty: row, column, text.
type Filled = (u32, u32, String);

/// Cells of a sheet, row by row. Only those that hold something: one far away from the others costs no more than itself.
fn cells(workbook: &mut Sheets<Cursor<&[u8]>>, sheet: &str) -> Result<Vec<Filled>, String> {
    let mut filled = Vec::new();
    let mut add = |(row, column): (u32, u32), text: String| {
        if !text.trim().is_empty() {
            filled.push((row, column, text));
        }
    };
    let of_ref = |cell: &Cell<DataRef<'_>>| cell_text(&Data::from(cell.get_value().clone()));
    match workbook {
        Sheets::Xlsx(book) => {
            let mut reader = book.worksheet_cells_reader(sheet).map_err(|e| e.to_string())?;
            while let Some(cell) = reader.next_cell().map_err(|e| e.to_string())? {
                add(cell.get_position(), of_ref(&cell));
            }
        }
        Sheets::Xlsb(book) => {
            let mut reader = book.worksheet_cells_reader(sheet).map_err(|e| e.to_string())?;
            while let Some(cell) = reader.next_cell().map_err(|e| e.to_string())? {
                add(cell.get_position(), of_ref(&cell));
            }
        }
        _ => {
            let range = workbook.worksheet_range(sheet).map_err(|e| e.to_string())?;
            let (top, left) = range.start().unwrap_or_default();
            for (row, column, cell) in range.used_cells().filter(|(.., cell)| !cell.is_empty()) {
                add((top + row as u32, left + column as u32), cell_text(cell));
            }
        }
    }
    filled.sort_by_key(|(row, column, _)| (*row, *column));
    Ok(filled)
}

/// A heading and a table; what is in hidden rows and columns is a table of its own.
fn write_sheet(
    out: &mut DocumentBuilder,
    name: &str,
    cells: Vec<Filled>,
    beside: &Beside,
    place: Place,
) -> Result<(), DocumentError> {
    if cells.is_empty() {
        return Ok(());
    }
    out.push_at(BlockKind::Heading { level: 1 }, name, place)?;
    let (hidden, seen): (Vec<Filled>, Vec<Filled>) =
        cells.into_iter().partition(|(row, column, _)| beside.hides(*row, *column));
    let hidden_place = match place.layer {
        Layer::Body => place.in_layer(Layer::Hidden(HiddenReason::Marked)),
        _ => place,
    };
    for (cells, place) in [(seen, place), (hidden, hidden_place)] {
        let rows = rows(cells);
        let header_rows = usize::from(rows.len() > 1);
        out.push_table(rows, header_rows, place)?;
    }
    Ok(())
}

/// Cells that empty ones may fill up to in all.
const MOST_FILL: usize = 1 << 20;

/// Rows of equal columns. Columns in which nothing stands are left out; where filling up would cost more than the cells
/// themselves, as on a sheet with one long diagonal, it is left out, too.
fn rows(cells: Vec<Filled>) -> Vec<Vec<CellText>> {
    let mut columns: Vec<u32> = cells.iter().map(|(_, column, _)| *column).collect();
    columns.sort_unstable();
    columns.dedup();
    let row_count = cells.chunk_by(|a, b| a.0 == b.0).count();
    let fills = row_count.saturating_mul(columns.len()) <= MOST_FILL.max(8 * cells.len());
    let mut rows: Vec<Vec<CellText>> = Vec::with_capacity(row_count);
    let mut current = None;
    for (row, column, text) in cells {
        if current != Some(row) {
            current = Some(row);
            rows.push(Vec::new());
        }
        let Some(cells) = rows.last_mut() else { continue };
        if let (true, Ok(at)) = (fills, columns.binary_search(&column)) {
            cells.resize_with(cells.len().max(at), || CellText::from(""));
        }
        cells.push(text.into());
    }
    rows
}

fn open<'b>(bytes: &'b [u8], media_type: &str, is_binary: bool) -> Result<Sheets<Cursor<&'b [u8]>>, String> {
    let reader = Cursor::new(bytes);
    match media_type {
        super::XLS => Xls::new(reader).map(Sheets::Xls).map_err(|e| e.to_string()),
        super::ODS => Ods::new(reader).map(Sheets::Ods).map_err(|e| e.to_string()),
        _ if is_binary => Xlsb::new(reader).map(Sheets::Xlsb).map_err(|e| e.to_string()),
        _ => Xlsx::new(reader).map(Sheets::Xlsx).map_err(|e| e.to_string()),
    }
}

fn cell_text(cell: &Data) -> String {
    match cell {
        Data::DateTime(value) if value.is_duration() => format!("{} days", value.as_f64()),
        Data::DateTime(value) => {
            let (year, month, day, hour, minute, second, _) = value.to_ymd_hms_milli();
            match (hour, minute, second) {
                (0, 0, 0) => format!("{year:04}-{month:02}-{day:02}"),
                _ => format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"),
            }
        }
        other => other.to_string(),
    }
}

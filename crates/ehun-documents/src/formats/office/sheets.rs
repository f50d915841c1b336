//! Spreadsheets: XLSX, XLSB, XLS and ODS. Each sheet is a page with a heading and a table.

use std::io::Cursor;

use calamine::{Data, Ods, Reader, SheetVisible, Sheets, Xls, Xlsb, Xlsx};

use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::container::Container;
use crate::model::{BlockKind, Document, HiddenReason, Layer, PageInfo, PageStatus};

/// Parses a workbook. Formulas give their stored values.
pub(crate) fn parse(bytes: &[u8], media_type: &str, options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut out = DocumentBuilder::new(media_type, limits);
    let mut is_binary = false;
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
            super::opc::Package::open(bytes, "spreadsheet", limits)?.properties(&mut out)?;
        }
    }
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
        let status = match workbook.worksheet_range(&sheet.name) {
            Err(e) => {
                let reason = format!("sheet {}: {e}", sheet.name);
                out.warn(reason.clone());
                PageStatus::Failed { reason }
            }
            Ok(range) => {
                let rows: Vec<Vec<CellText>> =
                    range.rows().map(|row| row.iter().map(|cell| cell_text(cell).into()).collect()).collect();
                if rows.iter().flatten().all(|c: &CellText| c.text.is_empty()) {
                    PageStatus::Empty
                } else {
                    out.push_at(BlockKind::Heading { level: 1 }, &sheet.name, place)?;
                    let header_rows = usize::from(rows.len() > 1);
                    out.push_table(rows, header_rows, place)?;
                    PageStatus::Text
                }
            }
        };
        out.push_page(PageInfo { number, width: 0.0, height: 0.0, status });
    }
    out.finish()
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

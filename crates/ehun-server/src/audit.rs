//! The audit log: every change of a service, one JSON object a line, appended and synced before the change is answered.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

/// One change.
#[derive(Debug, Clone, Serialize)]
pub struct Record<'a> {
    /// Name of the key that asked for it; `local` where there are no keys, `server` for what it did by itself.
    pub who: &'a str,
    /// The service, or `*` for all.
    pub service: &'a str,
    /// What: `swap`, `shadow`, `canary`, `promote`, `abort`, `return`, `reload`, `load`, `unload`.
    pub what: &'a str,
    /// What served before.
    pub from: &'a str,
    /// What was to serve, or to be tried.
    pub to: &'a str,
    /// How it ended: `done`, `started`, `refused`, `failed`.
    pub outcome: &'a str,
    /// Why, where it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// What was measured.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub figures: Value,
}

/// Where changes are written.
pub struct Audit {
    path: Option<PathBuf>,
    file: Option<Mutex<File>>,
}

impl Audit {
    /// To the end of `path`; to standard error where there is none.
    pub fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path).map(Mutex::new);
        Ok(Self { path: path.map(Path::to_owned), file: path.map(open).transpose()? })
    }

    /// Writes `record`. What cannot be written goes to standard error, with the reason: a full disk must not keep anyone from
    /// taking a bad model out.
    pub fn write(&self, record: &Record<'_>) {
        let mut line = match serde_json::to_value(record) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        line.insert("time".to_owned(), Value::String(timestamp(SystemTime::now())));
        let line = format!("{}\n", Value::Object(line));
        let Some(file) = &self.file else { return eprint!("audit {line}") };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_data()) {
            let path = self.path.as_deref().unwrap_or(Path::new("")).display();
            eprint!("ehun: the audit log {path} cannot be written: {error}\naudit {line}");
        }
    }
}

/// `2026-12-02T01:58:30Z`.
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": days since 1970 as a date of the Gregorian calendar.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps() {
        // As `date -u -d @SECONDS` has them.
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_796_176_710, "2026-12-02T01:58:30Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }
}

//! Running the command and reading what it wrote.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arrow_array::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// What a run gave.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Checks the exit code and gives standard output.
    #[track_caller]
    pub fn expect(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ehun"));
    command.args(arguments).current_dir(root());
    command
}

pub fn ehun(arguments: &[&str]) -> Ran {
    with_input(arguments, b"")
}

pub fn with_input(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child =
        command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// XLA's CPU plugin, where it was fetched.
pub fn xla_cpu_plugin() -> Option<PathBuf> {
    let path = root().join(".cache/plugins/xla-cpu/pjrt_c_api_cpu_plugin.so");
    path.exists().then_some(path)
}

/// ONNX Runtime's library, where it was fetched.
pub fn onnxruntime() -> Option<PathBuf> {
    let files = std::fs::read_dir(root().join(".cache/plugins/onnxruntime")).ok()?;
    let mut paths = files.flatten().map(|entry| entry.path());
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so")))
}

/// All rows of a table, in one batch.
pub fn table(path: &Path) -> RecordBatch {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let schema = builder.schema().clone();
    let mut batches = builder.with_batch_size(1 << 20).build().unwrap();
    let first = batches.next().map_or_else(|| RecordBatch::new_empty(schema), Result::unwrap);
    assert!(batches.next().is_none(), "{} has more rows than the test expects", path.display());
    first
}

/// The texts of a column.
pub fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    use arrow_array::{Array, StringArray};
    let column = batch.column_by_name(column).unwrap().as_any().downcast_ref::<StringArray>().unwrap();
    (0..column.len()).map(|i| if column.is_null(i) { String::new() } else { column.value(i).to_owned() }).collect()
}

/// Writes files of these names and contents.
pub fn write_all(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, content) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

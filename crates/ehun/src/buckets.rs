//! `--buckets`, `--lengths` and `--sample`, or `buckets` of a service: the static shapes of backends that have them.

use std::path::{Path, PathBuf};

use clap::Args;
use ehun_backend::{BucketChoice, BucketSource};

use crate::error::CommandError;

/// Most lengths that are taken from a histogram or a sample; larger ones are scaled down to it.
const MOST: u64 = 1 << 20;

/// Flags about static shapes.
#[derive(Debug, Clone, Default, Args)]
pub struct BucketArgs {
    /// Static shapes of a backend that has them: auto, or a list of batch x length. auto chooses at most 24 by --lengths or
    /// --sample, or else for lengths spread over all octaves
    #[arg(long, value_name = "auto|BxL[,BxL...]")]
    buckets: Option<String>,
    /// The histogram that the shapes are chosen by: lines of a length in tokens, or of a length and a count
    #[arg(long, value_name = "FILE")]
    lengths: Option<PathBuf>,
    /// The sample that the shapes are chosen by: a text a line, of which the tokens are counted
    #[arg(long, value_name = "FILE", conflicts_with = "lengths")]
    sample: Option<PathBuf>,
}

impl BucketArgs {
    /// What the flags say.
    fn source(&self) -> Result<BucketSource, CommandError> {
        let named = |reason: String| CommandError::Usage(format!("--buckets: {reason}"));
        let source = self.buckets.as_deref().map_or(Ok(BucketSource::Auto), str::parse).map_err(named)?;
        let files = (self.lengths.as_ref(), self.sample.as_ref());
        match (source, files) {
            (source, (None, None)) => Ok(source),
            (BucketSource::Auto, (Some(path), _)) => Ok(BucketSource::Lengths(path.clone())),
            (BucketSource::Auto, (None, Some(path))) => Ok(BucketSource::Sample(path.clone())),
            _ => {
                let reason = "a list of --buckets leaves nothing to choose by --lengths or --sample";
                Err(CommandError::Usage(reason.into()))
            }
        }
    }

    /// What was asked for. `count` gives the tokens of a text.
    pub fn choice(&self, count: &Count<'_>) -> Result<BucketChoice, CommandError> {
        choice(&self.source()?, count)
    }
}

/// Gives the tokens of a text.
pub type Count<'a> = dyn Fn(&str) -> Result<usize, CommandError> + 'a;

/// What `source` comes to: its file is read.
pub fn choice(source: &BucketSource, count: &Count<'_>) -> Result<BucketChoice, CommandError> {
    match source {
        BucketSource::Auto => Ok(BucketChoice::Default),
        BucketSource::List(list) => Ok(BucketChoice::List(list.clone())),
        BucketSource::Lengths(path) => {
            let counts = ehun_backend::buckets::histogram(&read(path)?)
                .map_err(|reason| CommandError::Usage(format!("{}: {reason}", path.display())))?;
            Ok(BucketChoice::Sample(spread(&counts)))
        }
        BucketSource::Sample(path) => {
            let text = read(path)?;
            let texts = text.lines().filter(|line| !line.trim().is_empty()).take(MOST as usize);
            let lengths = texts.map(count).collect::<Result<Vec<usize>, CommandError>>()?;
            if lengths.is_empty() {
                return Err(CommandError::Usage(format!("{}: there is no text in it", path.display())));
            }
            Ok(BucketChoice::Sample(lengths))
        }
    }
}

/// Says on standard error which of `backends`, each with whether it has static shapes, do nothing with `choice`, and refuses
/// it where that is all of them.
pub fn heeded(choice: &BucketChoice, backends: &[(String, bool)]) -> Result<(), CommandError> {
    for name in without_shapes(choice, backends)? {
        eprintln!("ehun: the buckets are not for {name}, which takes batches of any shape");
    }
    Ok(())
}

fn without_shapes<'a>(choice: &BucketChoice, backends: &'a [(String, bool)]) -> Result<Vec<&'a str>, CommandError> {
    if *choice == BucketChoice::Default {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = backends.iter().filter(|(_, has)| !has).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() || names.len() < backends.len() {
        return Ok(names);
    }
    let reason = format!(
        "buckets are asked for, but {} takes batches of any shape and compiles none; leave them out (`auto`), or name a \
         backend with static shapes such as xla:cpu",
        names.join(", ")
    );
    Err(CommandError::Usage(reason))
}

fn read(path: &Path) -> Result<String, CommandError> {
    std::fs::read_to_string(path).map_err(CommandError::io(path.display().to_string()))
}

/// The lengths of a histogram one by one, at most about [`MOST`] of them; each length that occurs stays at least once.
fn spread(counts: &[(usize, u64)]) -> Vec<usize> {
    let total: u64 = counts.iter().map(|(_, count)| count).fold(0, |sum, count| sum.saturating_add(*count));
    let share = |count: u64| if total <= MOST { count } else { (count as f64 * MOST as f64 / total as f64) as u64 };
    let each = |&(length, count): &(usize, u64)| std::iter::repeat_n(length, share(count).max(1) as usize);
    counts.iter().flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(buckets: Option<&str>, lengths: Option<&str>) -> Result<BucketChoice, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        if let Some(text) = lengths {
            std::fs::write(file.path(), text).unwrap();
        }
        let arguments = BucketArgs {
            buckets: buckets.map(str::to_owned),
            lengths: lengths.map(|_| file.path().to_owned()),
            sample: None,
        };
        arguments.choice(&|text| Ok(text.len())).map_err(|error| error.to_string())
    }

    #[test]
    fn shapes_are_a_list_or_chosen() {
        assert_eq!(asked(Some("2x8,1x4"), None).unwrap(), BucketChoice::List(vec![(2, 8), (1, 4)]));
        assert_eq!(asked(None, None).unwrap(), BucketChoice::Default);
        assert_eq!(asked(Some("auto"), Some("3\n5 2\n")).unwrap(), BucketChoice::Sample(vec![3, 5, 5]));
        for (buckets, lengths, words) in [
            ("2x", None, "--buckets: `2x` is neither auto nor BATCHxLENGTH"),
            ("auto,2x8", None, "BATCHxLENGTH"),
            ("2x8", Some("3\n"), "leaves nothing to choose"),
            ("auto", Some("a text\n"), "line 1"),
        ] {
            let error = asked(Some(buckets), lengths).unwrap_err();
            assert!(error.contains(words), "{buckets}: {error}");
        }
    }

    #[test]
    fn shapes_that_no_backend_has_are_refused() {
        let list = BucketChoice::List(vec![(2, 8)]);
        let named = |backends: &[(&str, bool)]| -> Vec<(String, bool)> {
            backends.iter().map(|&(name, has)| (name.to_owned(), has)).collect()
        };
        let mixed = named(&[("xla:cpu", true), ("cpu", false)]);
        assert_eq!(without_shapes(&list, &mixed).unwrap(), ["cpu"]);
        assert!(without_shapes(&list, &mixed[..1]).unwrap().is_empty());
        let error = without_shapes(&list, &mixed[1..]).unwrap_err().to_string();
        assert!(error.contains("cpu takes batches of any shape"), "{error}");
        assert!(without_shapes(&BucketChoice::Default, &mixed[1..]).unwrap().is_empty());
    }

    #[test]
    fn a_large_histogram_is_scaled_down_and_loses_no_length() {
        let lengths = spread(&[(7, 1), (100, 10 * MOST), (300, 10 * MOST)]);
        let count = |length| lengths.iter().filter(|&&l| l == length).count() as u64;
        assert_eq!((count(7), count(100)), (1, count(300)));
        assert!(lengths.len() as u64 <= MOST + 1);
    }
}

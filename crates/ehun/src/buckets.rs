//! `--buckets`, `--lengths` and `--sample`: the static shapes of backends that have them.

use std::path::{Path, PathBuf};

use clap::Args;
use ehun_backend::BucketChoice;

use crate::error::CommandError;

/// Most lengths that are taken from a histogram or a sample; larger ones are scaled down to it.
const MOST: u64 = 1 << 20;

/// Flags about static shapes.
#[derive(Debug, Clone, Default, Args)]
pub struct BucketArgs {
    /// Static shapes of a backend that has them: auto, or a list of batch x length. auto chooses at most 24 by --lengths or
    /// --sample, or else for lengths spread over all octaves
    #[arg(long, value_name = "auto|BxL[,BxL...]", value_delimiter = ',')]
    buckets: Vec<String>,
    /// The histogram that the shapes are chosen by: lines of a length in tokens, or of a length and a count
    #[arg(long, value_name = "FILE")]
    lengths: Option<PathBuf>,
    /// The sample that the shapes are chosen by: a text a line, of which the tokens are counted
    #[arg(long, value_name = "FILE", conflicts_with = "lengths")]
    sample: Option<PathBuf>,
}

impl BucketArgs {
    /// What was asked for. `count` gives the tokens of a text.
    pub fn choice(&self, count: &dyn Fn(&str) -> Result<usize, CommandError>) -> Result<BucketChoice, CommandError> {
        let listed = self.buckets.iter().any(|shape| shape != "auto");
        if listed && (self.lengths.is_some() || self.sample.is_some()) {
            let reason = "a list of --buckets leaves nothing to choose by --lengths or --sample";
            return Err(CommandError::Usage(reason.into()));
        }
        if listed {
            let list: Option<Vec<(usize, usize)>> = self.buckets.iter().map(|shape| parse(shape)).collect();
            let wrong = || CommandError::Usage("--buckets takes auto or BATCHxLENGTH, for example 32x128,8x512".into());
            return Ok(BucketChoice::List(list.ok_or_else(wrong)?));
        }
        if let Some(path) = &self.lengths {
            let counts = ehun_backend::buckets::histogram(&read(path)?)
                .map_err(|reason| CommandError::Usage(format!("{}: {reason}", path.display())))?;
            return Ok(BucketChoice::Sample(spread(&counts)));
        }
        if let Some(path) = &self.sample {
            let text = read(path)?;
            let texts = text.lines().filter(|line| !line.trim().is_empty()).take(MOST as usize);
            let lengths = texts.map(count).collect::<Result<Vec<usize>, CommandError>>()?;
            if lengths.is_empty() {
                return Err(CommandError::Usage(format!("{}: there is no text in it", path.display())));
            }
            return Ok(BucketChoice::Sample(lengths));
        }
        Ok(BucketChoice::Default)
    }
}

fn parse(shape: &str) -> Option<(usize, usize)> {
    let (batch, length) = shape.split_once('x')?;
    Some((batch.parse().ok()?, length.parse().ok()?))
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

    fn choice(buckets: &[&str], lengths: Option<&str>) -> Result<BucketChoice, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        if let Some(text) = lengths {
            std::fs::write(file.path(), text).unwrap();
        }
        let arguments = BucketArgs {
            buckets: buckets.iter().map(|&shape| shape.to_owned()).collect(),
            lengths: lengths.map(|_| file.path().to_owned()),
            sample: None,
        };
        arguments.choice(&|text| Ok(text.len())).map_err(|error| error.to_string())
    }

    #[test]
    fn shapes_are_a_list_or_chosen() {
        assert_eq!(choice(&["2x8", "1x4"], None).unwrap(), BucketChoice::List(vec![(2, 8), (1, 4)]));
        assert_eq!(choice(&[], None).unwrap(), BucketChoice::Default);
        assert_eq!(choice(&["auto"], Some("3\n5 2\n")).unwrap(), BucketChoice::Sample(vec![3, 5, 5]));
        for (buckets, lengths, words) in [
            (&["2x"][..], None, "BATCHxLENGTH"),
            (&["auto", "2x8"], None, "BATCHxLENGTH"),
            (&["2x8"], Some("3\n"), "leaves nothing to choose"),
            (&["auto"], Some("a text\n"), "line 1"),
        ] {
            assert!(choice(buckets, lengths).unwrap_err().contains(words), "{buckets:?}");
        }
    }

    #[test]
    fn a_large_histogram_is_scaled_down_and_loses_no_length() {
        let lengths = spread(&[(7, 1), (100, 10 * MOST), (300, 10 * MOST)]);
        let count = |length| lengths.iter().filter(|&&l| l == length).count() as u64;
        assert_eq!((count(7), count(100)), (1, count(300)));
        assert!(lengths.len() as u64 <= MOST + 1);
    }
}

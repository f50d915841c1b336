//! Symbolic sizes in a StableHLO file: `${...}` around an expression of `batch` and `length`.
//!
//! `tensor<${batch}x12x${length}x64xbf16>` is a type for every bucket, `dense<${length / 128 - 1}>` the last step of a loop.
//! An expression has whole numbers, the two names, `+ - * /` with the usual precedence, and parentheses. A division must
//! come out even and a result must not be negative: a function that is only made for multiples of 128 is refused for
//! other lengths by this, with the expression in the message.

use ehun_backend::Bucket;

/// `text` with every `${...}` replaced by its value for `bucket`. The error shows the expression.
pub fn filled(text: &str, bucket: Bucket) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        result.push_str(&rest[..at]);
        let inside = &rest[at + 2..];
        let end = inside.find('}').ok_or_else(|| format!("`${{{}` is not closed", short(inside)))?;
        let expression = &inside[..end];
        let value = Parser { rest: expression, bucket, depth: 0 }
            .whole()
            .map_err(|reason| format!("size `${{{}}}` for bucket {bucket}: {reason}", short(expression)))?;
        result.push_str(&value.to_string());
        rest = &inside[end + 1..];
    }
    result.push_str(rest);
    Ok(result)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Parentheses deeper than this are refused: a file is untrusted, and the parser recurses.
const DEPTH: usize = 32;

struct Parser<'a> {
    rest: &'a str,
    bucket: Bucket,
    depth: usize,
}

impl Parser<'_> {
    fn whole(mut self) -> Result<i64, String> {
        let value = self.sum()?;
        self.skip();
        match (self.rest, value) {
            ("", 0..) => Ok(value),
            ("", _) => Err(format!("{value} is below 0")),
            (rest, _) => Err(format!("`{rest}` is not expected")),
        }
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes the next character where it is one of `wanted`.
    fn take(&mut self, wanted: &[char]) -> Option<char> {
        self.skip();
        let next = self.rest.chars().next().filter(|next| wanted.contains(next))?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        while let Some(operation) = self.take(&['+', '-']) {
            let next = self.product()?;
            let result = if operation == '+' { value.checked_add(next) } else { value.checked_sub(next) };
            value = result.ok_or("it is too large")?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.factor()?;
        while let Some(operation) = self.take(&['*', '/']) {
            let next = self.factor()?;
            value = match (operation, next) {
                ('*', _) => value.checked_mul(next).ok_or("it is too large")?,
                (_, 0) => return Err("it divides by 0".to_owned()),
                _ if value % next != 0 => return Err(format!("{value} is no multiple of {next}")),
                _ => value / next,
            };
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<i64, String> {
        if self.take(&['(']).is_some() {
            self.depth += 1;
            if self.depth > DEPTH {
                return Err("there are too many parentheses".to_owned());
            }
            let value = self.sum()?;
            self.depth -= 1;
            return if self.take(&[')']).is_some() { Ok(value) } else { Err("a `)` is missing".to_owned()) };
        }
        self.skip();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let size = |size: usize| i64::try_from(size).map_err(|_| "it is too large".to_owned());
        match word {
            "batch" => size(self.bucket.batch),
            "length" => size(self.bucket.length),
            number => {
                number.parse().map_err(|_| format!("`{word}` is neither a whole number nor `batch` nor `length`"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_filled_in_or_refused() {
        let bucket = Bucket { batch: 4, length: 256 };
        for (text, wanted) in [
            ("tensor<${batch}x12x${length}x64xf32>", "tensor<4x12x256x64xf32>"),
            ("${ length/128 - 1 }", "1"),
            ("${2*(batch+3)*length}", "3584"),
            ("${10-2-3} ${7}", "5 7"),
            ("no sizes {here} $", "no sizes {here} $"),
        ] {
            assert_eq!(filled(text, bucket).unwrap(), wanted);
        }
        for (text, words) in [
            ("${length / 96}", "256 is no multiple of 96"),
            ("${batch", "not closed"),
            ("${heads}", "`heads` is neither"),
            ("${batch - 5}", "-1 is below 0"),
            ("${1/0}", "divides by 0"),
            ("${(1}", "`)` is missing"),
            ("${1 2}", "`2` is not expected"),
            ("${9223372036854775807 * 2}", "too large"),
            ("${-}", "neither"),
        ] {
            let reason = filled(text, bucket).unwrap_err();
            assert!(reason.contains(words), "{text}: {reason}");
        }
        assert!(filled(&format!("${{{}1", "(".repeat(1000)), bucket).is_err());
        let deep = format!("${{{}1{}}}", "(".repeat(1000), ")".repeat(1000));
        assert!(filled(&deep, bucket).unwrap_err().contains("too many"));
    }
}

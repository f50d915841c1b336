//! Rotary embeddings as configurations name them: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` before.

use ehun_graph::{RotaryScaling, RotarySpec};

use crate::config::Config;
use crate::error::Result;

/// What a family knows about its rotary embedding beside the configuration.
pub(crate) struct Defaults {
    /// Width of a head.
    pub head_dim: usize,
    /// Base where the configuration has none.
    pub theta: f64,
    /// `max_position_embeddings`.
    pub max_positions: usize,
}

/// The rotary embedding that all layers share.
pub(crate) fn shared(config: &Config, defaults: &Defaults) -> Result<RotarySpec> {
    let theta = config.f64_or(&["rope_theta"], defaults.theta)?;
    config.only("partial_rotary_factor", 1.0.into(), "all of a head is turned")?;
    config.only("rope_interleaved", false.into(), "the halves of a head are turned together")?;
    let original = config.opt_usize(&["original_max_position_embeddings"])?;
    // transformers reads the older key first, where both are there.
    let object = match config.opt_object("rope_scaling")? {
        Some(object) => {
            config.ignore(&["rope_parameters"]);
            Some(object)
        }
        None => config.opt_object("rope_parameters")?,
    };
    of_object(object.as_ref(), theta, original, defaults)
}

/// The rotary embedding of the layers of one type, `full_attention` or `sliding_attention`, of which each has an object in
/// `rope_parameters`. Before transformers 5 it had a base under `theta_key`, and only where `scaled` is set `rope_scaling`.
pub(crate) fn of_layer_type(
    config: &Config,
    layer_type: &str,
    theta_key: &str,
    scaled: bool,
    defaults: &Defaults,
) -> Result<RotarySpec> {
    let theta = config.f64_or(&[theta_key], defaults.theta)?;
    let scaling = config.opt_object("rope_scaling")?.filter(|_| scaled);
    let all = config.opt_object("rope_parameters")?;
    if let Some(all) = &all {
        for known in ["full_attention", "sliding_attention"] {
            all.ignore(&[known]);
        }
        all.finish("rotary embedding")?;
    }
    let own = all.as_ref().map(|all| all.opt_object(layer_type)).transpose()?.flatten();
    let mut spec = of_object(own.as_ref().or(scaling.as_ref()), theta, None, defaults)?;
    if let RotaryScaling::Yarn { truncate, .. } = &mut spec.scaling {
        // transformers (5.24) looks for `truncate` beside the types of layers and not in their objects, so it is never found.
        *truncate = true;
    }
    Ok(spec)
}

fn of_object(object: Option<&Config>, theta: f64, original: Option<usize>, defaults: &Defaults) -> Result<RotarySpec> {
    let mut spec = RotarySpec::plain(defaults.head_dim, theta);
    let Some(object) = object else { return Ok(spec) };
    spec.theta = object.f64_or(&["rope_theta"], theta)?;
    object.only("partial_rotary_factor", 1.0.into(), "all of a head is turned")?;
    let kind = object.opt_str(&["rope_type", "type"])?.unwrap_or("default");
    let number = |key: &str| match object.opt_f64(&[key])? {
        Some(value) if value > 0.0 => Ok(value),
        Some(_) => Err(object.error(key, "must be above 0")),
        None => Err(object.error(key, format!("`{kind}` needs it"))),
    };
    let original = || -> Result<u32> {
        let stated = object.opt_usize(&["original_max_position_embeddings"])?;
        let positions = original.or(stated).unwrap_or(defaults.max_positions);
        u32::try_from(positions).map_err(|_| object.error("original_max_position_embeddings", "is too large"))
    };
    spec.scaling = match kind {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear { factor: number("factor")? },
        "dynamic" => {
            // The length that the base grows from is always the configuration's own.
            object.ignore(&["original_max_position_embeddings"]);
            let positions = u32::try_from(defaults.max_positions).unwrap_or(u32::MAX);
            RotaryScaling::DynamicNtk { factor: number("factor")?, original_max_position: positions }
        }
        "yarn" => yarn(object, original()?, defaults)?,
        "llama3" => RotaryScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position: original()?,
        },
        // GTE's own kind, which its published checkpoints have: the base times the factor, and every frequency divided by
        // the same root of it (their `NTKScalingRotaryEmbedding`).
        "ntk" => {
            let factor = number("factor")?;
            spec.theta *= factor;
            RotaryScaling::Linear { factor: factor.powf(2.0 / defaults.head_dim as f64) }
        }
        other => {
            let known = "default, linear, dynamic, yarn, llama3 and ntk";
            return Err(object.error("rope_type", format!("`{other}` is not known; known are {known}")));
        }
    };
    object.finish("rotary embedding")?;
    Ok(spec)
}

/// YaRN with the factor on cosine and sine that transformers derives where it is not stated.
fn yarn(object: &Config, original: u32, defaults: &Defaults) -> Result<RotaryScaling> {
    let factor = match object.opt_f64(&["factor"])? {
        Some(factor) if factor > 0.0 => factor,
        Some(_) => return Err(object.error("factor", "must be above 0")),
        None => defaults.max_positions as f64 / f64::from(original.max(1)),
    };
    let magnitude = |scale: f64, by: f64| if scale <= 1.0 { 1.0 } else { 0.1 * by * scale.ln() + 1.0 };
    let set = |value: Option<f64>| value.filter(|x| *x != 0.0);
    let mscale = set(object.opt_f64(&["mscale"])?).zip(set(object.opt_f64(&["mscale_all_dim"])?));
    let attention_factor = match (object.opt_f64(&["attention_factor"])?, mscale) {
        (Some(stated), _) => stated,
        (None, Some((mscale, all))) => magnitude(factor, mscale) / magnitude(factor, all),
        (None, None) => magnitude(factor, 1.0),
    };
    Ok(RotaryScaling::Yarn {
        factor,
        original_max_position: original,
        beta_fast: set(object.opt_f64(&["beta_fast"])?).unwrap_or(32.0),
        beta_slow: set(object.opt_f64(&["beta_slow"])?).unwrap_or(1.0),
        attention_factor,
        truncate: object.bool_or(&["truncate"], true)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Result<RotarySpec> {
        let config = Config::new("config.json", serde_json::from_str(json).unwrap());
        shared(&config, &Defaults { head_dim: 64, theta: 1e4, max_positions: 8192 })
    }

    #[test]
    fn kinds() {
        let cases: &[(&str, f64, RotaryScaling)] = &[
            ("{}", 1e4, RotaryScaling::None),
            (r#"{"rope_theta": 5e5}"#, 5e5, RotaryScaling::None),
            (
                r#"{"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}, "rope_theta": 5.0}"#,
                7.0,
                RotaryScaling::None,
            ),
            (r#"{"rope_scaling": {"type": "linear", "factor": 4}}"#, 1e4, RotaryScaling::Linear { factor: 4.0 }),
            (
                r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}"#,
                1e4,
                RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 8192 },
            ),
            (
                r#"{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}"#,
                1e4,
                RotaryScaling::Yarn {
                    factor: 4.0,
                    original_max_position: 2048,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    attention_factor: 0.1 * 4.0f64.ln() + 1.0,
                    truncate: true,
                },
            ),
        ];
        for (json, theta, scaling) in cases {
            let spec = spec(json).unwrap();
            assert_eq!((spec.theta, &spec.scaling), (*theta, scaling), "{json}");
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (json, name) in [
            (r#"{"rope_scaling": {"type": "longrope", "factor": 4}}"#, "longrope"),
            (r#"{"rope_scaling": {"type": "linear"}}"#, "factor"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 2, "secret": 1}}"#, "rope_scaling.secret"),
            (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor"),
        ] {
            let message = spec(json).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}

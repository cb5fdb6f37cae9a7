//! Rotary positions as a `config.json` has them, under the names of several generations of checkpoints.

use super::{Rotary, RotaryScaling};
use crate::config::printable;
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// The rotary part of a config: an object of its own, and the fields beside it where older checkpoints have some.
#[derive(Clone, Copy)]
pub(super) struct Parameters<'a> {
    own: Option<&'a Map<String, Value>>,
    /// What that object is called, for messages.
    name: &'static str,
    beside: Option<&'a Map<String, Value>>,
    place: &'a str,
}

/// What the object may hold. Another name may change the result, so it is refused.
const KNOWN: [&str; 15] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    // How the checkpoint came about, not how it computes.
    "finetuned",
];

impl<'a> Parameters<'a> {
    pub(super) fn of(config: &'a Map<String, Value>, place: &'a str) -> Result<Parameters<'a>> {
        let mut parameters =
            Parameters { own: None, name: "rope_parameters", beside: Some(config), place };
        for name in ["rope_scaling", "rope_parameters"] {
            match present(Some(config), name) {
                None => {}
                Some(Value::Object(own)) if own.is_empty() => {}
                Some(Value::Object(own)) => {
                    if let Some(unknown) = own.keys().find(|key| !KNOWN.contains(&key.as_str())) {
                        let hint = " (a parameter of rotary positions)";
                        return Err(Error::unsupported(place, name, printable(unknown), hint));
                    }
                    return Ok(Parameters { own: Some(own), name, ..parameters });
                }
                Some(_) => return Err(Error::config(place, name, "expected an object")),
            }
            parameters.name = name;
        }
        Ok(parameters)
    }

    /// The object alone.
    fn inside(self) -> Parameters<'a> {
        Parameters { beside: None, ..self }
    }

    /// The fields beside it alone.
    fn outside(self) -> Parameters<'a> {
        Parameters { own: None, ..self }
    }

    /// The first of the names, in the object and then beside it, that is there and not null.
    fn find(&self, names: &[&str]) -> Option<(&'a Value, String)> {
        let own = |&name: &&str| Some((present(self.own, name)?, format!("{}.{name}", self.name)));
        let beside = |&name: &&str| Some((present(self.beside, name)?, name.to_owned()));
        names.iter().find_map(own).or_else(|| names.iter().find_map(beside))
    }

    fn typed<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((value, field)) = self.find(names) else { return Ok(None) };
        let wrong = || {
            let found = printable(&value.to_string());
            Error::config(self.place, &field, format_args!("expected {expected}, found {found}"))
        };
        read(value).ok_or_else(wrong).map(Some)
    }

    fn number(&self, names: &[&str]) -> Result<Option<f64>> {
        self.typed(names, "a number", Value::as_f64)
    }

    fn size(&self, names: &[&str]) -> Result<Option<usize>> {
        // Some checkpoints write lengths as 8192.0.
        let whole = |x: &f64| *x >= 1.0 && x.fract() == 0.0 && *x <= f64::from(u32::MAX);
        let read = |value: &Value| value.as_f64().filter(whole).map(|x| x as usize);
        self.typed(names, "a whole number from 1 up", read)
    }

    /// A number of the object, which must be there.
    fn needed(&self, name: &str) -> Result<f64> {
        let missing = || Error::config(self.place, &format!("{}.{name}", self.name), "missing");
        self.inside().number(&[name])?.ok_or_else(missing)
    }

    /// All of it, for heads of `d_k` features.
    pub(super) fn rotary(&self, d_k: usize) -> Result<Rotary> {
        let base = self.number(&["rope_theta", "rotary_emb_base"])?.unwrap_or(10000.0);
        let missing = || Error::config(self.place, "max_position_embeddings", "missing");
        let longest = self.outside().size(&["max_position_embeddings"])?.ok_or_else(missing)?;
        let width = self.width(d_k)?;
        let rotary =
            Rotary { scaling: self.scaling(longest)?, ..Rotary::new(base, width, longest) };
        rotary.check(d_k, self.place)?;
        Ok(rotary)
    }

    /// Features of a head that turn.
    fn width(&self, d_k: usize) -> Result<usize> {
        let family = self.beside.and_then(|config| config.get("model_type")?.as_str());
        let share = match self.number(&["partial_rotary_factor", "rotary_pct"])? {
            Some(share) => share,
            None if family == Some("gpt_neox") => 0.25,
            None => 1.0,
        };
        if !(share > 0.0 && share <= 1.0) {
            let problem = format_args!("{share}: must be above 0 and at most 1");
            return Err(Error::config(self.place, "partial_rotary_factor", problem));
        }
        Ok((d_k as f64 * share) as usize)
    }

    fn scaling(&self, max_position: usize) -> Result<RotaryScaling> {
        let word = self
            .inside()
            .typed(&["rope_type", "type"], "a word", |value| value.as_str().map(str::to_owned))?;
        match word.as_deref().unwrap_or("default") {
            "default" => Ok(RotaryScaling::None),
            "linear" => Ok(RotaryScaling::Linear { factor: self.needed("factor")? }),
            "dynamic" => Ok(RotaryScaling::Dynamic { factor: self.needed("factor")? }),
            "yarn" => self.yarn(max_position),
            "llama3" => Ok(RotaryScaling::Llama3 {
                factor: self.needed("factor")?,
                low: self.needed("low_freq_factor")?,
                high: self.needed("high_freq_factor")?,
                original: self.original(max_position)?,
            }),
            other => {
                let known = " (expected default, linear, dynamic, yarn or llama3)";
                let field = format!("{}.rope_type", self.name);
                Err(Error::unsupported(self.place, &field, printable(other), known))
            }
        }
    }

    /// The longest text of the training. Beside the object it takes precedence, as in the reference implementation.
    fn original(&self, max_position: usize) -> Result<usize> {
        let name = ["original_max_position_embeddings"];
        let beside = self.outside().size(&name)?;
        Ok(beside.or(self.inside().size(&name)?).unwrap_or(max_position))
    }

    fn yarn(&self, max_position: usize) -> Result<RotaryScaling> {
        let own = self.inside();
        let original = self.original(max_position)?;
        let factor = own.number(&["factor"])?.unwrap_or(max_position as f64 / original as f64);
        // A zero counts as absent, as in the reference implementation.
        let given = |name| Ok(own.number(&[name])?.filter(|&x| x != 0.0));
        // ("YaRN", §3.4: 0.1·ln s + 1.)
        let magnitude = |m: f64| match factor > 1.0 {
            true => 0.1 * m * libm::log(factor) + 1.0,
            false => 1.0,
        };
        let inferred = match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(numerator), Some(denominator)) => magnitude(numerator) / magnitude(denominator),
            _ => magnitude(1.0),
        };
        Ok(RotaryScaling::Yarn {
            factor,
            original,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            truncate: own.typed(&["truncate"], "true or false", Value::as_bool)?.unwrap_or(true),
            attention_factor: own.number(&["attention_factor"])?.unwrap_or(inferred),
        })
    }
}

/// The field, unless it is absent or `null`.
fn present<'a>(map: Option<&'a Map<String, Value>>, name: &str) -> Option<&'a Value> {
    map?.get(name).filter(|value| !value.is_null())
}

//! What a condition was for inputs that it has seen.
//!
//! A fleet has thousands of nodes and a handful of values for what a condition reads. An evaluation costs
//! a microsecond or more, mostly to hand the values over, and a full resolve asks for millions. A condition
//! is a pure function of its inputs, so what it was once it is again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use stemma_core::condition::ConditionError;
use stemma_core::input::Input;

/// The most results that are kept; past it all are forgotten at once.
const MAX_RESULTS: usize = 256;

/// The largest inputs whose result is kept, in bytes.
const MAX_KEY: usize = 512;

type Outcome = Result<bool, ConditionError>;

/// Results by the bytes of the inputs.
#[derive(Debug, Default)]
pub(super) struct Memo(Mutex<HashMap<Box<[u8]>, Outcome>>);

impl Memo {
    /// The result for these inputs, evaluated if it is not known.
    pub(super) fn get_or(&self, found: &[Cow<'_, Input>], evaluate: impl FnOnce() -> Outcome) -> Outcome {
        let Some(key) = key(found) else { return evaluate() };
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&*key) {
            return known.clone();
        }
        let outcome = evaluate();
        let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if results.len() >= MAX_RESULTS {
            results.clear();
        }
        results.insert(key.into(), outcome.clone());
        outcome
    }
}

/// Bytes that differ where the inputs do; `None` where they are too many to be worth it.
fn key(found: &[Cow<'_, Input>]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(64);
    for input in found {
        match &**input {
            Input::Value(Value::String(text)) => {
                key.push(b'"');
                key.extend_from_slice(&text.len().to_be_bytes());
                key.extend(text.as_bytes().iter().take(MAX_KEY + 1));
            }
            Input::Value(value) => write_json(&mut key, value)?,
            Input::LookedUp(value) => write_json(&mut key, value)?,
            // No JSON begins so.
            Input::Absent => key.push(b'~'),
            Input::Secret { .. } => return None,
        }
        if key.len() > MAX_KEY {
            return None;
        }
    }
    Some(key)
}

/// Writes a value's text, which ends where the key is full: a list may be long.
fn write_json(key: &mut Vec<u8>, value: &Value) -> Option<()> {
    let mut rest = Limited { key, is_full: false };
    serde_json::to_writer(&mut rest, value).ok()?;
    rest.write_all(b",").ok()
}

/// Writes up to the largest key.
struct Limited<'k> {
    key: &'k mut Vec<u8>,
    is_full: bool,
}

impl std::io::Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_full || self.key.len() + bytes.len() > MAX_KEY {
            self.is_full = true;
            return Err(std::io::Error::other("the key is full"));
        }
        self.key.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(values: &[Value]) -> Option<Vec<u8>> {
        key(&values.iter().map(|value| Cow::Owned(Input::Value(value.clone()))).collect::<Vec<_>>())
    }

    #[test]
    fn other_inputs_have_another_key() {
        let all = [
            vec![json!("a"), json!("b")],
            vec![json!("ab"), json!("")],
            vec![json!(""), json!("ab")],
            vec![json!(1), json!(2)],
            vec![json!(12), json!("")],
            vec![json!("1"), json!("2")],
            vec![json!(null), json!(true)],
            vec![json!([1]), json!([2])],
            vec![json!([1, 2]), json!([])],
        ];
        let keys: std::collections::BTreeSet<_> = all.iter().map(|values| of(values).expect("small")).collect();
        assert_eq!(keys.len(), all.len());
        let three = |values: [Option<i32>; 3]| {
            let inputs = values.map(|value| Cow::Owned(Input::from(value.map(|value| json!(value)))));
            key(&inputs).expect("small")
        };
        assert_ne!(three([None, Some(1), Some(-2)]), three([Some(-1), None, Some(2)]));
        assert_eq!(of(&[json!("x".repeat(600))]), None);
        assert_eq!(of(&[json!(vec![1; 600])]), None);
    }

    #[test]
    fn a_known_result_is_not_evaluated_again() {
        let memo = Memo::default();
        let inputs = [Cow::Owned(Input::Value(json!("a")))];
        assert_eq!(memo.get_or(&inputs, || Ok(true)), Ok(true));
        assert_eq!(memo.get_or(&inputs, || unreachable!("it is known")), Ok(true));
        assert_eq!(memo.get_or(&[Cow::Owned(Input::Absent)], || Ok(false)), Ok(false));
        for n in 0..2 * MAX_RESULTS {
            memo.get_or(&[Cow::Owned(Input::Value(json!(n)))], || Ok(true)).unwrap();
        }
        assert!(memo.0.lock().unwrap().len() <= MAX_RESULTS);
    }
}

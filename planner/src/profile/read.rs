//! From JSON values to a [`Profile`], with a path for every complaint.
//!
//! Only shapes are checked here; `rules` then checks every number and name, also of profiles that were
//! never JSON.

use caju_types::{Error, Result};

use super::node::{Fields, Node};
use super::rules::Rule;
use super::{
    Budget, CacheStore, Cluster, Consumer, Encoding, Existing, Hint, Horizon, Measured, PROFILE_SCHEMA,
    Prices, Profile, Schema, Sharing, Source, SourceStore, Stage,
};
use crate::choice::Choice;

/// An object and its path, which is formatted only for an error.
struct Object<'a> {
    fields: Option<&'a Fields<'a>>,
    at: &'a dyn Fn() -> String,
}

fn wrong(path: &str, expected: &str, value: Option<&Node>) -> Error {
    let found = value.map_or_else(|| "nothing".to_owned(), Node::to_string);
    Error::invalid(format!("{path}: expected {expected}, found {found}"))
}

impl<'a> Object<'a> {
    /// The field's value. Two of them are refused: which one counts is a guess that readers make differently.
    fn get(&self, field: &str) -> Result<Option<&'a Node<'a>>> {
        match self.fields.map(|f| f.get(field)) {
            Some((_, true)) => Err(Error::invalid(format!("{}: given twice", self.path(field)))),
            Some((value, false)) => Ok(value),
            None => Ok(None),
        }
    }

    fn present(&self, field: &str) -> Result<Option<&'a Node<'a>>> {
        Ok(self.get(field)?.filter(|v| !matches!(v, Node::Null)))
    }

    fn path(&self, field: &str) -> String {
        format!("{}{field}", (self.at)())
    }

    /// The field as `read` understands it.
    fn value<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a Node<'a>) -> Option<T>,
    ) -> Result<T> {
        let found = self.get(field)?;
        found.and_then(read).ok_or_else(|| wrong(&self.path(field), expected, found))
    }

    fn number(&self, field: &str, rule: Rule) -> Result<f64> {
        self.value(field, rule.expected(), Node::as_number)
    }

    fn number_or_null(&self, field: &str, rule: Rule) -> Result<Option<f64>> {
        self.present(field)?.map(|_| self.number(field, rule)).transpose()
    }

    fn count(&self, field: &str, rule: Rule) -> Result<u64> {
        self.value(field, rule.expected(), Node::as_count)
    }

    fn count_or_null(&self, field: &str, rule: Rule) -> Result<Option<u64>> {
        self.present(field)?.map(|_| self.count(field, rule)).transpose()
    }

    fn text(&self, field: &str) -> Result<String> {
        self.value(field, "a string", Node::as_text).map(str::to_owned)
    }

    fn flag(&self, field: &str, default: bool) -> Result<bool> {
        self.present(field)?.map_or(Ok(default), |_| self.value(field, "true or false", Node::as_bool))
    }

    /// An object of settings at the top; absent or null means that all of them are.
    fn section<T>(&self, field: &str, read: impl FnOnce(&Object) -> Result<T>) -> Result<T> {
        let fields = match self.present(field)? {
            None => None,
            Some(_) => Some(self.value(field, "an object", Node::as_object)?),
        };
        read(&Object { fields, at: &|| format!("{}{field}.", (self.at)()) })
    }

    /// A list of objects; absent or null means empty unless it is needed.
    fn list<T>(&self, field: &str, needed: bool, read: impl Fn(&Object) -> Result<T>) -> Result<Vec<T>> {
        let items = match self.present(field)? {
            None if !needed => return Ok(Vec::new()),
            _ => self.value(field, "a list", Node::as_list)?,
        };
        let mut out = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let Some(fields) = item.as_object() else {
                return Err(wrong(&format!("{}[{i}]", self.path(field)), "an object", Some(item)));
            };
            let at = || format!("{}[{i}].", self.path(field));
            out.push(read(&Object { fields: Some(fields), at: &at })?);
        }
        Ok(out)
    }
}

pub(super) fn profile(value: &Node) -> Result<Profile> {
    let Some(fields) = value.as_object() else {
        return Err(wrong("profile", "an object", Some(value)));
    };
    let top = Object { fields: Some(fields), at: &String::new };
    top.value("schema", &format!("{PROFILE_SCHEMA:?}"), |v| {
        v.as_text().filter(|schema| *schema == PROFILE_SCHEMA)
    })?;
    Ok(Profile {
        schema: Schema::V1,
        cluster: top.section("cluster", cluster)?,
        source_store: top.section("source_store", |o| {
            Ok(SourceStore { read_bytes_per_s: o.number_or_null("read_bytes_per_s", Rule::Rate)? })
        })?,
        cache_store: top.section("cache_store", |o| {
            Ok(CacheStore {
                read_bytes_per_s: o.number_or_null("read_bytes_per_s", Rule::Rate)?,
                write_bytes_per_s: o.number_or_null("write_bytes_per_s", Rule::Rate)?,
                memory_bytes_per_worker: o.number_or_null("memory_bytes_per_worker", Rule::Cost)?,
            })
        })?,
        consumer: top.section("consumer", |o| {
            Ok(Consumer { rows_per_s: o.number_or_null("rows_per_s", Rule::Rate)? })
        })?,
        horizon: top.section("horizon", |o| {
            Ok(Horizon {
                epochs: o.count_or_null("epochs", Rule::Count)?,
                jobs: o.count_or_null("jobs", Rule::Count)?,
            })
        })?,
        sharing: sharing(&top)?,
        budget: top.section("budget", |o| {
            Ok(Budget { snapshot_bytes: o.number_or_null("snapshot_bytes", Rule::Cost)? })
        })?,
        prices: top.section("prices", |o| {
            Ok(Prices {
                worker_per_h: o.number_or_null("worker_per_h", Rule::Cost)?,
                accelerator_per_h: o.number_or_null("accelerator_per_h", Rule::Cost)?,
            })
        })?,
        source: top.section("source", |o| {
            Ok(Source {
                rows: o.count("rows", Rule::Count)?,
                readings: o.count_or_null("readings", Rule::Positive)?,
            })
        })?,
        existing: top.list("existing", false, existing)?,
        stages: top.list("stages", true, stage)?,
        hints: top.list("hints", false, hint)?,
        measured: top.list("measured", false, measured)?,
        observed: top.list("observed", false, measured)?,
    })
}

fn sharing(top: &Object) -> Result<Option<Sharing>> {
    if top.present("sharing")?.is_none() {
        return Ok(None);
    }
    let sharing = |o: &Object| {
        Ok(Sharing { jobs: o.count("jobs", Rule::Positive)?, after_stage: o.text("after_stage")? })
    };
    top.section("sharing", sharing).map(Some)
}

fn cluster(o: &Object) -> Result<Cluster> {
    Ok(Cluster {
        workers: o.count("workers", Rule::Positive)?,
        cores_per_worker: o.number("cores_per_worker", Rule::Rate)?,
        network_bytes_per_s_per_worker: o.number_or_null("network_bytes_per_s_per_worker", Rule::Rate)?,
    })
}

fn existing(o: &Object) -> Result<Existing> {
    Ok(Existing {
        hint: o.text("hint")?,
        format: o.text("format")?,
        compression: o.text("compression")?,
        fraction: o.number("fraction", Rule::Fraction)?,
    })
}

fn measured(o: &Object) -> Result<Measured> {
    let kind = o.value("kind", "\"compute\" or \"materialize\"", |v| {
        v.as_text().filter(|kind| ["compute", "materialize"].contains(kind))
    })?;
    let choice = if kind == "compute" {
        Choice::Compute
    } else {
        let fraction = o.number_or_null("fraction", Rule::Fraction)?.unwrap_or(1.0);
        let (hint, format, compression) = (o.text("hint")?, o.text("format")?, o.text("compression")?);
        Choice::Materialize { hint, format, compression, fraction }
    };
    Ok(Measured { choice, rows_per_s: o.number("rows_per_s", Rule::Rate)? })
}

fn stage(o: &Object) -> Result<Stage> {
    Ok(Stage {
        name: o.text("name")?,
        io_bytes_per_row: o.number("io_bytes_per_row", Rule::Cost)?,
        cpu_s_per_row: o.number("cpu_s_per_row", Rule::Cost)?,
        service_s_per_row: o.number("service_s_per_row", Rule::Cost)?,
        max_parallelism: o.number_or_null("max_parallelism", Rule::Parallelism)?,
        out_rows_per_row: o.number("out_rows_per_row", Rule::Cost)?,
        out_bytes_per_row: o.number("out_bytes_per_row", Rule::Cost)?,
        random: o.flag("random", false)?,
    })
}

fn hint(o: &Object) -> Result<Hint> {
    Ok(Hint {
        name: o.text("name")?,
        after_stage: o.text("after_stage")?,
        split_local: o.flag("split_local", true)?,
        encodings: o.list("encodings", true, encoding)?,
    })
}

fn encoding(o: &Object) -> Result<Encoding> {
    Ok(Encoding {
        format: o.text("format")?,
        compression: o.text("compression")?,
        bytes_per_row: o.number("bytes_per_row", Rule::Cost)?,
        encode_cpu_s_per_row: o.number("encode_cpu_s_per_row", Rule::Cost)?,
        decode_cpu_s_per_row: o.number("decode_cpu_s_per_row", Rule::Cost)?,
    })
}

//! Functions of tables and text.

use super::function::{Function, kernel};
use crate::signature::{Kind, Signature, arg, opt};
use crate::udf;

pub(super) static FUNCTIONS: &[Function] = &[
    Function {
        signature: Signature {
            name: "hash_bucket",
            version: Some(1),
            group: "Tables and text",
            args: &[
                arg("value", Kind::Value, "a string, bytes or an integer"),
                arg("n", Kind::Int, "the number of buckets"),
                opt(
                    "null_as",
                    Kind::Literal,
                    "null",
                    "the value that means null; without it null stays null",
                ),
            ],
            returns: "int64 from 0 to n - 1",
            doc: "`floor(h * n / 2^64)`, where `h` is the xxh3-64 (seed 0) of the value's bytes: UTF-8 of a string, \
              eight bytes, little-endian, of an integer. The same in every version and on every machine.",
            random: false,
            engines: &["xxhash-rust"],
        },
        build: |c| kernel(udf::HashBucket::new(c.u64("n")?, c.literal("null_as"))?),
    },
    Function {
        signature: Signature {
            name: "tokenize",
            version: Some(1),
            group: "Tables and text",
            args: &[arg("text", Kind::Value, "a string"), arg("regex", Kind::Text, "what a token is")],
            returns: "list of string",
            doc: "All matches of the regular expression, from left to right, without overlap.",
            random: false,
            engines: &["regex"],
        },
        build: |c| kernel(udf::Tokenize::new(&c.text("regex")?)?),
    },
    Function {
        signature: Signature {
            name: "pad",
            version: Some(1),
            group: "Tables and text",
            args: &[
                arg("list", Kind::Value, "a list"),
                arg("n", Kind::Int, "the length of the result"),
                opt("value", Kind::Literal, "null", "what is appended; null is 0, false or the empty string"),
            ],
            returns: "fixed-size list (of numbers: tensor)",
            doc: "The list, filled up to `n` values at its end. A longer list is an error: `truncate` it first.",
            random: false,
            engines: &[],
        },
        build: |c| kernel(udf::Pad::new(c.u32("n")?, c.literal("value"))?),
    },
    Function {
        signature: Signature {
            name: "truncate",
            version: Some(1),
            group: "Tables and text",
            args: &[
                arg("value", Kind::Value, "a list, a string or bytes"),
                arg("n", Kind::Int, "the largest length of the result"),
            ],
            returns: "the input's type",
            doc: "The first `n` values of a list, characters of a string, or bytes.",
            random: false,
            engines: &[],
        },
        build: |c| kernel(udf::Truncate { n: c.u32("n")? }),
    },
    Function {
        signature: Signature {
            name: "one_hot",
            version: Some(2),
            group: "Tables and text",
            args: &[
                arg("value", Kind::Value, "an integer"),
                arg("n", Kind::Int, "the number of classes"),
                opt("dtype", Kind::Text, "'float32'", "`float32` or `uint8`"),
            ],
            returns: "tensor of shape [n]",
            doc: "1 at the place of the value, 0 elsewhere. A value outside 0 to n - 1 is an error.",
            random: false,
            engines: &[],
        },
        build: |c| kernel(udf::OneHot::new(c.u32("n")?, &c.text("dtype")?)?),
    },
];

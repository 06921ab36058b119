//! Random numbers.

use super::function::{Function, kernel};
use crate::signature::{Kind, Signature, arg, opt};
use crate::udf;

pub(super) static FUNCTIONS: &[Function] = &[
    Function {
        signature: Signature {
            name: "uniform",
            version: Some(2),
            group: "Random numbers",
            args: &[
                opt("low", Kind::Value, "0", "the lower bound"),
                opt("high", Kind::Value, "1", "the upper bound, excluded"),
            ],
            returns: "float64",
            doc: "A number drawn uniformly. Equal bounds give the lower one. A lower bound above the upper one is an error.",
            random: true,
            engines: &[],
        },
        build: |c| kernel(udf::Draw::uniform(c.site)),
    },
    Function {
        signature: Signature {
            name: "normal",
            version: Some(1),
            group: "Random numbers",
            args: &[
                opt("mean", Kind::Value, "0", "the mean"),
                opt("std", Kind::Value, "1", "the standard deviation"),
            ],
            returns: "float64",
            doc: "A number from the normal distribution.",
            random: true,
            engines: &[],
        },
        build: |c| kernel(udf::Draw::normal(c.site)),
    },
    Function {
        signature: Signature {
            name: "random_int",
            version: Some(2),
            group: "Random numbers",
            args: &[
                arg("low", Kind::Value, "the smallest value"),
                arg("high", Kind::Value, "one past the largest value"),
            ],
            returns: "int64",
            doc: "An integer drawn uniformly. An empty range is an error.",
            random: true,
            engines: &[],
        },
        build: |c| kernel(udf::Draw::int(c.site)),
    },
];

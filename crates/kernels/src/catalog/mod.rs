//! The functions of caju: one table from which calls are checked, kernels are built, and errors and documents are written.

mod function;
mod images;
mod random;
mod tables;

pub(crate) use function::{Built, Function};

/// All functions, in the order of the documentation.
pub(crate) fn functions() -> impl Iterator<Item = &'static Function> {
    [images::FUNCTIONS, tables::FUNCTIONS, random::FUNCTIONS].into_iter().flatten()
}

/// The function of this (lower-case) name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    functions().find(|f| f.signature.name == name)
}

/// The reference of all functions in Markdown: what `docs/functions.md` holds.
pub fn reference_markdown() -> String {
    let mut out = String::from(REFERENCE_HEAD);
    let mut group = "";
    for f in functions().map(|f| &f.signature) {
        if f.group != group {
            group = f.group;
            out.push_str(&format!("\n## {group}\n"));
        }
        let random = if f.random { " Random." } else { "" };
        out.push_str(&format!(
            "\n### `{}`\n\n{}{random} Gives: {}. Version {}.\n\n",
            f.usage(),
            f.doc,
            f.returns,
            f.version()
        ));
        out.push_str("| argument | what | default |\n|---|---|---|\n");
        for a in f.all_args() {
            let default = a.default.map_or("(required)".to_owned(), |d| format!("`{d}`"));
            out.push_str(&format!("| `{}` | {}: {} | {default} |\n", a.name, a.kind.describe(), a.doc));
        }
    }
    out
}

const REFERENCE_HEAD: &str = "\
# Functions in expressions

<!-- Generated from the table in crates/kernels/src/catalog; a test compares. To generate it again:
     cargo test -p caju-kernels write_reference -- --ignored -->

Expressions are SQL scalar expressions: `normalize(random_flip(random_resized_crop(decode_image(image), 224, 224)))`,
`ln(x + 1)`, `coalesce(a, 0)`, `label < 100`, `\"image/encoded\"`. Names of columns are case-sensitive, and quoted with
`\"` if they hold anything but letters, digits and `_`. All immutable scalar functions and operators of DataFusion may be
called (`ln`, `coalesce`, `lower`, `array_length`, `regexp_replace`, `case`, `cast`, ...) and the functions below.
An integer that `+`, `-`, `*` or `<<` makes too large for its type is an error that names the row. So is a decimal of more
digits than its type, and a number that a `cast` would make infinite (`cast(1e39 as real)`): `try_cast` gives null for it.
Infinite values and NaN stay what they are. A value that alone needs more memory than `--chunk-memory`, or more steps than
`--chunk-steps`, is an error too. A literal of more than 15 digits within a `cast` to a decimal keeps all its digits; anywhere
else it is a float64. The regular expressions in the texts of a pipeline may take 64 MiB together when they are compiled; those
that take less than 64 KiB are not counted.
Aggregates, window functions, lambdas, subqueries, and functions that give another value each time (`random`, `now`, `uuid`) are
refused: a row must be a function of the data, the seed and the epoch.

Arguments are given by position or by name, as in `random_resized_crop(image, 224, 224, scale_min => 0.25)`. Null in,
null out.

**Images** are tensors of shape height x width x 3, RGB. Images of one size are `arrow.fixed_shape_tensor`, others are
`arrow.variable_shape_tensor`; uint8 until `normalize` or `to_float` make float32. Nested calls run as one chain per row,
without images in between. An image with null samples is an error of its row.

**Random functions** draw from a generator keyed by the job's seed, the epoch, the row, and the call: its place in the
expression and the name of the column that the expression computes. Every call draws for itself, unless calls share a
`key`: `random_crop(image, 224, 224, key => 'crop')` and `random_crop(mask, 224, 224, key => 'crop')` cut the same window.
";

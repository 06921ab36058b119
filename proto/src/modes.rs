//! The names of processing modes in flags, commands and messages.

use crate::v1::ProcessingMode;

/// All processing modes by name.
pub const MODES: [(&str, ProcessingMode); 6] = [
    ("dynamic", ProcessingMode::Dynamic),
    ("off", ProcessingMode::Off),
    ("file", ProcessingMode::File),
    ("data", ProcessingMode::Data),
    ("file_or_data", ProcessingMode::FileOrData),
    ("hint", ProcessingMode::Hint),
];

/// The processing mode of a name; none for an unknown one.
///
/// ```
/// use caju_proto::{mode_from_name, v1::ProcessingMode};
/// assert_eq!(mode_from_name("file_or_data"), Some(ProcessingMode::FileOrData));
/// assert_eq!(mode_from_name("invalid"), None);
/// ```
pub fn mode_from_name(name: &str) -> Option<ProcessingMode> {
    MODES.iter().find(|(n, _)| *n == name).map(|(_, mode)| *mode)
}

/// The name of a processing mode; `dynamic` for one that is not given.
pub fn mode_name(mode: ProcessingMode) -> &'static str {
    MODES.iter().find(|(_, m)| *m == mode).map_or("dynamic", |(name, _)| *name)
}

/// The names of all processing modes, for messages: ``dynamic`, `off`, ...``.
pub fn mode_names() -> String {
    MODES.map(|(name, _)| format!("`{name}`")).join(", ")
}

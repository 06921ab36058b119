//! Cryptographically secure random numbers.

use std::io::Read as _;

use caju_types::{Error, Result, Secret};

use crate::simulation::fill_seeded;

/// A secret from the operating system's random number generator.
///
/// # Errors
/// `Internal` if the system gives no random numbers.
pub fn random_secret() -> Result<Secret> {
    let mut bytes = [0; Secret::BYTES];
    if fill_seeded(&mut bytes) {
        return Ok(Secret::from_bytes(bytes));
    }
    let source = "/dev/urandom";
    std::fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::internal(format!("{source}: {e}; caju needs the system's random numbers")))?;
    Ok(Secret::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ() {
        assert_ne!(random_secret().unwrap(), random_secret().unwrap());
    }
}

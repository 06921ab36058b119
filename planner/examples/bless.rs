//! Rewrites the golden decisions and numbers of workers from their profiles, after a change that is meant: read the diff.
//!
//! `cargo run -p caju-planner --example bless`

#[path = "../tests/planner/cases.rs"]
mod cases;
#[path = "../tests/planner/regret.rs"]
mod regret;
#[path = "../tests/planner/scaling_cases.rs"]
mod scaling_cases;

fn main() -> std::io::Result<()> {
    for case in cases::cases() {
        let new = case.decide();
        if std::fs::read_to_string(&case.decision).ok().as_deref() != Some(new.as_str()) {
            std::fs::write(&case.decision, new)?;
            println!("wrote {}", case.decision.display());
        }
    }
    for case in scaling_cases::cases() {
        let new = case.bytes();
        if std::fs::read_to_string(&case.scaling).ok().as_deref() != Some(new.as_str()) {
            std::fs::write(&case.scaling, new)?;
            println!("wrote {}: {}", case.scaling.display(), case.name);
        }
    }
    let table = regret::table();
    if std::fs::read_to_string(regret::file()).ok().as_deref() != Some(table.as_str()) {
        std::fs::write(regret::file(), &table)?;
        println!("wrote {}", regret::file().display());
    }
    Ok(())
}

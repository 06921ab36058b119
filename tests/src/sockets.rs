//! Which sockets a process listens at.

use std::collections::HashSet;

/// The addresses at which a process listens, as `/proc/net/tcp` and `/proc/net/tcp6` write them, and its Unix sockets.
pub fn listening(pid: u32) -> Vec<String> {
    let inodes: HashSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| {
            let target = std::fs::read_link(fd.ok()?.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for kind in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{kind}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            // 0A is LISTEN.
            if columns.get(3) == Some(&"0A") && columns.get(9).is_some_and(|i| inodes.contains(*i)) {
                found.push(format!("{kind} {}", columns[1]));
            }
        }
    }
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // The flag of a socket that accepts connections.
        if columns.get(3) == Some(&"00010000") && columns.get(6).is_some_and(|i| inodes.contains(*i)) {
            found.push(format!("unix {}", columns.last().unwrap()));
        }
    }
    found
}

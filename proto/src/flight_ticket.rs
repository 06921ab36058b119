//! Flight tickets: what `DoGet` of a worker reads, signed by the dispatcher.

use caju_types::{Error, Result, Secret};

use crate::ticket::hmac;

/// Precedes what is signed, so that no other use of a worker's secret gives the same bytes.
const CONTEXT: &[u8] = b"caju.flight-ticket/v1\n";

/// The ticket of a Flight endpoint: the command in JSON, behind its signature and a point. The signature is the HMAC-SHA256 of
/// the command under the worker's secret, truncated to 128 bits, in hexadecimal digits.
///
/// The dispatcher and one incarnation of a worker know the secret, so no other party can make or change a ticket.
///
/// ```
/// use caju_proto::{read_flight_ticket, sign_flight_ticket};
/// use caju_types::Secret;
/// let worker = Secret::from_bytes([1; 16]);
/// let ticket = sign_flight_ticket(&worker, r#"{"job": "train"}"#);
/// assert_eq!(read_flight_ticket(worker.as_bytes(), ticket.as_bytes()).unwrap(), r#"{"job": "train"}"#);
/// assert!(read_flight_ticket(&[2; 16], ticket.as_bytes()).is_err());
/// ```
pub fn sign_flight_ticket(worker: &Secret, command: &str) -> String {
    format!("{}.{command}", signature(worker.as_bytes(), command).to_hex())
}

/// The command of a ticket.
///
/// # Errors
/// `PermissionDenied` for a ticket that was not signed with this secret.
pub fn read_flight_ticket<'a>(worker: &[u8], ticket: &'a [u8]) -> Result<&'a str> {
    let text = std::str::from_utf8(ticket).ok();
    let parts = text.and_then(|text| text.split_once('.'));
    let signed = |(given, command): &(&str, &str)| {
        // Without a secret, as before a worker has registered, nothing is signed.
        let is_known = worker.len() == Secret::BYTES;
        is_known && Secret::from_hex(given).is_some_and(|g| signature(worker, command).is(g.as_bytes()))
    };
    parts.filter(signed).map(|(_, command)| command).ok_or_else(|| {
        Error::permission_denied(
            "the ticket is not one that the dispatcher signed for this worker as it runs now; tickets come from the \
             dispatcher's GetFlightInfo and are used as they are; ask it for the flight's info again",
        )
    })
}

fn signature(worker: &[u8], command: &str) -> Secret {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] =
        hmac(worker, &[CONTEXT, command.as_bytes()].concat());
    Secret::from_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_unsigned_ticket_is_refused() {
        let worker = Secret::from_bytes([3; 16]);
        let ticket = sign_flight_ticket(&worker, r#"{"job": "a.b"}"#);
        assert_eq!(read_flight_ticket(worker.as_bytes(), ticket.as_bytes()).unwrap(), r#"{"job": "a.b"}"#);
        let changed = ticket.replace("a.b", "a.c");
        let unsigned = r#".{"job": "a.b"}"#;
        for bad in
            [&changed, unsigned, "", ".", r#"{"job": "a.b"}"#, &ticket[1..], &ticket[..ticket.len() - 1]]
        {
            assert!(read_flight_ticket(worker.as_bytes(), bad.as_bytes()).is_err(), "{bad}");
        }
        let of_nobody = sign_flight_ticket(&Secret::from_bytes([0; 16]), "{}");
        assert!(read_flight_ticket(&[], of_nobody.as_bytes()).is_err(), "an absent secret is none of zeros");
        assert!(read_flight_ticket(worker.as_bytes(), &[0xff; 40]).is_err());
    }
}

//! Signs requests as Standard Webhooks has it, so that a receiver knows who sent them, and when.
//!
//! Several secrets give several signatures: while one is exchanged, a receiver may know the old or the new one.
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// How a secret begins.
const PREFIX: &str = "whsec_";
/// How many bytes a secret has.
const LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// A text is not one or several secrets. It is not repeated here.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected whsec_ and 24 to 64 bytes in base64, or several of them with blanks between")]
pub(super) struct NoSecret;

/// The `webhook-signature` of a message; `secrets` are separated by blanks.
pub(super) fn sign(secrets: &str, id: &str, timestamp: i64, body: &[u8]) -> Result<String, NoSecret> {
    let mut signatures = Vec::new();
    for secret in secrets.split_whitespace() {
        let key = secret.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok()).ok_or(NoSecret)?;
        if !LENGTH.contains(&key.len()) {
            return Err(NoSecret);
        }
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &key));
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        signatures.push(format!("v1,{}", STANDARD.encode(context.sign())));
    }
    if signatures.is_empty() { Err(NoSecret) } else { Ok(signatures.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example of the specification's reference implementations.
    #[test]
    fn a_signature_is_that_of_the_reference() {
        let signature = sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn several_secrets_give_several_signatures_and_no_secret_none() {
        let both = sign(&format!("{SECRET}\n{SECRET}"), "i", 1, b"x").unwrap();
        let (first, second) = both.split_once(' ').unwrap();
        assert_eq!(first, second);
        for wrong in ["", "hunter2", "whsec_", "whsec_!!!!", "whsec_AAAA"] {
            assert_eq!(sign(wrong, "i", 1, b"x"), Err(NoSecret), "{wrong}");
        }
    }
}

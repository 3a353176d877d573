//! Tests of age files: files of another program are read, own files are read back, and damaged files are refused.

use std::io::{BufReader, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::stream::CHUNK_BYTES;
use super::*;

/// A key pair, and a file encrypted to it that another program made from the specification.
const SECRET: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
const PUBLIC: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
const HEADER: &str = "age-encryption.org/v1\n-> X25519 nI37e/u3yp+S9sR7qeBYPw5/Vel3eQlAe/cGxYaQjQI\n\
                      l1B6DvI4gFWCBp3W7wItyI7pPb5SGRsp1pA94tLckXQ\n--- NDJZiWwgcypOOXiCpkHFkqk+/NJiDZk5oM9P/j1010I\n";
const PAYLOAD: &str = "Gxax31OLoS3D+X7buFyqcCNbtZ7f8ATwKCtH7M6YQY2Z1nchu/gG4GbCRUuc6cg=";

fn foreign_file() -> Vec<u8> {
    [HEADER.as_bytes(), &STANDARD.decode(PAYLOAD).unwrap()].concat()
}

fn identities(text: &str) -> Vec<AgeIdentity> {
    AgeIdentity::read_all(text).unwrap()
}

/// Returns a key pair whose secret is one byte, repeated.
fn key_pair(byte: u8) -> (Recipient, AgeIdentity) {
    let secret = StaticSecret::from([byte; 32]);
    (Recipient(PublicKey::from(&secret).to_bytes()), AgeIdentity(secret))
}

fn encrypt(text: &[u8], recipients: &[Recipient]) -> (Vec<u8>, FileKey) {
    let (mut to, key) = EncryptWriter::begin(Vec::new(), recipients).unwrap();
    to.write_all(text).unwrap();
    (to.finish().unwrap(), key)
}

fn decrypt(file: &[u8], identities: &[AgeIdentity]) -> Result<Vec<u8>, AgeError> {
    let mut text = Vec::new();
    DecryptReader::begin(BufReader::new(file), identities)?.read_to_end(&mut text)?;
    Ok(text)
}

#[test]
fn x02_decrypt_reads_file_of_another_program() {
    let key = identities(&format!("# created: 2026-11-27T08:00:00Z\n# public key: {PUBLIC}\n\n{SECRET}\n"));
    assert_eq!(decrypt(&foreign_file(), &key).unwrap(), b"a small secret\n");
    let public = PublicKey::from(&key[0].0).to_bytes();
    assert_eq!(PUBLIC.parse(), Ok(Recipient(public)), "they are a pair");
}

#[test]
fn x02_decrypt_succeeds_for_each_recipient_alone() {
    let ((one, own), (other, others), (_, stranger)) = (key_pair(1), key_pair(2), key_pair(3));
    for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7] {
        let text: Vec<u8> = (0..=250).cycle().take(length).collect();
        let (file, key) = encrypt(&text, &[one.clone(), other.clone()]);
        assert!(file.starts_with(MAGIC));
        for identity in [&own, &others] {
            let identity = AgeIdentity(identity.0.clone());
            assert!(decrypt(&file, &[identity]).unwrap() == text, "{length} bytes");
        }
        let mut again = Vec::new();
        DecryptReader::begin_with(&file[..], &key).unwrap().read_to_end(&mut again).unwrap();
        assert!(again == text, "{length} bytes, by the file's own key");
    }
    let (file, _) = encrypt(b"x", &[one]);
    assert!(matches!(decrypt(&file, &[stranger]), Err(AgeError::OtherIdentity)));
}

#[test]
fn x02_decrypt_fails_when_file_is_truncated_or_changed() {
    let key = identities(SECRET);
    let whole = foreign_file();
    for cut in 0..whole.len() {
        assert!(decrypt(&whole[..cut], &key).is_err(), "cut at {cut}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            assert!(decrypt(&changed, &key).is_err(), "bit {bit} of byte {at}");
        }
    }
    assert!(decrypt(&[&whole[..], b"x"].concat(), &key).is_err(), "there is something after it");
}

#[test]
fn x02_decrypt_fails_when_chunk_is_missing_or_moved() {
    let (recipient, identity) = key_pair(1);
    let (file, _) = encrypt(&vec![7; 3 * CHUNK_BYTES], &[recipient]);
    let chunk = CHUNK_BYTES + 16;
    let begin = file.len() - 3 * chunk;
    let (head, chunks) = file.split_at(begin);
    let [first, second, third] = [0, 1, 2].map(|nth| &chunks[nth * chunk..(nth + 1) * chunk]);
    let key = [identity];
    assert!(decrypt(&[head, first, second, third].concat(), &key).is_ok());
    for order in [
        &[first, second][..],
        &[first, third],
        &[second, first, third],
        &[first, second, second],
        &[first, second, third, third],
        &[],
    ] {
        assert!(decrypt(&[head, &order.concat()].concat(), &key).is_err());
    }
}

#[test]
fn x02_recipient_error_hides_text_when_parse_fails() {
    assert_eq!(SECRET.parse::<Recipient>(), Err(BadRecipient::Secret));
    assert_eq!(SECRET.to_lowercase().parse::<Recipient>(), Err(BadRecipient::Secret));
    let misspelt = PUBLIC.replacen('z', "q", 1);
    let followed = format!("{PUBLIC} ");
    for text in ["", "age1", &*misspelt, "ssh-ed25519 AAAA", "age1yubikey1qqqq", &*followed, "bc1qqqq"] {
        assert_eq!(text.parse::<Recipient>(), Err(BadRecipient::Unknown), "{text:?}");
    }
    for (text, why) in [
        ("", BadIdentities::Empty),
        ("# nothing\n\n", BadIdentities::Empty),
        ("# public\nAGE-SECRET-KEY-1QQ\n", BadIdentities::Line(2)),
        (PUBLIC, BadIdentities::Line(1)),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", BadIdentities::Line(1)),
    ] {
        assert_eq!(AgeIdentity::read_all(text).err(), Some(why), "{text:?}");
    }
    for said in [BadRecipient::Secret.to_string(), BadIdentities::Line(2).to_string()] {
        assert!(!said.contains("190CQV"), "{said}");
    }
    // With a key of low order, every secret gives the same result.
    assert!(!is_contributory(&[0; 32]));
}

//! Tests of age files: files of another program are read, own files are read back, and damaged files are refused.

use std::io::{BufReader, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::stream::CHUNK_BYTES;
use super::*;

/// Secret key of the key pair whose public key is `PUBLIC`. `HEADER` and `PAYLOAD` are a file that another age program
/// encrypted for this key pair.
const SECRET: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
const PUBLIC: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
const HEADER: &str = "age-encryption.org/v1\n-> X25519 nI37e/u3yp+S9sR7qeBYPw5/Vel3eQlAe/cGxYaQjQI\n\
                      l1B6DvI4gFWCBp3W7wItyI7pPb5SGRsp1pA94tLckXQ\n--- NDJZiWwgcypOOXiCpkHFkqk+/NJiDZk5oM9P/j1010I\n";
const PAYLOAD: &str = "Gxax31OLoS3D+X7buFyqcCNbtZ7f8ATwKCtH7M6YQY2Z1nchu/gG4GbCRUuc6cg=";

/// Returns the file that another age program encrypted: `HEADER`, then `PAYLOAD`.
fn foreign_file() -> Vec<u8> {
    [HEADER.as_bytes(), &STANDARD.decode(PAYLOAD).unwrap()].concat()
}

/// Parses a file of secret keys, one in each line.
fn identities(text: &str) -> Vec<AgeIdentity> {
    AgeIdentity::read_all(text).unwrap()
}

/// Returns a key pair. Each byte of its secret key is `byte`.
fn key_pair(byte: u8) -> (Recipient, AgeIdentity) {
    let secret = StaticSecret::from([byte; 32]);
    (Recipient(PublicKey::from(&secret).to_bytes()), AgeIdentity(secret))
}

/// Encrypts a text for these recipients. Returns the age file, and the file key with which the text is encrypted.
fn encrypt(text: &[u8], recipients: &[Recipient]) -> (Vec<u8>, FileKey) {
    let (mut writer, file_key) = EncryptWriter::begin(Vec::new(), recipients).unwrap();
    writer.write_all(text).unwrap();
    (writer.finish().unwrap(), file_key)
}

/// Returns the text of an age file that one of these secret keys decrypts.
fn decrypt(file: &[u8], identities: &[AgeIdentity]) -> Result<Vec<u8>, AgeError> {
    let mut text = Vec::new();
    DecryptReader::begin(BufReader::new(file), identities)?.read_to_end(&mut text)?;
    Ok(text)
}

#[test]
fn x02_decrypt_reads_file_of_another_program() {
    let keys = identities(&format!("# created: 2026-11-27T08:00:00Z\n# public key: {PUBLIC}\n\n{SECRET}\n"));
    assert_eq!(decrypt(&foreign_file(), &keys).unwrap(), b"a small secret\n");
    let public_key = PublicKey::from(&keys[0].0).to_bytes();
    assert_eq!(PUBLIC.parse(), Ok(Recipient(public_key)), "PUBLIC is the public key of SECRET");
}

/// Each of two recipients can decrypt a file, and so can the holder of its file key. A third key pair cannot.
#[test]
fn x02_decrypt_succeeds_for_each_recipient_alone() {
    let ((first_recipient, first_identity), (second_recipient, second_identity), (_, unrelated_identity)) =
        (key_pair(1), key_pair(2), key_pair(3));
    for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7] {
        let text: Vec<u8> = (0..=250).cycle().take(length).collect();
        let (file, file_key) = encrypt(&text, &[first_recipient.clone(), second_recipient.clone()]);
        assert!(file.starts_with(MAGIC));
        for identity in [&first_identity, &second_identity] {
            let identity = AgeIdentity(identity.0.clone());
            assert!(decrypt(&file, &[identity]).unwrap() == text, "{length} bytes");
        }
        let mut decrypted = Vec::new();
        DecryptReader::begin_with(&file[..], &file_key).unwrap().read_to_end(&mut decrypted).unwrap();
        assert!(decrypted == text, "{length} bytes, by the file's own key");
    }
    let (file, _) = encrypt(b"x", &[first_recipient]);
    assert!(matches!(decrypt(&file, &[unrelated_identity]), Err(AgeError::OtherIdentity)));
}

#[test]
fn x02_decrypt_fails_when_file_is_truncated_or_changed() {
    let keys = identities(SECRET);
    let file = foreign_file();
    for length in 0..file.len() {
        assert!(decrypt(&file[..length], &keys).is_err(), "cut at {length}");
    }
    for index in 0..file.len() {
        for bit in 0..8 {
            let mut changed_file = file.clone();
            changed_file[index] ^= 1 << bit;
            assert!(decrypt(&changed_file, &keys).is_err(), "bit {bit} of byte {index}");
        }
    }
    assert!(decrypt(&[&file[..], b"x"].concat(), &keys).is_err(), "a byte follows the file");
}

#[test]
fn x02_decrypt_fails_when_chunk_is_missing_or_moved() {
    let (recipient, identity) = key_pair(1);
    let (file, _) = encrypt(&vec![7; 3 * CHUNK_BYTES], &[recipient]);
    // Each chunk is followed by a tag of 16 bytes.
    let chunk_bytes = CHUNK_BYTES + 16;
    let header_bytes = file.len() - 3 * chunk_bytes;
    let (header, chunks) = file.split_at(header_bytes);
    let [first, second, third] = [0, 1, 2].map(|index| &chunks[index * chunk_bytes..(index + 1) * chunk_bytes]);
    let keys = [identity];
    assert!(decrypt(&[header, first, second, third].concat(), &keys).is_ok());
    for reordered in [
        &[first, second][..],
        &[first, third],
        &[second, first, third],
        &[first, second, second],
        &[first, second, third, third],
        &[],
    ] {
        assert!(decrypt(&[header, &reordered.concat()].concat(), &keys).is_err());
    }
}

/// A secret key in place of a recipient has an error of its own. No error contains a part of a secret key.
#[test]
fn x02_recipient_error_hides_text_when_parse_fails() {
    assert_eq!(SECRET.parse::<Recipient>(), Err(BadRecipient::Secret));
    assert_eq!(SECRET.to_lowercase().parse::<Recipient>(), Err(BadRecipient::Secret));
    let with_typo = PUBLIC.replacen('z', "q", 1);
    let with_trailing_space = format!("{PUBLIC} ");
    for text in ["", "age1", &*with_typo, "ssh-ed25519 AAAA", "age1yubikey1qqqq", &*with_trailing_space, "bc1qqqq"] {
        assert_eq!(text.parse::<Recipient>(), Err(BadRecipient::Unknown), "{text:?}");
    }
    for (text, expected) in [
        ("", BadIdentities::Empty),
        ("# nothing\n\n", BadIdentities::Empty),
        ("# public\nAGE-SECRET-KEY-1QQ\n", BadIdentities::Line(2)),
        (PUBLIC, BadIdentities::Line(1)),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", BadIdentities::Line(1)),
    ] {
        assert_eq!(AgeIdentity::read_all(text).err(), Some(expected), "{text:?}");
    }
    for message in [BadRecipient::Secret.to_string(), BadIdentities::Line(2).to_string()] {
        assert!(!message.contains("190CQV"), "{message}");
    }
    // With a public key of low order, every secret key gives the same shared secret, so such a key is refused.
    assert!(!is_contributory(&[0; 32]));
}
